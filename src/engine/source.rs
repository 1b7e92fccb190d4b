//! What an engine is asked to load.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One component: what it is for, and where it is.
#[derive(Debug, Clone)]
pub struct ComponentSource {
    /// Its part in the model, e.g. `text_decoder`.
    pub component: String,
    /// Where it is.
    pub data: SourceData,
    /// Whether inputs and outputs shall be in memory that the processor shares, where there is such memory.
    pub shared_memory: bool,
}

/// Where a component is.
#[derive(Debug, Clone)]
pub enum SourceData {
    /// In a file.
    File(PathBuf),
    /// In memory.
    Bytes(SourceBytes),
    /// In the engine already, under the component's name.
    Held,
}

/// A file's content in memory, aligned to 64 bytes. Copies share it.
#[derive(Clone)]
pub struct SourceBytes {
    blocks: Arc<Vec<Block>>,
    length: usize,
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Block([u8; 64]);

impl ComponentSource {
    /// A component in a file.
    pub fn file(component: &str, path: impl Into<PathBuf>) -> Self {
        Self::new(component, SourceData::File(path.into()))
    }

    /// A component in memory; the bytes are copied.
    pub fn bytes(component: &str, bytes: &[u8]) -> Self {
        Self::new(component, SourceData::Bytes(SourceBytes::copy_of(bytes)))
    }

    /// A component that the engine has loaded already.
    pub fn held(component: &str) -> Self {
        Self::new(component, SourceData::Held)
    }

    fn new(component: &str, data: SourceData) -> Self {
        Self { component: component.into(), data, shared_memory: false }
    }

    /// The file, if it is in one.
    pub fn path(&self) -> Option<&Path> {
        match &self.data {
            SourceData::File(path) => Some(path),
            _ => None,
        }
    }

    /// How it is called in errors.
    pub fn describe(&self) -> String {
        match &self.data {
            SourceData::File(path) => path.display().to_string(),
            SourceData::Bytes(bytes) => format!("{} ({} bytes in memory)", self.component, bytes.as_slice().len()),
            SourceData::Held => format!("{} (held by the engine)", self.component),
        }
    }
}

impl SourceBytes {
    /// Copy `bytes` to aligned memory.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut blocks = vec![<Block as bytemuck::Zeroable>::zeroed(); bytes.len().div_ceil(64)];
        bytemuck::cast_slice_mut(&mut blocks)[..bytes.len()].copy_from_slice(bytes);
        Self { blocks: Arc::new(blocks), length: bytes.len() }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.blocks)[..self.length]
    }
}

impl fmt::Debug for SourceBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.length)
    }
}
