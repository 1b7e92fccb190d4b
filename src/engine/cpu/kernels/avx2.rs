//! AVX2 with FMA and F16C: x86 processors since 2013.
//!
//! Integer products use `vpmaddubsw` (unsigned · signed bytes, neighbours added in 16 bits, saturating). Saturation
//! never happens: see the bounds at each use.

use super::activations::{BASE, DIGITS, IntRows, LARGEST};
use super::blocked::WordKernels;
use super::linear::Tile;
use super::scalar::TINY;
use super::vector::Vector;
use crate::formats::{GROUP, PANEL_ROWS, w4, w8};
use std::arch::x86_64::*;

super::instantiate!("avx2", __m256, "avx2,fma,f16c");

const WORDS: Option<&WordKernels> = Some(&super::avx2_words::KERNELS);

/// Whether this processor can run the kernels of this file.
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// Rows that one register holds.
const LANES: usize = 8;
/// How far ahead of use weights are requested, bytes: the hardware's own prefetcher stops at page ends.
const PREFETCH: usize = 2048;

/// Eight f16 parameters of a group, as f32.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn params(from: *const u8) -> __m256 {
    // SAFETY: the caller's pointer is valid for 16 bytes.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(from.cast()) })
}

/// Four activation bytes in every lane.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn four(from: *const i8) -> __m256i {
    // SAFETY: the caller's pointer is valid for 4 bytes.
    _mm256_set1_epi32(unsafe { from.cast::<i32>().read_unaligned() })
}

/// Pairs of 16-bit sums of high and of low digits, put together in 32 bits, as f32.
#[target_feature(enable = "avx2,fma,f16c")]
fn widen([high, low]: [__m256i; 2]) -> __m256 {
    let high = _mm256_madd_epi16(high, _mm256_set1_epi16(BASE as i16));
    _mm256_cvtepi32_ps(_mm256_add_epi32(high, _mm256_madd_epi16(low, _mm256_set1_epi16(1))))
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn panel_w4(panel: &[u8], x: IntRows<'_>, first: usize, tokens: usize, tile: &mut Tile) {
    // SAFETY: as promised by the caller of either.
    unsafe {
        if tokens == 1 {
            one_w4(panel, x, first, tile);
        } else {
            many_w4(panel, x, first, tokens, tile);
        }
    }
}

/// One token: all 16 rows at once, the sums stay in registers, the panel is read front to back.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn one_w4(panel: &[u8], x: IntRows<'_>, token: usize, tile: &mut Tile) {
    let (values, scales, minima) = w4::split(panel);
    let nibble = _mm256_set1_epi8(15);
    let mut results = [_mm256_setzero_ps(); 2];
    for (g, block) in values.chunks_exact(w4::BLOCK_BYTES).enumerate() {
        let at = g * x.rows + token;
        // SAFETY: a block has 256 bytes, `scales` and `minima` 32 bytes a group, `x` 64 digits and one scale and sum
        // for each group and row. Prefetching any address is allowed.
        // No saturation: 8 · 2 · 15 · 127 = 30480.
        unsafe {
            let digits = x.digits.as_ptr().add(at * DIGITS);
            let mut dots = [[_mm256_setzero_si256(); 2]; 2];
            for step in 0..4 {
                let from = block.as_ptr().add(step * 64);
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(PREFETCH).cast());
                for (half, dots) in dots.iter_mut().enumerate() {
                    let bytes = _mm256_loadu_si256(from.add(half * 32).cast());
                    let first = _mm256_and_si256(bytes, nibble);
                    let second = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble);
                    for (digit, dot) in dots.iter_mut().enumerate() {
                        let digits = digits.add(digit * GROUP + 4 * step);
                        *dot = _mm256_add_epi16(*dot, _mm256_maddubs_epi16(first, four(digits)));
                        *dot = _mm256_add_epi16(*dot, _mm256_maddubs_epi16(second, four(digits.add(16))));
                    }
                }
            }
            let (scale, sum) = (_mm256_set1_ps(x.scales[at]), _mm256_set1_ps(x.sums[at]));
            for (half, result) in results.iter_mut().enumerate() {
                let at = g * 32 + half * 16;
                let (weight_scale, minimum) = (params(scales.as_ptr().add(at)), params(minima.as_ptr().add(at)));
                *result = _mm256_fmadd_ps(_mm256_mul_ps(widen(dots[half]), weight_scale), scale, *result);
                *result = _mm256_fmadd_ps(minimum, sum, *result);
            }
        }
    }
    for (half, result) in results.into_iter().enumerate() {
        // SAFETY: a tile holds more than 16 values.
        unsafe { _mm256_storeu_ps(tile.as_mut_ptr().add(half * LANES), result) };
    }
}

/// Several tokens: a group's nibbles are unpacked once, then used for two tokens at a time.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn many_w4(panel: &[u8], x: IntRows<'_>, first: usize, tokens: usize, tile: &mut Tile) {
    let (values, scales, minima) = w4::split(panel);
    let nibble = _mm256_set1_epi8(15);
    tile[..tokens * PANEL_ROWS].fill(0.0);
    for (g, block) in values.chunks_exact(w4::BLOCK_BYTES).enumerate() {
        // SAFETY: as in `one_w4`; `tokens` rows of `x` from row `first` and of the tile exist.
        unsafe {
            let load = |i: usize| _mm256_loadu_si256(block.as_ptr().add(i * 32).cast());
            let bytes: [__m256i; 8] = std::array::from_fn(load);
            let low = bytes.map(|b| _mm256_and_si256(b, nibble));
            let high = bytes.map(|b| _mm256_and_si256(_mm256_srli_epi16::<4>(b), nibble));
            let (s, m) = (scales.as_ptr().add(g * 32), minima.as_ptr().add(g * 32));
            let group = GroupW4 {
                weights: [low, high],
                scales: [params(s), params(s.add(16))],
                minima: [params(m), params(m.add(16))],
            };
            for t in (0..tokens).step_by(2) {
                let (at, out) = (g * x.rows + first + t, tile.as_mut_ptr().add(t * PANEL_ROWS));
                match tokens - t {
                    1 => group.multiply::<1>(x, at, out),
                    _ => group.multiply::<2>(x, at, out),
                }
            }
        }
    }
}

/// A group of a panel, ready to be multiplied with many tokens.
struct GroupW4 {
    /// Columns 0 to 15, then 16 to 31; of these eight registers: four columns of rows 0 to 7, of rows 8 to 15, the next
    /// four columns, …
    weights: [[__m256i; 8]; 2],
    /// Rows 0 to 7, rows 8 to 15.
    scales: [__m256; 2],
    minima: [__m256; 2],
}

impl GroupW4 {
    /// Add the products with `MT` tokens (group-and-row number `at` of `x` and following) to `MT` rows of `out`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn multiply<const MT: usize>(&self, x: IntRows<'_>, at: usize, out: *mut f32) {
        // SAFETY: the caller promises `MT` rows of `x` and `out`.
        // No saturation: 8 · 2 · 15 · 127 = 30480.
        unsafe {
            let digits = x.digits.as_ptr().add(at * DIGITS);
            // By token, half of the rows, digit.
            let mut dots = [[[_mm256_setzero_si256(); 2]; 2]; MT];
            for step in 0..8 {
                let weights = &self.weights[step / 4];
                let (upper, lower) = (weights[step % 4 * 2], weights[step % 4 * 2 + 1]);
                for (t, dots) in dots.iter_mut().enumerate() {
                    for digit in 0..2 {
                        let x = four(digits.add(t * DIGITS + digit * GROUP + step * 4));
                        dots[0][digit] = _mm256_add_epi16(dots[0][digit], _mm256_maddubs_epi16(upper, x));
                        dots[1][digit] = _mm256_add_epi16(dots[1][digit], _mm256_maddubs_epi16(lower, x));
                    }
                }
            }
            for (t, dots) in dots.iter().enumerate() {
                let scale = _mm256_broadcast_ss(&*x.scales.as_ptr().add(at + t));
                let sum = _mm256_broadcast_ss(&*x.sums.as_ptr().add(at + t));
                for half in 0..2 {
                    let out = out.add(t * PANEL_ROWS + half * LANES);
                    let y = _mm256_fmadd_ps(self.minima[half], sum, _mm256_loadu_ps(out));
                    let product = _mm256_mul_ps(widen(dots[half]), self.scales[half]);
                    _mm256_storeu_ps(out, _mm256_fmadd_ps(product, scale, y));
                }
            }
        }
    }
}

/// Signed weights: `|w|` is the unsigned factor, the activation takes the weight's sign.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn panel_w8(panel: &[u8], x: IntRows<'_>, first: usize, tokens: usize, tile: &mut Tile) {
    let (values, scales) = w8::split(panel);
    let (base, ones) = (_mm256_set1_epi16(BASE as i16), _mm256_set1_epi16(1));
    tile[..tokens * PANEL_ROWS].fill(0.0);
    for (g, block) in values.chunks_exact(w8::BLOCK_BYTES).enumerate() {
        for half in 0..2 {
            // SAFETY: a block has 512 bytes, `scales` 32 bytes a group, `x` 64 digits and one scale for each group
            // and row; token `t` is below `tokens`, for which `x` (from `first`) and the tile have room. Prefetching
            // any address is allowed.
            // No saturation: 2 · 128 · 127 = 32512.
            unsafe {
                let load = |step: usize| _mm256_loadu_si256(block.as_ptr().add(step * 64 + half * 32).cast());
                let weights: [__m256i; 8] = std::array::from_fn(load);
                let sizes = weights.map(|w| _mm256_abs_epi8(w));
                let scale = params(scales.as_ptr().add(g * 32 + half * 16));
                if tokens == 1 && half == 0 {
                    for line in 0..8 {
                        _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().wrapping_add(PREFETCH + line * 64).cast());
                    }
                }
                for t in 0..tokens {
                    let at = g * x.rows + first + t;
                    let digits = x.digits.as_ptr().add(at * DIGITS);
                    let mut sum = _mm256_setzero_si256();
                    for step in 0..8 {
                        let pairs = [0, GROUP].map(|digit| {
                            let x = _mm256_sign_epi8(four(digits.add(digit + 4 * step)), weights[step]);
                            _mm256_maddubs_epi16(sizes[step], x)
                        });
                        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs[0], base));
                        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs[1], ones));
                    }
                    let out = tile.as_mut_ptr().add(t * PANEL_ROWS + half * LANES);
                    let y = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale);
                    let factor = _mm256_broadcast_ss(&*x.scales.as_ptr().add(at));
                    _mm256_storeu_ps(out, _mm256_fmadd_ps(y, factor, _mm256_loadu_ps(out)));
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantize_group(x: &[f32], digits: &mut [i8]) -> (f32, f32) {
    let mut padded = [0.0f32; GROUP];
    let from = if x.len() < GROUP {
        padded[..x.len()].copy_from_slice(x);
        padded.as_ptr()
    } else {
        x.as_ptr()
    };
    // SAFETY: `from` points to 32 values; `digits` has room for 64 (asserted by the caller).
    unsafe {
        let values: [__m256; 4] = std::array::from_fn(|i| _mm256_loadu_ps(from.add(i * LANES)));
        let size = values.map(|v| v.abs());
        let largest = size[0].max(size[1]).max(size[2].max(size[3])).largest();
        let total = values[0].add(values[1]).add(values[2].add(values[3])).sum();
        if total.is_nan() || largest < TINY {
            digits.fill(0);
            return if total.is_nan() { (f32::NAN, f32::NAN) } else { (0.0, 0.0) };
        }
        let (scale, inverse) = (largest / LARGEST, _mm256_set1_ps(LARGEST / largest));
        let q = values.map(|v| _mm256_cvtps_epi32(_mm256_mul_ps(v, inverse)));
        let (base, fraction) = (_mm256_set1_epi32(BASE), _mm256_set1_ps(1.0 / BASE as f32));
        let high = q.map(|q| _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_cvtepi32_ps(q), fraction)));
        let low = std::array::from_fn(|i| _mm256_sub_epi32(q[i], _mm256_mullo_epi32(high[i], base)));
        let (high, low) = (to_bytes(high), to_bytes(low));
        _mm256_storeu_si256(digits.as_mut_ptr().cast(), high);
        _mm256_storeu_si256(digits.as_mut_ptr().add(GROUP).cast(), low);
        let pairs = [high, low].map(|digits| _mm256_maddubs_epi16(_mm256_set1_epi8(1), digits));
        (scale, scale * widen(pairs).sum())
    }
}

/// 32 small values to bytes, in order. Packing works within 128-bit halves, hence the permutation.
#[target_feature(enable = "avx2,fma,f16c")]
fn to_bytes(values: [__m256i; 4]) -> __m256i {
    let words = (_mm256_packs_epi32(values[0], values[1]), _mm256_packs_epi32(values[2], values[3]));
    let bytes = _mm256_packs_epi16(words.0, words.1);
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// Lanes below `n`.
#[inline(always)]
unsafe fn mask(n: usize) -> __m256i {
    // SAFETY: the caller's processor has AVX2.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

// SAFETY (all functions): instructions of AVX2, FMA and F16C on a processor that has them, memory accesses as the
// caller promises.
impl Vector for __m256 {
    const LANES: usize = LANES;
    const TILE_ROWS: usize = 6;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm256_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, n: usize) -> Self {
        unsafe { _mm256_maskload_ps(from, mask(n)) }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, n: usize) {
        unsafe { _mm256_maskstore_ps(to, mask(n), self) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())))) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm256_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { _mm256_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { _mm256_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { _mm256_div_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, summand: Self) -> Self {
        unsafe { _mm256_fmadd_ps(self, factor, summand) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { _mm256_max_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { _mm256_min_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), self) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self) }
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(self), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
        }
    }
    #[inline(always)]
    unsafe fn if_less(self, limit: Self, yes: Self, no: Self) -> Self {
        unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(self, limit)) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self), _mm256_extractf128_ps::<1>(self));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self), _mm256_extractf128_ps::<1>(self));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
}
