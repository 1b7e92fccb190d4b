//! Scaled dot-product attention over the cache and the block, without copying either together.

use super::kernels::{Kernels, Matrix, MatrixMut};
use super::plan::{Attention, MaskInput};
use super::pool::Pool;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;

/// Mask value of a column that is not attended. Added to a score it makes the weight exactly 0.
const MASKED: f32 = -65535.0;
/// Query rows that one task works on, so that keys and values in cache serve them all.
const TASK_ROWS: usize = 8;

/// Consecutive columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Span {
    start: usize,
    end: usize,
    /// All mask values inside are 0.
    open: bool,
}

impl Span {
    /// From the first to the last attended column of a mask row.
    fn find(mask: &[f32]) -> Self {
        // A NaN counts as attended: it must reach the result.
        let attended = |value: &f32| *value > MASKED || value.is_nan();
        let Some(start) = mask.iter().position(attended) else { return Self::default() };
        let end = mask.iter().rposition(attended).map_or(start, |last| last + 1);
        Self { start, end, open: mask[start..end].iter().all(|&value| value == 0.0) }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The smallest span that holds both; open only if both are and agree.
    fn union(self, other: Self) -> Self {
        if self.is_empty() || self == other {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        Self { start: self.start.min(other.start), end: self.end.max(other.end), open: false }
    }
}

/// What of a mask row has to be looked at: everything outside weighs exactly 0.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RowSpans {
    cache: Span,
    block: Span,
}

/// Find the spans of a mask's rows, of which the first `computed` are looked at. Done once a call: all layers share the
/// mask.
pub(super) fn find_spans(mask: &[f32], shape: &MaskInput, computed: usize, spans: &mut Vec<RowSpans>) {
    spans.clear();
    for row in mask.chunks_exact((shape.cache + shape.block).max(1)) {
        let (cache, block) = row.split_at(shape.cache);
        let mut found = RowSpans { cache: Span::find(cache), block: Span::find(block) };
        if found.cache.is_empty() && found.block.is_empty() {
            // Nothing is attended: then everything is, with equal right. Rows of the block that are not computed are
            // not part of "everything".
            found.cache = Span { start: 0, end: shape.cache, open: false };
            found.block = Span { start: 0, end: computed, open: false };
        }
        spans.push(found);
    }
}

/// Columns that rows `rows` look at, all together; for statistics.
pub(super) fn attended_columns(spans: &[RowSpans], rows: Range<usize>) -> u64 {
    let count = |s: &RowSpans| (s.cache.end - s.cache.start + s.block.end - s.block.start) as u64;
    spans.get(rows).unwrap_or_default().iter().map(count).sum()
}

/// Working memory, one piece for each thread.
#[derive(Debug, Default)]
pub(super) struct AttentionScratch {
    pub pieces: Vec<Mutex<Vec<f32>>>,
    /// Results, heads outermost, before they are brought into row order.
    staging: Vec<f32>,
    /// Keys of an attention without cache, packed.
    pub keys: Vec<f32>,
    /// Values of an attention without cache, packed.
    pub values: Vec<f32>,
}

impl AttentionScratch {
    pub fn new(threads: usize) -> Self {
        Self { pieces: (0..threads.max(1)).map(|_| Mutex::default()).collect(), ..Self::default() }
    }
}

/// A free piece. There are as many as threads, so one is always free when a task begins.
pub(super) fn claim(pieces: &[Mutex<Vec<f32>>]) -> MutexGuard<'_, Vec<f32>> {
    loop {
        if let Some(piece) = pieces.iter().find_map(|piece| piece.try_lock()) {
            return piece;
        }
        std::hint::spin_loop();
    }
}

/// Operands of one attention step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operands<'a> {
    /// `[rows, heads, head_dim]`
    pub q: &'a [f32],
    /// `[kv_heads, head_dim, cache]`
    pub k_cache: &'a [f32],
    /// `[kv_heads, cache, value_dim]`
    pub v_cache: &'a [f32],
    /// `[kv_heads, head_dim, rows]`
    pub k_block: &'a [f32],
    /// `[kv_heads, rows, value_dim]`
    pub v_block: &'a [f32],
    /// `[rows, cache + rows]`
    pub mask: &'a [f32],
    /// One a row.
    pub spans: &'a [RowSpans],
}

/// How the work is cut: a task is some rows of some query heads of one key/value head.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// Query heads of a task.
    heads: usize,
    /// Rows of a task.
    rows: usize,
    /// Tasks along the rows.
    row_tasks: usize,
}

impl Cut {
    fn new(shape: &Attention, rows: usize, threads: usize) -> Self {
        let group = shape.heads / shape.kv_heads;
        let row_tasks = rows.div_ceil(TASK_ROWS);
        // Heads that share keys stay together, unless threads would be idle.
        let splits = (1..=group).filter(|&split| group.is_multiple_of(split));
        let split = splits.into_iter().find(|split| shape.kv_heads * split * row_tasks >= threads).unwrap_or(group);
        Self { heads: group / split, rows: rows.min(TASK_ROWS), row_tasks }
    }
}

/// Compute rows `rows`; `out` is `[shape.rows, heads, value_dim]`, other rows keep their contents.
pub(super) fn attend(
    shape: &Attention,
    operands: &Operands<'_>,
    rows: Range<usize>,
    out: &mut [f32],
    scratch: &mut AttentionScratch,
    (kernels, pool): (&Kernels, &Pool),
) {
    let cut = Cut::new(shape, rows.len(), pool.threads());
    let row_width = shape.heads * shape.value_dim;
    let out = &mut out[rows.start * row_width..rows.end * row_width];
    let AttentionScratch { pieces, staging, .. } = scratch;
    let chunk = cut.rows * cut.heads * shape.value_dim;
    let task = |index: usize, result: &mut [f32]| {
        let first_row = rows.start + index % cut.row_tasks * cut.rows;
        let task_rows = first_row..rows.end.min(first_row + cut.rows);
        let first_head = index / cut.row_tasks * cut.heads;
        attend_task(
            shape,
            operands,
            task_rows,
            first_head..first_head + cut.heads,
            result,
            &mut claim(pieces),
            kernels,
        );
    };
    if rows.len() == 1 {
        // With one row, heads outermost is row order.
        pool.for_each_chunk(out, chunk, &task);
        return;
    }
    let head_tasks = shape.heads / cut.heads;
    let staged = head_tasks * cut.row_tasks * chunk;
    if staging.len() < staged {
        staging.resize(staged, 0.0);
    }
    let staging = &mut staging[..staged];
    pool.for_each_chunk(staging, chunk, &task);
    let piece = cut.heads * shape.value_dim;
    for (head_task, block) in staging.chunks_exact(cut.row_tasks * chunk).enumerate() {
        for (row, result) in block.chunks_exact(piece).take(rows.len()).enumerate() {
            let at = row * row_width + head_task * piece;
            out[at..at + piece].copy_from_slice(result);
        }
    }
}

/// Rows `rows` of query heads `heads`, which share one key/value head; `result` is `[rows, heads, value_dim]`.
fn attend_task(
    shape: &Attention,
    operands: &Operands<'_>,
    rows: Range<usize>,
    heads: Range<usize>,
    result: &mut [f32],
    scratch: &mut Vec<f32>,
    kernels: &Kernels,
) {
    let (d, vd) = (shape.head_dim, shape.value_dim);
    let spans = &operands.spans[rows.clone()];
    let all = spans.iter().fold(RowSpans::default(), |all, row| RowSpans {
        cache: all.cache.union(row.cache),
        block: all.block.union(row.block),
    });
    let (cached, new) = (all.cache.range(), all.block.range());
    let columns = cached.len() + new.len();
    let lines = rows.len() * heads.len();
    let needed = lines * (d + columns);
    if scratch.len() < needed {
        scratch.resize(needed, 0.0);
    }
    // What is left from other tasks is overwritten: products assign, they do not accumulate.
    let (q, scores) = scratch[..needed].split_at_mut(lines * d);
    gather_queries(shape, operands.q, &rows, &heads, q);

    let kv_head = heads.start / (shape.heads / shape.kv_heads);
    let q = Matrix::new(q, lines, d, d);
    if !cached.is_empty() {
        let keys = &operands.k_cache[kv_head * d * shape.cache + cached.start..];
        let keys = Matrix::new(keys, d, cached.len(), shape.cache);
        kernels.attention_scores(q, keys, shape.scale, MatrixMut::new(scores, lines, cached.len(), columns));
    }
    if !new.is_empty() {
        let keys = &operands.k_block[kv_head * d * shape.rows + new.start..];
        let keys = Matrix::new(keys, d, new.len(), shape.rows);
        let scores = MatrixMut::new(&mut scores[cached.len()..], lines, new.len(), columns);
        kernels.attention_scores(q, keys, shape.scale, scores);
    }
    if let Some(cap) = shape.soft_cap {
        kernels.soft_cap(scores, cap);
    }
    for (line, scores) in scores.chunks_exact_mut(columns).enumerate() {
        let row = line / heads.len();
        let mask = &operands.mask[(rows.start + row) * (shape.cache + shape.rows)..];
        let (on_cache, on_block) = scores.split_at_mut(cached.len());
        add_mask(on_cache, &mask[cached.clone()], spans[row].cache, all.cache);
        add_mask(on_block, &mask[shape.cache..][new.clone()], spans[row].block, all.block);
        kernels.softmax(scores);
    }
    if !cached.is_empty() {
        let values = &operands.v_cache[(kv_head * shape.cache + cached.start) * vd..];
        let values = Matrix::new(values, cached.len(), vd, vd);
        let weights = Matrix::new(scores, lines, cached.len(), columns);
        kernels.attention_weighted_sum(weights, values, false, MatrixMut::new(result, lines, vd, vd));
    }
    if !new.is_empty() {
        let values = &operands.v_block[(kv_head * shape.rows + new.start) * vd..];
        let values = Matrix::new(values, new.len(), vd, vd);
        let weights = Matrix::new(&scores[cached.len()..], lines, new.len(), columns);
        kernels.attention_weighted_sum(weights, values, !cached.is_empty(), MatrixMut::new(result, lines, vd, vd));
    }
}

/// `[rows, heads, head_dim]` of the task, from `[all rows, all heads, head_dim]`.
fn gather_queries(shape: &Attention, q: &[f32], rows: &Range<usize>, heads: &Range<usize>, to: &mut [f32]) {
    let width = heads.len() * shape.head_dim;
    for (row, to) in rows.clone().zip(to.chunks_exact_mut(width)) {
        let at = (row * shape.heads + heads.start) * shape.head_dim;
        to.copy_from_slice(&q[at..at + width]);
    }
}

/// Add the mask to the scores of columns `all`, unless it is 0 everywhere there.
fn add_mask(scores: &mut [f32], mask: &[f32], row: Span, all: Span) {
    if row.open && row.start == all.start && row.end == all.end {
        return;
    }
    scores.iter_mut().zip(mask).for_each(|(score, mask)| *score += mask);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_reach_from_the_first_to_the_last_attended_column() {
        let m = MASKED;
        assert_eq!(Span::find(&[m, 0.0, 0.0, m]), Span { start: 1, end: 3, open: true });
        assert_eq!(Span::find(&[0.0, m, 0.0]), Span { start: 0, end: 3, open: false });
        assert_eq!(Span::find(&[m, -1.5, m]), Span { start: 1, end: 2, open: false });
        assert_eq!(Span::find(&[m, f32::NAN]).range(), 1..2);
        assert!(Span::find(&[m, m]).is_empty());
    }

    #[test]
    fn a_union_is_open_only_if_nothing_needs_the_mask() {
        let (a, b) = (Span { start: 1, end: 3, open: true }, Span { start: 1, end: 4, open: true });
        assert!(a.union(a).open && a.union(Span::default()).open);
        assert_eq!(a.union(b), Span { start: 1, end: 4, open: false });
    }

    #[test]
    fn tasks_keep_heads_together_unless_threads_would_be_idle() {
        let shape = Attention {
            rows: 32,
            heads: 8,
            kv_heads: 2,
            head_dim: 4,
            value_dim: 4,
            cache: 16,
            scale: 1.0,
            soft_cap: None,
            mask: 0,
        };
        assert_eq!(Cut::new(&shape, 1, 2).heads, 4);
        assert_eq!(Cut::new(&shape, 1, 4).heads, 2);
        assert_eq!(Cut::new(&shape, 1, 64).heads, 1);
        assert_eq!(Cut::new(&shape, 32, 4).heads, 4);
    }
}
