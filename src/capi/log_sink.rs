//! Where the library's messages go. By default: nowhere.

use super::guard::{catch, guard};
use super::status::ETG_OK;
use crate::{Error, Result};
use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::RwLock;
use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Log level: no messages.
pub const ETG_LOG_OFF: i32 = 0;
/// Log level: failures that are bugs of this library.
pub const ETG_LOG_ERROR: i32 = 1;
/// Log level: calls that failed, by name and code.
pub const ETG_LOG_WARN: i32 = 2;
/// Log level: what was opened, compiled and run.
pub const ETG_LOG_INFO: i32 = 3;
/// Log level: details; from here on messages may quote prompts and replies.
pub const ETG_LOG_DEBUG: i32 = 4;
/// Log level: everything.
pub const ETG_LOG_TRACE: i32 = 5;

/// Receives one log message: `level` (`ETG_LOG_ERROR` to `ETG_LOG_TRACE`) and `length` bytes of UTF-8 text without a
/// newline at its end. Called on whichever thread logs, several at once: it must be thread-safe. `text` is valid
/// during the call only. Calls into the library from here are allowed, what they log is dropped. It must return
/// normally: no exception, no longjmp.
pub type etg_log_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, level: i32, text: *const c_char, length: usize)>;

/// Called once with a `user_data` that the library will not use again.
pub type etg_destroy_fn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

struct Sink {
    receive: unsafe extern "C" fn(*mut c_void, i32, *const c_char, usize),
    destroy: etg_destroy_fn,
    user_data: *mut c_void,
}

// SAFETY: the header demands a thread-safe callback, and `user_data` goes to the caller's callbacks only.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: the caller's function and the data it was given for; the last user of the sink is gone.
            unsafe { destroy(self.user_data) }
        }
    }
}

/// The one logger of the process, which passes on to the caller's sink.
struct Logger {
    sink: RwLock<Option<Arc<Sink>>>,
}

static LOGGER: Logger = Logger { sink: RwLock::new(None) };

thread_local! {
    /// True while this thread is inside the caller's sink: messages from there would come back to it for ever.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Only our own rooms promise to keep user text at debug and below, so other crates' messages count as debug.
fn level_of(metadata: &Metadata<'_>) -> Level {
    let ours = metadata.target().split("::").next() == Some("etgenai");
    if ours { metadata.level() } else { metadata.level().max(Level::Debug) }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        level_of(metadata) <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) || INSIDE.try_with(Cell::get).unwrap_or(true) {
            return;
        }
        // Cloned, so that a sink may replace itself without waiting for itself.
        let Some(sink) = self.sink.read().clone() else { return };
        let level = match level_of(record.metadata()) {
            Level::Error => ETG_LOG_ERROR,
            Level::Warn => ETG_LOG_WARN,
            Level::Info => ETG_LOG_INFO,
            Level::Debug => ETG_LOG_DEBUG,
            Level::Trace => ETG_LOG_TRACE,
        };
        let text = record.args().to_string();
        INSIDE.set(true);
        // SAFETY: the caller's function with its data; the text lives during the call.
        unsafe { (sink.receive)(sink.user_data, level, text.as_ptr().cast(), text.len()) }
        INSIDE.set(false);
    }

    fn flush(&self) {}
}

fn level_filter(level: i32) -> Result<LevelFilter> {
    match level {
        ETG_LOG_OFF => Ok(LevelFilter::Off),
        ETG_LOG_ERROR => Ok(LevelFilter::Error),
        ETG_LOG_WARN => Ok(LevelFilter::Warn),
        ETG_LOG_INFO => Ok(LevelFilter::Info),
        ETG_LOG_DEBUG => Ok(LevelFilter::Debug),
        ETG_LOG_TRACE => Ok(LevelFilter::Trace),
        other => Err(Error::invalid(format!("log level is {other}, but must be {ETG_LOG_OFF} to {ETG_LOG_TRACE}"))),
    }
}

/// Become the process's logger, once.
fn install() -> Result<()> {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if INSTALLED.load(Ordering::Acquire) || log::set_logger(&LOGGER).is_ok() {
        INSTALLED.store(true, Ordering::Release);
        return Ok(());
    }
    Err(Error::InvalidState("the Rust program around this library has a logger of its own: messages go there".into()))
}

/// Send the library's messages of `level` and more important ones to `receive`. Replaces the sink before it; NULL or
/// `ETG_LOG_OFF` makes the library silent again, which is how it starts. The library never writes to stdout or stderr.
///
/// - Threads: any, at any time.
/// - Owns: `user_data` is the library's until it calls `destroy` (may be NULL) with it: after the sink was replaced,
///   and the last message in flight has returned. On failure `destroy` is not called.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a level), `ETG_ERROR_INVALID_STATE` (the host is a Rust program that
///   links this library statically and has its own logger).
/// - After a failure: the sink before is still in place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn etg_set_log_sink(
    receive: etg_log_fn,
    user_data: *mut c_void,
    destroy: etg_destroy_fn,
    level: i32,
) -> i32 {
    guard("etg_set_log_sink", || {
        let filter = level_filter(level)?;
        install()?;
        let sink = receive.map(|receive| Arc::new(Sink { receive, destroy, user_data }));
        log::set_max_level(if sink.is_some() { filter } else { LevelFilter::Off });
        let before = std::mem::replace(&mut *LOGGER.sink.write(), sink);
        // Outside of the lock: the last owner calls the old sink's `destroy`.
        let _ = catch(|| drop(before));
        Ok(ETG_OK)
    })
}
