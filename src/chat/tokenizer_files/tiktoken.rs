//! tiktoken's rank file, as Llama 3 ships it: lines of a token's bytes in base64 and its rank.
//!
//! The file holds neither the rule that cuts text into words nor the special tokens; both are Llama 3's, which is what
//! upstream's runners take for any such file. The special tokens are 256 and follow the ranked ones.

use super::Parsed;
use super::byte_level::{LLAMA3_WORDS, in_alphabet, ranked_json};
use super::vocabulary::{TokenKind, Vocabulary};
use crate::chat::SpecialTokens;
use crate::error::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::path::Path;

const BOS: &str = "<|begin_of_text|>";
const EOS: &str = "<|end_of_text|>";

/// The named ones among Llama 3's special tokens, in order.
const NAMED: [&str; 11] = [
    BOS,
    EOS,
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
];
const SPECIAL_TOKENS: usize = 256;

/// Whether a file looks like this: its first line is base64, a space and digits.
pub(super) fn is_rank_file(bytes: &[u8]) -> bool {
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    parse_line(line).is_ok()
}

/// Reads a rank file.
///
/// # Errors
/// [`Error::Format`] naming the line and the value.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Parsed> {
    let texts = ranked_texts(path, bytes)?;
    let ranked = texts.len();
    let reserved = (2..).map(|number| format!("<|reserved_special_token_{number}|>"));
    let special: Vec<String> =
        NAMED.iter().map(|text| (*text).to_owned()).chain(reserved).take(SPECIAL_TOKENS).collect();
    let all: Vec<&str> = texts.iter().chain(&special).map(String::as_str).collect();
    let kinds = [vec![TokenKind::Normal; ranked], vec![TokenKind::Control; SPECIAL_TOKENS]].concat();
    let vocabulary =
        Vocabulary::new(all, kinds).ok_or_else(|| Error::format(path, "tokens", "more tokens than ids"))?;
    let bos_id = u32::try_from(ranked).map_err(|_| Error::format(path, "tokens", "more tokens than ids"))?;
    let named = |name: &str| NAMED.iter().zip(bos_id..).find(|(text, _)| **text == name).map(|(_, id)| id);
    let ends = [EOS, "<|eom_id|>", "<|eot_id|>"];
    let special = SpecialTokens {
        bos_token: Some(BOS.into()),
        eos_token: Some(EOS.into()),
        add_bos: Some(true),
        bos_id: Some(bos_id),
        eos_ids: ends.iter().filter_map(|name| named(name)).collect(),
        ..SpecialTokens::default()
    };
    Parsed::new(ranked_json(&vocabulary, LLAMA3_WORDS, (BOS, bos_id)), special)
}

/// The tokens by rank, in GPT-2's alphabet. Ranks are 0, 1, 2, … in any order of lines.
fn ranked_texts(path: &Path, bytes: &[u8]) -> Result<Vec<String>> {
    let mut ranked: Vec<(u64, usize, String)> = Vec::new();
    let lines = bytes.split(|&byte| byte == b'\n').enumerate();
    for (index, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
        let number = index + 1;
        let (token, rank) = parse_line(line).map_err(|reason| Error::format(path, format!("line {number}"), reason))?;
        ranked.push((rank, number, in_alphabet(&token)));
    }
    ranked.sort_unstable();
    for (wanted, (rank, number, _)) in (0u64..).zip(&ranked) {
        if *rank != wanted {
            let field = format!("line {number}");
            let reason =
                if *rank < wanted { "is there twice".into() } else { format!("but no line has rank {wanted}") };
            return Err(Error::format(path, field, format!("rank {rank} {reason}")));
        }
    }
    let mut seen = std::collections::HashSet::with_capacity(ranked.len());
    if let Some((rank, number, _)) = ranked.iter().find(|(_, _, text)| !seen.insert(text.as_str())) {
        return Err(Error::format(path, format!("line {number}"), format!("the token of rank {rank} is there twice")));
    }
    Ok(ranked.into_iter().map(|(_, _, text)| text).collect())
}

/// Token bytes and rank, or why the line holds none.
fn parse_line(line: &[u8]) -> std::result::Result<(Vec<u8>, u64), String> {
    let line = std::str::from_utf8(line).map_err(|_| "is not text".to_owned())?.trim_end();
    let (token, rank) = line.split_once(' ').ok_or_else(|| format!("{:?} is not a token and a rank", clipped(line)))?;
    let bytes = STANDARD.decode(token).map_err(|e| format!("token {:?} is not base64: {e}", clipped(token)))?;
    if bytes.is_empty() {
        return Err("the token is empty".into());
    }
    let rank = rank.parse().map_err(|_| format!("rank {:?} is not a number", clipped(rank)))?;
    Ok((bytes, rank))
}

/// As much of a text as an error should show.
fn clipped(text: &str) -> String {
    text.chars().take(40).collect()
}
