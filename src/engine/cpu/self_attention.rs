//! Attention of a block with itself, where every row looks at every row: vision encoders.
//!
//! Everything is turned by a right angle: scores are kept as `[keys][16 queries]`, so that both products find their
//! operands packed as the blocked kernels want them, tiles of keys times a panel of queries and tiles of value
//! dimensions times a panel of weights, and softmax works on sixteen queries at once. Keys and values are packed once a
//! call. A task is some queries: for one head after the other it holds their scores, and no others exist.

use super::attention::{AttentionScratch, claim};
use super::kernels::{Kernels, PANEL};
use super::plan::SelfAttention;
use super::pool::Pool;

/// Panels of queries of a task: each has its scores in the second-level cache (64 KB with a thousand keys), and a tile
/// of keys is read once for all. The same for any number of threads, so that results are too.
const TASK_PANELS: usize = 2;
/// Tiles of keys that one panel of queries after the other is multiplied with.
const KEY_TILES: usize = 8;
/// Keys whose weights (16 KB a panel) stay in the first-level cache while the tiles of their values pass.
const VALUE_SLICE: usize = 256;

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
    let layout = Layout { shape, height: kernels.tile_rows() };
    layout.pack_keys(k, keys, pool);
    layout.pack_values(v, values, pool);
    let (keys, values) = (&keys[..], &values[..]);
    let row_width = shape.heads * shape.value_dim;
    let task_rows = TASK_PANELS * PANEL;
    pool.for_each_chunk(out, task_rows * row_width, &|task, out| {
        let q = &q[task * task_rows * shape.heads * shape.head_dim..];
        let q = &q[..out.len() / row_width * shape.heads * shape.head_dim];
        let mut scratch = claim(pieces);
        for head in 0..shape.heads {
            Head { layout, kernels, head, keys, values }.attend(q, out, &mut scratch);
        }
    });
}

/// How keys and values are packed.
#[derive(Clone, Copy)]
struct Layout<'a> {
    shape: &'a SelfAttention,
    /// Rows of a tile.
    height: usize,
}

impl Layout<'_> {
    /// Elements of a tile of keys, `[head_dim][height]`.
    fn key_tile(&self) -> usize {
        self.shape.head_dim * self.height
    }

    fn key_tiles(&self) -> usize {
        self.shape.columns.div_ceil(self.height)
    }

    /// Dimensions of a value, filled up to whole tiles.
    fn value_lines(&self) -> usize {
        self.shape.value_dim.next_multiple_of(self.height)
    }

    /// Slices of the keys whose values are packed together: the first key and how many.
    fn value_slices(&self) -> impl Iterator<Item = (usize, usize)> {
        let columns = self.shape.columns;
        (0..columns).step_by(VALUE_SLICE).map(move |first| (first, VALUE_SLICE.min(columns - first)))
    }

    /// To `[kv_heads][tile][head_dim][height]`; beyond the last key there may be anything.
    fn pack_keys(&self, k: &[f32], packed: &mut Vec<f32>, pool: &Pool) {
        let &SelfAttention { columns, kv_heads, head_dim, .. } = self.shape;
        packed.resize(kv_heads * self.key_tiles() * self.key_tile(), 0.0);
        pool.for_each_chunk(packed, self.key_tile(), &|number, tile| {
            let (head, first) = (number / self.key_tiles(), number % self.key_tiles() * self.height);
            for (lane, column) in (first..columns.min(first + self.height)).enumerate() {
                let from = &k[(column * kv_heads + head) * head_dim..];
                tile[lane..].iter_mut().step_by(self.height).zip(from).for_each(|(to, from)| *to = *from);
            }
        });
    }

    /// To `[kv_heads][slice][tile of dimensions][key][height]`; beyond the last dimension there may be anything.
    fn pack_values(&self, v: &[f32], packed: &mut Vec<f32>, pool: &Pool) {
        let &SelfAttention { columns, kv_heads, value_dim, .. } = self.shape;
        packed.resize(kv_heads * columns * self.value_lines(), 0.0);
        pool.for_each_chunk(packed, columns * self.value_lines(), &|head, packed| {
            for (first, count) in self.value_slices() {
                let slice = &mut packed[first * self.value_lines()..][..count * self.value_lines()];
                for (number, tile) in slice.chunks_exact_mut(count * self.height).enumerate() {
                    let dim = number * self.height;
                    let width = self.height.min(value_dim - dim);
                    for (column, to) in tile.chunks_exact_mut(self.height).enumerate() {
                        let at = ((first + column) * kv_heads + head) * value_dim + dim;
                        to[..width].copy_from_slice(&v[at..at + width]);
                    }
                }
            }
        });
    }
}

/// One query head and the packed operands.
struct Head<'a> {
    layout: Layout<'a>,
    kernels: &'a Kernels,
    head: usize,
    keys: &'a [f32],
    values: &'a [f32],
}

impl Head<'_> {
    /// The head of the rows `q` and `out`, at most a task's.
    fn attend(&self, q: &[f32], out: &mut [f32], scratch: &mut Vec<f32>) {
        let shape = self.layout.shape;
        let rows = q.len() / (shape.heads * shape.head_dim);
        let panels = rows.div_ceil(PANEL);
        let (panel_of_queries, panel_of_scores) = (shape.head_dim * PANEL, shape.columns * PANEL);
        let needed = panels * (panel_of_queries + panel_of_scores) + shape.value_dim * PANEL;
        if scratch.len() < needed {
            scratch.resize(needed, 0.0);
        }
        // What is left from other tasks is overwritten: every part is assigned before it is read.
        let (queries, rest) = scratch[..needed].split_at_mut(panels * panel_of_queries);
        let (scores, mixed) = rest.split_at_mut(panels * panel_of_scores);
        self.pack_queries(q, rows, queries);
        self.score(queries, scores);
        for (panel, weights) in scores.chunks_exact_mut(panel_of_scores).enumerate() {
            let sums = self.kernels.softmax_panel(weights, shape.scale);
            self.mix(weights, mixed);
            let first = panel * PANEL;
            let rows = out.chunks_exact_mut(shape.heads * shape.value_dim).skip(first).take(PANEL);
            for (lane, (row, sum)) in rows.zip(sums).enumerate() {
                let out = &mut row[self.head * shape.value_dim..][..shape.value_dim];
                let mixed = mixed[lane..].iter().step_by(PANEL);
                out.iter_mut().zip(mixed).for_each(|(out, mixed)| *out = mixed / sum);
            }
        }
    }

    fn kv_head(&self) -> usize {
        let shape = self.layout.shape;
        self.head / (shape.heads / shape.kv_heads)
    }

    /// To panels `[head_dim][16]`, zeros beyond the last row.
    fn pack_queries(&self, q: &[f32], rows: usize, panels: &mut [f32]) {
        let &SelfAttention { heads, head_dim, .. } = self.layout.shape;
        for (number, panel) in panels.chunks_exact_mut(head_dim * PANEL).enumerate() {
            for lane in 0..PANEL {
                let (row, to) = (number * PANEL + lane, panel[lane..].iter_mut().step_by(PANEL));
                if row < rows {
                    to.zip(&q[(row * heads + self.head) * head_dim..]).for_each(|(to, from)| *to = *from);
                } else {
                    to.for_each(|to| *to = 0.0);
                }
            }
        }
    }

    /// Products of keys and queries, for each panel `[columns][16]`.
    fn score(&self, queries: &[f32], scores: &mut [f32]) {
        let Layout { shape, height } = self.layout;
        let all = self.layout.key_tiles() * self.layout.key_tile();
        let keys = &self.keys[self.kv_head() * all..][..all];
        for (number, keys) in keys.chunks(KEY_TILES * self.layout.key_tile()).enumerate() {
            let first = number * KEY_TILES * height;
            let count = (KEY_TILES * height).min(shape.columns - first);
            let panels = queries.chunks_exact(shape.head_dim * PANEL);
            for (queries, scores) in panels.zip(scores.chunks_exact_mut(shape.columns * PANEL)) {
                let scores = &mut scores[first * PANEL..][..count * PANEL];
                self.kernels.tiled_product(keys, queries, scores, false);
            }
        }
    }

    /// Values summed with `weights` `[columns][16]`: `[value_dim][16]`.
    fn mix(&self, weights: &[f32], mixed: &mut [f32]) {
        let (shape, lines) = (self.layout.shape, self.layout.value_lines());
        let values = &self.values[self.kv_head() * shape.columns * lines..];
        for (first, count) in self.layout.value_slices() {
            let values = &values[first * lines..][..count * lines];
            let weights = &weights[first * PANEL..][..count * PANEL];
            self.kernels.tiled_product(values, weights, mixed, first > 0);
        }
    }
}
