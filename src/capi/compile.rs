//! Whole jobs on files: compile a checkpoint, say what a path holds, list the known models.

use super::buffer::{self, etg_buffer};
use super::compile_options::{self, etg_compile_options};
use super::guard::guard;
use super::input;
use super::status::ETG_OK;
use crate::Result;
use crate::artefact::Artefact;
use crate::checkpoint::{Checkpoint, CheckpointKind};
use crate::compile::{Flow, Progress, Stage, compile_checkpoint, recompile_component};
use crate::registry::{self, ModelSpec};
use serde_json::{Value, json};
use std::ffi::{c_char, c_void};
use std::path::Path;

/// Stage of a compilation: building and checking the graphs.
pub const ETG_STAGE_GRAPHS: i32 = 1;
/// Stage of a compilation: packing weights; `done` and `total` are bytes.
pub const ETG_STAGE_WEIGHTS: i32 = 2;
/// Stage of a compilation: checking what was written, tokenizer and template.
pub const ETG_STAGE_FINISH: i32 = 3;

/// Where a compilation is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct etg_progress {
    /// Bytes that the library filled.
    pub struct_size: u32,
    /// An `ETG_STAGE_` constant. Ignore stages you do not know.
    pub stage: i32,
    /// What is worked on, a weight or a file: UTF-8 without NUL at its end, valid during the callback only.
    pub item: *const c_char,
    /// Bytes of `item`.
    pub item_length: usize,
    /// Units of this stage that are done.
    pub done: u64,
    /// Units of this stage.
    pub total: u64,
}

/// Receives the progress of a compilation, on the thread that called. Returns 0 to go on; any other number ends the work
/// with `ETG_ERROR_CANCELLED`. It must return normally: no exception, no longjmp.
pub type etg_progress_fn = Option<unsafe extern "C" fn(user_data: *mut c_void, progress: *const etg_progress) -> i32>;

/// Tell the caller's callback.
fn report(callback: etg_progress_fn, user_data: *mut c_void, progress: &Progress<'_>) -> Flow {
    let Some(callback) = callback else { return Flow::Continue };
    let progress = etg_progress {
        struct_size: u32::try_from(size_of::<etg_progress>()).unwrap_or(u32::MAX),
        stage: match progress.stage {
            Stage::Graphs => ETG_STAGE_GRAPHS,
            Stage::Weights => ETG_STAGE_WEIGHTS,
            Stage::Finish => ETG_STAGE_FINISH,
        },
        item: progress.item.as_ptr().cast(),
        item_length: progress.item.len(),
        done: progress.done,
        total: progress.total,
    };
    // SAFETY: the caller's function with its data; the struct and its text live during the call.
    let answer = unsafe { callback(user_data, &progress) };
    if answer == 0 { Flow::Continue } else { Flow::Cancel }
}

/// Compile a checkpoint (a Hugging Face folder or a GGUF file) into the folder `out`, for the CPU engine. `options` may
/// be NULL: the defaults. `on_progress` may be NULL. The folder appears complete or not at all; a compiled model that
/// was there is replaced at the end.
///
/// - Threads: any, several at once for different folders; progress comes on this thread.
/// - Owns: nothing is kept.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (also options that do not fit the model), `ETG_ERROR_NOT_FOUND`,
///   `ETG_ERROR_IO`, `ETG_ERROR_FORMAT` (a malformed or incomplete checkpoint; the message names file and tensor),
///   `ETG_ERROR_UNSUPPORTED` (a kind of model we cannot compile), `ETG_ERROR_CANCELLED`, `ETG_ERROR_INTERNAL`.
/// - After a failure: `out` is as it was.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_compile(
    checkpoint: *const c_char,
    checkpoint_length: usize,
    out: *const c_char,
    out_length: usize,
    options: *const etg_compile_options,
    on_progress: etg_progress_fn,
    user_data: *mut c_void,
) -> i32 {
    guard("etg_compile", || {
        // SAFETY: text of the caller.
        let checkpoint = unsafe { input::path(checkpoint, checkpoint_length, "checkpoint") }?;
        // SAFETY: text of the caller.
        let out = unsafe { input::path(out, out_length, "out") }?;
        let options = compile_options::read(options)?;
        let checkpoint = Checkpoint::open(&checkpoint)?;
        let report =
            compile_checkpoint(&checkpoint, &out, &options, &mut |progress| report(on_progress, user_data, &progress))?;
        log::info!("compiled {} to {} in {:.1} s", report.model, report.weights, report.seconds);
        Ok(ETG_OK)
    })
}

/// Compile one component ("vision_encoder", "tok_embedding" or "text_decoder") of the compiled model in `folder` again,
/// from the checkpoint it was made from: to give it another precision. Its weight format and the position rule come from
/// `options` (NULL: the defaults); context and block size stay those of the folder. The other components' files stay byte
/// for byte what they are, and runners that are open go on with what they have.
///
/// - Threads: any, several at once for different folders; progress comes on this thread.
/// - Owns: nothing is kept.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (also a checkpoint of another model, or options that ask for another context or
///   block size), `ETG_ERROR_NOT_FOUND` (also a component that the model does not have), otherwise as `etg_compile`.
/// - After a failure: the folder is as it was.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_recompile_component(
    checkpoint: *const c_char,
    checkpoint_length: usize,
    folder: *const c_char,
    folder_length: usize,
    component: *const c_char,
    component_length: usize,
    options: *const etg_compile_options,
    on_progress: etg_progress_fn,
    user_data: *mut c_void,
) -> i32 {
    guard("etg_recompile_component", || {
        // SAFETY: text of the caller.
        let checkpoint = unsafe { input::path(checkpoint, checkpoint_length, "checkpoint") }?;
        // SAFETY: text of the caller.
        let folder = unsafe { input::path(folder, folder_length, "folder") }?;
        // SAFETY: text of the caller.
        let component = unsafe { input::text(component, component_length, "component") }?;
        let options = compile_options::read(options)?;
        let checkpoint = Checkpoint::open(&checkpoint)?;
        let progress = &mut |progress: Progress<'_>| report(on_progress, user_data, &progress);
        let report = recompile_component(&checkpoint, &folder, component, &options, progress)?;
        log::info!("compiled {component} of {} again in {:.1} s", report.model, report.seconds);
        Ok(ETG_OK)
    })
}

/// What a path holds, as one JSON object: its "kind" ("compiled", "huggingface" or "gguf") and what is known of it
/// without reading weights.
///
/// - Threads: any.
/// - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT`, `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`,
///   `ETG_ERROR_UNSUPPORTED`.
/// - After a failure: `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_inspect_json(
    path: *const c_char,
    path_length: usize,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    guard("etg_inspect_json", || {
        // SAFETY: out-parameter of the caller.
        let mut buffer = unsafe { buffer::out(buffer_out) }?;
        // SAFETY: text of the caller.
        let path = unsafe { input::path(path, path_length, "path") }?;
        let document = if Artefact::is_artefact(&path) { describe_artefact(&path) } else { describe_checkpoint(&path) };
        buffer.set(buffer::text(document?.to_string()));
        Ok(ETG_OK)
    })
}

fn describe_artefact(path: &Path) -> Result<Value> {
    let mut document = json!({ "kind": "compiled", "path": path.to_string_lossy() });
    let summary = json!(Artefact::open(path)?.summary()?);
    if let (Some(document), Value::Object(summary)) = (document.as_object_mut(), summary) {
        document.extend(summary);
    }
    Ok(document)
}

fn describe_checkpoint(path: &Path) -> Result<Value> {
    let checkpoint = Checkpoint::open(path)?;
    // A family that this build does not know can still be looked at.
    let model = ModelSpec::from_config(checkpoint.config());
    Ok(json!({
        "kind": match checkpoint.kind() {
            CheckpointKind::HuggingFace => "huggingface",
            CheckpointKind::Gguf => "gguf",
            CheckpointKind::Meta => "meta",
        },
        "path": path.to_string_lossy(),
        "model": model.as_ref().ok(),
        "unsupported": model.as_ref().err().map(ToString::to_string),
        "config": checkpoint.config(),
        "generation_config": checkpoint.generation_config(),
        "tensors": checkpoint.tensors().count(),
        "special_tokens": checkpoint.special_tokens(),
        "has_chat_template": checkpoint.chat_template().is_some(),
    }))
}

/// The models that are known by name, as one JSON object with a list "models".
///
/// - Threads: any.
/// - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
/// - After a failure: nothing was made.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_models_json(buffer_out: *mut *mut etg_buffer) -> i32 {
    guard("etg_models_json", || {
        // SAFETY: out-parameter of the caller.
        let mut buffer = unsafe { buffer::out(buffer_out) }?;
        buffer.set(buffer::text(json!({ "models": registry::entries() }).to_string()));
        Ok(ETG_OK)
    })
}
