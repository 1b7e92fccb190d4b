//! What a decoder looks like, as data: everything the graph builder needs, nothing it could guess.

use super::vision::VisionSpec;
use serde::{Deserialize, Serialize};

/// A model the pipeline can be asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Registry name (`smollm2_135m`), or the name taken from the checkpoint.
    pub name: String,
    /// Decoder family, e.g. `llama`, `qwen3`, `gemma3`.
    pub family: String,
    /// The text decoder.
    pub decoder: DecoderSpec,
    /// The vision encoder of a model that sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision: Option<VisionSpec>,
    /// The token whose embedding rows are replaced by the vision encoder's, one token a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_token_id: Option<u32>,
}

/// Hyper-parameters of a decoder. Sizes in elements, positions in tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecoderSpec {
    /// Rows of the embedding table and width of the logits.
    pub vocab_size: usize,
    /// Residual width E.
    pub hidden_size: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Head width.
    pub head_dim: usize,
    /// Hidden width of the MLP.
    pub ffn_size: usize,
    /// The longest context the checkpoint was made for.
    pub max_position: usize,
    /// Epsilon of every norm.
    pub norm_eps: f32,
    /// Norm weights are stored as `w - 1` (Gemma 1 to 3).
    pub norm_plus_one: bool,
    /// MLP activation.
    pub activation: Activation,
    /// Rotary embedding of full-attention layers.
    pub rope: RopeSpec,
    /// Rotary embedding of sliding layers, where it differs.
    pub local_rope: Option<RopeSpec>,
    /// Window of sliding layers: a token sees itself and `window - 1` before it.
    pub sliding_window: Option<usize>,
    /// One entry a layer.
    pub layer_kinds: Vec<LayerKind>,
    /// q, k and v have biases.
    pub qkv_bias: bool,
    /// The output projection has a bias.
    pub out_bias: bool,
    /// Per-head RMS norm of q and k before RoPE.
    pub qk_norm: bool,
    /// Norms after attention and after the MLP, before the residual add (Gemma 2 and 3).
    pub post_norms: bool,
    /// q, k, v stored as one matrix (`qkv_proj`, rows q then k then v).
    pub fused_qkv: bool,
    /// gate and up stored as one matrix (`gate_up_proj`, rows gate then up).
    pub fused_gate_up: bool,
    /// The head is the embedding table.
    pub tied_embeddings: bool,
    /// Multiplies the embedding rows.
    pub embedding_multiplier: f32,
    /// Multiplies `q·k`; normally `1/sqrt(head_dim)`.
    pub attention_multiplier: f32,
    /// Multiplies both residual branches.
    pub residual_multiplier: f32,
    /// Divides the logits.
    pub logits_divisor: f32,
    /// `cap·tanh(x/cap)` on attention scores.
    pub attention_softcap: Option<f32>,
    /// `cap·tanh(x/cap)` on logits.
    pub logits_softcap: Option<f32>,
}

/// Kind of one decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// Causal attention over everything, with RoPE.
    Full,
    /// Causal attention over the sliding window, with the local RoPE.
    Sliding,
    /// Causal attention over everything, without RoPE (SmolLM3).
    FullNoRope,
}

/// MLP activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// Exact GELU.
    Gelu,
    /// Tanh-approximated GELU.
    GeluTanh,
}

/// Rotary position embedding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub theta: f64,
    /// Rotated elements of each head (even, at most `head_dim`).
    pub rotary_dim: usize,
    /// Pairs are `(2i, 2i+1)` (GLM) instead of `(i, i + rotary_dim/2)`.
    pub interleaved: bool,
    /// How the frequencies are stretched.
    pub scaling: RopeScaling,
}

/// Frequency scaling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RopeScaling {
    /// None.
    None,
    /// All positions divided by `factor`.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3: by wavelength (spec/pipeline-contract.md 3.3).
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
    /// Per-frequency divisors, as GGUF files carry them (`rope_freqs.weight`).
    FreqFactors {
        /// One divisor a frequency.
        factors: Vec<f64>,
    },
    /// LongRoPE: per-frequency divisors, short ones up to `original_context`, and a factor on cos and sin.
    LongRope {
        /// Divisors for contexts up to `original_context`.
        short_factor: Vec<f64>,
        /// Divisors beyond.
        long_factor: Vec<f64>,
        /// Context of the original training.
        original_context: usize,
        /// Multiplies cos and sin.
        attention_factor: f64,
    },
}
