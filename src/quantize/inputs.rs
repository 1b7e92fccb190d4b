//! Inputs of a decoder graph over a whole sequence.

use super::forward::Input;
use super::plan::BLOCKED;
use crate::error::{Error, Result};
use crate::graph::{DType, Graph, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// Masks and positions by length, shared by all sequences that are as long.
#[derive(Debug, Default)]
pub struct DecoderInputs {
    shared: HashMap<(usize, usize, Option<usize>), Input>,
}

/// What goes into a decoder.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// Token ids.
    Tokens(&'a [u32]),
    /// Rows `[tokens, hidden]` for a decoder beside an encoder.
    Hidden(&'a [f32]),
}

impl DecoderInputs {
    /// The inputs of `graph`, in contract order: rows, masks (0 or -255), positions from 0, a cache without columns. Only the first
    /// `real` rows may be attended to and attend; the others are padding and blocked from everything. `window` is the length of
    /// the attention window of sliding layers.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the rows are not as many as the graph takes.
    pub fn of(&mut self, graph: &Graph, rows: Rows<'_>, real: usize, window: Option<usize>) -> Result<Vec<Input>> {
        let mut inputs = Vec::with_capacity(graph.inputs.len());
        for &id in &graph.inputs {
            let info = &graph.value(id).info;
            let (name, shape) = (info.name.as_str(), info.shape.as_slice());
            inputs.push(match (name, shape) {
                ("tokens" | "hidden_states", _) => Arc::new(first_input(name, shape, rows)?),
                ("attention_mask", &[_, _, rows, _]) => self.mask(name, shape, rows, real, None)?,
                ("window_mask", &[_, _, rows, _]) => self.mask(name, shape, rows, real, window)?,
                ("input_pos", &[_, rows]) => {
                    let positions = (0..rows).map(|position| i32::try_from(position).unwrap_or(i32::MAX));
                    Arc::new(Tensor::from_i32(name, shape, &positions.collect::<Vec<_>>())?)
                }
                _ if shape.contains(&0) && info.dtype == DType::F32 => Arc::new(Tensor::from_f32(name, shape, &[])?),
                _ => {
                    let graph = &graph.name;
                    return Err(Error::internal(format!(
                        "graph {graph} has an input {name} that calibration does not know"
                    )));
                }
            });
        }
        Ok(inputs)
    }

    fn mask(&mut self, name: &str, shape: &[usize], rows: usize, real: usize, window: Option<usize>) -> Result<Input> {
        let key = (rows, real, window);
        if let Some(mask) = self.shared.get(&key).filter(|mask| mask.info().name == name) {
            return Ok(Arc::clone(mask));
        }
        let mut mask = vec![BLOCKED; rows * rows];
        for (row, mask) in mask.chunks_exact_mut(rows.max(1)).take(real).enumerate() {
            let first = window.map_or(0, |window| (row + 1).saturating_sub(window));
            mask[first..=row].fill(0.0);
        }
        let mask = Arc::new(Tensor::from_f32(name, shape, &mask)?);
        self.shared.insert(key, Arc::clone(&mask));
        Ok(mask)
    }
}

fn first_input(name: &str, shape: &[usize], rows: Rows<'_>) -> Result<Tensor> {
    match rows {
        Rows::Tokens(tokens) => {
            let id = |&token: &u32| {
                i32::try_from(token)
                    .map_err(|_| Error::invalid(format!("token id {token} is larger than any vocabulary")))
            };
            Tensor::from_i32(name, shape, &tokens.iter().map(id).collect::<Result<Vec<_>>>()?)
        }
        Rows::Hidden(rows) => Tensor::from_f32(name, shape, rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::graphs::{ModelGraphs, ModelMode};
    use crate::registry::ModelSpec;
    use serde_json::json;

    #[test]
    fn padding_is_blocked_and_windows_are_kept() {
        let config = json!({
            "model_type": "gemma3_text", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 12, "vocab_size": 32, "sliding_window": 2,
            "sliding_window_pattern": 2, "max_position_embeddings": 64
        });
        let graphs = ModelGraphs {
            model: ModelSpec::from_config(config.as_object().unwrap()).unwrap(),
            form: Default::default(),
            context_capacity: 16,
            prefill_ar: 4,
            decode_ar: 1,
            mode: ModelMode::Hybrid,
        };
        let graph = graphs.whole("text_decoder", 4).unwrap();
        let inputs = DecoderInputs::default().of(&graph, Rows::Tokens(&[1, 2, 3, 0]), 3, Some(2)).unwrap();
        let mask = |at: usize| {
            let values = inputs[at].view().as_slice::<f32>().unwrap().to_vec();
            values.iter().map(|value| if *value == 0.0 { 'x' } else { '.' }).collect::<String>()
        };
        assert_eq!((mask(1).as_str(), mask(2).as_str()), ("x...xx..xxx.....", "x...xx...xx....."));
        assert_eq!(inputs[3].view().as_slice::<i32>().unwrap(), [0, 1, 2, 3]);
        assert!(inputs[4..].iter().all(|cache| cache.info().shape.contains(&0)));
        assert!(DecoderInputs::default().of(&graph, Rows::Tokens(&[1, 2]), 2, None).is_err());
    }
}
