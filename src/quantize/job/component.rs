//! One component: ranges to grids, weights to integers, both models side by side.

use super::media::SampleRows;
use super::{Job, JobComponent, JobStep, Observed, Phase, SaveFn, StepFn, weights_path};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, WeightProvider};
use crate::quantize::calibration::Encodings;
use crate::quantize::check::{Comparison, compare};
use crate::quantize::component::ComponentFile;
use crate::quantize::forward::{Forward, Input};
use crate::quantize::graphs::ModelGraphs;
use crate::quantize::inputs::DecoderInputs;
use crate::quantize::plan::GraphPlan;
use crate::quantize::ptq::Ptq;
use crate::quantize::qdq::insert;
use crate::quantize::recipe::Recipe;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Tokens of a sample that both models run side by side: enough for an average, and quick.
const CHECKED_TOKENS: usize = 256;

/// A component that is quantized over sequences of rows.
pub(super) struct Part<'p> {
    pub job: &'p Job<'p>,
    pub component: &'static str,
    pub graphs: ModelGraphs,
    pub weights: &'p (dyn WeightProvider + Sync),
    pub recipe: Recipe,
    /// Samples.
    pub rows: &'p [SampleRows],
}

impl Part<'_> {
    /// Quantize it into its file.
    pub fn write(
        &self,
        directory: &Path,
        seen: &mut Observed,
        save: &mut SaveFn<'_>,
        step: &mut StepFn<'_>,
    ) -> Result<JobComponent> {
        let mut clock = Clock::default();
        clock.time(Phase::Ranges, || self.observe(seen, save, step))?;
        let observations = seen.components.get(self.component).cloned();
        let observations = observations
            .ok_or_else(|| Error::InvalidState(format!("{}: calibration data without samples", self.component)))?;
        // Any length has the same weights and slots.
        let graph = self.graphs.whole(self.component, 1)?;
        let plan = GraphPlan::new(&graph, &self.recipe)?;
        let ptq = Ptq { graph: &graph, plan: &plan, weights: self.weights, pool: Arc::clone(&self.job.pool) };
        let encodings = ptq.encodings(&observations)?;
        let path = weights_path(directory, self.component);
        let options = &self.job.options.weights;
        let progress = &mut |layer: &str, done: usize, total: usize| {
            step(JobStep { component: self.component, phase: Phase::Weights, layer, done, total })
        };
        let weights = clock.time(Phase::Weights, || {
            if !options.need_moments() {
                return ptq.write(&path, &encodings, options, progress);
            }
            let graphs = self.quantized_graphs(&encodings)?;
            let samples = self.samples(&graphs)?;
            ptq.write_with_samples(&path, &encodings, options, &samples, progress)
        })?;
        let file = ComponentFile::new(&self.graphs, self.component, Some(&self.recipe), encodings, weights.stored)?;
        let comparison = clock.time(Phase::Check, || self.check(&file, directory, step))?;
        let (name, data, seen) = (self.component, weights.file, observations);
        let warnings = unused_rules(&self.recipe, &plan, name);
        Ok(JobComponent { name, file, data, comparison, seen, warnings, seconds: clock.seconds })
    }

    /// Graphs with quantize-dequantize nodes, by length.
    fn quantized_graphs(&self, encodings: &Encodings) -> Result<BTreeMap<usize, Graph>> {
        let graphs = self.graphs_of(self.rows)?;
        graphs.iter().map(|(length, (graph, plan))| Ok((*length, insert(graph, plan, encodings)?))).collect()
    }

    fn samples<'g>(&self, graphs: &'g BTreeMap<usize, Graph>) -> Result<Vec<(&'g Graph, Vec<Input>)>> {
        let mut inputs = DecoderInputs::default();
        let sample = |rows| {
            let graph = &graphs[&self.job.padded_length(rows)];
            Ok((graph, self.job.sequence_inputs(&mut inputs, graph, rows)?))
        };
        self.rows.iter().map(sample).collect()
    }

    /// Run the first samples through the float model and through what was written.
    fn check(&self, file: &ComponentFile, directory: &Path, step: &mut StepFn<'_>) -> Result<Comparison> {
        let weights = file.open_weights(&weights_path(directory, self.component))?;
        let count = self.job.options.report_samples.min(self.rows.len());
        let width = self.graphs.model.decoder.hidden_size;
        let rows = self.rows[..count].iter().map(|rows| rows.first(CHECKED_TOKENS, width)).collect::<Vec<_>>();
        let rows = rows.as_slice();
        let mut comparison = Comparison::default();
        let mut inputs = DecoderInputs::default();
        let mut float_forward = Forward::new(Arc::clone(&self.job.pool), self.weights);
        let mut quantized_forward = Forward::new(Arc::clone(&self.job.pool), &weights);
        let graphs = self.graphs_of(rows)?;
        for (number, rows) in rows.iter().enumerate() {
            let (graph, plan) = &graphs[&self.job.padded_length(rows)];
            let quantized = insert(graph, plan, &file.encodings)?;
            let given = self.job.sequence_inputs(&mut inputs, graph, rows)?;
            let before = &mut |node: &Node, done: usize, layers: usize| {
                let (done, total) = (number * layers + done, count * layers);
                step(JobStep { component: self.component, phase: Phase::Check, layer: &node.name, done, total })
            };
            let (a, b) = ((graph, &mut float_forward), (&quantized, &mut quantized_forward));
            compare(a, b, (plan, &file.encodings), &given, &mut comparison, before)?;
        }
        Ok(comparison)
    }
}

/// Seconds by phase.
#[derive(Default)]
pub(super) struct Clock {
    pub seconds: BTreeMap<&'static str, f64>,
}

impl Clock {
    pub fn time<T>(&mut self, phase: Phase, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let result = work();
        *self.seconds.entry(phase.name()).or_default() += start.elapsed().as_secs_f64();
        result
    }
}

/// A warning for each rule that decides about nothing.
pub(super) fn unused_rules(recipe: &Recipe, plan: &GraphPlan, component: &str) -> Vec<String> {
    let names = plan.layers.iter().map(|layer| layer.names.iter().map(String::as_str).collect::<Vec<_>>());
    let names = names.collect::<Vec<_>>();
    let layers = names.iter().zip(&plan.layers).map(|(names, layer)| (names.as_slice(), layer.kind));
    let unused = recipe.unused_rules(layers);
    let describe = |rule: usize| {
        let rule = recipe.rules().get(rule)?;
        let what = match (&rule.pattern, rule.kind) {
            (Some(pattern), _) => format!("the rule for {pattern:?}"),
            (None, Some(kind)) => format!("the rule for {kind:?} layers"),
            (None, None) => "a rule for everything".to_owned(),
        };
        Some(format!("{component}: {what} ({}) decides about no layer", rule.dtype))
    };
    unused.into_iter().filter_map(describe).collect()
}
