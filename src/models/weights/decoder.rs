//! The decoder's weights, and those of the token embedding in front of it.

use super::binder::{Binder, Part};
use super::layout::Layout;
use super::{Adjust, Order, RopePart, RopeTable, Source};
use crate::error::Result;
use crate::models::decoder::{DecoderForm, HEAD, R3, TABLE};
use crate::registry::{DecoderSpec, LayerKind, RopeSpec};
use crate::transform::half_split_rows;

/// A decoder that takes token ids.
pub(super) fn bind_decoder(
    binder: &mut Binder<'_>,
    spec: &DecoderSpec,
    form: DecoderForm,
    layout: &Layout,
    max_context: usize,
) -> Result<()> {
    bind_token_embedding(binder, spec, layout)?;
    let table = [spec.vocab_size, spec.hidden_size];
    if !spec.tied_embeddings {
        binder.bind(&format!("{HEAD}.weight"), layout.head, &table)?;
    } else {
        if binder.has(layout.head) {
            // Some tied checkpoints carry a copy of the table; transformers does not look at it either.
            binder.require(layout.head, &table)?;
        }
        if form.separate_head {
            binder.bind(&format!("{HEAD}.weight"), &layout.table(), &table)?;
        }
    }
    bind_body(binder, spec, form, layout, max_context)
}

/// A decoder that takes rows.
///
/// The head is the checkpoint's if it has one, whatever the configuration says about tying: current releases of
/// transformers do the same with a head that differs from the table, and one that does not differ makes no difference.
/// Without one it is the table, if the configuration ties the two.
pub(super) fn bind_embedding_decoder(
    binder: &mut Binder<'_>,
    spec: &DecoderSpec,
    form: DecoderForm,
    layout: &Layout,
    max_context: usize,
) -> Result<()> {
    let is_table = spec.tied_embeddings && !binder.has(layout.head);
    let head = if is_table { layout.table() } else { layout.head.into() };
    binder.bind(&format!("{HEAD}.weight"), &head, &[spec.vocab_size, spec.hidden_size])?;
    bind_body(binder, spec, form, layout, max_context)
}

/// The embedding table.
pub(super) fn bind_token_embedding(binder: &mut Binder<'_>, spec: &DecoderSpec, layout: &Layout) -> Result<()> {
    binder.bind(TABLE, &layout.table(), &[spec.vocab_size, spec.hidden_size])
}

/// Everything between the rows that go in and the head.
fn bind_body(
    binder: &mut Binder<'_>,
    spec: &DecoderSpec,
    form: DecoderForm,
    layout: &Layout,
    max_context: usize,
) -> Result<()> {
    let mut body = Body { binder, spec, form, prefix: layout.decoder };
    body.bind_norm("norm", &format!("{}norm", layout.decoder), spec.hidden_size)?;
    for layer in 0..spec.layers {
        body.bind_layer(layer)?;
    }
    body.bind_ropes(max_context);
    if form.r3 {
        binder.insert(R3, &[spec.head_dim, spec.head_dim], Source::Hadamard);
    }
    Ok(())
}

struct Body<'b, 'a> {
    binder: &'b mut Binder<'a>,
    spec: &'b DecoderSpec,
    form: DecoderForm,
    prefix: &'static str,
}

impl Body<'_, '_> {
    fn bind_layer(&mut self, layer: usize) -> Result<()> {
        let (own, theirs) = (format!("layers.{layer}"), format!("{}layers.{layer}", self.prefix));
        self.bind_attention(layer, &format!("{own}.attention"), &format!("{theirs}.self_attn"))?;
        self.bind_feed_forward(&format!("{own}.feed_forward"), &format!("{theirs}.mlp"))?;

        // Hugging Face's "post attention" norm stands before the MLP, except where there are post norms as well.
        let norms: &[(&str, &str)] = if self.spec.post_norms {
            &[
                ("attention_norm", "input_layernorm"),
                ("post_attention_norm", "post_attention_layernorm"),
                ("ffn_norm", "pre_feedforward_layernorm"),
                ("post_ffn_norm", "post_feedforward_layernorm"),
            ]
        } else {
            &[("attention_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")]
        };
        for (name, tensor) in norms {
            self.bind_norm(&format!("{own}.{name}"), &format!("{theirs}.{tensor}"), self.spec.hidden_size)?;
        }
        Ok(())
    }

    fn bind_attention(&mut self, layer: usize, own: &str, theirs: &str) -> Result<()> {
        let &DecoderSpec { hidden_size, heads, kv_heads, head_dim, qkv_bias, out_bias, .. } = self.spec;
        let (q_rows, kv_rows) = (heads * head_dim, kv_heads * head_dim);
        let (q_order, k_order) = (self.row_order(layer, heads), self.row_order(layer, kv_heads));
        let [wq, wk, wv, wo] = ["wq", "wk", "wv", "wo"].map(|name| format!("{own}.{name}"));
        if self.spec.fused_qkv {
            let parts = [
                Part { node: &wq, rows: q_rows, order: q_order },
                Part { node: &wk, rows: kv_rows, order: k_order },
                Part { node: &wv, rows: kv_rows, order: None },
            ];
            self.binder.bind_parts(parts, &format!("{theirs}.qkv_proj.weight"), hidden_size)?;
        } else {
            let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|name| format!("{theirs}.{name}"));
            self.binder.bind_ordered_linear(&wq, &q, [q_rows, hidden_size], qkv_bias, q_order)?;
            self.binder.bind_ordered_linear(&wk, &k, [kv_rows, hidden_size], qkv_bias, k_order)?;
            self.binder.bind_linear(&wv, &v, [kv_rows, hidden_size], qkv_bias)?;
        }
        self.binder.bind_linear(&wo, &format!("{theirs}.o_proj"), [hidden_size, q_rows], out_bias)?;
        if self.spec.qk_norm {
            let order = self.row_order(layer, 1);
            self.bind_ordered_norm(&format!("{own}.q_norm_fn"), &format!("{theirs}.q_norm"), head_dim, order.clone())?;
            self.bind_ordered_norm(&format!("{own}.k_norm_fn"), &format!("{theirs}.k_norm"), head_dim, order)?;
        }
        Ok(())
    }

    /// The order in which the rows of `heads` heads of a layer's queries or keys are bound: that of the checkpoint, unless
    /// the graph pairs other rows than the family does.
    fn row_order(&self, layer: usize, heads: usize) -> Order {
        let rope = match (self.spec.layer_kinds.get(layer)?, &self.spec.local_rope) {
            (LayerKind::FullNoRope, _) => return None,
            (LayerKind::Sliding, Some(local)) => local,
            (LayerKind::Sliding, None) | (LayerKind::Full, _) => &self.spec.rope,
        };
        let moves = rope.interleaved && self.form.half_split_rope;
        moves.then(|| half_split_rows(heads, self.spec.head_dim, rope.rotary_dim).into())
    }

    fn bind_feed_forward(&mut self, own: &str, theirs: &str) -> Result<()> {
        let &DecoderSpec { hidden_size, ffn_size, .. } = self.spec;
        let [w1, w2, w3] = ["w1", "w2", "w3"].map(|name| format!("{own}.{name}"));
        if self.spec.fused_gate_up {
            let parts = [&w1, &w3].map(|node| Part { node, rows: ffn_size, order: None });
            self.binder.bind_parts(parts, &format!("{theirs}.gate_up_proj.weight"), hidden_size)?;
        } else {
            self.binder.bind_linear(&w1, &format!("{theirs}.gate_proj"), [ffn_size, hidden_size], false)?;
            self.binder.bind_linear(&w3, &format!("{theirs}.up_proj"), [ffn_size, hidden_size], false)?;
        }
        self.binder.bind_linear(&w2, &format!("{theirs}.down_proj"), [hidden_size, ffn_size], false)
    }

    fn bind_norm(&mut self, weight: &str, tensor: &str, width: usize) -> Result<()> {
        self.bind_ordered_norm(weight, tensor, width, None)
    }

    fn bind_ordered_norm(&mut self, weight: &str, tensor: &str, width: usize, order: Order) -> Result<()> {
        let adjust = if self.spec.norm_plus_one { Adjust::PlusOne } else { Adjust::None };
        self.binder.bind_in_order(&format!("{weight}.weight"), &format!("{tensor}.weight"), &[width], order, adjust)
    }

    /// The tables of every RoPE some layer uses.
    fn bind_ropes(&mut self, max_context: usize) {
        let spec = self.spec;
        let slides = spec.layer_kinds.contains(&LayerKind::Sliding);
        let rotates_fully = spec.layer_kinds.contains(&LayerKind::Full);
        if rotates_fully || (slides && spec.local_rope.is_none()) {
            self.bind_rope("rope", &spec.rope, max_context);
        }
        if let Some(local) = spec.local_rope.as_ref().filter(|_| slides) {
            self.bind_rope("rope_local", local, max_context);
        }
    }

    fn bind_rope(&mut self, name: &str, rope: &RopeSpec, max_context: usize) {
        let table = RopeTable::new(rope, max_context);
        let shape = [max_context, rope.rotary_dim / 2];
        for (suffix, part) in [("cos", RopePart::Cos), ("sin", RopePart::Sin)] {
            let source = Source::Rope { table: table.clone(), part };
            self.binder.insert(&format!("{name}.{suffix}"), &shape, source);
        }
    }
}
