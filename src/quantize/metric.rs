//! What an error of the weights does to the outputs.

use super::moments::InputMoments;
use super::tiles::{Tiles, side_by_side};
use super::weight::WeightScales;
use crate::engine::cpu::kernels::{Kernels, PANEL};
use crate::engine::cpu::pool::Pool;

/// `e H eᵀ` of rows of errors `e`: how far outputs are off, squared and summed over the inputs that `H` is of (up to one
/// factor for all rows).
pub(super) struct OutputError {
    cols: usize,
    /// `H`, which is its own transpose.
    moments: Tiles,
    kernels: Kernels,
}

impl OutputError {
    pub fn new(moments: &InputMoments, pool: &Pool) -> Self {
        let (cols, kernels) = (moments.cols(), moments.kernels());
        let tiles = Tiles::transposed(&kernels, pool, &moments.normalized(pool), cols, cols);
        Self { cols, moments: tiles, kernels }
    }

    /// Of up to 16 rows of weights, the first of which is row `first` of its matrix, as `levels` on `scales`.
    pub fn of_rows(&self, first: usize, values: &[f32], scales: &WeightScales, levels: &[i16]) -> [f64; PANEL] {
        let cols = self.cols;
        let mut errors = vec![0.0; values.len()];
        let rows = errors.chunks_exact_mut(cols).zip(levels.chunks_exact(cols)).zip(values.chunks_exact(cols));
        for (row, ((errors, levels), values)) in rows.enumerate() {
            scales.dequantize_row(first + row, levels, errors);
            errors.iter_mut().zip(values).for_each(|(error, value)| *error = value - *error);
        }
        let (mut panel, mut products) = (vec![0.0; cols * PANEL], vec![0.0; cols * PANEL]);
        side_by_side(&errors, cols, &mut panel);
        self.moments.product(&self.kernels, 0..cols, &panel, &mut products);
        lane_products(&panel, &products)
    }

    /// Of every row of a matrix rounded to the nearest integers of `scales`.
    pub fn of_nearest(&self, values: &[f32], scales: &WeightScales, pool: &Pool) -> Vec<f64> {
        let rows = values.len() / self.cols;
        let mut errors = vec![0.0; rows];
        pool.for_each_chunk(&mut errors, PANEL, &|panel, errors| {
            let first = panel * PANEL;
            let values = &values[first * self.cols..][..errors.len() * self.cols];
            let levels = nearest_rows(first, values, self.cols, scales);
            errors.copy_from_slice(&self.of_rows(first, values, scales, &levels)[..errors.len()]);
        });
        errors
    }
}

/// Nearest integers of rows `first ..`, `cols` values each.
pub(super) fn nearest_rows(first: usize, values: &[f32], cols: usize, scales: &WeightScales) -> Vec<i16> {
    let mut levels = vec![0; values.len()];
    let rows = values.chunks_exact(cols).zip(levels.chunks_exact_mut(cols));
    rows.enumerate().for_each(|(row, (values, levels))| scales.round_row(first + row, values, levels));
    levels
}

/// Dot products of the columns of two `[n][16]` panels.
pub(super) fn lane_products(a: &[f32], b: &[f32]) -> [f64; PANEL] {
    let mut sums = [0.0; PANEL];
    for (a, b) in a.chunks_exact(PANEL).zip(b.chunks_exact(PANEL)) {
        for lane in 0..PANEL {
            sums[lane] += f64::from(a[lane] * b[lane]);
        }
    }
    sums
}
