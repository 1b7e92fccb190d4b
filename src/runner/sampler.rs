//! Logits to the next token: a chain of filters in front of a seeded draw.

use super::options::SamplingOptions;
use crate::error::{Error, Result};
use crate::random::SplitMix64;
use std::cmp::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

/// Chooses tokens. Owns its random numbers and scratch memory, so nothing is allocated per token once it is warm.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplingOptions,
    seed: u64,
    random: SplitMix64,
    scaled: Vec<f32>,
    candidates: Vec<Candidate>,
    seen: Vec<u64>,
}

/// A token that is still in the race. `weight` is its logit until the softmax, then its unnormalised probability.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: u32,
    weight: f32,
}

impl Sampler {
    /// A sampler for one run.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an option out of range.
    pub fn new(options: &SamplingOptions) -> Result<Self> {
        options.validate()?;
        let seed = options.seed.unwrap_or_else(seed_from_clock);
        Ok(Self {
            options: options.clone(),
            seed,
            random: SplitMix64(seed),
            scaled: Vec::new(),
            candidates: Vec::new(),
            seen: Vec::new(),
        })
    }

    /// The options it was made with.
    pub fn options(&self) -> &SamplingOptions {
        &self.options
    }

    /// The seed in use: the one of the options, or the one taken from the clock.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Choose a token from one row of logits. `history` holds the tokens before it, prompt included, oldest first; it
    /// is only read by the repetition penalty.
    ///
    /// # Errors
    /// [`Error::Engine`] if the row is empty or holds NaN, infinity, or nothing but minus infinity.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32> {
        check(logits)?;
        if self.options.repetition_penalty == 1.0 {
            return Ok(self.choose(logits));
        }
        let mut scaled = std::mem::take(&mut self.scaled);
        scaled.clear();
        scaled.extend_from_slice(logits);
        self.penalise(&mut scaled, history);
        let chosen = self.choose(&scaled);
        self.scaled = scaled;
        Ok(chosen)
    }

    fn choose(&mut self, logits: &[f32]) -> u32 {
        if self.options.is_greedy() {
            return argmax(logits);
        }
        self.collect(logits);
        self.keep_top_k();
        self.keep_top_p(logits.len());
        self.keep_min_p();
        self.draw()
    }

    /// Each distinct token of the window is penalised once, as in the paper the penalty comes from (CTRL).
    fn penalise(&mut self, logits: &mut [f32], history: &[u32]) {
        let window = self.options.repetition_window.unwrap_or(history.len());
        let recent = history.get(history.len().saturating_sub(window)..).unwrap_or(history);
        self.seen.clear();
        self.seen.resize(logits.len().div_ceil(64), 0);
        for &id in recent {
            let (word, bit) = (id as usize / 64, 1u64 << (id % 64));
            let (Some(logit), Some(seen)) = (logits.get_mut(id as usize), self.seen.get_mut(word)) else { continue };
            if *seen & bit == 0 {
                *seen |= bit;
                let penalty = self.options.repetition_penalty;
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }

    fn collect(&mut self, logits: &[f32]) {
        self.candidates.clear();
        let rows = (0u32..).zip(logits);
        self.candidates.extend(rows.map(|(id, &weight)| Candidate { id, weight }));
    }

    fn keep_top_k(&mut self) {
        let k = self.options.top_k;
        if k > 0 && k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k - 1, most_likely_first);
            self.candidates.truncate(k);
        }
    }

    /// Keeps the nucleus: candidates from the most likely down, up to and including the one that carries their sum
    /// past `top_p`.
    fn keep_top_p(&mut self, vocabulary: usize) {
        let top_p = self.options.top_p;
        if top_p >= 1.0 || self.candidates.len() < 2 {
            return;
        }
        let max = self.max_logit();
        let probability = |c: &Candidate| f64::from(c.weight - max).exp();
        let total: f64 = self.candidates.iter().map(probability).sum();
        // A token less likely than this cannot be in the nucleus: all tokens behind it together would not make up
        // for the 1 - top_p that must stay outside. Dropping them first makes the sort short.
        let cutoff = f64::from(1.0 - top_p) / vocabulary as f64 * total;
        self.candidates.retain(|c| probability(c) >= cutoff);
        self.candidates.sort_unstable_by(most_likely_first);
        let mut sum = 0.0;
        let past = self.candidates.iter().position(|c| {
            sum += probability(c) / total;
            sum > f64::from(top_p)
        });
        if let Some(last) = past {
            self.candidates.truncate(last + 1);
        }
    }

    fn keep_min_p(&mut self) {
        if self.options.min_p > 0.0 {
            let least = self.max_logit() + self.options.min_p.ln();
            self.candidates.retain(|c| c.weight >= least);
        }
    }

    /// Draws by the probabilities at the temperature. The order of the candidates decides which coin gives which
    /// token, so it is fixed first: by id, whatever the filters left behind.
    fn draw(&mut self) -> u32 {
        self.candidates.sort_unstable_by_key(|c| c.id);
        let (max, temperature) = (self.max_logit(), self.options.temperature);
        let mut total = 0.0f64;
        for candidate in &mut self.candidates {
            candidate.weight = ((candidate.weight - max) / temperature).exp();
            total += f64::from(candidate.weight);
        }
        let mut coin = self.random.unit() * total;
        let mut chosen = 0;
        for candidate in self.candidates.iter().filter(|c| c.weight > 0.0) {
            chosen = candidate.id;
            coin -= f64::from(candidate.weight);
            if coin < 0.0 {
                break;
            }
        }
        chosen
    }

    fn max_logit(&self) -> f32 {
        self.candidates.iter().map(|c| c.weight).fold(f32::NEG_INFINITY, f32::max)
    }
}

/// The id of the largest logit; the first one of equals.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &logit) in (0u32..).zip(logits) {
        if logit > best.1 {
            best = (id, logit);
        }
    }
    best.0
}

/// By weight, descending; equals by id, so that every filter is deterministic.
fn most_likely_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id))
}

fn check(logits: &[f32]) -> Result<()> {
    let bad = |what: String| Err(Error::Engine { engine: "sampler".into(), reason: what });
    if let Some(id) = logits.iter().position(|l| l.is_nan() || *l == f32::INFINITY) {
        return bad(format!(
            "the logit of token {id} is {}: the model overflowed",
            logits.get(id).unwrap_or(&f32::NAN)
        ));
    }
    if logits.iter().all(|l| *l == f32::NEG_INFINITY) {
        return bad(format!("none of the {} logits is finite", logits.len()));
    }
    Ok(())
}

fn seed_from_clock() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    SplitMix64(since_epoch.as_nanos() as u64).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampler(change: impl FnOnce(&mut SamplingOptions)) -> Sampler {
        let mut options = SamplingOptions { seed: Some(7), ..Default::default() };
        change(&mut options);
        Sampler::new(&options).expect("valid options")
    }

    /// How often each token comes up in `n` draws.
    fn frequencies(sampler: &mut Sampler, logits: &[f32], n: usize) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for _ in 0..n {
            counts[sampler.sample(logits, &[]).expect("finite logits") as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_first_maximum() {
        let mut greedy = sampler(|_| {});
        assert_eq!(greedy.sample(&[0.0, 3.0, 1.0, 3.0], &[]).expect("finite"), 1);
        assert_eq!(greedy.sample(&[f32::NEG_INFINITY, -5.0], &[]).expect("finite"), 1);
    }

    #[test]
    fn broken_logits_are_engine_errors() {
        for row in [&[0.0, f32::NAN][..], &[f32::INFINITY, 0.0], &[f32::NEG_INFINITY; 2], &[]] {
            for temperature in [0.0, 1.0] {
                let error = sampler(|o| o.temperature = temperature).sample(row, &[]).expect_err("broken");
                assert!(matches!(error, Error::Engine { .. }), "{error}");
            }
        }
    }

    #[test]
    fn same_seed_same_tokens() {
        let logits: Vec<f32> = (0..100).map(|i| (i as f32 * 0.37).sin()).collect();
        let draw = |seed| {
            let mut sampler = sampler(|o| (o.temperature, o.seed) = (1.0, Some(seed)));
            (0..50).map(|_| sampler.sample(&logits, &[]).expect("finite")).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn draws_follow_the_probabilities_at_the_temperature() {
        let logits = [0.0, 2.0f32.ln(), 4.0f32.ln()];
        let counts = frequencies(&mut sampler(|o| o.temperature = 1.0), &logits, 7000);
        for (count, expected) in counts.iter().zip([1000.0, 2000.0, 4000.0]) {
            assert!((*count as f64 - expected).abs() < 150.0, "{counts:?}");
        }
        let counts = frequencies(&mut sampler(|o| o.temperature = 0.5), &logits, 21000);
        for (count, expected) in counts.iter().zip([1000.0, 4000.0, 16000.0]) {
            assert!((*count as f64 - expected).abs() < 300.0, "{counts:?}");
        }
    }

    #[test]
    fn top_k_keeps_the_k_most_likely() {
        let counts = frequencies(&mut sampler(|o| (o.temperature, o.top_k) = (5.0, 2)), &[1.0, 3.0, 0.5, 2.0], 500);
        assert_eq!((counts[0], counts[2]), (0, 0));
        assert!(counts[1] > 0 && counts[3] > 0);
        let one = frequencies(&mut sampler(|o| (o.temperature, o.top_k) = (5.0, 1)), &[1.0, 3.0, 3.0], 50);
        assert_eq!(one, [0, 50, 0], "equal logits: the lower id stays");
    }

    #[test]
    fn top_p_keeps_the_nucleus() {
        // Probabilities 0.1, 0.2, 0.3, 0.4: 0.4 + 0.3 is the first sum past 0.6.
        let logits = [0.1f32.ln(), 0.2f32.ln(), 0.3f32.ln(), 0.4f32.ln()];
        let counts = frequencies(&mut sampler(|o| (o.temperature, o.top_p) = (1.0, 0.6)), &logits, 500);
        assert_eq!((counts[0], counts[1]), (0, 0));
        assert!(counts[2] > 0 && counts[3] > 0);
        let counts = frequencies(&mut sampler(|o| (o.temperature, o.top_p) = (1.0, 0.01)), &logits, 100);
        assert_eq!(counts, [0, 0, 0, 100], "the most likely token always stays");
    }

    #[test]
    fn min_p_is_relative_to_the_most_likely() {
        let logits = [0.1f32.ln(), 0.2f32.ln(), 0.7f32.ln()];
        let counts = frequencies(&mut sampler(|o| (o.temperature, o.min_p) = (1.0, 0.25)), &logits, 500);
        assert_eq!(counts[0], 0);
        assert!(counts[1] > 0 && counts[2] > 0);
    }

    #[test]
    fn repetition_penalty_weakens_each_seen_token_once() {
        let mut penalised = sampler(|o| o.repetition_penalty = 2.0);
        assert_eq!(penalised.sample(&[1.9, 3.0, 1.0], &[1, 1, 1]).expect("finite"), 0, "3.0 / 2 = 1.5 < 1.9");
        assert_eq!(penalised.sample(&[1.4, 3.0, 1.0], &[1, 1, 1]).expect("finite"), 1, "halved once, not three times");
        assert_eq!(penalised.sample(&[-1.0, -1.5], &[0]).expect("finite"), 1, "negative logits go further down");
        assert_eq!(penalised.sample(&[1.0, 0.9], &[9]).expect("finite"), 0, "ids outside the row are ignored");
        let mut windowed = sampler(|o| (o.repetition_penalty, o.repetition_window) = (2.0, Some(1)));
        assert_eq!(windowed.sample(&[1.9, 3.0], &[1, 0]).expect("finite"), 1, "token 1 is outside the window");
    }

    proptest! {
        #[test]
        fn a_sampled_token_is_always_in_the_row(
            logits in prop::collection::vec(-30.0f32..30.0, 1..200),
            temperature in 0.01f32..5.0, top_k in 0usize..50, top_p in 0.01f32..=1.0, min_p in 0.0f32..=1.0,
        ) {
            let mut sampler = sampler(|o| {
                (o.temperature, o.top_k, o.top_p, o.min_p) = (temperature, top_k, top_p, min_p);
            });
            let id = sampler.sample(&logits, &[]).expect("finite logits") as usize;
            prop_assert!(id < logits.len());
            if min_p == 1.0 || top_k == 1 {
                prop_assert_eq!(logits[id], logits.iter().copied().fold(f32::MIN, f32::max));
            }
        }

        #[test]
        fn the_nucleus_is_the_naive_one(logits in prop::collection::vec(-6.0f32..6.0, 2..60), top_p in 0.05f32..0.99) {
            let mut sampler = sampler(|o| (o.temperature, o.top_p) = (1.0, top_p));
            sampler.collect(&logits);
            sampler.keep_top_p(logits.len());
            let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            let mut sum = 0.0;
            let naive = order.iter().position(|&i| { sum += f64::from(logits[i]).exp() / total; sum > f64::from(top_p) });
            let naive = naive.map_or(logits.len(), |last| last + 1);
            // The sums are formed in another order and precision: one token of slack at the border.
            prop_assert!(sampler.candidates.len().abs_diff(naive) <= 1);
        }
    }
}
