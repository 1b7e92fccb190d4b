//! The whole job: checkpoint to conversation, stage by stage, each saved under one folder.

use super::buffer::{self, etg_buffer};
use super::guard::guard;
use super::input;
use super::json_fields::{self, Field};
use super::stage_progress::{Step, Watcher, etg_stage_progress_fn, in_stage};
use super::status::ETG_OK;
use crate::pipeline::{
    PipelineContext, PipelineContextBuilder, PipelineEvent, PipelineOptions, PipelineOutcome, StageName, StageState,
};
use crate::{Error, Result};
use serde_json::Value;
use std::cell::Cell;
use std::ffi::{c_char, c_void};

/// What the context is called in error texts.
const CONTEXT: &str = "pipeline context";

/// Keys of the context.
const KEYS: [&str; 5] = ["model_name", "soc_model", "prompt", "artifact_dir", "extra_options"];

/// The context in a JSON text.
fn context_of(json: &str) -> Result<PipelineContext> {
    let mut builder = PipelineContext::builder();
    json_fields::for_each(CONTEXT, json, &KEYS, |field| {
        let (next, known) = add_field(std::mem::take(&mut builder), field)?;
        builder = next;
        Ok(known)
    })?;
    builder.build()
}

/// The builder with one more field, and whether there is such a field.
fn add_field(builder: PipelineContextBuilder, field: &Field<'_>) -> Result<(PipelineContextBuilder, bool)> {
    let builder = match field.key() {
        "model_name" => builder.model_name(field.text()?),
        "soc_model" => builder.soc_model(field.text()?),
        "prompt" => builder.prompt(match field.text() {
            Ok(prompt) => vec![prompt.to_owned()],
            Err(_) => field.texts()?,
        }),
        "artifact_dir" => builder.artifact_dir(field.text()?),
        "extra_options" => field
            .object()?
            .iter()
            .fold(builder, |builder, (name, value): (&String, &Value)| builder.extra_option(name, value.clone())),
        _ => return Ok((builder, false)),
    };
    Ok((builder, true))
}

/// Run a pipeline, tell `watcher` of it.
fn run(context: &PipelineContext, watcher: Watcher) -> Result<PipelineOutcome> {
    let (pipeline, changed) = PipelineOptions::from_context(context)?.pipeline(context)?;
    let running = Cell::new(None);
    let of_stage = |stage: StageName, phase: &str, layer: &str, done: u64| {
        running.set(Some(stage));
        watcher.tell(&Step { stage: stage.name(), phase, layer, done, total: 1, ..Step::default() })
    };
    let outcome = pipeline.invoke(context, &mut |event| match event {
        PipelineEvent::Began(stage) => of_stage(stage, "begin", "", 0),
        PipelineEvent::Step(step) => watcher.tell_pipeline(step),
        PipelineEvent::Text(text) => of_stage(StageName::Inference, "text", text, 0),
        // The outcome has them all, and the log.
        PipelineEvent::Warning(_) => Ok(()),
        PipelineEvent::Ended(ended) => {
            let how = match ended.state {
                StageState::Done => "done",
                StageState::Loaded => "loaded",
            };
            of_stage(ended.stage, "end", how, 1)
        }
    });
    let outcome = match (outcome, running.get()) {
        // A pipeline that is cancelled does not say where.
        (Err(Error::Cancelled), Some(stage)) => in_stage(stage, || Err(Error::Cancelled)),
        (outcome, _) => outcome,
    };
    outcome.map(|outcome| PipelineOutcome { warnings: [changed, outcome.warnings].concat(), ..outcome })
}

/// Run a pipeline: up to four stages (model_preparation, quantization, compilation, inference), each of which saves its output in a
/// folder of its name, and is loaded from there if it was made from the same inputs. What to do is one JSON object:
///
/// - "model_name" (of `etg_models_json`), "soc_model" (e.g. "SM8750"), "prompt" (a text or a list): needed;
/// - "artifact_dir": folder of the results, by default ./genai_artifacts;
/// - "extra_options": an object with any of checkpoint, params, tokenizer, backend (htp, gpu or cpu), preparation and calibration (as
///   the JSON setters of `etg_preparation_options` and `etg_calibration_options` take them), observations, quantization (recipes,
///   encoder, several_images, encoder_rows, residual, weights with scales and rounding, observe_padding, tokens_at_once,
///   report_samples), embedding_quantize, suggest_recipe, use_fp16, batch_size, compile_only, pre_generated, system_prompt, generate,
///   images, audio, skip (names of stages), redo, threads.
///
/// `on_progress` may be NULL. The result is one JSON object: "stages" (stage, state, output, seconds, peak_memory_bytes), "warnings"
/// and "replies".
///
/// - Threads: any, several at once for different folders; progress comes on this thread.
/// - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: those of the stage that failed, whose name in brackets the message begins with. Before any stage runs:
///   `ETG_ERROR_FORMAT` (not a JSON object, an unknown option), `ETG_ERROR_INVALID_ARGUMENT` (an unknown key, fields that are missing:
///   the message names all of them, options that exclude each other), `ETG_ERROR_NOT_FOUND` (an unknown model),
///   `ETG_ERROR_UNSUPPORTED` (a backend or option that this build does not have). `ETG_ERROR_CANCELLED` if the callback ended it.
/// - After a failure: what earlier stages saved is there and is taken by the next run; `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_pipeline_run(
    json: *const c_char,
    length: usize,
    on_progress: etg_stage_progress_fn,
    user_data: *mut c_void,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    guard("etg_pipeline_run", || {
        // SAFETY: out-parameter of the caller.
        let mut buffer = unsafe { buffer::out(buffer_out) }?;
        // SAFETY: text of the caller.
        let context = context_of(unsafe { input::text(json, length, "json") }?)?;
        let outcome = run(&context, Watcher::new(on_progress, user_data))?;
        let json = serde_json::to_vec(&outcome).map_err(|error| Error::internal(format!("outcome: {error}")))?;
        buffer.set(buffer::text(json));
        Ok(ETG_OK)
    })
}
