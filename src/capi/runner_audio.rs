//! Single steps of a runner with sound: preprocess and encode. Embedding, merging and prefill are those of pictures.

use super::audio::etg_audio;
use super::embedding::{self, etg_embedding};
use super::guard::guard;
use super::handle;
use super::input::{self, Out};
use super::runner::{etg_runner, with_runner};
use super::status::ETG_OK;
use crate::Error;
use std::sync::Arc;

/// Whether the model takes audio (1) or not (0).
///
/// - Threads: any, at any time.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the runner is unchanged, `*audio_out` is 0 if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_takes_audio(runner: *const etg_runner, audio_out: *mut i32) -> i32 {
    guard("etg_runner_takes_audio", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(audio_out, 0, "audio_out") }?;
        out.set(i32::from(handle::get(runner)?.known().audio_geometry.is_some()));
        Ok(ETG_OK)
    })
}

/// What the model makes of a piece of sound: the features its encoder takes, the rows (and prompt tokens) it makes of
/// them, and the floats of a row.
///
/// - Threads: any, at any time.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_UNSUPPORTED` (the model takes no audio).
/// - After a failure: the runner is unchanged, the results are 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_audio_geometry(
    runner: *const etg_runner,
    feature_count_out: *mut usize,
    row_count_out: *mut usize,
    width_out: *mut usize,
) -> i32 {
    guard("etg_runner_audio_geometry", || {
        // SAFETY: out-parameters of the caller.
        let mut features = unsafe { Out::new(feature_count_out, 0, "feature_count_out") }?;
        // SAFETY: as above.
        let mut rows = unsafe { Out::new(row_count_out, 0, "row_count_out") }?;
        // SAFETY: as above.
        let mut width = unsafe { Out::new(width_out, 0, "width_out") }?;
        let none = || Error::Unsupported("this model takes no audio: it has no audio encoder".into());
        let geometry = handle::get(runner)?.known().audio_geometry.ok_or_else(none)?;
        features.set(geometry.0);
        rows.set(geometry.1);
        width.set(geometry.2);
        Ok(ETG_OK)
    })
}

/// Features of sound as the encoder takes them, written to the caller's `features`: as many floats as
/// `etg_runner_audio_geometry` says.
///
/// - Threads: one call at a time per runner.
/// - Owns: `features` stays the caller's.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, sound that is too long or another number of features; the
///   message has both numbers), `ETG_ERROR_UNSUPPORTED` (the model takes no audio, or features of another kind),
///   `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
/// - After a failure: the runner and `features` are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_preprocess_audio(
    runner: *mut etg_runner,
    audio: *const etg_audio,
    features: *mut f32,
    feature_count: usize,
) -> i32 {
    with_runner("etg_runner_preprocess_audio", runner, |_, runner| {
        let audio = handle::get(audio)?;
        // SAFETY: a place of the caller's for so many values.
        let place = unsafe { input::values_mut(features, feature_count, "features") }?;
        let made = runner.preprocess_audio(&audio.audio)?.values;
        if made.len() != place.len() {
            let needed = made.len();
            return Err(Error::invalid(format!("there are {needed} features, the place has room for {feature_count}")));
        }
        place.copy_from_slice(&made);
        Ok(ETG_OK)
    })
}

/// Run the encoder once over one ready-made input: features of sound, or one tile [3, side, side] of a picture. The cache
/// is not used.
///
/// - Threads: one call at a time per runner.
/// - Owns: the features are not kept. `*embedding_out` is the caller's; free it with `etg_embedding_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, another number of features than the encoder takes; the message
///   has both), `ETG_ERROR_UNSUPPORTED` (the model has no encoder), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`,
///   `ETG_ERROR_ENGINE`, `ETG_ERROR_INTERNAL`.
/// - After a failure: the conversation is unchanged, `*embedding_out` is NULL if it could be written; after
///   `ETG_ERROR_INTERNAL` the runner is poisoned and needs `etg_runner_reset`.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_encode_features(
    runner: *mut etg_runner,
    features: *const f32,
    feature_count: usize,
    embedding_out: *mut *mut etg_embedding,
) -> i32 {
    with_runner("etg_runner_encode_features", runner, |_, runner| {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { embedding::out(embedding_out) }?;
        // SAFETY: values of the caller.
        let features = unsafe { input::values(features, feature_count, "features") }?;
        out.set(embedding::issue(Arc::new(runner.encode_features(features)?)));
        Ok(ETG_OK)
    })
}

/// The rows of sound, from the cache or, preprocessed and encoded, from the encoder. Add them to messages in place of the
/// sound, of this runner or of another one of the same model, and nothing is encoded there.
///
/// - Threads: one call at a time per runner.
/// - Owns: `*embedding_out` is the caller's; free it with `etg_embedding_free`. Sound and runner may be freed first.
/// - Codes: as `etg_runner_preprocess_audio` and `etg_runner_encode_features`.
/// - After a failure: as `etg_runner_encode_features`.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_encode_audio(
    runner: *mut etg_runner,
    audio: *const etg_audio,
    embedding_out: *mut *mut etg_embedding,
) -> i32 {
    with_runner("etg_runner_encode_audio", runner, |_, runner| {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { embedding::out(embedding_out) }?;
        out.set(embedding::issue(runner.encode_audio(&handle::get(audio)?.audio)?));
        Ok(ETG_OK)
    })
}
