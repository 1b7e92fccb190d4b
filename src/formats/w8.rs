//! `w8` panels: symmetric int8 in groups of 32 columns.
//!
//! Layout: for each group 8 steps of `[16 rows][4 columns]` i8 (512 bytes), all groups one after the other; then the
//! scales `[groups][16 rows]` f16. Four columns of a row lie together because that is what one lane of an 8-bit dot
//! product instruction consumes.

use super::{GROUP, PANEL_ROWS, WeightFormat, bad_weight, groups};
use crate::error::Result;
use half::f16;

/// Bytes of quantized values a group.
pub(crate) const BLOCK_BYTES: usize = GROUP * PANEL_ROWS;
/// Bytes a group, scales included.
pub(crate) const GROUP_BYTES: usize = BLOCK_BYTES + PANEL_ROWS * 2;
/// Largest magnitude of a quantized value.
const Q_MAX: f32 = 127.0;

/// Byte of row `row`, column `column` (below 32) inside a group.
pub(crate) fn offset(row: usize, column: usize) -> usize {
    (column / 4 * PANEL_ROWS + row) * 4 + column % 4
}

/// The two parts of a panel: quantized values and scales.
pub(crate) fn split(panel: &[u8]) -> (&[u8], &[u8]) {
    panel.split_at(panel.len() / GROUP_BYTES * BLOCK_BYTES)
}

/// Quantize and store rows.
pub(super) fn pack(rows: &[f32], cols: usize, out: &mut [u8]) -> Result<()> {
    out.fill(0);
    let (values, scales) = out.split_at_mut(groups(cols) * BLOCK_BYTES);
    for (row, weights) in rows.chunks_exact(cols).enumerate() {
        for (group, weights) in weights.chunks(GROUP).enumerate() {
            let (scale, quantized) = quantize_group(weights);
            if !scale.is_finite() {
                let (column, value) = largest(weights);
                return Err(bad_weight(WeightFormat::W8, row, group * GROUP + column, value));
            }
            let at = (group * PANEL_ROWS + row) * 2;
            scales[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            for (column, q) in quantized.iter().enumerate() {
                values[group * BLOCK_BYTES + offset(row, column)] = q.cast_unsigned();
            }
        }
    }
    Ok(())
}

/// Decode one row.
pub(super) fn read_row(panel: &[u8], row: usize, out: &mut [f32]) {
    let (values, scales) = split(panel);
    for (group, out) in out.chunks_mut(GROUP).enumerate() {
        let at = (group * PANEL_ROWS + row) * 2;
        let scale = f16::from_le_bytes([scales[at], scales[at + 1]]).to_f32();
        for (column, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(values[group * BLOCK_BYTES + offset(row, column)].cast_signed());
        }
    }
}

/// Index and value of the weight with the largest magnitude.
fn largest(weights: &[f32]) -> (usize, f32) {
    let mut best = (0, 0.0f32);
    for (i, &w) in weights.iter().enumerate() {
        if w.abs() > best.1.abs() {
            best = (i, w);
        }
    }
    best
}

/// Scale and values of one group (at most 32 weights; the rest is zero).
///
/// The f16 scale just above absmax/127 never clips; the nearest one may be better although it does; and data that was
/// 8-bit before may lie on a coarser grid, of which the ends do not occur in this group. The one with the smallest squared
/// error wins, so data that already lies on such a grid comes back unchanged, up to what f16 leaves of its scale.
fn quantize_group(weights: &[f32]) -> (f16, [i8; GROUP]) {
    let most = largest(weights).1.abs();
    let ideal = most / Q_MAX;
    let nearest = f16::from_f32(ideal);
    let above = if nearest.to_f32() < ideal { f16::from_bits(nearest.to_bits() + 1) } else { nearest };
    let (mut scale, (mut error, mut quantized)) = (nearest, with_scale(weights, nearest));
    for other in [above].into_iter().chain(grids(weights, most)) {
        if error == 0.0 {
            break;
        }
        let fit = with_scale(weights, other);
        if fit.0 < error {
            (scale, error, quantized) = (other, fit.0, fit.1);
        }
    }
    (scale, quantized)
}

/// Steps of grids that all weights lie on, with `most`, the largest magnitude, at one of the levels 126 to 1: none for most
/// groups, several for one with few different weights.
fn grids(weights: &[f32], most: f32) -> impl Iterator<Item = f16> {
    let inverse = most.recip();
    let most_levels = if inverse.is_normal() { 126u8 } else { 0 };
    (1..=most_levels).rev().map(f32::from).filter_map(move |levels| {
        let off_grid = |w: &f32| {
            let position = w * inverse * levels;
            (position - (position + TO_WHOLE - TO_WHOLE)).abs() > ON_GRID
        };
        (!weights.iter().any(off_grid)).then(|| f16::from_f32(most / levels))
    })
}

/// Distance from a grid point, in steps, up to which data counts as lying on the grid: a little more than rounding to f32
/// leaves.
const ON_GRID: f32 = 1e-3;
/// Added to and taken from a float below 2²², rounds it to a whole number; unlike `round` that is one vector instruction on
/// every processor.
const TO_WHOLE: f32 = 12_582_912.0;

/// Squared error and values for a given scale.
fn with_scale(weights: &[f32], scale: f16) -> (f64, [i8; GROUP]) {
    let scale = scale.to_f32();
    let mut quantized = [0i8; GROUP];
    let mut error = 0.0f64;
    for (q, &w) in quantized.iter_mut().zip(weights) {
        if scale > 0.0 {
            // In range by the clamp; the division keeps exact multiples exact.
            *q = (w / scale).round_ties_even().clamp(-Q_MAX, Q_MAX) as i8;
        }
        error += f64::from(w - scale * f32::from(*q)).powi(2);
    }
    (error, quantized)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{noise, round_trip};
    use super::*;

    #[test]
    fn data_from_8_bit_blocks_comes_back_unchanged() {
        let random = noise(21, 64 * 40);
        let groups = random.chunks_exact(64).flat_map(|r| {
            let d = f16::from_f32(r[32].abs() * 0.01 + 1e-4).to_f32();
            // The value with the largest magnitude has level 127 in a real block.
            (0..32).map(move |i| if i == 9 { d * 127.0 } else { d * (r[i] * 127.0).round() })
        });
        let weights = groups.collect::<Vec<_>>();
        assert_eq!(round_trip(WeightFormat::W8, &weights, 320), weights);
    }

    #[test]
    fn grids_whose_ends_do_not_occur_are_found_again() {
        for (seed, scale) in [(23, 0.0123f32), (24, 3e-4), (25, 7.7)] {
            let random = noise(seed, 64 * 32);
            let scale = f16::from_f32(scale).to_f32();
            // Groups of one channel: each uses another part of the channel's 255 levels.
            let level = |i: usize| (random[i] * (5.0 + (i / 32) as f32)).round();
            let weights = (0..random.len()).map(|i| scale * level(i)).collect::<Vec<_>>();
            assert_eq!(round_trip(WeightFormat::W8, &weights, 64), weights);
            // A scale that f16 does not have costs its rounding and no level.
            let between = scale * 1.000_2;
            let weights = (0..random.len()).map(|i| between * level(i)).collect::<Vec<_>>();
            let decoded = round_trip(WeightFormat::W8, &weights, 64);
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= a.abs() / 2048.0;
            assert!(weights.iter().zip(&decoded).all(close), "{scale}");
        }
    }

    #[test]
    fn the_error_stays_below_half_a_step() {
        for size in [1.0f32, 1e-3, 1e4] {
            let weights = noise(22, 5 * 96).into_iter().map(|w| w * size).collect::<Vec<_>>();
            let decoded = round_trip(WeightFormat::W8, &weights, 96);
            // The scale is rounded to f16, in the range of its subnormals too.
            let step = size / Q_MAX * (1.0 + 2e-3) + 6e-8;
            let worst = weights.iter().zip(&decoded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= 0.5 * step, "{worst} for weights up to {size}");
        }
    }

    #[test]
    fn tiny_weights_become_zero_or_stay_close() {
        for value in [f32::from_bits(1), 1e-12, 1e-6, 5e-6] {
            let decoded = round_trip(WeightFormat::W8, &[value; 32], 32);
            assert!(decoded.iter().all(|w| (w - value).abs() < 4e-6), "{value:e}: {decoded:?}");
        }
    }

    #[test]
    fn weights_beyond_the_scale_are_an_error_that_names_the_place() {
        let mut rows = vec![0.5f32; 2 * 64];
        rows[64 + 3] = 1e9;
        let mut out = vec![0; WeightFormat::W8.panel_bytes(64).expect("small")];
        let message = pack(&rows, 64, &mut out).expect_err("must not fit").to_string();
        assert!(message.contains("row 1") && message.contains("column 3,"), "{message}");
    }
}
