//! A vocabulary as files that are no `tokenizer.json` hold it: texts by id, and what each is for.

use super::json::AddedToken;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// Longer pieces get no merges: the ways to cut them grow with the square of their length, and no vocabulary in use has
/// pieces of text half as long.
const MAX_MERGED_BYTES: usize = 512;

/// What a vocabulary entry is for. The names are SentencePiece's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
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

impl TokenKind {
    /// The kind of a type number, as SentencePiece and GGUF store it. `None` if there is none.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            0 | 5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => return None,
        })
    }
}

/// Text and kind of each id.
pub(crate) struct Vocabulary<'a> {
    texts: Vec<&'a str>,
    kinds: Vec<TokenKind>,
}

impl<'a> Vocabulary<'a> {
    /// Joins texts and kinds by id. `None` if there are more of one than of the other, or more than ids.
    pub(crate) fn new(texts: Vec<&'a str>, kinds: Vec<TokenKind>) -> Option<Self> {
        (texts.len() == kinds.len() && u32::try_from(texts.len()).is_ok()).then_some(Vocabulary { texts, kinds })
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Texts by id.
    pub(crate) fn texts(&self) -> &[&'a str] {
        &self.texts
    }

    /// Id, text and kind of every entry.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u32, &'a str, TokenKind)> + '_ {
        (0u32..).zip(&self.texts).zip(&self.kinds).map(|((id, text), kind)| (id, *text, *kind))
    }

    /// Text of an id.
    pub(crate) fn text(&self, id: u32) -> Option<&'a str> {
        self.texts.get(id as usize).copied()
    }

    /// The tokens that are matched in the text before anything else happens to it. Control tokens are special.
    pub(crate) fn added_tokens(&self) -> Vec<AddedToken<'a>> {
        let added = self.entries().filter(|(_, text, _)| !text.is_empty());
        added
            .filter_map(|(id, content, kind)| match kind {
                TokenKind::Control | TokenKind::Unknown => Some(AddedToken::new(id, content, true)),
                TokenKind::UserDefined => Some(AddedToken::new(id, content, false)),
                TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => None,
            })
            .collect()
    }

    /// The merges that follow from scores by id: every cut of a text piece into two text pieces, best whole first.
    ///
    /// A tokenizer with scores (or ranks) joins, again and again, the two neighbours whose joined piece has the best one.
    /// Merging by this list does the same.
    pub(crate) fn merges_by_score(&self, scores: &[f64]) -> Vec<(&'a str, &'a str)> {
        let text_pieces = || self.entries().filter(|(_, _, kind)| *kind == TokenKind::Normal);
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

    /// The stored merges (`"left right"`), without those that could never apply because a part or the result is not a
    /// text token: the `tokenizers` crate refuses a file that holds one.
    pub(crate) fn usable_merges(&self, merges: &[&'a str]) -> Vec<(&'a str, &'a str)> {
        let is_text = |kind| matches!(kind, TokenKind::Normal | TokenKind::Unused | TokenKind::Byte);
        let texts: HashSet<&str> =
            self.entries().filter(|(_, _, kind)| is_text(*kind)).map(|(_, text, _)| text).collect();
        let mut joined = String::new();
        let mut usable = Vec::new();
        for (left, right) in merges.iter().filter_map(|merge| merge.split_once(' ')) {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            if texts.contains(left) && texts.contains(right) && texts.contains(joined.as_str()) {
                usable.push((left, right));
            }
        }
        usable
    }
}

/// A post-processor that puts a token in front of every text.
pub(crate) fn add_in_front(text: &str, id: u32) -> Value {
    let token = |type_id| json!({"SpecialToken": {"id": text, "type_id": type_id}});
    let sequence = |name, type_id| json!({"Sequence": {"id": name, "type_id": type_id}});
    json!({
        "type": "TemplateProcessing",
        "single": [token(0), sequence("A", 0)],
        "pair": [token(0), sequence("A", 0), token(1), sequence("B", 1)],
        "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}},
    })
}
