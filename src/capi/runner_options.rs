//! `etg_runner_options`: how a runner is opened.

use super::guard::guard;
use super::handle::{self, Handle};
use super::image_processor;
use super::input::{self, Out};
use super::json_fields::{self, Field};
use super::model_files;
use super::status::ETG_OK;
use crate::media::Tiling;
use crate::runner::{DecodingMode, LookaheadOptions, RequantRounding, RunnerOptions};
use crate::{Error, Result};
use parking_lot::Mutex;
use std::ffi::c_char;
use std::ptr;

/// How a runner is opened: threads, chat template, system prompt, pictures. The values are read when a runner is opened.
pub struct etg_runner_options {
    options: Mutex<RunnerOptions>,
}

impl Handle for etg_runner_options {
    const NAME: &'static str = "etg_runner_options";
}

/// What `options` say now; NULL is the defaults.
pub(super) fn read(options: *const etg_runner_options) -> Result<RunnerOptions> {
    if options.is_null() {
        return Ok(RunnerOptions::default());
    }
    let options = handle::get(options)?;
    let options = options.options.lock();
    Ok(options.clone())
}

/// Change `options` with `change`, all or nothing.
fn update(
    function: &'static str,
    options: *mut etg_runner_options,
    change: impl FnOnce(&mut RunnerOptions) -> Result<()>,
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
const KEYS: [&str; 9] = [
    "threads",
    "template",
    "template_variables",
    "system_prompt",
    "image_tiling",
    "image_cache_bytes",
    "decoding",
    "requant_rounding",
    "shared_memory",
];

fn set_field(options: &mut RunnerOptions, field: &Field<'_>) -> Result<bool> {
    match field.key() {
        "threads" => options.threads = field.or_null(Field::count)?.filter(|&threads| threads > 0),
        "template" => options.template = field.or_null(Field::text)?.map(str::to_owned),
        "template_variables" => options.template_variables = field.or_null(Field::object)?.cloned().unwrap_or_default(),
        "system_prompt" => options.system_prompt = field.or_null(Field::text)?.map(str::to_owned),
        "image_tiling" => options.image_tiling = field.or_null(tiling)?.unwrap_or_default(),
        "image_cache_bytes" => {
            let default = RunnerOptions::DEFAULT_IMAGE_CACHE_BYTES;
            options.image_cache_bytes = field.or_null(Field::count)?.unwrap_or(default);
        }
        "decoding" => options.decoding = field.or_null(decoding)?.unwrap_or_default(),
        "requant_rounding" => options.requant_rounding = field.or_null(rounding)?.unwrap_or_default(),
        "shared_memory" => options.shared_memory = field.or_null(Field::flag)?.unwrap_or_default(),
        _ => return Ok(false),
    }
    Ok(true)
}

/// A tiling by its name.
pub(super) fn tiling(field: &Field<'_>) -> Result<Tiling> {
    match field.text()? {
        "checkpoint" => Ok(Tiling::Checkpoint),
        "split" => Ok(Tiling::Split),
        "whole" => Ok(Tiling::Whole),
        "single" => Ok(Tiling::Single),
        _ => Err(field.wanted("one of checkpoint, split, whole, single")),
    }
}

/// A mode by its name, or lookahead with its sizes.
fn decoding(field: &Field<'_>) -> Result<DecodingMode> {
    let wanted = "one of \"auto\", \"kv\", \"hybrid\", {\"lookahead\": {\"ngram\": N, \"window\": W, \"gcap\": G}}";
    field.parsed().ok_or_else(|| field.wanted(wanted))
}

/// A rounding by its name.
fn rounding(field: &Field<'_>) -> Result<RequantRounding> {
    field.parsed().ok_or_else(|| field.wanted("one of \"nearest\", \"truncate\""))
}

/// Decoding: every graph there is, prompts in the largest blocks that fit.
pub const ETG_DECODING_AUTO: i32 = 0;
/// Decoding: the graph kv_forward alone, for prompts too.
pub const ETG_DECODING_KV: i32 = 1;
/// Decoding: prefill_forward and kv_forward, which must both be there.
pub const ETG_DECODING_HYBRID: i32 = 2;

/// Make options with the default values.
///
/// - Threads: any.
/// - Owns: `*options_out` is the caller's; free it with `etg_runner_options_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
/// - After a failure: nothing was made, `*options_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_options_create(options_out: *mut *mut etg_runner_options) -> i32 {
    guard("etg_runner_options_create", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(options_out, ptr::null_mut(), "options_out") }?;
        out.set(handle::issue(etg_runner_options { options: Mutex::default() }));
        Ok(ETG_OK)
    })
}

/// Free options. NULL is allowed and does nothing.
///
/// - Threads: any; runners opened with them are not touched.
/// - Owns: takes the options back.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live options: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_runner_options_free(options: *mut etg_runner_options) -> i32 {
    guard("etg_runner_options_free", || handle::free(options).map(|()| ETG_OK))
}

/// Threads of the CPU engine; 0, the default, is one a physical core.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_runner_options_set_threads(options: *mut etg_runner_options, threads: usize) -> i32 {
    update("etg_runner_options_set_threads", options, |options| {
        options.threads = (threads > 0).then_some(threads);
        Ok(())
    })
}

/// Chat template in place of the model's own: Jinja source, or "upstream:NAME" for one of the built-in compatibility
/// templates. The empty text takes the model's own again. It is compiled when a runner is opened.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not UTF-8).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_options_set_template(
    options: *mut etg_runner_options,
    text: *const c_char,
    length: usize,
) -> i32 {
    update("etg_runner_options_set_template", options, |options| {
        // SAFETY: text of the caller.
        let text = unsafe { input::text(text, length, "template") }?;
        options.template = (!text.is_empty()).then(|| text.to_owned());
        Ok(())
    })
}

/// Further variables for the chat template as one JSON object, e.g. `{"enable_thinking": false}`. Replaces those before.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not UTF-8), `ETG_ERROR_FORMAT` (not a JSON object).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_options_set_template_variables(
    options: *mut etg_runner_options,
    json: *const c_char,
    length: usize,
) -> i32 {
    update("etg_runner_options_set_template_variables", options, |options| {
        // SAFETY: text of the caller.
        let json = unsafe { input::text(json, length, "json") }?;
        options.template_variables = json_fields::object("template variables", json)?;
        Ok(())
    })
}

/// First message of every conversation, with the role "system". The empty text means none, the default.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not UTF-8).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_options_set_system_prompt(
    options: *mut etg_runner_options,
    text: *const c_char,
    length: usize,
) -> i32 {
    update("etg_runner_options_set_system_prompt", options, |options| {
        // SAFETY: text of the caller.
        let text = unsafe { input::text(text, length, "system prompt") }?;
        options.system_prompt = (!text.is_empty()).then(|| text.to_owned());
        Ok(())
    })
}

/// How pictures are cut, an `ETG_TILING_` constant; `ETG_TILING_CHECKPOINT` is the default.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_runner_options_set_image_tiling(options: *mut etg_runner_options, tiling: i32) -> i32 {
    update("etg_runner_options_set_image_tiling", options, |options| {
        options.image_tiling = image_processor::tiling_of(tiling)?;
        Ok(())
    })
}

/// Most bytes of encoded pictures that are kept, so that one that comes again is not encoded again; 0 turns the cache
/// off. 64 MiB is the default. Pictures of the history are kept beside it.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_runner_options_set_image_cache_bytes(options: *mut etg_runner_options, bytes: usize) -> i32 {
    update("etg_runner_options_set_image_cache_bytes", options, |options| {
        options.image_cache_bytes = bytes;
        Ok(())
    })
}

/// Which graphs of the decoder run, an `ETG_DECODING_` constant; `ETG_DECODING_AUTO` is the default. For lookahead see
/// `etg_runner_options_set_lookahead`; the one set last counts.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_runner_options_set_decoding(options: *mut etg_runner_options, decoding: i32) -> i32 {
    update("etg_runner_options_set_decoding", options, |options| {
        options.decoding = match decoding {
            ETG_DECODING_AUTO => DecodingMode::Auto,
            ETG_DECODING_KV => DecodingMode::Kv,
            ETG_DECODING_HYBRID => DecodingMode::Hybrid,
            other => {
                let reason = format!("decoding is {other}, but must be an ETG_DECODING_ constant (0 to 2)");
                return Err(Error::invalid(reason));
            }
        };
        Ok(())
    })
}

/// Lookahead decoding: several tokens guessed and verified a call; the text is that of the other modes. The sizes are those
/// the model was exported with: `ngram` (N, 2 or more), `window` (W) and `gcap` (G), 1 or more; a graph must take blocks of
/// (W + G) * (N - 1) tokens, which is checked when a runner is opened.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or a size out of range).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_runner_options_set_lookahead(
    options: *mut etg_runner_options,
    ngram: usize,
    window: usize,
    gcap: usize,
) -> i32 {
    update("etg_runner_options_set_lookahead", options, |options| {
        options.decoding = DecodingMode::Lookahead(LookaheadOptions { ngram, window, gcap });
        Ok(())
    })
}

/// How the KV cache is re-quantized between prefill and decode, an `ETG_REQUANT_` constant, in files that ask for it;
/// `ETG_REQUANT_NEAREST` is the default.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_runner_options_set_requant_rounding(options: *mut etg_runner_options, rounding: i32) -> i32 {
    update("etg_runner_options_set_requant_rounding", options, |options| {
        options.requant_rounding = model_files::rounding_of(rounding)?;
        Ok(())
    })
}

/// Whether to ask the engine for memory that the processor shares (1), for inputs, outputs and the KV cache; 0 is the
/// default. Engines without such memory use ordinary memory.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or neither 0 nor 1).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_runner_options_set_shared_memory(options: *mut etg_runner_options, shared: i32) -> i32 {
    update("etg_runner_options_set_shared_memory", options, |options| {
        options.shared_memory = input::flag(shared, "shared")?;
        Ok(())
    })
}

/// Set any of the options from one JSON object, e.g. `{"threads": 4}`. Keys: threads, template, template_variables,
/// system_prompt, image_tiling (checkpoint, split, whole or single), image_cache_bytes, decoding ("auto", "kv", "hybrid" or
/// {"lookahead": {"ngram": N, "window": W, "gcap": G}}), requant_rounding (nearest or truncate), shared_memory; null takes
/// the default.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
///   key), `ETG_ERROR_FORMAT` (not a JSON object).
/// - After a failure: the options are unchanged, also by the keys that were right.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_options_set_json(
    options: *mut etg_runner_options,
    json: *const c_char,
    length: usize,
) -> i32 {
    update("etg_runner_options_set_json", options, |options| {
        // SAFETY: text of the caller.
        let json = unsafe { input::text(json, length, "json") }?;
        json_fields::for_each(etg_runner_options::NAME, json, &KEYS, |field| set_field(options, field))
    })
}
