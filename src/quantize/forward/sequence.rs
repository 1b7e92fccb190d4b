//! One sample on its way through a graph.

use crate::engine::cpu::generic::Operand;
use crate::error::{Error, Result};
use crate::graph::{DType, Graph, Node, Op, Tensor, ValueId, ValueKind};
use std::sync::Arc;

/// A graph input of a sample. Masks and positions are shared by samples of the same length.
pub type Input = Arc<Tensor>;

/// What all samples on their way through a graph share: found once where a graph is run many times.
#[derive(Debug)]
pub struct Route {
    /// By value: the last node that reads it.
    last_reader: Vec<Option<usize>>,
    /// By value: whether the graph gives it back.
    is_output: Vec<bool>,
}

impl Route {
    /// Check a graph and find out for how long each value is needed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an invalid graph.
    pub fn new(graph: &Graph) -> Result<Self> {
        graph.validate()?;
        let mut last_reader = vec![None; graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|id| last_reader[id.0 as usize] = Some(index));
        }
        let mut is_output = vec![false; graph.values.len()];
        graph.outputs.iter().for_each(|id| is_output[id.0 as usize] = true);
        Ok(Self { last_reader, is_output })
    }
}

/// A sample: its inputs, and the values that later nodes will read.
#[derive(Debug)]
pub struct Sequence<'g> {
    graph: &'g Graph,
    route: Arc<Route>,
    inputs: Vec<Option<Input>>,
    results: Vec<Option<Vec<f32>>>,
    keep_outputs: bool,
    next: usize,
}

impl<'g> Sequence<'g> {
    /// A sample before the first node. `inputs` in contract order; with `keep_outputs` results of the graph can be asked for at
    /// the end, without it they are forgotten like everything else.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an invalid graph, or inputs that are not those of the graph.
    pub fn new(graph: &'g Graph, inputs: &[Input], keep_outputs: bool) -> Result<Self> {
        Self::along(graph, &Arc::new(Route::new(graph)?), inputs, keep_outputs)
    }

    /// As [`new`](Self::new), through a graph whose route is known.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for inputs that are not those of the graph; [`Error::Internal`] for another graph's route.
    pub fn along(graph: &'g Graph, route: &Arc<Route>, inputs: &[Input], keep_outputs: bool) -> Result<Self> {
        if route.is_output.len() != graph.values.len() {
            return Err(Error::internal(format!("graph {} was given the route of another one", graph.name)));
        }
        if inputs.len() != graph.inputs.len() {
            let (name, want, have) = (&graph.name, graph.inputs.len(), inputs.len());
            return Err(Error::invalid(format!("graph {name} has {want} inputs, {have} were given")));
        }
        let mut by_value = vec![None; graph.values.len()];
        for (&id, input) in graph.inputs.iter().zip(inputs) {
            let (want, have) = (&graph.value(id).info, input.info());
            if want.dtype != have.dtype || want.shape != have.shape {
                let name = &graph.name;
                return Err(Error::invalid(format!(
                    "graph {name}: input {} is {} {:?}, but {} {:?} was given",
                    want.name,
                    want.dtype.name(),
                    want.shape,
                    have.dtype.name(),
                    have.shape
                )));
            }
            by_value[id.0 as usize] = Some(Arc::clone(input));
        }
        let results = vec![None; graph.values.len()];
        Ok(Self { graph, route: Arc::clone(route), inputs: by_value, results, keep_outputs, next: 0 })
    }

    /// The graph.
    pub fn graph(&self) -> &'g Graph {
        self.graph
    }

    /// Number of matrices on the whole way.
    pub fn matrices(&self) -> usize {
        self.graph.nodes.iter().filter(|node| is_matrix_node(self.graph, node)).count()
    }

    /// The node the sequence stands before; `None` at the end.
    pub(super) fn next_node(&self) -> Option<&'g Node> {
        self.graph.nodes.get(self.next)
    }

    /// The node the sequence stands before, if it multiplies with a matrix.
    pub fn next_matrix(&self) -> Option<&'g Node> {
        self.next_node().filter(|node| is_matrix_node(self.graph, node))
    }

    /// The values behind `id`, if they were computed and are still needed.
    ///
    /// # Errors
    /// [`Error::Internal`] otherwise.
    pub fn numbers(&self, id: ValueId) -> Result<&[f32]> {
        match (&self.results[id.0 as usize], &self.inputs[id.0 as usize]) {
            (Some(result), _) => Ok(result),
            (None, Some(input)) => input.view().as_slice(),
            (None, None) => Err(self.lost(id)),
        }
    }

    /// Output `name` of a sequence that keeps its outputs and is at its end.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such output.
    pub fn output(&self, name: &str) -> Result<&[f32]> {
        let id = self.graph.outputs.iter().find(|&&id| self.graph.value(id).info.name == name);
        let id = id.ok_or_else(|| Error::NotFound(format!("graph {} has no output {name}", self.graph.name)))?;
        self.numbers(*id)
    }

    pub(super) fn indices(&self, id: ValueId) -> Result<&[i32]> {
        let input = self.inputs[id.0 as usize].as_ref().ok_or_else(|| self.lost(id))?;
        input.view().as_slice()
    }

    pub(super) fn operand(&self, id: ValueId) -> Result<Operand<'_>> {
        match self.graph.value(id).info.dtype {
            DType::I32 => self.indices(id).map(Operand::I32),
            _ => self.numbers(id).map(Operand::F32),
        }
    }

    pub(super) fn elements(&self, id: ValueId) -> usize {
        self.graph.value(id).info.shape.iter().product()
    }

    /// The present node's result is `values`; what nobody reads any more is forgotten.
    pub(super) fn finish(&mut self, values: Vec<f32>, buffers: &mut Buffers) {
        let (graph, index) = (self.graph, self.next);
        let Some(node) = graph.nodes.get(index) else { return };
        self.results[node.output.0 as usize] = Some(values);
        for &id in node.inputs.iter().chain([&node.output]) {
            let at = id.0 as usize;
            let last = self.route.last_reader[at];
            let is_last = if id == node.output { last.is_none() } else { last == Some(index) };
            let kept = self.keep_outputs && self.route.is_output[at];
            if is_last
                && !kept
                && let Some(values) = self.results[at].take()
            {
                buffers.give_back(values);
            }
        }
        self.next += 1;
    }

    fn lost(&self, id: ValueId) -> Error {
        Error::internal(format!("graph {}: {} has no data", self.graph.name, self.graph.value(id).info.name))
    }
}

/// Whether a node multiplies with a weight.
pub(super) fn is_matrix_node(graph: &Graph, node: &Node) -> bool {
    node.op == Op::Linear && graph.value(node.inputs[1]).kind == ValueKind::Weight
}

/// Memory of values that are no longer needed, for those that come: fresh memory would cost more than most operators.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    free: Vec<Vec<f32>>,
}

/// Buffers kept at most.
const MOST_BUFFERS: usize = 16;

impl Buffers {
    /// A buffer of `len` values, whatever they are.
    pub fn take(&mut self, len: usize) -> Vec<f32> {
        let fits = |buffer: &Vec<f32>| buffer.capacity() >= len && buffer.capacity() / 2 <= len;
        let fitting = self.free.iter().position(fits);
        let mut buffer = fitting.map(|at| self.free.swap_remove(at)).unwrap_or_default();
        buffer.resize(len, 0.0);
        buffer
    }

    fn give_back(&mut self, buffer: Vec<f32>) {
        if self.free.len() == MOST_BUFFERS {
            self.free.remove(0);
        }
        self.free.push(buffer);
    }
}
