//! Nodes that every builder needs, with weights called after the node.

use crate::error::Result;
use crate::graph::{GraphBuilder, Op, ValueId};
use crate::registry::Activation;

/// `x [.., in] → [.., out]` with `{name}.weight [out, in]` and, with `bias`, `{name}.bias [out]`.
pub(super) fn linear(b: &mut GraphBuilder, name: &str, x: ValueId, out: usize, bias: bool) -> Result<ValueId> {
    let width = last_axis(b, x);
    let mut operands = vec![x, b.weight(&format!("{name}.weight"), &[out, width])?];
    if bias {
        operands.push(b.weight(&format!("{name}.bias"), &[out])?);
    }
    b.node(name, Op::Linear, &operands)
}

/// Layer normalization over the last axis with `{name}.weight` and `{name}.bias`.
pub(super) fn layer_norm(b: &mut GraphBuilder, name: &str, x: ValueId, eps: f32) -> Result<ValueId> {
    let width = last_axis(b, x);
    let weight = b.weight(&format!("{name}.weight"), &[width])?;
    let bias = b.weight(&format!("{name}.bias"), &[width])?;
    b.node(name, Op::LayerNorm { eps }, &[x, weight, bias])
}

/// The axes of `x` in the order `perm`.
pub(super) fn transpose<const N: usize>(
    b: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    perm: [usize; N],
) -> Result<ValueId> {
    b.node(name, Op::Transpose { perm: perm.to_vec() }, &[x])
}

/// The operator of an activation.
pub(super) fn activation_op(activation: Activation) -> Op {
    match activation {
        Activation::Silu => Op::Silu,
        Activation::Gelu => Op::Gelu,
        Activation::GeluTanh => Op::GeluTanh,
    }
}

/// Length of the last axis; 0 for a value without axes, which no operator with a weight accepts.
fn last_axis(b: &GraphBuilder, x: ValueId) -> usize {
    b.shape(x).last().copied().unwrap_or_default()
}
