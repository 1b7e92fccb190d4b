//! Where each value lives.

use super::super::weights::WeightTable;
use super::Step;
use super::fuse::Aliases;
use crate::error::{Error, Result};
use crate::graph::{Graph, ValueId, ValueKind};
use std::collections::HashMap;

/// Scratch memory a graph may ask for, in f32 elements (4 GiB): more is a hostile file, not a decoder.
const MAX_SCRATCH: usize = 1 << 30;

/// Memory of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in super::super) enum Place {
    /// The caller's input tensor.
    Input(usize),
    /// The caller's output tensor.
    Output(usize),
    /// The component's weight of this number.
    Weight(usize),
    /// The first `len` elements of a scratch buffer.
    Scratch {
        /// Which one.
        buffer: usize,
        /// Elements.
        len: usize,
    },
}

/// Replace values by places. Returns the sizes of the scratch buffers, in elements.
pub(super) fn place(
    graph: &Graph,
    weights: &WeightTable,
    steps: Vec<Step<ValueId>>,
    alias: &Aliases,
) -> Result<(Vec<Step<Place>>, Vec<usize>)> {
    let mut places = fixed_places(graph, weights)?;
    let mut last_use: HashMap<ValueId, usize> = HashMap::new();
    for (index, step) in steps.iter().enumerate() {
        for &id in step.reads.iter().chain(&step.writes) {
            last_use.insert(alias.root(id), index);
        }
    }
    let mut buffers = Buffers::default();
    let mut placed = Vec::with_capacity(steps.len());
    for (index, step) in steps.into_iter().enumerate() {
        // Results get their memory before operands give theirs back: no step writes what it reads.
        for &id in &step.writes {
            let root = alias.root(id);
            let len = graph.value(root).info.element_count().unwrap_or(usize::MAX);
            places.entry(root).or_insert_with(|| Place::Scratch { buffer: buffers.take(len), len });
        }
        let locate = |id: &ValueId| {
            let root = alias.root(*id);
            places.get(&root).copied().ok_or_else(|| {
                let name = &graph.value(*id).info.name;
                Error::internal(format!("graph {}: {name} is read before it is written", graph.name))
            })
        };
        let reads = step.reads.iter().map(locate).collect::<Result<Vec<_>>>()?;
        let writes = step.writes.iter().map(locate).collect::<Result<Vec<_>>>()?;
        for &id in step.reads.iter().chain(&step.writes) {
            let root = alias.root(id);
            if last_use.get(&root) == Some(&index)
                && let Some(Place::Scratch { buffer, .. }) = places.get(&root)
            {
                buffers.give_back(*buffer);
            }
        }
        placed.push(Step { action: step.action, reads, writes, demand: step.demand, rows: step.rows });
    }
    let total = buffers.sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
    if total.is_none_or(|total| total > MAX_SCRATCH) {
        let message = format!("graph {} needs more than {MAX_SCRATCH} elements of scratch memory", graph.name);
        return Err(Error::Unsupported(message));
    }
    Ok((placed, buffers.sizes))
}

/// Inputs, outputs and weights are where they are.
fn fixed_places(graph: &Graph, weights: &WeightTable) -> Result<HashMap<ValueId, Place>> {
    let mut places = HashMap::new();
    for (index, value) in graph.values.iter().enumerate() {
        if value.kind == ValueKind::Weight {
            let name = &value.info.name;
            let number = weights.number(name);
            let number = number.ok_or_else(|| Error::NotFound(format!("graph {}: no weight {name}", graph.name)))?;
            places.insert(ValueId(index as u32), Place::Weight(number));
        }
    }
    places.extend(graph.inputs.iter().enumerate().map(|(number, &id)| (id, Place::Input(number))));
    places.extend(graph.outputs.iter().enumerate().map(|(number, &id)| (id, Place::Output(number))));
    Ok(places)
}

/// Scratch buffers, reused when free.
#[derive(Default)]
struct Buffers {
    sizes: Vec<usize>,
    free: Vec<usize>,
}

impl Buffers {
    /// A free buffer: the smallest that is large enough, else the largest, enlarged, else a new one.
    fn take(&mut self, len: usize) -> usize {
        let sizes = &self.sizes;
        let best = self.free.iter().copied().enumerate().min_by_key(|&(_, buffer)| {
            let size = sizes[buffer];
            if size >= len { (false, size - len) } else { (true, usize::MAX - size) }
        });
        match best {
            Some((at, buffer)) => {
                self.free.swap_remove(at);
                self.sizes[buffer] = self.sizes[buffer].max(len);
                buffer
            }
            None => {
                self.sizes.push(len);
                self.sizes.len() - 1
            }
        }
    }

    /// A buffer may be given back twice if a step reads its value twice.
    fn give_back(&mut self, buffer: usize) {
        if !self.free.contains(&buffer) {
            self.free.push(buffer);
        }
    }
}
