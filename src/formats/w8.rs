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
/// The f16 scale just above absmax/127 never clips; the nearest one may be better although it does. The one with the
/// smaller squared error wins, so data that already lies on such a grid comes back unchanged.
fn quantize_group(weights: &[f32]) -> (f16, [i8; GROUP]) {
    let ideal = largest(weights).1.abs() / Q_MAX;
    let nearest = f16::from_f32(ideal);
    let above = if nearest.to_f32() < ideal { f16::from_bits(nearest.to_bits() + 1) } else { nearest };
    let (first, second) = (with_scale(weights, nearest), with_scale(weights, above));
    if first.0 <= second.0 { (nearest, first.1) } else { (above, second.1) }
}

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
