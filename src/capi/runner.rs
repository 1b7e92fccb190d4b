//! `etg_runner`: a conversation with a compiled model. Whole turns here, single steps in `runner_steps`, those with
//! pictures in `runner_images`, those with sound in `runner_audio`, what it can be asked at any time in `runner_getters`.

use super::event::{self, etg_event_fn};
use super::generate_options::{self, etg_generate_options};
use super::guard::{Panicked, catch, guard};
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::last_error::Failure;
use super::messages::{self, etg_messages};
use super::runner_options::{self, etg_runner_options};
use super::sized_struct::OutStruct;
use super::status::ETG_OK;
use super::turn_result::{self, etg_turn_result};
use crate::pipeline::open_runner;
use crate::runner::{CancelHandle, Runner, TotalStats, TurnStats};
use crate::{Error, Result};
use parking_lot::Mutex;
use std::ffi::{c_char, c_void};
use std::ptr;

/// A conversation with a compiled model: its history, its KV cache, its weights.
///
/// One call at a time: a call while another one runs, on another thread or from a callback, returns
/// `ETG_ERROR_BUSY` and changes nothing. Allowed at any time are `etg_runner_cancel` and the getters.
pub struct etg_runner {
    runner: Mutex<Runner>,
    cancel: CancelHandle,
    /// Why only reset, free and getters are allowed: a panic left the runner half way.
    poisoned: Mutex<Option<String>>,
    /// What the getters say: the state after the last call that ended, so that they need not wait for a run.
    known: Mutex<Known>,
    last_failure: Mutex<Failure>,
    /// The reply the caller borrows.
    pub(super) reply: Mutex<turn_result::Reply>,
}

/// See [`etg_runner::known`].
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub(super) turn_count: usize,
    pub(super) position: usize,
    pub(super) context_capacity: usize,
    /// Side of a tile, rows of a tile, numbers of a row; `None` for a model that takes no pictures.
    pub(super) image_geometry: Option<(usize, usize, usize)>,
    /// Features of sound, rows of them, numbers of a row; `None` for a model that takes no audio.
    pub(super) audio_geometry: Option<(usize, usize, usize)>,
    /// Pictures and sounds in the image cache, and the bytes of their rows.
    pub(super) image_cache: (usize, usize),
    pub(super) total: TotalStats,
    /// The last turn that ended well.
    pub(super) turn: Option<TurnStats>,
}

impl Known {
    fn refresh(&mut self, runner: &Runner) {
        self.turn_count = runner.turn_count();
        self.position = runner.position();
        self.context_capacity = runner.context_capacity();
        self.image_geometry = runner.image_geometry();
        self.audio_geometry = runner.audio_geometry();
        self.image_cache = runner.image_cache_size();
        self.total = runner.stats().clone();
    }
}

impl Handle for etg_runner {
    const NAME: &'static str = "etg_runner";
}

impl etg_runner {
    /// A handle for the caller.
    pub(super) fn issue(runner: Runner) -> *mut Self {
        let (capacity, load_ms) = (runner.context_capacity(), runner.stats().load_ms);
        log::info!("opened a model with a context of {capacity} tokens in {load_ms:.1} ms");
        handle::issue(Self::new(runner))
    }

    fn new(runner: Runner) -> Self {
        let mut known = Known::default();
        known.refresh(&runner);
        etg_runner {
            cancel: runner.cancel_handle(),
            runner: Mutex::new(runner),
            poisoned: Mutex::default(),
            known: Mutex::new(known),
            last_failure: Mutex::default(),
            reply: Mutex::default(),
        }
    }

    /// A copy of what the getters say.
    pub(super) fn known(&self) -> Known {
        self.known.lock().clone()
    }

    /// A copy of the last failure.
    pub(super) fn last_failure(&self) -> Failure {
        self.last_failure.lock().clone()
    }

    /// Run `body` with the runner to itself, unless it is poisoned.
    fn exclusive<T>(&self, body: impl FnOnce(&mut Runner) -> Result<T>) -> Result<T> {
        self.locked(|runner| {
            if let Some(reason) = &*self.poisoned.lock() {
                return Err(Error::Poisoned(reason.clone()));
            }
            body(runner)
        })
    }

    /// Run `body` with the runner to itself; a panic poisons it.
    fn locked<T>(&self, body: impl FnOnce(&mut Runner) -> Result<T>) -> Result<T> {
        let Some(mut runner) = self.runner.try_lock() else { return Err(busy()) };
        let outcome = self.poison_if_panicked(catch(|| body(&mut runner)));
        self.known.lock().refresh(&runner);
        outcome
    }

    fn poison_if_panicked<T>(&self, outcome: std::result::Result<Result<T>, Panicked>) -> Result<T> {
        outcome.unwrap_or_else(|panicked| {
            *self.poisoned.lock() = Some(panicked.0.clone());
            Err(panicked.into())
        })
    }

    /// Remember a failure for whoever asks the handle later.
    fn remember<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| *self.last_failure.lock() = Failure::of(error))
    }
}

fn busy() -> Error {
    Error::Busy("the runner is in a call already (on another thread, or the one whose callback this is)".into())
}

/// The body of a function on a runner: panics poison the runner, failures are recorded on it too.
pub(super) fn with_runner(
    function: &'static str,
    runner: *const etg_runner,
    body: impl FnOnce(&etg_runner, &mut Runner) -> Result<i32>,
) -> i32 {
    guard(function, || {
        let handle = handle::get(runner)?;
        handle.remember(handle.exclusive(|runner| body(&handle, runner)))
    })
}

/// Open a compiled model folder, or that of a quantized model (see `etg_prepared_model_quantize`), which computes with the arithmetic
/// of its quantize-dequantize nodes, and begin an empty conversation. `options` may be NULL: the defaults.
///
/// - Threads: any.
/// - Owns: `*runner_out` is the caller's; free it with `etg_runner_free`. The options may be freed at once.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT`, `ETG_ERROR_NOT_FOUND` (folder, file, or name of a template),
///   `ETG_ERROR_IO`, `ETG_ERROR_FORMAT` (a malformed file or template), `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_ENGINE`.
/// - After a failure: nothing was opened, `*runner_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_open(
    path: *const c_char,
    path_length: usize,
    options: *const etg_runner_options,
    runner_out: *mut *mut etg_runner,
) -> i32 {
    guard("etg_runner_open", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(runner_out, ptr::null_mut(), "runner_out") }?;
        // SAFETY: text of the caller.
        let path = unsafe { input::path(path, path_length, "path") }?;
        let options = runner_options::read(options)?;
        let runner = open_runner(&path, &options)?;
        out.set(etg_runner::issue(runner));
        Ok(ETG_OK)
    })
}

/// Free a runner. NULL is allowed and does nothing.
///
/// - Threads: any. While a call runs (on another thread, or from its callback) it is refused: cancel, and free after
///   the call has returned.
/// - Owns: takes the runner back; what was borrowed from it is gone. Tokenizer handles stay.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live runner: freed twice), `ETG_ERROR_BUSY`.
/// - After a failure: nothing was freed, the runner is as before.
#[unsafe(no_mangle)]
pub extern "C" fn etg_runner_free(runner: *mut etg_runner) -> i32 {
    guard("etg_runner_free", || {
        if runner.is_null() {
            return Ok(ETG_OK);
        }
        let handle = handle::get(runner)?;
        // Held while the ticket is taken away: no call can begin in between.
        let Some(_exclusive) = handle.runner.try_lock() else { return Err(busy()) };
        handle::free(runner).map(|()| ETG_OK)
    })
}

/// Answer `messages`, which follow the history: at least one; the chat template decides which roles may follow.
///
/// `options` may be NULL: what the checkpoint recommends. `on_event` may be NULL. `result_out` may be NULL; otherwise
/// initialise it with `etg_turn_result_init`. A run that begins ends with exactly one `ETG_EVENT_FINISHED`; one that is
/// refused at the door (bad handle, options, messages or struct, busy, poisoned by a panic) has no events.
///
/// A reply that ended by a cancel, the callback or a limit joins the history as far as it came; one that ended
/// before its first token leaves the history as it was.
///
/// - Threads: one call at a time per runner; events come on this thread.
/// - Owns: messages and options may be freed or changed at once. Text and tokens in `*result_out` are borrowed until the
///   next generate, reset, rewind or free on this runner.
/// - Codes: `ETG_OK` (the model ended its reply), `ETG_STOP_CANCELLED`, `ETG_STOP_LENGTH`, `ETG_STOP_CONTEXT_FULL`,
///   `ETG_STOP_STRING`, `ETG_STOP_CALLBACK`; `ETG_ERROR_INVALID_ARGUMENT`, `ETG_ERROR_UNSUPPORTED` (fields of a newer
///   struct), `ETG_ERROR_FORMAT` (the template fails), `ETG_ERROR_INVALID_STATE` (no chat template),
///   `ETG_ERROR_CONTEXT_FULL`, `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`, `ETG_ERROR_ENGINE`, `ETG_ERROR_INTERNAL`. Also
///   `ETG_ERROR_UNSUPPORTED` for pictures in a model that takes none.
/// - After a failure: the conversation is unchanged; after `ETG_ERROR_ENGINE` and `ETG_ERROR_INTERNAL` the runner is
///   poisoned and needs `etg_runner_reset`. `*result_out` is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_generate(
    runner: *mut etg_runner,
    messages: *const etg_messages,
    options: *const etg_generate_options,
    on_event: etg_event_fn,
    user_data: *mut c_void,
    result_out: *mut etg_turn_result,
) -> i32 {
    with_runner("etg_runner_generate", runner, |handle, runner| {
        // SAFETY: struct of the caller.
        let out = unsafe { OutStruct::new(result_out) }?;
        let messages = messages::read(messages)?;
        let options = if options.is_null() { runner.default_options() } else { generate_options::read(options)? };
        let mut receiver = event::Receiver::new(on_event, user_data);
        // What the caller borrowed of the reply before ends here.
        *handle.reply.lock() = turn_result::Reply::default();
        let outcome = catch(|| runner.generate(&messages, &options, &mut |event| receiver.receive(&event)));
        let outcome = handle.poison_if_panicked(outcome);
        let result = outcome.inspect_err(|error| receiver.finish_after_panic(error))?;
        let status = event::stop_status(result.stop_reason);
        handle.known.lock().turn = Some(result.stats.clone());
        log::info!(
            "turn ended ({}): {} prompt tokens, {} new ones, {:.1} ms",
            result.stop_reason.name(),
            result.stats.prompt_tokens,
            result.stats.generated_tokens,
            result.stats.total_ms
        );
        let mut reply = handle.reply.lock();
        *reply = turn_result::Reply::of(&result);
        if let Some(out) = out {
            out.write(reply.describe(&result, status));
        }
        Ok(status)
    })
}

/// Ask for the end of the run that is going on, or, if none is, of the next one as soon as it begins. The request is
/// used up when that run has ended.
///
/// - Threads: any, at any time, also from callbacks. Not from a signal handler.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: nothing changed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_runner_cancel(runner: *mut etg_runner) -> i32 {
    guard("etg_runner_cancel", || {
        handle::get(runner)?.cancel.cancel();
        Ok(ETG_OK)
    })
}

/// Begin a new, empty conversation. Also the way out when the runner is poisoned.
///
/// - Threads: one call at a time per runner.
/// - Owns: what was borrowed from the last reply is gone.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_BUSY`.
/// - After a failure: the conversation is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_runner_reset(runner: *mut etg_runner) -> i32 {
    guard("etg_runner_reset", || {
        let handle = handle::get(runner)?;
        handle.remember(handle.locked(|runner| {
            runner.reset();
            *handle.poisoned.lock() = None;
            *handle.reply.lock() = turn_result::Reply::default();
            Ok(ETG_OK)
        }))
    })
}

/// Forget all but the first `turns_to_keep` turns of the conversation. What a later prompt shares with them is not
/// computed again.
///
/// - Threads: one call at a time per runner.
/// - Owns: what was borrowed from the last reply is gone.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or there are fewer turns), `ETG_ERROR_BUSY`,
///   `ETG_ERROR_POISONED`.
/// - After a failure: the conversation is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_runner_rewind(runner: *mut etg_runner, turns_to_keep: usize) -> i32 {
    with_runner("etg_runner_rewind", runner, |handle, runner| {
        runner.rewind(turns_to_keep)?;
        *handle.reply.lock() = turn_result::Reply::default();
        Ok(ETG_OK)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

    use super::*;
    use crate::capi::runner_getters::{etg_runner_last_error, etg_runner_position};
    use crate::capi::runner_steps::{etg_runner_decode_one, etg_runner_prefill};
    use crate::capi::status::{ETG_ERROR_BUSY, ETG_ERROR_ENGINE, ETG_ERROR_INTERNAL, ETG_ERROR_POISONED};
    use crate::chat::{SpecialTokens, Tokenizer};
    use crate::engine::{ExecuteOptions, GraphSignature, LoadedComponent};
    use crate::graph::{DType, TensorInfo, TensorView, TensorViewMut};
    use crate::runner::RunnerParts;

    /// Token that makes the engine panic, token that makes it fail, size of the context.
    const PANIC: i32 = 13;
    const FAIL: i32 = 14;
    const CONTEXT: usize = 16;

    /// An engine of one layer that does nothing, but for two tokens.
    struct Trap {
        graphs: Vec<GraphSignature>,
    }

    impl Trap {
        fn new() -> Self {
            let signature = |name: &str, ar: usize| {
                let float = |name: &str, shape: &[usize]| TensorInfo {
                    name: name.into(),
                    dtype: DType::F32,
                    shape: shape.to_vec(),
                };
                let int = |name: &str| TensorInfo { name: name.into(), dtype: DType::I32, shape: vec![1, ar] };
                let slots = CONTEXT - ar;
                GraphSignature {
                    name: name.into(),
                    inputs: vec![
                        int("tokens"),
                        float("attention_mask", &[1, 1, ar, CONTEXT]),
                        int("input_pos"),
                        float("k_cache_0", &[1, 1, 2, slots]),
                        float("v_cache_0", &[1, 1, slots, 2]),
                    ],
                    outputs: vec![
                        float("logits", &[1, ar, 512]),
                        float("k_out_0", &[1, 1, 2, ar]),
                        float("v_out_0", &[1, 1, ar, 2]),
                    ],
                }
            };
            Trap { graphs: vec![signature("kv_forward", 1), signature("prefill_forward", 4)] }
        }
    }

    impl LoadedComponent for Trap {
        fn graphs(&self) -> &[GraphSignature] {
            &self.graphs
        }

        fn execute(
            &mut self,
            _: usize,
            inputs: &[TensorView<'_>],
            _: &mut [TensorViewMut<'_>],
            _: &ExecuteOptions,
        ) -> Result<()> {
            let tokens = inputs[0].as_slice::<i32>()?;
            assert!(!tokens.contains(&PANIC), "trapped");
            if tokens.contains(&FAIL) {
                return Err(Error::Engine { engine: "trap".into(), reason: "failed".into() });
            }
            Ok(())
        }

        fn weight_bytes(&self) -> u64 {
            0
        }

        fn description(&self) -> String {
            "trap".into()
        }
    }

    fn runner() -> *mut etg_runner {
        let json =
            std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tiny/llama/tokenizer.json")).unwrap();
        let tokenizer = Tokenizer::from_bytes(&json, &SpecialTokens::default()).unwrap();
        let parts = RunnerParts::new(Box::new(Trap::new()), tokenizer);
        handle::issue(etg_runner::new(Runner::from_parts(parts).unwrap()))
    }

    fn prefill(runner: *mut etg_runner, ids: &[u32]) -> i32 {
        // SAFETY: a slice and its length.
        unsafe { etg_runner_prefill(runner, ids.as_ptr(), ids.len()) }
    }

    fn position(runner: *const etg_runner) -> usize {
        let mut position = 0;
        // SAFETY: a live out-parameter.
        assert_eq!(unsafe { etg_runner_position(runner, &mut position) }, ETG_OK);
        position
    }

    #[test]
    fn a_panic_poisons_until_reset() {
        let runner = runner();
        assert_eq!(prefill(runner, &[1, 2, 3]), ETG_OK);
        assert_eq!(position(runner), 3);
        assert_eq!(prefill(runner, &[13]), ETG_ERROR_INTERNAL);
        assert_eq!(etg_runner_decode_one(runner, 1), ETG_ERROR_POISONED);
        assert_eq!(etg_runner_rewind(runner, 0), ETG_ERROR_POISONED);
        assert_eq!(etg_runner_cancel(runner), ETG_OK, "always allowed");
        assert_eq!(etg_runner_reset(runner), ETG_OK);
        assert_eq!(position(runner), 0);
        etg_runner_free(runner);
    }

    #[test]
    fn the_failure_is_on_the_handle_for_other_threads() {
        let runner = runner();
        assert_eq!(prefill(runner, &[14]), ETG_ERROR_ENGINE);
        let ticket = runner.addr();
        std::thread::spawn(move || {
            let runner = ptr::without_provenance::<etg_runner>(ticket);
            let (mut code, mut buffer) = (0, ptr::null_mut());
            // SAFETY: live out-parameters.
            assert_eq!(unsafe { etg_runner_last_error(runner, &mut code, &mut buffer) }, ETG_OK);
            assert_eq!(code, ETG_ERROR_ENGINE);
            crate::capi::buffer::etg_buffer_free(buffer);
        })
        .join()
        .unwrap();
        assert_eq!(prefill(runner, &[1]), ETG_ERROR_POISONED);
        assert_eq!(etg_runner_reset(runner), ETG_OK);
        assert_eq!(prefill(runner, &[1]), ETG_OK);
        etg_runner_free(runner);
    }

    #[test]
    fn a_second_call_is_busy_and_changes_nothing() {
        let runner = runner();
        let handle = handle::get(runner).unwrap();
        let running = handle.runner.try_lock().unwrap();
        assert_eq!(prefill(runner, &[1]), ETG_ERROR_BUSY);
        assert_eq!(etg_runner_reset(runner), ETG_ERROR_BUSY);
        assert_eq!(etg_runner_free(runner), ETG_ERROR_BUSY);
        assert_eq!(position(runner), 0, "getters are answered");
        drop(running);
        assert_eq!(prefill(runner, &[1]), ETG_OK);
        assert_eq!(etg_runner_free(runner), ETG_OK);
    }
}
