//! The four stages: what each needs, what it saves, and when what was saved is good enough.

use super::context::{PipelineContext, StageName};
use super::export::save_suggestion;
use super::files::write_atomically;
use super::ledger::{Ledger, checkpoint_identity, file_hash, fingerprint};
use super::orchestrator::{EventFn, Pipeline, PipelineEvent, PipelineStep, StageState};
use super::preparation::{CheckpointSource, PREPARED_FILE, PreparationOptions, PreparedModel};
use super::quantization::{ObservationsFile, QuantizationInput, QuantizedModel, load_calibration, quantize};
use super::report::StageCost;
use super::runner::open_runner;
use crate::artefact::{Artefact, MANIFEST_FILE, TEXT_DECODER};
use crate::chat::{Message, messages_with_audio_placeholders, messages_with_placeholders};
use crate::compile::{self, CompileOptions, Progress, QuantizedCompileOptions, compile_checkpoint, compile_quantized};
use crate::dataset::{CalibrationSet, DatasetOptions};
use crate::error::{Error, Result};
use crate::media::{Audio, DecodeOptions, Image};
use crate::quantize::{JobStep, QuantizeOptions};
use crate::registry::RegistryEntry;
use crate::runner::{Event, Flow, GenerateOptions, RunnerOptions, StopReason};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Folder of the artifact directory with suggested recipes.
const SUGGESTION_DIR: &str = "suggestion";
/// File with the replies of the inference stage.
const REPLIES_FILE: &str = "replies.json";

/// Stage `model_preparation`.
#[derive(Debug, Clone)]
pub struct PreparationStage {
    /// Where the weights are.
    pub checkpoint: CheckpointSource,
    /// How they are prepared; the context's model name is the one that counts.
    pub options: PreparationOptions,
}

/// Stage `quantization`.
#[derive(Debug, Clone, Default)]
pub struct QuantizationStage {
    /// How.
    pub options: QuantizeOptions,
    /// What the model is calibrated with; samples are never longer than its context.
    pub calibration: DatasetOptions,
    /// Ranges that were found before, e.g. joined from shards: nothing is observed again then.
    pub observations: Option<PathBuf>,
    /// Suggest recipes of mixed precision from what each layer of the decoder loses, in the folder `suggestion` of the artifact
    /// directory.
    pub suggest: bool,
}

/// Stage `compilation`.
#[derive(Debug, Clone)]
pub struct CompilationStage {
    /// How. Context, prefill block, model and threads are those of the pipeline.
    pub options: CompileOptions,
    /// Compile the float model, even if a quantized one was saved.
    pub float: bool,
}

/// Stage `inference`: the context's prompts are the turns of one conversation.
#[derive(Debug, Clone, Default)]
pub struct InferenceStage {
    /// How the model is opened.
    pub runner: RunnerOptions,
    /// How replies are generated.
    pub generate: GenerateOptions,
    /// The model that answers; `None`: what was compiled, or the quantized model where nothing was.
    pub model: Option<PathBuf>,
    /// Pictures for the placeholders of the prompts, or for the first prompt.
    pub images: Vec<PathBuf>,
    /// Sounds for the placeholders of the prompts, or for the first prompt.
    pub audio: Vec<PathBuf>,
}

/// A prompt and what the model said.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reply {
    /// The prompt.
    pub prompt: String,
    /// The reply.
    pub text: String,
    /// Why it ended, e.g. `eos`.
    pub stop_reason: &'static str,
    /// Its tokens.
    pub tokens: usize,
}

/// What a pipeline has in hand while it runs.
pub(super) struct Run<'a> {
    pipeline: &'a Pipeline,
    context: &'a PipelineContext,
    ledger: Ledger,
    prepared: Option<PreparedModel>,
    /// What stages before quantization took.
    pub costs: Vec<StageCost>,
    pub replies: Vec<Reply>,
    /// Files with suggested recipes.
    pub suggestions: Vec<PathBuf>,
}

impl<'a> Run<'a> {
    pub fn new(pipeline: &'a Pipeline, context: &'a PipelineContext, ledger: Ledger) -> Self {
        Self {
            pipeline,
            context,
            ledger,
            prepared: None,
            costs: Vec::new(),
            replies: Vec::new(),
            suggestions: Vec::new(),
        }
    }

    fn directory(&self, stage: StageName) -> PathBuf {
        self.context.stage_dir(stage)
    }

    /// The prepared model: of this run, or as it was saved.
    fn prepared(&mut self, needed_by: StageName) -> Result<&PreparedModel> {
        if self.prepared.is_none() {
            let directory = self.directory(StageName::ModelPreparation);
            if !directory.join(PREPARED_FILE).is_file() {
                return Err(required("a prepared model", needed_by, &directory, StageName::ModelPreparation));
            }
            self.prepared = Some(PreparedModel::load(&directory, None)?);
        }
        self.prepared.as_ref().ok_or_else(|| Error::internal("a prepared model got lost"))
    }

    /// Whether what was saved of a stage can be taken as it is.
    fn is_saved(&self, stage: StageName, inputs: &str, description: &str) -> bool {
        !self.pipeline.redo && self.ledger.holds(stage, inputs, &self.directory(stage).join(description))
    }

    fn note(&mut self, stage: StageName, inputs: &str, description: &str) -> Result<()> {
        let path = self.directory(stage).join(description);
        self.ledger.note(stage, inputs, &path)
    }

    /// The directory that a stage saved, if it did.
    fn saved_model(&self, stage: StageName) -> Option<PathBuf> {
        Some(self.directory(stage)).filter(|directory| Artefact::is_artefact(directory))
    }
}

fn required(what: &str, stage: StageName, directory: &Path, made_by: StageName) -> Error {
    let (stage, directory, made_by) = (stage.name(), directory.display(), made_by.name());
    Error::InvalidState(format!(
        "{what} is required for {stage}, but there is none in {directory}: run stage {made_by} first"
    ))
}

/// What a prepared model was made from.
fn identity_of(prepared: &PreparedModel) -> Value {
    let files = prepared.source().files();
    let files = files.into_iter().map(checkpoint_identity).collect::<Vec<_>>();
    json!({ "checkpoint": files, "options": prepared.options() })
}

impl PreparationStage {
    /// Prepare the model, or take it as it was saved.
    pub(super) fn run(&self, run: &mut Run<'_>, _: &mut EventFn<'_>) -> Result<(StageState, PathBuf)> {
        let directory = run.directory(StageName::ModelPreparation);
        let options = PreparationOptions { model: Some(run.context.model_name().into()), ..self.options.clone() };
        let prepared = PreparedModel::from_source(&self.checkpoint, &options)?;
        let inputs = fingerprint(&identity_of(&prepared));
        let state = if run.is_saved(StageName::ModelPreparation, &inputs, PREPARED_FILE) {
            StageState::Loaded
        } else {
            prepared.save(&directory)?;
            run.note(StageName::ModelPreparation, &inputs, PREPARED_FILE)?;
            StageState::Done
        };
        run.prepared = Some(prepared);
        Ok((state, directory))
    }
}

impl QuantizationStage {
    /// What can be said before anything is opened.
    pub(super) fn check(&self, entry: &RegistryEntry) -> Result<()> {
        self.options.validate()?;
        self.options.recipe(entry.name, TEXT_DECODER)?;
        if !self.calibration.has_source() && self.observations.is_none() {
            return Err(Error::Config(
                "no calibration dataset sources configured: name at least one with --calib-samples, --calib-text, --calib-chat, \
                 --calib-tokens or, for smoke tests only, --calib-random"
                    .into(),
            ));
        }
        if self.suggest && self.options.report_samples == 0 {
            return Err(Error::Config(
                "--quant-recipe-suggestion needs samples that run through both models: --report-samples must be 1 or more".into(),
            ));
        }
        Ok(())
    }

    /// Quantize the prepared model, or take what was saved.
    pub(super) fn run(&self, run: &mut Run<'_>, on_event: &mut EventFn<'_>) -> Result<(StageState, PathBuf)> {
        let stage = StageName::Quantization;
        let directory = run.directory(stage);
        let (threads, costs) = (run.pipeline.threads, run.costs.clone());
        let prepared = run.prepared(stage)?;
        let set = self.calibration_set(prepared)?;
        let observations = self.observations.as_deref().map(ObservationsFile::open).transpose()?;
        let inputs = fingerprint(&json!({
            "prepared": identity_of(prepared),
            "options": &self.options,
            "calibration": &set.fingerprint,
            "observations": self.observations.as_deref().map(file_hash).transpose()?,
        }));
        if run.is_saved(stage, &inputs, MANIFEST_FILE) {
            self.finish(&QuantizedModel::open(&directory)?, run, on_event)?;
            return Ok((StageState::Loaded, directory));
        }
        // Named after its inputs: what other options or data left there is not gone on with.
        let short = inputs.get(..16).unwrap_or(&inputs);
        let unfinished = run.context.artifact_dir().join(format!("calibration-{short}.json"));
        let input = QuantizationInput {
            prepared: run.prepared(stage)?,
            set: &set,
            options: &self.options,
            observations,
            threads,
            unfinished: Some(&unfinished),
            stages: costs,
        };
        let quantized = quantize(input, &directory, &mut |step: JobStep<'_>| on_event(of_job(step)))?;
        run.note(stage, &inputs, MANIFEST_FILE)?;
        if unfinished.exists() {
            std::fs::remove_file(&unfinished).map_err(|e| Error::io(&unfinished, e))?;
        }
        self.finish(&quantized, run, on_event)?;
        Ok((StageState::Done, directory))
    }

    /// Pass on what was noticed, and suggest what to try next if that was asked for.
    fn finish(&self, quantized: &QuantizedModel, run: &mut Run<'_>, on_event: &mut EventFn<'_>) -> Result<()> {
        for warning in &quantized.report().warnings {
            on_event(PipelineEvent::Warning(warning))?;
        }
        if self.suggest {
            let directory = run.context.artifact_dir().join(SUGGESTION_DIR);
            run.suggestions = save_suggestion(&quantized.suggest(TEXT_DECODER)?, &directory)?;
        }
        Ok(())
    }

    fn calibration_set(&self, prepared: &PreparedModel) -> Result<CalibrationSet> {
        let capacity = prepared.graphs().context_capacity;
        let max_context = self.calibration.max_context.min(capacity);
        if self.observations.is_some() && !self.calibration.has_source() {
            return Ok(CalibrationSet::empty());
        }
        load_calibration(prepared, &DatasetOptions { max_context, ..self.calibration.clone() })
    }
}

fn of_job(step: JobStep<'_>) -> PipelineEvent<'_> {
    PipelineEvent::Step(PipelineStep {
        stage: StageName::Quantization,
        component: step.component,
        phase: step.phase.name(),
        item: step.layer,
        done: step.done as u64,
        total: step.total as u64,
    })
}

impl CompilationStage {
    /// Compile what was quantized, or the float model.
    pub(super) fn run(&self, run: &mut Run<'_>, on_event: &mut EventFn<'_>) -> Result<(StageState, PathBuf)> {
        let stage = StageName::Compilation;
        let directory = run.directory(stage);
        let quantized = run.saved_model(StageName::Quantization).filter(|_| !self.float);
        let threads = run.pipeline.threads.or(self.options.threads);
        let source = match &quantized {
            Some(model) => json!({ "quantized": file_hash(&model.join(MANIFEST_FILE))? }),
            None => json!({ "prepared": identity_of(run.prepared(stage)?) }),
        };
        let weights =
            format!("{:?}", (&self.options.weights, &self.options.vision_weights, &self.options.embedding_weights));
        let inputs = fingerprint(&json!({ "source": source, "weights": weights }));
        if run.is_saved(stage, &inputs, MANIFEST_FILE) {
            return Ok((StageState::Loaded, directory));
        }
        let mut stopped = None;
        let mut progress = |progress: Progress<'_>| match on_event(of_compiler(progress)) {
            Ok(()) => compile::Flow::Continue,
            Err(error) => {
                stopped = Some(error);
                compile::Flow::Cancel
            }
        };
        let compiled = match &quantized {
            Some(model) => {
                let options = QuantizedCompileOptions { prefill_ar: None, threads };
                compile_quantized(model, &directory, &options, &mut progress).map(drop)
            }
            None => {
                let prepared = run.prepared(stage)?;
                let graphs = prepared.graphs();
                let options = CompileOptions {
                    max_context: Some(graphs.context_capacity),
                    prefill_ar: Some(graphs.prefill_ar),
                    model: Some(graphs.model.name.clone()),
                    threads,
                    ..self.options.clone()
                };
                compile_checkpoint(prepared.checkpoint(), &directory, &options, &mut progress).map(drop)
            }
        };
        compiled.map_err(|error| stopped.take().unwrap_or(error))?;
        run.note(stage, &inputs, MANIFEST_FILE)?;
        Ok((StageState::Done, directory))
    }
}

fn of_compiler(progress: Progress<'_>) -> PipelineEvent<'_> {
    PipelineEvent::Step(PipelineStep {
        stage: StageName::Compilation,
        component: "",
        phase: match progress.stage {
            compile::Stage::Graphs => "graphs",
            compile::Stage::Weights => "weights",
            compile::Stage::Finish => "finish",
        },
        item: progress.item,
        done: progress.done,
        total: progress.total,
    })
}

impl InferenceStage {
    /// What can be said before anything is opened.
    pub(super) fn check(&self) -> Result<()> {
        self.runner.validate()?;
        self.generate.validate()
    }

    /// Answer the prompts, turn by turn.
    pub(super) fn run(&self, run: &mut Run<'_>, on_event: &mut EventFn<'_>) -> Result<(StageState, PathBuf)> {
        let stage = StageName::Inference;
        let saved = || run.saved_model(StageName::Compilation).or_else(|| run.saved_model(StageName::Quantization));
        let model = self.model.clone().or_else(saved);
        let model = model.ok_or_else(|| {
            required("a compiled model", stage, &run.directory(StageName::Compilation), StageName::Compilation)
        })?;
        let prompts = run.context.prompt();
        let messages = self.messages(prompts)?;
        let threads = run.pipeline.threads.or(self.runner.threads);
        let mut runner = open_runner(&model, &RunnerOptions { threads, ..self.runner.clone() })?;
        for (number, (prompt, message)) in prompts.iter().zip(messages).enumerate() {
            let mut step =
                PipelineStep { stage, component: "", phase: "prompt", item: prompt, done: number as u64, total: 0 };
            step.total = prompts.len() as u64;
            on_event(PipelineEvent::Step(step))?;
            let mut stopped = None;
            let turn = runner.generate(&[message], &self.generate, &mut |event| match event {
                Event::Text(text) => go_on(on_event(PipelineEvent::Text(text)), &mut stopped),
                Event::Finished(_) => Flow::Continue,
                _ => go_on(on_event(PipelineEvent::Step(step)), &mut stopped),
            })?;
            if let Some(error) = stopped {
                return Err(error);
            }
            if turn.stop_reason == StopReason::Cancelled {
                return Err(Error::Cancelled);
            }
            let (prompt, tokens) = (prompt.clone(), turn.tokens.len());
            run.replies.push(Reply { prompt, text: turn.text, stop_reason: turn.stop_reason.name(), tokens });
        }
        let directory = run.directory(stage);
        let json = serde_json::to_vec_pretty(&run.replies).map_err(|e| Error::internal(format!("replies: {e}")))?;
        write_atomically(&directory.join(REPLIES_FILE), &json)?;
        Ok((StageState::Done, directory))
    }

    /// A message a prompt, with the pictures or sounds that belong to it.
    fn messages(&self, prompts: &[String]) -> Result<Vec<Message>> {
        match (self.images.is_empty(), self.audio.is_empty()) {
            (true, true) => Ok(prompts.iter().map(Message::user).collect()),
            (false, true) => {
                let images = self.images.iter().map(|path| Image::open(path, &DecodeOptions::default()));
                messages_with_placeholders(prompts, images.collect::<Result<_>>()?)
            }
            (true, false) => {
                let sounds = self.audio.iter().map(|path| Audio::open(path));
                messages_with_audio_placeholders(prompts, sounds.collect::<Result<_>>()?)
            }
            (false, false) => Err(Error::invalid("pictures and sounds are given; a model takes one or the other")),
        }
    }
}

fn go_on(result: Result<()>, stopped: &mut Option<Error>) -> Flow {
    match result {
        Ok(()) => Flow::Continue,
        Err(error) => {
            stopped.get_or_insert(error);
            Flow::Stop
        }
    }
}
