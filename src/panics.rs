//! Catching panics where C calls us.
//!
//! A panic is a bug of ours, and the host must survive it without a word on its stderr: it is caught, its message and place
//! are kept.

use crate::Error;
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
pub(crate) struct Panicked(pub(crate) String);

impl From<Panicked> for Error {
    fn from(panicked: Panicked) -> Self {
        Error::internal(format!("panic: {}", panicked.0))
    }
}

/// Run `body`, keep a panic inside.
pub(crate) fn catch<T>(body: impl FnOnce() -> T) -> std::result::Result<T, Panicked> {
    static HOOK: Once = Once::new();
    HOOK.call_once(install_hook);
    let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_add(1)));
    // What the body leaves half done is the caller's to mark.
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

    #[test]
    fn a_panic_handed_over_by_a_worker_keeps_its_words() {
        let caught = catch(|| panic::resume_unwind(Box::new("smoke in the pool")));
        assert!(matches!(caught, Err(Panicked(words)) if words == "smoke in the pool"));
    }
}
