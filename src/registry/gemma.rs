//! Gemma 1 to 4: scaled embeddings, norms stored as `w - 1`, tanh GELU, sliding windows from Gemma 2 on.

use super::config::{Config, Defaults, activation, attention_bias, plain_decoder, set_layer_kinds};
use super::entry::{Architecture, Hyperparameters, LayerPattern, RegistryEntry, Runnable};
use super::rope::{RopeDefaults, read_rope};
use super::spec::{Activation, DecoderSpec};
use crate::error::Result;

/// What all Gemma decoders share. Upstream's table says exact GELU for Gemma 1; the checkpoints were trained with tanh.
const GEMMA: Hyperparameters = Hyperparameters {
    norm_eps: 1e-6,
    activation: Activation::GeluTanh,
    norm_plus_one: true,
    ..Hyperparameters::LLAMA_LIKE
};

pub(super) const GEMMA_2B: RegistryEntry = RegistryEntry {
    name: "gemma-2b",
    family: "gemma",
    repository: Some("google/gemma-2b-it"),
    shards: 4,
    masked_softmax: true,
    uses_chat_template: true,
    prompt_format: "gemma",
    decoder: Hyperparameters {
        dim: 2048,
        layers: 18,
        heads: 8,
        kv_heads: 1,
        head_dim: 256,
        ffn: 16_384,
        vocab: 256_000,
        embedding_multiplier: 45.254_833,
        ..GEMMA
    },
    ..RegistryEntry::BASE
};

pub(super) const GEMMA2_2B: RegistryEntry = RegistryEntry {
    name: "gemma2-2b",
    family: "gemma2",
    repository: Some("google/gemma-2-2b-it"),
    architecture: Architecture::MultiScopeDecoder,
    shards: 4,
    masked_softmax: true,
    uses_chat_template: true,
    prompt_format: "gemma2",
    decoder: Hyperparameters {
        dim: 2304,
        layers: 26,
        heads: 8,
        kv_heads: 4,
        head_dim: 256,
        ffn: 9216,
        vocab: 256_000,
        local_rope_theta: Some(1e4),
        layer_pattern: LayerPattern::SlidingExceptEvery { period: 2, window: 4096 },
        post_norms: true,
        embedding_multiplier: 48.0,
        attention_softcap: Some(50.0),
        logits_softcap: Some(30.0),
        ..GEMMA
    },
    ..RegistryEntry::BASE
};

pub(super) const GEMMA3_1B: RegistryEntry = RegistryEntry {
    name: "gemma3-1b",
    family: "gemma3",
    repository: Some("google/gemma-3-1b-it"),
    architecture: Architecture::MultiScopeDecoder,
    masked_softmax: true,
    uses_chat_template: true,
    prompt_format: "gemma3",
    decoder: Hyperparameters {
        dim: 1152,
        layers: 26,
        heads: 4,
        kv_heads: 1,
        head_dim: 256,
        ffn: 6912,
        vocab: 262_144,
        rope_theta: 1e6,
        local_rope_theta: Some(1e4),
        layer_pattern: LayerPattern::SlidingExceptEvery { period: 6, window: 512 },
        qk_norm: true,
        post_norms: true,
        embedding_multiplier: 33.941_124,
        ..GEMMA
    },
    ..RegistryEntry::BASE
};

/// Sizes of the sliding layers: full layers have heads of 512, layers 15 to 34 an MLP of 12288.
pub(super) const GEMMA4_E2B: RegistryEntry = RegistryEntry {
    name: "gemma4-e2b",
    family: "gemma4",
    repository: Some("google/gemma-4-e2b-it"),
    architecture: Architecture::PerLayerInputDecoder,
    shards: 4,
    uses_chat_template: true,
    prompt_format: "gemma4",
    decoder: Hyperparameters {
        dim: 1536,
        layers: 35,
        heads: 8,
        kv_heads: 1,
        head_dim: 256,
        ffn: 6144,
        vocab: 262_144,
        rope_theta: 1e6,
        local_rope_theta: Some(1e4),
        rotary_fraction: 0.25,
        layer_pattern: LayerPattern::SlidingExceptEvery { period: 5, window: 512 },
        qk_norm: true,
        post_norms: true,
        norm_plus_one: false,
        embedding_multiplier: 39.191_837,
        attention_multiplier: Some(1.0),
        logits_softcap: Some(30.0),
        ..GEMMA
    },
    runnable: Runnable::NotYet { why: "KV sharing between layers and per-layer inputs are not implemented" },
    ..RegistryEntry::BASE
};

/// `model_type` `gemma`.
pub(super) fn read_gemma(config: &Config<'_>) -> Result<DecoderSpec> {
    gemma(config, &Defaults { head_dim: Some(256), tied: true, ..Defaults::default() })
}

/// `model_type` `gemma2`: every second layer, from the first on, slides.
pub(super) fn read_gemma2(config: &Config<'_>) -> Result<DecoderSpec> {
    let mut spec = gemma(config, &Defaults { head_dim: Some(256), tied: true, ..Defaults::default() })?;
    spec.post_norms = true;
    spec.attention_multiplier = query_scale(config)?;
    spec.attention_softcap = soft_cap(config, "attn_logit_softcapping", Some(50.0))?;
    spec.logits_softcap = soft_cap(config, "final_logit_softcapping", Some(30.0))?;
    let window = config.size_or("sliding_window", Some(4096))?;
    set_layer_kinds(config, &mut spec, Some(window), |layer| layer % 2 == 0)?;
    Ok(spec)
}

/// `model_type` `gemma3_text`, or the text part of `gemma3`: each sixth layer is full, with a RoPE of its own.
pub(super) fn read_gemma3(config: &Config<'_>) -> Result<DecoderSpec> {
    config.refuse_flag("use_bidirectional_attention")?;
    let defaults = Defaults {
        vocab_size: Some(262_208),
        heads: Some(8),
        kv_heads: Some(4),
        head_dim: Some(256),
        max_position: Some(131_072),
        tied: true,
        rope: RopeDefaults { theta: 1e6, ..RopeDefaults::default() },
    };
    let mut spec = gemma(config, &defaults)?;
    spec.qk_norm = true;
    spec.post_norms = true;
    spec.attention_multiplier = query_scale(config)?;
    spec.attention_softcap = soft_cap(config, "attn_logit_softcapping", None)?;
    spec.logits_softcap = soft_cap(config, "final_logit_softcapping", None)?;
    let window = config.size_or("sliding_window", Some(4096))?;
    // Transformers renamed the field when it moved into the class; files of both ages exist.
    let older = config.size_or("_sliding_window_pattern", Some(6))?;
    let period = config.size_or("sliding_window_pattern", Some(older))?;
    set_layer_kinds(config, &mut spec, Some(window), |layer| !(layer + 1).is_multiple_of(period))?;
    // `rope_theta` and `rope_scaling` at the top describe full layers only.
    let mut local = spec.rope.clone();
    local.scaling = super::spec::RopeScaling::None;
    local.theta = config.number("rope_local_base_freq", Some(1e4))?;
    if config.optional_object("rope_parameters")?.is_some_and(|p| p.contains_key("sliding_attention")) {
        let defaults = RopeDefaults { theta: local.theta, ..defaults.rope };
        local = read_rope(config, Some("sliding_attention"), &defaults, spec.head_dim, spec.max_position)?;
    }
    spec.local_rope = Some(local);
    Ok(spec)
}

/// Fields all three share. `hidden_activation` wins over `hidden_act`, which early files set to `gelu` by mistake.
fn gemma(config: &Config<'_>, defaults: &Defaults) -> Result<DecoderSpec> {
    let bias = attention_bias(config)?;
    let spec = plain_decoder(config, defaults)?;
    Ok(DecoderSpec {
        norm_plus_one: true,
        activation: activation(config, &["hidden_activation"], Activation::GeluTanh)?,
        embedding_multiplier: (spec.hidden_size as f64).sqrt() as f32,
        qkv_bias: bias,
        out_bias: bias,
        ..spec
    })
}

/// Scores are scaled by `query_pre_attn_scalar^(-1/2)`, which is not always the head width.
fn query_scale(config: &Config<'_>) -> Result<f32> {
    let scalar = config.number("query_pre_attn_scalar", Some(256.0))?;
    if scalar <= 0.0 {
        return Err(config.error("query_pre_attn_scalar", format!("{scalar} is not positive")));
    }
    Ok((1.0 / scalar.sqrt()) as f32)
}

/// An absent field means the family's default, `null` means none.
fn soft_cap(config: &Config<'_>, field: &str, default: Option<f32>) -> Result<Option<f32>> {
    if !config.map.contains_key(field) {
        return Ok(default);
    }
    Ok(config.optional_number(field)?.map(|cap| cap as f32))
}
