//! The GGUF architectures that can be presented as a Hugging Face model.

use super::metadata::Metadata;
use crate::error::{Error, Result};

/// `general.architecture`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
    Gemma,
    Gemma2,
    Gemma3,
    Phi3,
    Granite,
    SmolLm3,
    Glm4,
}

use Architecture::*;

impl Architecture {
    const ALL: [Architecture; 10] = [Llama, Qwen2, Qwen3, Gemma, Gemma2, Gemma3, Phi3, Granite, SmolLm3, Glm4];

    /// The architecture of a file.
    pub(super) fn of(metadata: &Metadata) -> Result<Self> {
        const KEY: &str = "general.architecture";
        let name = metadata.text(KEY)?.ok_or_else(|| metadata.malformed(KEY, "missing"))?;
        Architecture::ALL.into_iter().find(|known| known.gguf_name() == name).ok_or_else(|| {
            let known: Vec<&str> = Architecture::ALL.iter().map(|a| a.gguf_name()).collect();
            Error::Unsupported(format!("GGUF architecture {name:?} cannot be read; these can: {}", known.join(", ")))
        })
    }

    /// The name in the file, which is also the prefix of its keys.
    pub(super) fn gguf_name(self) -> &'static str {
        match self {
            Llama => "llama",
            Qwen2 => "qwen2",
            Qwen3 => "qwen3",
            Gemma => "gemma",
            Gemma2 => "gemma2",
            Gemma3 => "gemma3",
            Phi3 => "phi3",
            Granite => "granite",
            SmolLm3 => "smollm3",
            Glm4 => "glm4",
        }
    }

    /// `model_type` of `config.json`.
    pub(super) fn model_type(self) -> &'static str {
        match self {
            Gemma3 => "gemma3_text",
            other => other.gguf_name(),
        }
    }

    /// The class in `architectures` of `config.json`.
    pub(super) fn class_name(self) -> &'static str {
        match self {
            Llama => "LlamaForCausalLM",
            Qwen2 => "Qwen2ForCausalLM",
            Qwen3 => "Qwen3ForCausalLM",
            Gemma => "GemmaForCausalLM",
            Gemma2 => "Gemma2ForCausalLM",
            Gemma3 => "Gemma3ForCausalLM",
            Phi3 => "Phi3ForCausalLM",
            Granite => "GraniteForCausalLM",
            SmolLm3 => "SmolLM3ForCausalLM",
            Glm4 => "Glm4ForCausalLM",
        }
    }

    pub(super) fn is_gemma(self) -> bool {
        matches!(self, Gemma | Gemma2 | Gemma3)
    }

    /// Whether rows of q and k are stored with interleaved rotary pairs: the converters of these families reorder them
    /// for llama.cpp's "norm" rotation. (GLM-4 rotates interleaved pairs in the original too, so its rows are as they
    /// were.)
    pub(super) fn interleaves_heads(self) -> bool {
        matches!(self, Llama | Granite | SmolLm3)
    }

    /// Whether norms follow attention and MLP in addition to those in front.
    pub(super) fn has_post_norms(self) -> bool {
        matches!(self, Gemma2 | Gemma3 | Glm4)
    }

    /// Whether `ffn_up` holds gate and up in one matrix.
    pub(super) fn fuses_gate_up(self) -> bool {
        matches!(self, Phi3 | Glm4)
    }
}
