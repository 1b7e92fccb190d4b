//! Decoders from stored bytes to f32, one file a format family.

pub(super) mod k_quants;
pub(super) mod plain;
pub(super) mod simple_quants;

/// The little-endian half-precision number at the start of `bytes`.
fn half_at(bytes: [u8; 2]) -> f32 {
    half::f16::from_le_bytes(bytes).to_f32()
}

/// Pairs every stored block of `B` bytes with the `N` values it decodes to.
fn for_each_block<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let (stored, _) = bytes.as_chunks::<B>();
    let (values, _) = out.as_chunks_mut::<N>();
    for (block, values) in stored.iter().zip(values) {
        decode(block, values);
    }
}
