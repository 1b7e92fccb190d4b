//! `etg_prepared_model`: a checkpoint whose graphs are built, ready to be calibrated and quantized. The result of stage
//! "model_preparation".

use super::buffer::{self, etg_buffer};
use super::calibration_options::{self, etg_calibration_options};
use super::guard::guard;
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::preparation_options::{self, etg_preparation_options};
use super::quantize_options::{self, etg_quantize_options};
use super::quantized_model::etg_quantized_model;
use super::stage_progress::{Step, Watcher, etg_stage_progress_fn, in_stage};
use super::status::ETG_OK;
use crate::checkpoint::Checkpoint;
use crate::dataset::{CalibrationSet, DatasetOptions};
use crate::pipeline::memory::peak_memory_bytes;
use crate::pipeline::report::{CalibrationSummary, StageCost};
use crate::pipeline::{
    ObservationsFile, PreparedModel, QuantizationInput, StageName, load_calibration, observe, quantize,
};
use crate::{Error, Result};
use serde_json::json;
use std::ffi::{c_char, c_void};
use std::path::Path;
use std::ptr;
use std::time::Instant;

/// A model whose graphs are built and whose weights have been found in its checkpoint, where they stay.
pub struct etg_prepared_model {
    prepared: PreparedModel,
    /// What it took, for the report of what is made of it.
    cost: StageCost,
}

impl Handle for etg_prepared_model {
    const NAME: &'static str = "etg_prepared_model";
}

impl etg_prepared_model {
    /// Prepare a model, tell `watcher` before and after.
    fn make(watcher: Watcher, item: &Path, work: impl FnOnce() -> Result<PreparedModel>) -> Result<Self> {
        let (stage, start) = (StageName::ModelPreparation, Instant::now());
        let item = item.to_string_lossy();
        let step =
            |done| Step { stage: stage.name(), phase: "graphs", layer: &item, done, total: 1, ..Step::default() };
        in_stage(stage, || {
            watcher.tell(&step(0))?;
            let prepared = work()?;
            watcher.tell(&step(1))?;
            let seconds = start.elapsed().as_secs_f64();
            log::info!("prepared {} in {seconds:.3} s", prepared.graphs().model.name);
            let cost = StageCost { stage: stage.name().into(), seconds, peak_memory_bytes: peak_memory_bytes() };
            Ok(etg_prepared_model { prepared, cost })
        })
    }

    /// Calibration data, none of it longer than the model's context.
    fn calibration(&self, options: &DatasetOptions) -> Result<CalibrationSet> {
        let max_context = options.max_context.min(self.prepared.graphs().context_capacity);
        load_calibration(&self.prepared, &DatasetOptions { max_context, ..options.clone() })
    }
}

/// Prepare a checkpoint (a Hugging Face folder or a GGUF file) for quantization: look the model up, build its graphs, find its
/// weights. `options` may be NULL: the defaults. `on_progress` may be NULL.
///
/// - Threads: any, several at once; progress comes on this thread.
/// - Owns: `*model_out` is the caller's; free it with `etg_prepared_model_free`. The options may be freed at once; the checkpoint must
///   stay where it is as long as the handle lives.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (also options that do not fit the model, or a checkpoint of another model),
///   `ETG_ERROR_NOT_FOUND` (the checkpoint, or the model: the message lists those there are), `ETG_ERROR_IO`, `ETG_ERROR_FORMAT` (a
///   malformed or incomplete checkpoint; the message names file and tensor), `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_CANCELLED`. The
///   message begins with `[model_preparation]`.
/// - After a failure: nothing was made, `*model_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_prepared_model_create(
    checkpoint: *const c_char,
    checkpoint_length: usize,
    options: *const etg_preparation_options,
    on_progress: etg_stage_progress_fn,
    user_data: *mut c_void,
    model_out: *mut *mut etg_prepared_model,
) -> i32 {
    guard("etg_prepared_model_create", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(model_out, ptr::null_mut(), "model_out") }?;
        // SAFETY: text of the caller.
        let path = unsafe { input::path(checkpoint, checkpoint_length, "checkpoint") }?;
        let options = preparation_options::read(options)?;
        let watcher = Watcher::new(on_progress, user_data);
        let work = || PreparedModel::new(Checkpoint::open(&path)?, &options);
        out.set(handle::issue(etg_prepared_model::make(watcher, &path, work)?));
        Ok(ETG_OK)
    })
}

/// Prepare again what `etg_prepared_model_save` saved in `folder`: from the checkpoint it was made from or, if that moved, from
/// `checkpoint` (empty: as it was).
///
/// - Threads: any, several at once.
/// - Owns: as `etg_prepared_model_create`.
/// - Codes: as `etg_prepared_model_create`; `ETG_ERROR_FORMAT` also if the file is malformed or of another version, or if the
///   checkpoint is another model by now.
/// - After a failure: nothing was made, `*model_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_prepared_model_load(
    folder: *const c_char,
    folder_length: usize,
    checkpoint: *const c_char,
    checkpoint_length: usize,
    model_out: *mut *mut etg_prepared_model,
) -> i32 {
    guard("etg_prepared_model_load", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(model_out, ptr::null_mut(), "model_out") }?;
        // SAFETY: text of the caller.
        let folder = unsafe { input::path(folder, folder_length, "folder") }?;
        // SAFETY: text of the caller.
        let checkpoint = unsafe { input::optional_path(checkpoint, checkpoint_length, "checkpoint") }?;
        let work = || PreparedModel::load(&folder, checkpoint.as_deref());
        let silent = Watcher::new(None, ptr::null_mut());
        out.set(handle::issue(etg_prepared_model::make(silent, &folder, work)?));
        Ok(ETG_OK)
    })
}

/// Save the preparation in `folder` (as prepared.json, made if it is missing), for `etg_prepared_model_load` and for the pipeline. The
/// weights stay in the checkpoint.
///
/// - Threads: any.
/// - Owns: nothing is kept.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not a path), `ETG_ERROR_IO`.
/// - After a failure: a file of that name is as it was.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_prepared_model_save(
    model: *const etg_prepared_model,
    folder: *const c_char,
    folder_length: usize,
) -> i32 {
    guard("etg_prepared_model_save", || {
        // SAFETY: text of the caller.
        let folder = unsafe { input::path(folder, folder_length, "folder") }?;
        let model = handle::get(model)?;
        in_stage(StageName::ModelPreparation, || model.prepared.save(&folder))?;
        Ok(ETG_OK)
    })
}

/// Free a prepared model. NULL is allowed and does nothing.
///
/// - Threads: any; a call that is using the model goes on.
/// - Owns: takes the model back.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live model: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_prepared_model_free(model: *mut etg_prepared_model) -> i32 {
    guard("etg_prepared_model_free", || handle::free(model).map(|()| ETG_OK))
}

/// What was prepared, as one JSON object: "model" (its name), "checkpoint", "components" (names, in the order in which they run),
/// "options", "graphs" and "cost".
///
/// - Threads: any.
/// - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live).
/// - After a failure: `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_prepared_model_info_json(
    model: *const etg_prepared_model,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    guard("etg_prepared_model_info_json", || {
        // SAFETY: out-parameter of the caller.
        let mut buffer = unsafe { buffer::out(buffer_out) }?;
        let model = handle::get(model)?;
        let graphs = model.prepared.graphs();
        let document = json!({
            "model": graphs.model.name,
            "checkpoint": model.prepared.checkpoint().path().to_string_lossy(),
            "components": graphs.components(),
            "options": model.prepared.options(),
            "graphs": graphs,
            "cost": model.cost,
        });
        buffer.set(buffer::text(document.to_string()));
        Ok(ETG_OK)
    })
}

/// What calibration data is for this model, as one JSON object: "samples", "tokens", "media", "smoke_only", "fingerprint", "shard"
/// and "sources". Everything is read, and pictures are decoded, so it finds what is wrong before a long calibration begins.
///
/// - Threads: any.
/// - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, no source at all, a shard without samples, options out of range),
///   `ETG_ERROR_NOT_FOUND` (a file, or one that it names), `ETG_ERROR_IO`, `ETG_ERROR_FORMAT` (the message names file, sample and
///   field), `ETG_ERROR_UNSUPPORTED`. The message begins with `[quantization]`.
/// - After a failure: `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_prepared_model_calibration_json(
    model: *const etg_prepared_model,
    calibration: *const etg_calibration_options,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    guard("etg_prepared_model_calibration_json", || {
        // SAFETY: out-parameter of the caller.
        let mut buffer = unsafe { buffer::out(buffer_out) }?;
        let (model, calibration) = (handle::get(model)?, calibration_options::read(calibration)?);
        let set = in_stage(StageName::Quantization, || model.calibration(&calibration))?;
        buffer.set(buffer::text(json!(CalibrationSummary::of(&set)).to_string()));
        Ok(ETG_OK)
    })
}

/// Find the ranges of activations for calibration data and write them to the file `out`, for `etg_observations_merge` and
/// `etg_prepared_model_quantize`. `options` may be NULL: the defaults; they must be those of the quantization. `on_progress` may be
/// NULL.
///
/// What was seen is written every now and then, each time as a whole file; a call that finds such a file of the same data goes on
/// where it ended. A file that does not hold all samples yet is refused by merge and quantize.
///
/// - Threads: any, several at once for different files; progress comes on this thread.
/// - Owns: nothing is kept.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, no source at all, options that do not fit the model, an `out` that is of
///   other data), `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`, `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_CANCELLED`. The
///   message begins with `[quantization]`.
/// - After a failure: `out` is missing, as it was, or holds what was seen until then.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_prepared_model_observe(
    model: *const etg_prepared_model,
    calibration: *const etg_calibration_options,
    options: *const etg_quantize_options,
    out: *const c_char,
    out_length: usize,
    on_progress: etg_stage_progress_fn,
    user_data: *mut c_void,
) -> i32 {
    guard("etg_prepared_model_observe", || {
        // SAFETY: text of the caller.
        let out = unsafe { input::path(out, out_length, "out") }?;
        let (model, calibration) = (handle::get(model)?, calibration_options::read(calibration)?);
        let asked = quantize_options::read(options)?;
        let watcher = Watcher::new(on_progress, user_data);
        in_stage(StageName::Quantization, || {
            let options = asked.for_model(model.prepared.graphs())?;
            let set = model.calibration(&calibration)?;
            observe(&model.prepared, &set, &options, asked.threads, &out, &mut |step| watcher.tell_job(step)).map(drop)
        })?;
        Ok(ETG_OK)
    })
}

/// Quantize the model into the folder `out`, which appears complete or not at all, and open it. `observations` is a file of
/// `etg_prepared_model_observe` or `etg_observations_merge`; without one (empty) the ranges are found here. `calibration` may be NULL
/// or without a source if there are observations: nothing is compared for the report then. `options` may be NULL: the defaults.
/// `on_progress` and `model_out` may be NULL.
///
/// - Threads: any, several at once for different folders; progress comes on this thread.
/// - Owns: `*model_out` is the caller's; free it with `etg_quantized_model_free`. The prepared model is not needed by it.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, no calibration data, a recipe that does not fit: the message names layer
///   and sizes, an `out` that holds something else), `ETG_ERROR_INVALID_STATE` (observations of a part of the samples),
///   `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`, `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_CANCELLED`. The message begins
///   with `[quantization]`.
/// - After a failure: `out` is as it was, `*model_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_prepared_model_quantize(
    model: *const etg_prepared_model,
    calibration: *const etg_calibration_options,
    options: *const etg_quantize_options,
    observations: *const c_char,
    observations_length: usize,
    out: *const c_char,
    out_length: usize,
    on_progress: etg_stage_progress_fn,
    user_data: *mut c_void,
    model_out: *mut *mut etg_quantized_model,
) -> i32 {
    guard("etg_prepared_model_quantize", || {
        // SAFETY: out-parameter of the caller.
        let mut model_out = unsafe { Out::optional(model_out, ptr::null_mut(), "model_out") }?;
        // SAFETY: text of the caller.
        let observations = unsafe { input::optional_path(observations, observations_length, "observations") }?;
        // SAFETY: text of the caller.
        let out = unsafe { input::path(out, out_length, "out") }?;
        if calibration.is_null() && observations.is_none() {
            return Err(Error::invalid("calibration is NULL and there are no observations: one of them is needed"));
        }
        let model = handle::get(model)?;
        let calibration = if calibration.is_null() { None } else { Some(calibration_options::read(calibration)?) };
        // Observations need no source beside them.
        let calibration = calibration.filter(|options| options.has_source() || observations.is_none());
        let asked = quantize_options::read(options)?;
        let watcher = Watcher::new(on_progress, user_data);
        let quantized = in_stage(StageName::Quantization, || {
            let set = calibration.map_or_else(|| Ok(CalibrationSet::empty()), |options| model.calibration(&options))?;
            let input = QuantizationInput {
                prepared: &model.prepared,
                set: &set,
                options: &asked.for_model(model.prepared.graphs())?,
                observations: observations.as_deref().map(ObservationsFile::open).transpose()?,
                threads: asked.threads,
                unfinished: None,
                stages: vec![model.cost.clone()],
            };
            quantize(input, &out, &mut |step| watcher.tell_job(step))
        })?;
        log::info!("quantized {} to {}", quantized.report().model, out.display());
        if let Some(place) = &mut model_out {
            place.set(etg_quantized_model::issue(quantized));
        }
        Ok(ETG_OK)
    })
}
