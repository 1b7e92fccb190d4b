//! Encoded files to RGB.

use std::fs::File;
use std::io::{Cursor, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, RgbImage};

use super::{Alpha, jpeg};
use crate::{Error, Result};

/// The formats there are, with the names error messages use.
const FORMATS: [(ImageFormat, &str); 5] = [
    (ImageFormat::Jpeg, "JPEG"),
    (ImageFormat::Png, "PNG"),
    (ImageFormat::WebP, "WebP"),
    (ImageFormat::Bmp, "BMP"),
    (ImageFormat::Gif, "GIF"),
];

/// The longest side of a picture, in pixels: what a JPEG file can hold. Keeps a strip of one pixel by millions from
/// becoming millions of rows of a tile's width.
const MAX_SIDE: u64 = 65_535;

/// Bytes a decoder may take beside the pixels: colour profiles, comments, tables.
const ANCILLARY_BYTES: u64 = 16 << 20;

/// Limits and choices of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeOptions {
    /// The most pixels (width times height) a picture may have: 67,108,864 by default, so that 8000 by 8000 passes.
    /// Checked on the header, before pixels are allocated. No side may be longer than 65,535.
    pub max_pixels: u64,
    /// The most bytes an encoded file may have: 256 MiB by default.
    pub max_bytes: u64,
    /// What becomes of an alpha channel.
    pub alpha: Alpha,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        DecodeOptions { max_pixels: 1 << 26, max_bytes: 256 << 20, alpha: Alpha::default() }
    }
}

impl DecodeOptions {
    /// Checks a size in pixels against the limits.
    pub(super) fn check_size(&self, what: &str, width: u64, height: u64) -> Result<()> {
        if width == 0 || height == 0 {
            return Err(Error::invalid(format!("{what}: {width}x{height} pixels: a picture has at least one")));
        }
        if width.max(height) > MAX_SIDE {
            return Err(Error::invalid(format!(
                "{what}: {width}x{height} pixels: no side may be longer than {MAX_SIDE} pixels"
            )));
        }
        let pixels = width.saturating_mul(height);
        if pixels > self.max_pixels {
            return Err(Error::invalid(format!(
                "{what}: {width}x{height} = {pixels} pixels, but the limit max_pixels is {}: scale the picture down or \
                 raise the limit",
                self.max_pixels
            )));
        }
        Ok(())
    }

    fn check_bytes(&self, name: &str, bytes: u64) -> Result<()> {
        if bytes > self.max_bytes {
            return Err(Error::invalid(format!(
                "{name}: {bytes} bytes, but the limit max_bytes of an encoded picture is {}",
                self.max_bytes
            )));
        }
        Ok(())
    }
}

/// The bytes of a file, at most `options.max_bytes`.
pub(super) fn read_file(path: &Path, options: &DecodeOptions) -> Result<Vec<u8>> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| Error::io(path, error))?;
    let length = file.metadata().map_err(|error| Error::io(path, error))?.len();
    options.check_bytes(&name, length)?;
    // A pipe or device has no length to check beforehand.
    let mut bytes = Vec::new();
    let mut limited = file.take(options.max_bytes.saturating_add(1));
    limited.read_to_end(&mut bytes).map_err(|error| Error::io(path, error))?;
    options.check_bytes(&name, bytes.len() as u64)?;
    Ok(bytes)
}

/// Decodes a file to RGB, upright. `name` is what errors call it.
pub(super) fn decode(name: &str, bytes: &[u8], options: &DecodeOptions) -> Result<RgbImage> {
    options.check_bytes(name, bytes.len() as u64)?;
    let (format, format_name) = recognize(name, bytes)?;
    // The decoders are other people's code fed with a stranger's bytes: should one of them panic, the picture is bad,
    // not the process. They share no state with anything else.
    match catch_unwind(AssertUnwindSafe(|| decode_as(name, format, format_name, bytes, options))) {
        Ok(result) => result,
        Err(_) => Err(Error::format(name, format_name, "the decoder gave up on this file: it is corrupt")),
    }
}

fn recognize(name: &str, bytes: &[u8]) -> Result<(ImageFormat, &'static str)> {
    if bytes.is_empty() {
        return Err(Error::format(name, "length", "0 bytes: a picture was expected"));
    }
    let guessed = image::guess_format(bytes).ok();
    if let Some(known) = FORMATS.into_iter().find(|(format, _)| Some(*format) == guessed) {
        return Ok(known);
    }
    let found = match guessed {
        Some(format) => format!("a {format:?} file"),
        None => format!("bytes {:02x?}", &bytes[..bytes.len().min(8)]),
    };
    let names = FORMATS.map(|(_, name)| name).join(", ");
    Err(Error::Unsupported(format!("{name}: unknown picture format ({found}): use one of {names}")))
}

fn decode_as(
    name: &str,
    format: ImageFormat,
    format_name: &str,
    bytes: &[u8],
    options: &DecodeOptions,
) -> Result<RgbImage> {
    let corrupt = |error: image::ImageError| Error::format(name, format_name, error.to_string());
    match format {
        ImageFormat::Png => check_png_size(name, bytes, options)?,
        ImageFormat::Jpeg => jpeg::check_complete(bytes).map_err(|why| Error::format(name, format_name, why))?,
        ImageFormat::WebP => check_webp_length(name, bytes)?,
        _ => {}
    }
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::no_limits();
    // Four samples of 16 bits are the widest pixel.
    limits.max_alloc = Some(options.max_pixels.saturating_mul(8).saturating_add(ANCILLARY_BYTES));
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(corrupt)?;
    let (width, height) = decoder.dimensions();
    options.check_size(name, width.into(), height.into())?;
    let orientation = orientation(&mut decoder);
    let picture = DynamicImage::from_decoder(decoder).map_err(corrupt)?;
    Ok(upright(to_rgb(picture, options.alpha), orientation))
}

/// The size of a PNG is at a fixed place, and the decoder would read on to the pixels before it tells.
fn check_png_size(name: &str, bytes: &[u8], options: &DecodeOptions) -> Result<()> {
    let number = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes);
    match (number(16), number(20)) {
        (Some(width), Some(height)) => options.check_size(name, width.into(), height.into()),
        _ => Err(Error::format(name, "PNG", "the file ends within its header")),
    }
}

/// The decoder stops at the pixels, but an orientation may follow them.
fn check_webp_length(name: &str, bytes: &[u8]) -> Result<()> {
    let claimed = bytes.get(4..8).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes).unwrap_or_default();
    let needed = u64::from(claimed) + 8;
    if needed > bytes.len() as u64 {
        let reason = format!("truncated: {} of {needed} bytes", bytes.len());
        return Err(Error::format(name, "WebP", reason));
    }
    Ok(())
}

/// EXIF orientation; upright if there is none or none that makes sense.
fn orientation(decoder: &mut impl ImageDecoder) -> Orientation {
    let exif = decoder.exif_metadata().ok().flatten().unwrap_or_default();
    // Some writers of WebP and PNG keep the prefix the block has in JPEG files.
    let block = exif.strip_prefix(b"Exif\0\0").unwrap_or(&exif);
    Orientation::from_exif_chunk(block).unwrap_or(Orientation::NoTransforms)
}

fn upright(picture: RgbImage, orientation: Orientation) -> RgbImage {
    if orientation == Orientation::NoTransforms {
        return picture;
    }
    let mut picture = DynamicImage::ImageRgb8(picture);
    picture.apply_orientation(orientation);
    picture.into_rgb8()
}

/// Any layout of samples to RGB. Of 16-bit samples the high byte is taken.
fn to_rgb(picture: DynamicImage, alpha: Alpha) -> RgbImage {
    let (width, height) = (picture.width(), picture.height());
    let high = |sample: u16| (sample >> 8) as u8;
    let rgb = match picture {
        DynamicImage::ImageRgb8(rgb) => return rgb,
        DynamicImage::ImageLuma8(samples) => flatten::<1, _>(&samples, |byte| byte, alpha),
        DynamicImage::ImageLumaA8(samples) => flatten::<2, _>(&samples, |byte| byte, alpha),
        DynamicImage::ImageRgba8(samples) => flatten::<4, _>(&samples, |byte| byte, alpha),
        DynamicImage::ImageLuma16(samples) => flatten::<1, _>(&samples, high, alpha),
        DynamicImage::ImageLumaA16(samples) => flatten::<2, _>(&samples, high, alpha),
        DynamicImage::ImageRgb16(samples) => flatten::<3, _>(&samples, high, alpha),
        DynamicImage::ImageRgba16(samples) => flatten::<4, _>(&samples, high, alpha),
        // Floating point, which none of the formats here has.
        other => return other.into_rgb8(),
    };
    RgbImage::from_raw(width, height, rgb).unwrap_or_default()
}

/// Pixels of `N` samples (grey, grey and alpha, RGB, RGBA) to RGB bytes.
fn flatten<const N: usize, T: Copy>(samples: &[T], byte: impl Fn(T) -> u8, alpha: Alpha) -> Vec<u8> {
    let mut rgb = Vec::with_capacity(samples.len() / N * 3);
    for pixel in samples.as_chunks::<N>().0 {
        let levels: [u8; N] = pixel.map(&byte);
        rgb.extend_from_slice(&match levels[..] {
            [grey, a] => alpha.apply([grey; 3], a),
            [r, g, b] => [r, g, b],
            [r, g, b, a] => alpha.apply([r, g, b], a),
            _ => [levels[0]; 3],
        });
    }
    rgb
}
