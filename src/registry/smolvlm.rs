//! SmolVLM (Idefics 3): a SigLIP tower, pixel shuffle, one matrix, a Llama decoder.

use super::config::{Config, activation};
use super::entry::{Architecture, Hyperparameters, OutputHead, RegistryEntry};
use super::multimodal::{VisionDefaults, VisionModel, check_shuffle, square};
use super::spec::Activation;
use super::vision::{Connector, PositionRule, VisionSpec, VisionTower};
use crate::error::Result;

pub(super) const SMOLVLM_500M: RegistryEntry = RegistryEntry {
    name: "smolvlm_500m_instruct",
    family: "smolvlm",
    repository: Some("HuggingFaceTB/SmolVLM-500M-Instruct"),
    architecture: Architecture::VisionDecoder,
    masked_softmax: true,
    uses_chat_template: true,
    prompt_format: "smolvlm",
    decoder: Hyperparameters {
        dim: 960,
        layers: 32,
        heads: 15,
        kv_heads: 5,
        head_dim: 64,
        ffn: 2560,
        vocab: 49_280,
        rope_theta: 1e5,
        head: OutputHead::Separate,
        ..Hyperparameters::LLAMA_LIKE
    },
    ..RegistryEntry::BASE
};

/// `model_type` `idefics3` (SmolVLM) and `smolvlm` (SmolVLM2). Fields that are left out have the values of
/// transformers' `Idefics3VisionConfig` and `Idefics3Config`, which `SmolVLMConfig` repeats.
pub(super) fn read(config: &Config<'_>) -> Result<VisionModel> {
    let defaults = VisionDefaults { text_model_type: "llama", tied: false, image_token_id: 128_257 };
    VisionModel::read(config, &defaults, |vision, output_size| {
        let (image_size, patch_size) = (square(vision, "image_size", 224)?, square(vision, "patch_size", 32)?);
        let pixel_shuffle = config.size_or("scale_factor", Some(2))?;
        check_shuffle(config, "scale_factor", pixel_shuffle, image_size, patch_size)?;
        Ok(VisionSpec {
            tower: VisionTower::Siglip,
            image_size,
            patch_size,
            channels: vision.size_or("num_channels", Some(3))?,
            hidden_size: vision.size_or("hidden_size", Some(1152))?,
            layers: vision.size_or("num_hidden_layers", Some(12))?,
            heads: vision.size_or("num_attention_heads", Some(16))?,
            ffn_size: vision.size_or("intermediate_size", Some(3072))?,
            norm_eps: vision.number("layer_norm_eps", Some(1e-6))? as f32,
            activation: activation(vision, &["hidden_act"], Activation::GeluTanh)?,
            qkv_bias: true,
            class_token: false,
            layer_scale: false,
            post_norm: true,
            pixel_shuffle,
            connector: Connector::Linear,
            output_size,
            position_rule: PositionRule::Identity,
        })
    })
}
