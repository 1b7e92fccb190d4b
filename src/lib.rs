//! etgenai: from a checkpoint to a conversation on a device.
//!
//! In reading order:
//!
//! - [`error`]: the one error type and its C status codes.
//! - [`checkpoint`]: weights in: Hugging Face folders and GGUF files, memory-mapped.
//! - [`registry`]: model names and hyper-parameters as data.
//! - [`graph`]: the intermediate representation and its f32 reference interpreter.
//! - [`transform`]: source transforms of weights and graphs.
//! - [`models`]: hyper-parameters and a checkpoint to graphs.
//! - [`formats`]: how weight matrices are stored.
//! - [`quantize`]: what integers mean, how their ranges are found, how weights become integers.
//! - [`artefact`]: a compiled model on disk: manifest and component files.
//! - [`compile`]: graphs and weights to an artefact.
//! - [`pipeline`]: preparation, quantization, compilation and inference as stages.
//! - [`media`]: image and sound bytes to encoder tensors.
//! - [`chat`]: typed messages, chat templates, tokenizer, streaming detokenizer.
//! - [`dataset`]: calibration data in: conversations, plain text, chat sets, token rows, random ids.
//! - [`engine`]: the engine trait, the built-in CPU engine, engines behind the plug-in ABI (ExecuTorch's in C++ among them).
//! - [`runner`]: the conversation: KV store, masks, prefill, decode, lookahead, sampling, statistics.
//! - [`capi`]: the C ABI: guards and conversions only.

pub mod artefact;
pub mod capi;
pub mod chat;
pub mod checkpoint;
pub mod compile;
pub mod dataset;
pub mod engine;
pub mod error;
pub mod formats;
pub mod graph;
pub mod media;
pub mod models;
mod panics;
pub mod pipeline;
pub mod quantize;
mod random;
pub mod registry;
pub mod runner;
pub mod transform;

pub use error::{Error, Result};
