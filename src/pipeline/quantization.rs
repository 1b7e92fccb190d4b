//! Stage `quantization`: a prepared model and calibration data to a model of integers on disk.

use super::context::StageName;
use super::files::write_atomically;
use super::memory::peak_memory_bytes;
use super::preparation::PreparedModel;
use super::report::{CalibrationSummary, ComponentReport, QuantizationReport, REPORT_FILE, StageCost};
use super::report_page::{self, PAGE_FILE};
use crate::artefact::{Artefact, ArtefactWriter, ComponentEntry, FileEntry, Manifest, hex};
use crate::compile;
use crate::dataset::{self, CalibrationSet, DatasetOptions};
use crate::engine::cpu::pool::{Pool, physical_cores};
use crate::error::{Error, Result};
pub use crate::quantize::GRAPHS_FILE;
use crate::quantize::{Job, JobComponent, ModelGraphs, Observed, QuantizeOptions, StepFn, weights_path};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// File with what the observers saw; quantizing can begin from it.
pub const OBSERVATIONS_FILE: &str = "observations.json";
/// The layout of the observations this build writes, and the only one it reads.
const SCHEMA_VERSION: u32 = 1;

/// Observations as a file holds them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservationsFile {
    schema_version: u32,
    /// Name of the model.
    pub model: String,
    /// What was looked at.
    pub calibration: CalibrationSummary,
    /// What was seen.
    pub observed: Observed,
}

/// What is quantized, and how.
pub struct QuantizationInput<'a> {
    /// The prepared model.
    pub prepared: &'a PreparedModel,
    /// What it is calibrated with, and run side by side with the float model for the report.
    pub set: &'a CalibrationSet,
    /// How.
    pub options: &'a QuantizeOptions,
    /// Ranges that were found before: nothing is observed again then.
    pub observations: Option<ObservationsFile>,
    /// Threads; `None`: one a physical core.
    pub threads: Option<usize>,
    /// File that what was observed is kept in on the way, so that an interrupted calibration goes on where it ended.
    pub unfinished: Option<&'a Path>,
    /// What stages before this one took.
    pub stages: Vec<StageCost>,
}

/// A quantized model that was written.
#[derive(Debug)]
pub struct QuantizedModel {
    artefact: Artefact,
    graphs: ModelGraphs,
    report: QuantizationReport,
}

impl ObservationsFile {
    /// Describe what was seen of a set.
    pub fn new(model: &str, calibration: CalibrationSummary, observed: Observed) -> Self {
        Self { schema_version: SCHEMA_VERSION, model: model.into(), calibration, observed }
    }

    /// Read a file.
    ///
    /// # Errors
    /// [`Error::NotFound`] or [`Error::Io`]; [`Error::Format`] naming the place for what is malformed or of another version.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
        let malformed = |e: serde_json::Error| Error::format(path, format!("line {}", e.line()), e.to_string());
        let file: Self = serde_json::from_slice(&bytes).map_err(malformed)?;
        if file.schema_version != SCHEMA_VERSION {
            let reason = format!("is {}, this build reads {SCHEMA_VERSION}: observe again", file.schema_version);
            return Err(Error::format(path, "schema_version", reason));
        }
        Ok(file)
    }

    /// Write it; a file of that name is replaced when the new one is complete.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save(&self, path: &Path) -> Result<()> {
        let json = serde_json::to_vec(self).map_err(|e| Error::internal(format!("observations: {e}")))?;
        write_atomically(path, &json)
    }

    /// Whether all samples were looked at.
    ///
    /// # Errors
    /// [`Error::InvalidState`] with both numbers if the work was interrupted.
    pub fn check_complete(&self) -> Result<()> {
        let (seen, all) = (self.observed.samples, self.calibration.samples);
        match seen == all {
            true => Ok(()),
            false => Err(Error::InvalidState(format!(
                "the observations are of {seen} of {all} samples: the calibration was interrupted; give the same command again,                  which goes on where it ended"
            ))),
        }
    }

    /// Join observations of different samples of the same set.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming both files if they are of different models or sets, or the same shard twice.
    pub fn merge(mut self, other: &Self) -> Result<Self> {
        if self.model != other.model {
            return Err(Error::invalid(format!("one part is of {}, the other of {}", self.model, other.model)));
        }
        let (ours, theirs) = (self.calibration.parts(), other.calibration.parts());
        if ours.iter().any(|part| theirs.contains(part)) {
            return Err(Error::invalid("both parts saw the same samples: each shard is joined once"));
        }
        self.observed.merge(&other.observed)?;
        let mine = &mut self.calibration;
        mine.samples += other.calibration.samples;
        mine.tokens += other.calibration.tokens;
        mine.media += other.calibration.media;
        mine.smoke_only |= other.calibration.smoke_only;
        mine.merged = [ours, theirs].concat();
        mine.merged.sort();
        mine.fingerprint = joined_fingerprint(&mine.merged);
        mine.shard = None;
        Ok(self)
    }
}

/// A fingerprint of sorted parts, which does not depend on the order in which they were joined.
fn joined_fingerprint(parts: &[String]) -> String {
    hex(&Sha256::digest(parts.join("\n").as_bytes()))
}

/// Calibration data for a prepared model.
///
/// # Errors
/// As [`dataset::load`].
pub fn load_calibration(prepared: &PreparedModel, options: &DatasetOptions) -> Result<CalibrationSet> {
    dataset::load(options, &prepared.text()?)
}

/// Look at calibration data and write what was seen to `path`. If the file is there already and of the same data, the work goes on
/// where it ended.
///
/// # Errors
/// As [`Job::observe`]; [`Error::InvalidArgument`] if the file is of other data.
pub fn observe(
    prepared: &PreparedModel,
    set: &CalibrationSet,
    options: &QuantizeOptions,
    threads: Option<usize>,
    path: &Path,
    step: &mut StepFn<'_>,
) -> Result<ObservationsFile> {
    let (weights, text) = (prepared.weights()?, prepared.text()?);
    let calibration = CalibrationSummary::of(set);
    let name = &prepared.graphs().model.name;
    let seen = resume(path, name, &calibration)?;
    let job = Job { graphs: prepared.graphs(), weights: &weights, set, text: &text, options, pool: pool(threads) };
    let file = |observed: Observed| ObservationsFile::new(name, calibration.clone(), observed);
    let observed = job.observe(seen, &mut |observed| file(observed.clone()).save(path), step)?;
    let file = file(observed);
    file.save(path)?;
    Ok(file)
}

/// What was seen of this data before.
fn resume(path: &Path, model: &str, calibration: &CalibrationSummary) -> Result<Observed> {
    if !path.exists() {
        return Ok(Observed::default());
    }
    let file = ObservationsFile::open(path)?;
    if file.model != model || file.calibration.fingerprint != calibration.fingerprint {
        return Err(Error::invalid(format!(
            "{} holds observations of other samples or of another model ({}): remove it, or choose another file",
            path.display(),
            file.model
        )));
    }
    Ok(file.observed)
}

/// Quantize a prepared model into the directory `out`, which appears complete or not at all.
///
/// # Errors
/// As [`Job::run`]; an `out` that holds something else. `out` is then as it was.
pub fn quantize(input: QuantizationInput<'_>, out: &Path, step: &mut StepFn<'_>) -> Result<QuantizedModel> {
    let start = Instant::now();
    let QuantizationInput { prepared, set, options, observations, threads, unfinished, mut stages } = input;
    let writer = ArtefactWriter::create(out)?;
    let (weights, text) = (prepared.weights()?, prepared.text()?);
    let name = &prepared.graphs().model.name;
    let mut given = None;
    let (calibration, seen) = match observations {
        Some(file) if file.model != *name => {
            let model = file.model;
            return Err(Error::invalid(format!("the observations are of {model}, but the model is {name}")));
        }
        Some(file) => {
            file.check_complete()?;
            given = Some(file.observed.clone());
            // Whatever the set is: nothing of it is looked at again.
            (file.calibration, Observed { samples: set.samples.len(), ..file.observed })
        }
        None => {
            let calibration = CalibrationSummary::of(set);
            let seen = unfinished.map(|path| resume(path, name, &calibration)).transpose()?;
            (calibration, seen.unwrap_or_default())
        }
    };
    let job = Job { graphs: prepared.graphs(), weights: &weights, set, text: &text, options, pool: pool(threads) };
    let directory = writer.directory().to_path_buf();
    let mut last = seen.clone();
    let mut save = |observed: &Observed| {
        last = observed.clone();
        match unfinished {
            Some(path) => ObservationsFile::new(name, calibration.clone(), observed.clone()).save(path),
            None => Ok(()),
        }
    };
    let (graphs, components) = job.run(&directory, seen, &mut save, step)?;

    let mut entries = BTreeMap::new();
    let mut reports = BTreeMap::new();
    let mut warnings = Vec::new();
    if calibration.smoke_only {
        warnings.push("calibrated with random data: good for smoke tests only".to_owned());
    }
    for component in &components {
        let (entry, report) = write_component(&writer, component)?;
        entries.insert(component.name.to_owned(), entry);
        reports.insert(component.name.to_owned(), report);
        warnings.extend(component.warnings.iter().cloned());
    }
    let checkpoint = prepared.checkpoint();
    writer.write_file("tokenizer.json", &checkpoint.tokenizer_json()?)?;
    if let Some(template) = checkpoint.chat_template() {
        writer.write_file("chat_template.jinja", template.as_bytes())?;
    }
    let json = serde_json::to_vec_pretty(&graphs).map_err(|e| Error::internal(format!("graphs: {e}")))?;
    writer.write_file(GRAPHS_FILE, &json)?;
    let observed = ObservationsFile::new(name, calibration.clone(), given.unwrap_or(last));
    let json = serde_json::to_vec(&observed).map_err(|e| Error::internal(format!("observations: {e}")))?;
    writer.write_file(OBSERVATIONS_FILE, &json)?;
    let (format, generator) = Manifest::quantized_identity();
    stages.push(StageCost {
        stage: StageName::Quantization.name().into(),
        seconds: start.elapsed().as_secs_f64(),
        peak_memory_bytes: peak_memory_bytes(),
    });
    let report = QuantizationReport {
        model: name.clone(),
        generator,
        graphs: graphs.clone(),
        options: options.clone(),
        calibration,
        components: reports,
        warnings,
        stages,
    };
    writer.write_file(REPORT_FILE, &report.to_json()?)?;
    writer.write_file(PAGE_FILE, report_page::page(&[(name.as_str(), &report, None)]).as_bytes())?;
    let extra_files = [GRAPHS_FILE, OBSERVATIONS_FILE, REPORT_FILE, PAGE_FILE].map(str::to_owned).to_vec();
    let sizes = (graphs.context_capacity, graphs.prefill_ar);
    let manifest = compile::describe(checkpoint, graphs.model.clone(), sizes, entries)?;
    writer.publish(&Manifest { format, extra_files, ..manifest })?;
    Ok(QuantizedModel { artefact: Artefact::open(out)?, graphs, report })
}

/// The JSON file of a component, its entry in the manifest, and what was read back of it.
fn write_component(writer: &ArtefactWriter, component: &JobComponent) -> Result<(ComponentEntry, ComponentReport)> {
    let (json, name) = (component.file.to_json()?, component.name);
    let file = format!("{name}.json");
    writer.write_file(&file, &json)?;
    let weights = component.file.open_weights(&weights_path(writer.directory(), name))?;
    let report = ComponentReport::new(component, &weights, json.len() as u64)?;
    let entry = ComponentEntry {
        file,
        bytes: json.len() as u64,
        sha256: hex(&Sha256::digest(&json)),
        data: Some(FileEntry {
            file: format!("{name}.safetensors"),
            bytes: component.data.bytes,
            sha256: component.data.sha256.clone(),
        }),
        weights: report.formats.clone(),
        graphs: component.file.signatures(),
    };
    Ok((entry, report))
}

impl QuantizedModel {
    /// Open a directory that [`quantize`] wrote.
    ///
    /// # Errors
    /// [`Error::NotFound`] or [`Error::Format`] naming the file and the place; [`Error::InvalidArgument`] for a compiled model.
    pub fn open(directory: &Path) -> Result<Self> {
        let artefact = Artefact::open(directory)?;
        if !artefact.manifest().is_quantized_model() {
            let directory = directory.display();
            return Err(Error::invalid(format!("{directory} is a compiled model; a quantized one is asked for here")));
        }
        let graphs = ModelGraphs::open(directory)?;
        let report = read_json(&directory.join(REPORT_FILE))?;
        Ok(Self { artefact, graphs, report })
    }

    /// The directory with its manifest.
    pub fn artefact(&self) -> &Artefact {
        &self.artefact
    }

    /// How its graphs are built.
    pub fn graphs(&self) -> &ModelGraphs {
        &self.graphs
    }

    /// What was done.
    pub fn report(&self) -> &QuantizationReport {
        &self.report
    }
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    serde_json::from_slice(&bytes).map_err(|e| Error::format(path, format!("line {}", e.line()), e.to_string()))
}

/// As many threads as asked for, or one a physical core.
pub(super) fn pool(threads: Option<usize>) -> Arc<Pool> {
    Arc::new(Pool::new(threads.unwrap_or_else(physical_cores)))
}
