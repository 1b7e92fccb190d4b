//! From a checkpoint to something a device runs: four stages, each of which can be left out, resumed from what it saved, and run by
//! itself.
//!
//! - [`context`]: what a pipeline is run for.
//! - [`preparation`], [`quantization`]: the stages.
//! - [`evaluation`]: how good a quantized model is.
//! - [`report`]: what a quantization did; [`report_page`]: the same as a page for people.
//! - [`memory`]: how much memory it took.
//! - [`options`], [`stages`], [`orchestrator`]: what is asked for, the four stages over an artifact directory, and the pipeline
//!   that runs them.

pub mod context;
pub mod evaluation;
mod export;
mod files;
mod ledger;
pub mod memory;
pub mod options;
pub mod orchestrator;
pub mod preparation;
pub mod quantization;
pub mod report;
pub mod report_page;
mod runner;
pub mod stages;

pub use context::{Backend, EngineProxy, EngineType, PipelineContext, PipelineContextBuilder, StageName};
pub use export::{save_page, save_suggestion};
pub use options::PipelineOptions;
pub use orchestrator::{EventFn, Pipeline, PipelineEvent, PipelineOutcome, PipelineStep, StageOutcome, StageState};
pub use preparation::{CheckpointSource, PreparationOptions, PreparedModel};
pub use quantization::{ObservationsFile, QuantizationInput, QuantizedModel, load_calibration, observe, quantize};
pub use report::QuantizationReport;
pub use runner::open_runner;
pub use stages::{CompilationStage, InferenceStage, PreparationStage, QuantizationStage, Reply};
