//! Writing: component files tensor by tensor, and directories that appear all at once or not at all.

use super::directory::foreign_file;
use super::header::ComponentHeader;
use super::manifest::{MANIFEST_FILE, Manifest, check_file_name};
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Size of the write buffer.
const BUFFER_BYTES: usize = 1 << 20;

/// Streams a component file: the header at once, then each weight's bytes in file order.
///
/// Nothing is kept in memory but the write buffer. An unfinished file is not a valid component (its length does not
/// match its header), so a crash cannot leave one that loads.
#[derive(Debug)]
pub struct ComponentWriter {
    path: PathBuf,
    file: BufWriter<File>,
    hash: Sha256,
    written: u64,
    /// Weights still to be written: name and bytes.
    remaining: VecDeque<(String, usize)>,
    /// Bytes missing of the weight being written.
    missing: usize,
}

/// Size and hash of a finished component file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenComponent {
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256, lower-case hex.
    pub sha256: String,
}

impl ComponentWriter {
    /// Create the file and write its header.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be created, [`Error::InvalidArgument`] for a weight that cannot be stored as
    /// the header says.
    pub fn create(path: &Path, header: &ComponentHeader) -> Result<Self> {
        let bytes = header.to_bytes()?;
        let remaining = header.file_order()?.into_iter().map(|(name, _, bytes)| (name.to_string(), bytes)).collect();
        let file = File::create_new(path).map_err(|e| Error::io(path, e))?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let mut writer = Self { path: path.into(), file, hash: Sha256::new(), written: 0, remaining, missing: 0 };
        writer.put(&bytes)?;
        Ok(writer)
    }

    /// Begin the next weight and say which one it is; `None` after the last.
    ///
    /// # Errors
    /// [`Error::Internal`] if the weight before it is incomplete.
    pub fn next_weight(&mut self) -> Result<Option<String>> {
        if self.missing != 0 {
            return Err(Error::internal(format!("{}: a weight is {} bytes short", self.path.display(), self.missing)));
        }
        Ok(self.remaining.pop_front().map(|(name, bytes)| {
            self.missing = bytes;
            name
        }))
    }

    /// Append bytes of the present weight.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Internal`] if the weight gets longer than the header says.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.missing = self.missing.checked_sub(bytes.len()).ok_or_else(|| {
            Error::internal(format!("{}: a weight is longer than its header entry", self.path.display()))
        })?;
        self.put(bytes)
    }

    /// Flush the file to the disk and close it.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Internal`] if weights are missing.
    pub fn finish(mut self) -> Result<WrittenComponent> {
        if let Some(name) = self.next_weight()? {
            return Err(Error::internal(format!("{}: weight {name} was not written", self.path.display())));
        }
        let file = self.file.into_inner().map_err(|e| Error::io(&self.path, e.into_error()))?;
        file.sync_all().map_err(|e| Error::io(&self.path, e))?;
        Ok(WrittenComponent { bytes: self.written, sha256: hex(&self.hash.finalize()) })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| Error::io(&self.path, e))?;
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Builds an artefact in a hidden folder beside its final name and renames it when it is complete.
///
/// Dropped before [`publish`](Self::publish) (an error, a cancel), it removes the hidden folder, and whatever was under
/// the final name is as it was.
#[derive(Debug)]
pub struct ArtefactWriter {
    target: PathBuf,
    partial: PathBuf,
}

impl ArtefactWriter {
    /// Begin an artefact that will be called `target`. Missing parent folders are created.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `target` exists and is neither an empty directory nor an artefact that holds
    /// nothing but its own files; [`Error::Io`].
    pub fn create(target: &Path) -> Result<Self> {
        check_target(target)?;
        // A link is followed, so that the directory behind it is replaced and not the link.
        let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_path_buf());
        let name = target.file_name().ok_or_else(|| {
            Error::invalid(format!("{} cannot be an output directory: it has no name of its own", target.display()))
        })?;
        let parent = parent_of(&target);
        fs::create_dir_all(&parent).map_err(|e| Error::io(&parent, e))?;
        let partial = create_sibling(&parent, &format!(".{}.partial", name.to_string_lossy()))?;
        Ok(Self { target, partial })
    }

    /// The folder in which the artefact is built.
    pub fn directory(&self) -> &Path {
        &self.partial
    }

    /// Path of a file of the artefact while it is being built.
    ///
    /// # Errors
    /// [`Error::Format`] if `name` is not a plain file name.
    pub fn file_path(&self, name: &str) -> Result<PathBuf> {
        check_file_name(name, &self.target.join(MANIFEST_FILE), "file")?;
        Ok(self.partial.join(name))
    }

    /// Write a whole small file and flush it to the disk.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.file_path(name)?;
        let mut file = File::create_new(&path).map_err(|e| Error::io(&path, e))?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|e| Error::io(&path, e))
    }

    /// Write the manifest and give the artefact its name. An artefact that was there is replaced.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::InvalidArgument`] if something else took the name meanwhile; the artefact that was
    /// there before is still there.
    pub fn publish(self, manifest: &Manifest) -> Result<()> {
        self.write_file(MANIFEST_FILE, &manifest.to_json()?)?;
        sync_directory(&self.partial)?;
        check_target(&self.target)?;
        let parent = parent_of(&self.target);
        if fs::remove_dir(&self.target).is_ok() || !self.target.exists() {
            fs::rename(&self.partial, &self.target).map_err(|e| Error::io(&self.target, e))?;
        } else {
            self.replace(&parent)?;
        }
        sync_directory(&parent)
    }

    /// Move the old artefact aside, the new one in, and delete the old one.
    fn replace(&self, parent: &Path) -> Result<()> {
        let name = self.target.file_name().unwrap_or_default().to_string_lossy();
        let aside = create_sibling(parent, &format!(".{name}.replaced"))?;
        let old = aside.join("old");
        let moved = fs::rename(&self.target, &old);
        let published = moved.and_then(|()| {
            fs::rename(&self.partial, &self.target).inspect_err(|_| {
                // Best effort: if even this fails, the old artefact stays in the folder that the error names.
                let _ = fs::rename(&old, &self.target);
            })
        });
        // `remove_dir` and not `remove_dir_all` after a failure: the old artefact may be inside.
        let cleaned = if published.is_ok() { fs::remove_dir_all(&aside) } else { fs::remove_dir(&aside) };
        published.map_err(|e| Error::io(&self.target, e))?;
        cleaned.map_err(|e| Error::io(&aside, e))
    }
}

impl Drop for ArtefactWriter {
    fn drop(&mut self) {
        // After `publish` the folder no longer exists under this name.
        let _ = fs::remove_dir_all(&self.partial);
    }
}

/// May an artefact be published as `target`?
fn check_target(target: &Path) -> Result<()> {
    let refuse = |why: String| {
        let target = target.display();
        Err(Error::invalid(format!("{target} {why}: choose another output directory or remove it first")))
    };
    if fs::symlink_metadata(target).is_err() {
        return Ok(());
    }
    if !target.is_dir() {
        return refuse("exists and is not a directory".into());
    }
    let mut entries = fs::read_dir(target).map_err(|e| Error::io(target, e))?;
    if entries.next().is_none() {
        return Ok(());
    }
    let path = target.join(MANIFEST_FILE);
    let Ok(bytes) = fs::read(&path) else {
        return refuse("is not empty and not a compiled model".into());
    };
    match Manifest::from_json(&bytes, &path) {
        Err(e) => refuse(format!("is not empty and not a compiled model this build knows ({e})")),
        Ok(manifest) => match foreign_file(target, &manifest)? {
            Some(file) => refuse(format!("is a compiled model but also holds {file:?}, which is not part of it")),
            None => Ok(()),
        },
    }
}

/// Create a new folder `<stem>-<pid>[-n]` in `parent`.
fn create_sibling(parent: &Path, stem: &str) -> Result<PathBuf> {
    let pid = std::process::id();
    for attempt in 0..100 {
        let suffix = if attempt == 0 { String::new() } else { format!("-{attempt}") };
        let path = parent.join(format!("{stem}-{pid}{suffix}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(e) => return Err(Error::io(&path, e)),
        }
    }
    Err(Error::invalid(format!("{}: too many leftovers called {stem}-{pid}-*: remove them", parent.display())))
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Make renames and new names in a directory durable. Only Unix lets one open a directory for that.
fn sync_directory(path: &Path) -> Result<()> {
    if cfg!(unix) {
        let directory = File::open(path).map_err(|e| Error::io(path, e))?;
        directory.sync_all().map_err(|e| Error::io(path, e))?;
    }
    Ok(())
}
