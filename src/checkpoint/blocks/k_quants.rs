//! The block formats of 256 values with two levels of scales: Q4_K, Q5_K, Q6_K.
//!
//! | format | bytes of a block, in order                                                  | value                  |
//! | ------ | --------------------------------------------------------------------------- | ---------------------- |
//! | Q4_K   | d f16, dmin f16, 12 bytes of 6-bit scales and minima, 128 nibble pairs      | `d·s·q - dmin·m`       |
//! | Q5_K   | the same, with 32 bytes of fifth bits in front of the nibble pairs          | `d·s·q - dmin·m`       |
//! | Q6_K   | 128 nibble pairs, 64 bytes of upper bit pairs, 16 signed scales, d f16      | `d·s·(q - 32)`         |

use super::{for_each_block, half_at};

/// Values of a block.
pub(in super::super) const BLOCK: usize = 256;
pub(in super::super) const Q4_K_BYTES: usize = 4 + 12 + 128;
pub(in super::super) const Q5_K_BYTES: usize = 4 + 12 + 32 + 128;
pub(in super::super) const Q6_K_BYTES: usize = 128 + 64 + 16 + 2;

pub(in super::super) fn decode_q4_k(bytes: &[u8], out: &mut [f32]) {
    for_each_block(bytes, out, |block: &[u8; Q4_K_BYTES], values| {
        let [d0, d1, m0, m1, rest @ ..] = block;
        if let Some((packed, pairs)) = rest.split_first_chunk::<12>() {
            let groups = scaled_groups(half_at([*d0, *d1]), half_at([*m0, *m1]), packed);
            decode_groups(&groups, pairs, &[0; 32], values);
        }
    });
}

pub(in super::super) fn decode_q5_k(bytes: &[u8], out: &mut [f32]) {
    for_each_block(bytes, out, |block: &[u8; Q5_K_BYTES], values| {
        let [d0, d1, m0, m1, rest @ ..] = block;
        if let Some((packed, rest)) = rest.split_first_chunk::<12>()
            && let Some((fifth_bits, pairs)) = rest.split_first_chunk::<32>()
        {
            let groups = scaled_groups(half_at([*d0, *d1]), half_at([*m0, *m1]), packed);
            decode_groups(&groups, pairs, fifth_bits, values);
        }
    });
}

/// `(d·scale, dmin·minimum)` of the 8 groups of 32 values.
///
/// Groups 0..4 keep their 6 bits in bytes 0..4 (scale) and 4..8 (minimum); groups 4..8 keep the low four bits in the
/// nibbles of bytes 8..12 and the upper two in the spare top bits of bytes 0..4 and 4..8.
fn scaled_groups(d: f32, dmin: f32, packed: &[u8; 12]) -> [(f32, f32); 8] {
    let mut groups = [(0.0, 0.0); 8];
    for j in 0..4 {
        let (scale, minimum, nibbles) = (packed[j], packed[j + 4], packed[j + 8]);
        groups[j] = (d * f32::from(scale & 63), dmin * f32::from(minimum & 63));
        groups[j + 4] = (
            d * f32::from((nibbles & 15) | ((scale >> 6) << 4)),
            dmin * f32::from((nibbles >> 4) | ((minimum >> 6) << 4)),
        );
    }
    groups
}

/// Every 32 nibble pairs hold two groups: the low nibbles one, the high nibbles the next. Bit `g` of fifth-bit byte `l`
/// belongs to value `l` of group `g`.
fn decode_groups(groups: &[(f32, f32); 8], pairs: &[u8], fifth_bits: &[u8; 32], values: &mut [f32; BLOCK]) {
    for (g, (group, values)) in groups.iter().zip(values.chunks_exact_mut(32)).enumerate() {
        let (scale, minimum) = *group;
        let nibble_shift = 4 * (g % 2);
        let pairs = pairs.iter().skip(32 * (g / 2));
        for ((value, pair), fifth) in values.iter_mut().zip(pairs).zip(fifth_bits) {
            let q = ((pair >> nibble_shift) & 15) | ((fifth >> g) & 1) << 4;
            *value = scale * f32::from(q) - minimum;
        }
    }
}

pub(in super::super) fn decode_q6_k(bytes: &[u8], out: &mut [f32]) {
    for_each_block(bytes, out, |block: &[u8; Q6_K_BYTES], values: &mut [f32; BLOCK]| {
        let [pairs_and_scales @ .., d0, d1] = block;
        let (pairs, rest) = pairs_and_scales.split_at(128);
        let (upper_bits, scales) = rest.split_at(64);
        let d = half_at([*d0, *d1]);
        // A half block of 128 values is four rows of 32. Rows 0 and 2 are the low and high nibbles of its first 32
        // pairs, rows 1 and 3 those of the next 32; row r has its upper two bits at bit 2r of the upper-bit bytes.
        for (row, values) in values.chunks_exact_mut(32).enumerate() {
            let (half, row) = (row / 4, row % 4);
            let pairs = pairs.iter().skip(64 * half + 32 * (row % 2));
            let upper_bits = upper_bits.iter().skip(32 * half);
            let scales = scales.iter().skip(8 * half + 2 * row).flat_map(|s| [*s as i8; 16]);
            for (((value, pair), upper), scale) in values.iter_mut().zip(pairs).zip(upper_bits).zip(scales) {
                let q = ((pair >> (4 * (row / 2))) & 15) | ((upper >> (2 * row)) & 3) << 4;
                *value = d * f32::from(scale) * (f32::from(q) - 32.0);
            }
        }
    });
}
