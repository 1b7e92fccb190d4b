//! Mistral's `tekken.json`: ranked tokens like tiktoken's, with the rule that cuts text into words beside them.
//!
//! Special tokens have the first ids, `default_num_special_tokens` of them; the ranked ones follow.

use super::Parsed;
use super::byte_level::{in_alphabet, ranked_json};
use super::vocabulary::{TokenKind, Vocabulary};
use crate::chat::SpecialTokens;
use crate::error::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use std::path::Path;

const BOS: &str = "<s>";
const EOS: &str = "</s>";

/// Special tokens of files that list none, by id.
const DEFAULT: [&str; 20] = [
    "<unk>",
    BOS,
    EOS,
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// Files in use have a thousand.
const MOST_SPECIAL_TOKENS: usize = 1 << 16;

#[derive(Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Ranked>,
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct Ranked {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

/// Reads a file.
///
/// # Errors
/// [`Error::Format`] naming the field and the value.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Parsed> {
    let malformed = |field: String, reason: String| Error::format(path, field, reason);
    let file: File = serde_json::from_slice(bytes).map_err(|e| malformed("tekken".into(), e.to_string()))?;
    let special = special_tokens(&file).map_err(|(field, reason)| malformed(field, reason))?;
    let ranked = ranked_tokens(&file, special.len()).map_err(|(field, reason)| malformed(field, reason))?;
    let id_of = |text: &str| special.iter().position(|known| known == text).and_then(|id| u32::try_from(id).ok());
    let missing = |text: &str| malformed("special_tokens".into(), format!("{text} is not among them"));
    let bos_id = id_of(BOS).ok_or_else(|| missing(BOS))?;
    let eos_id = id_of(EOS).ok_or_else(|| missing(EOS))?;
    let texts: Vec<&str> = special.iter().chain(&ranked).map(String::as_str).collect();
    let kinds = [vec![TokenKind::Control; special.len()], vec![TokenKind::Normal; ranked.len()]].concat();
    let vocabulary =
        Vocabulary::new(texts, kinds).ok_or_else(|| malformed("vocab".into(), "more tokens than ids".into()))?;
    let tokens = SpecialTokens {
        bos_token: Some(BOS.into()),
        eos_token: Some(EOS.into()),
        unk_token: id_of("<unk>").map(|_| "<unk>".into()),
        pad_token: id_of("<pad>").map(|_| "<pad>".into()),
        add_bos: Some(true),
        bos_id: Some(bos_id),
        eos_ids: vec![eos_id],
    };
    Parsed::new(ranked_json(&vocabulary, &file.config.pattern, (BOS, bos_id)), tokens)
}

type Misfit = (String, String);

/// The special tokens by id; ids that have none get a name nobody writes.
fn special_tokens(file: &File) -> std::result::Result<Vec<String>, Misfit> {
    let count = file.config.default_num_special_tokens;
    if count > MOST_SPECIAL_TOKENS || count > file.config.default_vocab_size {
        let vocabulary = file.config.default_vocab_size;
        let reason = format!("{count}, of a vocabulary of {vocabulary} and at most {MOST_SPECIAL_TOKENS}");
        return Err(("config.default_num_special_tokens".into(), reason));
    }
    let mut texts: Vec<String> = (0..count).map(|id| format!("<SPECIAL_{id}>")).collect();
    let default = || DEFAULT.iter().enumerate().map(|(rank, text)| (rank, (*text).to_owned())).collect();
    let named: Vec<(usize, String)> = match &file.special_tokens {
        Some(listed) => listed.iter().map(|token| (token.rank, token.token_str.clone())).collect(),
        None => default(),
    };
    for (rank, text) in named {
        let place = texts.get_mut(rank).ok_or_else(|| {
            ("special_tokens".to_owned(), format!("rank {rank} of {text:?} is outside of the {count} there are"))
        })?;
        *place = text;
    }
    Ok(texts)
}

/// The ranked tokens in GPT-2's alphabet, as many as the vocabulary has beside the special ones.
fn ranked_tokens(file: &File, special: usize) -> std::result::Result<Vec<String>, Misfit> {
    let most = file.config.default_vocab_size - special;
    let text = |(index, token): (usize, &Ranked)| {
        let field = || format!("vocab entry {index}");
        if token.rank != index {
            return Err((field(), format!("its rank is {}", token.rank)));
        }
        let bytes = STANDARD.decode(&token.token_bytes).map_err(|e| (field(), format!("is not base64: {e}")))?;
        if bytes.is_empty() { Err((field(), "is empty".into())) } else { Ok(in_alphabet(&bytes)) }
    };
    file.vocab.iter().take(most).enumerate().map(text).collect()
}
