//! How good a quantized model is: its perplexity, with the arithmetic of its quantize-dequantize nodes.

use super::guard::guard;
use super::input;
use super::quantized_model::{self, etg_quantized_model};
use super::sized_struct::{OutStruct, Sized32};
use super::stage_progress::{Step, Watcher, count, etg_stage_progress_fn};
use super::status::ETG_OK;
use crate::artefact::TEXT_DECODER;
use crate::chat::EncodeOptions;
use crate::dataset::ModelText;
use crate::pipeline::QuantizedModel;
use crate::runner::{EvalOptions, Perplexity};
use crate::{Error, Result};
use std::ffi::{c_char, c_void};

/// Stage of an evaluation, in progress reports.
const EVALUATION: &str = "evaluation";

/// Tokens of a window if nothing is said, as far as the context has room.
const DEFAULT_WINDOW: usize = 512;

/// Perplexity of a text. Initialise it with `etg_perplexity_init`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct etg_perplexity {
    /// Size of this struct as the program was compiled; afterwards the bytes that were filled.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// exp(mean negative log-likelihood).
    pub perplexity: f64,
    /// Mean negative log-likelihood of a scored token, in nats.
    pub mean_nll: f64,
    /// Number of scored tokens: all but the first of each window.
    pub scored_tokens: u64,
    /// Number of windows.
    pub windows: u64,
    /// Time in the engine, milliseconds.
    pub engine_ms: f64,
}

// SAFETY: repr(C), u32 first, no padding; zero is a value of every field.
unsafe impl Sized32 for etg_perplexity {
    const NAME: &'static str = "etg_perplexity";
    const FIRST_SIZE: usize = size_of::<etg_perplexity>();
}

impl From<Perplexity> for etg_perplexity {
    fn from(found: Perplexity) -> Self {
        etg_perplexity {
            struct_size: 0,
            reserved: 0,
            perplexity: found.perplexity,
            mean_nll: found.mean_nll,
            scored_tokens: count(found.scored_tokens),
            windows: count(found.windows),
            engine_ms: found.engine_ms,
        }
    }
}

/// How a caller wants it measured.
struct Asked {
    window: usize,
    full_windows_only: bool,
    threads: usize,
    watcher: Watcher,
}

impl Asked {
    fn measure(&self, model: &QuantizedModel, tokens: &[u32]) -> Result<Perplexity> {
        let window = match self.window {
            0 => DEFAULT_WINDOW.min(model.graphs().context_capacity),
            window => window,
        };
        let options = EvalOptions { window, full_windows_only: self.full_windows_only };
        let threads = (self.threads > 0).then_some(self.threads);
        model.perplexity(tokens, &options, threads, &mut |layer, done, total| {
            let (done, total) = (count(done), count(total));
            self.watcher.tell(&Step {
                stage: EVALUATION,
                component: TEXT_DECODER,
                phase: "windows",
                layer,
                done,
                total,
            })
        })
    }
}

/// The place for a result, which must be there.
///
/// # Safety
/// As [`OutStruct::new`].
unsafe fn place(result_out: *mut etg_perplexity) -> Result<OutStruct<etg_perplexity>> {
    // SAFETY: this function's contract.
    unsafe { OutStruct::new(result_out) }?.ok_or_else(|| Error::invalid("result_out is NULL"))
}

/// Perplexity of the UTF-8 text file `path`: its tokens, without begin-of-text token, are cut into windows of `window` tokens (0: 512,
/// or the context if that is less), each starts cold, and every token but the first of a window is scored. `full_windows_only` is 0
/// or 1: whether a last window that is shorter is left out. `threads` is 0 for one a physical core. `on_progress` may be NULL; its
/// stage is "evaluation".
///
/// - Threads: any, several at once; progress comes on this thread.
/// - Owns: nothing is kept.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a window beyond the context, nothing to score, a model that takes pictures),
///   `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT` (not UTF-8, a damaged model), `ETG_ERROR_UNSUPPORTED` (a newer struct),
///   `ETG_ERROR_CANCELLED`.
/// - After a failure: `*result_out` is as it was.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_quantized_model_perplexity_of_file(
    model: *const etg_quantized_model,
    path: *const c_char,
    path_length: usize,
    window: usize,
    full_windows_only: i32,
    threads: usize,
    on_progress: etg_stage_progress_fn,
    user_data: *mut c_void,
    result_out: *mut etg_perplexity,
) -> i32 {
    guard("etg_quantized_model_perplexity_of_file", || {
        // SAFETY: a struct of the caller's.
        let place = unsafe { place(result_out) }?;
        // SAFETY: text of the caller.
        let path = unsafe { input::path(path, path_length, "path") }?;
        let full_windows_only = input::flag(full_windows_only, "full_windows_only")?;
        let model = quantized_model::get(model)?;
        let bytes = std::fs::read(&path).map_err(|error| Error::io(&path, error))?;
        let text = std::str::from_utf8(&bytes)
            .map_err(|error| Error::format(&path, format!("byte {}", error.valid_up_to()), "is not UTF-8"))?;
        let model_text = ModelText::from_artefact(model.model().artefact())?;
        let plain = EncodeOptions { add_bos: false, parse_special: false };
        let tokens = model_text.prompts().tokenizer().encode(text, plain)?;
        let asked = Asked { window, full_windows_only, threads, watcher: Watcher::new(on_progress, user_data) };
        place.write(asked.measure(model.model(), &tokens)?.into());
        Ok(ETG_OK)
    })
}

/// Perplexity of token ids, as `etg_quantized_model_perplexity_of_file` measures it.
///
/// - Threads: any, several at once; progress comes on this thread.
/// - Owns: nothing is kept.
/// - Codes: as `etg_quantized_model_perplexity_of_file`; `ETG_ERROR_INVALID_ARGUMENT` also for an id that is outside the vocabulary.
/// - After a failure: `*result_out` is as it was.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_quantized_model_perplexity_of_tokens(
    model: *const etg_quantized_model,
    ids: *const u32,
    id_count: usize,
    window: usize,
    full_windows_only: i32,
    threads: usize,
    on_progress: etg_stage_progress_fn,
    user_data: *mut c_void,
    result_out: *mut etg_perplexity,
) -> i32 {
    guard("etg_quantized_model_perplexity_of_tokens", || {
        // SAFETY: a struct of the caller's.
        let place = unsafe { place(result_out) }?;
        // SAFETY: ids of the caller.
        let ids = unsafe { input::values(ids, id_count, "ids") }?;
        let full_windows_only = input::flag(full_windows_only, "full_windows_only")?;
        let model = quantized_model::get(model)?;
        let vocabulary = model.model().graphs().model.decoder.vocab_size;
        let outside = |id: &u32| usize::try_from(*id).map_or(true, |id| id >= vocabulary);
        if let Some((index, id)) = ids.iter().enumerate().find(|(_, id)| outside(id)) {
            return Err(Error::invalid(format!("ids[{index}] is {id}, outside the vocabulary of {vocabulary}")));
        }
        let asked = Asked { window, full_windows_only, threads, watcher: Watcher::new(on_progress, user_data) };
        place.write(asked.measure(model.model(), ids)?.into());
        Ok(ETG_OK)
    })
}
