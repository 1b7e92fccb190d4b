//! The block formats of 32 values with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! | format | bytes of a block, in order                              | value        |
//! | ------ | ------------------------------------------------------- | ------------ |
//! | Q4_0   | d f16, 16 nibble pairs                                  | `d·(q - 8)`  |
//! | Q4_1   | d f16, m f16, 16 nibble pairs                           | `d·q + m`    |
//! | Q5_0   | d f16, fifth bits u32, 16 nibble pairs                  | `d·(q - 16)` |
//! | Q5_1   | d f16, m f16, fifth bits u32, 16 nibble pairs           | `d·q + m`    |
//! | Q8_0   | d f16, 32 signed bytes                                  | `d·q`        |
//!
//! The low nibble of pair `j` is value `j`, the high one value `j + 16`; bit `j` of the fifth bits belongs to value `j`.

use super::{for_each_block, half_at};

/// Values of a block.
pub(in super::super) const BLOCK: usize = 32;
pub(in super::super) const Q4_0_BYTES: usize = 2 + 16;
pub(in super::super) const Q4_1_BYTES: usize = 4 + 16;
pub(in super::super) const Q5_0_BYTES: usize = 2 + 4 + 16;
pub(in super::super) const Q5_1_BYTES: usize = 4 + 4 + 16;
pub(in super::super) const Q8_0_BYTES: usize = 2 + 32;

pub(in super::super) fn decode_q4_0(bytes: &[u8], out: &mut [f32]) {
    for_each_block(bytes, out, |block: &[u8; Q4_0_BYTES], values| {
        let [d0, d1, pairs @ ..] = *block;
        let d = half_at([d0, d1]);
        unpack(&pairs, 0, values, |q| d * (q as f32 - 8.0));
    });
}

pub(in super::super) fn decode_q4_1(bytes: &[u8], out: &mut [f32]) {
    for_each_block(bytes, out, |block: &[u8; Q4_1_BYTES], values| {
        let [d0, d1, m0, m1, pairs @ ..] = *block;
        let (d, m) = (half_at([d0, d1]), half_at([m0, m1]));
        unpack(&pairs, 0, values, |q| d * q as f32 + m);
    });
}

pub(in super::super) fn decode_q5_0(bytes: &[u8], out: &mut [f32]) {
    for_each_block(bytes, out, |block: &[u8; Q5_0_BYTES], values| {
        let [d0, d1, h0, h1, h2, h3, pairs @ ..] = *block;
        let d = half_at([d0, d1]);
        let fifth_bits = u32::from_le_bytes([h0, h1, h2, h3]);
        unpack(&pairs, fifth_bits, values, |q| d * (q as f32 - 16.0));
    });
}

pub(in super::super) fn decode_q5_1(bytes: &[u8], out: &mut [f32]) {
    for_each_block(bytes, out, |block: &[u8; Q5_1_BYTES], values| {
        let [d0, d1, m0, m1, h0, h1, h2, h3, pairs @ ..] = *block;
        let (d, m) = (half_at([d0, d1]), half_at([m0, m1]));
        let fifth_bits = u32::from_le_bytes([h0, h1, h2, h3]);
        unpack(&pairs, fifth_bits, values, |q| d * q as f32 + m);
    });
}

pub(in super::super) fn decode_q8_0(bytes: &[u8], out: &mut [f32]) {
    for_each_block(bytes, out, |block: &[u8; Q8_0_BYTES], values: &mut [f32; BLOCK]| {
        let [d0, d1, quants @ ..] = *block;
        let d = half_at([d0, d1]);
        for (value, q) in values.iter_mut().zip(quants) {
            *value = d * f32::from(q as i8);
        }
    });
}

/// Joins nibbles and fifth bits to the 32 quants of a block and maps each to its value.
fn unpack(pairs: &[u8; 16], fifth_bits: u32, values: &mut [f32; BLOCK], value: impl Fn(u32) -> f32) {
    let (low, high) = values.split_at_mut(16);
    for (j, ((pair, low), high)) in pairs.iter().zip(low).zip(high).enumerate() {
        let pair = u32::from(*pair);
        *low = value((pair & 15) | ((fifth_bits >> j) & 1) << 4);
        *high = value((pair >> 4) | ((fifth_bits >> (j + 16)) & 1) << 4);
    }
}
