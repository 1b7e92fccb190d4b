//! The single steps that `etg_runner_generate` is made of, for programs that adopt one piece at a time.
//!
//! A turn by hand: encode the new messages, prefill the prompt, then sample and decode until an end-of-sequence token,
//! and commit the turn. With the same options it gives the same tokens as `generate`.

use super::buffer::{self, etg_buffer};
use super::generate_options::{self, etg_generate_options};
use super::input::{self, Out};
use super::messages::{self, etg_messages};
use super::runner::{etg_runner, with_runner};
use super::status::ETG_OK;
use super::tokenizer::{self, etg_tokenizer};
use crate::Error;
use std::ptr;

/// The tokenizer of a runner.
///
/// - Threads: one call at a time per runner.
/// - Owns: `*tokenizer_out` is the caller's; free it with `etg_tokenizer_free`. It may outlive the runner.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
/// - After a failure: the runner is unchanged, `*tokenizer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_tokenizer(runner: *mut etg_runner, tokenizer_out: *mut *mut etg_tokenizer) -> i32 {
    with_runner("etg_runner_tokenizer", runner, |_, runner| {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(tokenizer_out, ptr::null_mut(), "tokenizer_out") }?;
        out.set(tokenizer::issue(runner.tokenizer().clone()));
        Ok(ETG_OK)
    })
}

/// Options as the checkpoint recommends them, to change and pass on. This is what NULL options mean.
///
/// - Threads: one call at a time per runner.
/// - Owns: `*options_out` is the caller's; free it with `etg_generate_options_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
/// - After a failure: the runner is unchanged, `*options_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_default_options(
    runner: *mut etg_runner,
    options_out: *mut *mut etg_generate_options,
) -> i32 {
    with_runner("etg_runner_default_options", runner, |_, runner| {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(options_out, ptr::null_mut(), "options_out") }?;
        out.set(generate_options::issue(runner.default_options()));
        Ok(ETG_OK)
    })
}

/// The text that a run with these new messages would process: the whole history and the opening of the next reply, as
/// the chat template writes them.
///
/// - Threads: one call at a time per runner.
/// - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT`, `ETG_ERROR_INVALID_STATE` (no chat template), `ETG_ERROR_FORMAT` (the template
///   fails), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
/// - After a failure: the runner is unchanged, `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_render(
    runner: *mut etg_runner,
    messages: *const etg_messages,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    with_runner("etg_runner_render", runner, |_, runner| {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { buffer::out(buffer_out) }?;
        out.set(buffer::text(runner.render(&messages::read(messages)?)?));
        Ok(ETG_OK)
    })
}

/// The tokens that a run with these new messages would process, history included. What a user typed never becomes a
/// control token, and replies of the history are the tokens that were sampled. A picture has one picture token for each
/// of its rows; nothing is encoded for this.
///
/// - Threads: one call at a time per runner.
/// - Owns: `*buffer_out` (ids) is the caller's; free it with `etg_buffer_free`.
/// - Codes: as `etg_runner_render`.
/// - After a failure: the runner is unchanged, `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_encode_prompt(
    runner: *mut etg_runner,
    messages: *const etg_messages,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    with_runner("etg_runner_encode_prompt", runner, |_, runner| {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { buffer::out(buffer_out) }?;
        out.set(buffer::ids(runner.encode(&messages::read(messages)?)?));
        Ok(ETG_OK)
    })
}

/// The tokens of the history, the last sampled one included.
///
/// - Threads: one call at a time per runner.
/// - Owns: `*buffer_out` (ids) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
/// - After a failure: the runner is unchanged, `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_history_tokens(runner: *mut etg_runner, buffer_out: *mut *mut etg_buffer) -> i32 {
    with_runner("etg_runner_history_tokens", runner, |_, runner| {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { buffer::out(buffer_out) }?;
        out.set(buffer::ids(runner.history_tokens().to_vec()));
        Ok(ETG_OK)
    })
}

/// Append tokens to the history and process them; afterwards `etg_runner_logits` gives those of the last one. At least
/// one token.
///
/// - Threads: one call at a time per runner. A cancel is noticed between blocks.
/// - Owns: the ids are copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, no tokens, an id outside of the vocabulary),
///   `ETG_ERROR_CONTEXT_FULL`, `ETG_ERROR_CANCELLED`, `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`, `ETG_ERROR_ENGINE`,
///   `ETG_ERROR_INTERNAL`.
/// - After a failure: the history is unchanged; after `ETG_ERROR_ENGINE` and `ETG_ERROR_INTERNAL` the runner is
///   poisoned and needs `etg_runner_reset`.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_prefill(runner: *mut etg_runner, ids: *const u32, id_count: usize) -> i32 {
    with_runner("etg_runner_prefill", runner, |_, runner| {
        // SAFETY: ids of the caller.
        let ids = unsafe { input::values(ids, id_count, "ids") }?;
        runner.prefill(ids).map(|()| ETG_OK)
    })
}

/// Make the history exactly this prompt, as `etg_runner_encode_prompt` gives it, and process what the KV cache does not
/// have yet; afterwards `etg_runner_logits` gives the logits of the last token.
///
/// - Threads: one call at a time per runner. A cancel is noticed between blocks.
/// - Owns: the ids are copied.
/// - Codes: as `etg_runner_prefill`.
/// - After a failure: as `etg_runner_prefill`.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_prefill_prompt(runner: *mut etg_runner, ids: *const u32, id_count: usize) -> i32 {
    with_runner("etg_runner_prefill_prompt", runner, |_, runner| {
        // SAFETY: ids of the caller.
        let ids = unsafe { input::values(ids, id_count, "ids") }?;
        runner.prefill_prompt(ids).map(|()| ETG_OK)
    })
}

/// Append one token to the history and process it; afterwards `etg_runner_logits` gives its logits.
///
/// - Threads: one call at a time per runner.
/// - Owns: nothing.
/// - Codes: as `etg_runner_prefill`.
/// - After a failure: as `etg_runner_prefill`.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_runner_decode_one(runner: *mut etg_runner, id: u32) -> i32 {
    with_runner("etg_runner_decode_one", runner, |_, runner| runner.decode(id).map(|()| ETG_OK))
}

/// Logits of the newest processed token, one a vocabulary entry.
///
/// - Threads: one call at a time per runner.
/// - Owns: `*logits_out` is borrowed until the next call on this runner that is not a getter.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (nothing was processed since
///   the runner was opened, reset or rewound), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
/// - After a failure: the runner is unchanged, `*logits_out` is NULL and `*count_out` 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_logits(
    runner: *mut etg_runner,
    logits_out: *mut *const f32,
    count_out: *mut usize,
) -> i32 {
    with_runner("etg_runner_logits", runner, |_, runner| {
        // SAFETY: out-parameters of the caller.
        let mut out = unsafe { Out::new(logits_out, ptr::null(), "logits_out") }?;
        // SAFETY: as above.
        let mut count = unsafe { Out::new(count_out, 0, "count_out") }?;
        let missing = || Error::InvalidState("there are no logits: call prefill or decode_one first".into());
        let logits = runner.logits().ok_or_else(missing)?;
        out.set(logits.as_ptr());
        count.set(logits.len());
        Ok(ETG_OK)
    })
}

/// Choose a token from the logits, by the sampling options (temperature, filters, penalty, seed); the other options
/// are not read. NULL options: what the checkpoint recommends. The token is not appended: pass it to
/// `etg_runner_decode_one`. Random numbers start anew with each prefill and when the options change.
///
/// - Threads: one call at a time per runner.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (there are no logits),
///   `ETG_ERROR_ENGINE` (logits that are no numbers), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
/// - After a failure: the history is unchanged, `*id_out` is 0 if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_sample(
    runner: *mut etg_runner,
    options: *const etg_generate_options,
    id_out: *mut u32,
) -> i32 {
    with_runner("etg_runner_sample", runner, |_, runner| {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(id_out, 0, "id_out") }?;
        let options = if options.is_null() { runner.default_options() } else { generate_options::read(options)? };
        out.set(runner.sample(&options.sampling)?);
        Ok(ETG_OK)
    })
}

/// Whether a token ends a reply (1) or not (0).
///
/// - Threads: one call at a time per runner.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
/// - After a failure: the runner is unchanged, `*eos_out` is 0 if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_is_eos(runner: *mut etg_runner, id: u32, eos_out: *mut i32) -> i32 {
    with_runner("etg_runner_is_eos", runner, |_, runner| {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(eos_out, 0, "eos_out") }?;
        out.set(i32::from(runner.eos_ids().contains(&id)));
        Ok(ETG_OK)
    })
}

/// Make a turn that was generated by single steps a part of the conversation: the new messages and the sampled tokens
/// of the reply, without the end-of-sequence token. Later prompts then contain it. Pictures of the messages that are
/// neither embeddings nor in the image cache are encoded.
///
/// - Threads: one call at a time per runner.
/// - Owns: messages and ids are copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or no messages, an id outside of the
///   vocabulary), `ETG_ERROR_INVALID_STATE` (no chat template), `ETG_ERROR_FORMAT` (the template fails),
///   `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
/// - After a failure: the conversation is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_commit_turn(
    runner: *mut etg_runner,
    messages: *const etg_messages,
    reply_ids: *const u32,
    reply_id_count: usize,
) -> i32 {
    with_runner("etg_runner_commit_turn", runner, |_, runner| {
        // SAFETY: ids of the caller.
        let reply = unsafe { input::values(reply_ids, reply_id_count, "reply_ids") }?;
        runner.commit_turn(&messages::read(messages)?, reply).map(|()| ETG_OK)
    })
}
