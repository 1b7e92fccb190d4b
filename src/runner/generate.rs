//! One run: from new messages to a finished reply.

use super::conversation::Turn;
use super::event::{Event, Flow, StopReason, TurnResult};
use super::media::Draft;
use super::options::GenerateOptions;
use super::reply::{Writer, interruption};
use super::sequence::Sequence;
use super::session::{Runner, of_new_messages};
use super::stats::{Moments, TurnStats};
use crate::chat::{EncodeOptions, Message};
use crate::error::{Error, Result};
use crate::media::Embedding;
use std::sync::Arc;

/// The caller's callback.
pub(super) type OnEvent<'a> = dyn FnMut(Event<'_>) -> Flow + 'a;

/// Readings of the runner's clock, in milliseconds.
struct Timing {
    started: f64,
    engine_before: f64,
    /// The prompt was processed.
    prompt_end: f64,
    /// The first token was sampled.
    first_token: Option<f64>,
}

impl Runner {
    /// Answer `messages`, which follow the history: at least one; the template decides which roles may follow.
    ///
    /// The callback gets the text as it comes and exactly one [`Event::Finished`]. A reply that ends by a cancel, by
    /// the callback or by a limit after its first token joins the history as far as it came, so that the next turn
    /// goes on sensibly; one that ends before its first token leaves no trace but a warm KV cache.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], [`Error::ContextFull`] (history, prompt
    /// and one new token do not fit), and whatever the template raises: nothing has run, the conversation is
    /// unchanged. A failed engine call poisons the runner: only [`reset`](Self::reset) is of use then.
    pub fn generate(
        &mut self,
        messages: &[Message],
        options: &GenerateOptions,
        on_event: &mut OnEvent<'_>,
    ) -> Result<TurnResult> {
        let outcome = self.run(messages, options, on_event);
        self.cancel.clear();
        // The run is over, there is nothing left to stop.
        let _: Flow = on_event(Event::Finished(outcome.as_ref()));
        outcome
    }

    fn run(
        &mut self,
        messages: &[Message],
        options: &GenerateOptions,
        on_event: &mut OnEvent<'_>,
    ) -> Result<TurnResult> {
        let mut timing = Timing::start(self);
        self.decoder.check_usable()?;
        options.validate()?;
        self.check_sampling(&options.sampling)?;
        if messages.is_empty() {
            return Err(Error::invalid("there are no messages to answer"));
        }
        let mut writer = Writer::new(self.tokenizer(), options)?;
        let draft = self.draft(messages)?;
        self.check_fits(&draft)?;
        writer.stats.prompt_tokens = draft.prompt.ids.len();
        writer.stats.images = draft.media.len();
        writer.stats.encode_ms = self.clock.ms() - timing.started;
        let reason = match echo(messages, options, on_event) {
            Flow::Continue => self.answer(messages, draft, &mut writer, options, &mut timing, on_event)?,
            Flow::Stop => StopReason::Callback,
        };
        timing.fill(self, &mut writer.stats);
        self.stats.add(&writer.stats);
        Ok(writer.into_result(reason))
    }

    /// Encode pictures and sound, read the prompt, write the reply and remember both.
    fn answer(
        &mut self,
        messages: &[Message],
        draft: Draft,
        writer: &mut Writer,
        options: &GenerateOptions,
        timing: &mut Timing,
        on_event: &mut OnEvent<'_>,
    ) -> Result<StopReason> {
        let embeddings = match self.see(&draft, &mut writer.stats, on_event)? {
            Ok(embeddings) => embeddings,
            Err(reason) => return Ok(reason),
        };
        let mut tokens = draft.with_rows(&embeddings);
        if let Some(reason) = self.read_prompt(&tokens, &mut writer.stats, timing, on_event)? {
            return Ok(reason);
        }
        let prompt_length = tokens.len();
        let reason = self.write_reply(&mut tokens, writer, options, timing, on_event)?;
        let messages = Self::with_rows(messages, of_new_messages(messages, &embeddings));
        self.remember(messages, writer, reason, tokens, prompt_length)?;
        Ok(reason)
    }

    /// The rows of the prompt's pictures and sounds, or why encoding them was cut short.
    fn see(
        &mut self,
        draft: &Draft,
        stats: &mut TurnStats,
        on_event: &mut OnEvent<'_>,
    ) -> Result<std::result::Result<Vec<Arc<Embedding>>, StopReason>> {
        let cancel = self.cancel.clone();
        let mut stopped = None;
        let seen = self.look_at(&draft.media, &mut |done, total| {
            stopped = interruption(&cancel, on_event(Event::Images { done, total }));
            if stopped.is_some() { Flow::Stop } else { Flow::Continue }
        })?;
        let Some((embeddings, seen)) = seen else {
            return Ok(Err(stopped.unwrap_or(StopReason::Callback)));
        };
        stats.encoded_images = seen.encoded;
        (stats.image_preprocess_ms, stats.image_encode_ms) = (seen.preprocess_ms, seen.encoder_ms);
        Ok(Ok(embeddings))
    }

    /// Bring the prompt into the KV cache. Gives a reason if that was cut short.
    fn read_prompt(
        &mut self,
        prompt: &Sequence,
        stats: &mut TurnStats,
        timing: &mut Timing,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Option<StopReason>> {
        let cancel = self.cancel.clone();
        if cancel.is_cancelled() {
            return Ok(Some(StopReason::Cancelled));
        }
        let before = self.clock.ms();
        let mut stopped = None;
        let fed = self.feed_to(prompt, &mut |done, total| {
            stopped = interruption(&cancel, on_event(Event::Prefill { done, total }));
            if stopped.is_some() { Flow::Stop } else { Flow::Continue }
        })?;
        timing.prompt_end = self.clock.ms();
        stats.prefill_ms = timing.prompt_end - before;
        (stats.reused_tokens, stats.prefilled_tokens) = (fed.reused, fed.prefilled);
        Ok(stopped)
    }

    /// Sample and decode until something ends the reply. `tokens` is the prompt and grows by every sampled token.
    fn write_reply(
        &mut self,
        tokens: &mut Sequence,
        writer: &mut Writer,
        options: &GenerateOptions,
        timing: &mut Timing,
        on_event: &mut OnEvent<'_>,
    ) -> Result<StopReason> {
        loop {
            let token = self.sample_next(tokens.ids(), writer)?;
            tokens.push(token);
            timing.first_token.get_or_insert(self.clock.ms());
            let is_end = !options.ignore_eos && self.eos_ids.binary_search(&token).is_ok();
            let written = writer.write(token, is_end, &self.cancel, on_event);
            let limit = || {
                let full = tokens.len() >= self.context_capacity() && !self.decoder.is_unbounded();
                let spent = options.max_new_tokens.is_some_and(|most| writer.len() >= most);
                if spent { Some(StopReason::Length) } else { full.then_some(StopReason::ContextFull) }
            };
            if let Some(reason) = written.or_else(limit) {
                return Ok(writer.finish(reason, on_event));
            }
            // This token's slot is filled only now: the last one of a reply waits for the next turn.
            self.decoder.decode(token)?;
        }
    }

    fn sample_next(&mut self, tokens: &[u32], writer: &mut Writer) -> Result<u32> {
        let before = self.clock.ms();
        let logits = self.decoder.logits().ok_or_else(|| Error::internal("no logits after a successful step"))?;
        let token = writer.sampler.sample(logits, tokens)?;
        writer.stats.sampling_ms += self.clock.ms() - before;
        writer.stats.generated_tokens += 1;
        Ok(token)
    }

    /// Add the turn to the history. `tokens` is the prompt and everything sampled.
    fn remember(
        &mut self,
        messages: Vec<Message>,
        writer: &Writer,
        reason: StopReason,
        mut tokens: Sequence,
        prompt_length: usize,
    ) -> Result<()> {
        let reply = writer.reply(reason);
        if reason == StopReason::StopString {
            // The stop string was not shown, so it is not part of the conversation either.
            tokens.truncate(prompt_length);
            match &reply.tokens {
                Some(kept) => tokens.extend_ids(kept),
                None => tokens.extend_ids(&self.tokenizer().encode(&reply.text, EncodeOptions::default())?),
            }
        }
        self.conversation.push(Turn { messages, reply, tokens });
        Ok(())
    }
}

fn echo(messages: &[Message], options: &GenerateOptions, on_event: &mut OnEvent<'_>) -> Flow {
    if !options.echo {
        return Flow::Continue;
    }
    let texts: Vec<String> = messages.iter().map(Message::joined_text).collect();
    on_event(Event::Prompt(&texts.join("\n")))
}

impl Timing {
    fn start(runner: &Runner) -> Self {
        let started = runner.clock.ms();
        Self { started, engine_before: runner.decoder.engine_ms(), prompt_end: started, first_token: None }
    }

    /// The run ends now: fill in every time that is measured from its beginning or to its end.
    fn fill(&self, runner: &Runner, stats: &mut TurnStats) {
        let end = runner.clock.ms();
        let first_token = self.first_token.unwrap_or(end);
        stats.first_token_ms = self.first_token.map_or(0.0, |first| first - self.started);
        stats.decode_ms = end - first_token;
        stats.total_ms = end - self.started;
        stats.engine_ms = runner.decoder.engine_ms() - self.engine_before;
        let epoch = |ms| runner.clock.epoch_ms(ms);
        stats.moments = Moments {
            model_load_start_ms: epoch(0.0),
            model_load_end_ms: epoch(runner.loaded_ms),
            inference_start_ms: epoch(self.started),
            prompt_eval_end_ms: epoch(self.first_token.unwrap_or(self.prompt_end)),
            inference_end_ms: epoch(end),
        };
    }
}
