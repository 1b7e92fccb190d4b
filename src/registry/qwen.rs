//! Qwen2 and Qwen2.5 (biases on q, k, v) and Qwen3 (norms on q and k).

use super::config::{Config, Defaults, attention_bias, plain_decoder, set_layer_kinds};
use super::entry::{Hyperparameters, OutputHead, RegistryEntry};
use super::spec::DecoderSpec;
use crate::error::Result;

/// What all listed Qwen decoders share.
const QWEN: Hyperparameters = Hyperparameters {
    vocab: 151_936,
    rope_theta: 1e6,
    norm_eps: 1e-6,
    head: OutputHead::IfPresent,
    ..Hyperparameters::LLAMA_LIKE
};

pub(super) const QWEN2_5_0_5B: RegistryEntry = RegistryEntry {
    name: "qwen2_5-0_5b",
    family: "qwen2",
    repository: Some("Qwen/Qwen2.5-0.5B"),
    masked_softmax: true,
    hadamard_r3: true,
    prompt_format: "qwen2_5",
    decoder: Hyperparameters {
        dim: 896,
        layers: 24,
        heads: 14,
        kv_heads: 2,
        head_dim: 64,
        ffn: 4864,
        qkv_bias: true,
        ..QWEN
    },
    ..RegistryEntry::BASE
};

pub(super) const QWEN2_5_1_5B: RegistryEntry = RegistryEntry {
    name: "qwen2_5-1_5b",
    family: "qwen2",
    repository: Some("Qwen/Qwen2.5-1.5B"),
    masked_softmax: true,
    hadamard_r3: true,
    prompt_format: "qwen2_5",
    decoder: Hyperparameters {
        dim: 1536,
        layers: 28,
        heads: 12,
        kv_heads: 2,
        head_dim: 128,
        ffn: 8960,
        qkv_bias: true,
        ..QWEN
    },
    ..RegistryEntry::BASE
};

/// What both Qwen3 sizes share.
const QWEN3: Hyperparameters =
    Hyperparameters { layers: 28, heads: 16, kv_heads: 8, head_dim: 128, qk_norm: true, ..QWEN };

pub(super) const QWEN3_0_6B: RegistryEntry = RegistryEntry {
    name: "qwen3-0_6b",
    family: "qwen3",
    repository: Some("Qwen/Qwen3-0.6B"),
    masked_softmax: true,
    seq_mse_candidates: 50,
    uses_chat_template: true,
    prompt_format: "qwen3",
    decoder: Hyperparameters { dim: 1024, ffn: 3072, ..QWEN3 },
    ..RegistryEntry::BASE
};

pub(super) const QWEN3_1_7B: RegistryEntry = RegistryEntry {
    name: "qwen3-1_7b",
    family: "qwen3",
    repository: Some("Qwen/Qwen3-1.7B"),
    masked_softmax: true,
    hadamard_r3: true,
    uses_chat_template: true,
    prompt_format: "qwen3",
    decoder: Hyperparameters { dim: 2048, ffn: 6144, ..QWEN3 },
    ..RegistryEntry::BASE
};

/// `model_type` `qwen2`.
pub(super) fn read_qwen2(config: &Config<'_>) -> Result<DecoderSpec> {
    let spec = plain_decoder(config, &Defaults::default())?;
    with_window(config, DecoderSpec { qkv_bias: true, ..spec })
}

/// `model_type` `qwen3`.
pub(super) fn read_qwen3(config: &Config<'_>) -> Result<DecoderSpec> {
    let bias = attention_bias(config)?;
    let spec = plain_decoder(config, &Defaults { head_dim: Some(128), ..Defaults::default() })?;
    with_window(config, DecoderSpec { qk_norm: true, qkv_bias: bias, out_bias: bias, ..spec })
}

/// The window counts only where `use_sliding_window` says so, from layer `max_window_layers` on.
fn with_window(config: &Config<'_>, mut spec: DecoderSpec) -> Result<DecoderSpec> {
    let slides = config.flag("use_sliding_window", false)?;
    let window = if slides { Some(config.size_or("sliding_window", Some(4096))?) } else { None };
    let first = config.number("max_window_layers", Some(28.0))?;
    set_layer_kinds(config, &mut spec, window, |layer| slides && layer as f64 >= first)?;
    Ok(spec)
}
