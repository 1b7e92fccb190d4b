//! From a checkpoint to something a device runs: four stages, each of which can be left out, resumed from what it saved, and run by
//! itself.
//!
//! - [`context`]: what a pipeline is run for.
//! - [`preparation`], [`quantization`]: the stages.
//! - [`evaluation`]: how good a quantized model is.
//! - [`report`]: what a quantization did.
//! - [`memory`]: how much memory it took.

pub mod context;
pub mod evaluation;
mod files;
pub mod memory;
pub mod preparation;
pub mod quantization;
pub mod report;
mod runner;

pub use context::{Backend, EngineProxy, EngineType, PipelineContext, PipelineContextBuilder, StageName};
pub use preparation::{PreparationOptions, PreparedModel};
pub use quantization::{ObservationsFile, QuantizationInput, QuantizedModel, load_calibration, observe, quantize};
pub use report::QuantizationReport;
pub use runner::open_runner;
