//! Executes the steps of a plan.

use super::attention::{AttentionScratch, Operands, RowSpans, attend};
use super::generic::{self, Operand, PIECE, split};
use super::kernels::{Activations, Kernels, LinearJob, Nonlinearity};
use super::plan::{Action, Attention, Demand, Job, MAX_JOBS, Place, Plan, RowRule, SelfAttention, Step};
use super::pool::Pool;
use super::self_attention;
use super::weights::WeightTable;
use crate::error::{Error, Result};
use crate::graph::{DType, Tensor, TensorInfo, TensorView, TensorViewMut};
use std::ops::Range;
use std::sync::Arc;

/// What steps work with, kept from call to call: nothing here is allocated anew once it is large enough.
#[derive(Debug)]
pub(super) struct Workspace {
    pub kernels: Kernels,
    pub pool: Arc<Pool>,
    /// Scratch buffers. `None` only while a step writes to one.
    buffers: Vec<Option<Tensor>>,
    activations: Activations,
    attention: AttentionScratch,
    /// By mask of the plan.
    pub spans: Vec<Vec<RowSpans>>,
}

impl Workspace {
    pub fn new(kernels: Kernels, pool: Arc<Pool>) -> Self {
        let attention = AttentionScratch::new(pool.threads());
        let activations = Activations::default();
        Self { kernels, pool, buffers: Vec::new(), activations, attention, spans: Vec::new() }
    }

    /// Make the scratch buffers large enough for a plan.
    pub fn reserve(&mut self, plan: &Plan) -> Result<()> {
        for (number, &len) in plan.buffers.iter().enumerate() {
            let large_enough = |t: &Tensor| t.bytes().len() >= len * size_of::<f32>();
            if self.buffers.get(number).is_some_and(|b| b.as_ref().is_some_and(large_enough)) {
                continue;
            }
            let info = TensorInfo { name: format!("scratch {number}"), dtype: DType::F32, shape: vec![len] };
            let buffer = Some(Tensor::zeros(info)?);
            match self.buffers.get_mut(number) {
                Some(slot) => *slot = buffer,
                None => self.buffers.push(buffer),
            }
        }
        if self.spans.len() < plan.masks.len() {
            self.spans.resize_with(plan.masks.len(), Vec::new);
        }
        Ok(())
    }
}

/// The rows of one call.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    /// Rows of the block; 1 if it cannot be taken apart.
    pub of: usize,
    /// The block cannot be taken apart: everything is computed.
    pub whole: bool,
    /// Rows that are computed.
    pub valid: Range<usize>,
    /// Rows whose logits are computed.
    pub logits: Range<usize>,
}

impl Rows {
    /// The rows a step computes.
    pub fn of_step<V>(&self, step: &Step<V>) -> Range<usize> {
        match (&step.action, step.rows, step.demand) {
            // Attention counts the mask's rows, also where the block cannot be taken apart.
            (Action::Attention(shape), ..) if self.whole => 0..shape.rows,
            (_, RowRule::Whole, _) => 0..self.of,
            (_, _, Demand::Valid) => self.valid.clone(),
            (_, _, Demand::Logits) => self.logits.clone(),
        }
    }

    /// The elements of `rows` in a value of `len` elements whose outermost axis is the rows.
    fn elements(&self, rows: &Range<usize>, len: usize) -> Range<usize> {
        let row = len / self.of;
        rows.start * row..rows.end * row
    }
}

/// One call: the caller's tensors and the component's memory.
pub(super) struct Call<'c, 'i, 'o> {
    pub weights: &'c WeightTable,
    pub inputs: &'c [TensorView<'i>],
    pub outputs: &'c mut [TensorViewMut<'o>],
    pub rows: Rows,
    pub workspace: &'c mut Workspace,
}

/// Memory taken out of its place while a step writes to it, so that the step can read everything else.
enum Taken<'o> {
    Nothing,
    Buffer(usize, usize, Tensor),
    Output(usize, &'o mut [u8]),
}

impl Taken<'_> {
    fn values(&mut self) -> Result<&mut [f32]> {
        match self {
            Taken::Nothing => Ok(&mut []),
            Taken::Buffer(_, len, tensor) => {
                let values: &mut [f32] = cast_mut(tensor.bytes_mut())?;
                let have = values.len();
                values.get_mut(..*len).ok_or_else(|| Error::internal(format!("scratch has {have} of {len} elements")))
            }
            Taken::Output(_, bytes) => cast_mut(bytes),
        }
    }
}

fn cast_mut(bytes: &mut [u8]) -> Result<&mut [f32]> {
    bytemuck::try_cast_slice_mut(bytes).map_err(|e| Error::invalid(format!("f32 tensor: {e}")))
}

impl<'o> Call<'_, '_, 'o> {
    /// Execute one step.
    pub fn run(&mut self, step: &Step<Place>) -> Result<()> {
        let rows = self.rows.of_step(step);
        if rows.is_empty() {
            return Ok(());
        }
        let mut taken = [Taken::Nothing, Taken::Nothing, Taken::Nothing, Taken::Nothing];
        for (taken, &place) in taken.iter_mut().zip(&step.writes) {
            *taken = self.take(place)?;
        }
        let result = self.compute(step, rows, &mut taken);
        taken.into_iter().for_each(|taken| self.give_back(taken));
        result
    }

    fn take(&mut self, place: Place) -> Result<Taken<'o>> {
        let taken = match place {
            Place::Scratch { buffer, len } => {
                let tensor = self.workspace.buffers.get_mut(buffer).and_then(Option::take);
                tensor.map(|tensor| Taken::Buffer(buffer, len, tensor))
            }
            Place::Output(number) => {
                let output = self.outputs.get_mut(number);
                output.map(|output| Taken::Output(number, std::mem::take(&mut output.bytes)))
            }
            Place::Input(_) | Place::Weight(_) => None,
        };
        taken.ok_or_else(|| Error::internal(format!("{place:?} cannot be written")))
    }

    fn give_back(&mut self, taken: Taken<'o>) {
        match taken {
            Taken::Nothing => {}
            Taken::Buffer(buffer, _, tensor) => self.workspace.buffers[buffer] = Some(tensor),
            Taken::Output(number, bytes) => self.outputs[number].bytes = bytes,
        }
    }

    fn compute(&mut self, step: &Step<Place>, rows: Range<usize>, taken: &mut [Taken<'o>; MAX_JOBS]) -> Result<()> {
        if let Action::Linear { jobs, width, integer, .. } = &step.action {
            let mut activations = std::mem::take(&mut self.workspace.activations);
            let result = self.linear(step, jobs, (*width, *integer), rows, taken, &mut activations);
            self.workspace.activations = activations;
            return result;
        }
        let out = taken[0].values()?;
        match &step.action {
            Action::Attention(shape) => {
                let mut scratch = std::mem::take(&mut self.workspace.attention);
                let result = self.attention(step, shape, rows, out, &mut scratch);
                self.workspace.attention = scratch;
                result
            }
            Action::SelfAttention(shape) => {
                let mut scratch = std::mem::take(&mut self.workspace.attention);
                let result = self.self_attention(step, shape, out, &mut scratch);
                self.workspace.attention = scratch;
                result
            }
            Action::KvTranspose { keys, rows: all, heads, dim } => {
                let x = self.f32(step.reads[0])?;
                let x = &x[self.rows.elements(&rows, x.len())];
                generic::kv_transpose(x, rows.start, (*all, *heads, *dim), *keys, out);
                Ok(())
            }
            Action::Generic { op, shapes, shape } => {
                let operands = step.reads.iter().map(|&place| self.operand(place)).collect::<Result<Vec<_>>>()?;
                generic::compute(op, &operands, shapes, shape, out, (&self.workspace.kernels, &self.workspace.pool))
            }
            _ => {
                let part = self.rows.elements(&rows, out.len());
                self.row_wise(step, &rows, &mut out[part])
            }
        }
    }

    /// Steps that compute each row by itself; `out` holds rows `rows` only.
    fn row_wise(&self, step: &Step<Place>, rows: &Range<usize>, out: &mut [f32]) -> Result<()> {
        let Workspace { kernels, pool, .. } = &*self.workspace;
        let read = |number: usize| {
            let x = self.f32(step.reads[number])?;
            Ok::<_, Error>(&x[self.rows.elements(rows, x.len())])
        };
        match &step.action {
            Action::Embedding { table } => {
                let table = self.weights.packed(*table)?;
                let tokens = &self.i32(step.reads[0])?;
                let tokens = &tokens[self.rows.elements(rows, tokens.len())];
                let width = table.cols();
                split(pool, out, width, |at, out| {
                    for (&token, out) in tokens[at / width..].iter().zip(out.chunks_exact_mut(width)) {
                        table.read_row(token as usize, out);
                    }
                });
            }
            Action::RmsNorm { weight, eps } => {
                let (x, weight) = (read(0)?, self.weights.plain(*weight)?);
                split(pool, out, weight.len(), |at, out| {
                    for (x, out) in x[at..].chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
                        kernels.rms_norm(x, weight, *eps, out);
                    }
                });
            }
            Action::LayerNorm { weight, bias, eps } => {
                let (x, weight, bias) = (read(0)?, self.weights.plain(*weight)?, self.weights.plain(*bias)?);
                split(pool, out, weight.len(), |at, out| {
                    for (x, out) in x[at..].chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
                        kernels.layer_norm(x, weight, bias, *eps, out);
                    }
                });
            }
            Action::Activation(function) => {
                let x = read(0)?;
                split(pool, out, PIECE, |at, out| {
                    out.copy_from_slice(&x[at..at + out.len()]);
                    kernels.activate(out, *function);
                });
            }
            Action::Rope { cos, sin, heads, head_dim, pairs, interleaved } => {
                let tables = (self.weights.plain(*cos)?, self.weights.plain(*sin)?);
                let positions = self.i32(step.reads[1])?;
                let positions = &positions[self.rows.elements(rows, positions.len())];
                let x = read(0)?;
                let row = heads * head_dim;
                split(pool, out, row, |at, out| {
                    let positions = &positions[at / row..][..out.len() / row];
                    let x = &x[at..at + out.len()];
                    generic::rope(x, tables, positions, (*heads, *head_dim, *pairs), *interleaved, out);
                });
            }
            Action::Gated(gate) => {
                let (x, up) = (read(0)?, read(1)?);
                let multiply = match gate {
                    Nonlinearity::Silu => Kernels::silu_mul,
                    Nonlinearity::Gelu => Kernels::gelu_mul,
                    Nonlinearity::GeluTanh => Kernels::gelu_tanh_mul,
                };
                let row = out.len() / rows.len();
                split(pool, out, row, |at, out| {
                    let part = at..at + out.len();
                    multiply(kernels, &x[part.clone()], &up[part], out);
                });
            }
            Action::Add => {
                let (a, b) = (read(0)?, read(1)?);
                split(pool, out, PIECE, |at, out| {
                    let part = at..at + out.len();
                    kernels.add(&a[part.clone()], &b[part], out);
                });
            }
            Action::Scale(factor) => {
                out.copy_from_slice(read(0)?);
                kernels.scale(out, *factor);
            }
            Action::SoftCap(cap) => {
                out.copy_from_slice(read(0)?);
                kernels.soft_cap(out, *cap);
            }
            Action::Copy => out.copy_from_slice(read(0)?),
            Action::Linear { .. }
            | Action::Attention(_)
            | Action::SelfAttention(_)
            | Action::KvTranspose { .. }
            | Action::Generic { .. } => {
                return Err(Error::internal("a step that is not row-wise was executed as one"));
            }
        }
        Ok(())
    }

    fn linear(
        &self,
        step: &Step<Place>,
        jobs: &[Job],
        (width, integer): (usize, bool),
        rows: Range<usize>,
        taken: &mut [Taken<'o>; MAX_JOBS],
        activations: &mut Activations,
    ) -> Result<()> {
        let Workspace { kernels, pool, .. } = &*self.workspace;
        let x = self.f32(step.reads[0])?;
        let x = &x[self.rows.elements(&rows, x.len())];
        activations.prepare(kernels, pool, integer, x, x.len() / width, width);
        let mut prepared = Vec::with_capacity(MAX_JOBS);
        for (job, taken) in jobs.iter().zip(taken) {
            let weight = self.weights.packed(job.weight)?;
            let bias = job.bias.map(|bias| self.weights.plain(bias)).transpose()?;
            let residual = job.residual.map(|number| self.f32(step.reads[number])).transpose()?;
            let residual = residual.map(|r| &r[self.rows.elements(&rows, r.len())]);
            let out = taken.values()?;
            let part = self.rows.elements(&rows, out.len());
            prepared.push(LinearJob { weight, bias, activation: job.activation, residual, out: &mut out[part] });
        }
        kernels.linear(pool, activations, &mut prepared);
        Ok(())
    }

    fn attention(
        &self,
        step: &Step<Place>,
        shape: &Attention,
        rows: Range<usize>,
        out: &mut [f32],
        scratch: &mut AttentionScratch,
    ) -> Result<()> {
        let &[q, k_cache, v_cache, k_block, v_block, mask] = step.reads.as_slice() else {
            return Err(Error::internal("an attention step has six operands"));
        };
        let Workspace { kernels, pool, spans, .. } = &*self.workspace;
        let spans = spans.get(shape.mask).ok_or_else(|| Error::internal("an attention step has no mask"))?;
        let operands = Operands {
            q: self.f32(q)?,
            k_cache: self.f32(k_cache)?,
            v_cache: self.f32(v_cache)?,
            k_block: self.f32(k_block)?,
            v_block: self.f32(v_block)?,
            mask: self.f32(mask)?,
            spans,
        };
        attend(shape, &operands, rows, out, scratch, (kernels, pool));
        Ok(())
    }

    fn self_attention(
        &self,
        step: &Step<Place>,
        shape: &SelfAttention,
        out: &mut [f32],
        scratch: &mut AttentionScratch,
    ) -> Result<()> {
        let &[q, k, v] = step.reads.as_slice() else {
            return Err(Error::internal("an attention step without cache has three operands"));
        };
        let Workspace { kernels, pool, .. } = &*self.workspace;
        self_attention::attend(shape, [self.f32(q)?, self.f32(k)?, self.f32(v)?], out, scratch, (kernels, pool));
        Ok(())
    }

    fn f32(&self, place: Place) -> Result<&[f32]> {
        match place {
            Place::Input(number) => self.input(number)?.as_slice(),
            Place::Weight(number) => self.weights.plain(number),
            Place::Output(number) => {
                let output = self.outputs.get(number).ok_or_else(|| missing(place))?;
                bytemuck::try_cast_slice(output.bytes).map_err(|e| Error::invalid(format!("output {number}: {e}")))
            }
            Place::Scratch { buffer, len } => {
                let tensor =
                    self.workspace.buffers.get(buffer).and_then(Option::as_ref).ok_or_else(|| missing(place))?;
                tensor.as_slice::<f32>()?.get(..len).ok_or_else(|| missing(place))
            }
        }
    }

    fn i32(&self, place: Place) -> Result<&[i32]> {
        match place {
            Place::Input(number) => self.input(number)?.as_slice(),
            _ => Err(missing(place)),
        }
    }

    fn operand(&self, place: Place) -> Result<Operand<'_>> {
        match place {
            Place::Input(number) if self.input(number)?.dtype == DType::I32 => self.i32(place).map(Operand::I32),
            _ => self.f32(place).map(Operand::F32),
        }
    }

    fn input(&self, number: usize) -> Result<&TensorView<'_>> {
        self.inputs.get(number).ok_or_else(|| missing(Place::Input(number)))
    }
}

fn missing(place: Place) -> Error {
    Error::internal(format!("{place:?} cannot be read"))
}
