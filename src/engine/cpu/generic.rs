//! Every operator by itself, for nodes that no pattern covers and for those who want every value in between.

use super::kernels::{Kernels, Matrix, MatrixMut, Nonlinearity};
use super::pool::Pool;
use crate::error::{Error, Result};
use crate::graph::{Grid, Op};

/// Results with fewer elements than this are computed by one thread: waking another takes as long.
const PARALLEL_ELEMENTS: usize = 1 << 14;
/// Where rows do not matter, results are cut at multiples of this.
pub(super) const PIECE: usize = 1 << 10;

/// An operand of a generic step.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operand<'a> {
    /// Numbers.
    F32(&'a [f32]),
    /// Indices, checked before the graph was begun.
    I32(&'a [i32]),
}

impl<'a> Operand<'a> {
    fn f32(self) -> Result<&'a [f32]> {
        match self {
            Operand::F32(values) => Ok(values),
            Operand::I32(_) => Err(Error::internal("an operator got indices in place of numbers")),
        }
    }

    fn i32(self) -> Result<&'a [i32]> {
        match self {
            Operand::I32(values) => Ok(values),
            Operand::F32(_) => Err(Error::internal("an operator got numbers in place of indices")),
        }
    }
}

/// Compute one node of a valid graph: `shapes` are those of the operands, `shape` that of the result. Token ids and positions
/// must be inside their tables.
pub(crate) fn compute(
    op: &Op,
    operands: &[Operand<'_>],
    shapes: &[Vec<usize>],
    shape: &[usize],
    out: &mut [f32],
    (kernels, pool): (&Kernels, &Pool),
) -> Result<()> {
    let x = |i: usize| operands[i].f32();
    let width = shapes[0].last().copied().unwrap_or(1);
    match op {
        Op::Embedding => embedding(operands[0].i32()?, x(1)?, shapes[1][1], out),
        Op::Linear => linear(x(0)?, x(1)?, if operands.len() == 3 { Some(x(2)?) } else { None }, width, out),
        Op::RmsNorm { eps } => {
            let (x, weight) = (x(0)?, x(1)?);
            split(pool, out, width, |at, out| {
                for (x, out) in x[at..].chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                    kernels.rms_norm(x, weight, *eps, out);
                }
            });
        }
        Op::LayerNorm { eps } => {
            let (x, weight, bias) = (x(0)?, x(1)?, x(2)?);
            split(pool, out, width, |at, out| {
                for (x, out) in x[at..].chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                    kernels.layer_norm(x, weight, bias, *eps, out);
                }
            });
        }
        Op::Rope { interleaved } => {
            let (x, tables, positions) = (x(0)?, (x(1)?, x(2)?), operands[3].i32()?);
            let (heads, head_dim, pairs) = (shapes[0][2], shapes[0][3], shapes[1][1]);
            let row = heads * head_dim;
            split(pool, out, row, |at, out| {
                let (x, positions) = (&x[at..at + out.len()], &positions[at / row..][..out.len() / row]);
                rope(x, tables, positions, (heads, head_dim, pairs), *interleaved, out);
            });
        }
        Op::Add => broadcast(x(0)?, x(1)?, shape, &shapes[1], (out, pool), |a, b| a + b),
        Op::Mul => broadcast(x(0)?, x(1)?, shape, &shapes[1], (out, pool), |a, b| a * b),
        Op::Scale { factor } => map(x(0)?, (out, pool), |x| x * factor),
        Op::SoftCap { cap } => map(x(0)?, (out, pool), |x| cap * (x / cap).tanh()),
        Op::Sigmoid => map(x(0)?, (out, pool), |x| 1.0 / (1.0 + (-x).exp())),
        Op::Silu => activate((kernels, Nonlinearity::Silu), x(0)?, (out, pool)),
        Op::Gelu => activate((kernels, Nonlinearity::Gelu), x(0)?, (out, pool)),
        Op::GeluTanh => activate((kernels, Nonlinearity::GeluTanh), x(0)?, (out, pool)),
        Op::Reshape => out.copy_from_slice(x(0)?),
        Op::Transpose { perm } => {
            let strides = strides(&shapes[0]);
            let steps = perm.iter().map(|&axis| strides[axis]).collect::<Vec<_>>();
            Lines::new(shape, &steps).copy(x(0)?, out, pool);
        }
        Op::Concat { axis } => concat(operands, shapes, *axis, out)?,
        Op::Slice { axis, start, .. } => {
            let strides = strides(&shapes[0]);
            Lines::new(shape, &strides).copy(&x(0)?[start * strides[*axis]..], out, pool);
        }
        Op::MatMul => mat_mul(x(0)?, x(1)?, &shapes[0], &shapes[1], out, (kernels, pool)),
        Op::Softmax => {
            let x = x(0)?;
            split(pool, out, width, |at, out| {
                out.copy_from_slice(&x[at..at + out.len()]);
                out.chunks_exact_mut(width).for_each(|row| kernels.softmax(row));
            });
        }
        Op::MaskedFill { drop } => {
            broadcast(
                x(0)?,
                x(1)?,
                shape,
                &shapes[1],
                (out, pool),
                |score, mask| {
                    if mask == 0.0 { score } else { f32::NAN }
                },
            );
            for (x, out) in x(0)?.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                let masked = x.iter().copied().fold(f32::INFINITY, f32::min) - drop;
                out.iter_mut().zip(x).filter(|(out, _)| out.is_nan()).for_each(|(out, _)| *out = masked);
            }
        }
        Op::QuantizeDequantize { scale, zero_point, qmin, qmax } => {
            let grid = Grid::new(*scale, *zero_point, *qmin, *qmax);
            map(x(0)?, (out, pool), |x| grid.round(x));
        }
    }
    Ok(())
}

fn embedding(tokens: &[i32], table: &[f32], dim: usize, out: &mut [f32]) {
    for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(dim)) {
        out.copy_from_slice(&table[token as usize * dim..][..dim]);
    }
}

fn linear(x: &[f32], weight: &[f32], bias: Option<&[f32]>, width: usize, out: &mut [f32]) {
    let results = weight.len() / width;
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(results)) {
        for (row, (weight, out)) in weight.chunks_exact(width).zip(out).enumerate() {
            let sum = x.iter().zip(weight).map(|(x, w)| x * w).sum::<f32>();
            *out = sum + bias.map_or(0.0, |bias| bias[row]);
        }
    }
}

/// Rotary embedding of rows `[heads, head_dim]`; the tables are `[positions, pairs]`.
pub(super) fn rope(
    x: &[f32],
    (cos, sin): (&[f32], &[f32]),
    positions: &[i32],
    (heads, head_dim, pairs): (usize, usize, usize),
    interleaved: bool,
    out: &mut [f32],
) {
    out.copy_from_slice(x);
    for (row, &position) in out.chunks_exact_mut(heads * head_dim).zip(positions) {
        let cos = &cos[position as usize * pairs..][..pairs];
        let sin = &sin[position as usize * pairs..][..pairs];
        for head in row.chunks_exact_mut(head_dim) {
            if interleaved {
                for ((pair, cos), sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
                    (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
                }
            } else {
                let (first, second) = head.split_at_mut(pairs);
                for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
        }
    }
}

/// `[rows, heads, dim]` to `[heads, dim, all rows]` (keys) or `[heads, all rows, dim]` (values), rows
/// `first .. first + x rows`.
pub(super) fn kv_transpose(
    x: &[f32],
    first: usize,
    (rows, heads, dim): (usize, usize, usize),
    keys: bool,
    out: &mut [f32],
) {
    for (row, x) in x.chunks_exact(heads * dim).enumerate() {
        let row = first + row;
        for (head, x) in x.chunks_exact(dim).enumerate() {
            if keys {
                let to = out[head * dim * rows..][..dim * rows].chunks_exact_mut(rows);
                to.zip(x).for_each(|(to, x)| to[row] = *x);
            } else {
                out[(head * rows + row) * dim..][..dim].copy_from_slice(x);
            }
        }
    }
}

/// Call `f(first element, part)` for parts of `out` that are whole rows, on all threads if it is worth it.
pub(super) fn split(pool: &Pool, out: &mut [f32], row: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    if out.len() < PARALLEL_ELEMENTS || row == 0 {
        return f(0, out);
    }
    let rows = (out.len() / row).div_ceil(4 * pool.threads()).max(1);
    pool.for_each_chunk(out, rows * row, &|index, part| f(index * rows * row, part));
}

fn map(x: &[f32], (out, pool): (&mut [f32], &Pool), f: impl Fn(f32) -> f32 + Sync) {
    split(pool, out, PIECE, |at, out| out.iter_mut().zip(&x[at..]).for_each(|(out, x)| *out = f(*x)));
}

fn activate((kernels, function): (&Kernels, Nonlinearity), x: &[f32], (out, pool): (&mut [f32], &Pool)) {
    split(pool, out, PIECE, |at, out| {
        out.copy_from_slice(&x[at..at + out.len()]);
        kernels.activate(out, function);
    });
}

fn broadcast(
    a: &[f32],
    b: &[f32],
    shape: &[usize],
    b_shape: &[usize],
    (out, pool): (&mut [f32], &Pool),
    f: impl Fn(f32, f32) -> f32 + Sync,
) {
    // An axis of length 1 in `b` is repeated: its stride is 0.
    let steps = strides(b_shape).iter().zip(b_shape).map(|(&s, &n)| if n == 1 { 0 } else { s }).collect::<Vec<_>>();
    Lines::new(shape, &steps).for_each(out, pool, |at, start, step, out| {
        let a = &a[at..at + out.len()];
        match step {
            0 => out.iter_mut().zip(a).for_each(|(out, a)| *out = f(*a, b[start])),
            1 => out.iter_mut().zip(a).zip(&b[start..]).for_each(|((out, a), b)| *out = f(*a, *b)),
            _ => {
                let b = b[start..].iter().step_by(step);
                out.iter_mut().zip(a).zip(b).for_each(|((out, a), b)| *out = f(*a, *b));
            }
        }
    });
}

fn concat(operands: &[Operand<'_>], shapes: &[Vec<usize>], axis: usize, out: &mut [f32]) -> Result<()> {
    let piece = |shape: &[usize]| shape[axis..].iter().product::<usize>();
    let stride = shapes.iter().map(|shape| piece(shape)).sum::<usize>();
    let mut at = 0;
    for (operand, shape) in operands.iter().zip(shapes) {
        let piece = piece(shape);
        if piece > 0 {
            for (from, to) in operand.f32()?.chunks_exact(piece).zip(out[at..].chunks_mut(stride)) {
                to[..piece].copy_from_slice(from);
            }
        }
        at += piece;
    }
    Ok(())
}

fn mat_mul(
    a: &[f32],
    b: &[f32],
    a_shape: &[usize],
    b_shape: &[usize],
    out: &mut [f32],
    (kernels, pool): (&Kernels, &Pool),
) {
    let (heads, m, k) = (a_shape[1], a_shape[2], a_shape[3]);
    let (groups, n) = (b_shape[1], b_shape[3]);
    pool.for_each_chunk(out, m * n, &|head, out| {
        let (a, b) = (&a[head * m * k..][..m * k], &b[head / (heads / groups) * k * n..][..k * n]);
        let (a, b) = (Matrix::new(a, m, k, k), Matrix::new(b, k, n, n));
        kernels.attention_weighted_sum(a, b, false, MatrixMut::new(out, m, n, n));
    });
}

/// Row-major strides.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// A strided view of an operand in row-major order of `shape`, as lines: the elements along the innermost axis.
struct Lines {
    /// Length and stride of the outer axes.
    outer: Vec<(usize, usize)>,
    /// Elements of a line.
    len: usize,
    /// Elements of the operand between two of a line.
    step: usize,
}

impl Lines {
    /// Axes that follow each other in memory count as one, so that lines are long.
    fn new(shape: &[usize], steps: &[usize]) -> Self {
        let mut outer: Vec<(usize, usize)> = Vec::with_capacity(shape.len());
        for (&len, &step) in shape.iter().zip(steps).filter(|&(&len, _)| len != 1) {
            match outer.last_mut() {
                Some(last) if last.1 == step * len => *last = (last.0 * len, step),
                _ => outer.push((len, step)),
            }
        }
        let (len, step) = outer.pop().unwrap_or((1, 1));
        Self { outer, len, step }
    }

    /// Where line `number` begins in the operand.
    fn start(&self, mut number: usize) -> usize {
        let mut start = 0;
        for &(len, step) in self.outer.iter().rev() {
            start += number % len * step;
            number /= len;
        }
        start
    }

    /// Call `f(index of the first element, where the line begins in the operand, stride, elements of out)` for each line,
    /// on all threads if there is much to do.
    fn for_each(&self, out: &mut [f32], pool: &Pool, f: impl Fn(usize, usize, usize, &mut [f32]) + Sync) {
        let lines = out.len() / self.len;
        let tasks = if out.len() < PARALLEL_ELEMENTS { 1 } else { 4 * pool.threads() };
        let per_task = lines.div_ceil(tasks).max(1);
        pool.for_each_chunk(out, per_task * self.len, &|task, out| {
            for (line, out) in out.chunks_exact_mut(self.len).enumerate() {
                let line = task * per_task + line;
                f(line * self.len, self.start(line), self.step, out);
            }
        });
    }

    fn copy(&self, x: &[f32], out: &mut [f32], pool: &Pool) {
        self.for_each(out, pool, |_, start, step, out| match step {
            1 => out.copy_from_slice(&x[start..start + out.len()]),
            _ => out.iter_mut().zip(x[start..].iter().step_by(step)).for_each(|(out, x)| *out = *x),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(op: Op, operands: &[(&[f32], &[usize])], shape: &[usize]) -> Vec<f32> {
        let shapes = operands.iter().map(|(_, shape)| shape.to_vec()).collect::<Vec<_>>();
        let values = operands.iter().map(|(x, _)| Operand::F32(x)).collect::<Vec<_>>();
        let mut out = vec![f32::NAN; shape.iter().product()];
        compute(&op, &values, &shapes, shape, &mut out, (&Kernels::scalar(), &Pool::new(2))).unwrap();
        out
    }

    #[test]
    fn layout_operators_move_elements_as_documented() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let turned = run(Op::Transpose { perm: vec![1, 0] }, &[(&x, &[2, 3])], &[3, 2]);
        assert_eq!(turned, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        let part = run(Op::Slice { axis: 1, start: 1, len: 2 }, &[(&x, &[2, 3])], &[2, 2]);
        assert_eq!(part, [2.0, 3.0, 5.0, 6.0]);
        let joined = run(Op::Concat { axis: 1 }, &[(&x[..4], &[2, 2]), (&[], &[2, 0]), (&x[4..], &[2, 1])], &[2, 3]);
        assert_eq!(joined, [1.0, 2.0, 5.0, 3.0, 4.0, 6.0]);
        let sum = run(Op::Add, &[(&x, &[2, 3]), (&[10.0, 20.0], &[2, 1])], &[2, 3]);
        assert_eq!(sum, [11.0, 12.0, 13.0, 24.0, 25.0, 26.0]);
        let product = run(Op::Mul, &[(&x, &[2, 3]), (&[1.0, 10.0, 100.0], &[1, 3])], &[2, 3]);
        assert_eq!(product, [1.0, 20.0, 300.0, 4.0, 50.0, 600.0]);
    }

    #[test]
    fn keys_are_stored_one_dimension_a_row() {
        let x = [1.0, 2.0, 3.0, 4.0];
        let mut keys = [0.0; 8];
        kv_transpose(&x, 1, (2, 2, 2), true, &mut keys);
        assert_eq!(keys, [0.0, 1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0]);
        let mut values = [0.0; 8];
        kv_transpose(&x, 1, (2, 2, 2), false, &mut values);
        assert_eq!(values, [0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 3.0, 4.0]);
    }
}
