//! SentencePiece BPE (pieces with scores) as a `tokenizer.json`.

use super::json::{Bpe, TextToId, TokenizerJson};
use super::vocabulary::Vocabulary;
use serde_json::{Value, json};

/// What stands for a space in a piece.
pub(crate) const SPACE: &str = "\u{2581}";

/// What happens to spaces before pieces are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spaces {
    /// A space is put in front of the text.
    pub(crate) add_prefix: bool,
    /// Spaces at both ends go, and several become one.
    pub(crate) remove_extra: bool,
}

/// The file for a vocabulary with one score a piece. `unknown` is the text of the unknown token.
pub(crate) fn tokenizer_json<'a>(
    vocabulary: &Vocabulary<'a>,
    scores: &[f64],
    spaces: Spaces,
    unknown: Option<&'a str>,
) -> TokenizerJson<'a> {
    TokenizerJson {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: vocabulary.added_tokens(),
        normalizer: normalizer(spaces),
        pre_tokenizer: Value::Null,
        post_processor: Value::Null,
        decoder: decoder(spaces.add_prefix),
        model: Bpe {
            model_type: "BPE",
            dropout: (),
            unk_token: unknown,
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: true,
            byte_fallback: true,
            ignore_merges: false,
            vocab: TextToId::new(vocabulary.texts()),
            merges: vocabulary.merges_by_score(scores),
        },
    }
}

/// Spaces become visible; most vocabularies expect one in front of the text too.
fn normalizer(spaces: Spaces) -> Value {
    let mut steps = Vec::new();
    if spaces.remove_extra {
        steps.push(json!({"type": "Strip", "strip_left": true, "strip_right": true}));
        steps.push(json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}));
    }
    if spaces.add_prefix {
        steps.push(json!({"type": "Prepend", "prepend": SPACE}));
    }
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    if steps.is_empty() {
        return replace;
    }
    steps.push(replace);
    json!({"type": "Sequence", "normalizers": steps})
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
