//! Single steps of a runner with pictures: preprocess, encode, embed, merge, prefill.
//!
//! A turn by hand: preprocess and encode each picture, put the embeddings into the messages, encode the prompt to ids,
//! embed the ids, merge the rows of all pictures so far into them, prefill the prompt's rows; then sample and decode as
//! ever, and commit the turn. With the same options it gives the same tokens as `generate`.

use super::embedding::{self, etg_embedding};
use super::guard::guard;
use super::handle;
use super::image::etg_image;
use super::input::{self, Out};
use super::messages::{self, etg_messages};
use super::pixels::{self, etg_pixels};
use super::runner::{etg_runner, with_runner};
use super::status::ETG_OK;
use crate::Error;
use std::sync::Arc;

/// Whether the model takes pictures (1) or not (0).
///
/// - Threads: any, at any time.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the runner is unchanged, `*images_out` is 0 if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_takes_images(runner: *const etg_runner, images_out: *mut i32) -> i32 {
    guard("etg_runner_takes_images", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(images_out, 0, "images_out") }?;
        out.set(i32::from(handle::get(runner)?.known().image_geometry.is_some()));
        Ok(ETG_OK)
    })
}

/// What the model makes of a picture: the side of a tile in pixels, the rows (and prompt tokens) of one tile, and the
/// floats of a row.
///
/// - Threads: any, at any time.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_UNSUPPORTED` (the model takes no pictures).
/// - After a failure: the runner is unchanged, the results are 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_image_geometry(
    runner: *const etg_runner,
    tile_size_out: *mut usize,
    rows_per_tile_out: *mut usize,
    width_out: *mut usize,
) -> i32 {
    guard("etg_runner_image_geometry", || {
        // SAFETY: out-parameters of the caller.
        let mut tile_size = unsafe { Out::new(tile_size_out, 0, "tile_size_out") }?;
        // SAFETY: as above.
        let mut rows_per_tile = unsafe { Out::new(rows_per_tile_out, 0, "rows_per_tile_out") }?;
        // SAFETY: as above.
        let mut width = unsafe { Out::new(width_out, 0, "width_out") }?;
        let none = || Error::Unsupported("this model takes no pictures: it has no vision encoder".into());
        let (side, rows, numbers) = handle::get(runner)?.known().image_geometry.ok_or_else(none)?;
        tile_size.set(side);
        rows_per_tile.set(rows);
        width.set(numbers);
        Ok(ETG_OK)
    })
}

/// Pictures and sounds in the image cache, and the bytes that their rows take. During a run: before it.
///
/// - Threads: any, at any time.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the runner is unchanged, the results are 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_image_cache_size(
    runner: *const etg_runner,
    images_out: *mut usize,
    bytes_out: *mut usize,
) -> i32 {
    guard("etg_runner_image_cache_size", || {
        // SAFETY: out-parameters of the caller.
        let mut images = unsafe { Out::new(images_out, 0, "images_out") }?;
        // SAFETY: as above.
        let mut bytes = unsafe { Out::new(bytes_out, 0, "bytes_out") }?;
        let (count, size) = handle::get(runner)?.known().image_cache;
        images.set(count);
        bytes.set(size);
        Ok(ETG_OK)
    })
}

/// A picture's pixels as the vision encoder takes them, cut as the runner's options say.
///
/// - Threads: one call at a time per runner. `etg_image_processor_process` does the same without a runner.
/// - Owns: `*pixels_out` is the caller's; free it with `etg_pixels_free`. Picture and runner may be freed first.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a tensor whose tiles are not of the encoder's size),
///   `ETG_ERROR_UNSUPPORTED` (the model takes no pictures), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
/// - After a failure: the runner is unchanged, `*pixels_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_preprocess_image(
    runner: *mut etg_runner,
    image: *const etg_image,
    pixels_out: *mut *mut etg_pixels,
) -> i32 {
    with_runner("etg_runner_preprocess_image", runner, |_, runner| {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { pixels::out(pixels_out) }?;
        out.set(pixels::issue(runner.preprocess(&handle::get(image)?.image)?));
        Ok(ETG_OK)
    })
}

/// Run the vision encoder over preprocessed pixels, tile by tile. The image cache is not used.
///
/// - Threads: one call at a time per runner.
/// - Owns: `*embedding_out` is the caller's; free it with `etg_embedding_free`. Pixels and runner may be freed first.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, tiles of another size), `ETG_ERROR_UNSUPPORTED` (the model
///   takes no pictures), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`, `ETG_ERROR_ENGINE`, `ETG_ERROR_INTERNAL`.
/// - After a failure: the conversation is unchanged, `*embedding_out` is NULL if it could be written; after
///   `ETG_ERROR_INTERNAL` the runner is poisoned and needs `etg_runner_reset`.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_encode_pixels(
    runner: *mut etg_runner,
    pixels: *const etg_pixels,
    embedding_out: *mut *mut etg_embedding,
) -> i32 {
    with_runner("etg_runner_encode_pixels", runner, |_, runner| {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { embedding::out(embedding_out) }?;
        let encoded = runner.encode_pixels(&handle::get(pixels)?.tensor)?;
        out.set(embedding::issue(Arc::new(encoded)));
        Ok(ETG_OK)
    })
}

/// The rows of a picture, from the image cache or, preprocessed and encoded, from the encoder. Add them to messages in
/// place of the picture, of this runner or of another one of the same model, and nothing is encoded there.
///
/// - Threads: one call at a time per runner.
/// - Owns: `*embedding_out` is the caller's; free it with `etg_embedding_free`. Picture and runner may be freed first.
/// - Codes: as `etg_runner_preprocess_image` and `etg_runner_encode_pixels`.
/// - After a failure: as `etg_runner_encode_pixels`.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_encode_image(
    runner: *mut etg_runner,
    image: *const etg_image,
    embedding_out: *mut *mut etg_embedding,
) -> i32 {
    with_runner("etg_runner_encode_image", runner, |_, runner| {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { embedding::out(embedding_out) }?;
        out.set(embedding::issue(runner.encode_image(&handle::get(image)?.image)?));
        Ok(ETG_OK)
    })
}

/// The embedding rows of tokens, written to the caller's `rows`: `id_count` rows of as many floats as
/// `etg_runner_image_geometry` (`etg_runner_audio_geometry`) says, so `value_count` is their product.
///
/// - Threads: one call at a time per runner.
/// - Owns: the ids are not kept, `rows` stays the caller's.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, an id outside of the vocabulary, another number of values;
///   the message has both numbers), `ETG_ERROR_UNSUPPORTED` (a model whose decoder takes ids), `ETG_ERROR_BUSY`,
///   `ETG_ERROR_POISONED`, `ETG_ERROR_ENGINE`, `ETG_ERROR_INTERNAL`.
/// - After a failure: the conversation and `rows` are unchanged; after `ETG_ERROR_INTERNAL` the runner is poisoned and
///   needs `etg_runner_reset`.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_embed_tokens(
    runner: *mut etg_runner,
    ids: *const u32,
    id_count: usize,
    rows: *mut f32,
    value_count: usize,
) -> i32 {
    with_runner("etg_runner_embed_tokens", runner, |_, runner| {
        // SAFETY: ids of the caller.
        let ids = unsafe { input::values(ids, id_count, "ids") }?;
        // SAFETY: a place of the caller's for so many values.
        let rows = unsafe { input::values_mut(rows, value_count, "rows") }?;
        let embedded = runner.embed_tokens(ids)?;
        if embedded.len() != rows.len() {
            let needed = embedded.len();
            return Err(Error::invalid(format!(
                "{id_count} tokens give {needed} values, rows has room for {value_count}"
            )));
        }
        rows.copy_from_slice(&embedded);
        Ok(ETG_OK)
    })
}

/// Put the rows of `embeddings`, in order, in the places of the picture or audio tokens of `ids`. `rows` is what
/// `etg_runner_embed_tokens` gave for `ids`, and is changed in place.
///
/// - Threads: one call at a time per runner.
/// - Owns: nothing is kept; `rows` stays the caller's.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, another number of values than the ids need, more or fewer
///   rows than such tokens; the message has both numbers), `ETG_ERROR_UNSUPPORTED` (the model has no encoder),
///   `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
/// - After a failure: the runner and `rows` are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_merge(
    runner: *mut etg_runner,
    ids: *const u32,
    id_count: usize,
    rows: *mut f32,
    value_count: usize,
    embeddings: *const *const etg_embedding,
    embedding_count: usize,
) -> i32 {
    with_runner("etg_runner_merge", runner, |_, runner| {
        // SAFETY: ids of the caller.
        let ids = unsafe { input::values(ids, id_count, "ids") }?;
        // SAFETY: values of the caller, which this call may change.
        let rows = unsafe { input::values_mut(rows, value_count, "rows") }?;
        // SAFETY: an array of the caller's.
        let embeddings = unsafe { input::values(embeddings, embedding_count, "embeddings") }?;
        let embeddings = handle::get_all(embeddings, "embeddings")?;
        let pictures = embeddings.iter().map(|handle| handle.embedding.as_ref()).collect::<Vec<_>>();
        runner.merge(ids, rows, &pictures).map(|()| ETG_OK)
    })
}

/// Append positions to the history whose hidden states are given, and process them: `rows` holds one row for each of
/// `ids`, which are what the repetition penalty and `etg_runner_history_tokens` see. Otherwise as `etg_runner_prefill`.
///
/// - Threads: one call at a time per runner. A cancel is noticed between blocks.
/// - Owns: ids and rows are copied.
/// - Codes: as `etg_runner_prefill`, and `ETG_ERROR_INVALID_ARGUMENT` (another number of values than the ids need, a
///   number that is not finite), `ETG_ERROR_UNSUPPORTED` (a model whose decoder takes ids).
/// - After a failure: as `etg_runner_prefill`.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_prefill_rows(
    runner: *mut etg_runner,
    ids: *const u32,
    id_count: usize,
    rows: *const f32,
    value_count: usize,
) -> i32 {
    with_runner("etg_runner_prefill_rows", runner, |_, runner| {
        // SAFETY: ids of the caller.
        let ids = unsafe { input::values(ids, id_count, "ids") }?;
        // SAFETY: values of the caller.
        let rows = unsafe { input::values(rows, value_count, "rows") }?;
        runner.prefill_rows(ids, rows).map(|()| ETG_OK)
    })
}

/// Make the history exactly this prompt, as `etg_runner_encode_prompt` gives it, with one row for each of its ids, and
/// process what the KV cache does not have yet; afterwards `etg_runner_logits` gives the logits of the last token. Rows
/// that an earlier call of this function processed at the same places are not computed again; tokens that were decoded
/// by their ids are. (`etg_runner_prefill_messages` spares both.)
///
/// - Threads: one call at a time per runner. A cancel is noticed between blocks.
/// - Owns: ids and rows are copied.
/// - Codes: as `etg_runner_prefill_rows`.
/// - After a failure: as `etg_runner_prefill`.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_prefill_prompt_rows(
    runner: *mut etg_runner,
    ids: *const u32,
    id_count: usize,
    rows: *const f32,
    value_count: usize,
) -> i32 {
    with_runner("etg_runner_prefill_prompt_rows", runner, |_, runner| {
        // SAFETY: ids of the caller.
        let ids = unsafe { input::values(ids, id_count, "ids") }?;
        // SAFETY: values of the caller.
        let rows = unsafe { input::values(rows, value_count, "rows") }?;
        runner.prefill_prompt_rows(ids, rows).map(|()| ETG_OK)
    })
}

/// Make the history exactly the prompt of these new messages, their pictures and sounds encoded (or taken from the image cache) and
/// in their places, and process what the KV cache does not have yet; afterwards `etg_runner_logits` gives the logits of
/// the last token.
///
/// - Threads: one call at a time per runner. A cancel is noticed between tiles and between blocks.
/// - Owns: the messages may be freed or changed at once.
/// - Codes: as `etg_runner_render` and `etg_runner_prefill`, and `ETG_ERROR_UNSUPPORTED` (pictures or audio in a model that
///   takes none).
/// - After a failure: as `etg_runner_prefill`.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_prefill_messages(runner: *mut etg_runner, messages: *const etg_messages) -> i32 {
    with_runner("etg_runner_prefill_messages", runner, |_, runner| {
        runner.prefill_messages(&messages::read(messages)?).map(|()| ETG_OK)
    })
}
