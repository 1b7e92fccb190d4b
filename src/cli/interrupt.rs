//! Ctrl-C: the first one cancels the work at hand, the next one ends the process.
//!
//! A thread waits for the signal and runs ordinary code when it comes. That leaves nothing to a signal handler, where
//! hardly any call is allowed, and lets a cancel reach the library through its own thread-safe handles.

use parking_lot::Mutex;

/// Exit code after Ctrl-C, as shells expect it: 128 + SIGINT.
pub const EXIT_CODE: u8 = 130;

type Action = Box<dyn FnOnce() + Send>;

/// What the next Ctrl-C does; `None`: it ends the process.
static ON_INTERRUPT: Mutex<Option<Action>> = Mutex::new(None);

/// While it lives, the first Ctrl-C runs an action instead of ending the process.
pub struct Scope(());

/// Let the next Ctrl-C run `cancel`, until the returned scope ends.
pub fn cancels_with(cancel: impl FnOnce() + Send + 'static) -> Scope {
    *ON_INTERRUPT.lock() = Some(Box::new(cancel));
    Scope(())
}

impl Drop for Scope {
    fn drop(&mut self) {
        *ON_INTERRUPT.lock() = None;
    }
}

/// Start to watch for Ctrl-C. To be called once, before any other thread exists: threads inherit the signal mask.
/// Where the watch cannot be set up, Ctrl-C keeps its default meaning.
#[cfg(unix)]
pub fn install() {
    if let Some(signals) = block_sigint() {
        // Detached: it lives as long as the process.
        let watcher = std::thread::Builder::new().name("ctrl-c".into()).spawn(move || watch(signals));
        drop(watcher);
    }
}

/// Elsewhere Ctrl-C keeps its default meaning.
#[cfg(not(unix))]
pub fn install() {}

#[cfg(unix)]
fn block_sigint() -> Option<libc::sigset_t> {
    let mut signals = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set it is given (it fails for no valid pointer); the other two calls get
    // that set and a null pointer for the old mask, which POSIX allows.
    unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        let mut signals = signals.assume_init();
        libc::sigaddset(&mut signals, libc::SIGINT);
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut()) == 0;
        blocked.then_some(signals)
    }
}

#[cfg(unix)]
fn watch(signals: libc::sigset_t) {
    loop {
        let mut received = 0;
        // SAFETY: both pointers are to live, initialised values of the right type.
        if unsafe { libc::sigwait(&signals, &mut received) } != 0 {
            return;
        }
        let action = ON_INTERRUPT.lock().take();
        match action {
            Some(cancel) => cancel(),
            None => std::process::exit(EXIT_CODE.into()),
        }
    }
}
