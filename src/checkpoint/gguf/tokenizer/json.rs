//! The shape of a `tokenizer.json` with a BPE model. Borrowed texts and in-order fields: vocabularies are large.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// The file.
#[derive(Serialize)]
pub(super) struct TokenizerJson<'a> {
    pub(super) version: &'static str,
    pub(super) truncation: (),
    pub(super) padding: (),
    pub(super) added_tokens: Vec<AddedToken<'a>>,
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) post_processor: Value,
    pub(super) decoder: Value,
    pub(super) model: Bpe<'a>,
}

/// A token that is matched before anything else happens to the text.
#[derive(Serialize)]
pub(super) struct AddedToken<'a> {
    id: u32,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

impl<'a> AddedToken<'a> {
    pub(super) fn new(id: u32, content: &'a str, special: bool) -> Self {
        AddedToken { id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special }
    }
}

/// The model.
#[derive(Serialize)]
pub(super) struct Bpe<'a> {
    #[serde(rename = "type")]
    pub(super) model_type: &'static str,
    pub(super) dropout: (),
    pub(super) unk_token: Option<&'a str>,
    pub(super) continuing_subword_prefix: (),
    pub(super) end_of_word_suffix: (),
    pub(super) fuse_unk: bool,
    pub(super) byte_fallback: bool,
    pub(super) ignore_merges: bool,
    pub(super) vocab: TextToId<'a>,
    /// Best first.
    pub(super) merges: Vec<(&'a str, &'a str)>,
}

/// A JSON object from text to id. Of entries with the same text the first counts: keys must be unique.
pub(super) struct TextToId<'a>(pub(super) Vec<(&'a str, u32)>);

impl<'a> TextToId<'a> {
    pub(super) fn new(texts: &[&'a str]) -> Self {
        let mut seen = std::collections::HashSet::with_capacity(texts.len());
        TextToId((0u32..).zip(texts).filter(|(_, text)| seen.insert(**text)).map(|(id, text)| (*text, id)).collect())
    }
}

impl Serialize for TextToId<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (text, id) in &self.0 {
            map.serialize_entry(text, id)?;
        }
        map.end()
    }
}
