//! Rotary position embedding: frequencies and the tables of cosines and sines that graphs index by position.

use crate::registry::{RopeScaling, RopeSpec};
use std::f64::consts::TAU;

/// Inverse frequencies of one RoPE, scaled; rows of the tables are computed from them on demand.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Radians a position, one for each rotated pair.
    inverse_frequencies: Vec<f64>,
    /// Multiplies cosines and sines.
    attention_factor: f64,
}

/// Which of the two tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePart {
    /// Cosines.
    Cos,
    /// Sines.
    Sin,
}

impl RopeTable {
    /// The table of `spec` for a graph compiled for `max_context` positions.
    ///
    /// LongRoPE has two sets of frequencies. Which one a token gets must not change while its keys are cached, so the
    /// choice is made here, once: the long one if the graph can leave the original context.
    pub fn new(spec: &RopeSpec, max_context: usize) -> Self {
        let dim = spec.rotary_dim;
        let base = (0..dim / 2).map(|i| spec.theta.powf(-2.0 * i as f64 / dim as f64));
        let divided_by = |divisors: &[f64]| base.clone().zip(divisors).map(|(f, d)| f / d).collect();
        let inverse_frequencies: Vec<f64> = match &spec.scaling {
            RopeScaling::None => base.collect(),
            RopeScaling::Linear { factor } => base.map(|f| f / factor).collect(),
            RopeScaling::FreqFactors { factors } => divided_by(factors),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let bands = Llama3Bands {
                    factor: *factor,
                    low: *low_freq_factor,
                    high: *high_freq_factor,
                    original_context: *original_context as f64,
                };
                base.map(|f| bands.scale(f)).collect()
            }
            RopeScaling::LongRope { short_factor, long_factor, original_context, .. } => {
                divided_by(if max_context > *original_context { long_factor } else { short_factor })
            }
        };
        let attention_factor = match spec.scaling {
            RopeScaling::LongRope { attention_factor, .. } => attention_factor,
            _ => 1.0,
        };
        Self { inverse_frequencies, attention_factor }
    }

    /// Radians a position, one for each rotated pair.
    pub fn inverse_frequencies(&self) -> &[f64] {
        &self.inverse_frequencies
    }

    /// Row `position` of a table: one value for each rotated pair. Angles are computed in f64, since `position ·
    /// frequency` in f32 would already be off by 1e-3 radians at position 16,000.
    pub fn row(&self, part: RopePart, position: usize) -> impl Iterator<Item = f32> + '_ {
        self.inverse_frequencies.iter().map(move |frequency| {
            let angle = position as f64 * frequency;
            let value = match part {
                RopePart::Cos => angle.cos(),
                RopePart::Sin => angle.sin(),
            };
            (value * self.attention_factor) as f32
        })
    }
}

/// Llama 3 scaling: short wavelengths stay, long ones are stretched by `factor`, those between are blended.
struct Llama3Bands {
    factor: f64,
    low: f64,
    high: f64,
    original_context: f64,
}

impl Llama3Bands {
    fn scale(&self, frequency: f64) -> f64 {
        let wavelength = TAU / frequency;
        if wavelength < self.original_context / self.high {
            return frequency;
        }
        if wavelength > self.original_context / self.low {
            return frequency / self.factor;
        }
        let kept = (self.original_context / wavelength - self.low) / (self.high - self.low);
        (1.0 - kept) * frequency / self.factor + kept * frequency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(theta: f64, rotary_dim: usize, scaling: RopeScaling) -> RopeSpec {
        RopeSpec { theta, rotary_dim, interleaved: false, scaling }
    }

    fn assert_close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 5e-6, "{found} is not {expected}");
    }

    #[test]
    fn llama3_scaling_matches_the_published_vectors() {
        let scaling =
            RopeScaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192 };
        let plain = RopeTable::new(&spec(5e5, 64, RopeScaling::None), 8);
        let scaled = RopeTable::new(&spec(5e5, 64, scaling), 8);
        let expected = [
            (14, 0.00321145, 0.00321145),
            (15, 0.00213112, 0.00129055),
            (16, 0.00141421, 0.000429557),
            (17, 0.000938474, 9.70829e-05),
            (18, 0.000622772, 1.94616e-05),
        ];
        for (i, before, after) in expected {
            assert_close(plain.inverse_frequencies()[i], before);
            assert_close(scaled.inverse_frequencies()[i], after);
        }
    }

    /// Gemma 4 rotates a quarter of each head of 512 in its full layers, by the first frequencies of the whole head.
    #[test]
    fn frequencies_of_a_wide_head_match_the_published_vectors() {
        let table = RopeTable::new(&spec(1e6, 512, RopeScaling::None), 8);
        for (i, expected) in [(0, 1.0), (1, 0.947464), (63, 0.0333762)] {
            assert_close(table.inverse_frequencies()[i], expected);
        }
    }

    #[test]
    fn rows_are_cosines_and_sines_of_the_angle() {
        let table = RopeTable::new(&spec(1e4, 4, RopeScaling::Linear { factor: 2.0 }), 8);
        let cos: Vec<f32> = table.row(RopePart::Cos, 3).collect();
        let sin: Vec<f32> = table.row(RopePart::Sin, 3).collect();
        assert_eq!(cos, [1.5f64.cos() as f32, 0.015f64.cos() as f32]);
        assert_eq!(sin, [1.5f64.sin() as f32, 0.015f64.sin() as f32]);
    }

    #[test]
    fn divisors_from_gguf_divide_the_frequencies() {
        let table = RopeTable::new(&spec(1e4, 4, RopeScaling::FreqFactors { factors: vec![1.0, 4.0] }), 8);
        assert_eq!(table.inverse_frequencies(), [1.0, 0.0025]);
    }

    #[test]
    fn longrope_goes_by_the_compiled_context() {
        let scaling = RopeScaling::LongRope {
            short_factor: vec![1.0, 2.0],
            long_factor: vec![4.0, 8.0],
            original_context: 32,
            attention_factor: 1.25,
        };
        let spec = spec(1e4, 4, scaling);
        assert_eq!(RopeTable::new(&spec, 32).inverse_frequencies(), [1.0, 0.005]);
        assert_eq!(RopeTable::new(&spec, 33).inverse_frequencies(), [0.25, 0.00125]);
        assert_eq!(RopeTable::new(&spec, 32).row(RopePart::Cos, 0).collect::<Vec<_>>(), [1.25, 1.25]);
    }
}
