//! AVX-512 with VNNI: x86 processors since 2019 (server) and 2022 (desktop). One register holds the 16 rows of a panel
//! and `vpdpbusd` adds four byte products to each 32-bit lane without saturation.

use super::activations::{BASE, DIGITS, IntRows};
use super::blocked::WordKernels;
use super::linear::Tile;
use super::vector::Vector;
use crate::formats::{GROUP, PANEL_ROWS, w4, w8};
use std::arch::x86_64::*;

super::instantiate!("avx512-vnni", __m512, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");

/// `vpdpbusd` multiplies as many byte digits as a product of words would take instructions for.
const WORDS: Option<&WordKernels> = None;

/// Whether this processor can run the kernels of this file.
pub(super) fn is_supported() -> bool {
    super::avx2::is_supported()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
}

/// How far ahead of use weights are requested, bytes.
const PREFETCH: usize = 2048;

/// Sixteen f16 parameters of a group, as f32.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn params(from: *const u8) -> __m512 {
    // SAFETY: the caller's pointer is valid for 32 bytes.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(from.cast()) })
}

/// Four activation bytes in every lane.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn four(from: *const i8) -> __m512i {
    // SAFETY: the caller's pointer is valid for 4 bytes.
    _mm512_set1_epi32(unsafe { from.cast::<i32>().read_unaligned() })
}

/// Dot products of 32 unsigned weights a row (`weights[i]`: columns `4i ..`) with one group of activations. `start` are
/// what the sums of high and of low digits begin with.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn dot(weights: &[__m512i; 8], digits: *const i8, start: [__m512i; 2]) -> __m512 {
    let [mut high, mut low] = start;
    for (step, &weights) in weights.iter().enumerate() {
        // SAFETY: the caller's pointer is valid for 64 digits.
        unsafe {
            high = _mm512_dpbusd_epi32(high, weights, four(digits.add(4 * step)));
            low = _mm512_dpbusd_epi32(low, weights, four(digits.add(GROUP + 4 * step)));
        }
    }
    // Exact before the one rounding of the sum: each is below 2²⁴.
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(BASE as f32), _mm512_cvtepi32_ps(low))
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn panel_w4(panel: &[u8], x: IntRows<'_>, first: usize, tokens: usize, tile: &mut Tile) {
    let (values, scales, minima) = w4::split(panel);
    let nibble = _mm512_set1_epi8(15);
    tile[..tokens * PANEL_ROWS].fill(0.0);
    for (g, block) in values.chunks_exact(w4::BLOCK_BYTES).enumerate() {
        // SAFETY: a block has 256 bytes, `scales` and `minima` 32 bytes a group, `x` 64 digits and one scale and sum
        // for each group and row; token `t` is below `tokens`, for which `x` (from `first`) and the tile have room.
        // Prefetching any address is allowed.
        unsafe {
            let bytes: [__m512i; 4] = std::array::from_fn(|step| {
                let from = block.as_ptr().add(step * 64);
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(PREFETCH).cast());
                _mm512_loadu_si512(from.cast())
            });
            let weights: [__m512i; 8] = std::array::from_fn(|step| {
                let shifted = if step < 4 { bytes[step] } else { _mm512_srli_epi16::<4>(bytes[step - 4]) };
                _mm512_and_si512(shifted, nibble)
            });
            let (scale, min) = (params(scales.as_ptr().add(g * 32)), params(minima.as_ptr().add(g * 32)));
            for t in 0..tokens {
                let at = g * x.rows + first + t;
                let sum = dot(&weights, x.digits.as_ptr().add(at * DIGITS), [_mm512_setzero_si512(); 2]);
                let out = tile.as_mut_ptr().add(t * PANEL_ROWS);
                let y = _mm512_fmadd_ps(min, _mm512_set1_ps(*x.sums.as_ptr().add(at)), _mm512_loadu_ps(out));
                let factor = _mm512_set1_ps(*x.scales.as_ptr().add(at));
                _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_mul_ps(sum, scale), factor, y));
            }
        }
    }
}

/// Signed weights are made unsigned by adding 128; 128 · Σ activations is taken off again.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn panel_w8(panel: &[u8], x: IntRows<'_>, first: usize, tokens: usize, tile: &mut Tile) {
    let (values, scales) = w8::split(panel);
    let flip = _mm512_set1_epi8(-128);
    tile[..tokens * PANEL_ROWS].fill(0.0);
    for (g, block) in values.chunks_exact(w8::BLOCK_BYTES).enumerate() {
        // SAFETY: a block has 512 bytes, `scales` 32 bytes a group, `x` 64 digits and one scale for each group and
        // row; token `t` is below `tokens`, for which `x` (from `first`) and the tile have room. Prefetching any
        // address is allowed.
        unsafe {
            let weights: [__m512i; 8] = std::array::from_fn(|step| {
                let from = block.as_ptr().add(step * 64);
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(PREFETCH).cast());
                _mm512_xor_si512(_mm512_loadu_si512(from.cast()), flip)
            });
            let scale = params(scales.as_ptr().add(g * 32));
            for t in 0..tokens {
                let at = g * x.rows + first + t;
                let digits = x.digits.as_ptr().add(at * DIGITS);
                let start = [0, GROUP].map(|digit| {
                    let digits = std::slice::from_raw_parts(digits.add(digit), GROUP);
                    _mm512_set1_epi32(-128 * digits.iter().map(|&digit| i32::from(digit)).sum::<i32>())
                });
                let sum = dot(&weights, digits, start);
                let out = tile.as_mut_ptr().add(t * PANEL_ROWS);
                let factor = _mm512_set1_ps(*x.scales.as_ptr().add(at));
                _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_mul_ps(sum, scale), factor, _mm512_loadu_ps(out)));
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn quantize_group(x: &[f32], digits: &mut [i8]) -> (f32, f32) {
    // SAFETY: `is_supported` asks for AVX2 as well; lengths as promised by the caller.
    unsafe { (super::avx2::TABLE.quantize_group)(x, digits) }
}

/// Lanes below `n`.
#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    (1u16 << n) - 1
}

// SAFETY (all functions): instructions of AVX-512 F, BW, VL and DQ on a processor that has them, memory accesses as
// the caller promises.
impl Vector for __m512 {
    const LANES: usize = 16;
    const TILE_ROWS: usize = 12;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, n: usize) -> Self {
        unsafe { _mm512_maskz_loadu_ps(mask(n), from) }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, n: usize) {
        unsafe { _mm512_mask_storeu_ps(to, mask(n), self) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())))) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm512_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { _mm512_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { _mm512_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { _mm512_div_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, summand: Self) -> Self {
        unsafe { _mm512_fmadd_ps(self, factor, summand) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { _mm512_max_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { _mm512_min_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe { _mm512_abs_ps(self) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self) }
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        unsafe {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(self), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }
    }
    #[inline(always)]
    unsafe fn if_less(self, limit: Self, yes: Self, no: Self) -> Self {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self, limit), no, yes) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self) }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self) }
    }
}
