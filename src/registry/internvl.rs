//! InternVL: an InternViT tower, pixel shuffle, an MLP, a Qwen2 decoder.

use super::config::{Config, FILE, activation};
use super::entry::{Architecture, Hyperparameters, OutputHead, RegistryEntry};
use super::multimodal::{VisionDefaults, VisionModel, check_shuffle, square};
use super::spec::Activation;
use super::vision::{Connector, PositionRule, VisionSpec, VisionTower};
use crate::error::{Error, Result};
use serde_json::Value;

pub(super) const INTERNVL3_1B: RegistryEntry = RegistryEntry {
    name: "internvl3_1b",
    family: "internvl3",
    repository: Some("OpenGVLab/InternVL3-1B-hf"),
    architecture: Architecture::VisionDecoder,
    masked_softmax: true,
    uses_chat_template: true,
    prompt_format: "internvl3",
    decoder: Hyperparameters {
        dim: 896,
        layers: 24,
        heads: 14,
        kv_heads: 2,
        head_dim: 64,
        ffn: 4864,
        vocab: 151_674,
        rope_theta: 1e6,
        norm_eps: 1e-6,
        head: OutputHead::Separate,
        qkv_bias: true,
        ..Hyperparameters::LLAMA_LIKE
    },
    ..RegistryEntry::BASE
};

/// Epsilon of the projector's norm; no configuration mentions it, it is PyTorch's default.
const PROJECTOR_NORM_EPS: f32 = 1e-5;

/// `model_type` `internvl`. Fields that are left out have the values of transformers' `InternVLVisionConfig` and
/// `InternVLConfig`.
pub(super) fn read(config: &Config<'_>) -> Result<VisionModel> {
    let defaults = VisionDefaults { text_model_type: "qwen2", tied: true, image_token_id: 151_667 };
    check_selection(config)?;
    VisionModel::read(config, &defaults, |vision, output_size| {
        check_variant(vision)?;
        let (image_size, patch_size) = (square(vision, "image_size", 448)?, square(vision, "patch_size", 14)?);
        let pixel_shuffle = pixel_shuffle(config)?;
        check_shuffle(config, "downsample_ratio", pixel_shuffle, image_size, patch_size)?;
        Ok(VisionSpec {
            tower: VisionTower::InternVit,
            image_size,
            patch_size,
            channels: vision.size_or("num_channels", Some(3))?,
            hidden_size: vision.size_or("hidden_size", Some(1024))?,
            layers: vision.size_or("num_hidden_layers", Some(24))?,
            heads: vision.size_or("num_attention_heads", Some(16))?,
            ffn_size: vision.size_or("intermediate_size", Some(4096))?,
            norm_eps: vision.number("layer_norm_eps", Some(1e-6))? as f32,
            activation: activation(vision, &["hidden_act"], Activation::Gelu)?,
            qkv_bias: vision.flag("attention_bias", false)?,
            class_token: true,
            layer_scale: true,
            // A tower that is made for mean pooling leaves its last norm out.
            post_norm: !vision.flag("use_mean_pooling", true)?,
            pixel_shuffle,
            connector: Connector::Mlp {
                norm_eps: PROJECTOR_NORM_EPS,
                activation: activation(config, &["projector_hidden_act"], Activation::Gelu)?,
            },
            output_size,
            position_rule: PositionRule::Identity,
        })
    })
}

/// Which hidden states become tokens: those of the last layer, without the class token.
fn check_selection(config: &Config<'_>) -> Result<()> {
    match config.get("vision_feature_layer") {
        None => {}
        Some(layer) if layer.as_i64() == Some(-1) => {}
        Some(layer) => return Err(unsupported(config, "vision_feature_layer", &layer.to_string(), "-1")),
    }
    match config.optional_text("vision_feature_select_strategy")?.unwrap_or("default") {
        "default" => Ok(()),
        other => Err(unsupported(config, "vision_feature_select_strategy", other, "default")),
    }
}

/// Variants of the tower that no graph here implements.
fn check_variant(vision: &Config<'_>) -> Result<()> {
    vision.refuse_flag("use_qk_norm")?;
    vision.refuse_flag("use_mask_token")?;
    if !vision.flag("use_absolute_position_embeddings", true)? {
        return Err(unsupported(vision, "use_absolute_position_embeddings", "false", "true"));
    }
    match vision.optional_text("norm_type")?.unwrap_or("layer_norm") {
        "layer_norm" => Ok(()),
        other => Err(unsupported(vision, "norm_type", other, "layer_norm")),
    }
}

fn unsupported(config: &Config<'_>, field: &str, value: &str, known: &str) -> Error {
    Error::Unsupported(format!("{FILE}: {}{field}: {value} is not supported, only {known}", config.prefix))
}

/// `downsample_ratio` 0.5 makes one token of 2 × 2 patches.
fn pixel_shuffle(config: &Config<'_>) -> Result<usize> {
    let ratio = config.number("downsample_ratio", Some(0.5))?;
    let side = (1.0 / ratio).round();
    // A third has no exact decimal.
    if !(1.0..=64.0).contains(&side) || (side * ratio - 1.0).abs() > 1e-4 {
        let value = config.get("downsample_ratio").map_or(ratio.to_string(), Value::to_string);
        return Err(config.error("downsample_ratio", format!("{value} is not 1, 1/2, 1/3, … 1/64")));
    }
    Ok(side as usize)
}
