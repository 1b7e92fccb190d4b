//! The conversation: KV cache, masks, prefill and decode, sampling, statistics.
//!
//! From below: a `DecoderContract` is what the graphs say about themselves; a [`Decoder`] runs them block by block
//! over one KV cache, on a [`Sequence`] of tokens and rows of pictures; a [`TokenEmbedding`] and a [`VisionEncoder`]
//! give it the rows, where the model has pictures; a [`Sampler`] chooses tokens; a [`Runner`] holds messages and drives
//! all of them.

mod contract;
mod conversation;
mod decoder;
mod eval;
mod event;
mod generate;
mod image_cache;
mod kv_store;
mod mask;
mod options;
mod pictures;
mod reply;
mod sampler;
mod sequence;
mod session;
mod stats;
mod token_embedding;
mod vision;

pub use contract::{DecoderContract, LayerShape, StepGraph, StepInput};
pub use decoder::{Decoder, EachRow, Progress};
pub use eval::{EvalOptions, EvalProgress, Perplexity, perplexity};
pub use event::{CancelHandle, Event, Flow, StopReason, TurnResult};
pub use kv_store::KvStore;
pub use mask::AttentionMask;
pub use options::{GenerateOptions, RunnerOptions, SamplingOptions};
pub use sampler::Sampler;
pub use sequence::{PlacedRow, Sequence};
pub use session::{Runner, RunnerParts};
pub use stats::{Moments, TotalStats, TurnStats};
pub use token_embedding::TokenEmbedding;
pub use vision::{VisionEncoder, VisionParts};
