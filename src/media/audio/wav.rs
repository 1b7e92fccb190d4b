//! WAV files to samples of one channel.

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

use hound::{SampleFormat, WavReader, WavSpec};

use super::source::{MAX_SAMPLES, SAMPLE_RATES};
use crate::{Error, Result};

/// The most bytes an encoded file may have.
const MAX_BYTES: u64 = 256 << 20;

/// The bytes of a file, at most [`MAX_BYTES`].
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| Error::io(path, error))?;
    check_bytes(&name, file.metadata().map_err(|error| Error::io(path, error))?.len())?;
    // A pipe or device has no length to check beforehand.
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| Error::io(path, error))?;
    check_bytes(&name, bytes.len() as u64)?;
    Ok(bytes)
}

fn check_bytes(name: &str, bytes: u64) -> Result<()> {
    if bytes > MAX_BYTES {
        return Err(Error::invalid(format!("{name}: {bytes} bytes, but a sound file may have at most {MAX_BYTES}")));
    }
    Ok(())
}

/// Decodes a WAV file to the average of its channels, and its sample rate. `name` is what errors call it.
pub(super) fn decode(name: &str, bytes: &[u8]) -> Result<(Vec<f32>, u32)> {
    check_bytes(name, bytes.len() as u64)?;
    if bytes.is_empty() {
        return Err(Error::format(name, "length", "0 bytes: a WAV file was expected"));
    }
    if !bytes.starts_with(b"RIFF") {
        let found = &bytes[..bytes.len().min(8)];
        return Err(Error::Unsupported(format!("{name}: unknown sound format (bytes {found:02x?}): use WAV")));
    }
    let mut reader = WavReader::new(Cursor::new(bytes)).map_err(|error| refused(name, error))?;
    let spec = reader.spec();
    check_size(name, spec, reader.duration())?;
    let samples = match spec.sample_format {
        SampleFormat::Float => mixed(reader.samples::<f32>(), spec.channels),
        SampleFormat::Int => {
            let full_scale = 2f32.powi(i32::from(spec.bits_per_sample) - 1);
            let scaled = reader.samples::<i32>().map(|sample| sample.map(|level| level as f32 / full_scale));
            mixed(scaled, spec.channels)
        }
    };
    Ok((samples.map_err(|error| refused(name, error))?, spec.sample_rate))
}

fn check_size(name: &str, spec: WavSpec, samples: u32) -> Result<()> {
    if samples == 0 {
        return Err(Error::format(name, "data", "the file holds no samples"));
    }
    if samples as usize > MAX_SAMPLES {
        return Err(Error::invalid(format!(
            "{name}: {samples} samples a channel, but at most {MAX_SAMPLES} are read: cut the recording"
        )));
    }
    if !SAMPLE_RATES.contains(&spec.sample_rate) {
        let reason =
            format!("{} Hz, not between {} and {}", spec.sample_rate, SAMPLE_RATES.start(), SAMPLE_RATES.end());
        return Err(Error::format(name, "sample rate", reason));
    }
    Ok(())
}

/// The average of `channels` interleaved samples each. Grows as samples come, not as the header claims.
fn mixed(samples: impl Iterator<Item = hound::Result<f32>>, channels: u16) -> hound::Result<Vec<f32>> {
    let mut mono = Vec::new();
    let (mut sum, mut heard) = (0.0f64, 0);
    for sample in samples {
        sum += f64::from(sample?);
        heard += 1;
        if heard == channels {
            mono.push((sum / f64::from(channels)) as f32);
            (sum, heard) = (0.0, 0);
        }
    }
    Ok(mono)
}

fn refused(name: &str, error: hound::Error) -> Error {
    match error {
        hound::Error::Unsupported | hound::Error::TooWide => Error::Unsupported(format!(
            "{name}: an unknown encoding of samples: use PCM of 8, 16, 24 or 32 bits, or 32-bit floating point"
        )),
        hound::Error::IoError(error) => {
            Error::format(name, "WAV", format!("the file ends before what its header announces ({error})"))
        }
        error => Error::format(name, "WAV", error.to_string()),
    }
}
