//! `etgenai compile`: a checkpoint, or a quantized model, to a directory that the other subcommands open.

use super::output::{self, merge, print_fields, print_json};
use super::progress::Progress;
use super::{Failure, Outcome, interrupt, positive};
use clap::ValueEnum;
use etgenai::Error;
use etgenai::artefact::{Artefact, FormatSummary, TEXT_DECODER};
use etgenai::checkpoint::Checkpoint;
use etgenai::compile::{
    self, CompileOptions, CompileReport, Flow, QuantizedCompileOptions, Stage, compile_checkpoint, compile_quantized,
    recompile_component,
};
use etgenai::formats::WeightFormat;
use etgenai::registry;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Arguments of `compile`.
#[derive(clap::Args)]
pub struct Args {
    /// Hugging Face folder or GGUF file; or a quantized model, of which the integers are taken: formats and context come with
    /// it, so only --out, --prefill-ar and --threads go with one
    checkpoint: PathBuf,
    /// Directory to write. It appears when it is complete; a compiled directory of that name is replaced
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Storage of the weight matrices; without it f16
    #[arg(long, value_enum)]
    weights: Option<Weights>,
    /// Storage of the vision encoder's matrices; without it as --weights, but w8 for w4
    #[arg(long, value_enum, value_name = "WEIGHTS")]
    vision_weights: Option<Weights>,
    /// Storage of the token embedding of a model that sees; without it as --weights. w4 is stored as w8
    #[arg(long, value_enum, value_name = "WEIGHTS")]
    embedding_weights: Option<Weights>,
    /// Positions of the patches in SmolVLM's encoder; without it identity
    #[arg(long, value_enum, value_name = "RULE")]
    position_rule: Option<PositionRule>,
    /// Compile only this component of the compiled model in DIR again (vision_encoder, tok_embedding, text_decoder);
    /// its other files stay as they are
    #[arg(long, value_name = "COMPONENT")]
    only: Option<String>,
    /// Tokens of the whole conversation; without it 2048, or less if the model was made for less
    #[arg(long, value_name = "N", value_parser = positive)]
    max_context: Option<usize>,
    /// Tokens of a prefill block; without it 32
    #[arg(long, value_name = "N", value_parser = positive)]
    prefill_ar: Option<usize>,
    /// Refuse a checkpoint that is not this model of `etgenai models`
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Threads that pack weights; without it one a physical core
    #[arg(long, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
}

/// `--weights`.
#[derive(Clone, Copy, ValueEnum)]
enum Weights {
    /// 32-bit floats, as they are
    F32,
    /// 16-bit floats
    F16,
    /// bfloat16
    Bf16,
    /// 8-bit integers in groups of 32
    W8,
    /// 4-bit integers in groups of 32; embedding table and output head 8-bit
    W4,
}

impl From<Weights> for WeightFormat {
    fn from(weights: Weights) -> Self {
        match weights {
            Weights::F32 => Self::F32,
            Weights::F16 => Self::F16,
            Weights::Bf16 => Self::Bf16,
            Weights::W8 => Self::W8,
            Weights::W4 => Self::W4,
        }
    }
}

/// `--position-rule`.
#[derive(Clone, Copy, ValueEnum)]
enum PositionRule {
    /// Row by row, as the model was trained
    Identity,
    /// What upstream's export computes (0, 0, 1, 2, … on each axis), for comparisons with its files
    UpstreamShifted,
}

impl From<PositionRule> for registry::PositionRule {
    fn from(rule: PositionRule) -> Self {
        match rule {
            PositionRule::Identity => Self::Identity,
            PositionRule::UpstreamShifted => Self::UpstreamShifted,
        }
    }
}

/// Run `etgenai compile`.
pub fn run(args: &Args, json: bool) -> Outcome {
    let report = if is_quantized_model(&args.checkpoint)? {
        refuse_options_of_checkpoints(args)?;
        let options = QuantizedCompileOptions { prefill_ar: args.prefill_ar, threads: args.threads };
        with_progress(json, &mut |progress| compile_quantized(&args.checkpoint, &args.out, &options, progress))?
    } else {
        compile_floats(args, json)?
    };
    if json {
        let mut document = json!({ "out": args.out });
        merge(&mut document, json!(report));
        return Ok(print_json(&document)?);
    }
    let capacity = format!("{} tokens, prefill in blocks of {}", report.context_capacity, report.prefill_ar);
    let mut fields = vec![("model", report.model.clone())];
    fields.extend(weights_fields(&report));
    fields.extend([
        ("capacity", capacity),
        ("time", format!("{:.1} s", report.seconds)),
        ("written to", args.out.display().to_string()),
    ]);
    Ok(print_fields(&fields)?)
}

/// What each component holds; a model of one component needs no name for it.
fn weights_fields(report: &CompileReport) -> Vec<(&str, String)> {
    let line = |formats: &BTreeMap<String, FormatSummary>| {
        let parts = formats.iter().map(|(name, sum)| format!("{name} {}", output::bytes(sum.bytes)));
        parts.collect::<Vec<_>>().join(", ")
    };
    if report.components.len() == 1 && report.components.contains_key(TEXT_DECODER) {
        return vec![("weights", line(&report.formats))];
    }
    report.components.iter().map(|(name, component)| (name.as_str(), line(&component.formats))).collect()
}

/// Whether the path is a directory that `etgenai quantize` wrote.
fn is_quantized_model(path: &Path) -> etgenai::Result<bool> {
    Ok(Artefact::is_artefact(path) && Artefact::open(path)?.manifest().is_quantized_model())
}

/// Options that decide about what is decided already.
fn refuse_options_of_checkpoints(args: &Args) -> Result<(), Failure> {
    let given = [
        ("--weights", args.weights.is_some()),
        ("--vision-weights", args.vision_weights.is_some()),
        ("--embedding-weights", args.embedding_weights.is_some()),
        ("--position-rule", args.position_rule.is_some()),
        ("--only", args.only.is_some()),
        ("--max-context", args.max_context.is_some()),
        ("--model", args.model.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(Failure::Usage(Error::invalid(format!(
            "{} is a quantized model, which brings its formats and its context along: {option} does not go with it",
            args.checkpoint.display()
        )))),
        None => Ok(()),
    }
}

fn compile_floats(args: &Args, json: bool) -> etgenai::Result<CompileReport> {
    let checkpoint = Checkpoint::open(&args.checkpoint)?;
    let options = CompileOptions {
        vision_weights: args.vision_weights.map(WeightFormat::from),
        embedding_weights: args.embedding_weights.map(WeightFormat::from),
        position_rule: args.position_rule.unwrap_or(PositionRule::Identity).into(),
        max_context: args.max_context,
        prefill_ar: args.prefill_ar,
        model: args.model.clone(),
        threads: args.threads,
        ..CompileOptions::new(args.weights.unwrap_or(Weights::F16).into())
    };
    with_progress(json, &mut |progress| match &args.only {
        Some(component) => recompile_component(&checkpoint, &args.out, component, &options, progress),
        None => compile_checkpoint(&checkpoint, &args.out, &options, progress),
    })
}

/// Compile with a progress bar; Ctrl-C cancels.
fn with_progress(
    json: bool,
    compile: &mut dyn FnMut(&mut compile::ProgressFn<'_>) -> etgenai::Result<CompileReport>,
) -> etgenai::Result<CompileReport> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let _scope = interrupt::cancels_with({
        let cancelled = cancelled.clone();
        move || cancelled.store(true, Ordering::Relaxed)
    });
    let bar = Progress::bytes("graphs", json);
    compile(&mut |progress: compile::Progress<'_>| {
        if progress.stage == Stage::Weights {
            bar.set(progress.done, progress.total);
        }
        bar.message(progress.item);
        if cancelled.load(Ordering::Relaxed) { Flow::Cancel } else { Flow::Continue }
    })
}
