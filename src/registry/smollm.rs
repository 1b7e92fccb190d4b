//! SmolLM2 (a Llama by layout) and SmolLM3 (each fourth layer without RoPE).

use super::config::{Config, Defaults, attention_bias, plain_decoder, set_layer_kinds};
use super::entry::{Hyperparameters, LayerPattern, RegistryEntry};
use super::spec::{DecoderSpec, LayerKind};
use crate::error::{Error, Result};

pub(super) const SMOLLM2_135M: RegistryEntry = RegistryEntry {
    name: "smollm2_135m",
    repository: Some("HuggingFaceTB/SmolLM2-135M-Instruct"),
    hadamard_r3: true,
    transform_weight: true,
    uses_chat_template: true,
    prompt_format: "smollm2_135m",
    decoder: Hyperparameters {
        dim: 576,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        ffn: 1536,
        vocab: 49_152,
        rope_theta: 1e5,
        ..Hyperparameters::LLAMA_LIKE
    },
    ..RegistryEntry::BASE
};

pub(super) const SMOLLM3_3B: RegistryEntry = RegistryEntry {
    name: "smollm3-3b",
    family: "smollm3",
    repository: Some("HuggingFaceTB/SmolLM3-3B"),
    shards: 4,
    masked_softmax: true,
    uses_chat_template: true,
    prompt_format: "smollm3",
    decoder: Hyperparameters {
        dim: 2048,
        layers: 36,
        heads: 16,
        kv_heads: 4,
        head_dim: 128,
        ffn: 11_008,
        vocab: 128_256,
        rope_theta: 5e6,
        norm_eps: 1e-6,
        layer_pattern: LayerPattern::NoRopeEvery { period: 4 },
        ..Hyperparameters::LLAMA_LIKE
    },
    ..RegistryEntry::BASE
};

/// `model_type` `smollm3`.
pub(super) fn read_smollm3(config: &Config<'_>) -> Result<DecoderSpec> {
    config.refuse_flag("mlp_bias")?;
    let bias = attention_bias(config)?;
    let plain = plain_decoder(config, &Defaults { tied: true, ..Defaults::default() })?;
    let mut spec = DecoderSpec { qkv_bias: bias, out_bias: bias, ..plain };
    let slides = config.flag("use_sliding_window", false)?;
    let window = if slides { config.optional_size("sliding_window")? } else { None };
    set_layer_kinds(config, &mut spec, window, |_| false)?;
    set_layers_without_rope(config, &mut spec)?;
    Ok(spec)
}

/// `no_rope_layers` holds 1 for layers *with* RoPE; without the list each `no_rope_layer_interval`-th has none.
fn set_layers_without_rope(config: &Config<'_>, spec: &mut DecoderSpec) -> Result<()> {
    let list = config.optional_list("no_rope_layers")?;
    let interval = config.size_or("no_rope_layer_interval", Some(4))?;
    if let Some(list) = list.filter(|list| list.len() != spec.layers) {
        let reason = format!("{} entries for {} layers", list.len(), spec.layers);
        return Err(config.error("no_rope_layers", reason));
    }
    for (layer, kind) in spec.layer_kinds.iter_mut().enumerate() {
        let has_rope = match list.and_then(|list| list.get(layer)) {
            None => !(layer + 1).is_multiple_of(interval),
            Some(value) => match value.as_u64() {
                Some(flag @ 0..=1) => flag == 1,
                _ => return Err(config.error("no_rope_layers", format!("{value} is neither 0 nor 1"))),
            },
        };
        match (has_rope, *kind) {
            (true, _) => {}
            (false, LayerKind::Sliding) => {
                return Err(Error::Unsupported(format!("layer {layer} is sliding and without RoPE: not supported")));
            }
            (false, _) => *kind = LayerKind::FullNoRope,
        }
    }
    Ok(())
}
