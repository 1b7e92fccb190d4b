//! A Hugging Face `config.json` (or what the GGUF reader made of its metadata) to a [`ModelSpec`].

use super::multimodal::VisionModel;
use super::rope::{RopeDefaults, read_rope};
use super::spec::{Activation, DecoderSpec, LayerKind, ModelSpec};
use super::{gemma, glm, granite, internvl, llama, phi, qwen, recognise, smollm, smolvlm};
use crate::error::{Error, Result};
use serde_json::{Map, Value};

/// File name in error messages.
pub(super) const FILE: &str = "config.json";
/// No size in a configuration may exceed this; real ones stay far below.
const MAX_SIZE: u64 = 1 << 26;

/// Turns one family's configuration into a decoder.
pub(super) type Reader = fn(&Config<'_>) -> Result<DecoderSpec>;

/// Turns one family's configuration into a decoder and the encoder beside it.
type VisionReader = fn(&Config<'_>) -> Result<VisionModel>;

/// `model_type`, family, reader.
const FAMILIES: [(&str, &str, Reader); 11] = [
    ("llama", "llama", llama::read),
    ("qwen2", "qwen2", qwen::read_qwen2),
    ("qwen3", "qwen3", qwen::read_qwen3),
    ("gemma", "gemma", gemma::read_gemma),
    ("gemma2", "gemma2", gemma::read_gemma2),
    ("gemma3_text", "gemma3", gemma::read_gemma3),
    ("gemma3", "gemma3", gemma::read_gemma3),
    ("granite", "granite", granite::read),
    ("phi3", "phi3", phi::read),
    ("smollm3", "smollm3", smollm::read_smollm3),
    ("glm", "glm", glm::read),
];

/// The same of models that see.
const VISION_FAMILIES: [(&str, &str, VisionReader); 3] = [
    ("idefics3", "smolvlm", smolvlm::read),
    ("smolvlm", "smolvlm", smolvlm::read),
    ("internvl", "internvl3", internvl::read),
];

impl ModelSpec {
    /// Read a Hugging Face configuration. A `text_config` inside (multimodal checkpoints) is used for the decoder, a
    /// `vision_config` of a family whose encoder is known for the encoder.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an unknown `model_type` (listing the known ones) or an unknown variant;
    /// [`Error::Format`] naming the field and the value that is missing, ill-typed or absurd.
    pub fn from_config(config: &Map<String, Value>) -> Result<ModelSpec> {
        let config = Config { map: config, prefix: "" };
        let model_type = config.required_text("model_type")?;
        if let Some(&(_, family, read)) = VISION_FAMILIES.iter().find(|(name, ..)| *name == model_type) {
            let VisionModel { decoder, vision, image_token_id } = read(&config)?;
            let name = recognise(family, &decoder).map_or(model_type, |entry| entry.name);
            return Ok(ModelSpec {
                name: name.into(),
                family: family.into(),
                decoder,
                vision: Some(vision),
                image_token_id: Some(image_token_id),
            });
        }
        let Some(&(_, family, read)) = FAMILIES.iter().find(|(name, ..)| *name == model_type) else {
            return Err(unknown_type(&config, model_type));
        };
        let config = match config.get("text_config") {
            Some(Value::Object(text)) => Config { map: text, prefix: "text_config." },
            _ => config,
        };
        let decoder = read(&config)?;
        decoder.check().map_err(|(field, reason)| config.error(field, reason))?;
        let name = recognise(family, &decoder).map_or(model_type, |entry| entry.name);
        Ok(ModelSpec { name: name.into(), family: family.into(), decoder, vision: None, image_token_id: None })
    }
}

/// The reader of a text decoder of that `model_type`.
pub(super) fn text_reader(config: &Config<'_>, model_type: &str) -> Result<Reader> {
    let found = FAMILIES.iter().find(|(name, ..)| *name == model_type);
    found.map(|&(.., read)| read).ok_or_else(|| unknown_type(config, model_type))
}

fn unknown_type(config: &Config<'_>, model_type: &str) -> Error {
    let hint = match model_type {
        "internvl_chat" => "; this is the original layout of InternVL: take the checkpoint whose name ends in -hf",
        _ => "",
    };
    let text = FAMILIES.iter().map(|(name, ..)| *name);
    let seeing = VISION_FAMILIES.iter().map(|(name, ..)| *name).filter(|_| config.prefix.is_empty());
    let known = text.chain(seeing).collect::<Vec<_>>().join(", ");
    Error::Unsupported(format!(
        "{FILE}: {}model_type: {model_type:?} is not supported{hint}; known types: {known}",
        config.prefix
    ))
}

/// Values a family assumes for fields its published configurations leave out.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Defaults {
    pub vocab_size: Option<usize>,
    pub heads: Option<usize>,
    pub kv_heads: Option<usize>,
    pub head_dim: Option<usize>,
    pub max_position: Option<usize>,
    pub tied: bool,
    pub rope: RopeDefaults,
}

/// A plain Llama-like decoder from the fields all families share; each family then states where it differs.
pub(super) fn plain_decoder(config: &Config<'_>, defaults: &Defaults) -> Result<DecoderSpec> {
    let hidden_size = config.size("hidden_size")?;
    let heads = config.size_or("num_attention_heads", defaults.heads)?;
    let layers = config.size("num_hidden_layers")?;
    let kv_heads = config.size_or("num_key_value_heads", defaults.kv_heads.or(Some(heads)))?;
    let head_dim = match config.optional_size("head_dim")?.or(defaults.head_dim) {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            let reason = format!("missing, and hidden_size {hidden_size} is not a multiple of {heads} heads");
            return Err(config.error("head_dim", reason));
        }
    };
    let max_position = config.size_or("max_position_embeddings", defaults.max_position)?;
    // Checked before the layer list is allocated.
    if layers > super::check::MAX_LAYERS {
        return Err(config.error("num_hidden_layers", super::check::too_many_layers(layers)));
    }
    Ok(DecoderSpec {
        vocab_size: config.size_or("vocab_size", defaults.vocab_size)?,
        hidden_size,
        layers,
        heads,
        kv_heads,
        head_dim,
        ffn_size: config.size("intermediate_size")?,
        max_position,
        norm_eps: config.number("rms_norm_eps", Some(1e-6))? as f32,
        norm_plus_one: false,
        activation: activation(config, &["hidden_act", "hidden_activation"], Activation::Silu)?,
        rope: read_rope(config, None, &defaults.rope, head_dim, max_position)?,
        local_rope: None,
        sliding_window: None,
        layer_kinds: vec![LayerKind::Full; layers],
        qkv_bias: false,
        out_bias: false,
        qk_norm: false,
        post_norms: false,
        fused_qkv: false,
        fused_gate_up: false,
        tied_embeddings: config.flag("tie_word_embeddings", defaults.tied)?,
        embedding_multiplier: 1.0,
        attention_multiplier: (1.0 / (head_dim as f64).sqrt()) as f32,
        residual_multiplier: 1.0,
        logits_divisor: 1.0,
        attention_softcap: None,
        logits_softcap: None,
    })
}

/// The first of `fields` that is set, as an activation.
pub(super) fn activation(config: &Config<'_>, fields: &[&str], default: Activation) -> Result<Activation> {
    for field in fields {
        match config.optional_text(field)? {
            None => {}
            Some("silu" | "swish") => return Ok(Activation::Silu),
            Some("gelu") => return Ok(Activation::Gelu),
            Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => return Ok(Activation::GeluTanh),
            Some(other) => {
                let known = "silu, gelu, gelu_pytorch_tanh";
                return Err(config.error(field, format!("{other:?} is not supported; known: {known}")));
            }
        }
    }
    Ok(default)
}

/// Set the kinds of layers: the list `layer_types` if there is one, else `is_sliding(layer)`. Without a window, or with
/// one that covers every position, all layers are full.
pub(super) fn set_layer_kinds(
    config: &Config<'_>,
    spec: &mut DecoderSpec,
    window: Option<usize>,
    is_sliding: impl Fn(usize) -> bool,
) -> Result<()> {
    let mut sliding: Vec<bool> = (0..spec.layers).map(is_sliding).collect();
    if let Some(types) = config.optional_list("layer_types")? {
        if types.len() != spec.layers {
            let reason = format!("{} entries for {} layers", types.len(), spec.layers);
            return Err(config.error("layer_types", reason));
        }
        for (sliding, kind) in sliding.iter_mut().zip(types) {
            *sliding = match kind.as_str() {
                Some("sliding_attention") => true,
                Some("full_attention") => false,
                _ => return Err(config.error("layer_types", format!("{kind} is not supported"))),
            };
        }
    }
    if !sliding.contains(&true) {
        return Ok(());
    }
    let Some(window) = window else { return Err(config.error("sliding_window", "missing, but layers slide")) };
    if window < spec.max_position {
        spec.sliding_window = Some(window);
        let kinds = sliding.iter().map(|&s| if s { LayerKind::Sliding } else { LayerKind::Full });
        spec.layer_kinds = kinds.collect();
    }
    Ok(())
}

/// `attention_bias`: biases on q, k, v and, in most families, on the output projection.
pub(super) fn attention_bias(config: &Config<'_>) -> Result<bool> {
    config.flag("attention_bias", false)
}

/// Typed access to a configuration; every error names the field and the value found. `null` counts as absent.
#[derive(Clone, Copy)]
pub(super) struct Config<'a> {
    pub map: &'a Map<String, Value>,
    /// Path of `map` in the file, with a closing dot.
    pub prefix: &'static str,
}

impl<'a> Config<'a> {
    pub fn error(&self, field: &str, reason: impl Into<String>) -> Error {
        Error::format(FILE, format!("{}{field}", self.prefix), reason)
    }

    fn missing(&self, field: &str) -> Error {
        self.error(field, "missing")
    }

    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// A positive whole number.
    pub fn optional_size(&self, field: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        // Some converters write sizes as floats.
        let whole = value.as_f64().filter(|v| v.fract() == 0.0 && (1.0..=MAX_SIZE as f64).contains(v));
        let size = value.as_u64().or(whole.map(|v| v as u64)).filter(|n| (1..=MAX_SIZE).contains(n));
        match size.and_then(|n| usize::try_from(n).ok()) {
            Some(size) => Ok(Some(size)),
            None => Err(self.error(field, format!("{value} is not a whole number from 1 to {MAX_SIZE}"))),
        }
    }

    pub fn size_or(&self, field: &str, default: Option<usize>) -> Result<usize> {
        self.optional_size(field)?.or(default).ok_or_else(|| self.missing(field))
    }

    pub fn size(&self, field: &str) -> Result<usize> {
        self.size_or(field, None)
    }

    /// A finite number.
    pub fn optional_number(&self, field: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_f64().filter(|v| v.is_finite()) {
            Some(number) => Ok(Some(number)),
            None => Err(self.error(field, format!("{value} is not a number"))),
        }
    }

    pub fn number(&self, field: &str, default: Option<f64>) -> Result<f64> {
        self.optional_number(field)?.or(default).ok_or_else(|| self.missing(field))
    }

    pub fn flag(&self, field: &str, default: bool) -> Result<bool> {
        match self.get(field) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.error(field, format!("{other} is neither true nor false"))),
        }
    }

    pub fn optional_text(&self, field: &str) -> Result<Option<&'a str>> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.error(field, format!("{other} is not a string"))),
        }
    }

    pub fn required_text(&self, field: &str) -> Result<&'a str> {
        self.optional_text(field)?.ok_or_else(|| self.missing(field))
    }

    pub fn optional_list(&self, field: &str) -> Result<Option<&'a [Value]>> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(self.error(field, format!("{other} is not a list"))),
        }
    }

    pub fn optional_object(&self, field: &str) -> Result<Option<&'a Map<String, Value>>> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(self.error(field, format!("{other} is not an object"))),
        }
    }

    /// Refuse a switch that no graph here implements.
    pub fn refuse_flag(&self, field: &str) -> Result<()> {
        if self.flag(field, false)? {
            return Err(Error::Unsupported(format!("{FILE}: {}{field}: true is not supported", self.prefix)));
        }
        Ok(())
    }
}
