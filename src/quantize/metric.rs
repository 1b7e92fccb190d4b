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

    /// Inputs of a row of weights.
    pub fn cols(&self) -> usize {
        self.cols
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::quantize::QuantizedWeight;

    /// Rows of inputs that have much in common, as those of real layers do; the last input is always 0.
    pub fn inputs(rows: usize, cols: usize, seed: u64) -> Vec<f32> {
        let weights = noise(rows * (cols + 2), seed);
        let value = |at: usize| {
            let (row, col) = (at / cols, at % cols);
            let own = &weights[row * (cols + 2)..];
            let shared = own[cols] * ((col % 5) as f32 - 1.0) + own[cols + 1];
            if col + 1 == cols { 0.0 } else { (own[col] + shared) * (1.0 + (col % 7) as f32) }
        };
        (0..rows * cols).map(value).collect()
    }

    /// Repeatable values from -1 to 1.
    pub fn noise(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    pub fn moments_of(x: &[f32], cols: usize) -> InputMoments {
        let mut moments = InputMoments::new(cols).expect("a width");
        moments.add(x, &Pool::new(2)).expect("rows of finite numbers");
        moments
    }

    /// How far the outputs of a row are off, squared and summed over the rows of `x`.
    pub fn output_error(x: &[f32], values: &[f32], weight: &QuantizedWeight, row: usize) -> f64 {
        let (_, cols) = weight.shape();
        let mut found = vec![0.0; cols];
        weight.dequantize_row(row, &mut found).expect("a row");
        let errors: Vec<f64> =
            found.iter().zip(&values[row * cols..]).map(|(a, b)| f64::from(*a) - f64::from(*b)).collect();
        let output = |x: &[f32]| x.iter().zip(&errors).map(|(x, e)| f64::from(*x) * e).sum::<f64>();
        x.chunks_exact(cols).map(|x| output(x).powi(2)).sum()
    }

    #[test]
    fn it_is_how_far_outputs_are_off() {
        use crate::quantize::{QuantDtype, WeightGranularity};
        let (rows, cols) = (19, 40);
        let (x, values) = (inputs(90, cols, 1), noise(rows * cols, 2));
        let moments = moments_of(&x, cols);
        let weight =
            QuantizedWeight::nearest(&values, (rows, cols), QuantDtype::A16W4, WeightGranularity::PerChannel).unwrap();
        let pool = Pool::new(2);
        let found = OutputError::new(&moments, &pool).of_nearest(&values, weight.scales(), &pool);
        let unit = moments.diagonal().iter().sum::<f64>() / cols as f64;
        for (row, found) in found.into_iter().enumerate() {
            let expected = output_error(&x, &values, &weight, row);
            assert!((found * unit - expected).abs() < 1e-4 * expected, "{} {expected}", found * unit);
        }
    }
}
