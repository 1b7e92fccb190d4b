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

/// What the integers of a matrix `[rows, cols]` mean. Chosen before the weights are rounded.
#[derive(Debug, Clone, PartialEq)]
pub enum WeightScales {
    /// One grid for all weights, or one a row.
    Grids(Vec<Encoding>),
    /// Two-level scales, one a row: neighbours along the inputs share a multiplier. 0 means 0.
    Blocks {
        /// Inputs of a block; divides the number of columns.
        size: usize,
        /// One a row.
        rows: Vec<BlockScales>,
        /// Smallest integer.
        qmin: i32,
        /// Largest integer.
        qmax: i32,
    },
}

impl WeightScales {
    /// The grids from min to max: those whose outermost integers stand for the largest magnitude among the weights that
    /// share a scale. Block scales are snapped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the sizes if the values are not that many or a block size does not divide `cols`;
    /// naming the place if a value is not finite.
    pub fn min_max(
        values: &[f32],
        (rows, cols): (usize, usize),
        dtype: QuantDtype,
        granularity: WeightGranularity,
    ) -> Result<Self> {
        check_values(values, (rows, cols))?;
        let grid = |values: &[f32]| dtype.weight_encoding(ValueRange::new(0.0, magnitude(values)), granularity);
        Ok(match granularity {
            WeightGranularity::PerTensor => Self::Grids(vec![grid(values)]),
            WeightGranularity::PerChannel => Self::Grids(values.chunks_exact(cols).map(grid).collect()),
            WeightGranularity::PerBlock(size) => {
                check_block_size(size, cols)?;
                let (qmin, qmax) = dtype.weight_range();
                let mut own = Vec::with_capacity(cols / size);
                let snap = |row: &[f32]| {
                    own.clear();
                    own.extend(row.chunks_exact(size).map(|block| grid(block).scale));
                    BlockScales::snap(&own)
                };
                Self::Blocks { size, rows: values.chunks_exact(cols).map(snap).collect(), qmin, qmax }
            }
        })
    }

    /// The grid that weight `[row, col]` is on.
    ///
    /// # Panics
    /// If there are no scales for that place.
    pub fn grid(&self, row: usize, col: usize) -> Encoding {
        match self {
            Self::Grids(grids) => grids[if grids.len() == 1 { 0 } else { row }],
            Self::Blocks { size, rows, qmin, qmax } => {
                Encoding { scale: rows[row].effective(col / size), zero_point: 0, qmin: *qmin, qmax: *qmax }
            }
        }
    }

    /// Neighbours along the inputs that share a grid, in a row of `cols` weights.
    pub fn run_length(&self, cols: usize) -> usize {
        match self {
            Self::Grids(_) => cols,
            Self::Blocks { size, .. } => *size,
        }
    }

    /// Scales `factor(row)` times as large (`factor(0)` if all rows share one). Multipliers of blocks stay.
    pub(super) fn scaled(&self, factor: impl Fn(usize) -> f32) -> Self {
        let mut scales = self.clone();
        match &mut scales {
            Self::Grids(grids) => grids.iter_mut().enumerate().for_each(|(row, grid)| grid.scale *= factor(row)),
            Self::Blocks { rows, .. } => rows.iter_mut().enumerate().for_each(|(row, own)| own.scale *= factor(row)),
        }
        scales
    }

    /// Nearest integers of row `row`.
    pub(super) fn round_row(&self, row: usize, values: &[f32], levels: &mut [i16]) {
        let length = self.run_length(values.len());
        let runs = values.chunks_exact(length).zip(levels.chunks_exact_mut(length));
        runs.enumerate().for_each(|(run, (values, levels))| round(values, self.grid(row, run * length), levels));
    }

    /// What the integers `levels` stand for in row `row`.
    pub(super) fn dequantize_row(&self, row: usize, levels: &[i16], out: &mut [f32]) {
        let length = self.run_length(levels.len());
        for (run, (out, levels)) in out.chunks_exact_mut(length).zip(levels.chunks_exact(length)).enumerate() {
            let Encoding { scale, zero_point, .. } = self.grid(row, run * length);
            out.iter_mut().zip(levels).for_each(|(out, &level)| *out = (i32::from(level) - zero_point) as f32 * scale);
        }
    }

    /// Whether they are scales of a matrix `[rows, cols]`.
    fn check(&self, (rows, cols): (usize, usize)) -> Result<()> {
        match self {
            Self::Grids(grids) => {
                if grids.len() != 1 && grids.len() != rows {
                    let have = grids.len();
                    return Err(Error::invalid(format!(
                        "{rows} rows of weights have {have} scales: one, or one a row"
                    )));
                }
                grids.iter().enumerate().try_for_each(|(row, grid)| check_grid(row, grid))
            }
            Self::Blocks { size, rows: scales, qmin, qmax } => {
                check_block_size(*size, cols)?;
                if scales.len() != rows {
                    let have = scales.len();
                    return Err(Error::invalid(format!("{rows} rows of weights have block scales for {have} rows")));
                }
                scales.iter().enumerate().try_for_each(|(row, channel)| {
                    let BlockScales { scale, multipliers } = channel;
                    check_grid(row, &Encoding { scale: *scale, zero_point: 0, qmin: *qmin, qmax: *qmax })?;
                    let (blocks, have) = (cols / size, multipliers.len());
                    if have != blocks {
                        return Err(Error::invalid(format!(
                            "row {row} has {have} block multipliers for {blocks} blocks"
                        )));
                    }
                    match multipliers.iter().position(|multiplier| !(1..=MOST_MULTIPLIER as u8).contains(multiplier)) {
                        Some(block) => Err(Error::invalid(format!(
                            "block {block} of row {row} has the multiplier {}: they go from 1 to {MOST_MULTIPLIER}",
                            multipliers[block]
                        ))),
                        None => Ok(()),
                    }
                })
            }
        }
    }
}

/// A matrix `[rows, cols]` (output channels, inputs) in integers, and what they mean.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedWeight {
    rows: usize,
    cols: usize,
    levels: Vec<i16>,
    scales: WeightScales,
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
        let scales = WeightScales::min_max(values, (rows, cols), dtype, granularity)?;
        let mut levels = vec![0; values.len()];
        let rows_of_both = values.chunks_exact(cols).zip(levels.chunks_exact_mut(cols));
        rows_of_both.enumerate().for_each(|(row, (values, levels))| scales.round_row(row, values, levels));
        Ok(Self { rows, cols, levels, scales })
    }

    /// Integers that were rounded with `scales`.
    pub(super) fn rounded((rows, cols): (usize, usize), levels: Vec<i16>, scales: WeightScales) -> Self {
        Self { rows, cols, levels, scales }
    }

    /// Put a matrix together again, from the integers (`[rows, cols]`) and what they mean.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming what does not fit: the number of integers, scales or block multipliers, a scale that
    /// is not a finite number above 0, a multiplier outside 1 to 16, an integer outside its grid.
    pub fn from_parts((rows, cols): (usize, usize), levels: Vec<i16>, scales: WeightScales) -> Result<Self> {
        check_count(levels.len(), (rows, cols))?;
        scales.check((rows, cols))?;
        let length = scales.run_length(cols);
        for (run, part) in levels.chunks_exact(length).enumerate() {
            let (row, first) = (run * length / cols, run * length % cols);
            let Encoding { qmin, qmax, .. } = scales.grid(row, first);
            if let Some(at) = part.iter().position(|&level| !(qmin..=qmax).contains(&level.into())) {
                let (col, level) = (first + at, part[at]);
                return Err(Error::invalid(format!("weight [{row}, {col}] is {level}, outside {qmin} to {qmax}")));
            }
        }
        Ok(Self { rows, cols, levels, scales })
    }

    /// Output channels and inputs.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// The integers, `[rows, cols]`.
    pub fn levels(&self) -> &[i16] {
        &self.levels
    }

    /// What the integers mean.
    pub fn scales(&self) -> &WeightScales {
        &self.scales
    }

    /// The integers and what they mean, to be saved.
    pub fn into_parts(self) -> (Vec<i16>, WeightScales) {
        (self.levels, self.scales)
    }

    /// The grid that weight `[row, col]` is on.
    ///
    /// # Panics
    /// If there is no such weight.
    pub fn grid(&self, row: usize, col: usize) -> Encoding {
        self.scales.grid(row, col)
    }

    /// Block scales of every row; `None` without blocks.
    pub fn block_scales(&self) -> Option<&[BlockScales]> {
        match &self.scales {
            WeightScales::Blocks { rows, .. } => Some(rows),
            WeightScales::Grids(_) => None,
        }
    }

    /// The values of row `row` that the integers stand for.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such row, or `out` has another length than a row.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        if row >= self.rows || out.len() != self.cols {
            let (rows, cols, have) = (self.rows, self.cols, out.len());
            return Err(Error::invalid(format!("row {row} of {rows} x {cols} weights does not fit {have} values")));
        }
        self.scales.dequantize_row(row, &self.levels[row * self.cols..(row + 1) * self.cols], out);
        Ok(())
    }
}

/// `1.5 · 2^23`: a sum with it has no bits for a fraction, so the processor rounds to a whole number, ties to even; the low
/// bits of the sum hold that number.
const WHOLE: f32 = 12_582_912.0;

/// The nearest whole number, ties to even, of a magnitude up to 2^22; unlike `round_ties_even` for several numbers at once.
pub(super) fn round_to_whole(value: f32) -> f32 {
    (value + WHOLE) - WHOLE
}

/// Nearest integers of weights on one grid, as [`Encoding::quantize`] gives them, several at once.
fn round(values: &[f32], grid: Encoding, levels: &mut [i16]) {
    let inverse = 1.0 / grid.scale;
    let (lo, hi) = ((grid.qmin - grid.zero_point) as f32, (grid.qmax - grid.zero_point) as f32);
    for (level, &value) in levels.iter_mut().zip(values) {
        let bounded = (value * inverse).max(lo).min(hi);
        let whole = (bounded + WHOLE).to_bits().wrapping_sub(WHOLE.to_bits()) as i32;
        *level = (whole + grid.zero_point) as i16;
    }
}

/// Largest magnitude; infinite or NaN if a value is. (The bits of floats without sign are ordered as the floats are, and
/// integers, unlike floats, may be compared in any order, so several at once.)
fn magnitude(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().fold(0i32, |most, value| most.max(value.abs().to_bits() as i32)) as u32)
}

fn check_count(have: usize, (rows, cols): (usize, usize)) -> Result<()> {
    if rows.checked_mul(cols) == Some(have) && have > 0 {
        return Ok(());
    }
    Err(Error::invalid(format!("a matrix of {rows} x {cols} weights was given {have} values")))
}

/// Whether `values` are a matrix of finite numbers.
pub(super) fn check_values(values: &[f32], (rows, cols): (usize, usize)) -> Result<()> {
    check_count(values.len(), (rows, cols))?;
    // One look without branches at all of them; only a bad matrix is searched.
    let finite = magnitude(values).is_finite();
    let bad = if finite { None } else { values.iter().position(|value| !value.is_finite()) };
    bad.map_or(Ok(()), |at| {
        let (row, col, value) = (at / cols, at % cols, values[at]);
        Err(Error::invalid(format!("weight [{row}, {col}] is {value}, which no integer can stand for")))
    })
}

fn check_block_size(size: usize, cols: usize) -> Result<()> {
    if size == 0 || !cols.is_multiple_of(size) {
        return Err(Error::invalid(format!("a block size of {size} does not divide {cols} inputs")));
    }
    Ok(())
}

fn check_grid(row: usize, grid: &Encoding) -> Result<()> {
    let Encoding { scale, zero_point, qmin, qmax } = *grid;
    let levels = i32::from(i16::MIN)..=i32::from(i16::MAX);
    if scale.is_finite() && scale > 0.0 && qmin < qmax && [zero_point, qmin, qmax].iter().all(|q| levels.contains(q)) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the scale of weight row {row} is {scale}, for integers from {qmin} to {qmax} around {zero_point}: a scale is a finite \
         number above 0, weights have 16 bits at most"
    )))
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

    #[test]
    fn parts_that_do_not_fit_are_named() {
        let grid = Encoding { scale: 0.5, zero_point: 0, qmin: -7, qmax: 7 };
        let blocks = |scale, multipliers: &[u8]| {
            let row = BlockScales { scale, multipliers: multipliers.to_vec() };
            WeightScales::Blocks { size: 2, rows: vec![row], qmin: -7, qmax: 7 }
        };
        let refuse = |shape, levels: &[i16], scales| {
            QuantizedWeight::from_parts(shape, levels.to_vec(), scales).unwrap_err().to_string()
        };
        let grids = |grid| WeightScales::Grids(vec![grid]);
        assert!(refuse((2, 2), &[0; 3], grids(grid)).contains("2 x 2 weights was given 3"));
        assert!(refuse((0, 2), &[], grids(grid)).contains("0 x 2"));
        assert!(
            refuse((3, 2), &[0; 6], WeightScales::Grids(vec![grid; 2])).contains("3 rows of weights have 2 scales")
        );
        assert!(refuse((1, 4), &[0, 7, 0, -8], grids(grid)).contains("weight [0, 3] is -8, outside -7 to 7"));
        for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(refuse((1, 1), &[0], grids(Encoding { scale, ..grid })).contains("the scale of weight row 0"));
            assert!(refuse((1, 4), &[0; 4], blocks(scale, &[1, 1])).contains("the scale of weight row 0"));
        }
        assert!(refuse((1, 1), &[0], grids(Encoding { qmax: 70_000, ..grid })).contains("16 bits at most"));
        assert!(refuse((1, 4), &[0; 4], blocks(1.0, &[1])).contains("row 0 has 1 block multipliers for 2 blocks"));
        assert!(refuse((1, 4), &[0; 4], blocks(1.0, &[16, 17])).contains("block 1 of row 0 has the multiplier 17"));
        assert!(refuse((1, 4), &[0; 4], blocks(1.0, &[0, 1])).contains("block 0 of row 0 has the multiplier 0"));
        assert!(refuse((1, 3), &[0; 3], blocks(1.0, &[1])).contains("does not divide 3"));
        assert!(refuse((2, 4), &[0; 8], blocks(1.0, &[1, 1])).contains("block scales for 1 rows"));
    }

    proptest! {
        #[test]
        fn a_matrix_is_the_same_after_it_was_taken_apart(
            values in prop::collection::vec(-2f32..2.0, 48), which in 0usize..6, blocks in 0usize..3,
        ) {
            let granularity = [WeightGranularity::PerTensor, WeightGranularity::PerChannel, WeightGranularity::PerBlock(4)];
            let weight = QuantizedWeight::nearest(&values, (4, 12), QuantDtype::ALL[which], granularity[blocks]).unwrap();
            let (levels, scales) = weight.clone().into_parts();
            prop_assert_eq!(QuantizedWeight::from_parts((4, 12), levels, scales).unwrap(), weight);
        }

        #[test]
        fn rounding_several_at_once_is_rounding_each(
            values in prop::collection::vec(-3f32..3.0, 24), scale in 1e-6f32..1.0, bits in 2u32..17, zero in -2i32..3,
        ) {
            let most = (1 << (bits - 1)) - 1;
            let grid = Encoding { scale, zero_point: zero.clamp(-most, most), qmin: -most, qmax: most };
            let mut levels = vec![0; 24];
            round(&values, grid, &mut levels);
            let each: Vec<i16> = values.iter().map(|&value| grid.quantize(value) as i16).collect();
            prop_assert_eq!(levels, each);
        }
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
