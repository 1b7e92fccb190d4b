//! Weights in: a Hugging Face folder or one GGUF file, memory-mapped and read row by row.
//!
//! [`Checkpoint`] presents both kinds in **Hugging Face terms**, so that nothing behind it needs to know where the
//! weights came from: tensor names (`model.layers.0.self_attn.q_proj.weight`), shapes (`[out, in]`), the order of the
//! rotary rows, the norm convention, the keys of `config.json` and the `tokenizer.json` format. What GGUF stores
//! differently is converted while reading.
//!
//! Opening reads headers only. [`Checkpoint::read_rows`] decodes just the rows it is asked for, so memory stays in
//! the size of the caller's buffer whatever the size of the model.
//!
//! - `storage`: how numbers are stored; `blocks`: the decoders of GGUF's block formats.
//! - `tensors`: the table of tensors over the mapped files.
//! - `huggingface`, `safetensors`: the folder.
//! - `gguf`: the file, its metadata as `config.json`, its names, its tokenizer.

mod blocks;
mod gguf;
mod huggingface;
mod mapped;
mod safetensors;
mod storage;
mod tensors;

use crate::chat::SpecialTokens;
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::ops::Range;
use std::path::{Path, PathBuf};

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
}

/// Where [`Checkpoint::tokenizer_json`] takes its bytes from.
#[derive(Debug)]
enum TokenizerSource {
    /// A `tokenizer.json` file, which may not exist.
    File(PathBuf),
    /// GGUF metadata.
    Gguf(gguf::Metadata),
}

impl Checkpoint {
    /// Opens a Hugging Face folder or a GGUF file.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a missing path, `config.json`, weight file or shard; [`Error::Format`] for a malformed
    /// or truncated one, naming file and tensor or field; [`Error::Unsupported`] for a storage type or architecture
    /// this build cannot read.
    pub fn open(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        if metadata.is_dir() {
            return huggingface::open(path);
        }
        gguf::open(path)
    }

    /// The folder or file it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Folder or GGUF.
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
            Some(entry) => self.tensors.read_rows(entry, rows, out),
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
