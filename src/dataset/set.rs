//! The calibration set, and how it grows.

use super::model::ModelText;
use super::options::{DatasetOptions, Shard};
use super::sample::Sample;
use crate::artefact::hex;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Everything that a model is calibrated with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalibrationSet {
    /// The samples, at least one, in the order of the sources.
    pub samples: Vec<Sample>,
    /// What each source gave, in the order in which they were read, before a shard was taken.
    pub sources: Vec<SourceSummary>,
    /// There is random data among it: what is calibrated with it shows that the machinery works, not more.
    pub smoke_only: bool,
    /// SHA-256 of the samples' tokens and media, in lower-case hex.
    pub fingerprint: String,
    /// The whole that a shard was taken from: shards belong together if this is equal.
    pub joined: JoinedSources,
    /// The part that `samples` is, if it is a part.
    pub shard: Option<Shard>,
}

/// All sources together, before a shard is taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedSources {
    /// Number of samples.
    pub samples: usize,
    /// Pictures and sounds of all samples. Without one no shard can calibrate an encoder.
    pub media: usize,
    /// SHA-256 of their tokens and media, in lower-case hex.
    pub fingerprint: String,
}

/// What one source gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSummary {
    /// What is in it.
    pub kind: SourceKind,
    /// The file; random data has none.
    pub path: Option<PathBuf>,
    /// Samples it gave.
    pub samples: usize,
    /// Tokens of these samples, rows of media included.
    pub tokens: usize,
    /// Pictures and sounds of these samples.
    pub media: usize,
    /// Conversations and rows that were longer than the context, and were cut into several samples.
    pub cut: usize,
    /// Rows of a chat set that were left out: too long, refused by the template, or without a token.
    pub skipped: usize,
    /// Why the first of them was left out.
    pub note: Option<String>,
}

/// Kind of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// Lists of token ids.
    TokenRows,
    /// Conversations with the files they show.
    Conversations,
    /// A chat set, one conversation a line.
    Chats,
    /// Plain text.
    Text,
    /// Random ids.
    Random,
}

impl CalibrationSet {
    /// A set without samples, for a model whose ranges were found before. Nothing else can be done with it.
    pub fn empty() -> Self {
        let fingerprint = hex(&Sha256::digest([]));
        Self {
            samples: Vec::new(),
            sources: Vec::new(),
            smoke_only: false,
            joined: JoinedSources { samples: 0, media: 0, fingerprint: fingerprint.clone() },
            fingerprint,
            shard: None,
        }
    }

    /// Whether any sample has a picture or sound. Without one there is nothing to calibrate an encoder with.
    pub fn has_media(&self) -> bool {
        self.samples.iter().any(|sample| !sample.media.is_empty())
    }

    /// Tokens of all samples.
    pub fn token_count(&self) -> usize {
        self.samples.iter().map(|sample| sample.tokens.len()).sum()
    }

    /// Tokens of the longest sample.
    pub fn longest(&self) -> usize {
        self.samples.iter().map(|sample| sample.tokens.len()).max().unwrap_or_default()
    }
}

/// Joins sources.
pub(super) struct Collector<'a> {
    pub options: &'a DatasetOptions,
    pub model: &'a ModelText,
    samples: Vec<Sample>,
    sources: Vec<SourceSummary>,
    /// Samples of all shards.
    count: usize,
    hash_of_all: Sha256,
}

impl<'a> Collector<'a> {
    pub fn new(options: &'a DatasetOptions, model: &'a ModelText) -> Self {
        Self { options, model, samples: Vec::new(), sources: Vec::new(), count: 0, hash_of_all: Sha256::new() }
    }

    /// The samples that follow come from this source.
    pub fn begin(&mut self, kind: SourceKind, path: Option<&Path>) {
        let path = path.map(Path::to_path_buf);
        self.sources.push(SourceSummary {
            kind,
            path,
            samples: 0,
            tokens: 0,
            media: 0,
            cut: 0,
            skipped: 0,
            note: None,
        });
    }

    /// A sample as it is: it fits into the context.
    pub fn add(&mut self, sample: Sample) -> Result<()> {
        let vocabulary = self.model.vocab_size();
        if let Some(at) = sample.tokens.iter().position(|&token| token as usize >= vocabulary) {
            let token = sample.tokens[at];
            let reason = format!("{token} is outside the vocabulary of {vocabulary}");
            return Err(Error::format(&sample.origin, format!("token {at}"), reason));
        }
        if let Some(source) = self.sources.last_mut() {
            source.samples += 1;
            source.tokens += sample.tokens.len();
            source.media += sample.media.len();
        }
        sample.hash_into(&mut self.hash_of_all);
        if self.options.shard.is_none_or(|shard| shard.takes(self.count)) {
            self.samples.push(sample);
        }
        self.count += 1;
        Ok(())
    }

    /// Text of any length: what is longer than the context is cut into consecutive samples.
    pub fn add_text(&mut self, tokens: Vec<u32>, origin: &str) -> Result<()> {
        if tokens.len() <= self.options.max_context {
            return self.add(text_sample(tokens, origin.into()));
        }
        if let Some(source) = self.sources.last_mut() {
            source.cut += 1;
        }
        self.add_windows(&tokens, self.options.max_context, origin)
    }

    /// Text cut into consecutive samples of `window` tokens; the last may be shorter.
    pub fn add_windows(&mut self, tokens: &[u32], window: usize, origin: &str) -> Result<()> {
        for (number, piece) in tokens.chunks(window.max(1)).enumerate() {
            let start = number * window;
            let origin = format!("{origin}, tokens {start}..{}", start + piece.len());
            self.add(text_sample(piece.to_vec(), origin))?;
        }
        Ok(())
    }

    /// A row of the source that is left out, and why.
    pub fn skip(&mut self, reason: impl Into<String>) {
        if let Some(source) = self.sources.last_mut() {
            source.skipped += 1;
            source.note.get_or_insert_with(|| reason.into());
        }
    }

    /// What the present source gave up to now.
    pub fn summary(&self) -> Option<&SourceSummary> {
        self.sources.last()
    }

    /// The set, or the shard of it that was asked for.
    pub fn finish(self) -> Result<CalibrationSet> {
        let media = self.sources.iter().map(|source| source.media).sum();
        let joined = JoinedSources { samples: self.count, media, fingerprint: hex(&self.hash_of_all.finalize()) };
        if let (true, Some(shard)) = (self.samples.is_empty(), self.options.shard) {
            let count = self.count;
            return Err(Error::invalid(format!(
                "shard {shard} has no sample: all sources together have {count}; use at most {count} shards"
            )));
        }
        let mut hash = Sha256::new();
        self.samples.iter().for_each(|sample| sample.hash_into(&mut hash));
        Ok(CalibrationSet {
            samples: self.samples,
            sources: self.sources,
            smoke_only: self.options.random.is_some(),
            fingerprint: hex(&hash.finalize()),
            joined,
            shard: self.options.shard,
        })
    }
}

fn text_sample(tokens: Vec<u32>, origin: String) -> Sample {
    Sample { tokens, media: Vec::new(), media_rows: Vec::new(), origin }
}
