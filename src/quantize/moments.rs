//! What weights are multiplied with, in the form that rounding them well needs.

use super::tiles::Tiles;
use crate::engine::cpu::kernels::{Kernels, PANEL};
use crate::engine::cpu::pool::Pool;
use crate::error::{Error, Result};

/// Rows whose products are summed in single precision before they join the sum in double precision.
const CHUNK: usize = 1024;
/// Columns of a matrix of moments that are computed together, in panels of 16.
const TASK_PANELS: usize = 4;
/// Rows of a block of moments: 256 rows of a slice take 256 KB, half a second-level cache.
const BLOCK_ROWS: usize = 256;

/// Second moments `H = Σ xᵀx` of the rows `x` a weight matrix is multiplied with.
///
/// They are all it takes to know what an error `E` of the weights does: summed over the rows, the outputs are off by
/// `‖x Eᵀ‖² = tr(E H Eᵀ)`. Sums are in double precision, products in single precision.
#[derive(Debug, Clone)]
pub struct InputMoments {
    cols: usize,
    rows: u64,
    /// The upper triangle, in panels of 16 columns: panel `p` is `[16 · (p + 1)][16]`; columns beyond `cols` are zero.
    panels: Vec<Vec<f64>>,
    kernels: Kernels,
}

impl InputMoments {
    /// Of no rows of `cols` values.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `cols` is 0 or no memory could hold so many moments.
    pub fn new(cols: usize) -> Result<Self> {
        // A matrix has 2^16 inputs at most: beyond, the moments of one would take 17 GB.
        if cols == 0 || cols > 1 << 16 {
            return Err(Error::invalid(format!("moments of rows of {cols} values: 1 to 65536 are possible")));
        }
        let panel = |panel: usize| vec![0.0; (panel + 1) * PANEL * PANEL];
        let panels = (0..cols.div_ceil(PANEL)).map(panel).collect();
        Ok(Self { cols, rows: 0, panels, kernels: Kernels::detect() })
    }

    /// Values of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Rows seen.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Add the rows of `x`, `[rows, cols]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], and nothing is added, if `x` is not whole rows or a value is not finite (its place is named).
    pub fn add(&mut self, x: &[f32], pool: &Pool) -> Result<()> {
        let (cols, kernels) = (self.cols, self.kernels);
        if !x.len().is_multiple_of(cols) {
            let have = x.len();
            return Err(Error::invalid(format!("{have} values are not whole rows of {cols} inputs")));
        }
        if let Some(at) = x.iter().position(|value| !value.is_finite()) {
            let (row, col, value) = (at / cols, at % cols, x[at]);
            return Err(Error::invalid(format!(
                "input {col} of row {row} is {value}: no weights can be fitted to that"
            )));
        }
        for chunk in x.chunks(CHUNK * cols) {
            let depth = chunk.len() / cols;
            let tiles = Tiles::transposed(&kernels, pool, chunk, cols, cols);
            let columns = columns_in_panels(chunk, cols, pool);
            pool.for_each_chunk(&mut self.panels, TASK_PANELS, &|task, panels| {
                let block = BLOCK_ROWS / tiles.height() * tiles.height();
                let mut products = vec![0.0; block * PANEL];
                let first = task * TASK_PANELS;
                for start in (0..cols.min((first + panels.len()) * PANEL)).step_by(block) {
                    for (panel, sums) in (first..).zip(panels.iter_mut()) {
                        let end = cols.min((panel + 1) * PANEL).min(start + block);
                        if start < end {
                            let columns = &columns[panel * depth * PANEL..][..depth * PANEL];
                            tiles.product(&kernels, start..end, columns, &mut products);
                            let sums = sums[start * PANEL..].iter_mut().zip(&products[..(end - start) * PANEL]);
                            sums.for_each(|(sum, &product)| *sum += f64::from(product));
                        }
                    }
                }
            });
        }
        self.rows += (x.len() / cols) as u64;
        Ok(())
    }

    /// Add the rows that another one has seen.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if its rows have another number of values.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        if self.cols != other.cols {
            let (ours, theirs) = (self.cols, other.cols);
            return Err(Error::invalid(format!("moments of rows of {theirs} values cannot join those of {ours}")));
        }
        let (ours, theirs) = (self.panels.iter_mut().flatten(), other.panels.iter().flatten());
        ours.zip(theirs).for_each(|(ours, theirs)| *ours += theirs);
        self.rows += other.rows;
        Ok(())
    }

    /// `Σ x[i] · x[j]`.
    ///
    /// # Panics
    /// If `i` or `j` is not below [`cols`](Self::cols).
    pub fn get(&self, i: usize, j: usize) -> f64 {
        let (row, col) = (i.min(j), i.max(j));
        assert!(col < self.cols, "moment [{i}, {j}] of {} inputs", self.cols);
        self.panels[col / PANEL][row * PANEL + col % PANEL]
    }

    /// `Σ x[i]²` of every input.
    pub fn diagonal(&self) -> Vec<f64> {
        (0..self.cols).map(|i| self.get(i, i)).collect()
    }

    /// Whether weights of `cols` inputs can be fitted to them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are of other rows, of none, or overflowed.
    pub(super) fn check(&self, cols: usize) -> Result<()> {
        if self.cols != cols {
            let ours = self.cols;
            return Err(Error::invalid(format!("weights of {cols} inputs cannot be fitted to rows of {ours} values")));
        }
        if self.rows == 0 {
            return Err(Error::invalid("weights cannot be fitted to inputs of which none was seen: calibrate first"));
        }
        match self.diagonal().iter().position(|square| !square.is_finite()) {
            Some(input) => {
                Err(Error::invalid(format!("the squares of input {input} have no finite sum in single precision")))
            }
            None => Ok(()),
        }
    }

    /// The whole matrix in single precision, divided by the mean of its diagonal: errors are compared, their unit does not
    /// matter, and squares of large activations stay far from overflow. All zeros if the inputs were.
    pub(super) fn normalized(&self, pool: &Pool) -> Vec<f32> {
        let mean = self.diagonal().iter().sum::<f64>() / self.cols as f64;
        let unit = if mean > 0.0 { 1.0 / mean } else { 0.0 };
        let mut full = vec![0.0; self.cols * self.cols];
        pool.for_each_chunk(&mut full, self.cols, &|i, row| {
            row.iter_mut().enumerate().for_each(|(j, value)| *value = (self.get(i, j) * unit) as f32);
        });
        full
    }

    /// The instruction set that products are computed with.
    pub(super) fn kernels(&self) -> Kernels {
        self.kernels
    }
}

/// Columns of `x` in panels of 16: `[panel][row][16]`.
fn columns_in_panels(x: &[f32], cols: usize, pool: &Pool) -> Vec<f32> {
    let depth = x.len() / cols;
    let mut panels = vec![0.0; cols.div_ceil(PANEL) * depth * PANEL];
    pool.for_each_chunk(&mut panels, depth * PANEL, &|panel, values| {
        let first = panel * PANEL;
        let width = PANEL.min(cols - first);
        for (row, values) in x.chunks_exact(cols).zip(values.chunks_exact_mut(PANEL)) {
            values[..width].copy_from_slice(&row[first..first + width]);
        }
    });
    panels
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(count: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * 7919 + 13) % 1009) as f32 / 500.0 - 1.0).collect()
    }

    #[test]
    fn moments_are_sums_of_products() {
        let pool = Pool::new(2);
        for (rows, cols) in [(1, 1), (3, 17), (40, 70), (1100, 33), (5, 600)] {
            let x = noise(rows * cols);
            let mut moments = InputMoments::new(cols).unwrap();
            moments.add(&x, &pool).unwrap();
            assert_eq!((moments.rows(), moments.cols()), (rows as u64, cols));
            for (i, j) in [(0, 0), (cols / 2, cols - 1), (cols - 1, cols / 3), (cols - 1, cols - 1)] {
                let expected: f64 = x.chunks_exact(cols).map(|row| f64::from(row[i]) * f64::from(row[j])).sum();
                assert!((moments.get(i, j) - expected).abs() < 1e-3, "{rows} {cols} {i} {j}");
            }
        }
    }

    #[test]
    fn rows_that_do_not_fit_are_named_and_not_added() {
        let pool = Pool::new(1);
        let mut moments = InputMoments::new(2).unwrap();
        let error = moments.add(&[0.0; 3], &pool).unwrap_err().to_string();
        assert!(error.contains("3 values are not whole rows of 2 inputs"), "{error}");
        let error = moments.add(&[1.0, 1.0, f32::NAN, 1.0], &pool).unwrap_err().to_string();
        assert!(error.contains("input 0 of row 1 is NaN"), "{error}");
        assert_eq!((moments.rows(), moments.get(1, 1)), (0, 0.0));
        assert!(moments.check(2).unwrap_err().to_string().contains("none was seen"));
        moments.add(&[1e30, 1.0], &pool).unwrap();
        assert!(moments.check(2).unwrap_err().to_string().contains("input 0"));
        assert!(moments.check(3).unwrap_err().to_string().contains("3 inputs"));
        assert!(InputMoments::new(0).is_err() && InputMoments::new(usize::MAX).is_err());
        assert!(moments.merge(&InputMoments::new(3).unwrap()).is_err());
    }

    proptest! {
        #[test]
        fn shards_join_to_the_whole(x in prop::collection::vec(-3f32..3.0, 60), cut in 0usize..=12) {
            let (pool, cols) = (Pool::new(1), 5);
            let of = |x: &[f32]| {
                let mut moments = InputMoments::new(cols).unwrap();
                moments.add(x, &pool).unwrap();
                moments
            };
            let (a, b) = x.split_at(cut * cols);
            let (whole, mut joined) = (of(&x), of(a));
            joined.merge(&of(b)).unwrap();
            prop_assert_eq!(joined.rows(), whole.rows());
            for (i, j) in (0..cols).flat_map(|i| (0..cols).map(move |j| (i, j))) {
                prop_assert!((joined.get(i, j) - whole.get(i, j)).abs() < 1e-4);
                prop_assert_eq!(whole.get(i, j), whole.get(j, i));
            }
        }
    }
}
