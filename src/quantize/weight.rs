//! Weight matrices in integers.

use super::dtype::{QuantDtype, WeightGranularity};
use super::encoding::Encoding;
use super::range::ValueRange;
use crate::error::{Error, Result};

/// Bits of a block's multiplier in LPBQ.
pub const LPBQ_MULTIPLIER_BITS: u32 = 4;
/// Largest multiplier: a channel's scale is its largest block scale divided by this.
const MOST_MULTIPLIER: f32 = (1 << LPBQ_MULTIPLIER_BITS) as f32;

/// Two-level scales of one output channel ("low-power block quantization"): block `b` has the scale
/// `scale · multipliers[b]`, multipliers from 1 to 16.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockScales {
    /// Scale of the channel, above 0.
    pub scale: f32,
    /// One a block.
    pub multipliers: Vec<u8>,
}

impl BlockScales {
    /// Snap the scales that blocks would have on their own.
    pub fn snap(scales: &[f32]) -> Self {
        let largest = scales.iter().copied().fold(0.0f32, f32::max);
        let scale = largest / MOST_MULTIPLIER;
        let snap = |block: &f32| (block / scale).round_ties_even().clamp(1.0, MOST_MULTIPLIER) as u8;
        Self { scale, multipliers: scales.iter().map(snap).collect() }
    }

    /// The scale that block `block` really has, on the device and here: weights are rounded with it.
    pub fn effective(&self, block: usize) -> f32 {
        self.scale * f32::from(self.multipliers.get(block).copied().unwrap_or(1))
    }
}

/// A matrix `[rows, cols]` (output channels, inputs) in integers, and what they mean.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedWeight {
    rows: usize,
    cols: usize,
    levels: Vec<i16>,
    scales: Scales,
}

#[derive(Debug, Clone, PartialEq)]
enum Scales {
    /// One grid, or one a row.
    Grids(Vec<Encoding>),
    /// One a row.
    Blocks { size: usize, rows: Vec<BlockScales>, qmin: i32, qmax: i32 },
}

impl QuantizedWeight {
    /// Quantize `values`, `[rows, cols]` row-major, to the nearest integers. Block scales are snapped first and then
    /// rounded with, so what is evaluated is what the device computes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the sizes if the values are not that many, a block size does not divide `cols`, or a
    /// value is not finite (its place is named).
    pub fn nearest(
        values: &[f32],
        (rows, cols): (usize, usize),
        dtype: QuantDtype,
        granularity: WeightGranularity,
    ) -> Result<Self> {
        if rows.checked_mul(cols) != Some(values.len()) || values.is_empty() {
            let have = values.len();
            return Err(Error::invalid(format!("a matrix of {rows} x {cols} weights was given {have} values")));
        }
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let (row, col, value) = (at / cols, at % cols, values[at]);
            return Err(Error::invalid(format!("weight [{row}, {col}] is {value}, which no integer can stand for")));
        }
        let scales = match granularity {
            WeightGranularity::PerTensor => {
                Scales::Grids(vec![dtype.weight_encoding(ValueRange::of(values), granularity)])
            }
            WeightGranularity::PerChannel => {
                let rows = values.chunks_exact(cols);
                Scales::Grids(rows.map(|row| dtype.weight_encoding(ValueRange::of(row), granularity)).collect())
            }
            WeightGranularity::PerBlock(size) => {
                if size == 0 || !cols.is_multiple_of(size) {
                    return Err(Error::invalid(format!("a block size of {size} does not divide {cols} inputs")));
                }
                let (qmin, qmax) = dtype.weight_range();
                let scales = |row: &[f32]| {
                    let blocks = row.chunks_exact(size);
                    let own = blocks.map(|block| dtype.weight_encoding(ValueRange::of(block), granularity).scale);
                    BlockScales::snap(&own.collect::<Vec<_>>())
                };
                Scales::Blocks { size, rows: values.chunks_exact(cols).map(scales).collect(), qmin, qmax }
            }
        };
        let mut weight = Self { rows, cols, levels: vec![0; values.len()], scales };
        for (row, values) in values.chunks_exact(cols).enumerate() {
            for (col, &value) in values.iter().enumerate() {
                weight.levels[row * cols + col] = weight.grid(row, col).quantize(value) as i16;
            }
        }
        Ok(weight)
    }

    /// Output channels and inputs.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// The integers, `[rows, cols]`.
    pub fn levels(&self) -> &[i16] {
        &self.levels
    }

    /// The grid that weight `[row, col]` is on.
    pub fn grid(&self, row: usize, col: usize) -> Encoding {
        match &self.scales {
            Scales::Grids(grids) => grids[if grids.len() == 1 { 0 } else { row }],
            Scales::Blocks { size, rows, qmin, qmax } => {
                Encoding { scale: rows[row].effective(col / size), zero_point: 0, qmin: *qmin, qmax: *qmax }
            }
        }
    }

    /// Block scales of every row; `None` without blocks.
    pub fn block_scales(&self) -> Option<&[BlockScales]> {
        match &self.scales {
            Scales::Blocks { rows, .. } => Some(rows),
            Scales::Grids(_) => None,
        }
    }

    /// The values of row `row` that the integers stand for.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such row, or `out` has another length than a row.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        let levels = self.levels.get(row * self.cols..(row + 1) * self.cols).filter(|_| out.len() == self.cols);
        let Some(levels) = levels else {
            let (rows, cols, have) = (self.rows, self.cols, out.len());
            return Err(Error::invalid(format!("row {row} of {rows} x {cols} weights does not fit {have} values")));
        };
        for (col, (out, &level)) in out.iter_mut().zip(levels).enumerate() {
            *out = self.grid(row, col).dequantize(level.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn block_scales_of_the_contract() {
        let snapped = BlockScales::snap(&[0.10, 0.05, 0.02]);
        assert!((snapped.scale - 0.00625).abs() < 1e-9);
        assert_eq!(snapped.multipliers, [16, 8, 3]);
        let effective: Vec<f32> = (0..3).map(|block| snapped.effective(block)).collect();
        assert!(effective.iter().zip([0.10, 0.05, 0.01875]).all(|(a, b)| (a - b).abs() < 1e-8), "{effective:?}");
    }

    #[test]
    fn sizes_and_values_that_do_not_fit_are_named() {
        let refuse = |values: &[f32], shape, granularity| {
            QuantizedWeight::nearest(values, shape, QuantDtype::A16W4Block, granularity).unwrap_err().to_string()
        };
        let block = WeightGranularity::PerBlock;
        assert!(refuse(&[0.0; 6], (2, 3), block(2)).contains("block size of 2 does not divide 3 inputs"));
        assert!(refuse(&[0.0; 6], (2, 3), block(0)).contains("block size of 0"));
        assert!(refuse(&[0.0; 5], (2, 3), block(3)).contains("2 x 3 weights was given 5"));
        let infinite = refuse(&[0.0, f32::INFINITY], (1, 2), WeightGranularity::PerChannel);
        assert!(infinite.contains("weight [0, 1] is inf"), "{infinite}");
    }

    fn error(values: &[f32], cols: usize, dtype: QuantDtype, granularity: WeightGranularity) -> f64 {
        let rows = values.len() / cols;
        let weight = QuantizedWeight::nearest(values, (rows, cols), dtype, granularity).expect("fits");
        let mut row = vec![0.0; cols];
        let mut sum = 0.0;
        for (index, expected) in values.chunks_exact(cols).enumerate() {
            weight.dequantize_row(index, &mut row).expect("a row");
            sum += row.iter().zip(expected).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        }
        sum
    }

    proptest! {
        #[test]
        fn weights_are_off_by_half_a_step_at_most(
            values in prop::collection::vec(-2f32..2.0, 48), which in 0usize..6, blocks in 0usize..3,
        ) {
            let granularity = [WeightGranularity::PerTensor, WeightGranularity::PerChannel, WeightGranularity::PerBlock(4)];
            let dtype = QuantDtype::ALL[which];
            let weight = QuantizedWeight::nearest(&values, (4, 12), dtype, granularity[blocks]).expect("fits");
            for (at, &value) in values.iter().enumerate() {
                let grid = weight.grid(at / 12, at % 12);
                let found = grid.dequantize(weight.levels()[at].into());
                // A block's scale was snapped, downwards by a third at most: then its largest weights are clipped.
                let reach = grid.covered();
                let nearest = value.clamp(reach.min, reach.max);
                prop_assert!((found - nearest).abs() <= grid.scale * 0.51, "{value} {found} {grid:?}");
                prop_assert!((grid.qmin..=grid.qmax).contains(&weight.levels()[at].into()));
            }
        }

        #[test]
        fn finer_scales_and_wider_integers_err_less(values in prop::collection::vec(-2f32..2.0, 96)) {
            let by_dtype = |dtype| error(&values, 24, dtype, WeightGranularity::PerChannel);
            prop_assert!(by_dtype(QuantDtype::A16W16) <= by_dtype(QuantDtype::A16W8) + 1e-9);
            prop_assert!(by_dtype(QuantDtype::A16W8) <= by_dtype(QuantDtype::A16W4) + 1e-9);
        }
    }
}
