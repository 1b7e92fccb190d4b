//! Upstream's way to say where pictures stand: the word `<image>` inside prompt strings.
//!
//! The runners of this library take typed parts and never look for markers in text. Programs and test plans written for
//! upstream's command line have prompt strings instead; this turns those into typed messages, by upstream's rule
//! (spec/runner-contract.md 5.4).

use super::{Message, Part, Role};
use crate::error::{Error, Result};
use crate::media::Image;

/// The word a prompt string marks a picture's place with, for every model.
const PLACEHOLDER: &str = "<image>";

/// One user message a prompt string, with the pictures handed to the placeholders of all prompts in order. Without any
/// placeholder all pictures stand at the beginning of the first prompt.
///
/// # Errors
/// [`Error::InvalidArgument`] with both numbers if there are placeholders, but not as many as pictures; or pictures
/// without any prompt.
pub fn messages_with_placeholders<P: AsRef<str>>(prompts: &[P], images: Vec<Image>) -> Result<Vec<Message>> {
    let places: usize = prompts.iter().map(|prompt| prompt.as_ref().matches(PLACEHOLDER).count()).sum();
    let given = images.len();
    if prompts.is_empty() && given > 0 {
        return Err(Error::invalid(format!("images given: {given}, but there is no prompt to show them in")));
    }
    if places > 0 && places != given {
        return Err(Error::invalid(format!(
            "placeholders {PLACEHOLDER} in the prompts: {places}, images given: {given}; there must be one image for each \
             placeholder, or no placeholder at all"
        )));
    }
    let mut images = images.into_iter().map(Part::Image);
    let mut messages = Vec::with_capacity(prompts.len());
    for (number, prompt) in prompts.iter().enumerate() {
        let mut parts = Vec::new();
        if places == 0 && number == 0 {
            parts.extend(images.by_ref());
        }
        for (piece, text) in prompt.as_ref().split(PLACEHOLDER).enumerate() {
            if piece > 0 {
                parts.extend(images.next());
            }
            if !text.is_empty() {
                parts.push(Part::Text(text.into()));
            }
        }
        messages.push(Message { role: Role::User, parts });
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
    fn counts_that_differ_are_both_named() {
        let error = messages_with_placeholders(&["<image> <image>"], vec![image(1.0)]).unwrap_err().to_string();
        assert!(error.contains("<image> in the prompts: 2, images given: 1"), "{error}");
        let error = messages_with_placeholders(&["<image>"], vec![]).unwrap_err().to_string();
        assert!(error.contains("prompts: 1, images given: 0"), "{error}");
        assert!(messages_with_placeholders::<&str>(&[], vec![image(1.0)]).is_err());
    }
}
