//! One graph of the decoder with its inputs and outputs.

use super::contract::{StepGraph, StepInput};
use super::kv_store::{Allocate, KvStore};
use super::logits::{Logits, LogitsEncoding};
use super::mask::{AttentionMask, BlockRow};
use super::requant::KvDomain;
use super::sequence::Sequence;
use super::token_embedding::TokenEmbedding;
use crate::engine::{ExecuteOptions, LoadedComponent};
use crate::error::{Error, Result};
use crate::graph::{DType, Tensor, TensorInfo, TensorView};
use std::ops::Range;
use std::sync::Arc;

/// Name of the graph that reads prompts. All others read and write the KV cache in the decode graph's encoding.
pub(super) const PREFILL_GRAPH: &str = "prefill_forward";

/// A graph and its tensors, allocated once: engines may remember their addresses.
pub(super) struct Step {
    pub graph: StepGraph,
    pub domain: KvDomain,
    pub logits: Logits,
    pub kv_out: Vec<Tensor>,
    /// Ids, or hidden states.
    input: Tensor,
    mask: AttentionMask,
    window_mask: Option<AttentionMask>,
    positions: Option<Tensor>,
}

impl Step {
    pub fn new(
        graph: &StepGraph,
        window: Option<usize>,
        encoding: Option<LogitsEncoding>,
        allocate: &Allocate<'_>,
    ) -> Result<Self> {
        let (logits, kv_out) = graph
            .outputs
            .split_first()
            .ok_or_else(|| Error::internal(format!("graph {} has no outputs", graph.name)))?;
        let mask = |info: &TensorInfo, window| AttentionMask::in_tensor(allocate(info)?, window);
        Ok(Self {
            input: allocate(&graph.input)?,
            mask: mask(&graph.mask, None)?,
            window_mask: graph.window_mask.as_ref().map(|info| mask(info, window)).transpose()?,
            positions: graph.positions.as_ref().map(allocate).transpose()?,
            logits: Logits::new(allocate(logits)?, encoding),
            kv_out: kv_out.iter().map(allocate).collect::<Result<_>>()?,
            domain: if graph.name == PREFILL_GRAPH { KvDomain::Prefill } else { KvDomain::Decode },
            graph: graph.clone(),
        })
    }

    /// Fill the inputs for positions `block` of `sequence`, behind `past` cached ones. Rows of the block without a
    /// position get id 0 and go on counting; what they compute is never committed.
    pub fn prepare(
        &mut self,
        sequence: &Sequence,
        block: Range<usize>,
        past: usize,
        embedding: Option<&mut TokenEmbedding>,
    ) -> Result<()> {
        let ids = sequence.ids().get(block.clone()).unwrap_or_default();
        let width = self.write_input(ids, embedding)?;
        if width > 0 {
            let mut input = self.input.view_mut();
            let states = input.as_mut_slice::<f32>()?;
            for placed in sequence.rows_in(block.start, block.end) {
                let at = (placed.position - block.start) * width;
                let row = placed.embedding.row(placed.row).unwrap_or_default();
                states[at..at + row.len()].copy_from_slice(row);
            }
        }
        if let Some(positions) = &mut self.positions {
            write_i32(positions, (past as u32)..)?;
        }
        self.set_masks(past, None)
    }

    /// Fill the inputs for rows that are a tree behind `past` cached positions; rows beyond `ids` are not used.
    pub fn prepare_tree(
        &mut self,
        ids: &[u32],
        tree: &Arc<[BlockRow]>,
        past: usize,
        embedding: Option<&mut TokenEmbedding>,
    ) -> Result<()> {
        self.write_input(ids, embedding)?;
        if let Some(positions) = &mut self.positions {
            write_i32(positions, tree.iter().map(|row| (past + row.offset) as u32))?;
        }
        self.set_masks(past, Some(tree))
    }

    /// Ids or their embeddings, zeros behind them. Gives the width of a hidden state, 0 for ids.
    fn write_input(&mut self, ids: &[u32], embedding: Option<&mut TokenEmbedding>) -> Result<usize> {
        match (self.graph.takes, embedding) {
            (StepInput::HiddenStates, Some(embedding)) => {
                let width = embedding.width();
                let mut input = self.input.view_mut();
                let (given, rest) = input.as_mut_slice::<f32>()?.split_at_mut(ids.len() * width);
                embedding.embed(ids, given)?;
                rest.fill(0.0);
                Ok(width)
            }
            (StepInput::HiddenStates, None) => Err(Error::internal("a decoder without its token embedding")),
            (StepInput::Tokens, _) => write_ids(&mut self.input, ids).map(|()| 0),
        }
    }

    fn set_masks(&mut self, past: usize, tree: Option<&Arc<[BlockRow]>>) -> Result<()> {
        // A graph without cache has the whole text in its block.
        let past = if self.graph.has_cache() { past } else { 0 };
        for mask in [Some(&mut self.mask), self.window_mask.as_mut()].into_iter().flatten() {
            mask.set_tree(tree)?;
            mask.set_past(past)?;
        }
        Ok(())
    }

    /// Run the graph. The cache must be laid out for it.
    pub fn execute(
        &mut self,
        component: &mut dyn LoadedComponent,
        kv: &KvStore,
        options: &ExecuteOptions,
    ) -> Result<()> {
        let mut inputs: Vec<TensorView<'_>> = Vec::with_capacity(4 + self.graph.caches.len());
        inputs.extend([self.input.view(), self.mask.tensor().view()]);
        inputs.extend(self.window_mask.as_ref().map(|mask| mask.tensor().view()));
        inputs.extend(self.positions.as_ref().map(Tensor::view));
        kv.views(&self.graph.caches, &mut inputs)?;
        let mut outputs = Vec::with_capacity(1 + self.kv_out.len());
        outputs.push(self.logits.view_mut());
        outputs.extend(self.kv_out.iter_mut().map(Tensor::view_mut));
        component.execute(self.graph.index, &inputs, &mut outputs, options)
    }
}

/// Write ids into a tensor of i32 or i64, and 0 behind them.
pub(super) fn write_ids(tensor: &mut Tensor, ids: &[u32]) -> Result<()> {
    let ids = ids.iter().copied().chain(std::iter::repeat(0));
    if tensor.info().dtype == DType::I64 {
        tensor.view_mut().as_mut_slice::<i64>()?.iter_mut().zip(ids).for_each(|(to, id)| *to = id.into());
        return Ok(());
    }
    write_i32(tensor, ids)
}

/// Ids and positions are far below 2³¹: ids are checked against the vocabulary, positions against the context.
fn write_i32(tensor: &mut Tensor, values: impl Iterator<Item = u32>) -> Result<()> {
    tensor.view_mut().as_mut_slice::<i32>()?.iter_mut().zip(values).for_each(|(to, value)| *to = value as i32);
    Ok(())
}
