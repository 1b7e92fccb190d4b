//! A checkpoint to an artefact for the CPU engine.
//!
//! [`compile_checkpoint`] reads like the story: read the configuration, build the graphs, bind their weights to the
//! checkpoint's tensors, pack the weights, copy the tokenizer and the template, publish the directory.
//!
//! - `storage`: which number format each weight gets.
//! - `pack`: weights into a component file, a few panels at a time, so that memory stays small whatever the model.

mod options;
mod pack;
mod storage;

use crate::artefact::{
    ArtefactWriter, Component, ComponentEntry, FormatSummary, GenerationDefaults, Manifest, SCHEMA_VERSION,
    TEXT_DECODER,
};
use crate::checkpoint::Checkpoint;
use crate::engine::cpu::pool::{Pool, physical_cores};
use crate::error::{Error, Result};
use crate::models::{BoundWeights, build_decoder};
use crate::registry::{self, ModelSpec, RegistryEntry, Runnable};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

pub use options::{CompileOptions, DEFAULT_MAX_CONTEXT, DEFAULT_PREFILL_AR};
pub use pack::write_component;
pub use storage::plan_storage;

/// File names inside the artefact.
const COMPONENT_FILE: &str = "text_decoder.safetensors";
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
    /// Packing weights; progress counts bytes written.
    Weights,
    /// Reading the component back, writing tokenizer and template.
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
    /// Requested weight format.
    pub weights: &'static str,
    /// What the file really holds, by format: with `w4` the embedding table and the output head are `w8`, norms,
    /// biases and RoPE tables are always f32.
    pub formats: BTreeMap<String, FormatSummary>,
    /// Token slots.
    pub context_capacity: usize,
    /// Rows of a prefill block.
    pub prefill_ar: usize,
    /// Size of the component file.
    pub bytes: u64,
    /// Time taken.
    pub seconds: f64,
}

/// Compile a checkpoint into the artefact directory `out`.
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
    let spec = identify(checkpoint, options.model.as_deref())?;
    let (context, prefill_ar) = options.context_and_block(&spec.decoder)?;
    let directory = ArtefactWriter::create(out)?;

    step(progress, Stage::Graphs, &spec.name, 0, 1)?;
    let graphs = build_decoder(&spec.decoder, context, prefill_ar)?;
    let weights = BoundWeights::new(&spec.decoder, context, checkpoint)?;
    step(progress, Stage::Graphs, &spec.name, 1, 1)?;

    let pool = Pool::new(options.threads.unwrap_or_else(physical_cores));
    let path = directory.file_path(COMPONENT_FILE)?;
    let header = plan_storage(TEXT_DECODER, graphs, options.weights)?;
    let written = write_component(&path, &header, &weights, &pool, progress)?;

    step(progress, Stage::Finish, COMPONENT_FILE, 0, 3)?;
    let component = Component::open(&path)?;
    let entry = ComponentEntry {
        file: COMPONENT_FILE.into(),
        bytes: written.bytes,
        sha256: written.sha256,
        weights: component.format_summaries(),
        graphs: component.signatures(),
    };
    drop(component);
    step(progress, Stage::Finish, TOKENIZER_FILE, 1, 3)?;
    directory.write_file(TOKENIZER_FILE, &checkpoint.tokenizer_json()?)?;
    step(progress, Stage::Finish, TEMPLATE_FILE, 2, 3)?;
    if let Some(template) = checkpoint.chat_template() {
        directory.write_file(TEMPLATE_FILE, template.as_bytes())?;
    }
    let report = CompileReport {
        model: spec.name.clone(),
        weights: options.weights.name(),
        formats: entry.weights.clone(),
        context_capacity: context,
        prefill_ar,
        bytes: entry.bytes,
        seconds: start.elapsed().as_secs_f64(),
    };
    let manifest = describe(checkpoint, spec, (context, prefill_ar), entry);
    step(progress, Stage::Finish, crate::artefact::MANIFEST_FILE, 3, 3)?;
    directory.publish(&manifest)?;
    Ok(report)
}

/// Hyper-parameters from the checkpoint's own configuration; with `name`, the checkpoint must be that model.
fn identify(checkpoint: &Checkpoint, name: Option<&str>) -> Result<ModelSpec> {
    let mut spec = ModelSpec::from_config(checkpoint.config())?;
    if let Some(name) = name {
        let entry = registry::find(name)?;
        check_entry(entry, &spec)?;
        spec.name = entry.name.into();
    }
    Ok(spec)
}

fn check_entry(entry: &RegistryEntry, spec: &ModelSpec) -> Result<()> {
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

fn describe(
    checkpoint: &Checkpoint,
    model: ModelSpec,
    (context_capacity, prefill_ar): (usize, usize),
    component: ComponentEntry,
) -> Manifest {
    let (format, generator) = Manifest::identity();
    Manifest {
        format,
        schema_version: SCHEMA_VERSION,
        generator,
        model,
        context_capacity,
        prefill_ar,
        components: BTreeMap::from([(TEXT_DECODER.into(), component)]),
        tokenizer: TOKENIZER_FILE.into(),
        chat_template: checkpoint.chat_template().map(|_| TEMPLATE_FILE.into()),
        special_tokens: checkpoint.special_tokens().clone(),
        generation: checkpoint.generation_config().map(GenerationDefaults::from_config).unwrap_or_default(),
    }
}

/// Report progress; an error if the caller wants to stop.
fn step(progress: &mut ProgressFn<'_>, stage: Stage, item: &str, done: u64, total: u64) -> Result<()> {
    match progress(Progress { stage, item, done, total }) {
        Flow::Continue => Ok(()),
        Flow::Cancel => Err(Error::Cancelled),
    }
}
