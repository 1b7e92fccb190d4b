//! Any bytes as a sound file: finite samples and their features, or an error with a text.

#![no_main]

use etgenai::media::{Audio, AudioProcessor};
use libfuzzer_sys::fuzz_target;

/// Frames of the encoder: about a second and a half.
const FRAMES: usize = 75;

fuzz_target!(|bytes: &[u8]| {
    let audio = match Audio::decode(bytes) {
        Ok(audio) => audio,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let (samples, rate) = audio.samples().unwrap();
    assert!(!samples.is_empty() && rate > 0 && samples.iter().all(|sample| sample.is_finite()));
    let processor = AudioProcessor::from_config(None, None).unwrap();
    match processor.process(&audio, FRAMES) {
        Ok(features) => assert_eq!(features.values.len(), FRAMES * features.width),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
