//! A Hugging Face `tokenizer.json` from the vocabulary in GGUF metadata.
//!
//! Two kinds exist in the supported architectures. `gpt2` is byte-level BPE: merges are stored, and the pre-tokenizer by
//! name (`byte_level`). `llama` is SentencePiece BPE: pieces have scores, from which the merges follow
//! (`sentence_piece`).

mod byte_level;
mod json;
mod sentence_piece;

use super::metadata::Metadata;
use crate::chat::SpecialTokens;
use crate::checkpoint::special::add_eos_ids;
use crate::error::{Error, Result};
use json::{AddedToken, TokenizerJson};
use serde_json::{Value, json};

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";

/// Texts that end a turn in the chat formats in use. GGUF names at most one of them as the end token, and a file made
/// from a base model names none of those its chat format uses.
const END_OF_TURN_TEXTS: [&str; 9] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<|user|>",
];

/// What a vocabulary entry is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    /// Text.
    Normal,
    /// Stands for text the vocabulary cannot spell.
    Unknown,
    /// Structure of a conversation or document; never the result of merging text.
    Control,
    /// Text that is always one token, matched before everything else.
    UserDefined,
    /// A hole.
    Unused,
    /// One byte, `<0x0A>`.
    Byte,
}

/// The vocabulary: text and kind of each id.
struct Vocabulary<'a> {
    texts: Vec<&'a str>,
    kinds: Vec<TokenKind>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self> {
        let texts = metadata.strings(TOKENS)?.ok_or_else(|| metadata.malformed(TOKENS, "missing"))?;
        let kinds = match metadata.integers(KINDS)? {
            None => vec![TokenKind::Normal; texts.len()],
            Some(numbers) => numbers
                .iter()
                .map(|number| match number {
                    1 => Ok(TokenKind::Normal),
                    2 => Ok(TokenKind::Unknown),
                    3 => Ok(TokenKind::Control),
                    4 => Ok(TokenKind::UserDefined),
                    0 | 5 => Ok(TokenKind::Unused),
                    6 => Ok(TokenKind::Byte),
                    other => Err(metadata.malformed(KINDS, format!("{other} is not a token type"))),
                })
                .collect::<Result<_>>()?,
        };
        if kinds.len() != texts.len() {
            return Err(metadata.malformed(KINDS, format!("{} types for {} tokens", kinds.len(), texts.len())));
        }
        if u32::try_from(texts.len()).is_err() {
            return Err(metadata.malformed(TOKENS, "more tokens than ids"));
        }
        Ok(Vocabulary { texts, kinds })
    }

    /// Id, text and kind of every entry.
    fn entries(&self) -> impl Iterator<Item = (u32, &'a str, TokenKind)> + '_ {
        (0u32..).zip(&self.texts).zip(&self.kinds).map(|((id, text), kind)| (id, *text, *kind))
    }

    fn text(&self, id: u32) -> Option<&'a str> {
        self.texts.get(id as usize).copied()
    }

    /// The tokens that are matched in the text before anything else happens to it. Control tokens are special.
    fn added_tokens(&self) -> Vec<AddedToken<'a>> {
        let added = self.entries().filter(|(_, text, _)| !text.is_empty());
        added
            .filter_map(|(id, content, kind)| match kind {
                TokenKind::Control | TokenKind::Unknown => Some(AddedToken::new(id, content, true)),
                TokenKind::UserDefined => Some(AddedToken::new(id, content, false)),
                TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => None,
            })
            .collect()
    }
}

/// The bytes of a `tokenizer.json` that tokenizes as the file's own tokenizer does.
pub(in super::super) fn tokenizer_json(metadata: &Metadata) -> Result<Vec<u8>> {
    let vocabulary = Vocabulary::read(metadata)?;
    let tokenizer = match tokenizer_model(metadata)? {
        "gpt2" => byte_level::build(metadata, &vocabulary)?,
        "llama" => sentence_piece::build(metadata, &vocabulary)?,
        other => {
            return Err(Error::Unsupported(format!("{MODEL} {other:?} cannot be read, only \"gpt2\" and \"llama\"")));
        }
    };
    let special = special_tokens(metadata)?;
    let begin = special.bos_token.as_deref().zip(special.bos_id).filter(|_| special.add_bos == Some(true));
    let tokenizer = TokenizerJson { post_processor: begin.map_or(Value::Null, add_in_front), ..tokenizer };
    serde_json::to_vec(&tokenizer).map_err(|e| Error::internal(format!("writing tokenizer.json: {e}")))
}

/// A post-processor that puts a token in front of every text.
fn add_in_front((text, id): (&str, u32)) -> Value {
    let token = |type_id| json!({"SpecialToken": {"id": text, "type_id": type_id}});
    let sequence = |name, type_id| json!({"Sequence": {"id": name, "type_id": type_id}});
    json!({
        "type": "TemplateProcessing",
        "single": [token(0), sequence("A", 0)],
        "pair": [token(0), sequence("A", 0), token(1), sequence("B", 1)],
        "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}},
    })
}

fn tokenizer_model(metadata: &Metadata) -> Result<&str> {
    metadata.text(MODEL)?.ok_or_else(|| metadata.malformed(MODEL, "missing"))
}

/// The special tokens the metadata names, and every token that ends a turn in a known chat format.
pub(super) fn special_tokens(metadata: &Metadata) -> Result<SpecialTokens> {
    // A file without a tokenizer can still be compiled, with a tokenizer from elsewhere.
    if metadata.text(MODEL)?.is_none() {
        return Ok(SpecialTokens::default());
    }
    let vocabulary = Vocabulary::read(metadata)?;
    let id = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match metadata.token_id(&key)? {
            Some(id) if vocabulary.text(id).is_none() => {
                Err(metadata.malformed(&key, format!("{id} is outside the vocabulary of {}", vocabulary.texts.len())))
            }
            id => Ok(id),
        }
    };
    let text = |id: Option<u32>| id.and_then(|id| vocabulary.text(id)).map(str::to_owned);
    let (bos, eos) = (id("bos")?, id("eos")?);
    let mut special = SpecialTokens {
        bos_token: text(bos),
        eos_token: text(eos),
        unk_token: text(id("unknown")?),
        pad_token: text(id("padding")?),
        add_bos: Some(adds_bos(metadata)?),
        bos_id: bos,
        ..SpecialTokens::default()
    };
    let end_of_turn = vocabulary.entries().filter(|(_, text, kind)| {
        matches!(kind, TokenKind::Control | TokenKind::UserDefined) && END_OF_TURN_TEXTS.contains(text)
    });
    add_eos_ids(&mut special, end_of_turn.map(|(id, ..)| id));
    add_eos_ids(&mut special, [eos, id("eot")?, id("eom")?].into_iter().flatten());
    Ok(special)
}

/// Whether text begins with the begin-of-text token. Where the file does not say, SentencePiece models and Llama 3 do.
fn adds_bos(metadata: &Metadata) -> Result<bool> {
    if let Some(stated) = metadata.boolean("tokenizer.ggml.add_bos_token")? {
        return Ok(stated);
    }
    Ok(match tokenizer_model(metadata)? {
        "llama" => true,
        _ => metadata.text(byte_level::PRE_TOKENIZER)?.is_some_and(byte_level::begins_with_bos),
    })
}
