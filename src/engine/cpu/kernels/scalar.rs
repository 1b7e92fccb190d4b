//! Plain Rust kernels: the reference the others are tested against, and the way out on unknown processors.

use super::activations::IntRows;
use super::linear::Tile;
use crate::formats::{GROUP, PANEL_ROWS, w4, w8};
use half::f16;

super::instantiate!("scalar", f32);

/// Largest magnitude that is quantized to zeros, because 127 divided by less overflows.
pub(super) const TINY: f32 = 1e-35;

/// Quantize up to 32 values; returns scale and `scale · Σ q`.
pub(super) fn quantize_group(x: &[f32], quantized: &mut [i8]) -> (f32, f32) {
    quantized.fill(0);
    let largest = x.iter().fold(0.0f32, |max, v| if v.abs() > max || v.is_nan() { v.abs() } else { max });
    if largest < TINY {
        return (0.0, 0.0);
    }
    let (scale, inverse) = (largest / 127.0, 127.0 / largest);
    let mut sum = 0i32;
    for (q, &v) in quantized.iter_mut().zip(x) {
        *q = (v * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
        sum += i32::from(*q);
    }
    (scale, scale * sum as f32)
}

/// Value `row` of the f16 parameters of a group.
fn param(params: &[u8], group: usize, row: usize) -> f32 {
    let at = (group * PANEL_ROWS + row) * 2;
    f16::from_le_bytes([params[at], params[at + 1]]).to_f32()
}

fn panel_w8(panel: &[u8], x: IntRows<'_>, first: usize, tokens: usize, tile: &mut Tile) {
    let (values, scales) = w8::split(panel);
    tile[..tokens * PANEL_ROWS].fill(0.0);
    for (g, block) in values.chunks_exact(w8::BLOCK_BYTES).enumerate() {
        let mut weights = [[0i32; GROUP]; PANEL_ROWS];
        for (row, weights) in weights.iter_mut().enumerate() {
            for (column, w) in weights.iter_mut().enumerate() {
                *w = i32::from(block[w8::offset(row, column)].cast_signed());
            }
        }
        for t in 0..tokens {
            let at = g * x.rows + first + t;
            for (row, weights) in weights.iter().enumerate() {
                let dot = dot(weights, &x.quantized[at * GROUP..]);
                tile[t * PANEL_ROWS + row] += dot as f32 * param(scales, g, row) * x.scales[at];
            }
        }
    }
}

fn panel_w4(panel: &[u8], x: IntRows<'_>, first: usize, tokens: usize, tile: &mut Tile) {
    let (values, scales, minima) = w4::split(panel);
    tile[..tokens * PANEL_ROWS].fill(0.0);
    for (g, block) in values.chunks_exact(w4::BLOCK_BYTES).enumerate() {
        let mut weights = [[0i32; GROUP]; PANEL_ROWS];
        for (row, weights) in weights.iter_mut().enumerate() {
            for (column, w) in weights.iter_mut().enumerate() {
                *w = i32::from(w4::value(block, row, column));
            }
        }
        for t in 0..tokens {
            let at = g * x.rows + first + t;
            for (row, weights) in weights.iter().enumerate() {
                let dot = dot(weights, &x.quantized[at * GROUP..]);
                let scaled = dot as f32 * param(scales, g, row) * x.scales[at];
                tile[t * PANEL_ROWS + row] += scaled + param(minima, g, row) * x.sums[at];
            }
        }
    }
}

fn dot(weights: &[i32; GROUP], x: &[i8]) -> i32 {
    weights.iter().zip(x).map(|(w, &q)| w * i32::from(q)).sum()
}
