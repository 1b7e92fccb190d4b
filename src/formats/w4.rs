//! `w4` panels: affine int4 in groups of 32 columns.
//!
//! Layout: for each group 4 blocks of 64 bytes; byte `row·4 + c` of block `b` holds column `4b + c` in its low and
//! column `16 + 4b + c` in its high nibble. All groups one after the other (256 bytes each), then the scales
//! `[groups][16 rows]` f16, then the minima `[groups][16 rows]` f16.

use super::{GROUP, PANEL_ROWS, WeightFormat, bad_weight, groups};
use crate::error::Result;
use half::f16;

/// Bytes of quantized values a group.
pub(crate) const BLOCK_BYTES: usize = GROUP * PANEL_ROWS / 2;
/// Bytes a group, scales and minima included.
pub(crate) const GROUP_BYTES: usize = BLOCK_BYTES + 2 * PARAM_BYTES;
/// Bytes of the scales (or minima) of one group.
const PARAM_BYTES: usize = PANEL_ROWS * 2;
/// Largest quantized value.
const Q_MAX: f32 = 15.0;

/// The three parts of a panel: quantized values, scales, minima.
pub(crate) fn split(panel: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let groups = panel.len() / GROUP_BYTES;
    let (values, params) = panel.split_at(groups * BLOCK_BYTES);
    let (scales, minima) = params.split_at(groups * PARAM_BYTES);
    (values, scales, minima)
}

/// Byte of row `row`, column `column` (below 32) inside a group; columns from 16 on are in the high nibble.
fn offset(row: usize, column: usize) -> usize {
    let column = column % (GROUP / 2);
    (column / 4 * PANEL_ROWS + row) * 4 + column % 4
}

/// Quantize and store rows.
pub(super) fn pack(rows: &[f32], cols: usize, out: &mut [u8]) -> Result<()> {
    out.fill(0);
    let groups = groups(cols);
    let (values, params) = out.split_at_mut(groups * BLOCK_BYTES);
    let (scales, minima) = params.split_at_mut(groups * PARAM_BYTES);
    for (row, weights) in rows.chunks_exact(cols).enumerate() {
        for (group, weights) in weights.chunks(GROUP).enumerate() {
            let Some(fit) = quantize_group(weights) else {
                let (column, value) = outermost(weights);
                return Err(bad_weight(WeightFormat::W4, row, group * GROUP + column, value));
            };
            let at = group * PARAM_BYTES + row * 2;
            scales[at..at + 2].copy_from_slice(&fit.scale.to_le_bytes());
            minima[at..at + 2].copy_from_slice(&fit.min.to_le_bytes());
            for (column, &level) in fit.levels.iter().take(weights.len()).enumerate() {
                let shift = if column < GROUP / 2 { 0 } else { 4 };
                // Whole and at most 15.
                values[group * BLOCK_BYTES + offset(row, column)] |= (level as u8) << shift;
            }
        }
    }
    Ok(())
}

/// Quantized value of row `row`, column `column` of a group's block.
pub(crate) fn value(block: &[u8], row: usize, column: usize) -> u8 {
    let byte = block[offset(row, column)];
    if column < GROUP / 2 { byte & 15 } else { byte >> 4 }
}

/// Decode one row.
pub(super) fn read_row(panel: &[u8], row: usize, out: &mut [f32]) {
    let (values, scales, minima) = split(panel);
    for (group, out) in out.chunks_mut(GROUP).enumerate() {
        let at = group * PARAM_BYTES + row * 2;
        let scale = f16::from_le_bytes([scales[at], scales[at + 1]]).to_f32();
        let min = f16::from_le_bytes([minima[at], minima[at + 1]]).to_f32();
        let block = &values[group * BLOCK_BYTES..][..BLOCK_BYTES];
        for (column, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(value(block, row, column)) + min;
        }
    }
}

/// Index and value of the weight with the largest magnitude.
fn outermost(weights: &[f32]) -> (usize, f32) {
    let by_size = |a: &(usize, &f32), b: &(usize, &f32)| a.1.abs().total_cmp(&b.1.abs());
    weights.iter().enumerate().max_by(by_size).map_or((0, 0.0), |(i, &w)| (i, w))
}

/// A quantized group.
#[derive(Debug, Clone, Copy)]
struct Fit {
    scale: f16,
    min: f16,
    /// Quantized values: whole numbers, 0 to 15.
    levels: [f32; GROUP],
    /// Sum of the squared errors, with the parameters as stored.
    error: f32,
}

/// How many steps of a trial scale span the group's range: below 15 some levels stay unused, above 15 outliers are
/// clipped in favour of the rest.
const TRIAL_STEPS: [f32; 9] = [13.0, 14.0, 14.5, 15.0, 15.5, 16.0, 16.5, 17.0, 18.0];
/// Least-squares rounds after each trial.
const REFINEMENTS: usize = 2;
/// Distance from a grid point, in steps, up to which data counts as lying on the grid.
const ON_GRID: f32 = 0.05;
/// Error, in steps, that is not worth a search: f16 rounds 15 steps by up to a 140th of one.
const EXACT_ENOUGH: f32 = 0.008;

/// Best parameters found for one group (1 to 32 weights); `None` if f16 cannot hold them.
fn quantize_group(weights: &[f32]) -> Option<Fit> {
    let mut group = [*weights.first()?; GROUP];
    group[..weights.len()].copy_from_slice(weights);
    let low = group.iter().copied().fold(f32::INFINITY, f32::min);
    let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let range = high - low;
    let mut best = fit(&group, range / Q_MAX, low)?;
    if range == 0.0 {
        // The scale takes what f16 leaves of the common value.
        best.keep_better(fit(&group, low - best.min.to_f32(), best.min.to_f32()));
        return Some(best);
    }
    recover_grid(&group, low, high, &mut best);
    for steps in TRIAL_STEPS {
        if best.is_exact_enough() {
            break;
        }
        let mut trial = levels(&group, low, steps / range);
        for _ in 0..REFINEMENTS {
            let Some(refined) = least_squares(&group, low, &trial).and_then(|(s, m)| fit(&group, s, m)) else { break };
            trial = refined.levels;
            best.keep_better(Some(refined));
        }
    }
    Some(best)
}

impl Fit {
    /// Whether all that is lost is what rounding the parameters to f16 takes: no other grid would be better by much.
    fn is_exact_enough(&self) -> bool {
        let negligible = self.scale.to_f32() * EXACT_ENOUGH;
        self.error <= GROUP as f32 * negligible * negligible
    }

    fn keep_better(&mut self, other: Option<Fit>) {
        if let Some(other) = other.filter(|other| other.error < self.error) {
            *self = other;
        }
    }
}

/// Data that was 4-bit before lies on a grid of at most 16 levels, whose ends need not occur: find that grid again.
fn recover_grid(group: &[f32; GROUP], low: f32, high: f32, best: &mut Fit) {
    for intervals in (1..=15u8).rev() {
        let step = (high - low) / f32::from(intervals);
        let off_grid = |w: &f32| {
            let position = (w - low) / step;
            (position - position.round_ties_even()).abs() > ON_GRID
        };
        if group.iter().any(off_grid) {
            continue;
        }
        let step = f16::from_f32(step).to_f32();
        for unused in 0..=15 - intervals {
            let beyond = f32::from(unused) * step;
            // Symmetric formats count down from the top when their extreme value is positive.
            best.keep_better(fit(group, step, low - beyond));
            best.keep_better(fit(group, -step, high + beyond));
            if best.error == 0.0 {
                return;
            }
        }
    }
}

/// Round the parameters to f16 and quantize with them.
fn fit(group: &[f32; GROUP], scale: f32, min: f32) -> Option<Fit> {
    let (wanted, min) = (scale, f16::from_f32(min));
    let scale = match f16::from_f32(wanted) {
        // Tiny differences are better told apart coarsely than not at all.
        zero if zero == f16::ZERO && wanted != 0.0 => f16::MIN_POSITIVE_SUBNORMAL,
        scale => scale,
    };
    if !scale.is_finite() || !min.is_finite() {
        return None;
    }
    let (s, m) = (scale.to_f32(), min.to_f32());
    let levels = levels(group, m, if s == 0.0 { 0.0 } else { 1.0 / s });
    let error = total(|i| {
        let difference = group[i] - (s * levels[i] + m);
        difference * difference
    });
    Some(Fit { scale, min, levels, error })
}

/// Added to and taken from a float below 2²², rounds it to a whole number; unlike `round` that is one vector
/// instruction on every processor.
const TO_WHOLE: f32 = 12_582_912.0;

/// Nearest levels for a given minimum and inverse scale.
fn levels(group: &[f32; GROUP], min: f32, inverse: f32) -> [f32; GROUP] {
    std::array::from_fn(|i| ((group[i] - min) * inverse).clamp(0.0, Q_MAX) + TO_WHOLE - TO_WHOLE)
}

/// Scale and minimum with the least squared error for given levels; `None` if all levels are the same.
fn least_squares(group: &[f32; GROUP], origin: f32, levels: &[f32; GROUP]) -> Option<(f32, f32)> {
    let q = |i: usize| levels[i];
    let n = GROUP as f32;
    let (sum_q, sum_qq) = (total(q), total(|i| q(i) * q(i)));
    let (sum_w, sum_qw) = (total(|i| group[i] - origin), total(|i| q(i) * (group[i] - origin)));
    let determinant = n * sum_qq - sum_q * sum_q;
    if determinant <= 0.0 {
        return None;
    }
    let scale = (n * sum_qw - sum_q * sum_w) / determinant;
    Some((scale, origin + (sum_w - scale * sum_q) / n))
}

/// Sum over a group, in eight lanes: the compiler may not reorder a plain sum of floats into vectors.
fn total(term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; 8];
    for start in (0..GROUP).step_by(8) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{noise, round_trip};
    use super::*;

    fn h(x: f32) -> f32 {
        f16::from_f32(x).to_f32()
    }

    #[test]
    fn data_from_affine_4_bit_blocks_comes_back_unchanged() {
        let random = noise(11, 64 * 40);
        let groups = random.chunks_exact(64).flat_map(|r| {
            let (d, m) = (h(r[32].abs() * 0.01 + 1e-4), h(r[33] * 0.2));
            // Both ends of the range occur in a real block: its parameters were made from them.
            (0..32).map(move |i| match i {
                3 => m,
                17 => d * 15.0 + m,
                _ => d * ((r[i] + 1.0) * 7.99).floor() + m,
            })
        });
        let weights = groups.collect::<Vec<_>>();
        assert_eq!(round_trip(WeightFormat::W4, &weights, 320), weights);
    }

    #[test]
    fn data_from_symmetric_4_bit_blocks_comes_back_unchanged() {
        let random = noise(12, 64 * 40);
        let groups = random.chunks_exact(64).flat_map(|r| {
            let d = h(r[32] * 0.01);
            // The value with the largest magnitude has level -8.
            (0..32).map(move |i| if i == 5 { d * -8.0 } else { d * ((r[i] * 7.99).floor()) })
        });
        let weights = groups.collect::<Vec<_>>();
        assert_eq!(round_trip(WeightFormat::W4, &weights, 320), weights);
    }

    #[test]
    fn the_search_beats_plain_rounding_and_keeps_its_bound() {
        let weights = noise(13, 32 * 64);
        let (mut plain, mut searched) = (0.0, 0.0);
        for group in weights.chunks_exact(32) {
            let low = group.iter().copied().fold(f32::INFINITY, f32::min);
            let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let group: &[f32; GROUP] = group.try_into().expect("32 weights");
            plain += fit(group, (high - low) / Q_MAX, low).expect("fits f16").error;
            let fit = quantize_group(group).expect("fits f16");
            searched += fit.error;
            // Half a step for every weight, on average; clipped outliers are paid for by the rest.
            assert!((fit.error / 32.0).sqrt() <= 0.5 * (high - low) / Q_MAX);
        }
        assert!(searched < 0.95 * plain, "squared error {searched} against {plain}");
    }

    #[test]
    fn equal_weights_keep_twice_the_precision_of_f16() {
        for value in [0.0f32, 0.1, -3.3333, 65000.0, 1e-3] {
            let decoded = round_trip(WeightFormat::W4, &[value; 32], 32);
            assert!(decoded.iter().all(|w| (w - value).abs() <= value.abs() * 1e-6 + 3.1e-8), "{value}: {decoded:?}");
        }
    }

    #[test]
    fn tiny_weights_lose_at_most_the_smallest_f16() {
        let weights = noise(14, 32).into_iter().map(|w| w * 1e-7).collect::<Vec<_>>();
        let decoded = round_trip(WeightFormat::W4, &weights, 32);
        assert!(weights.iter().zip(&decoded).all(|(a, b)| (a - b).abs() < 1.2e-7), "{decoded:?}");
        let denormal = vec![f32::from_bits(3); 32];
        assert!(round_trip(WeightFormat::W4, &denormal, 32).iter().all(|&w| w.abs() < 6e-8));
    }

    #[test]
    fn weights_beyond_f16_are_an_error_that_names_the_place() {
        let mut rows = vec![0.5f32; 3 * 64];
        rows[2 * 64 + 40] = -70_000.0;
        let mut out = vec![0; WeightFormat::W4.panel_bytes(64).expect("small")];
        let message = pack(&rows, 64, &mut out).expect_err("must not fit").to_string();
        assert!(message.contains("row 2") && message.contains("column 40") && message.contains("w4"), "{message}");
    }
}
