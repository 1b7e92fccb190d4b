//! What calibration data is asked for.

use crate::error::{Error, Result};
use crate::media::Tiling;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The context that upstream's command line calibrates with.
const DEFAULT_MAX_CONTEXT: usize = 512;
/// The most tokens of random data: a smoke test needs few, and more than this is a slip of the pen.
const MAX_RANDOM_TOKENS: usize = 1 << 26;

/// Sources of calibration data and how they are cut. Nothing is chosen by default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DatasetOptions {
    /// JSON files: a list of conversations with the files they show (`--calib-samples`).
    pub samples: Vec<PathBuf>,
    /// Plain UTF-8 texts: tokens without template and begin-of-text token, cut into windows (`--calib-text`).
    pub texts: Vec<PathBuf>,
    /// Chat sets: a JSON object a line, with a `messages` field as in `samples` (`--calib-chat`).
    pub chats: Vec<PathBuf>,
    /// JSON files: a list of lists of token ids (`--calib-tokens`).
    pub token_rows: Vec<PathBuf>,
    /// Random ids (`--calib-random`): good for smoke tests only.
    pub random: Option<RandomData>,
    /// The most windows of each text; all of them if `None`.
    pub text_limit: Option<usize>,
    /// Tokens of a window of a text, at most `max_context`, which it is if `None`. The last window may be shorter.
    pub text_window: Option<usize>,
    /// Rows of each chat set that are looked at, from its beginning; all of them if `None`.
    pub chat_limit: Option<usize>,
    /// Tokens of the longest sample, 512 by default. What is longer and text alone is cut into consecutive samples (a row
    /// of a chat set is left out); with pictures or sound it is an error.
    pub max_context: usize,
    /// How pictures are cut; should be what the runner will be told.
    pub image_tiling: Tiling,
    /// Take only a part of the samples.
    pub shard: Option<Shard>,
}

impl Default for DatasetOptions {
    fn default() -> Self {
        Self {
            samples: Vec::new(),
            texts: Vec::new(),
            chats: Vec::new(),
            token_rows: Vec::new(),
            random: None,
            text_limit: None,
            text_window: None,
            chat_limit: None,
            max_context: DEFAULT_MAX_CONTEXT,
            image_tiling: Tiling::Checkpoint,
            shard: None,
        }
    }
}

impl DatasetOptions {
    /// Whether any source is named.
    pub fn has_source(&self) -> bool {
        let files = [&self.samples, &self.texts, &self.chats, &self.token_rows];
        self.random.is_some() || files.iter().any(|files| !files.is_empty())
    }

    /// Tokens of a window of a text.
    pub fn window(&self) -> usize {
        self.text_window.unwrap_or(self.max_context)
    }

    /// Checks what can be checked without the files; [`load`](super::load) does so first.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no source at all, naming the options there are, and for a size of 0 or out of range.
    pub fn validate(&self) -> Result<()> {
        if !self.has_source() {
            return Err(Error::invalid(
                "there is no calibration data: name at least one source with --calib-samples, --calib-text, --calib-chat, \
                 --calib-tokens or, for smoke tests only, --calib-random",
            ));
        }
        let sizes = [
            ("max_context", Some(self.max_context)),
            ("text_limit", self.text_limit),
            ("text_window", self.text_window),
            ("chat_limit", self.chat_limit),
        ];
        if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == Some(0)) {
            return Err(Error::invalid(format!("{name} of calibration data is 0: it must be at least 1")));
        }
        if self.window() > self.max_context {
            let (window, context) = (self.window(), self.max_context);
            return Err(Error::invalid(format!(
                "text_window is {window} tokens, but max_context is {context}: a window must fit in it"
            )));
        }
        self.random.as_ref().map_or(Ok(()), RandomData::validate)
    }
}

/// Token ids that are uniform over the vocabulary. Their ranges say little about real text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomData {
    /// Number of rows, 128 by default.
    pub samples: usize,
    /// Tokens of a row, 1024 by default. Rows longer than the context are cut into several samples.
    pub length: usize,
    /// Seed of the generator, 42 by default.
    pub seed: u64,
}

impl Default for RandomData {
    fn default() -> Self {
        Self { samples: 128, length: 1024, seed: 42 }
    }
}

impl RandomData {
    fn validate(&self) -> Result<()> {
        let Self { samples, length, .. } = *self;
        match samples.checked_mul(length) {
            Some(1..=MAX_RANDOM_TOKENS) => Ok(()),
            Some(0) => {
                Err(Error::invalid(format!("random data of {samples} samples of {length} tokens: it must have some")))
            }
            _ => Err(Error::invalid(format!(
                "random data of {samples} samples of {length} tokens: at most {MAX_RANDOM_TOKENS} tokens are made"
            ))),
        }
    }
}

/// One of N equal parts of the samples, so that a big set is spread over N machines. `I/N` as text, I from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    /// Part `index` of `count`, from 1.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `1 <= index <= count`.
    pub fn new(index: usize, count: usize) -> Result<Self> {
        match index {
            1.. if index <= count => Ok(Self { index, count }),
            _ => Err(Error::invalid(format!("shard {index}/{count}: write I/N with 1 <= I <= N, e.g. 2/8"))),
        }
    }

    /// Which part, from 1.
    pub fn index(self) -> usize {
        self.index
    }

    /// Number of parts.
    pub fn count(self) -> usize {
        self.count
    }

    /// Whether sample number `sample`, counted from 0 over all sources, belongs to this part.
    pub fn takes(self, sample: usize) -> bool {
        sample % self.count == self.index - 1
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('/').and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        let (index, count) =
            parts.ok_or_else(|| Error::invalid(format!("shard {text:?}: write I/N with 1 <= I <= N, e.g. 2/8")))?;
        Shard::new(index, count)
    }
}

impl TryFrom<String> for Shard {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Shard> for String {
    fn from(shard: Shard) -> String {
        shard.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_source_is_an_error_that_lists_the_options() {
        let error = DatasetOptions::default().validate().unwrap_err().to_string();
        for option in ["--calib-samples", "--calib-text", "--calib-chat", "--calib-tokens", "--calib-random"] {
            assert!(error.contains(option), "{error}");
        }
    }

    #[test]
    fn sizes_out_of_range_are_named() {
        let text = DatasetOptions { texts: vec!["a.txt".into()], ..Default::default() };
        let error = |options: DatasetOptions| options.validate().unwrap_err().to_string();
        assert!(text.validate().is_ok());
        assert!(error(DatasetOptions { text_limit: Some(0), ..text.clone() }).contains("text_limit"));
        assert!(error(DatasetOptions { chat_limit: Some(0), ..text.clone() }).contains("chat_limit"));
        assert!(error(DatasetOptions { max_context: 0, ..text.clone() }).contains("max_context"));
        let window = error(DatasetOptions { text_window: Some(513), ..text.clone() });
        assert!(window.contains("513") && window.contains("512"), "{window}");
        for (samples, length) in [(0, 4), (4, 0), (usize::MAX, 2), (1 << 20, 1 << 20)] {
            let random = Some(RandomData { samples, length, seed: 0 });
            let found = error(DatasetOptions { random, ..Default::default() });
            assert!(found.contains(&format!("{samples} samples of {length} tokens")), "{found}");
        }
    }

    #[test]
    fn shards_take_turns() {
        let shard: Shard = "2/3".parse().unwrap();
        assert_eq!((0..8).filter(|&sample| shard.takes(sample)).collect::<Vec<_>>(), [1, 4, 7]);
        assert_eq!((shard.to_string().as_str(), shard.index(), shard.count()), ("2/3", 2, 3));
        assert_eq!(serde_json::from_str::<Shard>("\"2/3\"").unwrap(), shard);
        for wrong in ["", "1", "0/2", "3/2", "1/0", "a/2", "1/2/3", "-1/2", "1/99999999999999999999999"] {
            assert!(wrong.parse::<Shard>().unwrap_err().to_string().contains("I/N"), "{wrong}");
        }
    }
}
