//! The picture handle.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};

use super::super::hash::update_f32;
use super::decode::{self, DecodeOptions};
use super::pixels::{self, Pixels};
use super::tiles::TileLayout;
use super::yuv::{self, Yuv420};
use crate::{Error, Result};

/// A picture: decoded RGB bytes, or a ready encoder tensor.
///
/// Cheap to clone (the content is shared) and `Send + Sync`. Two pictures are equal if their content hashes are. `Debug`
/// shows the size only.
#[derive(Clone)]
pub struct Image {
    content: Arc<Content>,
}

struct Content {
    /// Pixels; of a tensor the sides of its tiles.
    width: usize,
    height: usize,
    kind: Kind,
    /// Computed when first asked for: a large picture takes a noticeable time.
    hash: OnceLock<[u8; 32]>,
}

enum Kind {
    /// Rows from top to bottom, three bytes a pixel.
    Rgb(Vec<u8>),
    /// `[tiles, 3, height, width]`.
    Tensor { values: Vec<f32>, layout: TileLayout },
}

impl Image {
    /// Decodes a JPEG, PNG, WebP, BMP or GIF file (the first frame of an animation).
    ///
    /// The orientation of the EXIF block is applied; a block that makes no sense is ignored. Grey, palette, 16-bit (the
    /// high byte of each sample), CMYK and YCCK become RGB; transparency is handled as `options` say. Colour profiles
    /// are not applied.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other formats, [`Error::InvalidArgument`] for a picture beyond the limits in
    /// `options` (checked before pixels are allocated), [`Error::Format`] for a file that is empty, truncated or
    /// corrupt.
    pub fn decode(bytes: &[u8], options: &DecodeOptions) -> Result<Image> {
        Image::decode_named("image", bytes, options)
    }

    /// [`decode`](Image::decode) of a file; errors name its path.
    ///
    /// # Errors
    /// As `decode`, and [`Error::NotFound`] or [`Error::Io`] if the file cannot be read.
    pub fn open(path: &Path, options: &DecodeOptions) -> Result<Image> {
        let bytes = decode::read_file(path, options)?;
        Image::decode_named(&path.display().to_string(), &bytes, options)
    }

    fn decode_named(name: &str, bytes: &[u8], options: &DecodeOptions) -> Result<Image> {
        let picture = decode::decode(name, bytes, options)?;
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        Ok(Image::new(width, height, Kind::Rgb(picture.into_raw())))
    }

    /// A copy of raw pixels.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for sides of zero or beyond the limits in `options`, a stride shorter than a row, or
    /// too few bytes.
    pub fn from_pixels(pixels: &Pixels<'_>, options: &DecodeOptions) -> Result<Image> {
        Ok(Image::new(pixels.width, pixels.height, Kind::Rgb(pixels::to_rgb(pixels, options)?)))
    }

    /// A camera frame, converted by ITU-R BT.601.
    ///
    /// # Errors
    /// As [`from_pixels`](Image::from_pixels).
    pub fn from_yuv420(planes: &Yuv420<'_>, options: &DecodeOptions) -> Result<Image> {
        Ok(Image::new(planes.width, planes.height, Kind::Rgb(yuv::to_rgb(planes, options)?)))
    }

    /// A tensor `[tiles, 3, height, width]` that is already normalized; preprocessing passes it on as it is.
    ///
    /// One tile is a picture that is not cut, several are crops in one row without an overview; name another layout
    /// with [`from_tensor_with_layout`](Image::from_tensor_with_layout).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a size is zero, the channels are not 3, or the values are not as many as the shape
    /// says.
    pub fn from_tensor(values: Vec<f32>, shape: [usize; 4]) -> Result<Image> {
        let layout = match shape[0] {
            0 | 1 => TileLayout::WHOLE,
            tiles => TileLayout { rows: 1, cols: tiles, overview: false },
        };
        Image::from_tensor_with_layout(values, shape, layout)
    }

    /// A tensor `[tiles, 3, height, width]` whose tiles lie as `layout` says.
    ///
    /// # Errors
    /// As [`from_tensor`](Image::from_tensor), and if `layout` does not have as many tiles as the shape.
    pub fn from_tensor_with_layout(values: Vec<f32>, shape: [usize; 4], layout: TileLayout) -> Result<Image> {
        let [tiles, channels, height, width] = shape;
        if channels != 3 || shape.contains(&0) {
            return Err(Error::invalid(format!(
                "a picture tensor of shape {shape:?}: it must be [tiles, 3, height, width] without zeros"
            )));
        }
        if layout.checked_tiles() != Some(tiles) {
            return Err(Error::invalid(format!(
                "a picture tensor of {tiles} tiles with a layout of {} rows, {} columns and {} overview",
                layout.rows,
                layout.cols,
                if layout.overview { "an" } else { "no" }
            )));
        }
        let needed = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        if needed != Some(values.len()) {
            return Err(Error::invalid(format!(
                "a picture tensor of shape {shape:?} with {} values: it needs {}",
                values.len(),
                needed.map_or("too many".to_owned(), |count| count.to_string())
            )));
        }
        Ok(Image::new(width, height, Kind::Tensor { values, layout }))
    }

    fn new(width: usize, height: usize, kind: Kind) -> Image {
        Image { content: Arc::new(Content { width, height, kind, hash: OnceLock::new() }) }
    }

    /// Width in pixels; of a tensor the width of its tiles.
    pub fn width(&self) -> usize {
        self.content.width
    }

    /// Height in pixels; of a tensor the height of its tiles.
    pub fn height(&self) -> usize {
        self.content.height
    }

    /// The pixels, three bytes each, row after row; `None` for a tensor.
    pub fn rgb(&self) -> Option<&[u8]> {
        match &self.content.kind {
            Kind::Rgb(bytes) => Some(bytes),
            Kind::Tensor { .. } => None,
        }
    }

    /// The values `[tiles, 3, height, width]` of a tensor and how its tiles lie; `None` for pixels.
    pub fn tensor(&self) -> Option<(&[f32], TileLayout)> {
        match &self.content.kind {
            Kind::Rgb(_) => None,
            Kind::Tensor { values, layout } => Some((values, *layout)),
        }
    }

    /// SHA-256 over the kind, the size and all bytes (little endian). Computed once.
    pub fn content_hash(&self) -> [u8; 32] {
        *self.content.hash.get_or_init(|| self.content.sha256())
    }
}

impl Content {
    fn sha256(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut number = |value: usize| hash.update((value as u64).to_le_bytes());
        number(self.width);
        number(self.height);
        match &self.kind {
            Kind::Rgb(bytes) => {
                hash.update(b"rgb8");
                hash.update(bytes);
            }
            Kind::Tensor { values, layout } => {
                number(layout.rows);
                number(layout.cols);
                number(usize::from(layout.overview));
                hash.update(b"f32 tensor");
                update_f32(&mut hash, values);
            }
        }
        hash.finalize().into()
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Image) -> bool {
        Arc::ptr_eq(&self.content, &other.content) || self.content_hash() == other.content_hash()
    }
}

impl Eq for Image {}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.content.kind {
            Kind::Rgb(_) => write!(f, "Image({}x{})", self.width(), self.height()),
            Kind::Tensor { layout, .. } => {
                write!(f, "Image(tensor [{}, 3, {}, {}])", layout.tiles(), self.height(), self.width())
            }
        }
    }
}
