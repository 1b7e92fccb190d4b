//! `etg_detokenizer`: text of token ids that come one at a time.

use super::guard::guard;
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::status::ETG_OK;
use super::tokenizer::{self, etg_tokenizer};
use crate::Result;
use crate::chat::DetokenizeStream;
use parking_lot::Mutex;
use std::ffi::c_char;
use std::ptr;

/// Turns token ids that come one at a time into text that comes in whole UTF-8 characters.
pub struct etg_detokenizer {
    state: Mutex<State>,
}

struct State {
    stream: DetokenizeStream,
    /// What the last call gave, with a NUL behind it: the caller borrows it.
    text: Vec<u8>,
}

impl Handle for etg_detokenizer {
    const NAME: &'static str = "etg_detokenizer";
}

/// Run one step of the stream and lend its text to the caller.
///
/// # Safety
/// `text_out` and `length_out` are out-parameters of the caller.
unsafe fn step(
    detokenizer: *mut etg_detokenizer,
    text_out: *mut *const c_char,
    length_out: *mut usize,
    step: impl FnOnce(&mut DetokenizeStream) -> String,
) -> Result<i32> {
    // SAFETY: this function's contract.
    let mut text = unsafe { Out::new(text_out, ptr::null(), "text_out") }?;
    // SAFETY: as above.
    let mut length = unsafe { Out::new(length_out, 0, "length_out") }?;
    let detokenizer = handle::get(detokenizer)?;
    let mut state = detokenizer.state.lock();
    let piece = step(&mut state.stream);
    length.set(piece.len());
    state.text = piece.into_bytes();
    state.text.push(0);
    text.set(state.text.as_ptr().cast());
    Ok(ETG_OK)
}

/// Make a detokenizer. `skip_special` 1 leaves out special tokens.
///
/// - Threads: any.
/// - Owns: `*detokenizer_out` is the caller's; free it with `etg_detokenizer_free`. The tokenizer may be freed first.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a flag neither 0 nor 1).
/// - After a failure: nothing was made, `*detokenizer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_detokenizer_create(
    tokenizer: *const etg_tokenizer,
    skip_special: i32,
    detokenizer_out: *mut *mut etg_detokenizer,
) -> i32 {
    guard("etg_detokenizer_create", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(detokenizer_out, ptr::null_mut(), "detokenizer_out") }?;
        let skip_special = input::flag(skip_special, "skip_special")?;
        let stream = tokenizer::read(tokenizer)?.stream(skip_special);
        out.set(handle::issue(etg_detokenizer { state: Mutex::new(State { stream, text: Vec::new() }) }));
        Ok(ETG_OK)
    })
}

/// Free a detokenizer. NULL is allowed and does nothing.
///
/// - Threads: any, when no other thread reads text borrowed from it any more.
/// - Owns: takes the detokenizer back; what was borrowed from it is gone.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live detokenizer: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_detokenizer_free(detokenizer: *mut etg_detokenizer) -> i32 {
    guard("etg_detokenizer_free", || handle::free(detokenizer).map(|()| ETG_OK))
}

/// Take the next token and give the characters it completes, often none (length 0). Ids outside of the vocabulary
/// give nothing.
///
/// - Threads: one at a time per detokenizer.
/// - Owns: `*text_out` is borrowed until the next call on this detokenizer; a NUL follows the text.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the detokenizer is unchanged, `*text_out` is NULL and `*length_out` 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_detokenizer_push(
    detokenizer: *mut etg_detokenizer,
    id: u32,
    text_out: *mut *const c_char,
    length_out: *mut usize,
) -> i32 {
    guard("etg_detokenizer_push", || {
        // SAFETY: out-parameters of the caller.
        unsafe { step(detokenizer, text_out, length_out, |stream| stream.push(id)) }
    })
}

/// The text ends here: give what was held back (an incomplete character becomes U+FFFD). The detokenizer is then ready
/// for another text.
///
/// - Threads: one at a time per detokenizer.
/// - Owns: `*text_out` is borrowed until the next call on this detokenizer; a NUL follows the text.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the detokenizer is unchanged, `*text_out` is NULL and `*length_out` 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_detokenizer_finish(
    detokenizer: *mut etg_detokenizer,
    text_out: *mut *const c_char,
    length_out: *mut usize,
) -> i32 {
    guard("etg_detokenizer_finish", || {
        // SAFETY: out-parameters of the caller.
        unsafe { step(detokenizer, text_out, length_out, DetokenizeStream::finish) }
    })
}
