//! Quantizes a model: its encoder first, then what the encoder's rows go into.
//!
//! - `media`: the encoder, and the rows it gives for pictures.
//! - `ranges`: calibration of a component, some samples at a time.
//! - `component`: ranges to grids, weights to integers, both models side by side.

mod component;
mod media;
mod ranges;

use super::calibration::Observations;
use super::check::Comparison;
use super::component::ComponentFile;
use super::dtype::{QuantDtype, WeightGranularity};
use super::forward::{Forward, Input, Sequence};
use super::graphs::ModelGraphs;
use super::inputs::{DecoderInputs, Rows};
use super::options::{EncoderRows, QuantizeOptions, ResidualChannels};
use super::qdq::WrittenFile;
use super::recipe::Rule;
use crate::artefact::{TEXT_DECODER, TOK_EMBEDDING, VISION_ENCODER};
use crate::chat::EncodeOptions;
use crate::dataset::{CalibrationSet, ModelText};
use crate::engine::cpu::pool::Pool;
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, WeightProvider};
use crate::models::{DecoderForm, ModelWeights};
use crate::transform::{ResidualScaling, ScaledWeights};
use component::Part;
use media::SampleRows;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the residual stream is looked at with, to find channels that stand out: any text does, since the first token is what
/// makes them. It is always the same one, so that every shard of a calibration set decides alike.
const PROBE: &str = "On the first morning of the week the harbour was quiet. Two boats had come in during the night, and the \
                     people who worked on them were asleep; only a grey cat sat on the wall and watched the water. Later, \
                     about 9:30, somebody counted 17 crates of fish, 4 of them empty.";
/// Tokens of it that are looked at.
const PROBE_TOKENS: usize = 64;

/// Nodes that turn queries and keys.
const R3_NODES: &str = "_r3$";

/// Part of the work on a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Finding the ranges of activations.
    Ranges,
    /// Turning weights into integers.
    Weights,
    /// Running the quantized model beside the float one.
    Check,
}

impl Phase {
    /// Its name, as in reports.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Ranges => "ranges",
            Phase::Weights => "weights",
            Phase::Check => "check",
        }
    }
}

/// Where the work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobStep<'s> {
    /// The component.
    pub component: &'s str,
    /// Part of the work.
    pub phase: Phase,
    /// The layer.
    pub layer: &'s str,
    /// Layers of this phase that are done.
    pub done: usize,
    /// Layers of this phase.
    pub total: usize,
}

/// Called with the progress; an error, [`Error::Cancelled`] for instance, ends the work.
pub type StepFn<'f> = dyn FnMut(JobStep<'_>) -> Result<()> + 'f;

/// What the observers of a model saw: can be written down, joined with that of other samples, and gone on with.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    /// Samples of the set that the decoder has seen; other components have seen all or nothing.
    pub samples: usize,
    /// Factors of the residual stream, if it is scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual_factors: Option<Vec<f32>>,
    /// By component.
    pub components: BTreeMap<String, Observations>,
}

impl Observed {
    /// Add what was seen in other samples.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the two are not of the same model, recipe and form.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        if self.residual_factors != other.residual_factors {
            return Err(Error::invalid("the parts scale the residual stream differently; are both of the same model?"));
        }
        if !self.components.keys().eq(other.components.keys()) {
            return Err(Error::invalid("the parts observed different components; were both finished?"));
        }
        for (name, observations) in &mut self.components {
            if let Some(theirs) = other.components.get(name) {
                observations.merge(theirs).map_err(|error| Error::invalid(format!("{name}: {error}")))?;
            }
        }
        self.samples += other.samples;
        Ok(())
    }
}

/// Called whenever some samples are through, with all that was seen.
pub type SaveFn<'f> = dyn FnMut(&Observed) -> Result<()> + 'f;

/// A model that will be quantized.
pub struct Job<'a> {
    /// Its graphs.
    pub graphs: &'a ModelGraphs,
    /// Its weights.
    pub weights: &'a ModelWeights<'a>,
    /// What it is calibrated with.
    pub set: &'a CalibrationSet,
    /// Its tokenizer and media settings.
    pub text: &'a ModelText,
    /// How.
    pub options: &'a QuantizeOptions,
    /// Threads.
    pub pool: Arc<Pool>,
}

/// A component that was written.
#[derive(Debug)]
pub struct JobComponent {
    /// Name.
    pub name: &'static str,
    /// Its graphs and grids.
    pub file: ComponentFile,
    /// The file of its weights.
    pub data: WrittenFile,
    /// Both models side by side; empty for a component that stayed float.
    pub comparison: Comparison,
    /// What the observers saw.
    pub seen: Observations,
    /// Rules that match nothing, and the like.
    pub warnings: Vec<String>,
    /// Seconds of each phase.
    pub seconds: BTreeMap<&'static str, f64>,
}

impl<'a> Job<'a> {
    /// Look at the calibration data and give back what was seen: a shard, or the first half of the work. `seen` is what was seen
    /// before, in the first samples of the set.
    ///
    /// # Errors
    /// As [`run`](Self::run); [`Error::InvalidArgument`] if the decoder is to be calibrated on the rows of a quantized encoder whose
    /// ranges are not known yet.
    pub fn observe(&self, mut seen: Observed, save: &mut SaveFn<'_>, step: &mut StepFn<'_>) -> Result<Observed> {
        self.options.validate()?;
        let rows = match &self.weights.vision {
            Some(vision) => {
                if self.options.recipe(self.name(), VISION_ENCODER)?.is_some() {
                    if self.options.encoder_rows == EncoderRows::Delivered {
                        return Err(Error::invalid(
                            "the decoder is to be calibrated on the rows of the quantized encoder, whose ranges are known only when \
                             all shards are joined: ask for --encoder-rows float, or for a float encoder",
                        ));
                    }
                    self.observe_encoder(&mut seen, save, step)?;
                }
                self.merge_rows(&self.float_encoder_rows(step)?, &vision.token_embedding)?
            }
            None => self.token_rows(),
        };
        let scaling = self.residual_scaling(&mut seen)?;
        let weights = self.decoder_weights(scaling.as_ref())?;
        let part = self.decoder_part(scaling.is_some(), weights.get(), &rows)?;
        part.observe(&mut seen, save, step)?;
        Ok(seen)
    }

    /// Quantize every component into files in `directory`; on ranges that were found before, as far as `seen` has them, otherwise
    /// after looking at the calibration data. The graphs that come back are those of the model as it is written down.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for options that do not fit the model, calibration data without pictures for an encoder, a block
    /// size that does not divide a layer; [`Error::InvalidState`] if tensors saw no values; what the weights and files report; what
    /// `step` returns.
    pub fn run(
        &self,
        directory: &Path,
        mut seen: Observed,
        save: &mut SaveFn<'_>,
        step: &mut StepFn<'_>,
    ) -> Result<(ModelGraphs, Vec<JobComponent>)> {
        self.options.validate()?;
        let mut written = Vec::new();
        let rows = match &self.weights.vision {
            Some(vision) => {
                let encoder = self.write_encoder(directory, &mut seen, save, step)?;
                let features = match self.options.encoder_rows {
                    EncoderRows::Delivered => self.encoder_rows(&encoder.file, directory, step)?,
                    EncoderRows::Float => self.float_encoder_rows(step)?,
                };
                let embedding = self.write_token_embedding(directory, &vision.token_embedding, step)?;
                let table = embedding.file.open_weights(&weights_path(directory, TOK_EMBEDDING))?;
                written.extend([encoder, embedding]);
                self.merge_rows(&features, &table)?
            }
            None => self.token_rows(),
        };
        let scaling = self.residual_scaling(&mut seen)?;
        let weights = self.decoder_weights(scaling.as_ref())?;
        let part = self.decoder_part(scaling.is_some(), weights.get(), &rows)?;
        written.push(part.write(directory, &mut seen, save, step)?);
        Ok((part.graphs, written))
    }

    /// Name of the model, for messages and recipes.
    fn name(&self) -> &str {
        &self.graphs.model.name
    }

    /// Every sample as token ids.
    fn token_rows(&self) -> Vec<SampleRows> {
        self.set.samples.iter().map(|sample| SampleRows::Tokens(sample.tokens.clone())).collect()
    }

    /// The decoder, with or without a scaled residual stream.
    fn decoder_part<'p>(
        &'p self,
        scaled: bool,
        weights: &'p (dyn WeightProvider + Sync),
        rows: &'p [SampleRows],
    ) -> Result<Part<'p>> {
        let form = DecoderForm { residual_scaling: scaled, ..self.graphs.form };
        let recipe = self.options.recipe(self.name(), TEXT_DECODER)?;
        let mut recipe = recipe.ok_or_else(|| Error::internal("a decoder always has a recipe"))?;
        if form.r3 {
            // A constant of a graph and no weight of the model: its 16 bits cost nothing.
            let rule = Rule::for_name(R3_NODES, QuantDtype::A16W16, WeightGranularity::PerTensor);
            recipe.add(Rule { priority: i32::MAX, ..rule })?;
        }
        let graphs = ModelGraphs { form, ..self.graphs.clone() };
        Ok(Part { job: self, component: TEXT_DECODER, graphs, weights, recipe, rows })
    }

    /// The decoder's weights, over a scaled residual stream if it is.
    fn decoder_weights(&self, scaling: Option<&ResidualScaling>) -> Result<DecoderWeights<'_>> {
        let weights = &self.weights.text_decoder;
        Ok(match scaling {
            Some(scaling) => {
                let graph = self.graphs.whole(TEXT_DECODER, 1)?;
                DecoderWeights::Scaled(scaling.scale(&graph, weights))
            }
            None => DecoderWeights::AsTheyAre(weights),
        })
    }

    /// Decide about the residual stream: as it was decided before, or by looking at it once.
    fn residual_scaling(&self, seen: &mut Observed) -> Result<Option<ResidualScaling>> {
        if self.options.residual == ResidualChannels::AsTheyAre {
            if seen.residual_factors.is_some() {
                return Err(Error::invalid(
                    "the ranges were found over a scaled residual stream, which the options now forbid",
                ));
            }
            return Ok(None);
        }
        if let Some(factors) = &seen.residual_factors {
            return ResidualScaling::from_stored(factors).map(Some);
        }
        if seen.components.contains_key(TEXT_DECODER) {
            return Ok(None);
        }
        let scaling = ResidualScaling::from_maxima(&self.probe()?);
        seen.residual_factors = scaling.as_ref().map(|scaling| scaling.factors().to_vec());
        Ok(scaling)
    }

    /// The largest magnitude of each channel of the residual stream, in a short text.
    fn probe(&self) -> Result<Vec<f32>> {
        let options = EncodeOptions { add_bos: true, parse_special: false };
        let mut tokens = self.text.prompts().tokenizer().encode(PROBE, options)?;
        tokens.truncate(PROBE_TOKENS.min(self.graphs.context_capacity));
        let width = self.graphs.model.decoder.hidden_size;
        let graph = self.graphs.whole(TEXT_DECODER, tokens.len())?;
        let rows = match &self.weights.vision {
            Some(vision) => {
                let mut rows = vec![0.0; tokens.len() * width];
                for (&token, row) in tokens.iter().zip(rows.chunks_exact_mut(width)) {
                    vision.token_embedding.read_rows(media::TABLE, token as usize..token as usize + 1, row)?;
                }
                SampleRows::Hidden(rows)
            }
            None => SampleRows::Tokens(tokens),
        };
        let inputs = self.sequence_inputs(&mut DecoderInputs::default(), &graph, &rows)?;
        let mut forward = Forward::new(Arc::clone(&self.pool), &self.weights.text_decoder);
        let mut maxima = vec![0.0f32; width];
        let mut observe = |_: usize, node: &Node, values: &[f32]| {
            if node.name.ends_with("_residual") {
                for row in values.chunks_exact(width) {
                    maxima.iter_mut().zip(row).for_each(|(most, value)| *most = most.max(value.abs()));
                }
            }
            Ok(())
        };
        forward.run(&mut [Sequence::new(&graph, &inputs, false)?], &mut |_, _, _| Ok(()), &mut observe)?;
        Ok(maxima)
    }

    /// Tokens that the graph of a sample takes: those it has, or the whole context where padding is to be observed.
    fn padded_length(&self, rows: &SampleRows) -> usize {
        let length = rows.length(self.graphs.model.decoder.hidden_size);
        if self.options.observe_padding { self.graphs.context_capacity.max(length) } else { length }
    }

    /// Inputs of a decoder graph, padded to what the graph takes.
    fn sequence_inputs(&self, inputs: &mut DecoderInputs, graph: &Graph, rows: &SampleRows) -> Result<Vec<Input>> {
        let width = self.graphs.model.decoder.hidden_size;
        let (real, window) = (rows.length(width), self.graphs.model.decoder.sliding_window);
        let length = graph.value(graph.inputs[0]).info.shape.get(1).copied().unwrap_or(real);
        match rows {
            SampleRows::Tokens(tokens) => {
                let mut tokens = tokens.clone();
                tokens.resize(length, 0);
                inputs.of(graph, Rows::Tokens(&tokens), real, window)
            }
            SampleRows::Hidden(rows) => {
                let mut rows = rows.clone();
                rows.resize(length * width, 0.0);
                inputs.of(graph, Rows::Hidden(&rows), real, window)
            }
        }
    }
}

/// A decoder's weights.
enum DecoderWeights<'w> {
    AsTheyAre(&'w (dyn WeightProvider + Sync)),
    Scaled(ScaledWeights<'w>),
}

impl DecoderWeights<'_> {
    fn get(&self) -> &(dyn WeightProvider + Sync) {
        match self {
            DecoderWeights::AsTheyAre(weights) => *weights,
            DecoderWeights::Scaled(weights) => weights,
        }
    }
}

/// The safetensors file of a component.
pub fn weights_path(directory: &Path, component: &str) -> PathBuf {
    directory.join(format!("{component}.safetensors"))
}
