//! The handle of a piece of sound.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};

use super::super::hash::update_f32;
use super::wav;
use crate::{Error, Result};

/// Sample rates there are, in Hz: from telephones' lowest to studios' highest, with room on both sides.
pub(super) const SAMPLE_RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;

/// The most samples of one channel that are handled: more than an hour of speech at 16 kHz.
pub(super) const MAX_SAMPLES: usize = 1 << 26;

/// A piece of sound: samples of one channel, or a ready encoder tensor.
///
/// Cheap to clone (the content is shared) and `Send + Sync`. Two are equal if their content hashes are. `Debug` shows the
/// size only.
#[derive(Clone)]
pub struct Audio {
    content: Arc<Content>,
}

struct Content {
    kind: Kind,
    /// Computed when first asked for.
    hash: OnceLock<[u8; 32]>,
}

enum Kind {
    Samples { values: Vec<f32>, rate: u32 },
    Features(Vec<f32>),
}

impl Audio {
    /// Decodes a WAV file: PCM of 8, 16, 24 or 32 bits, or 32-bit floating point. Several channels become one, their
    /// average. Full scale is -1 to 1: an integer sample of `b` bits is divided by 2^(b-1).
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other encodings, [`Error::Format`] for a file that is empty, truncated or corrupt or
    /// holds a number that is not finite, [`Error::InvalidArgument`] for one of more than 256 MiB, more than 2^26 samples
    /// a channel or an impossible sample rate.
    pub fn decode(bytes: &[u8]) -> Result<Audio> {
        Audio::decode_named("audio", bytes)
    }

    /// [`decode`](Audio::decode) of a file; errors name its path.
    ///
    /// # Errors
    /// As `decode`, and [`Error::NotFound`] or [`Error::Io`] if the file cannot be read.
    pub fn open(path: &Path) -> Result<Audio> {
        Audio::decode_named(&path.display().to_string(), &wav::read_file(path)?)
    }

    fn decode_named(name: &str, bytes: &[u8]) -> Result<Audio> {
        let (values, rate) = wav::decode(name, bytes)?;
        Audio::from_samples(values, rate).map_err(|error| Error::invalid(format!("{name}: {error}")))
    }

    /// Samples of one channel at `sample_rate` Hz; full scale is -1 to 1.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no samples, a sample that is not finite, or a rate outside of 1,000 to 768,000 Hz.
    pub fn from_samples(samples: Vec<f32>, sample_rate: u32) -> Result<Audio> {
        if !SAMPLE_RATES.contains(&sample_rate) {
            let (least, most) = SAMPLE_RATES.into_inner();
            return Err(Error::invalid(format!("the sample rate is {sample_rate} Hz, not between {least} and {most}")));
        }
        check_values("samples", &samples)?;
        Ok(Audio::new(Kind::Samples { values: samples, rate: sample_rate }))
    }

    /// Features that are ready for the encoder, in the order of its input; preprocessing passes them on as they are.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no values or one that is not finite.
    pub fn from_features(values: Vec<f32>) -> Result<Audio> {
        check_values("features", &values)?;
        Ok(Audio::new(Kind::Features(values)))
    }

    fn new(kind: Kind) -> Audio {
        Audio { content: Arc::new(Content { kind, hash: OnceLock::new() }) }
    }

    /// The samples and their rate in Hz; `None` for features.
    pub fn samples(&self) -> Option<(&[f32], u32)> {
        match &self.content.kind {
            Kind::Samples { values, rate } => Some((values, *rate)),
            Kind::Features(_) => None,
        }
    }

    /// The values of ready features; `None` for samples.
    pub fn features(&self) -> Option<&[f32]> {
        match &self.content.kind {
            Kind::Samples { .. } => None,
            Kind::Features(values) => Some(values),
        }
    }

    /// Length in seconds; `None` for features.
    pub fn seconds(&self) -> Option<f64> {
        self.samples().map(|(samples, rate)| samples.len() as f64 / f64::from(rate))
    }

    /// SHA-256 over the kind, the rate and all values (little endian). Computed once.
    pub fn content_hash(&self) -> [u8; 32] {
        *self.content.hash.get_or_init(|| self.content.sha256())
    }
}

/// That there are values and that they are numbers.
fn check_values(what: &str, values: &[f32]) -> Result<()> {
    if values.is_empty() {
        return Err(Error::invalid(format!("there are no {what}: audio has at least one")));
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(Error::invalid(format!("number {at} of the {what} is {}: they must be finite", values[at]))),
        None => Ok(()),
    }
}

impl Content {
    fn sha256(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let values = match &self.kind {
            Kind::Samples { values, rate } => {
                hash.update(b"samples");
                hash.update(rate.to_le_bytes());
                values
            }
            Kind::Features(values) => {
                hash.update(b"features");
                values
            }
        };
        update_f32(&mut hash, values);
        hash.finalize().into()
    }
}

impl PartialEq for Audio {
    fn eq(&self, other: &Audio) -> bool {
        Arc::ptr_eq(&self.content, &other.content) || self.content_hash() == other.content_hash()
    }
}

impl Eq for Audio {}

impl fmt::Debug for Audio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.content.kind {
            Kind::Samples { values, rate } => write!(f, "Audio({} samples at {rate} Hz)", values.len()),
            Kind::Features(values) => write!(f, "Audio({} features)", values.len()),
        }
    }
}
