//! The shape of a `tokenizer.json` with a BPE model. Borrowed texts and in-order fields: vocabularies are large.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// The file.
#[derive(Serialize)]
pub(crate) struct TokenizerJson<'a> {
    pub(crate) version: &'static str,
    pub(crate) truncation: (),
    pub(crate) padding: (),
    pub(crate) added_tokens: Vec<AddedToken<'a>>,
    pub(crate) normalizer: Value,
    pub(crate) pre_tokenizer: Value,
    pub(crate) post_processor: Value,
    pub(crate) decoder: Value,
    pub(crate) model: Bpe<'a>,
}

/// A token that is matched before anything else happens to the text.
#[derive(Serialize)]
pub(crate) struct AddedToken<'a> {
    id: u32,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

impl<'a> AddedToken<'a> {
    pub(crate) fn new(id: u32, content: &'a str, special: bool) -> Self {
        AddedToken { id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special }
    }
}

/// The model.
#[derive(Serialize)]
pub(crate) struct Bpe<'a> {
    #[serde(rename = "type")]
    pub(crate) model_type: &'static str,
    pub(crate) dropout: (),
    pub(crate) unk_token: Option<&'a str>,
    pub(crate) continuing_subword_prefix: (),
    pub(crate) end_of_word_suffix: (),
    pub(crate) fuse_unk: bool,
    pub(crate) byte_fallback: bool,
    pub(crate) ignore_merges: bool,
    pub(crate) vocab: TextToId<'a>,
    /// Best first.
    pub(crate) merges: Vec<(&'a str, &'a str)>,
}

/// A JSON object from text to id. Of entries with the same text the first counts: keys must be unique.
pub(crate) struct TextToId<'a>(pub(crate) Vec<(&'a str, u32)>);

impl<'a> TextToId<'a> {
    pub(crate) fn new(texts: &[&'a str]) -> Self {
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
