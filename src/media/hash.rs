//! Hashing of numbers, the same on every machine.

use sha2::{Digest, Sha256};

/// Values that are hashed at a time.
const BLOCK: usize = 1024;

/// Hash values as little-endian bytes.
pub(super) fn update_f32(hash: &mut Sha256, values: &[f32]) {
    let mut block = Vec::with_capacity(BLOCK * size_of::<f32>());
    for values in values.chunks(BLOCK) {
        block.clear();
        block.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        hash.update(&block);
    }
}
