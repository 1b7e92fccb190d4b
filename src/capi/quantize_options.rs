//! `etg_quantize_options`: how a prepared model is quantized.

use super::guard::guard;
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::json_fields::{self, Field};
use super::status::ETG_OK;
use crate::artefact::{AUDIO_ENCODER, TEXT_DECODER, TOK_EMBEDDING, VISION_ENCODER};
use crate::quantize::{
    DEFAULT_TOKENS_AT_ONCE, EncoderPrecision, EncoderRows, ModelGraphs, Observer, ObserverKind, QuantDtype,
    QuantizeOptions, Recipe, ResidualChannels, Rounding, ScaleSearch, SearchGranularity,
};
use crate::{Error, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_char;
use std::ptr;

/// Integers: 16-bit activations, 16-bit weights.
pub const ETG_QUANT_16A16W: i32 = 0;
/// Integers: 16-bit activations, 8-bit weights.
pub const ETG_QUANT_16A8W: i32 = 1;
/// Integers: 16-bit activations, 4-bit weights with a scale a channel.
pub const ETG_QUANT_16A4W: i32 = 2;
/// Integers: 16-bit activations, 4-bit weights in blocks with scales of their own (LPBQ).
pub const ETG_QUANT_16A4W_BLOCK: i32 = 3;
/// Integers: 8-bit activations, 8-bit weights.
pub const ETG_QUANT_8A8W: i32 = 4;
/// Integers: 8-bit activations, 4-bit weights.
pub const ETG_QUANT_8A4W: i32 = 5;

/// Encoder: quantized where conversations have one picture or a recipe of its own was given, float where they have several.
pub const ETG_ENCODER_AUTO: i32 = 0;
/// Encoder: not quantized.
pub const ETG_ENCODER_FLOAT: i32 = 1;
/// Encoder: quantized, by its recipe.
pub const ETG_ENCODER_QUANTIZED: i32 = 2;

/// Calibration of the decoder: on the rows that the encoder will deliver, quantized if it is.
pub const ETG_ENCODER_ROWS_DELIVERED: i32 = 0;
/// Calibration of the decoder: on the rows of the float encoder, as upstream does it.
pub const ETG_ENCODER_ROWS_FLOAT: i32 = 1;

/// Ranges of activations: as each recipe says.
pub const ETG_OBSERVER_RECIPE: i32 = -1;
/// Ranges of activations: from the smallest to the largest value ever seen.
pub const ETG_OBSERVER_MIN_MAX: i32 = 0;
/// Ranges of activations: smallest and largest value of a batch, averaged over batches. The setting is the weight of a batch, above
/// 0 and at most 1; upstream's is 0.01. Cannot be joined from shards.
pub const ETG_OBSERVER_MOVING_AVERAGE: i32 = 1;
/// Ranges of activations: those whose rounding and clipping err least.
pub const ETG_OBSERVER_HISTOGRAM: i32 = 2;
/// Ranges of activations: without the values that are farthest out. The setting is the share that is kept, e.g. 0.9999.
pub const ETG_OBSERVER_PERCENTILE: i32 = 3;

/// Channels of the residual stream: scaled where some stand out.
pub const ETG_RESIDUAL_AUTO: i32 = 0;
/// Channels of the residual stream: as they are, the graph is upstream's.
pub const ETG_RESIDUAL_AS_THEY_ARE: i32 = 1;

/// Scales of weights: so that the largest weight is on the grid.
pub const ETG_SCALES_MIN_MAX: i32 = 0;
/// Scales of weights: SeqMSE, so that the outputs are off least, with one factor a layer as upstream has it.
pub const ETG_SCALES_SEQ_MSE_LAYER: i32 = 1;
/// Scales of weights: SeqMSE with a factor an output channel.
pub const ETG_SCALES_SEQ_MSE_CHANNEL: i32 = 2;
/// Scales of weights: SeqMSE with a factor a block; a channel where there are no blocks.
pub const ETG_SCALES_SEQ_MSE_BLOCK: i32 = 3;

/// Rounding of weights: each to the nearest integer.
pub const ETG_ROUNDING_NEAREST: i32 = 0;
/// Rounding of weights: one after the other, the later ones so that they correct the errors of the earlier ones (GPTQ).
pub const ETG_ROUNDING_GPTQ: i32 = 1;

/// How a prepared model is quantized: integers of each component, encoder, observers, scales and rounding of weights. The values are
/// read when a call uses them.
pub struct etg_quantize_options {
    options: Mutex<Asked>,
}

impl Handle for etg_quantize_options {
    const NAME: &'static str = "etg_quantize_options";
}

/// What a caller asked for.
#[derive(Clone, Default)]
pub(super) struct Asked {
    options: QuantizeOptions,
    /// For all recipes, wherever they come from.
    observer: Option<ObserverKind>,
    /// For the decoder's recipe, wherever it comes from.
    kv8: Option<bool>,
    /// Threads; `None`: one a physical core.
    pub(super) threads: Option<usize>,
}

impl Asked {
    /// The options for a model.
    ///
    /// # Errors
    /// [`Error::NotFound`] naming a component that has a recipe but that the model does not have;
    /// [`Error::InvalidArgument`] for a decoder without a recipe.
    pub(super) fn for_model(&self, graphs: &ModelGraphs) -> Result<QuantizeOptions> {
        let (mut options, model, components) = (self.options.clone(), &graphs.model.name, graphs.components());
        if let Some(other) = options.recipes.keys().find(|name| !components.contains(&name.as_str())) {
            let known = components.join(", ");
            return Err(Error::NotFound(format!(
                "{model} has no component {other:?} that a recipe could be for; it has: {known}"
            )));
        }
        let encoder_has_recipe = [VISION_ENCODER, AUDIO_ENCODER].iter().any(|name| options.recipes.contains_key(*name));
        if options.encoder == EncoderPrecision::Auto && encoder_has_recipe {
            options.encoder = EncoderPrecision::Quantized;
        }
        for component in components {
            let Some(mut recipe) = options.recipe(model, component)? else { continue };
            let kv8 = self.kv8.filter(|_| component == TEXT_DECODER);
            if let Some(kv8) = kv8 {
                recipe.set_kv8(kv8);
            }
            if let Some(observer) = self.observer {
                recipe.set_observer(observer)?;
            }
            if kv8.is_some() || self.observer.is_some() {
                options.recipes.insert(component.into(), recipe);
            }
        }
        Ok(options)
    }
}

/// What `options` say now; NULL is the defaults.
pub(super) fn read(options: *const etg_quantize_options) -> Result<Asked> {
    if options.is_null() {
        return Ok(Asked::default());
    }
    let options = handle::get(options)?;
    let options = options.options.lock();
    Ok(options.clone())
}

/// Change `options` with `change`, all or nothing.
fn update(
    function: &'static str,
    options: *mut etg_quantize_options,
    change: impl FnOnce(&mut Asked) -> Result<()>,
) -> i32 {
    guard(function, || {
        let options = handle::get(options)?;
        let mut options = options.options.lock();
        let mut changed = options.clone();
        change(&mut changed)?;
        changed.options.validate()?;
        changed.options.weights.check()?;
        *options = changed;
        Ok(ETG_OK)
    })
}

/// The name of a component, checked.
fn component_of(name: &str) -> Result<&str> {
    let known = [TEXT_DECODER, TOK_EMBEDDING, VISION_ENCODER, AUDIO_ENCODER];
    match known.contains(&name) {
        true => Ok(name),
        false => Err(Error::invalid(format!("there is no component {name:?}; there are: {}", known.join(", ")))),
    }
}

fn dtype_of(number: i32) -> Result<QuantDtype> {
    match number {
        ETG_QUANT_16A16W => Ok(QuantDtype::A16W16),
        ETG_QUANT_16A8W => Ok(QuantDtype::A16W8),
        ETG_QUANT_16A4W => Ok(QuantDtype::A16W4),
        ETG_QUANT_16A4W_BLOCK => Ok(QuantDtype::A16W4Block),
        ETG_QUANT_8A8W => Ok(QuantDtype::A8W8),
        ETG_QUANT_8A4W => Ok(QuantDtype::A8W4),
        other => Err(Error::invalid(format!("dtype is {other}, but must be an ETG_QUANT_ constant (0 to 5)"))),
    }
}

fn observer_of(kind: i32, setting: f64) -> Result<Option<ObserverKind>> {
    let kind = match kind {
        ETG_OBSERVER_RECIPE => return Ok(None),
        ETG_OBSERVER_MIN_MAX => ObserverKind::MinMax,
        #[allow(clippy::cast_possible_truncation, reason = "rounding is meant; what is out of range is refused below")]
        ETG_OBSERVER_MOVING_AVERAGE => ObserverKind::MovingAverage(setting as f32),
        ETG_OBSERVER_HISTOGRAM => ObserverKind::Histogram,
        ETG_OBSERVER_PERCENTILE => ObserverKind::Percentile(setting),
        other => {
            return Err(Error::invalid(format!(
                "observer is {other}, but must be an ETG_OBSERVER_ constant (-1 to 3)"
            )));
        }
    };
    checked(kind).map(Some)
}

/// An observer whose setting is in range.
fn checked(kind: ObserverKind) -> Result<ObserverKind> {
    Observer::new(kind).map(|_| kind)
}

/// Keys of the JSON setter.
const KEYS: [&str; 14] = [
    "recipes",
    "dtypes",
    "observer",
    "kv8",
    "encoder",
    "several_images",
    "encoder_rows",
    "residual",
    "scales",
    "rounding",
    "observe_padding",
    "tokens_at_once",
    "report_samples",
    "threads",
];

fn set_field(asked: &mut Asked, field: &Field<'_>) -> Result<bool> {
    let options = &mut asked.options;
    match field.key() {
        "recipes" => {
            for (component, recipe) in field.or_null(Field::read::<BTreeMap<String, Recipe>>)?.unwrap_or_default() {
                options.recipes.insert(component_of(&component)?.into(), recipe);
            }
        }
        "dtypes" => {
            for (component, dtype) in field.or_null(Field::read::<BTreeMap<String, Uniform>>)?.unwrap_or_default() {
                options.recipes.insert(component_of(&component)?.into(), dtype.recipe()?);
            }
        }
        "observer" => asked.observer = field.or_null(|field| checked(field.read()?))?,
        "kv8" => asked.kv8 = field.or_null(Field::flag)?,
        "encoder" => options.encoder = field.or_null(Field::read)?.unwrap_or_default(),
        "several_images" => options.several_images = field.or_null(Field::flag)?.unwrap_or_default(),
        "encoder_rows" => options.encoder_rows = field.or_null(Field::read)?.unwrap_or_default(),
        "residual" => options.residual = field.or_null(Field::read)?.unwrap_or_default(),
        "scales" => options.weights.scales = field.or_null(Field::read)?.unwrap_or_default(),
        "rounding" => options.weights.rounding = field.or_null(Field::read)?.unwrap_or_default(),
        "observe_padding" => options.observe_padding = field.or_null(Field::flag)?.unwrap_or_default(),
        "tokens_at_once" => options.tokens_at_once = tokens_or_default(field.or_null(Field::count)?.unwrap_or(0)),
        "report_samples" => {
            let default = QuantizeOptions::default().report_samples;
            options.report_samples = field.or_null(Field::count)?.unwrap_or(default);
        }
        "threads" => asked.threads = field.or_null(Field::count)?.filter(|&threads| threads > 0),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Integers for all layers: their name, or name and block size.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Uniform {
    Name(QuantDtype),
    InBlocks { dtype: QuantDtype, block: usize },
}

/// Inputs of a layer that share a scale in LPBQ if nothing else is said.
const DEFAULT_BLOCK: usize = 32;
/// Scales that SeqMSE tries if nothing else is said.
const DEFAULT_CANDIDATES: usize = 100;

impl Uniform {
    fn recipe(&self) -> Result<Recipe> {
        match *self {
            Uniform::Name(dtype) => Recipe::uniform(dtype, DEFAULT_BLOCK),
            Uniform::InBlocks { dtype, block } => Recipe::uniform(dtype, block),
        }
    }
}

fn tokens_or_default(tokens: usize) -> usize {
    if tokens == 0 { DEFAULT_TOKENS_AT_ONCE } else { tokens }
}

/// Make options with the default values: every component as the model's own recipe says.
///
/// - Threads: any.
/// - Owns: `*options_out` is the caller's; free it with `etg_quantize_options_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
/// - After a failure: nothing was made, `*options_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_quantize_options_create(options_out: *mut *mut etg_quantize_options) -> i32 {
    guard("etg_quantize_options_create", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(options_out, ptr::null_mut(), "options_out") }?;
        out.set(handle::issue(etg_quantize_options { options: Mutex::default() }));
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
pub extern "C" fn etg_quantize_options_free(options: *mut etg_quantize_options) -> i32 {
    guard("etg_quantize_options_free", || handle::free(options).map(|()| ETG_OK))
}

/// Give all layers of a component ("text_decoder", "tok_embedding", "vision_encoder") the same integers, an `ETG_QUANT_` constant,
/// with weights per channel; the head stays at 8 bits where the others get 4. `block` is how many neighbours share a scale in
/// `ETG_QUANT_16A4W_BLOCK`, 0 is 32; it must divide every layer. Takes the place of the component's recipe.
///
/// - Threads: any.
/// - Owns: the text is not kept.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a component or constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_quantize_options_set_dtype(
    options: *mut etg_quantize_options,
    component: *const c_char,
    component_length: usize,
    dtype: i32,
    block: usize,
) -> i32 {
    update("etg_quantize_options_set_dtype", options, |asked| {
        // SAFETY: text of the caller.
        let component = component_of(unsafe { input::text(component, component_length, "component") }?)?;
        let block = if block == 0 { DEFAULT_BLOCK } else { block };
        asked.options.recipes.insert(component.into(), Recipe::uniform(dtype_of(dtype)?, block)?);
        Ok(())
    })
}

/// Give a component a recipe of its own: a JSON object with "default" (e.g. "16a4w"), "kv8", "observer" and "rules" (each with
/// "match", a regular expression, or "kind", and "dtype", "granularity", "observer", "priority"). The empty text takes the model's
/// own recipe again.
///
/// - Threads: any.
/// - Owns: the texts are not kept.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a component), `ETG_ERROR_FORMAT` (not JSON, unknown key, a
///   regular expression or block size that is none; the message names line and rule), `ETG_ERROR_UNSUPPORTED` (R1, R2).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_quantize_options_set_recipe_json(
    options: *mut etg_quantize_options,
    component: *const c_char,
    component_length: usize,
    json: *const c_char,
    json_length: usize,
) -> i32 {
    update("etg_quantize_options_set_recipe_json", options, |asked| {
        // SAFETY: text of the caller.
        let component = component_of(unsafe { input::text(component, component_length, "component") }?)?;
        // SAFETY: text of the caller.
        let json = unsafe { input::text(json, json_length, "json") }?;
        if json.is_empty() {
            asked.options.recipes.remove(component);
        } else {
            let recipe = Recipe::from_json(json, &format!("recipe of {component}"))?;
            asked.options.recipes.insert(component.into(), recipe);
        }
        Ok(())
    })
}

/// How ranges of activations are found, in all components: an `ETG_OBSERVER_` constant with its setting (ignored where it has none).
/// `ETG_OBSERVER_RECIPE` is the default.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a constant, a setting out of range).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_quantize_options_set_observer(
    options: *mut etg_quantize_options,
    observer: i32,
    setting: f64,
) -> i32 {
    update("etg_quantize_options_set_observer", options, |asked| {
        asked.observer = observer_of(observer, setting)?;
        Ok(())
    })
}

/// Whether the KV cache is kept in 8 bits: 0, 1, or -1, the default: as the decoder's recipe says.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or another number).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_quantize_options_set_kv8(options: *mut etg_quantize_options, choice: i32) -> i32 {
    update("etg_quantize_options_set_kv8", options, |asked| {
        asked.kv8 = if choice == -1 { None } else { Some(input::flag(choice, "kv8")?) };
        Ok(())
    })
}

/// Precision of the encoder, an `ETG_ENCODER_` constant; `ETG_ENCODER_AUTO` is the default. Text models have no encoder and ignore
/// it.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_quantize_options_set_encoder(options: *mut etg_quantize_options, precision: i32) -> i32 {
    update("etg_quantize_options_set_encoder", options, |asked| {
        asked.options.encoder = match precision {
            ETG_ENCODER_AUTO => EncoderPrecision::Auto,
            ETG_ENCODER_FLOAT => EncoderPrecision::Float,
            ETG_ENCODER_QUANTIZED => EncoderPrecision::Quantized,
            other => {
                let wanted = "an ETG_ENCODER_ constant (0 to 2)";
                return Err(Error::invalid(format!("encoder precision is {other}, but must be {wanted}")));
            }
        };
        Ok(())
    })
}

/// Whether conversations will have several pictures: 0 (the default) or 1. With `ETG_ENCODER_AUTO` the encoder stays float then.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or neither 0 nor 1).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_quantize_options_set_several_images(options: *mut etg_quantize_options, several: i32) -> i32 {
    update("etg_quantize_options_set_several_images", options, |asked| {
        asked.options.several_images = input::flag(several, "several_images")?;
        Ok(())
    })
}

/// Which rows of the encoder the decoder is calibrated on, an `ETG_ENCODER_ROWS_` constant; `ETG_ENCODER_ROWS_DELIVERED` is the
/// default.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_quantize_options_set_encoder_rows(options: *mut etg_quantize_options, rows: i32) -> i32 {
    update("etg_quantize_options_set_encoder_rows", options, |asked| {
        asked.options.encoder_rows = match rows {
            ETG_ENCODER_ROWS_DELIVERED => EncoderRows::Delivered,
            ETG_ENCODER_ROWS_FLOAT => EncoderRows::Float,
            other => {
                let wanted = "an ETG_ENCODER_ROWS_ constant (0 or 1)";
                return Err(Error::invalid(format!("encoder rows are {other}, but must be {wanted}")));
            }
        };
        Ok(())
    })
}

/// Whether channels of the residual stream that stand out are scaled, an `ETG_RESIDUAL_` constant; `ETG_RESIDUAL_AUTO` is the
/// default.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_quantize_options_set_residual(options: *mut etg_quantize_options, residual: i32) -> i32 {
    update("etg_quantize_options_set_residual", options, |asked| {
        asked.options.residual = match residual {
            ETG_RESIDUAL_AUTO => ResidualChannels::Auto,
            ETG_RESIDUAL_AS_THEY_ARE => ResidualChannels::AsTheyAre,
            other => {
                let wanted = "an ETG_RESIDUAL_ constant (0 or 1)";
                return Err(Error::invalid(format!("residual is {other}, but must be {wanted}")));
            }
        };
        Ok(())
    })
}

/// How scales of weights are chosen, an `ETG_SCALES_` constant, and of how many candidates where they are searched (0: 100).
/// `ETG_SCALES_MIN_MAX` is the default; a search needs calibration data.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_quantize_options_set_scales(
    options: *mut etg_quantize_options,
    scales: i32,
    candidates: usize,
) -> i32 {
    update("etg_quantize_options_set_scales", options, |asked| {
        let candidates = if candidates == 0 { DEFAULT_CANDIDATES } else { candidates };
        let search = |granularity| ScaleSearch::SeqMse { candidates, granularity };
        asked.options.weights.scales = match scales {
            ETG_SCALES_MIN_MAX => ScaleSearch::MinMax,
            ETG_SCALES_SEQ_MSE_LAYER => search(SearchGranularity::Layer),
            ETG_SCALES_SEQ_MSE_CHANNEL => search(SearchGranularity::Channel),
            ETG_SCALES_SEQ_MSE_BLOCK => search(SearchGranularity::Block),
            other => {
                return Err(Error::invalid(format!("scales is {other}, but must be an ETG_SCALES_ constant (0 to 3)")));
            }
        };
        Ok(())
    })
}

/// How weights are rounded, an `ETG_ROUNDING_` constant. `damping` is for `ETG_ROUNDING_GPTQ`: what is added to the square of each
/// input, as a part of the mean square, from 0 to 1; 0.01 is usual. `ETG_ROUNDING_NEAREST` is the default; GPTQ needs calibration
/// data.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a constant, a damping out of range).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_quantize_options_set_rounding(
    options: *mut etg_quantize_options,
    rounding: i32,
    damping: f32,
) -> i32 {
    update("etg_quantize_options_set_rounding", options, |asked| {
        asked.options.weights.rounding = match rounding {
            ETG_ROUNDING_NEAREST => Rounding::Nearest,
            ETG_ROUNDING_GPTQ => Rounding::Gptq { damping },
            other => {
                let wanted = "an ETG_ROUNDING_ constant (0 or 1)";
                return Err(Error::invalid(format!("rounding is {other}, but must be {wanted}")));
            }
        };
        Ok(())
    })
}

/// Whether samples are padded to the whole context and the padding is observed too, as upstream does: 0 (the default) or 1.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or neither 0 nor 1).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_quantize_options_set_observe_padding(options: *mut etg_quantize_options, observe: i32) -> i32 {
    update("etg_quantize_options_set_observe_padding", options, |asked| {
        asked.options.observe_padding = input::flag(observe, "observe_padding")?;
        Ok(())
    })
}

/// Tokens that go through the model together: more is faster and takes more memory; 0, the default, is 8192.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_quantize_options_set_tokens_at_once(options: *mut etg_quantize_options, tokens: usize) -> i32 {
    update("etg_quantize_options_set_tokens_at_once", options, |asked| {
        asked.options.tokens_at_once = tokens_or_default(tokens);
        Ok(())
    })
}

/// Samples that the float and the quantized model run side by side for the report; 1 is the default, 0: none.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_quantize_options_set_report_samples(options: *mut etg_quantize_options, samples: usize) -> i32 {
    update("etg_quantize_options_set_report_samples", options, |asked| {
        asked.options.report_samples = samples;
        Ok(())
    })
}

/// Threads of the work; 0, the default, is one a physical core.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_quantize_options_set_threads(options: *mut etg_quantize_options, threads: usize) -> i32 {
    update("etg_quantize_options_set_threads", options, |asked| {
        asked.threads = (threads > 0).then_some(threads);
        Ok(())
    })
}

/// Set any of the options from one JSON object, e.g. `{"dtypes": {"text_decoder": "16a4w_block"}, "observer": "histogram"}`. Keys:
/// recipes (recipes by component), dtypes (by component: a name, or an object with dtype and block), observer (min_max, histogram,
/// {"moving_average": W} or {"percentile": P}), kv8, encoder (auto, float or quantized), several_images, encoder_rows (delivered or
/// float), residual (auto or as_they_are), scales ("min_max" or
/// {"seq_mse": {"candidates": N, "granularity": G}} with layer, channel or block), rounding ("nearest" or {"gptq": {"damping": D}}),
/// observe_padding, tokens_at_once, report_samples, threads; null takes the default. Recipes
/// of components that are not named stay as they are.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
///   key), `ETG_ERROR_FORMAT` (not a JSON object).
/// - After a failure: the options are unchanged, also by the keys that were right.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_quantize_options_set_json(
    options: *mut etg_quantize_options,
    json: *const c_char,
    length: usize,
) -> i32 {
    update("etg_quantize_options_set_json", options, |asked| {
        // SAFETY: text of the caller.
        let json = unsafe { input::text(json, length, "json") }?;
        json_fields::for_each(etg_quantize_options::NAME, json, &KEYS, |field| set_field(asked, field))
    })
}
