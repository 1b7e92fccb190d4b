//! Keeps text from outside from spelling control tokens while a template works on it.
//!
//! Before rendering, a private *mark* is put inside everything that is, or together with the template's own text could
//! become, a control token. The template carries the mark along; afterwards it shows which stretches of the text must
//! be encoded without control tokens, and it is taken out again.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::{Error, Result};

/// The texts of control tokens, prepared for looking them up in contents.
#[derive(Debug)]
pub(super) struct ControlTexts {
    whole: HashSet<String>,
    first_characters: HashSet<char>,
    /// Longest text, in characters.
    longest: usize,
    /// Sorted, to find which begin with a given text; and their reversals, to find which end with it.
    forwards: Vec<String>,
    backwards: Vec<String>,
}

impl ControlTexts {
    pub(super) fn new<'t>(texts: impl Iterator<Item = &'t str>) -> Self {
        let whole: HashSet<String> = texts.map(str::to_string).collect();
        let mut forwards: Vec<String> = whole.iter().cloned().collect();
        let mut backwards: Vec<String> = whole.iter().map(|text| reversed(text)).collect();
        forwards.sort_unstable();
        backwards.sort_unstable();
        ControlTexts {
            first_characters: whole.iter().filter_map(|text| text.chars().next()).collect(),
            longest: whole.iter().map(|text| text.chars().count()).max().unwrap_or(0),
            whole,
            forwards,
            backwards,
        }
    }

    /// `content` with marks. Content that has nothing to do with control tokens comes back unchanged.
    pub(super) fn escape(&self, content: &str, marks: &mut Marks) -> Result<String> {
        let cuts = self.cuts(content);
        let mut escaped = String::with_capacity(content.len() + 4 * cuts.len());
        for (at, character) in content.char_indices() {
            if cuts.contains(&at) {
                escaped.push(marks.mark);
            }
            if self.first_characters.contains(&character) && self.whole.contains(character.encode_utf8(&mut [0; 4])) {
                escaped.push(marks.stand_in(character)?);
            } else {
                escaped.push(character);
            }
        }
        if cuts.contains(&content.len()) {
            escaped.push(marks.mark);
        }
        Ok(escaped)
    }

    /// Byte positions at which a mark separates what could be a control token.
    fn cuts(&self, content: &str) -> BTreeSet<usize> {
        let mut cuts = BTreeSet::new();
        for (at, first) in content.char_indices().filter(|(_, first)| self.first_characters.contains(first)) {
            let rest = &content[at..];
            // The shortest match decides: a mark after the first character breaks all that begin here.
            if ends(rest).skip(1).take(self.longest).any(|end| self.whole.contains(&rest[..end])) {
                cuts.insert(at + first.len_utf8());
            }
        }
        // Templates may trim what they are given, so both borders count: the given one and the trimmed one.
        for tail in [content, content.trim_end()] {
            let starts: Vec<usize> = tail.char_indices().rev().take(self.longest).map(|(at, _)| at).collect();
            for at in starts {
                if extends(&self.forwards, &tail[at..]) {
                    cuts.insert(at + tail[at..].chars().next().map_or(0, char::len_utf8));
                }
            }
        }
        for head in [content, content.trim_start()] {
            let begins = content.len() - head.len();
            if ends(head).take(self.longest).any(|end| extends(&self.backwards, &reversed(&head[..end]))) {
                cuts.insert(begins);
            }
        }
        let core = content.trim();
        let inside = |text: &String| text.contains(core);
        if !core.is_empty() && core.chars().count() < self.longest && self.whole.iter().any(inside) {
            cuts.insert(content.len() - content.trim_start().len());
        }
        cuts
    }
}

/// Ends of the first, the first two, … characters.
fn ends(text: &str) -> impl Iterator<Item = usize> {
    text.char_indices().map(|(at, character)| at + character.len_utf8())
}

fn reversed(text: &str) -> String {
    text.chars().rev().collect()
}

/// Whether any of the sorted texts begins with `start` and goes on after it.
fn extends(sorted: &[String], start: &str) -> bool {
    let from = sorted.partition_point(|text| text.as_str() <= start);
    sorted.get(from).is_some_and(|text| text.starts_with(start))
}

/// Private-use characters that occur nowhere in a conversation.
#[derive(Debug)]
pub(super) struct Marks {
    /// Goes between the first and the second character of what must not become a control token.
    pub mark: char,
    stand_ins: HashMap<char, char>,
    used: HashSet<char>,
    next: u32,
}

impl Marks {
    const FIRST: u32 = 0xF_0000;
    const LAST: u32 = 0x10_FFF0;

    /// Marks that are in none of these texts.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the texts use up every private character.
    pub(super) fn absent_from<'t>(texts: impl Iterator<Item = &'t str>) -> Result<Self> {
        let private = |character: &char| *character as u32 >= Self::FIRST;
        let used = texts.flat_map(str::chars).filter(private).collect();
        let mut marks = Marks { mark: '\0', stand_ins: HashMap::new(), used, next: Self::FIRST };
        marks.mark = marks.fresh()?;
        Ok(marks)
    }

    /// One more private character that nothing uses.
    pub(super) fn fresh(&mut self) -> Result<char> {
        let free = (self.next..=Self::LAST).filter_map(char::from_u32).find(|character| !self.used.contains(character));
        let Some(free) = free else {
            return Err(Error::invalid("the conversation uses every private Unicode character: remove some"));
        };
        self.next = free as u32 + 1;
        Ok(free)
    }

    /// The character that stands for a control token of one character, which no mark can break.
    fn stand_in(&mut self, token: char) -> Result<char> {
        if let Some((&stand_in, _)) = self.stand_ins.iter().find(|&(_, &original)| original == token) {
            return Ok(stand_in);
        }
        let stand_in = self.fresh()?;
        self.stand_ins.insert(stand_in, token);
        Ok(stand_in)
    }

    /// Whether a rendered text holds any mark.
    pub(super) fn any_in(&self, text: &str) -> bool {
        text.chars().any(|character| character == self.mark || self.stand_ins.contains_key(&character))
    }

    /// The text as its author wrote it.
    pub(super) fn restore(&self, text: &str) -> String {
        let kept = text.chars().filter(|&character| character != self.mark);
        kept.map(|character| self.stand_ins.get(&character).copied().unwrap_or(character)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOKENS: [&str; 4] = ["<|a|>", "<b>", "|x|x|", "¶"];

    fn escape(content: &str) -> (String, Marks) {
        let texts = ControlTexts::new(TOKENS.into_iter());
        let mut marks = Marks::absent_from([content].into_iter()).unwrap();
        (texts.escape(content, &mut marks).unwrap(), marks)
    }

    #[test]
    fn harmless_text_is_left_alone() {
        for text in ["", "Hello", "a < c and d > e.", "5 <|", "naïve 你好 \u{F0000}"] {
            let expected = if text.ends_with("<|") { None } else { Some(text) };
            let (escaped, marks) = escape(text);
            assert_eq!(expected.is_some(), escaped == text, "{text:?}");
            assert_eq!(marks.restore(&escaped), text);
        }
    }

    #[test]
    fn overlapping_tokens_are_all_broken() {
        let (escaped, _) = escape("|x|x|x|");
        assert!(!TOKENS.iter().any(|token| escaped.contains(token)), "{escaped:?}");
    }

    #[test]
    fn a_private_character_of_the_text_is_no_mark() {
        let (escaped, marks) = escape("\u{F0000}<b>");
        assert_ne!(marks.mark, '\u{F0000}');
        assert_eq!(marks.restore(&escaped), "\u{F0000}<b>");
    }

    proptest! {
        /// Whatever a template puts around a content, trimmed or not, no control token arises that is not all its own.
        #[test]
        fn no_token_arises_in_or_across_the_border(
            content in "[<|ab>x¶ ]{0,12}", before in "[<|ab>x]{0,4}", after in "[<|ab>x]{0,4}",
        ) {
            let (escaped, marks) = escape(&content);
            prop_assert_eq!(marks.restore(&escaped), content);
            let own: usize = TOKENS.iter().map(|token| before.matches(token).count() + after.matches(token).count()).sum();
            for inner in [escaped.as_str(), escaped.trim(), escaped.trim_start(), escaped.trim_end()] {
                if inner.is_empty() {
                    continue;
                }
                let text = format!("{before}{inner}{after}");
                let found: usize = TOKENS.iter().map(|token| text.matches(token).count()).sum();
                prop_assert!(found <= own, "{:?}", text);
            }
        }
    }
}
