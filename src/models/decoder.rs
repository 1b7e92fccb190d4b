//! The decoder: hyper-parameters to graphs.
//!
//! One decoder is several graphs that differ only in how many tokens they take at once (the AR length): `kv_forward`
//! takes one, `prefill_forward` a block. Each gets the keys and values of earlier tokens as inputs and returns those
//! of its own tokens; the caller keeps them. The masks say which columns of `[past | block]` a token may look at.
//!
//! ```text
//! tokens ─ Embedding ─ (· embedding multiplier)      or, beside an encoder: hidden_states ─ (· embedding multiplier)
//!            │
//!            ├──── RmsNorm ─ attention ─ (RmsNorm) ─ (· residual multiplier) ──┐
//!            + ◄───────────────────────────────────────────────────────────────┘
//!            ├──── RmsNorm ─ feed-forward ─ (RmsNorm) ─ (· residual multiplier) ┐
//!            + ◄────────────────────────────────────────────────────────────────┘      … a layer, L times
//!            │
//!          RmsNorm ─ Linear ─ (· 1/divisor) ─ (soft cap) ─ logits
//! ```
//!
//! Parts in parentheses exist only in families that have them. The order of nodes is part of the contract: engines
//! recognise attention and feed-forward blocks by it.
//!
//! A decoder beside an encoder takes rows instead of token ids, because some of its rows come from the encoder. The
//! rows of tokens come from a component of their own, [`build_token_embedding`]; they are the bare rows of the table,
//! so that rows of both kinds are multiplied by the embedding multiplier in one place, inside the decoder.

use super::nodes::{activation_op, linear, transpose};
use crate::error::{Error, Result};
use crate::graph::{DType, Graph, GraphBuilder, Op, ValueId};
use crate::registry::{DecoderSpec, LayerKind};
use serde::{Deserialize, Serialize};

/// Name of the graph that takes one token.
pub const KV_FORWARD: &str = "kv_forward";
/// Name of the graph that takes a block of tokens.
pub const PREFILL_FORWARD: &str = "prefill_forward";

/// Name of the graph that embeds one token.
pub const TOK_EMBEDDING_KV_FORWARD: &str = "tok_embedding_kv_forward";
/// Name of the graph that embeds a block of tokens.
pub const TOK_EMBEDDING_PREFILL_FORWARD: &str = "tok_embedding_prefill_forward";
/// The embedding table: of the token embedding, and of a decoder that takes token ids.
pub(super) const TABLE: &str = "tok_embeddings.weight";
/// The output projection of a decoder whose head is not its embedding table.
pub(super) const HEAD: &str = "output";

/// What a decoder graph takes as input 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstInput {
    /// `tokens`, i32 `[1, AR]`.
    #[default]
    Tokens,
    /// `hidden_states`, f32 `[1, AR, E]`: embedding rows before the embedding multiplier.
    HiddenStates,
}

/// How a decoder is written down. Every form computes the same in exact arithmetic; which one is best depends on what runs
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DecoderForm {
    /// What input 0 is.
    pub first: FirstInput,
    /// The head is a weight of its own, `output.weight`, even where the model ties it to the embedding table: the two can
    /// then be stored in different precisions.
    pub separate_head: bool,
    /// R3: queries and keys are turned by a Hadamard matrix behind the rotary embedding, `q H` and `k H`. Scores stay what
    /// they are, outliers of single channels are spread over the head. Heads must be a power of two wide.
    pub r3: bool,
    /// Blocked scores become the smallest score of their row less 20 instead of being added -255 to, so that scores need no
    /// range for numbers that mean nothing.
    pub masked_softmax: bool,
    /// The residual stream is kept divided by a factor a channel, and multiplied with it in front of every norm: channels with
    /// values far beyond all others no longer decide how fine the others are stored. Weights that write to the stream are bound
    /// divided, see [`ResidualScaling`](crate::transform::ResidualScaling).
    pub residual_scaling: bool,
    /// Rotary pairs `(i, i + r/2)` also where the family pairs neighbours; rows of `wq` and `wk` are bound in another order
    /// for that.
    pub half_split_rope: bool,
}

/// Name of the weight that [`DecoderForm::r3`] multiplies heads with, `[head_dim, head_dim]`.
pub(super) const R3: &str = "r3.weight";
/// Names of the factors of [`DecoderForm::residual_scaling`] and of their inverses, both `[1, 1, E]`.
pub(crate) const RESIDUAL_SCALE: &str = "residual.scale";
pub(crate) const RESIDUAL_INVERSE: &str = "residual.inverse";
/// How far below the smallest score of its row a blocked one is, see [`DecoderForm::masked_softmax`]. Upstream's number.
const MASKED_DROP: f32 = 20.0;

/// The deployed graphs of a decoder: `kv_forward` (one token), then `prefill_forward` (`prefill_ar` tokens).
///
/// # Errors
/// [`Error::InvalidArgument`] for a context or block of no tokens, a block that does not leave room for a past, a
/// context beyond [`DecoderSpec::max_position`], or an invalid `spec`.
pub fn build_decoder(spec: &DecoderSpec, max_context: usize, prefill_ar: usize) -> Result<Vec<Graph>> {
    Ok(vec![
        build(spec, FirstInput::Tokens, KV_FORWARD, max_context, 1)?,
        build(spec, FirstInput::Tokens, PREFILL_FORWARD, max_context, prefill_ar)?,
    ])
}

/// The deployed graphs of a decoder beside an encoder: as [`build_decoder`], but input 0 is `hidden_states`, f32
/// `[1, AR, E]`, the rows that [`build_token_embedding`] and the encoder give.
///
/// The head is always a weight of its own, `output.weight`: the embedding table of a tied model is in another
/// component.
///
/// # Errors
/// As [`build_decoder`].
pub fn build_embedding_decoder(spec: &DecoderSpec, max_context: usize, prefill_ar: usize) -> Result<Vec<Graph>> {
    Ok(vec![
        build(spec, FirstInput::HiddenStates, KV_FORWARD, max_context, 1)?,
        build(spec, FirstInput::HiddenStates, PREFILL_FORWARD, max_context, prefill_ar)?,
    ])
}

/// The deployed graphs of the token embedding beside such a decoder: `tokens`, i32 `[1, AR]`, to `embeddings`, f32
/// `[1, AR, E]`, for one token and for `prefill_ar` tokens.
///
/// # Errors
/// [`Error::InvalidArgument`] for a block of no tokens or an invalid `spec`.
pub fn build_token_embedding(spec: &DecoderSpec, prefill_ar: usize) -> Result<Vec<Graph>> {
    spec.validate()?;
    if prefill_ar == 0 {
        return Err(Error::invalid(format!("{TOK_EMBEDDING_PREFILL_FORWARD}: a block of 0 tokens")));
    }
    let graph = |name: &str, ar: usize| {
        let mut b = GraphBuilder::new(name);
        let tokens = b.input("tokens", DType::I32, &[1, ar])?;
        let table = b.weight(TABLE, &[spec.vocab_size, spec.hidden_size])?;
        let rows = b.node("tok_embeddings", Op::Embedding, &[tokens, table])?;
        b.output(rows, "embeddings")?;
        b.finish()
    };
    Ok(vec![graph(TOK_EMBEDDING_KV_FORWARD, 1)?, graph(TOK_EMBEDDING_PREFILL_FORWARD, prefill_ar)?])
}

/// One graph of a decoder, for blocks of `ar` tokens in a context of `max_context`.
///
/// # Errors
/// As [`build_decoder`].
pub fn build_decoder_graph(spec: &DecoderSpec, name: &str, max_context: usize, ar: usize) -> Result<Graph> {
    build(spec, FirstInput::Tokens, name, max_context, ar)
}

/// One graph of a decoder in some form: blocks of `ar` tokens behind `past` others, rotary tables of `positions` rows.
///
/// Without a past (`past` 0) the inputs of the KV cache have no columns: the graph of a whole sequence, with the nodes of
/// the deployed ones under the same names.
///
/// # Errors
/// [`Error::InvalidArgument`] for a block of no tokens, more columns than `positions`, positions beyond
/// [`DecoderSpec::max_position`], heads that R3 cannot turn, or an invalid `spec`.
pub fn build_decoder_form(
    spec: &DecoderSpec,
    form: DecoderForm,
    name: &str,
    positions: usize,
    (past, ar): (usize, usize),
) -> Result<Graph> {
    spec.validate()?;
    if ar == 0 || past.checked_add(ar).is_none_or(|columns| columns > positions) {
        return Err(Error::invalid(format!(
            "{name}: {ar} tokens behind {past} do not fit a context of {positions} tokens"
        )));
    }
    if positions > spec.max_position {
        let limit = spec.max_position;
        return Err(Error::invalid(format!("a context of {positions} is beyond the {limit} the model was made for")));
    }
    if form.r3 && !spec.head_dim.is_power_of_two() {
        let width = spec.head_dim;
        return Err(Error::invalid(format!(
            "R3 turns heads that are a power of two wide, those of this model are {width}"
        )));
    }
    Decoder { b: GraphBuilder::new(name), spec, form, ar, past, positions }.build()
}

fn build(spec: &DecoderSpec, first: FirstInput, name: &str, max_context: usize, ar: usize) -> Result<Graph> {
    if ar == 0 || ar >= max_context {
        return Err(Error::invalid(format!(
            "{name}: blocks of {ar} tokens do not fit a context of {max_context}: 1 to {} are possible",
            max_context.saturating_sub(1)
        )));
    }
    let form = DecoderForm { first, ..DecoderForm::default() };
    build_decoder_form(spec, form, name, max_context, (max_context - ar, ar))
}

/// What every layer reads beside the residual stream.
struct Shared {
    attention_mask: ValueId,
    window_mask: Option<ValueId>,
    positions: ValueId,
    k_caches: Vec<ValueId>,
    v_caches: Vec<ValueId>,
}

struct Decoder<'a> {
    b: GraphBuilder,
    spec: &'a DecoderSpec,
    form: DecoderForm,
    ar: usize,
    past: usize,
    /// Rows of the rotary tables.
    positions: usize,
}

impl Decoder<'_> {
    fn build(mut self) -> Result<Graph> {
        let rows = match self.form.first {
            FirstInput::Tokens => self.b.input("tokens", DType::I32, &[1, self.ar])?,
            FirstInput::HiddenStates => {
                self.b.input("hidden_states", DType::F32, &[1, self.ar, self.spec.hidden_size])?
            }
        };
        let shared = self.shared_inputs()?;

        let mut x = self.embed(rows)?;
        let (mut new_keys, mut new_values) = (Vec::new(), Vec::new());
        for layer in 0..self.spec.layers {
            let at = format!("layers.{layer}");

            let n = self.stream(&format!("{at}.attention_norm.input"), RESIDUAL_SCALE, x)?;
            let n = self.rms_norm(&format!("{at}.attention_norm"), n, self.spec.hidden_size)?;
            let (attended, k, v) = self.attention(&format!("{at}.attention"), layer, n, &shared)?;
            x = self.add_branch(&at, ["post_attention_norm", "attention_residual"], x, attended)?;

            let n = self.stream(&format!("{at}.ffn_norm.input"), RESIDUAL_SCALE, x)?;
            let n = self.rms_norm(&format!("{at}.ffn_norm"), n, self.spec.hidden_size)?;
            let fed = self.feed_forward(&format!("{at}.feed_forward"), n)?;
            x = self.add_branch(&at, ["post_ffn_norm", "ffn_residual"], x, fed)?;

            new_keys.push(k);
            new_values.push(v);
        }
        let logits = self.head(x)?;

        self.b.output(logits, "logits")?;
        for (layer, k) in new_keys.into_iter().enumerate() {
            self.b.output(k, &format!("k_out_{layer}"))?;
        }
        for (layer, v) in new_values.into_iter().enumerate() {
            self.b.output(v, &format!("v_out_{layer}"))?;
        }
        self.b.finish()
    }

    fn shared_inputs(&mut self) -> Result<Shared> {
        let &DecoderSpec { layers, kv_heads, head_dim, .. } = self.spec;
        let past = self.past;
        let mask = [1, 1, self.ar, past + self.ar];
        let slides = self.spec.layer_kinds.contains(&LayerKind::Sliding);
        Ok(Shared {
            attention_mask: self.b.input("attention_mask", DType::F32, &mask)?,
            window_mask: if slides { Some(self.b.input("window_mask", DType::F32, &mask)?) } else { None },
            positions: self.b.input("input_pos", DType::I32, &[1, self.ar])?,
            k_caches: self.caches("k_cache", layers, &[1, kv_heads, head_dim, past])?,
            v_caches: self.caches("v_cache", layers, &[1, kv_heads, past, head_dim])?,
        })
    }

    fn caches(&mut self, name: &str, layers: usize, shape: &[usize]) -> Result<Vec<ValueId>> {
        (0..layers).map(|layer| self.b.input(&format!("{name}_{layer}"), DType::F32, shape)).collect()
    }

    /// Input 0 to the residual stream `[1, AR, E]`.
    fn embed(&mut self, rows: ValueId) -> Result<ValueId> {
        let x = match self.form.first {
            FirstInput::Tokens => {
                let table = self.embedding_table()?;
                self.b.node("tok_embeddings", Op::Embedding, &[rows, table])?
            }
            FirstInput::HiddenStates => self.stream("hidden_states.scaled", RESIDUAL_INVERSE, rows)?,
        };
        self.scale("tok_embeddings.scale", x, self.spec.embedding_multiplier)
    }

    /// `[1, AR, E] → [1, AR, E]`, and the keys `[1, Hkv, D, AR]` and values `[1, Hkv, AR, D]` of the block.
    fn attention(
        &mut self,
        at: &str,
        layer: usize,
        x: ValueId,
        shared: &Shared,
    ) -> Result<(ValueId, ValueId, ValueId)> {
        let &DecoderSpec { heads, kv_heads, head_dim, .. } = self.spec;
        let kind = self.spec.layer_kinds[layer];

        let q = self.heads(at, 'q', x, heads)?;
        let q = self.position(at, 'q', q, kind, shared.positions)?;
        let q = self.turn(at, 'q', q)?;
        let q = transpose(&mut self.b, &format!("{at}.q_transpose"), q, [0, 2, 1, 3])?;

        let k = self.heads(at, 'k', x, kv_heads)?;
        let k = self.position(at, 'k', k, kind, shared.positions)?;
        let k = self.turn(at, 'k', k)?;
        let k = transpose(&mut self.b, &format!("{at}.k_transpose"), k, [0, 2, 3, 1])?;

        let v = self.heads(at, 'v', x, kv_heads)?;
        let v = transpose(&mut self.b, &format!("{at}.v_transpose"), v, [0, 2, 1, 3])?;

        let keys = self.b.node(&format!("{at}.k_concat"), Op::Concat { axis: 3 }, &[shared.k_caches[layer], k])?;
        let values = self.b.node(&format!("{at}.v_concat"), Op::Concat { axis: 2 }, &[shared.v_caches[layer], v])?;

        let mask = match (kind, shared.window_mask) {
            (LayerKind::Sliding, Some(window_mask)) => window_mask,
            _ => shared.attention_mask,
        };
        let scores = self.b.node(&format!("{at}.scores"), Op::MatMul, &[q, keys])?;
        let factor = self.spec.attention_multiplier;
        let scores = self.b.node(&format!("{at}.scores_scale"), Op::Scale { factor }, &[scores])?;
        let scores = self.soft_cap(&format!("{at}.scores_softcap"), scores, self.spec.attention_softcap)?;
        let blocking = if self.form.masked_softmax { Op::MaskedFill { drop: MASKED_DROP } } else { Op::Add };
        let scores = self.b.node(&format!("{at}.mask"), blocking, &[scores, mask])?;
        let weights = self.b.node(&format!("{at}.softmax"), Op::Softmax, &[scores])?;

        let mixed = self.b.node(&format!("{at}.mix"), Op::MatMul, &[weights, values])?;
        let mixed = transpose(&mut self.b, &format!("{at}.mix_transpose"), mixed, [0, 2, 1, 3])?;
        let mixed = self.b.reshape(&format!("{at}.mix_reshape"), mixed, &[1, self.ar, heads * head_dim])?;
        let out = linear(&mut self.b, &format!("{at}.wo"), mixed, self.spec.hidden_size, self.spec.out_bias)?;
        Ok((out, k, v))
    }

    /// Projection `which` of `x`, split into heads: `[1, AR, E] → [1, AR, heads, D]`.
    fn heads(&mut self, at: &str, which: char, x: ValueId, heads: usize) -> Result<ValueId> {
        let head_dim = self.spec.head_dim;
        let y = linear(&mut self.b, &format!("{at}.w{which}"), x, heads * head_dim, self.spec.qkv_bias)?;
        self.b.reshape(&format!("{at}.{which}_heads"), y, &[1, self.ar, heads, head_dim])
    }

    /// The norm of each head, where the family has one, and the rotary embedding of the layer.
    fn position(
        &mut self,
        at: &str,
        which: char,
        mut x: ValueId,
        kind: LayerKind,
        positions: ValueId,
    ) -> Result<ValueId> {
        if self.spec.qk_norm {
            x = self.rms_norm(&format!("{at}.{which}_norm_fn"), x, self.spec.head_dim)?;
        }
        let (rope, table) = match (kind, &self.spec.local_rope) {
            (LayerKind::FullNoRope, _) => return Ok(x),
            (LayerKind::Sliding, Some(local)) => (local, "rope_local"),
            (LayerKind::Sliding, None) | (LayerKind::Full, _) => (&self.spec.rope, "rope"),
        };
        let shape = [self.positions, rope.rotary_dim / 2];
        let cos = self.b.weight(&format!("{table}.cos"), &shape)?;
        let sin = self.b.weight(&format!("{table}.sin"), &shape)?;
        let op = Op::Rope { interleaved: rope.interleaved && !self.form.half_split_rope };
        self.b.node(&format!("{at}.{which}_rope"), op, &[x, cos, sin, positions])
    }

    /// Into or out of the scaled residual stream, `[1, AR, E] → [1, AR, E]`.
    fn stream(&mut self, name: &str, factors: &str, x: ValueId) -> Result<ValueId> {
        if !self.form.residual_scaling {
            return Ok(x);
        }
        let factors = self.b.weight(factors, &[1, 1, self.spec.hidden_size])?;
        self.b.node(name, Op::Mul, &[x, factors])
    }

    /// R3, `[1, AR, heads, D] → [1, AR, heads, D]`. The matrix is its own transpose.
    fn turn(&mut self, at: &str, which: char, x: ValueId) -> Result<ValueId> {
        if !self.form.r3 {
            return Ok(x);
        }
        let hadamard = self.b.weight(R3, &[self.spec.head_dim, self.spec.head_dim])?;
        self.b.node(&format!("{at}.{which}_r3"), Op::Linear, &[x, hadamard])
    }

    /// `w2(act(w1 x) · w3 x)`, `[1, AR, E] → [1, AR, E]`.
    fn feed_forward(&mut self, at: &str, x: ValueId) -> Result<ValueId> {
        let &DecoderSpec { ffn_size, hidden_size, activation, .. } = self.spec;
        let gate = linear(&mut self.b, &format!("{at}.w1"), x, ffn_size, false)?;
        let gate = self.b.node(&format!("{at}.activation"), activation_op(activation), &[gate])?;
        let up = linear(&mut self.b, &format!("{at}.w3"), x, ffn_size, false)?;
        let gated = self.b.node(&format!("{at}.gated"), Op::Mul, &[gate, up])?;
        linear(&mut self.b, &format!("{at}.w2"), gated, hidden_size, false)
    }

    /// Add a branch to the residual stream: normalized and scaled first, where the family does so.
    fn add_branch(&mut self, at: &str, [norm, sum]: [&str; 2], x: ValueId, mut branch: ValueId) -> Result<ValueId> {
        if self.spec.post_norms {
            branch = self.rms_norm(&format!("{at}.{norm}"), branch, self.spec.hidden_size)?;
        }
        branch = self.scale(&format!("{at}.{sum}_scale"), branch, self.spec.residual_multiplier)?;
        self.b.node(&format!("{at}.{sum}"), Op::Add, &[x, branch])
    }

    /// `[1, AR, E] → [1, AR, V]`
    fn head(&mut self, x: ValueId) -> Result<ValueId> {
        let x = self.stream("norm.input", RESIDUAL_SCALE, x)?;
        let x = self.rms_norm("norm", x, self.spec.hidden_size)?;
        let is_table = self.spec.tied_embeddings && self.form.first == FirstInput::Tokens && !self.form.separate_head;
        let logits = if is_table {
            let table = self.embedding_table()?;
            self.b.node(HEAD, Op::Linear, &[x, table])?
        } else {
            linear(&mut self.b, HEAD, x, self.spec.vocab_size, false)?
        };
        let logits = self.scale("output.scale", logits, 1.0 / self.spec.logits_divisor)?;
        self.soft_cap("output.softcap", logits, self.spec.logits_softcap)
    }

    fn embedding_table(&mut self) -> Result<ValueId> {
        self.b.weight(TABLE, &[self.spec.vocab_size, self.spec.hidden_size])
    }

    /// A norm over the last axis, whose weight is called after the node.
    fn rms_norm(&mut self, name: &str, x: ValueId, width: usize) -> Result<ValueId> {
        let weight = self.b.weight(&format!("{name}.weight"), &[width])?;
        self.b.node(name, Op::RmsNorm { eps: self.spec.norm_eps }, &[x, weight])
    }

    /// No node for a factor of one.
    fn scale(&mut self, name: &str, x: ValueId, factor: f32) -> Result<ValueId> {
        if factor == 1.0 { Ok(x) } else { self.b.node(name, Op::Scale { factor }, &[x]) }
    }

    /// No node without a cap.
    fn soft_cap(&mut self, name: &str, x: ValueId, cap: Option<f32>) -> Result<ValueId> {
        match cap {
            Some(cap) => self.b.node(name, Op::SoftCap { cap }, &[x]),
            None => Ok(x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::ModelSpec;
    use serde_json::{Value, json};

    fn spec(changes: Value) -> DecoderSpec {
        let mut config = json!({
            "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 12, "vocab_size": 32,
            "max_position_embeddings": 64, "tie_word_embeddings": true, "sliding_window": 4
        });
        if let (Value::Object(config), Value::Object(changes)) = (&mut config, changes) {
            config.extend(changes);
        }
        ModelSpec::from_config(config.as_object().unwrap()).unwrap().decoder
    }

    fn signature(infos: &[crate::graph::TensorInfo]) -> Vec<String> {
        infos.iter().map(|t| format!("{} {} {:?}", t.name, t.dtype.name(), t.shape)).collect()
    }

    #[test]
    fn the_signature_is_the_graph_contract() {
        let graphs = build_decoder(&spec(json!({})), 16, 5).unwrap();
        assert_eq!((graphs[0].name.as_str(), graphs[1].name.as_str()), (KV_FORWARD, PREFILL_FORWARD));
        let inputs = [
            "tokens i32 [1, 5]",
            "attention_mask f32 [1, 1, 5, 16]",
            "input_pos i32 [1, 5]",
            "k_cache_0 f32 [1, 2, 4, 11]",
            "k_cache_1 f32 [1, 2, 4, 11]",
            "v_cache_0 f32 [1, 2, 11, 4]",
            "v_cache_1 f32 [1, 2, 11, 4]",
        ];
        let outputs = [
            "logits f32 [1, 5, 32]",
            "k_out_0 f32 [1, 2, 4, 5]",
            "k_out_1 f32 [1, 2, 4, 5]",
            "v_out_0 f32 [1, 2, 5, 4]",
            "v_out_1 f32 [1, 2, 5, 4]",
        ];
        assert_eq!(signature(&graphs[1].input_infos()), inputs);
        assert_eq!(signature(&graphs[1].output_infos()), outputs);
        assert_eq!(graphs[0].input_infos()[0].shape, [1, 1]);
    }

    #[test]
    fn sliding_models_take_a_window_mask_and_two_ropes() {
        let graph =
            &build_decoder(&spec(json!({"model_type": "gemma3_text", "sliding_window_pattern": 2})), 16, 5).unwrap()[1];
        assert_eq!(signature(&graph.input_infos())[2], "window_mask f32 [1, 1, 5, 16]");
        let weights: Vec<&str> = graph.weights().map(|w| w.name.as_str()).collect();
        for name in
            ["rope.cos", "rope_local.sin", "layers.0.attention.q_norm_fn.weight", "layers.1.post_ffn_norm.weight"]
        {
            assert!(weights.contains(&name), "{name} is missing in {weights:?}");
        }
        let masks = graph.nodes.iter().filter(|n| n.name.ends_with(".mask")).map(|n| graph.value(n.inputs[1]));
        assert_eq!(masks.map(|v| v.info.name.as_str()).collect::<Vec<_>>(), ["window_mask", "attention_mask"]);
    }

    /// Engines recognise blocks by this order.
    #[test]
    fn nodes_come_in_the_agreed_order() {
        let graph = &build_decoder(&spec(json!({"num_hidden_layers": 1})), 16, 5).unwrap()[0];
        let ops: Vec<&str> = graph.nodes.iter().map(|node| node.op.name()).collect();
        let expected = [
            "embedding",
            "rms_norm",
            "linear",
            "reshape",
            "rope",
            "transpose",
            "linear",
            "reshape",
            "rope",
            "transpose",
            "linear",
            "reshape",
            "transpose",
            "concat",
            "concat",
            "mat_mul",
            "scale",
            "add",
            "softmax",
            "mat_mul",
            "transpose",
            "reshape",
            "linear",
            "add",
            "rms_norm",
            "linear",
            "silu",
            "linear",
            "mul",
            "linear",
            "add",
            "rms_norm",
            "linear",
        ];
        assert_eq!(ops, expected);
    }

    /// Beside an encoder only the first input and the tied head differ.
    #[test]
    fn a_decoder_that_takes_rows_has_a_head_of_its_own_and_no_table() {
        let spec = spec(json!({"model_type": "granite", "embedding_multiplier": 12.0}));
        let graphs = build_embedding_decoder(&spec, 16, 5).unwrap();
        assert_eq!((graphs[0].name.as_str(), graphs[1].name.as_str()), (KV_FORWARD, PREFILL_FORWARD));
        let tokens = &build_decoder(&spec, 16, 5).unwrap()[1];
        let (ours, theirs) = (signature(&graphs[1].input_infos()), signature(&tokens.input_infos()));
        assert_eq!((ours[0].as_str(), &ours[1..]), ("hidden_states f32 [1, 5, 8]", &theirs[1..]));
        assert_eq!(graphs[1].output_infos(), tokens.output_infos());
        let first = &graphs[1].nodes[0];
        assert_eq!((first.name.as_str(), first.op.name()), ("tok_embeddings.scale", "scale"), "the multiplier stays");
        assert_eq!(graphs[1].nodes.len(), tokens.nodes.len() - 1);
        let weights: Vec<&str> = graphs[1].weights().map(|w| w.name.as_str()).collect();
        assert!(weights.contains(&"output.weight") && !weights.contains(&TABLE), "{weights:?}");
    }

    #[test]
    fn the_token_embedding_gives_bare_rows() {
        let spec = spec(json!({"model_type": "granite", "embedding_multiplier": 12.0}));
        let graphs = build_token_embedding(&spec, 5).unwrap();
        for (graph, name, ar) in
            [(&graphs[0], TOK_EMBEDDING_KV_FORWARD, 1), (&graphs[1], TOK_EMBEDDING_PREFILL_FORWARD, 5)]
        {
            assert_eq!(graph.name, name);
            assert_eq!(signature(&graph.input_infos()), [format!("tokens i32 [1, {ar}]")]);
            assert_eq!(signature(&graph.output_infos()), [format!("embeddings f32 [1, {ar}, 8]")]);
            assert_eq!(graph.nodes.len(), 1);
        }
        assert!(build_token_embedding(&spec, 0).is_err());
    }

    #[test]
    fn a_context_that_cannot_be_is_refused_with_both_numbers() {
        for (context, block, numbers) in [(16, 16, ["16", "15"]), (16, 0, ["0", "15"]), (65, 5, ["65", "64"])] {
            let error = build_decoder(&spec(json!({})), context, block).unwrap_err().to_string();
            assert!(numbers.iter().all(|number| error.contains(number)), "{error}");
        }
    }
}
