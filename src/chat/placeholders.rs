//! Upstream's way to say where pictures and sound stand: the words `<image>` and `<audio>` inside prompt strings.
//!
//! The runners of this library take typed parts and never look for markers in text. Programs and test plans written for
//! upstream's command line have prompt strings instead; this turns those into typed messages, by upstream's rule
//! (spec/runner-contract.md 5.4).

use super::{Message, Part, Role};
use crate::error::{Error, Result};
use crate::media::{Audio, Image};

/// The word a prompt string marks a picture's place with, for every model.
const IMAGE: Word = Word { placeholder: "<image>", one: "image", several: "images" };
/// The word for the place of sound.
const AUDIO: Word = Word { placeholder: "<audio>", one: "audio clip", several: "audio clips" };

struct Word {
    placeholder: &'static str,
    one: &'static str,
    several: &'static str,
}

/// One user message a prompt string, with the pictures handed to the placeholders of all prompts in order. Without any
/// placeholder all pictures stand at the beginning of the first prompt.
///
/// # Errors
/// [`Error::InvalidArgument`] with both numbers if there are placeholders, but not as many as pictures; or pictures
/// without any prompt.
pub fn messages_with_placeholders<P: AsRef<str>>(prompts: &[P], images: Vec<Image>) -> Result<Vec<Message>> {
    hand_out(prompts, images.into_iter().map(Part::Image).collect(), &IMAGE)
}

/// As [`messages_with_placeholders`], for sound and the word `<audio>`.
///
/// # Errors
/// As there.
pub fn messages_with_audio_placeholders<P: AsRef<str>>(prompts: &[P], audio: Vec<Audio>) -> Result<Vec<Message>> {
    hand_out(prompts, audio.into_iter().map(Part::Audio).collect(), &AUDIO)
}

fn hand_out<P: AsRef<str>>(prompts: &[P], media: Vec<Part>, word: &Word) -> Result<Vec<Message>> {
    let &Word { placeholder, one, several } = word;
    let places: usize = prompts.iter().map(|prompt| prompt.as_ref().matches(placeholder).count()).sum();
    let given = media.len();
    if prompts.is_empty() && given > 0 {
        return Err(Error::invalid(format!("{several} given: {given}, but there is no prompt to put them in")));
    }
    if places > 0 && places != given {
        return Err(Error::invalid(format!(
            "placeholders {placeholder} in the prompts: {places}, {several} given: {given}; there must be one {one} for \
             each placeholder, or no placeholder at all"
        )));
    }
    let mut media = media.into_iter();
    let mut messages = Vec::with_capacity(prompts.len());
    for (number, prompt) in prompts.iter().enumerate() {
        let mut parts = Vec::new();
        if places == 0 && number == 0 {
            parts.extend(media.by_ref());
        }
        for (piece, text) in prompt.as_ref().split(placeholder).enumerate() {
            if piece > 0 {
                parts.extend(media.next());
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
    fn sound_goes_to_placeholders_of_its_own() {
        let sound = |value: f32| Audio::from_samples(vec![value], 16_000).unwrap();
        let messages =
            messages_with_audio_placeholders(&["hear <audio>!", "<audio><image>"], vec![sound(0.1), sound(0.2)]);
        let messages = messages.unwrap();
        assert_eq!(messages[0].parts, [text("hear "), Part::Audio(sound(0.1)), text("!")]);
        assert_eq!(messages[1].parts, [Part::Audio(sound(0.2)), text("<image>")]);
        let opening = messages_with_audio_placeholders(&["hear this"], vec![sound(0.1)]).unwrap();
        assert_eq!(opening[0].parts, [Part::Audio(sound(0.1)), text("hear this")]);
        let error = messages_with_audio_placeholders(&["<audio>"], vec![]).unwrap_err().to_string();
        assert!(error.contains("<audio> in the prompts: 1, audio clips given: 0"), "{error}");
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
