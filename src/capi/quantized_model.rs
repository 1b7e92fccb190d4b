//! `etg_quantized_model`: integers, grids and graphs on disk. The result of stage "quantization"; what it can be asked is in
//! `quantized_eval`.

use super::buffer::{self, etg_buffer};
use super::guard::guard;
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::stage_progress::{Step, Watcher, etg_stage_progress_fn, in_stage};
use super::status::ETG_OK;
use crate::Result;
use crate::compile::{Flow, Progress, QuantizedCompileOptions, Stage, compile_quantized};
use crate::pipeline::{QuantizedModel, StageName, save_suggestion};
use crate::quantize::AimetVersion;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;

/// A quantized model in its folder. `etg_runner_open` opens the same folder for a conversation.
pub struct etg_quantized_model {
    model: QuantizedModel,
}

impl Handle for etg_quantized_model {
    const NAME: &'static str = "etg_quantized_model";
}

impl etg_quantized_model {
    /// A handle for the caller.
    pub(super) fn issue(model: QuantizedModel) -> *mut Self {
        handle::issue(etg_quantized_model { model })
    }

    pub(super) fn model(&self) -> &QuantizedModel {
        &self.model
    }
}

/// The model behind a handle.
///
/// # Errors
/// As [`handle::get`].
pub(super) fn get(model: *const etg_quantized_model) -> Result<Arc<etg_quantized_model>> {
    handle::get(model)
}

/// Open a folder that `etg_prepared_model_quantize` wrote.
///
/// - Threads: any, several at once.
/// - Owns: `*model_out` is the caller's; free it with `etg_quantized_model_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (also a compiled model), `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`.
/// - After a failure: nothing was opened, `*model_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_quantized_model_open(
    path: *const c_char,
    path_length: usize,
    model_out: *mut *mut etg_quantized_model,
) -> i32 {
    guard("etg_quantized_model_open", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(model_out, ptr::null_mut(), "model_out") }?;
        // SAFETY: text of the caller.
        let path = unsafe { input::path(path, path_length, "path") }?;
        out.set(etg_quantized_model::issue(QuantizedModel::open(&path)?));
        Ok(ETG_OK)
    })
}

/// Free a quantized model; its folder stays. NULL is allowed and does nothing.
///
/// - Threads: any; a call that is using the model goes on.
/// - Owns: takes the model back.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live model: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_quantized_model_free(model: *mut etg_quantized_model) -> i32 {
    guard("etg_quantized_model_free", || handle::free(model).map(|()| ETG_OK))
}

/// The report of the quantization, as one JSON object: "model", "options", "calibration", "components" (precision, sizes, weights as
/// read back, grids of activations, clipped shares, errors of layers beside the float model), "warnings" and "stages" (time and peak
/// memory).
///
/// - Threads: any.
/// - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live).
/// - After a failure: `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_quantized_model_report_json(
    model: *const etg_quantized_model,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    guard("etg_quantized_model_report_json", || {
        // SAFETY: out-parameter of the caller.
        let mut buffer = unsafe { buffer::out(buffer_out) }?;
        buffer.set(buffer::text(get(model)?.model.report().to_json()?));
        Ok(ETG_OK)
    })
}

/// Write the grids of a component ("text_decoder", ...) to the file `path` as AIMET does, for Qualcomm's converters. `version` is
/// "1.0.0" (also the empty text) or "0.6.1", which knows no blocks.
///
/// - Threads: any, several at once for different files.
/// - Owns: nothing is kept.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, an unknown version), `ETG_ERROR_NOT_FOUND` (no such component, a
///   missing file), `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`, `ETG_ERROR_UNSUPPORTED` (what the version cannot say).
/// - After a failure: a file of that name is as it was.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_quantized_model_save_aimet(
    model: *const etg_quantized_model,
    component: *const c_char,
    component_length: usize,
    version: *const c_char,
    version_length: usize,
    path: *const c_char,
    path_length: usize,
) -> i32 {
    guard("etg_quantized_model_save_aimet", || {
        // SAFETY: text of the caller.
        let component = unsafe { input::text(component, component_length, "component") }?;
        // SAFETY: text of the caller.
        let version = match unsafe { input::text(version, version_length, "version") }? {
            "" => AimetVersion::default(),
            name => AimetVersion::parse(name)?,
        };
        // SAFETY: text of the caller.
        let path = unsafe { input::path(path, path_length, "path") }?;
        get(model)?.model.save_aimet_encodings(component, version, &path)?;
        Ok(ETG_OK)
    })
}

/// Write recipes with more bits where a component's layers lose most beside the float model, and a table of what they lose (CSV),
/// into `folder`. The model must have been quantized with one or more report samples.
///
/// - Threads: any, several at once for different folders.
/// - Owns: nothing is kept.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8), `ETG_ERROR_INVALID_STATE` (nothing was compared),
///   `ETG_ERROR_NOT_FOUND` (no such component, a missing file), `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`.
/// - After a failure: each file is complete, missing or as it was.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_quantized_model_save_suggestion(
    model: *const etg_quantized_model,
    component: *const c_char,
    component_length: usize,
    folder: *const c_char,
    folder_length: usize,
) -> i32 {
    guard("etg_quantized_model_save_suggestion", || {
        // SAFETY: text of the caller.
        let component = unsafe { input::text(component, component_length, "component") }?;
        // SAFETY: text of the caller.
        let folder = unsafe { input::path(folder, folder_length, "folder") }?;
        save_suggestion(&get(model)?.model.suggest(component)?, &folder)?;
        Ok(ETG_OK)
    })
}

/// Compile the model into the folder `out`, for the CPU engine: matrices keep the width of their integers, activations are floats.
/// The folder appears complete or not at all; a compiled model that was there is replaced at the end. `prefill_ar` is the number of
/// tokens a prefill block processes at once (0: as the model was quantized for), `threads` is 0 for one a physical core. `on_progress`
/// may be NULL.
///
/// - Threads: any, several at once for different folders; progress comes on this thread.
/// - Owns: nothing is kept.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a block size that does not fit, an `out` that holds something else),
///   `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`, `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_CANCELLED`. The message begins
///   with `[compilation]`.
/// - After a failure: `out` is as it was.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_quantized_model_compile(
    model: *const etg_quantized_model,
    out: *const c_char,
    out_length: usize,
    prefill_ar: usize,
    threads: usize,
    on_progress: etg_stage_progress_fn,
    user_data: *mut c_void,
) -> i32 {
    guard("etg_quantized_model_compile", || {
        // SAFETY: text of the caller.
        let out = unsafe { input::path(out, out_length, "out") }?;
        let model = get(model)?;
        let some = |size: usize| (size > 0).then_some(size);
        let options = QuantizedCompileOptions { prefill_ar: some(prefill_ar), threads: some(threads) };
        let watcher = Watcher::new(on_progress, user_data);
        let mut progress = |progress: Progress<'_>| match watcher.tell(&of_compiler(&progress)) {
            Ok(()) => Flow::Continue,
            Err(_) => Flow::Cancel,
        };
        let quantized = model.model.artefact().directory();
        in_stage(StageName::Compilation, || compile_quantized(quantized, &out, &options, &mut progress))?;
        Ok(ETG_OK)
    })
}

/// A step of the compiler, as stages report them.
fn of_compiler<'p>(progress: &Progress<'p>) -> Step<'p> {
    let phase = match progress.stage {
        Stage::Graphs => "graphs",
        Stage::Weights => "weights",
        Stage::Finish => "finish",
    };
    let (stage, layer) = (StageName::Compilation.name(), progress.item);
    Step { stage, phase, layer, done: progress.done, total: progress.total, ..Step::default() }
}
