//! Media in: image bytes to encoder tensors. Knows pixels and preprocessing settings, no models and no graphs.
//!
//! - [`Image`]: a picture, from encoded bytes, raw pixels, camera planes or as a ready tensor;
//! - [`ImageProcessor`]: sizes, tiles, resampling and normalization as the checkpoint's own settings say;
//! - [`PixelTensor`]: what one call of [`ImageProcessor::process`] hands to a vision encoder;
//! - [`Embedding`]: what the encoder made of it, rows that stand in a prompt in the place of the picture.
//!
//! Resampling gives the bytes of Pillow, the library the published processors were made with.

mod embedding;
pub mod image;

pub use embedding::Embedding;
pub use image::{
    Alpha, DecodeOptions, Image, ImageFamily, ImageProcessor, PixelFormat, PixelTensor, Pixels, TileLayout, Tiling,
    Yuv420, YuvRange,
};
