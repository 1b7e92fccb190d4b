//! F32, F16 and BF16: one number after the other, little-endian.

use super::{for_each_block, half_at};

pub(in super::super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for_each_block(bytes, out, |b: &[u8; 4], [v]: &mut [f32; 1]| {
        *v = f32::from_le_bytes(*b);
    });
}

pub(in super::super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    for_each_block(bytes, out, |b: &[u8; 2], [v]: &mut [f32; 1]| {
        *v = half_at(*b);
    });
}

pub(in super::super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    // bfloat16 is the upper half of an f32.
    for_each_block(bytes, out, |b: &[u8; 2], [v]: &mut [f32; 1]| {
        *v = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_types_decode_known_bit_patterns() {
        let mut out = [0.0; 2];
        decode_f32(&[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0], &mut out);
        assert_eq!(out, [1.0, -2.0]);
        decode_f16(&[0x00, 0x3c, 0x01, 0x00], &mut out);
        assert_eq!(out, [1.0, 2f32.powi(-24)]);
        decode_bf16(&[0x80, 0x3f, 0x49, 0x40], &mut out);
        assert_eq!(out, [1.0, 3.140625]);
    }
}
