//! Typed messages: what a conversation is made of.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::media::{Audio, Embedding, Image};
use crate::{Error, Result};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions that hold for the whole conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool the model called.
    Tool,
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 4] = [Role::System, Role::User, Role::Assistant, Role::Tool];

    /// The name chat templates know it by.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Role::ALL
            .into_iter()
            .find(|role| role.as_str() == name)
            .ok_or_else(|| Error::invalid(format!("unknown role {name:?}: use system, user, assistant or tool")))
    }
}

/// One piece of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Text. Never scanned for markers, never turned into control tokens.
    Text(String),
    /// A picture; the model's encoder makes rows of it.
    Image(Image),
    /// A piece of sound; the model's encoder makes rows of it.
    Audio(Audio),
    /// The rows of a picture or of sound that was encoded before, or elsewhere.
    Embedding(Arc<Embedding>),
}

impl Part {
    /// Whether rows of an encoder take this part's place in the prompt.
    pub fn is_media(&self) -> bool {
        matches!(self, Part::Image(_) | Part::Audio(_) | Part::Embedding(_))
    }
}

/// One message of a conversation: a role and its parts in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said and shown, in this order; parts of text follow each other without a separator.
    pub parts: Vec<Part>,
}

impl Message {
    /// A message of one text part.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Message { role, parts: vec![Part::Text(text.into())] }
    }

    /// A system message.
    pub fn system(text: impl Into<String>) -> Self {
        Message::text(Role::System, text)
    }

    /// A user message.
    pub fn user(text: impl Into<String>) -> Self {
        Message::text(Role::User, text)
    }

    /// A reply of the model.
    pub fn assistant(text: impl Into<String>) -> Self {
        Message::text(Role::Assistant, text)
    }

    /// A message of the person: pictures first, then text.
    pub fn user_with_images(images: impl IntoIterator<Item = Image>, text: impl Into<String>) -> Self {
        let mut parts: Vec<Part> = images.into_iter().map(Part::Image).collect();
        parts.push(Part::Text(text.into()));
        Message { role: Role::User, parts }
    }

    /// A message of the person: sound first, then text.
    pub fn user_with_audio(audio: impl IntoIterator<Item = Audio>, text: impl Into<String>) -> Self {
        let mut parts: Vec<Part> = audio.into_iter().map(Part::Audio).collect();
        parts.push(Part::Text(text.into()));
        Message { role: Role::User, parts }
    }

    /// All text parts joined.
    pub fn joined_text(&self) -> String {
        let text = |part: &Part| if let Part::Text(text) = part { text.clone() } else { String::new() };
        self.parts.iter().map(text).collect()
    }

    /// Whether any part is a picture, sound, or the rows of either.
    pub fn has_media(&self) -> bool {
        self.parts.iter().any(Part::is_media)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_parse_by_their_template_names() {
        for role in Role::ALL {
            assert_eq!(role.to_string().parse::<Role>().unwrap(), role);
        }
        let error = "bot".parse::<Role>().unwrap_err().to_string();
        assert!(error.contains("\"bot\"") && error.contains("assistant"), "{error}");
    }

    #[test]
    fn text_parts_join_without_separator() {
        let mut message = Message::user("a");
        message.parts.push(Part::Text("b".into()));
        assert_eq!(message.joined_text(), "ab");
    }
}
