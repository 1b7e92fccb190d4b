//! What an integer means: `real = (q - zero_point) · scale`.

use super::range::ValueRange;
use serde::{Deserialize, Serialize};

/// A grid of equidistant values, and the integers that stand for them.
///
/// The formulas are those of PyTorch's observers in single precision, which upstream's exporter uses, so that the same ranges
/// give the same grids.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Encoding {
    /// Distance of two neighbours, above 0.
    pub scale: f32,
    /// The integer that means 0, from `qmin` to `qmax` (0 may lie outside for symmetric grids of signed integers).
    pub zero_point: i32,
    /// Smallest integer.
    pub qmin: i32,
    /// Largest integer.
    pub qmax: i32,
}

impl Encoding {
    /// A grid over `range` and 0: `scale = max((hi - lo) / (qmax - qmin), eps)`,
    /// `zero_point = clamp(qmin - round(lo / scale))`.
    pub fn affine(range: ValueRange, qmin: i32, qmax: i32, eps: f32) -> Self {
        if range.is_empty() {
            return Self::identity(qmin, qmax);
        }
        let (lo, hi) = (range.min.min(0.0), range.max.max(0.0));
        let scale = ((hi - lo) / (qmax - qmin) as f32).max(eps);
        let zero_point = (qmin - (lo / scale).round_ties_even() as i32).clamp(qmin, qmax);
        Self { scale, zero_point, qmin, qmax }
    }

    /// A grid with 0 in its middle, of signed integers: `scale = max(max|x| / ((qmax - qmin) / 2), eps)`.
    pub fn symmetric(range: ValueRange, qmin: i32, qmax: i32, eps: f32) -> Self {
        if range.is_empty() {
            return Self { zero_point: 0, ..Self::identity(qmin, qmax) };
        }
        let half = (qmax - qmin) as f32 / 2.0;
        Self { scale: (range.magnitude() / half).max(eps), zero_point: 0, qmin, qmax }
    }

    /// A grid with 0 in its middle, of unsigned bytes: `scale = max(max|x| / 127.5, eps)`, 128 means 0.
    pub fn symmetric_u8(range: ValueRange, eps: f32) -> Self {
        let scale = if range.is_empty() { 1.0 } else { (range.magnitude() / 127.5).max(eps) };
        Self { scale, zero_point: 128, qmin: 0, qmax: 255 }
    }

    /// What a tensor without a single value gets.
    fn identity(qmin: i32, qmax: i32) -> Self {
        Self { scale: 1.0, zero_point: 0i32.clamp(qmin, qmax), qmin, qmax }
    }

    /// The integer nearest to a value, ties to even: `clamp(round(x · (1 / scale)) + zero_point)`. NaN becomes the zero point.
    pub fn quantize(&self, value: f32) -> i32 {
        let level = (value * (1.0 / self.scale)).round_ties_even();
        // Far outside the saturating cast does what the clamp would do.
        (level as i32).saturating_add(self.zero_point).clamp(self.qmin, self.qmax)
    }

    /// The value of an integer.
    pub fn dequantize(&self, level: i32) -> f32 {
        (level - self.zero_point) as f32 * self.scale
    }

    /// The value of the grid that is nearest to `value`.
    pub fn round(&self, value: f32) -> f32 {
        self.dequantize(self.quantize(value))
    }

    /// The values that the grid covers.
    pub fn covered(&self) -> ValueRange {
        ValueRange::new(self.dequantize(self.qmin), self.dequantize(self.qmax))
    }

    /// Number of distances from the smallest to the largest integer.
    pub fn steps(&self) -> i32 {
        self.qmax - self.qmin
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EPS_8: f32 = 1e-4 / 255.0;
    const EPS_16: f32 = 1e-4 / 65535.0;

    fn near(found: f32, expected: f32) -> bool {
        ((found - expected) / expected).abs() < 5e-6
    }

    /// Appendix A of the pipeline contract.
    #[test]
    fn vectors_of_the_contract() {
        let range = ValueRange::new(-1.0, 3.0);
        let u16 = Encoding::affine(range, 0, 65535, EPS_16);
        assert!(near(u16.scale, 6.103_61e-5) && u16.zero_point == 16384, "{u16:?}");
        let u8 = Encoding::affine(range, 0, 255, EPS_8);
        assert!(near(u8.scale, 0.015_686_3) && u8.zero_point == 64, "{u8:?}");
        let positive = Encoding::affine(ValueRange::new(0.5, 2.0), 0, 65535, EPS_16);
        assert!(near(positive.scale, 3.051_80e-5) && positive.zero_point == 0, "{positive:?}");
        let mask = Encoding::affine(ValueRange::new(-255.0, 0.0), 0, 65535, EPS_16);
        assert!(near(mask.scale, 0.003_891_05) && mask.zero_point == 65535, "{mask:?}");
        assert_eq!((mask.quantize(-255.0), mask.quantize(0.0)), (0, 65535));
        let two = ValueRange::new(-2.0, 1.0);
        let unsigned = Encoding::symmetric_u8(two, EPS_8);
        assert!(near(unsigned.scale, 0.015_686_3) && unsigned.zero_point == 128);
        assert!(near(Encoding::symmetric(two, -127, 127, EPS_8).scale, 0.015_748));
        assert!(near(Encoding::symmetric(two, -7, 7, EPS_16).scale, 0.285_714));
        assert!(near(Encoding::symmetric(ValueRange::new(-1.5, 0.0), -2, 1, EPS_16).scale, 1.0));
    }

    #[test]
    fn tensors_without_values_or_width_have_a_grid_all_the_same() {
        assert_eq!(Encoding::affine(ValueRange::default(), 0, 255, EPS_8).scale, 1.0);
        assert_eq!(Encoding::symmetric(ValueRange::default(), -127, 127, EPS_8).zero_point, 0);
        let flat = Encoding::affine(ValueRange::new(0.0, 0.0), 0, 65535, EPS_16);
        assert_eq!((flat.scale, flat.zero_point, flat.round(0.0)), (EPS_16, 0, 0.0));
    }

    #[test]
    fn odd_values_stay_on_the_grid() {
        let grid = Encoding::affine(ValueRange::new(-1.0, 3.0), 0, 255, EPS_8);
        assert_eq!((grid.quantize(f32::INFINITY), grid.quantize(f32::NEG_INFINITY)), (255, 0));
        assert_eq!(grid.quantize(f32::NAN), grid.zero_point);
        assert_eq!((grid.quantize(1e30), grid.quantize(-1e30)), (255, 0));
    }

    proptest! {
        #[test]
        fn rounding_errs_by_half_a_step_at_most(min in -100f32..0.0, max in 0.01f32..100.0, at in 0f32..1.0) {
            for (qmin, qmax) in [(0, 255), (0, 65535)] {
                let grid = Encoding::affine(ValueRange::new(min, max), qmin, qmax, EPS_16);
                let value = min + (max - min) * at;
                prop_assert!((grid.round(value) - value).abs() <= grid.scale * 1.001);
                prop_assert_eq!(grid.round(0.0), 0.0, "0 is on every grid");
            }
            let grid = Encoding::symmetric(ValueRange::new(min, max), -127, 127, EPS_8);
            let value = min + (max - min) * at;
            prop_assert!((grid.round(value) - value).abs() <= grid.scale * 0.5001);
        }

        #[test]
        fn a_value_of_the_grid_is_its_own_integer(min in -100f32..0.0, max in 0.01f32..100.0, level in 0i32..65536) {
            let grid = Encoding::affine(ValueRange::new(min, max), 0, 65535, EPS_16);
            prop_assert_eq!(grid.quantize(grid.dequantize(level)), level);
        }
    }
}
