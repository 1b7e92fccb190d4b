//! Writes small GGUF files for tests.

use std::path::PathBuf;

/// A file being put together.
#[derive(Clone, Default)]
pub struct GgufWriter {
    values: Vec<Vec<u8>>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

pub const F32: u32 = 0;
const ALIGNMENT: usize = 32;

fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

impl GgufWriter {
    /// Adds a value: type number and payload bytes.
    pub fn raw(mut self, key: &str, value_type: u32, payload: &[u8]) -> Self {
        let mut value = string(key);
        value.extend_from_slice(&value_type.to_le_bytes());
        value.extend_from_slice(payload);
        self.values.push(value);
        self
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub fn bool(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, &[value.into()])
    }

    pub fn text(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, &string(value))
    }

    fn array(self, key: &str, item_type: u32, items: Vec<Vec<u8>>) -> Self {
        let mut payload = item_type.to_le_bytes().to_vec();
        payload.extend_from_slice(&(items.len() as u64).to_le_bytes());
        payload.extend(items.into_iter().flatten());
        self.raw(key, 9, &payload)
    }

    pub fn texts<S: AsRef<str>>(self, key: &str, items: &[S]) -> Self {
        self.array(key, 8, items.iter().map(|text| string(text.as_ref())).collect())
    }

    pub fn i32s(self, key: &str, items: &[i32]) -> Self {
        self.array(key, 5, items.iter().map(|number| number.to_le_bytes().to_vec()).collect())
    }

    pub fn f32s(self, key: &str, items: &[f32]) -> Self {
        self.array(key, 6, items.iter().map(|number| number.to_le_bytes().to_vec()).collect())
    }

    /// Adds a tensor of any storage type; `shape` outermost axis first.
    pub fn stored(mut self, name: &str, shape: &[u64], type_number: u32, bytes: &[u8]) -> Self {
        self.tensors.push((name.to_owned(), shape.to_vec(), type_number, bytes.to_vec()));
        self
    }

    /// Adds an F32 tensor; `shape` outermost axis first.
    pub fn tensor(self, name: &str, shape: &[u64], values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.stored(name, shape, F32, &bytes)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend_from_slice(&3u32.to_le_bytes());
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.values.len() as u64).to_le_bytes());
        self.values.iter().for_each(|value| out.extend_from_slice(value));
        let mut offset = 0usize;
        for (name, shape, type_number, bytes) in &self.tensors {
            out.extend_from_slice(&string(name));
            out.extend_from_slice(&(shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|axis| out.extend_from_slice(&axis.to_le_bytes()));
            out.extend_from_slice(&type_number.to_le_bytes());
            out.extend_from_slice(&(offset as u64).to_le_bytes());
            offset += bytes.len().next_multiple_of(ALIGNMENT);
        }
        for (_, _, _, bytes) in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend_from_slice(bytes);
        }
        out
    }

    /// Writes the file into a fresh folder.
    pub fn write(&self) -> (tempfile::TempDir, PathBuf) {
        write(&self.bytes())
    }
}

/// Writes bytes as `model.gguf` into a fresh folder.
pub fn write(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, bytes).expect("write");
    (dir, path)
}

/// What every architecture needs: two layers, two heads over one key/value head, width 8, 4 tokens.
pub fn minimal(architecture: &str) -> GgufWriter {
    let key = |name: &str| format!("{architecture}.{name}");
    GgufWriter::default()
        .text("general.architecture", architecture)
        .u32(&key("block_count"), 2)
        .u32(&key("context_length"), 64)
        .u32(&key("embedding_length"), 8)
        .u32(&key("feed_forward_length"), 16)
        .u32(&key("attention.head_count"), 2)
        .u32(&key("attention.head_count_kv"), 1)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .f32(&key("rope.freq_base"), 100000.0)
        .tensor("token_embd.weight", &[4, 8], &[0.5; 32])
}
