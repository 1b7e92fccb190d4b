//! Model names and hyper-parameters as data.
//!
//! [`entries`] lists upstream's models, one file a family. What a checkpoint really is comes from its own
//! `config.json`, whatever it is called: [`ModelSpec::from_config`].

mod check;
mod codegen;
mod config;
mod entry;
mod gemma;
mod glm;
mod granite;
mod internvl;
mod llama;
mod multimodal;
mod phi;
mod qwen;
mod rope;
mod smollm;
mod smolvlm;
mod spec;
mod vision;

use crate::error::{Error, Result};

pub use entry::{Architecture, Hyperparameters, KnownScaling, LayerPattern, OutputHead, RegistryEntry, Runnable};
pub use spec::{Activation, DecoderSpec, LayerKind, ModelSpec, RopeScaling, RopeSpec};
pub use vision::{Connector, PositionRule, VisionSpec, VisionTower};

static ENTRIES: [RegistryEntry; 21] = [
    llama::STORIES260K,
    llama::STORIES110M,
    llama::LLAMA3_2_1B,
    llama::LLAMA3_2_3B,
    codegen::CODEGEN2_1B,
    gemma::GEMMA_2B,
    gemma::GEMMA2_2B,
    gemma::GEMMA3_1B,
    gemma::GEMMA4_E2B,
    glm::GLM_1_5B,
    granite::GRANITE_3_3_2B,
    granite::GRANITE_SPEECH_3_3_2B,
    phi::PHI_4_MINI,
    qwen::QWEN2_5_0_5B,
    qwen::QWEN2_5_1_5B,
    qwen::QWEN3_0_6B,
    qwen::QWEN3_1_7B,
    smollm::SMOLLM2_135M,
    smollm::SMOLLM3_3B,
    internvl::INTERNVL3_1B,
    smolvlm::SMOLVLM_500M,
];

/// All models known by name, in upstream's order.
pub fn entries() -> &'static [RegistryEntry] {
    &ENTRIES
}

/// The entry called `name`, without regard to case.
///
/// # Errors
/// [`Error::NotFound`] listing every name there is.
pub fn find(name: &str) -> Result<&'static RegistryEntry> {
    let found = entries().iter().find(|entry| entry.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| {
        let names = entries().iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
        Error::NotFound(format!("there is no model called {name:?}; known models: {names}"))
    })
}

/// The entry whose published checkpoint has the sizes of this decoder.
pub fn recognise(family: &str, decoder: &DecoderSpec) -> Option<&'static RegistryEntry> {
    entries().iter().find(|entry| entry.family == family && entry.decoder.matches(decoder))
}

#[cfg(test)]
mod tests;
