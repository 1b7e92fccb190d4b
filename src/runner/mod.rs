//! The conversation: KV cache, masks, prefill and decode, sampling, statistics.
//!
//! From below: a `DecoderContract` is what the graphs say about themselves; a [`Decoder`] runs them block by block
//! over one KV cache, on a [`Sequence`] of tokens and rows of pictures or sound; a [`TokenEmbedding`] and a
//! [`MediaEncoder`] give it the rows, where the model takes such; a [`Sampler`] chooses tokens; a [`Runner`] holds messages and drives
//! all of them.

mod attention_sink;
mod contract;
mod conversation;
mod decoder;
mod eval;
mod event;
mod generate;
mod image_cache;
mod kv_store;
mod logits;
mod lookahead;
mod mask;
mod media;
mod media_encoder;
mod media_steps;
mod model_files;
mod options;
mod reply;
mod requant;
mod sampler;
mod sequence;
mod session;
mod stats;
mod step;
mod token_embedding;

pub use contract::{DecoderContract, LayerShape, StepGraph, StepInput};
pub use decoder::{Decoder, DecoderParts, DecodingMode, EachRow, Progress};
pub use eval::{EvalOptions, EvalProgress, Perplexity, eval_windows, negative_log_likelihood, perplexity};
pub use event::{CancelHandle, Event, Flow, StopReason, TurnResult};
pub use logits::LogitsEncoding;
pub use lookahead::{LookaheadOptions, LookaheadStats};
pub use mask::{AttentionMask, BlockRow, Parent};
pub use media_encoder::{MediaEncoder, MediaParts, MediaProcessor};
pub use model_files::{EVICTOR, ModelFiles};
pub use options::{GenerateOptions, RunnerOptions, SamplingOptions};
pub use requant::{RequantRounding, requantize_levels};
pub use sampler::Sampler;
pub use sequence::{PlacedRow, Sequence};
pub use session::{Runner, RunnerParts};
pub use stats::{Moments, TotalStats, TurnStats, UpstreamReport};
pub use token_embedding::TokenEmbedding;
