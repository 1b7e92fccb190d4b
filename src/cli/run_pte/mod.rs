//! `etgenai run-pte`: the command line of upstream's runners for Qualcomm, over our runner.
//!
//! - `syntax`, `flags`: gflags, and what both runners' flags mean together.
//! - `inputs`, `outputs`, `own_stdout`: files in, files and JSON out.
//! - `model`: engine, programs, runner. `conversation`: turn after turn. `tokens`: a turn whose prompt is ids.
//! - `pieces`: tokens as these runners print them.
//! - `log`: log lines in ExecuTorch's form.

mod conversation;
mod flags;
mod inputs;
mod log;
mod model;
mod outputs;
mod own_stdout;
mod pieces;
mod syntax;
mod tokens;

use super::output::print_piece;
use super::{Failure, Outcome};
use conversation::Conversation;
use etgenai::chat::TokenizerFormat;
use flags::{Flags, Mode, Programs, Request};
use outputs::Outputs;
use own_stdout::OwnStdout;

/// File names of upstream's runners: called by one of them, the whole command line is a runner's.
pub const UPSTREAM_NAMES: [&str; 2] = ["qnn_llama_runner", "qnn_multimodal_runner"];

/// Arguments are not clap's business: they have another syntax.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Flags of qnn_llama_runner or qnn_multimodal_runner; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

/// Run `etgenai run-pte`.
pub fn run(args: &Args, json: bool) -> Outcome {
    run_flags(&args.flags, json)
}

/// Run a runner's command line.
pub fn run_flags(arguments: &[String], json: bool) -> Outcome {
    match Request::parse(arguments).map_err(Failure::Usage)? {
        Request::Help => Ok(print_piece(&flags::help())?),
        Request::Run(flags) => {
            let json = json || flags.json;
            hold(&Flags { json, ..*flags })
        }
    }
}

/// Hold the conversation. Whatever ends it, what was said until then is written.
fn hold(flags: &Flags) -> Outcome {
    log::install();
    announce(flags);
    let stdout = flags.json.then(OwnStdout::take).transpose()?;
    let mut outputs = Outputs::create(flags)?;
    let mut turns = Vec::new();
    let outcome = converse(flags, &mut outputs, &mut turns);
    let written = outputs.finish();
    outcome?;
    written?;
    match stdout {
        Some(mut stdout) => Ok(stdout.print_json(&serde_json::json!({ "turns": turns }))?),
        None => Ok(()),
    }
}

fn announce(flags: &Flags) {
    if !flags.ignored.is_empty() {
        ::log::warn!("Ignored arguments that belong to no flag: {}", flags.ignored.join(" "));
    }
    match &flags.programs {
        Programs::Text { model } => ::log::info!("creating module: model_path={}", model.display()),
        Programs::Multimodal { encoder, tok_embedding, decoder } => {
            ::log::info!("Load Encoder: {}", encoder.display());
            ::log::info!("Load Token Embedding: {}", tok_embedding.display());
            ::log::info!("Load Text Decoder: {}", decoder.display());
        }
    }
    ::log::info!("creating runner: tokenizer_path={}", flags.tokenizer.display());
    let mode = match flags.mode {
        Mode::Kv => 0,
        Mode::Hybrid => 1,
        Mode::Lookahead { .. } => 2,
    };
    ::log::info!("eval mode={mode}");
}

fn converse(flags: &Flags, outputs: &mut Outputs, turns: &mut Vec<serde_json::Value>) -> Outcome {
    let engine = model::open_engine(flags)?;
    let format = TokenizerFormat::of_file(&flags.tokenizer)?;
    let started = conversation::epoch_ms();
    let runner = model::open_runner(flags, &engine)?;
    let kind = match format {
        TokenizerFormat::HuggingFace => "json",
        TokenizerFormat::Tekken => "tekken",
        TokenizerFormat::Tiktoken => "TikToken",
        TokenizerFormat::SentencePiece => "Sentencepiece",
        TokenizerFormat::Llama2c => "BPE",
    };
    ::log::info!("Loaded {kind} tokenizer");
    let mut conversation = Conversation::new(flags, runner, format, (started, conversation::epoch_ms()), outputs)?;
    conversation.hold(turns)
}
