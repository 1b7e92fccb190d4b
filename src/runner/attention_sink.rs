//! Attention sink: a cache that goes on when it is full (Xiao et al., "Efficient streaming language models with attention
//! sinks", 2023).
//!
//! A program beside the decoder, the *evictor*, has a graph for each of the decoder's, of the same name. It takes the K and
//! V caches and gives them back with the first `sink` slots as they were, the next `batch` removed, what follows moved down
//! (its K rotated to the new positions) and zeros at the end.

use super::contract::{DecoderContract, StepGraph};
use super::kv_store::KvStore;
use crate::engine::{ExecuteOptions, LoadedComponent};
use crate::error::{Error, Result};

/// An evictor that fits a decoder.
pub(super) struct AttentionSink {
    component: Box<dyn LoadedComponent>,
    /// Its graph for each of the decoder's.
    graphs: Vec<usize>,
    sink: usize,
    batch: usize,
}

impl AttentionSink {
    /// Set an evictor up for a decoder.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming what does not fit: a graph, a shape, a constant.
    pub fn new(component: Box<dyn LoadedComponent>, contract: &DecoderContract, least_batch: usize) -> Result<Self> {
        let constants = component.constants();
        let batch = constants.count("get_eviction_batch_size")?.ok_or_else(|| {
            Error::invalid("the attention sink's evictor lacks the constant get_eviction_batch_size: is it an evictor?")
        })?;
        let sink = constants.count("get_sink_size")?.unwrap_or(0);
        if !contract.has_cache() {
            return Err(Error::invalid("the text decoder has no KV cache, so there is nothing to evict from it"));
        }
        let largest = contract.graphs.iter().map(|graph| graph.ar).max().unwrap_or(1).max(least_batch);
        let room = contract.graphs.iter().map(|graph| graph.cache_slots).min().unwrap_or(0);
        if batch < largest || sink + batch > room {
            return Err(Error::invalid(format!(
                "the evictor removes {batch} tokens behind a sink of {sink}: it must remove at least {largest} (the \
                 largest block), and both together must fit {room} cache slots"
            )));
        }
        let graphs =
            contract.graphs.iter().map(|graph| find_graph(component.as_ref(), graph)).collect::<Result<_>>()?;
        Ok(Self { component, graphs, sink, batch })
    }

    /// Whether a block of `step` tokens behind `past` cached ones calls for an eviction first.
    pub fn is_due(&self, past: usize, step: usize, graph: &StepGraph) -> bool {
        past + step > graph.cache_slots
    }

    /// Tokens that are never removed.
    pub fn sink(&self) -> usize {
        self.sink
    }

    /// Remove a batch from the cache, which is laid out for step `step`.
    ///
    /// # Errors
    /// What the engine reports; the cache is unchanged then.
    pub fn evict(&mut self, kv: &mut KvStore, step: usize, graph: &StepGraph) -> Result<()> {
        let Some(&evictor) = self.graphs.get(step) else {
            return Err(Error::internal(format!("no eviction graph for step {step}")));
        };
        // A prompt that ends within the batch leaves less to remove.
        let filled = kv.len();
        let (component, removed) = (&mut self.component, self.sink.min(filled)..(self.sink + self.batch).min(filled));
        kv.evict(&graph.caches, removed, &mut |inputs, outputs| {
            component.execute(evictor, inputs, outputs, &ExecuteOptions::default())
        })
    }
}

/// The evictor's graph for a graph of the decoder: of the same name, caches in, caches out.
fn find_graph(component: &dyn LoadedComponent, graph: &StepGraph) -> Result<usize> {
    let name = &graph.name;
    let index = component.graphs().iter().position(|candidate| candidate.name == *name);
    let index = index.ok_or_else(|| {
        let have: Vec<&str> = component.graphs().iter().map(|graph| graph.name.as_str()).collect();
        Error::invalid(format!("the attention sink's evictor has no graph {name}; it has: {}", have.join(", ")))
    })?;
    let signature = &component.graphs()[index];
    for (role, tensors) in [("input", &signature.inputs), ("output", &signature.outputs)] {
        let fits = tensors.len() == graph.caches.len()
            && tensors.iter().zip(&graph.caches).all(|(a, b)| a.dtype == b.dtype && a.shape == b.shape);
        if !fits {
            return Err(Error::invalid(format!(
                "the {role}s of the evictor's graph {name} are not the KV caches of the decoder's: {} of them, {} are \
                 expected, with the decoder's types and shapes",
                tensors.len(),
                graph.caches.len()
            )));
        }
    }
    Ok(index)
}
