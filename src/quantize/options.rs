//! How a model is quantized.

use super::dtype::{QuantDtype, WeightGranularity};
use super::fit::WeightOptions;
use super::recipe::{Recipe, Rule};
use crate::artefact::{TEXT_DECODER, TOK_EMBEDDING};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Tokens that go through a model together if nothing else is asked for.
pub const DEFAULT_TOKENS_AT_ONCE: usize = 8192;

/// Precision of an encoder, which is a choice of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EncoderPrecision {
    /// Quantized where conversations have one picture, float where they have several, as upstream advises.
    #[default]
    Auto,
    /// Not quantized.
    Float,
    /// Quantized by its recipe.
    Quantized,
}

/// Which rows of an encoder the decoder beside it is calibrated on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EncoderRows {
    /// Those that the encoder will deliver, quantized if it is.
    #[default]
    Delivered,
    /// Those of the float encoder, as upstream does it.
    Float,
}

/// Whether channels of the residual stream may be scaled, see [`ResidualScaling`](crate::transform::ResidualScaling).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResidualChannels {
    /// Where some stand out.
    #[default]
    Auto,
    /// Never: the graph is upstream's.
    AsTheyAre,
}

/// How a model is quantized.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuantizeOptions {
    /// Recipes by component, in place of the model's own.
    pub recipes: BTreeMap<String, Recipe>,
    /// Precision of the encoder.
    pub encoder: EncoderPrecision,
    /// Conversations will have several pictures.
    pub several_images: bool,
    /// What the decoder is calibrated on.
    pub encoder_rows: EncoderRows,
    /// Scaling of residual channels.
    pub residual: ResidualChannels,
    /// How scales and integers of weights are chosen.
    pub weights: WeightOptions,
    /// Pad samples to the whole context and look at the padding too, as upstream does.
    pub observe_padding: bool,
    /// Tokens that go through the model together: more is faster and takes more memory.
    pub tokens_at_once: usize,
    /// Samples that both models run side by side for the report; 0: none.
    pub report_samples: usize,
}

impl Default for QuantizeOptions {
    fn default() -> Self {
        Self {
            recipes: BTreeMap::new(),
            encoder: EncoderPrecision::Auto,
            several_images: false,
            encoder_rows: EncoderRows::Delivered,
            residual: ResidualChannels::Auto,
            weights: WeightOptions::default(),
            observe_padding: false,
            tokens_at_once: DEFAULT_TOKENS_AT_ONCE,
            report_samples: 1,
        }
    }
}

impl QuantizeOptions {
    /// Check what can be checked without a model.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the option.
    pub fn validate(&self) -> Result<()> {
        match self.tokens_at_once {
            0 => Err(Error::invalid("tokens_at_once is 0, it must be 1 or more")),
            _ => Ok(()),
        }
    }

    /// The recipe of a component of `model`: the one that was given, or the model's own; `None` if the component stays float.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a decoder without a recipe: it decides how wide the KV cache is at the boundary.
    pub fn recipe(&self, model: &str, component: &str) -> Result<Option<Recipe>> {
        let given = self.recipes.get(component);
        match component {
            TEXT_DECODER => match given.cloned().map_or_else(|| Recipe::of_model(model), Ok) {
                Ok(recipe) => Ok(Some(recipe)),
                Err(_) => Err(Error::invalid(format!(
                    "the decoder of {model} has no recipe, which decides about the bit width of the KV cache at its boundary: give \
                     one with --recipe, or a precision with --quant-dtype"
                ))),
            },
            TOK_EMBEDDING => Ok(Some(given.cloned().unwrap_or_else(|| Recipe::new(QuantDtype::A16W8)))),
            _ if !self.quantizes_encoder() => Ok(None),
            _ => given.cloned().map_or_else(|| Recipe::of_encoder().map(Some), |recipe| Ok(Some(recipe))),
        }
    }

    /// Whether the encoder is quantized.
    pub fn quantizes_encoder(&self) -> bool {
        match self.encoder {
            EncoderPrecision::Auto => !self.several_images,
            EncoderPrecision::Float => false,
            EncoderPrecision::Quantized => true,
        }
    }
}

impl Recipe {
    /// A recipe for all layers of a model, by the name of its integers: weights per channel, or in blocks of `block` inputs for
    /// `16a4w_block`; the head stays at 8 bits where the others get 4.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a block size of 0.
    pub fn uniform(dtype: QuantDtype, block: usize) -> Result<Self> {
        let mut recipe = Self::new(dtype);
        let granularity = match dtype {
            QuantDtype::A16W4Block => WeightGranularity::PerBlock(block),
            _ => WeightGranularity::PerChannel,
        };
        recipe.add(Rule::for_linear(dtype, granularity))?;
        if dtype.weight_bits() == 4 {
            let wide = if dtype.activation_bits() == 8 { QuantDtype::A8W8 } else { QuantDtype::A16W8 };
            recipe.add(Rule::for_name(r"output\.conv", wide, WeightGranularity::PerChannel))?;
        }
        Ok(recipe)
    }

    /// The recipe of vision encoders: 16-bit activations, 8-bit weights per channel, everything that is a matrix, the patch
    /// embedding too.
    ///
    /// # Errors
    /// None that a user can cause.
    pub fn of_encoder() -> Result<Self> {
        Self::uniform(QuantDtype::A16W8, 0)
    }
}
