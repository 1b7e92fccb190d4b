//! Where each weight of a model's graphs lies in a checkpoint.
//!
//! Graphs of the decoder use upstream's names (`layers.0.attention.wq.weight`), checkpoints use Hugging Face's
//! (`model.layers.0.self_attn.q_proj.weight`), and some hold several weights in one tensor. [`BoundWeights`] is the
//! bridge for one component, [`ModelWeights`] for all of a model. It is strict: every weight must be there in the right
//! shape, and every tensor must have a use in some component.
//!
//! Transforms of weights happen here, while rows are read, so that no graph needs nodes for them and no weight is in memory
//! twice:
//!
//! - *Norm offset* of Gemma 1 to 3: norms are stored as `w - 1`.
//! - *Rotary order*: a graph that pairs rows `(i, i + r/2)` of heads whose family pairs neighbours gets the rows of the
//!   query and key projections, their biases and the norms of their heads in the order of
//!   [`half_split_rows`](crate::transform::half_split_rows).
//! - *Layer scale* of InternViT: `λ ⊙ (W x + b) = (diag(λ) W) x + λ ⊙ b`, so row `i` of the output projection and of the
//!   second MLP matrix, and element `i` of their biases, are multiplied by `λ[i]`. The branch then ends in a Linear,
//!   which engines fuse with the residual add.
//! - The *position rule*: rows of the position table are gathered in the order
//!   [`PositionRule`](crate::registry::PositionRule) says.
//!
//! - `layout`: the prefixes of past and present releases of transformers.
//! - `binder`: the strict bookkeeping.
//! - `decoder`, `vision`: which weight is which tensor.

mod binder;
mod decoder;
mod layout;
mod vision;

use super::decoder::DecoderForm;
use super::rope::{RopePart, RopeTable};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::graph::WeightProvider;
use crate::registry::{DecoderSpec, ModelSpec};
use binder::Binder;
use layout::{Layout, VisionLayout};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The weights of one component, read from a checkpoint row by row when asked for.
#[derive(Debug)]
pub struct BoundWeights<'a> {
    checkpoint: &'a Checkpoint,
    bindings: BTreeMap<String, Binding>,
}

/// The weights of every component of a model.
#[derive(Debug)]
pub struct ModelWeights<'a> {
    /// Of [`build_decoder`](super::build_decoder), or of
    /// [`build_embedding_decoder`](super::build_embedding_decoder) if there is an encoder.
    pub text_decoder: BoundWeights<'a>,
    /// Of the components that only a model that sees has.
    pub vision: Option<VisionWeights<'a>>,
}

/// The weights of the components beside the decoder of a model that sees.
#[derive(Debug)]
pub struct VisionWeights<'a> {
    /// Of [`build_vision_encoder`](super::build_vision_encoder).
    pub encoder: BoundWeights<'a>,
    /// Of [`build_token_embedding`](super::build_token_embedding).
    pub token_embedding: BoundWeights<'a>,
}

/// One weight: its shape in the graph and where its rows come from.
#[derive(Debug, Clone, PartialEq)]
struct Binding {
    shape: Vec<usize>,
    source: Source,
}

#[derive(Debug, Clone, PartialEq)]
enum Source {
    /// Rows from `first_row` on of a checkpoint tensor, in some order.
    Tensor { name: String, first_row: usize, order: Order, adjust: Adjust },
    /// These rows of a checkpoint tensor one after the other, all in the weight's only row.
    Gathered { name: String, rows: Vec<usize> },
    /// Computed.
    Rope { table: RopeTable, part: RopePart },
    /// Computed: the Sylvester Hadamard matrix of the weight's size, divided by the square root of that.
    Hadamard,
}

/// Row `i` of a matrix, or element `i` of a vector, is the tensor's row or element `order[i]`; `None` leaves them as they
/// are. As long as the matrix has rows, or the vector elements.
type Order = Option<Arc<[usize]>>;

/// What is done to the values of a tensor, once they are in order.
#[derive(Debug, Clone, PartialEq)]
enum Adjust {
    None,
    /// The norm is stored as `w - 1`.
    PlusOne,
    /// Row `i` of a matrix, or element `i` of a vector, is multiplied by factor `i`.
    Scaled(Arc<[f32]>),
}

impl<'a> ModelWeights<'a> {
    /// Bind the weights of all components of `spec`, its decoder compiled for `max_context` positions, to the tensors
    /// of `checkpoint`.
    ///
    /// # Errors
    /// [`Error::Format`] naming the file and the tensor for a tensor that is missing, has another shape (both are
    /// given) or belongs to no weight of any component; [`Error::InvalidArgument`] for an invalid `spec`.
    pub fn new(spec: &ModelSpec, max_context: usize, checkpoint: &'a Checkpoint) -> Result<Self> {
        Self::with_form(spec, DecoderForm::default(), max_context, checkpoint)
    }

    /// As [`new`](Self::new), for a decoder in some form.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_form(
        spec: &ModelSpec,
        form: DecoderForm,
        max_context: usize,
        checkpoint: &'a Checkpoint,
    ) -> Result<Self> {
        let Some(vision_spec) = &spec.vision else {
            let text_decoder = BoundWeights::with_form(&spec.decoder, form, max_context, checkpoint)?;
            return Ok(Self { text_decoder, vision: None });
        };
        spec.decoder.validate()?;
        vision_spec.validate()?;
        let layout = VisionLayout::of(vision_spec.tower, checkpoint);
        let mut binder = Binder::new(checkpoint);
        vision::bind_encoder(&mut binder, vision_spec, &layout)?;
        let encoder = binder.finish_component();
        decoder::bind_token_embedding(&mut binder, &spec.decoder, &layout.text)?;
        let token_embedding = binder.finish_component();
        decoder::bind_embedding_decoder(&mut binder, &spec.decoder, form, &layout.text, max_context)?;
        let text_decoder = binder.finish_component();
        binder.check_all_used(layout.text.beside)?;
        Ok(Self { text_decoder, vision: Some(VisionWeights { encoder, token_embedding }) })
    }
}

impl<'a> BoundWeights<'a> {
    /// Bind the weights of a text model's decoder, compiled for `max_context` positions, to the tensors of `checkpoint`.
    ///
    /// # Errors
    /// [`Error::Format`] naming the file and the tensor for a tensor that is missing, has another shape (both are
    /// given) or belongs to no weight; [`Error::InvalidArgument`] for an invalid `spec`.
    pub fn new(spec: &DecoderSpec, max_context: usize, checkpoint: &'a Checkpoint) -> Result<Self> {
        Self::with_form(spec, DecoderForm::default(), max_context, checkpoint)
    }

    /// As [`new`](Self::new), for a decoder in some form.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_form(
        spec: &DecoderSpec,
        form: DecoderForm,
        max_context: usize,
        checkpoint: &'a Checkpoint,
    ) -> Result<Self> {
        spec.validate()?;
        let layout = Layout::of_text_model(checkpoint);
        let mut binder = Binder::new(checkpoint);
        decoder::bind_decoder(&mut binder, spec, form, &layout, max_context)?;
        let weights = binder.finish_component();
        binder.check_all_used(layout.beside)?;
        Ok(weights)
    }

    /// Names and shapes of all weights, sorted by name.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.bindings.iter().map(|(name, binding)| (name.as_str(), &binding.shape[..]))
    }

    /// The checkpoint tensor behind a weight; `None` for an unknown weight and for computed ones (RoPE tables).
    pub fn tensor_of(&self, weight: &str) -> Option<&str> {
        match &self.bindings.get(weight)?.source {
            Source::Tensor { name, .. } | Source::Gathered { name, .. } => Some(name),
            Source::Rope { .. } | Source::Hadamard => None,
        }
    }
}

impl BoundWeights<'_> {
    /// A whole vector, its elements in another order.
    fn read_elements(&self, tensor: &str, order: &[usize], out: &mut [f32]) -> Result<()> {
        let mut stored = vec![0.0; out.len()];
        self.checkpoint.read_rows(tensor, 0..1, &mut stored)?;
        let elements = order.iter().filter_map(|&element| stored.get(element));
        out.iter_mut().zip(elements).for_each(|(out, element)| *out = *element);
        Ok(())
    }
}

impl Binding {
    /// Number of rows and their length, as [`WeightProvider::read_rows`] counts them.
    fn rows(&self) -> (usize, usize) {
        match self.shape.as_slice() {
            [] => (1, 1),
            &[length] => (1, length),
            [rows, rest @ ..] => (*rows, rest.iter().product()),
        }
    }
}

impl WeightProvider for BoundWeights<'_> {
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let binding = self.bindings.get(name);
        let binding = binding.ok_or_else(|| Error::NotFound(format!("the component has no weight called {name}")))?;
        let (count, row_len) = binding.rows();
        if rows.start > rows.end || rows.end > count || rows.len().checked_mul(row_len) != Some(out.len()) {
            let (shape, length) = (&binding.shape, out.len());
            return Err(Error::invalid(format!("weight {name} {shape:?}: rows {rows:?} into {length} elements")));
        }
        match &binding.source {
            Source::Tensor { name, first_row, order, adjust } => {
                match order {
                    None => self.checkpoint.read_rows(name, first_row + rows.start..first_row + rows.end, out)?,
                    Some(order) if binding.shape.len() == 1 => self.read_elements(name, order, out)?,
                    Some(order) => {
                        let order = order.get(rows.clone()).unwrap_or_default();
                        for (&row, out) in order.iter().zip(out.chunks_exact_mut(row_len)) {
                            self.checkpoint.read_rows(name, first_row + row..first_row + row + 1, out)?;
                        }
                    }
                }
                adjust.apply(rows, binding.shape.len(), row_len, out);
            }
            Source::Gathered { name, rows: gathered } => {
                let length = row_len / gathered.len().max(1);
                for (&row, out) in gathered.iter().zip(out.chunks_exact_mut(length.max(1))) {
                    self.checkpoint.read_rows(name, row..row + 1, out)?;
                }
            }
            Source::Rope { table, part } => {
                for (position, out) in rows.zip(out.chunks_exact_mut(row_len)) {
                    out.iter_mut().zip(table.row(*part, position)).for_each(|(out, value)| *out = value);
                }
            }
            Source::Hadamard => {
                // H(i, j) is negative where i and j have an odd number of common bits.
                let size = 1.0 / (row_len as f32).sqrt();
                for (row, out) in rows.zip(out.chunks_exact_mut(row_len)) {
                    let sign = |column: usize| if (row & column).count_ones().is_multiple_of(2) { size } else { -size };
                    out.iter_mut().enumerate().for_each(|(column, out)| *out = sign(column));
                }
            }
        }
        Ok(())
    }
}

impl Adjust {
    /// Adjust rows `rows`, of `row_len` values each, of a weight with `axes` axes.
    fn apply(&self, rows: Range<usize>, axes: usize, row_len: usize, values: &mut [f32]) {
        match self {
            Adjust::None => {}
            Adjust::PlusOne => values.iter_mut().for_each(|w| *w += 1.0),
            Adjust::Scaled(factors) if axes == 1 => values.iter_mut().zip(&factors[..]).for_each(|(w, f)| *w *= f),
            Adjust::Scaled(factors) => {
                let factors = factors.iter().skip(rows.start);
                for (row, factor) in values.chunks_exact_mut(row_len).zip(factors) {
                    row.iter_mut().for_each(|w| *w *= factor);
                }
            }
        }
    }
}

#[cfg(test)]
mod key_map_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vision_tests;
