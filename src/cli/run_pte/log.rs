//! Log lines on standard error, in the form ExecuTorch gives them.

use log::{Level, LevelFilter, Log, Metadata, Record};
use std::io::Write as _;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Writes `I HH:MM:SS.uuuuuu executorch:<file>:<line>] <message>`; the time is that since [`install`].
struct ExecuTorchLog {
    started: Instant,
}

/// Write everything that is logged from now on, by the library and by engines too. Once a process.
pub fn install() {
    static LOG: OnceLock<ExecuTorchLog> = OnceLock::new();
    let log = LOG.get_or_init(|| ExecuTorchLog { started: Instant::now() });
    // Whoever has set a logger before keeps it.
    if log::set_logger(log).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

impl Log for ExecuTorchLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let file = Path::new(record.file().unwrap_or("unknown")).file_name().unwrap_or_default();
            let prefix = prefix(record.level(), self.started.elapsed(), &file.to_string_lossy(), record.line());
            // With standard error closed there is nobody left to tell.
            let _ = writeln!(std::io::stderr(), "{prefix}{}", record.args());
        }
    }

    fn flush(&self) {}
}

fn prefix(level: Level, since_start: Duration, file: &str, line: Option<u32>) -> String {
    let letter = match level {
        Level::Error => 'E',
        Level::Warn => 'W',
        Level::Info => 'I',
        Level::Debug | Level::Trace => 'D',
    };
    let seconds = since_start.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let (micros, line) = (since_start.subsec_micros(), line.unwrap_or(0));
    format!("{letter} {hours:02}:{minutes:02}:{seconds:02}.{micros:06} executorch:{file}:{line}] ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_begin_like_executorchs() {
        let time = Duration::from_micros(3_600_000_000 + 62_000_000 + 123);
        assert_eq!(prefix(Level::Info, time, "stats.h", Some(7)), "I 01:01:02.000123 executorch:stats.h:7] ");
        assert_eq!(prefix(Level::Error, Duration::ZERO, "a.rs", None), "E 00:00:00.000000 executorch:a.rs:0] ");
    }
}
