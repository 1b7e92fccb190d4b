//! Source transforms: what is done to weights and graphs before they are quantized or compiled.
//!
//! Transforms of graphs are functions from one graph to another that computes the same. Transforms of weights never make a
//! second copy of them: what is here says which row goes where, and [`models::weights`](crate::models::weights) and
//! [`checkpoint`](crate::checkpoint) apply it while rows are read.

mod residual;
mod rope;
mod silu;

pub use residual::{ResidualScaling, ScaledWeights};
pub use rope::{half_split_rows, rope_row_order};
pub use silu::decompose_silu;
