//! What each saved stage was made from, so that one that would be made again from the same is loaded instead.

use super::context::StageName;
use super::files::write_atomically;
use crate::artefact::hex;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// File of the artifact directory.
const FILE: &str = "stages.json";
/// Bytes hashed at a time.
const BLOCK: usize = 1 << 16;

/// The file `stages.json`.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    path: PathBuf,
    stages: BTreeMap<StageName, Entry>,
}

/// A stage that was saved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// SHA-256 of all it was made from, see [`fingerprint`].
    inputs: String,
    /// SHA-256 of the file that describes the output.
    output: String,
}

impl Ledger {
    /// Read the file of a directory; there may be none yet.
    ///
    /// # Errors
    /// [`Error::Io`]. A file that is malformed counts as none: stages are run again then, which is always right.
    pub fn open(artifact_dir: &Path) -> Result<Self> {
        let path = artifact_dir.join(FILE);
        let stages = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(Error::io(&path, error)),
        };
        Ok(Self { path, stages })
    }

    /// Whether the stage was saved, made from these inputs, and its output is what it was then. `description` is the file that
    /// describes the output.
    pub fn holds(&self, stage: StageName, inputs: &str, description: &Path) -> bool {
        let entry = self.stages.get(&stage).filter(|entry| entry.inputs == inputs);
        entry.is_some_and(|entry| file_hash(description).is_ok_and(|hash| hash == entry.output))
    }

    /// Note that a stage was saved.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn note(&mut self, stage: StageName, inputs: &str, description: &Path) -> Result<()> {
        let entry = Entry { inputs: inputs.into(), output: file_hash(description)? };
        self.stages.insert(stage, entry);
        let json = serde_json::to_vec_pretty(&self.stages).map_err(|e| Error::internal(format!("stages: {e}")))?;
        write_atomically(&self.path, &json)
    }
}

/// SHA-256 of what a stage is made from. The version counts too: another one may make something else of the same.
pub(super) fn fingerprint(inputs: &Value) -> String {
    let text = json!({ "version": env!("CARGO_PKG_VERSION"), "inputs": inputs }).to_string();
    hex(&Sha256::digest(text.as_bytes()))
}

/// SHA-256 of a file.
///
/// # Errors
/// [`Error::NotFound`] or [`Error::Io`].
pub(super) fn file_hash(path: &Path) -> Result<String> {
    let mut file = std::fs::File::open(path).map_err(|e| Error::io(path, e))?;
    let mut hash = Sha256::new();
    let mut block = vec![0; BLOCK];
    loop {
        match file.read(&mut block).map_err(|e| Error::io(path, e))? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&block[..read]),
        }
    }
}

/// What tells a checkpoint from another one without reading it to the end: path, and size and time of each file.
pub(super) fn checkpoint_identity(path: &Path) -> Value {
    let mut files = match std::fs::read_dir(path) {
        Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
        Err(_) => vec![path.to_path_buf()],
    };
    files.sort();
    let files = files.iter().filter_map(|file| {
        let metadata = std::fs::metadata(file).ok().filter(std::fs::Metadata::is_file)?;
        let time = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Some(json!([file.file_name()?.to_string_lossy(), metadata.len(), time.map(|time| time.as_nanos().to_string())]))
    });
    let files = files.collect::<Vec<_>>();
    json!({ "path": std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()), "files": files })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_held_only_for_the_same_inputs_and_output() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("output.json");
        std::fs::write(&output, "1").unwrap();
        let stage = StageName::Quantization;
        let inputs = fingerprint(&json!({ "a": 1 }));
        Ledger::open(folder.path()).unwrap().note(stage, &inputs, &output).unwrap();
        let ledger = Ledger::open(folder.path()).unwrap();
        assert!(ledger.holds(stage, &inputs, &output));
        assert!(!ledger.holds(stage, &fingerprint(&json!({ "a": 2 })), &output));
        assert!(!ledger.holds(StageName::Compilation, &inputs, &output));
        std::fs::write(&output, "2").unwrap();
        assert!(!ledger.holds(stage, &inputs, &output));
    }

    #[test]
    fn a_spoilt_file_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "{\"quantization\": 7").unwrap();
        assert!(Ledger::open(folder.path()).unwrap().stages.is_empty());
    }
}
