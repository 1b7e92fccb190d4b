//! Standard output for this command alone.

use serde_json::Value;
use std::io::{self, Write};

/// The standard output this process was started with. Whatever libraries print (the emulator of QNN's library prints at
/// the end of the process) goes to standard error from now on.
pub struct OwnStdout {
    stream: Box<dyn Write>,
}

impl OwnStdout {
    /// Take it.
    ///
    /// # Errors
    /// What the system says.
    #[cfg(unix)]
    pub fn take() -> io::Result<Self> {
        use std::os::fd::{AsFd as _, AsRawFd as _};
        let stream = std::fs::File::from(io::stdout().as_fd().try_clone_to_owned()?);
        // SAFETY: both descriptors are those of the standard streams, which are open as long as the process; replacing
        // one of them touches no memory.
        let replaced = unsafe { libc::dup2(io::stderr().as_raw_fd(), io::stdout().as_raw_fd()) };
        if replaced < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { stream: Box::new(stream) }) }
    }

    /// Share it: elsewhere libraries are trusted to print nothing.
    ///
    /// # Errors
    /// None.
    #[cfg(not(unix))]
    pub fn take() -> io::Result<Self> {
        Ok(Self { stream: Box::new(io::stdout()) })
    }

    /// Print one JSON document.
    ///
    /// # Errors
    /// What the system says.
    pub fn print_json(&mut self, value: &Value) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(value)?;
        text.push(b'\n');
        self.stream.write_all(&text)
    }
}
