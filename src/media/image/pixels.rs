//! Raw pixels in memory.

use super::Alpha;
use super::decode::DecodeOptions;
use crate::{Error, Result};

/// How the bytes of one pixel are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PixelFormat {
    /// Red, green, blue.
    Rgb8,
    /// Red, green, blue, alpha (not premultiplied).
    Rgba8,
    /// Blue, green, red, alpha (not premultiplied).
    Bgra8,
    /// One byte of brightness.
    Gray8,
}

impl PixelFormat {
    /// Bytes of one pixel.
    pub fn bytes_per_pixel(self) -> usize {
        match self {
            PixelFormat::Rgb8 => 3,
            PixelFormat::Rgba8 | PixelFormat::Bgra8 => 4,
            PixelFormat::Gray8 => 1,
        }
    }

    /// The colour of one pixel of `bytes_per_pixel` bytes.
    #[inline]
    fn rgb(self, pixel: &[u8], alpha: Alpha) -> [u8; 3] {
        match (self, pixel) {
            (PixelFormat::Rgb8, &[r, g, b, ..]) => [r, g, b],
            (PixelFormat::Rgba8, &[r, g, b, a, ..]) | (PixelFormat::Bgra8, &[b, g, r, a, ..]) => {
                alpha.apply([r, g, b], a)
            }
            (_, pixel) => [pixel.first().copied().unwrap_or_default(); 3],
        }
    }
}

/// Pixels in the caller's memory, rows from top to bottom.
#[derive(Debug, Clone, Copy)]
pub struct Pixels<'a> {
    /// Layout of a pixel.
    pub format: PixelFormat,
    /// Pixels in a row, at least 1.
    pub width: usize,
    /// Rows, at least 1.
    pub height: usize,
    /// Bytes from the start of one row to the start of the next, at least `width * bytes_per_pixel`.
    pub row_stride: usize,
    /// The bytes. The last row may end after its last pixel, without the padding of the stride.
    pub data: &'a [u8],
}

/// The bytes of `pixels` as packed RGB.
///
/// # Errors
/// [`Error::InvalidArgument`] for sides of zero or beyond the limits, a stride shorter than a row, or too few bytes.
pub(super) fn to_rgb(pixels: &Pixels<'_>, options: &DecodeOptions) -> Result<Vec<u8>> {
    let &Pixels { format, width, height, row_stride, data } = pixels;
    options.check_size("pixels", width as u64, height as u64)?;
    let row_bytes = width.saturating_mul(format.bytes_per_pixel());
    check_plane("pixels", data.len(), row_bytes, row_stride, height)?;
    let mut rgb = Vec::with_capacity(width * height * 3);
    for row in data.chunks(row_stride).take(height) {
        for pixel in row[..row_bytes].chunks_exact(format.bytes_per_pixel()) {
            rgb.extend_from_slice(&format.rgb(pixel, options.alpha));
        }
    }
    Ok(rgb)
}

/// Checks that `available` bytes hold `rows` rows of `row_bytes` bytes that start `row_stride` bytes apart.
pub(super) fn check_plane(
    what: &str,
    available: usize,
    row_bytes: usize,
    row_stride: usize,
    rows: usize,
) -> Result<()> {
    if row_stride < row_bytes {
        return Err(Error::invalid(format!(
            "{what}: a row stride of {row_stride} bytes is shorter than a row of {row_bytes} bytes"
        )));
    }
    let needed = row_stride.checked_mul(rows.saturating_sub(1)).and_then(|bytes| bytes.checked_add(row_bytes));
    match needed {
        Some(needed) if needed <= available => Ok(()),
        _ => Err(Error::invalid(format!(
            "{what}: {rows} rows of {row_bytes} bytes, {row_stride} bytes apart, need {} bytes but there are \
             {available}",
            needed.map_or("too many".to_owned(), |bytes| bytes.to_string())
        ))),
    }
}
