//! The table of a checkpoint's tensors and how their rows are read.

use super::mapped::MappedFile;
use super::storage::StorageType;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

/// One stored tensor, in Hugging Face terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// Hugging Face name, e.g. `model.norm.weight`.
    pub name: String,
    /// Shape in Hugging Face order (`[out, in]` for a matrix).
    pub shape: Vec<usize>,
    /// How the values are stored.
    pub storage: StorageType,
    /// Stored bytes.
    pub bytes: u64,
    file: usize,
    offset: usize,
    transform: Transform,
}

/// What has to be undone while reading, so that the values are those of the Hugging Face checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transform {
    /// Stored as Hugging Face stores it.
    None,
    /// Rotary halves `(i, i + D/2)` were interleaved to `(2i, 2i + 1)` within every head of `head_rows` = D rows (or of
    /// D values, for a bias).
    InterleavedHeads {
        /// Rows of a head; even.
        head_rows: usize,
    },
    /// Stored with one added to each value.
    PlusOne,
}

impl TensorEntry {
    /// Describes a tensor whose bytes start at `offset` of file number `file`; `None` when its size overflows or does
    /// not fill whole blocks.
    pub(super) fn new(
        name: String,
        shape: Vec<usize>,
        storage: StorageType,
        file: usize,
        offset: usize,
    ) -> Option<Self> {
        let values = shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim))?;
        let bytes = storage.byte_len(values)? as u64;
        Some(TensorEntry { name, shape, storage, bytes, file, offset, transform: Transform::None })
    }

    /// The same tensor under another name.
    pub(super) fn with_name(self, name: String) -> Self {
        TensorEntry { name, ..self }
    }

    /// The same tensor with something to undo while reading.
    pub(super) fn with_transform(self, transform: Transform) -> Self {
        TensorEntry { transform, ..self }
    }

    /// Rows along the first axis; 1 for a tensor of one or no axis.
    pub fn rows(&self) -> usize {
        match self.shape.as_slice() {
            [] | [_] => 1,
            [rows, ..] => *rows,
        }
    }

    /// Values in a row: the product of the other axes.
    pub fn row_len(&self) -> usize {
        match self.shape.as_slice() {
            [] => 1,
            [len] => *len,
            [_, rest @ ..] => rest.iter().product(),
        }
    }
}

/// All tensors of a checkpoint over its mapped files.
#[derive(Debug, Default)]
pub(super) struct TensorTable {
    files: Vec<Arc<MappedFile>>,
    entries: BTreeMap<String, TensorEntry>,
}

impl TensorTable {
    /// Adds a file and gives the number entries refer to it by.
    pub(super) fn add_file(&mut self, file: Arc<MappedFile>) -> usize {
        self.files.push(file);
        self.files.len() - 1
    }

    /// The same files without tensors.
    pub(super) fn emptied(self) -> Self {
        Self { files: self.files, entries: BTreeMap::new() }
    }

    /// Adds a tensor; a second one of the same name is an error.
    pub(super) fn insert(&mut self, entry: TensorEntry) -> Result<()> {
        let file_path = |index: usize| match self.files.get(index) {
            Some(file) => file.path().display().to_string(),
            None => String::new(),
        };
        match self.entries.entry(entry.name.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(entry);
                Ok(())
            }
            Entry::Occupied(first) => Err(Error::format(
                file_path(entry.file),
                entry.name,
                format!("the tensor is already defined in {}", file_path(first.get().file)),
            )),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &TensorEntry> {
        self.entries.values()
    }

    pub(super) fn get(&self, name: &str) -> Option<&TensorEntry> {
        self.entries.get(name)
    }

    /// See [`super::Checkpoint::read_rows`].
    pub(super) fn read_rows(&self, entry: &TensorEntry, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let row_len = entry.row_len();
        if rows.start > rows.end || rows.end > entry.rows() {
            return Err(Error::invalid(format!(
                "rows {}..{} of tensor {} (shape {:?}) were asked for, it has {}",
                rows.start,
                rows.end,
                entry.name,
                entry.shape,
                entry.rows()
            )));
        }
        if rows.len().checked_mul(row_len) != Some(out.len()) {
            return Err(Error::invalid(format!(
                "{} rows of tensor {} (shape {:?}) hold {row_len} values each, the buffer is for {}",
                rows.len(),
                entry.name,
                entry.shape,
                out.len()
            )));
        }
        if out.is_empty() {
            return Ok(());
        }
        match entry.transform {
            Transform::None => self.decode_rows(entry, rows, out),
            Transform::PlusOne => {
                self.decode_rows(entry, rows, out)?;
                out.iter_mut().for_each(|value| *value -= 1.0);
                Ok(())
            }
            Transform::InterleavedHeads { head_rows } if entry.shape.len() == 1 => {
                let mut stored = vec![0.0; row_len];
                self.decode_rows(entry, rows, &mut stored)?;
                for (index, value) in out.iter_mut().enumerate() {
                    if let Some(source) = stored.get(interleaved_row(index, head_rows)) {
                        *value = *source;
                    }
                }
                Ok(())
            }
            Transform::InterleavedHeads { head_rows } => {
                for (row, out) in rows.zip(out.chunks_exact_mut(row_len)) {
                    let stored = interleaved_row(row, head_rows);
                    self.decode_rows(entry, stored..stored + 1, out)?;
                }
                Ok(())
            }
        }
    }

    /// Decodes stored rows, which are contiguous, as they are.
    fn decode_rows(&self, entry: &TensorEntry, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let stored = || {
            let row_bytes = entry.storage.byte_len(entry.row_len())?;
            let start = entry.offset.checked_add(rows.start.checked_mul(row_bytes)?)?;
            let end = entry.offset.checked_add(rows.end.checked_mul(row_bytes)?)?;
            self.files.get(entry.file)?.bytes().get(start..end)
        };
        let bytes = stored()
            .ok_or_else(|| Error::internal(format!("tensor {} was not checked against its file", entry.name)))?;
        entry.storage.decode(bytes, out);
        Ok(())
    }
}

/// Where row `row` of a matrix in split-halves rotary order lies when each head is stored interleaved.
fn interleaved_row(row: usize, head_rows: usize) -> usize {
    let (head, within) = (row / head_rows, row % head_rows);
    let half = head_rows / 2;
    head * head_rows + 2 * (within % half) + within / half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_are_found_head_by_head() {
        let order: Vec<usize> = (0..12).map(|row| interleaved_row(row, 6)).collect();
        assert_eq!(order, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }

    #[test]
    fn sizes_that_overflow_or_split_a_block_are_refused() {
        let entry = |shape: &[usize], storage| TensorEntry::new("t".into(), shape.to_vec(), storage, 0, 0);
        assert_eq!(entry(&[usize::MAX, 2], StorageType::F32), None);
        assert_eq!(entry(&[usize::MAX / 2], StorageType::F32), None);
        assert_eq!(entry(&[3, 33], StorageType::Q4_0), None);
        assert_eq!(entry(&[3, 64], StorageType::Q4_0).map(|e| e.bytes), Some(3 * 36));
    }
}
