//! Writes a component's safetensors file array by array, in any order: a weight is on disk as soon as it is integers.

use super::stored::StoredWeight;
use crate::error::{Error, Result};
use crate::graph::DType;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Tensor data begins at a multiple of this, in bytes.
const DATA_ALIGNMENT: usize = 64;
/// Bytes hashed at a time.
const HASH_BLOCK: usize = 1 << 20;

/// A component file that is being written. Dropped early it leaves a file that is incomplete; its directory is thrown away
/// then.
#[derive(Debug)]
pub struct QdqWriter {
    path: PathBuf,
    file: File,
    /// Where each array lies, and how much of it is written.
    arrays: BTreeMap<String, (Range<u64>, u64)>,
}

/// A finished file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFile {
    /// Bytes.
    pub bytes: u64,
    /// SHA-256 of what is on disk, lower-case hex.
    pub sha256: String,
}

impl QdqWriter {
    /// Create the file for these weights.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for sizes that overflow or two arrays of one name; [`Error::Io`].
    pub fn create(path: &Path, weights: &BTreeMap<String, StoredWeight>) -> Result<Self> {
        let mut header = serde_json::Map::new();
        header.insert("__metadata__".into(), json!({"format": "etgenai-qdq"}));
        let mut offset = 0u64;
        let mut arrays = BTreeMap::new();
        let mut listed = weights.iter().flat_map(|(name, weight)| weight.arrays(name)).collect::<Vec<_>>();
        // Wide elements first, so that every array is aligned to its elements.
        listed.sort_by(|a, b| b.dtype.size_bytes().cmp(&a.dtype.size_bytes()).then_with(|| a.name.cmp(&b.name)));
        for array in listed {
            let elements = array.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
            let bytes = elements.and_then(|n| n.checked_mul(array.dtype.size_bytes() as u64));
            let end = bytes.and_then(|bytes| offset.checked_add(bytes));
            let end = end.ok_or_else(|| Error::invalid(format!("weight {}: its size overflows", array.name)))?;
            let entry = json!({"dtype": dtype_name(array.dtype), "shape": array.shape, "data_offsets": [offset, end]});
            if header.insert(array.name.clone(), entry).is_some() {
                return Err(Error::invalid(format!("two arrays would be called {}", array.name)));
            }
            arrays.insert(array.name, (offset..end, 0));
            offset = end;
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        text.resize((8 + text.len()).next_multiple_of(DATA_ALIGNMENT) - 8, b' ');
        let start = 8 + text.len() as u64;
        arrays.values_mut().for_each(|(range, _)| *range = range.start + start..range.end + start);

        let mut file =
            File::options().read(true).write(true).create_new(true).open(path).map_err(|e| Error::io(path, e))?;
        let written = file.write_all(&(text.len() as u64).to_le_bytes()).and_then(|()| file.write_all(&text));
        written.and_then(|()| file.set_len(start + offset)).map_err(|e| Error::io(path, e))?;
        Ok(Self { path: path.into(), file, arrays })
    }

    /// Append bytes to an array.
    ///
    /// # Errors
    /// [`Error::Internal`] for an unknown array, or more bytes than it has; [`Error::Io`], a full disk for instance.
    pub fn append(&mut self, array: &str, bytes: &[u8]) -> Result<()> {
        let (range, done) = self.arrays.get_mut(array).ok_or_else(|| Error::internal(format!("no array {array}")))?;
        let at = range.start + *done;
        if bytes.len() as u64 > range.end - at {
            return Err(Error::internal(format!("array {array} is longer than its header entry")));
        }
        *done += bytes.len() as u64;
        let written = self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|e| Error::io(&self.path, e))
    }

    /// Flush the file to the disk and read it back for its hash.
    ///
    /// # Errors
    /// [`Error::Internal`] naming an array that is incomplete; [`Error::Io`].
    pub fn finish(mut self) -> Result<WrittenFile> {
        if let Some((name, (range, done))) =
            self.arrays.iter().find(|(_, (range, done))| range.end - range.start != *done)
        {
            let missing = range.end - range.start - done;
            return Err(Error::internal(format!("{}: array {name} is {missing} bytes short", self.path.display())));
        }
        let failed = |e| Error::io(&self.path, e);
        self.file.sync_all().map_err(failed)?;
        self.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let (mut hash, mut bytes, mut block) = (Sha256::new(), 0, vec![0; HASH_BLOCK]);
        loop {
            match self.file.read(&mut block).map_err(failed)? {
                0 => break,
                read => {
                    hash.update(&block[..read]);
                    bytes += read as u64;
                }
            }
        }
        let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(WrittenFile { bytes, sha256 })
    }
}

/// Name of an element type in safetensors.
fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::U8 => "U8",
        DType::I8 => "I8",
        DType::U16 => "U16",
        DType::I16 => "I16",
        DType::I32 => "I32",
        DType::I64 => "I64",
    }
}
