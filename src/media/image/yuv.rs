//! Camera frames: planes of brightness and colour difference.

use super::decode::DecodeOptions;
use super::pixels::check_plane;
use crate::{Error, Result};

/// What the bytes of a YUV frame span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum YuvRange {
    /// 0 to 255 for all three, as in JPEG files and most camera streams of phones.
    #[default]
    Full,
    /// 16 to 235 for Y, 16 to 240 for U and V, as in video.
    Limited,
}

/// A YUV 4:2:0 frame in the caller's memory: full-size brightness, colour at half the width and height.
///
/// Colour planes have `(width + 1) / 2` by `(height + 1) / 2` samples. `uv_pixel_stride` 1 is planar (I420; swap `u`
/// and `v` for YV12), 2 is interleaved: for NV12 `u` is the chroma buffer and `v` the same buffer from its second byte
/// on, for NV21 the other way round, which is also how Android's `Image` hands out its planes.
#[derive(Debug, Clone, Copy)]
pub struct Yuv420<'a> {
    /// Pixels in a row, at least 1; may be odd.
    pub width: usize,
    /// Rows, at least 1; may be odd.
    pub height: usize,
    /// Brightness.
    pub y: &'a [u8],
    /// Bytes between the starts of two rows of `y`.
    pub y_row_stride: usize,
    /// Blue difference (Cb).
    pub u: &'a [u8],
    /// Red difference (Cr).
    pub v: &'a [u8],
    /// Bytes between the starts of two rows of `u` and of `v`.
    pub uv_row_stride: usize,
    /// Bytes between two samples of `u` and of `v`: 1 or 2.
    pub uv_pixel_stride: usize,
    /// What the bytes span.
    pub range: YuvRange,
}

/// `frame` as packed RGB, by ITU-R BT.601. One colour sample serves the four pixels it was taken from.
///
/// # Errors
/// [`Error::InvalidArgument`] for sides of zero or beyond the limits, strides that cannot be, or too few bytes.
pub(super) fn to_rgb(frame: &Yuv420<'_>, options: &DecodeOptions) -> Result<Vec<u8>> {
    let &Yuv420 { width, height, uv_pixel_stride, .. } = frame;
    options.check_size("YUV 4:2:0 frame", width as u64, height as u64)?;
    if !(1..=2).contains(&uv_pixel_stride) {
        return Err(Error::invalid(format!(
            "YUV 4:2:0 frame: a chroma pixel stride of {uv_pixel_stride} bytes: use 1 (planar) or 2 (interleaved)"
        )));
    }
    let (chroma_width, chroma_height) = (width.div_ceil(2), height.div_ceil(2));
    // An interleaved plane ends with its own last sample, one byte before the other plane's.
    let chroma_row = (chroma_width - 1) * uv_pixel_stride + 1;
    check_plane("Y plane", frame.y.len(), width, frame.y_row_stride, height)?;
    check_plane("U plane", frame.u.len(), chroma_row, frame.uv_row_stride, chroma_height)?;
    check_plane("V plane", frame.v.len(), chroma_row, frame.uv_row_stride, chroma_height)?;

    let matrix = Matrix::of(frame.range);
    let mut rgb = Vec::with_capacity(width * height * 3);
    for row in 0..height {
        let chroma = row / 2 * frame.uv_row_stride;
        let y = &frame.y[row * frame.y_row_stride..][..width];
        let u = frame.u[chroma..][..chroma_row].iter().step_by(uv_pixel_stride);
        let v = frame.v[chroma..][..chroma_row].iter().step_by(uv_pixel_stride);
        for ((pair, &u), &v) in y.chunks(2).zip(u).zip(v) {
            for &y in pair {
                rgb.extend_from_slice(&matrix.rgb(y, u, v));
            }
        }
    }
    Ok(rgb)
}

/// Bits behind the binary point of the matrix.
const FRACTION: u32 = 16;

/// BT.601 in fixed point; rows of the inverse of the matrix of ITU-R BT.601-7, 2.5.
struct Matrix {
    y_offset: i32,
    y: i32,
    v_to_red: i32,
    u_to_green: i32,
    v_to_green: i32,
    u_to_blue: i32,
}

impl Matrix {
    fn of(range: YuvRange) -> Matrix {
        // Chroma spans 224 of 255 levels in limited range, brightness 219.
        let (y_offset, y, chroma) = match range {
            YuvRange::Full => (0, 1.0, 1.0),
            YuvRange::Limited => (16, 255.0 / 219.0, 255.0 / 224.0),
        };
        let fixed = |factor: f64| (factor * f64::from(1 << FRACTION)).round() as i32;
        Matrix {
            y_offset,
            y: fixed(y),
            v_to_red: fixed(1.402 * chroma),
            u_to_green: fixed(0.344_136_286 * chroma),
            v_to_green: fixed(0.714_136_286 * chroma),
            u_to_blue: fixed(1.772 * chroma),
        }
    }

    #[inline]
    fn rgb(&self, y: u8, u: u8, v: u8) -> [u8; 3] {
        let y = (i32::from(y) - self.y_offset) * self.y + (1 << (FRACTION - 1));
        let (u, v) = (i32::from(u) - 128, i32::from(v) - 128);
        let level = |sum: i32| (sum >> FRACTION).clamp(0, 255) as u8;
        [
            level(y + self.v_to_red * v),
            level(y - self.u_to_green * u - self.v_to_green * v),
            level(y + self.u_to_blue * u),
        ]
    }
}
