//! Phi-4-mini (`phi3` by layout): fused projections, partial rotary embedding, LongRoPE.

use super::config::{Config, Defaults, plain_decoder, set_layer_kinds};
use super::entry::{Hyperparameters, KnownScaling, RegistryEntry};
use super::spec::DecoderSpec;
use crate::error::Result;

pub(super) const PHI_4_MINI: RegistryEntry = RegistryEntry {
    name: "phi_4_mini",
    family: "phi3",
    repository: Some("microsoft/Phi-4-mini-instruct"),
    shards: 8,
    uses_chat_template: true,
    prompt_format: "phi_4_mini",
    decoder: Hyperparameters {
        dim: 3072,
        layers: 32,
        heads: 24,
        kv_heads: 8,
        head_dim: 128,
        ffn: 8192,
        vocab: 200_064,
        rotary_fraction: 0.75,
        rope_scaling: KnownScaling::LongRope { original_context: 4096 },
        ..Hyperparameters::LLAMA_LIKE
    },
    ..RegistryEntry::BASE
};

/// `model_type` `phi3`. The window, where it is shorter than the context, holds for every layer.
pub(super) fn read(config: &Config<'_>) -> Result<DecoderSpec> {
    for field in ["attention_bias", "mlp_bias", "lm_head_bias"] {
        config.refuse_flag(field)?;
    }
    let plain = plain_decoder(config, &Defaults::default())?;
    let mut spec = DecoderSpec { fused_qkv: true, fused_gate_up: true, ..plain };
    let window = config.optional_size("sliding_window")?;
    set_layer_kinds(config, &mut spec, window, |_| window.is_some())?;
    Ok(spec)
}
