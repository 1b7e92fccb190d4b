//! Parsing a GGUF file: metadata, tensor descriptions, where the data starts.

use super::cursor::{Cursor, Malformed};
use super::metadata::{Metadata, Value};
use crate::checkpoint::mapped::MappedFile;
use crate::checkpoint::storage::StorageType;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_DIMENSIONS: u32 = 4;

/// A parsed file. Every tensor's bytes lie inside it.
#[derive(Debug)]
pub(super) struct GgufFile {
    pub(super) file: Arc<MappedFile>,
    pub(super) metadata: Metadata,
    /// By GGUF name.
    pub(super) tensors: HashMap<String, StoredTensor>,
}

/// A tensor as the file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredTensor {
    /// Outermost axis first, as Hugging Face has it (the file lists the innermost first).
    pub(super) shape: Vec<usize>,
    pub(super) storage: StorageType,
    /// First byte, from the start of the file on.
    pub(super) offset: usize,
    /// Stored bytes.
    pub(super) bytes: usize,
}

impl GgufFile {
    /// Maps and parses a file.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = Arc::new(MappedFile::open(path)?);
        let bytes = file.bytes();
        let malformed = |field: &str, Malformed(reason): Malformed| Error::format(path, field, reason);

        let mut cursor = Cursor::new(bytes, 0);
        let (tensor_count, value_count) = read_preamble(&mut cursor).map_err(|e| malformed("header", e))?;
        let values = read_values(&mut cursor, value_count).map_err(|(field, e)| malformed(&field, e))?;
        let metadata = Metadata::new(Arc::clone(&file), values);
        if metadata.unsigned("split.count")?.is_some_and(|parts| parts > 1) {
            return Err(Error::Unsupported(format!(
                "{}: one part of a split GGUF: merge the parts with gguf-split first",
                path.display()
            )));
        }

        let mut described = Vec::new();
        for index in 0..tensor_count {
            let tensor =
                Description::read(&mut cursor).map_err(|e| malformed(&format!("tensor description {index}"), e))?;
            described.push(tensor);
        }
        let alignment = alignment(&metadata)?;
        let data_start = (cursor.position() as u64).next_multiple_of(alignment);
        let mut tensors = HashMap::new();
        for description in described {
            let name = description.name;
            let tensor = description.locate(path, data_start, alignment, bytes.len())?;
            if tensors.insert(name.to_owned(), tensor).is_some() {
                return Err(Error::format(path, name, "two tensors have this name"));
            }
        }
        Ok(GgufFile { metadata, tensors, file })
    }

    /// The values of a small tensor.
    pub(super) fn values(&self, tensor: &StoredTensor) -> Vec<f32> {
        let stored = self.file.bytes().get(tensor.offset..tensor.offset + tensor.bytes).unwrap_or_default();
        let mut values = vec![0.0; stored.len() / tensor.storage.block_bytes() * tensor.storage.block_len()];
        tensor.storage.decode(stored, &mut values);
        values
    }
}

/// Magic, version and the two counts: tensors and metadata values.
fn read_preamble(cursor: &mut Cursor<'_>) -> Result<(usize, usize), Malformed> {
    if cursor.array()? != *b"GGUF" {
        return Err(Malformed("not a GGUF file: it does not begin with GGUF".into()));
    }
    match cursor.u32()? {
        2 | 3 => {}
        version if version & 0xffff == 0 => {
            return Err(Malformed("a big-endian GGUF file, only little-endian ones can be read".into()));
        }
        version => return Err(Malformed(format!("GGUF version {version}, only 2 and 3 can be read"))),
    }
    let tensors = cursor.count(MIN_DESCRIPTION_BYTES)?;
    let values = cursor.count(8 + 4 + 1)?;
    Ok((tensors, values))
}

fn read_values(cursor: &mut Cursor<'_>, count: usize) -> Result<HashMap<String, Value>, (String, Malformed)> {
    let mut values = HashMap::new();
    for index in 0..count {
        let key = cursor.string().map_err(|e| (format!("metadata key {index}"), e))?;
        let value = Value::read(cursor).map_err(|e| (key.to_owned(), e))?;
        if values.insert(key.to_owned(), value).is_some() {
            return Err((key.to_owned(), Malformed("the key occurs twice".into())));
        }
    }
    Ok(values)
}

fn alignment(metadata: &Metadata) -> Result<u64> {
    const KEY: &str = "general.alignment";
    match metadata.unsigned(KEY)?.unwrap_or(DEFAULT_ALIGNMENT) {
        alignment if alignment.is_power_of_two() && alignment <= 1 << 20 => Ok(alignment),
        other => Err(metadata.malformed(KEY, format!("{other} is not a power of two up to 1048576"))),
    }
}

/// The shortest description: name length, number of axes, type, offset.
const MIN_DESCRIPTION_BYTES: usize = 8 + 4 + 4 + 8;

/// A tensor description as it is in the file, unchecked.
struct Description<'a> {
    name: &'a str,
    shape: Vec<u64>,
    type_number: u32,
    offset: u64,
}

impl<'a> Description<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, Malformed> {
        let name = cursor.string()?;
        let axes = cursor.u32()?;
        if axes > MAX_DIMENSIONS {
            return Err(Malformed(format!("tensor {name} has {axes} axes, at most {MAX_DIMENSIONS} are allowed")));
        }
        let mut shape = (0..axes).map(|_| cursor.u64()).collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        Ok(Description { name, shape, type_number: cursor.u32()?, offset: cursor.u64()? })
    }

    /// Checks the description against the file.
    fn locate(&self, path: &Path, data_start: u64, alignment: u64, file_len: usize) -> Result<StoredTensor> {
        let storage = storage_type(self.type_number).ok_or_else(|| {
            Error::Unsupported(format!(
                "{}: {}: GGUF tensor type {} cannot be read, only F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, \
                 Q5_K and Q6_K",
                path.display(),
                self.name,
                self.type_number
            ))
        })?;
        let wrong = |reason: String| Error::format(path, self.name, reason);
        let shape: Option<Vec<usize>> = self.shape.iter().map(|axis| usize::try_from(*axis).ok()).collect();
        let shape = shape.filter(|shape| shape.iter().all(|axis| *axis > 0));
        let shape = shape.ok_or_else(|| wrong(format!("shape {:?} has an impossible axis", self.shape)))?;
        let row_len = shape.last().copied().unwrap_or(1);
        if !row_len.is_multiple_of(storage.block_len()) {
            return Err(wrong(format!(
                "rows of {row_len} values do not fill {storage} blocks of {}",
                storage.block_len()
            )));
        }
        let bytes = shape.iter().try_fold(1usize, |n, axis| n.checked_mul(*axis)).and_then(|n| storage.byte_len(n));
        let bytes = bytes.ok_or_else(|| wrong(format!("shape {shape:?} overflows")))?;
        if !self.offset.is_multiple_of(alignment) {
            return Err(wrong(format!("offset {} is not a multiple of the alignment {alignment}", self.offset)));
        }
        let start = data_start.checked_add(self.offset).and_then(|start| usize::try_from(start).ok());
        let end = start.and_then(|start| start.checked_add(bytes));
        match (start, end) {
            (Some(offset), Some(end)) if end <= file_len => Ok(StoredTensor { shape, storage, offset, bytes }),
            (_, Some(end)) => Err(wrong(format!(
                "its data ends at byte {end}, the file at {file_len}: the file is truncated, download it again"
            ))),
            _ => Err(wrong(format!("offset {} overflows", self.offset))),
        }
    }
}

fn storage_type(number: u32) -> Option<StorageType> {
    Some(match number {
        0 => StorageType::F32,
        1 => StorageType::F16,
        2 => StorageType::Q4_0,
        3 => StorageType::Q4_1,
        6 => StorageType::Q5_0,
        7 => StorageType::Q5_1,
        8 => StorageType::Q8_0,
        12 => StorageType::Q4_K,
        13 => StorageType::Q5_K,
        14 => StorageType::Q6_K,
        30 => StorageType::BF16,
        _ => return None,
    })
}
