//! `etgenai compile`: a checkpoint to a directory that the other subcommands open.

use super::output::{self, merge, print_fields, print_json};
use super::progress::Progress;
use super::{Outcome, interrupt, positive};
use clap::ValueEnum;
use etgenai::checkpoint::Checkpoint;
use etgenai::compile::{CompileOptions, CompileReport, Flow, Stage, compile_checkpoint};
use etgenai::formats::WeightFormat;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Arguments of `compile`.
#[derive(clap::Args)]
pub struct Args {
    /// Hugging Face folder or GGUF file
    checkpoint: PathBuf,
    /// Directory to write. It appears when it is complete; a compiled directory of that name is replaced
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Storage of the weight matrices
    #[arg(long, value_enum, default_value_t = Weights::F16)]
    weights: Weights,
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

/// Run `etgenai compile`.
pub fn run(args: &Args, json: bool) -> Outcome {
    let checkpoint = Checkpoint::open(&args.checkpoint)?;
    let options = CompileOptions {
        weights: args.weights.into(),
        max_context: args.max_context,
        prefill_ar: args.prefill_ar,
        model: args.model.clone(),
        threads: args.threads,
    };
    let report = compile(&checkpoint, args, &options, json)?;
    if json {
        let mut document = json!({ "out": args.out });
        merge(&mut document, json!(report));
        return Ok(print_json(&document)?);
    }
    let formats = report.formats.iter().map(|(name, sum)| format!("{name} {}", output::bytes(sum.bytes)));
    Ok(print_fields(&[
        ("model", report.model.clone()),
        ("weights", formats.collect::<Vec<_>>().join(", ")),
        ("capacity", format!("{} tokens, prefill in blocks of {}", report.context_capacity, report.prefill_ar)),
        ("time", format!("{:.1} s", report.seconds)),
        ("written to", args.out.display().to_string()),
    ])?)
}

fn compile(
    checkpoint: &Checkpoint,
    args: &Args,
    options: &CompileOptions,
    json: bool,
) -> etgenai::Result<CompileReport> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let _scope = interrupt::cancels_with({
        let cancelled = cancelled.clone();
        move || cancelled.store(true, Ordering::Relaxed)
    });
    let bar = Progress::bytes("graphs", json);
    compile_checkpoint(checkpoint, &args.out, options, &mut |progress| {
        if progress.stage == Stage::Weights {
            bar.set(progress.done, progress.total);
        }
        bar.message(progress.item);
        if cancelled.load(Ordering::Relaxed) { Flow::Cancel } else { Flow::Continue }
    })
}
