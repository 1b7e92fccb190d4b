//! `etg_buffer`: text or token ids that the library made and the caller owns.

use super::guard::guard;
use super::handle::{self, Handle};
use super::input::Out;
use super::status::ETG_OK;
use crate::{Error, Result};
use std::ffi::c_char;
use std::ptr;

/// Text or token ids that a call returned. Read it with `etg_buffer_text` or `etg_buffer_ids`, free it with
/// `etg_buffer_free`.
pub struct etg_buffer {
    content: Content,
}

enum Content {
    /// Bytes and a NUL after them, which is not counted.
    Text(Vec<u8>),
    Ids(Vec<u32>),
}

impl Handle for etg_buffer {
    const NAME: &'static str = "etg_buffer";
}

/// A new buffer with `text`, for the caller.
pub(super) fn text(text: impl Into<Vec<u8>>) -> *mut etg_buffer {
    let mut bytes = text.into();
    bytes.push(0);
    handle::issue(etg_buffer { content: Content::Text(bytes) })
}

/// A new buffer with token `ids`, for the caller.
pub(super) fn ids(ids: Vec<u32>) -> *mut etg_buffer {
    handle::issue(etg_buffer { content: Content::Ids(ids) })
}

/// The place for a buffer that a call will make.
///
/// # Safety
/// As [`Out::new`].
pub(super) unsafe fn out(place: *mut *mut etg_buffer) -> Result<Out<*mut etg_buffer>> {
    // SAFETY: this function's contract.
    unsafe { Out::new(place, ptr::null_mut(), "buffer_out") }
}

/// The bytes of a text buffer. A NUL follows them (not counted), so text without NUL inside is also a C string.
///
/// - Threads: any, also several at once.
/// - Owns: `*text_out` is borrowed from the buffer and lives until `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, or not a live buffer), `ETG_ERROR_INVALID_STATE` (it holds ids).
/// - After a failure: the buffer is unchanged, `*text_out` is NULL and `*length_out` 0.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_buffer_text(
    buffer: *const etg_buffer,
    text_out: *mut *const c_char,
    length_out: *mut usize,
) -> i32 {
    guard("etg_buffer_text", || {
        // SAFETY: out-parameters of the caller.
        let mut text = unsafe { Out::new(text_out, ptr::null(), "text_out") }?;
        // SAFETY: as above.
        let mut length = unsafe { Out::new(length_out, 0, "length_out") }?;
        let buffer = handle::get(buffer)?;
        let Content::Text(bytes) = &buffer.content else {
            return Err(Error::InvalidState("the buffer holds token ids: read it with etg_buffer_ids".into()));
        };
        // The table holds the buffer, whose bytes never move or change, until it is freed.
        text.set(bytes.as_ptr().cast());
        length.set(bytes.len().saturating_sub(1));
        Ok(ETG_OK)
    })
}

/// The token ids of an id buffer.
///
/// - Threads: any, also several at once.
/// - Owns: `*ids_out` is borrowed from the buffer and lives until `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, or not a live buffer), `ETG_ERROR_INVALID_STATE` (it holds text).
/// - After a failure: the buffer is unchanged, `*ids_out` is NULL and `*count_out` 0.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_buffer_ids(
    buffer: *const etg_buffer,
    ids_out: *mut *const u32,
    count_out: *mut usize,
) -> i32 {
    guard("etg_buffer_ids", || {
        // SAFETY: out-parameters of the caller.
        let mut ids = unsafe { Out::new(ids_out, ptr::null(), "ids_out") }?;
        // SAFETY: as above.
        let mut count = unsafe { Out::new(count_out, 0, "count_out") }?;
        let buffer = handle::get(buffer)?;
        let Content::Ids(values) = &buffer.content else {
            return Err(Error::InvalidState("the buffer holds text: read it with etg_buffer_text".into()));
        };
        ids.set(values.as_ptr());
        count.set(values.len());
        Ok(ETG_OK)
    })
}

/// Free a buffer. NULL is allowed and does nothing.
///
/// - Threads: any, when no other thread reads the buffer any more.
/// - Owns: takes the buffer back; what was borrowed from it is gone.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live buffer: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_buffer_free(buffer: *mut etg_buffer) -> i32 {
    guard("etg_buffer_free", || handle::free(buffer).map(|()| ETG_OK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capi::status::{ETG_ERROR_INVALID_ARGUMENT, ETG_ERROR_INVALID_STATE};

    #[test]
    fn text_ends_in_an_uncounted_nul() {
        let buffer = text("hé");
        let (mut bytes, mut length) = (ptr::null(), 99);
        // SAFETY: a live buffer and live out-parameters.
        unsafe {
            assert_eq!(etg_buffer_text(buffer, &mut bytes, &mut length), ETG_OK);
            assert_eq!(length, 3);
            assert_eq!(std::ffi::CStr::from_ptr(bytes).to_str(), Ok("hé"));
            let (mut ids, mut count) = (ptr::null(), 99);
            assert_eq!(etg_buffer_ids(buffer, &mut ids, &mut count), ETG_ERROR_INVALID_STATE);
            assert_eq!((ids, count), (ptr::null(), 0));
        }
        assert_eq!(etg_buffer_free(buffer), ETG_OK);
        assert_eq!(etg_buffer_free(buffer), ETG_ERROR_INVALID_ARGUMENT);
    }
}
