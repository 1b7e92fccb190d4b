//! Files that appear complete or not at all.

use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Write `bytes` under another name beside `path` and rename it when it is on disk. Missing folders are created.
///
/// # Errors
/// [`Error::Io`]; a file that was there is then as it was.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(|e| Error::io(parent, e))?;
    let name = path.file_name().ok_or_else(|| Error::invalid(format!("{} is no file name", path.display())))?;
    let partial = parent.join(format!(".{}.partial-{}", name.to_string_lossy(), std::process::id()));
    let written = File::create(&partial).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let renamed = written
        .map_err(|e| Error::io(&partial, e))
        .and_then(|()| fs::rename(&partial, path).map_err(|e| Error::io(path, e)));
    if renamed.is_err() {
        // Best effort: the error that is reported is the first one.
        let _ = fs::remove_file(&partial);
    }
    renamed
}
