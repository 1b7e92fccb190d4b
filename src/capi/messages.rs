//! `etg_messages`: typed messages for a conversation.

use super::audio::etg_audio;
use super::embedding::etg_embedding;
use super::guard::guard;
use super::handle::{self, Handle};
use super::image::etg_image;
use super::input::{self, Out};
use super::status::ETG_OK;
use crate::chat::{Message, Part, Role, messages_with_placeholders};
use crate::media::Image;
use crate::{Error, Result};
use parking_lot::Mutex;
use std::ffi::c_char;
use std::ptr;

/// Role of a message: instructions that hold for the whole conversation.
pub const ETG_ROLE_SYSTEM: i32 = 0;
/// Role of a message: the person.
pub const ETG_ROLE_USER: i32 = 1;
/// Role of a message: the model.
pub const ETG_ROLE_ASSISTANT: i32 = 2;
/// Role of a message: the result of a tool the model called.
pub const ETG_ROLE_TOOL: i32 = 3;

/// A list of messages, each a role and its parts (text, pictures, sound) in order. Text is never scanned for markers and never
/// becomes control tokens.
pub struct etg_messages {
    messages: Mutex<Vec<Message>>,
}

impl Handle for etg_messages {
    const NAME: &'static str = "etg_messages";
}

/// The messages now.
pub(super) fn read(messages: *const etg_messages) -> Result<Vec<Message>> {
    let messages = handle::get(messages)?;
    let messages = messages.messages.lock();
    Ok(messages.clone())
}

fn role_of(role: i32) -> Result<Role> {
    match role {
        ETG_ROLE_SYSTEM => Ok(Role::System),
        ETG_ROLE_USER => Ok(Role::User),
        ETG_ROLE_ASSISTANT => Ok(Role::Assistant),
        ETG_ROLE_TOOL => Ok(Role::Tool),
        other => Err(Error::invalid(format!("role is {other}, but must be an ETG_ROLE_ constant (0 to 3)"))),
    }
}

/// Make an empty list.
///
/// - Threads: any.
/// - Owns: `*messages_out` is the caller's; free it with `etg_messages_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
/// - After a failure: nothing was made, `*messages_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_messages_create(messages_out: *mut *mut etg_messages) -> i32 {
    guard("etg_messages_create", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(messages_out, ptr::null_mut(), "messages_out") }?;
        out.set(handle::issue(etg_messages { messages: Mutex::default() }));
        Ok(ETG_OK)
    })
}

/// Free a list. NULL is allowed and does nothing.
///
/// - Threads: any; a call that is using the list goes on with the messages it has read.
/// - Owns: takes the list back.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live list: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_messages_free(messages: *mut etg_messages) -> i32 {
    guard("etg_messages_free", || handle::free(messages).map(|()| ETG_OK))
}

/// Begin a message of `role` (an `ETG_ROLE_` constant) at the end of the list; parts are added to it next.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not a role).
/// - After a failure: the list is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_messages_add(messages: *mut etg_messages, role: i32) -> i32 {
    guard("etg_messages_add", || {
        let role = role_of(role)?;
        handle::get(messages)?.messages.lock().push(Message { role, parts: Vec::new() });
        Ok(ETG_OK)
    })
}

/// Add `part` to the last message.
fn add_part(messages: *mut etg_messages, part: Part) -> Result<i32> {
    let messages = handle::get(messages)?;
    let mut messages = messages.messages.lock();
    let Some(last) = messages.last_mut() else {
        return Err(Error::InvalidState("there is no message to add to: call etg_messages_add first".into()));
    };
    last.parts.push(part);
    Ok(ETG_OK)
}

/// Add a part of text to the last message. Parts of text follow each other without a separator.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not UTF-8), `ETG_ERROR_INVALID_STATE` (no message yet).
/// - After a failure: the list is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_messages_add_text(messages: *mut etg_messages, text: *const c_char, length: usize) -> i32 {
    guard("etg_messages_add_text", || {
        // SAFETY: text of the caller.
        let text = unsafe { input::text(text, length, "text") }?;
        add_part(messages, Part::Text(text.to_owned()))
    })
}

/// Add a picture to the last message, after the parts it has. The same picture may be added any number of times.
///
/// - Threads: any.
/// - Owns: the list shares the picture's content; the picture may be freed at once.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (no message yet).
/// - After a failure: the list is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_messages_add_image(messages: *mut etg_messages, image: *const etg_image) -> i32 {
    guard("etg_messages_add_image", || add_part(messages, Part::Image(handle::get(image)?.image.clone())))
}

/// Add sound to the last message, after the parts it has. The same sound may be added any number of times.
///
/// - Threads: any.
/// - Owns: the list shares the sound's content; the sound may be freed at once.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (no message yet).
/// - After a failure: the list is unchanged. Whether a model takes sound, and of this length, is checked when the messages
///   are used.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_messages_add_audio(messages: *mut etg_messages, audio: *const etg_audio) -> i32 {
    guard("etg_messages_add_audio", || add_part(messages, Part::Audio(handle::get(audio)?.audio.clone())))
}

/// Add the rows of a picture or of sound that was encoded before to the last message, after the parts it has. Nothing is encoded then.
///
/// - Threads: any.
/// - Owns: the list shares the rows; the embedding may be freed at once.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (no message yet).
/// - After a failure: the list is unchanged. Whether the rows fit a model is checked when the messages are used.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_messages_add_embedding(messages: *mut etg_messages, embedding: *const etg_embedding) -> i32 {
    guard("etg_messages_add_embedding", || {
        add_part(messages, Part::Embedding(handle::get(embedding)?.embedding.clone()))
    })
}

/// The pictures of an array.
///
/// # Safety
/// As [`input::values`].
unsafe fn pictures(images: *const *const etg_image, image_count: usize) -> Result<Vec<Image>> {
    // SAFETY: this function's contract.
    let images = unsafe { input::values(images, image_count, "images") }?;
    Ok(handle::get_all(images, "images")?.iter().map(|handle| handle.image.clone()).collect())
}

/// Compatibility with prompt strings of upstream's runners: add a user message made of `prompt`, in which each word
/// `<image>` is the place of the next picture of `images`. Without the word all pictures stand in front of the text.
/// No other function looks for this word: do not use this one for text that a person typed.
///
/// - Threads: any.
/// - Owns: the prompt is copied, the list shares the content of the pictures; both may be freed at once.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, or another number of pictures than placeholders; the
///   message has both numbers).
/// - After a failure: the list is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_messages_add_placeholder_prompt(
    messages: *mut etg_messages,
    prompt: *const c_char,
    prompt_length: usize,
    images: *const *const etg_image,
    image_count: usize,
) -> i32 {
    guard("etg_messages_add_placeholder_prompt", || {
        // SAFETY: text of the caller.
        let prompt = unsafe { input::text(prompt, prompt_length, "prompt") }?;
        // SAFETY: an array of the caller's.
        let images = unsafe { pictures(images, image_count) }?;
        let messages = handle::get(messages)?;
        let made = messages_with_placeholders(&[prompt], images)?;
        messages.messages.lock().extend(made);
        Ok(ETG_OK)
    })
}

/// As `etg_messages_add_placeholder_prompt`, for all turns of a conversation at once: one list of messages for each of
/// the prompts, with the pictures handed to the placeholders of all prompts in order. Without any placeholder all
/// pictures stand in front of the first prompt. `prompts` and `prompt_lengths` have `prompt_count` elements each, and so
/// has `messages_out`, the place for the lists.
///
/// - Threads: any.
/// - Owns: each list in `messages_out` is the caller's; free it with `etg_messages_free`. Prompts and pictures may be
///   freed at once.
/// - Codes: as `etg_messages_add_placeholder_prompt`.
/// - After a failure: nothing was made, the elements of `messages_out` are NULL if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_messages_from_placeholder_prompts(
    prompts: *const *const c_char,
    prompt_lengths: *const usize,
    prompt_count: usize,
    images: *const *const etg_image,
    image_count: usize,
    messages_out: *mut *mut etg_messages,
) -> i32 {
    guard("etg_messages_from_placeholder_prompts", || {
        // SAFETY: a place of the caller's for so many handles.
        let places = unsafe { input::values_mut(messages_out, prompt_count, "messages_out") }?;
        places.fill(ptr::null_mut());
        // SAFETY: arrays of the caller's.
        let prompts = unsafe { input::values(prompts, prompt_count, "prompts") }?;
        // SAFETY: as above.
        let lengths = unsafe { input::values(prompt_lengths, prompt_count, "prompt_lengths") }?;
        let texts = prompts.iter().zip(lengths).enumerate().map(|(index, (&prompt, &length))| {
            // SAFETY: text of the caller.
            unsafe { input::text(prompt, length, &format!("prompts[{index}]")) }
        });
        let texts = texts.collect::<Result<Vec<_>>>()?;
        // SAFETY: an array of the caller's.
        let images = unsafe { pictures(images, image_count) }?;
        let turns = messages_with_placeholders(&texts, images)?;
        for (place, turn) in places.iter_mut().zip(turns) {
            *place = handle::issue(etg_messages { messages: Mutex::new(vec![turn]) });
        }
        Ok(ETG_OK)
    })
}

/// Remove all messages.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the list is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_messages_clear(messages: *mut etg_messages) -> i32 {
    guard("etg_messages_clear", || {
        handle::get(messages)?.messages.lock().clear();
        Ok(ETG_OK)
    })
}

/// Number of messages.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: `*count_out` is 0 if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_messages_count(messages: *const etg_messages, count_out: *mut usize) -> i32 {
    guard("etg_messages_count", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(count_out, 0, "count_out") }?;
        out.set(handle::get(messages)?.messages.lock().len());
        Ok(ETG_OK)
    })
}
