//! Files of calibration data: JSON lists, JSON lines and text, with errors that say where.

use crate::error::{Error, Result};
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Some editors begin a UTF-8 file with it; it is no part of the content.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The entries of a file that is one JSON list.
///
/// # Errors
/// A file that cannot be read; [`Error::Format`] with the index of the entry and the line for malformed JSON, and for a
/// file that is no list or an empty one.
pub(super) fn json_list(path: &Path, what: &str) -> Result<Vec<Value>> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes);
    match bytes.trim_ascii_start().first() {
        Some(b'[') => {}
        Some(b'{') => {
            let reason =
                format!("is an object: expected a list of {what}; one conversation a line is for --calib-chat");
            return Err(Error::format(path, "JSON", reason));
        }
        Some(_) => return Err(Error::format(path, "JSON", format!("is no list: expected a list of {what}"))),
        None => return Err(Error::format(path, "JSON", format!("the file is empty: expected a list of {what}"))),
    }
    let mut entries = Vec::new();
    let mut json = serde_json::Deserializer::from_slice(bytes);
    // What was read before the error says which entry is malformed.
    Entries(&mut entries).deserialize(&mut json).map_err(|error| malformed(entry_of(path, entries.len()), &error))?;
    json.end().map_err(|error| malformed(path.display().to_string(), &error))?;
    if entries.is_empty() {
        return Err(Error::format(path, "JSON", format!("is an empty list: expected a list of {what}")));
    }
    Ok(entries)
}

/// The name of an entry: `calib.json[3]`.
pub(super) fn entry_of(path: &Path, index: usize) -> String {
    format!("{}[{index}]", path.display())
}

/// Collects the elements of a list one by one.
struct Entries<'a>(&'a mut Vec<Value>);

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(entry) = list.next_element()? {
            self.0.push(entry);
        }
        Ok(())
    }
}

/// Reads a file of one JSON value a line, from the beginning, at most `limit` of them; empty lines do not count. `take`
/// gets the name of the line, `chats.jsonl:17`, and its value.
///
/// # Errors
/// A file that cannot be read; [`Error::Format`] with the number of the line for malformed JSON and for a file that is
/// one list; what `take` reports.
pub(super) fn json_lines(
    path: &Path,
    limit: Option<usize>,
    mut take: impl FnMut(String, &Value) -> Result<()>,
) -> Result<()> {
    let failed = |error| Error::io(path, error);
    let mut lines = BufReader::new(File::open(path).map_err(failed)?);
    let (mut line, mut number, mut taken) = (Vec::new(), 0usize, 0usize);
    while limit.is_none_or(|limit| taken < limit) {
        line.clear();
        if lines.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            break;
        }
        number += 1;
        let content = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| number == 1).unwrap_or(&line).trim_ascii();
        if content.is_empty() {
            continue;
        }
        let place = format!("{}:{number}", path.display());
        if taken == 0 && content.starts_with(b"[") {
            let reason =
                "begins a list: expected one object a line; a JSON list of conversations is for --calib-samples";
            return Err(Error::format(place, "JSON", reason));
        }
        let value = serde_json::from_slice(content)
            .map_err(|error| Error::format(&place, format!("column {}", error.column()), reason(&error)))?;
        take(place, &value)?;
        taken += 1;
    }
    Ok(())
}

/// A file of plain UTF-8 text.
///
/// # Errors
/// A file that cannot be read; [`Error::Format`] with the position of the first byte that is not UTF-8.
pub(super) fn text(path: &Path) -> Result<String> {
    let mut bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::format(path, format!("byte {at}"), "is not UTF-8: convert the file first")
    })
}

fn malformed(file: String, error: &serde_json::Error) -> Error {
    Error::format(file, format!("line {}, column {}", error.line(), error.column()), reason(error))
}

/// What is wrong, without the place that the parser writes behind it: of a line it only knows itself.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).map_or(text.clone(), str::to_string)
}
