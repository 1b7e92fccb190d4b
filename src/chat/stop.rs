//! Stop strings in a stream of text.

use crate::{Error, Result};

/// What [`StopMatcher::push`] says about one more chunk of text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopResult {
    /// Text that certainly is not part of a stop string: show it.
    pub emit: String,
    /// A stop string is complete; its text is never emitted and nothing follows.
    pub hit: bool,
}

/// Finds stop strings in text that arrives in chunks of any size.
///
/// A tail that may be the beginning of a stop string is held back until it is complete or fails. The result does not
/// depend on how the text was cut: the first stop string to become complete wins, and among those that end at the
/// same byte the longest.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Pattern>,
    pending: String,
    hit: bool,
}

/// One stop string with its Knuth-Morris-Pratt state, so that a chunk costs time linear in its length.
#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// `failure[n]`: length of the longest proper prefix of the first `n + 1` bytes that is also their suffix.
    failure: Vec<usize>,
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut failure = vec![0; bytes.len()];
        let mut border = 0;
        for i in 1..bytes.len() {
            while border > 0 && bytes[i] != bytes[border] {
                border = failure[border - 1];
            }
            border += usize::from(bytes[i] == bytes[border]);
            failure[i] = border;
        }
        Pattern { bytes, failure, matched: 0 }
    }

    /// Takes one more byte; true when the pattern is complete. Not called again after that.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.failure[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

impl StopMatcher {
    /// A matcher for these strings; none at all lets everything through.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an empty stop string, which would stop before the first character.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self> {
        if let Some(index) = stops.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(Error::invalid(format!(
                "stop string {index} is empty: leave it out, an empty string would stop at once"
            )));
        }
        Ok(StopMatcher {
            stops: stops.iter().map(|stop| Pattern::new(stop.as_ref())).collect(),
            pending: String::new(),
            hit: false,
        })
    }

    /// Takes the next chunk. After a hit every further chunk gives nothing but `hit`.
    pub fn push(&mut self, chunk: &str) -> StopResult {
        if self.hit {
            return StopResult { emit: String::new(), hit: true };
        }
        let seen = self.pending.len();
        self.pending.push_str(chunk);
        for (at, byte) in chunk.bytes().enumerate() {
            let mut longest = 0;
            for stop in &mut self.stops {
                if stop.advance(byte) {
                    longest = longest.max(stop.bytes.len());
                }
            }
            if longest > 0 {
                self.hit = true;
                self.pending.truncate(seen + at + 1 - longest);
                return StopResult { emit: std::mem::take(&mut self.pending), hit: true };
            }
        }
        // Stop strings are UTF-8, so a partial match begins at a character boundary.
        let held = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let rest = self.pending.split_off(self.pending.len() - held);
        StopResult { emit: std::mem::replace(&mut self.pending, rest), hit: false }
    }

    /// The text ends here: gives back what was held. Empty after a hit.
    pub fn finish(&mut self) -> String {
        for stop in &mut self.stops {
            stop.matched = 0;
        }
        std::mem::take(&mut self.pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[String], chunks: &[String]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops).unwrap();
        let mut text = String::new();
        let mut hit = false;
        for chunk in chunks {
            let result = matcher.push(chunk);
            text += &result.emit;
            hit = result.hit;
        }
        (text + &matcher.finish(), hit)
    }

    /// The first end position at which any stop string is complete; there, the longest.
    fn naive(stops: &[String], text: &str) -> (String, bool) {
        for (end, _) in text.char_indices().skip(1).chain([(text.len(), ' ')]) {
            let ending = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            if let Some(longest) = ending.map(|stop| stop.len()).max() {
                return (text[..end - longest].to_string(), true);
            }
        }
        (text.to_string(), false)
    }

    #[test]
    fn holds_back_and_releases_a_partial_match() {
        let mut matcher = StopMatcher::new(&["\n\nUser:"]).unwrap();
        assert_eq!(matcher.push("Hi\n").emit, "Hi");
        assert_eq!(matcher.push("\n").emit, "");
        assert_eq!(matcher.push("\nUs").emit, "\n");
        assert_eq!(matcher.push("!").emit, "\n\nUs!");
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn stops_on_the_first_chunk_and_stays_stopped() {
        let mut matcher = StopMatcher::new(&["END"]).unwrap();
        let first = matcher.push("ENDLESS");
        assert_eq!((first.emit.as_str(), first.hit), ("", true));
        let next = matcher.push("more");
        assert_eq!((next.emit.as_str(), next.hit), ("", true));
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn an_empty_stop_string_is_refused_by_its_index() {
        let error = StopMatcher::new(&["a", ""]).unwrap_err().to_string();
        assert!(error.contains("stop string 1"), "{error}");
    }

    proptest! {
        #[test]
        fn equals_a_search_over_the_whole_text(
            stops in proptest::collection::vec("[abé]{1,4}", 0..4),
            chunks in proptest::collection::vec("[abé]{0,5}", 0..8),
        ) {
            prop_assert_eq!(run(&stops, &chunks), naive(&stops, &chunks.concat()));
        }
    }
}
