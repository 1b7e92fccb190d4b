//! Media in: image bytes to encoder tensors. Knows pixels and preprocessing settings, no models and no graphs.
//!
//! - [`Image`]: a picture, from encoded bytes, raw pixels, camera planes or as a ready tensor;
//! - [`ImageProcessor`]: sizes, tiles, resampling and normalization as the checkpoint's own settings say;
//! - [`PixelTensor`]: what one call of [`ImageProcessor::process`] hands to a vision encoder.
//!
//! Resampling gives the bytes of Pillow, the library the published processors were made with.

pub mod image;

pub use image::{
    Alpha, DecodeOptions, Image, ImageFamily, ImageProcessor, PixelFormat, PixelTensor, Pixels, TileLayout, Tiling,
    Yuv420, YuvRange,
};
