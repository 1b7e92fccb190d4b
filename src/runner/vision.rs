//! The vision encoder: a loaded component that makes rows of one tile.

use crate::chat::ImageMarkup;
use crate::engine::{ExecuteOptions, LoadedComponent};
use crate::error::{Error, Result};
use crate::graph::{DType, Tensor, TensorView};
use crate::media::{ImageProcessor, Tiling};
use std::time::Instant;

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
pub struct VisionEncoder {
    component: Box<dyn LoadedComponent>,
    graph: usize,
    pixels: Vec<usize>,
    rows: Tensor,
    rows_per_tile: usize,
    width: usize,
    engine_ms: f64,
}

/// Name of the graph, if there are several.
const FORWARD: &str = "forward";

impl VisionEncoder {
    /// Set an encoder up.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the graph and its shapes if it is of another kind.
    pub fn new(component: Box<dyn LoadedComponent>) -> Result<Self> {
        let graphs = component.graphs();
        let graph = graphs.iter().position(|graph| graph.name == FORWARD || graphs.len() == 1);
        let graph = graph.ok_or_else(|| {
            let names = graphs.iter().map(|graph| graph.name.as_str()).collect::<Vec<_>>().join(", ");
            Error::invalid(format!("the vision encoder has no graph {FORWARD}; it has: {names}"))
        })?;
        let signature = &graphs[graph];
        let misfit = || Error::invalid(format!("graph {} is no vision encoder: {signature:?}", signature.name));
        let ([pixels], [rows]) = (&signature.inputs[..], &signature.outputs[..]) else { return Err(misfit()) };
        let (&[1, 3, height, width], &[1, rows_per_tile, row_width]) = (&pixels.shape[..], &rows.shape[..]) else {
            return Err(misfit());
        };
        let sizes_fit = height == width && height > 0 && rows_per_tile > 0 && row_width > 0;
        if !sizes_fit || pixels.dtype != DType::F32 || rows.dtype != DType::F32 {
            return Err(misfit());
        }
        let (pixels, rows) = (pixels.shape.clone(), Tensor::zeros(rows.clone())?);
        Ok(Self { component, graph, pixels, rows, rows_per_tile, width: row_width, engine_ms: 0.0 })
    }

    /// Side of a tile, in pixels.
    pub fn tile_size(&self) -> usize {
        self.pixels.last().copied().unwrap_or_default()
    }

    /// T: rows of one tile.
    pub fn rows_per_tile(&self) -> usize {
        self.rows_per_tile
    }

    /// E: numbers of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Milliseconds spent in the engine since creation.
    pub fn engine_ms(&self) -> f64 {
        self.engine_ms
    }

    /// The loaded component.
    pub fn component(&self) -> &dyn LoadedComponent {
        self.component.as_ref()
    }

    /// The loaded component, to switch profiling.
    pub fn component_mut(&mut self) -> &mut dyn LoadedComponent {
        self.component.as_mut()
    }

    /// Encode one tile `[3, S, S]`, normalized; gives `[T, E]` row-major, valid until the next call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with both numbers for a tile of another size; what the engine reports.
    pub fn encode_tile(&mut self, tile: &[f32]) -> Result<&[f32]> {
        let wanted: usize = self.pixels.iter().product();
        if tile.len() != wanted {
            let (have, side) = (tile.len(), self.tile_size());
            return Err(Error::invalid(format!("a tile has {have} numbers, the encoder takes 3 x {side} x {side}")));
        }
        let pixels = TensorView { dtype: DType::F32, shape: &self.pixels, bytes: bytemuck::cast_slice(tile) };
        let started = Instant::now();
        let outcome =
            self.component.execute(self.graph, &[pixels], &mut [self.rows.view_mut()], &ExecuteOptions::default());
        self.engine_ms += started.elapsed().as_secs_f64() * 1000.0;
        outcome?;
        self.rows.as_slice::<f32>()
    }
}
