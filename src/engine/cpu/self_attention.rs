//! Attention of a block with itself, where every row looks at every row: vision encoders.
//!
//! Keys and values are brought into strips 16 wide once a call, in the order in which products read them. A task is some
//! rows: for one head after the other it holds their scores, and no others exist.

use super::attention::{AttentionScratch, claim};
use super::kernels::{Kernels, Matrix, MatrixMut};
use super::plan::SelfAttention;
use super::pool::Pool;
use crate::formats::PANEL_ROWS;
use std::ops::Range;

/// Rows of a task: with a thousand columns their scores take 100 KB, which a second-level cache holds beside a strip of
/// keys. The same for any number of threads, so that results are too.
const TASK_ROWS: usize = 24;
/// Columns whose values (16 KB a strip) pass while the weights of the same columns are in the first-level cache.
const VALUE_COLUMNS: usize = 256;

/// Compute all rows: `q` is `[rows, heads, head_dim]`, `k` `[columns, kv_heads, head_dim]`, `v` `[columns, kv_heads,
/// value_dim]`, `out` `[rows, heads, value_dim]`.
pub(super) fn attend(
    shape: &SelfAttention,
    [q, k, v]: [&[f32]; 3],
    out: &mut [f32],
    scratch: &mut AttentionScratch,
    (kernels, pool): (&Kernels, &Pool),
) {
    let AttentionScratch { pieces, keys, values, .. } = scratch;
    pack_keys(shape, k, keys, pool);
    pack_values(shape, v, values, pool);
    let (keys, values) = (&keys[..], &values[..]);
    let row_width = shape.heads * shape.value_dim;
    pool.for_each_chunk(out, TASK_ROWS * row_width, &|task, out| {
        let first = task * TASK_ROWS;
        let rows = first..first + out.len() / row_width;
        let mut scratch = claim(pieces);
        for head in 0..shape.heads {
            Head { shape, kernels, head, keys, values }.attend(q, &rows, out, &mut scratch);
        }
    });
}

/// To `[kv_heads][strip of columns][head_dim][16]`, zeros beyond the last column.
fn pack_keys(shape: &SelfAttention, k: &[f32], packed: &mut Vec<f32>, pool: &Pool) {
    let strips = shape.columns.div_ceil(PANEL_ROWS);
    packed.resize(shape.kv_heads * strips * shape.key_strip(), 0.0);
    pool.for_each_chunk(packed, shape.key_strip(), &|number, strip| {
        let (head, first) = (number / strips, number % strips * PANEL_ROWS);
        for lane in 0..PANEL_ROWS {
            let to = strip[lane..].iter_mut().step_by(PANEL_ROWS);
            if first + lane < shape.columns {
                let from = &k[((first + lane) * shape.kv_heads + head) * shape.head_dim..];
                to.zip(from).for_each(|(to, from)| *to = *from);
            } else {
                to.for_each(|to| *to = 0.0);
            }
        }
    });
}

/// To `[kv_heads][strip of value_dim][columns][16]`, zeros beyond the last dimension.
fn pack_values(shape: &SelfAttention, v: &[f32], packed: &mut Vec<f32>, pool: &Pool) {
    let strips = shape.value_dim.div_ceil(PANEL_ROWS);
    packed.resize(shape.kv_heads * strips * shape.value_strip(), 0.0);
    pool.for_each_chunk(packed, shape.value_strip(), &|number, strip| {
        let (head, first) = (number / strips, number % strips * PANEL_ROWS);
        let width = PANEL_ROWS.min(shape.value_dim - first);
        for (column, to) in strip.chunks_exact_mut(PANEL_ROWS).enumerate() {
            let at = (column * shape.kv_heads + head) * shape.value_dim + first;
            to[..width].copy_from_slice(&v[at..at + width]);
            to[width..].fill(0.0);
        }
    });
}

/// One query head and the packed operands.
struct Head<'a> {
    shape: &'a SelfAttention,
    kernels: &'a Kernels,
    head: usize,
    keys: &'a [f32],
    values: &'a [f32],
}

impl Head<'_> {
    /// Rows `rows`; `out` is `[rows, heads, value_dim]`.
    fn attend(&self, q: &[f32], rows: &Range<usize>, out: &mut [f32], scratch: &mut Vec<f32>) {
        let (shape, count) = (self.shape, rows.len());
        // Rows that lie a power of two apart would compete for the same few places of the cache.
        let stride = shape.columns.next_multiple_of(PANEL_ROWS) + PANEL_ROWS;
        let needed = count * (shape.head_dim + stride);
        if scratch.len() < needed {
            scratch.resize(needed, 0.0);
        }
        let (queries, scores) = scratch[..needed].split_at_mut(count * shape.head_dim);
        for (row, to) in rows.clone().zip(queries.chunks_exact_mut(shape.head_dim)) {
            let at = (row * shape.heads + self.head) * shape.head_dim;
            to.copy_from_slice(&q[at..at + shape.head_dim]);
        }
        self.score(Matrix::new(queries, count, shape.head_dim, shape.head_dim), scores, (count, stride));
        for row in scores.chunks_exact_mut(stride) {
            self.kernels.softmax(&mut row[..shape.columns]);
        }
        self.mix(scores, (count, stride), out);
    }

    fn kv_head(&self) -> usize {
        self.head / (self.shape.heads / self.shape.kv_heads)
    }

    /// `scores = scale · q · kᵀ`
    fn score(&self, q: Matrix<'_>, scores: &mut [f32], (rows, stride): (usize, usize)) {
        let shape = self.shape;
        let strips = shape.columns.div_ceil(PANEL_ROWS);
        let keys = self.keys.chunks_exact(shape.key_strip()).skip(self.kv_head() * strips).take(strips);
        for (strip, keys) in keys.enumerate() {
            let first = strip * PANEL_ROWS;
            let width = PANEL_ROWS.min(shape.columns - first);
            let keys = Matrix::new(keys, shape.head_dim, width, PANEL_ROWS);
            let scores = MatrixMut::new(&mut scores[first..], rows, width, stride);
            self.kernels.attention_scores(q, keys, shape.scale, scores);
        }
    }

    /// `out = weights · v`
    fn mix(&self, weights: &[f32], (rows, stride): (usize, usize), out: &mut [f32]) {
        let shape = self.shape;
        let strips = shape.value_dim.div_ceil(PANEL_ROWS);
        for first in (0..shape.columns).step_by(VALUE_COLUMNS) {
            let columns = VALUE_COLUMNS.min(shape.columns - first);
            let weights = Matrix::new(&weights[first..], rows, columns, stride);
            let values = self.values.chunks_exact(shape.value_strip()).skip(self.kv_head() * strips).take(strips);
            for (strip, values) in values.enumerate() {
                let at = strip * PANEL_ROWS;
                let width = PANEL_ROWS.min(shape.value_dim - at);
                let values = Matrix::new(&values[first * PANEL_ROWS..], columns, width, PANEL_ROWS);
                let out = &mut out[self.head * shape.value_dim + at..];
                let out = MatrixMut::new(out, rows, width, shape.heads * shape.value_dim);
                self.kernels.attention_weighted_sum(weights, values, first > 0, out);
            }
        }
    }
}
