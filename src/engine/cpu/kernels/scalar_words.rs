//! Plain Rust integer products for many rows, what `avx2_words` is tested against.

use super::blocked::{TiledWords, WordKernels};
use super::scalar::quantize_words;
use crate::formats::{GROUP, PANEL_ROWS, w4, w8};

/// Rows of a tile.
const ROWS: usize = 4;

pub(super) static KERNELS: WordKernels =
    WordKernels { tile_rows: ROWS, quantize: quantize_words, unpack_w8, unpack_w4, tiled };

fn unpack_w8(block: &[u8], words: &mut [i16]) {
    unpack(words, |row, column| i16::from(block[w8::offset(row, column)].cast_signed()));
}

fn unpack_w4(block: &[u8], words: &mut [i16]) {
    unpack(words, |row, column| i16::from(w4::value(block, row, column)));
}

/// `[16 pairs of columns][16 rows][2]`
fn unpack(words: &mut [i16], value: impl Fn(usize, usize) -> i16) {
    for (pair, words) in words.chunks_exact_mut(2 * PANEL_ROWS).enumerate() {
        for (row, words) in words.chunks_exact_mut(2).enumerate() {
            words.copy_from_slice(&[value(row, 2 * pair), value(row, 2 * pair + 1)]);
        }
    }
}

unsafe fn tiled(p: TiledWords<'_>) {
    for row in 0..p.rows {
        let (tile, lane) = (row / ROWS, row % ROWS);
        // SAFETY: the row's results, words, scales and sums are inside what the caller promises.
        unsafe {
            let c = std::slice::from_raw_parts_mut(p.c.add(row * p.c_stride), p.cols);
            if !p.accumulate {
                c.fill(0.0);
            }
            for g in 0..p.groups {
                let words = std::slice::from_raw_parts(p.a.add(tile * p.a_tile + g * GROUP * ROWS), GROUP * ROWS);
                let at = tile * p.params_tile + g * ROWS + lane;
                let (scale, sum) = (*p.scales.add(at), if p.affine { *p.sums.add(at) } else { 0.0 });
                let dots = dots(&words[2 * lane..], &p.slice.words[g * GROUP * PANEL_ROWS..]);
                let params = g * PANEL_ROWS..(g + 1) * PANEL_ROWS;
                let params = p.slice.scales[params.clone()].iter().zip(&p.slice.minima[params]);
                for ((c, dot), (weight_scale, minimum)) in c.iter_mut().zip(dots).zip(params) {
                    let offset = if p.affine { minimum * sum } else { 0.0 };
                    *c += dot as f32 * weight_scale * scale + offset;
                }
            }
        }
    }
}

/// Dot products of one row's words of a group, pairs `2 · ROWS` apart, with the 16 rows of a panel; at most 32 · 127 ·
/// 32512 = 132120768.
fn dots(words: &[i16], weights: &[i16]) -> [i32; PANEL_ROWS] {
    let mut dots = [0; PANEL_ROWS];
    let pairs = words.chunks(2 * ROWS).zip(weights.chunks_exact(2 * PANEL_ROWS)).take(GROUP / 2);
    for (x, weights) in pairs {
        for (dot, weights) in dots.iter_mut().zip(weights.chunks_exact(2)) {
            *dot += i32::from(weights[0]) * i32::from(x[0]) + i32::from(weights[1]) * i32::from(x[1]);
        }
    }
    dots
}
