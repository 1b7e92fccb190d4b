//! `params.json` to a Hugging Face configuration.

use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::Path;

/// No size may exceed this; real ones stay far below.
const MAX_SIZE: u64 = 1 << 26;
/// Context that Llama 3 was trained for before its frequencies were stretched.
const LLAMA3_CONTEXT: usize = 8192;
/// RoPE base from Llama 3 on.
const LLAMA3_THETA: f64 = 5e5;

/// Settings of upstream's other families, which would change what a Llama computes, and the value that changes nothing.
const OF_OTHER_FAMILIES: [(&str, &str); 17] = [
    ("use_hf_rope", "false"),
    ("attention_qkv_bias", "false"),
    ("use_qk_norm", "false"),
    ("use_ffn_learnable_scales", "false"),
    ("moe", "false"),
    ("act_fn", "\"silu\""),
    ("norm_type", "\"rmsnorm\""),
    ("partial_rotary_factor", "1"),
    ("embedding_scale_factor", "1"),
    ("residual_multiplier", "1"),
    ("logits_scaling", "1"),
    ("attention_multiplier", "null"),
    ("final_logit_softcapping", "null"),
    ("sliding_window", "null"),
    ("no_rope_layer_interval", "null"),
    ("quantization_args", "null"),
    ("lora_args", "null"),
];

/// A Llama's hyper-parameters.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Params {
    dim: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    pub(super) head_dim: usize,
    ffn: usize,
    vocab: usize,
    max_position: usize,
    norm_eps: f64,
    rope_theta: f64,
    /// Stretch of the frequencies, and the border of those that stay.
    scaling: Option<(f64, f64)>,
}

impl Params {
    /// Reads the object of a file; `table_rows` is the vocabulary where the file leaves it open.
    pub(super) fn read(file: &Path, object: &Map<String, Value>, table_rows: Option<usize>) -> Result<Self> {
        let fields = Fields { file, object };
        fields.refuse_other_families()?;
        let (dim, heads) = (fields.size("dim")?, fields.size("n_heads")?);
        let head_dim = match fields.optional_size("head_dim")? {
            Some(head_dim) => head_dim,
            None if dim.is_multiple_of(heads) => dim / heads,
            None => return Err(fields.error("n_heads", format!("dim {dim} is not a multiple of {heads} heads"))),
        };
        if !head_dim.is_multiple_of(2) {
            return Err(fields.error("head_dim", format!("heads of {head_dim} rows have no pairs to rotate")));
        }
        // Llama 2 leaves the vocabulary to its tokenizer.
        let open = matches!(fields.get("vocab_size"), Some(size) if size.as_i64() == Some(-1));
        let vocab = if open { None } else { fields.optional_size("vocab_size")? };
        let rope_theta = match fields.optional_number("rope_theta")? {
            Some(theta) => theta,
            None => fields.optional_number("rope_freq_base")?.unwrap_or(1e4),
        };
        let scaling = match fields.flag("use_scaled_rope")? {
            true => {
                let factor = fields.optional_number("rope_scale_factor")?.unwrap_or(published_stretch(dim));
                Some((factor, fields.optional_number("high_freq_factor")?.unwrap_or(4.0)))
            }
            false => None,
        };
        Ok(Self {
            dim,
            layers: fields.size("n_layers")?,
            heads,
            kv_heads: fields.optional_size("n_kv_heads")?.unwrap_or(heads),
            head_dim,
            ffn: match fields.optional_size("hidden_dim")? {
                Some(width) => width,
                None => fields.ffn_width(dim)?,
            },
            vocab: vocab.or(table_rows).ok_or_else(|| fields.error("vocab_size", "missing"))?,
            max_position: match fields.optional_size("max_seq_len")? {
                Some(length) => length,
                None => trained_context(rope_theta, scaling),
            },
            norm_eps: fields.optional_number("norm_eps")?.unwrap_or(1e-5),
            rope_theta,
            scaling,
        })
    }

    /// The same as a `config.json`. `tied`: the head is the embedding table.
    pub(super) fn hugging_face_config(&self, tied: bool) -> Map<String, Value> {
        let scaling = self.scaling.map(|(factor, high)| {
            json!({
                "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": high,
                "original_max_position_embeddings": LLAMA3_CONTEXT,
            })
        });
        let config = json!({
            "model_type": "llama", "hidden_size": self.dim, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "intermediate_size": self.ffn, "hidden_act": "silu", "vocab_size": self.vocab,
            "max_position_embeddings": self.max_position, "rms_norm_eps": self.norm_eps, "rope_theta": self.rope_theta,
            "rope_scaling": scaling, "tie_word_embeddings": tied,
        });
        match config {
            Value::Object(config) => config,
            _ => Map::new(),
        }
    }
}

/// The stretch that Meta published models of that width with: 32 for Llama 3.2 1B and 3B, 8 for the larger ones. Their files
/// do not say.
fn published_stretch(dim: usize) -> f64 {
    if dim <= 3072 { 32.0 } else { 8.0 }
}

/// The context that a model was trained for, as far as its frequencies tell.
fn trained_context(rope_theta: f64, scaling: Option<(f64, f64)>) -> usize {
    match scaling {
        Some(_) => 131_072,
        None if rope_theta >= LLAMA3_THETA => LLAMA3_CONTEXT,
        None => 2048,
    }
}

/// Meta's width of the MLP: two thirds of four times the model's, times `multiplier`, rounded up to a multiple of
/// `multiple_of`; every product is rounded down.
fn ffn_width(dim: usize, multiple_of: usize, multiplier: Option<f64>) -> usize {
    let width = 8 * dim / 3;
    let width = multiplier.map_or(width, |multiplier| (multiplier * width as f64) as usize);
    width.next_multiple_of(multiple_of)
}

/// Typed access to the object; every error names the file, the field and the value found. `null` counts as absent.
struct Fields<'a> {
    file: &'a Path,
    object: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn error(&self, field: &str, reason: impl Into<String>) -> Error {
        Error::format(self.file, field, reason)
    }

    fn get(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    fn optional_size(&self, field: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let size = value.as_u64().filter(|size| (1..=MAX_SIZE).contains(size));
        let size = size.and_then(|size| usize::try_from(size).ok());
        size.map(Some).ok_or_else(|| self.error(field, format!("{value} is not a whole number from 1 to {MAX_SIZE}")))
    }

    fn size(&self, field: &str) -> Result<usize> {
        self.optional_size(field)?.ok_or_else(|| self.error(field, "missing"))
    }

    /// A positive number.
    fn optional_number(&self, field: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        number.map(Some).ok_or_else(|| self.error(field, format!("{value} is not a number above 0")))
    }

    fn flag(&self, field: &str) -> Result<bool> {
        match self.get(field) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.error(field, format!("{other} is neither true nor false"))),
        }
    }

    fn ffn_width(&self, dim: usize) -> Result<usize> {
        let multiplier = self.optional_number("ffn_dim_multiplier")?;
        if let Some(multiplier) = multiplier.filter(|multiplier| *multiplier > 1024.0) {
            return Err(self.error("ffn_dim_multiplier", format!("{multiplier} is above 1024")));
        }
        Ok(ffn_width(dim, self.optional_size("multiple_of")?.unwrap_or(256), multiplier))
    }

    fn refuse_other_families(&self) -> Result<()> {
        let changes = |field: &str, neutral: &str| {
            let value = self.get(field)?;
            let text = value.to_string();
            let same = text == neutral || value.as_f64().is_some_and(|v| neutral.parse() == Ok(v));
            (!same).then_some(text)
        };
        match OF_OTHER_FAMILIES.iter().find_map(|&(field, neutral)| Some((field, changes(field, neutral)?))) {
            None => Ok(()),
            Some((field, value)) => Err(Error::Unsupported(format!(
                "{}: {field}: {value} is not supported in Meta's layout: take the Hugging Face checkpoint of this model",
                self.file.display()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(object: Value) -> Result<Params> {
        Params::read(Path::new("params.json"), object.as_object().unwrap(), Some(512))
    }

    #[test]
    fn the_mlp_is_as_wide_as_meta_makes_it() {
        assert_eq!(ffn_width(64, 4, None), 172);
        assert_eq!(ffn_width(768, 32, None), 2048);
        assert_eq!(ffn_width(4096, 256, None), 11_008, "Llama 2 7B");
        assert_eq!(ffn_width(2048, 256, Some(1.5)), 8192, "Llama 3.2 1B");
        assert_eq!(ffn_width(3072, 256, Some(1.0)), 8192, "Llama 3.2 3B");
        assert_eq!(ffn_width(4096, 1024, Some(1.3)), 14_336, "Llama 3.1 8B");
    }

    #[test]
    fn published_files_are_read() {
        let stories = json!({"dim": 64, "multiple_of": 4, "n_heads": 8, "n_layers": 5, "n_kv_heads": 4,
                             "norm_eps": 1e-5, "vocab_size": 512});
        let params = read(stories).unwrap();
        assert_eq!((params.ffn, params.head_dim, params.kv_heads, params.vocab), (172, 8, 4, 512));
        assert_eq!((params.rope_theta, params.scaling, params.max_position), (1e4, None, 2048));

        let llama3_2 = json!({"dim": 2048, "ffn_dim_multiplier": 1.5, "multiple_of": 256, "n_heads": 32,
                              "n_kv_heads": 8, "n_layers": 16, "norm_eps": 1e-5, "rope_theta": 500000.0,
                              "use_scaled_rope": true, "vocab_size": 128256});
        let params = read(llama3_2).unwrap();
        assert_eq!((params.ffn, params.head_dim, params.scaling), (8192, 64, Some((32.0, 4.0))));
        assert_eq!(params.max_position, 131_072);

        let llama2 = json!({"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-5,
                            "vocab_size": -1, "max_seq_len": 4096, "n_kv_heads": null});
        let params = read(llama2).unwrap();
        assert_eq!((params.vocab, params.kv_heads, params.max_position), (512, 32, 4096));
    }

    #[test]
    fn what_a_file_states_is_not_guessed() {
        let stated = json!({"dim": 64, "n_heads": 4, "n_layers": 1, "head_dim": 32, "hidden_dim": 100,
                            "use_scaled_rope": true, "rope_scale_factor": 16, "high_freq_factor": 8,
                            "rope_freq_base": 2e5, "residual_multiplier": 1, "act_fn": "silu", "moe": false});
        let params = read(stated).unwrap();
        assert_eq!((params.head_dim, params.ffn, params.rope_theta), (32, 100, 2e5));
        assert_eq!(params.scaling, Some((16.0, 8.0)));
        let config = params.hugging_face_config(true);
        assert_eq!(config["rope_scaling"]["factor"], 16.0);
        assert_eq!((&config["model_type"], &config["tie_word_embeddings"]), (&json!("llama"), &json!(true)));
    }

    #[test]
    fn wrong_fields_are_named_with_their_value() {
        let cases = [
            ("dim", json!(null), "dim: missing"),
            ("dim", json!(0), "dim: 0 is not"),
            ("n_layers", json!("5"), "n_layers: \"5\""),
            ("n_heads", json!(7), "n_heads: dim 64 is not a multiple of 7"),
            ("n_heads", json!(64), "heads of 1 rows"),
            ("vocab_size", json!(-2), "vocab_size: -2"),
            ("norm_eps", json!(-1.0), "norm_eps: -1"),
            ("ffn_dim_multiplier", json!(1e300), "ffn_dim_multiplier: 1"),
            ("multiple_of", json!(1u64 << 40), "multiple_of"),
            ("use_scaled_rope", json!(1), "use_scaled_rope: 1 is neither"),
            ("use_hf_rope", json!(true), "use_hf_rope: true is not supported"),
            ("embedding_scale_factor", json!(12.0), "embedding_scale_factor: 12"),
            ("lora_args", json!({"rank": 8}), "lora_args"),
        ];
        for (field, value, expected) in cases {
            let mut object = json!({"dim": 64, "n_heads": 8, "n_layers": 5});
            object[field] = value;
            let error = read(object).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("params.json"), "{expected} is missing in: {error}");
        }
    }
}
