//! `etgenai quantize`: a checkpoint and calibration data to a quantized model; with `--shard`, to observations.

use super::calibration_args::CalibrationArgs;
use super::output::{self, Align, Table, print_fields, print_json, print_line};
use super::quantize_args::QuantizeArgs;
use super::stage_progress::StageProgress;
use super::{Failure, Outcome, complain, positive};
use clap::ValueEnum;
use etgenai::checkpoint::Checkpoint;
use etgenai::dataset::{CalibrationSet, DatasetOptions, Shard};
use etgenai::pipeline::memory::peak_memory_bytes;
use etgenai::pipeline::report::{ComponentReport, StageCost};
use etgenai::pipeline::{
    ObservationsFile, PreparationOptions, PreparedModel, QuantizationInput, QuantizationReport, StageName,
    load_calibration, observe, quantize,
};
use etgenai::quantize::{ModelMode, QuantizeOptions};
use etgenai::{Error, Result};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Instant;

/// Arguments of `quantize`.
#[derive(clap::Args)]
pub struct Args {
    /// Hugging Face folder or GGUF file
    checkpoint: PathBuf,
    /// Directory to write. It appears when it is complete; a model of that name is replaced
    #[arg(long, value_name = "DIR", required_unless_present = "shard", conflicts_with = "shard")]
    out: Option<PathBuf>,
    /// Refuse a checkpoint that is not this model of `etgenai models`, and take this model's recipe
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Look at part I of N of the calibration data only, and write what was seen to --observations
    #[arg(long, value_name = "I/N", requires = "observations")]
    shard: Option<Shard>,
    /// With --shard, the file to write, or to go on with. Without it, ranges that were found before: nothing is observed again
    #[arg(long, value_name = "FILE")]
    observations: Option<PathBuf>,
    /// Keep what was observed in this file on the way: an interrupted calibration goes on from there
    #[arg(long, value_name = "FILE", conflicts_with = "observations")]
    resume: Option<PathBuf>,
    #[command(flatten)]
    calibration: CalibrationArgs,
    #[command(flatten)]
    quantization: QuantizeArgs,
    #[command(flatten)]
    graphs: GraphArgs,
    /// Threads that compute; without it one a physical core
    #[arg(long, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
}

/// Form and sizes of the graphs.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Graphs")]
pub struct GraphArgs {
    /// Which decoder graphs are made
    #[arg(long, value_enum, default_value_t = Mode::Hybrid)]
    model_mode: Mode,
    /// Tokens of the whole conversation
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 512)]
    pub max_seq_len: usize,
    /// Tokens of a prefill block
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 32)]
    prefill_ar_len: usize,
    /// Lookahead decoding: tokens of an n-gram
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 5)]
    ngram: usize,
    /// Lookahead decoding: positions ahead
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 8)]
    window: usize,
    /// Lookahead decoding: guesses that are verified at a time
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 8)]
    gcap: usize,
    /// Rotate queries and keys by a Hadamard matrix; without it as upstream does for the model
    #[arg(long, value_enum)]
    r3: Option<Switch>,
    /// Fill blocked scores instead of adding a mask; without it as upstream does for the model
    #[arg(long, value_enum)]
    masked_softmax: Option<Switch>,
}

/// `--model-mode`.
#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// One graph, a token at a time
    Kv,
    /// And one for blocks of the prompt
    Hybrid,
    /// As hybrid; the first takes the guesses of lookahead decoding
    Lookahead,
}

/// `on` or `off`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl GraphArgs {
    /// As the library wants them.
    pub fn options(&self, model: Option<String>) -> PreparationOptions {
        let is_on = |switch: Switch| switch == Switch::On;
        PreparationOptions {
            model,
            max_context: self.max_seq_len,
            prefill_ar: self.prefill_ar_len,
            mode: match self.model_mode {
                Mode::Kv => ModelMode::Kv,
                Mode::Hybrid => ModelMode::Hybrid,
                Mode::Lookahead => ModelMode::Lookahead,
            },
            lookahead: [self.ngram, self.window, self.gcap],
            r3: self.r3.map(is_on),
            masked_softmax: self.masked_softmax.map(is_on),
        }
    }
}

/// Run `etgenai quantize`.
pub fn run(args: &Args, json: bool) -> Outcome {
    let start = Instant::now();
    let prepared = PreparedModel::new(Checkpoint::open(&args.checkpoint)?, &args.graphs.options(args.model.clone()))?;
    let preparation = cost(StageName::ModelPreparation.name(), start);
    let options = args.quantization.options(&prepared.graphs().model.name, &prepared.graphs().components())?;
    let sources = args.calibration.options(prepared.graphs().context_capacity, args.shard);
    match (&args.shard, &args.out, &args.observations) {
        (Some(_), _, Some(observations)) => observe_shard(args, &prepared, &options, &sources, observations, json),
        (_, Some(out), _) => {
            let start = Instant::now();
            let (set, observations) = calibration(args, &prepared, &sources)?;
            let stages = vec![preparation, cost("calibration_data", start)];
            let progress = StageProgress::new("calibration", json);
            let input = QuantizationInput {
                prepared: &prepared,
                set: &set,
                options: &options,
                observations,
                threads: args.threads,
                unfinished: args.resume.as_deref(),
                stages,
            };
            let quantized = quantize(input, out, &mut |step| progress.job(step))?;
            drop(progress);
            show(quantized.report(), out, json)
        }
        _ => Err(Failure::Usage(Error::invalid("--out DIR is needed, or --shard I/N with --observations FILE"))),
    }
}

/// Time since `start`, and memory up to now.
fn cost(stage: &str, start: Instant) -> StageCost {
    StageCost { stage: stage.into(), seconds: start.elapsed().as_secs_f64(), peak_memory_bytes: peak_memory_bytes() }
}

/// Ranges that were found before, or data to find them with. With both, the data is what the report is made with.
fn calibration(
    args: &Args,
    prepared: &PreparedModel,
    sources: &DatasetOptions,
) -> Result<(CalibrationSet, Option<ObservationsFile>)> {
    let observations = args.observations.as_deref().map(ObservationsFile::open).transpose()?;
    if observations.is_some() && !sources.has_source() {
        return Ok((CalibrationSet::empty(), observations));
    }
    Ok((load_calibration(prepared, sources)?, observations))
}

fn observe_shard(
    args: &Args,
    prepared: &PreparedModel,
    options: &QuantizeOptions,
    sources: &DatasetOptions,
    path: &std::path::Path,
    json: bool,
) -> Outcome {
    let start = Instant::now();
    let set = load_calibration(prepared, sources)?;
    let progress = StageProgress::new("calibration", json);
    let file = observe(prepared, &set, options, args.threads, path, &mut |step| progress.job(step))?;
    drop(progress);
    let taken = cost("calibration", start);
    if json {
        let document =
            json!({ "observations": path, "model": file.model, "calibration": file.calibration, "stages": [taken] });
        return Ok(print_json(&document)?);
    }
    let calibration = &file.calibration;
    let shard = calibration.shard.map_or_else(|| "all".into(), |shard| shard.to_string());
    Ok(print_fields(&[
        ("model", file.model.clone()),
        ("shard", shard),
        ("seen", format!("{} samples, {} tokens", calibration.samples, calibration.tokens)),
        ("time", time_and_memory(&taken)),
        ("written to", path.display().to_string()),
    ])?)
}

/// `1.2 s, peak 345 MB`.
pub fn time_and_memory(cost: &StageCost) -> String {
    let memory = cost.peak_memory_bytes.map(|bytes| format!(", peak {}", output::bytes(bytes)));
    format!("{:.2} s{}", cost.seconds, memory.unwrap_or_default())
}

fn show(report: &QuantizationReport, out: &std::path::Path, json: bool) -> Outcome {
    if json {
        return Ok(print_json(&summary(report, out))?);
    }
    report.warnings.iter().for_each(|warning| complain(&format!("warning: {warning}")));
    let calibration = &report.calibration;
    let mut fields = vec![
        ("model", report.model.clone()),
        (
            "calibrated",
            format!("{} samples, {} tokens, {} media", calibration.samples, calibration.tokens, calibration.media),
        ),
    ];
    fields.extend(report.stages.iter().map(|stage| (stage.stage.as_str(), time_and_memory(stage))));
    fields.push(("written to", out.display().to_string()));
    print_fields(&fields)?;
    print_line("")?;
    Ok(component_table(report).print()?)
}

/// A line a component: what it is, how large, how good.
pub fn component_table(report: &QuantizationReport) -> Table {
    let mut table = Table::new(&[
        ("component", Align::Left),
        ("precision", Align::Left),
        ("files", Align::Right),
        ("on device", Align::Right),
        ("weights", Align::Left),
        ("output SQNR", Align::Right),
        ("seconds", Align::Left),
    ]);
    for (name, component) in &report.components {
        let formats = component.formats.iter().map(|(format, sum)| format!("{format} {}", output::bytes(sum.bytes)));
        let seconds = component.seconds.iter().map(|(phase, seconds)| format!("{phase} {seconds:.2}"));
        table.row(vec![
            name.clone(),
            component.precision.clone(),
            output::bytes(component.bytes),
            output::bytes(component.device_bytes),
            formats.collect::<Vec<_>>().join(", "),
            output_sqnr(component).map_or_else(|| "-".into(), |db| format!("{db:.1} dB")),
            seconds.collect::<Vec<_>>().join(", "),
        ]);
    }
    table
}

/// SQNR of what comes out of a component; of a decoder, of its logits.
fn output_sqnr(component: &ComponentReport) -> Option<f64> {
    let outputs = component.layers.iter().filter(|layer| layer.layer.starts_with("output "));
    let logits = outputs.clone().find(|layer| layer.layer == "output logits");
    logits.or_else(|| outputs.clone().next()).and_then(|layer| layer.mean_db())
}

fn summary(report: &QuantizationReport, out: &std::path::Path) -> Value {
    let component = |component: &ComponentReport| {
        json!({
            "precision": component.precision,
            "bytes": component.bytes,
            "device_bytes": component.device_bytes,
            "formats": component.formats,
            "output_sqnr_db": output_sqnr(component),
            "seconds": component.seconds,
        })
    };
    let components = report.components.iter().map(|(name, report)| (name.clone(), component(report)));
    json!({
        "out": out,
        "model": report.model,
        "calibration": report.calibration,
        "components": components.collect::<serde_json::Map<_, _>>(),
        "warnings": report.warnings,
        "stages": report.stages,
    })
}
