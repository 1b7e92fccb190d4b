//! SentencePiece's `tokenizer.model`, a protocol-buffer message `ModelProto`.
//!
//! Of its fields those that decide about ids are read: `pieces` = 1 (`piece` = 1, `score` = 2, `type` = 3),
//! `trainer_spec` = 2 (`model_type` = 3, `unk_id` = 40, `bos_id` = 41, `eos_id` = 42, `pad_id` = 43) and
//! `normalizer_spec` = 3 (`precompiled_charsmap` = 2, `add_dummy_prefix` = 3, `remove_extra_whitespaces` = 4,
//! `escape_whitespaces` = 5).

use super::Parsed;
use super::sentence_piece::{self, Spaces};
use super::vocabulary::{TokenKind, Vocabulary};
use super::wire::{FieldValue, Malformed, Message};
use crate::chat::SpecialTokens;
use crate::error::{Error, Result};
use std::path::Path;

/// `ModelProto` as far as it is read, with the defaults of the format.
struct Model<'a> {
    pieces: Vec<Piece<'a>>,
    trainer: Trainer,
    normalizer: Normalizer,
}

struct Piece<'a> {
    text: &'a str,
    score: f64,
    kind: TokenKind,
}

/// Ids of -1 mean that there is no such token.
struct Trainer {
    model_type: u64,
    unk_id: i32,
    bos_id: i32,
    eos_id: i32,
    pad_id: i32,
}

struct Normalizer {
    has_charsmap: bool,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    escape_whitespaces: bool,
}

/// Whether a file may be this: it begins with a piece.
pub(super) fn may_be_model(bytes: &[u8]) -> bool {
    let Some(Ok((1, FieldValue::Bytes(piece)))) = Message::new(bytes).next() else { return false };
    read_piece(piece).is_ok_and(|piece| !piece.text.is_empty())
}

/// Reads a model.
///
/// # Errors
/// [`Error::Format`] naming the field, [`Error::Unsupported`] for kinds of models and normalization that
/// `tokenizer.json` files of BPE models do not have.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Parsed> {
    let model = read_model(path, bytes)?;
    model.check_supported(path)?;
    let texts: Vec<&str> = model.pieces.iter().map(|piece| piece.text).collect();
    let kinds = model.pieces.iter().map(|piece| piece.kind).collect();
    let scores: Vec<f64> = model.pieces.iter().map(|piece| piece.score).collect();
    let vocabulary =
        Vocabulary::new(texts, kinds).ok_or_else(|| Error::format(path, "pieces", "more pieces than ids"))?;
    let id = |field: &str, id: i32| match u32::try_from(id) {
        Err(_) => Ok(None),
        Ok(id) if vocabulary.text(id).is_some() => Ok(Some(id)),
        Ok(id) => {
            let have = vocabulary.len();
            Err(Error::format(path, format!("trainer_spec.{field}"), format!("{id} is outside of the {have} pieces")))
        }
    };
    let (bos, eos) = (id("bos_id", model.trainer.bos_id)?, id("eos_id", model.trainer.eos_id)?);
    let (unknown, padding) = (id("unk_id", model.trainer.unk_id)?, id("pad_id", model.trainer.pad_id)?);
    let text = |id: Option<u32>| id.and_then(|id| vocabulary.text(id));
    let special = SpecialTokens {
        bos_token: text(bos).map(str::to_owned),
        eos_token: text(eos).map(str::to_owned),
        unk_token: text(unknown).map(str::to_owned),
        pad_token: text(padding).map(str::to_owned),
        add_bos: Some(bos.is_some()),
        bos_id: bos,
        eos_ids: eos.into_iter().collect(),
    };
    let spaces = Spaces {
        add_prefix: model.normalizer.add_dummy_prefix,
        remove_extra: model.normalizer.remove_extra_whitespaces,
    };
    Parsed::new(sentence_piece::tokenizer_json(&vocabulary, &scores, spaces, text(unknown)), special)
}

impl Model<'_> {
    fn check_supported(&self, path: &Path) -> Result<()> {
        const BPE: u64 = 2;
        let refused = |field: &str, value: String| {
            Err(Error::Unsupported(format!(
                "{}: {field} is {value}; only BPE models whose text is not rewritten can be read: use the \
                 tokenizer.json of this model",
                path.display()
            )))
        };
        match self.trainer.model_type {
            BPE => {}
            other => return refused("trainer_spec.model_type", format!("{other} (1 unigram, 2 BPE, 3 word, 4 char)")),
        }
        if self.normalizer.has_charsmap {
            return refused("normalizer_spec.precompiled_charsmap", "set".into());
        }
        if !self.normalizer.escape_whitespaces {
            return refused("normalizer_spec.escape_whitespaces", "false".into());
        }
        Ok(())
    }
}

fn read_model<'a>(path: &Path, bytes: &'a [u8]) -> Result<Model<'a>> {
    let mut model = Model {
        pieces: Vec::new(),
        trainer: Trainer { model_type: 1, unk_id: 0, bos_id: 1, eos_id: 2, pad_id: -1 },
        normalizer: Normalizer {
            has_charsmap: false,
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        },
    };
    let malformed = |field: String| move |Malformed(reason)| Error::format(path, field, reason);
    for field in Message::new(bytes) {
        match field.map_err(malformed("ModelProto".into()))? {
            (1, FieldValue::Bytes(piece)) => {
                let id = model.pieces.len();
                model.pieces.push(read_piece(piece).map_err(malformed(format!("piece {id}")))?);
            }
            (2, FieldValue::Bytes(spec)) => {
                model.trainer.read(spec).map_err(malformed("trainer_spec".into()))?;
            }
            (3, FieldValue::Bytes(spec)) => {
                model.normalizer.read(spec).map_err(malformed("normalizer_spec".into()))?;
            }
            _ => {}
        }
    }
    match model.pieces.is_empty() {
        true => Err(Error::format(path, "pieces", "there are none")),
        false => Ok(model),
    }
}

fn read_piece(bytes: &[u8]) -> Result<Piece<'_>, Malformed> {
    let mut piece = Piece { text: "", score: 0.0, kind: TokenKind::Normal };
    for field in Message::new(bytes) {
        match field? {
            (1, FieldValue::Bytes(text)) => {
                piece.text = std::str::from_utf8(text).map_err(|e| Malformed(format!("its text is not UTF-8: {e}")))?;
            }
            (2, FieldValue::Fixed32(bytes)) => piece.score = f32::from_le_bytes(bytes).into(),
            (3, FieldValue::Varint(number)) => {
                let kind = TokenKind::from_number(number).filter(|_| number > 0);
                piece.kind = kind.ok_or_else(|| Malformed(format!("its type is {number}, not 1 to 6")))?;
            }
            (number @ 1..=3, value) => {
                return Err(Malformed(format!("field {number} has a value of another type: {value:?}")));
            }
            _ => {}
        }
    }
    if piece.score.is_nan() {
        return Err(Malformed("its score is NaN".into()));
    }
    Ok(piece)
}

impl Trainer {
    fn read(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        for field in Message::new(bytes) {
            let (number, FieldValue::Varint(value)) = field? else { continue };
            // Negative numbers are stored as 64 bits of two's complement: the low 32 are the number.
            let id = value as i32;
            match number {
                3 => self.model_type = value,
                40 => self.unk_id = id,
                41 => self.bos_id = id,
                42 => self.eos_id = id,
                43 => self.pad_id = id,
                _ => {}
            }
        }
        Ok(())
    }
}

impl Normalizer {
    fn read(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        for field in Message::new(bytes) {
            match field? {
                (2, FieldValue::Bytes(map)) => self.has_charsmap = !map.is_empty(),
                (3, FieldValue::Varint(flag)) => self.add_dummy_prefix = flag != 0,
                (4, FieldValue::Varint(flag)) => self.remove_extra_whitespaces = flag != 0,
                (5, FieldValue::Varint(flag)) => self.escape_whitespaces = flag != 0,
                _ => {}
            }
        }
        Ok(())
    }
}
