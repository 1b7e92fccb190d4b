//! The pipeline: up to four stages that run one after the other, each over what the one before it left.
//!
//! Every stage saves what it made under the artifact directory, in a folder of its name (`model_preparation`, `quantization`,
//! `compilation`, `inference`). A stage whose saved output was made from the same inputs is loaded and not run again; one that
//! fails leaves the folders of earlier stages as they are. What each folder was made from stands in `stages.json`.

use super::context::{Backend, EngineProxy, PipelineContext, StageName};
use super::ledger::Ledger;
use super::memory::peak_memory_bytes;
use super::report::StageCost;
use super::stages::{CompilationStage, InferenceStage, PreparationStage, QuantizationStage, Reply, Run};
use crate::error::{Error, Result};
use crate::registry;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Up to four stages. One that is left out is not run; a later stage takes what was saved of it before.
#[derive(Debug, Clone, Default)]
pub struct Pipeline {
    /// Which engine runs which stage, and for which backend.
    pub engines: EngineProxy,
    /// Checkpoint to graphs and bound weights.
    pub preparation: Option<PreparationStage>,
    /// Calibration data to integers. If it is left out and nothing was saved, the model that is compiled is the float one.
    pub quantization: Option<QuantizationStage>,
    /// Integers to what the backend runs.
    pub compilation: Option<CompilationStage>,
    /// Prompts to replies.
    pub inference: Option<InferenceStage>,
    /// Run every stage, whatever was saved of it.
    pub redo: bool,
    /// Threads; `None`: one a physical core.
    pub threads: Option<usize>,
}

/// Where the work of a stage is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineStep<'s> {
    /// The stage.
    pub stage: StageName,
    /// The component, e.g. `text_decoder`; empty where the work is for all of them.
    pub component: &'s str,
    /// Part of the stage: `ranges`, `weights`, `check`, `graphs`, `finish`, `prompt`.
    pub phase: &'s str,
    /// The layer, weight, file or prompt.
    pub item: &'s str,
    /// Units of this phase that are done.
    pub done: u64,
    /// Units of this phase.
    pub total: u64,
}

/// What happens while a pipeline runs. Texts are valid during the call.
#[derive(Debug, Clone, Copy)]
pub enum PipelineEvent<'e> {
    /// A stage begins.
    Began(StageName),
    /// It goes on.
    Step(PipelineStep<'e>),
    /// Something to know that is no error.
    Warning(&'e str),
    /// A piece of a reply of the inference stage.
    Text(&'e str),
    /// A stage is over: it ran, or was loaded.
    Ended(&'e StageOutcome),
}

/// Called with everything that happens; an error, [`Error::Cancelled`] for instance, ends the pipeline.
pub type EventFn<'f> = dyn FnMut(PipelineEvent<'_>) -> Result<()> + 'f;

/// How a stage's output came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StageState {
    /// It was made just now.
    Done,
    /// It was there already, made from the same inputs.
    Loaded,
}

/// A stage that is over.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageOutcome {
    /// The stage.
    pub stage: StageName,
    /// How its output came to be.
    pub state: StageState,
    /// Folder of the output.
    pub output: PathBuf,
    /// Seconds it took.
    pub seconds: f64,
    /// Most memory of the process up to its end, bytes; absent where the system does not say.
    pub peak_memory_bytes: Option<u64>,
}

/// A pipeline that ran to its end.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct PipelineOutcome {
    /// The stages that ran or were loaded, in order.
    pub stages: Vec<StageOutcome>,
    /// What was noticed.
    pub warnings: Vec<String>,
    /// Replies to the prompts, in order.
    pub replies: Vec<Reply>,
    /// Files with suggested recipes, if they were asked for.
    pub suggestions: Vec<PathBuf>,
}

impl Pipeline {
    /// Run the stages in their order.
    ///
    /// # Errors
    /// As [`check`](Self::check), before anything runs. [`Error::Stage`] with the name of the stage that failed and the cause;
    /// what earlier stages saved is still there. [`Error::Cancelled`] or another error that `on_event` returns.
    pub fn invoke(&self, context: &PipelineContext, on_event: &mut EventFn<'_>) -> Result<PipelineOutcome> {
        self.check(context)?;
        let ledger = Ledger::open(context.artifact_dir())?;
        let mut run = Run::new(self, context, ledger);
        let mut outcome = PipelineOutcome::default();
        if let Some(stage) = &self.preparation {
            self.stage(StageName::ModelPreparation, &mut outcome, on_event, &mut |on_event| {
                stage.run(&mut run, on_event)
            })?;
        }
        if let Some(stage) = &self.quantization {
            run.costs = outcome.stages.iter().map(StageOutcome::cost).collect();
            self.stage(StageName::Quantization, &mut outcome, on_event, &mut |on_event| stage.run(&mut run, on_event))?;
        }
        if let Some(stage) = &self.compilation {
            self.stage(StageName::Compilation, &mut outcome, on_event, &mut |on_event| stage.run(&mut run, on_event))?;
        }
        if let Some(stage) = &self.inference {
            self.stage(StageName::Inference, &mut outcome, on_event, &mut |on_event| stage.run(&mut run, on_event))?;
        }
        outcome.replies = run.replies;
        outcome.suggestions = run.suggestions;
        Ok(outcome)
    }

    /// Check what can be checked before any stage runs.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an unknown model, with the names there are; [`Error::Config`] for a stage that lacks what it needs;
    /// [`Error::EngineNotAvailable`] for a backend that this build cannot compile for; [`Error::InvalidArgument`] for options out
    /// of range and for a decoder without a recipe.
    pub fn check(&self, context: &PipelineContext) -> Result<()> {
        let entry = registry::find(context.model_name())?;
        if let Some(stage) = &self.quantization {
            stage.check(entry)?;
        }
        let backend = self.engines.backend();
        for (stage, present) in
            [(StageName::Compilation, self.compilation.is_some()), (StageName::Inference, self.inference.is_some())]
        {
            if present && backend != Backend::Cpu {
                return Err(Error::EngineNotAvailable {
                    engine: "executorch".into(),
                    reason: format!(
                        "{} for {} is not part of this build: leave the stage out, or choose the backend cpu",
                        stage.name(),
                        backend.name()
                    ),
                });
            }
        }
        if let Some(stage) = &self.inference {
            stage.check()?;
        }
        Ok(())
    }

    /// Run one stage, time it, name it in errors.
    fn stage(
        &self,
        stage: StageName,
        outcome: &mut PipelineOutcome,
        on_event: &mut EventFn<'_>,
        work: &mut StageWork<'_>,
    ) -> Result<()> {
        log::info!("stage {} begins", stage.name());
        on_event(PipelineEvent::Began(stage))?;
        let start = Instant::now();
        let warnings = &mut outcome.warnings;
        let mut watched = |event: PipelineEvent<'_>| {
            if let PipelineEvent::Warning(text) = event {
                log::warn!("stage {}: {text}", stage.name());
                warnings.push(text.to_owned());
            }
            on_event(event)
        };
        let (state, output) = work(&mut watched).map_err(|error| match error {
            Error::Cancelled => Error::Cancelled,
            error => Error::Stage { stage: stage.name(), source: Box::new(error) },
        })?;
        let seconds = start.elapsed().as_secs_f64();
        log::info!("stage {} took {seconds:.3} s", stage.name());
        let ended = StageOutcome { stage, state, output, seconds, peak_memory_bytes: peak_memory_bytes() };
        on_event(PipelineEvent::Ended(&ended))?;
        outcome.stages.push(ended);
        Ok(())
    }
}

/// The work of a stage: how its output came to be, and where it is.
type StageWork<'w> = dyn FnMut(&mut EventFn<'_>) -> Result<(StageState, PathBuf)> + 'w;

impl StageOutcome {
    /// As reports have it.
    fn cost(&self) -> StageCost {
        StageCost { stage: self.stage.name().into(), seconds: self.seconds, peak_memory_bytes: self.peak_memory_bytes }
    }
}
