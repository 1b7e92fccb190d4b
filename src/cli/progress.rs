//! Progress bars on standard error, only where a person watches: standard error is a terminal and `--json` is off.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A bar for one piece of long work; it disappears when dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar over steps of `unit`, e.g. `tokens`.
    pub fn steps(what: &str, unit: &str, json: bool) -> Self {
        Self::new(what, &format!("{{pos}}/{{len}} {unit}"), json)
    }

    /// A bar over bytes.
    pub fn bytes(what: &str, json: bool) -> Self {
        Self::new(what, "{decimal_bytes}/{decimal_total_bytes}", json)
    }

    fn new(what: &str, counts: &str, json: bool) -> Self {
        if json || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(0);
        let template = format!("{{msg:40!}} [{{bar:24}}] {counts}, {{eta}} left");
        // A template of our own that does not parse would only cost the looks of the bar.
        bar.set_style(ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// `done` of `total` steps are done.
    pub fn set(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }

    /// What is being worked on.
    pub fn message(&self, text: &str) {
        self.0.set_message(text.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
