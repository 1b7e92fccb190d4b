//! A reply to a prompt of token ids, by the runner's single steps.

use super::conversation::epoch_ms;
use etgenai::runner::{GenerateOptions, Moments, Runner, StopReason, TurnResult, TurnStats};
use etgenai::{Error, Result};
use std::time::Instant;

/// Answer the prompt `ids` at the beginning of a conversation. `each` gets every token as it is chosen, the end token
/// included. `loaded`: when loading began and ended.
///
/// # Errors
/// As [`Runner::prefill`]; [`Error::Cancelled`] before the first token.
pub fn generate(
    runner: &mut Runner,
    ids: &[u32],
    options: &GenerateOptions,
    loaded: (u64, u64),
    each: &mut dyn FnMut(u32),
) -> Result<TurnResult> {
    let start = Instant::now();
    let ms = || start.elapsed().as_secs_f64() * 1000.0;
    let engine_before = runner.decoder().engine_ms();
    let mut moments = Moments {
        model_load_start_ms: loaded.0,
        model_load_end_ms: loaded.1,
        inference_start_ms: epoch_ms(),
        ..Moments::default()
    };
    runner.prefill(ids)?;
    let mut stats =
        TurnStats { prompt_tokens: ids.len(), prefilled_tokens: ids.len(), prefill_ms: ms(), ..TurnStats::default() };
    let mut reply = Vec::new();
    let stop_reason = loop {
        let before = ms();
        let token = runner.sample(&options.sampling)?;
        stats.sampling_ms += ms() - before;
        stats.generated_tokens += 1;
        if stats.generated_tokens == 1 {
            stats.first_token_ms = ms();
            moments.prompt_eval_end_ms = epoch_ms();
        }
        each(token);
        if runner.eos_ids().contains(&token) {
            break StopReason::Eos;
        }
        reply.push(token);
        if options.max_new_tokens.is_some_and(|most| reply.len() >= most) {
            break StopReason::Length;
        }
        match runner.decode(token) {
            Ok(()) => {}
            Err(Error::Cancelled) => break StopReason::Cancelled,
            Err(Error::ContextFull { .. }) => break StopReason::ContextFull,
            Err(error) => return Err(error),
        }
    };
    moments.inference_end_ms = epoch_ms();
    stats.total_ms = ms();
    stats.decode_ms = stats.total_ms - stats.first_token_ms;
    stats.engine_ms = runner.decoder().engine_ms() - engine_before;
    stats.moments = moments;
    let text = runner.tokenizer().decode(&reply, true);
    Ok(TurnResult { text, tokens: reply, stop_reason, seed: None, stats })
}
