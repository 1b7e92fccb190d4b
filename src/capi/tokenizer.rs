//! `etg_tokenizer`: text to token ids and back.

use super::buffer::{self, etg_buffer};
use super::guard::guard;
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::status::ETG_OK;
use crate::artefact::Artefact;
use crate::chat::{EncodeOptions, Tokenizer, TokenizerFile};
use crate::{Error, Result};
use std::ffi::c_char;
use std::path::Path;
use std::ptr;

/// The tokenizer of a compiled model. It never changes, so any number of threads may use it at once.
pub struct etg_tokenizer {
    tokenizer: Tokenizer,
}

impl Handle for etg_tokenizer {
    const NAME: &'static str = "etg_tokenizer";
}

/// A handle for the caller that shares `tokenizer`.
pub(super) fn issue(tokenizer: Tokenizer) -> *mut etg_tokenizer {
    handle::issue(etg_tokenizer { tokenizer })
}

/// The tokenizer behind a handle (a cheap clone).
pub(super) fn read(tokenizer: *const etg_tokenizer) -> Result<Tokenizer> {
    Ok(handle::get(tokenizer)?.tokenizer.clone())
}

/// The tokenizer of a compiled model or in a file, with the control tokens that its template writes.
fn open(path: &Path) -> Result<Tokenizer> {
    let (tokenizer, template) = if path.is_file() {
        let file = TokenizerFile::open(path)?;
        (file.tokenizer, file.chat_template)
    } else {
        let artefact = Artefact::open(path)?;
        let special = &artefact.manifest().special_tokens;
        (Tokenizer::from_bytes(&artefact.tokenizer_json()?, special)?, artefact.chat_template()?)
    };
    match template {
        Some(template) => tokenizer.with_template(&template),
        None => Ok(tokenizer),
    }
}

/// Open the tokenizer of a compiled model folder, without its weights; or a tokenizer file: `tokenizer.json`, tiktoken's or
/// SentencePiece's `tokenizer.model`, llama2.c's `tokenizer.bin`. What lies beside a file says which tokens are special.
///
/// - Threads: any.
/// - Owns: `*tokenizer_out` is the caller's; free it with `etg_tokenizer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, path not UTF-8), `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`,
///   `ETG_ERROR_FORMAT` (manifest or tokenizer malformed), `ETG_ERROR_UNSUPPORTED` (a kind of tokenizer we do not have).
/// - After a failure: nothing was opened, `*tokenizer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_tokenizer_open(
    path: *const c_char,
    path_length: usize,
    tokenizer_out: *mut *mut etg_tokenizer,
) -> i32 {
    guard("etg_tokenizer_open", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(tokenizer_out, ptr::null_mut(), "tokenizer_out") }?;
        // SAFETY: text of the caller.
        let path = unsafe { input::path(path, path_length, "path") }?;
        out.set(issue(open(&path)?));
        Ok(ETG_OK)
    })
}

/// Free a tokenizer handle. NULL is allowed and does nothing.
///
/// - Threads: any; calls that are using it, detokenizers and runners keep what they need.
/// - Owns: takes the handle back.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live tokenizer: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_tokenizer_free(tokenizer: *mut etg_tokenizer) -> i32 {
    guard("etg_tokenizer_free", || handle::free(tokenizer).map(|()| ETG_OK))
}

/// Token ids of a text. `add_bos` 1 puts the begin-of-text token in front if this model uses one for plain text.
/// `parse_special` 1 turns the text of control tokens into control tokens: leave it 0 for any text from outside.
///
/// - Threads: any, several at once.
/// - Owns: `*buffer_out` (ids) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, a flag neither 0 nor 1), `ETG_ERROR_FORMAT` (the
///   tokenizer's own rules fail on this text).
/// - After a failure: the tokenizer is unchanged, `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_tokenizer_encode(
    tokenizer: *const etg_tokenizer,
    text: *const c_char,
    text_length: usize,
    add_bos: i32,
    parse_special: i32,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    guard("etg_tokenizer_encode", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { buffer::out(buffer_out) }?;
        // SAFETY: text of the caller.
        let text = unsafe { input::text(text, text_length, "text") }?;
        let options = EncodeOptions {
            add_bos: input::flag(add_bos, "add_bos")?,
            parse_special: input::flag(parse_special, "parse_special")?,
        };
        out.set(buffer::ids(handle::get(tokenizer)?.tokenizer.encode(text, options)?));
        Ok(ETG_OK)
    })
}

/// Text of token ids. `skip_special` 1 leaves out special tokens. Ids outside of the vocabulary give nothing; bytes
/// that are not UTF-8 give U+FFFD. For ids that come one at a time, use an `etg_detokenizer`.
///
/// - Threads: any, several at once.
/// - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a flag neither 0 nor 1).
/// - After a failure: the tokenizer is unchanged, `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_tokenizer_decode(
    tokenizer: *const etg_tokenizer,
    ids: *const u32,
    id_count: usize,
    skip_special: i32,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    guard("etg_tokenizer_decode", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { buffer::out(buffer_out) }?;
        // SAFETY: ids of the caller.
        let ids = unsafe { input::values(ids, id_count, "ids") }?;
        let skip_special = input::flag(skip_special, "skip_special")?;
        out.set(buffer::text(handle::get(tokenizer)?.tokenizer.decode(ids, skip_special)));
        Ok(ETG_OK)
    })
}

/// The bytes that one token adds to a text. They may begin or end within a character, and may hold NUL.
///
/// - Threads: any, several at once.
/// - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_NOT_FOUND` (no token has this id).
/// - After a failure: the tokenizer is unchanged, `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_tokenizer_token_bytes(
    tokenizer: *const etg_tokenizer,
    id: u32,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    guard("etg_tokenizer_token_bytes", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { buffer::out(buffer_out) }?;
        let tokenizer = handle::get(tokenizer)?;
        if tokenizer.tokenizer.token_text(id).is_none() {
            let entries = tokenizer.tokenizer.vocab_size();
            return Err(Error::NotFound(format!("no token has id {id}; the vocabulary has {entries} entries")));
        }
        out.set(buffer::text(tokenizer.tokenizer.token_bytes(id)));
        Ok(ETG_OK)
    })
}

/// The id of a token, spelled as tokenizer.json spells it, e.g. "<|im_end|>".
///
/// - Threads: any, several at once.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8), `ETG_ERROR_NOT_FOUND` (no such token).
/// - After a failure: the tokenizer is unchanged, `*id_out` is 0 if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_tokenizer_token_id(
    tokenizer: *const etg_tokenizer,
    text: *const c_char,
    text_length: usize,
    id_out: *mut u32,
) -> i32 {
    guard("etg_tokenizer_token_id", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(id_out, 0, "id_out") }?;
        // SAFETY: text of the caller.
        let text = unsafe { input::text(text, text_length, "text") }?;
        let id = handle::get(tokenizer)?.tokenizer.token_id(text);
        out.set(id.ok_or_else(|| Error::NotFound(format!("the vocabulary has no token {text:?}")))?);
        Ok(ETG_OK)
    })
}

/// Whether a token structures the conversation (1) or is text (0).
///
/// - Threads: any, several at once.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the tokenizer is unchanged, `*control_out` is 0 if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_tokenizer_is_control(
    tokenizer: *const etg_tokenizer,
    id: u32,
    control_out: *mut i32,
) -> i32 {
    guard("etg_tokenizer_is_control", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(control_out, 0, "control_out") }?;
        out.set(i32::from(handle::get(tokenizer)?.tokenizer.is_control(id)));
        Ok(ETG_OK)
    })
}

/// The ids that end a reply, sorted: the union of what every file of the checkpoint says.
///
/// - Threads: any, several at once.
/// - Owns: `*buffer_out` (ids) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the tokenizer is unchanged, `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_tokenizer_eos_ids(
    tokenizer: *const etg_tokenizer,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    guard("etg_tokenizer_eos_ids", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { buffer::out(buffer_out) }?;
        out.set(buffer::ids(handle::get(tokenizer)?.tokenizer.eos_ids().to_vec()));
        Ok(ETG_OK)
    })
}

/// Number of vocabulary entries, added tokens included.
///
/// - Threads: any, several at once.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the tokenizer is unchanged, `*size_out` is 0 if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_tokenizer_vocab_size(tokenizer: *const etg_tokenizer, size_out: *mut usize) -> i32 {
    guard("etg_tokenizer_vocab_size", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(size_out, 0, "size_out") }?;
        out.set(handle::get(tokenizer)?.tokenizer.vocab_size());
        Ok(ETG_OK)
    })
}
