//! Runs quantized components behind the engine traits, with the arithmetic of their quantize-dequantize nodes: for
//! conversations and evaluations over a model before it is compiled for a device.

use super::component::ComponentFile;
use super::forward::{Forward, Input, Matrix, Route, Sequence};
use crate::engine::cpu::pool::{Pool, physical_cores};
use crate::engine::{ComponentSource, Engine, ExecuteOptions, GraphSignature, LoadedComponent, check_call};
use crate::error::{Error, Result};
use crate::graph::{DType, Graph, Node, Tensor, TensorInfo, TensorView, TensorViewMut};
use std::collections::HashMap;
use std::sync::Arc;

/// Loads the JSON files of quantized components; their weights lie beside them under the same name, ending in `safetensors`.
#[derive(Debug)]
pub struct QdqEngine {
    pool: Arc<Pool>,
}

impl QdqEngine {
    /// An engine with so many threads, or one a physical core.
    pub fn new(threads: Option<usize>) -> Self {
        Self { pool: Arc::new(Pool::new(threads.unwrap_or_else(physical_cores))) }
    }
}

impl Engine for QdqEngine {
    fn name(&self) -> &str {
        "qdq"
    }

    fn load(&self, source: &ComponentSource) -> Result<Box<dyn LoadedComponent>> {
        let path = source.path().ok_or_else(|| {
            Error::invalid(format!("{}: the qdq engine loads components from files", source.describe()))
        })?;
        let file = ComponentFile::open(path)?;
        let weights = file.open_weights(&path.with_extension("safetensors"))?;
        let signatures = file.signatures();
        let graphs = file.graphs.into_iter().map(|bundle| bundle.graph).collect::<Vec<_>>();
        let routes = graphs.iter().map(|graph| Route::new(graph).map(Arc::new)).collect::<Result<_>>()?;
        Ok(Box::new(QdqComponent {
            forward: Forward::shared(Arc::clone(&self.pool), Arc::new(weights)),
            graphs,
            routes,
            signatures,
            matrices: HashMap::new(),
        }))
    }
}

/// A component whose matrices are dequantized once and kept.
struct QdqComponent {
    forward: Forward<'static>,
    graphs: Vec<Graph>,
    routes: Vec<Arc<Route>>,
    signatures: Vec<GraphSignature>,
    matrices: HashMap<String, Matrix>,
}

impl LoadedComponent for QdqComponent {
    fn graphs(&self) -> &[GraphSignature] {
        &self.signatures
    }

    fn execute(
        &mut self,
        graph: usize,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        _options: &ExecuteOptions,
    ) -> Result<()> {
        let (Some(signature), Some(route)) = (self.signatures.get(graph), self.routes.get(graph)) else {
            return Err(Error::invalid(format!("graph {graph}: there are only {}", self.signatures.len())));
        };
        let graph = &self.graphs[graph];
        check_call(signature, inputs, outputs)?;
        let inputs = inputs.iter().zip(&signature.inputs).map(|(view, info)| owned(view, info));
        let mut sequence = Sequence::along(graph, route, &inputs.collect::<Result<Vec<_>>>()?, true)?;
        let ignore = &mut |_: &Node, _: &[f32]| Ok(());
        self.forward.advance(&mut sequence, ignore)?;
        while let Some(node) = sequence.next_matrix() {
            let name = &graph.value(node.inputs[1]).info.name;
            if !self.matrices.contains_key(name) {
                self.matrices.insert(name.clone(), self.forward.matrix(&sequence)?);
            }
            let matrix = self.matrices.get(name).ok_or_else(|| Error::internal(format!("{name} was not packed")))?;
            self.forward.multiply(&mut sequence, matrix, ignore)?;
            self.forward.advance(&mut sequence, ignore)?;
        }
        for (info, output) in signature.outputs.iter().zip(outputs) {
            output.as_mut_slice::<f32>()?.copy_from_slice(sequence.output(&info.name)?);
        }
        Ok(())
    }

    fn weight_bytes(&self) -> u64 {
        self.matrices.values().map(Matrix::bytes).sum()
    }

    fn description(&self) -> String {
        let threads = self.forward.pool().threads();
        let plural = if threads == 1 { "" } else { "s" };
        format!("qdq arithmetic, {threads} thread{plural}")
    }
}

/// A copy of a tensor.
fn owned(view: &TensorView<'_>, info: &TensorInfo) -> Result<Input> {
    let tensor = match view.dtype {
        DType::I32 => Tensor::from_i32(&info.name, view.shape, view.as_slice()?)?,
        _ => Tensor::from_f32(&info.name, view.shape, view.as_slice()?)?,
    };
    Ok(Arc::new(tensor))
}
