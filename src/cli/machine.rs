//! What the machine gives: peak memory of this process, speed of reading memory.

use std::hint::black_box;
use std::time::Instant;

/// The most memory this process has held so far (resident set, mapped files included), in bytes; `None` where the
/// system does not tell.
pub fn peak_memory_bytes() -> Option<u64> {
    peak_from_proc().or_else(peak_from_rusage)
}

/// `VmHWM` counts kilobytes exactly; `getrusage` may lag behind it.
fn peak_from_proc() -> Option<u64> {
    parse_vm_hwm(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn parse_vm_hwm(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(unix)]
fn peak_from_rusage() -> Option<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is to writable memory of the right size, and the struct is read only if the call says that
    // it has filled it.
    let usage = unsafe {
        if libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) != 0 {
            return None;
        }
        usage.assume_init()
    };
    // macOS counts bytes, the others kilobytes.
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    u64::try_from(usage.ru_maxrss).ok()?.checked_mul(unit)
}

#[cfg(not(unix))]
fn peak_from_rusage() -> Option<u64> {
    None
}

/// Speed of reading memory in order with `threads` threads, in bytes a second: the best of a few passes over a buffer
/// far larger than the caches. This is the ceiling for decoding, which reads every weight once a token.
pub fn memory_read_speed(threads: usize) -> f64 {
    const TOTAL_BYTES: usize = 256 << 20;
    const PASSES: usize = 5;
    let threads = threads.max(1);
    // Not zeros: untouched zero pages would all be the same physical page.
    let buffer = vec![1u64; TOTAL_BYTES / size_of::<u64>()];
    let share = buffer.len().div_ceil(threads);
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in buffer.chunks(share) {
                scope.spawn(move || black_box(sum(part)));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    TOTAL_BYTES as f64 / best
}

/// Independent sums, so that the compiler can keep several loads in flight.
fn sum(part: &[u64]) -> u64 {
    let mut lanes = [0u64; 32];
    for block in part.chunks_exact(lanes.len()) {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane = lane.wrapping_add(*value);
        }
    }
    lanes.iter().fold(0, |total, lane| total.wrapping_add(*lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_is_read_from_the_status_text() {
        assert_eq!(parse_vm_hwm("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n"), Some(2 << 20));
        assert_eq!(parse_vm_hwm("Name:\tx\n"), None);
        assert_eq!(parse_vm_hwm("VmHWM:\t99999999999999999999 kB\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn both_sources_know_that_touched_memory_counts() {
        let touched = black_box(vec![1u8; 64 << 20]);
        for peak in [peak_from_proc(), peak_from_rusage()] {
            assert!(peak.is_some_and(|bytes| bytes >= touched.len() as u64), "{peak:?}");
        }
    }

    #[test]
    fn reading_speed_is_a_plausible_number() {
        let speed = memory_read_speed(2);
        assert!(speed > 1e8 && speed.is_finite(), "{speed} bytes/s");
    }
}
