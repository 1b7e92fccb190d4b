//! The input of linear layers, in the form the weight format's kernels want.
//!
//! Integer formats get 16-bit activations, as the `16a8w` and `16a4w` graphs of a phone do: with 8 bits, whose error is
//! hundreds of times larger, a small model answers differently. Byte products are what processors are fast at, so a
//! value is kept as two digits in base [`BASE`], each in -127..=127, and the dot products of the digits are put together
//! afterwards.

use super::{Disjoint, Kernels};
use crate::engine::cpu::pool::Pool;
use crate::formats::{GROUP, groups};

/// `q = BASE · high + low`. Odd and one less than a byte's values, so that no digit is -128, whose sign cannot be turned.
pub(super) const BASE: i32 = 255;
/// Largest magnitude of a quantized value: both digits 127.
pub(super) const LARGEST: f32 = 32512.0;
/// Digits of a group: 32 high ones, then 32 low ones.
pub(super) const DIGITS: usize = 2 * GROUP;

/// Rows of activations, prepared once and multiplied with several matrices. Reusable: memory is kept between calls.
#[derive(Debug, Default)]
pub struct Activations {
    rows: usize,
    cols: usize,
    integer: bool,
    floats: Vec<f32>,
    digits: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<f32>,
}

/// 16-bit rows: for group `g` and row `t` the digits are at `(g · rows + t) · DIGITS`, the scale and the sum at
/// `g · rows + t`. Padding columns are zero.
#[derive(Debug, Clone, Copy)]
pub(super) struct IntRows<'a> {
    /// Row count.
    pub rows: usize,
    /// `x ≈ scale · (BASE · high + low)`.
    pub digits: &'a [i8],
    /// Largest magnitude of the group / [`LARGEST`].
    pub scales: &'a [f32],
    /// `scale · Σ q` of the group: what a weight group's minimum is multiplied with.
    pub sums: &'a [f32],
}

impl Activations {
    /// Nothing prepared yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Take `rows` rows of `cols` values from `x`. With `integer` they are quantized to 16 bits in groups of 32 (scale =
    /// largest magnitude / 32512, round to nearest even), for [`crate::formats::WeightFormat::is_integer`] formats;
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

    /// Whether the rows are 16-bit integers.
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
            digits: &self.digits[..n * DIGITS],
            scales: &self.scales[..n],
            sums: &self.sums[..n],
        }
    }

    fn quantize(&mut self, kernels: &Kernels, pool: &Pool, x: &[f32]) {
        let (rows, cols) = (self.rows, self.cols);
        let n = groups(cols) * rows;
        if self.scales.len() < n {
            self.digits.resize(n * DIGITS, 0);
            self.scales.resize(n, 0.0);
            self.sums.resize(n, 0.0);
        }
        let digits = Disjoint::new(&mut self.digits);
        let scales = Disjoint::new(&mut self.scales);
        let sums = Disjoint::new(&mut self.sums);
        let row = |t: usize| {
            for (g, group) in x[t * cols..(t + 1) * cols].chunks(GROUP).enumerate() {
                let at = g * rows + t;
                // SAFETY: `at` differs for every row and group and is below n, which all three hold.
                let (digits, scale, sum) =
                    unsafe { (digits.slice(at * DIGITS, DIGITS), scales.slice(at, 1), sums.slice(at, 1)) };
                (scale[0], sum[0]) = kernels.quantize_group(group, digits);
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
