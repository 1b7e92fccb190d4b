//! One function for each kind of source.

use super::conversation::{Conversation, Entry, describe, lacks_content, located};
use super::files::{self, entry_of, json_lines, json_list};
use super::options::RandomData;
use super::sample::Sample;
use super::set::{Collector, SourceKind};
use crate::error::{Error, Result};
use crate::random::SplitMix64;
use serde_json::Value;
use std::path::Path;

/// Tokens behind those that are wanted, that a long text is read on for: they keep the end of what was read from changing
/// the tokens before it.
const LOOKAHEAD_TOKENS: usize = 512;
/// Bytes of a token that are first reckoned with.
const BYTES_PER_TOKEN: usize = 8;

/// Lists of token ids, as they are.
pub(super) fn token_rows(collector: &mut Collector<'_>, path: &Path) -> Result<()> {
    collector.begin(SourceKind::TokenRows, Some(path));
    for (index, row) in json_list(path, "lists of token ids")?.iter().enumerate() {
        let place = entry_of(path, index);
        let tokens = token_row(row, &place, collector.model.media_token())?;
        collector.add_text(tokens, &place)?;
    }
    Ok(())
}

fn token_row(row: &Value, place: &str, media_token: Option<u32>) -> Result<Vec<u32>> {
    let Some(ids) = row.as_array() else {
        return Err(Error::format(place, "row", format!("is {}: expected a list of token ids", describe(row))));
    };
    if ids.is_empty() {
        return Err(Error::format(place, "row", "is an empty list: expected token ids"));
    }
    let read = |(index, id): (usize, &Value)| {
        let error = |reason| Error::format(place, format!("token {index}"), reason);
        let token = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let token = token.ok_or_else(|| error(format!("is {}: expected a token id", describe(id))))?;
        if Some(token) == media_token {
            return Err(error(format!(
                "{token} stands for a row of a picture or of sound, which token rows do not have"
            )));
        }
        Ok(token)
    };
    ids.iter().enumerate().map(read).collect()
}

/// Conversations with the files they show.
pub(super) fn conversations(collector: &mut Collector<'_>, path: &Path) -> Result<()> {
    collector.begin(SourceKind::Conversations, Some(path));
    for (index, value) in json_list(path, "conversations")?.iter().enumerate() {
        let place = entry_of(path, index);
        let conversation = open(value, &place, path, collector)?;
        let sample = write(conversation, &place, collector)?;
        let (needed, most) = (sample.tokens.len(), collector.options.max_context);
        if needed == 0 {
            return Err(Error::format(place, "messages", "become no token at all"));
        }
        if sample.media.is_empty() {
            collector.add_text(sample.tokens, &place)?;
        } else if needed <= most {
            collector.add(sample)?;
        } else {
            let reason = format!(
                "become {needed} tokens, but max_context is {most}, and a conversation with pictures or sound cannot be \
                 cut: shorten it, cut pictures into fewer tiles, or calibrate with a larger context"
            );
            return Err(Error::format(place, "messages", reason));
        }
    }
    Ok(())
}

/// One conversation a line. What the template refuses or the context cannot hold is left out and counted.
pub(super) fn chats(collector: &mut Collector<'_>, path: &Path) -> Result<()> {
    collector.begin(SourceKind::Chats, Some(path));
    json_lines(path, collector.options.chat_limit, |place, value| {
        if lacks_content(value) {
            collector.skip(format!("{place}: a message has no content"));
            return Ok(());
        }
        let conversation = open(value, &place, path, collector)?;
        let most = collector.options.max_context;
        match write(conversation, &place, collector) {
            Err(refused) => collector.skip(refused.to_string()),
            Ok(sample) if sample.tokens.is_empty() => collector.skip(format!("{place}: becomes no token at all")),
            Ok(sample) if sample.tokens.len() > most => {
                let needed = sample.tokens.len();
                collector.skip(format!("{place}: becomes {needed} tokens, but max_context is {most}"));
            }
            Ok(sample) => collector.add(sample)?,
        }
        Ok(())
    })?;
    let Some(summary) = collector.summary().filter(|summary| summary.samples == 0) else { return Ok(()) };
    let reason = match &summary.note {
        Some(note) => format!("all {} rows were left out, the first because of {note}", summary.skipped),
        None => "the file has no rows".into(),
    };
    Err(Error::format(path, "rows", reason))
}

fn open(value: &Value, place: &str, path: &Path, collector: &Collector<'_>) -> Result<Conversation> {
    let (options, model) = (collector.options, collector.model);
    let folder = path.parent().unwrap_or(Path::new(""));
    Entry::parse(value, place.into(), model)?.open(folder, options.image_tiling, model)
}

fn write(conversation: Conversation, place: &str, collector: &Collector<'_>) -> Result<Sample> {
    let Conversation { messages, media } = conversation;
    let written = collector.model.write(&messages, &media).map_err(|error| located(error, place, "messages"))?;
    Ok(Sample { tokens: written.tokens, media, media_rows: written.media_rows, origin: place.into() })
}

/// Plain text in windows.
pub(super) fn text(collector: &mut Collector<'_>, path: &Path) -> Result<()> {
    collector.begin(SourceKind::Text, Some(path));
    let text = files::text(path)?;
    let window = collector.options.window();
    let wanted = collector.options.text_limit.map(|windows| windows.saturating_mul(window));
    let encode = |text: &str| {
        let tokens = collector.model.prompts().encode_plain(text, false);
        tokens.map_err(|error| located(error, &path.display().to_string(), "text"))
    };
    let tokens = match wanted {
        Some(wanted) => first_tokens(&text, wanted, encode)?,
        None => encode(&text)?,
    };
    if tokens.is_empty() {
        return Err(Error::format(path, "text", format!("{} bytes become no token at all", text.len())));
    }
    collector.add_windows(&tokens, window, &path.display().to_string())
}

/// The first `wanted` tokens of a text. Of a long one only the beginning is encoded.
fn first_tokens(text: &str, wanted: usize, encode: impl Fn(&str) -> Result<Vec<u32>>) -> Result<Vec<u32>> {
    let enough = wanted.saturating_add(LOOKAHEAD_TOKENS);
    let mut bytes = enough.saturating_mul(BYTES_PER_TOKEN);
    loop {
        let end = (0..=bytes.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or_default();
        let mut tokens = encode(text.get(..end).unwrap_or_default())?;
        if end == text.len() || tokens.len() >= enough {
            tokens.truncate(wanted);
            return Ok(tokens);
        }
        bytes = bytes.saturating_mul(2);
    }
}

/// Ids that are uniform over the vocabulary, tokens that stand for media left out.
pub(super) fn random(collector: &mut Collector<'_>, data: &RandomData) -> Result<()> {
    collector.begin(SourceKind::Random, None);
    let model = collector.model;
    let vocabulary = model.vocab_size().min(model.prompts().tokenizer().vocab_size());
    let bound = u32::try_from(vocabulary).unwrap_or(u32::MAX);
    let media_token = model.media_token();
    if bound < 2 {
        return Err(Error::invalid(format!(
            "random data from a vocabulary of {bound} tokens: it must have two at least"
        )));
    }
    let mut random = SplitMix64(data.seed);
    let mut draw = || loop {
        let token = random.below(bound);
        if Some(token) != media_token {
            return token;
        }
    };
    for index in 0..data.samples {
        let tokens = (0..data.length).map(|_| draw()).collect();
        collector.add_text(tokens, &format!("random[{index}]"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer of one token for each byte, or none for a space.
    fn letters(text: &str) -> Result<Vec<u32>> {
        Ok(text.bytes().filter(|&byte| byte != b' ').map(u32::from).collect())
    }

    #[test]
    fn the_beginning_of_a_text_has_the_tokens_of_the_whole() {
        let sparse = "é    ".repeat(20_000);
        for text in ["", "ab", &"abcdefg".repeat(4000), &sparse] {
            let all = letters(text).unwrap();
            for wanted in [1, 2, 1000, usize::MAX] {
                let expected: Vec<u32> = all.iter().copied().take(wanted).collect();
                assert_eq!(first_tokens(text, wanted, letters).unwrap(), expected, "{wanted} of {}", text.len());
            }
        }
    }
}
