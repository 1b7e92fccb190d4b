//! Reading component files: memory-mapped, checked once, used in place.

use super::header::{COMPONENT_FORMAT, COMPONENT_VERSION, LENGTH_BYTES, Layout, StoredWeight};
use super::manifest::FormatSummary;
use crate::engine::{GraphSignature, SourceBytes};
use crate::error::{Error, Result};
use crate::formats::PackedMatrix;
use crate::graph::{Graph, WeightProvider};
use memmap2::Mmap;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// An open component file. Weights are borrowed from the mapping.
///
/// Everything the header says is checked against the file when it is opened; weight *values* are whatever the file
/// holds. The file must not be changed while it is open: the operating system would show the change, or end the
/// process if the file gets shorter.
#[derive(Debug)]
pub struct Component {
    path: PathBuf,
    data: Data,
    name: String,
    graphs: Vec<Graph>,
    /// Sorted by name.
    weights: Vec<StoredTensor>,
}

/// The file's content.
#[derive(Debug)]
enum Data {
    Mapped(Mmap),
    InMemory(SourceBytes),
}

impl Data {
    fn bytes(&self) -> &[u8] {
        match self {
            Data::Mapped(map) => map,
            Data::InMemory(bytes) => bytes.as_slice(),
        }
    }
}

/// A weight of the file.
#[derive(Debug)]
struct StoredTensor {
    name: String,
    stored: StoredWeight,
    /// Where in the file.
    range: Range<usize>,
}

/// A weight, borrowed from the file.
#[derive(Debug, Clone, Copy)]
pub enum Weight<'a> {
    /// f32, row after row.
    Plain {
        /// Shape as the graphs see it.
        shape: &'a [usize],
        /// The elements.
        values: &'a [f32],
    },
    /// A matrix in panels.
    Packed(PackedMatrix<'a>),
}

/// Names, types and shapes of a graph's inputs and outputs.
pub fn component_signature(graph: &Graph) -> GraphSignature {
    GraphSignature { name: graph.name.clone(), inputs: graph.input_infos(), outputs: graph.output_infos() }
}

impl Component {
    /// Map and check a component file.
    ///
    /// # Errors
    /// [`Error::NotFound`] or [`Error::Io`] if it cannot be opened; [`Error::Format`] naming the field if it is
    /// truncated, corrupt, of another kind or version, or if a graph is invalid or asks for a weight that the file does
    /// not hold in that shape.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        // SAFETY: the mapping is read-only. Rust cannot rule out that another process changes the file under it; that
        // is part of the documented contract of this type, as for every memory-mapped model format.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(path, e))?;
        Self::read(path, Data::Mapped(map))
    }

    /// Check a component file that is in memory.
    ///
    /// # Errors
    /// As [`open`](Self::open), without those of the file system.
    pub fn from_bytes(bytes: SourceBytes) -> Result<Self> {
        Self::read(Path::new("component in memory"), Data::InMemory(bytes))
    }

    fn read(path: &Path, data: Data) -> Result<Self> {
        let (data_start, header) = parse_header(data.bytes(), path)?;
        let field = |key: &str| metadata_field(&header, key, path);
        expect(field("format")?, COMPONENT_FORMAT, path, "format")?;
        expect(field("version")?, COMPONENT_VERSION, path, "version")?;
        let graphs = parse_graphs(field("graphs")?, path)?;
        let stored = parse_json(field("weights")?, path, "weights")?;
        let weights = locate_weights(stored, &header, data_start, path)?;
        let component = Self { path: path.into(), name: field("component")?.clone(), data, graphs, weights };
        component.check_weights()?;
        Ok(component)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Component name, e.g. `text_decoder`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The graphs, in file order; each is valid.
    pub fn graphs(&self) -> &[Graph] {
        &self.graphs
    }

    /// Signatures of the graphs, in file order.
    pub fn signatures(&self) -> Vec<GraphSignature> {
        self.graphs.iter().map(component_signature).collect()
    }

    /// Names and storage of all weights, by name.
    pub fn weights(&self) -> impl Iterator<Item = (&str, &StoredWeight)> {
        self.weights.iter().map(|weight| (weight.name.as_str(), &weight.stored))
    }

    /// Position of a weight in the order of [`weights`](Self::weights).
    pub fn weight_number(&self, name: &str) -> Option<usize> {
        self.weights.binary_search_by(|weight| weight.name.as_str().cmp(name)).ok()
    }

    /// Name and storage of weight `number`.
    pub fn stored(&self, number: usize) -> Option<(&str, &StoredWeight)> {
        self.weights.get(number).map(|weight| (weight.name.as_str(), &weight.stored))
    }

    /// Borrow a weight.
    ///
    /// # Errors
    /// [`Error::NotFound`] naming the weight and the file.
    pub fn weight(&self, name: &str) -> Result<Weight<'_>> {
        match self.weight_number(name) {
            Some(number) => self.weight_at(number),
            None => Err(Error::NotFound(format!("{}: there is no weight {name}", self.path.display()))),
        }
    }

    /// Borrow weight `number`.
    ///
    /// # Errors
    /// [`Error::NotFound`] naming the file.
    pub fn weight_at(&self, number: usize) -> Result<Weight<'_>> {
        let StoredTensor { name, stored, range } = self.weights.get(number).ok_or_else(|| {
            let count = self.weights.len();
            Error::NotFound(format!("{}: there is no weight number {number}, it has {count}", self.path.display()))
        })?;
        let wrong = |reason: String| Error::format(&self.path, name, reason);
        let bytes = self.data.bytes().get(range.clone()).ok_or_else(|| wrong("lies outside the file".into()))?;
        match (stored.layout, stored.shape.as_slice()) {
            (Layout::Panels, &[rows, cols]) => PackedMatrix::new(stored.format, rows, cols, bytes)
                .map(Weight::Packed)
                .map_err(|e| wrong(e.to_string())),
            _ => {
                let values = bytemuck::try_cast_slice(bytes).map_err(|e| wrong(format!("f32 data: {e}")))?;
                Ok(Weight::Plain { shape: &stored.shape, values })
            }
        }
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(|weight| weight.range.len() as u64).sum()
    }

    /// Size of the file.
    pub fn file_bytes(&self) -> u64 {
        self.data.bytes().len() as u64
    }

    /// What each weight format takes, by format name.
    pub fn format_summaries(&self) -> BTreeMap<String, FormatSummary> {
        let mut summaries = BTreeMap::<String, FormatSummary>::new();
        for StoredTensor { stored, range, .. } in &self.weights {
            let elements = stored.elements().unwrap_or(0) as u64;
            summaries.entry(stored.format.name().into()).or_default().add(elements, range.len() as u64);
        }
        summaries
    }

    /// Ask the operating system to read the weights ahead.
    pub fn prefetch(&self) {
        // A hint only: if it is refused, the first execution reads the file instead.
        #[cfg(unix)]
        if let Data::Mapped(map) = &self.data {
            let _ = map.advise(memmap2::Advice::WillNeed);
        }
    }

    /// Every weight is readable as stored, and every weight of every graph exists in its shape.
    fn check_weights(&self) -> Result<()> {
        for number in 0..self.weights.len() {
            self.weight_at(number)?;
        }
        for graph in &self.graphs {
            for wanted in graph.weights() {
                let field = || format!("graph {}, weight {}", graph.name, wanted.name);
                match self.weight_number(&wanted.name).and_then(|number| self.stored(number)) {
                    None => return Err(Error::format(&self.path, field(), "is not in the file")),
                    Some((_, stored)) if stored.shape != wanted.shape => {
                        let reason = format!("is {:?} in the graph but {:?} in the file", wanted.shape, stored.shape);
                        return Err(Error::format(&self.path, field(), reason));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }
}

impl WeightProvider for Component {
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let weight = self.weight(name)?;
        let stored = self.weight_number(name).and_then(|number| self.stored(number));
        let (count, length) = stored.and_then(|(_, stored)| stored.rows()).unwrap_or((0, 0));
        if rows.start > rows.end || rows.end > count || rows.len().checked_mul(length) != Some(out.len()) {
            let have = out.len();
            return Err(Error::invalid(format!(
                "weight {name} has {count} rows of {length}: rows {rows:?} do not fit a buffer of {have} values"
            )));
        }
        match weight {
            Weight::Plain { values, .. } => out.copy_from_slice(&values[rows.start * length..rows.end * length]),
            Weight::Packed(matrix) => {
                for (row, out) in rows.zip(out.chunks_exact_mut(length)) {
                    matrix.read_row(row, out);
                }
            }
        }
        Ok(())
    }
}

/// Parse the safetensors header; returns where the data begins.
///
/// The `safetensors` crate checks shapes, types, offsets and holes. Its own check of the file length can overflow on a
/// hostile header, hence ours.
fn parse_header(bytes: &[u8], path: &Path) -> Result<(usize, Metadata)> {
    let wrong = |reason: String| Error::format(path, "header", reason);
    let length = bytes
        .first_chunk::<LENGTH_BYTES>()
        .ok_or_else(|| wrong(format!("the file has {} bytes and is too short for a component", bytes.len())))?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let rest = &bytes[LENGTH_BYTES..];
    let json = rest.get(..length).ok_or_else(|| {
        wrong(format!("claims {length} bytes but only {} follow: truncated, or not a component file", rest.len()))
    })?;
    let metadata: Metadata = serde_json::from_slice(json).map_err(|e| wrong(e.to_string()))?;
    let data = rest.len() - length;
    if metadata.data_len() != data {
        let claimed = metadata.data_len();
        return Err(wrong(format!("describes {claimed} bytes of weights but {data} follow: truncated or damaged")));
    }
    Ok((LENGTH_BYTES + length, metadata))
}

fn metadata_field<'a>(header: &'a Metadata, key: &str, path: &Path) -> Result<&'a String> {
    let found = header.metadata().as_ref().and_then(|fields| fields.get(key));
    found.ok_or_else(|| Error::format(path, key, "is missing from the metadata: this is not a component file"))
}

fn expect(found: &str, wanted: &str, path: &Path, field: &str) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    let reason = format!("is {found:?}, this build reads {wanted:?} only: compile the checkpoint again");
    Err(Error::format(path, field, reason))
}

fn parse_json<T: serde::de::DeserializeOwned>(text: &str, path: &Path, field: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| Error::format(path, field, e.to_string()))
}

fn parse_graphs(text: &str, path: &Path) -> Result<Vec<Graph>> {
    let graphs: Vec<Graph> = parse_json(text, path, "graphs")?;
    if graphs.is_empty() {
        return Err(Error::format(path, "graphs", "there are none"));
    }
    for graph in &graphs {
        graph.validate().map_err(|e| Error::format(path, "graphs", e.to_string()))?;
    }
    Ok(graphs)
}

/// Match the weight table with the tensors of the file, one to one, and find their bytes.
fn locate_weights(
    stored: BTreeMap<String, StoredWeight>,
    header: &Metadata,
    data_start: usize,
    path: &Path,
) -> Result<Vec<StoredTensor>> {
    let tensors: HashMap<_, _> = header.tensors();
    if let Some(extra) = tensors.keys().find(|name| !stored.contains_key(*name)) {
        return Err(Error::format(path, extra, "is in the file but not in its weight table"));
    }
    let mut located = Vec::with_capacity(stored.len());
    for (name, weight) in stored {
        let wrong = |reason: String| Error::format(path, name.clone(), reason);
        let tensor = tensors.get(&name).ok_or_else(|| wrong("is in the weight table but not in the file".into()))?;
        let dtype = if weight.layout == Layout::Plain { Dtype::F32 } else { Dtype::U8 };
        if tensor.dtype != dtype {
            return Err(wrong(format!("is stored as {:?}, a {:?} weight is {dtype:?}", tensor.dtype, weight.layout)));
        }
        let (start, end) = tensor.data_offsets;
        if weight.bytes() != Some(end - start) {
            let (format, shape) = (weight.format.name(), &weight.shape);
            let wanted = weight.bytes().map_or("no".into(), |n| n.to_string());
            let found = end - start;
            return Err(wrong(format!(
                "{format} {shape:?} in {:?} takes {wanted} bytes, {found} are there",
                weight.layout
            )));
        }
        // `data_len` equals the bytes that follow the header, so no offset can lie beyond the mapping.
        let range = data_start + start..data_start + end;
        located.push(StoredTensor { name, stored: weight, range });
    }
    Ok(located)
}
