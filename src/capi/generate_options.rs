//! `etg_generate_options`: how a reply is generated.

use super::guard::guard;
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::json_fields::{self, Field};
use super::status::ETG_OK;
use crate::Result;
use crate::runner::GenerateOptions;
use parking_lot::Mutex;
use std::ffi::c_char;
use std::ptr;

/// How a reply is generated and how tokens are chosen. A new one is greedy, without a limit other than the context.
/// Setters check their value at once and leave the options unchanged when it is refused.
pub struct etg_generate_options {
    options: Mutex<GenerateOptions>,
}

impl Handle for etg_generate_options {
    const NAME: &'static str = "etg_generate_options";
}

/// What `options` say now.
pub(super) fn read(options: *const etg_generate_options) -> Result<GenerateOptions> {
    let options = handle::get(options)?;
    let options = options.options.lock();
    Ok(options.clone())
}

/// A handle for the caller with these `options`.
pub(super) fn issue(options: GenerateOptions) -> *mut etg_generate_options {
    handle::issue(etg_generate_options { options: Mutex::new(options) })
}

/// Change `options` with `change`, all or nothing.
fn update(
    function: &'static str,
    options: *mut etg_generate_options,
    change: impl FnOnce(&mut GenerateOptions) -> Result<()>,
) -> i32 {
    guard(function, || {
        let options = handle::get(options)?;
        let mut options = options.options.lock();
        let mut changed = options.clone();
        change(&mut changed)?;
        changed.validate()?;
        *options = changed;
        Ok(ETG_OK)
    })
}

/// Keys of the JSON setter.
const KEYS: [&str; 11] = [
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "repetition_window",
    "seed",
    "stop",
    "ignore_eos",
    "echo",
];

fn set_field(options: &mut GenerateOptions, field: &Field<'_>) -> Result<bool> {
    let sampling = &mut options.sampling;
    match field.key() {
        "max_new_tokens" => options.max_new_tokens = field.or_null(Field::count)?,
        "temperature" => sampling.temperature = field.number()?,
        "top_k" => sampling.top_k = field.count()?,
        "top_p" => sampling.top_p = field.number()?,
        "min_p" => sampling.min_p = field.number()?,
        "repetition_penalty" => sampling.repetition_penalty = field.number()?,
        "repetition_window" => sampling.repetition_window = field.or_null(Field::count)?,
        "seed" => sampling.seed = field.or_null(Field::unsigned)?,
        "stop" => options.stop = field.texts()?,
        "ignore_eos" => options.ignore_eos = field.flag()?,
        "echo" => options.echo = field.flag()?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Make options with the default values.
///
/// - Threads: any.
/// - Owns: `*options_out` is the caller's; free it with `etg_generate_options_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
/// - After a failure: nothing was made, `*options_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_generate_options_create(options_out: *mut *mut etg_generate_options) -> i32 {
    guard("etg_generate_options_create", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(options_out, ptr::null_mut(), "options_out") }?;
        out.set(issue(GenerateOptions::default()));
        Ok(ETG_OK)
    })
}

/// Free options. NULL is allowed and does nothing.
///
/// - Threads: any; a call that is using the options goes on with the values it has read.
/// - Owns: takes the options back.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live options: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_generate_options_free(options: *mut etg_generate_options) -> i32 {
    guard("etg_generate_options_free", || handle::free(options).map(|()| ETG_OK))
}

/// Most tokens of one reply; 0 means no limit but the context, which is the default. This is a budget of the reply, not
/// the context capacity, which belongs to the compiled model.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_generate_options_set_max_new_tokens(options: *mut etg_generate_options, tokens: usize) -> i32 {
    update("etg_generate_options_set_max_new_tokens", options, |options| {
        options.max_new_tokens = (tokens > 0).then_some(tokens);
        Ok(())
    })
}

/// Divides the logits before a token is drawn: 0 or more. 0, the default, is greedy: always the most likely token.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, negative or not finite).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_generate_options_set_temperature(options: *mut etg_generate_options, temperature: f32) -> i32 {
    update("etg_generate_options_set_temperature", options, |options| {
        options.sampling.temperature = temperature;
        Ok(())
    })
}

/// Draw from the `top_k` most likely tokens only; 0, the default, turns it off.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_generate_options_set_top_k(options: *mut etg_generate_options, top_k: usize) -> i32 {
    update("etg_generate_options_set_top_k", options, |options| {
        options.sampling.top_k = top_k;
        Ok(())
    })
}

/// Draw from the smallest set of most likely tokens whose probabilities sum to more than `top_p` only: above 0, at
/// most 1; 1, the default, turns it off.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or out of range).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_generate_options_set_top_p(options: *mut etg_generate_options, top_p: f32) -> i32 {
    update("etg_generate_options_set_top_p", options, |options| {
        options.sampling.top_p = top_p;
        Ok(())
    })
}

/// Draw only from tokens at least `min_p` times as likely as the most likely one: 0 to 1; 0, the default, turns it off.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or out of range).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_generate_options_set_min_p(options: *mut etg_generate_options, min_p: f32) -> i32 {
    update("etg_generate_options_set_min_p", options, |options| {
        options.sampling.min_p = min_p;
        Ok(())
    })
}

/// Make tokens that were seen less likely: positive logits are divided by `penalty` (above 0), negative ones
/// multiplied; 1, the default, turns it off. It looks at the latest `window` tokens, prompt included; 0 is all.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or out of range).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_generate_options_set_repetition_penalty(
    options: *mut etg_generate_options,
    penalty: f32,
    window: usize,
) -> i32 {
    update("etg_generate_options_set_repetition_penalty", options, |options| {
        options.sampling.repetition_penalty = penalty;
        options.sampling.repetition_window = (window > 0).then_some(window);
        Ok(())
    })
}

/// Seed of the random numbers: the same seed, conversation and options give the same reply. Without one each reply
/// takes a seed from the clock. Only read when the temperature is above 0.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_generate_options_set_seed(options: *mut etg_generate_options, seed: u64) -> i32 {
    update("etg_generate_options_set_seed", options, |options| {
        options.sampling.seed = Some(seed);
        Ok(())
    })
}

/// Add a stop string: the reply ends before its first appearance. Not empty.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, or empty).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_generate_options_add_stop(
    options: *mut etg_generate_options,
    text: *const c_char,
    length: usize,
) -> i32 {
    update("etg_generate_options_add_stop", options, |options| {
        // SAFETY: text of the caller.
        let text = unsafe { input::text(text, length, "stop string") }?;
        options.stop.push(text.to_owned());
        Ok(())
    })
}

/// 1: go on past end-of-sequence tokens (useful for measuring); 0: end there, the default.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or neither 0 nor 1).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_generate_options_set_ignore_eos(options: *mut etg_generate_options, ignore: i32) -> i32 {
    update("etg_generate_options_set_ignore_eos", options, |options| {
        options.ignore_eos = input::flag(ignore, "ignore")?;
        Ok(())
    })
}

/// 1: report the text of the new messages first, as an `ETG_EVENT_PROMPT`; 0: do not, the default.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or neither 0 nor 1).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_generate_options_set_echo(options: *mut etg_generate_options, echo: i32) -> i32 {
    update("etg_generate_options_set_echo", options, |options| {
        options.echo = input::flag(echo, "echo")?;
        Ok(())
    })
}

/// Set any of the options from one JSON object, e.g. `{"temperature": 0.7, "top_k": 40}`. Keys: max_new_tokens,
/// temperature, top_k, top_p, min_p, repetition_penalty, repetition_window, seed, stop (replaces the list), ignore_eos,
/// echo. null unsets max_new_tokens, repetition_window and seed.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type or out of range; the
///   message names the key), `ETG_ERROR_FORMAT` (not a JSON object).
/// - After a failure: the options are unchanged, also by the keys that were right.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_generate_options_set_json(
    options: *mut etg_generate_options,
    json: *const c_char,
    length: usize,
) -> i32 {
    update("etg_generate_options_set_json", options, |options| {
        // SAFETY: text of the caller.
        let json = unsafe { input::text(json, length, "json") }?;
        json_fields::for_each(etg_generate_options::NAME, json, &KEYS, |field| set_field(options, field))
    })
}
