//! Hyper-parameters and a checkpoint to graphs and their weights.
//!
//! - [`decoder`]: what a decoder computes, as graphs.
//! - [`weights`]: where each weight of those graphs lies in a checkpoint.
//! - [`rope`]: frequencies of the rotary position embedding.

pub mod decoder;
pub mod rope;
pub mod weights;

pub use decoder::{KV_FORWARD, PREFILL_FORWARD, build_decoder, build_decoder_graph};
pub use weights::BoundWeights;
