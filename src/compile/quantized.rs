//! A quantized model to an artefact for the CPU engine, without the checkpoint it was made from.
//!
//! The CPU engine computes with floats between its matrices, and it fuses attention and feed-forward blocks that are written
//! down the ordinary way. So the graphs are built anew, without what only a device of integers needs, and only the weights are
//! taken over: matrices as the integers they are, in panels that hold them exactly where a panel can.

use super::components::PlannedComponent;
use super::storage::{MatrixFormats, plan_storage};
use super::{
    CompileReport, DEFAULT_PREFILL_AR, ProgressFn, Stage, TEMPLATE_FILE, TOKENIZER_FILE, step, write_components,
};
use crate::artefact::{
    Artefact, ArtefactWriter, ComponentHeader, MANIFEST_FILE, Manifest, TEXT_DECODER, TOK_EMBEDDING,
};
use crate::error::{Error, Result};
use crate::formats::{GROUP, WeightFormat};
use crate::graph::{DType, Graph, Op, WeightProvider};
use crate::models::decoder::RESIDUAL_SCALE;
use crate::models::{
    DecoderForm, FirstInput, KV_FORWARD, PREFILL_FORWARD, build_decoder_form, build_token_embedding,
    build_vision_encoder,
};
use crate::quantize::qdq::{QdqWeights, StoredForm, WeightSummary};
use crate::quantize::{ComponentFile, LPBQ_MULTIPLIER_BITS, ModelGraphs};
use crate::transform::{ResidualScaling, ScaledWeights};
use half::f16;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

/// What a report calls the format that was asked for.
const REQUESTED: &str = "quantized";
/// Steps of a [`WeightFormat::W4`] group.
const W4_STEPS: i64 = 15;
/// Largest magnitude in a [`WeightFormat::W8`] group.
const W8_MOST: i64 = 127;
/// Share of a matrix's energy that rounding to f16 may cost. Its 11 significant bits leave at most 2⁻²² of each weight's; more
/// is lost where many weights are below the normal range of f16.
const F16_LOSS: f64 = 1.0 / (1u64 << 22) as f64;
/// Values that are looked at together.
const VALUES_AT_ONCE: usize = 1 << 20;

/// How a quantized model is compiled. Formats and context come with the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuantizedCompileOptions {
    /// Rows of a prefill block. `None`: as the model was quantized for, or, if it is without prefill graph,
    /// [`DEFAULT_PREFILL_AR`] as far as the context has room.
    pub prefill_ar: Option<usize>,
    /// Threads that pack weights. `None`: one per physical core.
    pub threads: Option<usize>,
}

/// Compile the quantized model in the directory `quantized` into the artefact directory `out`.
///
/// Each matrix keeps the width of its integers: up to 4 bits become [`WeightFormat::W4`], up to 8 bits
/// [`WeightFormat::W8`], wider ones and floats [`WeightFormat::F16`], or [`WeightFormat::F32`] where f16 would lose more than
/// its rounding. The integers themselves come back, but for scales rounded to f16. Activations are not quantized: the CPU
/// engine computes with them in floats (16-bit integers inside a product with integers).
///
/// `out` appears complete or not at all; an artefact that was there is replaced at the end.
///
/// # Errors
/// [`Error::NotFound`] or [`Error::Format`] naming the file and the place; [`Error::InvalidArgument`] for a compiled model,
/// a block size that does not fit, an `out` that is `quantized` or holds something else; I/O errors, [`Error::Cancelled`].
/// `out` is then as it was.
pub fn compile_quantized(
    quantized: &Path,
    out: &Path,
    options: &QuantizedCompileOptions,
    progress: &mut ProgressFn<'_>,
) -> Result<CompileReport> {
    let start = Instant::now();
    let artefact = Artefact::open(quantized)?;
    let manifest = artefact.manifest();
    if !manifest.is_quantized_model() {
        let directory = quantized.display();
        return Err(Error::invalid(format!(
            "{directory} is a compiled model already; a quantized one is asked for here"
        )));
    }
    refuse_itself(quantized, out)?;
    let graphs = ModelGraphs::open(quantized)?;
    let sizes = (graphs.context_capacity, prefill_block(&graphs, options)?);
    let writer = ArtefactWriter::create(out)?;

    let name = &graphs.model.name;
    step(progress, Stage::Graphs, name, 0, 1)?;
    let sources = graphs.components().into_iter().map(|name| Source::open(&artefact, name));
    let sources = sources.collect::<Result<Vec<_>>>()?;
    let planned = sources.iter().map(|source| source.plan(&graphs, sizes.1)).collect::<Result<Vec<_>>>()?;
    step(progress, Stage::Graphs, name, 1, 1)?;

    let entries = write_components(&writer, &planned, options.threads, progress)?;

    let files = planned.len() as u64;
    step(progress, Stage::Finish, TOKENIZER_FILE, files, files + 2)?;
    writer.write_file(TOKENIZER_FILE, &artefact.tokenizer_json()?)?;
    let template = artefact.chat_template()?;
    if let Some(template) = &template {
        writer.write_file(TEMPLATE_FILE, template.as_bytes())?;
    }
    let mut report = CompileReport::new(name, REQUESTED, sizes, &planned, &entries);
    let (format, generator) = Manifest::identity();
    let compiled = Manifest {
        format,
        generator,
        model: graphs.model.clone(),
        context_capacity: sizes.0,
        prefill_ar: sizes.1,
        components: entries,
        tokenizer: TOKENIZER_FILE.into(),
        chat_template: template.map(|_| TEMPLATE_FILE.into()),
        extra_files: Vec::new(),
        ..manifest.clone()
    };
    step(progress, Stage::Finish, MANIFEST_FILE, files + 2, files + 2)?;
    writer.publish(&compiled)?;
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// The quantized model cannot become its own artefact: it would be gone.
fn refuse_itself(quantized: &Path, out: &Path) -> Result<()> {
    match (quantized.canonicalize(), out.canonicalize()) {
        (Ok(from), Ok(to)) if from == to => Err(Error::invalid(format!(
            "{} is the quantized model itself, which compiling would replace: choose another directory",
            out.display()
        ))),
        _ => Ok(()),
    }
}

/// Rows of a prefill block.
fn prefill_block(graphs: &ModelGraphs, options: &QuantizedCompileOptions) -> Result<usize> {
    let context = graphs.context_capacity;
    let most = context.saturating_sub(1);
    let block = options.prefill_ar.unwrap_or(match graphs.prefill_ar {
        0 => DEFAULT_PREFILL_AR.min(most),
        block => block.min(most),
    });
    match block {
        1.. if block <= most => Ok(block),
        _ => Err(Error::invalid(format!(
            "prefill_ar is {block}; in the context of {context} tokens that the model was quantized for, it must be 1 to {most}"
        ))),
    }
}

/// A component of the quantized model.
struct Source {
    name: &'static str,
    file: ComponentFile,
    weights: QdqWeights,
    /// Factors of the residual stream, if it is scaled.
    scaling: Option<ResidualScaling>,
}

impl Source {
    fn open(artefact: &Artefact, name: &'static str) -> Result<Self> {
        let path = artefact.component_path(name)?;
        let file = ComponentFile::open(&path)?;
        let weights = file.open_weights(&path.with_extension("safetensors"))?;
        let scaling = match weights.stored(RESIDUAL_SCALE).and_then(|stored| stored.rows()) {
            Some((rows, width)) => {
                let mut factors = vec![0.0; rows.saturating_mul(width)];
                weights.read_rows(RESIDUAL_SCALE, 0..rows, &mut factors)?;
                Some(ResidualScaling::from_stored(&factors)?)
            }
            None => None,
        };
        Ok(Self { name, file, weights, scaling })
    }

    /// Build the graphs for the CPU engine and choose a format for each matrix.
    fn plan(&self, model: &ModelGraphs, prefill_ar: usize) -> Result<PlannedComponent<'_>> {
        let graphs = cpu_graphs(model, self.name, prefill_ar)?;
        self.check_shapes(&graphs)?;
        let weights = self.provider(&graphs)?;
        let formats = self.formats(&graphs, &weights)?;
        let header: ComponentHeader = plan_storage(self.name, graphs, MatrixFormats::Each(&formats))?;
        let requested = if self.file.recipe.is_some() { REQUESTED } else { "float" };
        Ok(PlannedComponent { name: self.name, requested, header, weights: Box::new(weights) })
    }

    fn check_shapes(&self, graphs: &[Graph]) -> Result<()> {
        for info in graphs.iter().flat_map(Graph::weights) {
            let reason = match self.weights.stored(&info.name) {
                Some(stored) if stored.shape == info.shape => continue,
                Some(stored) => format!("is {:?}, but the model says {:?}", stored.shape, info.shape),
                None => "is missing".into(),
            };
            return Err(Error::format(self.weights.path(), &info.name, reason));
        }
        Ok(())
    }

    /// The weights of an ordinary graph.
    fn provider(&self, graphs: &[Graph]) -> Result<Unscaled<'_>> {
        let graph = graphs.first().ok_or_else(|| Error::internal(format!("{} has no graphs", self.name)))?;
        Ok(match &self.scaling {
            Some(scaling) => Unscaled::Scaled(scaling.unscale(graph, &self.weights)),
            None => Unscaled::AsTheyAre(&self.weights),
        })
    }

    /// A format for each matrix.
    fn formats(&self, graphs: &[Graph], weights: &Unscaled<'_>) -> Result<BTreeMap<String, WeightFormat>> {
        let (mut matrices, mut tables) = (Vec::new(), Vec::new());
        for (graph, node) in graphs.iter().flat_map(|graph| graph.nodes.iter().map(move |node| (graph, node))) {
            match (&node.op, node.inputs.get(1)) {
                (Op::Linear, Some(&id)) => matrices.push(&graph.value(id).info.name),
                (Op::Embedding, Some(&id)) => tables.push(&graph.value(id).info.name),
                _ => {}
            }
        }
        let mut formats = BTreeMap::new();
        for summary in self.weights.summaries()? {
            let is_table = tables.contains(&&summary.name);
            if !is_table && !matrices.contains(&&summary.name) {
                continue;
            }
            // Where the stream is scaled, so are columns of the table: a row of it is no longer on one grid.
            let of_integers = if is_table && self.scaling.is_some() { None } else { format_of_integers(&summary) };
            let format = match of_integers {
                Some(format) => format,
                None => smallest_float(weights, &summary)?,
            };
            formats.insert(summary.name, format);
        }
        Ok(formats)
    }
}

/// The format that holds the integers of a matrix; `None` if it has none, or too wide ones.
fn format_of_integers(summary: &WeightSummary) -> Option<WeightFormat> {
    let (low, high) = summary.levels?;
    // Whether all weights of a group share one scale.
    let (whole_groups, zero_point) = match summary.stored.form {
        StoredForm::Float | StoredForm::Bias => return None,
        StoredForm::Grid { encoding } => (true, encoding?.zero_point),
        StoredForm::Channels { .. } => (true, 0),
        StoredForm::Blocks { size, .. } => (size.is_multiple_of(GROUP), 0),
    };
    let (mut low, mut high) = (i64::from(low) - i64::from(zero_point), i64::from(high) - i64::from(zero_point));
    if whole_groups && high - low <= W4_STEPS {
        return Some(WeightFormat::W4);
    }
    if !whole_groups {
        // Blocks of several scales in one group: all are multiples of the channel's.
        low <<= LPBQ_MULTIPLIER_BITS;
        high <<= LPBQ_MULTIPLIER_BITS;
    }
    (low >= -W8_MOST && high <= W8_MOST).then_some(WeightFormat::W8)
}

/// The format of a matrix of floats, or of integers that no packed format has: what it is stored as, or f16 if that loses
/// nothing but its rounding.
fn smallest_float(weights: &dyn WeightProvider, summary: &WeightSummary) -> Result<WeightFormat> {
    match (summary.stored.form, summary.stored.dtype) {
        (StoredForm::Float, DType::F16) => return Ok(WeightFormat::F16),
        (StoredForm::Float, DType::BF16) => return Ok(WeightFormat::Bf16),
        _ => {}
    }
    let (rows, width) = summary.stored.rows().unwrap_or_default();
    let at_once = (VALUES_AT_ONCE / width.max(1)).max(1);
    let (mut energy, mut lost) = (0.0f64, 0.0f64);
    for first in (0..rows).step_by(at_once) {
        let mut values = vec![0.0; at_once.min(rows - first) * width];
        weights.read_rows(&summary.name, first..first + values.len() / width.max(1), &mut values)?;
        for value in values {
            energy += f64::from(value).powi(2);
            lost += f64::from(value - f16::from_f32(value).to_f32()).powi(2);
        }
    }
    // What is beyond f16 becomes infinite there, and so does the loss.
    Ok(if lost <= F16_LOSS * energy { WeightFormat::F16 } else { WeightFormat::F32 })
}

/// The graphs of a component as the CPU engine fuses them.
fn cpu_graphs(model: &ModelGraphs, component: &str, prefill_ar: usize) -> Result<Vec<Graph>> {
    let (spec, context) = (&model.model.decoder, model.context_capacity);
    match (component, &model.model.vision) {
        (TEXT_DECODER, vision) => {
            let first = if vision.is_some() { FirstInput::HiddenStates } else { FirstInput::Tokens };
            let DecoderForm { separate_head, half_split_rope, .. } = model.form;
            let form = DecoderForm { first, separate_head, half_split_rope, ..DecoderForm::default() };
            let build =
                |name: &str, ar: usize| build_decoder_form(spec, form, name, context, (context.saturating_sub(ar), ar));
            Ok(vec![build(KV_FORWARD, 1)?, build(PREFILL_FORWARD, prefill_ar)?])
        }
        (TOK_EMBEDDING, _) => build_token_embedding(spec, prefill_ar),
        (_, Some(vision)) => Ok(vec![build_vision_encoder(vision)?]),
        _ => Err(Error::internal(format!("{} has no component {component}", model.model.name))),
    }
}

/// Weights of which those that write to a scaled residual stream are read as the ordinary stream takes them.
enum Unscaled<'a> {
    AsTheyAre(&'a QdqWeights),
    Scaled(ScaledWeights<'a>),
}

impl WeightProvider for Unscaled<'_> {
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        match self {
            Unscaled::AsTheyAre(weights) => weights.read_rows(name, rows, out),
            Unscaled::Scaled(weights) => weights.read_rows(name, rows, out),
        }
    }
}
