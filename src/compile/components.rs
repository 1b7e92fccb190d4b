//! What a model is compiled into: its components with their graphs, weights and formats.

use super::options::CompileOptions;
use super::storage::plan_storage;
use crate::artefact::{ComponentHeader, TEXT_DECODER, TOK_EMBEDDING, VISION_ENCODER};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::graph::{Graph, WeightProvider};
use crate::models::{
    BoundWeights, ModelWeights, build_decoder, build_embedding_decoder, build_token_embedding, build_vision_encoder,
};
use crate::registry::ModelSpec;

/// One component, ready to be written.
pub(super) struct PlannedComponent<'a> {
    /// Its name, e.g. `text_decoder`.
    pub name: &'static str,
    /// What was asked for: the name of a weight format, or where the formats come from.
    pub requested: &'static str,
    /// Graphs, and how each weight is stored.
    pub header: ComponentHeader,
    /// Where the weights come from.
    pub weights: Box<dyn WeightProvider + Sync + 'a>,
}

impl PlannedComponent<'_> {
    /// File name inside the artefact.
    pub fn file(&self) -> String {
        format!("{}.safetensors", self.name)
    }
}

/// Build the graphs of every component and bind their weights, in the order in which the components run.
pub(super) fn plan_components<'a>(
    checkpoint: &'a Checkpoint,
    spec: &ModelSpec,
    (context, prefill_ar): (usize, usize),
    options: &CompileOptions,
) -> Result<Vec<PlannedComponent<'a>>> {
    let ModelWeights { text_decoder, vision } = ModelWeights::new(spec, context, checkpoint)?;
    let (Some(vision_spec), Some(vision)) = (&spec.vision, vision) else {
        let graphs = build_decoder(&spec.decoder, context, prefill_ar)?;
        return Ok(vec![plan(TEXT_DECODER, graphs, text_decoder, options)?]);
    };
    let encoder = vec![build_vision_encoder(vision_spec)?];
    let embedding = build_token_embedding(&spec.decoder, prefill_ar)?;
    let decoder = build_embedding_decoder(&spec.decoder, context, prefill_ar)?;
    Ok(vec![
        plan(VISION_ENCODER, encoder, vision.encoder, options)?,
        plan(TOK_EMBEDDING, embedding, vision.token_embedding, options)?,
        plan(TEXT_DECODER, decoder, text_decoder, options)?,
    ])
}

fn plan<'a>(
    name: &'static str,
    graphs: Vec<Graph>,
    weights: BoundWeights<'a>,
    options: &CompileOptions,
) -> Result<PlannedComponent<'a>> {
    let format = options.format_of(name);
    let header = plan_storage(name, graphs, format)?;
    Ok(PlannedComponent { name, requested: format.name(), header, weights: Box::new(weights) })
}
