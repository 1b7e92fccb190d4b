//! The encoder, and the rows it gives for pictures.

use super::component::{Clock, unused_rules};
use super::{Job, JobComponent, JobStep, Observed, Phase, SaveFn, StepFn, weights_path};
use crate::artefact::{TOK_EMBEDDING, VISION_ENCODER};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Tensor, WeightProvider};
use crate::models::BoundWeights;
use crate::quantize::calibration::{Encodings, Observations, observe};
use crate::quantize::check::{Comparison, compare};
use crate::quantize::component::ComponentFile;
use crate::quantize::forward::{Forward, Input, Sequence};
use crate::quantize::plan::GraphPlan;
use crate::quantize::ptq::{Ptq, write_float};
use crate::quantize::qdq::insert;
use std::path::Path;
use std::sync::Arc;

/// The embedding table.
pub(super) const TABLE: &str = "tok_embeddings.weight";

/// A sample as a decoder takes it.
pub(super) enum SampleRows {
    Tokens(Vec<u32>),
    /// `[tokens, hidden]`
    Hidden(Vec<f32>),
}

impl SampleRows {
    /// The first `tokens` of them.
    pub fn first(&self, tokens: usize, width: usize) -> Self {
        match self {
            SampleRows::Tokens(ids) => SampleRows::Tokens(ids[..ids.len().min(tokens)].to_vec()),
            SampleRows::Hidden(rows) => SampleRows::Hidden(rows[..rows.len().min(tokens * width)].to_vec()),
        }
    }

    /// Number of tokens.
    pub fn length(&self, width: usize) -> usize {
        match self {
            SampleRows::Tokens(tokens) => tokens.len(),
            SampleRows::Hidden(rows) => rows.len() / width.max(1),
        }
    }
}

/// The rows of a sample's media, `[rows, hidden]`.
pub(super) type MediaRows = Vec<f32>;

impl Job<'_> {
    fn encoder_weights(&self) -> Result<&BoundWeights<'_>> {
        let vision = self.weights.vision.as_ref();
        vision.map(|vision| &vision.encoder).ok_or_else(|| Error::internal("a model without an encoder"))
    }

    /// What the encoder takes for one sample.
    fn tiles(&self, sample: usize) -> Result<Vec<Vec<Input>>> {
        let processor = self.text.image_processor();
        let processor = processor.ok_or_else(|| Error::internal("a model that sees without settings for pictures"))?;
        let mut tiles = Vec::new();
        for medium in &self.set.samples[sample].media {
            let pixels = medium.pixels(processor)?;
            let shape = [1, 3, pixels.height, pixels.width];
            for tile in (0..pixels.tiles).filter_map(|tile| pixels.tile(tile)) {
                tiles.push(vec![Arc::new(Tensor::from_f32("pixel_values", &shape, tile)?)]);
            }
        }
        Ok(tiles)
    }

    fn refuse_without_pictures(&self) -> Result<()> {
        if self.set.has_media() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{VISION_ENCODER} cannot be calibrated on text: give samples with pictures (--calib-samples with \"files\"), or keep \
             the encoder float with --encoder-precision float"
        )))
    }

    /// Look at all pictures, unless that was done before.
    pub(super) fn observe_encoder(
        &self,
        seen: &mut Observed,
        save: &mut SaveFn<'_>,
        step: &mut StepFn<'_>,
    ) -> Result<()> {
        if seen.components.contains_key(VISION_ENCODER) {
            return Ok(());
        }
        self.refuse_without_pictures()?;
        let recipe = self.options.recipe(self.name(), VISION_ENCODER)?;
        let recipe = recipe.ok_or_else(|| Error::internal("a float encoder is not observed"))?;
        let graph = self.graphs.whole(VISION_ENCODER, 1)?;
        let plan = GraphPlan::new(&graph, &recipe)?;
        let mut observations = Observations::new(&plan)?;
        let mut forward = Forward::new(Arc::clone(&self.pool), self.encoder_weights()?);
        let samples = self.set.samples.len();
        for sample in 0..samples {
            let tiles = self.tiles(sample)?;
            let sequences = tiles.iter().map(|tile| Sequence::new(&graph, tile, false));
            let mut sequences = sequences.collect::<Result<Vec<_>>>()?;
            let plans = vec![&plan; sequences.len()];
            observe(
                &mut forward,
                &mut sequences,
                &plans,
                &mut observations,
                &mut report(step, Phase::Ranges, sample, samples),
            )?;
        }
        seen.components.insert(VISION_ENCODER.into(), observations);
        save(seen)
    }

    /// Quantize the encoder into its file, or write it as it is.
    pub(super) fn write_encoder(
        &self,
        directory: &Path,
        seen: &mut Observed,
        save: &mut SaveFn<'_>,
        step: &mut StepFn<'_>,
    ) -> Result<JobComponent> {
        let mut clock = Clock::default();
        let (name, weights) = (VISION_ENCODER, self.encoder_weights()?);
        let graph = self.graphs.whole(name, 1)?;
        let path = weights_path(directory, name);
        let Some(recipe) = self.options.recipe(self.name(), name)? else {
            let mut progress = layers(step, name, Phase::Weights);
            let written =
                clock.time(Phase::Weights, || write_float(&graph, weights, &path, &self.pool, &mut progress))?;
            let file = ComponentFile::new(self.graphs, name, None, Encodings::default(), written.stored)?;
            let (comparison, seen, warnings) = (Comparison::default(), Observations::default(), Vec::new());
            return Ok(JobComponent {
                name,
                file,
                data: written.file,
                comparison,
                seen,
                warnings,
                seconds: clock.seconds,
            });
        };
        clock.time(Phase::Ranges, || self.observe_encoder(seen, save, step))?;
        let plan = GraphPlan::new(&graph, &recipe)?;
        let ptq = Ptq { graph: &graph, plan: &plan, weights, pool: Arc::clone(&self.pool) };
        let observations = seen.components.get(name).cloned().unwrap_or_default();
        let encodings = ptq.encodings(&observations)?;
        let options = &self.options.weights;
        let written = clock.time(Phase::Weights, || {
            if !options.need_moments() {
                return ptq.write(&path, &encodings, options, &mut layers(step, name, Phase::Weights));
            }
            let quantized = insert(&graph, &plan, &encodings)?;
            let mut samples = Vec::new();
            for sample in 0..self.set.samples.len() {
                samples.extend(self.tiles(sample)?.into_iter().map(|tile| (&quantized, tile)));
            }
            ptq.write_with_samples(&path, &encodings, options, &samples, &mut layers(step, name, Phase::Weights))
        })?;
        let file = ComponentFile::new(self.graphs, name, Some(&recipe), encodings, written.stored)?;
        let comparison = clock.time(Phase::Check, || self.check_encoder(&file, &graph, &plan, directory, step))?;
        let warnings = unused_rules(&recipe, &plan, name);
        Ok(JobComponent {
            name,
            file,
            data: written.file,
            comparison,
            seen: observations,
            warnings,
            seconds: clock.seconds,
        })
    }

    fn check_encoder(
        &self,
        file: &ComponentFile,
        graph: &Graph,
        plan: &GraphPlan,
        directory: &Path,
        step: &mut StepFn<'_>,
    ) -> Result<Comparison> {
        let weights = file.open_weights(&weights_path(directory, VISION_ENCODER))?;
        let quantized = insert(graph, plan, &file.encodings)?;
        let mut comparison = Comparison::default();
        let mut float_forward = Forward::new(Arc::clone(&self.pool), self.encoder_weights()?);
        let mut quantized_forward = Forward::new(Arc::clone(&self.pool), &weights);
        let mut left = self.options.report_samples;
        for sample in 0..self.set.samples.len() {
            for tile in self.tiles(sample)?.into_iter().take(left) {
                left -= 1;
                let (a, b) = ((graph, &mut float_forward), (&quantized, &mut quantized_forward));
                let before = &mut report(step, Phase::Check, 0, 1);
                compare(a, b, (plan, &file.encodings), &tile, &mut comparison, before)?;
            }
            if left == 0 {
                break;
            }
        }
        Ok(comparison)
    }

    /// The token embedding: its table has a range of its own and needs no samples.
    pub(super) fn write_token_embedding(
        &self,
        directory: &Path,
        weights: &BoundWeights<'_>,
        step: &mut StepFn<'_>,
    ) -> Result<JobComponent> {
        let name = TOK_EMBEDDING;
        let mut clock = Clock::default();
        let recipe = self.options.recipe(self.name(), name)?;
        let recipe = recipe.ok_or_else(|| Error::internal("a token embedding always has a recipe"))?;
        let graph = self.graphs.whole(name, 1)?;
        let plan = GraphPlan::new(&graph, &recipe)?;
        let ptq = Ptq { graph: &graph, plan: &plan, weights, pool: Arc::clone(&self.pool) };
        let written = clock.time(Phase::Weights, || {
            let encodings = ptq.table_encodings()?;
            let path = weights_path(directory, name);
            let progress = &mut layers(step, name, Phase::Weights);
            Ok((ptq.write(&path, &encodings, &Default::default(), progress)?, encodings))
        })?;
        let (written, encodings) = written;
        let file = ComponentFile::new(self.graphs, name, Some(&recipe), encodings, written.stored)?;
        let warnings = unused_rules(&recipe, &plan, name);
        let (comparison, seen) = (Comparison::default(), Observations::default());
        Ok(JobComponent { name, file, data: written.file, comparison, seen, warnings, seconds: clock.seconds })
    }

    /// The rows that the encoder gives as it was written, for each sample.
    pub(super) fn encoder_rows(
        &self,
        file: &ComponentFile,
        directory: &Path,
        step: &mut StepFn<'_>,
    ) -> Result<Vec<MediaRows>> {
        let weights = file.open_weights(&weights_path(directory, VISION_ENCODER))?;
        self.rows_through(&file.whole(self.graphs, 1)?, &weights, step)
    }

    /// The rows that the float encoder gives, for each sample.
    pub(super) fn float_encoder_rows(&self, step: &mut StepFn<'_>) -> Result<Vec<MediaRows>> {
        self.rows_through(&self.graphs.whole(VISION_ENCODER, 1)?, self.encoder_weights()?, step)
    }

    fn rows_through(
        &self,
        graph: &Graph,
        weights: &(dyn WeightProvider + Sync),
        step: &mut StepFn<'_>,
    ) -> Result<Vec<MediaRows>> {
        let mut forward = Forward::new(Arc::clone(&self.pool), weights);
        let samples = self.set.samples.len();
        let mut all = Vec::with_capacity(samples);
        for sample in 0..samples {
            let tiles = self.tiles(sample)?;
            let sequences = tiles.iter().map(|tile| Sequence::new(graph, tile, true));
            let mut sequences = sequences.collect::<Result<Vec<_>>>()?;
            forward.run(&mut sequences, &mut report(step, Phase::Ranges, sample, samples), &mut |_, _, _| Ok(()))?;
            let mut rows = Vec::new();
            for sequence in &sequences {
                rows.extend_from_slice(sequence.output("image_features")?);
            }
            all.push(rows);
        }
        Ok(all)
    }

    /// Put the rows of pictures in the places of the tokens that stand for them.
    pub(super) fn merge_rows(&self, media: &[MediaRows], table: &dyn WeightProvider) -> Result<Vec<SampleRows>> {
        let width = self.graphs.model.decoder.hidden_size;
        let mut all = Vec::with_capacity(media.len());
        for (sample, media) in self.set.samples.iter().zip(media) {
            if media.len() != sample.media_rows.len() * width {
                let (rows, places) = (media.len() / width.max(1), sample.media_rows.len());
                let origin = &sample.origin;
                return Err(Error::internal(format!("{origin}: the encoder gave {rows} rows for {places} places")));
            }
            let mut rows = vec![0.0; sample.tokens.len() * width];
            for (&token, row) in sample.tokens.iter().zip(rows.chunks_exact_mut(width)) {
                table.read_rows(TABLE, token as usize..token as usize + 1, row)?;
            }
            for (&at, from) in sample.media_rows.iter().zip(media.chunks_exact(width)) {
                rows[at * width..(at + 1) * width].copy_from_slice(from);
            }
            all.push(SampleRows::Hidden(rows));
        }
        Ok(all)
    }
}

/// Progress through the layers of one of several runs of the encoder.
fn report<'s>(
    step: &'s mut StepFn<'_>,
    phase: Phase,
    run: usize,
    runs: usize,
) -> impl FnMut(&Node, usize, usize) -> Result<()> + 's {
    move |node, done, layers| {
        let (done, total) = (run * layers + done, runs * layers);
        step(JobStep { component: VISION_ENCODER, phase, layer: &node.name, done, total })
    }
}

/// Progress through the layers of a component.
fn layers<'s>(
    step: &'s mut StepFn<'_>,
    component: &'static str,
    phase: Phase,
) -> impl FnMut(&str, usize, usize) -> Result<()> + 's {
    move |layer, done, total| step(JobStep { component, phase, layer, done, total })
}
