//! The files a run leaves behind: text, speed, logits.

use super::flags::Flags;
use etgenai::{Error, Result};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A file that is made at the start, so that a path that cannot be written to is known before anything runs, and filled
/// at the end.
struct Target {
    path: PathBuf,
    file: File,
}

impl Target {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|e| Error::io(path, e))?;
        Ok(Self { path: path.to_owned(), file })
    }

    fn fill(mut self, parts: &[&[u8]]) -> Result<()> {
        parts.iter().try_for_each(|part| self.file.write_all(part)).map_err(|e| Error::io(&self.path, e))
    }
}

/// What is collected for the files while the conversation goes on.
pub struct Outputs {
    text: Vec<u8>,
    text_target: Target,
    performance: Option<PathBuf>,
    /// Logits of prompts and of replies, and where they go.
    logits: Option<(Logits, Target)>,
}

/// Rows of logits as the program wrote them.
#[derive(Default)]
struct Logits {
    prompts: Vec<u8>,
    replies: Vec<u8>,
}

impl Logits {
    /// Sort the rows of a turn: first those of `prompt` tokens, then those of `reply` tokens.
    fn add(&mut self, rows: &[u8], prompt: usize, reply: usize) {
        let row = rows.len().checked_div(prompt + reply).unwrap_or(0);
        let (prompt, reply) = rows.split_at((row * prompt).min(rows.len()));
        self.prompts.extend_from_slice(prompt);
        self.replies.extend_from_slice(reply);
    }
}

impl Outputs {
    /// Make the files.
    ///
    /// # Errors
    /// [`Error::Io`] naming the file.
    pub fn create(flags: &Flags) -> Result<Self> {
        let logits = flags.logits.as_deref().map(Target::create).transpose()?;
        Ok(Self {
            text: Vec::new(),
            text_target: Target::create(&flags.output)?,
            performance: flags.performance.clone(),
            logits: logits.map(|target| (Logits::default(), target)),
        })
    }

    /// More of what was said.
    pub fn say(&mut self, piece: &[u8]) {
        self.text.extend_from_slice(piece);
    }

    /// Whether logits are wanted.
    pub fn wants_logits(&self) -> bool {
        self.logits.is_some()
    }

    /// The logits of a turn, in the order they were computed: one row for each of `prompt` tokens, then one for each of
    /// `reply` tokens.
    pub fn add_logits(&mut self, rows: &[u8], prompt: usize, reply: usize) {
        if let Some((logits, _)) = &mut self.logits {
            logits.add(rows, prompt, reply);
        }
    }

    /// The speed of a turn, in place of the one before.
    ///
    /// # Errors
    /// [`Error::Io`] naming the file.
    pub fn write_performance(&self, content: &str) -> Result<()> {
        let Some(path) = &self.performance else { return Ok(()) };
        std::fs::write(path, content).map_err(|e| Error::io(path, e))
    }

    /// Write what was collected.
    ///
    /// # Errors
    /// [`Error::Io`] naming the file; the other files are written nevertheless.
    pub fn finish(self) -> Result<()> {
        let text = self.text_target.fill(&[&self.text]);
        let logits = self.logits.map_or(Ok(()), |(logits, target)| target.fill(&[&logits.prompts, &logits.replies]));
        text.and(logits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_of_all_prompts_come_before_those_of_replies() {
        let mut logits = Logits::default();
        logits.add(b"aabbcc", 2, 1);
        logits.add(b"ddee", 1, 1);
        logits.add(b"", 0, 0);
        assert_eq!((logits.prompts.as_slice(), logits.replies.as_slice()), (&b"aabbdd"[..], &b"ccee"[..]));
    }
}
