//! The panic guard around every export.
//!
//! A panic that crosses `extern "C"` aborts the process. It is a bug of ours, and the host must survive it: it is
//! caught, kept off stderr, and returned as `ETG_ERROR_INTERNAL` with its message and place.

use super::last_error::{self, Failure};
use crate::Result;
pub(super) use crate::panics::{Panicked, catch};

/// Run the body of `function`; its failure or panic is recorded for this thread and becomes a code.
pub(super) fn guard(function: &'static str, body: impl FnOnce() -> Result<i32>) -> i32 {
    let outcome = catch(body).unwrap_or_else(|panicked| Err(panicked.into()));
    outcome.unwrap_or_else(|error| last_error::record(function, Failure::of(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::capi::last_error::{etg_last_error_code, etg_last_error_message};
    use crate::capi::status;
    use std::ffi::CStr;

    #[test]
    fn a_panic_becomes_an_internal_error_with_its_words() {
        let code = guard("test", || Err(Error::invalid("not this")));
        assert_eq!(code, status::ETG_ERROR_INVALID_ARGUMENT);
        #[allow(clippy::panic, reason = "the thing under test")]
        let code = guard("test", || panic!("fire in room {}", 7));
        assert_eq!(code, status::ETG_ERROR_INTERNAL);
        assert_eq!(etg_last_error_code(), status::ETG_ERROR_INTERNAL);
        // SAFETY: the text of this thread's last failure, not failed again since.
        let text = unsafe { CStr::from_ptr(etg_last_error_message()) }.to_string_lossy().into_owned();
        assert!(text.contains("fire in room 7") && text.contains("guard.rs"), "{text}");
    }
}
