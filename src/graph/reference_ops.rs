//! The operators of the reference interpreter on plain f32 slices, one function each. Shapes were checked by
//! [`super::Graph::validate`]; only token ids and positions, which arrive with each call, are checked here.

use crate::error::{Error, Result};

/// Rows of `table` (`dim` wide) named by `tokens`.
pub(super) fn embedding(tokens: &[i32], table: &[f32], dim: usize) -> Result<Vec<f32>> {
    let mut out = Vec::with_capacity(tokens.len() * dim);
    for &token in tokens {
        out.extend_from_slice(row(table, dim, token, "token id")?);
    }
    Ok(out)
}

/// `x · weightᵀ + bias`; `width` is the row length of `x` and `weight`.
pub(super) fn linear(x: &[f32], weight: &[f32], bias: Option<&[f32]>, width: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len() / width * (weight.len() / width));
    for x in x.chunks_exact(width) {
        for (i, weight) in weight.chunks_exact(width).enumerate() {
            out.push(dot(x, weight) + bias.map_or(0.0, |bias| bias[i]));
        }
    }
    out
}

/// Root-mean-square normalization over rows as long as `weight`.
pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for x in x.chunks_exact(weight.len()) {
        let mean_square = dot(x, x) / x.len() as f32;
        let factor = 1.0 / (mean_square + eps).sqrt();
        out.extend(x.iter().zip(weight).map(|(x, w)| x * factor * w));
    }
    out
}

/// Layer normalization over rows as long as `weight`.
pub(super) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for x in x.chunks_exact(weight.len()) {
        let mean = x.iter().sum::<f32>() / x.len() as f32;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / x.len() as f32;
        let factor = 1.0 / (variance + eps).sqrt();
        out.extend(x.iter().zip(weight.iter().zip(bias)).map(|(x, (w, b))| (x - mean) * factor * w + b));
    }
    out
}

/// Tables of [`rope`]: `half` cosines and sines a position.
pub(super) struct RopeTable<'a> {
    pub cos: &'a [f32],
    pub sin: &'a [f32],
    pub half: usize,
    /// Pairs `(2i, 2i + 1)` instead of `(i, i + half)`.
    pub interleaved: bool,
}

/// Rotary embedding of `x [tokens, heads, head_dim]`.
pub(super) fn rope(
    x: &[f32],
    table: &RopeTable<'_>,
    positions: &[i32],
    heads: usize,
    head_dim: usize,
) -> Result<Vec<f32>> {
    let mut out = x.to_vec();
    for (token, &position) in out.chunks_exact_mut(heads * head_dim).zip(positions) {
        let cos = row(table.cos, table.half, position, "position")?;
        let sin = row(table.sin, table.half, position, "position")?;
        for head in token.chunks_exact_mut(head_dim) {
            for (i, (cos, sin)) in cos.iter().zip(sin).enumerate() {
                let (first, second) = if table.interleaved { (2 * i, 2 * i + 1) } else { (i, i + table.half) };
                let (a, b) = (head[first], head[second]);
                head[first] = a * cos - b * sin;
                head[second] = a * sin + b * cos;
            }
        }
    }
    Ok(out)
}

/// `f(a, b)` element by element; axes of `b` of length 1 are repeated.
pub(super) fn broadcast(
    a: &[f32],
    a_shape: &[usize],
    b: &[f32],
    b_shape: &[usize],
    f: impl Fn(f32, f32) -> f32,
) -> Vec<f32> {
    let strides = strides(b_shape);
    let steps: Vec<usize> =
        b_shape.iter().zip(strides).map(|(&len, stride)| if len == 1 { 0 } else { stride }).collect();
    let mut walk = Walk::new(a_shape, steps);
    a.iter().map(|&a| f(a, b[walk.next()])).collect()
}

/// `f` of every element.
pub(super) fn map(x: &[f32], f: impl Fn(f32) -> f32) -> Vec<f32> {
    x.iter().map(|&x| f(x)).collect()
}

/// Axis `i` of the result is axis `perm[i]` of `x`.
pub(super) fn transpose(x: &[f32], shape: &[usize], perm: &[usize]) -> Vec<f32> {
    let strides = strides(shape);
    let new_shape: Vec<usize> = perm.iter().map(|&axis| shape[axis]).collect();
    let mut walk = Walk::new(&new_shape, perm.iter().map(|&axis| strides[axis]).collect());
    (0..x.len()).map(|_| x[walk.next()]).collect()
}

/// Parts one after the other along `axis`.
pub(super) fn concat(parts: &[(&[f32], &[usize])], axis: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(parts.iter().map(|(data, _)| data.len()).sum());
    let outer: usize = parts[0].1[..axis].iter().product();
    for i in 0..outer {
        for (data, _) in parts {
            let run = data.len() / outer;
            out.extend_from_slice(&data[i * run..(i + 1) * run]);
        }
    }
    out
}

/// Elements `start .. start + len` of `axis`.
pub(super) fn slice(x: &[f32], shape: &[usize], axis: usize, start: usize, len: usize) -> Vec<f32> {
    let inner: usize = shape[axis + 1..].iter().product();
    let rows = x.chunks_exact(shape[axis] * inner);
    rows.flat_map(|row| &row[start * inner..(start + len) * inner]).copied().collect()
}

/// Sizes of [`mat_mul`]: `a [h, m, k]`, `b [g, k, n]`.
#[derive(Clone, Copy)]
pub(super) struct MatMulShape {
    pub h: usize,
    pub g: usize,
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

/// Batched product; head `i` of `a` meets head `i / (h/g)` of `b`.
pub(super) fn mat_mul(a: &[f32], b: &[f32], shape: MatMulShape) -> Vec<f32> {
    let MatMulShape { h, g, m, k, n } = shape;
    let mut out = vec![0.0; h * m * n];
    for (i, (a, out)) in a.chunks_exact(m * k).zip(out.chunks_exact_mut(m * n)).enumerate() {
        let group = i / (h / g);
        let b = &b[group * k * n..(group + 1) * k * n];
        for (a, out) in a.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
            for (&a, b) in a.iter().zip(b.chunks_exact(n)) {
                out.iter_mut().zip(b).for_each(|(out, b)| *out += a * b);
            }
        }
    }
    out
}

/// Softmax over rows of `width`.
pub(super) fn softmax(x: &[f32], width: usize) -> Vec<f32> {
    let mut out = x.to_vec();
    for row in out.chunks_exact_mut(width) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|v| *v = (*v - max).exp());
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|v| *v /= sum);
    }
    out
}

/// The smallest element of each row of `width`, repeated over the row.
pub(super) fn row_minima(x: &[f32], width: usize) -> Vec<f32> {
    let rows = x.chunks_exact(width).map(|row| row.iter().copied().fold(f32::INFINITY, f32::min));
    rows.flat_map(|lowest| std::iter::repeat_n(lowest, width)).collect()
}

/// `x` where `mask` is 0, `other` elsewhere.
pub(super) fn select(x: &[f32], mask: &[f32], other: &[f32]) -> Vec<f32> {
    let elements = x.iter().zip(mask).zip(other);
    elements.map(|((&x, &mask), &other)| if mask == 0.0 { x } else { other }).collect()
}

/// `1 / (1 + exp(-x))`.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x · sigmoid(x)`.
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// Exact GELU.
pub(super) fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

/// GELU by its tanh approximation.
pub(super) fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)).tanh())
}

/// The error function by its series `2/√π · e^(-x²) · Σ 2ⁿ x^(2n+1) / (2n+1)!!`, all of whose terms have one sign.
fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() >= 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * f64::EPSILON {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// Dot product in eight partial sums: closer to the exact sum than one long chain, and vectorizable.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f32 = a8.remainder().iter().zip(b8.remainder()).map(|(a, b)| a * b).sum();
    let mut sums = [0.0f32; 8];
    for (a, b) in a8.zip(b8) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + tail
}

/// Row `index` of a table, or an error that names it.
fn row<'a>(table: &'a [f32], width: usize, index: i32, what: &str) -> Result<&'a [f32]> {
    let rows = table.len() / width;
    match usize::try_from(index) {
        Ok(i) if i < rows => Ok(&table[i * width..(i + 1) * width]),
        _ => Err(Error::invalid(format!("{what} {index} is outside the table of {rows} rows"))),
    }
}

/// Elements between neighbours along each axis of a dense tensor.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Offsets of a strided tensor in row-major order of `shape`.
struct Walk {
    shape: Vec<usize>,
    steps: Vec<usize>,
    index: Vec<usize>,
    offset: usize,
}

impl Walk {
    fn new(shape: &[usize], steps: Vec<usize>) -> Self {
        Self { shape: shape.to_vec(), steps, index: vec![0; shape.len()], offset: 0 }
    }

    /// The present offset; moves on to the next element.
    fn next(&mut self) -> usize {
        let offset = self.offset;
        for axis in (0..self.shape.len()).rev() {
            self.index[axis] += 1;
            self.offset += self.steps[axis];
            if self.index[axis] < self.shape[axis] {
                break;
            }
            self.offset -= self.steps[axis] * self.index[axis];
            self.index[axis] = 0;
        }
        offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(a: &[f32], b: &[f32]) {
        assert_eq!(a.len(), b.len());
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "{a} is not {b}");
        }
    }

    #[test]
    fn transpose_and_its_inverse_give_back_the_tensor() {
        let x: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let turned = transpose(&x, &[1, 2, 3, 4], &[0, 2, 3, 1]);
        assert_eq!(turned[..4], [0.0, 12.0, 1.0, 13.0]);
        assert_eq!(transpose(&turned, &[1, 3, 4, 2], &[0, 3, 1, 2]), x);
    }

    #[test]
    fn concat_and_slice_are_inverse() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0]);
        let joined = concat(&[(&a, &[2, 2]), (&b, &[2, 1]), (&[], &[2, 0])], 1);
        assert_eq!(joined, [1.0, 2.0, 5.0, 3.0, 4.0, 6.0]);
        assert_eq!(slice(&joined, &[2, 3], 1, 0, 2), a);
        assert_eq!(slice(&joined, &[2, 3], 1, 2, 1), b);
    }

    #[test]
    fn a_mask_is_repeated_over_heads() {
        let scores = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(broadcast(&scores, &[2, 1, 2], &[10.0, 20.0], &[1, 1, 2], |a, b| a + b), [11.0, 22.0, 13.0, 24.0]);
    }

    #[test]
    fn query_heads_share_key_heads() {
        let a = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 0.0];
        let b = [1.0, 2.0, 3.0, 4.0];
        let out = mat_mul(&a, &b, MatMulShape { h: 4, g: 2, m: 1, k: 2, n: 1 });
        assert_eq!(out, [1.0, 2.0, 7.0, 6.0]);
    }

    #[test]
    fn both_rope_pairings_rotate_by_the_same_angle() {
        let (cos, sin) = ([1.0, 1.0, 0.0, 0.6], [0.0, 0.0, 1.0, 0.8]);
        let table = |interleaved| RopeTable { cos: &cos, sin: &sin, half: 2, interleaved };
        let halves = rope(&[1.0, 2.0, 3.0, 4.0, 9.0], &table(false), &[1], 1, 5).unwrap();
        assert_close(&halves, &[-3.0, 2.0 * 0.6 - 4.0 * 0.8, 1.0, 2.0 * 0.8 + 4.0 * 0.6, 9.0]);
        let pairs = rope(&[1.0, 3.0, 2.0, 4.0, 9.0], &table(true), &[1], 1, 5).unwrap();
        assert_close(&pairs, &[halves[0], halves[2], halves[1], halves[3], 9.0]);
        assert!(rope(&[0.0; 5], &table(true), &[2], 1, 5).unwrap_err().to_string().contains("position 2"));
    }

    #[test]
    fn norms_match_hand_figures() {
        assert_close(&rms_norm(&[3.0, 4.0], &[1.0, 2.0], 0.0), &[3.0 / 12.5f32.sqrt(), 8.0 / 12.5f32.sqrt()]);
        assert_close(&layer_norm(&[1.0, 3.0], &[2.0, 2.0], &[0.5, 0.5], 0.0), &[-1.5, 2.5]);
    }

    #[test]
    fn softmax_ignores_masked_scores_and_large_offsets() {
        assert_close(&softmax(&[1000.0, 1000.0, -65535.0], 3), &[0.5, 0.5, 0.0]);
    }

    #[test]
    fn activations_match_published_values() {
        assert_close(&[silu(1.0), silu(-2.0)], &[0.731_058_6, -0.238_405_84]);
        assert_close(&[gelu(1.0), gelu(-0.5), gelu(9.0)], &[0.841_344_7, -0.154_268_77, 9.0]);
        assert_close(&[gelu_tanh(1.0), gelu_tanh(-0.5)], &[0.841_192, -0.154_286]);
    }

    #[test]
    fn linear_adds_the_bias_to_every_row() {
        let x: Vec<f32> = (0..20).map(|i| i as f32).collect();
        let weight = vec![1.0; 20];
        assert_eq!(linear(&x, &weight, Some(&[0.5, -0.5]), 10), [45.5, 44.5, 145.5, 144.5]);
    }
}
