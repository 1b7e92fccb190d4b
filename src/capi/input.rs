//! Arguments from C, checked: pointers, lengths, UTF-8, enumerations; and out-parameters.

use crate::{Error, Result};
use std::path::PathBuf;
use std::slice;

/// `count` values at `pointer`. NULL with a count of 0 is the empty slice (what an empty C++ container gives).
///
/// # Safety
/// Not NULL means: `count` readable values that nobody writes during `'a`.
///
/// # Errors
/// NULL with a count, misaligned, or more than an address space holds; `what` names the argument.
pub(super) unsafe fn values<'a, T: Copy>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    if check(pointer, count, what)? == Place::Empty {
        return Ok(&[]);
    }
    // SAFETY: not NULL, aligned, no overflow; readable by this function's contract.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// `count` values at `pointer`, to be changed in place.
///
/// # Safety
/// As [`values`], and nobody else reads or writes them during `'a`.
///
/// # Errors
/// As [`values`].
pub(super) unsafe fn values_mut<'a, T: Copy>(pointer: *mut T, count: usize, what: &str) -> Result<&'a mut [T]> {
    if check(pointer, count, what)? == Place::Empty {
        return Ok(&mut []);
    }
    // SAFETY: not NULL, aligned, no overflow; the caller's alone by this function's contract.
    Ok(unsafe { slice::from_raw_parts_mut(pointer, count) })
}

/// Whether there is anything to look at.
#[derive(PartialEq, Eq)]
enum Place {
    Empty,
    Filled,
}

/// What both [`values`] and [`values_mut`] check.
fn check<T>(pointer: *const T, count: usize, what: &str) -> Result<Place> {
    if pointer.is_null() {
        return if count == 0 {
            Ok(Place::Empty)
        } else {
            Err(Error::invalid(format!("{what} is NULL, its length is {count}")))
        };
    }
    if !pointer.is_aligned() {
        return Err(Error::invalid(format!("{what} is not aligned to {} bytes", align_of::<T>())));
    }
    let bytes = count.checked_mul(size_of::<T>()).and_then(|bytes| isize::try_from(bytes).ok());
    if bytes.is_none() {
        return Err(Error::invalid(format!("{what}: a length of {count} is more than memory can hold")));
    }
    Ok(Place::Filled)
}

/// UTF-8 text of `length` bytes. NULL with a length of 0 is the empty text.
///
/// # Safety
/// As [`values`].
///
/// # Errors
/// As [`values`]; not UTF-8 (the message says where).
pub(super) unsafe fn text<'a>(pointer: *const std::ffi::c_char, length: usize, what: &str) -> Result<&'a str> {
    // SAFETY: this function's contract.
    let bytes = unsafe { values(pointer.cast::<u8>(), length, what) }?;
    std::str::from_utf8(bytes)
        .map_err(|error| Error::invalid(format!("{what} is not UTF-8: bad byte at offset {}", error.valid_up_to())))
}

/// A path: UTF-8 text, not empty, without NUL.
///
/// # Safety
/// As [`values`].
///
/// # Errors
/// As [`text`]; empty or with a NUL inside.
pub(super) unsafe fn path(pointer: *const std::ffi::c_char, length: usize, what: &str) -> Result<PathBuf> {
    // SAFETY: this function's contract.
    let text = unsafe { text(pointer, length, what) }?;
    if text.is_empty() {
        return Err(Error::invalid(format!("{what} is empty")));
    }
    if let Some(at) = text.bytes().position(|byte| byte == 0) {
        return Err(Error::invalid(format!("{what} holds a NUL byte at offset {at}: no path can")));
    }
    Ok(PathBuf::from(text))
}

/// A path, or `None` for the empty text.
///
/// # Safety
/// As [`values`].
///
/// # Errors
/// As [`text`]; with a NUL inside.
pub(super) unsafe fn optional_path(
    pointer: *const std::ffi::c_char,
    length: usize,
    what: &str,
) -> Result<Option<PathBuf>> {
    if length == 0 {
        return Ok(None);
    }
    // SAFETY: this function's contract.
    unsafe { path(pointer, length, what) }.map(Some)
}

/// A truth value: 0 or 1.
///
/// # Errors
/// Any other number; `what` names the argument.
pub(super) fn flag(value: i32, what: &str) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::invalid(format!("{what} is {other}, but must be 0 or 1"))),
    }
}

/// A place of the caller's for a result.
pub(super) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// Check the place and put `nothing` there, so that a failure leaves a defined value behind.
    ///
    /// # Safety
    /// Not NULL means: writable until the [`Out`] is gone.
    ///
    /// # Errors
    /// NULL or misaligned; `what` names the argument.
    pub(super) unsafe fn new(place: *mut T, nothing: T, what: &str) -> Result<Self> {
        if place.is_null() {
            return Err(Error::invalid(format!("{what} is NULL: there is no place for the result")));
        }
        if !place.is_aligned() {
            return Err(Error::invalid(format!("{what} is not aligned to {} bytes", align_of::<T>())));
        }
        let mut out = Out(place);
        out.set(nothing);
        Ok(out)
    }

    /// As [`new`](Self::new), for a result that the caller may not want: NULL gives `None`.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    ///
    /// # Errors
    /// Misaligned; `what` names the argument.
    pub(super) unsafe fn optional(place: *mut T, nothing: T, what: &str) -> Result<Option<Self>> {
        if place.is_null() {
            return Ok(None);
        }
        // SAFETY: this function's contract.
        unsafe { Self::new(place, nothing, what) }.map(Some)
    }

    /// Hand over the result.
    pub(super) fn set(&mut self, value: T) {
        // SAFETY: `new` checked NULL and alignment; writable by its contract.
        unsafe { self.0.write(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_checked() {
        // SAFETY: in every call the pointer is NULL, or to a live array of that length (or the length is refused first).
        unsafe {
            assert!(text(std::ptr::null(), 0, "x").is_ok_and(str::is_empty));
            assert!(text(std::ptr::null(), 1, "x").is_err());
            assert!(text(c"abc".as_ptr(), 3, "x").is_ok_and(|t| t == "abc"));
            assert!(text(c"abc".as_ptr(), usize::MAX, "x").is_err());
            let error = text(c"ab\xff".as_ptr(), 3, "prompt").err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains("prompt is not UTF-8") && error.contains("offset 2"), "{error}");
            assert!(path(c"abc".as_ptr(), 3, "p").is_ok());
            assert!(path(b"a\0b".as_ptr().cast(), 3, "p").is_err());
            assert!(path(c"".as_ptr(), 0, "p").is_err());
            let numbers = [1u32, 2, 3];
            assert!(values(numbers.as_ptr().cast::<u8>().add(1).cast::<u32>(), 1, "ids").is_err(), "misaligned");
        }
    }

    #[test]
    fn a_flag_is_0_or_1() {
        assert!(flag(1, "f").is_ok_and(|v| v));
        assert!(flag(0, "f").is_ok_and(|v| !v));
        assert!(flag(2, "f").is_err());
    }
}
