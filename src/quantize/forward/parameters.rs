//! Weights as the arithmetic wants them: matrices packed one at a time, small ones kept.

use crate::engine::cpu::pool::Pool;
use crate::error::{Error, Result};
use crate::formats::{PANEL_ROWS, PackedMatrix, WeightFormat, pack_panel, panels};
use crate::graph::{TensorInfo, WeightProvider};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// A matrix `[rows, cols]`, packed.
#[derive(Debug)]
pub struct Matrix {
    shape: [usize; 2],
    panels: Vec<u8>,
}

impl Matrix {
    /// Pack a matrix whose rows `rows(first, out)` gives, several at a time.
    ///
    /// # Errors
    /// What `rows` reports, a value that is not finite.
    pub fn pack(
        shape: [usize; 2],
        pool: &Pool,
        rows: &(dyn Fn(usize, &mut [f32]) -> Result<()> + Sync),
    ) -> Result<Self> {
        let [count, cols] = shape;
        let panel_bytes = WeightFormat::F32.panel_bytes(cols).filter(|&bytes| bytes > 0);
        let sizes = panel_bytes.and_then(|bytes| Some((bytes, bytes.checked_mul(panels(count))?)));
        let (panel_bytes, bytes) =
            sizes.ok_or_else(|| Error::invalid(format!("a matrix of shape {shape:?} cannot be packed")))?;
        let mut packed = vec![0; bytes];
        let failure = Mutex::new(None);
        pool.for_each_chunk(&mut packed, panel_bytes, &|panel, out| {
            let first = panel * PANEL_ROWS;
            let mut values = vec![0.0; (count - first).min(PANEL_ROWS) * cols];
            let done = rows(first, &mut values).and_then(|()| pack_panel(WeightFormat::F32, &values, cols, out));
            if let Err(error) = done {
                failure.lock().get_or_insert(error);
            }
        });
        match failure.into_inner() {
            Some(error) => Err(error),
            None => Ok(Self { shape, panels: packed }),
        }
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> u64 {
        self.panels.len() as u64
    }

    /// As the kernels take it.
    pub(super) fn packed(&self) -> Result<PackedMatrix<'_>> {
        PackedMatrix::new(WeightFormat::F32, self.shape[0], self.shape[1], &self.panels)
    }
}

/// Where weights come from.
pub(super) enum Source<'a> {
    Borrowed(&'a (dyn WeightProvider + Sync)),
    Shared(Arc<dyn WeightProvider + Send + Sync>),
}

impl Source<'_> {
    fn get(&self) -> &(dyn WeightProvider + Sync) {
        match self {
            Source::Borrowed(weights) => *weights,
            Source::Shared(weights) => weights.as_ref(),
        }
    }
}

/// The weights of a component.
pub(super) struct Parameters<'a> {
    weights: Source<'a>,
    /// Those that are no matrices, once read.
    plain: Mutex<HashMap<String, Arc<Vec<f32>>>>,
}

impl<'a> Parameters<'a> {
    pub fn new(weights: Source<'a>) -> Self {
        Self { weights, plain: Mutex::default() }
    }

    /// A matrix of a linear operator.
    pub fn matrix(&self, info: &TensorInfo, pool: &Pool) -> Result<Matrix> {
        let &[rows, cols] = info.shape.as_slice() else {
            return Err(Error::internal(format!("{} {:?} is no matrix", info.name, info.shape)));
        };
        let read = |first: usize, out: &mut [f32]| {
            self.weights.get().read_rows(&info.name, first..first + out.len() / cols, out)
        };
        Matrix::pack([rows, cols], pool, &read).map_err(|error| match error {
            Error::InvalidArgument(text) => Error::invalid(format!("weight {}: {text}", info.name)),
            other => other,
        })
    }

    /// A weight that is no matrix: a norm, a bias, a table of positions.
    pub fn plain(&self, info: &TensorInfo) -> Result<Arc<Vec<f32>>> {
        if let Some(values) = self.plain.lock().get(&info.name) {
            return Ok(Arc::clone(values));
        }
        let elements =
            info.element_count().ok_or_else(|| Error::invalid(format!("weight {} is too large", info.name)))?;
        let mut values = vec![0.0; elements];
        let rows = if info.shape.len() < 2 { 1 } else { info.shape[0] };
        self.weights.get().read_rows(&info.name, 0..rows, &mut values)?;
        let values = Arc::new(values);
        self.plain.lock().insert(info.name.clone(), Arc::clone(&values));
        Ok(values)
    }

    /// Rows of an embedding table, by token id. The table itself is never in memory.
    pub fn rows_of(&self, table: &TensorInfo, tokens: &[i32], out: &mut [f32]) -> Result<()> {
        let &[rows, cols] = table.shape.as_slice() else {
            return Err(Error::internal(format!("{} {:?} is no table", table.name, table.shape)));
        };
        for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(cols)) {
            let row = usize::try_from(token).ok().filter(|&row| row < rows).ok_or_else(|| {
                Error::invalid(format!("token id {token} is outside the embedding table of {rows} rows"))
            })?;
            self.weights.get().read_rows(&table.name, row..row + 1, out)?;
        }
        Ok(())
    }
}
