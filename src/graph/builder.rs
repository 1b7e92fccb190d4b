//! Builds graphs node by node; shapes are inferred and checked at once, so an error names the node that is wrong.

use super::ir::{Graph, Node, Op, Value, ValueId, ValueKind};
use super::shape;
use super::tensor::{DType, TensorInfo};
use crate::error::{Error, Result};
use std::collections::HashMap;

/// Builds one [`Graph`].
///
/// ```
/// use etgenai::graph::{DType, GraphBuilder, Op};
/// # fn main() -> etgenai::Result<()> {
/// let mut b = GraphBuilder::new("forward");
/// let x = b.input("x", DType::F32, &[1, 4])?;
/// let w = b.weight("fc.weight", &[8, 4])?;
/// let y = b.node("fc", Op::Linear, &[x, w])?;
/// b.output(y, "y")?;
/// assert_eq!(b.finish()?.output_infos()[0].shape, [1, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    weights: HashMap<String, ValueId>,
}

impl GraphBuilder {
    /// An empty graph called `name`.
    pub fn new(name: &str) -> Self {
        let graph =
            Graph { name: name.into(), values: Vec::new(), inputs: Vec::new(), outputs: Vec::new(), nodes: Vec::new() };
        Self { graph, weights: HashMap::new() }
    }

    /// Declare the next input. Call in contract order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if its size overflows.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<ValueId> {
        let info = TensorInfo { name: name.into(), dtype, shape: shape.to_vec() };
        let id = self.add_value(info, ValueKind::Input)?;
        self.graph.inputs.push(id);
        Ok(id)
    }

    /// The weight called `name`, declared at its first use.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it was used before with another shape, or its size overflows.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> Result<ValueId> {
        if let Some(&id) = self.weights.get(name) {
            let known = self.shape(id);
            if known != shape {
                let graph = &self.graph.name;
                let text = format!("graph {graph}: weight {name} is {known:?} in one node and {shape:?} in another");
                return Err(Error::InvalidArgument(text));
            }
            return Ok(id);
        }
        let id = self.add_value(Graph::f32_info(name, shape), ValueKind::Weight)?;
        self.weights.insert(name.into(), id);
        Ok(id)
    }

    /// Apply `op`; the result carries the node's name until [`output`](Self::output) renames it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the node and its operands' shapes if they do not fit.
    pub fn node(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> Result<ValueId> {
        self.add_node(name, op, inputs, None)
    }

    /// [`Op::Reshape`] to `shape`.
    ///
    /// # Errors
    /// As [`node`](Self::node).
    pub fn reshape(&mut self, name: &str, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        self.add_node(name, Op::Reshape, &[x], Some(shape))
    }

    /// Make a node's result the next output, under its contract name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `id` is not a node's result of this graph.
    pub fn output(&mut self, id: ValueId, name: &str) -> Result<()> {
        match self.graph.values.get_mut(id.0 as usize) {
            Some(value) if value.kind == ValueKind::Node => value.info.name = name.into(),
            _ => return Err(Error::invalid(format!("graph {}: output {name} is no node's result", self.graph.name))),
        }
        self.graph.outputs.push(id);
        Ok(())
    }

    /// Shape of a value of this graph.
    pub fn shape(&self, id: ValueId) -> &[usize] {
        &self.graph.value(id).info.shape
    }

    /// The finished graph, validated.
    ///
    /// # Errors
    /// Whatever [`Graph::validate`] finds, e.g. a name used twice or a graph without outputs.
    pub fn finish(self) -> Result<Graph> {
        self.graph.validate()?;
        Ok(self.graph)
    }

    fn add_node(&mut self, name: &str, op: Op, inputs: &[ValueId], target: Option<&[usize]>) -> Result<ValueId> {
        let failed = |reason: String| {
            Error::invalid(format!("graph {}: node {name} ({}): {reason}", self.graph.name, op.name()))
        };
        let mut operands = Vec::with_capacity(inputs.len());
        for id in inputs {
            let value = self.graph.values.get(id.0 as usize);
            operands.push(&value.ok_or_else(|| failed(format!("there is no value {}", id.0)))?.info);
        }
        let shape = shape::infer(&op, &operands, target).map_err(failed)?;
        let output = self.add_value(Graph::f32_info(name, &shape), ValueKind::Node)?;
        self.graph.nodes.push(Node { name: name.into(), op, inputs: inputs.to_vec(), output });
        Ok(output)
    }

    fn add_value(&mut self, info: TensorInfo, kind: ValueKind) -> Result<ValueId> {
        let failed = |reason: String| Error::invalid(format!("graph {}: {}: {reason}", self.graph.name, info.name));
        shape::check_size(&info).map_err(failed)?;
        let id = u32::try_from(self.graph.values.len()).map_err(|_| failed("too many values".into()))?;
        self.graph.values.push(Value { info, kind });
        Ok(ValueId(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_node_and_shapes() {
        let mut b = GraphBuilder::new("kv_forward");
        let x = b.input("x", DType::F32, &[1, 3]).unwrap();
        let w = b.weight("fc.weight", &[8, 4]).unwrap();
        let error = b.node("layers.0.fc", Op::Linear, &[x, w]).unwrap_err().to_string();
        for part in ["kv_forward", "layers.0.fc", "linear", "x [1, 3]", "fc.weight [8, 4]"] {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
    }

    #[test]
    fn a_weight_is_declared_once_and_keeps_its_shape() {
        let mut b = GraphBuilder::new("g");
        let first = b.weight("table", &[8, 4]).unwrap();
        assert_eq!(b.weight("table", &[8, 4]).unwrap(), first);
        let error = b.weight("table", &[4, 8]).unwrap_err().to_string();
        assert!(error.contains("[8, 4]") && error.contains("[4, 8]"), "{error}");
    }

    #[test]
    fn overflowing_sizes_are_refused() {
        let mut b = GraphBuilder::new("g");
        assert!(b.input("x", DType::F32, &[usize::MAX, 2]).is_err());
        assert!(b.weight("w", &[usize::MAX / 4]).is_err());
    }

    #[test]
    fn shapes_are_inferred() {
        let mut b = GraphBuilder::new("g");
        let q = b.input("q", DType::F32, &[1, 4, 2, 8]).unwrap();
        let old = b.input("k_cache", DType::F32, &[1, 2, 8, 3]).unwrap();
        let new = b.input("k", DType::F32, &[1, 2, 8, 2]).unwrap();
        let k = b.node("concat", Op::Concat { axis: 3 }, &[old, new]).unwrap();
        assert_eq!(b.shape(k), [1, 2, 8, 5]);
        let scores = b.node("scores", Op::MatMul, &[q, k]).unwrap();
        assert_eq!(b.shape(scores), [1, 4, 2, 5]);
        let swapped = b.node("swapped", Op::Transpose { perm: vec![0, 2, 3, 1] }, &[scores]).unwrap();
        assert_eq!(b.shape(swapped), [1, 2, 5, 4]);
        let part = b.node("part", Op::Slice { axis: 2, start: 1, len: 3 }, &[swapped]).unwrap();
        assert_eq!(b.shape(part), [1, 2, 3, 4]);
        let flat = b.reshape("flat", part, &[6, 4]).unwrap();
        b.output(flat, "y").unwrap();
        assert_eq!(b.finish().unwrap().output_infos(), [Graph::f32_info("y", &[6, 4])]);
    }
}
