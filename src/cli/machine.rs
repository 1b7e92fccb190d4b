//! What the machine gives: speed of reading memory.

use std::hint::black_box;
use std::time::Instant;

/// Speed of reading memory in order with `threads` threads, in bytes a second: the best of a few passes over a buffer
/// far larger than the caches. This is the ceiling for decoding, which reads every weight once a token.
pub fn memory_read_speed(threads: usize) -> f64 {
    const TOTAL_BYTES: usize = 256 << 20;
    const PASSES: usize = 5;
    let threads = threads.max(1);
    // Not zeros: untouched zero pages would all be the same physical page.
    let buffer = vec![1u64; TOTAL_BYTES / size_of::<u64>()];
    let share = buffer.len().div_ceil(threads);
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in buffer.chunks(share) {
                scope.spawn(move || black_box(sum(part)));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    TOTAL_BYTES as f64 / best
}

/// Independent sums, so that the compiler can keep several loads in flight.
fn sum(part: &[u64]) -> u64 {
    let mut lanes = [0u64; 32];
    for block in part.chunks_exact(lanes.len()) {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane = lane.wrapping_add(*value);
        }
    }
    lanes.iter().fold(0, |total, lane| total.wrapping_add(*lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_speed_is_a_plausible_number() {
        let speed = memory_read_speed(2);
        assert!(speed > 1e8 && speed.is_finite(), "{speed} bytes/s");
    }
}
