//! What the configurations of all models that see have in common.

use super::config::{Config, text_reader};
use super::spec::DecoderSpec;
use super::vision::VisionSpec;
use crate::error::Result;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// A decoder and the vision encoder beside it.
pub(super) struct VisionModel {
    pub decoder: DecoderSpec,
    pub vision: VisionSpec,
    pub image_token_id: u32,
}

/// What a family assumes where its configuration is silent.
pub(super) struct VisionDefaults {
    /// `text_config.model_type`.
    pub text_model_type: &'static str,
    /// `tie_word_embeddings` beside `text_config`.
    pub tied: bool,
    /// `image_token_id`.
    pub image_token_id: u32,
}

impl VisionModel {
    /// Put a model together: `vision` is given the width of the decoder that `text_config` describes.
    pub fn read(
        config: &Config<'_>,
        defaults: &VisionDefaults,
        vision: impl FnOnce(&Config<'_>, usize) -> Result<VisionSpec>,
    ) -> Result<Self> {
        let decoder = read_decoder(config, defaults)?;
        let vision_config = section(config, "vision_config", "vision_config.")?;
        let vision = vision(&vision_config, decoder.hidden_size)?;
        vision.check().map_err(|(field, reason)| vision_config.error(field, reason))?;
        let image_token_id = image_token_id(config, defaults.image_token_id, decoder.vocab_size)?;
        Ok(Self { decoder, vision, image_token_id })
    }
}

/// An object inside the configuration; an empty one if it is left out, since every field has a default.
fn section<'a>(config: &Config<'a>, field: &str, prefix: &'static str) -> Result<Config<'a>> {
    static NOTHING: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    let map = config.optional_object(field)?.unwrap_or(&NOTHING);
    Ok(Config { map, prefix })
}

fn read_decoder(config: &Config<'_>, defaults: &VisionDefaults) -> Result<DecoderSpec> {
    const PREFIX: &str = "text_config.";
    let written = section(config, "text_config", PREFIX)?;
    let model_type = written.optional_text("model_type")?.unwrap_or(defaults.text_model_type);
    let read = text_reader(&written, model_type)?;
    let complete = with_class_defaults(written.map, model_type);
    let text = Config { map: &complete, prefix: PREFIX };
    let mut decoder = read(&text)?;
    // Releases before 5 look at the flag of the text part, later ones at the one beside it.
    decoder.tied_embeddings |= config.flag("tie_word_embeddings", defaults.tied)?;
    decoder.check().map_err(|(field, reason)| text.error(field, reason))?;
    Ok(decoder)
}

/// A text configuration inside another one holds only what differs from the defaults of its class; these are the
/// defaults of transformers.
fn with_class_defaults(written: &Map<String, Value>, model_type: &str) -> Map<String, Value> {
    let sizes: [(&str, Value); 6] = match model_type {
        "llama" => [
            ("vocab_size", json!(32_000)),
            ("hidden_size", json!(4096)),
            ("intermediate_size", json!(11_008)),
            ("num_hidden_layers", json!(32)),
            ("num_attention_heads", json!(32)),
            ("max_position_embeddings", json!(2048)),
        ],
        "qwen2" | "qwen3" => [
            ("vocab_size", json!(151_936)),
            ("hidden_size", json!(4096)),
            ("intermediate_size", json!(22_016)),
            ("num_hidden_layers", json!(32)),
            ("num_attention_heads", json!(32)),
            ("max_position_embeddings", json!(32_768)),
        ],
        _ => return written.clone(),
    };
    let mut complete = written.clone();
    for (field, value) in sizes {
        complete.entry(field).or_insert(value);
    }
    if model_type != "llama" {
        // Left out it means 32, `null` means as many as query heads.
        complete.entry("num_key_value_heads").or_insert(json!(32));
    }
    complete
}

/// `image_token_id`, called `image_token_index` in some older files.
fn image_token_id(config: &Config<'_>, default: u32, vocab_size: usize) -> Result<u32> {
    let (field, value) = match config.get("image_token_id") {
        Some(value) => ("image_token_id", Some(value)),
        None => ("image_token_index", config.get("image_token_index")),
    };
    let id = match value {
        None => Some(default),
        Some(value) => value.as_u64().and_then(|id| u32::try_from(id).ok()),
    };
    let in_vocabulary = |id: &u32| usize::try_from(*id).is_ok_and(|id| id < vocab_size);
    id.filter(in_vocabulary).ok_or_else(|| {
        let value = value.map_or(format!("{default} (the default)"), Value::to_string);
        config.error(field, format!("{value} is not a token of a vocabulary of {vocab_size}"))
    })
}

/// A size that may be written as `n` or as `[n, n]`.
pub(super) fn square(config: &Config<'_>, field: &str, default: usize) -> Result<usize> {
    let Some(Value::Array(sides)) = config.get(field) else {
        return config.size_or(field, Some(default));
    };
    let side = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
    match sides.as_slice() {
        [height, width] if side(height).is_some() && side(height) == side(width) => Ok(side(height).unwrap_or(default)),
        _ => Err(config.error(field, format!("{} is not a square", Value::Array(sides.clone())))),
    }
}

/// Check that `shuffle`, read from `field`, cuts the patches into whole squares.
pub(super) fn check_shuffle(
    config: &Config<'_>,
    field: &str,
    shuffle: usize,
    image_size: usize,
    patch_size: usize,
) -> Result<()> {
    let side = image_size / patch_size;
    if side.is_multiple_of(shuffle) {
        return Ok(());
    }
    let reason = format!("{side} patches a side (image_size {image_size}, patch_size {patch_size}) do not divide by");
    Err(config.error(field, format!("{reason} {shuffle}")))
}
