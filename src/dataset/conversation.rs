//! The message schema: `{"messages": [{"role": …, "content": …}], "files": […]}`.
//!
//! `content` is a string, or a list of blocks `{"type": "image"}` and `{"type": "text", "text": …}`. Models that hear have
//! their placeholder in the text instead. Each image block or placeholder stands for one of `files`, in order.

use super::model::ModelText;
use super::sample::Medium;
use crate::chat::{Message, Part, Role};
use crate::error::{Error, Result};
use crate::media::Tiling;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// A conversation as it is written in a file: checked, but its files not opened.
pub(super) struct Entry {
    place: String,
    messages: Vec<(Role, Vec<Piece>)>,
    files: Vec<String>,
}

enum Piece {
    Text(String),
    /// One of the files.
    Medium,
}

/// A conversation with what its files hold.
pub(super) struct Conversation {
    pub messages: Vec<Message>,
    pub media: Vec<Medium>,
}

impl Entry {
    /// Checks one entry against the schema. `place` is what errors call it, e.g. `calib.json[3]`.
    ///
    /// # Errors
    /// [`Error::Format`] with the place and the field for what is missing, of another type, empty or unknown, for a picture
    /// block in a model that takes none, and for files in a model that takes neither pictures nor sound.
    pub fn parse(value: &Value, place: String, model: &ModelText) -> Result<Self> {
        let entry = Field { place: &place, path: String::new() }.object(value, "`messages`")?;
        let messages = Field::of(&place, "messages");
        let list = messages.list(entry.get("messages"), "messages")?;
        let read = |(index, message)| read_message(message, &messages.at(index), model);
        let messages = list.iter().enumerate().map(read).collect::<Result<_>>()?;
        let files = read_files(entry.get("files"), &Field::of(&place, "files"), model)?;
        Ok(Self { place, messages, files })
    }

    /// Opens the files and puts them where the messages show them. Relative paths are looked for in `folder` first, then as
    /// they are.
    ///
    /// # Errors
    /// [`Error::Format`] for another number of files than of places for them, with both numbers; what finding and decoding
    /// a file reports, with the place in front.
    pub fn open(self, folder: &Path, tiling: Tiling, model: &ModelText) -> Result<Conversation> {
        let Self { place, messages, files } = self;
        let shown =
            messages.iter().flat_map(|(_, pieces)| pieces).filter(|piece| matches!(piece, Piece::Medium)).count();
        if shown != files.len() {
            let (given, blocks) = (files.len(), if model.takes_audio() { "placeholders" } else { "image blocks" });
            let reason = format!("the messages have {shown} {blocks}, but there are {given} files: name one for each");
            return Err(Error::format(&place, "files", reason));
        }
        let (mut parts, mut media) = (Vec::new(), Vec::new());
        for (index, file) in files.iter().enumerate() {
            let (part, medium) = find(file, folder)
                .and_then(|path| model.open_medium(&path, tiling))
                .map_err(|error| located(error, &place, &format!("files[{index}]")))?;
            parts.push(part);
            media.push(medium);
        }
        let mut parts = parts.into_iter();
        let mut part_of = |piece| match piece {
            Piece::Text(text) => Some(Part::Text(text)),
            Piece::Medium => parts.next(),
        };
        let messages = messages
            .into_iter()
            .map(|(role, pieces)| Message { role, parts: pieces.into_iter().filter_map(&mut part_of).collect() });
        Ok(Conversation { messages: messages.collect(), media })
    }
}

/// Whether some message has no content at all: assistants that only call tools, in chat sets.
pub(super) fn lacks_content(entry: &Value) -> bool {
    let messages = entry.get("messages").and_then(Value::as_array);
    messages.is_some_and(|messages| messages.iter().any(|message| message.get("content").is_some_and(Value::is_null)))
}

/// The same error, with the sample and field it is about in front.
pub(super) fn located(error: Error, place: &str, field: &str) -> Error {
    match error {
        Error::NotFound(what) => Error::NotFound(format!("{place}: {field}: {what}")),
        Error::Unsupported(what) => Error::Unsupported(format!("{place}: {field}: {what}")),
        Error::InvalidArgument(what) => Error::InvalidArgument(format!("{place}: {field}: {what}")),
        other => Error::format(place, field, other.to_string()),
    }
}

fn read_message(message: &Value, field: &Field<'_>, model: &ModelText) -> Result<(Role, Vec<Piece>)> {
    let message = field.object(message, "`role` and `content`")?;
    let role_field = field.child("role");
    let name = role_field.string(message.get("role"), "the name of a role")?;
    let role = name.parse::<Role>().map_err(|error| role_field.error(error.to_string()))?;
    let content = field.child("content");
    let mut pieces = Vec::new();
    match message.get("content") {
        Some(Value::String(text)) => push_text(&mut pieces, text, model),
        Some(Value::Array(blocks)) => {
            for (index, block) in content.nonempty(blocks, "blocks")?.iter().enumerate() {
                read_block(block, &content.at(index), model, &mut pieces)?;
            }
        }
        other => return Err(content.expected("a text or a list of blocks", other)),
    }
    Ok((role, pieces))
}

fn read_block(block: &Value, field: &Field<'_>, model: &ModelText, pieces: &mut Vec<Piece>) -> Result<()> {
    let block = field.object(block, "`type`")?;
    let kind = field.child("type");
    match kind.string(block.get("type"), "\"text\" or \"image\"")? {
        "text" => push_text(pieces, field.child("text").string(block.get("text"), "a text")?, model),
        "image" if model.takes_images() => pieces.push(Piece::Medium),
        "image" => return Err(kind.error("is \"image\", but this model takes no pictures")),
        other => return Err(kind.error(format!("is {other:?}: expected \"text\" or \"image\""))),
    }
    Ok(())
}

/// Text, with the places of sound in it where the model marks them in the text.
fn push_text(pieces: &mut Vec<Piece>, text: &str, model: &ModelText) {
    let Some(placeholder) = model.placeholder_in_text() else {
        pieces.push(Piece::Text(text.into()));
        return;
    };
    for (index, text) in text.split(placeholder).enumerate() {
        if index > 0 {
            pieces.push(Piece::Medium);
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(text.into()));
        }
    }
}

fn read_files(value: Option<&Value>, field: &Field<'_>, model: &ModelText) -> Result<Vec<String>> {
    let list = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        other => return Err(field.expected("a list of paths", other)),
    };
    if !list.is_empty() && !model.takes_images() && !model.takes_audio() {
        let count = list.len();
        return Err(field.error(format!("names {count} files, but this model takes neither pictures nor sound")));
    }
    let path = |(index, value)| match field.at(index).string(Some(value), "a path")? {
        "" => Err(field.at(index).error("is an empty path")),
        path => Ok(path.to_string()),
    };
    list.iter().enumerate().map(path).collect()
}

/// A file beside the one that names it, or as the path says.
fn find(file: &str, folder: &Path) -> Result<PathBuf> {
    let beside = folder.join(file);
    // Anything but a missing file is for the decoder to report.
    let found = [beside.as_path(), Path::new(file)].into_iter().find(|path| path.exists());
    found.map(Path::to_path_buf).ok_or_else(|| {
        Error::NotFound(format!("{file:?}: no such file, neither as {beside:?} nor from the working directory"))
    })
}

/// A field of an entry, for errors: `calib.json[3]: messages[1].content[0].type: …`.
struct Field<'a> {
    place: &'a str,
    path: String,
}

impl<'a> Field<'a> {
    fn of(place: &'a str, name: &str) -> Self {
        Field { place, path: name.into() }
    }

    fn child(&self, name: &str) -> Self {
        Field { place: self.place, path: format!("{}.{name}", self.path) }
    }

    fn at(&self, index: usize) -> Self {
        Field { place: self.place, path: format!("{}[{index}]", self.path) }
    }

    fn error(&self, reason: impl Into<String>) -> Error {
        let path = if self.path.is_empty() { "entry" } else { &self.path };
        Error::format(self.place, path, reason)
    }

    fn expected(&self, what: &str, found: Option<&Value>) -> Error {
        match found {
            Some(found) => self.error(format!("is {}: expected {what}", describe(found))),
            None => self.error(format!("is missing: expected {what}")),
        }
    }

    fn list<'v>(&self, value: Option<&'v Value>, of: &str) -> Result<&'v [Value]> {
        let list = value.and_then(Value::as_array);
        self.nonempty(list.ok_or_else(|| self.expected(&format!("a list of {of}"), value))?, of)
    }

    fn nonempty<'v>(&self, list: &'v [Value], of: &str) -> Result<&'v [Value]> {
        if list.is_empty() { Err(self.error(format!("is an empty list: expected {of}"))) } else { Ok(list) }
    }

    fn object<'v>(&self, value: &'v Value, with: &str) -> Result<&'v Map<String, Value>> {
        value.as_object().ok_or_else(|| self.expected(&format!("an object with {with}"), Some(value)))
    }

    fn string<'v>(&self, value: Option<&'v Value>, what: &str) -> Result<&'v str> {
        value.and_then(Value::as_str).ok_or_else(|| self.expected(what, value))
    }
}

/// A value as errors show it: short, whatever it is.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(_) => "a text".into(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}
