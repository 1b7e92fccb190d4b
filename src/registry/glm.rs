//! GLM-4 and GLM-Edge in their Hugging Face layout: neighbouring RoPE pairs, fused gate and up.

use super::config::{Config, Defaults, attention_bias, plain_decoder};
use super::entry::{Hyperparameters, OutputHead, RegistryEntry};
use super::rope::RopeDefaults;
use super::spec::DecoderSpec;
use crate::error::Result;

pub(super) const GLM_1_5B: RegistryEntry = RegistryEntry {
    name: "glm-1_5b",
    family: "glm",
    repository: Some("THUDM/glm-edge-1.5b-chat"),
    transform_weight: true,
    uses_chat_template: true,
    prompt_format: "glm",
    decoder: Hyperparameters {
        dim: 2048,
        layers: 28,
        heads: 16,
        kv_heads: 4,
        head_dim: 128,
        ffn: 6144,
        vocab: 59_264,
        rope_interleaved: true,
        head: OutputHead::IfPresent,
        ..Hyperparameters::LLAMA_LIKE
    },
    ..RegistryEntry::BASE
};

/// `model_type` `glm`. `attention_bias` means q, k and v, not the output projection.
pub(super) fn read(config: &Config<'_>) -> Result<DecoderSpec> {
    let rope = RopeDefaults { partial_rotary_factor: 0.5, interleaved: true, ..RopeDefaults::default() };
    let bias = attention_bias(config)?;
    let spec = plain_decoder(config, &Defaults { head_dim: Some(128), rope, ..Defaults::default() })?;
    Ok(DecoderSpec { qkv_bias: bias, fused_gate_up: true, ..spec })
}
