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
