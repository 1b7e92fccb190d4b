//! `etg_audio`: a piece of sound, from encoded bytes, samples or ready features.

use super::guard::guard;
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::status::ETG_OK;
use crate::media::Audio;
use crate::{Error, Result};
use std::ffi::c_char;
use std::ptr;

/// A piece of sound: samples of one channel, or a ready encoder tensor. It never changes, and may serve any number of
/// messages, runners and threads at once.
pub struct etg_audio {
    pub(super) audio: Audio,
}

impl Handle for etg_audio {
    const NAME: &'static str = "etg_audio";
}

/// The body of a function that makes sound.
///
/// # Safety
/// `audio_out` is an out-parameter of the caller.
unsafe fn make(function: &'static str, audio_out: *mut *mut etg_audio, make: impl FnOnce() -> Result<Audio>) -> i32 {
    guard(function, || {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(audio_out, ptr::null_mut(), "audio_out") }?;
        out.set(handle::issue(etg_audio { audio: make()? }));
        Ok(ETG_OK)
    })
}

/// Decode sound from the bytes of a WAV file: PCM of 8, 16, 24 or 32 bits, or 32-bit floating point, at any rate from
/// 1,000 to 768,000 Hz. Several channels become one, their average.
///
/// - Threads: any, several at once.
/// - Owns: the bytes are not kept. `*audio_out` is the caller's; free it with `etg_audio_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, more than 256 MiB or 2^26 samples a channel, a sample that is not
///   finite), `ETG_ERROR_UNSUPPORTED` (another format or encoding), `ETG_ERROR_FORMAT` (empty, truncated or corrupt).
/// - After a failure: nothing was made, `*audio_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_audio_from_encoded(
    bytes: *const u8,
    length: usize,
    audio_out: *mut *mut etg_audio,
) -> i32 {
    let decode = || {
        // SAFETY: bytes of the caller.
        Audio::decode(unsafe { input::values(bytes, length, "bytes") }?)
    };
    // SAFETY: out-parameter of the caller.
    unsafe { make("etg_audio_from_encoded", audio_out, decode) }
}

/// Decode a WAV file; as `etg_audio_from_encoded`.
///
/// - Threads: any, several at once.
/// - Owns: `*audio_out` is the caller's; free it with `etg_audio_free`.
/// - Codes: as `etg_audio_from_encoded`, and `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`; the message names the file.
/// - After a failure: nothing was made, `*audio_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_audio_from_file(
    path: *const c_char,
    path_length: usize,
    audio_out: *mut *mut etg_audio,
) -> i32 {
    let open = || {
        // SAFETY: text of the caller.
        Audio::open(&unsafe { input::path(path, path_length, "path") }?)
    };
    // SAFETY: out-parameter of the caller.
    unsafe { make("etg_audio_from_file", audio_out, open) }
}

/// Make sound of samples of one channel, full scale -1 to 1, at `sample_rate` Hz. Each model resamples it to its own rate.
///
/// - Threads: any, several at once.
/// - Owns: the samples are copied. `*audio_out` is the caller's; free it with `etg_audio_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, no samples, a sample that is not finite, a rate outside of 1,000 to
///   768,000 Hz; the message has the number).
/// - After a failure: nothing was made, `*audio_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_audio_from_samples(
    samples: *const f32,
    sample_count: usize,
    sample_rate: u32,
    audio_out: *mut *mut etg_audio,
) -> i32 {
    let copy = || {
        // SAFETY: values of the caller.
        let samples = unsafe { input::values(samples, sample_count, "samples") }?;
        Audio::from_samples(samples.to_vec(), sample_rate)
    };
    // SAFETY: out-parameter of the caller.
    unsafe { make("etg_audio_from_samples", audio_out, copy) }
}

/// Make sound of features that are ready for the encoder, in the order of its input; preprocessing passes them on as they
/// are. A model takes as many as `etg_runner_audio_geometry` says, which is checked when messages are used.
///
/// - Threads: any, several at once.
/// - Owns: the features are copied. `*audio_out` is the caller's; free it with `etg_audio_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, no features, one that is not finite).
/// - After a failure: nothing was made, `*audio_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_audio_from_features(
    features: *const f32,
    feature_count: usize,
    audio_out: *mut *mut etg_audio,
) -> i32 {
    let copy = || {
        // SAFETY: values of the caller.
        let features = unsafe { input::values(features, feature_count, "features") }?;
        Audio::from_features(features.to_vec())
    };
    // SAFETY: out-parameter of the caller.
    unsafe { make("etg_audio_from_features", audio_out, copy) }
}

/// The samples of one channel, and how many of them are a second.
///
/// - Threads: any, also several at once.
/// - Owns: `*samples_out` is borrowed from the sound and lives until `etg_audio_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (it was made from features).
/// - After a failure: `*samples_out` is NULL and the numbers are 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_audio_samples(
    audio: *const etg_audio,
    samples_out: *mut *const f32,
    sample_count_out: *mut usize,
    sample_rate_out: *mut u32,
) -> i32 {
    guard("etg_audio_samples", || {
        // SAFETY: out-parameters of the caller.
        let mut samples = unsafe { Out::new(samples_out, ptr::null(), "samples_out") }?;
        // SAFETY: as above.
        let mut count = unsafe { Out::new(sample_count_out, 0, "sample_count_out") }?;
        // SAFETY: as above.
        let mut rate = unsafe { Out::new(sample_rate_out, 0, "sample_rate_out") }?;
        let handle = handle::get(audio)?;
        let missing = || Error::InvalidState("the audio was made from features and has no samples".into());
        let (values, hertz) = handle.audio.samples().ok_or_else(missing)?;
        // The table holds the sound, whose samples never move or change, until it is freed.
        samples.set(values.as_ptr());
        count.set(values.len());
        rate.set(hertz);
        Ok(ETG_OK)
    })
}

/// Free a piece of sound. NULL is allowed and does nothing.
///
/// - Threads: any; messages that hold the sound keep it.
/// - Owns: takes the sound back; what was borrowed from it is gone.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_audio_free(audio: *mut etg_audio) -> i32 {
    guard("etg_audio_free", || handle::free(audio).map(|()| ETG_OK))
}
