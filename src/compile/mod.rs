//! A checkpoint, or a quantized model, to an artefact for the CPU engine.
//!
//! [`compile_checkpoint`] reads like the story: read the configuration, build the graphs, bind their weights to the
//! checkpoint's tensors, pack the weights, copy the tokenizer and the template, publish the directory.
//! [`recompile_component`] replaces one component of an artefact and leaves the others as they are.
//! [`compile_quantized`] takes the integers of a quantized model in place of a checkpoint.
//!
//! - `components`: what a model is compiled into.
//! - `storage`: which number format each weight gets.
//! - `pack`: weights into a component file, a few panels at a time, so that memory stays small whatever the model.

mod components;
mod options;
mod pack;
mod quantized;
mod recompile;
mod storage;

use crate::artefact::{
    ArtefactWriter, Component, ComponentEntry, FormatSummary, GenerationDefaults, ImageSection, Manifest,
    SCHEMA_VERSION,
};
use crate::checkpoint::Checkpoint;
use crate::engine::cpu::pool::{Pool, physical_cores};
use crate::error::{Error, Result};
use crate::registry::{self, ModelSpec, PositionRule, RegistryEntry, Runnable};
use components::{PlannedComponent, plan_components};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

pub use options::{CompileOptions, DEFAULT_MAX_CONTEXT, DEFAULT_PREFILL_AR};
pub use pack::write_component;
pub use quantized::{QuantizedCompileOptions, compile_quantized};
pub use recompile::recompile_component;
pub use storage::{MatrixFormats, plan_storage};

/// File names inside the artefact, beside those of the components.
const TOKENIZER_FILE: &str = "tokenizer.json";
const TEMPLATE_FILE: &str = "chat_template.jinja";

/// What the progress callback wants to happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// End with [`Error::Cancelled`], leaving nothing behind.
    Cancel,
}

/// Part of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Building and checking the graphs.
    Graphs,
    /// Packing weights; progress counts bytes written, of all components together.
    Weights,
    /// Reading the components back, writing tokenizer and template.
    Finish,
}

/// Where the work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Part of the work.
    pub stage: Stage,
    /// What is worked on: a weight or a file.
    pub item: &'a str,
    /// Units of this stage that are done.
    pub done: u64,
    /// Units of this stage.
    pub total: u64,
}

/// Called now and then with the progress; says whether to go on.
pub type ProgressFn<'a> = dyn FnMut(Progress<'_>) -> Flow + 'a;

/// What was compiled.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompileReport {
    /// Name of the model.
    pub model: String,
    /// Requested weight format; `quantized` if the integers of a quantized model were taken.
    pub weights: &'static str,
    /// What the written files really hold, by format: with `w4` the embedding table and the output head are `w8`,
    /// norms, biases and RoPE tables are always f32.
    pub formats: BTreeMap<String, FormatSummary>,
    /// Token slots.
    pub context_capacity: usize,
    /// Rows of a prefill block.
    pub prefill_ar: usize,
    /// Size of the written component files.
    pub bytes: u64,
    /// The components that were written, by name.
    pub components: BTreeMap<String, ComponentReport>,
    /// Time taken.
    pub seconds: f64,
}

/// One component that was compiled.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComponentReport {
    /// Requested weight format, as above.
    pub weights: &'static str,
    /// What the file really holds, by format.
    pub formats: BTreeMap<String, FormatSummary>,
    /// Size of the file.
    pub bytes: u64,
}

/// Compile a checkpoint into the artefact directory `out`: a text model into its decoder, a model that sees into vision
/// encoder, token embedding and decoder, each a file with a precision of its own.
///
/// Peak memory is a few megabytes beside the mapped files. `out` appears complete or not at all; an artefact that was
/// there is replaced at the end.
///
/// # Errors
/// Options that do not fit the model, a checkpoint that is incomplete or of an unsupported kind, an `out` that holds
/// something else, I/O errors, [`Error::Cancelled`]. `out` is then as it was.
pub fn compile_checkpoint(
    checkpoint: &Checkpoint,
    out: &Path,
    options: &CompileOptions,
    progress: &mut ProgressFn<'_>,
) -> Result<CompileReport> {
    let start = Instant::now();
    let spec = identify(checkpoint, options)?;
    let sizes = options.context_and_block(&spec.decoder)?;
    let directory = ArtefactWriter::create(out)?;

    step(progress, Stage::Graphs, &spec.name, 0, 1)?;
    let components = plan_components(checkpoint, &spec, sizes, options)?;
    step(progress, Stage::Graphs, &spec.name, 1, 1)?;

    let entries = write_components(&directory, &components, options.threads, progress)?;

    let files = components.len() as u64;
    let total = files + 2;
    step(progress, Stage::Finish, TOKENIZER_FILE, files, total)?;
    directory.write_file(TOKENIZER_FILE, &checkpoint.tokenizer_json()?)?;
    step(progress, Stage::Finish, TEMPLATE_FILE, files + 1, total)?;
    if let Some(template) = checkpoint.chat_template() {
        directory.write_file(TEMPLATE_FILE, template.as_bytes())?;
    }
    let mut report = CompileReport::new(&spec.name, options.weights.name(), sizes, &components, &entries);
    let manifest = describe(checkpoint, spec, sizes, entries)?;
    step(progress, Stage::Finish, crate::artefact::MANIFEST_FILE, total, total)?;
    directory.publish(&manifest)?;
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// Pack components into their files and read back what was written.
fn write_components(
    directory: &ArtefactWriter,
    components: &[PlannedComponent<'_>],
    threads: Option<usize>,
    progress: &mut ProgressFn<'_>,
) -> Result<BTreeMap<String, ComponentEntry>> {
    let pool = Pool::new(threads.unwrap_or_else(physical_cores));
    let total = components.iter().map(|component| pack::weight_bytes(&component.header)).sum();
    let (mut done, mut written) = (0, Vec::new());
    for component in components {
        let path = directory.file_path(&component.file())?;
        // Each file counts from 0; the caller sees the bytes of all of them.
        let mut overall = |part: Progress<'_>| progress(Progress { done: done + part.done, total, ..part });
        written.push(write_component(&path, &component.header, &*component.weights, &pool, &mut overall)?);
        done += pack::weight_bytes(&component.header);
    }

    let mut entries = BTreeMap::new();
    for (number, (planned, written)) in components.iter().zip(written).enumerate() {
        let file = planned.file();
        step(progress, Stage::Finish, &file, number as u64, components.len() as u64 + 2)?;
        let component = Component::open(&directory.file_path(&file)?)?;
        let entry = ComponentEntry {
            file,
            bytes: written.bytes,
            sha256: written.sha256,
            data: None,
            weights: component.format_summaries(),
            graphs: component.signatures(),
        };
        entries.insert(planned.name.into(), entry);
    }
    Ok(entries)
}

impl CompileReport {
    fn new(
        model: &str,
        weights: &'static str,
        (context_capacity, prefill_ar): (usize, usize),
        planned: &[PlannedComponent<'_>],
        entries: &BTreeMap<String, ComponentEntry>,
    ) -> Self {
        let mut formats = BTreeMap::<String, FormatSummary>::new();
        for (format, summary) in entries.values().flat_map(|entry| &entry.weights) {
            formats.entry(format.clone()).or_default().merge(summary);
        }
        let requested = |name: &str| planned.iter().find(|component| component.name == name).map(|c| c.requested);
        let components = entries.iter().map(|(name, entry)| {
            let weights = requested(name).unwrap_or_default();
            (name.clone(), ComponentReport { weights, formats: entry.weights.clone(), bytes: entry.bytes })
        });
        Self {
            model: model.into(),
            weights,
            formats,
            context_capacity,
            prefill_ar,
            bytes: entries.values().map(|entry| entry.bytes).sum(),
            components: components.collect(),
            seconds: 0.0,
        }
    }
}

/// Hyper-parameters from the checkpoint's own configuration and the position rule from the options; if these name a
/// model, the checkpoint must be that model.
fn identify(checkpoint: &Checkpoint, options: &CompileOptions) -> Result<ModelSpec> {
    let mut spec = ModelSpec::from_config(checkpoint.config())?;
    match &mut spec.vision {
        Some(vision) => vision.position_rule = options.position_rule,
        None if options.position_rule != PositionRule::Identity => {
            let (rule, name) = (options.position_rule.name(), &spec.name);
            return Err(Error::invalid(format!("position_rule is {rule}, but {name} has no vision encoder")));
        }
        None => {}
    }
    if let Some(name) = &options.model {
        let entry = registry::find(name)?;
        check_entry(entry, &spec)?;
        spec.name = entry.name.into();
    }
    Ok(spec)
}

pub(crate) fn check_entry(entry: &RegistryEntry, spec: &ModelSpec) -> Result<()> {
    if let Runnable::NotYet { why } = entry.runnable {
        return Err(Error::Unsupported(format!("model {} cannot be compiled yet: {why}", entry.name)));
    }
    if entry.family == spec.family && entry.decoder.matches(&spec.decoder) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the checkpoint is not a {}: it is a {} with {} layers of width {} and {} tokens; leave the model name out to \
         compile it as it is",
        entry.name, spec.family, spec.decoder.layers, spec.decoder.hidden_size, spec.decoder.vocab_size
    )))
}

pub(crate) fn describe(
    checkpoint: &Checkpoint,
    model: ModelSpec,
    (context_capacity, prefill_ar): (usize, usize),
    components: BTreeMap<String, ComponentEntry>,
) -> Result<Manifest> {
    let (format, generator) = Manifest::identity();
    let (preprocessor, processor) = (checkpoint.preprocessor_config(), checkpoint.processor_config());
    let section = |vision| ImageSection::from_config(vision, preprocessor, processor);
    let image = model.vision.as_ref().map(section).transpose()?;
    Ok(Manifest {
        format,
        schema_version: SCHEMA_VERSION,
        generator,
        model,
        context_capacity,
        prefill_ar,
        components,
        tokenizer: TOKENIZER_FILE.into(),
        chat_template: checkpoint.chat_template().map(|_| TEMPLATE_FILE.into()),
        special_tokens: checkpoint.special_tokens().clone(),
        generation: checkpoint.generation_config().map(GenerationDefaults::from_config).unwrap_or_default(),
        image,
        extra_files: Vec::new(),
    })
}

/// Report progress; an error if the caller wants to stop.
fn step(progress: &mut ProgressFn<'_>, stage: Stage, item: &str, done: u64, total: u64) -> Result<()> {
    match progress(Progress { stage, item, done, total }) {
        Flow::Continue => Ok(()),
        Flow::Cancel => Err(Error::Cancelled),
    }
}
