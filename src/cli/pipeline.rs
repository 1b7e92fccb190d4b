//! `etgenai pipeline`: upstream's command line of its GenAI pipeline, by its names and defaults, over a local checkpoint.

use super::calibration_args::CalibrationArgs;
use super::output::{print_fields, print_json, print_line, print_piece};
use super::quantize::{GraphArgs, component_table, time_and_memory};
use super::quantize_args::{QuantizeArgs, components_of};
use super::stage_progress::StageProgress;
use super::{Outcome, complain, positive};
use clap::ValueEnum;
use etgenai::pipeline::options::{EmbeddingQuantize, is_multimodal};
use etgenai::pipeline::report::StageCost;
use etgenai::pipeline::{
    Backend, Pipeline, PipelineContext, PipelineEvent, PipelineOptions, PipelineOutcome, QuantizedModel, StageName,
    StageOutcome, StageState,
};
use etgenai::registry::{self, RegistryEntry};
use etgenai::runner::{GenerateOptions, SamplingOptions};
use etgenai::{Error, Result};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The prompt if none is given.
const GREETING: &str = "Hello! Who are you, and what can you do?";
/// The chip of upstream's examples.
const DEFAULT_SOC: &str = "SM8750";

/// Arguments of `pipeline`.
#[derive(clap::Args)]
pub struct Args {
    /// Name of the model, see --list-models
    #[arg(long, value_name = "NAME", required_unless_present = "list_models")]
    model: Option<String>,
    /// List the names of models and end
    #[arg(long)]
    list_models: bool,
    /// Hugging Face folder or GGUF file
    #[arg(long, value_name = "DIR|GGUF")]
    checkpoint: Option<PathBuf>,
    /// Meta's params.json beside a checkpoint in Meta's layout
    #[arg(long, value_name = "FILE", requires = "checkpoint")]
    params: Option<PathBuf>,
    /// Tokenizer instead of the checkpoint's own
    #[arg(long, value_name = "FILE", requires = "checkpoint")]
    tokenizer_model: Option<PathBuf>,
    /// Tokenizer of llama2.c instead of the checkpoint's own
    #[arg(long, value_name = "FILE", requires = "checkpoint", conflicts_with = "tokenizer_model")]
    tokenizer_bin: Option<PathBuf>,
    /// Folder that every stage writes to
    #[arg(long, value_name = "DIR", default_value = etgenai::pipeline::context::DEFAULT_ARTIFACT_DIR)]
    artifact_dir: PathBuf,
    /// Leave quantization out
    #[arg(long)]
    use_fp16: bool,
    /// Quantize the token embedding: 8,0 or 4,32 for instance; for --backend cpu only
    #[arg(long, value_name = "BITS,GROUP")]
    embedding_quantize: Option<EmbeddingQuantize>,
    /// Suggest a recipe of mixed precision from what quantization did to each layer
    #[arg(long)]
    quant_recipe_suggestion: bool,
    /// Samples that are calibrated together
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 1)]
    batch_size: usize,
    #[command(flatten)]
    calibration: CalibrationArgs,
    #[command(flatten)]
    upstream_calibration: UpstreamCalibrationArgs,
    #[command(flatten)]
    training: TrainingArgs,
    #[command(flatten)]
    evaluation: EvaluationArgs,
    #[command(flatten)]
    quantization: QuantizeArgs,
    #[command(flatten)]
    graphs: GraphArgs,
    /// Always overwritten with --max-seq-len
    #[arg(long, value_name = "N", value_parser = positive)]
    max_context_len: Option<usize>,
    /// Floats that weights are read as; everything is read as fp32 here
    #[arg(long, value_enum, default_value_t = Floats::Fp32)]
    dtype_override: Floats,
    /// Chip that the results are for
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SOC)]
    soc: String,
    /// Backend that the results are for; htp and gpu end with the quantized model
    #[arg(long, value_name = "NAME", default_value = "htp")]
    backend: String,
    /// Prompts, turns of one conversation
    #[arg(long, value_name = "TEXT", num_args = 1.., default_value = GREETING)]
    prompt: Vec<String>,
    /// System message
    #[arg(long, value_name = "TEXT", default_value = "")]
    system_prompt: String,
    /// 0 picks the most likely token every time; above 0 samples
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f32,
    /// Longest reply, in tokens; without it the context is the limit
    #[arg(long, value_name = "N", value_parser = positive)]
    max_new_tokens: Option<usize>,
    /// Seed of the random numbers
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Sounds for the prompts
    #[arg(long, value_name = "FILE", num_args = 1..)]
    audio_path: Vec<PathBuf>,
    /// Pictures for the prompts
    #[arg(long, value_name = "FILE", num_args = 1..)]
    image_path: Vec<PathBuf>,
    /// End with the compiled model
    #[arg(long, conflicts_with = "pre_gen_pte")]
    compile_only: bool,
    /// Answer the prompts with a model that was compiled before
    #[arg(long, value_name = "DIR")]
    pre_gen_pte: Option<PathBuf>,
    /// Not supported by the pipeline
    #[arg(long, value_name = "SINK,EVICT")]
    use_attention_sink: Option<String>,
    /// Say on standard error what each stage is doing
    #[arg(short, long)]
    verbose: bool,
    /// Ranges that were found before, e.g. joined from shards by `etgenai merge`
    #[arg(long, value_name = "FILE")]
    observations: Option<PathBuf>,
    /// Stages that are not run: model_preparation, quantization, compilation, inference. What was saved of them is used
    #[arg(long, value_name = "STAGE", num_args = 1.., value_parser = stage, conflicts_with = "only")]
    skip: Vec<StageName>,
    /// Run these stages only, over what was saved of the others
    #[arg(long, value_name = "STAGE", num_args = 1.., value_parser = stage)]
    only: Vec<StageName>,
    /// Run every stage, even if what was saved of it was made from the same inputs
    #[arg(long)]
    redo: bool,
    /// Threads that compute; without it one a physical core
    #[arg(long, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
}

/// Upstream's sources of calibration data that come from its Python packages.
#[derive(clap::Args)]
#[command(next_help_heading = "Calibration data by upstream's names")]
struct UpstreamCalibrationArgs {
    /// Tasks of lm-eval; cannot be run here
    #[arg(long, value_name = "TASK", num_args = 1..)]
    calib_tasks: Vec<String>,
    /// Samples of each task
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 1)]
    calib_limit: usize,
    /// Examples in front of each sample of a task
    #[arg(long, value_name = "N")]
    calib_num_fewshot: Option<usize>,
    /// A chat set as a local JSONL file, as --calib-chat; nothing is downloaded
    #[arg(long, value_name = "FILE", conflicts_with = "calib_chat")]
    calib_hf_dataset: Option<String>,
    /// Rows of that chat set
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 1)]
    calib_hf_limit: usize,
}

/// Accepted as upstream accepts them: without --qat, which is not supported, they have no effect.
#[derive(clap::Args)]
#[command(next_help_heading = "Training, which needs --qat and is not supported")]
struct TrainingArgs {
    /// Quantization-aware training
    #[arg(long)]
    qat: bool,
    #[arg(long, value_name = "FILE")]
    train_config: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    lr_config: Option<PathBuf>,
    #[arg(long, value_name = "TASK", num_args = 1..)]
    train_tasks: Vec<String>,
    #[arg(long, value_name = "N", default_value_t = 1)]
    train_limit: usize,
    #[arg(long, value_name = "NAME")]
    train_hf_dataset: Option<String>,
    #[arg(long, value_name = "N", default_value_t = 1000)]
    train_hf_limit: usize,
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    train_val_ratio: f64,
    #[arg(long)]
    freeze_all_params: bool,
}

/// Accepted as upstream accepts them, which does not use them yet.
#[derive(clap::Args)]
#[command(next_help_heading = "Evaluation; see also `etgenai eval`")]
struct EvaluationArgs {
    #[arg(long, value_name = "TASK", num_args = 1..)]
    eval_tasks: Vec<String>,
    #[arg(long, value_name = "METHOD", num_args = 1.., default_value = "prompt_eval")]
    eval_methods: Vec<String>,
    #[arg(long, value_name = "N", default_value_t = 1)]
    eval_limit: usize,
    #[arg(long, value_name = "N")]
    eval_num_fewshot: Option<usize>,
}

/// `--dtype-override`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Floats {
    Fp32,
    Fp16,
}

fn stage(name: &str) -> std::result::Result<StageName, String> {
    StageName::parse(name).map_err(|error| error.to_string())
}

/// Run `etgenai pipeline`.
pub fn run(args: &Args, json: bool) -> Outcome {
    if args.list_models {
        return list_models(json);
    }
    let name = args.model.as_deref().unwrap_or_default();
    let entry = registry::find(name)?;
    let mut notes = args.reject_and_note(entry)?;
    let context = PipelineContext::builder()
        .model_name(entry.name)
        .soc_model(&args.soc)
        .prompt(&args.prompt)
        .artifact_dir(&args.artifact_dir)
        .build()?;
    let (pipeline, warnings) = args.options(entry)?.pipeline(&context)?;
    notes.extend(warnings.into_iter().map(|text| format!("warning: {text}")));
    if !json {
        notes.iter().for_each(|note| complain(note));
    }
    let outcome = invoke(&pipeline, &context, args, json)?;
    show(args, &pipeline, &context, &outcome, &notes, json)
}

/// Upstream's names, sorted.
fn list_models(json: bool) -> Outcome {
    let mut names = registry::entries().iter().map(|entry| entry.name).collect::<Vec<_>>();
    names.sort_unstable();
    if json {
        return Ok(print_json(&json!({ "models": names }))?);
    }
    names.iter().try_for_each(|name| print_line(name))?;
    Ok(())
}

impl Args {
    /// Refuse what the pipeline does not do, as upstream's does; give what is only worth a line.
    fn reject_and_note(&self, entry: &RegistryEntry) -> Result<Vec<String>> {
        let unsupported = |text: String| Err(Error::Unsupported(text));
        if self.training.qat {
            return unsupported("--qat: QAT is not yet supported".into());
        }
        if self.use_attention_sink.is_some() {
            return unsupported("--use-attention-sink is currently unsupported in GenAI Pipeline".into());
        }
        let upstream = &self.upstream_calibration;
        let foreign = !upstream.calib_tasks.is_empty() || upstream.calib_hf_dataset.is_some();
        if is_multimodal(entry) && foreign {
            return unsupported(format!(
                "--calib-tasks and --calib-hf-dataset: {} is multimodal, and its calibration supports --calib-samples only",
                entry.name
            ));
        }
        if !upstream.calib_tasks.is_empty() {
            return unsupported(
                "--calib-tasks: tasks of lm-eval cannot be run here; write their texts to a file and give it with --calib-text, or \
                 conversations with --calib-chat"
                    .into(),
            );
        }
        if let Some(name) = upstream.calib_hf_dataset.as_deref().filter(|name| !PathBuf::from(name).is_file()) {
            return unsupported(format!(
                "--calib-hf-dataset {name}: nothing is downloaded, and there is no such file; save the data set as JSON lines with \
                 a field \"messages\" and give that file here or with --calib-chat"
            ));
        }
        let mut notes = Vec::new();
        let sequence = self.graphs.max_seq_len;
        if let Some(context) = self.max_context_len.filter(|context| *context != sequence) {
            notes.push(format!("info: --max-context-len {context} is overwritten with --max-seq-len {sequence}"));
        }
        if !self.evaluation.eval_tasks.is_empty() {
            notes.push("warning: --eval-tasks is not used: measure with `etgenai eval DIR --text FILE`".into());
        }
        if self.dtype_override == Floats::Fp16 {
            notes.push(
                "warning: --dtype-override fp16 has no effect: weights are read as they are, computed in fp32".into(),
            );
        }
        Ok(notes)
    }

    fn options(&self, entry: &RegistryEntry) -> Result<PipelineOptions> {
        let mut calibration = self.calibration.options(self.graphs.max_seq_len, None);
        if let Some(file) = &self.upstream_calibration.calib_hf_dataset {
            calibration.chats.push(file.into());
            calibration.chat_limit = Some(self.upstream_calibration.calib_hf_limit);
        }
        let components = components_of(is_multimodal(entry));
        Ok(PipelineOptions {
            checkpoint: self.checkpoint.clone(),
            params: self.params.clone(),
            tokenizer: self.tokenizer_model.clone().or_else(|| self.tokenizer_bin.clone()),
            backend: Backend::parse(&self.backend)?,
            preparation: self.graphs.options(Some(entry.name.into())),
            calibration,
            observations: self.observations.clone(),
            quantization: if self.use_fp16 {
                Default::default()
            } else {
                self.quantization.options(entry.name, components)?
            },
            embedding_quantize: self.embedding_quantize,
            suggest_recipe: self.quant_recipe_suggestion,
            use_fp16: self.use_fp16,
            batch_size: self.batch_size,
            compile_only: self.compile_only,
            pre_generated: self.pre_gen_pte.clone(),
            system_prompt: Some(self.system_prompt.clone()),
            generate: GenerateOptions {
                max_new_tokens: self.max_new_tokens,
                sampling: SamplingOptions {
                    temperature: self.temperature,
                    seed: self.seed,
                    ..SamplingOptions::default()
                },
                ..GenerateOptions::default()
            },
            images: self.image_path.clone(),
            audio: self.audio_path.clone(),
            skip: self.left_out(),
            redo: self.redo,
            threads: self.threads,
        })
    }

    fn left_out(&self) -> BTreeSet<StageName> {
        match self.only.is_empty() {
            true => self.skip.iter().copied().collect(),
            false => StageName::ALL.into_iter().filter(|stage| !self.only.contains(stage)).collect(),
        }
    }
}

/// Run the stages with a bar; say when one is over; write replies as they come.
fn invoke(pipeline: &Pipeline, context: &PipelineContext, args: &Args, json: bool) -> Result<PipelineOutcome> {
    let progress = StageProgress::new("pipeline", json || args.verbose);
    let mut told = String::new();
    let mut in_reply = false;
    let mut printed = Ok(());
    let outcome = pipeline.invoke(context, &mut |event| {
        match event {
            PipelineEvent::Step(step) => {
                let part = format!("{} {} {}", step.stage.name(), step.component, step.phase);
                if args.verbose && !json && part != told {
                    complain(&format!("{part}: {} of {}, {}", step.done, step.total, step.item));
                    told.clone_from(&part);
                }
                let message = if step.component.is_empty() { step.stage.name() } else { step.component };
                progress.step(&format!("{message} {} {}", step.phase, step.item), step.done, step.total)?;
            }
            PipelineEvent::Text(text) if !json && printed.is_ok() => {
                printed = print_piece(text);
                in_reply = true;
            }
            PipelineEvent::Warning(text) if !json => complain(&format!("warning: {text}")),
            PipelineEvent::Ended(outcome) if !json => {
                if std::mem::take(&mut in_reply) {
                    printed = printed
                        .as_ref()
                        .map_err(std::io::Error::kind)
                        .map_or_else(|kind| Err(kind.into()), |()| print_line(""));
                }
                complain(&stage_line(outcome));
            }
            _ => {}
        }
        progress.check()
    })?;
    printed.map_err(|error| Error::io("standard output", error))?;
    Ok(outcome)
}

/// `quantization: done in 1.20 s, peak 345 MB; saved in DIR`.
fn stage_line(outcome: &StageOutcome) -> String {
    let (stage, folder) = (outcome.stage.name(), outcome.output.display());
    let cost =
        StageCost { stage: stage.into(), seconds: outcome.seconds, peak_memory_bytes: outcome.peak_memory_bytes };
    match outcome.state {
        StageState::Done => format!("{stage}: done in {}; saved in {folder}", time_and_memory(&cost)),
        StageState::Loaded => format!("{stage}: loaded from {folder}, which was made from the same inputs"),
    }
}

fn show(
    args: &Args,
    pipeline: &Pipeline,
    context: &PipelineContext,
    outcome: &PipelineOutcome,
    notes: &[String],
    json: bool,
) -> Outcome {
    let quantized = context.stage_dir(StageName::Quantization);
    let backend = pipeline.engines.backend();
    let stops = backend != Backend::Cpu;
    let end = stops.then(|| {
        let folder = if args.use_fp16 { context.stage_dir(StageName::ModelPreparation) } else { quantized.clone() };
        let what = if args.use_fp16 { "prepared" } else { "quantized (QDQ)" };
        let backend = backend.name();
        format!("compilation for {backend} is not part of this build; the {what} model is in {}", folder.display())
    });
    if json {
        return Ok(print_json(&json!({
            "model": context.model_name(),
            "backend": backend.name(),
            "soc": context.soc_model(),
            "artifact_dir": context.artifact_dir(),
            "stages": outcome.stages,
            "replies": outcome.replies,
            "suggestions": outcome.suggestions,
            "warnings": outcome.warnings,
            "notes": notes,
            "ends_with": end,
        }))?);
    }
    if pipeline.quantization.is_some() {
        component_table(QuantizedModel::open(&quantized)?.report()).print()?;
        print_line("")?;
    }
    let mut fields = vec![("model", context.model_name().to_owned())];
    fields.extend(outcome.stages.iter().map(|stage| (stage.stage.name(), stage.output.display().to_string())));
    fields.extend(outcome.suggestions.iter().map(|file| ("suggestion", file.display().to_string())));
    fields.extend(end.map(|end| ("end", end)));
    Ok(print_fields(&fields)?)
}
