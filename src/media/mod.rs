//! Media in: bytes of images and sound to encoder tensors. Knows pixels, samples and preprocessing settings, no models
//! and no graphs.
//!
//! - [`Image`]: a picture, from encoded bytes, raw pixels, camera planes or as a ready tensor;
//! - [`ImageProcessor`]: sizes, tiles, resampling and normalization as the checkpoint's own settings say;
//! - [`PixelTensor`]: what one call of [`ImageProcessor::process`] hands to a vision encoder;
//! - [`Audio`]: a piece of sound, from a WAV file, samples or as a ready tensor;
//! - [`AudioProcessor`]: samples to mel spectrograms, [`FeatureTensor`]: what it hands to an audio encoder;
//! - [`Embedding`]: what an encoder made of either, rows that stand in a prompt in its place.
//!
//! Resampling gives the bytes of Pillow, the library the published processors were made with.

pub mod audio;
mod embedding;
mod hash;
pub mod image;

pub use audio::{Audio, AudioProcessor, FeatureTensor};
pub use embedding::Embedding;
pub use image::{
    Alpha, DecodeOptions, Image, ImageFamily, ImageProcessor, PixelFormat, PixelTensor, Pixels, TileLayout, Tiling,
    Yuv420, YuvRange,
};
