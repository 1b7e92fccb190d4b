//! Post-training quantization: a model and calibration data to a model of integers.
//!
//! From below, in reading order:
//!
//! - *What integers mean*: `encoding` (grids), `dtype` (which integers there are), `range`, `histogram`, `observer` (how the range of
//!   a tensor is found).
//! - *Weights*: `weight` (a matrix in integers, per tensor, channel or block), `fit` (the way there: scales, then rounding), `seq_mse`
//!   and `gptq` (better scales and rounding for who knows what the matrix is multiplied with), `moments`, `metric`, `tiles`.
//! - *Who gets what*: `recipe` (rules), `recipes` (upstream's, by model), `plan` (a recipe applied to a graph: grids, and who shares
//!   them).
//! - *Running*: [`forward`] (many samples through a graph, one matrix at a time), `inputs`, `calibration` (observers at every grid),
//!   `check` (both models side by side).
//! - *The result*: [`qdq`] (graphs with quantize-dequantize nodes, files of integers), `live` (weights half way there), `ptq` (a
//!   component from ranges to its file), `component` (its graphs and grids as JSON), `engine` (runs it).
//! - *The whole*: `graphs` (which graphs a model has), `options`, `job` (encoder, token embedding, decoder, in that order).

mod aimet;
mod calibration;
mod check;
mod component;
mod dtype;
mod encoding;
mod engine;
mod fit;
pub mod forward;
mod gptq;
mod graphs;
mod histogram;
mod inputs;
mod job;
mod live;
mod metric;
mod moments;
mod observer;
mod options;
mod plan;
mod ptq;
pub mod qdq;
mod range;
mod recipe;
mod recipes;
mod seq_mse;
mod suggest;
mod tiles;
mod weight;

pub use aimet::{AimetVersion, aimet_encodings};
pub use calibration::{Encodings, Observations, Watch, observe};
pub use check::{Comparison, LayerError, SlotCheck, compare};
pub use component::{ComponentFile, GraphBundle, QuantIoDtypes};
pub use dtype::{QuantDtype, WeightGranularity};
pub use encoding::Encoding;
pub use engine::QdqEngine;
pub use fit::{Rounding, ScaleSearch, WeightOptions, quantize_weight};
pub use graphs::{GRAPHS_FILE, ModelGraphs, ModelMode};
pub use histogram::Histogram;
pub use inputs::{DecoderInputs, Rows};
pub use job::{Job, JobComponent, JobStep, Observed, Phase, SaveFn, StepFn, weights_path};
pub use moments::InputMoments;
pub use observer::{Observer, ObserverKind};
pub use options::{DEFAULT_TOKENS_AT_ONCE, EncoderPrecision, EncoderRows, QuantizeOptions, ResidualChannels};
pub use plan::{ActivationSpec, BLOCKED, GraphPlan, PlannedLayer, RangeRule, Slot, WeightPlan, layer_names};
pub use ptq::{LayerProgress, Ptq, QuantizedWeights, write_float};
pub use range::ValueRange;
pub use recipe::{LayerKind, LayerPlan, Recipe, Rule};
pub use recipes::upstream_name;
pub use seq_mse::SearchGranularity;
pub use suggest::{GroupError, SuggestedRecipe, Suggestion, suggest};
pub use weight::{BlockScales, LPBQ_MULTIPLIER_BITS, QuantizedWeight, WeightScales};
