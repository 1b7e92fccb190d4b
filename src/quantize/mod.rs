//! Post-training quantization: what integers mean, how ranges are found, how weights become integers.
//!
//! From below: an [`Encoding`] says what an integer means; a [`QuantDtype`] which integers there are for activations and
//! weights; a [`ValueRange`] is what an [`Observer`] saw; [`QuantizedWeight`] is a matrix in integers, per tensor, per channel
//! or per block; a [`Recipe`] decides which layer gets what. [`quantize_weight`] finds the integers of a matrix, better ones
//! if it knows the [`InputMoments`] of what the matrix is multiplied with.

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
mod tiles;
mod weight;

pub use calibration::{Encodings, Observations, Watch, observe};
pub use check::{Comparison, LayerError, SlotCheck, compare};
pub use component::{ComponentFile, GraphBundle, QuantIoDtypes};
pub use dtype::{QuantDtype, WeightGranularity};
pub use encoding::Encoding;
pub use engine::QdqEngine;
pub use fit::{Rounding, ScaleSearch, WeightOptions, quantize_weight};
pub use graphs::{ModelGraphs, ModelMode};
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
pub use weight::{BlockScales, LPBQ_MULTIPLIER_BITS, QuantizedWeight, WeightScales};
