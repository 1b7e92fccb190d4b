//! Progress of quantizing and of a whole pipeline on a bar, and Ctrl-C that cancels them.

use super::interrupt;
use super::progress::Progress;
use etgenai::quantize::JobStep;
use etgenai::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A bar, and whether Ctrl-C has come. The next Ctrl-C cancels as long as it lives.
pub struct StageProgress {
    bar: Progress,
    cancelled: Arc<AtomicBool>,
    _scope: interrupt::Scope,
}

impl StageProgress {
    /// A bar that is hidden where nobody watches.
    pub fn new(what: &str, json: bool) -> Self {
        let cancelled = Arc::new(AtomicBool::new(false));
        let scope = interrupt::cancels_with({
            let cancelled = Arc::clone(&cancelled);
            move || cancelled.store(true, Ordering::Relaxed)
        });
        Self { bar: Progress::steps(what, "", json), cancelled, _scope: scope }
    }

    /// Show where the work is.
    ///
    /// # Errors
    /// [`Error::Cancelled`] after Ctrl-C.
    pub fn step(&self, message: &str, done: u64, total: u64) -> Result<()> {
        self.bar.set(done, total);
        self.bar.message(message);
        self.check()
    }

    /// The same for a step of quantizing.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn job(&self, step: JobStep<'_>) -> Result<()> {
        let message = format!("{} {} {}", step.component, step.phase.name(), step.layer);
        self.step(&message, step.done as u64, step.total as u64)
    }

    /// # Errors
    /// As [`step`](Self::step).
    pub fn check(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }
}
