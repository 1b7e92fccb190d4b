//! The encoder of pictures or sound: a loaded component that makes rows of one input.

use crate::chat::ImageMarkup;
use crate::engine::{ExecuteOptions, LoadedComponent};
use crate::error::{Error, Result};
use crate::graph::{DType, Tensor, TensorView};
use crate::media::{AudioProcessor, ImageProcessor, Tiling};
use std::time::Instant;

/// What a runner needs to look at pictures or listen to sound.
pub struct MediaParts {
    /// The loaded component `vision_encoder` or `audio_encoder`.
    pub encoder: Box<dyn LoadedComponent>,
    /// Pictures or sound to the inputs it takes.
    pub processor: MediaProcessor,
    /// The tokens around the rows in a prompt.
    pub markup: ImageMarkup,
    /// Identifies the encoder's weights and graph, so that cached rows are never those of another model.
    pub model_key: [u8; 32],
    /// Most bytes of rows kept for pictures or sound that come again; 0 turns the cache off.
    pub cache_bytes: usize,
}

/// How media become inputs of the encoder, and with it which media the model takes.
#[derive(Debug, Clone, PartialEq)]
pub enum MediaProcessor {
    /// Pictures: one input a tile.
    Image {
        /// Pictures to tiles.
        processor: ImageProcessor,
        /// How pictures are cut.
        tiling: Tiling,
    },
    /// Sound: one input each.
    Audio(AudioProcessor),
}

/// A loaded encoder: graph `[1, …]` f32 → `[1, T, E]` f32. Vision encoders take `[1, 3, S, S]`, Granite-speech's audio
/// encoder takes `[1, frames, features]`.
pub struct MediaEncoder {
    component: Box<dyn LoadedComponent>,
    graph: usize,
    input_shape: Vec<usize>,
    rows: Tensor,
    rows_per_input: usize,
    width: usize,
    engine_ms: f64,
}

/// Name of the graph, if there are several.
const FORWARD: &str = "forward";

impl MediaEncoder {
    /// Set an encoder up.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the graph and its shapes if it is of another kind.
    pub fn new(component: Box<dyn LoadedComponent>) -> Result<Self> {
        let graphs = component.graphs();
        let graph = graphs.iter().position(|graph| graph.name == FORWARD || graphs.len() == 1);
        let graph = graph.ok_or_else(|| {
            let names = graphs.iter().map(|graph| graph.name.as_str()).collect::<Vec<_>>().join(", ");
            Error::invalid(format!("the encoder has no graph {FORWARD}; it has: {names}"))
        })?;
        let signature = &graphs[graph];
        let misfit = || Error::invalid(format!("graph {} is no encoder: {signature:?}", signature.name));
        let ([input], [rows]) = (&signature.inputs[..], &signature.outputs[..]) else { return Err(misfit()) };
        let (&[1, ref sizes @ ..], &[1, rows_per_input, row_width]) = (&input.shape[..], &rows.shape[..]) else {
            return Err(misfit());
        };
        let has_size = !sizes.is_empty() && !sizes.contains(&0) && input.size_bytes().is_some();
        let sizes_fit = has_size && rows_per_input > 0 && row_width > 0;
        if !sizes_fit || input.dtype != DType::F32 || rows.dtype != DType::F32 {
            return Err(misfit());
        }
        let (input_shape, rows) = (input.shape.clone(), component.allocate(rows)?);
        Ok(Self { component, graph, input_shape, rows, rows_per_input, width: row_width, engine_ms: 0.0 })
    }

    /// Shape of an input; the first size is 1.
    pub fn input_shape(&self) -> &[usize] {
        &self.input_shape
    }

    /// Numbers of an input.
    pub fn input_len(&self) -> usize {
        self.input_shape.iter().product()
    }

    /// Side of the square tile that a vision encoder takes, in pixels; `None` for other inputs.
    pub fn tile_size(&self) -> Option<usize> {
        match self.input_shape[..] {
            [1, 3, height, width] if height == width => Some(width),
            _ => None,
        }
    }

    /// T: rows of one input.
    pub fn rows_per_input(&self) -> usize {
        self.rows_per_input
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

    /// That `input` has as many numbers as the encoder takes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with both numbers.
    pub fn check_len(&self, input: &[f32]) -> Result<()> {
        let (have, want) = (input.len(), self.input_len());
        if have == want {
            return Ok(());
        }
        let sizes = self.input_shape[1..].iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
        Err(Error::invalid(format!("an input of {have} numbers, but the encoder takes {want}: {sizes}")))
    }

    /// Encode one input: a tile `[3, S, S]` or features, normalized. Gives `[T, E]` row-major, valid until the next call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with both numbers for an input of another size; what the engine reports.
    pub fn encode(&mut self, input: &[f32]) -> Result<&[f32]> {
        self.check_len(input)?;
        let input = TensorView { dtype: DType::F32, shape: &self.input_shape, bytes: bytemuck::cast_slice(input) };
        let started = Instant::now();
        let outcome =
            self.component.execute(self.graph, &[input], &mut [self.rows.view_mut()], &ExecuteOptions::default());
        self.engine_ms += started.elapsed().as_secs_f64() * 1000.0;
        outcome?;
        self.rows.as_slice::<f32>()
    }
}
