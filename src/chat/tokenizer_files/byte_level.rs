//! Parts of a byte-level `tokenizer.json`: GPT-2's alphabet and pre-tokenizers; and a whole one from ranks.

use super::json::{Bpe, TextToId, TokenizerJson};
use super::vocabulary::{Vocabulary, add_in_front};
use serde_json::{Value, json};

/// Words of Llama 3: up to three digits together.
pub(crate) const LLAMA3_WORDS: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/// The step `ByteLevel` of a pre-tokenizer or decoder. `use_regex`: cut into GPT-2's words.
pub(crate) fn byte_level_step(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex})
}

/// A pre-tokenizer that cuts text into what `regex` matches.
pub(crate) fn words_of(regex: &str) -> Value {
    let split = json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    json!({"type": "Sequence", "pretokenizers": [split, byte_level_step(false, false)]})
}

/// Bytes in GPT-2's alphabet: printable ones stand for themselves, the others for the code points from 256 on.
pub(crate) fn in_alphabet(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| character_of(byte)).collect()
}

/// A file in which tokens with lower ids are merged first, as tiktoken does with ranks. `words`: what text is cut into;
/// `begin`: the token in front of every text.
pub(crate) fn ranked_json<'a>(vocabulary: &Vocabulary<'a>, words: &str, begin: (&str, u32)) -> TokenizerJson<'a> {
    let scores: Vec<f64> = (0..vocabulary.len()).map(|id| -(id as f64)).collect();
    TokenizerJson {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: vocabulary.added_tokens(),
        normalizer: Value::Null,
        pre_tokenizer: words_of(words),
        post_processor: add_in_front(begin.0, begin.1),
        decoder: byte_level_step(true, true),
        model: Bpe {
            model_type: "BPE",
            dropout: (),
            unk_token: None,
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: false,
            byte_fallback: false,
            // A word that is a token stays one, whatever the merges would make of it.
            ignore_merges: true,
            vocab: TextToId::new(vocabulary.texts()),
            merges: vocabulary.merges_by_score(&scores),
        },
    }
}

fn character_of(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&before| !printable(before)).count();
    char::from_u32(0x100 + rank as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_the_published_one() {
        assert_eq!(in_alphabet(b" Hi\n"), "ĠHiĊ");
        assert_eq!(in_alphabet("×".as_bytes()), "ÃĹ");
        assert_eq!(in_alphabet(&[0, 0x7F, 0xAD]), "ĀġŃ");
        let all: std::collections::BTreeSet<char> = (0..=255).map(character_of).collect();
        assert_eq!(all.len(), 256);
    }
}
