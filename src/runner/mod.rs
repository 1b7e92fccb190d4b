//! The conversation: KV cache, masks, prefill and decode, sampling, statistics.
//!
//! From below: a `DecoderContract` is what the graphs say about themselves; a [`Decoder`] runs them block by block
//! over one KV cache; a [`Sampler`] chooses tokens; a [`Runner`] holds messages and drives all three.

mod contract;
mod conversation;
mod decoder;
mod eval;
mod event;
mod generate;
mod kv_store;
mod mask;
mod options;
mod reply;
mod sampler;
mod session;
mod stats;

pub use contract::{DecoderContract, LayerShape, StepGraph};
pub use decoder::{Decoder, EachRow, Progress};
pub use eval::{EvalOptions, EvalProgress, Perplexity, perplexity};
pub use event::{CancelHandle, Event, Flow, StopReason, TurnResult};
pub use kv_store::KvStore;
pub use mask::AttentionMask;
pub use options::{GenerateOptions, RunnerOptions, SamplingOptions};
pub use sampler::Sampler;
pub use session::{Runner, RunnerParts};
pub use stats::{Moments, TotalStats, TurnStats};
