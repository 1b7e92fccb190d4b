//! A matrix in the order in which the CPU engine's float kernels read it.

use crate::engine::cpu::kernels::{Kernels, PANEL};
use crate::engine::cpu::pool::Pool;
use std::ops::Range;

/// Columns that stay in a first-level cache: `[256][16]` floats are 16 KB.
const SLICE: usize = 256;

/// The transpose `[rows, depth]` of a matrix `[depth, rows]`, as the left operand of products with `[depth, 16]` panels.
/// In slices of [`SLICE`] along the depth; of each slice the tiles of rows that a kernel works on at once.
#[derive(Debug, Clone)]
pub(super) struct Tiles {
    rows: usize,
    depth: usize,
    /// Rows of a tile.
    height: usize,
    values: Vec<f32>,
}

impl Tiles {
    /// Of the matrix whose rows are the first `rows` values of each `stride` values of `source`.
    ///
    /// # Panics
    /// If `rows` is more than `stride`.
    pub fn transposed(kernels: &Kernels, pool: &Pool, source: &[f32], rows: usize, stride: usize) -> Self {
        assert!(rows <= stride, "rows of {rows} of {stride} values");
        // The last row of the source may be shorter than the stride.
        let depth = if rows == 0 { 0 } else { (source.len() + stride - rows) / stride };
        let height = kernels.tile_rows();
        let lines = rows.next_multiple_of(height);
        let mut tiles = Self { rows, depth, height, values: vec![0.0; lines * depth] };
        for slice in tiles.slices() {
            let values = &mut tiles.values[lines * slice.start..lines * slice.end];
            pool.for_each_chunk(values, slice.len() * height, &|tile, values| {
                let first = tile * height;
                let width = height.min(rows - first);
                for (k, line) in slice.clone().zip(values.chunks_exact_mut(height)) {
                    line[..width].copy_from_slice(&source[k * stride + first..][..width]);
                }
            });
        }
        tiles
    }

    /// `out [rows of the range, 16] = self[rows of the range] · panel [depth, 16]`. The range begins with a tile.
    pub fn product(&self, kernels: &Kernels, rows: Range<usize>, panel: &[f32], out: &mut [f32]) {
        debug_assert!(rows.start.is_multiple_of(self.height) && rows.end <= self.rows, "{rows:?} of {}", self.rows);
        let out = &mut out[..rows.len() * PANEL];
        if self.depth == 0 {
            out.fill(0.0);
        }
        let lines = self.rows.next_multiple_of(self.height);
        let end = rows.end.next_multiple_of(self.height);
        for slice in self.slices() {
            let tiles = lines * slice.start..lines * slice.end;
            let tiles = &self.values[tiles][rows.start * slice.len()..end * slice.len()];
            let panel = &panel[slice.start * PANEL..slice.end * PANEL];
            kernels.tiled_product(tiles, panel, out, slice.start > 0);
        }
    }

    /// Rows of a tile.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Rows of all tiles.
    pub fn rows(&self) -> usize {
        self.rows
    }

    fn slices(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let depth = self.depth;
        (0..depth).step_by(SLICE).map(move |start| start..depth.min(start + SLICE))
    }
}

/// Columns `first ..` of up to 16 rows (`rows`: row-major, `cols` values each) side by side: `[cols][16]`. Missing rows are
/// zeros.
pub(super) fn side_by_side(rows: &[f32], cols: usize, panel: &mut [f32]) {
    panel.fill(0.0);
    for (lane, row) in rows.chunks_exact(cols).enumerate() {
        row.iter().zip(panel.chunks_exact_mut(PANEL)).for_each(|(&value, lanes)| lanes[lane] = value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_the_plain_matrix() {
        let pool = Pool::new(2);
        let value = |at: usize| ((at * 37 + 11) % 101) as f32 / 50.0 - 1.0;
        for kernels in Kernels::available() {
            for (depth, rows, stride) in [(1, 1, 1), (7, 5, 9), (300, 33, 40), (513, 16, 16)] {
                let source: Vec<f32> = (0..(depth - 1) * stride + rows).map(value).collect();
                let panel: Vec<f32> = (0..depth * PANEL).map(|at| value(at + 3)).collect();
                let tiles = Tiles::transposed(&kernels, &pool, &source, rows, stride);
                assert_eq!((tiles.rows(), tiles.depth), (rows, depth));
                let first = if rows > tiles.height() { tiles.height() } else { 0 };
                let mut out = vec![f32::NAN; (rows - first) * PANEL];
                tiles.product(&kernels, first..rows, &panel, &mut out);
                for (row, lane) in (first..rows).flat_map(|row| (0..PANEL).map(move |lane| (row, lane))) {
                    let term = |k: usize| f64::from(source[k * stride + row]) * f64::from(panel[k * PANEL + lane]);
                    let expected: f64 = (0..depth).map(term).sum();
                    let found = f64::from(out[(row - first) * PANEL + lane]);
                    assert!((found - expected).abs() < 1e-4, "{} {row} {lane}: {found} {expected}", kernels.name());
                }
            }
        }
    }

    #[test]
    fn a_product_over_nothing_is_zero() {
        let kernels = Kernels::detect();
        let tiles = Tiles::transposed(&kernels, &Pool::new(1), &[], 3, 4);
        let mut out = [f32::NAN; 3 * PANEL];
        tiles.product(&kernels, 0..3, &[], &mut out);
        assert_eq!(out, [0.0; 3 * PANEL]);
    }
}
