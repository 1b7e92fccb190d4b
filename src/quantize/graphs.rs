//! The graphs of a model that is quantized.
//!
//! A decoder is calibrated as one graph over whole sequences, without a past, and deployed as `kv_forward` (one token) and, in
//! hybrid mode, `prefill_forward` (a block). All have the same nodes under the same names, so what was found for one holds for the
//! others. The same is true of the token embedding; an encoder has a single graph for both purposes.

use crate::artefact::{AUDIO_ENCODER, TEXT_DECODER, TOK_EMBEDDING, VISION_ENCODER};
use crate::error::{Error, Result};
use crate::graph::{DType, Graph, GraphBuilder, Op};
use crate::models::{
    DecoderForm, FORWARD, FirstInput, KV_FORWARD, PREFILL_FORWARD, build_decoder_form, build_token_embedding,
    build_vision_encoder,
};
use crate::registry::ModelSpec;
use crate::transform::decompose_silu;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Which decoder graphs are deployed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelMode {
    /// `kv_forward` alone: prompts go in token by token.
    Kv,
    /// `kv_forward` and `prefill_forward`.
    #[default]
    Hybrid,
    /// As hybrid; `kv_forward` takes the guesses of lookahead decoding at once.
    Lookahead,
}

/// A model as graphs: what it is, how it is written down, for which sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelGraphs {
    /// Name and hyper-parameters.
    pub model: ModelSpec,
    /// Form of the decoder.
    pub form: DecoderForm,
    /// Token slots: history, prompt and reply together.
    pub context_capacity: usize,
    /// Tokens of a prefill block.
    pub prefill_ar: usize,
    /// Tokens `kv_forward` takes: 1, or more in lookahead mode.
    pub decode_ar: usize,
    /// Which graphs are deployed.
    pub mode: ModelMode,
}

/// File of a quantized model that says how its graphs are built.
pub const GRAPHS_FILE: &str = "graphs.json";

impl ModelGraphs {
    /// Read how the graphs of the quantized model in `directory` are built.
    ///
    /// # Errors
    /// [`Error::NotFound`] or [`Error::Io`]; [`Error::Format`] naming the place for what is malformed.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(GRAPHS_FILE);
        let bytes = std::fs::read(&path).map_err(|e| Error::io(&path, e))?;
        serde_json::from_slice(&bytes).map_err(|e| Error::format(&path, format!("line {}", e.line()), e.to_string()))
    }

    /// Names of the components, in the order in which they run.
    pub fn components(&self) -> Vec<&'static str> {
        if self.model.vision.is_some() { vec![VISION_ENCODER, TOK_EMBEDDING, TEXT_DECODER] } else { vec![TEXT_DECODER] }
    }

    /// The graphs that are deployed of a component.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a component the model does not have; sizes that do not fit the model.
    pub fn deployed(&self, component: &str) -> Result<Vec<Graph>> {
        let with_prefill = self.mode != ModelMode::Kv;
        let graphs = match component {
            TEXT_DECODER => {
                let mut graphs = vec![self.decoder(KV_FORWARD, self.past(self.decode_ar)?, self.decode_ar)?];
                if with_prefill {
                    graphs.push(self.decoder(PREFILL_FORWARD, self.past(self.prefill_ar)?, self.prefill_ar)?);
                }
                graphs
            }
            TOK_EMBEDDING => {
                let mut graphs = build_token_embedding(&self.model.decoder, self.prefill_ar)?;
                graphs.truncate(if with_prefill { 2 } else { 1 });
                graphs
            }
            _ => vec![self.whole(component, 1)?],
        };
        graphs.iter().map(decompose_silu).collect()
    }

    /// The graph of a component over a whole sequence of `length` tokens, without a past (an encoder's graph is the same for any
    /// length).
    ///
    /// # Errors
    /// As [`deployed`](Self::deployed).
    pub fn whole(&self, component: &str, length: usize) -> Result<Graph> {
        let graph = match component {
            TEXT_DECODER => self.decoder(FORWARD, 0, length)?,
            TOK_EMBEDDING => self.token_rows(length)?,
            VISION_ENCODER if self.model.vision.is_some() => {
                build_vision_encoder(self.model.vision.as_ref().ok_or_else(|| self.no_component(component))?)?
            }
            AUDIO_ENCODER => {
                return Err(Error::Unsupported(format!(
                    "{component}: there is no graph of the {} audio encoder in this build",
                    self.model.name
                )));
            }
            _ => return Err(self.no_component(component)),
        };
        decompose_silu(&graph)
    }

    fn decoder(&self, name: &str, past: usize, ar: usize) -> Result<Graph> {
        let first = if self.model.vision.is_some() { FirstInput::HiddenStates } else { FirstInput::Tokens };
        let form = DecoderForm { first, ..self.form };
        build_decoder_form(&self.model.decoder, form, name, self.context_capacity, (past, ar))
    }

    fn past(&self, ar: usize) -> Result<usize> {
        match self.context_capacity.checked_sub(ar) {
            Some(past) if past > 0 && ar > 0 => Ok(past),
            _ => Err(Error::invalid(format!(
                "blocks of {ar} tokens leave no room for a past in a context of {} tokens",
                self.context_capacity
            ))),
        }
    }

    fn token_rows(&self, length: usize) -> Result<Graph> {
        let mut b = GraphBuilder::new(FORWARD);
        let tokens = b.input("tokens", DType::I32, &[1, length])?;
        let table =
            b.weight("tok_embeddings.weight", &[self.model.decoder.vocab_size, self.model.decoder.hidden_size])?;
        let rows = b.node("tok_embeddings", Op::Embedding, &[tokens, table])?;
        b.output(rows, "embeddings")?;
        b.finish()
    }

    fn no_component(&self, component: &str) -> Error {
        let have = self.components().join(", ");
        Error::NotFound(format!("model {} has no component {component}; it has: {have}", self.model.name))
    }
}
