//! Register-tiled f32 products, written once over [`Vector`]: `C = alpha · A · B (+ C)` with row-major operands.
//!
//! The same tile serves attention (B is the K or V cache) and float weight panels (B is a panel: one row of 16 values
//! a column of the matrix, perhaps in half precision).

use super::vector::Vector;
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
