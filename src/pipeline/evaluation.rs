//! How good a quantized model is, with the arithmetic of its quantize-dequantize nodes.

use super::quantization::{QuantizedModel, pool};
use crate::artefact::TEXT_DECODER;
use crate::error::{Error, Result};
use crate::graph::Node;
use crate::quantize::forward::{Forward, Sequence};
use crate::quantize::{ComponentFile, DecoderInputs, Rows};
use crate::runner::{EvalOptions, Perplexity, eval_windows, negative_log_likelihood};
use std::time::Instant;

/// Windows that go through the model together.
const WINDOWS_AT_ONCE: usize = 8;

/// Called with each layer, how many are done and how many there are; an error ends the evaluation.
pub type EvalProgressFn<'f> = dyn FnMut(&str, usize, usize) -> Result<()> + 'f;

impl QuantizedModel {
    /// Perplexity of `tokens` by the protocol of [`crate::runner::perplexity`]: every window cold, as one sequence.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a window beyond the context or a text with nothing to score, and for a model that sees, whose
    /// decoder takes no token ids; what the files report; what `progress` returns.
    pub fn perplexity(
        &self,
        tokens: &[u32],
        options: &EvalOptions,
        threads: Option<usize>,
        progress: &mut EvalProgressFn<'_>,
    ) -> Result<Perplexity> {
        if self.graphs().model.vision.is_some() {
            return Err(Error::invalid(
                "a decoder beside an encoder takes rows, not text: ask it questions with --suite instead",
            ));
        }
        let start = Instant::now();
        let windows = eval_windows(tokens, options, self.graphs().context_capacity)?;
        let path = self.artefact().component_path(TEXT_DECODER)?;
        let file = ComponentFile::open(&path)?;
        let weights = file.open_weights(&path.with_extension("safetensors"))?;
        let mut forward = Forward::new(pool(threads), &weights);
        let groups = windows.len().div_ceil(WINDOWS_AT_ONCE);
        let (mut nll, mut scored) = (0.0, 0usize);
        for (number, group) in windows.chunks(WINDOWS_AT_ONCE).enumerate() {
            let graphs = group.iter().map(|window| file.whole(self.graphs(), window.len() - 1));
            let graphs = graphs.collect::<Result<Vec<_>>>()?;
            let mut inputs = DecoderInputs::default();
            let mut sequences = Vec::with_capacity(group.len());
            for (window, graph) in group.iter().zip(&graphs) {
                // The last token is scored but predicts nothing.
                let fed = &window[..window.len() - 1];
                let window_size = self.graphs().model.decoder.sliding_window;
                sequences.push(Sequence::new(
                    graph,
                    &inputs.of(graph, Rows::Tokens(fed), fed.len(), window_size)?,
                    false,
                )?);
            }
            let mut before =
                |node: &Node, done: usize, layers: usize| progress(&node.name, number * layers + done, groups * layers);
            forward.run(&mut sequences, &mut before, &mut |sequence, node, values| {
                if node.name != last_node(&graphs[sequence]) {
                    return Ok(());
                }
                let vocabulary = values.len() / (group[sequence].len() - 1);
                for (logits, &target) in values.chunks_exact(vocabulary).zip(&group[sequence][1..]) {
                    nll += negative_log_likelihood(logits, target)?;
                    scored += 1;
                }
                Ok(())
            })?;
        }
        let mean_nll = nll / scored as f64;
        Ok(Perplexity {
            perplexity: mean_nll.exp(),
            mean_nll,
            scored_tokens: scored,
            windows: windows.len(),
            engine_ms: start.elapsed().as_secs_f64() * 1e3,
        })
    }
}

/// Name of the node whose result is the logits.
fn last_node(graph: &crate::graph::Graph) -> &str {
    let logits = graph.outputs[0];
    graph.nodes.iter().rev().find(|node| node.output == logits).map_or("", |node| node.name.as_str())
}
