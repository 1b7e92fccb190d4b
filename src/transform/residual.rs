//! Residual scaling: a channel of the residual stream with values far beyond all others is kept divided by a power of two.
//!
//! Some decoders write one number of 10⁴ and more into the residual stream, at the first token, where all others stay below a
//! few hundred. On one 16-bit grid the step is then so wide that each of the two additions of a layer costs the others more than
//! 8-bit weights do. Dividing the channel wherever something is added to the stream, and multiplying in front of every norm that
//! reads it, computes the same in exact arithmetic; powers of two change no digit of a weight.

use crate::error::{Error, Result};
use crate::graph::{Graph, Op, WeightProvider};
use crate::models::decoder::{RESIDUAL_INVERSE, RESIDUAL_SCALE};
use std::collections::HashMap;
use std::ops::Range;

/// How far beyond the median a channel's largest value may be before the channel is scaled.
const OUTLIER: f32 = 8.0;
/// Largest factor: beyond it a scaled channel would lose too much itself.
const MOST: f32 = 4096.0;

/// A factor a channel of the residual stream, each a power of two and at least 1.
#[derive(Debug, Clone, PartialEq)]
pub struct ResidualScaling {
    factors: Vec<f32>,
}

/// What of a weight belongs to the channels of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channels {
    /// Its rows, or its elements if it is a vector.
    Rows,
    /// The elements of each row.
    Columns,
}

impl ResidualScaling {
    /// Factors for a stream whose channels have these largest magnitudes; `None` if no channel stands out.
    pub fn from_maxima(maxima: &[f32]) -> Option<Self> {
        let mut sorted = maxima.iter().copied().filter(|value| value.is_finite()).collect::<Vec<_>>();
        sorted.sort_by(f32::total_cmp);
        let limit = sorted.get(sorted.len() / 2)? * OUTLIER;
        let factor =
            |&value: &f32| if value > limit { (value / limit).log2().ceil().exp2().clamp(1.0, MOST) } else { 1.0 };
        let factors = maxima.iter().map(factor).collect::<Vec<_>>();
        (limit > 0.0 && factors.iter().any(|&factor| factor > 1.0)).then_some(Self { factors })
    }

    /// The factors that quantized weights carry, snapped back to powers of two.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a value that is no factor.
    pub fn from_stored(values: &[f32]) -> Result<Self> {
        let snap = |&value: &f32| match value.log2().round().exp2() {
            factor if (1.0..=MOST).contains(&factor) && (factor - value).abs() < 0.1 * factor => Ok(factor),
            _ => Err(Error::invalid(format!("{RESIDUAL_SCALE} holds {value}, which is no factor of a channel"))),
        };
        Ok(Self { factors: values.iter().map(snap).collect::<Result<_>>()? })
    }

    /// The factors.
    pub fn factors(&self) -> &[f32] {
        &self.factors
    }

    /// Number of channels that are scaled.
    pub fn scaled_channels(&self) -> usize {
        self.factors.iter().filter(|&&factor| factor > 1.0).count()
    }

    /// The weights of `graph`, a decoder, over a scaled stream.
    pub fn scale<'a>(&self, graph: &Graph, weights: &'a (dyn WeightProvider + Sync)) -> ScaledWeights<'a> {
        let inverse = self.factors.iter().map(|factor| factor.recip()).collect();
        ScaledWeights { weights, factors: inverse, writers: writers(graph), stored: Some(self.factors.clone()) }
    }

    /// The weights of `graph` over an ordinary stream, from weights over a scaled one.
    pub fn unscale<'a>(&self, graph: &Graph, weights: &'a (dyn WeightProvider + Sync)) -> ScaledWeights<'a> {
        ScaledWeights { weights, factors: self.factors.clone(), writers: writers(graph), stored: None }
    }
}

/// Weights of which those that write to the residual stream are multiplied channel by channel while they are read.
pub struct ScaledWeights<'a> {
    weights: &'a (dyn WeightProvider + Sync),
    factors: Vec<f32>,
    writers: HashMap<String, Channels>,
    /// The factors that the graph itself multiplies with, if it does.
    stored: Option<Vec<f32>>,
}

impl WeightProvider for ScaledWeights<'_> {
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        if let (Some(factors), RESIDUAL_SCALE | RESIDUAL_INVERSE) = (&self.stored, name) {
            if rows != (0..1) || out.len() != factors.len() {
                let length = out.len();
                return Err(Error::invalid(format!("weight {name}: rows {rows:?} into {length} elements")));
            }
            let inverse = name == RESIDUAL_INVERSE;
            out.iter_mut().zip(factors).for_each(|(out, factor)| *out = if inverse { factor.recip() } else { *factor });
            return Ok(());
        }
        self.weights.read_rows(name, rows.clone(), out)?;
        match self.writers.get(name) {
            Some(Channels::Columns) => {
                for row in out.chunks_exact_mut(self.factors.len().max(1)) {
                    row.iter_mut().zip(&self.factors).for_each(|(value, factor)| *value *= factor);
                }
            }
            Some(Channels::Rows) if rows == (0..1) && out.len() == self.factors.len() => {
                out.iter_mut().zip(&self.factors).for_each(|(value, factor)| *value *= factor);
            }
            Some(Channels::Rows) => {
                let width = out.len() / rows.len().max(1);
                for (row, factor) in out.chunks_exact_mut(width.max(1)).zip(self.factors.iter().skip(rows.start)) {
                    row.iter_mut().for_each(|value| *value *= factor);
                }
            }
            None => {}
        }
        Ok(())
    }
}

/// Weights whose products are added to the residual stream: found by walking back from the second operand of each addition to it.
fn writers(graph: &Graph) -> HashMap<String, Channels> {
    let mut producer = vec![None; graph.values.len()];
    for node in &graph.nodes {
        producer[node.output.0 as usize] = Some(node);
    }
    let name = |at: usize| graph.values[at].info.name.clone();
    let mut writers = HashMap::new();
    for node in &graph.nodes {
        if node.op == Op::Embedding {
            writers.insert(name(node.inputs[1].0 as usize), Channels::Columns);
        }
        let is_residual =
            node.op == Op::Add && ["attention_residual", "ffn_residual"].iter().any(|end| node.name.ends_with(end));
        if !is_residual {
            continue;
        }
        let mut branch = producer[node.inputs[1].0 as usize];
        while let Some(node) = branch {
            match node.op {
                Op::Scale { .. } => branch = producer[node.inputs[0].0 as usize],
                Op::Linear | Op::RmsNorm { .. } => {
                    for id in &node.inputs[1..] {
                        writers.insert(name(id.0 as usize), Channels::Rows);
                    }
                    break;
                }
                _ => break,
            }
        }
    }
    writers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Interpreter, Tensor};
    use crate::models::{DecoderForm, build_decoder_form};
    use crate::registry::ModelSpec;
    use serde_json::json;

    struct Waves;

    impl WeightProvider for Waves {
        fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
            let (seed, first) = (name.len() as f32, rows.start * (out.len() / rows.len().max(1)));
            out.iter_mut().enumerate().for_each(|(i, out)| *out = ((first + i) as f32 * 0.7 + seed).sin());
            Ok(())
        }
    }

    fn logits(graph: Graph, weights: &dyn WeightProvider) -> Vec<f32> {
        let inputs = graph.inputs.iter().map(|&id| {
            let info = &graph.value(id).info;
            match info.name.as_str() {
                "tokens" | "input_pos" => Tensor::from_i32(&info.name, &info.shape, &[0, 1, 2]).unwrap(),
                _ => Tensor::zeros(info.clone()).unwrap(),
            }
        });
        let inputs = inputs.collect::<Vec<_>>();
        let views = inputs.iter().map(Tensor::view).collect::<Vec<_>>();
        let outputs = Interpreter::new(graph, weights).unwrap().run(&views).unwrap();
        outputs[0].as_slice::<f32>().unwrap().to_vec()
    }

    #[test]
    fn only_channels_far_beyond_the_median_are_scaled_and_by_powers_of_two() {
        let mut maxima = vec![10.0; 16];
        assert_eq!(ResidualScaling::from_maxima(&maxima), None);
        maxima[3] = 26_000.0;
        maxima[5] = 79.0;
        let scaling = ResidualScaling::from_maxima(&maxima).unwrap();
        assert_eq!((scaling.factors()[3], scaling.scaled_channels()), (512.0, 1));
        let stored = scaling.factors().iter().map(|factor| factor * 1.0001).collect::<Vec<_>>();
        assert_eq!(ResidualScaling::from_stored(&stored).unwrap(), scaling);
        assert!(ResidualScaling::from_stored(&[0.3]).is_err());
        assert_eq!(ResidualScaling::from_maxima(&[]), None);
        assert_eq!(ResidualScaling::from_maxima(&[0.0; 4]), None);
    }

    #[test]
    fn a_scaled_stream_gives_the_same_logits_and_can_be_undone() {
        for config in
            [json!({"model_type": "qwen2"}), json!({"model_type": "gemma3_text", "sliding_window_pattern": 2})]
        {
            let mut all = json!({"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 12, "vocab_size": 32,
                "max_position_embeddings": 64, "sliding_window": 2, "tie_word_embeddings": true});
            all.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
            let spec = ModelSpec::from_config(all.as_object().unwrap()).unwrap().decoder;
            let build = |residual_scaling| {
                let form = DecoderForm { separate_head: true, residual_scaling, ..DecoderForm::default() };
                build_decoder_form(&spec, form, "forward", 16, (0, 3)).unwrap()
            };
            let (plain, scaled) = (build(false), build(true));
            let scaling = ResidualScaling { factors: vec![1.0, 64.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1024.0] };
            let weights = scaling.scale(&scaled, &Waves);
            let (expected, found) = (logits(plain.clone(), &Waves), logits(scaled, &weights));
            assert!(expected.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-5), "{expected:?} {found:?}");
            assert_eq!(logits(plain.clone(), &scaling.unscale(&plain, &weights)), expected);
        }
    }
}
