//! What a run tells its caller while it goes on and when it ends, and how it is told to stop.

use super::stats::TurnStats;
use crate::error::Error;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a callback wants to happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// End the run here, with [`StopReason::Callback`]. Ignored on the terminal event.
    Stop,
}

/// What happened in a run. Events come on the thread that called `generate`; what they borrow is valid during the
/// callback only. Whatever happens, the last one is [`Event::Finished`], exactly once.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The text of the new messages, joined by newlines, when `echo` is on.
    Prompt(&'a str),
    /// Tiles of new pictures, and audio clips, encoded so far: once before the first one and after each.
    Images {
        /// Tiles (audio clips count as one) done.
        done: usize,
        /// Tiles to do in this run; media whose rows are known do not count.
        total: usize,
    },
    /// Prompt tokens processed so far, after each block.
    Prefill {
        /// Tokens done; tokens reused from the KV cache do not count.
        done: usize,
        /// Tokens to do in this run.
        total: usize,
    },
    /// A token was sampled. Comes before its text; end-of-sequence tokens come too.
    Token {
        /// Token id.
        id: u32,
        /// Its number in this reply, from 0.
        index: usize,
    },
    /// More text of the reply: whole UTF-8 characters, never empty, never a part of a stop string.
    Text(&'a str),
    /// The terminal event: what `generate` is about to return.
    Finished(Result<&'a TurnResult, &'a Error>),
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model sampled an end-of-sequence token.
    Eos,
    /// A stop string appeared.
    StopString,
    /// `max_new_tokens` were generated.
    Length,
    /// The context is full.
    ContextFull,
    /// [`CancelHandle::cancel`] was called.
    Cancelled,
    /// The callback returned [`Flow::Stop`].
    Callback,
}

impl StopReason {
    /// Lower-case name as in JSON, e.g. `stop_string`.
    pub fn name(self) -> &'static str {
        match self {
            StopReason::Eos => "eos",
            StopReason::StopString => "stop_string",
            StopReason::Length => "length",
            StopReason::ContextFull => "context_full",
            StopReason::Cancelled => "cancelled",
            StopReason::Callback => "callback",
        }
    }
}

/// One finished reply.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TurnResult {
    /// The text that was emitted: no special tokens, nothing from the stop string on.
    pub text: String,
    /// The sampled token ids in order, without the end-of-sequence token that ended the reply.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop_reason: StopReason,
    /// The seed that was used; the same seed, prompt and options give the same reply. `None` for greedy.
    pub seed: Option<u64>,
    /// Counts and times.
    pub stats: TurnStats,
}

/// Cancels the runs of one [`Runner`](super::Runner), from any thread.
///
/// The request is latched: it ends the run that is going on, or, if none is, the next one as soon as it starts; it is
/// used up when that run has ended. It takes effect between blocks of the prompt and between tokens.
#[derive(Debug, Clone, Default)]
pub struct CancelHandle(Arc<AtomicBool>);

impl CancelHandle {
    /// Ask for the end of the current or next run.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether a request is waiting.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Take a waiting request back.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Release);
    }
}
