//! Events of a run, as C sees them.

use super::status::{
    ETG_OK, ETG_STOP_CALLBACK, ETG_STOP_CANCELLED, ETG_STOP_CONTEXT_FULL, ETG_STOP_LENGTH, ETG_STOP_STRING, code,
};
use crate::Error;
use crate::runner::{Event, Flow, StopReason};
use std::ffi::{c_char, c_void};
use std::ptr;

/// Event: the text of the new messages (`text`), when the option echo is on.
pub const ETG_EVENT_PROMPT: i32 = 1;
/// Event: `done` of `total` prompt tokens are processed; those found in the KV cache do not count.
pub const ETG_EVENT_PREFILL: i32 = 2;
/// Event: a token was sampled: its id (`token`) and its number in this reply from 0 (`done`). Comes before its text.
pub const ETG_EVENT_TOKEN: i32 = 3;
/// Event: more of the reply (`text`): whole UTF-8 characters, never empty, never a part of a stop string.
pub const ETG_EVENT_TEXT: i32 = 4;
/// Event: `done` of `total` tiles of new pictures are encoded, a sound counting as one; those whose rows are known do not
/// count.
pub const ETG_EVENT_IMAGES: i32 = 6;
/// Event: the last one of every run: `status` is what the call is about to return, `text` the error's message if it is
/// negative.
pub const ETG_EVENT_FINISHED: i32 = 5;

/// One event of a run. Fields that a kind does not name are 0 or NULL.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct etg_event {
    /// Bytes that the library filled.
    pub struct_size: u32,
    /// An `ETG_EVENT_` constant. Ignore kinds you do not know.
    pub kind: i32,
    /// UTF-8 text without NUL at its end, valid during the callback only; NULL if the kind has none.
    pub text: *const c_char,
    /// Bytes of `text`.
    pub text_length: usize,
    /// Token id.
    pub token: u32,
    /// Status code.
    pub status: i32,
    /// Tokens done, or number of the token.
    pub done: u64,
    /// Tokens to do.
    pub total: u64,
}

/// Receives the events of a run, on the thread that called. Returns 0 to go on; any other number ends the run with
/// `ETG_STOP_CALLBACK` (ignored on the last event). It may call `etg_runner_cancel` and the getters of the runner; other
/// calls on the same runner return `ETG_ERROR_BUSY`. It must return normally: no exception, no longjmp.
pub type etg_event_fn = Option<unsafe extern "C" fn(user_data: *mut c_void, event: *const etg_event) -> i32>;

/// The status that `etg_runner_generate` returns for a reply that ended so.
pub(super) fn stop_status(reason: StopReason) -> i32 {
    match reason {
        StopReason::Eos => ETG_OK,
        StopReason::Cancelled => ETG_STOP_CANCELLED,
        StopReason::Length => ETG_STOP_LENGTH,
        StopReason::ContextFull => ETG_STOP_CONTEXT_FULL,
        StopReason::StopString => ETG_STOP_STRING,
        StopReason::Callback => ETG_STOP_CALLBACK,
    }
}

/// The caller's callback for one run.
pub(super) struct Receiver {
    callback: etg_event_fn,
    user_data: *mut c_void,
    finished: bool,
}

impl Receiver {
    pub(super) fn new(callback: etg_event_fn, user_data: *mut c_void) -> Self {
        Receiver { callback, user_data, finished: false }
    }

    /// Pass one event on.
    pub(super) fn receive(&mut self, event: &Event<'_>) -> Flow {
        let nothing = etg_event {
            struct_size: u32::try_from(size_of::<etg_event>()).unwrap_or(u32::MAX),
            kind: 0,
            text: ptr::null(),
            text_length: 0,
            token: 0,
            status: ETG_OK,
            done: 0,
            total: 0,
        };
        let with_text = |kind, status, text: &str| etg_event {
            kind,
            status,
            text: text.as_ptr().cast(),
            text_length: text.len(),
            ..nothing
        };
        match *event {
            Event::Prompt(text) => self.call(&with_text(ETG_EVENT_PROMPT, ETG_OK, text)),
            Event::Images { done, total } => {
                self.call(&etg_event { kind: ETG_EVENT_IMAGES, done: wide(done), total: wide(total), ..nothing })
            }
            Event::Prefill { done, total } => {
                self.call(&etg_event { kind: ETG_EVENT_PREFILL, done: wide(done), total: wide(total), ..nothing })
            }
            Event::Token { id, index } => {
                self.call(&etg_event { kind: ETG_EVENT_TOKEN, token: id, done: wide(index), ..nothing })
            }
            Event::Text(text) => self.call(&with_text(ETG_EVENT_TEXT, ETG_OK, text)),
            Event::Finished(outcome) => {
                self.finished = true;
                match outcome {
                    Ok(result) => {
                        let status = stop_status(result.stop_reason);
                        self.call(&etg_event { kind: ETG_EVENT_FINISHED, status, ..nothing })
                    }
                    Err(error) => self.call(&with_text(ETG_EVENT_FINISHED, code(error.code()), &error.to_string())),
                }
            }
        }
    }

    /// A panic may have skipped the last event: the caller still gets exactly one.
    pub(super) fn finish_after_panic(&mut self, error: &Error) {
        if !self.finished {
            self.receive(&Event::Finished(Err(error)));
        }
    }

    fn call(&self, event: &etg_event) -> Flow {
        let Some(callback) = self.callback else { return Flow::Continue };
        // SAFETY: the caller's function with its data; the event and its text live during the call.
        let answer = unsafe { callback(self.user_data, event) };
        if answer == 0 { Flow::Continue } else { Flow::Stop }
    }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
