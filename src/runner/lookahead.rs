//! Lookahead decoding: guess several tokens ahead, verify all guesses in one call (Fu et al., "Break the sequential
//! dependency of LLM inference using lookahead decoding", 2024; the layout is that of upstream's runner).
//!
//! One call takes a block of rows with a tree mask:
//!
//! | rows | what |
//! | --- | --- |
//! | 0 | the current token |
//! | `1..W` | level 0 of the W branches: guesses for the tokens behind it |
//! | `i·W + j`, `1 <= i < N-1` | level i of branch j |
//! | `W·(N-1) + g·(N-1) + j` | token j of candidate g: an n-gram that followed the current token before |
//!
//! The branches are how candidates are found: each call adds a level, drops the oldest and remembers every column as an
//! n-gram. The candidates are verified: as long as the tokens that are really chosen follow one, their K, V and logits are
//! there already. A token that was guessed wrongly costs nothing but the row; the text is that of plain decoding, whatever
//! the sampling.

use super::mask::{BlockRow, Parent};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The three sizes of lookahead decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LookaheadOptions {
    /// N: tokens of an n-gram, the current one included; at least 2.
    pub ngram: usize,
    /// W: branches; at least 1.
    pub window: usize,
    /// G: candidates of a call, and n-grams remembered for a token; at least 1.
    pub gcap: usize,
}

impl LookaheadOptions {
    /// Rows of a block: `(W + G) · (N - 1)`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the size that is too small or too large.
    pub fn rows(&self) -> Result<usize> {
        let Self { ngram, window, gcap } = *self;
        for (name, value, least) in [("ngram", ngram, 2), ("window", window, 1), ("gcap", gcap, 1)] {
            if value < least {
                return Err(Error::invalid(format!("lookahead {name} is {value}, it must be {least} or more")));
            }
        }
        let rows = window.checked_add(gcap).and_then(|branches| branches.checked_mul(ngram - 1));
        rows.ok_or_else(|| {
            Error::invalid(format!("lookahead of ngram {ngram}, window {window}, gcap {gcap} is too large"))
        })
    }
}

/// How lookahead decoding went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LookaheadStats {
    /// Calls of the wide graph.
    pub calls: usize,
    /// Tokens that were guessed rightly: each saved a call.
    pub accepted: usize,
}

/// The rows of one call.
#[derive(Debug)]
pub(super) struct Block {
    /// Tokens of the rows in use.
    pub ids: Vec<u32>,
    /// What all rows are to each other.
    pub tree: Arc<[BlockRow]>,
}

/// Branches, remembered n-grams, and the guesses of the last call.
#[derive(Debug)]
pub(super) struct Lookahead {
    options: LookaheadOptions,
    /// Levels of W tokens, oldest first; empty until the first call. Column 0 of level 0 is always the current token.
    levels: VecDeque<Vec<u32>>,
    /// For each token the n-grams that followed it, N-1 tokens each, newest last, at most G.
    pool: HashMap<u32, VecDeque<Vec<u32>>>,
    /// What every row is to the others; rows beyond those in use see themselves only.
    tree: Arc<[BlockRow]>,
    guesses: Option<Guesses>,
    stats: LookaheadStats,
}

/// Candidates of the last call that agree with everything chosen since.
#[derive(Debug)]
struct Guesses {
    candidates: Vec<(usize, Vec<u32>)>,
    /// Tokens chosen since that they agreed with.
    depth: usize,
}

impl Lookahead {
    /// Lookahead on a graph that takes blocks of `ar` tokens.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the sizes are out of range or need more rows.
    pub fn new(options: LookaheadOptions, ar: usize) -> Result<Self> {
        let rows = options.rows()?;
        if rows > ar {
            let LookaheadOptions { ngram, window, gcap } = options;
            return Err(Error::invalid(format!(
                "lookahead of ngram {ngram}, window {window} and gcap {gcap} needs blocks of {rows} tokens, the widest \
                 graph takes {ar}: choose what the model was exported with"
            )));
        }
        let tree = tree_of(options, ar);
        let (levels, pool, stats) = (VecDeque::new(), HashMap::new(), LookaheadStats::default());
        Ok(Self { options, levels, pool, tree, guesses: None, stats })
    }

    /// N.
    pub fn ngram(&self) -> usize {
        self.options.ngram
    }

    /// How it went since creation.
    pub fn stats(&self) -> LookaheadStats {
        self.stats
    }

    /// Forget the guesses of the last call: the text goes on elsewhere.
    pub fn forget_guesses(&mut self) {
        self.guesses = None;
    }

    /// `token` was chosen. The row of the last call that holds its K, V and logits, if one does.
    pub fn accept(&mut self, token: u32) -> Option<usize> {
        let guesses = self.guesses.as_mut()?;
        guesses.candidates.retain(|(_, tokens)| tokens.get(guesses.depth) == Some(&token));
        let Some((candidate, _)) = guesses.candidates.first() else {
            self.guesses = None;
            return None;
        };
        let steps = self.options.ngram - 1;
        let row = self.options.window * steps + candidate * steps + guesses.depth;
        guesses.depth += 1;
        self.stats.accepted += 1;
        Some(row)
    }

    /// The block to compute for `current`. `text` is what came before it; the first guesses are taken from there.
    pub fn block(&mut self, current: u32, text: &[u32]) -> Block {
        let LookaheadOptions { ngram, window, .. } = self.options;
        if self.levels.is_empty() {
            self.levels = (0..ngram - 1).map(|level| first_guesses(text, current, level, window)).collect();
        }
        if let Some(first) = self.levels.front_mut().and_then(|level| level.first_mut()) {
            *first = current;
        }
        let candidates = self.pool.get(&current).map(|grams| grams.iter().cloned().collect()).unwrap_or_default();
        let candidates: Vec<Vec<u32>> = candidates;
        let ids = self.levels.iter().chain(&candidates).flatten().copied().collect();
        let candidates = candidates.into_iter().enumerate().collect();
        self.guesses = Some(Guesses { candidates, depth: 0 });
        self.stats.calls += 1;
        Block { ids, tree: self.tree.clone() }
    }

    /// The rows of the last level, whose most likely successors the next level is made of.
    pub fn last_level(&self) -> std::ops::Range<usize> {
        let (window, last) = (self.options.window, self.options.ngram - 2);
        window * last..window * (last + 1)
    }

    /// Take over what the last call found: the most likely token behind each row of [`last_level`](Self::last_level).
    pub fn learn(&mut self, next_level: Vec<u32>) {
        let Some(first) = self.levels.pop_front() else { return };
        self.levels.push_back(next_level);
        for (column, key) in first.into_iter().enumerate() {
            let gram: Option<Vec<u32>> = self.levels.iter().map(|level| level.get(column).copied()).collect();
            let Some(gram) = gram else { continue };
            let known = self.pool.entry(key).or_default();
            if known.contains(&gram) {
                continue;
            }
            if known.len() == self.options.gcap {
                known.pop_front();
            }
            known.push_back(gram);
        }
    }
}

/// What the rows of a block are to each other.
fn tree_of(options: LookaheadOptions, ar: usize) -> Arc<[BlockRow]> {
    let LookaheadOptions { ngram, window, gcap } = options;
    let steps = ngram - 1;
    let level = |row: usize| match (row / window, row % window) {
        (0, 0) => BlockRow { parent: Parent::Cache, offset: 0 },
        (0, column) => BlockRow { parent: Parent::Row(column - 1), offset: column },
        (level, column) => BlockRow { parent: Parent::Row(row - window), offset: level + column },
    };
    let candidate = |index: usize| match index % steps {
        0 => BlockRow { parent: Parent::Row(0), offset: 1 },
        step => BlockRow { parent: Parent::Row(window * steps + index - 1), offset: step + 1 },
    };
    let unused = BlockRow { parent: Parent::Nothing, offset: 0 };
    let rows = (0..window * steps).map(level).chain((0..gcap * steps).map(candidate));
    rows.chain(std::iter::repeat(unused)).take(ar).collect()
}

/// Before anything is known the branches are tokens of the text, spread over it: any tokens do, likely ones do better.
fn first_guesses(text: &[u32], current: u32, level: usize, window: usize) -> Vec<u32> {
    let pick = |column: usize| {
        // Steps of the golden ratio spread evenly over any length.
        let turn = ((level * window + column + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let index = (turn * text.len() as u64) >> 32;
        usize::try_from(index).ok().and_then(|index| text.get(index)).copied().unwrap_or(current)
    };
    (0..window).map(pick).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: LookaheadOptions = LookaheadOptions { ngram: 3, window: 2, gcap: 1 };

    #[test]
    fn rows_of_the_contract() {
        let lookahead = Lookahead::new(SIZES, 8).expect("6 rows in 8");
        let row = |parent, offset| BlockRow { parent, offset };
        use Parent::{Cache, Nothing, Row};
        let rows = [row(Cache, 0), row(Row(0), 1), row(Row(0), 1), row(Row(1), 2), row(Row(0), 1), row(Row(4), 2)];
        assert_eq!(lookahead.tree[..6], rows);
        assert_eq!(lookahead.tree[6..], [row(Nothing, 0); 2]);
        assert_eq!(lookahead.last_level(), 2..4);
        assert_eq!(LookaheadOptions { ngram: 5, window: 8, gcap: 8 }.rows().unwrap(), 64);
    }

    #[test]
    fn sizes_are_checked_with_both_numbers() {
        let error = |sizes: LookaheadOptions, ar| Lookahead::new(sizes, ar).unwrap_err().to_string();
        assert!(error(SIZES, 5).contains("needs blocks of 6 tokens, the widest graph takes 5"));
        assert!(error(LookaheadOptions { ngram: 1, ..SIZES }, 8).contains("ngram is 1"));
        assert!(error(LookaheadOptions { window: 0, ..SIZES }, 8).contains("window is 0"));
        assert!(error(LookaheadOptions { gcap: 0, ..SIZES }, 8).contains("gcap is 0"));
        assert!(error(LookaheadOptions { ngram: usize::MAX, ..SIZES }, 8).contains("too large"));
    }

    #[test]
    fn candidates_are_what_followed_before() {
        let mut lookahead = Lookahead::new(SIZES, 8).expect("fits");
        let first = lookahead.block(7, &[1, 2, 3]);
        assert_eq!((first.ids.len(), first.ids[0]), (4, 7), "no candidates yet");
        assert_eq!(lookahead.accept(8), None);
        lookahead.learn(vec![8, 9]);
        // Column 0 said: behind 7 come the tokens of level 1 and then 8.
        let behind = first.ids[2];
        let second = lookahead.block(7, &[]);
        assert_eq!(second.ids[4..], [behind, 8]);
        assert_eq!(lookahead.accept(behind), Some(4));
        assert_eq!(lookahead.accept(8), Some(5));
        assert_eq!(lookahead.accept(1), None, "the candidate is used up");
        assert_eq!(lookahead.stats(), LookaheadStats { calls: 2, accepted: 2 });
    }

    #[test]
    fn another_token_ends_the_guesses() {
        let mut lookahead = Lookahead::new(SIZES, 8).expect("fits");
        let first = lookahead.block(7, &[]);
        lookahead.learn(vec![8, 9]);
        lookahead.block(7, &[]);
        assert_eq!(lookahead.accept(first.ids[2] + 1), None);
        assert_eq!(lookahead.accept(first.ids[2]), None);
    }

    #[test]
    fn a_ring_of_candidates_keeps_the_newest() {
        let sizes = LookaheadOptions { ngram: 2, window: 1, gcap: 2 };
        let mut lookahead = Lookahead::new(sizes, 3).expect("3 rows");
        for next in [10, 11, 11, 12] {
            lookahead.block(5, &[]);
            lookahead.learn(vec![next]);
        }
        assert_eq!(lookahead.block(5, &[]).ids, [5, 11, 12]);
    }
}
