//! Scales that are smaller than the largest weight asks for: it is clipped, all others are rounded more finely.
//!
//! Which scale is best depends on the inputs: what counts is the error of the outputs, summed over all inputs seen.

use super::metric::{OutputError, lane_products};
use super::moments::InputMoments;
use super::tiles::{Tiles, side_by_side};
use super::weight::{BlockScales, LPBQ_MULTIPLIER_BITS, WeightScales, round_to_whole};
use crate::engine::cpu::kernels::{Kernels, PANEL};
use crate::engine::cpu::pool::Pool;
use serde::{Deserialize, Serialize};

/// Smallest factor that is tried for a row or block: below half of the largest weight, clipping costs more than finer
/// steps gain at any width.
const LEAST: f32 = 0.4;
/// Share of the weights that a layer's factor may clip. Where one input dwarfs all others, as massive activations of the first
/// token do in front of some matrices, the mean square alone asks for scales that suit the weights of that input and clip most
/// others.
const MOST_CLIPPED: f64 = 0.25;
/// How far from the nearest multiplier the best one is looked for: the error of a block has several minima.
const NEIGHBOURS: i16 = 2;
/// Scale of a block of zeros, that of [`QuantDtype::weight_encoding`](super::QuantDtype::weight_encoding).
const LEAST_SCALE: f32 = 1e-4 / 65535.0;

/// What has a factor of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchGranularity {
    /// All scales of a layer share one, found as upstream's SeqMSE does, but over all calibration data, and none that clips
    /// more than a quarter of the weights.
    Layer,
    /// Each output channel.
    Channel,
    /// Each block; a whole channel where weights have no blocks.
    Block,
}

/// The better ones of `scales`, by what `values` rounded to the nearest integers do on inputs with these moments.
pub(super) fn search(
    values: &[f32],
    cols: usize,
    scales: WeightScales,
    granularity: SearchGranularity,
    candidates: usize,
    moments: &InputMoments,
    pool: &Pool,
) -> WeightScales {
    let shared = matches!(&scales, WeightScales::Grids(grids) if grids.len() == 1);
    match (granularity, &scales) {
        (SearchGranularity::Block, WeightScales::Blocks { .. }) => {
            by_block(values, cols, scales, candidates, moments, pool)
        }
        (SearchGranularity::Channel | SearchGranularity::Block, _) if !shared => {
            by_channel(values, scales, candidates, &OutputError::new(moments, pool), pool)
        }
        _ => by_layer(values, scales, candidates, &OutputError::new(moments, pool), pool),
    }
}

/// Coarse then fine: `k / n`, then as many around the best. A later factor has to be better than all before, and not clip more
/// than [`MOST_CLIPPED`].
fn by_layer(
    values: &[f32],
    scales: WeightScales,
    candidates: usize,
    metric: &OutputError,
    pool: &Pool,
) -> WeightScales {
    let error = |factor: f32| metric.of_nearest(values, &scales.scaled(|_| factor), pool).iter().sum::<f64>();
    let better = |best: (f32, f64), factor: f32| {
        let error = error(factor);
        if error < best.1 { (factor, error) } else { best }
    };
    let least = least_factor(values, metric.cols(), &scales);
    let coarse = (1..=candidates).map(|k| k as f32 / candidates as f32).filter(|&factor| factor >= least);
    let best = coarse.fold((1.0, error(1.0)), better);
    let reach = 1.0 / candidates as f32;
    let fine = evenly((best.0 - reach).max(0.001), (best.0 + reach).min(1.0), candidates);
    let (factor, _) = fine.filter(|&factor| factor >= least).fold(best, better);
    scales.scaled(|_| factor)
}

/// The factor below which scales clip more than [`MOST_CLIPPED`] of the weights.
fn least_factor(values: &[f32], cols: usize, scales: &WeightScales) -> f32 {
    let length = scales.run_length(cols);
    let mut clipped_below = Vec::with_capacity(values.len());
    for (run, values) in values.chunks_exact(length).enumerate() {
        let grid = scales.grid(run * length / cols, run * length % cols);
        let reach = grid.scale * ((grid.qmax - grid.zero_point) as f32 + 0.5);
        clipped_below.extend(values.iter().map(|value| value.abs() / reach));
    }
    let kept = (values.len() as f64 * (1.0 - MOST_CLIPPED)) as usize;
    let (_, least, _) = clipped_below.select_nth_unstable_by(kept.min(values.len() - 1), f32::total_cmp);
    *least
}

/// `count` factors from `from` to `to`.
fn evenly(from: f32, to: f32, count: usize) -> impl Iterator<Item = f32> {
    let step = if count > 1 { (to - from) / (count - 1) as f32 } else { 0.0 };
    (0..count).map(move |k| from + step * k as f32)
}

/// Factors below 1 to try for a row or block.
fn factors(candidates: usize) -> impl Iterator<Item = f32> {
    evenly(1.0, LEAST, candidates.saturating_add(1)).skip(1)
}

/// The best of some factors for each row.
fn by_channel(
    values: &[f32],
    scales: WeightScales,
    candidates: usize,
    metric: &OutputError,
    pool: &Pool,
) -> WeightScales {
    let mut best: Vec<_> = metric.of_nearest(values, &scales, pool).into_iter().map(|error| (1.0, error)).collect();
    for factor in factors(candidates) {
        let errors = metric.of_nearest(values, &scales.scaled(|_| factor), pool);
        for (best, error) in best.iter_mut().zip(errors) {
            if error < best.1 {
                *best = (factor, error);
            }
        }
    }
    scales.scaled(|row| best[row].0)
}

/// The best of some factors for each block, judged by the inputs of that block alone; then the scale of the channel is
/// fixed, and of the multipliers around the nearest one the best is taken. A row for which that is no better than what it
/// had keeps that.
fn by_block(
    values: &[f32],
    cols: usize,
    scales: WeightScales,
    candidates: usize,
    moments: &InputMoments,
    pool: &Pool,
) -> WeightScales {
    let WeightScales::Blocks { size, mut rows, qmin, qmax } = scales else {
        return scales;
    };
    let search = BlockSearch::new(moments, size, (qmin, qmax), pool);
    pool.for_each_chunk(&mut rows, PANEL, &|panel, rows| {
        let first = panel * PANEL;
        search.improve(&values[first * cols..][..rows.len() * cols], rows, candidates);
    });
    WeightScales::Blocks { size, rows, qmin, qmax }
}

/// Tries scales of blocks, 16 rows side by side.
struct BlockSearch {
    size: usize,
    /// Moments of the inputs of each block.
    moments: Vec<Tiles>,
    /// Smallest and largest integer.
    levels: (f32, f32),
    kernels: Kernels,
}

/// One number a row.
type Lanes<T> = [T; PANEL];

impl BlockSearch {
    fn new(moments: &InputMoments, size: usize, levels: (i32, i32), pool: &Pool) -> Self {
        let (cols, kernels) = (moments.cols(), moments.kernels());
        let full = moments.normalized(pool);
        let block = |first: usize| {
            let corner = &full[first * cols + first..][..(size - 1) * cols + size];
            Tiles::transposed(&kernels, pool, corner, size, cols)
        };
        let moments = (0..cols).step_by(size).map(block).collect();
        Self { size, moments, levels: (levels.0 as f32, levels.1 as f32), kernels }
    }

    /// Better scales for up to 16 rows.
    fn improve(&self, values: &[f32], rows: &mut [BlockScales], candidates: usize) {
        let cols = values.len() / rows.len();
        let mut panel = vec![0.0; cols * PANEL];
        side_by_side(values, cols, &mut panel);
        let blocks: Vec<_> = panel.chunks_exact(self.size * PANEL).zip(&self.moments).collect();
        let mut trial = Trial::new(self);
        let alone: Vec<Lanes<f32>> = blocks.iter().map(|&block| trial.best_alone(block, candidates)).collect();
        let of_lane = |lane: usize| alone.iter().map(|scales| scales[lane]).collect::<Vec<_>>();
        let mut found: Vec<_> = (0..rows.len()).map(|lane| BlockScales::snap(&of_lane(lane))).collect();
        let (mut before, mut after) = ([0.0; PANEL], [0.0; PANEL]);
        for (number, &block) in blocks.iter().enumerate() {
            trial.improve_multipliers(block, number, &mut found);
            add(&mut before, trial.errors(block, &lanes(rows, number, 0)));
            add(&mut after, trial.errors(block, &lanes(&found, number, 0)));
        }
        for (lane, (row, found)) in rows.iter_mut().zip(found).enumerate() {
            if after[lane] < before[lane] {
                *row = found;
            }
        }
    }
}

/// The scales that block `block` has in each row, with multipliers `offset` away from their own.
fn lanes(rows: &[BlockScales], block: usize, offset: i16) -> Lanes<f32> {
    std::array::from_fn(|lane| rows.get(lane).map_or(1.0, |row| row.scale * f32::from(neighbour(row, block, offset))))
}

fn neighbour(row: &BlockScales, block: usize, offset: i16) -> u8 {
    (i16::from(row.multipliers[block]) + offset).clamp(1, 1 << LPBQ_MULTIPLIER_BITS) as u8
}

fn add(sums: &mut Lanes<f64>, terms: Lanes<f64>) {
    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
}

/// A block of 16 rows, `[inputs][16]`, and the moments of its inputs.
type Block<'a> = (&'a [f32], &'a Tiles);

/// Memory for trying scales of a block.
struct Trial<'a> {
    search: &'a BlockSearch,
    errors: Vec<f32>,
    products: Vec<f32>,
}

impl<'a> Trial<'a> {
    fn new(search: &'a BlockSearch) -> Self {
        let values = vec![0.0; search.size * PANEL];
        Self { search, errors: values.clone(), products: values }
    }

    /// The best scale of a block that need not be a multiple of anything.
    fn best_alone(&mut self, block: Block<'_>, candidates: usize) -> Lanes<f32> {
        let mut most = [0.0f32; PANEL];
        for weights in block.0.chunks_exact(PANEL) {
            most.iter_mut().zip(weights).for_each(|(most, weight)| *most = most.max(weight.abs()));
        }
        let whole = most.map(|most| (most / self.search.levels.1).max(LEAST_SCALE));
        let (mut best, mut least) = (whole, self.errors(block, &whole));
        for factor in factors(candidates) {
            let scales = whole.map(|scale| scale * factor);
            let errors = self.errors(block, &scales);
            for lane in 0..PANEL {
                if errors[lane] < least[lane] {
                    (best[lane], least[lane]) = (scales[lane], errors[lane]);
                }
            }
        }
        best
    }

    /// Give a block the best one of the multipliers around its own.
    fn improve_multipliers(&mut self, block: Block<'_>, number: usize, rows: &mut [BlockScales]) {
        let (mut best, mut least) = ([0; PANEL], self.errors(block, &lanes(rows, number, 0)));
        for offset in (-NEIGHBOURS..=NEIGHBOURS).filter(|&offset| offset != 0) {
            let errors = self.errors(block, &lanes(rows, number, offset));
            for lane in 0..PANEL {
                if errors[lane] < least[lane] {
                    (best[lane], least[lane]) = (offset, errors[lane]);
                }
            }
        }
        for (row, offset) in rows.iter_mut().zip(best) {
            row.multipliers[number] = neighbour(row, number, offset);
        }
    }

    /// What rounding with these scales does to the outputs.
    fn errors(&mut self, (weights, moments): Block<'_>, scales: &Lanes<f32>) -> Lanes<f64> {
        let (lo, hi) = self.search.levels;
        let inverse = scales.map(|scale| 1.0 / scale);
        for (errors, weights) in self.errors.chunks_exact_mut(PANEL).zip(weights.chunks_exact(PANEL)) {
            for lane in 0..PANEL {
                let level = round_to_whole((weights[lane] * inverse[lane]).max(lo).min(hi));
                errors[lane] = weights[lane] - level * scales[lane];
            }
        }
        moments.product(&self.search.kernels, 0..self.search.size, &self.errors, &mut self.products);
        lane_products(&self.errors, &self.products)
    }
}

#[cfg(test)]
mod tests {
    use super::super::metric::tests::{inputs, moments_of, noise, output_error};
    use super::*;
    use crate::quantize::{
        QuantDtype, QuantizedWeight, ScaleSearch, WeightGranularity, WeightOptions, quantize_weight,
    };
    use proptest::prelude::*;

    const SHAPE: (usize, usize) = (18, 24);

    fn searched(
        x: &[f32],
        values: &[f32],
        weights: WeightGranularity,
        granularity: SearchGranularity,
        candidates: usize,
    ) -> QuantizedWeight {
        let options =
            WeightOptions { scales: ScaleSearch::SeqMse { candidates, granularity }, ..WeightOptions::default() };
        let (moments, pool) = (moments_of(x, SHAPE.1), Pool::new(2));
        quantize_weight(values, SHAPE, QuantDtype::A16W4, weights, &options, Some(&moments), &pool).expect("fits")
    }

    fn nearest(values: &[f32], weights: WeightGranularity) -> QuantizedWeight {
        QuantizedWeight::nearest(values, SHAPE, QuantDtype::A16W4, weights).expect("fits")
    }

    fn total(x: &[f32], values: &[f32], weight: &QuantizedWeight) -> f64 {
        (0..SHAPE.0).map(|row| output_error(x, values, weight, row)).sum()
    }

    /// The procedure of the contract, on the outputs themselves.
    fn best_factor(x: &[f32], values: &[f32], plain: &QuantizedWeight, candidates: usize) -> (f32, f64) {
        let error = |factor: f32| {
            let scales = plain.scales().scaled(|_| factor);
            let rows = values.chunks_exact(SHAPE.1).enumerate();
            let levels = rows.flat_map(|(row, values)| {
                values
                    .iter()
                    .enumerate()
                    .map(|(col, &value)| scales.grid(row, col).quantize(value) as i16)
                    .collect::<Vec<_>>()
            });
            let weight = QuantizedWeight::from_parts(SHAPE, levels.collect(), scales.clone()).expect("fits");
            total(x, values, &weight)
        };
        let n = candidates as f32;
        let (mut best, mut least) = (1.0, error(1.0));
        for k in 1..=candidates {
            let factor = k as f32 / n;
            let error = error(factor);
            if error < least {
                (best, least) = (factor, error);
            }
        }
        let (from, to) = ((best - 1.0 / n).max(0.001), (best + 1.0 / n).min(1.0));
        for k in 0..candidates {
            let factor = from + (to - from) * k as f32 / (n - 1.0);
            let error = error(factor);
            if error < least {
                (best, least) = (factor, error);
            }
        }
        (best, least)
    }

    #[test]
    fn a_layer_gets_the_factor_of_the_contract() {
        for seed in 0..4 {
            let (x, values) = (inputs(70, SHAPE.1, seed), noise(SHAPE.0 * SHAPE.1, seed + 9));
            for weights in [WeightGranularity::PerTensor, WeightGranularity::PerChannel, WeightGranularity::PerBlock(8)]
            {
                let plain = nearest(&values, weights);
                let (factor, least) = best_factor(&x, &values, &plain, 10);
                let found = searched(&x, &values, weights, SearchGranularity::Layer, 10);
                let ratio = found.grid(0, 0).scale / plain.grid(0, 0).scale;
                let error = total(&x, &values, &found);
                assert!((ratio - factor).abs() < 1e-5 || (error - least).abs() < 1e-5 * least, "{ratio} {factor}");
            }
        }
    }

    #[test]
    fn one_input_that_dwarfs_the_others_does_not_clip_their_weights() {
        let (mut x, mut values) = (inputs(70, SHAPE.1, 6), noise(SHAPE.0 * SHAPE.1, 7));
        x[3] = 1e5;
        values.chunks_exact_mut(SHAPE.1).for_each(|row| row[3] *= 0.05);
        for weights in [WeightGranularity::PerTensor, WeightGranularity::PerChannel, WeightGranularity::PerBlock(8)] {
            let plain = nearest(&values, weights);
            assert!(best_factor(&x, &values, &plain, 20).0 < 0.4, "the mean square asks for it");
            let found = searched(&x, &values, weights, SearchGranularity::Layer, 20);
            let clipped = |&(at, value): &(usize, &f32)| {
                value.abs() > found.grid(at / SHAPE.1, at % SHAPE.1).covered().max * (7.5 / 7.0) * 1.0001
            };
            let share = values.iter().enumerate().filter(clipped).count() as f64 / values.len() as f64;
            assert!(share <= MOST_CLIPPED, "{weights:?}: {share}");
            assert!(total(&x, &values, &found) <= total(&x, &values, &plain));
        }
    }

    #[test]
    fn weights_are_rounded_on_the_scales_that_blocks_really_have() {
        let (x, values) = (inputs(70, SHAPE.1, 3), noise(SHAPE.0 * SHAPE.1, 4));
        let found = searched(&x, &values, WeightGranularity::PerBlock(8), SearchGranularity::Block, 20);
        for (at, &value) in values.iter().enumerate() {
            let grid = found.grid(at / SHAPE.1, at % SHAPE.1);
            assert_eq!(i32::from(found.levels()[at]), grid.quantize(value));
        }
        let blocks = found.block_scales().expect("blocks");
        assert!(blocks.iter().flat_map(|row| &row.multipliers).all(|multiplier| (1..=16).contains(multiplier)));
        assert!(total(&x, &values, &found) < total(&x, &values, &nearest(&values, WeightGranularity::PerBlock(8))));
    }

    #[test]
    fn one_candidate_and_weights_of_zero_are_no_exception() {
        let x = inputs(10, SHAPE.1, 5);
        let values = vec![0.0; SHAPE.0 * SHAPE.1];
        for weights in [WeightGranularity::PerTensor, WeightGranularity::PerChannel, WeightGranularity::PerBlock(8)] {
            for granularity in [SearchGranularity::Layer, SearchGranularity::Channel, SearchGranularity::Block] {
                let found = searched(&x, &values, weights, granularity, 1);
                assert!(found.levels().iter().all(|&level| level == 0));
                assert!((0..SHAPE.0).all(|row| found.grid(row, 0).scale > 0.0));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn what_was_searched_is_no_worse_than_min_max(seed in any::<u64>(), outlier in 1f32..8.0) {
            let (mut x, mut values) = (inputs(40, SHAPE.1, seed), noise(SHAPE.0 * SHAPE.1, !seed));
            values[5] *= outlier;
            x[7] *= outlier;
            let within = |found: f64, plain: f64| found <= plain * (1.0 + 1e-5) + 1e-9;
            for weights in [WeightGranularity::PerTensor, WeightGranularity::PerChannel, WeightGranularity::PerBlock(8)] {
                let plain = nearest(&values, weights);
                let layer = searched(&x, &values, weights, SearchGranularity::Layer, 6);
                prop_assert!(within(total(&x, &values, &layer), total(&x, &values, &plain)));
                if weights == WeightGranularity::PerTensor {
                    continue;
                }
                let channel = searched(&x, &values, weights, SearchGranularity::Channel, 6);
                for row in 0..SHAPE.0 {
                    let (found, plain) = (output_error(&x, &values, &channel, row), output_error(&x, &values, &plain, row));
                    prop_assert!(within(found, plain), "row {}: {} {}", row, found, plain);
                }
            }
            // Blocks are judged alone: by inputs of which all others are 0.
            let plain = nearest(&values, WeightGranularity::PerBlock(8));
            let found = searched(&x, &values, WeightGranularity::PerBlock(8), SearchGranularity::Block, 6);
            for row in 0..SHAPE.0 {
                let alone = |weight: &QuantizedWeight| {
                    let block = |block: usize| {
                        let keep = |(at, x): (usize, &f32)| if at % SHAPE.1 / 8 == block { *x } else { 0.0 };
                        let x: Vec<f32> = x.iter().enumerate().map(keep).collect();
                        output_error(&x, &values, weight, row)
                    };
                    (0..SHAPE.1 / 8).map(block).sum::<f64>()
                };
                prop_assert!(within(alone(&found), alone(&plain)), "row {}: {} {}", row, alone(&found), alone(&plain));
            }
        }
    }
}
