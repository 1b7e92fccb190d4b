//! Pictures: from what a caller has to what a vision encoder takes.
//!
//! In reading order: the handle (`source`); what it is made from: encoded files (`decode`, `jpeg`), pixels in memory
//! (`pixels`, `yuv`), transparency (`alpha`); then the processor: its settings (`config`), the sizes a picture passes
//! through (`plan`, `tiles`), resampling (`resample`, `convolve`, `picture`), and the whole (`processor`).

mod alpha;
mod config;
mod convolve;
mod decode;
mod jpeg;
mod picture;
mod pixels;
mod plan;
mod processor;
mod resample;
mod source;
mod tiles;
mod yuv;

pub use alpha::Alpha;
pub use decode::DecodeOptions;
pub use pixels::{PixelFormat, Pixels};
pub use processor::{ImageFamily, ImageProcessor, PixelTensor};
pub use source::Image;
pub use tiles::{TileLayout, Tiling};
pub use yuv::{Yuv420, YuvRange};
