//! Packs weights into a component file.

use super::{ProgressFn, Stage, step};
use crate::artefact::{ComponentHeader, ComponentWriter, Layout, StoredWeight, WrittenComponent};
use crate::engine::cpu::pool::Pool;
use crate::error::{Error, Result};
use crate::formats::{PANEL_ROWS, pack_panel};
use crate::graph::WeightProvider;
use parking_lot::Mutex;
use std::path::Path;

/// Bytes packed between two writes, and so the memory that packing takes (times a few for the f32 rows).
const CHUNK_BYTES: usize = 4 << 20;

/// Write a component file: every weight of `header`, read from `weights`, packed on all threads of `pool`.
///
/// Progress is reported in [`Stage::Weights`], in bytes, before each chunk of a few megabytes.
///
/// # Errors
/// What `weights` reports, values that a format cannot hold (naming the weight), I/O errors, [`Error::Cancelled`]. The
/// unfinished file stays; it is not a valid component.
pub fn write_component(
    path: &Path,
    header: &ComponentHeader,
    weights: &(dyn WeightProvider + Sync),
    pool: &Pool,
    progress: &mut ProgressFn<'_>,
) -> Result<WrittenComponent> {
    let total = weight_bytes(header);
    let mut writer = ComponentWriter::create(path, header)?;
    let mut done = 0;
    while let Some(name) = writer.next_weight()? {
        let stored = header.weights.get(&name).ok_or_else(|| Error::internal(format!("weight {name} is unknown")))?;
        for chunk in Chunks::new(&name, stored)? {
            step(progress, Stage::Weights, &name, done, total)?;
            let bytes = chunk.encode(weights, pool)?;
            writer.write(&bytes)?;
            done += bytes.len() as u64;
        }
    }
    step(progress, Stage::Weights, "", done, total)?;
    writer.finish()
}

/// Bytes of all weights of a component.
pub(super) fn weight_bytes(header: &ComponentHeader) -> u64 {
    header.weights.values().filter_map(StoredWeight::bytes).map(|bytes| bytes as u64).sum()
}

/// Some rows of one weight.
struct Chunk<'a> {
    name: &'a str,
    stored: &'a StoredWeight,
    first_row: usize,
    rows: usize,
    /// Elements of a row.
    length: usize,
}

/// Cuts a weight into chunks of whole panels.
struct Chunks<'a> {
    name: &'a str,
    stored: &'a StoredWeight,
    next_row: usize,
    rows: usize,
    length: usize,
    rows_per_chunk: usize,
}

impl<'a> Chunks<'a> {
    fn new(name: &'a str, stored: &'a StoredWeight) -> Result<Self> {
        let too_large = || Error::invalid(format!("weight {name} {:?} is too large", stored.shape));
        let (rows, length) = stored.rows().ok_or_else(too_large)?;
        let bytes = stored.bytes().ok_or_else(too_large)?;
        let panel_bytes = (bytes / rows.div_ceil(PANEL_ROWS).max(1)).max(1);
        let rows_per_chunk = (CHUNK_BYTES / panel_bytes).max(1) * PANEL_ROWS;
        Ok(Self { name, stored, next_row: 0, rows, length, rows_per_chunk })
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Chunk<'a>;

    fn next(&mut self) -> Option<Chunk<'a>> {
        let rows = self.rows_per_chunk.min(self.rows - self.next_row);
        let chunk = Chunk { name: self.name, stored: self.stored, first_row: self.next_row, rows, length: self.length };
        self.next_row += rows;
        (rows > 0).then_some(chunk)
    }
}

impl Chunk<'_> {
    /// The chunk's bytes in the file.
    fn encode(&self, weights: &(dyn WeightProvider + Sync), pool: &Pool) -> Result<Vec<u8>> {
        match self.stored.layout {
            Layout::Plain => self.read(weights, 0..self.rows).map(|rows| bytemuck::cast_slice(&rows).to_vec()),
            Layout::Panels => self.encode_panels(weights, pool),
        }
    }

    fn encode_panels(&self, weights: &(dyn WeightProvider + Sync), pool: &Pool) -> Result<Vec<u8>> {
        let format = self.stored.format;
        let panel_bytes = format.panel_bytes(self.length).filter(|&bytes| bytes > 0);
        let panel_bytes = panel_bytes.ok_or_else(|| Error::invalid(format!("weight {}: empty rows", self.name)))?;
        let mut bytes = vec![0; panel_bytes * self.rows.div_ceil(PANEL_ROWS)];
        let failure = Mutex::new(None);
        pool.for_each_chunk(&mut bytes, panel_bytes, &|panel, out| {
            let first = panel * PANEL_ROWS;
            let packed = self
                .read(weights, first..self.rows.min(first + PANEL_ROWS))
                .and_then(|rows| pack_panel(format, &rows, self.length, out).map_err(|e| self.locate(first, e)));
            if let Err(error) = packed {
                failure.lock().get_or_insert(error);
            }
        });
        match failure.into_inner() {
            Some(error) => Err(error),
            None => Ok(bytes),
        }
    }

    /// Rows of the chunk in f32.
    fn read(&self, weights: &dyn WeightProvider, rows: std::ops::Range<usize>) -> Result<Vec<f32>> {
        let mut values = vec![0.0; rows.len() * self.length];
        weights.read_rows(self.name, self.first_row + rows.start..self.first_row + rows.end, &mut values)?;
        Ok(values)
    }

    /// Say which weight a panel belongs to.
    fn locate(&self, panel_row: usize, error: Error) -> Error {
        match error {
            Error::InvalidArgument(text) => {
                Error::invalid(format!("weight {}, panel at row {}: {text}", self.name, self.first_row + panel_row))
            }
            other => other,
        }
    }
}
