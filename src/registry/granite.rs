//! IBM Granite: a Llama with multipliers on embedding, scores, residuals and logits.

use super::config::{Config, Defaults, attention_bias, plain_decoder};
use super::entry::{Architecture, Hyperparameters, RegistryEntry, Runnable};
use super::spec::DecoderSpec;
use crate::error::Result;

/// The 2B decoder of Granite 3.3 and of Granite-speech 3.3; only the vocabulary differs.
pub(super) const GRANITE_2B: Hyperparameters = Hyperparameters {
    dim: 2048,
    layers: 40,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    ffn: 8192,
    vocab: 49_159,
    rope_theta: 1e7,
    embedding_multiplier: 12.0,
    attention_multiplier: Some(0.015625),
    residual_multiplier: 0.22,
    logits_divisor: 8.0,
    ..Hyperparameters::LLAMA_LIKE
};

pub(super) const GRANITE_3_3_2B: RegistryEntry = RegistryEntry {
    name: "granite_3_3-2b_instruct",
    family: "granite",
    repository: Some("ibm-granite/granite-3.3-2b-instruct"),
    masked_softmax: true,
    uses_chat_template: true,
    prompt_format: "granite",
    decoder: GRANITE_2B,
    ..RegistryEntry::BASE
};

pub(super) const GRANITE_SPEECH_3_3_2B: RegistryEntry = RegistryEntry {
    name: "granite_speech_3_3-2b",
    family: "granite_speech",
    repository: Some("ibm-granite/granite-speech-3.3-2b"),
    architecture: Architecture::AudioDecoder,
    shards: 4,
    masked_softmax: true,
    uses_chat_template: true,
    prompt_format: "granite_speech",
    decoder: Hyperparameters { vocab: 49_160, ..GRANITE_2B },
    runnable: Runnable::NotYet { why: "audio encoders are not implemented" },
    ..RegistryEntry::BASE
};

/// `model_type` `granite`.
pub(super) fn read(config: &Config<'_>) -> Result<DecoderSpec> {
    config.refuse_flag("mlp_bias")?;
    let bias = attention_bias(config)?;
    let factor = |field| config.number(field, Some(1.0)).map(|v| v as f32);
    let spec = plain_decoder(config, &Defaults::default())?;
    Ok(DecoderSpec {
        qkv_bias: bias,
        out_bias: bias,
        embedding_multiplier: factor("embedding_multiplier")?,
        attention_multiplier: factor("attention_multiplier")?,
        residual_multiplier: factor("residual_multiplier")?,
        logits_divisor: factor("logits_scaling")?,
        ..spec
    })
}
