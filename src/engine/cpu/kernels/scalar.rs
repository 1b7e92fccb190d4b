//! Plain Rust kernels: the reference the others are tested against, and the way out on unknown processors.

use super::activations::{BASE, DIGITS, IntRows, LARGEST};
use super::blocked::WordKernels;
use super::linear::Tile;
use crate::formats::{GROUP, PANEL_ROWS, w4, w8};
use half::f16;

super::instantiate!("scalar", f32);

const WORDS: Option<&WordKernels> = Some(&super::scalar_words::KERNELS);

/// Largest magnitude that is quantized to zeros, because [`LARGEST`] divided by less overflows.
pub(super) const TINY: f32 = 1e-33;

/// Quantize up to 32 values; returns scale and `scale · Σ q`.
pub(super) fn quantize_group(x: &[f32], digits: &mut [i8]) -> (f32, f32) {
    digits.fill(0);
    let largest = x.iter().fold(0.0f32, |max, v| if v.abs() > max || v.is_nan() { v.abs() } else { max });
    if largest < TINY {
        return (0.0, 0.0);
    }
    let (scale, inverse) = (largest / LARGEST, LARGEST / largest);
    let mut sum = 0i32;
    let (high, low) = digits.split_at_mut(GROUP);
    for ((high, low), &v) in high.iter_mut().zip(low).zip(x) {
        let q = (v * inverse).round_ties_even().clamp(-LARGEST, LARGEST);
        let digit = (q * (1.0 / BASE as f32)).round_ties_even();
        (*high, *low) = (digit as i8, (q as i32 - BASE * digit as i32) as i8);
        sum += q as i32;
    }
    (scale, scale * sum as f32)
}

/// Quantize up to 32 values to whole words; the same numbers as [`quantize_group`] gives in digits.
pub(super) fn quantize_words(x: &[f32], words: &mut [i16]) -> (f32, f32) {
    let mut digits = [0; DIGITS];
    let scale_and_sum = quantize_group(x, &mut digits);
    let (high, low) = digits.split_at(GROUP);
    for ((word, &high), &low) in words.iter_mut().zip(high).zip(low) {
        *word = (BASE * i32::from(high) + i32::from(low)) as i16;
    }
    scale_and_sum
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
                let dot = dot(weights, &x.digits[at * DIGITS..]);
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
                let dot = dot(weights, &x.digits[at * DIGITS..]);
                let scaled = dot as f32 * param(scales, g, row) * x.scales[at];
                tile[t * PANEL_ROWS + row] += scaled + param(minima, g, row) * x.sums[at];
            }
        }
    }
}

/// At most 32 · 127 · 32512 = 132120768.
fn dot(weights: &[i32; GROUP], digits: &[i8]) -> i32 {
    let (high, low) = digits.split_at(GROUP);
    weights.iter().zip(high).zip(low).map(|((w, &high), &low)| w * (BASE * i32::from(high) + i32::from(low))).sum()
}
