//! Source transforms: what is done to weights and graphs before they are quantized or compiled.
//!
//! Transforms of graphs are functions from one graph to another that computes the same.

mod residual;
mod silu;

pub use residual::{ResidualScaling, ScaledWeights};
pub use silu::decompose_silu;
