//! SentencePiece BPE (`llama`): pieces with scores.

use super::{Metadata, TokenKind, Vocabulary};
use crate::chat::tokenizer_files::json::TokenizerJson;
use crate::chat::tokenizer_files::sentence_piece::{Spaces, tokenizer_json};
use crate::error::Result;

const SCORES: &str = "tokenizer.ggml.scores";

pub(super) fn build<'a>(metadata: &'a Metadata, vocabulary: &Vocabulary<'a>) -> Result<TokenizerJson<'a>> {
    let scores = metadata.floats(SCORES)?.ok_or_else(|| metadata.malformed(SCORES, "missing"))?;
    if scores.len() != vocabulary.len() {
        let reason = format!("{} scores for {} tokens", scores.len(), vocabulary.len());
        return Err(metadata.malformed(SCORES, reason));
    }
    let add_prefix = metadata.boolean("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let unknown = vocabulary.entries().find(|(_, _, kind)| *kind == TokenKind::Unknown).map(|(_, text, _)| text);
    let unknown = match metadata.token_id("tokenizer.ggml.unknown_token_id")? {
        Some(id) => vocabulary.text(id),
        None => unknown,
    };
    let spaces = Spaces { add_prefix, remove_extra: false };
    Ok(tokenizer_json(vocabulary, &scores, spaces, unknown))
}
