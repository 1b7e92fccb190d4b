//! Stage `model_preparation`: a checkpoint to graphs, its weights bound to them.

use crate::checkpoint::Checkpoint;
use crate::compile::{self, DEFAULT_PREFILL_AR};
use crate::dataset::ModelText;
use crate::error::{Error, Result};
use crate::models::{DecoderForm, ModelWeights};
use crate::quantize::{ModelGraphs, ModelMode};
use crate::registry::{self, ModelSpec};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// File that a saved preparation is.
pub const PREPARED_FILE: &str = "prepared.json";
/// The layout of the file this build writes, and the only one it reads.
const SCHEMA_VERSION: u32 = 2;
/// Upstream's default context, in tokens.
pub const DEFAULT_MAX_SEQ_LEN: usize = 512;

/// How a checkpoint is prepared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PreparationOptions {
    /// Name of the model in the registry, in any case; the checkpoint must be that model. `None`: as the checkpoint says.
    pub model: Option<String>,
    /// Token slots: history, prompt and reply together.
    pub max_context: usize,
    /// Tokens of a prefill block.
    pub prefill_ar: usize,
    /// Which decoder graphs are deployed.
    pub mode: ModelMode,
    /// Lookahead decoding's n-gram size, window and verification width.
    pub lookahead: [usize; 3],
    /// R3 rotation of queries and keys; `None`: as the registry says of the model.
    pub r3: Option<bool>,
    /// Masked-softmax form; `None`: as the registry says of the model.
    pub masked_softmax: Option<bool>,
}

impl Default for PreparationOptions {
    fn default() -> Self {
        Self {
            model: None,
            max_context: DEFAULT_MAX_SEQ_LEN,
            prefill_ar: DEFAULT_PREFILL_AR,
            mode: ModelMode::Hybrid,
            lookahead: [5, 8, 8],
            r3: None,
            masked_softmax: None,
        }
    }
}

/// Where a checkpoint is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointSource {
    /// Hugging Face folder, GGUF file, or weights in Meta's layout.
    pub path: PathBuf,
    /// Meta's `params.json`, which makes it a checkpoint in Meta's layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<PathBuf>,
    /// A tokenizer instead of the checkpoint's own: a file, or a folder that holds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
}

impl CheckpointSource {
    /// A folder or file that brings everything along.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), params: None, tokenizer: None }
    }

    /// Open it.
    ///
    /// # Errors
    /// As [`Checkpoint::open`], [`Checkpoint::open_with_params`] and [`Checkpoint::with_tokenizer`].
    pub fn open(&self) -> Result<Checkpoint> {
        let checkpoint = match &self.params {
            Some(params) => Checkpoint::open_with_params(&self.path, params)?,
            None => Checkpoint::open(&self.path)?,
        };
        match &self.tokenizer {
            Some(tokenizer) => checkpoint.with_tokenizer(tokenizer),
            None => Ok(checkpoint),
        }
    }

    /// Its folders and files.
    pub(super) fn files(&self) -> Vec<&Path> {
        let others = self.params.iter().chain(&self.tokenizer);
        std::iter::once(&self.path).chain(others).map(PathBuf::as_path).collect()
    }

    /// The same, wherever the process works.
    fn absolute(&self) -> Self {
        let absolute = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        Self {
            path: absolute(&self.path),
            params: self.params.as_ref().map(absolute),
            tokenizer: self.tokenizer.as_ref().map(absolute),
        }
    }
}

/// A model whose graphs are built and whose weights have been found in the checkpoint.
#[derive(Debug)]
pub struct PreparedModel {
    source: CheckpointSource,
    checkpoint: Checkpoint,
    graphs: ModelGraphs,
    options: PreparationOptions,
}

/// A preparation as it is written down: quick to do again, so it holds what decides about it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    schema_version: u32,
    checkpoint: CheckpointSource,
    options: PreparationOptions,
    graphs: ModelGraphs,
}

impl PreparedModel {
    /// Look the model up, build its graphs, bind its weights. Nothing is copied: weights stay in the checkpoint.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an unknown model, listing those there are; a checkpoint that is another model or is incomplete;
    /// sizes that do not fit.
    pub fn new(checkpoint: Checkpoint, options: &PreparationOptions) -> Result<Self> {
        let mut model = ModelSpec::from_config(checkpoint.config())?;
        let entry = options.model.as_deref().map(registry::find).transpose()?;
        if let Some(entry) = entry {
            compile::check_entry(entry, &model)?;
            model.name = entry.name.into();
        }
        let [ngram, window, gcap] = options.lookahead;
        let decode_ar = match options.mode {
            ModelMode::Lookahead => lookahead_width(ngram, window, gcap)?,
            ModelMode::Kv | ModelMode::Hybrid => 1,
        };
        let form = DecoderForm {
            separate_head: true,
            half_split_rope: true,
            r3: options.r3.unwrap_or_else(|| entry.is_some_and(|entry| entry.hadamard_r3)),
            masked_softmax: options.masked_softmax.unwrap_or_else(|| entry.is_some_and(|entry| entry.masked_softmax)),
            ..DecoderForm::default()
        };
        let context_capacity = options.max_context;
        if options.prefill_ar >= context_capacity && options.mode != ModelMode::Kv {
            let block = options.prefill_ar;
            return Err(Error::invalid(format!(
                "prefill blocks of {block} tokens leave no room in a context of {context_capacity}: choose a smaller --prefill-ar-len"
            )));
        }
        let prefill_ar = options.prefill_ar.min(context_capacity.saturating_sub(1)).max(1);
        let graphs = ModelGraphs { model, form, context_capacity, prefill_ar, decode_ar, mode: options.mode };
        let source = CheckpointSource::new(checkpoint.path());
        let prepared = Self { source, checkpoint, graphs, options: options.clone() };
        prepared.graphs.components().into_iter().try_for_each(|name| prepared.graphs.deployed(name).map(drop))?;
        prepared.weights()?;
        Ok(prepared)
    }

    /// As [`new`](Self::new) for a checkpoint that is still to be opened; the preparation remembers its params and tokenizer.
    ///
    /// # Errors
    /// As [`CheckpointSource::open`] and [`new`](Self::new).
    pub fn from_source(source: &CheckpointSource, options: &PreparationOptions) -> Result<Self> {
        let prepared = Self::new(source.open()?, options)?;
        Ok(Self { source: source.clone(), ..prepared })
    }

    /// Prepare again what was saved in `dir`, from the checkpoint it was made from or, if that moved, from `checkpoint`.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::Format`] for a file that is malformed or of another version, or if the checkpoint is another
    /// model by now.
    pub fn load(dir: &Path, checkpoint: Option<&Path>) -> Result<Self> {
        let path = dir.join(PREPARED_FILE);
        let bytes = std::fs::read(&path).map_err(|e| Error::io(&path, e))?;
        let written: Written = serde_json::from_slice(&bytes)
            .map_err(|e| Error::format(&path, format!("line {}", e.line()), e.to_string()))?;
        if written.schema_version != SCHEMA_VERSION {
            let reason =
                format!("is {}, this build reads {SCHEMA_VERSION}: prepare the model again", written.schema_version);
            return Err(Error::format(&path, "schema_version", reason));
        }
        let source = CheckpointSource {
            path: checkpoint.map_or(written.checkpoint.path, Path::to_path_buf),
            ..written.checkpoint
        };
        let prepared = Self::from_source(&source, &written.options)?;
        // Both written and read once, so that both lost the same digits.
        let again = serde_json::to_string(&prepared.graphs).map_err(|e| Error::internal(format!("graphs: {e}")))?;
        let again: ModelGraphs = serde_json::from_str(&again).map_err(|e| Error::internal(format!("graphs: {e}")))?;
        if again != written.graphs {
            let reason =
                format!("{} is another model now than when it was prepared", prepared.checkpoint.path().display());
            return Err(Error::format(&path, "graphs", reason));
        }
        Ok(prepared)
    }

    /// Save the preparation in `dir`, so that [`load`](Self::load) can go on from there.
    ///
    /// # Errors
    /// [`Error::Io`]; a file of that name is then as it was.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let written = Written {
            schema_version: SCHEMA_VERSION,
            checkpoint: self.source.absolute(),
            options: self.options.clone(),
            graphs: self.graphs.clone(),
        };
        let json = serde_json::to_vec_pretty(&written).map_err(|e| Error::internal(format!("preparation: {e}")))?;
        super::files::write_atomically(&dir.join(PREPARED_FILE), &json)
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Where the checkpoint is.
    pub fn source(&self) -> &CheckpointSource {
        &self.source
    }

    /// The graphs.
    pub fn graphs(&self) -> &ModelGraphs {
        &self.graphs
    }

    /// How it was prepared.
    pub fn options(&self) -> &PreparationOptions {
        &self.options
    }

    /// The weights, bound to the checkpoint's tensors.
    ///
    /// # Errors
    /// A tensor that is missing, has another shape or no use.
    pub fn weights(&self) -> Result<ModelWeights<'_>> {
        let graphs = &self.graphs;
        ModelWeights::with_form(&graphs.model, graphs.form, graphs.context_capacity, &self.checkpoint)
    }

    /// Tokenizer, template and media settings.
    ///
    /// # Errors
    /// Missing or malformed files of the checkpoint.
    pub fn text(&self) -> Result<ModelText> {
        ModelText::from_checkpoint(&self.checkpoint)
    }
}

/// Tokens that one step of lookahead decoding takes: the power of two that holds `(window + gcap) · (ngram - 1)`.
///
/// # Errors
/// [`Error::InvalidArgument`] for settings out of range.
pub fn lookahead_width(ngram: usize, window: usize, gcap: usize) -> Result<usize> {
    let width = window.checked_add(gcap).and_then(|sum| sum.checked_mul(ngram.saturating_sub(1)));
    match width.and_then(usize::checked_next_power_of_two) {
        Some(width) if ngram >= 2 && window >= 1 && gcap >= 1 && width <= 1 << 16 => Ok(width),
        _ => Err(Error::invalid(format!(
            "lookahead decoding with ngram {ngram}, window {window} and gcap {gcap} is not possible: ngram must be at least 2, the \
             others at least 1"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookahead_width_is_upstreams() {
        assert_eq!(lookahead_width(5, 8, 8).unwrap(), 64);
        assert_eq!(lookahead_width(3, 4, 4).unwrap(), 16);
        assert!(lookahead_width(1, 8, 8).is_err() && lookahead_width(5, 0, 8).is_err());
        assert!(lookahead_width(usize::MAX, 8, 8).is_err());
    }
}
