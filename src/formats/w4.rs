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
            for (column, q) in fit.values.iter().enumerate() {
                let shift = if column < GROUP / 2 { 0 } else { 4 };
                values[group * BLOCK_BYTES + offset(row, column)] |= q << shift;
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
    values: [u8; GROUP],
    error: f64,
}

/// Best parameters found for one group (1 to 32 weights); `None` if f16 cannot hold them.
fn quantize_group(weights: &[f32]) -> Option<Fit> {
    let low = weights.iter().copied().fold(f32::INFINITY, f32::min);
    let high = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    fit(weights, (high - low) / Q_MAX, low)
}

/// Round the parameters to f16 and quantize with them.
fn fit(weights: &[f32], scale: f32, min: f32) -> Option<Fit> {
    let (scale, min) = (f16::from_f32(scale), f16::from_f32(min));
    if !scale.is_finite() || !min.is_finite() {
        return None;
    }
    let (s, m) = (scale.to_f32(), min.to_f32());
    let inverse = if s == 0.0 { 0.0 } else { 1.0 / s };
    let mut values = [0u8; GROUP];
    let mut error = 0.0f64;
    for (q, &w) in values.iter_mut().zip(weights) {
        let level = ((w - m) * inverse + 0.5).clamp(0.0, Q_MAX);
        *q = level as u8;
        error += f64::from(w - (s * f32::from(*q) + m)).powi(2);
    }
    Some(Fit { scale, min, values, error })
}
