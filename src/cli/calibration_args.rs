//! The options that name calibration data, the same for `quantize` and `pipeline`.

use super::positive;
use clap::Args;
use etgenai::dataset::{DatasetOptions, RandomData, Shard};
use std::path::PathBuf;

/// Calibration data. Sources are read one after the other.
#[derive(Args, Clone)]
#[command(next_help_heading = "Calibration data")]
pub struct CalibrationArgs {
    /// Conversations: JSON files with a list of samples, each with its messages and the files they show
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub calib_samples: Vec<PathBuf>,
    /// Plain UTF-8 texts
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub calib_text: Vec<PathBuf>,
    /// Chat sets: a JSON object a line, with a field "messages"
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub calib_chat: Vec<PathBuf>,
    /// Token ids: JSON files with a list of lists
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub calib_tokens: Vec<PathBuf>,
    /// Random token ids, for smoke tests only: their ranges say little about real text
    #[arg(long)]
    pub calib_random: bool,
    /// Windows of each text; without it all
    #[arg(long, value_name = "N", value_parser = positive)]
    pub calib_text_limit: Option<usize>,
    /// Tokens of a window of a text; without it the whole context
    #[arg(long, value_name = "N", value_parser = positive)]
    pub calib_text_window: Option<usize>,
    /// Rows of each chat set; without it all
    #[arg(long, value_name = "N", value_parser = positive)]
    pub calib_chat_limit: Option<usize>,
    /// Rows of random ids
    #[arg(long, value_name = "N", value_parser = positive, requires = "calib_random", default_value_t = RandomData::default().samples)]
    pub calib_random_samples: usize,
    /// Seed of the random ids
    #[arg(long, value_name = "N", requires = "calib_random", default_value_t = RandomData::default().seed)]
    pub calib_random_seed: u64,
}

impl CalibrationArgs {
    /// What is asked for, for a context of so many tokens.
    pub fn options(&self, max_context: usize, shard: Option<Shard>) -> DatasetOptions {
        let random = RandomData {
            samples: self.calib_random_samples,
            length: max_context.min(RandomData::default().length),
            seed: self.calib_random_seed,
        };
        DatasetOptions {
            samples: self.calib_samples.clone(),
            texts: self.calib_text.clone(),
            chats: self.calib_chat.clone(),
            token_rows: self.calib_tokens.clone(),
            random: self.calib_random.then_some(random),
            text_limit: self.calib_text_limit,
            text_window: self.calib_text_window,
            chat_limit: self.calib_chat_limit,
            max_context,
            shard,
            ..DatasetOptions::default()
        }
    }
}
