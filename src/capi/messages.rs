//! `etg_messages`: typed messages for a conversation.

use super::guard::guard;
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::status::ETG_OK;
use crate::chat::{Message, Part, Role};
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

/// A list of messages, each a role and its parts. Text is never scanned for markers and never becomes control tokens.
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
        let messages = handle::get(messages)?;
        let mut messages = messages.messages.lock();
        let Some(last) = messages.last_mut() else {
            return Err(Error::InvalidState("there is no message to add text to: call etg_messages_add first".into()));
        };
        last.parts.push(Part::Text(text.to_owned()));
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
