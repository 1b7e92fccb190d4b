//! Engines behind the C ABI of `include/etgenai_engine.h`.
//!
//! - [`abi`]: the header in Rust.
//! - [`PluginEngine`]: functions of a host or of a library, as an [`Engine`](super::Engine).
//! - `component`: what such an engine loaded, checked once and copied to Rust's types.
//! - [`ExportedEngine`]: the other direction: one of our engines as functions.

pub mod abi;
mod component;
mod export;
mod functions;
mod library;

pub use export::ExportedEngine;
pub use functions::PluginEngine;
