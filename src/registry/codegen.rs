//! CodeGen2: a parallel block under one layer norm.

use super::entry::{Hyperparameters, OutputHead, RegistryEntry, Runnable};
use super::spec::Activation;

pub(super) const CODEGEN2_1B: RegistryEntry = RegistryEntry {
    name: "codegen2_1b",
    family: "codegen",
    repository: Some("Salesforce/codegen2-1B_P"),
    masked_softmax: true,
    transform_weight: true,
    prompt_format: "codegen",
    decoder: Hyperparameters {
        dim: 2048,
        layers: 16,
        heads: 16,
        kv_heads: 16,
        head_dim: 128,
        ffn: 8192,
        vocab: 51_200,
        rotary_fraction: 0.5,
        rope_interleaved: true,
        activation: Activation::Gelu,
        head: OutputHead::Separate,
        ..Hyperparameters::LLAMA_LIKE
    },
    runnable: Runnable::NotYet { why: "the parallel attention/MLP block with layer norm is not implemented" },
    ..RegistryEntry::BASE
};
