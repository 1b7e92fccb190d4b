//! A reply while it is written: sampled ids to text, stop strings, events.

use super::event::{CancelHandle, Event, Flow, StopReason, TurnResult};
use super::options::GenerateOptions;
use super::sampler::Sampler;
use super::stats::TurnStats;
use super::{conversation::Reply, generate::OnEvent};
use crate::chat::{DetokenizeStream, StopMatcher, Tokenizer};
use crate::error::Result;

/// The reply of one run.
pub(super) struct Writer {
    pub sampler: Sampler,
    pub stats: TurnStats,
    stream: DetokenizeStream,
    stop: StopMatcher,
    /// What was emitted.
    text: String,
    tokens: Vec<u32>,
    /// For each token, how many bytes of text it and those before it have given, stop strings included.
    ends: Vec<usize>,
}

impl Writer {
    pub fn new(tokenizer: &Tokenizer, options: &GenerateOptions) -> Result<Self> {
        Ok(Self {
            sampler: Sampler::new(&options.sampling)?,
            stats: TurnStats::default(),
            stream: tokenizer.stream(true),
            stop: StopMatcher::new(&options.stop)?,
            text: String::new(),
            tokens: Vec::new(),
            ends: Vec::new(),
        })
    }

    /// Number of tokens, without the one that ended the reply.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Take a sampled token, which `is_end` if it is an end-of-sequence token that counts. Gives a reason if the reply
    /// ends with it.
    pub fn write(
        &mut self,
        token: u32,
        is_end: bool,
        cancel: &CancelHandle,
        on_event: &mut OnEvent<'_>,
    ) -> Option<StopReason> {
        let mut flow = on_event(Event::Token { id: token, index: self.tokens.len() });
        if is_end {
            return Some(StopReason::Eos);
        }
        self.tokens.push(token);
        let chunk = self.stream.push(token);
        self.ends.push(self.ends.last().unwrap_or(&0) + chunk.len());
        let result = self.stop.push(&chunk);
        if self.emit(&result.emit, on_event) == Flow::Stop {
            flow = Flow::Stop;
        }
        if result.hit {
            return Some(StopReason::StopString);
        }
        interruption(cancel, flow)
    }

    /// The reply ends with `reason`: release what was held back. It may turn out to complete a stop string.
    pub fn finish(&mut self, reason: StopReason, on_event: &mut OnEvent<'_>) -> StopReason {
        let tail = self.stream.finish();
        let result = self.stop.push(&tail);
        self.emit(&result.emit, on_event);
        if result.hit {
            return StopReason::StopString;
        }
        let held = self.stop.finish();
        self.emit(&held, on_event);
        reason
    }

    fn emit(&mut self, text: &str, on_event: &mut OnEvent<'_>) -> Flow {
        if text.is_empty() {
            return Flow::Continue;
        }
        self.text.push_str(text);
        on_event(Event::Text(text))
    }

    /// What the history keeps: for a reply that ended at a stop string only the tokens in front of it, if it begins
    /// where a token does.
    pub fn reply(&self, reason: StopReason) -> Reply {
        let text = self.text.clone();
        let tokens = match reason {
            StopReason::StopString if text.is_empty() => Some(Vec::new()),
            StopReason::StopString => {
                let last = self.ends.iter().position(|&end| end == text.len());
                last.and_then(|last| self.tokens.get(..=last)).map(<[u32]>::to_vec)
            }
            _ => Some(self.tokens.clone()),
        };
        Reply { text, tokens }
    }

    pub fn into_result(self, stop_reason: StopReason) -> TurnResult {
        let options = self.sampler.options();
        let seed = (!options.is_greedy()).then(|| self.sampler.seed());
        TurnResult { text: self.text, tokens: self.tokens, stop_reason, seed, stats: self.stats }
    }
}

/// Whether somebody wants the run to end, and who: a cancel goes before the callback.
pub(super) fn interruption(cancel: &CancelHandle, flow: Flow) -> Option<StopReason> {
    if cancel.is_cancelled() {
        return Some(StopReason::Cancelled);
    }
    (flow == Flow::Stop).then_some(StopReason::Callback)
}
