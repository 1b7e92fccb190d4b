//! The inner loop of resampling: sums of weighted bytes, exact in 32-bit integers, rounded to bytes.
//!
//! Weights have 24 bits, and processors multiply 16 bits fastest: each weight is split in two, and the two sums are put
//! together at the end. Taps come in pairs, because x86 multiplies two and adds them in one instruction. The loops are
//! written so that compilers find these instructions; SIMD intrinsics would need `unsafe`.

/// Bits behind the binary point of a weight: 8 bits of a level and 2 of headroom leave 22 of 32.
pub(super) const PRECISION: u32 = 22;

/// Bits of the lower part of a weight.
const LOW: u32 = 12;

/// Sums kept in registers.
const LANES: usize = 16;

/// The weights of two neighbouring taps.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    high: [i16; 2],
    low: [i16; 2],
}

impl Pair {
    /// Two weights with [`PRECISION`] bits behind the binary point; zero for a tap that is not there. The sizes of all
    /// weights of a sum add up to at most 2, so that it fits.
    pub(super) fn new(weights: [i32; 2]) -> Pair {
        // Both parts have the sign of the weight, so that no partial sum is larger than the sum of the weights' sizes.
        Pair {
            high: weights.map(|weight| (weight / (1 << LOW)) as i16),
            low: weights.map(|weight| (weight % (1 << LOW)) as i16),
        }
    }
}

/// The weighted sum of `rows`, each as long as `out`, two a pair, rounded to nearest and clipped to 0 to 255. The second
/// row of the last pair may be missing.
pub(super) fn weigh_rows(rows: &[u8], pairs: &[Pair], out: &mut [u8]) {
    let length = out.len();
    let (blocks, rest) = out.as_chunks_mut::<LANES>();
    let done = blocks.len() * LANES;
    for (index, block) in blocks.iter_mut().enumerate() {
        *block = weigh_block(pairs, |row| rows.get(row * length + index * LANES..)?.first_chunk().copied());
    }
    if !rest.is_empty() {
        let block = weigh_block(pairs, |row| {
            let bytes = rows.get(row * length + done..(row + 1) * length)?;
            let mut block = [0; LANES];
            block[..bytes.len()].copy_from_slice(bytes);
            Some(block)
        });
        rest.copy_from_slice(&block[..rest.len()]);
    }
}

/// [`weigh_rows`] of blocks; `block` gives the one of each row there is.
#[inline(always)]
fn weigh_block(pairs: &[Pair], block: impl Fn(usize) -> Option<[u8; LANES]>) -> [u8; LANES] {
    let mut high = [0i32; LANES];
    let mut low = [0i32; LANES];
    for (index, pair) in pairs.iter().enumerate() {
        let Some(first) = block(2 * index) else { break };
        let second = block(2 * index + 1).unwrap_or(first);
        let products = |lane: usize, weights: [i16; 2]| {
            let [a, b] = [first[lane], second[lane]].map(|byte| i32::from(i16::from(byte)));
            a * i32::from(weights[0]) + b * i32::from(weights[1])
        };
        for lane in 0..LANES {
            high[lane] += products(lane, pair.high);
            low[lane] += products(lane, pair.low);
        }
    }
    const HALF: i32 = 1 << (PRECISION - 1);
    std::array::from_fn(|lane| (((high[lane] << LOW) + low[lane] + HALF) >> PRECISION).clamp(0, 255) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any number of rows of any length: the sums that wider integers give.
        #[test]
        fn sums_are_exact(
            weights in prop::collection::vec(-400_000..400_000i32, 1..18),
            bytes in prop::collection::vec(any::<u8>(), 18 * 61),
            length in 1usize..61,
        ) {
            let rows = &bytes[..length * weights.len()];
            let two = |pair: &[i32]| Pair::new([pair[0], pair.get(1).copied().unwrap_or_default()]);
            let pairs: Vec<Pair> = weights.chunks(2).map(two).collect();
            let mut out = vec![0; length];
            weigh_rows(rows, &pairs, &mut out);
            for (lane, &byte) in out.iter().enumerate() {
                let sum: i64 = rows.chunks(length).zip(&weights).map(|(row, &w)| i64::from(row[lane]) * i64::from(w)).sum();
                let rounded = (sum as f64 / f64::from(1 << PRECISION) + 0.5).floor().clamp(0.0, 255.0);
                prop_assert_eq!(byte, rounded as u8, "lane {}", lane);
            }
        }
    }

    /// A single tap of weight one, and what is clipped.
    #[test]
    fn the_weight_one_changes_nothing() {
        let row: Vec<u8> = (0..=255).collect();
        let mut out = vec![0; 256];
        weigh_rows(&row, &[Pair::new([1 << PRECISION, 0])], &mut out);
        assert_eq!(out, row);
        weigh_rows(&row, &[Pair::new([-(1 << PRECISION), 0])], &mut out);
        assert_eq!(out, [0; 256]);
        weigh_rows(&row, &[Pair::new([2 << PRECISION, 0])], &mut out);
        assert_eq!(out[127..130], [254, 255, 255]);
    }
}
