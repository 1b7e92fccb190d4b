//! Tokenizer files other than `tokenizer.json`, turned into one, and what lies beside them.
//!
//! - `json`: the shape of a `tokenizer.json`; `vocabulary`, `byte_level`, `sentence_piece`: its parts, from vocabularies
//!   in other files (GGUF's too).
//! - `llama2c`, `sentence_piece_model` over `wire`, `tekken`, `tiktoken`: the readers of those files.
//! - `beside`, `config_tokens`: special tokens and chat template from the configuration files in the same folder.

pub(crate) mod byte_level;
pub(crate) mod json;
pub(crate) mod sentence_piece;
pub(crate) mod vocabulary;

mod beside;
mod config_tokens;
mod llama2c;
mod sentence_piece_model;
mod tekken;
mod tiktoken;
mod wire;

pub(crate) use beside::{Configs, chat_template, read_json_object, special_tokens};
pub(crate) use config_tokens::add_eos_ids;

use super::{SpecialTokens, Tokenizer};
use crate::error::{Error, Result};
use json::TokenizerJson;
use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Formats of tokenizer files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenizerFormat {
    /// Hugging Face's `tokenizer.json`.
    HuggingFace,
    /// Mistral's `tekken.json`.
    Tekken,
    /// tiktoken's rank file (`tokenizer.model` of Llama 3).
    Tiktoken,
    /// SentencePiece's `tokenizer.model`.
    SentencePiece,
    /// llama2.c's `tokenizer.bin`, with or without ExecuTorch's header.
    Llama2c,
}

impl TokenizerFormat {
    /// The format of a file, or of the one in a folder, by what it begins with. The file is not checked further.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Io`].
    pub fn of_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = file_of(path.as_ref())?;
        read(&path).map(|bytes| Self::of(&path, &bytes))
    }

    /// Tells the formats apart, in the order upstream's runners try them. Both kinds of JSON look alike at the beginning:
    /// the file's name decides.
    fn of(path: &Path, bytes: &[u8]) -> Self {
        if path.to_string_lossy().ends_with("tekken.json") {
            TokenizerFormat::Tekken
        } else if bytes.trim_ascii_start().first() == Some(&b'{') {
            TokenizerFormat::HuggingFace
        } else if tiktoken::is_rank_file(bytes) {
            TokenizerFormat::Tiktoken
        } else if sentence_piece_model::may_be_model(bytes) {
            TokenizerFormat::SentencePiece
        } else {
            TokenizerFormat::Llama2c
        }
    }
}

/// A tokenizer with what the files around it say.
#[derive(Debug, Clone)]
pub struct TokenizerFile {
    /// The tokenizer, special tokens known.
    pub tokenizer: Tokenizer,
    /// What the tokenizer file was.
    pub format: TokenizerFormat,
    /// The special tokens.
    pub special_tokens: SpecialTokens,
    /// Source of the chat template in the same folder, if there is one.
    pub chat_template: Option<String>,
}

impl TokenizerFile {
    /// Reads a tokenizer file of any [`TokenizerFormat`], told by its content, or a folder that holds `tokenizer.json`,
    /// `tekken.json`, `tokenizer.model` or `tokenizer.bin` (the first of these that exists).
    ///
    /// Special tokens and chat template come from `config.json`, `generation_config.json`, `tokenizer_config.json`,
    /// `special_tokens_map.json`, `chat_template.jinja` and `chat_template.json` beside it, as far as they are there. A
    /// `tokenizer.json` by itself does not say what ends a text: it is then the one added token whose text contains
    /// `eos` or `end`, if there is just one, as in upstream's runners.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Io`], [`Error::Format`] naming file, field and value, and [`Error::Unsupported`]
    /// for kinds of models that cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = file_of(path.as_ref())?;
        let TokenizerText { json, format, special_tokens, chat_template } = TokenizerText::open(&path)?;
        let tokenizer = Tokenizer::from_bytes(&json, &special_tokens).map_err(|error| found_in(error, &path))?;
        Ok(TokenizerFile { tokenizer, format, special_tokens, chat_template })
    }
}

/// A [`TokenizerFile`] whose tokenizer is still text.
pub(crate) struct TokenizerText {
    /// A `tokenizer.json`, the original or made from another format.
    pub(crate) json: Vec<u8>,
    /// What the file was.
    pub(crate) format: TokenizerFormat,
    /// The special tokens.
    pub(crate) special_tokens: SpecialTokens,
    /// Source of the chat template in the same folder, if there is one.
    pub(crate) chat_template: Option<String>,
}

impl TokenizerText {
    /// As [`TokenizerFile::open`], whose errors it has, except for those of a `tokenizer.json` that makes no tokenizer.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let path = file_of(path)?;
        let bytes = read(&path)?;
        let (format, parsed) = parse(&path, bytes)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let [model, generation, tokenizer, map] =
            ["config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"]
                .map(|name| read_json_object(&folder.join(name)));
        let (model, generation, tokenizer, map) = (model?, generation?, tokenizer?, map?);
        let configs = Configs {
            model: model.as_ref(),
            generation: generation.as_ref(),
            tokenizer: tokenizer.as_ref(),
            special_tokens_map: map.as_ref(),
        };
        let beside = special_tokens(&path, &parsed.json, configs)?;
        let stated = tokenizer.as_ref().and_then(|config| config.get("add_bos_token")).and_then(Value::as_bool);
        let mut special = parsed.special.merged_with(beside, stated);
        if format == TokenizerFormat::HuggingFace && special.eos_ids.is_empty() {
            add_eos_ids(&mut special, likely_end(&parsed.json));
        }
        let chat_template = chat_template(folder, tokenizer.as_ref())?;
        Ok(Self { json: parsed.json, format, special_tokens: special, chat_template })
    }
}

impl Tokenizer {
    /// Reads a tokenizer file of any kind upstream's runners take; see [`TokenizerFile::open`].
    ///
    /// # Errors
    /// As there.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        TokenizerFile::open(path).map(|file| file.tokenizer)
    }
}

/// A `tokenizer.json` with the special tokens that the original file names.
struct Parsed {
    json: Vec<u8>,
    special: SpecialTokens,
}

impl Parsed {
    fn new(json: TokenizerJson<'_>, special: SpecialTokens) -> Result<Self> {
        let json = serde_json::to_vec(&json).map_err(|e| Error::internal(format!("writing tokenizer.json: {e}")))?;
        Ok(Parsed { json, special })
    }
}

impl SpecialTokens {
    /// These, overruled by what configuration files say; ids that end a reply are collected. `add_bos`: what
    /// `tokenizer_config.json` states.
    fn merged_with(self, beside: SpecialTokens, add_bos: Option<bool>) -> Self {
        let mut merged = SpecialTokens {
            bos_token: beside.bos_token.or(self.bos_token),
            eos_token: beside.eos_token.or(self.eos_token),
            unk_token: beside.unk_token.or(self.unk_token),
            pad_token: beside.pad_token.or(self.pad_token),
            add_bos: add_bos.or(self.add_bos).or(beside.add_bos),
            bos_id: beside.bos_id.or(self.bos_id),
            eos_ids: beside.eos_ids,
        };
        add_eos_ids(&mut merged, self.eos_ids);
        merged
    }
}

/// An error about a `tokenizer.json` that was read from, or made of, the file at `path`.
fn found_in(error: Error, path: &Path) -> Error {
    match error {
        Error::Format { field, reason, .. } => Error::format(path, field, reason),
        error => error,
    }
}

/// Tokenizer files in a folder, the best one first.
const NAMES: [&str; 4] = ["tokenizer.json", "tekken.json", "tokenizer.model", "tokenizer.bin"];

/// The tokenizer file in a folder, if there is one.
pub(crate) fn tokenizer_in(folder: &Path) -> Option<PathBuf> {
    NAMES.iter().map(|name| folder.join(name)).find(|file| file.is_file())
}

/// The file a path means: itself, or one of the known names in a folder.
fn file_of(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    tokenizer_in(path).ok_or_else(|| Error::NotFound(format!("{}: holds none of {}", path.display(), NAMES.join(", "))))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::NotFound(format!("{}: there is no such tokenizer file", path.display())),
        _ => Error::io(path, e),
    })
}

fn parse(path: &Path, bytes: Vec<u8>) -> Result<(TokenizerFormat, Parsed)> {
    let format = TokenizerFormat::of(path, &bytes);
    let parsed = match format {
        TokenizerFormat::HuggingFace => Parsed { json: bytes, special: SpecialTokens::default() },
        TokenizerFormat::Tekken => tekken::parse(path, &bytes)?,
        TokenizerFormat::Tiktoken => tiktoken::parse(path, &bytes)?,
        TokenizerFormat::SentencePiece => sentence_piece_model::parse(path, &bytes)?,
        TokenizerFormat::Llama2c => llama2c::parse(path, &bytes)?,
    };
    Ok((format, parsed))
}

/// The id of the one added token that looks like an end token; where nothing does, of the one that looks like a begin
/// token.
fn likely_end(json: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct File {
        added_tokens: Vec<Added>,
    }
    #[derive(Deserialize)]
    struct Added {
        id: u32,
        content: String,
    }
    let file: File = serde_json::from_slice(json).ok()?;
    let only = |words: [&str; 2]| {
        let mut found = file.added_tokens.iter().filter(|token| words.iter().any(|word| token.content.contains(word)));
        let first = found.next()?;
        found.next().is_none().then_some(first.id)
    };
    only(["eos", "end"]).or_else(|| only(["bos", "begin"]))
}

#[cfg(test)]
mod tests;
