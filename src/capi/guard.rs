//! The panic guard around every export.
//!
//! A panic that crosses `extern "C"` aborts the process. It is a bug of ours, and the host must survive it: it is
//! caught, kept off stderr, and returned as `ETG_ERROR_INTERNAL` with its message and place.

use super::last_error::{self, Failure};
use crate::{Error, Result};
use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

thread_local! {
    /// How many guards this thread is inside of: a callback may call back into the library.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// What the hook saw of the panic in flight: message and place.
    static SEEN: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A caught panic: its message and place.
#[derive(Debug)]
pub(super) struct Panicked(pub(super) String);

impl From<Panicked> for Error {
    fn from(panicked: Panicked) -> Self {
        Error::internal(format!("panic: {}", panicked.0))
    }
}

/// Run the body of `function`; its failure or panic is recorded for this thread and becomes a code.
pub(super) fn guard(function: &'static str, body: impl FnOnce() -> Result<i32>) -> i32 {
    let outcome = catch(body).unwrap_or_else(|panicked| Err(panicked.into()));
    outcome.unwrap_or_else(|error| last_error::record(function, Failure::of(&error)))
}

/// Run `body`, keep a panic inside.
pub(super) fn catch<T>(body: impl FnOnce() -> T) -> std::result::Result<T, Panicked> {
    static HOOK: Once = Once::new();
    HOOK.call_once(install_hook);
    let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_add(1)));
    // What the body leaves half done is the caller's to mark: `with_runner` poisons, the other handles hold plain values.
    let outcome = panic::catch_unwind(AssertUnwindSafe(body));
    let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
    outcome.map_err(|payload| {
        let seen = SEEN.try_with(|seen| seen.borrow_mut().take()).ok().flatten();
        Panicked(seen.unwrap_or_else(|| words_of(&*payload)))
    })
}

/// The words of a panic; one that came from another thread was seen by the hook there, so they are all there is.
fn words_of(payload: &(dyn Any + Send)) -> String {
    let words =
        payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    words.unwrap_or("no message").to_owned()
}

/// The default hook prints; ours keeps the words of panics inside a guard and on the engine's threads, and passes on
/// all others.
fn install_hook() {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let guarded = DEPTH.try_with(Cell::get).is_ok_and(|depth| depth > 0);
        let ours = std::thread::current().name().is_some_and(|name| name.starts_with("etgenai"));
        if guarded || ours { remember(info) } else { previous(info) }
    }));
}

fn remember(info: &PanicHookInfo<'_>) {
    let message = words_of(info.payload());
    let place = info.location().map_or_else(|| "unknown place".into(), ToString::to_string);
    // The message may quote what a user typed, the place never does.
    log::error!("panic at {place}");
    log::debug!("panic at {place}: {message}\n{}", Backtrace::force_capture());
    let _ = SEEN.try_with(|seen| *seen.borrow_mut() = Some(format!("{message}, at {place}")));
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn a_panic_handed_over_by_a_worker_keeps_its_words() {
        let caught = catch(|| panic::resume_unwind(Box::new("smoke in the pool")));
        assert!(matches!(caught, Err(Panicked(words)) if words == "smoke in the pool"));
    }
}
