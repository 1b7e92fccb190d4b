//! How often which values occur, in a form that can be joined exactly.
//!
//! A histogram with evenly spaced bins must be rescaled when a larger value comes, and what it then holds depends on the
//! order. Here a bin is a sign, an exponent and the first eight bits of the mantissa of a number, always the same bins: 256
//! between one power of two and the next, so that a value is known to 0.4 %. Counts add up in any order, so shards of a
//! calibration set can be joined.

use super::encoding::Encoding;
use super::range::ValueRange;
use serde::{Deserialize, Serialize};

/// Bits of the mantissa that tell bins apart.
const MANTISSA_BITS: u32 = 8;
/// Bins of one sign and exponent.
const BLOCK: usize = 1 << MANTISSA_BITS;
/// Signs and exponents.
const BLOCKS: usize = 1 << 9;

/// Counts of values, and their exact range.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    range: ValueRange,
    /// By sign and exponent; empty where no value has it.
    blocks: Vec<Vec<u64>>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { range: ValueRange::default(), blocks: vec![Vec::new(); BLOCKS] }
    }
}

impl Histogram {
    /// Count the finite values of a tensor.
    pub fn add(&mut self, values: &[f32]) {
        for &value in values.iter().filter(|value| value.is_finite()) {
            self.range = self.range.with(value);
            let bin = (value.to_bits() >> (23 - MANTISSA_BITS)) as usize;
            let block = &mut self.blocks[bin / BLOCK];
            if block.is_empty() {
                block.resize(BLOCK, 0);
            }
            block[bin % BLOCK] += 1;
        }
    }

    /// Count what another histogram counted.
    pub fn merge(&mut self, other: &Self) {
        self.range = self.range.union(other.range);
        for (mine, theirs) in self.blocks.iter_mut().zip(&other.blocks) {
            if mine.len() < theirs.len() {
                mine.resize(theirs.len(), 0);
            }
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        }
    }

    /// Smallest and largest value.
    pub fn range(&self) -> ValueRange {
        self.range
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.blocks.iter().flatten().sum()
    }

    /// Bins that hold anything, ascending: their middle, and their count.
    pub fn bins(&self) -> Vec<(f32, u64)> {
        let middle = |bin: usize| {
            let lowest = (bin as u32) << (23 - MANTISSA_BITS);
            f32::from_bits(lowest | 1 << (22 - MANTISSA_BITS)).clamp(self.range.min, self.range.max)
        };
        let mut bins = self.counts().map(|(bin, count)| (middle(bin), count)).collect::<Vec<_>>();
        bins.sort_by(|a, b| a.0.total_cmp(&b.0));
        bins
    }

    /// Bins that hold anything: their number and their count.
    fn counts(&self) -> impl Iterator<Item = (usize, u64)> {
        let all = self.blocks.iter().enumerate().flat_map(|(block, counts)| {
            counts.iter().enumerate().map(move |(bin, &count)| (block * BLOCK + bin, count))
        });
        all.filter(|(_, count)| *count > 0)
    }

    /// The range without the `1 - share` of values that are farthest out, half of them on each side. `share` is from 0 to 1.
    pub fn percentile(&self, share: f64) -> ValueRange {
        let bins = self.bins();
        let cut = (self.count() as f64 * (1.0 - share.clamp(0.0, 1.0)) / 2.0) as u64;
        if cut == 0 {
            return self.range;
        }
        let (low, high) = (first_inside(bins.iter(), cut), first_inside(bins.iter().rev(), cut));
        match (low, high) {
            (Some(low), Some(high)) if low <= high => ValueRange::new(low, high),
            _ => self.range,
        }
    }

    /// The range whose grid, as `encoding` makes it, errs least in the mean square: rounding errs more the wider the range,
    /// clipping the narrower. Both ends move inwards in turn, as long as that helps.
    pub fn least_error(&self, encoding: impl Fn(ValueRange) -> Encoding) -> ValueRange {
        let bins = self.bins();
        let (Some(first), Some(last)) = (bins.first(), bins.last()) else { return self.range };
        let error = |range: ValueRange| mean_square_error(&bins, &encoding(range));
        let (mut best, mut least) = (self.range, error(self.range));
        let mut low = bins.iter().map(|bin| bin.0).filter(|&value| value > first.0 && value < 0.0).peekable();
        let mut high = bins.iter().rev().map(|bin| bin.0).filter(|&value| value < last.0 && value > 0.0).peekable();
        // Beyond the first few worse ends there is nothing better: the clipped mass only grows.
        let (mut current, mut worse) = (best, 0);
        while worse < 32 {
            let candidates = [
                low.peek().map(|&value| ValueRange::new(value, current.max)),
                high.peek().map(|&value| ValueRange::new(current.min, value)),
            ];
            let better =
                candidates.iter().flatten().map(|&range| (error(range), range)).min_by(|a, b| a.0.total_cmp(&b.0));
            let Some((found, range)) = better else { break };
            if range.min == current.min {
                high.next()
            } else {
                low.next()
            };
            current = range;
            if found < least {
                (best, least, worse) = (range, found, 0);
            } else {
                worse += 1;
            }
        }
        best
    }
}

/// A histogram as it is written down.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// `None` before the first value.
    range: Option<ValueRange>,
    /// Bins that hold anything: their number and their count.
    bins: Vec<(u32, u64)>,
}

impl Serialize for Histogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bins = self.counts().map(|(bin, count)| (bin as u32, count)).collect();
        Written { range: (!self.range.is_empty()).then_some(self.range), bins }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let written = Written::deserialize(deserializer)?;
        let mut histogram = Histogram { range: written.range.unwrap_or_default(), ..Histogram::default() };
        for (bin, count) in written.bins {
            let (block, bin) = (bin as usize / BLOCK, bin as usize % BLOCK);
            let block = histogram.blocks.get_mut(block).ok_or_else(|| D::Error::custom("a bin that does not exist"))?;
            block.resize(BLOCK, 0);
            block[bin] = count;
        }
        Ok(histogram)
    }
}

/// The first value behind `cut` others.
fn first_inside<'a>(mut bins: impl Iterator<Item = &'a (f32, u64)>, cut: u64) -> Option<f32> {
    let mut left = cut;
    let inside = bins.find(|(_, count)| {
        let inside = *count > left;
        left = left.saturating_sub(*count);
        inside
    });
    inside.map(|(value, _)| *value)
}

/// Mean square of what quantizing changes. Inside of the grid's range that is what the distance of neighbours makes of evenly
/// spread values; 16-bit grids need no more bins than 8-bit ones then.
fn mean_square_error(bins: &[(f32, u64)], grid: &Encoding) -> f64 {
    let covered = grid.covered();
    let rounding = f64::from(grid.scale).powi(2) / 12.0;
    let mut sum = 0.0;
    for &(value, count) in bins {
        let outside = f64::from((covered.min - value).max(value - covered.max).max(0.0));
        sum += count as f64 * if outside > 0.0 { outside * outside } else { rounding };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::QuantDtype;
    use proptest::prelude::*;

    fn histogram(values: &[f32]) -> Histogram {
        let mut histogram = Histogram::default();
        histogram.add(values);
        histogram
    }

    /// Values of a bell curve, the same ones every time.
    fn bell(count: usize) -> Vec<f32> {
        let mut state = 1u64;
        let mut unit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        (0..count).map(|_| (0..12).map(|_| unit()).sum::<f32>() - 6.0).collect()
    }

    #[test]
    fn bins_are_close_to_their_values_and_complete() {
        let values = [-3.5, -0.001, 0.0, 0.25, 7.0, f32::NAN];
        let found = histogram(&values);
        assert_eq!((found.count(), found.range()), (5, ValueRange::new(-3.5, 7.0)));
        for ((middle, count), value) in found.bins().into_iter().zip(values) {
            assert!(count == 1 && (middle - value).abs() <= value.abs() * 0.004 + 1e-30, "{middle} {value}");
        }
    }

    #[test]
    fn percentiles_leave_out_both_tails() {
        let values: Vec<f32> = (1..=1000).map(|i| i as f32 - 500.0).collect();
        let range = histogram(&values).percentile(0.9);
        assert!((range.min + 449.0).abs() < 4.0 && (range.max - 450.0).abs() < 4.0, "{range:?}");
        assert_eq!(histogram(&values).percentile(1.0), ValueRange::new(-499.0, 500.0));
        assert!(Histogram::default().percentile(0.5).is_empty());
    }

    #[test]
    fn eight_bits_clip_an_outlier_and_sixteen_do_not() {
        let mut values = bell(1_000_000);
        values.push(60.0);
        let found = histogram(&values);
        let narrow = found.least_error(|range| QuantDtype::A8W8.activation_encoding(range));
        assert!(narrow.max < 40.0 && narrow.max > 3.0, "{narrow:?}");
        let wide = found.least_error(|range| QuantDtype::A16W8.activation_encoding(range));
        assert!(wide.max > 50.0, "{wide:?}");
        let error = |range| mean_square_error(&found.bins(), &QuantDtype::A8W8.activation_encoding(range));
        assert!(error(narrow) < error(found.range()));
    }

    proptest! {
        #[test]
        fn shards_join_to_the_whole(values in prop::collection::vec(-1e3f32..1e3, 0..200), cut in 0usize..200) {
            let (a, b) = values.split_at(cut.min(values.len()));
            let (mut joined, other) = (histogram(b), histogram(a));
            joined.merge(&other);
            let whole = histogram(&values);
            prop_assert_eq!(joined.bins(), whole.bins());
            prop_assert_eq!(joined.range(), whole.range());
        }
    }
}
