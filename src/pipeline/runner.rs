//! Conversations over any directory this library writes.

use crate::artefact::Artefact;
use crate::error::Result;
use crate::quantize::QdqEngine;
use crate::runner::{Runner, RunnerOptions};
use std::path::Path;

/// Open a compiled model on the CPU engine, or a quantized one with the arithmetic of its quantize-dequantize nodes.
///
/// # Errors
/// As [`Runner::open`].
pub fn open_runner(dir: &Path, options: &RunnerOptions) -> Result<Runner> {
    match Artefact::open(dir)?.manifest().is_quantized_model() {
        true => Runner::open_with(dir, &QdqEngine::new(options.threads), options),
        false => Runner::open(dir, options),
    }
}
