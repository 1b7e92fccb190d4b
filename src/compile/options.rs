//! Options of a compilation and how they fit a model.

use crate::artefact::{TOK_EMBEDDING, VISION_ENCODER};
use crate::error::{Error, Result};
use crate::formats::WeightFormat;
use crate::registry::{DecoderSpec, PositionRule};

/// Context that is compiled if nothing is asked for, in tokens; less if the model was made for less.
pub const DEFAULT_MAX_CONTEXT: usize = 2048;
/// Rows of a prefill block if nothing is asked for; less if the context is as short.
pub const DEFAULT_PREFILL_AR: usize = 32;

/// How a checkpoint is compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileOptions {
    /// Format of the weight matrices. With [`WeightFormat::W4`] the embedding table and the output head are stored as
    /// [`WeightFormat::W8`]; norms, biases and RoPE tables are always f32.
    pub weights: WeightFormat,
    /// Format of the vision encoder's matrices. `None`: as `weights`, but [`WeightFormat::W8`] for
    /// [`WeightFormat::W4`]: an encoder is small beside its decoder, and what it loses no later layer can bring back.
    /// Asked for by name, W4 is W4, except for the last matrix of the connector, which is W8.
    pub vision_weights: Option<WeightFormat>,
    /// Format of the token embedding of a model that sees. `None`: as `weights`. W4 is stored as W8, like the table of
    /// a text model.
    pub embedding_weights: Option<WeightFormat>,
    /// Which rows of the position table the patches of SmolVLM's encoder get.
    pub position_rule: PositionRule,
    /// Token slots of the graphs. `None`: [`DEFAULT_MAX_CONTEXT`] or what the model was made for, whichever is less.
    pub max_context: Option<usize>,
    /// Rows of a prefill block. `None`: [`DEFAULT_PREFILL_AR`], or half of a context that is as short.
    pub prefill_ar: Option<usize>,
    /// Registry name the checkpoint must be. `None`: whatever it is.
    pub model: Option<String>,
    /// Threads that pack weights. `None`: one per physical core.
    pub threads: Option<usize>,
}

impl CompileOptions {
    /// Defaults for everything but the weight format.
    pub fn new(weights: WeightFormat) -> Self {
        Self {
            weights,
            vision_weights: None,
            embedding_weights: None,
            position_rule: PositionRule::Identity,
            max_context: None,
            prefill_ar: None,
            model: None,
            threads: None,
        }
    }

    /// Format that is asked for a component.
    pub(super) fn format_of(&self, component: &str) -> WeightFormat {
        match component {
            VISION_ENCODER => self.vision_weights.unwrap_or(match self.weights {
                WeightFormat::W4 => WeightFormat::W8,
                other => other,
            }),
            TOK_EMBEDDING => self.embedding_weights.unwrap_or(self.weights),
            _ => self.weights,
        }
    }

    /// Context and block size for a decoder.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the option and both numbers.
    pub(super) fn context_and_block(&self, decoder: &DecoderSpec) -> Result<(usize, usize)> {
        let made_for = decoder.max_position;
        let context = self.max_context.unwrap_or(DEFAULT_MAX_CONTEXT.min(made_for));
        if context > made_for {
            let text = format!("max_context is {context}, but the model was made for at most {made_for} tokens");
            return Err(Error::invalid(text));
        }
        if context < 2 {
            let text = format!("max_context is {context}; a prompt token and a reply token need at least 2");
            return Err(Error::invalid(text));
        }
        let block = self.prefill_ar.unwrap_or(DEFAULT_PREFILL_AR.min(context / 2));
        if block == 0 || block >= context {
            let last = context - 1;
            let text = format!("prefill_ar is {block}; with max_context {context} it must be 1 to {last}");
            return Err(Error::invalid(text));
        }
        Ok((context, block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::ModelSpec;

    fn decoder(max_position: usize) -> DecoderSpec {
        let config = serde_json::json!({
            "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
            "max_position_embeddings": max_position, "rope_theta": 10000.0, "tie_word_embeddings": true,
        });
        ModelSpec::from_config(config.as_object().unwrap()).unwrap().decoder
    }

    fn chosen(context: Option<usize>, block: Option<usize>, max_position: usize) -> Result<(usize, usize)> {
        let options =
            CompileOptions { max_context: context, prefill_ar: block, ..CompileOptions::new(WeightFormat::F32) };
        options.context_and_block(&decoder(max_position))
    }

    #[test]
    fn defaults_follow_the_model() {
        assert_eq!(chosen(None, None, 8192).unwrap(), (2048, 32));
        assert_eq!(chosen(None, None, 40).unwrap(), (40, 20));
        assert_eq!(chosen(Some(512), Some(1), 8192).unwrap(), (512, 1));
    }

    #[test]
    fn errors_say_both_numbers() {
        for (context, block, numbers) in [
            (Some(9000), None, ["9000", "8192"]),
            (Some(512), Some(512), ["512", "511"]),
            (Some(512), Some(0), ["0", "511"]),
            (Some(1), None, ["1", "2"]),
        ] {
            let error = chosen(context, block, 8192).unwrap_err().to_string();
            assert!(numbers.iter().all(|number| error.contains(number)), "{error}");
        }
    }
}
