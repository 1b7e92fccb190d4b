//! Shape inference: what each operator accepts and what it produces. The builder and [`super::Graph::validate`] share
//! it, so a graph read from a file obeys exactly the rules of a graph that was built.

use super::ir::Op;
use super::tensor::{DType, TensorInfo};

/// Result of a rule: a shape, or why the operands do not fit. The caller adds graph and node.
pub(super) type Inferred = std::result::Result<Vec<usize>, String>;

/// Largest number of axes a tensor may have.
const MAX_RANK: usize = 8;

/// Shape of `op`'s result for these operands. `target` is the wanted shape of [`Op::Reshape`], unused otherwise.
pub(super) fn infer(op: &Op, inputs: &[&TensorInfo], target: Option<&[usize]>) -> Inferred {
    check_operands(op, inputs)?;
    let shape = match op {
        Op::Embedding => embedding(inputs)?,
        Op::Linear => linear(inputs)?,
        Op::RmsNorm { eps } => norm(*eps, inputs)?,
        Op::LayerNorm { eps } => norm(*eps, inputs)?,
        Op::Rope { .. } => rope(inputs)?,
        Op::Add | Op::Mul => broadcast(inputs)?,
        Op::Scale { factor } if !factor.is_finite() => return Err(format!("factor {factor} is not finite")),
        Op::SoftCap { cap } if !(cap.is_finite() && *cap > 0.0) => return Err(format!("cap {cap} is not positive")),
        Op::MaskedFill { drop } if !(drop.is_finite() && *drop > 0.0) => {
            return Err(format!("drop {drop} is not positive"));
        }
        Op::MaskedFill { .. } => broadcast(&[at_least_one_axis(inputs[0])?, inputs[1]])?,
        Op::QuantizeDequantize { scale, zero_point, qmin, qmax } => {
            grid(*scale, *zero_point, *qmin, *qmax)?;
            inputs[0].shape.clone()
        }
        Op::Scale { .. } | Op::SoftCap { .. } | Op::Sigmoid | Op::Silu | Op::Gelu | Op::GeluTanh => {
            inputs[0].shape.clone()
        }
        Op::Softmax => at_least_one_axis(inputs[0])?.shape.clone(),
        Op::Reshape => reshape(inputs[0], target)?,
        Op::Transpose { perm } => transpose(inputs[0], perm)?,
        Op::Concat { axis } => concat(inputs, *axis)?,
        Op::Slice { axis, start, len } => slice(inputs[0], *axis, *start, *len)?,
        Op::MatMul => mat_mul(inputs)?,
    };
    if shape.contains(&0) {
        return Err(format!("the result {shape:?} has no elements"));
    }
    Ok(shape)
}

/// An element count and byte size that fit memory addressing, and a sane number of axes.
pub(super) fn check_size(info: &TensorInfo) -> std::result::Result<(), String> {
    if info.shape.len() > MAX_RANK {
        return Err(format!("{} axes; at most {MAX_RANK} are supported", info.shape.len()));
    }
    match info.size_bytes() {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => Err(format!("the size of shape {:?} overflows", info.shape)),
    }
}

/// Smallest and largest operand count of an operator.
fn arity(op: &Op) -> (usize, usize) {
    match op {
        Op::Embedding | Op::RmsNorm { .. } | Op::Add | Op::Mul | Op::MatMul | Op::MaskedFill { .. } => (2, 2),
        Op::Linear => (2, 3),
        Op::LayerNorm { .. } => (3, 3),
        Op::Rope { .. } => (4, 4),
        Op::Concat { .. } => (1, usize::MAX),
        Op::Scale { .. }
        | Op::SoftCap { .. }
        | Op::QuantizeDequantize { .. }
        | Op::Sigmoid
        | Op::Silu
        | Op::Gelu
        | Op::GeluTanh
        | Op::Reshape
        | Op::Transpose { .. }
        | Op::Slice { .. }
        | Op::Softmax => (1, 1),
    }
}

/// Operands that hold indices rather than numbers.
fn wanted_dtype(op: &Op, operand: usize) -> DType {
    match (op, operand) {
        (Op::Embedding, 0) | (Op::Rope { .. }, 3) => DType::I32,
        _ => DType::F32,
    }
}

/// Count, element types and emptiness. Only `Concat` takes empty operands: the KV cache of a block that fills the
/// whole context has no columns.
fn check_operands(op: &Op, inputs: &[&TensorInfo]) -> std::result::Result<(), String> {
    let (fewest, most) = arity(op);
    if inputs.len() < fewest || inputs.len() > most {
        return Err(format!("{} operands, it takes {}", inputs.len(), describe_arity(fewest, most)));
    }
    for (i, info) in inputs.iter().enumerate() {
        let want = wanted_dtype(op, i);
        if info.dtype != want {
            return Err(format!("operand {i} ({}) is {}, not {}", info.name, info.dtype.name(), want.name()));
        }
        if info.shape.contains(&0) && !matches!(op, Op::Concat { .. }) {
            return Err(format!("operand {i} ({}) {:?} has no elements", info.name, info.shape));
        }
    }
    Ok(())
}

fn describe_arity(fewest: usize, most: usize) -> String {
    match most {
        usize::MAX => format!("at least {fewest}"),
        _ if fewest == most => fewest.to_string(),
        _ => format!("{fewest} to {most}"),
    }
}

fn embedding(inputs: &[&TensorInfo]) -> Inferred {
    match (&inputs[0].shape[..], &inputs[1].shape[..]) {
        (&[batch, tokens], &[_, dim]) => Ok(vec![batch, tokens, dim]),
        _ => Err(misfit("tokens [1, AR] and a table [vocab, dim]", inputs)),
    }
}

fn linear(inputs: &[&TensorInfo]) -> Inferred {
    let expected = "x [.., in], weight [out, in] and, if any, bias [out]";
    let (Some((&width, outer)), &[out, inner]) = (inputs[0].shape.split_last(), &inputs[1].shape[..]) else {
        return Err(misfit(expected, inputs));
    };
    let bias_fits = inputs.get(2).is_none_or(|bias| bias.shape == [out]);
    if width != inner || !bias_fits {
        return Err(misfit(expected, inputs));
    }
    Ok([outer, &[out][..]].concat())
}

fn norm(eps: f32, inputs: &[&TensorInfo]) -> Inferred {
    if !(eps.is_finite() && eps >= 0.0) {
        return Err(format!("eps {eps} is not a non-negative number"));
    }
    let width = inputs[0].shape.last().copied();
    if width.is_none() || inputs[1..].iter().any(|w| w.shape.len() != 1 || w.shape.first().copied() != width) {
        return Err(misfit("x [.., n] and vectors [n]", inputs));
    }
    Ok(inputs[0].shape.clone())
}

fn rope(inputs: &[&TensorInfo]) -> Inferred {
    let expected = "x [1, AR, heads, head_dim], cos and sin [CL, r/2] with r at most head_dim, positions [1, AR]";
    let (&[batch, tokens, _, head_dim], &[_, half]) = (&inputs[0].shape[..], &inputs[1].shape[..]) else {
        return Err(misfit(expected, inputs));
    };
    let fits = half <= head_dim / 2 && inputs[1].shape == inputs[2].shape && inputs[3].shape == [batch, tokens];
    if fits { Ok(inputs[0].shape.clone()) } else { Err(misfit(expected, inputs)) }
}

fn broadcast(inputs: &[&TensorInfo]) -> Inferred {
    let (a, b) = (&inputs[0].shape, &inputs[1].shape);
    let fits = a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| b == a || b == 1);
    if fits { Ok(a.clone()) } else { Err(misfit("equal shapes, or axes of length 1 in the second", inputs)) }
}

/// Integers that fit 16 bits, whichever way they are signed, and a distance that divides.
fn grid(scale: f32, zero_point: i32, qmin: i32, qmax: i32) -> std::result::Result<(), String> {
    let fits = (-32768..=65535).contains(&qmin) && qmin < qmax && qmax <= 65535;
    if !fits || !(qmin..=qmax).contains(&zero_point) {
        return Err(format!("zero point {zero_point} and integers {qmin} to {qmax} are no 16-bit grid"));
    }
    if !(scale.is_normal() && scale > 0.0) { Err(format!("scale {scale} is not positive")) } else { Ok(()) }
}

fn at_least_one_axis(info: &TensorInfo) -> std::result::Result<&TensorInfo, String> {
    if info.shape.is_empty() { Err(format!("{} has no axis", info.name)) } else { Ok(info) }
}

fn reshape(x: &TensorInfo, target: Option<&[usize]>) -> Inferred {
    let target = target.ok_or("a reshape needs a target shape")?;
    let wanted = TensorInfo { name: String::new(), dtype: x.dtype, shape: target.to_vec() };
    if wanted.element_count().is_none() || wanted.element_count() != x.element_count() {
        return Err(format!("{} {:?} cannot be reshaped to {target:?}", x.name, x.shape));
    }
    Ok(wanted.shape)
}

fn transpose(x: &TensorInfo, perm: &[usize]) -> Inferred {
    let mut seen = vec![false; x.shape.len()];
    let mut shape = Vec::with_capacity(x.shape.len());
    for &axis in perm {
        match seen.get_mut(axis) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(format!("{perm:?} is no permutation of the axes of {} {:?}", x.name, x.shape)),
        }
        shape.push(x.shape[axis]);
    }
    if shape.len() != x.shape.len() {
        return Err(format!("{perm:?} is no permutation of the axes of {} {:?}", x.name, x.shape));
    }
    Ok(shape)
}

fn concat(inputs: &[&TensorInfo], axis: usize) -> Inferred {
    let first = &inputs[0].shape;
    let alike = |shape: &[usize]| {
        shape.len() == first.len() && shape.iter().zip(first).enumerate().all(|(i, (a, b))| i == axis || a == b)
    };
    if axis >= first.len() || !inputs.iter().all(|t| alike(&t.shape)) {
        return Err(misfit(&format!("shapes that differ in axis {axis} only"), inputs));
    }
    let mut shape = first.clone();
    shape[axis] = inputs.iter().try_fold(0usize, |sum, t| sum.checked_add(t.shape[axis])).ok_or("size overflows")?;
    Ok(shape)
}

fn slice(x: &TensorInfo, axis: usize, start: usize, len: usize) -> Inferred {
    let end = start.checked_add(len);
    let mut shape = x.shape.clone();
    match shape.get_mut(axis) {
        Some(length) if end.is_some_and(|end| end <= *length) => *length = len,
        _ => return Err(format!("{len} from {start} of axis {axis} is outside {} {:?}", x.name, x.shape)),
    }
    Ok(shape)
}

fn mat_mul(inputs: &[&TensorInfo]) -> Inferred {
    let expected = "a [1, h, m, k] and b [1, g, k, n] with h a multiple of g";
    let (&[batch_a, h, m, k], &[batch_b, g, k_b, n]) = (&inputs[0].shape[..], &inputs[1].shape[..]) else {
        return Err(misfit(expected, inputs));
    };
    if batch_a != 1 || batch_b != 1 || k != k_b || h % g != 0 {
        return Err(misfit(expected, inputs));
    }
    Ok(vec![1, h, m, n])
}

fn misfit(expected: &str, inputs: &[&TensorInfo]) -> String {
    let given = inputs.iter().map(|t| format!("{} {:?}", t.name, t.shape)).collect::<Vec<_>>().join(", ");
    format!("expects {expected}; given {given}")
}
