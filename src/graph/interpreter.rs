//! The f32 reference: runs a graph word for word.

use crate::error::Result;
use std::ops::Range;

/// Gives the values of a component's weights, by name, in f32.
pub trait WeightProvider {
    /// Read rows `rows` of weight `name` (first axis; a vector is one row) into `out`, which has exactly
    /// `rows.len() · row length` elements.
    ///
    /// # Errors
    /// Unknown name, rows out of range, unreadable storage; the error names the tensor.
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()>;
}
