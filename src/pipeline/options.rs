//! Everything that can be asked of a pipeline, as one value that a program fills in or reads from JSON.

use super::context::{Backend, EngineProxy, PipelineContext, StageName};
use super::orchestrator::Pipeline;
use super::preparation::{CheckpointSource, PreparationOptions};
use super::stages::{CompilationStage, InferenceStage, PreparationStage, QuantizationStage};
use crate::artefact::{TEXT_DECODER, TOK_EMBEDDING};
use crate::compile::CompileOptions;
use crate::dataset::DatasetOptions;
use crate::error::{Error, Result};
use crate::formats::WeightFormat;
use crate::quantize::{
    DEFAULT_TOKENS_AT_ONCE, LayerKind, QuantDtype, QuantizeOptions, Recipe, Rule, WeightGranularity,
};
use crate::registry::{self, Architecture, RegistryEntry};
use crate::runner::{GenerateOptions, RunnerOptions};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// What is asked of a pipeline, beside its context.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PipelineOptions {
    /// Hugging Face folder or GGUF file, or weights in Meta's layout with [`params`](Self::params). Needed unless the model was
    /// prepared before.
    pub checkpoint: Option<PathBuf>,
    /// Meta's `params.json`.
    pub params: Option<PathBuf>,
    /// A tokenizer instead of the checkpoint's own.
    pub tokenizer: Option<PathBuf>,
    /// Backend that the results are for. For `htp` and `gpu` the pipeline ends with the quantized model.
    pub backend: Backend,
    /// How the checkpoint is prepared.
    pub preparation: PreparationOptions,
    /// What it is calibrated with.
    pub calibration: DatasetOptions,
    /// Ranges that were found before.
    pub observations: Option<PathBuf>,
    /// How it is quantized.
    pub quantization: QuantizeOptions,
    /// Quantize the token embedding too; for the backend `cpu` only.
    pub embedding_quantize: Option<EmbeddingQuantize>,
    /// Suggest a recipe of mixed precision from what quantization did to each layer.
    pub suggest_recipe: bool,
    /// Leave quantization out: weights of 16-bit floats.
    pub use_fp16: bool,
    /// Samples that are calibrated together.
    pub batch_size: usize,
    /// End with the compiled model.
    pub compile_only: bool,
    /// A compiled model that answers the prompts; no other stage runs then.
    pub pre_generated: Option<PathBuf>,
    /// First message of the conversation that the prompts are turns of.
    pub system_prompt: Option<String>,
    /// How replies are generated.
    pub generate: GenerateOptions,
    /// Pictures for the prompts.
    pub images: Vec<PathBuf>,
    /// Sounds for the prompts.
    pub audio: Vec<PathBuf>,
    /// Stages that are not run; what was saved of them before is used.
    pub skip: BTreeSet<StageName>,
    /// Run every stage, whatever was saved of it.
    pub redo: bool,
    /// Threads; `None`: one a physical core.
    pub threads: Option<usize>,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self {
            checkpoint: None,
            params: None,
            tokenizer: None,
            backend: Backend::default(),
            preparation: PreparationOptions::default(),
            calibration: DatasetOptions::default(),
            observations: None,
            quantization: QuantizeOptions::default(),
            embedding_quantize: None,
            suggest_recipe: false,
            use_fp16: false,
            batch_size: 1,
            compile_only: false,
            pre_generated: None,
            system_prompt: None,
            generate: GenerateOptions::default(),
            images: Vec::new(),
            audio: Vec::new(),
            skip: BTreeSet::new(),
            redo: false,
            threads: None,
        }
    }
}

impl PipelineOptions {
    /// Read options from JSON; `origin` is for messages.
    ///
    /// # Errors
    /// [`Error::Format`] naming line, column and an unknown key; [`Error::Unsupported`] for the rotations `r1` and `r2`.
    pub fn from_json(json: &str, origin: &str) -> Result<Self> {
        let malformed = |e: serde_json::Error| {
            Error::format(origin, format!("line {}, column {}", e.line(), e.column()), e.to_string())
        };
        refuse_spin_quant(&serde_json::from_str(json).map_err(malformed)?)?;
        serde_json::from_str(json).map_err(malformed)
    }

    /// The options that a context carries as its extra options.
    ///
    /// # Errors
    /// As [`from_json`](Self::from_json).
    pub fn from_context(context: &PipelineContext) -> Result<Self> {
        Self::from_json(&Value::Object(Map::clone(context.extra_options())).to_string(), "extra_options")
    }

    /// The pipeline that does what is asked, and what was changed on the way: a multimodal model is calibrated sample by sample.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an unknown model, with the names there are; [`Error::Config`] naming an option that is missing or
    /// does not go with the others.
    pub fn pipeline(&self, context: &PipelineContext) -> Result<(Pipeline, Vec<String>)> {
        let entry = registry::find(context.model_name())?;
        let mut warnings = Vec::new();
        let batch = self.batch_size(entry, &mut warnings)?;
        self.check_pre_generated()?;
        let given = self.pre_generated.is_some();
        let runs = |stage| !self.skip.contains(&stage) && (!given || stage == StageName::Inference);
        let preparation = runs(StageName::ModelPreparation).then(|| self.preparation(entry)).transpose()?;
        let quantization = (runs(StageName::Quantization) && !self.use_fp16).then(|| self.quantization(entry, batch));
        let quantization = quantization.transpose()?;
        if self.use_fp16 && self.embedding_quantize.is_some() {
            return Err(Error::Config("--embedding-quantize and --use-fp16 exclude each other".into()));
        }
        let compiles = self.backend == Backend::Cpu;
        let compilation = CompilationStage { options: CompileOptions::new(WeightFormat::F16), float: self.use_fp16 };
        let inference = InferenceStage {
            runner: RunnerOptions {
                system_prompt: self.system_prompt.clone().filter(|text| !text.is_empty()),
                ..RunnerOptions::default()
            },
            generate: self.generate.clone(),
            model: self.pre_generated.clone(),
            images: self.images.clone(),
            audio: self.audio.clone(),
        };
        let pipeline = Pipeline {
            engines: EngineProxy::new(&[], self.backend)?,
            preparation,
            quantization,
            compilation: (compiles && runs(StageName::Compilation)).then_some(compilation),
            inference: (compiles && runs(StageName::Inference) && !self.compile_only).then_some(inference),
            redo: self.redo,
            threads: self.threads,
        };
        Ok((pipeline, warnings))
    }

    /// A compiled model can be given only where this build can run it.
    fn check_pre_generated(&self) -> Result<()> {
        let Some(directory) = &self.pre_generated else { return Ok(()) };
        if self.compile_only {
            return Err(Error::Config("--compile-only and --pre-gen-pte exclude each other".into()));
        }
        if self.backend != Backend::Cpu {
            return Err(Error::Config(format!(
                "--pre-gen-pte {}: programs for {} are run by `etgenai run-pte`; with --backend cpu a directory of `etgenai compile` \
                 or of stage compilation can be given here",
                directory.display(),
                self.backend.name()
            )));
        }
        Ok(())
    }

    fn preparation(&self, entry: &RegistryEntry) -> Result<PreparationStage> {
        let path = self.checkpoint.clone().ok_or_else(|| no_checkpoint(entry))?;
        let checkpoint = CheckpointSource { path, params: self.params.clone(), tokenizer: self.tokenizer.clone() };
        Ok(PreparationStage { checkpoint, options: self.preparation.clone() })
    }

    fn quantization(&self, entry: &RegistryEntry, batch: usize) -> Result<QuantizationStage> {
        let mut options = self.quantization.clone();
        if batch > 1 {
            let together = batch.saturating_mul(self.preparation.max_context);
            options.tokens_at_once = options.tokens_at_once.max(together.max(DEFAULT_TOKENS_AT_ONCE));
        }
        if let Some(embedding) = &self.embedding_quantize {
            if self.backend != Backend::Cpu {
                return Err(Error::Config(format!(
                    "--embedding-quantize is currently unsupported in GenAI Pipeline for {}: leave it out, or choose --backend cpu",
                    self.backend.name()
                )));
            }
            let component = if is_multimodal(entry) { TOK_EMBEDDING } else { TEXT_DECODER };
            let recipe = options.recipe(entry.name, component)?;
            let mut recipe = recipe.unwrap_or_else(|| Recipe::new(QuantDtype::A16W8));
            recipe.add(embedding.rule())?;
            options.recipes.insert(component.into(), recipe);
        }
        Ok(QuantizationStage {
            options,
            calibration: self.calibration.clone(),
            observations: self.observations.clone(),
            suggest: self.suggest_recipe,
        })
    }

    fn batch_size(&self, entry: &RegistryEntry, warnings: &mut Vec<String>) -> Result<usize> {
        match self.batch_size {
            0 => Err(Error::Config("--batch-size is 0, it must be 1 or more".into())),
            1 => Ok(1),
            size if is_multimodal(entry) => {
                let name = entry.name;
                warnings.push(format!(
                    "--batch-size {size}: multi-batch not supported for multimodal models such as {name}; it is 1 now"
                ));
                Ok(1)
            }
            size => Ok(size),
        }
    }
}

/// Whether a model has an encoder beside its decoder.
pub fn is_multimodal(entry: &RegistryEntry) -> bool {
    matches!(entry.architecture, Architecture::VisionDecoder | Architecture::AudioDecoder)
}

fn no_checkpoint(entry: &RegistryEntry) -> Error {
    let name = entry.name;
    Error::Config(match entry.repository {
        Some(repository) => format!(
            "no checkpoint of {name}: this command does not download; fetch {repository} and give its folder, or a GGUF file, with \
             --checkpoint"
        ),
        None => format!("{name} carries no params file: give a checkpoint that has one with --checkpoint"),
    })
}

/// R1 and R2 of SpinQuant are part of no model; somebody who asks for them should not believe that they were applied.
fn refuse_spin_quant(options: &Value) -> Result<()> {
    match options {
        Value::Object(fields) => fields.iter().try_for_each(|(key, value)| match key.as_str() {
            "r1" | "r2" if value != &Value::Bool(false) && !value.is_null() => Err(Error::Unsupported(format!(
                "option {key}: SpinQuant no longer supported; only the rotation r3 is there"
            ))),
            _ => refuse_spin_quant(value),
        }),
        Value::Array(values) => values.iter().try_for_each(refuse_spin_quant),
        _ => Ok(()),
    }
}

/// Integers of the token embedding, as `<bits>,<group>`: 8-bit rows with one scale each (`8,0`), 4-bit rows with one scale each
/// (`4,0`) or one for every so many values (`4,32`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EmbeddingQuantize {
    bits: u32,
    group: usize,
}

impl EmbeddingQuantize {
    fn rule(self) -> Rule {
        let (dtype, granularity) = match (self.bits, self.group) {
            (8, _) => (QuantDtype::A16W8, WeightGranularity::PerChannel),
            (_, 0) => (QuantDtype::A16W4, WeightGranularity::PerChannel),
            (_, group) => (QuantDtype::A16W4Block, WeightGranularity::PerBlock(group)),
        };
        Rule { kind: Some(LayerKind::Embedding), ..Rule::for_linear(dtype, granularity) }
    }
}

impl FromStr for EmbeddingQuantize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text
            .split_once(',')
            .and_then(|(bits, group)| Some((bits.trim().parse::<u32>().ok()?, group.trim().parse::<usize>().ok()?)));
        match parts {
            Some((bits @ 8, group @ 0)) | Some((bits @ 4, group)) => Ok(Self { bits, group }),
            Some((8, group)) => Err(Error::invalid(format!(
                "embedding quantization {text:?}: 8-bit rows have one scale each, not one for {group} values; write 8,0"
            ))),
            _ => Err(Error::invalid(format!(
                "embedding quantization {text:?}: write <bits>,<group>, e.g. 8,0 or 4,32; bits are 8 or 4"
            ))),
        }
    }
}

impl fmt::Display for EmbeddingQuantize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.bits, self.group)
    }
}

impl TryFrom<String> for EmbeddingQuantize {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<EmbeddingQuantize> for String {
    fn from(embedding: EmbeddingQuantize) -> Self {
        embedding.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(model: &str) -> PipelineContext {
        PipelineContext::builder().model_name(model).soc_model("SM8750").prompt(["hi"]).build().unwrap()
    }

    fn options() -> PipelineOptions {
        PipelineOptions { checkpoint: Some("x".into()), ..PipelineOptions::default() }
    }

    #[test]
    fn spin_quant_and_unknown_keys_are_named() {
        let error = |json: &str| PipelineOptions::from_json(json, "options").unwrap_err().to_string();
        assert!(error(r#"{"preparation": {"r1": true}}"#).contains("option r1: SpinQuant no longer supported"));
        assert!(error(r#"{"r2": 1}"#).contains("option r2"));
        assert!(error(r#"{"checkpont": "x"}"#).contains("checkpont"));
        assert!(error(r#"{"preparation": {"max_contxt": 1}}"#).contains("max_contxt"));
        assert!(error("{").contains("line 1"));
        let read = PipelineOptions::from_json(
            r#"{"checkpoint": "m", "backend": "cpu", "preparation": {"r3": true, "max_context": 256},
                "calibration": {"texts": ["a.txt"], "text_limit": 4}, "quantization": {"encoder": "float"},
                "embedding_quantize": "4,32", "skip": ["inference"]}"#,
            "options",
        );
        let read = read.unwrap();
        assert_eq!((read.preparation.max_context, read.calibration.text_limit), (256, Some(4)));
        assert_eq!(read.embedding_quantize.map(|e| e.to_string()).as_deref(), Some("4,32"));
        assert!(read.skip.contains(&StageName::Inference));
    }

    #[test]
    fn only_the_cpu_is_compiled_for() {
        for (backend, compiles) in [(Backend::Htp, false), (Backend::Gpu, false), (Backend::Cpu, true)] {
            let (pipeline, _) = PipelineOptions { backend, ..options() }.pipeline(&context("smollm2_135m")).unwrap();
            assert_eq!((pipeline.compilation.is_some(), pipeline.inference.is_some()), (compiles, compiles));
        }
    }

    #[test]
    fn floats_leave_quantization_out() {
        let asked = PipelineOptions { use_fp16: true, backend: Backend::Cpu, ..options() };
        let (pipeline, _) = asked.pipeline(&context("smollm2_135m")).unwrap();
        assert!(pipeline.quantization.is_none() && pipeline.compilation.is_some_and(|stage| stage.float));
    }

    #[test]
    fn multimodal_models_are_calibrated_sample_by_sample() {
        let asked = PipelineOptions { batch_size: 4, ..options() };
        let (_, warnings) = asked.pipeline(&context("smolvlm_500m_instruct")).unwrap();
        assert!(warnings[0].contains("multi-batch not supported for multimodal"), "{warnings:?}");
        let (_, warnings) = asked.pipeline(&context("smollm2_135m")).unwrap();
        assert!(warnings.is_empty());
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = |model: &str| PipelineOptions::default().pipeline(&context(model)).unwrap_err().to_string();
        assert!(error("smollm2_135m").contains("--checkpoint"));
        assert!(error("stories260k").contains("carries no params file"));
        assert!(error("gpt-7").contains("smollm2_135m"));
    }

    #[test]
    fn embeddings_are_quantized_for_the_cpu_only() {
        let asked = |backend, text: &str| {
            let embedding_quantize = Some(text.parse().unwrap());
            PipelineOptions { backend, embedding_quantize, ..options() }.pipeline(&context("smollm2_135m"))
        };
        let error = asked(Backend::Htp, "8,0").unwrap_err().to_string();
        assert!(error.contains("--embedding-quantize is currently unsupported in GenAI Pipeline"), "{error}");
        let (pipeline, _) = asked(Backend::Cpu, "4,32").unwrap();
        let options = pipeline.quantization.unwrap().options;
        let plan = options.recipes[TEXT_DECODER].plan(&["tok_embeddings"], LayerKind::Embedding);
        assert_eq!((plan.dtype, plan.granularity), (QuantDtype::A16W4Block, WeightGranularity::PerBlock(32)));
        for wrong in ["8,32", "2,0", "8", "", "4,x", "-4,0"] {
            assert!(wrong.parse::<EmbeddingQuantize>().is_err(), "{wrong}");
        }
    }
}
