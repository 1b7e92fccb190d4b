//! Runs a graph over many samples, one matrix at a time.
//!
//! Calibration looks at every value of a model, and every matrix meets all samples. So the samples advance together: all of them
//! stand before a matrix, the matrix is read from wherever it lies and packed, every sample is multiplied with it and goes on to
//! the next one. Of the weights only one matrix is ever in memory, and whoever wants to see what a matrix is multiplied with
//! (the second moments of its inputs, say) sees it before the products are computed.
//!
//! - [`Sequence`]: one sample on its way through a graph.
//! - [`Forward`]: threads, kernels and weights that move sequences on.

mod parameters;
mod sequence;

pub use parameters::Matrix;
pub use sequence::{Input, Route, Sequence};

use crate::engine::cpu::generic::{self, Operand};
use crate::engine::cpu::kernels::{Activations, Kernels, LinearJob};
use crate::engine::cpu::pool::Pool;
use crate::error::{Error, Result};
use crate::graph::{Node, Op, ValueId, ValueKind, WeightProvider};
use parameters::{Parameters, Source};
use sequence::Buffers;
use std::sync::Arc;

/// Is called with every node and its result, in execution order.
pub type ObserveFn<'a> = dyn FnMut(&Node, &[f32]) -> Result<()> + 'a;

/// Is called with every matrix node before any sequence passes it, how many are done and how many there are.
pub type BeforeFn<'a> = dyn FnMut(&Node, usize, usize) -> Result<()> + 'a;
/// Is called with the number of a sequence, every node and its result.
pub type ObserveEachFn<'a> = dyn FnMut(usize, &Node, &[f32]) -> Result<()> + 'a;

/// Moves sequences through graphs that share one set of weights.
pub struct Forward<'a> {
    kernels: Kernels,
    pool: Arc<Pool>,
    parameters: Parameters<'a>,
    activations: Activations,
    buffers: Buffers,
}

impl<'a> Forward<'a> {
    /// Compute on `pool` with weights from `weights`.
    pub fn new(pool: Arc<Pool>, weights: &'a (dyn WeightProvider + Sync)) -> Self {
        Self::with_parameters(pool, Parameters::new(Source::Borrowed(weights)))
    }

    /// As [`new`](Self::new), with weights that live as long as this does.
    pub fn shared(pool: Arc<Pool>, weights: Arc<dyn WeightProvider + Send + Sync>) -> Self {
        Self::with_parameters(pool, Parameters::new(Source::Shared(weights)))
    }

    fn with_parameters(pool: Arc<Pool>, parameters: Parameters<'a>) -> Self {
        Self {
            kernels: Kernels::detect(),
            pool,
            parameters,
            activations: Activations::default(),
            buffers: Buffers::default(),
        }
    }

    /// The threads it computes on.
    pub fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool)
    }

    /// Run sequences of graphs with the same nodes to their end. `observe` is called with the number of the sequence, the node and
    /// its result; `before` with each matrix node before any sequence passes it, and how many there are.
    ///
    /// # Errors
    /// What the weights, `observe` and `before` report; token ids and positions outside their tables.
    pub fn run(
        &mut self,
        sequences: &mut [Sequence<'_>],
        before: &mut BeforeFn<'_>,
        observe: &mut ObserveEachFn<'_>,
    ) -> Result<()> {
        let total = sequences.first().map_or(0, Sequence::matrices);
        for (number, sequence) in sequences.iter_mut().enumerate() {
            self.advance(sequence, &mut |node, values| observe(number, node, values))?;
        }
        let mut done = 0;
        while let Some(node) = sequences.first().and_then(Sequence::next_matrix) {
            before(node, done, total)?;
            let matrix = self.matrix(&sequences[0])?;
            for (number, sequence) in sequences.iter_mut().enumerate() {
                let observe = &mut |node: &Node, values: &[f32]| observe(number, node, values);
                self.multiply(sequence, &matrix, observe)?;
                self.advance(sequence, observe)?;
            }
            done += 1;
        }
        Ok(())
    }

    /// The matrix that a sequence stands before.
    ///
    /// # Errors
    /// What the weights report; [`Error::Internal`] if the sequence is at its end.
    pub fn matrix(&self, sequence: &Sequence<'_>) -> Result<Matrix> {
        let node =
            sequence.next_matrix().ok_or_else(|| Error::internal("a sequence at its end stands before no matrix"))?;
        self.parameters.matrix(&sequence.graph().value(node.inputs[1]).info, &self.pool)
    }

    /// What the next matrix will be multiplied with, `[rows, cols]`.
    ///
    /// # Errors
    /// [`Error::Internal`] if the sequence is at its end.
    pub fn matrix_input<'s>(&self, sequence: &'s Sequence<'_>) -> Result<&'s [f32]> {
        let node =
            sequence.next_matrix().ok_or_else(|| Error::internal("a sequence at its end stands before no matrix"))?;
        sequence.numbers(node.inputs[0])
    }

    /// Multiply with the matrix that the sequence stands before, or with another one in its place.
    ///
    /// # Errors
    /// A matrix of another shape; what the weights report for the bias and `observe`.
    pub fn multiply(
        &mut self,
        sequence: &mut Sequence<'_>,
        matrix: &Matrix,
        observe: &mut ObserveFn<'_>,
    ) -> Result<()> {
        let graph = sequence.graph();
        let node =
            sequence.next_matrix().ok_or_else(|| Error::internal("a sequence at its end stands before no matrix"))?;
        if graph.value(node.inputs[1]).info.shape != matrix.shape() {
            let (name, shape) = (&node.name, matrix.shape());
            return Err(Error::internal(format!("{name} was given a matrix of shape {shape:?}")));
        }
        let bias = match node.inputs.get(2) {
            Some(&id) => Some(self.parameters.plain(&graph.value(id).info)?),
            None => None,
        };
        let mut out = self.buffers.take(sequence.elements(node.output));
        let x = sequence.numbers(node.inputs[0])?;
        let width = matrix.shape()[1];
        self.activations.prepare(&self.kernels, &self.pool, false, x, x.len() / width, width);
        let job = LinearJob { bias: bias.as_ref().map(|bias| &bias[..]), ..LinearJob::new(matrix.packed()?, &mut out) };
        self.kernels.linear(&self.pool, &self.activations, &mut [job]);
        observe(node, &out)?;
        sequence.finish(out, &mut self.buffers);
        Ok(())
    }

    /// Compute everything up to the next matrix, or to the end.
    ///
    /// # Errors
    /// What the weights and `observe` report; token ids and positions outside their tables.
    pub fn advance(&mut self, sequence: &mut Sequence<'_>, observe: &mut ObserveFn<'_>) -> Result<()> {
        while let Some(node) = sequence.next_node().filter(|_| sequence.next_matrix().is_none()) {
            let mut out = self.buffers.take(sequence.elements(node.output));
            self.compute(sequence, node, &mut out)?;
            observe(node, &out)?;
            sequence.finish(out, &mut self.buffers);
        }
        Ok(())
    }

    fn compute(&self, sequence: &Sequence<'_>, node: &Node, out: &mut [f32]) -> Result<()> {
        let graph = sequence.graph();
        let shape = |id: ValueId| graph.value(id).info.shape.clone();
        if node.op == Op::Embedding {
            let table = &graph.value(node.inputs[1]).info;
            return self.parameters.rows_of(table, sequence.indices(node.inputs[0])?, out);
        }
        let mut constants = Vec::with_capacity(node.inputs.len());
        for &id in &node.inputs {
            let value = graph.value(id);
            let is_weight = value.kind == ValueKind::Weight;
            constants.push(if is_weight { Some(self.parameters.plain(&value.info)?) } else { None });
        }
        if let Op::Rope { .. } = node.op {
            check_positions(sequence.indices(node.inputs[3])?, shape(node.inputs[1])[0])?;
        }
        let operands = node.inputs.iter().zip(&constants).map(|(&id, constant)| match constant {
            Some(values) => Ok(Operand::F32(values)),
            None => sequence.operand(id),
        });
        let operands = operands.collect::<Result<Vec<_>>>()?;
        let shapes = node.inputs.iter().map(|&id| shape(id)).collect::<Vec<_>>();
        generic::compute(&node.op, &operands, &shapes, &shape(node.output), out, (&self.kernels, &self.pool))
    }
}

fn check_positions(positions: &[i32], rows: usize) -> Result<()> {
    match positions.iter().find(|&&position| usize::try_from(position).map_or(true, |position| position >= rows)) {
        Some(position) => Err(Error::invalid(format!("position {position} is not in a rotary table of {rows}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
