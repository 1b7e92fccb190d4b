//! From sound to the tensor an encoder takes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::config;
use super::mel::{MelSettings, mel_power};
use super::resample::resample;
use super::source::{Audio, MAX_SAMPLES};
use crate::{Error, Result};

/// Frames that are stacked to one of the encoder's.
const STACKED: usize = 2;
/// The quietest power there is.
const POWER_FLOOR: f64 = 1e-10;
/// How far below the loudest moment sound is heard, in powers of ten.
const DYNAMIC_RANGE: f64 = 8.0;

/// What an audio encoder takes.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureTensor {
    /// `[frames, width]`, row-major.
    pub values: Vec<f32>,
    /// Frames, each two of the spectrogram.
    pub frames: usize,
    /// Numbers of a frame.
    pub width: usize,
}

/// Granite-speech's preprocessing as data: read from a checkpoint.
///
/// Samples at the model's rate, zeros after them up to the encoder's length; a mel spectrogram; logarithm, cut off 8 powers
/// of ten below the loudest band, `/ 4 + 1`; two frames side by side are one of the encoder's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "MelSettings", into = "MelSettings")]
pub struct AudioProcessor {
    settings: MelSettings,
}

impl TryFrom<MelSettings> for AudioProcessor {
    type Error = Error;

    fn try_from(settings: MelSettings) -> Result<Self> {
        settings.check()?;
        Ok(AudioProcessor { settings })
    }
}

impl From<AudioProcessor> for MelSettings {
    fn from(processor: AudioProcessor) -> MelSettings {
        processor.settings
    }
}

impl AudioProcessor {
    /// Reads a checkpoint's settings: `preprocessor` is `preprocessor_config.json`, `processor` is
    /// `processor_config.json`, whose `audio_processor` or `feature_extractor`, if there is one, counts instead. A setting
    /// that is missing has the value Granite-speech was published with: 16 kHz, `n_fft` 512, `win_length` 400,
    /// `hop_length` 160, `n_mels` 80.
    ///
    /// # Errors
    /// [`Error::Format`] naming the file and the setting: of the wrong type, or something this library does not do.
    /// [`Error::InvalidArgument`] for a value out of range.
    pub fn from_config(
        preprocessor: Option<&Map<String, Value>>,
        processor: Option<&Map<String, Value>>,
    ) -> Result<Self> {
        config::read(preprocessor, processor)?.try_into()
    }

    /// Samples a second that the features are made of; other sound is resampled.
    pub fn sample_rate(&self) -> u32 {
        self.settings.sample_rate
    }

    /// Numbers of one of the encoder's frames.
    pub fn width(&self) -> usize {
        STACKED * self.settings.n_mels
    }

    /// The most samples, at [`sample_rate`](Self::sample_rate), that `frames` of the encoder's frames hold.
    pub fn samples_of(&self, frames: usize) -> usize {
        (frames.saturating_mul(STACKED).saturating_sub(1)).saturating_mul(self.settings.hop_length)
    }

    /// That `audio` fits an encoder of `frames` frames. Touches no samples.
    ///
    /// # Errors
    /// As [`process`](Self::process).
    pub fn check(&self, audio: &Audio, frames: usize) -> Result<()> {
        let (width, most) = (self.width(), self.samples_of(frames));
        let Some((samples, rate)) = audio.samples() else {
            let have = audio.features().map_or(0, <[f32]>::len);
            return match frames.checked_mul(width) == Some(have) {
                true => Ok(()),
                false => {
                    Err(Error::invalid(format!("{have} audio features, but the encoder takes {frames} x {width}")))
                }
            };
        };
        if most > MAX_SAMPLES {
            return Err(Error::Unsupported(format!(
                "an encoder of {frames} frames takes {most} samples, more than the {MAX_SAMPLES} that are supported"
            )));
        }
        let rate_in_model = f64::from(self.sample_rate());
        let seconds = samples.len() as f64 / f64::from(rate);
        if seconds * rate_in_model > most as f64 {
            let longest = most as f64 / rate_in_model;
            return Err(Error::invalid(format!(
                "the audio is {seconds:.2} seconds long, this model takes at most {longest:.2}: cut it"
            )));
        }
        Ok(())
    }

    /// Features of exactly `frames` frames.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for sound that is longer than the encoder takes (both lengths, in seconds), ready
    /// features of another size (both numbers), or frames so few that there is no spectrum; [`Error::Unsupported`] for
    /// frames of more than an hour of speech.
    pub fn process(&self, audio: &Audio, frames: usize) -> Result<FeatureTensor> {
        self.check(audio, frames)?;
        let values = match (audio.samples(), audio.features()) {
            (Some((samples, rate)), _) => self.features(samples, rate, frames)?,
            (None, features) => features.unwrap_or_default().to_vec(),
        };
        Ok(FeatureTensor { values, frames, width: self.width() })
    }

    /// Hash of everything that changes the features of a piece of sound.
    pub fn options_hash(&self) -> [u8; 32] {
        Sha256::digest(json!(self.settings).to_string()).into()
    }

    fn features(&self, samples: &[f32], rate: u32, frames: usize) -> Result<Vec<f32>> {
        let mut samples = resample(samples, rate, self.sample_rate())?.into_owned();
        // Zeros up to the encoder's length. A resampled end may be a part of a sample longer.
        samples.resize(self.samples_of(frames), 0.0);
        let mut mels = mel_power(&samples, &self.settings)?;
        log_scale(&mut mels);
        // A frame without a partner is left out.
        Ok(mels.iter().take(frames.saturating_mul(self.width())).map(|&value| value as f32).collect())
    }
}

/// Power to the logarithm the encoder was trained on.
fn log_scale(powers: &mut [f64]) {
    powers.iter_mut().for_each(|power| *power = power.max(POWER_FLOOR).log10());
    let loudest = powers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    powers.iter_mut().for_each(|level| *level = level.max(loudest - DYNAMIC_RANGE) / 4.0 + 1.0);
}
