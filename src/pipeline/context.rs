//! What a pipeline is run for: decided once, the same for all stages.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folder for results if nothing else is said.
pub const DEFAULT_ARTIFACT_DIR: &str = "./genai_artifacts";

/// A stage of the pipeline, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageName {
    /// Checkpoint to graphs and bound weights.
    ModelPreparation,
    /// Calibration data to integers.
    Quantization,
    /// Integers to what a target runs.
    Compilation,
    /// Prompts to replies.
    Inference,
}

impl StageName {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::ModelPreparation, Self::Quantization, Self::Compilation, Self::Inference];

    /// Upstream's name, e.g. `model_preparation`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ModelPreparation => "model_preparation",
            Self::Quantization => "quantization",
            Self::Compilation => "compilation",
            Self::Inference => "inference",
        }
    }

    /// The stage of that name.
    ///
    /// # Errors
    /// [`Error::Config`] that lists the names there are.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::Config(format!("unknown stage {name:?}; there are: {known}"))
        })
    }
}

/// What runs a stage. Upstream has one engine; this one adds its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineType {
    /// This library, for targets of ExecuTorch.
    #[default]
    Executorch,
}

/// The processor that the results are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// Qualcomm's HTP.
    #[default]
    Htp,
    /// Qualcomm's GPU.
    Gpu,
    /// The CPU engine of this library.
    Cpu,
}

impl Backend {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Htp => "htp",
            Backend::Gpu => "gpu",
            Backend::Cpu => "cpu",
        }
    }

    /// The backend of that name.
    ///
    /// # Errors
    /// [`Error::Config`] that lists the names there are.
    pub fn parse(name: &str) -> Result<Self> {
        [Backend::Htp, Backend::Gpu, Backend::Cpu]
            .into_iter()
            .find(|backend| backend.name() == name)
            .ok_or_else(|| Error::Config(format!("unknown backend {name:?}; there are: htp, gpu, cpu")))
    }
}

/// Which engine runs which stage, and for which backend.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineProxy {
    stage_engines: BTreeMap<StageName, EngineType>,
    backend: Backend,
}

impl EngineProxy {
    /// Engines by the names of stages; a stage that is not named gets [`EngineType::Executorch`].
    ///
    /// # Errors
    /// [`Error::Config`] naming an unknown stage.
    pub fn new(stage_engines: &[(&str, EngineType)], backend: Backend) -> Result<Self> {
        let engines = stage_engines.iter().map(|(stage, engine)| Ok((StageName::parse(stage)?, *engine)));
        Ok(Self { stage_engines: engines.collect::<Result<_>>()?, backend })
    }

    /// The engine of a stage.
    pub fn engine(&self, stage: StageName) -> EngineType {
        self.stage_engines.get(&stage).copied().unwrap_or_default()
    }

    /// The backend, the same for all stages.
    pub fn backend(&self) -> Backend {
        self.backend
    }
}

/// What a pipeline is run for. Cannot be changed once it is built.
#[derive(Debug, Clone, PartialEq)]
pub struct PipelineContext {
    model_name: String,
    soc_model: String,
    prompt: Vec<String>,
    artifact_dir: PathBuf,
    extra_options: Map<String, Value>,
}

impl PipelineContext {
    /// Begin to describe one.
    pub fn builder() -> PipelineContextBuilder {
        PipelineContextBuilder::default()
    }

    /// Name of the model in the registry.
    pub fn model_name(&self) -> &str {
        &self.model_name
    }

    /// Name of the chip, e.g. `SM8750`.
    pub fn soc_model(&self) -> &str {
        &self.soc_model
    }

    /// Prompts, none of them blank.
    pub fn prompt(&self) -> &[String] {
        &self.prompt
    }

    /// Folder that the stages write to.
    pub fn artifact_dir(&self) -> &Path {
        &self.artifact_dir
    }

    /// Options of single stages.
    pub fn extra_options(&self) -> &Map<String, Value> {
        &self.extra_options
    }

    /// Folder of a stage's output.
    pub fn stage_dir(&self, stage: StageName) -> PathBuf {
        self.artifact_dir.join(stage.name())
    }
}

/// Collects the fields of a [`PipelineContext`].
#[derive(Debug, Clone, Default)]
pub struct PipelineContextBuilder {
    model_name: Option<String>,
    soc_model: Option<String>,
    prompt: Option<Vec<String>>,
    artifact_dir: Option<PathBuf>,
    extra_options: Map<String, Value>,
}

impl PipelineContextBuilder {
    /// Name of the model in the registry; required.
    pub fn model_name(mut self, name: impl Into<String>) -> Self {
        self.model_name = Some(name.into());
        self
    }

    /// Name of the chip; required.
    pub fn soc_model(mut self, soc: impl Into<String>) -> Self {
        self.soc_model = Some(soc.into());
        self
    }

    /// Prompts; required. Blank ones are dropped.
    pub fn prompt(mut self, prompts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.prompt = Some(prompts.into_iter().map(Into::into).collect());
        self
    }

    /// Folder for results; [`DEFAULT_ARTIFACT_DIR`] if it is not set.
    pub fn artifact_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.artifact_dir = Some(dir.into());
        self
    }

    /// An option of a stage.
    pub fn extra_option(mut self, name: impl Into<String>, value: Value) -> Self {
        self.extra_options.insert(name.into(), value);
        self
    }

    /// The finished context.
    ///
    /// # Errors
    /// [`Error::Config`] naming every required field that is missing, or prompts that are all blank.
    pub fn build(self) -> Result<PipelineContext> {
        let given = [
            ("model_name", self.model_name.is_some()),
            ("soc_model", self.soc_model.is_some()),
            ("prompt", self.prompt.is_some()),
        ];
        let missing = given.iter().filter(|(_, given)| !given).map(|(name, _)| *name).collect::<Vec<_>>();
        let (Some(model_name), Some(soc_model), Some(prompt)) = (self.model_name, self.soc_model, self.prompt) else {
            return Err(Error::Config(format!("required fields are missing: {}", missing.join(", "))));
        };
        let prompt = prompt.into_iter().filter(|prompt| !prompt.trim().is_empty()).collect::<Vec<_>>();
        if prompt.is_empty() {
            return Err(Error::Config("prompt is blank: at least one prompt must have text".into()));
        }
        let artifact_dir = self.artifact_dir.unwrap_or_else(|| PathBuf::from(DEFAULT_ARTIFACT_DIR));
        Ok(PipelineContext { model_name, soc_model, prompt, artifact_dir, extra_options: self.extra_options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missing_field_is_reported_at_once() {
        let error = PipelineContext::builder().build().unwrap_err().to_string();
        assert!(["model_name", "soc_model", "prompt"].iter().all(|field| error.contains(field)), "{error}");
        let error = PipelineContext::builder().soc_model("SM8750").build().unwrap_err().to_string();
        assert!(!error.contains("soc_model") && error.contains("model_name"), "{error}");
    }

    #[test]
    fn blank_prompts_are_dropped_and_nothing_but_blanks_is_refused() {
        let builder = || PipelineContext::builder().model_name("smollm2_135m").soc_model("SM8750");
        let context = builder().prompt(["", "hi", "  "]).build().unwrap();
        assert_eq!(
            (context.prompt(), context.artifact_dir()),
            (&["hi".to_owned()][..], Path::new("./genai_artifacts"))
        );
        assert_eq!(context.stage_dir(StageName::Quantization), Path::new("./genai_artifacts/quantization"));
        assert!(builder().prompt([" ", ""]).build().unwrap_err().to_string().contains("blank"));
    }

    #[test]
    fn stages_that_are_not_named_get_the_default_engine_and_unknown_ones_are_refused() {
        let proxy = EngineProxy::new(&[("quantization", EngineType::Executorch)], Backend::Htp).unwrap();
        assert_eq!(proxy.engine(StageName::Inference), EngineType::Executorch);
        let error = EngineProxy::new(&[("training", EngineType::Executorch)], Backend::Htp).unwrap_err().to_string();
        assert!(error.contains("unknown stage \"training\"") && error.contains("model_preparation"), "{error}");
        assert!(Backend::parse("tpu").unwrap_err().to_string().contains("htp, gpu, cpu"));
    }
}
