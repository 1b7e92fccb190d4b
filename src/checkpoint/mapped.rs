//! A read-only memory-mapped file.

use crate::error::{Error, Result};
use memmap2::Mmap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A mapped file and its path, for error messages.
#[derive(Debug)]
pub(super) struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps a regular file. Anything else (a folder, a pipe) is refused: reading a pipe could wait for ever.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        let metadata = file.metadata().map_err(|e| Error::io(path, e))?;
        if !metadata.is_file() {
            return Err(Error::format(path, "file", "not a regular file"));
        }
        // SAFETY: the mapping is read-only and only ever seen as bytes, for which every bit pattern is valid. That
        // the file is not changed while mapped is a documented condition of `Checkpoint`.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(path, e))?;
        Ok(MappedFile { path: path.to_path_buf(), map })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }
}
