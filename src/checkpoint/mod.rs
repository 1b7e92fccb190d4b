//! Weights in: a Hugging Face folder, one GGUF file or Meta's layout, memory-mapped and read row by row.
//!
//! [`Checkpoint`] presents all kinds in **Hugging Face terms**, so that nothing behind it needs to know where the
//! weights came from: tensor names (`model.layers.0.self_attn.q_proj.weight`), shapes (`[out, in]`), the order of the
//! rotary rows, the norm convention, the keys of `config.json` and the `tokenizer.json` format. What GGUF and Meta store
//! differently is converted while reading, and an adapter is merged while reading.
//!
//! Opening reads headers only. [`Checkpoint::read_rows`] decodes just the rows it is asked for, so memory stays in
//! the size of the caller's buffer whatever the size of the model.
//!
//! - `storage`: how numbers are stored; `blocks`: the decoders of GGUF's block formats.
//! - `tensors`: the table of tensors over the mapped files.
//! - `huggingface`, `safetensors`: the folder.
//! - `adapter`: a LoRA adapter in the folder.
//! - `gguf`: the file, its metadata as `config.json`, its names, its tokenizer.
//! - `meta`: weights in Meta's layout and `params.json`.

mod adapter;
mod blocks;
mod gguf;
mod huggingface;
mod mapped;
mod meta;
mod safetensors;
mod storage;
mod tensors;

use crate::chat::SpecialTokens;
use crate::chat::tokenizer_files::TokenizerText;
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use adapter::Adapter;
pub use storage::StorageType;
pub use tensors::TensorEntry;

use tensors::TensorTable;

/// What a checkpoint was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointKind {
    /// A folder with `config.json` and safetensors files.
    HuggingFace,
    /// One GGUF file.
    Gguf,
    /// One safetensors file in Meta's layout, with its `params.json`.
    Meta,
}

/// An open checkpoint: headers parsed, weights mapped.
///
/// The files must not be changed while it is open: truncating a mapped file ends the process with `SIGBUS`, which is
/// how the operating system reports it.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    kind: CheckpointKind,
    config: Map<String, Value>,
    generation_config: Option<Map<String, Value>>,
    preprocessor_config: Option<Map<String, Value>>,
    processor_config: Option<Map<String, Value>>,
    tensors: TensorTable,
    tokenizer: TokenizerSource,
    chat_template: Option<String>,
    special_tokens: SpecialTokens,
    adapter: Option<adapter::Lora>,
}

/// Where [`Checkpoint::tokenizer_json`] takes its bytes from.
#[derive(Debug)]
enum TokenizerSource {
    /// A `tokenizer.json` file, which may not exist.
    File(PathBuf),
    /// GGUF metadata.
    Gguf(gguf::Metadata),
    /// A file of any kind, as `tokenizer.json`.
    Text(Vec<u8>),
    /// There is none.
    None,
}

impl Checkpoint {
    /// Opens a Hugging Face folder or a GGUF file. An adapter in the folder is merged, see
    /// [`open_with_adapter`](Self::open_with_adapter).
    ///
    /// # Errors
    /// [`Error::NotFound`] for a missing path, `config.json`, weight file or shard; [`Error::Format`] for a malformed
    /// or truncated one, naming file and tensor or field; [`Error::Unsupported`] for a storage type, an architecture or an
    /// adapter this build cannot read.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with_adapter(path, Adapter::default())
    }

    /// As [`open`](Self::open), with a choice what becomes of a LoRA adapter in the folder (`adapter_config.json` and
    /// `adapter_model.safetensors`, in PEFT's format). A merged one costs no memory: updates are added to rows as they are
    /// read. A line in the log says that there was one.
    ///
    /// # Errors
    /// As [`open`](Self::open). An adapter to be merged that is more than a plain one (DoRA, biases, modules saved whole) is
    /// [`Error::Unsupported`], naming the setting; one whose tensors do not fit the model is [`Error::Format`], naming tensor
    /// and shapes.
    pub fn open_with_adapter(path: &Path, adapter: Adapter) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        if metadata.is_dir() {
            return huggingface::open(path, adapter);
        }
        meta::refuse_pickles(path)?;
        gguf::open(path)
    }

    /// Opens weights in Meta's layout (`layers.0.attention.wq.weight`, …), a safetensors file, and their `params.json`. The
    /// tokenizer is the one beside the weights, if there is one.
    ///
    /// # Errors
    /// As [`open`](Self::open); PyTorch's own files are [`Error::Unsupported`], and the error says how to convert one.
    pub fn open_with_params(weights: &Path, params: &Path) -> Result<Self> {
        meta::open(weights, params)
    }

    /// The same with another tokenizer: a file of any [`TokenizerFormat`](crate::chat::TokenizerFormat) or
    /// a folder that holds one. Special tokens are those it names, or the files beside it, and the chat template is the one
    /// beside it, if there is one.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Io`], [`Error::Format`] naming file, field and value, and [`Error::Unsupported`] for
    /// kinds of models that cannot be read.
    pub fn with_tokenizer(self, path: &Path) -> Result<Self> {
        let TokenizerText { json, special_tokens, chat_template, .. } = TokenizerText::open(path)?;
        let chat_template = chat_template.or(self.chat_template);
        Ok(Self { tokenizer: TokenizerSource::Text(json), special_tokens, chat_template, ..self })
    }

    /// The folder or file it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Folder, GGUF or Meta's layout.
    pub fn kind(&self) -> CheckpointKind {
        self.kind
    }

    /// The model's `config.json`; for GGUF an equivalent object made from the metadata.
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// `generation_config.json`, where there is one. Always `None` for GGUF.
    pub fn generation_config(&self) -> Option<&Map<String, Value>> {
        self.generation_config.as_ref()
    }

    /// `preprocessor_config.json`, how pictures are resized, cut and normalized, where there is one. Always `None` for
    /// GGUF.
    pub fn preprocessor_config(&self) -> Option<&Map<String, Value>> {
        self.preprocessor_config.as_ref()
    }

    /// `processor_config.json`, how pictures and text go together (since transformers 5 also what
    /// `preprocessor_config.json` holds), where there is one. Always `None` for GGUF.
    pub fn processor_config(&self) -> Option<&Map<String, Value>> {
        self.processor_config.as_ref()
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorEntry> {
        self.tensors.iter()
    }

    /// The tensor of that Hugging Face name.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.get(name)
    }

    /// Decodes `rows` of a tensor into `out` as f32.
    ///
    /// Rows run along the first axis; a row holds the product of the other axes
    /// ([`TensorEntry::row_len`] values). A tensor of one or no axis is a single row.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an unknown name, [`Error::InvalidArgument`] when the rows are not all there or `out` is
    /// not exactly `rows.len() * row_len` long.
    pub fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        match self.tensors.get(name) {
            Some(entry) => {
                self.tensors.read_rows(entry, rows.clone(), out)?;
                self.adapter.as_ref().map_or(Ok(()), |adapter| adapter.add(name, rows, out))
            }
            None => Err(Error::NotFound(format!("{}: no tensor named {name}", self.path.display()))),
        }
    }

    /// The bytes of a Hugging Face `tokenizer.json`: the folder's file, or one built from the GGUF metadata.
    ///
    /// # Errors
    /// [`Error::NotFound`] when the folder has none; for GGUF [`Error::Format`] or [`Error::Unsupported`] when the
    /// metadata does not describe a tokenizer this build knows.
    pub fn tokenizer_json(&self) -> Result<Vec<u8>> {
        match &self.tokenizer {
            TokenizerSource::File(path) => std::fs::read(path).map_err(|e| Error::io(path, e)),
            TokenizerSource::Gguf(metadata) => gguf::tokenizer_json(metadata),
            TokenizerSource::Text(json) => Ok(json.clone()),
            TokenizerSource::None => {
                let path = self.path.display();
                Err(Error::NotFound(format!("{path}: there is no tokenizer beside it; name its file")))
            }
        }
    }

    /// The source of the Jinja chat template, where the checkpoint has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Beginning, end, unknown and padding tokens.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special_tokens
    }
}
