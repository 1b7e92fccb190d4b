//! Register-tiled f32 products, written once over [`Vector`]: `C = alpha · A · B (+ C)` with row-major operands.
//!
//! The same tile serves attention (B is the K or V cache) and float weight panels (B is a panel: one row of 16 values
//! a column of the matrix, perhaps in half precision).

use super::Nonlinearity;
use super::vector::{Vector, apply};
use crate::formats::PANEL_ROWS;
use std::marker::PhantomData;

/// Rows of C computed at once.
const TILE_ROWS: usize = 6;

/// How a vector of B's elements is read.
pub(super) trait Source<V: Vector> {
    /// Bytes of one element.
    const BYTES: usize;
    /// `LANES` elements.
    ///
    /// # Safety
    /// `from` is valid for them; the processor has V's instructions.
    unsafe fn load(from: *const u8) -> V;
    /// The first `n < LANES` elements, the others 0.
    ///
    /// # Safety
    /// As for `load`.
    unsafe fn load_part(from: *const u8, n: usize) -> V;
}

/// f32 elements.
pub(super) struct Single;
/// f16 elements; only whole vectors.
pub(super) struct Half;
/// bf16 elements; only whole vectors.
pub(super) struct Brain;

impl<V: Vector> Source<V> for Single {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> V {
        // SAFETY: as promised by the caller.
        unsafe { V::load(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const u8, n: usize) -> V {
        // SAFETY: as promised by the caller.
        unsafe { V::load_part(from.cast(), n) }
    }
}

impl<V: Vector> Source<V> for Half {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> V {
        // SAFETY: as promised by the caller.
        unsafe { V::load_f16(from) }
    }
    #[inline(always)]
    unsafe fn load_part(_: *const u8, _: usize) -> V {
        unreachable!("panels are 16 wide, a whole number of vectors")
    }
}

impl<V: Vector> Source<V> for Brain {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> V {
        // SAFETY: as promised by the caller.
        unsafe { V::load_bf16(from) }
    }
    #[inline(always)]
    unsafe fn load_part(_: *const u8, _: usize) -> V {
        unreachable!("panels are 16 wide, a whole number of vectors")
    }
}

/// Operands of a product `C [m, n] = alpha · A [m, k] · B [k, n] (+ C)`; strides count elements.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub a: *const f32,
    pub a_stride: usize,
    pub b: *const u8,
    pub b_stride: usize,
    pub c: *mut f32,
    pub c_stride: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub alpha: f32,
    pub accumulate: bool,
    pub borrows: PhantomData<&'a f32>,
}

/// Compute a product.
///
/// # Safety
/// The pointers are valid for the given shapes and strides, C overlaps neither A nor B, the processor has V's
/// instructions. Unless S is [`Single`], `n` is a multiple of the lanes.
#[inline(always)]
pub(super) unsafe fn product<V: Vector, S: Source<V>>(p: Product<'_>) {
    // SAFETY: as promised by the caller; `rows_from` visits each row and column once, within the shapes.
    unsafe {
        if p.m <= 3 {
            wide_rows::<V, S>(p);
        } else {
            let wide = 2 * V::LANES;
            let mut column = 0;
            while column + wide <= p.n {
                all_rows::<V, S, 2>(p, column, wide);
                column += wide;
            }
            while column < p.n {
                let width = V::LANES.min(p.n - column);
                all_rows::<V, S, 1>(p, column, width);
                column += width;
            }
        }
    }
}

/// At most three rows: fewer accumulators a row are in use, so take four vectors of columns at once.
#[inline(always)]
unsafe fn wide_rows<V: Vector, S: Source<V>>(p: Product<'_>) {
    // SAFETY: as promised by the caller of `product`.
    unsafe {
        let mut column = 0;
        while column < p.n {
            let vectors = (p.n - column) / V::LANES;
            let width = match vectors {
                0 => p.n - column,
                1 => V::LANES,
                2 | 3 => 2 * V::LANES,
                _ => 4 * V::LANES,
            };
            match vectors {
                0 | 1 => all_rows::<V, S, 1>(p, column, width),
                2 | 3 => all_rows::<V, S, 2>(p, column, width),
                _ => all_rows::<V, S, 4>(p, column, width),
            }
            column += width;
        }
    }
}

/// All rows of `NV` vectors of columns.
#[inline(always)]
unsafe fn all_rows<V: Vector, S: Source<V>, const NV: usize>(p: Product<'_>, column: usize, width: usize) {
    // SAFETY: as promised by the caller of `product`.
    unsafe {
        let mut row = 0;
        while row < p.m {
            // With one row the sums would wait for each other: four columns of A at once.
            match (p.m - row).min(TILE_ROWS) {
                1 => tile::<V, S, 1, NV, 4>(p, row, column, width),
                2 => tile::<V, S, 2, NV, 1>(p, row, column, width),
                3 => tile::<V, S, 3, NV, 1>(p, row, column, width),
                4 => tile::<V, S, 4, NV, 1>(p, row, column, width),
                5 => tile::<V, S, 5, NV, 1>(p, row, column, width),
                _ => tile::<V, S, 6, NV, 1>(p, row, column, width),
            }
            row += TILE_ROWS;
        }
    }
}

/// `MT` rows by `NV` vectors (`width` columns, less than a vector only if `NV` is 1), `KU` steps of k at once.
#[inline(always)]
unsafe fn tile<V: Vector, S: Source<V>, const MT: usize, const NV: usize, const KU: usize>(
    p: Product<'_>,
    row: usize,
    column: usize,
    width: usize,
) {
    // SAFETY: rows `row .. row + MT` and columns `column .. column + width` are inside the operands.
    unsafe {
        let a = p.a.add(row * p.a_stride);
        let b = p.b.add(column * S::BYTES);
        let part = if NV == 1 && width < V::LANES { width } else { 0 };
        let mut sums = [[[V::splat(0.0); NV]; MT]; KU];
        let whole = p.k - p.k % KU;
        for k in (0..whole).step_by(KU) {
            for u in 0..KU {
                let mut weights = [V::splat(0.0); NV];
                for (v, weight) in weights.iter_mut().enumerate() {
                    *weight = load::<V, S>(b, (k + u) * p.b_stride + v * V::LANES, part);
                }
                for t in 0..MT {
                    let x = V::splat(*a.add(t * p.a_stride + k + u));
                    for v in 0..NV {
                        sums[u][t][v] = weights[v].mul_add(x, sums[u][t][v]);
                    }
                }
            }
        }
        for k in whole..p.k {
            for t in 0..MT {
                let x = V::splat(*a.add(t * p.a_stride + k));
                for v in 0..NV {
                    let weight = load::<V, S>(b, k * p.b_stride + v * V::LANES, part);
                    sums[0][t][v] = weight.mul_add(x, sums[0][t][v]);
                }
            }
        }
        for t in 0..MT {
            for v in 0..NV {
                let mut sum = sums[0][t][v];
                for more in &sums[1..] {
                    sum = sum.add(more[t][v]);
                }
                let to = p.c.add((row + t) * p.c_stride + column + v * V::LANES);
                write::<V>(sum.mul(V::splat(p.alpha)), to, p.accumulate, if NV == 1 { width } else { V::LANES });
            }
        }
    }
}

/// A vector from element `at`; its first `part` lanes only, unless `part` is 0.
#[inline(always)]
unsafe fn load<V: Vector, S: Source<V>>(b: *const u8, at: usize, part: usize) -> V {
    // SAFETY: the lanes that are read are inside the operand, by the caller.
    unsafe {
        let from = b.add(at * S::BYTES);
        if part > 0 { S::load_part(from, part) } else { S::load(from) }
    }
}

/// Store or add `width` lanes.
#[inline(always)]
unsafe fn write<V: Vector>(value: V, to: *mut f32, accumulate: bool, width: usize) {
    // SAFETY: `to` is valid for `width` values, by the caller.
    unsafe {
        if width < V::LANES {
            let old = if accumulate { V::load_part(to, width) } else { V::splat(0.0) };
            value.add(old).store_part(to, width);
        } else {
            let old = if accumulate { V::load(to) } else { V::splat(0.0) };
            value.add(old).store(to);
        }
    }
}

/// Operands of a blocked product: `C [rows, cols] = A · B (+ C)`, at most 16 columns.
#[derive(Clone, Copy)]
pub(super) struct Tiled<'a> {
    /// Tiles of [`Vector::TILE_ROWS`] rows, each `[k][TILE_ROWS]`, `a_tile` elements apart.
    pub a: *const f32,
    pub a_tile: usize,
    /// `[k][16]`, whatever `cols` is.
    pub b: *const f32,
    pub c: *mut f32,
    pub c_stride: usize,
    pub rows: usize,
    pub cols: usize,
    pub k: usize,
    pub accumulate: bool,
    pub borrows: PhantomData<&'a f32>,
}

/// Vectors that are as wide as a panel.
pub(super) const fn vectors<V: Vector>() -> usize {
    PANEL_ROWS / V::LANES
}

/// Compute a blocked product; `NV` vectors are 16 columns.
///
/// # Safety
/// The pointers are valid for the given shapes and strides, C overlaps neither A nor B, the processor has V's
/// instructions.
#[inline(always)]
pub(super) unsafe fn tiled<V: Vector, const NV: usize>(p: Tiled<'_>) {
    const { assert!(NV * V::LANES == PANEL_ROWS) };
    let (mut row, mut a) = (0, p.a);
    while row < p.rows {
        // SAFETY: as promised by the caller; rows `row ..` are inside A and C.
        unsafe {
            let c = p.c.add(row * p.c_stride);
            match (p.rows - row).min(V::TILE_ROWS) {
                1 => tile_of::<V, 1, NV>(p, a, c),
                2 => tile_of::<V, 2, NV>(p, a, c),
                3 => tile_of::<V, 3, NV>(p, a, c),
                4 => tile_of::<V, 4, NV>(p, a, c),
                5 => tile_of::<V, 5, NV>(p, a, c),
                6 => tile_of::<V, 6, NV>(p, a, c),
                7 => tile_of::<V, 7, NV>(p, a, c),
                8 => tile_of::<V, 8, NV>(p, a, c),
                9 => tile_of::<V, 9, NV>(p, a, c),
                10 => tile_of::<V, 10, NV>(p, a, c),
                11 => tile_of::<V, 11, NV>(p, a, c),
                _ => tile_of::<V, 12, NV>(p, a, c),
            }
            a = a.add(p.a_tile);
        }
        row += V::TILE_ROWS;
    }
}

/// The first `MT` rows of one tile.
#[inline(always)]
unsafe fn tile_of<V: Vector, const MT: usize, const NV: usize>(p: Tiled<'_>, a: *const f32, c: *mut f32) {
    // SAFETY: as promised by the caller of `tiled`.
    unsafe {
        let mut sums = [[V::splat(0.0); NV]; MT];
        for k in 0..p.k {
            let mut weights = [V::splat(0.0); NV];
            for (v, weight) in weights.iter_mut().enumerate() {
                *weight = V::load(p.b.add(k * PANEL_ROWS + v * V::LANES));
            }
            for t in 0..MT {
                let x = V::splat(*a.add(k * V::TILE_ROWS + t));
                for v in 0..NV {
                    sums[t][v] = weights[v].mul_add(x, sums[t][v]);
                }
            }
        }
        for t in 0..MT {
            let c = c.add(t * p.c_stride);
            for v in 0..NV {
                let (column, sum) = (v * V::LANES, sums[t][v]);
                if p.cols == PANEL_ROWS {
                    let to = c.add(column);
                    if p.accumulate { sum.add(V::load(to)).store(to) } else { sum.store(to) }
                } else if column < p.cols {
                    write::<V>(sum, c.add(column), p.accumulate, V::LANES.min(p.cols - column));
                }
            }
        }
    }
}

/// What is left to do when all products of a piece of a linear layer's output have been summed.
#[derive(Clone, Copy)]
pub(super) struct Finish<'a> {
    /// `[rows, cols]`, rows `stride` elements apart.
    pub out: *mut f32,
    pub stride: usize,
    pub rows: usize,
    pub cols: usize,
    /// `cols` values, or null. Added first.
    pub bias: *const f32,
    /// Applied next.
    pub activation: Option<Nonlinearity>,
    /// As `out`, or null. Added last.
    pub residual: *const f32,
    pub borrows: PhantomData<&'a f32>,
}

/// Add the bias, apply the activation, add the residual.
///
/// # Safety
/// The pointers that are not null are valid for the given shapes; the processor has V's instructions.
#[inline(always)]
pub(super) unsafe fn finish<V: Vector>(f: Finish<'_>) {
    // SAFETY: as promised by the caller; every access is within the shapes.
    unsafe {
        for row in 0..f.rows {
            for column in (0..f.cols).step_by(V::LANES) {
                let width = V::LANES.min(f.cols - column);
                let at = row * f.stride + column;
                let mut y = read::<V>(f.out.add(at), width);
                if !f.bias.is_null() {
                    y = y.add(read::<V>(f.bias.add(column), width));
                }
                if let Some(function) = f.activation {
                    y = apply(function, y);
                }
                if !f.residual.is_null() {
                    y = y.add(read::<V>(f.residual.add(at), width));
                }
                write::<V>(y, f.out.add(at), false, width);
            }
        }
    }
}

/// Load `width` lanes.
#[inline(always)]
unsafe fn read<V: Vector>(from: *const f32, width: usize) -> V {
    // SAFETY: `from` is valid for `width` values, by the caller.
    unsafe { if width < V::LANES { V::load_part(from, width) } else { V::load(from) } }
}

/// Half-precision values as f32; their number is a multiple of 16.
///
/// # Safety
/// `from` holds two bytes for each value of `to`; the processor has V's instructions.
#[inline(always)]
pub(super) unsafe fn widen<V: Vector, S: Source<V>>(from: &[u8], to: &mut [f32]) {
    debug_assert!(S::BYTES == 2 && from.len() >= 2 * to.len() && to.len().is_multiple_of(PANEL_ROWS));
    for i in (0..to.len()).step_by(V::LANES) {
        // SAFETY: both slices hold the lanes, by the caller.
        unsafe { S::load(from.as_ptr().add(i * S::BYTES)).store(to.as_mut_ptr().add(i)) };
    }
}
