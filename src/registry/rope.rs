//! RoPE settings of a configuration, in the old spelling (`rope_theta`, `rope_scaling`) and the new one
//! (`rope_parameters`, flat or by layer type).

use super::config::{Config, FILE};
use super::spec::{RopeScaling, RopeSpec};
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// What a family assumes where its configuration is silent.
#[derive(Debug, Clone, Copy)]
pub(super) struct RopeDefaults {
    pub theta: f64,
    pub partial_rotary_factor: f64,
    pub interleaved: bool,
}

impl Default for RopeDefaults {
    fn default() -> Self {
        Self { theta: 1e4, partial_rotary_factor: 1.0, interleaved: false }
    }
}

/// Read the RoPE of full layers, or that of `layer_type` where `rope_parameters` is split by layer type.
pub(super) fn read_rope(
    config: &Config<'_>,
    layer_type: Option<&str>,
    defaults: &RopeDefaults,
    head_dim: usize,
    max_position: usize,
) -> Result<RopeSpec> {
    let parameters = parameters(config, layer_type.unwrap_or("full_attention"))?;
    let either = |field| match parameters.optional_number(field)? {
        Some(value) => Ok(Some(value)),
        None => config.optional_number(field),
    };
    let fraction: f64 = either("partial_rotary_factor")?.unwrap_or(defaults.partial_rotary_factor);
    if !(fraction > 0.0 && fraction <= 1.0) {
        return Err(config.error("partial_rotary_factor", format!("{fraction} is not above 0 and at most 1")));
    }
    // Rounded down, but 95.99999 counts as 96: a fraction like 2/3 has no exact decimal.
    let rotary_dim = (head_dim as f64 * fraction + 1e-4) as usize;
    Ok(RopeSpec {
        theta: either("rope_theta")?.unwrap_or(defaults.theta),
        rotary_dim,
        interleaved: defaults.interleaved,
        scaling: read_scaling(config, &parameters, max_position)?,
    })
}

/// The object that describes the scaling; empty if there is none.
fn parameters<'a>(config: &Config<'a>, layer_type: &str) -> Result<Config<'a>> {
    static NOTHING: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    let (object, prefix) = match config.optional_object("rope_parameters")? {
        Some(object) => match object.get(layer_type) {
            Some(Value::Object(inner)) => (inner, "rope_parameters."),
            _ => (object, "rope_parameters."),
        },
        None => (config.optional_object("rope_scaling")?.unwrap_or(&NOTHING), "rope_scaling."),
    };
    Ok(Config { map: object, prefix })
}

fn read_scaling(config: &Config<'_>, parameters: &Config<'_>, max_position: usize) -> Result<RopeScaling> {
    let kind = match parameters.optional_text("rope_type")? {
        Some(kind) => kind,
        None => parameters.optional_text("type")?.unwrap_or("default"),
    };
    match kind {
        "default" | "none" => Ok(RopeScaling::None),
        // Stretches the frequencies once a sequence is longer than the context of the training, which no graph of ours
        // ever is (InternVL3).
        "dynamic" => parameters.number("factor", Some(1.0)).map(|_| RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: parameters.number("factor", None)? }),
        "freq_factors" => Ok(RopeScaling::FreqFactors { factors: freq_factors(config, parameters)? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: parameters.number("factor", None)?,
            low_freq_factor: parameters.number("low_freq_factor", None)?,
            high_freq_factor: parameters.number("high_freq_factor", None)?,
            original_context: parameters.size("original_max_position_embeddings")?,
        }),
        "longrope" | "su" => read_longrope(config, parameters, max_position),
        other => Err(Error::Unsupported(format!(
            "{FILE}: {}rope_type: {other:?} is not supported; known: default, dynamic, linear, llama3, \
             longrope, freq_factors",
            parameters.prefix
        ))),
    }
}

fn freq_factors(config: &Config<'_>, parameters: &Config<'_>) -> Result<Vec<f64>> {
    match numbers(parameters, "rope_freq_factors")? {
        Some(factors) => Ok(factors),
        None => numbers(config, "rope_freq_factors")?.ok_or_else(|| config.error("rope_freq_factors", "missing")),
    }
}

/// LongRoPE. The attention factor defaults to `sqrt(1 + ln(s) / ln(original))` with `s` the stretch of the context.
fn read_longrope(config: &Config<'_>, parameters: &Config<'_>, max_position: usize) -> Result<RopeScaling> {
    let list = |field| numbers(parameters, field)?.ok_or_else(|| parameters.error(field, "missing"));
    let own = config.optional_size("original_max_position_embeddings")?;
    let original_context = match own {
        Some(original) => original,
        None => parameters.size_or("original_max_position_embeddings", Some(max_position))?,
    };
    let ratio = max_position as f64 / original_context as f64;
    let stretch = match (own, parameters.optional_number("factor")?) {
        (None, Some(factor)) => factor,
        _ => ratio,
    };
    let default_factor =
        if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / (original_context as f64).ln()).sqrt() };
    Ok(RopeScaling::LongRope {
        short_factor: list("short_factor")?,
        long_factor: list("long_factor")?,
        original_context,
        attention_factor: parameters.number("attention_factor", Some(default_factor))?,
    })
}

/// A list of numbers.
fn numbers(config: &Config<'_>, field: &str) -> Result<Option<Vec<f64>>> {
    let Some(list) = config.optional_list(field)? else { return Ok(None) };
    let number = |value: &Value| value.as_f64().ok_or_else(|| config.error(field, format!("{value} is not a number")));
    list.iter().map(number).collect::<Result<Vec<f64>>>().map(Some)
}
