//! Decoders that are fed with embeddings, beside a vision or audio encoder.

use super::entry::{Architecture, Hyperparameters, OutputHead, RegistryEntry, Runnable};
use super::granite::GRANITE_2B;

const NO_ENCODERS: Runnable = Runnable::NotYet { why: "vision and audio encoders are not implemented" };

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
    runnable: NO_ENCODERS,
    ..RegistryEntry::BASE
};

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
    runnable: NO_ENCODERS,
    ..RegistryEntry::BASE
};

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
    runnable: NO_ENCODERS,
    ..RegistryEntry::BASE
};
