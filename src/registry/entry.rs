//! One line of the registry: what upstream calls a model and what is known about it before any file is opened.

use super::spec::{Activation, DecoderSpec};
use serde::Serialize;

/// A model the pipeline knows by name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RegistryEntry {
    /// Upstream's name, e.g. `qwen2_5-0_5b`.
    pub name: &'static str,
    /// Decoder family, as in [`super::ModelSpec::family`].
    pub family: &'static str,
    /// Where the checkpoint is published; `None` for checkpoints upstream expects on disk.
    pub repository: Option<&'static str>,
    /// How the decoder is put together.
    pub architecture: Architecture,
    /// Decoder parts the NPU target cuts the model into.
    pub shards: u32,
    /// The NPU target asks for masked softmax.
    pub masked_softmax: bool,
    /// Candidates of the SeqMSE weight search; 0 is off.
    pub seq_mse_candidates: u32,
    /// q and k are rotated by a Hadamard matrix after RoPE (upstream's R3; R1 and R2 exist for no model).
    pub hadamard_r3: bool,
    /// Upstream permutes q/k rows from adjacent pairs to half-split pairs.
    pub transform_weight: bool,
    /// Calibration and chat use the model's own chat template.
    pub uses_chat_template: bool,
    /// Upstream's run-time prompt format.
    pub prompt_format: &'static str,
    /// Hyper-parameters of the published checkpoint.
    pub decoder: Hyperparameters,
    /// Whether this build can compile and run it.
    pub runnable: Runnable,
}

/// How a decoder is put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    /// Token ids in, logits out.
    Decoder,
    /// A decoder with sliding and full attention layers (two masks).
    MultiScopeDecoder,
    /// A decoder fed with embeddings, beside a vision encoder.
    VisionDecoder,
    /// A decoder fed with embeddings, beside an audio encoder.
    AudioDecoder,
    /// Shared KV and per-layer inputs (Gemma 4).
    PerLayerInputDecoder,
}

/// Whether this build can compile and run a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Runnable {
    /// From a checkpoint in Hugging Face layout or GGUF.
    Yes,
    /// Listed only.
    NotYet {
        /// What is missing.
        why: &'static str,
    },
}

/// Where the output projection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputHead {
    /// The embedding table again.
    Tied,
    /// The checkpoint carries it.
    Separate,
    /// The checkpoint's, or the embedding table if it has none.
    IfPresent,
}

/// Frequency scaling as far as it is a property of the model rather than a list in its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KnownScaling {
    /// None.
    None,
    /// By wavelength.
    Llama3 {
        /// Divisor of long wavelengths.
        factor: f64,
        /// Low-frequency border.
        low_freq_factor: f64,
        /// High-frequency border.
        high_freq_factor: f64,
        /// Context of the original training.
        original_context: usize,
    },
    /// Per-frequency divisors, listed in the checkpoint's `config.json`.
    LongRope {
        /// Context of the original training.
        original_context: usize,
    },
}

/// Which layers are not plain full attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerPattern {
    /// All layers attend to everything.
    Full,
    /// Sliding windows, except each `period`-th layer.
    SlidingExceptEvery {
        /// Layers from one full layer to the next.
        period: usize,
        /// Tokens a sliding layer sees.
        window: usize,
    },
    /// No RoPE in each `period`-th layer.
    NoRopeEvery {
        /// Layers from one without RoPE to the next.
        period: usize,
    },
}

/// Hyper-parameters of a published decoder. What a checkpoint really holds is read from its own configuration; these
/// are for listing, recognising and planning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hyperparameters {
    /// Residual width.
    pub dim: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Head width.
    pub head_dim: usize,
    /// Hidden width of the MLP.
    pub ffn: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// RoPE base.
    pub rope_theta: f64,
    /// RoPE base of sliding layers, where it differs.
    pub local_rope_theta: Option<f64>,
    /// Share of each head that is rotated.
    pub rotary_fraction: f64,
    /// RoPE pairs are neighbours instead of half a head apart (Hugging Face row order).
    pub rope_interleaved: bool,
    /// RoPE scaling.
    pub rope_scaling: KnownScaling,
    /// Norm epsilon.
    pub norm_eps: f32,
    /// MLP activation.
    pub activation: Activation,
    /// Output projection.
    pub head: OutputHead,
    /// Kinds of layers.
    pub layer_pattern: LayerPattern,
    /// Biases on q, k, v.
    pub qkv_bias: bool,
    /// Norm of q and k per head.
    pub qk_norm: bool,
    /// Norms after attention and MLP.
    pub post_norms: bool,
    /// Norm weights are stored as `w - 1`.
    pub norm_plus_one: bool,
    /// Multiplies the embedding rows.
    pub embedding_multiplier: f32,
    /// Multiplies the scores; `None` is `1/sqrt(head_dim)`.
    pub attention_multiplier: Option<f32>,
    /// Multiplies both residual branches.
    pub residual_multiplier: f32,
    /// Divides the logits.
    pub logits_divisor: f32,
    /// Soft cap of the attention scores.
    pub attention_softcap: Option<f32>,
    /// Soft cap of the logits.
    pub logits_softcap: Option<f32>,
}

impl Hyperparameters {
    /// A Llama-like decoder of no size: each entry states its sizes and where it differs.
    pub(super) const LLAMA_LIKE: Self = Self {
        dim: 0,
        layers: 0,
        heads: 0,
        kv_heads: 0,
        head_dim: 0,
        ffn: 0,
        vocab: 0,
        rope_theta: 1e4,
        local_rope_theta: None,
        rotary_fraction: 1.0,
        rope_interleaved: false,
        rope_scaling: KnownScaling::None,
        norm_eps: 1e-5,
        activation: Activation::Silu,
        head: OutputHead::Tied,
        layer_pattern: LayerPattern::Full,
        qkv_bias: false,
        qk_norm: false,
        post_norms: false,
        norm_plus_one: false,
        embedding_multiplier: 1.0,
        attention_multiplier: None,
        residual_multiplier: 1.0,
        logits_divisor: 1.0,
        attention_softcap: None,
        logits_softcap: None,
    };

    /// Whether a checkpoint's decoder has these sizes and this RoPE base.
    pub fn matches(&self, spec: &DecoderSpec) -> bool {
        let own = [self.dim, self.layers, self.heads, self.kv_heads, self.head_dim, self.ffn, self.vocab];
        let theirs =
            [spec.hidden_size, spec.layers, spec.heads, spec.kv_heads, spec.head_dim, spec.ffn_size, spec.vocab_size];
        own == theirs && self.rope_theta == spec.rope.theta
    }
}

impl RegistryEntry {
    /// A runnable text decoder with upstream's most frequent flags and no name.
    pub(super) const BASE: Self = Self {
        name: "",
        family: "llama",
        repository: None,
        architecture: Architecture::Decoder,
        shards: 1,
        masked_softmax: false,
        seq_mse_candidates: 0,
        hadamard_r3: false,
        transform_weight: false,
        uses_chat_template: false,
        prompt_format: "",
        decoder: Hyperparameters::LLAMA_LIKE,
        runnable: Runnable::Yes,
    };
}
