//! `etg_image`: a picture, from encoded bytes, pixels, camera planes or a ready tensor.

use super::guard::guard;
use super::handle::{self, Handle};
use super::image_options::{self, etg_image_options};
use super::input::{self, Out};
use super::sized_struct::{self, Sized32};
use super::status::ETG_OK;
use crate::media::{DecodeOptions, Image, PixelFormat, Pixels, TileLayout, Yuv420, YuvRange};
use crate::{Error, Result};
use std::ffi::c_char;
use std::ptr;

/// Pixels: red, green, blue, one byte each.
pub const ETG_PIXELS_RGB8: i32 = 0;
/// Pixels: red, green, blue, alpha, one byte each; alpha is not multiplied in.
pub const ETG_PIXELS_RGBA8: i32 = 1;
/// Pixels: blue, green, red, alpha, one byte each; alpha is not multiplied in.
pub const ETG_PIXELS_BGRA8: i32 = 2;
/// Pixels: one byte of brightness.
pub const ETG_PIXELS_GRAY8: i32 = 3;

/// YUV: bytes span 0 to 255, as in JPEG files and most camera streams of phones.
pub const ETG_YUV_FULL: i32 = 0;
/// YUV: Y spans 16 to 235, U and V span 16 to 240, as in video.
pub const ETG_YUV_LIMITED: i32 = 1;

/// Bytes of a content hash (SHA-256).
pub const ETG_IMAGE_HASH_BYTES: usize = 32;

/// A picture: decoded pixels, or a ready encoder tensor. It never changes, and may serve any number of messages, runners
/// and threads at once.
pub struct etg_image {
    pub(super) image: Image,
}

impl Handle for etg_image {
    const NAME: &'static str = "etg_image";
}

/// A camera frame in YUV 4:2:0: full-size brightness, colour at half the width and height, in the caller's memory.
/// Initialise it with `etg_yuv420_init`.
///
/// Planar (I420): `uv_pixel_stride` 1; for YV12 swap `u` and `v`. Interleaved: `uv_pixel_stride` 2; for NV12 `u` is the
/// chroma buffer and `v` the same buffer from its second byte on, for NV21 the other way round. Android's Image hands
/// its planes out in just this form.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct etg_yuv420 {
    /// Size of this struct as the program was compiled.
    pub struct_size: u32,
    /// `ETG_YUV_FULL` or `ETG_YUV_LIMITED`.
    pub range: i32,
    /// Pixels in a row, at least 1; may be odd.
    pub width: usize,
    /// Rows, at least 1; may be odd.
    pub height: usize,
    /// Brightness.
    pub y: *const u8,
    /// Bytes that can be read at `y`.
    pub y_length: usize,
    /// Bytes between the starts of two rows of `y`.
    pub y_row_stride: usize,
    /// Blue difference (Cb), `(width + 1) / 2` by `(height + 1) / 2` samples.
    pub u: *const u8,
    /// Bytes that can be read at `u`.
    pub u_length: usize,
    /// Red difference (Cr), as many samples.
    pub v: *const u8,
    /// Bytes that can be read at `v`.
    pub v_length: usize,
    /// Bytes between the starts of two rows of `u` and of `v`.
    pub uv_row_stride: usize,
    /// Bytes between two samples of `u` and of `v`: 1 or 2.
    pub uv_pixel_stride: usize,
}

// SAFETY: repr(C), u32 first, no padding (the test below adds the fields up); zero is a value of every field.
unsafe impl Sized32 for etg_yuv420 {
    const NAME: &'static str = "etg_yuv420";
    const FIRST_SIZE: usize = size_of::<etg_yuv420>();
}

impl etg_yuv420 {
    /// The frame with its planes checked.
    ///
    /// # Safety
    /// The planes are readable during `'a`.
    unsafe fn planes<'a>(&self) -> Result<Yuv420<'a>> {
        let range = match self.range {
            ETG_YUV_FULL => YuvRange::Full,
            ETG_YUV_LIMITED => YuvRange::Limited,
            other => {
                return Err(Error::invalid(format!("range is {other}, but must be ETG_YUV_FULL or ETG_YUV_LIMITED")));
            }
        };
        Ok(Yuv420 {
            width: self.width,
            height: self.height,
            // SAFETY: this function's contract.
            y: unsafe { input::values(self.y, self.y_length, "y") }?,
            y_row_stride: self.y_row_stride,
            // SAFETY: as above.
            u: unsafe { input::values(self.u, self.u_length, "u") }?,
            // SAFETY: as above.
            v: unsafe { input::values(self.v, self.v_length, "v") }?,
            uv_row_stride: self.uv_row_stride,
            uv_pixel_stride: self.uv_pixel_stride,
            range,
        })
    }
}

fn format_of(format: i32) -> Result<PixelFormat> {
    match format {
        ETG_PIXELS_RGB8 => Ok(PixelFormat::Rgb8),
        ETG_PIXELS_RGBA8 => Ok(PixelFormat::Rgba8),
        ETG_PIXELS_BGRA8 => Ok(PixelFormat::Bgra8),
        ETG_PIXELS_GRAY8 => Ok(PixelFormat::Gray8),
        other => Err(Error::invalid(format!("format is {other}, but must be an ETG_PIXELS_ constant (0 to 3)"))),
    }
}

/// How tiles lie, as C says it.
///
/// # Errors
/// Rows without columns or the reverse, or a flag that is none.
pub(super) fn layout(tile_rows: usize, tile_cols: usize, overview: i32) -> Result<TileLayout> {
    if (tile_rows == 0) != (tile_cols == 0) {
        return Err(Error::invalid(format!(
            "{tile_rows} rows of {tile_cols} tiles: a picture that is not cut has 0 rows of 0 tiles and an overview"
        )));
    }
    Ok(TileLayout { rows: tile_rows, cols: tile_cols, overview: input::flag(overview, "overview")? })
}

/// The body of a function that makes a picture.
///
/// # Safety
/// `image_out` is an out-parameter of the caller.
unsafe fn make(
    function: &'static str,
    options: *const etg_image_options,
    image_out: *mut *mut etg_image,
    make: impl FnOnce(&DecodeOptions) -> Result<Image>,
) -> i32 {
    guard(function, || {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(image_out, ptr::null_mut(), "image_out") }?;
        let image = make(&image_options::read(options)?)?;
        out.set(handle::issue(etg_image { image }));
        Ok(ETG_OK)
    })
}

/// Decode a picture from the bytes of a JPEG, PNG, WebP, BMP or GIF file (the first frame of an animation). EXIF
/// orientation is applied; gray, palette, 16-bit, CMYK and YCCK pictures become RGB; colour profiles are not applied.
/// `options` may be NULL: the defaults.
///
/// - Threads: any, several at once.
/// - Owns: the bytes are not kept. `*image_out` is the caller's; free it with `etg_image_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or a picture beyond the limits in the options),
///   `ETG_ERROR_UNSUPPORTED` (another format), `ETG_ERROR_FORMAT` (empty, truncated or corrupt).
/// - After a failure: nothing was made, `*image_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_from_encoded(
    bytes: *const u8,
    length: usize,
    options: *const etg_image_options,
    image_out: *mut *mut etg_image,
) -> i32 {
    let decode = |options: &DecodeOptions| {
        // SAFETY: bytes of the caller.
        Image::decode(unsafe { input::values(bytes, length, "bytes") }?, options)
    };
    // SAFETY: out-parameter of the caller.
    unsafe { make("etg_image_from_encoded", options, image_out, decode) }
}

/// Decode a picture file; as `etg_image_from_encoded`.
///
/// - Threads: any, several at once.
/// - Owns: `*image_out` is the caller's; free it with `etg_image_free`.
/// - Codes: as `etg_image_from_encoded`, and `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`; the message names the file.
/// - After a failure: nothing was made, `*image_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_from_file(
    path: *const c_char,
    path_length: usize,
    options: *const etg_image_options,
    image_out: *mut *mut etg_image,
) -> i32 {
    let open = |options: &DecodeOptions| {
        // SAFETY: text of the caller.
        Image::open(&unsafe { input::path(path, path_length, "path") }?, options)
    };
    // SAFETY: out-parameter of the caller.
    unsafe { make("etg_image_from_file", options, image_out, open) }
}

/// Make a picture from raw pixels, rows from top to bottom. `format` is an `ETG_PIXELS_` constant; `row_stride` is the
/// number of bytes from the start of one row to that of the next, and the last row may end after its last pixel.
/// `options` may be NULL: the defaults.
///
/// - Threads: any, several at once.
/// - Owns: the pixels are copied. `*image_out` is the caller's; free it with `etg_image_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a constant, a side of 0 or beyond the limits in the
///   options, a stride shorter than a row, too few bytes; the message has the numbers).
/// - After a failure: nothing was made, `*image_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_from_pixels(
    format: i32,
    width: usize,
    height: usize,
    row_stride: usize,
    data: *const u8,
    data_length: usize,
    options: *const etg_image_options,
    image_out: *mut *mut etg_image,
) -> i32 {
    let copy = |options: &DecodeOptions| {
        // SAFETY: bytes of the caller.
        let data = unsafe { input::values(data, data_length, "data") }?;
        Image::from_pixels(&Pixels { format: format_of(format)?, width, height, row_stride, data }, options)
    };
    // SAFETY: out-parameter of the caller.
    unsafe { make("etg_image_from_pixels", options, image_out, copy) }
}

/// Make a picture from a camera frame, by ITU-R BT.601. `options` may be NULL: the defaults.
///
/// - Threads: any, several at once.
/// - Owns: the planes are copied. `*image_out` is the caller's; free it with `etg_image_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a struct that was not initialised, a side of 0 or beyond the
///   limits in the options, strides that cannot be, too few bytes), `ETG_ERROR_UNSUPPORTED` (fields of a newer struct).
/// - After a failure: nothing was made, `*image_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_from_yuv420(
    frame: *const etg_yuv420,
    options: *const etg_image_options,
    image_out: *mut *mut etg_image,
) -> i32 {
    let convert = |options: &DecodeOptions| {
        // SAFETY: struct of the caller.
        let frame = unsafe { sized_struct::read(frame) }?;
        // SAFETY: planes of the caller.
        Image::from_yuv420(&unsafe { frame.planes() }?, options)
    };
    // SAFETY: out-parameter of the caller.
    unsafe { make("etg_image_from_yuv420", options, image_out, convert) }
}

/// Make a picture from a tensor [tiles, 3, height, width] that is already scaled and normalized; preprocessing passes
/// it on as it is. One tile is a picture that is not cut, several are crops in one row without an overview.
///
/// - Threads: any, several at once.
/// - Owns: the values are copied. `*image_out` is the caller's; free it with `etg_image_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, a size of 0, or another number of values than the sizes say).
/// - After a failure: nothing was made, `*image_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_from_tensor(
    values: *const f32,
    value_count: usize,
    tiles: usize,
    height: usize,
    width: usize,
    image_out: *mut *mut etg_image,
) -> i32 {
    let copy = |_: &DecodeOptions| {
        // SAFETY: values of the caller.
        let values = unsafe { input::values(values, value_count, "values") }?;
        Image::from_tensor(values.to_vec(), [tiles, 3, height, width])
    };
    // SAFETY: out-parameter of the caller.
    unsafe { make("etg_image_from_tensor", ptr::null(), image_out, copy) }
}

/// As `etg_image_from_tensor`, for tiles that lie in `tile_rows` rows of `tile_cols` crops, with the overview of the whole
/// picture as the last tile if `overview` is 1. A picture that is not cut is 0, 0, 1.
///
/// - Threads: any, several at once.
/// - Owns: the values are copied. `*image_out` is the caller's; free it with `etg_image_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, a size of 0, no tiles, a flag neither 0 nor 1, or another number of
///   values than the sizes say).
/// - After a failure: nothing was made, `*image_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_from_tiles(
    values: *const f32,
    value_count: usize,
    tile_rows: usize,
    tile_cols: usize,
    overview: i32,
    height: usize,
    width: usize,
    image_out: *mut *mut etg_image,
) -> i32 {
    let copy = |_: &DecodeOptions| {
        // SAFETY: values of the caller.
        let values = unsafe { input::values(values, value_count, "values") }?;
        let layout = layout(tile_rows, tile_cols, overview)?;
        Image::from_tensor_with_layout(values.to_vec(), [layout.tiles(), 3, height, width], layout)
    };
    // SAFETY: out-parameter of the caller.
    unsafe { make("etg_image_from_tiles", ptr::null(), image_out, copy) }
}

/// Free a picture. NULL is allowed and does nothing.
///
/// - Threads: any; messages that hold the picture keep it.
/// - Owns: takes the picture back; what was borrowed from it is gone.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live picture: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_image_free(image: *mut etg_image) -> i32 {
    guard("etg_image_free", || handle::free(image).map(|()| ETG_OK))
}

/// Width and height in pixels, after EXIF orientation; of a tensor those of its tiles.
///
/// - Threads: any, also several at once.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: `*width_out` and `*height_out` are 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_size(image: *const etg_image, width_out: *mut usize, height_out: *mut usize) -> i32 {
    guard("etg_image_size", || {
        // SAFETY: out-parameters of the caller.
        let mut width = unsafe { Out::new(width_out, 0, "width_out") }?;
        // SAFETY: as above.
        let mut height = unsafe { Out::new(height_out, 0, "height_out") }?;
        let image = handle::get(image)?;
        width.set(image.image.width());
        height.set(image.image.height());
        Ok(ETG_OK)
    })
}

/// The decoded pixels: red, green, blue, one byte each, row after row without gaps.
///
/// - Threads: any, also several at once.
/// - Owns: `*rgb_out` is borrowed from the picture and lives until `etg_image_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (it was made from a tensor).
/// - After a failure: `*rgb_out` is NULL and `*length_out` 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_rgb(
    image: *const etg_image,
    rgb_out: *mut *const u8,
    length_out: *mut usize,
) -> i32 {
    guard("etg_image_rgb", || {
        // SAFETY: out-parameters of the caller.
        let mut rgb = unsafe { Out::new(rgb_out, ptr::null(), "rgb_out") }?;
        // SAFETY: as above.
        let mut length = unsafe { Out::new(length_out, 0, "length_out") }?;
        let image = handle::get(image)?;
        let missing = || Error::InvalidState("the picture was made from a tensor and has no pixels".into());
        let bytes = image.image.rgb().ok_or_else(missing)?;
        // The table holds the picture, whose bytes never move or change, until it is freed.
        rgb.set(bytes.as_ptr());
        length.set(bytes.len());
        Ok(ETG_OK)
    })
}

/// SHA-256 of the picture's content (size and all pixels or values): equal pictures have equal hashes, whatever file they
/// came from. `hash_out` is a place for `ETG_IMAGE_HASH_BYTES` bytes.
///
/// - Threads: any, also several at once.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the bytes at `hash_out` are 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_content_hash(image: *const etg_image, hash_out: *mut u8) -> i32 {
    guard("etg_image_content_hash", || {
        let place = hash_out.cast::<[u8; ETG_IMAGE_HASH_BYTES]>();
        // SAFETY: a place of the caller's for that many bytes.
        let mut hash = unsafe { Out::new(place, [0; ETG_IMAGE_HASH_BYTES], "hash_out") }?;
        hash.set(handle::get(image)?.image.content_hash());
        Ok(ETG_OK)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_struct_has_no_padding() {
        assert_eq!(size_of::<etg_yuv420>(), 2 * 4 + 11 * size_of::<usize>());
    }
}
