//! Random numbers that are the same on every platform.

/// SplitMix64 (Steele, Lea, Flood 2014): the state goes up by a fixed odd number, the output is a mix of its bits.
/// The sequence belongs to the contract: a seed gives the same tokens on every platform and in every version.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next number, uniform over all of them.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `0..1`, 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..bound`, by the high half of a product (Lemire 2019, without the rejection: the bias is below
    /// `bound / 2^64`). 0 for a bound of 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_gives_the_published_sequence() {
        let mut random = SplitMix64(1_234_567);
        let drawn = [random.next(), random.next(), random.next()];
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn numbers_below_a_bound_are_all_and_equally_often() {
        let mut random = SplitMix64(42);
        let mut counts = [0; 7];
        for _ in 0..7000 {
            counts[random.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|&count: &i32| (count - 1000).abs() < 150), "{counts:?}");
        assert_eq!((random.below(1), random.below(0)), (0, 0));
    }
}
