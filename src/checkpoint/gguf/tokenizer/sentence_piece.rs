//! SentencePiece BPE (`llama`): pieces with scores.
//!
//! SentencePiece joins, again and again, the two neighbours whose joined piece has the best score. The same follows from
//! a list of merges: every way to cut a piece in two pieces, ordered by the score of the whole.

use super::json::{Bpe, TextToId, TokenizerJson};
use super::{Metadata, TokenKind, Vocabulary};
use crate::error::Result;
use serde_json::{Value, json};
use std::collections::HashMap;

const SCORES: &str = "tokenizer.ggml.scores";
const SPACE: &str = "\u{2581}";

/// Longer pieces get no merges: the ways to cut them grow with the square of their length, and no vocabulary in use has
/// pieces of text half as long.
const MAX_MERGED_BYTES: usize = 512;

pub(super) fn build<'a>(metadata: &'a Metadata, vocabulary: &Vocabulary<'a>) -> Result<TokenizerJson<'a>> {
    let scores = metadata.floats(SCORES)?.ok_or_else(|| metadata.malformed(SCORES, "missing"))?;
    if scores.len() != vocabulary.texts.len() {
        let reason = format!("{} scores for {} tokens", scores.len(), vocabulary.texts.len());
        return Err(metadata.malformed(SCORES, reason));
    }
    let add_prefix = metadata.boolean("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let unknown = vocabulary.entries().find(|(_, _, kind)| *kind == TokenKind::Unknown).map(|(_, text, _)| text);
    let unknown = match metadata.token_id("tokenizer.ggml.unknown_token_id")? {
        Some(id) => vocabulary.text(id),
        None => unknown,
    };
    Ok(TokenizerJson {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: vocabulary.added_tokens(),
        normalizer: normalizer(add_prefix),
        pre_tokenizer: Value::Null,
        post_processor: Value::Null,
        decoder: decoder(add_prefix),
        model: Bpe {
            model_type: "BPE",
            dropout: (),
            unk_token: unknown,
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: true,
            byte_fallback: true,
            ignore_merges: false,
            vocab: TextToId::new(&vocabulary.texts),
            merges: merges(vocabulary, &scores),
        },
    })
}

/// Spaces become visible; most vocabularies expect one in front of the text too.
fn normalizer(add_prefix: bool) -> Value {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    match add_prefix {
        false => replace,
        true => json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]}),
    }
}

fn decoder(add_prefix: bool) -> Value {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if add_prefix {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

/// Every cut of a text piece into two text pieces, best whole first.
fn merges<'a>(vocabulary: &Vocabulary<'a>, scores: &[f64]) -> Vec<(&'a str, &'a str)> {
    let text_pieces = || vocabulary.entries().filter(|(_, _, kind)| *kind == TokenKind::Normal);
    let ids: HashMap<&str, u32> = text_pieces().map(|(id, text, _)| (text, id)).collect();

    let mut by_score: Vec<(f64, &str)> = text_pieces()
        .filter(|(_, text, _)| text.len() <= MAX_MERGED_BYTES)
        .filter_map(|(id, text, _)| Some((*scores.get(id as usize)?, text)))
        .collect();
    // Stable: pieces of equal score keep the order of their ids.
    by_score.sort_by(|(a, _), (b, _)| b.total_cmp(a));

    let mut merges = Vec::with_capacity(by_score.len());
    let mut cuts = Vec::new();
    for (_, whole) in by_score {
        cuts.clear();
        for (at, _) in whole.char_indices().skip(1) {
            let (left, right) = whole.split_at(at);
            if let Some(left_id) = ids.get(left)
                && let Some(right_id) = ids.get(right)
            {
                cuts.push((*left_id, *right_id, left, right));
            }
        }
        cuts.sort_unstable();
        merges.extend(cuts.iter().map(|(_, _, left, right)| (*left, *right)));
    }
    merges
}
