//! `etg_embedding`: the rows that an encoder made of a picture or of sound.

use super::guard::guard;
use super::handle::{self, Handle};
use super::image;
use super::input::{self, Out};
use super::pixels;
use super::status::ETG_OK;
use crate::media::Embedding;
use crate::{Error, Result};
use std::ptr;
use std::sync::Arc;

/// What an encoder made of a picture or of sound: rows that stand in the prompt in its place. It never changes, and may serve
/// any number of messages, runners of the same model and threads at once.
pub struct etg_embedding {
    pub(super) embedding: Arc<Embedding>,
}

impl Handle for etg_embedding {
    const NAME: &'static str = "etg_embedding";
}

/// A ticket for `embedding`, for the caller.
pub(super) fn issue(embedding: Arc<Embedding>) -> *mut etg_embedding {
    handle::issue(etg_embedding { embedding })
}

/// The place for an embedding that a call will make.
///
/// # Safety
/// As [`Out::new`].
pub(super) unsafe fn out(place: *mut *mut etg_embedding) -> Result<Out<*mut etg_embedding>> {
    // SAFETY: this function's contract.
    unsafe { Out::new(place, ptr::null_mut(), "embedding_out") }
}

/// Make an embedding from rows that `etg_embedding_rows` gave before, or that another encoder made: `row_count` rows of
/// `width` floats, tile after tile, each tile with the same number of rows. The tiles lie in `tile_rows` rows of
/// `tile_cols` crops, with the overview of the whole picture as the last tile if `overview` is 1; a picture that is not
/// cut, and sound, is 0, 0, 1.
///
/// - Threads: any, several at once.
/// - Owns: the rows are copied. `*embedding_out` is the caller's; free it with `etg_embedding_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, no rows, rows that do not divide into the tiles, a number that is not
///   finite, a flag neither 0 nor 1; the message has the numbers).
/// - After a failure: nothing was made, `*embedding_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_embedding_create(
    rows: *const f32,
    row_count: usize,
    width: usize,
    tile_rows: usize,
    tile_cols: usize,
    overview: i32,
    embedding_out: *mut *mut etg_embedding,
) -> i32 {
    guard("etg_embedding_create", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { out(embedding_out) }?;
        let count = row_count.checked_mul(width).ok_or_else(|| {
            Error::invalid(format!("{row_count} rows of {width} floats are more than memory can hold"))
        })?;
        // SAFETY: values of the caller.
        let rows = unsafe { input::values(rows, count, "rows") }?;
        let layout = image::layout(tile_rows, tile_cols, overview)?;
        out.set(issue(Arc::new(Embedding::from_rows(rows.to_vec(), width, layout)?)));
        Ok(ETG_OK)
    })
}

/// The rows: `*row_count_out` rows of `*width_out` floats each, without gaps.
///
/// - Threads: any, also several at once.
/// - Owns: `*rows_out` is borrowed from the embedding and lives until `etg_embedding_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: `*rows_out` is NULL and the numbers are 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_embedding_rows(
    embedding: *const etg_embedding,
    rows_out: *mut *const f32,
    row_count_out: *mut usize,
    width_out: *mut usize,
) -> i32 {
    guard("etg_embedding_rows", || {
        // SAFETY: out-parameters of the caller.
        let mut rows = unsafe { Out::new(rows_out, ptr::null(), "rows_out") }?;
        // SAFETY: as above.
        let mut row_count = unsafe { Out::new(row_count_out, 0, "row_count_out") }?;
        // SAFETY: as above.
        let mut width = unsafe { Out::new(width_out, 0, "width_out") }?;
        let handle = handle::get(embedding)?;
        // The table holds the embedding, whose rows never move or change, until it is freed.
        rows.set(handle.embedding.rows().as_ptr());
        row_count.set(handle.embedding.row_count());
        width.set(handle.embedding.width());
        Ok(ETG_OK)
    })
}

/// How the tiles of the picture lie; as `etg_pixels_layout`.
///
/// - Threads: any, also several at once.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the results are 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_embedding_layout(
    embedding: *const etg_embedding,
    tile_rows_out: *mut usize,
    tile_cols_out: *mut usize,
    overview_out: *mut i32,
) -> i32 {
    guard("etg_embedding_layout", || {
        let layout = || Ok(handle::get(embedding)?.embedding.layout());
        // SAFETY: out-parameters of the caller.
        unsafe { pixels::tell_layout(tile_rows_out, tile_cols_out, overview_out, layout) }
    })
}

/// Free an embedding. NULL is allowed and does nothing.
///
/// - Threads: any; messages that hold the embedding keep it.
/// - Owns: takes the embedding back; what was borrowed from it is gone.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live embedding: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_embedding_free(embedding: *mut etg_embedding) -> i32 {
    guard("etg_embedding_free", || handle::free(embedding).map(|()| ETG_OK))
}
