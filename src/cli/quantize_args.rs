//! The options that say how a model is quantized, the same for `quantize` and `pipeline`.

use super::positive;
use clap::{Args, ValueEnum};
use etgenai::artefact::{AUDIO_ENCODER, TEXT_DECODER, TOK_EMBEDDING, VISION_ENCODER};
use etgenai::quantize::{
    EncoderPrecision, EncoderRows, ObserverKind, QuantDtype, QuantizeOptions, Recipe, ResidualChannels, Rounding,
    ScaleSearch, SearchGranularity, WeightOptions,
};
use etgenai::registry;
use etgenai::{Error, Result};
use std::path::{Path, PathBuf};

/// Inputs of a layer that share a scale if nothing else is said.
const DEFAULT_BLOCK: usize = 32;
/// Scales that a search tries if neither the user nor upstream says.
const DEFAULT_CANDIDATES: usize = 20;
/// Weight of a batch in a moving average: upstream's.
const DEFAULT_AVERAGE: f32 = 0.01;

/// How the model is quantized.
#[derive(Args, Clone)]
#[command(next_help_heading = "Quantization")]
pub struct QuantizeArgs {
    /// Integers of the decoder: 16a16w, 16a8w, 16a4w, 16a4w_block, 8a8w or 8a4w. Without it and without a recipe, the model's own
    #[arg(long, value_name = "DTYPE", value_parser = dtype)]
    quant_dtype: Option<QuantDtype>,
    /// Inputs of a layer that share a scale in 16a4w_block; must divide every layer
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = DEFAULT_BLOCK)]
    block_size: usize,
    /// Recipe of the decoder, or of a component (text_decoder=FILE, tok_embedding=FILE, vision_encoder=FILE); may be given several
    /// times
    #[arg(long, value_name = "[COMPONENT=]FILE", conflicts_with = "quant_dtype")]
    recipe: Vec<String>,
    /// Keep the KV cache in 8 bits
    #[arg(long)]
    kv8: bool,
    /// How ranges of activations are found: min_max, moving_average, histogram, percentile=0.9999. Without it as the recipe says
    #[arg(long, value_name = "KIND", value_parser = observer)]
    observer: Option<ObserverKind>,
    /// How scales of weights are chosen
    #[arg(long, value_enum, default_value_t = ScalesChoice::MinMax)]
    scales: ScalesChoice,
    /// What has a scale of its own in the search of seq_mse
    #[arg(long, value_enum, default_value_t = GranularityChoice::Block)]
    seq_mse_granularity: GranularityChoice,
    /// Scales that seq_mse tries; without it upstream's number for the model, or 20
    #[arg(long, value_name = "N", value_parser = positive)]
    candidates: Option<usize>,
    /// How weights are rounded: nearest, or gptq with error feedback from the calibration data
    #[arg(long, value_enum, default_value_t = RoundingChoice::Nearest)]
    rounding: RoundingChoice,
    /// Precision of an encoder: auto (quantized unless conversations have several pictures), float, or integers such as 16a8w
    #[arg(long, value_name = "PRECISION", value_parser = encoder_precision, default_value = "auto")]
    encoder_precision: EncoderChoice,
    /// Recipe of an encoder, which is quantized then
    #[arg(long, value_name = "FILE")]
    encoder_recipe: Option<PathBuf>,
    /// Conversations will have several pictures
    #[arg(long)]
    several_images: bool,
    /// What the decoder is calibrated on: rows of the encoder as it will be, or of the float one
    #[arg(long, value_enum, default_value_t = RowsChoice::Delivered)]
    encoder_rows: RowsChoice,
    /// Scale channels of the residual stream that stand out: auto, or off for upstream's graph
    #[arg(long, value_enum, default_value_t = ScalingChoice::Auto)]
    residual_scaling: ScalingChoice,
    /// Observe padding rows too, as upstream does
    #[arg(long)]
    observe_padding: bool,
    /// Samples that run through both models for the report; 0: none
    #[arg(long, value_name = "N", default_value_t = 1)]
    report_samples: usize,
}

/// `--scales`.
#[derive(Clone, Copy, ValueEnum)]
enum ScalesChoice {
    /// So that the largest weight is on the grid
    #[value(name = "min_max")]
    MinMax,
    /// So that the outputs are off least
    #[value(name = "seq_mse")]
    SeqMse,
}

/// `--seq-mse-granularity`.
#[derive(Clone, Copy, ValueEnum)]
enum GranularityChoice {
    /// One factor a layer, as upstream does it
    Layer,
    /// Each output channel
    Channel,
    /// Each block; a channel where there are no blocks
    Block,
}

/// `--rounding`.
#[derive(Clone, Copy, ValueEnum)]
enum RoundingChoice {
    /// Each weight to the nearest integer
    Nearest,
    /// Later weights correct the errors of earlier ones
    Gptq,
}

/// `--encoder-precision`.
#[derive(Clone, Copy, PartialEq)]
enum EncoderChoice {
    Auto,
    Float,
    Integers(QuantDtype),
}

/// `--encoder-rows`.
#[derive(Clone, Copy, ValueEnum)]
enum RowsChoice {
    /// As the encoder will deliver them, quantized if it is
    Delivered,
    /// Of the float encoder, as upstream does it
    Float,
}

/// `--residual-scaling`.
#[derive(Clone, Copy, ValueEnum)]
enum ScalingChoice {
    /// Where channels stand out
    Auto,
    /// Never
    Off,
}

fn dtype(text: &str) -> std::result::Result<QuantDtype, String> {
    QuantDtype::parse(text).map_err(|error| error.to_string())
}

fn encoder_precision(text: &str) -> std::result::Result<EncoderChoice, String> {
    match text {
        "auto" => Ok(EncoderChoice::Auto),
        "float" => Ok(EncoderChoice::Float),
        _ => dtype(text).map(EncoderChoice::Integers).map_err(|error| format!("{error}; or auto, or float")),
    }
}

fn observer(text: &str) -> std::result::Result<ObserverKind, String> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    let number = |default: Option<f64>| match value {
        Some(value) => value.parse::<f64>().map_err(|error| format!("{value:?}: {error}")),
        None => default.ok_or_else(|| format!("{name} needs a value, e.g. {name}=0.9999")),
    };
    let kind = match (name, value) {
        ("min_max", None) => ObserverKind::MinMax,
        ("histogram", None) => ObserverKind::Histogram,
        ("moving_average", _) => ObserverKind::MovingAverage(number(Some(f64::from(DEFAULT_AVERAGE)))? as f32),
        ("percentile", _) => ObserverKind::Percentile(number(None)?),
        _ => return Err("there are: min_max, moving_average[=WEIGHT], histogram, percentile=SHARE".into()),
    };
    etgenai::quantize::Observer::new(kind).map(|_| kind).map_err(|error| error.to_string())
}

impl QuantizeArgs {
    /// The options for a model with these components.
    ///
    /// # Errors
    /// A recipe that cannot be read or names a component that the model does not have; options that exclude each other; a decoder
    /// without a recipe.
    pub fn options(&self, model: &str, components: &[&str]) -> Result<QuantizeOptions> {
        let mut options = QuantizeOptions {
            several_images: self.several_images,
            encoder_rows: match self.encoder_rows {
                RowsChoice::Delivered => EncoderRows::Delivered,
                RowsChoice::Float => EncoderRows::Float,
            },
            residual: match self.residual_scaling {
                ScalingChoice::Auto => ResidualChannels::Auto,
                ScalingChoice::Off => ResidualChannels::AsTheyAre,
            },
            weights: self.weights(model),
            observe_padding: self.observe_padding,
            report_samples: self.report_samples,
            ..QuantizeOptions::default()
        };
        if let Some(dtype) = self.quant_dtype {
            options.recipes.insert(TEXT_DECODER.into(), Recipe::uniform(dtype, self.block_size)?);
        }
        for text in &self.recipe {
            let (component, path) = component_and_file(text)?;
            check_component(component, model, components)?;
            options.recipes.insert(component.into(), read_recipe(&path)?);
        }
        self.choose_encoder(&mut options, model, components)?;
        self.adapt_recipes(&mut options, model, components)?;
        Ok(options)
    }

    fn weights(&self, model: &str) -> WeightOptions {
        let granularity = match self.seq_mse_granularity {
            GranularityChoice::Layer => SearchGranularity::Layer,
            GranularityChoice::Channel => SearchGranularity::Channel,
            GranularityChoice::Block => SearchGranularity::Block,
        };
        let upstreams = registry::find(model).map_or(0, |entry| entry.seq_mse_candidates as usize);
        let candidates = self.candidates.unwrap_or(if upstreams > 0 { upstreams } else { DEFAULT_CANDIDATES });
        WeightOptions {
            scales: match self.scales {
                ScalesChoice::MinMax => ScaleSearch::MinMax,
                ScalesChoice::SeqMse => ScaleSearch::SeqMse { candidates, granularity },
            },
            rounding: match self.rounding {
                RoundingChoice::Nearest => Rounding::Nearest,
                RoundingChoice::Gptq => Rounding::GPTQ,
            },
        }
    }

    fn choose_encoder(&self, options: &mut QuantizeOptions, model: &str, components: &[&str]) -> Result<()> {
        let encoder = components.iter().find(|name| [VISION_ENCODER, AUDIO_ENCODER].contains(name));
        let asked =
            self.encoder_precision != EncoderChoice::Auto || self.encoder_recipe.is_some() || self.several_images;
        let Some(&encoder) = encoder else {
            return match asked {
                true => Err(Error::invalid(format!(
                    "{model} has no encoder: --encoder-precision, --encoder-recipe and --several-images are for models that see or \
                     hear"
                ))),
                false => Ok(()),
            };
        };
        options.encoder = match self.encoder_precision {
            EncoderChoice::Auto if self.encoder_recipe.is_some() || options.recipes.contains_key(encoder) => {
                EncoderPrecision::Quantized
            }
            EncoderChoice::Auto => EncoderPrecision::Auto,
            EncoderChoice::Float => EncoderPrecision::Float,
            EncoderChoice::Integers(_) => EncoderPrecision::Quantized,
        };
        match (self.encoder_precision, &self.encoder_recipe) {
            (EncoderChoice::Auto, Some(path)) => {
                options.recipes.insert(encoder.into(), read_recipe(path)?);
            }
            (_, Some(_)) => {
                return Err(Error::invalid("--encoder-precision and --encoder-recipe exclude each other"));
            }
            (EncoderChoice::Integers(dtype), None) => {
                options.recipes.insert(encoder.into(), Recipe::uniform(dtype, self.block_size)?);
            }
            (EncoderChoice::Auto | EncoderChoice::Float, None) => {}
        }
        Ok(())
    }

    /// `--kv8` and `--observer` change the recipes, wherever they come from.
    fn adapt_recipes(&self, options: &mut QuantizeOptions, model: &str, components: &[&str]) -> Result<()> {
        for &component in components {
            let Some(mut recipe) = options.recipe(model, component)? else { continue };
            let changes_cache = self.kv8 && component == TEXT_DECODER;
            if changes_cache {
                recipe.set_kv8(true);
            }
            if let Some(observer) = self.observer {
                recipe.set_observer(observer)?;
            }
            if changes_cache || self.observer.is_some() {
                options.recipes.insert(component.into(), recipe);
            }
        }
        Ok(())
    }
}

fn read_recipe(path: &Path) -> Result<Recipe> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::io(path, error))?;
    Recipe::from_json(&text, &path.display().to_string())
}

/// `FILE` is for the decoder. What looks like a path in front of the `=` is a part of one.
fn component_and_file(text: &str) -> Result<(&str, PathBuf)> {
    match text.split_once('=') {
        Some((component, file)) if !component.contains(['/', '\\', '.']) => match file {
            "" => Err(Error::invalid(format!("--recipe {text}: a file belongs behind the ="))),
            _ => Ok((component, file.into())),
        },
        _ => Ok((TEXT_DECODER, text.into())),
    }
}

fn check_component(component: &str, model: &str, components: &[&str]) -> Result<()> {
    if components.contains(&component) {
        return Ok(());
    }
    let known = components.join(", ");
    Err(Error::NotFound(format!("--recipe: {model} has no component {component:?}; it has: {known}")))
}

/// Components of a model, for recipes: as [`etgenai::quantize::ModelGraphs::components`] has them, when only its kind is known.
pub fn components_of(multimodal: bool) -> &'static [&'static str] {
    if multimodal { &[VISION_ENCODER, TOK_EMBEDDING, TEXT_DECODER] } else { &[TEXT_DECODER] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: QuantizeArgs,
    }

    fn options(arguments: &[&str], multimodal: bool) -> Result<QuantizeOptions> {
        let arguments = std::iter::once("x").chain(arguments.iter().copied());
        let line = Line::try_parse_from(arguments).map_err(|error| Error::invalid(error.to_string()))?;
        let model = if multimodal { "smolvlm_500m_instruct" } else { "smollm2_135m" };
        line.args.options(model, components_of(multimodal))
    }

    #[test]
    fn observers_are_read() {
        assert_eq!(observer("min_max"), Ok(ObserverKind::MinMax));
        assert_eq!(observer("percentile=0.999"), Ok(ObserverKind::Percentile(0.999)));
        assert_eq!(observer("moving_average"), Ok(ObserverKind::MovingAverage(0.01)));
        for wrong in ["percentile", "percentile=2", "moving_average=0", "histogram=1", "mean", ""] {
            assert!(observer(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_decoder_gets_what_is_asked_for() {
        let recipe = |arguments: &[&str]| {
            let options = options(arguments, false).unwrap();
            options.recipe("smollm2_135m", TEXT_DECODER).unwrap().unwrap()
        };
        assert_eq!(recipe(&[]).default_dtype(), QuantDtype::A16W8);
        let blocks = recipe(&["--quant-dtype", "16a4w_block", "--block-size", "16", "--kv8"]);
        assert_eq!((blocks.default_dtype(), blocks.kv_bits()), (QuantDtype::A16W4Block, 8));
        let histogram = recipe(&["--observer", "histogram"]);
        assert!(histogram.rules().iter().all(|rule| rule.observer == ObserverKind::Histogram));
    }

    #[test]
    fn encoders_are_a_choice_of_their_own() {
        let encoder = |arguments: &[&str]| options(arguments, true).map(|options| options.quantizes_encoder());
        assert!(encoder(&[]).unwrap() && !encoder(&["--several-images"]).unwrap());
        assert!(encoder(&["--several-images", "--encoder-precision", "16a8w"]).unwrap());
        assert!(!encoder(&["--encoder-precision", "float"]).unwrap());
        assert!(encoder(&["--encoder-precision", "int3"]).is_err());
        let error = options(&["--several-images"], false).unwrap_err().to_string();
        assert!(error.contains("has no encoder"), "{error}");
    }

    #[test]
    fn weights_are_fitted_as_asked() {
        let weights = |arguments: &[&str]| options(arguments, false).unwrap().weights;
        assert_eq!(weights(&[]), WeightOptions::default());
        let search = weights(&["--scales", "seq_mse", "--seq-mse-granularity", "channel", "--candidates", "7"]);
        let expected = ScaleSearch::SeqMse { candidates: 7, granularity: SearchGranularity::Channel };
        assert_eq!(search.scales, expected);
        assert_eq!(weights(&["--rounding", "gptq"]).rounding, Rounding::GPTQ);
        assert!(options(&["--candidates", "0"], false).is_err());
    }

    #[test]
    fn recipes_name_their_component() {
        assert_eq!(component_and_file("a.json").unwrap(), (TEXT_DECODER, "a.json".into()));
        assert_eq!(component_and_file("vision_encoder=a=b.json").unwrap(), ("vision_encoder", "a=b.json".into()));
        assert_eq!(component_and_file("./a=b.json").unwrap(), (TEXT_DECODER, "./a=b.json".into()));
        assert!(component_and_file("text_decoder=").is_err());
        let error = options(&["--recipe", "vision_encoder=x.json"], false).unwrap_err().to_string();
        assert!(error.contains("no component \"vision_encoder\""), "{error}");
    }
}
