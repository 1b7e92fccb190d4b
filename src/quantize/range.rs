//! The range of values a tensor has.

use serde::{Deserialize, Serialize};

/// Smallest and largest value seen; empty before the first. NaN is not a value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ValueRange {
    /// The smallest value; infinity if there was none.
    pub min: f32,
    /// The largest value; minus infinity if there was none.
    pub max: f32,
}

impl Default for ValueRange {
    fn default() -> Self {
        Self { min: f32::INFINITY, max: f32::NEG_INFINITY }
    }
}

impl ValueRange {
    /// From `min` to `max`.
    pub fn new(min: f32, max: f32) -> Self {
        Self { min, max }
    }

    /// Of the finite values of a tensor. Infinities (a mask of -inf, say) have no place on a grid and are left out.
    pub fn of(values: &[f32]) -> Self {
        values.iter().filter(|value| value.is_finite()).fold(Self::default(), |range, &value| range.with(value))
    }

    /// With one more value.
    pub fn with(self, value: f32) -> Self {
        Self { min: self.min.min(value), max: self.max.max(value) }
    }

    /// Of the values of both. Order does not matter, so shards of a calibration set can be joined in any way.
    pub fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// Whether there was no value.
    pub fn is_empty(self) -> bool {
        self.min > self.max
    }

    /// Largest magnitude; 0 if there was no value.
    pub fn magnitude(self) -> f32 {
        if self.is_empty() { 0.0 } else { self.min.abs().max(self.max.abs()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn empty_until_a_value_comes() {
        let empty = ValueRange::of(&[f32::NAN, f32::INFINITY]);
        assert!(empty.is_empty() && empty.magnitude() == 0.0);
        assert_eq!(ValueRange::of(&[-3.0, f32::NEG_INFINITY, 2.0]), ValueRange::new(-3.0, 2.0));
        assert_eq!(ValueRange::new(-3.0, 2.0).magnitude(), 3.0);
    }

    proptest! {
        #[test]
        fn shards_join_to_the_whole_in_any_order(values in prop::collection::vec(-1e6f32..1e6, 0..50), cut in 0usize..50) {
            let (a, b) = values.split_at(cut.min(values.len()));
            let (a, b) = (ValueRange::of(a), ValueRange::of(b));
            prop_assert_eq!(a.union(b), ValueRange::of(&values));
            prop_assert_eq!(b.union(a), a.union(b));
        }
    }
}
