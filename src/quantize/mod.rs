//! Post-training quantization: what integers mean, how ranges are found, how weights become integers.
//!
//! From below: an [`Encoding`] says what an integer means; a [`QuantDtype`] which integers there are for activations and
//! weights; a [`ValueRange`] is what an [`Observer`] saw; [`QuantizedWeight`] is a matrix in integers, per tensor, per channel
//! or per block; a [`Recipe`] decides which layer gets what.

mod dtype;
mod encoding;
mod histogram;
mod observer;
mod range;
mod recipe;
mod recipes;
mod weight;

pub use dtype::{QuantDtype, WeightGranularity};
pub use encoding::Encoding;
pub use histogram::Histogram;
pub use observer::{Observer, ObserverKind};
pub use range::ValueRange;
pub use recipe::{LayerKind, LayerPlan, Recipe, Rule};
pub use recipes::upstream_name;
pub use weight::{BlockScales, LPBQ_MULTIPLIER_BITS, QuantizedWeight};
