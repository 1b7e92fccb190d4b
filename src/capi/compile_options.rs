//! `etg_compile_options`: how a checkpoint is compiled.

use super::guard::guard;
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::json_fields::{self, Field};
use super::status::ETG_OK;
use crate::compile::CompileOptions;
use crate::formats::WeightFormat;
use crate::registry::PositionRule;
use crate::{Error, Result};
use parking_lot::Mutex;
use std::ffi::c_char;
use std::ptr;

/// Weights: single precision.
pub const ETG_WEIGHTS_F32: i32 = 0;
/// Weights: half precision.
pub const ETG_WEIGHTS_F16: i32 = 1;
/// Weights: bfloat16.
pub const ETG_WEIGHTS_BF16: i32 = 2;
/// Weights: int8 in groups of 32.
pub const ETG_WEIGHTS_W8: i32 = 3;
/// Weights: int4 in groups of 32, with an int8 embedding table and output head.
pub const ETG_WEIGHTS_W4: i32 = 4;

/// Weights of a component: what suits those of the decoder.
pub const ETG_WEIGHTS_AUTO: i32 = -1;

/// Position rows of SmolVLM's encoder: as the model was trained.
pub const ETG_POSITIONS_IDENTITY: i32 = 0;
/// Position rows of SmolVLM's encoder: what upstream's export computes, for comparisons with upstream's files only.
pub const ETG_POSITIONS_UPSTREAM_SHIFTED: i32 = 1;

/// How a checkpoint is compiled: weight formats, context, block size.
pub struct etg_compile_options {
    options: Mutex<CompileOptions>,
}

impl Handle for etg_compile_options {
    const NAME: &'static str = "etg_compile_options";
}

/// What a checkpoint becomes if nothing is said, here and on the command line.
fn defaults() -> CompileOptions {
    CompileOptions::new(WeightFormat::F16)
}

/// What `options` say now; NULL is the defaults.
pub(super) fn read(options: *const etg_compile_options) -> Result<CompileOptions> {
    if options.is_null() {
        return Ok(defaults());
    }
    let options = handle::get(options)?;
    let options = options.options.lock();
    Ok(options.clone())
}

/// Change `options` with `change`, all or nothing.
fn update(
    function: &'static str,
    options: *mut etg_compile_options,
    change: impl FnOnce(&mut CompileOptions) -> Result<()>,
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

fn format_of(number: i32) -> Result<WeightFormat> {
    match number {
        ETG_WEIGHTS_F32 => Ok(WeightFormat::F32),
        ETG_WEIGHTS_F16 => Ok(WeightFormat::F16),
        ETG_WEIGHTS_BF16 => Ok(WeightFormat::Bf16),
        ETG_WEIGHTS_W8 => Ok(WeightFormat::W8),
        ETG_WEIGHTS_W4 => Ok(WeightFormat::W4),
        other => {
            Err(Error::invalid(format!("weight format is {other}, but must be an ETG_WEIGHTS_ constant (0 to 4)")))
        }
    }
}

/// A component's own format; `None` is [`ETG_WEIGHTS_AUTO`].
fn component_format_of(number: i32) -> Result<Option<WeightFormat>> {
    if number == ETG_WEIGHTS_AUTO { Ok(None) } else { format_of(number).map(Some) }
}

/// Keys of the JSON setter.
const KEYS: [&str; 8] = [
    "weights",
    "vision_weights",
    "embedding_weights",
    "position_rule",
    "max_context",
    "prefill_ar",
    "model",
    "threads",
];

fn set_field(options: &mut CompileOptions, field: &Field<'_>) -> Result<bool> {
    match field.key() {
        "weights" => options.weights = named_format(field)?,
        "vision_weights" => options.vision_weights = field.or_null(named_format)?,
        "embedding_weights" => options.embedding_weights = field.or_null(named_format)?,
        "position_rule" => options.position_rule = field.or_null(named_rule)?.unwrap_or_default(),
        "max_context" => options.max_context = field.or_null(Field::count)?,
        "prefill_ar" => options.prefill_ar = field.or_null(Field::count)?,
        "model" => options.model = field.or_null(Field::text)?.map(str::to_owned),
        "threads" => options.threads = field.or_null(Field::count)?.filter(|&threads| threads > 0),
        _ => return Ok(false),
    }
    Ok(true)
}

fn named_format(field: &Field<'_>) -> Result<WeightFormat> {
    let names = WeightFormat::ALL.map(WeightFormat::name).join(", ");
    WeightFormat::parse(field.text()?).ok_or_else(|| field.wanted(&format!("one of {names}")))
}

fn named_rule(field: &Field<'_>) -> Result<PositionRule> {
    let names = PositionRule::ALL.map(PositionRule::name).join(", ");
    PositionRule::parse(field.text()?).ok_or_else(|| field.wanted(&format!("one of {names}")))
}

/// Make options with the default values: half-precision weights, everything else as the model suggests.
///
/// - Threads: any.
/// - Owns: `*options_out` is the caller's; free it with `etg_compile_options_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
/// - After a failure: nothing was made, `*options_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_compile_options_create(options_out: *mut *mut etg_compile_options) -> i32 {
    guard("etg_compile_options_create", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(options_out, ptr::null_mut(), "options_out") }?;
        out.set(handle::issue(etg_compile_options { options: Mutex::new(defaults()) }));
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
pub extern "C" fn etg_compile_options_free(options: *mut etg_compile_options) -> i32 {
    guard("etg_compile_options_free", || handle::free(options).map(|()| ETG_OK))
}

/// Number format of the weight matrices, an `ETG_WEIGHTS_` constant. Norms and biases are always single precision.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_compile_options_set_weights(options: *mut etg_compile_options, format: i32) -> i32 {
    update("etg_compile_options_set_weights", options, |options| {
        options.weights = format_of(format)?;
        Ok(())
    })
}

/// Number format of the vision encoder's matrices: an `ETG_WEIGHTS_` constant, or `ETG_WEIGHTS_AUTO`, the default: as
/// `etg_compile_options_set_weights` says, but int8 beside an int4 decoder. Text models have no encoder and ignore it.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_compile_options_set_vision_weights(options: *mut etg_compile_options, format: i32) -> i32 {
    update("etg_compile_options_set_vision_weights", options, |options| {
        options.vision_weights = component_format_of(format)?;
        Ok(())
    })
}

/// Number format of the token embedding of a model that takes pictures: an `ETG_WEIGHTS_` constant, or
/// `ETG_WEIGHTS_AUTO`, the default: as `etg_compile_options_set_weights` says. Int4 is stored as int8.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_compile_options_set_embedding_weights(options: *mut etg_compile_options, format: i32) -> i32 {
    update("etg_compile_options_set_embedding_weights", options, |options| {
        options.embedding_weights = component_format_of(format)?;
        Ok(())
    })
}

/// Which rows of the position table the patches of SmolVLM's encoder get, an `ETG_POSITIONS_` constant;
/// `ETG_POSITIONS_IDENTITY` is the default. For other models any other rule is refused when they are compiled.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_compile_options_set_position_rule(options: *mut etg_compile_options, rule: i32) -> i32 {
    update("etg_compile_options_set_position_rule", options, |options| {
        options.position_rule = match rule {
            ETG_POSITIONS_IDENTITY => PositionRule::Identity,
            ETG_POSITIONS_UPSTREAM_SHIFTED => PositionRule::UpstreamShifted,
            other => {
                let wanted = "an ETG_POSITIONS_ constant (0 or 1)";
                return Err(Error::invalid(format!("position rule is {other}, but must be {wanted}")));
            }
        };
        Ok(())
    })
}

/// Context capacity of the compiled model, tokens; 0, the default, is 2048 or what the model was made for, whichever is
/// less. Whether the model allows it is checked when it is compiled.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_compile_options_set_max_context(options: *mut etg_compile_options, tokens: usize) -> i32 {
    update("etg_compile_options_set_max_context", options, |options| {
        options.max_context = (tokens > 0).then_some(tokens);
        Ok(())
    })
}

/// Tokens that a prefill block processes at once; 0, the default, is 32, or less for a short context.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_compile_options_set_prefill_ar(options: *mut etg_compile_options, tokens: usize) -> i32 {
    update("etg_compile_options_set_prefill_ar", options, |options| {
        options.prefill_ar = (tokens > 0).then_some(tokens);
        Ok(())
    })
}

/// Registry name that the checkpoint must be; the empty text, the default, takes the checkpoint as it is.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not UTF-8).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_compile_options_set_model(
    options: *mut etg_compile_options,
    text: *const c_char,
    length: usize,
) -> i32 {
    update("etg_compile_options_set_model", options, |options| {
        // SAFETY: text of the caller.
        let text = unsafe { input::text(text, length, "model") }?;
        options.model = (!text.is_empty()).then(|| text.to_owned());
        Ok(())
    })
}

/// Threads that pack weights; 0, the default, is one a physical core.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_compile_options_set_threads(options: *mut etg_compile_options, threads: usize) -> i32 {
    update("etg_compile_options_set_threads", options, |options| {
        options.threads = (threads > 0).then_some(threads);
        Ok(())
    })
}

/// Set any of the options from one JSON object, e.g. `{"weights": "w4", "max_context": 4096}`. Keys: weights (f32, f16,
/// bf16, w8 or w4), vision_weights, embedding_weights (the same names), position_rule (identity or upstream_shifted),
/// max_context, prefill_ar, model, threads; null takes the default.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
///   key), `ETG_ERROR_FORMAT` (not a JSON object).
/// - After a failure: the options are unchanged, also by the keys that were right.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_compile_options_set_json(
    options: *mut etg_compile_options,
    json: *const c_char,
    length: usize,
) -> i32 {
    update("etg_compile_options_set_json", options, |options| {
        // SAFETY: text of the caller.
        let json = unsafe { input::text(json, length, "json") }?;
        json_fields::for_each(etg_compile_options::NAME, json, &KEYS, |field| set_field(options, field))
    })
}
