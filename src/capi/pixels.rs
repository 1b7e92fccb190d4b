//! `etg_pixels`: what preprocessing makes of a picture.

use super::guard::guard;
use super::handle::{self, Handle};
use super::input::Out;
use super::status::ETG_OK;
use crate::Result;
use crate::media::{PixelTensor, TileLayout};
use std::ptr;

/// Normalized tiles of a picture, as a vision encoder takes them: floats [tiles, 3, height, width].
pub struct etg_pixels {
    pub(super) tensor: PixelTensor,
}

impl Handle for etg_pixels {
    const NAME: &'static str = "etg_pixels";
}

/// A ticket for `tensor`, for the caller.
pub(super) fn issue(tensor: PixelTensor) -> *mut etg_pixels {
    handle::issue(etg_pixels { tensor })
}

/// The place for pixels that a call will make.
///
/// # Safety
/// As [`Out::new`].
pub(super) unsafe fn out(place: *mut *mut etg_pixels) -> Result<Out<*mut etg_pixels>> {
    // SAFETY: this function's contract.
    unsafe { Out::new(place, ptr::null_mut(), "pixels_out") }
}

/// The body of a function that says how tiles lie.
///
/// # Safety
/// The places are out-parameters of the caller.
pub(super) unsafe fn tell_layout(
    tile_rows_out: *mut usize,
    tile_cols_out: *mut usize,
    overview_out: *mut i32,
    layout: impl FnOnce() -> Result<TileLayout>,
) -> Result<i32> {
    // SAFETY: this function's contract.
    let mut rows = unsafe { Out::new(tile_rows_out, 0, "tile_rows_out") }?;
    // SAFETY: as above.
    let mut cols = unsafe { Out::new(tile_cols_out, 0, "tile_cols_out") }?;
    // SAFETY: as above.
    let mut overview = unsafe { Out::new(overview_out, 0, "overview_out") }?;
    let layout = layout()?;
    rows.set(layout.rows);
    cols.set(layout.cols);
    overview.set(i32::from(layout.overview));
    Ok(ETG_OK)
}

/// The values of all tiles, [tiles, 3, height, width], row-major; channels are red, green, blue.
///
/// - Threads: any, also several at once.
/// - Owns: `*values_out` is borrowed from the pixels and lives until `etg_pixels_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: `*values_out` is NULL and `*count_out` 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_pixels_values(
    pixels: *const etg_pixels,
    values_out: *mut *const f32,
    count_out: *mut usize,
) -> i32 {
    guard("etg_pixels_values", || {
        // SAFETY: out-parameters of the caller.
        let mut values = unsafe { Out::new(values_out, ptr::null(), "values_out") }?;
        // SAFETY: as above.
        let mut count = unsafe { Out::new(count_out, 0, "count_out") }?;
        let pixels = handle::get(pixels)?;
        // The table holds the pixels, whose values never move or change, until they are freed.
        values.set(pixels.tensor.values.as_ptr());
        count.set(pixels.tensor.values.len());
        Ok(ETG_OK)
    })
}

/// Number of tiles, and height and width of each.
///
/// - Threads: any, also several at once.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the results are 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_pixels_shape(
    pixels: *const etg_pixels,
    tiles_out: *mut usize,
    height_out: *mut usize,
    width_out: *mut usize,
) -> i32 {
    guard("etg_pixels_shape", || {
        // SAFETY: out-parameters of the caller.
        let mut tiles = unsafe { Out::new(tiles_out, 0, "tiles_out") }?;
        // SAFETY: as above.
        let mut height = unsafe { Out::new(height_out, 0, "height_out") }?;
        // SAFETY: as above.
        let mut width = unsafe { Out::new(width_out, 0, "width_out") }?;
        let pixels = handle::get(pixels)?;
        tiles.set(pixels.tensor.tiles);
        height.set(pixels.tensor.height);
        width.set(pixels.tensor.width);
        Ok(ETG_OK)
    })
}

/// How the tiles lie: rows and columns of crops, in row-major order, and whether an overview of the whole picture comes
/// last (1) or not (0). A picture that is not cut is 0, 0, 1.
///
/// - Threads: any, also several at once.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the results are 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_pixels_layout(
    pixels: *const etg_pixels,
    tile_rows_out: *mut usize,
    tile_cols_out: *mut usize,
    overview_out: *mut i32,
) -> i32 {
    guard("etg_pixels_layout", || {
        let layout = || Ok(handle::get(pixels)?.tensor.layout);
        // SAFETY: out-parameters of the caller.
        unsafe { tell_layout(tile_rows_out, tile_cols_out, overview_out, layout) }
    })
}

/// Free pixels. NULL is allowed and does nothing.
///
/// - Threads: any, when no other thread reads values borrowed from them any more.
/// - Owns: takes the pixels back; what was borrowed from them is gone.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live pixels: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_pixels_free(pixels: *mut etg_pixels) -> i32 {
    guard("etg_pixels_free", || handle::free(pixels).map(|()| ETG_OK))
}
