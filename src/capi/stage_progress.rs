//! `etg_stage_progress`: how far a stage of the pipeline is, and how its caller ends it.

use crate::pipeline::{PipelineStep, StageName};
use crate::quantize::JobStep;
use crate::{Error, Result};
use std::ffi::{CString, c_char, c_void};

/// Where the work of a stage is. Its texts are UTF-8 with a NUL at their end, never NULL, and valid during the callback only.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct etg_stage_progress {
    /// Bytes that the library filled.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// "model_preparation", "quantization", "compilation" or "inference"; "evaluation" of a perplexity.
    pub stage: *const c_char,
    /// The component, e.g. "text_decoder"; empty where the work is for all of them.
    pub component: *const c_char,
    /// Part of the stage: "ranges", "weights", "check", "graphs", "finish", "windows", "prompt", "text" (`layer` is a piece of a
    /// reply then), and "begin" and "end" of a stage. Ignore those you do not know.
    pub phase: *const c_char,
    /// The layer, weight, file or prompt.
    pub layer: *const c_char,
    /// Units of this phase that are done.
    pub done: u64,
    /// Units of this phase; 0 where it has no units.
    pub total: u64,
}

/// Receives the progress of a stage, on the thread that called. Returns 0 to go on; any other number ends the work with
/// `ETG_ERROR_CANCELLED`. It must return normally: no exception, no longjmp.
pub type etg_stage_progress_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, progress: *const etg_stage_progress) -> i32>;

/// One progress report, before it is made readable for C.
#[derive(Default)]
pub(super) struct Step<'s> {
    pub(super) stage: &'s str,
    pub(super) component: &'s str,
    pub(super) phase: &'s str,
    pub(super) layer: &'s str,
    pub(super) done: u64,
    pub(super) total: u64,
}

/// The caller's callback with its data.
#[derive(Clone, Copy)]
pub(super) struct Watcher {
    callback: etg_stage_progress_fn,
    user_data: *mut c_void,
}

impl Watcher {
    pub(super) fn new(callback: etg_stage_progress_fn, user_data: *mut c_void) -> Self {
        Watcher { callback, user_data }
    }

    /// Tell the caller.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the caller does not want to go on.
    pub(super) fn tell(&self, step: &Step<'_>) -> Result<()> {
        let Some(callback) = self.callback else { return Ok(()) };
        let [stage, component, phase, layer] = [step.stage, step.component, step.phase, step.layer].map(c_text);
        let progress = etg_stage_progress {
            struct_size: u32::try_from(size_of::<etg_stage_progress>()).unwrap_or(u32::MAX),
            reserved: 0,
            stage: stage.as_ptr(),
            component: component.as_ptr(),
            phase: phase.as_ptr(),
            layer: layer.as_ptr(),
            done: step.done,
            total: step.total,
        };
        // SAFETY: the caller's function with its data; the struct and its texts live during the call.
        match unsafe { callback(self.user_data, &progress) } {
            0 => Ok(()),
            _ => Err(Error::Cancelled),
        }
    }

    /// Tell the caller of a step of calibration or quantization.
    ///
    /// # Errors
    /// As [`tell`](Self::tell).
    pub(super) fn tell_job(&self, step: JobStep<'_>) -> Result<()> {
        self.tell(&Step {
            stage: StageName::Quantization.name(),
            component: step.component,
            phase: step.phase.name(),
            layer: step.layer,
            done: count(step.done),
            total: count(step.total),
        })
    }

    /// Tell the caller of a step of a pipeline.
    ///
    /// # Errors
    /// As [`tell`](Self::tell).
    pub(super) fn tell_pipeline(&self, step: PipelineStep<'_>) -> Result<()> {
        let PipelineStep { stage, component, phase, item, done, total } = step;
        self.tell(&Step { stage: stage.name(), component, phase, layer: item, done, total })
    }
}

/// A number of units, as C has it.
pub(super) fn count(units: usize) -> u64 {
    u64::try_from(units).unwrap_or(u64::MAX)
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{FFFD}")).unwrap_or_default()
}

/// The work of a stage, whose name stands in front of what it reports. The code stays that of the cause.
///
/// # Errors
/// [`Error::Stage`] with what `work` reports.
pub(super) fn in_stage<T>(stage: StageName, work: impl FnOnce() -> Result<T>) -> Result<T> {
    work().map_err(|error| match error {
        Error::Stage { .. } => error,
        error => Error::Stage { stage: stage.name(), source: Box::new(error) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;
    use std::ffi::CStr;

    unsafe extern "C" fn end_at_two(user_data: *mut c_void, progress: *const etg_stage_progress) -> i32 {
        // SAFETY: the test's own list, and a struct that lives during the call.
        let (seen, progress) = unsafe { (&mut *user_data.cast::<Vec<String>>(), &*progress) };
        for text in [progress.stage, progress.component, progress.phase, progress.layer] {
            // SAFETY: texts end in NUL and live during the call.
            seen.push(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        }
        i32::from(progress.done == 2)
    }

    #[test]
    fn texts_arrive_whole_and_a_number_ends_the_work() {
        let mut seen = Vec::<String>::new();
        let watcher = Watcher::new(Some(end_at_two), std::ptr::from_mut(&mut seen).cast());
        let step = |done| Step { stage: "quantization", component: "c", phase: "p", layer: "a\0b", done, total: 3 };
        assert!(watcher.tell(&step(1)).is_ok());
        assert!(matches!(watcher.tell(&step(2)), Err(Error::Cancelled)));
        assert_eq!(seen.get(..4).map(|seen| seen.join("|")).as_deref(), Some("quantization|c|p|a\u{FFFD}b"));
        assert!(Watcher::new(None, std::ptr::null_mut()).tell(&step(2)).is_ok());
    }

    #[test]
    fn a_stage_is_named_once_and_keeps_the_code() {
        let fail = || Err::<(), _>(Error::NotFound("x.gguf".into()));
        let nested = in_stage(StageName::Quantization, || in_stage(StageName::ModelPreparation, fail));
        let error = nested.err().map(|error| (error.code(), error.to_string()));
        assert_eq!(error, Some((Status::NotFound, "[model_preparation] x.gguf".into())));
    }
}
