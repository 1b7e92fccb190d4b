//! The checkpoint's own settings for sound, as transformers writes them.

use serde_json::{Map, Value};

use super::mel::MelSettings;
use crate::{Error, Result};

/// What Granite-speech was published with.
const GRANITE_SPEECH: MelSettings =
    MelSettings { sample_rate: 16_000, n_fft: 512, win_length: 400, hop_length: 160, n_mels: 80 };

/// Where `processor_config.json` keeps the settings, if it does.
const NESTED: [&str; 2] = ["audio_processor", "feature_extractor"];
const SPECTROGRAM: &str = "melspec_kwargs";

/// Reads the settings, see [`AudioProcessor::from_config`](super::AudioProcessor::from_config).
pub(super) fn read(
    preprocessor: Option<&Map<String, Value>>,
    processor: Option<&Map<String, Value>>,
) -> Result<MelSettings> {
    let nested = NESTED.into_iter().find_map(|name| processor?.get(name)?.as_object());
    let (file, settings) = match nested {
        Some(nested) => ("processor_config.json", Some(nested)),
        None => ("preprocessor_config.json", preprocessor),
    };
    let mut read = GRANITE_SPEECH;
    let Some(settings) = settings else { return Ok(read) };
    let rate = settings.get("sampling_rate").map(|value| number(file, "sampling_rate", value)).transpose()?;
    let Some(spectrogram) = settings.get(SPECTROGRAM).filter(|value| !value.is_null()) else {
        read.sample_rate = rate.unwrap_or(read.sample_rate);
        return Ok(read);
    };
    let spectrogram = spectrogram
        .as_object()
        .ok_or_else(|| Error::format(file, SPECTROGRAM, format!("{spectrogram}: expected an object")))?;
    for (name, value) in spectrogram {
        let field = format!("{SPECTROGRAM}.{name}");
        match name.as_str() {
            "sample_rate" => read.sample_rate = number(file, &field, value)?,
            "n_fft" => read.n_fft = number(file, &field, value)?,
            "win_length" => read.win_length = number(file, &field, value)?,
            "hop_length" => read.hop_length = number(file, &field, value)?,
            "n_mels" => read.n_mels = number(file, &field, value)?,
            _ => {
                let reason = format!("{value} is not supported: it would change the features this library makes");
                return Err(Error::format(file, field, reason));
            }
        }
    }
    match rate {
        Some(rate) if rate != read.sample_rate => {
            let reason = format!("{rate} Hz, but the spectrogram's sample_rate is {}", read.sample_rate);
            Err(Error::format(file, "sampling_rate", reason))
        }
        _ => Ok(read),
    }
}

fn number<T: TryFrom<u64>>(file: &str, field: &str, value: &Value) -> Result<T> {
    let number = value.as_u64().and_then(|number| number.try_into().ok());
    number.ok_or_else(|| Error::format(file, field, format!("{value}: expected a whole number")))
}
