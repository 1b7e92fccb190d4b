//! Sound at another sample rate.

use std::borrow::Cow;

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler, WindowFunction};

use crate::{Error, Result};

/// Samples that are transformed at a time, at least. The anti-aliasing filter is as long, so that it cuts off sharply.
const BLOCK: usize = 4096;

/// `samples` at `from` Hz as samples at `to` Hz: band-limited, delayed by nothing, `len * to / from` of them, rounded up.
///
/// # Errors
/// [`Error::Internal`] if the resampler refuses rates that were checked.
pub(super) fn resample(samples: &[f32], from: u32, to: u32) -> Result<Cow<'_, [f32]>> {
    if from == to {
        return Ok(Cow::Borrowed(samples));
    }
    let failed = |what: &dyn std::fmt::Display| Error::internal(format!("resampling {from} Hz to {to} Hz: {what}"));
    let mut resampler = Fft::<f32>::new_custom(
        from as usize,
        to as usize,
        block_of(from as usize, to as usize),
        1,
        1,
        WindowFunction::BlackmanHarris2,
        FixedSync::Input,
    )
    .map_err(|error| failed(&error))?;
    let input = InterleavedSlice::new(samples, 1, samples.len()).map_err(|error| failed(&error))?;
    let output = resampler.process_all(&input, samples.len(), None).map_err(|error| failed(&error))?;
    Ok(Cow::Owned(output.take_data()))
}

/// Samples of a transform: whole periods of both rates, and an even number of them, for the filter's middle is then a
/// sample and nothing is shifted by half of one.
fn block_of(from: usize, to: usize) -> usize {
    let (mut divisor, mut rest) = (from, to);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    let periods = 2 * from / divisor.max(1);
    periods * BLOCK.div_ceil(periods)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    fn tone(hertz: f64, rate: u32, samples: usize) -> Vec<f32> {
        (0..samples).map(|at| (TAU * hertz * at as f64 / f64::from(rate)).sin() as f32).collect()
    }

    /// Largest difference away from the ends, where the filter has no neighbours on one side. Rates without a common
    /// divisor have a filter of a second.
    fn difference(a: &[f32], b: &[f32], rate: u32) -> f32 {
        let edge = rate as usize / 2;
        let inner = edge..a.len().min(b.len()) - edge;
        inner.map(|at| (a[at] - b[at]).abs()).fold(0.0, f32::max)
    }

    #[test]
    fn a_tone_stays_that_tone_in_its_place() {
        for from in [8_000, 11_025, 22_050, 44_100, 48_000, 44_101] {
            let original = tone(440.0, from, 2 * from as usize);
            let resampled = resample(&original, from, 16_000).unwrap();
            assert_eq!(resampled.len(), 32_000, "{from}");
            let error = difference(&resampled, &tone(440.0, 16_000, 32_000), 16_000);
            assert!(error < 1e-3, "{from}: {error}");
        }
    }

    #[test]
    fn what_the_lower_rate_cannot_hold_is_gone() {
        let original = tone(11_000.0, 48_000, 2 * 48_000);
        let resampled = resample(&original, 48_000, 16_000).unwrap();
        assert!(difference(&resampled, &[0.0; 32_000], 16_000) < 1e-3);
    }

    #[test]
    fn one_sample_is_sound_too() {
        assert_eq!(resample(&[0.5], 8_000, 16_000).unwrap().len(), 2);
        assert_eq!(resample(&[0.5], 768_000, 16_000).unwrap().len(), 1);
    }
}
