//! The vision encoder: a loaded component that makes rows of one tile.

use super::row_encoder::RowEncoder;
use crate::chat::ImageMarkup;
use crate::engine::LoadedComponent;
use crate::error::{Error, Result};
use crate::media::{ImageProcessor, Tiling};

/// What a runner needs to look at pictures.
pub struct VisionParts {
    /// The loaded component `vision_encoder`.
    pub encoder: Box<dyn LoadedComponent>,
    /// Pictures to the tiles it takes.
    pub processor: ImageProcessor,
    /// How pictures are cut.
    pub tiling: Tiling,
    /// The tokens around a picture in a prompt.
    pub markup: ImageMarkup,
    /// Identifies the encoder's weights and graph, so that cached rows are never those of another model.
    pub model_key: [u8; 32],
    /// Most bytes of rows kept for pictures that come again; 0 turns the cache off.
    pub cache_bytes: usize,
}

/// A loaded vision encoder: graph `[1, 3, S, S]` f32 → `[1, T, E]` f32.
pub struct VisionEncoder(RowEncoder);

impl VisionEncoder {
    /// Set an encoder up.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the graph and its shapes if it is of another kind.
    pub fn new(component: Box<dyn LoadedComponent>) -> Result<Self> {
        let is_square = |shape: &[usize]| matches!(shape, &[1, 3, height, width] if height == width);
        RowEncoder::new(component, "vision encoder", is_square).map(Self)
    }

    /// Side of a tile, in pixels.
    pub fn tile_size(&self) -> usize {
        self.0.shape().last().copied().unwrap_or_default()
    }

    /// T: rows of one tile.
    pub fn rows_per_tile(&self) -> usize {
        self.0.row_count()
    }

    /// E: numbers of a row.
    pub fn width(&self) -> usize {
        self.0.width()
    }

    /// Milliseconds spent in the engine since creation.
    pub fn engine_ms(&self) -> f64 {
        self.0.engine_ms()
    }

    /// The loaded component.
    pub fn component(&self) -> &dyn LoadedComponent {
        self.0.component()
    }

    /// The loaded component, to switch profiling.
    pub fn component_mut(&mut self) -> &mut dyn LoadedComponent {
        self.0.component_mut()
    }

    /// Encode one tile `[3, S, S]`, normalized; gives `[T, E]` row-major, valid until the next call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with both numbers for a tile of another size; what the engine reports.
    pub fn encode_tile(&mut self, tile: &[f32]) -> Result<&[f32]> {
        let wanted: usize = self.0.shape().iter().product();
        if tile.len() != wanted {
            let (have, side) = (tile.len(), self.tile_size());
            return Err(Error::invalid(format!("a tile has {have} numbers, the encoder takes 3 x {side} x {side}")));
        }
        self.0.encode(tile)
    }
}
