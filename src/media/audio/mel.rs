//! Mel spectrograms as torchaudio's `MelSpectrogram` makes them by default: centred frames with reflected ends, periodic
//! Hann window, power spectrum, triangles of the HTK mel scale without normalization.

use std::f64::consts::PI;

use realfft::RealFftPlanner;
use realfft::num_complex::Complex;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The numbers of a spectrogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MelSettings {
    /// Hz.
    pub sample_rate: u32,
    /// Samples of a transform.
    pub n_fft: usize,
    /// Samples under the window, in the middle of those of a transform.
    pub win_length: usize,
    /// Samples from a frame to the next.
    pub hop_length: usize,
    /// Bands.
    pub n_mels: usize,
}

/// Largest transform and number of bands: far beyond those of any published model.
const MAX_FFT: usize = 1 << 16;
const MAX_MELS: usize = 1 << 10;

impl MelSettings {
    /// Settings may come from a file: all of them are checked.
    pub fn check(&self) -> Result<()> {
        let out_of_range = |name: &str, value: usize, least: usize, most: usize| {
            Error::invalid(format!("{name} is {value}, it must be between {least} and {most}"))
        };
        for (name, value, most) in [
            ("n_fft", self.n_fft, MAX_FFT),
            ("win_length", self.win_length, self.n_fft),
            ("hop_length", self.hop_length, self.n_fft),
            ("n_mels", self.n_mels, MAX_MELS),
        ] {
            if !(1..=most).contains(&value) {
                return Err(out_of_range(name, value, 1, most));
            }
        }
        let rates = super::source::SAMPLE_RATES;
        if !rates.contains(&self.sample_rate) {
            let (least, most) = (*rates.start() as usize, *rates.end() as usize);
            return Err(out_of_range("sampling_rate", self.sample_rate as usize, least, most));
        }
        Ok(())
    }

    /// Frequencies of a power spectrum.
    fn bins(&self) -> usize {
        self.n_fft / 2 + 1
    }

    /// Frames of `samples` samples.
    pub fn frames(&self, samples: usize) -> usize {
        1 + samples / self.hop_length
    }
}

/// Power in mel bands, `[frames, n_mels]` row-major.
///
/// # Errors
/// [`Error::InvalidArgument`] for samples too few to be reflected at the ends: there must be more than half a transform.
pub(super) fn mel_power(samples: &[f32], settings: &MelSettings) -> Result<Vec<f64>> {
    let reach = settings.n_fft / 2;
    if samples.len() <= reach {
        let have = samples.len();
        return Err(Error::invalid(format!("{have} samples are too short for a spectrum: it needs more than {reach}")));
    }
    let filters = filter_bank(settings);
    let window = hann_window(settings);
    let transform = RealFftPlanner::<f64>::new().plan_fft_forward(settings.n_fft);
    let (mut frame, mut spectrum) = (transform.make_input_vec(), transform.make_output_vec());
    let mut scratch = transform.make_scratch_vec();
    let frames = settings.frames(samples.len());
    let mut mels = Vec::with_capacity(frames * settings.n_mels);
    for number in 0..frames {
        let first = (number * settings.hop_length) as isize - reach as isize;
        for (at, (value, weight)) in frame.iter_mut().zip(&window).enumerate() {
            *value = f64::from(reflected(samples, first + at as isize)) * weight;
        }
        transform
            .process_with_scratch(&mut frame, &mut spectrum, &mut scratch)
            .map_err(|error| Error::internal(format!("a transform of {} samples: {error}", settings.n_fft)))?;
        mels.extend(filters.iter().map(|filter| filter.power(&spectrum)));
    }
    Ok(mels)
}

/// The sample at `at`; beyond the ends the signal goes back, without repeating the outermost sample.
fn reflected(samples: &[f32], at: isize) -> f32 {
    let last = samples.len() as isize - 1;
    let at = at.abs();
    let at = if at > last { 2 * last - at } else { at };
    usize::try_from(at).ok().and_then(|at| samples.get(at)).copied().unwrap_or_default()
}

/// A periodic Hann window of `win_length`, zeros around it.
fn hann_window(settings: &MelSettings) -> Vec<f64> {
    let mut window = vec![0.0; settings.n_fft];
    let start = (settings.n_fft - settings.win_length) / 2;
    for (at, weight) in window[start..start + settings.win_length].iter_mut().enumerate() {
        *weight = 0.5 - 0.5 * (2.0 * PI * at as f64 / settings.win_length as f64).cos();
    }
    window
}

/// A triangle over the frequencies of a spectrum: where it begins, and its weights.
struct Filter {
    first: usize,
    weights: Vec<f64>,
}

impl Filter {
    fn power(&self, spectrum: &[Complex<f64>]) -> f64 {
        spectrum.iter().skip(self.first).zip(&self.weights).map(|(value, weight)| value.norm_sqr() * weight).sum()
    }
}

/// Triangles whose corners are equally far apart on the HTK mel scale, 2595 log10(1 + f / 700), from 0 to half the sample
/// rate. Each rises from one corner to 1 at the next and falls to the one after.
fn filter_bank(settings: &MelSettings) -> Vec<Filter> {
    let nyquist = f64::from(settings.sample_rate / 2);
    let highest_mel = 2595.0 * (1.0 + nyquist / 700.0).log10();
    let corner = |number: usize| {
        let mel = highest_mel * number as f64 / (settings.n_mels + 1) as f64;
        700.0 * (10f64.powf(mel / 2595.0) - 1.0)
    };
    let frequency = |bin: usize| nyquist * bin as f64 / (settings.bins() - 1).max(1) as f64;
    let triangle = |band: usize| {
        let (low, middle, high) = (corner(band), corner(band + 1), corner(band + 2));
        let weight = |bin: usize| {
            let (rising, falling) =
                ((frequency(bin) - low) / (middle - low), (high - frequency(bin)) / (high - middle));
            rising.min(falling).max(0.0)
        };
        let first = (0..settings.bins()).find(|&bin| weight(bin) > 0.0).unwrap_or_default();
        let weights = (first..settings.bins()).map(weight).take_while(|&weight| weight > 0.0).collect();
        Filter { first, weights }
    };
    (0..settings.n_mels).map(triangle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANITE: MelSettings =
        MelSettings { sample_rate: 16_000, n_fft: 512, win_length: 400, hop_length: 160, n_mels: 80 };

    #[test]
    fn ends_are_reflected_without_the_outermost_sample() {
        let samples = [0.0, 1.0, 2.0, 3.0];
        let seen: Vec<f32> = (-3..7).map(|at| reflected(&samples, at)).collect();
        assert_eq!(seen, [3.0, 2.0, 1.0, 0.0, 1.0, 2.0, 3.0, 2.0, 1.0, 0.0]);
    }

    #[test]
    fn a_tone_is_loudest_in_its_own_band() {
        let samples: Vec<f32> =
            (0..16_000).map(|at| (2.0 * PI * 1_000.0 * at as f64 / 16_000.0).sin() as f32).collect();
        let mels = mel_power(&samples, &GRANITE).unwrap();
        assert_eq!(mels.len(), 101 * 80);
        let frame = &mels[50 * 80..51 * 80];
        let loudest = (0..80).max_by(|&a, &b| frame[a].total_cmp(&frame[b])).unwrap();
        // 1 kHz is mel 1000 of 2840; corners are 2840 / 81 apart.
        assert!((27..=28).contains(&loudest), "{loudest}");
    }

    #[test]
    fn filters_that_meet_no_frequency_are_silent_and_settings_have_bounds() {
        let fine = MelSettings { n_fft: 16, win_length: 16, hop_length: 8, ..GRANITE };
        assert_eq!(mel_power(&[1.0; 32], &fine).unwrap().len(), 5 * 80);
        assert!(mel_power(&[1.0; 8], &fine).unwrap_err().to_string().contains("8 samples are too short"));
        let one_sample = MelSettings { n_fft: 1, win_length: 1, hop_length: 1, n_mels: 1, ..GRANITE };
        assert_eq!(mel_power(&[1.0], &one_sample).unwrap().len(), 2);
        for wrong in [
            MelSettings { n_fft: 0, ..GRANITE },
            MelSettings { n_fft: usize::MAX, ..GRANITE },
            MelSettings { win_length: 513, ..GRANITE },
            MelSettings { hop_length: 0, ..GRANITE },
            MelSettings { n_mels: 0, ..GRANITE },
            MelSettings { sample_rate: 0, ..GRANITE },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
        GRANITE.check().unwrap();
    }
}
