//! How much memory this process takes.

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

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use std::hint::black_box;

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
}
