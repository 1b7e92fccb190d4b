//! How the numbers of a stored tensor are encoded.

use super::blocks::{k_quants, plain, simple_quants};
use std::fmt;

/// Storage type of a tensor in a checkpoint. Types other than the three plain ones occur in GGUF files only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // The format's own names.
pub enum StorageType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// 4 bits, blocks of 32: `d·(q-8)`.
    Q4_0,
    /// 4 bits, blocks of 32: `d·q + m`.
    Q4_1,
    /// 5 bits, blocks of 32: `d·(q-16)`.
    Q5_0,
    /// 5 bits, blocks of 32: `d·q + m`.
    Q5_1,
    /// 8 bits, blocks of 32: `d·q`.
    Q8_0,
    /// 4 bits, blocks of 256 in 8 groups with 6-bit scales and minima.
    Q4_K,
    /// 5 bits, blocks of 256 in 8 groups with 6-bit scales and minima.
    Q5_K,
    /// 6 bits, blocks of 256 in 16 groups with 8-bit scales.
    Q6_K,
}

impl StorageType {
    /// Values encoded together: 1 for the plain types.
    pub const fn block_len(self) -> usize {
        match self {
            StorageType::F32 | StorageType::F16 | StorageType::BF16 => 1,
            StorageType::Q4_0 | StorageType::Q4_1 | StorageType::Q5_0 | StorageType::Q5_1 | StorageType::Q8_0 => {
                simple_quants::BLOCK
            }
            StorageType::Q4_K | StorageType::Q5_K | StorageType::Q6_K => k_quants::BLOCK,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            StorageType::F32 => 4,
            StorageType::F16 | StorageType::BF16 => 2,
            StorageType::Q4_0 => simple_quants::Q4_0_BYTES,
            StorageType::Q4_1 => simple_quants::Q4_1_BYTES,
            StorageType::Q5_0 => simple_quants::Q5_0_BYTES,
            StorageType::Q5_1 => simple_quants::Q5_1_BYTES,
            StorageType::Q8_0 => simple_quants::Q8_0_BYTES,
            StorageType::Q4_K => k_quants::Q4_K_BYTES,
            StorageType::Q5_K => k_quants::Q5_K_BYTES,
            StorageType::Q6_K => k_quants::Q6_K_BYTES,
        }
    }

    /// The usual spelling, e.g. `BF16` or `Q4_K`.
    pub const fn name(self) -> &'static str {
        match self {
            StorageType::F32 => "F32",
            StorageType::F16 => "F16",
            StorageType::BF16 => "BF16",
            StorageType::Q4_0 => "Q4_0",
            StorageType::Q4_1 => "Q4_1",
            StorageType::Q5_0 => "Q5_0",
            StorageType::Q5_1 => "Q5_1",
            StorageType::Q8_0 => "Q8_0",
            StorageType::Q4_K => "Q4_K",
            StorageType::Q5_K => "Q5_K",
            StorageType::Q6_K => "Q6_K",
        }
    }

    /// Bytes that `values` values take; `None` on overflow or when they do not fill whole blocks.
    pub(super) fn byte_len(self, values: usize) -> Option<usize> {
        if !values.is_multiple_of(self.block_len()) {
            return None;
        }
        (values / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Decodes whole blocks. Stops at the shorter of both slices.
    pub(super) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            StorageType::F32 => plain::decode_f32(bytes, out),
            StorageType::F16 => plain::decode_f16(bytes, out),
            StorageType::BF16 => plain::decode_bf16(bytes, out),
            StorageType::Q4_0 => simple_quants::decode_q4_0(bytes, out),
            StorageType::Q4_1 => simple_quants::decode_q4_1(bytes, out),
            StorageType::Q5_0 => simple_quants::decode_q5_0(bytes, out),
            StorageType::Q5_1 => simple_quants::decode_q5_1(bytes, out),
            StorageType::Q8_0 => simple_quants::decode_q8_0(bytes, out),
            StorageType::Q4_K => k_quants::decode_q4_k(bytes, out),
            StorageType::Q5_K => k_quants::decode_q5_k(bytes, out),
            StorageType::Q6_K => k_quants::decode_q6_k(bytes, out),
        }
    }
}

impl fmt::Display for StorageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
