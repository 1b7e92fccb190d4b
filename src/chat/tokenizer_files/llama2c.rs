//! `tokenizer.bin`: llama2.c's file, and ExecuTorch's variant of it.
//!
//! Both are a header of 32-bit integers and then, for each token, a score (f32), a length (i32) and as many bytes of
//! text; all little-endian. llama2.c's header is the longest length alone, its begin and end tokens are 1 and 2, and the
//! file ends with the last token. ExecuTorch's header is number of tokens, begin token, end token, longest length, and the
//! file may end before that many tokens were written.
//!
//! The texts are SentencePiece's with spaces written out. They are kept as they are, because that is how these runners
//! print them (`"\n</s>\n"`), but for the spaces.

use super::Parsed;
use super::sentence_piece::{self, SPACE, Spaces};
use super::vocabulary::{TokenKind, Vocabulary};
use crate::chat::SpecialTokens;
use crate::error::{Error, Result};
use std::path::Path;

/// Which of the two headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Plain,
    ExecuTorch,
}

/// Reads integers, floats and texts front to back; the caller says which field it is after.
struct Fields<'a> {
    path: &'a Path,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize, field: &str) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            let left = self.rest.len();
            return Err(self.malformed(field, format!("{count} bytes are needed, the file has {left} more")));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn word(&mut self, field: &str) -> Result<[u8; 4]> {
        let bytes = self.take(4, field)?;
        <[u8; 4]>::try_from(bytes).map_err(|_| self.malformed(field, "not four bytes"))
    }

    /// A number that cannot be negative.
    fn count(&mut self, field: &str) -> Result<usize> {
        let number = i32::from_le_bytes(self.word(field)?);
        usize::try_from(number).map_err(|_| self.malformed(field, format!("{number} is negative")))
    }

    fn malformed(&self, field: &str, reason: impl Into<String>) -> Error {
        Error::format(self.path, field, reason)
    }
}

/// What the file says, before spaces are made visible.
struct Contents {
    pieces: Vec<(f64, String)>,
    bos: usize,
    eos: usize,
}

/// Reads a file of either layout.
///
/// # Errors
/// [`Error::Format`] naming the field and the value.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Parsed> {
    let contents = match layout_of(path, bytes) {
        Layout::Plain => read_plain(path, bytes)?,
        Layout::ExecuTorch => read_executorch(path, bytes)?,
    };
    let (bos, eos) = (contents.bos, contents.eos);
    let kind = |(id, (_, text)): (usize, &(f64, String))| match id {
        0 => TokenKind::Unknown,
        id if id == bos || id == eos => TokenKind::Control,
        _ if is_byte(text) => TokenKind::Byte,
        _ => TokenKind::Normal,
    };
    let kinds: Vec<TokenKind> = contents.pieces.iter().enumerate().map(kind).collect();
    let visible = |((_, text), kind): (&(f64, String), &TokenKind)| match kind {
        TokenKind::Normal => text.replace(' ', SPACE),
        _ => text.clone(),
    };
    let texts: Vec<String> = contents.pieces.iter().zip(&kinds).map(visible).collect();
    let scores: Vec<f64> = contents.pieces.iter().map(|(score, _)| *score).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let text_of = |id: usize| texts.get(id).map(|text| (*text).to_owned());
    let special = SpecialTokens {
        bos_token: text_of(bos),
        eos_token: text_of(eos),
        unk_token: text_of(0),
        add_bos: Some(true),
        bos_id: u32::try_from(bos).ok(),
        eos_ids: u32::try_from(eos).into_iter().collect(),
        ..SpecialTokens::default()
    };
    let unknown = texts.first().copied();
    let vocabulary =
        Vocabulary::new(texts, kinds).ok_or_else(|| Error::format(path, "tokens", "more tokens than ids"))?;
    let spaces = Spaces { add_prefix: true, remove_extra: false };
    Parsed::new(sentence_piece::tokenizer_json(&vocabulary, &scores, spaces, unknown), special)
}

/// In llama2.c's file the fourth word is text of the first token; in ExecuTorch's it is the length of a text.
fn layout_of(path: &Path, bytes: &[u8]) -> Layout {
    let fourth = bytes.get(12..16).and_then(|word| <[u8; 4]>::try_from(word).ok()).map(i32::from_le_bytes);
    let is_length = fourth.and_then(|word| usize::try_from(word).ok()).is_some_and(|word| word <= bytes.len());
    if !is_length || read_plain(path, bytes).is_ok() { Layout::Plain } else { Layout::ExecuTorch }
}

fn read_plain(path: &Path, bytes: &[u8]) -> Result<Contents> {
    let mut fields = Fields { path, rest: bytes };
    let longest = fields.count("max_token_length")?;
    let mut pieces = Vec::new();
    while !fields.rest.is_empty() {
        pieces.push(read_piece(&mut fields, pieces.len(), longest)?);
    }
    if pieces.len() < 3 {
        let have = pieces.len();
        return Err(fields.malformed("tokens", format!("{have}, but 0, 1 and 2 are the unknown, begin and end tokens")));
    }
    Ok(Contents { pieces, bos: 1, eos: 2 })
}

fn read_executorch(path: &Path, bytes: &[u8]) -> Result<Contents> {
    let mut fields = Fields { path, rest: bytes };
    let tokens = fields.count("vocab_size")?;
    let (bos, eos) = (fields.count("bos_id")?, fields.count("eos_id")?);
    let longest = fields.count("max_token_length")?;
    let mut pieces = Vec::new();
    while pieces.len() < tokens && !fields.rest.is_empty() {
        pieces.push(read_piece(&mut fields, pieces.len(), longest)?);
    }
    if !fields.rest.is_empty() {
        let left = fields.rest.len();
        return Err(fields.malformed("vocab_size", format!("{tokens}, but {left} bytes follow the last token")));
    }
    for (field, id) in [("bos_id", bos), ("eos_id", eos)] {
        if id >= pieces.len() {
            let have = pieces.len();
            return Err(fields.malformed(field, format!("{id} is outside of the {have} tokens in the file")));
        }
    }
    Ok(Contents { pieces, bos, eos })
}

fn read_piece(fields: &mut Fields<'_>, id: usize, longest: usize) -> Result<(f64, String)> {
    let field = format!("token {id}");
    let score = f32::from_le_bytes(fields.word(&field)?);
    if score.is_nan() {
        return Err(fields.malformed(&field, "its score is NaN"));
    }
    let length = fields.count(&field)?;
    if length > longest {
        return Err(fields.malformed(&field, format!("its length is {length}, above max_token_length {longest}")));
    }
    let text = fields.take(length, &field)?;
    let text =
        std::str::from_utf8(text).map_err(|e| fields.malformed(&field, format!("its text is not UTF-8: {e}")))?;
    Ok((f64::from(score), text.to_owned()))
}

/// `<0x0A>`
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|text| text.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}
