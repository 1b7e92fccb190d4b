//! The last failure of the calling thread. Like `errno`: success leaves it alone.

use super::status;
use crate::Error;
use std::cell::RefCell;
use std::ffi::{CString, c_char};

/// One failure: its code and its text (NUL-terminated, no NUL inside).
#[derive(Debug, Clone, Default)]
pub(super) struct Failure {
    pub(super) code: i32,
    pub(super) message: CString,
}

impl Failure {
    /// `error` as C sees it.
    pub(super) fn of(error: &Error) -> Self {
        let text = error.to_string().replace('\0', "\u{FFFD}");
        Failure { code: status::code(error.code()), message: CString::new(text).unwrap_or_default() }
    }
}

thread_local! {
    static LAST: RefCell<Failure> = RefCell::new(Failure::default());
}

/// Remember the failure of `function` for this thread, log it, give back its code.
///
/// The log line has no text at a level above debug: messages may quote what a user typed.
pub(super) fn record(function: &str, failure: Failure) -> i32 {
    let code = failure.code;
    log::warn!("{function}: {}", status::name(code).to_string_lossy());
    log::debug!("{function}: {}", failure.message.to_string_lossy());
    // A thread that is ending has no record any more; the code still reaches the caller.
    let _ = LAST.try_with(|last| *last.borrow_mut() = failure);
    code
}

/// Code of the last call that failed on this thread; `ETG_OK` when none did.
///
/// - Threads: any; each thread has its own record.
/// - Owns: nothing.
/// - Codes: those of the call that failed.
/// - After a failure: not applicable, cannot fail.
#[unsafe(no_mangle)]
pub extern "C" fn etg_last_error_code() -> i32 {
    LAST.try_with(|last| last.borrow().code).unwrap_or(status::ETG_OK)
}

/// Text of the last call that failed on this thread: what is wrong, the value found, the way out. UTF-8,
/// NUL-terminated, empty when no call failed. A successful call does not clear it, so freeing things first is fine.
///
/// - Threads: any; each thread has its own record.
/// - Owns: nothing; the text lives until the next call that fails on this thread, or the end of the thread.
/// - Codes: none, cannot fail, never NULL.
/// - After a failure: not applicable.
#[unsafe(no_mangle)]
pub extern "C" fn etg_last_error_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().message.as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_never_holds_a_nul() {
        let failure = Failure::of(&Error::invalid("a\0b"));
        assert_eq!(failure.code, status::ETG_ERROR_INVALID_ARGUMENT);
        assert_eq!(failure.message.to_str(), Ok("a\u{FFFD}b"));
    }
}
