//! Byte-level BPE (`gpt2`): merges are stored, the pre-tokenizer by name.

use super::{Metadata, Vocabulary};
use crate::chat::tokenizer_files::byte_level::{LLAMA3_WORDS, byte_level_step, words_of};
use crate::chat::tokenizer_files::json::{Bpe, TextToId, TokenizerJson};
use crate::error::{Error, Result};
use serde_json::{Value, json};

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
            PreTokenizer { ignore_merges: true, ..plain(Splitting::Regex(LLAMA3_WORDS)) }
        }
        "dbrx" | "smaug-bpe" | "chatglm-bpe" | "glm4" => plain(Splitting::Regex(LLAMA3_WORDS)),
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
        decoder: byte_level_step(true, true),
        model: Bpe {
            model_type: "BPE",
            dropout: (),
            unk_token: None,
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: pre.ignore_merges,
            vocab: TextToId::new(vocabulary.texts()),
            merges: vocabulary.usable_merges(&merges),
        },
    })
}

fn pre_tokenizer_json(splitting: Splitting) -> Value {
    match splitting {
        Splitting::Gpt2 => byte_level_step(false, true),
        Splitting::DigitsThenGpt2 => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            json!({"type": "Sequence", "pretokenizers": [digits, byte_level_step(false, true)]})
        }
        Splitting::Regex(regex) => words_of(regex),
    }
}
