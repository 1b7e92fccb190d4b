//! Reading the header of a safetensors file.
//!
//! The `safetensors` crate can do this too, but its errors do not say which tensor is wrong, and they are what a user
//! sees first after a broken download. So the header is taken apart here and every check names its tensor.

use super::mapped::MappedFile;
use super::storage::StorageType;
use super::tensors::{TensorEntry, TensorTable};
use crate::error::{Error, Result};
use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// One entry of the header.
#[derive(Deserialize)]
struct TensorHeader {
    dtype: String,
    shape: Vec<usize>,
    /// First byte and byte after the last, from the end of the header on.
    data_offsets: (usize, usize),
}

/// The header: name and entry in file order, duplicates included, so that they can be reported.
struct Header(Vec<(String, TensorHeader)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Maps `path`, checks every tensor of its header against the file and adds them to `table`. Gives back their names.
pub(super) fn add_file(path: &Path, table: &mut TensorTable) -> Result<Vec<String>> {
    let mapped = MappedFile::open(path)?;
    let file_len = mapped.bytes().len();
    let (header, data_start) = parse_header(path, mapped.bytes())?;
    let file = table.add_file(Arc::new(mapped));
    let mut names = Vec::new();
    for (name, tensor) in header.0 {
        let entry = check_tensor(path, file, data_start, file_len, name, tensor)?;
        names.push(entry.name.clone());
        table.insert(entry)?;
    }
    Ok(names)
}

/// The parsed header and where the data starts.
fn parse_header(path: &Path, bytes: &[u8]) -> Result<(Header, usize)> {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(Error::format(
            path,
            "header",
            format!("the file has only {} bytes: it is empty or truncated", bytes.len()),
        ));
    };
    let len = u64::from_le_bytes(*len);
    let json = usize::try_from(len).ok().and_then(|len| rest.get(..len)).ok_or_else(|| {
        Error::format(
            path,
            "header",
            format!("{len} bytes long by its first field, but the file has only {} more: it is truncated or not a safetensors file", rest.len()),
        )
    })?;
    let header = serde_json::from_slice(json).map_err(|e| Error::format(path, "header", e.to_string()))?;
    Ok((header, 8 + json.len()))
}

fn check_tensor(
    path: &Path,
    file: usize,
    data_start: usize,
    file_len: usize,
    name: String,
    tensor: TensorHeader,
) -> Result<TensorEntry> {
    let storage = match tensor.dtype.as_str() {
        "F32" => StorageType::F32,
        "F16" => StorageType::F16,
        "BF16" => StorageType::BF16,
        other => {
            return Err(Error::Unsupported(format!(
                "{}: {name}: dtype {other} cannot be read, only F32, F16 and BF16",
                path.display()
            )));
        }
    };
    let wrong = |reason: String| Err(Error::format(path, name.as_str(), reason));
    let (start, end) = tensor.data_offsets;
    if start > end {
        return wrong(format!("data offsets [{start}, {end}] run backwards"));
    }
    let Some(end_in_file) = data_start.checked_add(end) else {
        return wrong(format!("data offsets [{start}, {end}] overflow"));
    };
    if end_in_file > file_len {
        return wrong(format!(
            "its data ends at byte {end_in_file}, the file at {file_len}: the file is truncated, download it again"
        ));
    }
    let entry = TensorEntry::new(name.clone(), tensor.shape.clone(), storage, file, data_start + start);
    match entry {
        Some(entry) if entry.bytes == (end - start) as u64 => Ok(entry),
        Some(entry) => wrong(format!(
            "shape {:?} in {storage} takes {} bytes, the data offsets hold {}",
            tensor.shape,
            entry.bytes,
            end - start
        )),
        None => wrong(format!("shape {:?} overflows", tensor.shape)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file_with(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<TensorTable> {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("model.safetensors");
        std::fs::write(&path, bytes).expect("write");
        let mut table = TensorTable::default();
        add_file(&path, &mut table)?;
        Ok(table)
    }

    fn error_of(header: &str, data: &[u8]) -> String {
        read(&file_with(header, data)).expect_err("malformed").to_string()
    }

    const GOOD: &str = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},
        "b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]}}"#;

    #[test]
    fn tensors_are_read_from_their_offsets() {
        let mut data = Vec::new();
        data.extend_from_slice(&1.5f32.to_le_bytes());
        data.extend_from_slice(&(-2.0f32).to_le_bytes());
        data.extend_from_slice(&[0x80, 0x3f, 0x00, 0x40, 0x40, 0x40]);
        let table = read(&file_with(GOOD, &data)).expect("valid");
        let mut out = [0.0; 1];
        table.read_rows(table.get("a").expect("a"), 1..2, &mut out).expect("row");
        assert_eq!(out, [-2.0]);
        let mut out = [0.0; 3];
        table.read_rows(table.get("b").expect("b"), 0..1, &mut out).expect("vector");
        assert_eq!(out, [1.0, 2.0, 3.0]);
    }

    #[test]
    fn errors_name_the_tensor() {
        let truncated = error_of(GOOD, &[0; 10]);
        assert!(truncated.contains("model.safetensors: b: its data ends"), "{truncated}");
        let misshapen = error_of(r#"{"x":{"dtype":"F16","shape":[3],"data_offsets":[0,8]}}"#, &[0; 8]);
        assert!(misshapen.contains("x: shape [3] in F16 takes 6 bytes"), "{misshapen}");
        let dtype = error_of(r#"{"x":{"dtype":"I8","shape":[3],"data_offsets":[0,3]}}"#, &[0; 3]);
        assert!(dtype.contains("x: dtype I8"), "{dtype}");
        let backwards = error_of(r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}"#, &[0; 8]);
        assert!(backwards.contains("x: data offsets [8, 4] run backwards"), "{backwards}");
        let duplicate = error_of(
            r#"{"x":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"x":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}"#,
            &[0; 2],
        );
        assert!(duplicate.contains("x: the tensor is already defined"), "{duplicate}");
        let huge = error_of(r#"{"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}"#, &[0; 4]);
        assert!(huge.contains("x: shape [4294967296, 4294967296] overflows"), "{huge}");
    }

    #[test]
    fn a_header_longer_than_the_file_is_not_believed() {
        let message = read(&[255; 12]).expect_err("malformed").to_string();
        assert!(message.contains("18446744073709551615 bytes long"), "{message}");
        let message = read(&[]).expect_err("malformed").to_string();
        assert!(message.contains("only 0 bytes"), "{message}");
    }

    proptest! {
        #[test]
        fn damaged_files_end_in_an_error_or_readable_tensors(
            cut in 0usize..220, position in 0usize..220, bit in 0u8..8,
        ) {
            let mut bytes = file_with(GOOD, &[7; 14]);
            bytes.truncate(bytes.len().min(cut + 60));
            let position = position % bytes.len();
            bytes[position] ^= 1 << bit;
            if let Ok(table) = read(&bytes) {
                for entry in table.iter() {
                    let mut out = vec![0.0; entry.rows() * entry.row_len()];
                    table.read_rows(entry, 0..entry.rows(), &mut out).expect("checked on opening");
                }
            }
        }

        #[test]
        fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(table) = read(&bytes) {
                prop_assert_eq!(table.iter().count(), 0);
            }
        }
    }
}
