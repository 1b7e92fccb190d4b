//! `etgenai eval`: perplexity on a text, by the protocol of [`etgenai::runner::perplexity`]; with `--suite`, questions about
//! pictures.

use super::interrupt;
use super::output::{print_fields, print_json};
use super::progress::Progress;
use super::stage_progress::StageProgress;
use super::{Failure, Outcome, positive, suite};
use clap::ValueEnum;
use etgenai::Error;
use etgenai::artefact::{Artefact, TEXT_DECODER};
use etgenai::chat::{EncodeOptions, Tokenizer};
use etgenai::pipeline::QuantizedModel;
use etgenai::runner::{EvalOptions, Flow, Perplexity, Runner, RunnerOptions};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `eval`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory written by `etgenai compile` or `etgenai quantize`; with `--suite`, the model that ships inside this command if left out
    #[arg(required_unless_present = "suite")]
    dir: Option<PathBuf>,
    /// UTF-8 text to score
    #[arg(long, value_name = "FILE", required_unless_present = "suite", conflicts_with = "suite")]
    text: Option<PathBuf>,
    /// Ask the questions of a suite instead
    #[arg(long, value_enum)]
    suite: Option<Suite>,
    /// easy-VQA's folder `easy_vqa/data`, for the suite
    #[arg(long, value_name = "DIR", default_value = suite::DEFAULT_DATA)]
    data: PathBuf,
    /// Tokens of a window. Each window starts with an empty context; its first token is not scored
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_two)]
    window: usize,
    /// Leave out a last window that is not full
    #[arg(long)]
    full_windows_only: bool,
    /// Threads that compute; without it one a physical core
    #[arg(long, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
}

/// `--suite`.
#[derive(Clone, Copy, ValueEnum)]
enum Suite {
    /// Coloured shapes: easy-VQA's test questions, and conversations about several of its test pictures
    Demo,
}

fn at_least_two(text: &str) -> Result<usize, String> {
    match positive(text)? {
        1 => Err("must be 2 or more: the first token of a window is not scored".into()),
        tokens => Ok(tokens),
    }
}

/// Run `etgenai eval`.
pub fn run(args: &Args, json: bool) -> Outcome {
    if let Some(Suite::Demo) = args.suite {
        return suite::run(args.dir.as_deref(), &args.data, args.threads, json);
    }
    let (Some(dir), Some(text)) = (&args.dir, &args.text) else {
        return Err(Failure::Usage(Error::invalid("a directory and --text FILE are needed, or --suite demo")));
    };
    let text = read_text(text)?;
    if is_quantized(dir)? {
        return score_quantized(dir, &text, args, json);
    }
    let mut runner = Runner::open(dir, &RunnerOptions { threads: args.threads, ..RunnerOptions::default() })?;
    let tokens = runner.tokenizer().encode(&text, EncodeOptions { add_bos: false, parse_special: false })?;

    let start = Instant::now();
    let result = score(&mut runner, &tokens, args, json)?;
    let seconds = start.elapsed().as_secs_f64();
    let engine = runner.decoder().component().description();
    show(args, &result, tokens.len(), seconds, &engine, json)
}

fn show(args: &Args, result: &Perplexity, text_tokens: usize, seconds: f64, engine: &str, json: bool) -> Outcome {
    if json {
        return Ok(print_json(&json!({
            "text": args.text,
            "text_tokens": text_tokens,
            "window": args.window,
            "full_windows_only": args.full_windows_only,
            "windows": result.windows,
            "scored_tokens": result.scored_tokens,
            "nll_sum": result.mean_nll * result.scored_tokens as f64,
            "mean_nll": result.mean_nll,
            "perplexity": result.perplexity,
            "seconds": seconds,
            "engine": engine,
        }))?);
    }
    Ok(print_fields(&[
        ("perplexity", format!("{:.4}", result.perplexity)),
        ("scored", format!("{} of {text_tokens} tokens", result.scored_tokens)),
        ("windows", format!("{} of {} tokens", result.windows, args.window)),
        ("time", format!("{seconds:.1} s, {:.1} tokens/s", result.scored_tokens as f64 / seconds)),
        ("engine", engine.to_owned()),
    ])?)
}

fn read_text(path: &Path) -> etgenai::Result<String> {
    let bytes = std::fs::read(path).map_err(|error| Error::io(path, error))?;
    String::from_utf8(bytes).map_err(|error| Error::format(path, "text", error.to_string()))
}

fn is_quantized(dir: &Path) -> etgenai::Result<bool> {
    Ok(Artefact::open(dir)?.manifest().is_quantized_model())
}

/// A quantized model, with the arithmetic of its quantize-dequantize nodes.
fn score_quantized(dir: &Path, text: &str, args: &Args, json: bool) -> Outcome {
    let model = QuantizedModel::open(dir)?;
    let artefact = model.artefact();
    let tokenizer = Tokenizer::from_bytes(&artefact.tokenizer_json()?, &artefact.manifest().special_tokens)?;
    let tokens = tokenizer.encode(text, EncodeOptions { add_bos: false, parse_special: false })?;
    let start = Instant::now();
    let options = EvalOptions { window: args.window, full_windows_only: args.full_windows_only };
    let progress = StageProgress::new("scoring", json);
    let mut step = |layer: &str, done: usize, total: usize| progress.step(layer, done as u64, total as u64);
    let result = model.perplexity(&tokens, &options, args.threads, &mut step)?;
    drop(progress);
    let precision = model.report().components.get(TEXT_DECODER).map_or("", |decoder| decoder.precision.as_str());
    let engine = format!("quantize-dequantize arithmetic, decoder {precision}");
    show(args, &result, tokens.len(), start.elapsed().as_secs_f64(), &engine, json)
}

fn score(runner: &mut Runner, tokens: &[u32], args: &Args, json: bool) -> etgenai::Result<Perplexity> {
    let cancel = runner.cancel_handle();
    let _scope = interrupt::cancels_with(move || cancel.cancel());
    let bar = Progress::steps("scoring", "tokens", json);
    let options = EvalOptions { window: args.window, full_windows_only: args.full_windows_only };
    runner.evaluate(tokens, &options, &mut |so_far| {
        bar.set(so_far.scored as u64, so_far.total as u64);
        Flow::Continue
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_needs_a_token_to_score() {
        assert_eq!(at_least_two("2"), Ok(2));
        for wrong in ["0", "1", "-1", "x", ""] {
            assert!(at_least_two(wrong).is_err(), "{wrong}");
        }
    }
}
