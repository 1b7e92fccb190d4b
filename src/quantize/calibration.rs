//! Calibration: observers at every slot of a graph, and the grids that follow from what they saw.

use super::encoding::Encoding;
use super::forward::{Forward, Sequence};
use super::observer::{Observer, ObserverKind};
use super::plan::{GraphPlan, RangeRule, moves_values};
use super::range::ValueRange;
use crate::engine::cpu::kernels::Kernels;
use crate::engine::cpu::pool::Pool;
use crate::error::{Error, Result};
use crate::graph::{DType, Graph, Node, ValueId, ValueKind};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Scores this far below the largest of their row are nothing after a softmax: e⁻²⁰ is 2e-9.
const NEGLIGIBLE_SCORE: f32 = 20.0;
/// Values that one task looks at.
const PIECE: usize = 1 << 16;

/// What the observers of a component saw, by slot. Joins exactly with what others saw in other samples.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Observations {
    slots: BTreeMap<String, Observer>,
}

/// The grids of a component's activations, by slot.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Encodings {
    slots: BTreeMap<String, Encoding>,
}

impl Observations {
    /// Observers for every slot of a plan that needs one.
    ///
    /// # Errors
    /// Settings of an observer that are out of range.
    pub fn new(plan: &GraphPlan) -> Result<Self> {
        let mut slots = BTreeMap::new();
        for slot in &plan.slots {
            if let RangeRule::Observed(kind) | RangeRule::ObservedScores(kind) = slot.range {
                slots.insert(slot.name.clone(), Observer::new(kind)?);
            }
        }
        Ok(Self { slots })
    }

    /// Add what others saw in other samples.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the slot if the two are of different graphs, or of observers that depend on the order of
    /// samples.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        if let Some(name) = other.slots.keys().find(|name| !self.slots.contains_key(*name)) {
            return Err(Error::invalid(format!(
                "{name} was observed in one part only; are both of the same model and recipe?"
            )));
        }
        for (name, observer) in &mut self.slots {
            let theirs = other.slots.get(name).ok_or_else(|| {
                Error::invalid(format!("{name} was observed in one part only; are both of the same model and recipe?"))
            })?;
            observer.merge(theirs).map_err(|error| Error::invalid(format!("{name}: {error}")))?;
        }
        Ok(())
    }

    /// What was seen of a slot.
    pub fn seen(&self, slot: &str) -> Option<ValueRange> {
        self.slots.get(slot).map(Observer::seen)
    }

    /// How a slot was looked at; `None` for one that needs no observer.
    pub fn observer(&self, slot: &str) -> Option<ObserverKind> {
        self.slots.get(slot).map(Observer::kind)
    }

    /// The grids of all slots of a plan; `table` gives the grid of an embedding table, by the number of its value.
    ///
    /// # Errors
    /// [`Error::InvalidState`] listing the slots that nothing was seen of.
    pub fn encodings(&self, plan: &GraphPlan, table: &dyn Fn(usize) -> Result<Encoding>) -> Result<Encodings> {
        let mut slots = BTreeMap::new();
        let mut unseen = Vec::new();
        for slot in &plan.slots {
            let encoding = match slot.range {
                RangeRule::Fixed(encoding) => encoding,
                RangeRule::OfTable(value) => table(value)?,
                RangeRule::Observed(_) | RangeRule::ObservedScores(_) => match self.slots.get(&slot.name) {
                    Some(observer) if !observer.is_empty() => {
                        let encoding = |range| slot.spec.encoding(range);
                        encoding(observer.range(encoding))
                    }
                    _ => {
                        unseen.push(slot.name.as_str());
                        continue;
                    }
                },
            };
            slots.insert(slot.name.clone(), encoding);
        }
        if unseen.is_empty() {
            return Ok(Encodings { slots });
        }
        let (count, first) = (unseen.len(), unseen.iter().take(5).copied().collect::<Vec<_>>().join(", "));
        Err(Error::InvalidState(format!(
            "calibration saw no values of {count} tensors ({first}{}): run it on samples first",
            if count > 5 { ", …" } else { "" }
        )))
    }
}

impl Encodings {
    /// The grid of a slot.
    ///
    /// # Errors
    /// [`Error::NotFound`] naming a slot that has none.
    pub fn get(&self, slot: &str) -> Result<Encoding> {
        let found = self.slots.get(slot).copied();
        found.ok_or_else(|| Error::NotFound(format!("tensor {slot} has no encoding")))
    }

    /// All grids, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Encoding)> {
        self.slots.iter().map(|(name, encoding)| (name.as_str(), *encoding))
    }
}

/// Who looks at which value of a graph.
pub struct Watch<'p> {
    graph: &'p Graph,
    plan: &'p GraphPlan,
    /// By value: slots that what is computed there belongs to.
    slots: Vec<Vec<usize>>,
}

impl<'p> Watch<'p> {
    /// For a graph and its plan.
    pub fn new(graph: &'p Graph, plan: &'p GraphPlan) -> Self {
        let mut slots = plan.produced.iter().map(|slot| slot.iter().copied().collect::<Vec<_>>()).collect::<Vec<_>>();
        // A value that is stored once more is as wide there as where it was computed.
        for (&(node, operand), &again) in &plan.consumed {
            let produced = plan.produced[graph.nodes[node].inputs[operand].0 as usize];
            for (value, slots) in slots.iter_mut().enumerate() {
                if produced.is_some() && plan.produced[value] == produced {
                    slots.push(again);
                }
            }
        }
        Self { graph, plan, slots }
    }

    /// Look at the inputs of a sample.
    ///
    /// # Errors
    /// As [`Watch::result`].
    pub fn inputs(&self, sequence: &Sequence<'_>, seen: &mut Observations, pool: &Pool) -> Result<()> {
        for &id in &self.graph.inputs {
            let info = &self.graph.value(id).info;
            if info.dtype == DType::F32 && !info.shape.contains(&0) {
                self.value(id.0 as usize, sequence.numbers(id)?, seen, pool)?;
            }
        }
        Ok(())
    }

    /// Look at what a node computed.
    ///
    /// # Errors
    /// [`Error::Internal`] if `seen` is of another plan.
    pub fn result(&self, node: &Node, values: &[f32], seen: &mut Observations, pool: &Pool) -> Result<()> {
        // What is only moved was seen before, unless it is a constant.
        let constant = |id: &ValueId| self.graph.value(*id).kind == ValueKind::Weight;
        if moves_values(&node.op) && !node.inputs.iter().any(constant) {
            return Ok(());
        }
        self.value(node.output.0 as usize, values, seen, pool)
    }

    fn value(&self, id: usize, values: &[f32], seen: &mut Observations, pool: &Pool) -> Result<()> {
        let mut range = None;
        for &slot in &self.slots[id] {
            let slot = &self.plan.slots[slot];
            let scores = match slot.range {
                RangeRule::Observed(_) => false,
                RangeRule::ObservedScores(_) => true,
                RangeRule::Fixed(_) | RangeRule::OfTable(_) => continue,
            };
            let name = &slot.name;
            let observer =
                seen.slots.get_mut(name).ok_or_else(|| Error::internal(format!("{name} has no observer")))?;
            let width = self.graph.values[id].info.shape.last().copied().unwrap_or(1).max(1);
            match (scores, observer.counts_values()) {
                (false, false) => {
                    let range = *range.get_or_insert_with(|| range_of(values, pool));
                    observer.observe_range(range)?;
                }
                (true, false) => observer.observe_range(range_of_scores(values, width, pool))?,
                (false, true) => observer.observe(values),
                (true, true) => observer.observe(&clip_scores(values, width)),
            }
        }
        Ok(())
    }
}

/// Run `sequences`, all of one component, and add what is seen to `seen`. `before` is called at each matrix: its node, how many
/// were done and how many there are.
///
/// # Errors
/// What the weights and `before` report.
pub fn observe(
    forward: &mut Forward<'_>,
    sequences: &mut [Sequence<'_>],
    plans: &[&GraphPlan],
    seen: &mut Observations,
    before: &mut dyn FnMut(&Node, usize, usize) -> Result<()>,
) -> Result<()> {
    let pool = forward.pool();
    let watches = sequences.iter().zip(plans).map(|(s, plan)| Watch::new(s.graph(), plan)).collect::<Vec<_>>();
    for (sequence, watch) in sequences.iter().zip(&watches) {
        watch.inputs(sequence, seen, &pool)?;
    }
    forward.run(sequences, before, &mut |number, node, values| watches[number].result(node, values, seen, &pool))
}

/// Smallest and largest finite value, on all threads.
pub(super) fn range_of(values: &[f32], pool: &Pool) -> ValueRange {
    let (range, kernels) = (Mutex::new(ValueRange::default()), Kernels::detect());
    let pieces = values.len().div_ceil(PIECE);
    pool.run(pieces, &|piece| {
        let part = range_of_piece(&kernels, &values[piece * PIECE..values.len().min((piece + 1) * PIECE)]);
        let mut range = range.lock();
        *range = range.union(part);
    });
    range.into_inner()
}

fn range_of_piece(kernels: &Kernels, values: &[f32]) -> ValueRange {
    let (min, max) = kernels.range(values);
    let infinite = min == f32::NEG_INFINITY || max == f32::INFINITY;
    // With an infinity among them (and always if there is no value) the slow way looks at each.
    if infinite { ValueRange::of(values) } else { ValueRange { min, max } }
}

/// As [`range_of`], of scores in rows of `width`.
fn range_of_scores(values: &[f32], width: usize, pool: &Pool) -> ValueRange {
    let (range, kernels) = (Mutex::new(ValueRange::default()), Kernels::detect());
    let rows = (PIECE / width).max(1);
    let pieces = values.len().div_ceil(rows * width);
    pool.run(pieces, &|piece| {
        let part = &values[piece * rows * width..values.len().min((piece + 1) * rows * width)];
        let part = part.chunks_exact(width).fold(ValueRange::default(), |range, row| {
            let row = range_of_piece(&kernels, row);
            let floor = row.max - NEGLIGIBLE_SCORE;
            if row.is_empty() { range } else { range.union(ValueRange::new(row.min.max(floor), row.max)) }
        });
        let mut range = range.lock();
        *range = range.union(part);
    });
    range.into_inner()
}

fn clip_scores(values: &[f32], width: usize) -> Vec<f32> {
    let kernels = Kernels::detect();
    let clip = |row: &[f32]| {
        let floor = range_of_piece(&kernels, row).max - NEGLIGIBLE_SCORE;
        row.iter().map(|value| value.max(floor)).collect::<Vec<_>>()
    };
    values.chunks_exact(width).flat_map(clip).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn scores_that_softmax_makes_nothing_of_do_not_widen_a_range() {
        let pool = Pool::new(2);
        let scores = [5.0, -250.0, 3.0, -9.0, -300.0, -8.0];
        assert_eq!(range_of_scores(&scores, 3, &pool), ValueRange::new(-28.0, 5.0));
        assert_eq!(range_of(&clip_scores(&scores, 3), &pool), ValueRange::new(-28.0, 5.0));
        assert_eq!(range_of(&scores, &pool), ValueRange::new(-300.0, 5.0));
    }

    proptest! {
        #[test]
        fn ranges_are_those_of_one_thread(
            values in prop::collection::vec(prop_oneof![8 => -1e3f32..1e3, 1 => Just(f32::NAN), 1 => Just(f32::INFINITY)], 0..40),
        ) {
            prop_assert_eq!(range_of(&values, &Pool::new(2)), ValueRange::of(&values));
        }
    }
}
