//! The numbers functions return.

use crate::error::Status;
use std::ffi::{CStr, c_char};

/// Success. Of `etg_runner_generate`: the model ended its reply itself.
pub const ETG_OK: i32 = 0;

/// Not an error: the reply ended because of `etg_runner_cancel`.
pub const ETG_STOP_CANCELLED: i32 = 1;
/// Not an error: the reply ended at `max_new_tokens`.
pub const ETG_STOP_LENGTH: i32 = 2;
/// Not an error: the reply ended because the context is full.
pub const ETG_STOP_CONTEXT_FULL: i32 = 3;
/// Not an error: the reply ended at a stop string, which is not part of the reply.
pub const ETG_STOP_STRING: i32 = 4;
/// Not an error: the reply ended because the event callback asked for it.
pub const ETG_STOP_CALLBACK: i32 = 5;

/// An argument or option has a value that is not allowed: NULL, not UTF-8, out of range, a handle that is not live.
pub const ETG_ERROR_INVALID_ARGUMENT: i32 = -1;
/// The named thing (file, model, option, graph, tensor) does not exist.
pub const ETG_ERROR_NOT_FOUND: i32 = -2;
/// The operating system refused a file operation.
pub const ETG_ERROR_IO: i32 = -3;
/// A file, template or JSON text is malformed; the message names file, field and reason.
pub const ETG_ERROR_FORMAT: i32 = -4;
/// A well-formed request for something this build cannot do.
pub const ETG_ERROR_UNSUPPORTED: i32 = -5;
/// The conversation does not fit the context; the message holds both numbers.
pub const ETG_ERROR_CONTEXT_FULL: i32 = -6;
/// The call is not allowed in the handle's present state.
pub const ETG_ERROR_INVALID_STATE: i32 = -7;
/// An earlier call failed half way; only reset, free and getters are allowed now.
pub const ETG_ERROR_POISONED: i32 = -8;
/// The handle is in use by another call (another thread, or the callback we are in).
pub const ETG_ERROR_BUSY: i32 = -9;
/// The caller's progress callback ended the work.
pub const ETG_ERROR_CANCELLED: i32 = -10;
/// The engine could not load or execute.
pub const ETG_ERROR_ENGINE: i32 = -11;
/// A bug of this library, caught. The process is safe to go on.
pub const ETG_ERROR_INTERNAL: i32 = -12;
/// Reserved: no function of this version returns it.
pub const ETG_ERROR_BUFFER_TOO_SMALL: i32 = -13;

/// Every code with its name, for `etg_status_name` and for the check that they equal [`Status`].
const NAMES: [(i32, &CStr); 19] = [
    (ETG_OK, c"ETG_OK"),
    (ETG_STOP_CANCELLED, c"ETG_STOP_CANCELLED"),
    (ETG_STOP_LENGTH, c"ETG_STOP_LENGTH"),
    (ETG_STOP_CONTEXT_FULL, c"ETG_STOP_CONTEXT_FULL"),
    (ETG_STOP_STRING, c"ETG_STOP_STRING"),
    (ETG_STOP_CALLBACK, c"ETG_STOP_CALLBACK"),
    (ETG_ERROR_INVALID_ARGUMENT, c"ETG_ERROR_INVALID_ARGUMENT"),
    (ETG_ERROR_NOT_FOUND, c"ETG_ERROR_NOT_FOUND"),
    (ETG_ERROR_IO, c"ETG_ERROR_IO"),
    (ETG_ERROR_FORMAT, c"ETG_ERROR_FORMAT"),
    (ETG_ERROR_UNSUPPORTED, c"ETG_ERROR_UNSUPPORTED"),
    (ETG_ERROR_CONTEXT_FULL, c"ETG_ERROR_CONTEXT_FULL"),
    (ETG_ERROR_INVALID_STATE, c"ETG_ERROR_INVALID_STATE"),
    (ETG_ERROR_POISONED, c"ETG_ERROR_POISONED"),
    (ETG_ERROR_BUSY, c"ETG_ERROR_BUSY"),
    (ETG_ERROR_CANCELLED, c"ETG_ERROR_CANCELLED"),
    (ETG_ERROR_ENGINE, c"ETG_ERROR_ENGINE"),
    (ETG_ERROR_INTERNAL, c"ETG_ERROR_INTERNAL"),
    (ETG_ERROR_BUFFER_TOO_SMALL, c"ETG_ERROR_BUFFER_TOO_SMALL"),
];

/// The C number of a [`Status`].
pub(super) const fn code(status: Status) -> i32 {
    match status {
        Status::Ok => ETG_OK,
        Status::InvalidArgument => ETG_ERROR_INVALID_ARGUMENT,
        Status::NotFound => ETG_ERROR_NOT_FOUND,
        Status::Io => ETG_ERROR_IO,
        Status::Format => ETG_ERROR_FORMAT,
        Status::Unsupported => ETG_ERROR_UNSUPPORTED,
        Status::ContextFull => ETG_ERROR_CONTEXT_FULL,
        Status::InvalidState => ETG_ERROR_INVALID_STATE,
        Status::Poisoned => ETG_ERROR_POISONED,
        Status::Busy => ETG_ERROR_BUSY,
        Status::Cancelled => ETG_ERROR_CANCELLED,
        Status::Engine => ETG_ERROR_ENGINE,
        Status::Internal => ETG_ERROR_INTERNAL,
        Status::BufferTooSmall => ETG_ERROR_BUFFER_TOO_SMALL,
    }
}

/// The name of a status code.
pub(super) fn name(status: i32) -> &'static CStr {
    NAMES.iter().find(|(code, _)| *code == status).map_or(c"unknown status", |(_, name)| name)
}

/// Name of a status code, e.g. "ETG_ERROR_IO"; "unknown status" for a number that is none. NUL-terminated.
///
/// - Threads: any.
/// - Owns: nothing; the text lives as long as the process.
/// - Codes: none, cannot fail, never NULL.
/// - After a failure: not applicable.
#[unsafe(no_mangle)]
pub extern "C" fn etg_status_name(status: i32) -> *const c_char {
    name(status).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_codes_equal_the_rust_status() {
        for status in [
            Status::Ok,
            Status::InvalidArgument,
            Status::NotFound,
            Status::Io,
            Status::Format,
            Status::Unsupported,
            Status::ContextFull,
            Status::InvalidState,
            Status::Poisoned,
            Status::Busy,
            Status::Cancelled,
            Status::Engine,
            Status::Internal,
            Status::BufferTooSmall,
        ] {
            assert_eq!(code(status), status as i32, "{status:?}");
            assert_ne!(name(code(status)), c"unknown status", "{status:?}");
        }
        assert_eq!(name(12345), c"unknown status");
    }
}
