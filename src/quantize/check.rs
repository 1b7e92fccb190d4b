//! Float and quantized model side by side on the same samples: how much each layer is off.

use super::calibration::Encodings;
use super::forward::{Forward, Input, Sequence};
use super::plan::{GraphPlan, RangeRule};
use crate::engine::cpu::pool::Pool;
use crate::error::{Error, Result};
use crate::graph::{Graph, Grid, Node};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Values that one task counts.
const PIECE: usize = 1 << 16;

/// How far a layer of the quantized model is from the float one, on the same samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerError {
    /// Name of the node.
    pub layer: String,
    /// `20 log10(|float| / |float - quantized|)` of its results in decibels, one a sample; absent where nothing is off.
    pub sqnr_db: Vec<Option<f64>>,
}

/// What a grid does to the values of the float model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotCheck {
    /// Name of the slot.
    pub slot: String,
    /// Share of values outside of the grid, from 0 to 1.
    pub clipped: f64,
}

/// The whole comparison.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Comparison {
    /// Matrices, in graph order, then the outputs of the graph.
    pub layers: Vec<LayerError>,
    /// Grids that clip anything.
    pub clipping: Vec<SlotCheck>,
}

impl LayerError {
    /// Mean of the finite values; `None` if there is none.
    pub fn mean_db(&self) -> Option<f64> {
        let finite = self.sqnr_db.iter().flatten().copied().filter(|db| db.is_finite()).collect::<Vec<_>>();
        (!finite.is_empty()).then(|| finite.iter().sum::<f64>() / finite.len() as f64)
    }
}

/// Run one sample through both models and add what is found to `comparison`. `float` and `quantized` are the same graph without and
/// with its quantize-dequantize nodes.
///
/// # Errors
/// What the weights of either side report, and `before`, which is called at each matrix.
pub fn compare(
    (float, float_forward): (&Graph, &mut Forward<'_>),
    (quantized, quantized_forward): (&Graph, &mut Forward<'_>),
    (plan, encodings): (&GraphPlan, &Encodings),
    inputs: &[Input],
    comparison: &mut Comparison,
    before: &mut dyn FnMut(&Node, usize, usize) -> Result<()>,
) -> Result<()> {
    let pool = float_forward.pool();
    let grids = grids(plan, encodings)?;
    let mut clipped = BTreeMap::<usize, (u64, u64)>::new();
    let mut count = |node: &Node, values: &[f32]| {
        if let Some((slot, grid)) = plan.produced[node.output.0 as usize].and_then(|slot| Some((slot, grids[slot]?))) {
            let counts = clipped.entry(slot).or_default();
            counts.0 += count_clipped(values, &grid, &pool);
            counts.1 += values.len() as u64;
        }
        Ok(())
    };
    let ignore = &mut |_: &Node, _: &[f32]| Ok(());
    let mut a = Sequence::new(float, inputs, true)?;
    let mut b = Sequence::new(quantized, inputs, true)?;
    float_forward.advance(&mut a, &mut count)?;
    quantized_forward.advance(&mut b, ignore)?;
    let (mut done, total) = (0, a.matrices());
    while let (Some(node), Some(twin)) = (a.next_matrix(), b.next_matrix()) {
        if node.name != twin.name {
            return Err(Error::internal(format!("{} stands where {} should", twin.name, node.name)));
        }
        before(node, done, total)?;
        let mut exact = Vec::new();
        let matrix = float_forward.matrix(&a)?;
        float_forward.multiply(&mut a, &matrix, &mut |node, values| {
            exact.extend_from_slice(values);
            count(node, values)
        })?;
        let matrix = quantized_forward.matrix(&b)?;
        let mut error = None;
        quantized_forward.multiply(&mut b, &matrix, &mut |_, values| {
            error = Some(sqnr(&exact, values));
            Ok(())
        })?;
        comparison.add(&node.name, error.unwrap_or_default());
        float_forward.advance(&mut a, &mut count)?;
        quantized_forward.advance(&mut b, ignore)?;
        done += 1;
    }
    for info in float.output_infos() {
        let error = sqnr(a.output(&info.name)?, b.output(&info.name)?);
        comparison.add(&format!("output {}", info.name), error);
    }
    for (slot, (outside, all)) in clipped.into_iter().filter(|(_, (outside, _))| *outside > 0) {
        let share = outside as f64 / all.max(1) as f64;
        comparison.clipping.push(SlotCheck { slot: plan.slots[slot].name.clone(), clipped: share });
    }
    Ok(())
}

impl Comparison {
    fn add(&mut self, layer: &str, error: Option<f64>) {
        match self.layers.iter_mut().find(|known| known.layer == layer) {
            Some(known) => known.sqnr_db.push(error),
            None => self.layers.push(LayerError { layer: layer.into(), sqnr_db: vec![error] }),
        }
    }
}

/// By slot; none where being outside is harmless (scores that softmax makes nothing of) or cannot happen.
fn grids(plan: &GraphPlan, encodings: &Encodings) -> Result<Vec<Option<Grid>>> {
    let grid = |slot: &super::plan::Slot| match slot.range {
        RangeRule::Observed(_) => {
            let encoding = encodings.get(&slot.name)?;
            Ok(Some(Grid::new(encoding.scale, encoding.zero_point, encoding.qmin, encoding.qmax)))
        }
        RangeRule::ObservedScores(_) | RangeRule::Fixed(_) | RangeRule::OfTable(_) => Ok(None),
    };
    plan.slots.iter().map(grid).collect()
}

fn count_clipped(values: &[f32], grid: &Grid, pool: &Pool) -> u64 {
    let count = Mutex::new(0);
    pool.run(values.len().div_ceil(PIECE), &|piece| {
        let part = &values[piece * PIECE..values.len().min((piece + 1) * PIECE)];
        let outside = part.iter().filter(|value| grid.clips(**value)).count() as u64;
        *count.lock() += outside;
    });
    count.into_inner()
}

/// Signal to quantization noise in decibels; `None` if there is no noise.
fn sqnr(exact: &[f32], found: &[f32]) -> Option<f64> {
    let signal: f64 = exact.iter().map(|x| f64::from(*x).powi(2)).sum();
    let noise: f64 = exact.iter().zip(found).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (noise > 0.0).then(|| 10.0 * (signal / noise).log10())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decibels_are_those_of_the_formula() {
        assert_eq!(sqnr(&[3.0, 4.0], &[3.0, 4.0]), None);
        assert!((sqnr(&[10.0, 0.0], &[9.0, 0.0]).unwrap() - 20.0).abs() < 1e-9);
        let layer = LayerError { layer: "x".into(), sqnr_db: vec![None, Some(10.0), Some(30.0)] };
        assert_eq!(layer.mean_db(), Some(20.0));
        assert_eq!(LayerError { layer: "x".into(), sqnr_db: vec![None] }.mean_db(), None);
    }

    #[test]
    fn values_outside_of_a_grid_are_counted() {
        let grid = Grid::new(0.5, 0, 0, 10);
        assert_eq!(count_clipped(&[-1.0, 0.0, 5.0, 5.2, 6.0], &grid, &Pool::new(2)), 2);
    }
}
