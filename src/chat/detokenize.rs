//! Token ids back to text: piece by piece, and as a stream of whole characters.

use std::sync::LazyLock;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::tokenizer::Decoder as _;

use super::Tokenizer;
use crate::{Error, Result};

/// The decoder of `tokenizer.json`, reduced to what turns one vocabulary entry into bytes.
#[derive(Debug, Default)]
pub(super) struct PieceDecoder {
    /// Applied in order to an entry that is not a single byte.
    steps: Vec<Step>,
    /// Characters stand for bytes (GPT-2's byte-level alphabet).
    byte_level: bool,
    /// Entries `<0xHH>` stand for one byte.
    byte_fallback: bool,
    /// Strip this character at most so many times at the beginning of the whole text.
    strip_text: Option<(char, usize)>,
    /// A `tokenizer.json` without a decoder joins its entries with spaces.
    join_with_space: bool,
}

#[derive(Debug)]
enum Step {
    /// A decoder that looks at one entry at a time.
    Entry(Box<DecoderWrapper>),
    /// `▁` (or what stands for it) becomes a space, and nothing in the first entry when the encoder put it there.
    Metaspace { replacement: char, bare_start: bool },
}

impl PieceDecoder {
    /// # Errors
    /// [`Error::Unsupported`] for decoders that no language model with a byte-exact vocabulary uses.
    pub(super) fn new(decoder: Option<&DecoderWrapper>) -> Result<Self> {
        let mut pieces = PieceDecoder::default();
        match decoder {
            None => pieces.join_with_space = true,
            Some(DecoderWrapper::Sequence(sequence)) => pieces.add_all(sequence.get_decoders())?,
            Some(single) => pieces.add_all(std::slice::from_ref(single))?,
        }
        Ok(pieces)
    }

    fn add_all(&mut self, decoders: &[DecoderWrapper]) -> Result<()> {
        let mut fused = false;
        for decoder in decoders {
            match decoder {
                DecoderWrapper::ByteLevel(_) => self.byte_level = true,
                DecoderWrapper::ByteFallback(_) => self.byte_fallback = true,
                DecoderWrapper::Fuse(_) => fused = true,
                DecoderWrapper::Replace(_) => self.steps.push(Step::Entry(Box::new(decoder.clone()))),
                DecoderWrapper::Metaspace(metaspace) => self.steps.push(Step::Metaspace {
                    replacement: metaspace.get_replacement(),
                    bare_start: metaspace.get_prepend_scheme() != PrependScheme::Never,
                }),
                DecoderWrapper::Strip(strip) if strip.stop == 0 && fused => {
                    self.strip_text = Some((strip.content, strip.start));
                }
                DecoderWrapper::Strip(strip) if strip.stop == 0 => {
                    self.steps.push(Step::Entry(Box::new(decoder.clone())));
                }
                DecoderWrapper::Strip(_) => return Err(unsupported("Strip with stop > 0")),
                DecoderWrapper::Sequence(_) => return Err(unsupported("a Sequence inside a Sequence")),
                DecoderWrapper::BPE(_) => return Err(unsupported("BPEDecoder")),
                DecoderWrapper::WordPiece(_) => return Err(unsupported("WordPiece")),
                DecoderWrapper::CTC(_) => return Err(unsupported("CTC")),
            }
        }
        Ok(())
    }

    /// The bytes of one vocabulary entry; `first`: nothing was decoded before it.
    pub(super) fn bytes(&self, entry: String, first: bool) -> Vec<u8> {
        if let Some(byte) = self.fallback_byte(&entry) {
            return vec![byte];
        }
        let text = self.steps.iter().fold(entry, |entry, step| step.apply(entry, first));
        if self.byte_level {
            return byte_level_bytes(&text);
        }
        if self.join_with_space && !first {
            return format!(" {text}").into_bytes();
        }
        text.into_bytes()
    }

    fn fallback_byte(&self, entry: &str) -> Option<u8> {
        let digits = entry.strip_prefix("<0x")?.strip_suffix('>')?;
        (self.byte_fallback && digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
    }
}

impl Step {
    fn apply(&self, entry: String, first: bool) -> String {
        match self {
            Step::Metaspace { replacement, bare_start } => {
                let space = if first && *bare_start { "" } else { " " };
                entry.replace(*replacement, space)
            }
            // A pattern that cannot run on an entry leaves it as it is.
            Step::Entry(decoder) => {
                decoder.decode_chain(vec![entry.clone()]).map(|entries| entries.concat()).unwrap_or(entry)
            }
        }
    }
}

fn unsupported(decoder: &str) -> Error {
    Error::Unsupported(format!(
        "tokenizer.json: decoder: {decoder} is not supported; supported are ByteLevel, Metaspace, ByteFallback, \
         Replace, Fuse, Strip (start) and a Sequence of these"
    ))
}

/// Maps the characters of GPT-2's byte-level alphabet to the bytes they stand for. An entry with any other character
/// (an added token) is plain text.
fn byte_level_bytes(entry: &str) -> Vec<u8> {
    entry.chars().map(byte_level_byte).collect::<Option<Vec<u8>>>().unwrap_or_else(|| entry.as_bytes().to_vec())
}

fn byte_level_byte(character: char) -> Option<u8> {
    /// Printable bytes stand for themselves, the others for the code points from 256 on.
    static ALPHABET: LazyLock<Vec<Option<u8>>> = LazyLock::new(|| {
        let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let mut table: Vec<Option<u8>> = (0..=255).map(|byte| printable(byte).then_some(byte)).collect();
        table.extend((0..=255).filter(|&byte| !printable(byte)).map(Some));
        table
    });
    ALPHABET.get(character as usize).copied().flatten()
}

/// Bytes in, whole UTF-8 characters out.
#[derive(Debug, Clone, Default)]
struct Utf8Stream {
    tail: Vec<u8>,
}

impl Utf8Stream {
    /// Gives every character that is complete; bytes that can no longer become one give U+FFFD at once.
    fn push(&mut self, bytes: &[u8]) -> String {
        self.tail.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.tail.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    self.tail.clear();
                    return text;
                }
                Err(error) => {
                    let (valid, broken) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(length) = error.error_len() else {
                        self.tail = broken.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &broken[length..];
                }
            }
        }
    }

    /// The text ends: an incomplete character becomes one U+FFFD.
    fn finish(&mut self) -> String {
        let tail = std::mem::take(&mut self.tail);
        String::from_utf8_lossy(&tail).into_owned()
    }
}

/// Text of tokens that come one at a time.
///
/// Only whole characters come out: an incomplete UTF-8 tail waits for the next token and is flushed as U+FFFD by
/// [`finish`](Self::finish). The pieces together are exactly [`Tokenizer::decode`] of all the ids.
#[derive(Debug, Clone)]
pub struct DetokenizeStream {
    tokenizer: Tokenizer,
    skip_special: bool,
    utf8: Utf8Stream,
    first: bool,
    strip_left: usize,
}

impl DetokenizeStream {
    pub(super) fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        let strip_left = tokenizer.pieces().strip_text.map_or(0, |(_, count)| count);
        DetokenizeStream { tokenizer, skip_special, utf8: Utf8Stream::default(), first: true, strip_left }
    }

    /// Takes the next token and gives the characters it completes, often none. Ids outside of the vocabulary give
    /// nothing.
    pub fn push(&mut self, id: u32) -> String {
        if self.skip_special && self.tokenizer.is_special(id) {
            return String::new();
        }
        let Some(bytes) = self.tokenizer.piece(id, self.first) else {
            return String::new();
        };
        self.first = false;
        let text = self.utf8.push(&bytes);
        self.strip_start(text)
    }

    /// The text ends here: gives what was held back. The stream is then ready for another text.
    pub fn finish(&mut self) -> String {
        let text = self.utf8.finish();
        let text = self.strip_start(text);
        *self = DetokenizeStream::new(self.tokenizer.clone(), self.skip_special);
        text
    }

    fn strip_start(&mut self, mut text: String) -> String {
        let Some((stripped, _)) = self.tokenizer.pieces().strip_text else {
            return text;
        };
        while self.strip_left > 0 && !text.is_empty() {
            if text.starts_with(stripped) {
                text.remove(0);
                self.strip_left -= 1;
            } else {
                self.strip_left = 0;
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn byte_level_alphabet_is_the_published_one() {
        assert_eq!(byte_level_bytes("ĠHi"), b" Hi");
        assert_eq!(byte_level_bytes("Ċ"), b"\n");
        assert_eq!(byte_level_bytes("ÃĹ"), "×".as_bytes());
        assert_eq!(byte_level_bytes("<｜begin｜>"), "<｜begin｜>".as_bytes());
        let reachable = (0..=0x200u32).filter_map(char::from_u32).filter_map(byte_level_byte);
        assert_eq!(reachable.collect::<std::collections::BTreeSet<_>>().len(), 256);
    }

    #[test]
    fn certainly_invalid_bytes_do_not_wait() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(&[0xF0, 0x9F]), "");
        assert_eq!(stream.push(b"a"), "\u{FFFD}a");
        assert_eq!(stream.push(&[0xFF]), "\u{FFFD}");
        assert_eq!(stream.push(&[0xE4]), "");
        assert_eq!(stream.finish(), "\u{FFFD}");
        assert_eq!(stream.finish(), "");
    }

    proptest! {
        #[test]
        fn utf8_stream_equals_lossy_decoding(chunks in proptest::collection::vec(
            proptest::collection::vec(prop_oneof![Just(0xE4u8), Just(0xBD), Just(0xF0), Just(0x9F), any::<u8>()], 0..5), 0..8)
        ) {
            let mut stream = Utf8Stream::default();
            let mut text: String = chunks.iter().map(|chunk| stream.push(chunk)).collect();
            text += &stream.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&chunks.concat()).into_owned());
        }
    }
}
