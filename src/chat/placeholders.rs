//! Upstream's way to say where pictures and audio stand: the words `<image>` and `<audio>` inside prompt strings.
//!
//! The runners of this library take typed parts and never look for markers in text. Programs and test plans written for
//! upstream's command line have prompt strings instead; this turns those into typed messages, by upstream's rule
//! (spec/runner-contract.md 5.4).

use super::{Message, Part, Role};
use crate::error::{Error, Result};
use crate::media::{Embedding, Image};
use std::sync::Arc;

/// A word that marks a place in prompt strings, for every model, and what errors call what stands there.
#[derive(Clone, Copy)]
struct Placeholder {
    text: &'static str,
    kind: &'static str,
}

const IMAGE: Placeholder = Placeholder { text: "<image>", kind: "images" };
const AUDIO: Placeholder = Placeholder { text: "<audio>", kind: "audio inputs" };

/// One user message a prompt string, with the pictures handed to the placeholders of all prompts in order. Without any
/// placeholder all pictures stand at the beginning of the first prompt.
///
/// # Errors
/// [`Error::InvalidArgument`] with both numbers if there are placeholders, but not as many as pictures; or pictures
/// without any prompt.
pub fn messages_with_placeholders<P: AsRef<str>>(prompts: &[P], images: Vec<Image>) -> Result<Vec<Message>> {
    distribute(prompts, images.into_iter().map(Part::Image), IMAGE)
}

/// As [`messages_with_placeholders`], for the rows of audio and the word `<audio>`.
///
/// # Errors
/// As there.
pub fn messages_with_audio<P: AsRef<str>>(prompts: &[P], audio: Vec<Arc<Embedding>>) -> Result<Vec<Message>> {
    distribute(prompts, audio.into_iter().map(Part::Embedding), AUDIO)
}

fn distribute<P: AsRef<str>>(
    prompts: &[P],
    mut parts: impl ExactSizeIterator<Item = Part>,
    word: Placeholder,
) -> Result<Vec<Message>> {
    let Placeholder { text: placeholder, kind } = word;
    let places: usize = prompts.iter().map(|prompt| prompt.as_ref().matches(placeholder).count()).sum();
    let given = parts.len();
    if prompts.is_empty() && given > 0 {
        return Err(Error::invalid(format!("{kind} given: {given}, but there is no prompt to show them in")));
    }
    if places > 0 && places != given {
        return Err(Error::invalid(format!(
            "placeholders {placeholder} in the prompts: {places}, {kind} given: {given}; there must be one for each \
             placeholder, or no placeholder at all"
        )));
    }
    let mut messages = Vec::with_capacity(prompts.len());
    for (number, prompt) in prompts.iter().enumerate() {
        let mut own = Vec::new();
        if places == 0 && number == 0 {
            own.extend(parts.by_ref());
        }
        for (piece, text) in prompt.as_ref().split(placeholder).enumerate() {
            if piece > 0 {
                own.extend(parts.next());
            }
            if !text.is_empty() {
                own.push(Part::Text(text.into()));
            }
        }
        messages.push(Message { role: Role::User, parts: own });
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(value: f32) -> Image {
        Image::from_tensor(vec![value; 3], [1, 3, 1, 1]).unwrap()
    }

    fn text(text: &str) -> Part {
        Part::Text(text.into())
    }

    #[test]
    fn pictures_go_to_the_placeholders_in_order() {
        let [a, b, c] = [1.0, 2.0, 3.0].map(image);
        let prompts = ["<image><image>compare", "why?", "and <image>?"];
        let messages = messages_with_placeholders(&prompts, vec![a.clone(), b.clone(), c.clone()]).unwrap();
        assert_eq!(messages[0].parts, [Part::Image(a), Part::Image(b), text("compare")]);
        assert_eq!(messages[1].parts, [text("why?")]);
        assert_eq!(messages[2].parts, [text("and "), Part::Image(c), text("?")]);
    }

    #[test]
    fn without_placeholders_all_pictures_open_the_first_prompt() {
        let [a, b] = [1.0, 2.0].map(image);
        let messages = messages_with_placeholders(&["compare", "why?"], vec![a.clone(), b.clone()]).unwrap();
        assert_eq!(messages[0].parts, [Part::Image(a), Part::Image(b), text("compare")]);
        assert_eq!(messages[1].parts, [text("why?")]);
        assert_eq!(messages_with_placeholders(&["hi"], vec![]).unwrap(), [Message::user("hi")]);
    }

    #[test]
    fn audio_has_a_word_of_its_own() {
        let whole = crate::media::TileLayout::WHOLE;
        let rows = Arc::new(Embedding::from_rows(vec![1.0, 2.0], 2, whole).unwrap());
        let messages = messages_with_audio(&["say <audio> <image>"], vec![rows.clone()]).unwrap();
        assert_eq!(messages[0].parts, [text("say "), Part::Embedding(rows), text(" <image>")]);
        let error = messages_with_audio(&["<audio>"], vec![]).unwrap_err().to_string();
        assert!(error.contains("<audio> in the prompts: 1, audio inputs given: 0"), "{error}");
    }

    #[test]
    fn counts_that_differ_are_both_named() {
        let error = messages_with_placeholders(&["<image> <image>"], vec![image(1.0)]).unwrap_err().to_string();
        assert!(error.contains("<image> in the prompts: 2, images given: 1"), "{error}");
        let error = messages_with_placeholders(&["<image>"], vec![]).unwrap_err().to_string();
        assert!(error.contains("prompts: 1, images given: 0"), "{error}");
        assert!(messages_with_placeholders::<&str>(&[], vec![image(1.0)]).is_err());
    }
}
