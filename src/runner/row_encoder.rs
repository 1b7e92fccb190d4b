//! Encoders: components that make rows of a tensor.

use crate::engine::{ExecuteOptions, GraphSignature, LoadedComponent};
use crate::error::{Error, Result};
use crate::graph::{DType, Tensor, TensorView};
use std::time::Instant;

/// Name of the graph, if there are several.
const FORWARD: &str = "forward";

/// A loaded encoder: one graph, f32 of any fixed shape → `[1, T, E]` f32.
pub(super) struct RowEncoder {
    component: Box<dyn LoadedComponent>,
    graph: usize,
    /// Shape of the input.
    shape: Vec<usize>,
    rows: Tensor,
    row_count: usize,
    width: usize,
    engine_ms: f64,
}

impl RowEncoder {
    /// Set an encoder up. `kind` is what errors call it, e.g. `vision encoder`; `takes` says which inputs fit.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the graph and its shapes if it is of another kind.
    pub fn new(component: Box<dyn LoadedComponent>, kind: &str, takes: fn(&[usize]) -> bool) -> Result<Self> {
        let graphs = component.graphs();
        let graph = graphs.iter().position(|graph| graph.name == FORWARD || graphs.len() == 1);
        let signature = graph.and_then(|graph| graphs.get(graph));
        let (Some(graph), Some(signature)) = (graph, signature) else {
            let names = graphs.iter().map(|graph| graph.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(Error::invalid(format!("the {kind} has no graph {FORWARD}; it has: {names}")));
        };
        let misfit = || Error::invalid(format!("graph {} is no {kind}: {signature:?}", signature.name));
        let (shape, row_count, width) = shapes_of(signature).ok_or_else(misfit)?;
        if !takes(&shape) {
            return Err(misfit());
        }
        let rows = component.allocate(&signature.outputs[0])?;
        Ok(Self { graph, shape, rows, row_count, width, engine_ms: 0.0, component })
    }

    /// Shape of the input.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// T: rows of one input.
    pub fn row_count(&self) -> usize {
        self.row_count
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

    /// Encode one input, which must fill the shape; gives `[T, E]` row-major, valid until the next call.
    ///
    /// # Errors
    /// What the engine reports.
    pub fn encode(&mut self, values: &[f32]) -> Result<&[f32]> {
        let input = TensorView { dtype: DType::F32, shape: &self.shape, bytes: bytemuck::cast_slice(values) };
        let started = Instant::now();
        let outcome =
            self.component.execute(self.graph, &[input], &mut [self.rows.view_mut()], &ExecuteOptions::default());
        self.engine_ms += started.elapsed().as_secs_f64() * 1000.0;
        outcome?;
        self.rows.as_slice::<f32>()
    }
}

/// Input shape, rows and width of a graph that makes rows of one tensor.
fn shapes_of(signature: &GraphSignature) -> Option<(Vec<usize>, usize, usize)> {
    let ([input], [rows]) = (&signature.inputs[..], &signature.outputs[..]) else { return None };
    let &[1, row_count, width] = &rows.shape[..] else { return None };
    let is_empty = row_count == 0 || width == 0 || input.shape.contains(&0);
    let are_floats = input.dtype == DType::F32 && rows.dtype == DType::F32;
    (!is_empty && are_floats).then(|| (input.shape.clone(), row_count, width))
}
