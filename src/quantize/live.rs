//! Weights of a component that is being quantized: those that are decided already are read as what integers leave of them.

use super::weight::QuantizedWeight;
use crate::error::{Error, Result};
use crate::graph::{Grid, WeightProvider};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The checkpoint's weights, seen through the grids that were decided.
pub struct LiveWeights<'a> {
    original: &'a (dyn WeightProvider + Sync),
    decided: RwLock<HashMap<String, Decided>>,
}

#[derive(Clone)]
enum Decided {
    OneGrid(Grid),
    /// A bias: multiples of a scale an element.
    Multiples(Arc<Vec<f32>>),
    /// A table whose rows have grids of their own.
    Integers(Arc<QuantizedWeight>),
}

impl<'a> LiveWeights<'a> {
    /// Nothing decided yet.
    pub fn new(original: &'a (dyn WeightProvider + Sync)) -> Self {
        Self { original, decided: RwLock::default() }
    }

    /// All values of `name` are on `grid`.
    pub fn decide_grid(&self, name: &str, grid: Grid) {
        self.decided.write().insert(name.into(), Decided::OneGrid(grid));
    }

    /// `name` has these integers.
    pub fn decide_integers(&self, name: &str, weight: Arc<QuantizedWeight>) {
        self.decided.write().insert(name.into(), Decided::Integers(weight));
    }

    /// Element `i` of `name` is a multiple of `scales[i]`.
    pub fn decide_bias(&self, name: &str, scales: Vec<f32>) {
        self.decided.write().insert(name.into(), Decided::Multiples(Arc::new(scales)));
    }
}

impl WeightProvider for LiveWeights<'_> {
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let decided = self.decided.read().get(name).cloned();
        if let Some(Decided::Integers(weight)) = &decided {
            let (count, width) = weight.shape();
            if rows.end > count || rows.len().checked_mul(width) != Some(out.len()) {
                let length = out.len();
                return Err(Error::invalid(format!("weight {name}: rows {rows:?} into {length} elements")));
            }
            return rows.zip(out.chunks_exact_mut(width)).try_for_each(|(row, out)| weight.dequantize_row(row, out));
        }
        self.original.read_rows(name, rows, out)?;
        match decided {
            Some(Decided::OneGrid(grid)) => out.iter_mut().for_each(|value| *value = grid.round(*value)),
            Some(Decided::Multiples(scales)) => {
                out.iter_mut()
                    .zip(scales.iter())
                    .for_each(|(value, scale)| *value = bias_level(*value, *scale) as f32 * scale);
            }
            Some(Decided::Integers(_)) | None => {}
        }
        Ok(())
    }
}

/// The 32-bit integer of a bias.
pub(super) fn bias_level(value: f32, scale: f32) -> i32 {
    // The cast saturates, and NaN becomes 0. The largest magnitude divided by its own scale, which is rounded, may be 2³¹: of the
    // two ends only the positive one would saturate to what a symmetric grid has.
    ((f64::from(value) / f64::from(scale)).round_ties_even() as i32).max(-i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_bias_is_on_its_grid_whatever_its_sign() {
        // 2⁻³ / (2³¹ - 1), rounded to 2⁻³⁴.
        let scale = 0.125 / i32::MAX as f32;
        assert_eq!((bias_level(-0.125, scale), bias_level(0.125, scale)), (-i32::MAX, i32::MAX));
        assert_eq!((bias_level(-1.0, 0.25), bias_level(f32::NAN, 0.25)), (-4, 0));
    }
}
