//! A Hugging Face `tokenizer.json` from the vocabulary in GGUF metadata.
//!
//! Two kinds exist in the supported architectures. `gpt2` is byte-level BPE: merges are stored, and the pre-tokenizer by
//! name (`byte_level`). `llama` is SentencePiece BPE: pieces have scores, from which the merges follow
//! (`sentence_piece`).

mod byte_level;
mod sentence_piece;

use super::metadata::Metadata;
use crate::chat::SpecialTokens;
use crate::chat::tokenizer_files::add_eos_ids;
use crate::chat::tokenizer_files::json::TokenizerJson;
use crate::chat::tokenizer_files::vocabulary::{TokenKind, Vocabulary, add_in_front};
use crate::error::{Error, Result};
use serde_json::Value;

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

/// The vocabulary: text and kind of each id.
fn read_vocabulary(metadata: &Metadata) -> Result<Vocabulary<'_>> {
    let texts = metadata.strings(TOKENS)?.ok_or_else(|| metadata.malformed(TOKENS, "missing"))?;
    let kinds = match metadata.integers(KINDS)? {
        None => vec![TokenKind::Normal; texts.len()],
        Some(numbers) => numbers
            .iter()
            .map(|number| {
                let kind = u64::try_from(*number).ok().and_then(TokenKind::from_number);
                kind.ok_or_else(|| metadata.malformed(KINDS, format!("{number} is not a token type")))
            })
            .collect::<Result<_>>()?,
    };
    if kinds.len() != texts.len() {
        return Err(metadata.malformed(KINDS, format!("{} types for {} tokens", kinds.len(), texts.len())));
    }
    Vocabulary::new(texts, kinds).ok_or_else(|| metadata.malformed(TOKENS, "more tokens than ids"))
}

/// The bytes of a `tokenizer.json` that tokenizes as the file's own tokenizer does.
pub(in super::super) fn tokenizer_json(metadata: &Metadata) -> Result<Vec<u8>> {
    let vocabulary = read_vocabulary(metadata)?;
    let tokenizer = match tokenizer_model(metadata)? {
        "gpt2" => byte_level::build(metadata, &vocabulary)?,
        "llama" => sentence_piece::build(metadata, &vocabulary)?,
        other => {
            return Err(Error::Unsupported(format!("{MODEL} {other:?} cannot be read, only \"gpt2\" and \"llama\"")));
        }
    };
    let special = special_tokens(metadata)?;
    let begin = special.bos_token.as_deref().zip(special.bos_id).filter(|_| special.add_bos == Some(true));
    let tokenizer =
        TokenizerJson { post_processor: begin.map_or(Value::Null, |(text, id)| add_in_front(text, id)), ..tokenizer };
    serde_json::to_vec(&tokenizer).map_err(|e| Error::internal(format!("writing tokenizer.json: {e}")))
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
    let vocabulary = read_vocabulary(metadata)?;
    let id = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match metadata.token_id(&key)? {
            Some(id) if vocabulary.text(id).is_none() => {
                Err(metadata.malformed(&key, format!("{id} is outside the vocabulary of {}", vocabulary.len())))
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
