//! Byte-level BPE (`gpt2`): merges are stored, the pre-tokenizer by name.

use super::json::{Bpe, TextToId, TokenizerJson};
use super::{Metadata, TokenKind, Vocabulary};
use crate::error::{Error, Result};
use serde_json::{Value, json};
use std::collections::HashSet;

pub(super) const PRE_TOKENIZER: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";

/// How text is cut into words before merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Splitting {
    /// GPT-2's own.
    Gpt2,
    /// GPT-2's, after every digit was set apart.
    DigitsThenGpt2,
    /// Words of the published expression.
    Regex(&'static str),
}

/// Llama 3: up to three digits together.
const LLAMA3: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// Qwen 2: every digit by itself.
const QWEN2: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// GPT-4o: words end where case changes from lower to upper.
const GPT4O: &str = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// Tekken (Mistral): as GPT-4o without English endings, every digit by itself.
const TEKKEN: &str = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/// What a name in [`PRE_TOKENIZER`] stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PreTokenizer {
    splitting: Splitting,
    /// Text is brought into Unicode form NFC first.
    nfc: bool,
    /// A word that is a token stays one, whatever the merges would make of it.
    ignore_merges: bool,
}

fn pre_tokenizer(name: &str) -> Option<PreTokenizer> {
    let plain = |splitting| PreTokenizer { splitting, nfc: false, ignore_merges: false };
    Some(match name {
        "default" | "gpt-2" | "gpt2" | "phi-2" | "olmo" | "mpt" => plain(Splitting::Gpt2),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" => plain(Splitting::DigitsThenGpt2),
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" => {
            PreTokenizer { ignore_merges: true, ..plain(Splitting::Regex(LLAMA3)) }
        }
        "dbrx" | "smaug-bpe" | "chatglm-bpe" | "glm4" => plain(Splitting::Regex(LLAMA3)),
        "qwen2" | "deepseek-r1-qwen" => PreTokenizer { nfc: true, ..plain(Splitting::Regex(QWEN2)) },
        "stablelm2" => plain(Splitting::Regex(QWEN2)),
        "gpt-4o" | "llama4" => plain(Splitting::Regex(GPT4O)),
        "tekken" => PreTokenizer { ignore_merges: true, ..plain(Splitting::Regex(TEKKEN)) },
        _ => return None,
    })
}

/// Whether models with this pre-tokenizer begin every text with the begin-of-text token.
pub(super) fn begins_with_bos(name: &str) -> bool {
    matches!(name, "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "tekken")
}

pub(super) fn build<'a>(metadata: &'a Metadata, vocabulary: &Vocabulary<'a>) -> Result<TokenizerJson<'a>> {
    let name = metadata.text(PRE_TOKENIZER)?.unwrap_or("default");
    let pre = pre_tokenizer(name).ok_or_else(|| {
        Error::Unsupported(format!(
            "{PRE_TOKENIZER} {name:?} is not known: give the tokenizer.json of the original model instead"
        ))
    })?;
    let merges = metadata.strings(MERGES)?.ok_or_else(|| metadata.malformed(MERGES, "missing"))?;
    Ok(TokenizerJson {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: vocabulary.added_tokens(),
        normalizer: if pre.nfc { json!({"type": "NFC"}) } else { Value::Null },
        pre_tokenizer: pre_tokenizer_json(pre.splitting),
        post_processor: Value::Null,
        decoder: byte_level_json(true, true),
        model: Bpe {
            model_type: "BPE",
            dropout: (),
            unk_token: None,
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: pre.ignore_merges,
            vocab: TextToId::new(&vocabulary.texts),
            merges: usable_merges(&merges, vocabulary),
        },
    })
}

/// The stored merges (`"left right"`), without those that could never apply because a part or the result is not a text
/// token: the `tokenizers` crate refuses a file that holds one.
fn usable_merges<'a>(merges: &[&'a str], vocabulary: &Vocabulary<'a>) -> Vec<(&'a str, &'a str)> {
    let is_text = |kind| matches!(kind, TokenKind::Normal | TokenKind::Unused | TokenKind::Byte);
    let texts: HashSet<&str> =
        vocabulary.entries().filter(|(_, _, kind)| is_text(*kind)).map(|(_, text, _)| text).collect();
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

fn byte_level_json(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex})
}

fn pre_tokenizer_json(splitting: Splitting) -> Value {
    let sequence =
        |first, use_regex| json!({"type": "Sequence", "pretokenizers": [first, byte_level_json(false, use_regex)]});
    match splitting {
        Splitting::Gpt2 => byte_level_json(false, true),
        Splitting::DigitsThenGpt2 => sequence(json!({"type": "Digits", "individual_digits": true}), true),
        Splitting::Regex(regex) => sequence(
            json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false}),
            false,
        ),
    }
}
