//! NEON: arm64 processors, with the dot product instruction (`sdot`, since 2018) or without.
//!
//! Two instructions are written as assembly because their intrinsics are not stable yet: `sdot` and `fcvtl`.

use super::activations::{BASE, DIGITS, IntRows};
use super::blocked::WordKernels;
use super::linear::Tile;
use super::vector::Vector;
use crate::formats::{GROUP, PANEL_ROWS, w4, w8};
use std::arch::aarch64::*;
use std::arch::asm;

/// Byte products are faster than products of words.
const WORDS: Option<&WordKernels> = None;

/// With the dot product instruction.
pub(super) mod dotprod {
    use super::*;

    crate::engine::cpu::kernels::instantiate!("neon-dotprod", float32x4_t, "neon,dotprod");

    /// Whether this processor can run the kernels of this module.
    pub(in crate::engine::cpu::kernels) fn is_supported() -> bool {
        std::arch::is_aarch64_feature_detected!("dotprod")
    }

    struct Sdot;

    impl Dot for Sdot {
        #[inline(always)]
        unsafe fn dot(sums: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
            let mut sums = sums;
            // SAFETY: this module's kernels only run where `dotprod` is there; registers in, register out.
            unsafe {
                asm!(
                    ".arch_extension dotprod",
                    "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
                    inout(vreg) sums, in(vreg) weights, in(vreg) x,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            sums
        }
    }

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn panel_w4(panel: &[u8], x: IntRows<'_>, first: usize, tokens: usize, tile: &mut Tile) {
        // SAFETY: as promised by the caller.
        unsafe { any_w4::<Sdot>(panel, x, first, tokens, tile) }
    }

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn panel_w8(panel: &[u8], x: IntRows<'_>, first: usize, tokens: usize, tile: &mut Tile) {
        // SAFETY: as promised by the caller.
        unsafe { any_w8::<Sdot>(panel, x, first, tokens, tile) }
    }
}

/// Without it.
pub(super) mod plain {
    use super::*;

    crate::engine::cpu::kernels::instantiate!("neon", float32x4_t, "neon");

    struct Widening;

    impl Dot for Widening {
        #[inline(always)]
        unsafe fn dot(sums: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
            // SAFETY: NEON is part of arm64. No overflow: 2 · 128 · 127 = 32512 in 16 bits.
            unsafe {
                let low = vmull_s8(vget_low_s8(weights), vget_low_s8(x));
                let high = vmull_s8(vget_high_s8(weights), vget_high_s8(x));
                vpadalq_s16(sums, vpaddq_s16(low, high))
            }
        }
    }

    #[target_feature(enable = "neon")]
    unsafe fn panel_w4(panel: &[u8], x: IntRows<'_>, first: usize, tokens: usize, tile: &mut Tile) {
        // SAFETY: as promised by the caller.
        unsafe { any_w4::<Widening>(panel, x, first, tokens, tile) }
    }

    #[target_feature(enable = "neon")]
    unsafe fn panel_w8(panel: &[u8], x: IntRows<'_>, first: usize, tokens: usize, tile: &mut Tile) {
        // SAFETY: as promised by the caller.
        unsafe { any_w8::<Widening>(panel, x, first, tokens, tile) }
    }
}

/// How four byte products are added to each 32-bit lane.
trait Dot {
    /// # Safety
    /// The processor has the instructions; no `x` is -128.
    unsafe fn dot(sums: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t;
}

/// Four activation bytes in every lane.
#[inline(always)]
unsafe fn four(from: *const i8) -> int8x16_t {
    // SAFETY: the caller's pointer is valid for 4 bytes; NEON is part of arm64.
    unsafe { vreinterpretq_s8_s32(vdupq_n_s32(from.cast::<i32>().read_unaligned())) }
}

/// Sums of high and of low digits, put together.
#[inline(always)]
unsafe fn together([high, low]: [int32x4_t; 2]) -> float32x4_t {
    // SAFETY: NEON is part of arm64.
    unsafe { vcvtq_f32_s32(vmlaq_n_s32(low, high, BASE)) }
}

/// Four rows (`quarter` of the panel) and a group at a time, for all tokens.
#[inline(always)]
unsafe fn any_w4<D: Dot>(panel: &[u8], x: IntRows<'_>, first: usize, tokens: usize, tile: &mut Tile) {
    let (values, scales, minima) = w4::split(panel);
    tile[..tokens * PANEL_ROWS].fill(0.0);
    for (g, block) in values.chunks_exact(w4::BLOCK_BYTES).enumerate() {
        for quarter in 0..4 {
            // SAFETY: a block has 256 bytes, `scales` and `minima` 32 bytes a group, `x` 64 digits and one scale and
            // sum for each group and row; token `t` is below `tokens`, for which `x` and the tile have room.
            unsafe {
                let bytes: [uint8x16_t; 4] =
                    std::array::from_fn(|step| vld1q_u8(block.as_ptr().add(step * 64 + quarter * 16)));
                let low = bytes.map(|b| vreinterpretq_s8_u8(vandq_u8(b, vdupq_n_u8(15))));
                let high = bytes.map(|b| vreinterpretq_s8_u8(vshrq_n_u8::<4>(b)));
                let scale = float32x4_t::load_f16(scales.as_ptr().add(g * 32 + quarter * 8));
                let min = float32x4_t::load_f16(minima.as_ptr().add(g * 32 + quarter * 8));
                for t in 0..tokens {
                    let at = g * x.rows + first + t;
                    let digits = x.digits.as_ptr().add(at * DIGITS);
                    let sums = [0, GROUP].map(|digit| {
                        let digits = digits.add(digit);
                        (0..4).fold(vdupq_n_s32(0), |sums, step| {
                            let sums = D::dot(sums, low[step], four(digits.add(4 * step)));
                            D::dot(sums, high[step], four(digits.add(16 + 4 * step)))
                        })
                    });
                    let out = tile.as_mut_ptr().add(t * PANEL_ROWS + quarter * 4);
                    let y = vfmaq_n_f32(vld1q_f32(out), min, *x.sums.as_ptr().add(at));
                    let product = vmulq_f32(together(sums), scale);
                    vst1q_f32(out, vfmaq_n_f32(y, product, *x.scales.as_ptr().add(at)));
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn any_w8<D: Dot>(panel: &[u8], x: IntRows<'_>, first: usize, tokens: usize, tile: &mut Tile) {
    let (values, scales) = w8::split(panel);
    tile[..tokens * PANEL_ROWS].fill(0.0);
    for (g, block) in values.chunks_exact(w8::BLOCK_BYTES).enumerate() {
        for quarter in 0..4 {
            // SAFETY: a block has 512 bytes, `scales` 32 bytes a group, `x` 64 digits and one scale for each group
            // and row; token `t` is below `tokens`, for which `x` and the tile have room.
            unsafe {
                let weights: [int8x16_t; 8] =
                    std::array::from_fn(|step| vld1q_s8(block.as_ptr().add(step * 64 + quarter * 16).cast()));
                let scale = float32x4_t::load_f16(scales.as_ptr().add(g * 32 + quarter * 8));
                for t in 0..tokens {
                    let at = g * x.rows + first + t;
                    let digits = x.digits.as_ptr().add(at * DIGITS);
                    let sums = [0, GROUP].map(|digit| {
                        let steps = weights.iter().enumerate();
                        steps.fold(vdupq_n_s32(0), |sums, (step, &weights)| {
                            D::dot(sums, weights, four(digits.add(digit + 4 * step)))
                        })
                    });
                    let out = tile.as_mut_ptr().add(t * PANEL_ROWS + quarter * 4);
                    let product = vmulq_f32(together(sums), scale);
                    vst1q_f32(out, vfmaq_n_f32(vld1q_f32(out), product, *x.scales.as_ptr().add(at)));
                }
            }
        }
    }
}

/// The scalar code; the compiler vectorises it, NEON being part of arm64.
unsafe fn quantize_group(x: &[f32], digits: &mut [i8]) -> (f32, f32) {
    super::scalar::quantize_group(x, digits)
}

// SAFETY (all functions): NEON is part of arm64; memory accesses as the caller promises.
impl Vector for float32x4_t {
    const LANES: usize = 4;
    const TILE_ROWS: usize = 6;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { vld1q_f32(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { vst1q_f32(to, self) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, n: usize) -> Self {
        let mut lanes = [0.0f32; 4];
        unsafe {
            std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), n);
            vld1q_f32(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, n: usize) {
        let mut lanes = [0.0f32; 4];
        unsafe {
            vst1q_f32(lanes.as_mut_ptr(), self);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, n);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        let wide: float32x4_t;
        unsafe {
            let halves = vld1_u16(from.cast());
            asm!(
                "fcvtl {0:v}.4s, {1:v}.4h",
                out(vreg) wide, in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        wide
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { vaddq_f32(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { vsubq_f32(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { vmulq_f32(self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { vdivq_f32(self, other) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, summand: Self) -> Self {
        unsafe { vfmaq_f32(summand, self, factor) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { vbslq_f32(vcgtq_f32(self, other), self, other) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { vbslq_f32(vcltq_f32(self, other), self, other) }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe { vabsq_f32(self) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe { vrndnq_f32(self) }
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(self), vdupq_n_s32(127)))) }
    }
    #[inline(always)]
    unsafe fn if_less(self, limit: Self, yes: Self, no: Self) -> Self {
        unsafe { vbslq_f32(vcltq_f32(self, limit), yes, no) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { vaddvq_f32(self) }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe { vmaxvq_f32(self) }
    }
}
