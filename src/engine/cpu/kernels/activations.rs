//! The input of linear layers, in the form the weight format's kernels want.

use super::{Disjoint, Kernels};
use crate::engine::cpu::pool::Pool;
use crate::formats::{GROUP, groups};

/// Rows of activations, prepared once and multiplied with several matrices. Reusable: memory is kept between calls.
#[derive(Debug, Default)]
pub struct Activations {
    rows: usize,
    cols: usize,
    integer: bool,
    floats: Vec<f32>,
    quantized: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<f32>,
}

/// 8-bit rows: for group `g` and row `t` the 32 values are at `(g · rows + t) · 32`, the scale and the sum at
/// `g · rows + t`. Padding columns are zero.
#[derive(Debug, Clone, Copy)]
pub(super) struct IntRows<'a> {
    /// Row count.
    pub rows: usize,
    /// `x ≈ scale · quantized`.
    pub quantized: &'a [i8],
    /// Largest magnitude of the group / 127.
    pub scales: &'a [f32],
    /// `scale · Σ quantized` of the group: what a weight group's minimum is multiplied with.
    pub sums: &'a [f32],
}

impl Activations {
    /// Nothing prepared yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Take `rows` rows of `cols` values from `x`. With `integer` they are quantized to int8 in groups of 32 (scale =
    /// largest magnitude / 127, round to nearest even), for [`crate::formats::WeightFormat::is_integer`] formats;
    /// otherwise they stay f32.
    ///
    /// # Panics
    /// If `x` does not hold `rows · cols` values.
    pub fn prepare(&mut self, kernels: &Kernels, pool: &Pool, integer: bool, x: &[f32], rows: usize, cols: usize) {
        assert_eq!(x.len(), rows * cols, "activations of shape [{rows}, {cols}]");
        (self.rows, self.cols, self.integer) = (rows, cols, integer);
        if integer {
            self.quantize(kernels, pool, x);
        } else {
            self.floats.clear();
            self.floats.extend_from_slice(x);
        }
    }

    /// Row count.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Column count.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Whether the rows are 8-bit.
    pub fn is_integer(&self) -> bool {
        self.integer
    }

    pub(super) fn floats(&self) -> &[f32] {
        &self.floats
    }

    pub(super) fn integers(&self) -> IntRows<'_> {
        let n = groups(self.cols) * self.rows;
        IntRows {
            rows: self.rows,
            quantized: &self.quantized[..n * GROUP],
            scales: &self.scales[..n],
            sums: &self.sums[..n],
        }
    }

    fn quantize(&mut self, kernels: &Kernels, pool: &Pool, x: &[f32]) {
        let (rows, cols) = (self.rows, self.cols);
        let n = groups(cols) * rows;
        if self.scales.len() < n {
            self.quantized.resize(n * GROUP, 0);
            self.scales.resize(n, 0.0);
            self.sums.resize(n, 0.0);
        }
        let quantized = Disjoint::new(&mut self.quantized);
        let scales = Disjoint::new(&mut self.scales);
        let sums = Disjoint::new(&mut self.sums);
        let row = |t: usize| {
            for (g, group) in x[t * cols..(t + 1) * cols].chunks(GROUP).enumerate() {
                let at = g * rows + t;
                // SAFETY: `at` differs for every row and group and is below n, which all three hold.
                let (quantized, scale, sum) =
                    unsafe { (quantized.slice(at * GROUP, GROUP), scales.slice(at, 1), sums.slice(at, 1)) };
                (scale[0], sum[0]) = kernels.quantize_group(group, quantized);
            }
        };
        // Less than a few thousand values take less time than waking a thread.
        if rows < 4 || rows * cols < 4096 {
            (0..rows).for_each(row);
        } else {
            pool.run(rows.div_ceil(4), &|task| (task * 4..rows.min(task * 4 + 4)).for_each(row));
        }
    }
}
