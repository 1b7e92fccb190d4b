//! The arithmetic of [`super::Op::QuantizeDequantize`], in one place for the interpreter and everything faster.

/// Adding and subtracting this rounds a number below 2²² to the nearest integer, ties to even, on every processor.
const ROUNDER: f32 = 12_582_912.0;

/// Equidistant values, each an integer less the zero point times the scale.
#[derive(Debug, Clone, Copy)]
pub struct Grid {
    scale: f32,
    inverse: f32,
    /// Smallest and largest integer, less the zero point.
    lowest: f32,
    highest: f32,
}

impl Grid {
    /// A grid of integers from `qmin` to `qmax`, 16 bits at most, `zero_point` of which means 0.
    pub fn new(scale: f32, zero_point: i32, qmin: i32, qmax: i32) -> Self {
        let distance = |level: i32| level.saturating_sub(zero_point) as f32;
        Self { scale, inverse: 1.0 / scale, lowest: distance(qmin), highest: distance(qmax) }
    }

    /// The value of the grid that is nearest to `x`: `clamp(round(x · (1 / scale)))` in single precision, ties to even,
    /// times the scale. NaN becomes the smallest value.
    #[inline(always)]
    pub fn round(&self, x: f32) -> f32 {
        // The bounds are integers, so clamping first gives the same and keeps the sum below 2²².
        let level = (x * self.inverse).max(self.lowest).min(self.highest);
        (level + ROUNDER - ROUNDER) * self.scale
    }

    /// Whether `x` lies more than half a step outside of what the grid covers.
    #[inline(always)]
    pub fn clips(&self, x: f32) -> bool {
        let level = x * self.inverse;
        level < self.lowest - 0.5 || level > self.highest + 0.5
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ties_go_to_even_and_far_values_to_the_ends() {
        let grid = Grid::new(0.5, 2, 0, 7);
        let rounded: Vec<f32> = [0.25, 0.75, -0.25, 9.0, -9.0, f32::INFINITY].iter().map(|&x| grid.round(x)).collect();
        assert_eq!(rounded, [0.0, 1.0, 0.0, 2.5, -1.0, 2.5]);
        assert_eq!(grid.round(f32::NAN), -1.0);
        assert!(grid.clips(2.8) && !grid.clips(2.7) && grid.clips(-1.3));
    }

    proptest! {
        #[test]
        fn it_is_the_textbook_formula(x in -300f32..300.0, scale in 0.001f32..2.0, zero in 0i32..65536) {
            let grid = Grid::new(scale, zero, 0, 65535);
            let level = ((x * (1.0 / scale)).round_ties_even() as i32 + zero).clamp(0, 65535);
            prop_assert_eq!(grid.round(x), (level - zero) as f32 * scale);
            prop_assert_eq!(grid.round(grid.round(x)), grid.round(x));
        }
    }
}
