//! From a weight matrix and what it is multiplied with to integers.

use super::dtype::{QuantDtype, WeightGranularity};
use super::gptq;
use super::metric::nearest_rows;
use super::moments::InputMoments;
use super::seq_mse::{self, SearchGranularity};
use super::weight::{QuantizedWeight, WeightScales};
use crate::engine::cpu::kernels::PANEL;
use crate::engine::cpu::pool::Pool;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// How the scales of weights are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleSearch {
    /// So that the largest weight is on the grid.
    #[default]
    MinMax,
    /// So that the outputs are off least, of some scales that clip the largest weights.
    SeqMse {
        /// Scales to try, at least 1. (A layer tries twice as many: coarse, then fine.)
        candidates: usize,
        /// What has a scale of its own.
        granularity: SearchGranularity,
    },
}

/// How weights become integers on a grid.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// Each the nearest one.
    #[default]
    Nearest,
    /// One after the other, the later ones so that they correct the errors of the earlier ones.
    Gptq {
        /// What is added to the square of each input, as a part of the mean square: from 0 to 1, usually 0.01.
        damping: f32,
    },
}

impl Rounding {
    /// Error feedback with the usual damping.
    pub const GPTQ: Self = Self::Gptq { damping: 0.01 };
}

/// How weights are quantized. The default needs no calibration data: min-max scales, nearest integers.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WeightOptions {
    /// How scales are chosen.
    pub scales: ScaleSearch,
    /// How weights are rounded on them.
    pub rounding: Rounding,
}

impl WeightOptions {
    /// Whether the moments of the inputs are needed.
    pub fn need_moments(&self) -> bool {
        *self != Self::default()
    }

    /// Check what can be checked without a matrix.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming an option outside its range.
    pub fn check(&self) -> Result<()> {
        if matches!(self.scales, ScaleSearch::SeqMse { candidates: 0, .. }) {
            return Err(Error::invalid("SeqMSE with 0 candidates has nothing to choose from: give it at least 1"));
        }
        match self.rounding {
            Rounding::Gptq { damping } if !(0.0..=1.0).contains(&damping) => {
                Err(Error::invalid(format!("the damping of GPTQ is {damping}: it goes from 0 to 1, 0.01 is usual")))
            }
            _ => Ok(()),
        }
    }
}

/// Quantize `values`, `[rows, cols]` (output channels, inputs) row-major.
///
/// Scales are fixed first, those of blocks snapped to their multipliers; then the weights are rounded on them. `moments` are
/// those of the matrix's inputs, best of the model as far as it is quantized already.
///
/// # Errors
/// [`Error::InvalidArgument`] as for [`QuantizedWeight::nearest`] and [`WeightOptions::check`]; if the options need moments and
/// there are none, or they are of other inputs or of none; if the inputs are so few or alike that feedback cannot be computed
/// with the damping asked for.
pub fn quantize_weight(
    values: &[f32],
    (rows, cols): (usize, usize),
    dtype: QuantDtype,
    granularity: WeightGranularity,
    options: &WeightOptions,
    moments: Option<&InputMoments>,
    pool: &Pool,
) -> Result<QuantizedWeight> {
    options.check()?;
    let scales = WeightScales::min_max(values, (rows, cols), dtype, granularity)?;
    let moments = || {
        let moments = moments.ok_or_else(|| {
            let what = "SeqMSE scales and GPTQ rounding need the moments of the inputs";
            Error::invalid(format!("{what}: calibrate, or take min-max scales and nearest integers"))
        })?;
        moments.check(cols).map(|()| moments)
    };
    let scales = match options.scales {
        ScaleSearch::MinMax => scales,
        ScaleSearch::SeqMse { candidates, granularity } => {
            seq_mse::search(values, cols, scales, granularity, candidates, moments()?, pool)
        }
    };
    let levels = match options.rounding {
        Rounding::Nearest => nearest(values, cols, &scales, pool),
        Rounding::Gptq { damping } => gptq::round(values, cols, &scales, damping, moments()?, pool)?,
    };
    Ok(QuantizedWeight::rounded((rows, cols), levels, scales))
}

/// Nearest integers of all rows.
fn nearest(values: &[f32], cols: usize, scales: &WeightScales, pool: &Pool) -> Vec<i16> {
    let mut levels = vec![0; values.len()];
    pool.for_each_chunk(&mut levels, PANEL * cols, &|panel, levels| {
        let first = panel * PANEL;
        let values = &values[first * cols..][..levels.len()];
        levels.copy_from_slice(&nearest_rows(first, values, cols, scales));
    });
    levels
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEARCH: ScaleSearch = ScaleSearch::SeqMse { candidates: 8, granularity: SearchGranularity::Block };

    fn refuse(options: &WeightOptions, moments: Option<&InputMoments>) -> String {
        let granularity = WeightGranularity::PerBlock(2);
        let (values, pool) = ([0.5, -1.0, 0.25, 2.0], Pool::new(1));
        quantize_weight(&values, (1, 4), QuantDtype::A16W4Block, granularity, options, moments, &pool)
            .expect_err("refused")
            .to_string()
    }

    #[test]
    fn what_needs_calibration_says_so() {
        assert!(!WeightOptions::default().need_moments());
        let plain = WeightOptions::default();
        for options in [WeightOptions { scales: SEARCH, ..plain }, WeightOptions { rounding: Rounding::GPTQ, ..plain }]
        {
            assert!(options.need_moments());
            assert!(refuse(&options, None).contains("calibrate"));
            assert!(refuse(&options, Some(&InputMoments::new(4).unwrap())).contains("none was seen"));
            assert!(refuse(&options, Some(&InputMoments::new(5).unwrap())).contains("weights of 4 inputs"));
        }
    }

    #[test]
    fn options_outside_their_range_are_named() {
        for damping in [-0.1, 1.5, f32::NAN] {
            let options = WeightOptions { rounding: Rounding::Gptq { damping }, ..WeightOptions::default() };
            assert!(refuse(&options, None).contains(&format!("the damping of GPTQ is {damping}")));
        }
        let scales = ScaleSearch::SeqMse { candidates: 0, granularity: SearchGranularity::Layer };
        assert!(refuse(&WeightOptions { scales, rounding: Rounding::Nearest }, None).contains("0 candidates"));
    }

    #[test]
    fn options_are_readable_as_json() {
        let options = WeightOptions { scales: SEARCH, rounding: Rounding::GPTQ };
        let json = serde_json::to_string(&options).unwrap();
        assert!(json.contains("seq_mse") && json.contains("gptq") && json.contains("block"), "{json}");
        assert_eq!(serde_json::from_str::<WeightOptions>(&json).unwrap(), options);
        assert_eq!(serde_json::from_str::<WeightOptions>("{}").unwrap(), WeightOptions::default());
    }

    proptest! {
        #[test]
        fn without_options_integers_are_the_nearest(
            values in prop::collection::vec(-2f32..2.0, 20 * 12), which in 0usize..6, blocks in 0usize..3,
        ) {
            let granularity = [WeightGranularity::PerTensor, WeightGranularity::PerChannel, WeightGranularity::PerBlock(4)];
            let (dtype, granularity) = (QuantDtype::ALL[which], granularity[blocks]);
            let options = WeightOptions::default();
            let found = quantize_weight(&values, (20, 12), dtype, granularity, &options, None, &Pool::new(2)).unwrap();
            prop_assert_eq!(found, QuantizedWeight::nearest(&values, (20, 12), dtype, granularity).unwrap());
        }
    }
}
