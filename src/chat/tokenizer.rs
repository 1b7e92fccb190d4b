//! Text to token ids and back, over the `tokenizers` crate.
//!
//! One vocabulary, two ways in: *parsing*, as Hugging Face does it, for text a template wrote; and *plain*, in which
//! no control token can arise, for text from outside.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{
    AddedToken, DecoderWrapper, Encoding, Model, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Token,
    TokenizerImpl,
};

use super::detokenize::PieceDecoder;
use super::{DetokenizeStream, SpecialTokens};
use crate::{Error, Result};

/// How [`Tokenizer::encode`] reads a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put the begin-of-text tokens in front, if this model uses any for plain text.
    pub add_bos: bool,
    /// Turn the text of control tokens into control tokens. Leave it off for any text from outside.
    pub parse_special: bool,
}

/// Tokenizer of one model. Cloning is cheap: clones share the vocabulary.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
    controls: Arc<Controls>,
}

/// What does not depend on the chat template.
#[derive(Debug)]
struct Shared {
    vocabulary: Arc<tokenizers::Tokenizer>,
    pieces: PieceDecoder,
    added: BTreeMap<u32, AddedToken>,
    bos_id: Option<u32>,
    eos_ids: Vec<u32>,
    start_ids: Vec<u32>,
    unk_id: Option<u32>,
    first_word_differs: bool,
}

/// Which tokens control the conversation, and the two ways in that follow from it.
#[derive(Debug)]
struct Controls {
    texts: BTreeMap<u32, String>,
    parsing: Encoder,
    plain: Encoder,
}

/// An encoder that borrows the vocabulary of another one: a second set of added-token rules costs no second copy of
/// a quarter of a million entries.
#[derive(Debug)]
struct Encoder {
    inner: TokenizerImpl<SharedModel, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>,
    /// Id of [`NOT_AT_START`], where the tokenizer treats the first word of a text differently.
    not_at_start: Option<u32>,
}

/// Text of an added token that stands before a segment which is not the start of the conversation, so that
/// SentencePiece's "prefix the first word" does not strike in the middle. Its id never leaves the encoder.
pub(super) const NOT_AT_START: &str = "\u{10FFFC}\u{10FFFD}\u{10FFFC}";

/// A token of the parsing encoder with the bytes of the text it covers.
pub(super) struct SpannedToken {
    pub id: u32,
    pub span: Range<usize>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Format`] if it is malformed, [`Error::Unsupported`] for decoders of other kinds of models.
    pub fn from_bytes(json: &[u8], special: &SpecialTokens) -> Result<Self> {
        let shared = Arc::new(Shared::load(json, special)?);
        let controls = Arc::new(Controls::new(&shared, |_, token| token.special)?);
        Ok(Tokenizer { shared, controls })
    }

    /// The same tokenizer, with every added token that `template` names as one more control token (`<think>` of
    /// Qwen3 is an ordinary added token in its `tokenizer.json`, yet it structures the conversation).
    ///
    /// # Errors
    /// [`Error::Internal`] if the `tokenizers` crate refuses the smaller set of tokens.
    pub fn with_template(&self, template: &str) -> Result<Self> {
        let named = |_, token: &AddedToken| token.special || appears_in(template, &token.content);
        Ok(Tokenizer { shared: self.shared.clone(), controls: Arc::new(Controls::new(&self.shared, named)?) })
    }

    /// Token ids of `text`.
    ///
    /// With `parse_special` off the ids hold no control token, whatever the text says; other added tokens (Gemma's
    /// newline runs, HTML tags) are used as Hugging Face uses them. A lone character that exists only as a control
    /// token is left out.
    ///
    /// # Errors
    /// [`Error::Format`] if the tokenizer's own rules fail on this text.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        let mut ids = if options.add_bos { self.shared.start_ids.clone() } else { Vec::new() };
        if options.parse_special {
            ids.extend(self.encode_spanned(text, true)?.into_iter().map(|token| token.id));
        } else {
            ids.extend(self.encode_plain(text, true)?);
        }
        Ok(ids)
    }

    /// Text of ids. `skip_special` leaves out special tokens, as Hugging Face's `skip_special_tokens` does; ids
    /// outside of the vocabulary give nothing. Bytes that are not UTF-8 give U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = self.stream(skip_special);
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// A decoder for ids that come one at a time.
    pub fn stream(&self, skip_special: bool) -> DetokenizeStream {
        DetokenizeStream::new(self.clone(), skip_special)
    }

    /// The bytes a token adds to a text, which may end within a character. Empty outside of the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.piece(id, false).unwrap_or_default()
    }

    /// A token as `tokenizer.json` spells it (`Ġthe`, `▁the`, `<0x0A>`).
    pub fn token_text(&self, id: u32) -> Option<String> {
        match self.shared.added.get(&id) {
            Some(token) => Some(token.content.clone()),
            None => self.shared.vocabulary.id_to_token(id),
        }
    }

    /// The id of a token in that spelling.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.shared.vocabulary.token_to_id(text)
    }

    /// Whether this token structures a conversation: special tokens, the begin and end tokens, and added tokens the
    /// template writes. The unknown token is none, it only says that a character has no token.
    pub fn is_control(&self, id: u32) -> bool {
        self.controls.texts.contains_key(&id) && !self.shared.is_mere_unknown(id)
    }

    /// Whether a token is left out of decoded text: special tokens and the begin and end tokens.
    pub fn is_special(&self, id: u32) -> bool {
        let special = self.shared.added.get(&id).is_some_and(|token| token.special);
        special || self.shared.bos_id == Some(id) || self.shared.eos_ids.contains(&id)
    }

    /// Number of entries, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.shared.vocabulary.get_vocab_size(true)
    }

    /// The begin-of-text token. Having one does not mean that prompts start with it: see
    /// [`adds_bos`](Self::adds_bos).
    pub fn bos_id(&self) -> Option<u32> {
        self.shared.bos_id
    }

    /// Ids that end a reply, sorted.
    pub fn eos_ids(&self) -> &[u32] {
        &self.shared.eos_ids
    }

    /// Whether [`EncodeOptions::add_bos`] puts anything in front of a plain text.
    pub fn adds_bos(&self) -> bool {
        !self.shared.start_ids.is_empty()
    }

    /// Control tokens by id with their text; `special_only`: without those only the template made one.
    pub(super) fn control_texts(&self, special_only: bool) -> impl Iterator<Item = &str> {
        let wanted = move |(id, _): &(&u32, &String)| !special_only || self.is_special(**id);
        self.controls.texts.iter().filter(wanted).map(|(_, text)| text.as_str())
    }

    /// Whether a control token is matched after normalisation, so that other spellings can become it.
    pub(super) fn has_normalized_control(&self) -> bool {
        let normalized = |id| self.shared.added.get(id).is_some_and(|token| token.normalized);
        self.shared.vocabulary.get_normalizer().is_some() && self.controls.texts.keys().any(normalized)
    }

    pub(super) fn start_ids(&self) -> &[u32] {
        &self.shared.start_ids
    }

    pub(super) fn pieces(&self) -> &PieceDecoder {
        &self.shared.pieces
    }

    /// Bytes of a token, or `None` outside of the vocabulary; `first`: nothing was decoded before it.
    pub(super) fn piece(&self, id: u32, first: bool) -> Option<Vec<u8>> {
        let entry = self.shared.vocabulary.id_to_token(id)?;
        Some(self.shared.pieces.bytes(entry, first))
    }

    /// Encodes text a template wrote; `at_start`: nothing of the conversation comes before it.
    pub(super) fn encode_spanned(&self, text: &str, at_start: bool) -> Result<Vec<SpannedToken>> {
        self.controls.parsing.encode(text, at_start)
    }

    /// Encodes text from outside. Where the vocabulary itself holds the text of a control token (Unigram models,
    /// whole-word merges) the offending pieces are cut and encoded again.
    pub(super) fn encode_plain(&self, text: &str, at_start: bool) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let mut todo = vec![(text, at_start)];
        while let Some((piece, at_start)) = todo.pop() {
            let tokens = self.controls.plain.encode(piece, at_start)?;
            let forbidden: Vec<&SpannedToken> = tokens.iter().filter(|token| self.is_forbidden(token.id)).collect();
            if forbidden.is_empty() {
                ids.extend(tokens.iter().map(|token| token.id));
                continue;
            }
            let pieces = cut_inside(piece, forbidden.iter().map(|token| token.span.clone()));
            if pieces.len() == 1 {
                ids.extend(tokens.iter().map(|token| token.id).filter(|&id| !self.is_forbidden(id)));
                continue;
            }
            let starts = std::iter::once(at_start).chain(std::iter::repeat(false));
            let pieces: Vec<(&str, bool)> = pieces.into_iter().zip(starts).collect();
            todo.extend(pieces.into_iter().rev());
        }
        Ok(ids)
    }

    fn is_forbidden(&self, id: u32) -> bool {
        self.is_control(id) || self.controls.plain.not_at_start == Some(id)
    }
}

/// Reads the file as one of a byte-pair model, which nearly all are: the crate's own reading finds out the kind of model
/// by building a tree of all its entries first, which takes longer than everything else. Any other file is left to it.
fn read(json: &[u8]) -> tokenizers::Result<tokenizers::Tokenizer> {
    type Bpe = TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;
    match serde_json::from_slice::<Bpe>(json) {
        Ok(tokenizer) => Ok(tokenizer.into()),
        Err(_) => tokenizers::Tokenizer::from_bytes(json),
    }
}

impl Shared {
    fn load(json: &[u8], special: &SpecialTokens) -> Result<Self> {
        let mut vocabulary = guarded("the whole file", || read(json))?;
        // Batch settings: a hostile padding length would be an allocation of its size.
        vocabulary.with_padding(None);
        guarded("truncation", || vocabulary.with_truncation(None).map(|_| ()))?;
        let added: BTreeMap<u32, AddedToken> = vocabulary.get_added_tokens_decoder().into_iter().collect();
        let id_of = |text: &Option<String>| text.as_deref().and_then(|text| vocabulary.token_to_id(text));
        let bos_id = special.bos_id.or_else(|| id_of(&special.bos_token));
        let mut eos_ids = special.eos_ids.clone();
        eos_ids.extend(id_of(&special.eos_token));
        eos_ids.sort_unstable();
        eos_ids.dedup();
        let own_start = start_of(&vocabulary)?;
        let start_ids = match special.add_bos {
            Some(false) => Vec::new(),
            Some(true) if own_start.is_empty() => bos_id.into_iter().collect(),
            _ => own_start,
        };
        Ok(Shared {
            pieces: PieceDecoder::new(vocabulary.get_decoder())?,
            unk_id: id_of(&special.unk_token).or_else(|| unknown_of(vocabulary.get_model())),
            first_word_differs: vocabulary.get_pre_tokenizer().is_some_and(prefixes_first_word),
            added,
            bos_id,
            eos_ids,
            start_ids,
            vocabulary: Arc::new(vocabulary),
        })
    }

    fn is_mere_unknown(&self, id: u32) -> bool {
        self.unk_id == Some(id) && self.bos_id != Some(id) && !self.eos_ids.contains(&id)
    }
}

impl Controls {
    fn new(shared: &Shared, is_control: impl Fn(u32, &AddedToken) -> bool) -> Result<Self> {
        let begins_or_ends = |id: u32| shared.bos_id == Some(id) || shared.eos_ids.contains(&id);
        let texts: BTreeMap<u32, String> = shared
            .added
            .iter()
            .filter(|&(&id, token)| !token.content.is_empty() && (is_control(id, token) || begins_or_ends(id)))
            .map(|(&id, token)| (id, token.content.clone()))
            .collect();
        Ok(Controls { parsing: Encoder::new(shared, &BTreeMap::new())?, plain: Encoder::new(shared, &texts)?, texts })
    }
}

impl Encoder {
    /// An encoder that does not see the tokens `hidden`.
    fn new(shared: &Shared, hidden: &BTreeMap<u32, String>) -> Result<Self> {
        let source = &shared.vocabulary;
        let mut inner = TokenizerImpl::new(SharedModel(source.clone()));
        inner.with_pre_tokenizer(source.get_pre_tokenizer().cloned());
        guarded("normalizer", || inner.with_normalizer(source.get_normalizer().cloned()).map(|_| ()))?;
        let mut rules = source.get_added_vocabulary().clone();
        if !hidden.is_empty() {
            // The crate can leave special tokens unseen; so everything to be hidden is made special here.
            let all = hidden.keys().filter_map(|id| shared.added.get(id)).cloned().map(|token| token.special(true));
            guarded("added_tokens", || rules.add_tokens(all, source.get_model(), source.get_normalizer()))?;
            rules.set_encode_special_tokens(true);
        }
        inner.with_added_vocabulary(rules);
        let mut not_at_start = None;
        if shared.first_word_differs {
            let mark = AddedToken::from(NOT_AT_START, false).normalized(false);
            guarded("added_tokens", || inner.add_tokens([mark]))?;
            not_at_start = inner.token_to_id(NOT_AT_START);
        }
        Ok(Encoder { inner, not_at_start })
    }

    fn encode(&self, text: &str, at_start: bool) -> Result<Vec<SpannedToken>> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        if at_start || self.not_at_start.is_none() {
            let encoding = guarded("encoding a text", || self.inner.encode(text, false))?;
            return Ok(spanned(&encoding, 0));
        }
        let marked = format!("{NOT_AT_START}{text}");
        let encoding = guarded("encoding a text", || self.inner.encode(marked, false))?;
        let mut tokens = spanned(&encoding, NOT_AT_START.len());
        tokens.remove(0);
        Ok(tokens)
    }
}

fn spanned(encoding: &Encoding, offset: usize) -> Vec<SpannedToken> {
    let spans = encoding.get_offsets().iter();
    let spans = spans.map(|&(start, end)| start.saturating_sub(offset)..end.saturating_sub(offset));
    encoding.get_ids().iter().zip(spans).map(|(&id, span)| SpannedToken { id, span }).collect()
}

/// The vocabulary of another tokenizer as a model.
#[derive(Debug, Clone)]
struct SharedModel(Arc<tokenizers::Tokenizer>);

impl Model for SharedModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, sequence: &str) -> tokenizers::Result<Vec<Token>> {
        self.0.get_model().tokenize(sequence)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.get_model().token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.get_model().id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.get_model().get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.get_model().get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        self.0.get_model().save(folder, prefix)
    }

    fn get_trainer(&self) -> TrainerWrapper {
        self.0.get_model().get_trainer()
    }
}

/// Runs a call into the `tokenizers` crate: its errors and, for hostile files, its panics become [`Error::Format`].
fn guarded<T>(field: &str, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Error::format("tokenizer.json", field, error.to_string())),
        Err(_) => Err(Error::format("tokenizer.json", field, "its values contradict each other")),
    }
}

/// The tokens the file's own post-processor puts in front of a text. What it puts behind (encoder models) is not for
/// a text that goes on.
fn start_of(vocabulary: &tokenizers::Tokenizer) -> Result<Vec<u32>> {
    let probe = |special| guarded("post_processor", || vocabulary.encode("a", special));
    let (with, without) = (probe(true)?, probe(false)?);
    let (with, without) = (with.get_ids(), without.get_ids());
    let start = with.windows(without.len().max(1)).position(|window| window == without);
    Ok(with.get(..start.unwrap_or(0)).unwrap_or_default().to_vec())
}

fn unknown_of(model: &tokenizers::ModelWrapper) -> Option<u32> {
    let text = match model {
        tokenizers::ModelWrapper::BPE(model) => model.get_unk_token().clone()?,
        tokenizers::ModelWrapper::WordLevel(model) => model.unk_token.clone(),
        tokenizers::ModelWrapper::WordPiece(model) => model.unk_token.clone(),
        tokenizers::ModelWrapper::Unigram(_) => return None,
    };
    model.token_to_id(&text)
}

fn prefixes_first_word(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::Metaspace(metaspace) => metaspace.get_prepend_scheme() == PrependScheme::First,
        PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref().iter().any(prefixes_first_word),
        _ => false,
    }
}

/// Whitespace appears in every template; only a visible token that is written out counts.
fn appears_in(template: &str, token: &str) -> bool {
    !token.trim().is_empty() && template.contains(token)
}

/// Cuts `text` after the first character of every span (before it, for spans of one character), so that each piece is
/// strictly smaller. One piece: the text is a single character.
fn cut_inside(text: &str, spans: impl Iterator<Item = Range<usize>>) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = 0;
    for span in spans {
        let Some(covered) = text.get(span.clone()) else { continue };
        let first = covered.chars().next().map_or(0, char::len_utf8);
        let cuts = if first < covered.len() { [span.start + first, span.start] } else { [span.start, span.end] };
        if let Some(&cut) = cuts.iter().find(|&&cut| cut > rest && cut < text.len()) {
            pieces.push(&text[rest..cut]);
            rest = cut;
        }
    }
    if pieces.is_empty() {
        // Spans between characters: any cut makes progress.
        if let Some((middle, _)) = text.char_indices().nth(text.chars().count() / 2).filter(|&(at, _)| at > 0) {
            return vec![&text[..middle], &text[middle..]];
        }
    }
    pieces.push(&text[rest..]);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const UNK: u32 = 0;
    const BOS: u32 = 1;
    const EOS: u32 = 2;

    fn load(mut file: Value) -> Tokenizer {
        let added = ["<unk>", "<s>", "</s>"].into_iter().enumerate().map(|(id, content)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        });
        file["added_tokens"] = added.collect();
        file["version"] = json!("1.0");
        let special = SpecialTokens {
            bos_token: Some("<s>".into()),
            eos_token: Some("</s>".into()),
            unk_token: Some("<unk>".into()),
            add_bos: Some(true),
            ..SpecialTokens::default()
        };
        Tokenizer::from_bytes(&serde_json::to_vec(&file).unwrap(), &special).unwrap()
    }

    /// In the manner of Llama 2: byte fallback, a space put before the first word, taken away again when decoding.
    fn sentence_piece() -> Tokenizer {
        let mut vocab: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
        vocab.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        vocab.extend(["▁", "H", "i", "<", "s", "/", ">", "Hi", "▁Hi"].map(String::from));
        let vocab: serde_json::Map<String, Value> =
            vocab.into_iter().enumerate().map(|(id, text)| (text, json!(id))).collect();
        load(json!({
            "normalizer": null,
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false},
            "post_processor": null,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}
            ]},
            "model": {"type": "BPE", "vocab": vocab, "merges": [["H", "i"], ["▁", "Hi"]], "unk_token": "<unk>",
                      "byte_fallback": true, "fuse_unk": true}
        }))
    }

    /// A Unigram model whose vocabulary prefers its control tokens to their letters.
    fn unigram() -> Tokenizer {
        load(json!({
            "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
            "model": {"type": "Unigram", "unk_id": UNK, "byte_fallback": false, "vocab": [
                ["<unk>", 0.0], ["<s>", -0.1], ["</s>", -0.1], ["<", -3.0], ["s", -3.0], [">", -3.0], ["/", -3.0],
                ["a", -2.0], ["▁", -2.0]
            ]}
        }))
    }

    #[test]
    fn control_tokens_of_the_vocabulary_itself_are_cut() {
        let tokenizer = unigram();
        for text in ["a<s>a", "<s>", "</s></s>", "<s</s>>", "<<s>s>"] {
            let ids = tokenizer.encode(text, EncodeOptions::default()).unwrap();
            assert!(!ids.iter().any(|&id| id == BOS || id == EOS), "{text}: {ids:?}");
            assert_eq!(tokenizer.decode(&ids, false), text);
        }
        let parsed = tokenizer.encode("a<s>a", EncodeOptions { add_bos: false, parse_special: true }).unwrap();
        assert_eq!(parsed, [7, BOS, 7]);
    }

    #[test]
    fn the_unknown_token_is_no_control_token() {
        let tokenizer = unigram();
        assert_eq!(tokenizer.encode("é", EncodeOptions::default()).unwrap(), [UNK]);
        assert!(!tokenizer.is_control(UNK));
        assert!(tokenizer.control_texts(false).any(|text| text == "<unk>"), "its text is still kept apart");
    }

    #[test]
    fn only_the_first_word_gets_the_space() {
        let tokenizer = sentence_piece();
        let (word, first_word) = (tokenizer.token_id("Hi").unwrap(), tokenizer.token_id("▁Hi").unwrap());
        assert_eq!(tokenizer.encode_plain("Hi", true).unwrap(), [first_word]);
        assert_eq!(tokenizer.encode_plain("Hi", false).unwrap(), [word]);
        let parsed: Vec<u32> = tokenizer.encode_spanned("<s>Hi", true).unwrap().iter().map(|token| token.id).collect();
        assert_eq!(parsed, [BOS, word]);
        let later: Vec<u32> = tokenizer.encode_spanned("Hi<s>", false).unwrap().iter().map(|token| token.id).collect();
        assert_eq!(later, [word, BOS]);
        let with_mark = tokenizer.encode_plain(&format!("a{NOT_AT_START}"), false).unwrap();
        assert!(with_mark.iter().all(|&id| (id as usize) < tokenizer.vocab_size()), "{with_mark:?}");
    }

    #[test]
    fn the_space_of_the_first_word_is_taken_away_once() {
        let tokenizer = sentence_piece();
        let ids = tokenizer.encode("Hi Hi 你", EncodeOptions { add_bos: true, parse_special: false }).unwrap();
        assert_eq!(ids.first(), Some(&BOS));
        assert_eq!(tokenizer.decode(&ids, true), "Hi Hi 你");
        let mut stream = tokenizer.stream(true);
        let pieces: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
        assert_eq!(pieces.concat() + &stream.finish(), "Hi Hi 你");
        assert!(pieces.contains(&String::new()), "incomplete characters wait");
        assert_eq!(tokenizer.token_bytes(tokenizer.token_id("▁Hi").unwrap()), b" Hi");
    }

    #[test]
    fn what_a_template_writes_out_is_a_control_token() {
        let mut file = serde_json::from_str::<Value>(
            r#"{"normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true}, "model": {"type": "BPE", "vocab": {"<": 0, "a": 1, ">": 2, "b": 3}, "merges": []}}"#,
        )
        .unwrap();
        let added = |id: u32, content: &str| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": false})
        };
        file["version"] = json!("1.0");
        file["added_tokens"] = json!([added(4, "<a>"), added(5, "<b>"), added(6, "\n")]);
        let json = serde_json::to_vec(&file).unwrap();
        let tokenizer = Tokenizer::from_bytes(&json, &SpecialTokens::default()).unwrap();
        assert!(!tokenizer.is_control(4));
        let tokenizer = tokenizer.with_template("{{ '<a>\n' }}").unwrap();
        assert!(tokenizer.is_control(4) && !tokenizer.is_control(5) && !tokenizer.is_control(6));
        assert!(!tokenizer.is_special(4), "it is shown in decoded text");
        let plain = tokenizer.encode("<a><b>\n", EncodeOptions::default()).unwrap();
        assert_eq!(plain, [0, 1, 2, 5, 6], "other added tokens are used as ever");
    }

    #[test]
    fn decoders_of_other_models_are_refused_by_name() {
        let mut file: Value = json!({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}});
        file["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
        let json = serde_json::to_vec(&file).unwrap();
        let error = Tokenizer::from_bytes(&json, &SpecialTokens::default()).unwrap_err();
        assert!(matches!(&error, Error::Unsupported(reason) if reason.contains("WordPiece")), "{error}");
    }
}
