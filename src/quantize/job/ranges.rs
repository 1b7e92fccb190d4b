//! Calibration of a component, some samples at a time.

use super::component::Part;
use super::{JobStep, Observed, Phase, SaveFn, StepFn};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node};
use crate::quantize::calibration::{Observations, observe};
use crate::quantize::forward::{Forward, Sequence};
use crate::quantize::inputs::DecoderInputs;
use crate::quantize::plan::GraphPlan;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

impl Part<'_> {
    /// Look at the samples that were not seen before.
    pub fn observe(&self, seen: &mut Observed, save: &mut SaveFn<'_>, step: &mut StepFn<'_>) -> Result<()> {
        let total = self.rows.len();
        if seen.samples > total {
            let done = seen.samples;
            return Err(Error::invalid(format!(
                "{done} samples were seen before, but the set has {total}: is it another one?"
            )));
        }
        let groups = self.groups(seen.samples);
        let count = groups.len();
        let mut inputs = DecoderInputs::default();
        for (number, group) in groups.into_iter().enumerate() {
            let graphs = self.graphs_of(&self.rows[group.clone()])?;
            let first = graphs.values().next().ok_or_else(|| Error::internal("a group without samples"))?;
            let mut observations = match seen.components.remove(self.component) {
                Some(observations) => observations,
                None => Observations::new(&first.1)?,
            };
            let mut sequences = Vec::new();
            let mut plans = Vec::new();
            for rows in &self.rows[group.clone()] {
                let (graph, plan) = &graphs[&self.job.padded_length(rows)];
                sequences.push(Sequence::new(graph, &self.job.sequence_inputs(&mut inputs, graph, rows)?, false)?);
                plans.push(plan);
            }
            let mut forward = Forward::new(Arc::clone(&self.job.pool), self.weights);
            let before = &mut |node: &Node, done: usize, layers: usize| {
                let (done, total) = (number * layers + done, count * layers);
                step(JobStep { component: self.component, phase: Phase::Ranges, layer: &node.name, done, total })
            };
            observe(&mut forward, &mut sequences, &plans, &mut observations, before)?;
            seen.components.insert(self.component.into(), observations);
            seen.samples = group.end;
            save(seen)?;
        }
        Ok(())
    }

    /// Samples that go through the model together, from sample `first` on.
    fn groups(&self, first: usize) -> Vec<Range<usize>> {
        let mut groups: Vec<Range<usize>> = Vec::new();
        let mut tokens = 0;
        for (number, rows) in self.rows.iter().enumerate().skip(first) {
            let length = self.job.padded_length(rows);
            match groups.last_mut() {
                Some(group) if tokens + length <= self.job.options.tokens_at_once => group.end = number + 1,
                _ => {
                    groups.push(number..number + 1);
                    tokens = 0;
                }
            }
            tokens += length;
        }
        groups
    }

    /// Graphs and plans by length.
    pub(super) fn graphs_of(&self, rows: &[super::media::SampleRows]) -> Result<BTreeMap<usize, (Graph, GraphPlan)>> {
        let mut graphs = BTreeMap::new();
        for rows in rows {
            let length = self.job.padded_length(rows);
            if let Entry::Vacant(entry) = graphs.entry(length) {
                let graph = self.graphs.whole(self.component, length)?;
                let plan = GraphPlan::new(&graph, &self.recipe)?;
                entry.insert((graph, plan));
            }
        }
        Ok(graphs)
    }
}
