//! AVX2: integer products for many rows.
//!
//! `vpmaddwd` multiplies 16-bit words and adds neighbours in 32 bits, exactly: as many products an instruction as
//! `vpmaddubsw` on the two digits of an activation, but without turning signs and widening sums for each. Weights are
//! unpacked to words once for all rows of a block, which pays from a few tiles on.

use super::activations::LARGEST;
use super::blocked::{TiledWords, WordKernels};
use super::scalar::TINY;
use super::vector::Vector;
use crate::formats::{GROUP, PANEL_ROWS};
use std::arch::x86_64::*;

/// Rows of a tile: twelve sums, two vectors of weights and two products in 16 registers.
const ROWS: usize = 6;
/// f32 lanes.
const LANES: usize = 8;

pub(super) static KERNELS: WordKernels = WordKernels { tile_rows: ROWS, quantize, unpack_w8, unpack_w4, tiled };

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantize(x: &[f32], words: &mut [i16]) -> (f32, f32) {
    let mut padded = [0.0f32; GROUP];
    let from = if x.len() < GROUP {
        padded[..x.len()].copy_from_slice(x);
        padded.as_ptr()
    } else {
        x.as_ptr()
    };
    // SAFETY: `from` points to 32 values; `words` has room for 32 (by the caller).
    unsafe {
        let values: [__m256; 4] = std::array::from_fn(|i| _mm256_loadu_ps(from.add(i * LANES)));
        let size = values.map(|v| v.abs());
        let largest = size[0].max(size[1]).max(size[2].max(size[3])).largest();
        let total = values[0].add(values[1]).add(values[2].add(values[3])).sum();
        if total.is_nan() || largest < TINY {
            words.fill(0);
            return if total.is_nan() { (f32::NAN, f32::NAN) } else { (0.0, 0.0) };
        }
        let (scale, inverse) = (largest / LARGEST, _mm256_set1_ps(LARGEST / largest));
        let q = values.map(|v| _mm256_cvtps_epi32(_mm256_mul_ps(v, inverse)));
        for half in 0..2 {
            // Packing works within 128-bit halves, hence the permutation.
            let packed = _mm256_packs_epi32(q[2 * half], q[2 * half + 1]);
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            _mm256_storeu_si256(words.as_mut_ptr().add(16 * half).cast(), packed);
        }
        let sums = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
        // Each lane and their sum are below 2²⁴: exact in f32.
        (scale, scale * _mm256_cvtepi32_ps(sums).sum())
    }
}

/// Bytes 0 and 1 (`[0]`) or 2 and 3 (`[1]`) of every lane to the upper halves of its words.
#[target_feature(enable = "avx2,fma,f16c")]
fn to_words() -> [__m256i; 2] {
    let low = _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13);
    let high = _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15);
    [_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high)]
}

/// Store bytes of four columns (columns `4 · step ..`) of eight rows (rows `8 · half ..`) as words, with their signs.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store_words(bytes: __m256i, step: usize, half: usize, words: &mut [i16]) {
    for (pair, order) in to_words().into_iter().enumerate() {
        let wide = _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(bytes, order));
        // SAFETY: `words` has 512 elements, by the caller; step is below 8 and half below 2.
        unsafe {
            let to = words.as_mut_ptr().add((2 * step + pair) * 2 * PANEL_ROWS + half * 2 * LANES);
            _mm256_storeu_si256(to.cast(), wide);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_w8(block: &[u8], words: &mut [i16]) {
    for step in 0..8 {
        for half in 0..2 {
            // SAFETY: a block has 512 bytes, by the caller; `words` as `store_words` wants it.
            unsafe {
                let bytes = _mm256_loadu_si256(block.as_ptr().add(step * 64 + half * 32).cast());
                store_words(bytes, step, half, words);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_w4(block: &[u8], words: &mut [i16]) {
    let nibble = _mm256_set1_epi8(15);
    for step in 0..4 {
        for half in 0..2 {
            // SAFETY: a block has 256 bytes, by the caller; `words` as `store_words` wants it.
            unsafe {
                let bytes = _mm256_loadu_si256(block.as_ptr().add(step * 64 + half * 32).cast());
                store_words(_mm256_and_si256(bytes, nibble), step, half, words);
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble);
                store_words(high, step + 4, half, words);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tiled(p: TiledWords<'_>) {
    for (tile, row) in (0..p.rows).step_by(ROWS).enumerate() {
        let rows = ROWS.min(p.rows - row);
        let mut results = Results([0.0; ROWS * PANEL_ROWS]);
        // SAFETY: as promised by the caller; each tile has `ROWS` rows of words, scales and sums.
        unsafe {
            let c = p.c.add(row * p.c_stride);
            if p.accumulate {
                results.load(c, p.c_stride, rows, p.cols);
            }
            match rows {
                1 => tile_of::<1>(p, tile, &mut results),
                2 => tile_of::<2>(p, tile, &mut results),
                3 => tile_of::<3>(p, tile, &mut results),
                4 => tile_of::<4>(p, tile, &mut results),
                5 => tile_of::<5>(p, tile, &mut results),
                _ => tile_of::<ROWS>(p, tile, &mut results),
            }
            results.store(c, p.c_stride, rows, p.cols);
        }
    }
}

/// Results of a tile, `[ROWS][16]`, apart from the output: its rows may lie a power of two apart, where a processor takes
/// a load for one of an earlier store.
#[repr(align(32))]
struct Results([f32; ROWS * PANEL_ROWS]);

impl Results {
    /// Take up what the output holds.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(&mut self, c: *const f32, stride: usize, rows: usize, cols: usize) {
        for (row, results) in self.0.chunks_exact_mut(PANEL_ROWS).take(rows).enumerate() {
            // SAFETY: the output has `rows` rows of `cols` values, by the caller.
            unsafe {
                let c = c.add(row * stride);
                if cols == PANEL_ROWS {
                    _mm256_storeu_ps(results.as_mut_ptr(), _mm256_loadu_ps(c));
                    _mm256_storeu_ps(results.as_mut_ptr().add(LANES), _mm256_loadu_ps(c.add(LANES)));
                } else {
                    std::ptr::copy_nonoverlapping(c, results.as_mut_ptr(), cols);
                }
            }
        }
    }

    /// Write the output.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn store(&self, c: *mut f32, stride: usize, rows: usize, cols: usize) {
        for (row, results) in self.0.chunks_exact(PANEL_ROWS).take(rows).enumerate() {
            // SAFETY: as in `load`.
            unsafe {
                let c = c.add(row * stride);
                if cols == PANEL_ROWS {
                    _mm256_storeu_ps(c, _mm256_loadu_ps(results.as_ptr()));
                    _mm256_storeu_ps(c.add(LANES), _mm256_loadu_ps(results.as_ptr().add(LANES)));
                } else {
                    std::ptr::copy_nonoverlapping(results.as_ptr(), c, cols);
                }
            }
        }
    }
}

/// Add the products of all groups to the first `MT` rows of a tile.
///
/// Not inlined, so that the results stay where they are: all registers are taken by the sums.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile_of<const MT: usize>(p: TiledWords<'_>, tile: usize, results: &mut Results) {
    let results = results.0.as_mut_ptr();
    for g in 0..p.groups {
        // SAFETY: the groups are within the slice, the tile within A, by the caller; `MT` is at most `ROWS`.
        unsafe {
            let a = p.a.add(tile * p.a_tile + g * GROUP * ROWS);
            let dots = dots::<MT>(a, p.slice.words.as_ptr().add(g * GROUP * PANEL_ROWS));
            let (x_scales, x_sums) =
                (p.scales.add(tile * p.params_tile + g * ROWS), p.sums.add(tile * p.params_tile + g * ROWS));
            let scales = p.slice.scales.as_ptr().add(g * PANEL_ROWS);
            let minima = p.slice.minima.as_ptr().add(g * PANEL_ROWS);
            for (t, dots) in dots.into_iter().enumerate() {
                let (scale, sum) = (_mm256_broadcast_ss(&*x_scales.add(t)), _mm256_broadcast_ss(&*x_sums.add(t)));
                for (half, dot) in dots.into_iter().enumerate() {
                    let to = results.add(t * PANEL_ROWS + half * LANES);
                    let mut y = _mm256_loadu_ps(to);
                    if p.affine {
                        y = _mm256_fmadd_ps(_mm256_loadu_ps(minima.add(half * LANES)), sum, y);
                    }
                    let product = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), _mm256_loadu_ps(scales.add(half * LANES)));
                    _mm256_storeu_ps(to, _mm256_fmadd_ps(product, scale, y));
                }
            }
        }
    }
}

/// Dot products of one group: `MT` rows with the panel's 16.
///
/// No overflow: 32 · 127 · 32512 = 132120768. Two steps of the loop must not become one: the compiler would add their
/// products up first, integers being associative, and run out of registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<const MT: usize>(a: *const i16, weights: *const i16) -> [[__m256i; 2]; MT] {
    let mut sums = [[_mm256_setzero_si256(); 2]; MT];
    for pair in 0..GROUP / 2 {
        // SAFETY: `a` points to `[16][ROWS][2]` words, `weights` to `[16][16][2]`, by the caller.
        unsafe {
            let weights = weights.add(pair * 2 * PANEL_ROWS);
            let upper = _mm256_loadu_si256(weights.cast());
            let lower = _mm256_loadu_si256(weights.add(2 * LANES).cast());
            for (t, sums) in sums.iter_mut().enumerate() {
                let x = _mm256_set1_epi32(a.add((pair * ROWS + t) * 2).cast::<i32>().read_unaligned());
                sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(upper, x));
                sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(lower, x));
            }
        }
    }
    sums
}
