//! GGUF metadata as a Hugging Face `config.json` object.

use super::architecture::Architecture;
use super::header::GgufFile;
use super::names::{ROPE_FACTORS, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT};
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};

/// Positions are rotated with this base unless the file says otherwise.
const DEFAULT_ROPE_THETA: f64 = 10000.0;
/// Gemma 3's sliding layers keep the base of Gemma 1 and 2.
const GEMMA3_LOCAL_ROPE_THETA: f64 = 10000.0;
/// One layer in so many is a full-attention layer in Gemma 3.
const GEMMA3_SLIDING_PATTERN: u64 = 6;
/// One layer in so many has no RoPE in SmolLM3. GGUF does not store it.
const SMOLLM3_NO_ROPE_INTERVAL: u64 = 4;
/// Layers of the 27B models of Gemma 2 and 3: the only ones that scale attention by another width than the head's.
const GEMMA_27B_LAYERS: [(Architecture, usize); 2] = [(Architecture::Gemma2, 46), (Architecture::Gemma3, 62)];

/// Reads `{architecture}.*` keys.
struct Keys<'a> {
    gguf: &'a GgufFile,
    architecture: Architecture,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.gguf_name())
    }

    fn float(&self, name: &str) -> Result<Option<f64>> {
        self.gguf.metadata.float(&self.key(name))
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        Ok(self.gguf.metadata.text(&self.key(name))?.map(str::to_owned))
    }

    fn size(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        match self.gguf.metadata.uniform_unsigned(&key)? {
            None => Ok(None),
            Some(value) => match usize::try_from(value) {
                Ok(size) if size > 0 => Ok(Some(size)),
                _ => Err(self.gguf.metadata.malformed(&key, format!("{value} is not a size"))),
            },
        }
    }

    fn required_size(&self, name: &str) -> Result<usize> {
        let size = self.size(name)?;
        size.ok_or_else(|| self.gguf.metadata.malformed(&self.key(name), "missing"))
    }

    fn has_tensor(&self, name: &str) -> bool {
        self.gguf.tensors.contains_key(name)
    }
}

/// The sizes that other parts of the reader need too.
pub(super) struct HeadCounts {
    pub(super) query: usize,
    pub(super) key_value: usize,
}

pub(super) fn head_counts(gguf: &GgufFile, architecture: Architecture) -> Result<HeadCounts> {
    let keys = Keys { gguf, architecture };
    let query = keys.required_size("attention.head_count")?;
    Ok(HeadCounts { query, key_value: keys.size("attention.head_count_kv")?.unwrap_or(query) })
}

/// The whole object.
pub(super) fn hugging_face_config(gguf: &GgufFile, architecture: Architecture) -> Result<Map<String, Value>> {
    let keys = Keys { gguf, architecture };
    if gguf.metadata.unsigned(&keys.key("expert_count"))?.is_some_and(|experts| experts > 0) {
        return Err(Error::Unsupported(format!(
            "{}: mixture-of-experts models cannot be read",
            gguf.file.path().display()
        )));
    }
    let shape = Shape::read(&keys)?;
    let mut config = Map::new();
    for part in [shape.to_json(&keys)?, token_ids(gguf)?, rope(&keys, &shape)?, family_extras(&keys, &shape)?] {
        config.extend(part);
    }
    Ok(config)
}

/// Sizes of the decoder.
struct Shape {
    hidden: usize,
    layers: usize,
    heads: HeadCounts,
    head_dim: usize,
    max_position: usize,
}

impl Shape {
    fn read(keys: &Keys<'_>) -> Result<Self> {
        let hidden = keys.required_size("embedding_length")?;
        let heads = head_counts(keys.gguf, keys.architecture)?;
        let head_dim = keys.size("attention.key_length")?.unwrap_or(hidden / heads.query);
        if head_dim == 0 {
            let reason = format!("{} heads do not fit into a width of {hidden}", heads.query);
            return Err(keys.gguf.metadata.malformed(&keys.key("attention.head_count"), reason));
        }
        Ok(Shape {
            hidden,
            layers: keys.required_size("block_count")?,
            heads,
            head_dim,
            max_position: keys.required_size("context_length")?,
        })
    }

    fn to_json(&self, keys: &Keys<'_>) -> Result<Map<String, Value>> {
        const EMBEDDING: &str = "token_embd.weight";
        let embedding = keys.gguf.tensors.get(EMBEDDING);
        let Some(vocabulary) = embedding.and_then(|tensor| tensor.shape.first()) else {
            return Err(Error::format(keys.gguf.file.path(), EMBEDDING, "the tensor is missing"));
        };
        let epsilon_key = "attention.layer_norm_rms_epsilon";
        let epsilon = keys.float(epsilon_key)?;
        let epsilon = epsilon.ok_or_else(|| keys.gguf.metadata.malformed(&keys.key(epsilon_key), "missing"))?;
        let activation = if keys.architecture.is_gemma() { "gelu_pytorch_tanh" } else { "silu" };
        Ok(object(json!({
            "architectures": [keys.architecture.class_name()],
            "model_type": keys.architecture.model_type(),
            "vocab_size": vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": keys.required_size("feed_forward_length")?,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads.query,
            "num_key_value_heads": self.heads.key_value,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position,
            "rms_norm_eps": epsilon,
            "hidden_act": activation,
            "attention_bias": keys.has_tensor("blk.0.attn_q.bias"),
            "mlp_bias": false,
            "tie_word_embeddings": !keys.has_tensor("output.weight"),
        })))
    }
}

fn token_ids(gguf: &GgufFile) -> Result<Map<String, Value>> {
    let mut ids = Map::new();
    for (key, name) in
        [("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id"), ("unknown", "unk_token_id")]
    {
        if let Some(id) = gguf.metadata.token_id(&format!("tokenizer.ggml.{key}_token_id"))? {
            ids.insert(name.into(), id.into());
        }
    }
    Ok(ids)
}

/// Base, rotated share and scaling of the rotary embedding.
fn rope(keys: &Keys<'_>, shape: &Shape) -> Result<Map<String, Value>> {
    let theta = keys.float("rope.freq_base")?.unwrap_or(DEFAULT_ROPE_THETA);
    let rotary_dim = keys.size("rope.dimension_count")?.unwrap_or(shape.head_dim);
    let mut rope = object(json!({"rope_theta": theta}));
    if rotary_dim < shape.head_dim {
        rope.insert("partial_rotary_factor".into(), json!(rotary_dim as f64 / shape.head_dim as f64));
    }
    rope.insert("rope_scaling".into(), rope_scaling(keys, theta, rotary_dim)?);
    if let Some(original) = keys.size("rope.scaling.original_context_length")? {
        rope.insert("original_max_position_embeddings".into(), original.into());
    }
    Ok(rope)
}

fn rope_scaling(keys: &Keys<'_>, theta: f64, rotary_dim: usize) -> Result<Value> {
    let factors = |name: &str| keys.gguf.tensors.get(name).map(|tensor| keys.gguf.values(tensor));
    let original_context = keys.size("rope.scaling.original_context_length")?;
    if let (Some(short), Some(long)) = (factors(ROPE_FACTORS_SHORT), factors(ROPE_FACTORS_LONG)) {
        let mut scaling = json!({"type": "longrope", "short_factor": short, "long_factor": long});
        if let Some(factor) = keys.float("rope.scaling.attn_factor")? {
            scaling["attention_factor"] = factor.into();
        }
        return Ok(scaling);
    }
    if let Some(factors) = factors(ROPE_FACTORS) {
        let original_context = original_context.unwrap_or(LLAMA3_ORIGINAL_CONTEXT);
        return Ok(llama3_scaling(&factors, theta, rotary_dim, original_context)
            .unwrap_or_else(|| json!({"rope_type": "freq_factors", "rope_freq_factors": factors})));
    }
    let Some(factor) = keys.float("rope.scaling.factor")? else { return Ok(Value::Null) };
    match keys.text("rope.scaling.type")?.as_deref() {
        Some("none") => Ok(Value::Null),
        None | Some("linear") => Ok(json!({"rope_type": "linear", "factor": factor})),
        Some(other) => Ok(json!({
            "rope_type": other,
            "factor": factor,
            "original_max_position_embeddings": original_context,
        })),
    }
}

const LLAMA3_ORIGINAL_CONTEXT: usize = 8192;
const LLAMA3_LOW_FREQ_FACTOR: f64 = 1.0;
const LLAMA3_HIGH_FREQ_FACTOR: f64 = 4.0;

/// The parameters behind Llama 3's frequency divisors, if they are Llama 3's: GGUF stores only the divisors, so the
/// published parameters are tried and must give every one of them back.
fn llama3_scaling(divisors: &[f32], theta: f64, rotary_dim: usize, original_context: usize) -> Option<Value> {
    let factor = f64::from(divisors.iter().copied().fold(1.0, f32::max));
    // The divisors are f32; the factor of every released model is a multiple of one half.
    let factor = (factor * 2.0).round() / 2.0;
    let matches = divisors.len() == rotary_dim / 2
        && divisors.iter().enumerate().all(|(i, divisor)| {
            let wavelength = std::f64::consts::TAU * theta.powf(2.0 * i as f64 / rotary_dim as f64);
            let expected = llama3_divisor(wavelength, factor, original_context as f64);
            (f64::from(*divisor) / expected - 1.0).abs() < 1e-4
        });
    matches.then(|| {
        json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": LLAMA3_LOW_FREQ_FACTOR,
            "high_freq_factor": LLAMA3_HIGH_FREQ_FACTOR,
            "original_max_position_embeddings": original_context,
        })
    })
}

/// Short wavelengths stay, long ones are divided by `factor`, and between the two borders the inverse moves linearly.
fn llama3_divisor(wavelength: f64, factor: f64, original_context: f64) -> f64 {
    if wavelength < original_context / LLAMA3_HIGH_FREQ_FACTOR {
        1.0
    } else if wavelength > original_context / LLAMA3_LOW_FREQ_FACTOR {
        factor
    } else {
        let smooth = (original_context / wavelength - LLAMA3_LOW_FREQ_FACTOR)
            / (LLAMA3_HIGH_FREQ_FACTOR - LLAMA3_LOW_FREQ_FACTOR);
        1.0 / ((1.0 - smooth) / factor + smooth)
    }
}

/// What only some families have.
fn family_extras(keys: &Keys<'_>, shape: &Shape) -> Result<Map<String, Value>> {
    let mut extras = Map::new();
    let architecture = keys.architecture;
    if architecture.is_gemma() {
        extras.insert("hidden_activation".into(), "gelu_pytorch_tanh".into());
    }
    match architecture {
        Architecture::Gemma2 | Architecture::Gemma3 => {
            let is_27b = GEMMA_27B_LAYERS.contains(&(architecture, shape.layers));
            let scalar = if is_27b { shape.hidden / shape.heads.query } else { shape.head_dim };
            extras.insert("query_pre_attn_scalar".into(), scalar.into());
            extras.insert("sliding_window".into(), keys.required_size("attention.sliding_window")?.into());
            for (key, name) in [
                ("attn_logit_softcapping", "attn_logit_softcapping"),
                ("final_logit_softcapping", "final_logit_softcapping"),
            ] {
                extras.insert(name.into(), keys.float(key)?.into());
            }
        }
        Architecture::Granite => {
            for (key, name) in [
                ("attention.scale", "attention_multiplier"),
                ("embedding_scale", "embedding_multiplier"),
                ("residual_scale", "residual_multiplier"),
                ("logit_scale", "logits_scaling"),
            ] {
                if let Some(factor) = keys.float(key)? {
                    extras.insert(name.into(), factor.into());
                }
            }
        }
        Architecture::Phi3 => {
            extras.insert("sliding_window".into(), json!(keys.size("attention.sliding_window")?));
        }
        Architecture::SmolLm3 => {
            extras.insert("no_rope_layer_interval".into(), SMOLLM3_NO_ROPE_INTERVAL.into());
        }
        Architecture::Qwen2 | Architecture::Qwen3 => {
            extras.insert("use_sliding_window".into(), false.into());
        }
        Architecture::Llama | Architecture::Gemma | Architecture::Glm4 => {}
    }
    if architecture == Architecture::Gemma3 {
        let local_theta = keys.float("rope.freq_base_swa")?.unwrap_or(GEMMA3_LOCAL_ROPE_THETA);
        extras.insert("rope_local_base_freq".into(), local_theta.into());
        extras.insert("sliding_window_pattern".into(), GEMMA3_SLIDING_PATTERN.into());
    }
    Ok(extras)
}

/// The map inside a JSON object literal.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_parameters_are_recognised_from_their_divisors() {
        let (theta, dim) = (500000.0, 64);
        let divisors = |factor, original| -> Vec<f32> {
            let wavelength = |i| std::f64::consts::TAU * f64::powf(theta, 2.0 * f64::from(i) / 64.0);
            (0..32).map(|i| llama3_divisor(wavelength(i), factor, original) as f32).collect()
        };
        let found = llama3_scaling(&divisors(32.0, 8192.0), theta, dim, 8192).expect("Llama 3.2's parameters");
        assert_eq!(found["factor"], 32.0);
        assert_eq!(found["original_max_position_embeddings"], 8192);
        assert_eq!(llama3_scaling(&divisors(32.0, 4096.0), theta, dim, 8192), None, "another original context");
        assert_eq!(llama3_scaling(&divisors(32.0, 8192.0)[1..], theta, dim, 8192), None, "another length");
    }
}
