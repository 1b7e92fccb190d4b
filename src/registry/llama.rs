//! Llama and what is laid out like it: llama2.c stories, Llama 3.2, SmolLM2.

use super::config::{Config, Defaults, attention_bias, plain_decoder};
use super::entry::{Hyperparameters, KnownScaling, OutputHead, RegistryEntry};
use super::spec::DecoderSpec;
use crate::error::Result;

pub(super) const STORIES260K: RegistryEntry = RegistryEntry {
    name: "stories260k",
    transform_weight: true,
    prompt_format: "llama2",
    decoder: Hyperparameters {
        dim: 64,
        layers: 5,
        heads: 8,
        kv_heads: 4,
        head_dim: 8,
        ffn: 172,
        vocab: 512,
        head: OutputHead::Separate,
        ..Hyperparameters::LLAMA_LIKE
    },
    ..RegistryEntry::BASE
};

pub(super) const STORIES110M: RegistryEntry = RegistryEntry {
    name: "stories110m",
    transform_weight: true,
    prompt_format: "llama2",
    decoder: Hyperparameters {
        dim: 768,
        layers: 12,
        heads: 12,
        kv_heads: 12,
        head_dim: 64,
        ffn: 2048,
        vocab: 32_000,
        head: OutputHead::Separate,
        ..Hyperparameters::LLAMA_LIKE
    },
    ..RegistryEntry::BASE
};

/// What both Llama 3.2 sizes share.
const LLAMA3_2: Hyperparameters = Hyperparameters {
    ffn: 8192,
    kv_heads: 8,
    vocab: 128_256,
    rope_theta: 5e5,
    rope_scaling: KnownScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192,
    },
    head: OutputHead::IfPresent,
    ..Hyperparameters::LLAMA_LIKE
};

pub(super) const LLAMA3_2_1B: RegistryEntry = RegistryEntry {
    name: "llama3_2-1b_instruct",
    seq_mse_candidates: 50,
    transform_weight: true,
    prompt_format: "llama3",
    decoder: Hyperparameters { dim: 2048, layers: 16, heads: 32, head_dim: 64, ..LLAMA3_2 },
    ..RegistryEntry::BASE
};

pub(super) const LLAMA3_2_3B: RegistryEntry = RegistryEntry {
    name: "llama3_2-3b_instruct",
    shards: 3,
    transform_weight: true,
    prompt_format: "llama3",
    decoder: Hyperparameters { dim: 3072, layers: 28, heads: 24, head_dim: 128, ..LLAMA3_2 },
    ..RegistryEntry::BASE
};

/// `model_type` `llama`.
pub(super) fn read(config: &Config<'_>) -> Result<DecoderSpec> {
    config.refuse_flag("mlp_bias")?;
    let bias = attention_bias(config)?;
    let spec = plain_decoder(config, &Defaults::default())?;
    Ok(DecoderSpec { qkv_bias: bias, out_bias: bias, ..spec })
}
