//! What a quantization did: read back from what was written, for programs (JSON) and for people (a page).

use crate::artefact::FormatSummary;
use crate::dataset::{CalibrationSet, Shard, SourceSummary};
use crate::error::{Error, Result};
use crate::quantize::{
    Encoding, JobComponent, LayerError, ModelGraphs, Observations, ObserverKind, QuantizeOptions, ValueRange,
    qdq::{QdqWeights, WeightSummary},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// File name of the report inside a quantized model.
pub const REPORT_FILE: &str = "report.json";

/// The report of a quantization.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct QuantizationReport {
    /// Name of the model.
    pub model: String,
    /// Program and version that wrote it.
    pub generator: String,
    /// How the model is written down.
    pub graphs: ModelGraphs,
    /// What was asked for.
    pub options: QuantizeOptions,
    /// What it was calibrated with.
    pub calibration: CalibrationSummary,
    /// By component.
    pub components: BTreeMap<String, ComponentReport>,
    /// What was noticed: rules that match nothing, random data.
    pub warnings: Vec<String>,
    /// Time and memory, in order.
    pub stages: Vec<StageCost>,
}

/// What a model was calibrated with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CalibrationSummary {
    /// Samples.
    pub samples: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Pictures and sounds among them.
    pub media: usize,
    /// There is random data among it: good for smoke tests only.
    pub smoke_only: bool,
    /// SHA-256 of tokens and media.
    pub fingerprint: String,
    /// The part of the set it was, if it was a part.
    pub shard: Option<Shard>,
    /// Where it came from.
    pub sources: Vec<SourceSummary>,
    /// Observations that were joined instead, if they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<String>,
}

/// A component as it was written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ComponentReport {
    /// `float`, or the integers of layers without a rule, e.g. `16a8w`.
    pub precision: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Bytes of its weights as a device stores them.
    pub device_bytes: u64,
    /// Weights by the integers that were read back, e.g. `int4`.
    pub formats: BTreeMap<String, FormatSummary>,
    /// Every weight, read back.
    pub weights: Vec<WeightSummary>,
    /// Every grid of activations.
    pub activations: Vec<ActivationReport>,
    /// Layers and outputs beside the float model.
    pub layers: Vec<LayerError>,
    /// Seconds of each phase.
    pub seconds: BTreeMap<String, f64>,
}

/// A grid of activations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActivationReport {
    /// The tensor.
    pub name: String,
    /// Its grid.
    pub encoding: Encoding,
    /// Values that were observed; absent where the range is known beforehand.
    pub seen: Option<ValueRange>,
    /// Share of the checked values outside of the grid.
    pub clipped: f64,
    /// How the range was found; absent where it is known beforehand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observer: Option<ObserverKind>,
}

/// What a stage took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageCost {
    /// Its name.
    pub stage: String,
    /// Seconds.
    pub seconds: f64,
    /// Most memory of the process up to its end, bytes; absent where the system does not say.
    pub peak_memory_bytes: Option<u64>,
}

impl CalibrationSummary {
    /// Fingerprints of the parts it was joined of; its own if it was not.
    pub(super) fn parts(&self) -> Vec<String> {
        if self.merged.is_empty() { vec![self.fingerprint.clone()] } else { self.merged.clone() }
    }

    /// Of a set.
    pub fn of(set: &CalibrationSet) -> Self {
        Self {
            samples: set.samples.len(),
            tokens: set.token_count(),
            media: set.samples.iter().map(|sample| sample.media.len()).sum(),
            smoke_only: set.smoke_only,
            fingerprint: set.fingerprint.clone(),
            shard: set.shard,
            sources: set.sources.clone(),
            merged: Vec::new(),
        }
    }
}

impl ComponentReport {
    /// Of a component whose weights were read back.
    ///
    /// # Errors
    /// [`Error::Format`] naming a weight with integers that its form does not allow.
    pub fn new(component: &JobComponent, weights: &QdqWeights, json_bytes: u64) -> Result<Self> {
        let weights = weights.summaries()?;
        let mut formats = BTreeMap::<String, FormatSummary>::new();
        for weight in &weights {
            let elements = weight.stored.shape.iter().product::<usize>() as u64;
            formats.entry(weight.format_name()).or_default().add(elements, weight.device_bytes);
        }
        let clipped = |name: &str| {
            let found = component.comparison.clipping.iter().find(|check| check.slot == name);
            found.map_or(0.0, |check| check.clipped)
        };
        let activations = component.file.encodings.iter().map(|(name, encoding)| ActivationReport {
            name: name.into(),
            encoding,
            seen: seen(&component.seen, name),
            clipped: clipped(name),
            observer: component.seen.observer(name),
        });
        Ok(Self {
            precision: component
                .file
                .recipe
                .as_ref()
                .map_or("float".into(), |recipe| recipe.default_dtype().name().into()),
            bytes: component.data.bytes + json_bytes,
            device_bytes: weights.iter().map(|weight| weight.device_bytes).sum(),
            formats,
            activations: activations.collect(),
            weights,
            layers: component.comparison.layers.clone(),
            seconds: component.seconds.iter().map(|(phase, seconds)| ((*phase).to_owned(), *seconds)).collect(),
        })
    }
}

fn seen(observations: &Observations, name: &str) -> Option<ValueRange> {
    observations.seen(name).filter(|range| !range.is_empty())
}

impl QuantizationReport {
    /// Pretty-printed JSON.
    ///
    /// # Errors
    /// [`Error::Internal`] if it cannot be written down.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(self).map_err(|e| Error::internal(format!("report: {e}")))
    }
}
