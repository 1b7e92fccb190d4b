//! `etg_preparation_options`: how a checkpoint is prepared for quantization.

use super::guard::guard;
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::json_fields::{self, Field};
use super::status::ETG_OK;
use crate::pipeline::PreparationOptions;
use crate::pipeline::preparation::DEFAULT_MAX_SEQ_LEN;
use crate::quantize::ModelMode;
use crate::{Error, Result};
use parking_lot::Mutex;
use std::ffi::c_char;
use std::ptr;

/// Deployed graphs: kv_forward alone, prompts go in token by token.
pub const ETG_MODE_KV: i32 = 0;
/// Deployed graphs: kv_forward and prefill_forward.
pub const ETG_MODE_HYBRID: i32 = 1;
/// Deployed graphs: as hybrid; kv_forward takes the guesses of lookahead decoding at once.
pub const ETG_MODE_LOOKAHEAD: i32 = 2;

/// A choice that is left to the model's entry in the registry.
pub const ETG_AS_MODEL: i32 = -1;

/// How a checkpoint is prepared: context, deployed graphs, form of the decoder.
pub struct etg_preparation_options {
    options: Mutex<PreparationOptions>,
}

impl Handle for etg_preparation_options {
    const NAME: &'static str = "etg_preparation_options";
}

/// What `options` say now; NULL is the defaults.
pub(super) fn read(options: *const etg_preparation_options) -> Result<PreparationOptions> {
    if options.is_null() {
        return Ok(PreparationOptions::default());
    }
    let options = handle::get(options)?;
    let options = options.options.lock();
    Ok(options.clone())
}

/// Change `options` with `change`, all or nothing.
fn update(
    function: &'static str,
    options: *mut etg_preparation_options,
    change: impl FnOnce(&mut PreparationOptions) -> Result<()>,
) -> i32 {
    guard(function, || {
        let options = handle::get(options)?;
        let mut options = options.options.lock();
        let mut changed = options.clone();
        change(&mut changed)?;
        *options = changed;
        Ok(ETG_OK)
    })
}

/// A size, where 0 is the default.
fn size_or(size: usize, default: usize) -> usize {
    if size == 0 { default } else { size }
}

/// Yes, no, or as the model's entry in the registry says.
fn choice_of(number: i32, what: &str) -> Result<Option<bool>> {
    if number == ETG_AS_MODEL { Ok(None) } else { input::flag(number, what).map(Some) }
}

/// Keys of the JSON setter.
const KEYS: [&str; 7] = ["model", "max_context", "prefill_ar", "mode", "lookahead", "r3", "masked_softmax"];

fn set_field(options: &mut PreparationOptions, field: &Field<'_>) -> Result<bool> {
    let defaults = PreparationOptions::default;
    match field.key() {
        "model" => options.model = field.or_null(Field::text)?.map(str::to_owned),
        "max_context" => options.max_context = size_or(field.or_null(Field::count)?.unwrap_or(0), DEFAULT_MAX_SEQ_LEN),
        "prefill_ar" => {
            options.prefill_ar = size_or(field.or_null(Field::count)?.unwrap_or(0), defaults().prefill_ar);
        }
        "mode" => {
            let mode = |field: &Field<'_>| field.parsed().ok_or_else(|| field.wanted("one of kv, hybrid, lookahead"));
            options.mode = field.or_null(mode)?.unwrap_or_default();
        }
        "lookahead" => {
            let sizes = |field: &Field<'_>| {
                field.parsed().ok_or_else(|| field.wanted("a list of three sizes: ngram, window, gcap"))
            };
            options.lookahead = field.or_null(sizes)?.unwrap_or_else(|| defaults().lookahead);
        }
        "r3" => options.r3 = field.or_null(Field::flag)?,
        "masked_softmax" => options.masked_softmax = field.or_null(Field::flag)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Make options with the default values: a context of 512 tokens, prefill blocks of 32, hybrid, the rest as the model's entry in
/// the registry says.
///
/// - Threads: any.
/// - Owns: `*options_out` is the caller's; free it with `etg_preparation_options_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
/// - After a failure: nothing was made, `*options_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_preparation_options_create(options_out: *mut *mut etg_preparation_options) -> i32 {
    guard("etg_preparation_options_create", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(options_out, ptr::null_mut(), "options_out") }?;
        out.set(handle::issue(etg_preparation_options { options: Mutex::default() }));
        Ok(ETG_OK)
    })
}

/// Free options. NULL is allowed and does nothing.
///
/// - Threads: any; models prepared with them are not touched.
/// - Owns: takes the options back.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live options: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_preparation_options_free(options: *mut etg_preparation_options) -> i32 {
    guard("etg_preparation_options_free", || handle::free(options).map(|()| ETG_OK))
}

/// Registry name that the checkpoint must be, e.g. "smollm2_135m"; it decides about recipe, R3 and masked softmax. The empty text,
/// the default, takes the checkpoint as it is.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not UTF-8).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_preparation_options_set_model(
    options: *mut etg_preparation_options,
    text: *const c_char,
    length: usize,
) -> i32 {
    update("etg_preparation_options_set_model", options, |options| {
        // SAFETY: text of the caller.
        let text = unsafe { input::text(text, length, "model") }?;
        options.model = (!text.is_empty()).then(|| text.to_owned());
        Ok(())
    })
}

/// Token slots of the deployed model: history, prompt and reply together; 0, the default, is 512.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_preparation_options_set_max_context(options: *mut etg_preparation_options, tokens: usize) -> i32 {
    update("etg_preparation_options_set_max_context", options, |options| {
        options.max_context = size_or(tokens, DEFAULT_MAX_SEQ_LEN);
        Ok(())
    })
}

/// Tokens that a prefill block processes at once; 0, the default, is 32.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_preparation_options_set_prefill_ar(options: *mut etg_preparation_options, tokens: usize) -> i32 {
    update("etg_preparation_options_set_prefill_ar", options, |options| {
        options.prefill_ar = size_or(tokens, PreparationOptions::default().prefill_ar);
        Ok(())
    })
}

/// Which decoder graphs are deployed, an `ETG_MODE_` constant; `ETG_MODE_HYBRID` is the default.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_preparation_options_set_mode(options: *mut etg_preparation_options, mode: i32) -> i32 {
    update("etg_preparation_options_set_mode", options, |options| {
        options.mode = match mode {
            ETG_MODE_KV => ModelMode::Kv,
            ETG_MODE_HYBRID => ModelMode::Hybrid,
            ETG_MODE_LOOKAHEAD => ModelMode::Lookahead,
            other => {
                return Err(Error::invalid(format!("mode is {other}, but must be an ETG_MODE_ constant (0 to 2)")));
            }
        };
        Ok(())
    })
}

/// Sizes of lookahead decoding, for `ETG_MODE_LOOKAHEAD`: n-gram size (at least 2), window and verification width (at least 1).
/// The default is 5, 8, 8. They are checked when a model is prepared.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_preparation_options_set_lookahead(
    options: *mut etg_preparation_options,
    ngram: usize,
    window: usize,
    gcap: usize,
) -> i32 {
    update("etg_preparation_options_set_lookahead", options, |options| {
        options.lookahead = [ngram, window, gcap];
        Ok(())
    })
}

/// Whether queries and keys are turned by R3 (a Hadamard matrix): 0, 1, or `ETG_AS_MODEL`, the default.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or another number).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_preparation_options_set_r3(options: *mut etg_preparation_options, choice: i32) -> i32 {
    update("etg_preparation_options_set_r3", options, |options| {
        options.r3 = choice_of(choice, "r3")?;
        Ok(())
    })
}

/// Whether attention has the masked-softmax form: 0, 1, or `ETG_AS_MODEL`, the default.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or another number).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_preparation_options_set_masked_softmax(
    options: *mut etg_preparation_options,
    choice: i32,
) -> i32 {
    update("etg_preparation_options_set_masked_softmax", options, |options| {
        options.masked_softmax = choice_of(choice, "masked_softmax")?;
        Ok(())
    })
}

/// Set any of the options from one JSON object, e.g. `{"model": "smollm2_135m", "max_context": 1024}`. Keys: model, max_context,
/// prefill_ar, mode (kv, hybrid or lookahead), lookahead (a list: ngram, window, gcap), r3, masked_softmax; null takes the default.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
///   key), `ETG_ERROR_FORMAT` (not a JSON object).
/// - After a failure: the options are unchanged, also by the keys that were right.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_preparation_options_set_json(
    options: *mut etg_preparation_options,
    json: *const c_char,
    length: usize,
) -> i32 {
    update("etg_preparation_options_set_json", options, |options| {
        // SAFETY: text of the caller.
        let json = unsafe { input::text(json, length, "json") }?;
        json_fields::for_each(etg_preparation_options::NAME, json, &KEYS, |field| set_field(options, field))
    })
}
