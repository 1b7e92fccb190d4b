//! The f32 reference: runs a graph word for word. It is meant to be read and believed, not to be fast.

use super::grid::Grid;
use super::ir::{Graph, Node, Op, ValueId, ValueKind};
use super::reference_ops as ops;
use super::tensor::{DType, Tensor, TensorInfo, TensorView, TensorViewMut};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Gives the values of a component's weights, by name, in f32.
pub trait WeightProvider {
    /// Read rows `rows` of weight `name` (first axis; a vector is one row) into `out`, which has exactly
    /// `rows.len() · row length` elements.
    ///
    /// # Errors
    /// Unknown name, rows out of range, unreadable storage; the error names the tensor.
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()>;
}

/// The f32 weights of a component, read once and shared by the interpreters of its graphs.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    tensors: HashMap<String, Arc<Tensor>>,
}

impl Weights {
    /// Read every weight that `graphs` use.
    ///
    /// # Errors
    /// What `provider` reports, or [`Error::InvalidArgument`] if two graphs give one weight different shapes.
    pub fn load(graphs: &[Graph], provider: &dyn WeightProvider) -> Result<Self> {
        let mut tensors: HashMap<String, Arc<Tensor>> = HashMap::new();
        for info in graphs.iter().flat_map(Graph::weights) {
            match tensors.get(&info.name) {
                None => drop(tensors.insert(info.name.clone(), Arc::new(read_weight(info, provider)?))),
                Some(known) if known.info().shape == info.shape => {}
                Some(known) => {
                    let (name, a, b) = (&info.name, &known.info().shape, &info.shape);
                    return Err(Error::invalid(format!("weight {name} is {a:?} in one graph and {b:?} in another")));
                }
            }
        }
        Ok(Self { tensors })
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(|t| t.bytes().len() as u64).sum()
    }

    fn get(&self, info: &TensorInfo) -> Result<Arc<Tensor>> {
        match self.tensors.get(&info.name) {
            Some(tensor) if tensor.info().shape == info.shape => Ok(Arc::clone(tensor)),
            _ => Err(Error::NotFound(format!("weight {} {:?} was not loaded", info.name, info.shape))),
        }
    }
}

fn read_weight(info: &TensorInfo, provider: &dyn WeightProvider) -> Result<Tensor> {
    let rows = if info.shape.len() < 2 { 1 } else { info.shape[0] };
    let mut tensor = Tensor::zeros(info.clone())?;
    provider.read_rows(&info.name, 0..rows, tensor.view_mut().as_mut_slice()?)?;
    Ok(tensor)
}

/// Runs one graph in f32.
#[derive(Debug)]
pub struct Interpreter {
    graph: Graph,
    /// By value; `None` where the value is no weight.
    weights: Vec<Option<Arc<Tensor>>>,
    /// By value: the last node that reads it, so that its memory is given back there.
    last_reader: Vec<Option<usize>>,
}

impl Interpreter {
    /// Prepare one graph, reading its weights.
    ///
    /// # Errors
    /// What [`Graph::validate`] or `provider` reports.
    pub fn new(graph: Graph, provider: &dyn WeightProvider) -> Result<Self> {
        graph.validate()?;
        let weights = Weights::load(std::slice::from_ref(&graph), provider)?;
        Self::with_weights(graph, &weights)
    }

    /// Prepare one graph over weights that were loaded already.
    ///
    /// # Errors
    /// What [`Graph::validate`] reports, or [`Error::NotFound`] for a weight that was not loaded.
    pub fn with_weights(graph: Graph, weights: &Weights) -> Result<Self> {
        graph.validate()?;
        let fetch = |v: &super::Value| match v.kind {
            ValueKind::Weight => weights.get(&v.info).map(Some),
            ValueKind::Input | ValueKind::Node => Ok(None),
        };
        let weights = graph.values.iter().map(fetch).collect::<Result<_>>()?;
        let last_reader = last_readers(&graph);
        Ok(Self { graph, weights, last_reader })
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Execute on `inputs` in contract order; the outputs, owned, in contract order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for inputs that do not match the graph, for a token id outside the embedding table
    /// and for a position outside the RoPE table.
    pub fn run(&self, inputs: &[TensorView<'_>]) -> Result<Vec<Tensor>> {
        let mut results = self.compute(inputs)?;
        let mut outputs = Vec::with_capacity(self.graph.outputs.len());
        for &id in &self.graph.outputs {
            let data = results[id.0 as usize].take().ok_or_else(|| self.lost(id))?;
            let info = &self.graph.value(id).info;
            outputs.push(Tensor::from_f32(&info.name, &info.shape, &data)?);
        }
        Ok(outputs)
    }

    /// Execute into memory of the caller.
    ///
    /// # Errors
    /// As [`run`](Self::run), and for outputs that do not match the graph; then nothing was written.
    pub fn run_into(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<()> {
        if outputs.len() != self.graph.outputs.len() {
            let (want, have) = (self.graph.outputs.len(), outputs.len());
            return Err(Error::invalid(format!("graph {} has {want} outputs, {have} were given", self.graph.name)));
        }
        for (&id, output) in self.graph.outputs.iter().zip(outputs.iter()) {
            self.check_tensor("output", id, output.dtype, output.shape, output.bytes.len())?;
        }
        let results = self.compute(inputs)?;
        for (&id, output) in self.graph.outputs.iter().zip(outputs) {
            let data = results[id.0 as usize].as_ref().ok_or_else(|| self.lost(id))?;
            output.as_mut_slice::<f32>()?.copy_from_slice(data);
        }
        Ok(())
    }

    /// Results of all nodes that are still held at the end: the outputs.
    fn compute(&self, inputs: &[TensorView<'_>]) -> Result<Vec<Option<Vec<f32>>>> {
        if inputs.len() != self.graph.inputs.len() {
            let (want, have) = (self.graph.inputs.len(), inputs.len());
            return Err(Error::invalid(format!("graph {} has {want} inputs, {have} were given", self.graph.name)));
        }
        let mut given = vec![None; self.graph.values.len()];
        for (&id, input) in self.graph.inputs.iter().zip(inputs) {
            self.check_tensor("input", id, input.dtype, input.shape, input.bytes.len())?;
            given[id.0 as usize] = Some(*input);
        }
        let mut frame = Frame { interpreter: self, inputs: given, results: vec![None; self.graph.values.len()] };
        for (index, node) in self.graph.nodes.iter().enumerate() {
            let result = frame.execute(node).map_err(|e| self.in_node(node, e))?;
            frame.results[node.output.0 as usize] = Some(result);
            for &id in node.inputs.iter().filter(|id| self.last_reader[id.0 as usize] == Some(index)) {
                frame.results[id.0 as usize] = None;
            }
        }
        Ok(frame.results)
    }

    fn check_tensor(&self, role: &str, id: ValueId, dtype: DType, shape: &[usize], bytes: usize) -> Result<()> {
        let want = &self.graph.value(id).info;
        if want.dtype == dtype && want.shape == shape && want.size_bytes() == Some(bytes) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "graph {}: {role} {} is {} {:?}, but {} {shape:?} ({bytes} bytes) was given",
            self.graph.name,
            want.name,
            want.dtype.name(),
            want.shape,
            dtype.name()
        )))
    }

    fn in_node(&self, node: &Node, error: Error) -> Error {
        match error {
            Error::InvalidArgument(text) => {
                Error::InvalidArgument(format!("graph {}: node {}: {text}", self.graph.name, node.name))
            }
            other => other,
        }
    }

    fn lost(&self, id: ValueId) -> Error {
        Error::internal(format!("graph {}: {} has no data", self.graph.name, self.graph.value(id).info.name))
    }
}

/// The last node that reads each value; outputs have none, they are kept.
fn last_readers(graph: &Graph) -> Vec<Option<usize>> {
    let mut last = vec![None; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for id in &node.inputs {
            last[id.0 as usize] = Some(index);
        }
    }
    for id in &graph.outputs {
        last[id.0 as usize] = None;
    }
    last
}

/// The data of one execution.
struct Frame<'a> {
    interpreter: &'a Interpreter,
    inputs: Vec<Option<TensorView<'a>>>,
    results: Vec<Option<Vec<f32>>>,
}

impl Frame<'_> {
    /// A validated graph gives every operator operands of the right count, type and shape.
    fn execute(&self, node: &Node) -> Result<Vec<f32>> {
        let x = |i: usize| self.f32(node.inputs[i]);
        let shape = |i: usize| &self.interpreter.graph.value(node.inputs[i]).info.shape[..];
        Ok(match &node.op {
            Op::Embedding => ops::embedding(self.i32(node.inputs[0])?, x(1)?, shape(1)[1])?,
            Op::Linear => {
                let bias = if node.inputs.len() == 3 { Some(x(2)?) } else { None };
                ops::linear(x(0)?, x(1)?, bias, shape(1)[1])
            }
            Op::RmsNorm { eps } => ops::rms_norm(x(0)?, x(1)?, *eps),
            Op::LayerNorm { eps } => ops::layer_norm(x(0)?, x(1)?, x(2)?, *eps),
            Op::Rope { interleaved } => {
                let &[_, _, heads, head_dim] = shape(0) else { return Err(rank_error(shape(0))) };
                let table = ops::RopeTable { cos: x(1)?, sin: x(2)?, half: shape(1)[1], interleaved: *interleaved };
                ops::rope(x(0)?, &table, self.i32(node.inputs[3])?, heads, head_dim)?
            }
            Op::Add => ops::broadcast(x(0)?, shape(0), x(1)?, shape(1), |a, b| a + b),
            Op::Mul => ops::broadcast(x(0)?, shape(0), x(1)?, shape(1), |a, b| a * b),
            Op::Scale { factor } => ops::map(x(0)?, |v| v * factor),
            Op::SoftCap { cap } => ops::map(x(0)?, |v| cap * (v / cap).tanh()),
            Op::Sigmoid => ops::map(x(0)?, ops::sigmoid),
            Op::Silu => ops::map(x(0)?, ops::silu),
            Op::Gelu => ops::map(x(0)?, ops::gelu),
            Op::GeluTanh => ops::map(x(0)?, ops::gelu_tanh),
            Op::Reshape => x(0)?.to_vec(),
            Op::Transpose { perm } => ops::transpose(x(0)?, shape(0), perm),
            Op::Concat { axis } => {
                let parts = (0..node.inputs.len()).map(|i| Ok((x(i)?, shape(i)))).collect::<Result<Vec<_>>>()?;
                ops::concat(&parts, *axis)
            }
            Op::Slice { axis, start, len } => ops::slice(x(0)?, shape(0), *axis, *start, *len),
            Op::MatMul => {
                let (&[_, h, m, k], &[_, g, _, n]) = (shape(0), shape(1)) else { return Err(rank_error(shape(0))) };
                ops::mat_mul(x(0)?, x(1)?, ops::MatMulShape { h, g, m, k, n })
            }
            Op::Softmax => ops::softmax(x(0)?, shape(0).last().copied().unwrap_or(1)),
            Op::MaskedFill { drop } => {
                let lowest = ops::row_minima(x(0)?, shape(0).last().copied().unwrap_or(1));
                let masked = ops::map(&lowest, |lowest| lowest - drop);
                let mask = ops::broadcast(x(0)?, shape(0), x(1)?, shape(1), |_, mask| mask);
                ops::select(x(0)?, &mask, &masked)
            }
            Op::QuantizeDequantize { scale, zero_point, qmin, qmax } => {
                let grid = Grid::new(*scale, *zero_point, *qmin, *qmax);
                ops::map(x(0)?, |x| grid.round(x))
            }
        })
    }

    fn f32(&self, id: ValueId) -> Result<&[f32]> {
        let index = id.0 as usize;
        if let Some(result) = &self.results[index] {
            return Ok(result);
        }
        match (&self.interpreter.weights[index], &self.inputs[index]) {
            (Some(weight), _) => weight.as_slice(),
            (None, Some(input)) => input.as_slice(),
            (None, None) => Err(self.interpreter.lost(id)),
        }
    }

    fn i32(&self, id: ValueId) -> Result<&[i32]> {
        self.inputs[id.0 as usize].as_ref().ok_or_else(|| self.interpreter.lost(id))?.as_slice()
    }
}

fn rank_error(shape: &[usize]) -> Error {
    Error::internal(format!("a validated graph has an operand of shape {shape:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::GraphBuilder;

    /// Weights whose elements are all `0.5`.
    struct Halves;

    impl WeightProvider for Halves {
        fn read_rows(&self, _: &str, _: Range<usize>, out: &mut [f32]) -> Result<()> {
            out.fill(0.5);
            Ok(())
        }
    }

    fn residual_linear() -> Graph {
        let mut b = GraphBuilder::new("forward");
        let x = b.input("x", DType::F32, &[1, 2]).unwrap();
        let w = b.weight("fc.weight", &[2, 2]).unwrap();
        let h = b.node("fc", Op::Linear, &[x, w]).unwrap();
        let y = b.node("sum", Op::Add, &[x, h]).unwrap();
        b.output(h, "h").unwrap();
        b.output(y, "y").unwrap();
        b.finish().unwrap()
    }

    #[test]
    fn outputs_that_are_read_again_survive() {
        let interpreter = Interpreter::new(residual_linear(), &Halves).unwrap();
        let x = Tensor::from_f32("x", &[1, 2], &[1.0, 3.0]).unwrap();
        let outputs = interpreter.run(&[x.view()]).unwrap();
        assert_eq!(outputs[0].as_slice::<f32>().unwrap(), [2.0, 2.0]);
        assert_eq!(outputs[1].as_slice::<f32>().unwrap(), [3.0, 5.0]);
    }

    #[test]
    fn mismatched_tensors_are_refused_before_anything_is_written() {
        let interpreter = Interpreter::new(residual_linear(), &Halves).unwrap();
        let x = Tensor::from_f32("x", &[2, 1], &[1.0, 3.0]).unwrap();
        let error = interpreter.run(&[x.view()]).unwrap_err().to_string();
        assert!(error.contains("input x is f32 [1, 2]") && error.contains("[2, 1]"), "{error}");
        let x = Tensor::from_f32("x", &[1, 2], &[1.0, 3.0]).unwrap();
        let (mut h, mut y) = (x.clone(), Tensor::from_f32("y", &[2], &[7.0, 7.0]).unwrap());
        assert!(interpreter.run_into(&[x.view()], &mut [h.view_mut(), y.view_mut()]).is_err());
        assert_eq!((h.as_slice::<f32>().unwrap(), y.as_slice::<f32>().unwrap()), (&[1.0, 3.0][..], &[7.0, 7.0][..]));
    }

    #[test]
    fn graphs_of_a_component_share_weights() {
        let graphs = [residual_linear(), residual_linear()];
        let weights = Weights::load(&graphs, &Halves).unwrap();
        assert_eq!(weights.bytes(), 16);
        for graph in graphs {
            Interpreter::with_weights(graph, &weights).unwrap();
        }
        assert!(Interpreter::with_weights(residual_linear(), &Weights::default()).is_err());
    }

    #[test]
    fn a_token_outside_the_table_is_an_error_that_names_it() {
        let mut b = GraphBuilder::new("kv_forward");
        let tokens = b.input("tokens", DType::I32, &[1, 1]).unwrap();
        let table = b.weight("tok_embeddings.weight", &[4, 2]).unwrap();
        let x = b.node("tok_embeddings", Op::Embedding, &[tokens, table]).unwrap();
        b.output(x, "x").unwrap();
        let interpreter = Interpreter::new(b.finish().unwrap(), &Halves).unwrap();
        for bad in [-1, 4] {
            let tokens = Tensor::from_i32("tokens", &[1, 1], &[bad]).unwrap();
            let error = interpreter.run(&[tokens.view()]).unwrap_err().to_string();
            assert!(error.contains("tok_embeddings") && error.contains(&bad.to_string()), "{error}");
        }
    }
}
