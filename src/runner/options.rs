//! What a caller can ask of a run: sampling and generation options, checked in one place.

use super::decoder::DecodingMode;
use super::requant::RequantRounding;
use crate::error::{Error, Result};
use crate::media::Tiling;
use serde::{Deserialize, Serialize};

/// How the next token is chosen from the logits. The filters run in this order: repetition penalty, top-k, top-p,
/// min-p, temperature; each value has a setting that turns its filter off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingOptions {
    /// Divides the logits; 0 is greedy (the first maximum wins, the filters but the penalty change nothing).
    /// Finite, 0 or more. Default 0.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 turns it off. Default 0.
    pub top_k: usize,
    /// Keep the smallest set of most likely tokens whose probabilities sum to more than this; 1 turns it off.
    /// Above 0, at most 1. Default 1.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 turns it off. 0 to 1. Default 0.
    pub min_p: f32,
    /// Positive logits of tokens seen before are divided by it, negative ones multiplied; 1 turns it off.
    /// Finite, above 0. Default 1.
    pub repetition_penalty: f32,
    /// How many of the latest tokens (prompt included) the penalty looks at; `None` is all of them.
    pub repetition_window: Option<usize>,
    /// Seed of the random numbers; `None` takes one from the clock. Only read when the temperature is above 0.
    pub seed: Option<u64>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repetition_window: None,
            seed: None,
        }
    }
}

impl SamplingOptions {
    /// Check every value against its range.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the option, its value and the range.
    pub fn validate(&self) -> Result<()> {
        in_range("temperature", self.temperature, self.temperature >= 0.0, "0 or more")?;
        in_range("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        in_range("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1")?;
        in_range("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.0, "above 0")
    }

    /// Whether the choice needs no random number.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }
}

fn in_range(name: &str, value: f32, holds: bool, range: &str) -> Result<()> {
    if value.is_finite() && holds {
        return Ok(());
    }
    Err(Error::invalid(format!("option {name} is {value}, it must be {range}")))
}

/// How one reply is generated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub struct GenerateOptions {
    /// Most tokens of this reply, at least 1; `None`: until the end of the text or of the context. This is a budget
    /// of the reply, not the context capacity, which belongs to the compiled model.
    pub max_new_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
    /// The reply ends before the first of these strings; none may be empty.
    pub stop: Vec<String>,
    /// Go on past end-of-sequence tokens (their text is still not shown).
    pub ignore_eos: bool,
    /// Pass the text of the new messages to the callback first, as [`Event::Prompt`](super::Event::Prompt).
    pub echo: bool,
}

impl GenerateOptions {
    /// Check every value.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the option, its value and the range.
    pub fn validate(&self) -> Result<()> {
        self.sampling.validate()?;
        if self.max_new_tokens == Some(0) {
            return Err(Error::invalid("option max_new_tokens is 0, it must be 1 or more, or left unset for no limit"));
        }
        if let Some(index) = self.stop.iter().position(String::is_empty) {
            return Err(Error::invalid(format!(
                "option stop: string number {index} is empty; it would end every reply"
            )));
        }
        Ok(())
    }
}

/// How a [`Runner`](super::Runner) is opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunnerOptions {
    /// Threads of the CPU engine, 1 to [`MAX_THREADS`](Self::MAX_THREADS); `None`: one a physical core.
    pub threads: Option<usize>,
    /// Chat template instead of the artefact's own: `upstream:<name>` is one of the built-in compatibility templates,
    /// anything else is Jinja source.
    pub template: Option<String>,
    /// Further variables for the template, e.g. `enable_thinking` or `date_string`.
    pub template_variables: serde_json::Map<String, serde_json::Value>,
    /// First message of every conversation of this runner, with the role `system`.
    pub system_prompt: Option<String>,
    /// How pictures are cut. With an `upstream:` template [`Tiling::Checkpoint`] means [`Tiling::Single`], which is all
    /// that upstream knows.
    pub image_tiling: Tiling,
    /// Most bytes of encoded pictures kept, so that one that comes again is not encoded again; 0 turns the cache off.
    /// Default [`DEFAULT_IMAGE_CACHE_BYTES`](Self::DEFAULT_IMAGE_CACHE_BYTES). Pictures of the history are kept beside it.
    pub image_cache_bytes: usize,
    /// Which graphs of the decoder run, and how.
    pub decoding: DecodingMode,
    /// How the KV cache is re-quantized between prefill and decode, in files that ask for it.
    pub requant_rounding: RequantRounding,
    /// Ask the engine for memory that the processor shares, for inputs, outputs and the KV cache.
    pub shared_memory: bool,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            threads: None,
            template: None,
            template_variables: serde_json::Map::new(),
            system_prompt: None,
            image_tiling: Tiling::Checkpoint,
            image_cache_bytes: Self::DEFAULT_IMAGE_CACHE_BYTES,
            decoding: DecodingMode::default(),
            requant_rounding: RequantRounding::default(),
            shared_memory: false,
        }
    }
}

impl RunnerOptions {
    /// 64 MiB: about 270 pictures of one tile for SmolVLM-500M.
    pub const DEFAULT_IMAGE_CACHE_BYTES: usize = 64 << 20;

    /// Most threads that can be asked for.
    pub const MAX_THREADS: usize = 256;

    /// Check every value.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the option, its value and the range.
    pub fn validate(&self) -> Result<()> {
        match self.threads {
            Some(threads) if !(1..=Self::MAX_THREADS).contains(&threads) => {
                let most = Self::MAX_THREADS;
                Err(Error::invalid(format!("option threads is {threads}, it must be from 1 to {most}")))
            }
            _ => match self.decoding {
                DecodingMode::Lookahead(sizes) => sizes.rows().map(|_| ()),
                _ => Ok(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_greedy() {
        assert!(GenerateOptions::default().validate().is_ok());
        assert!(SamplingOptions::default().is_greedy());
    }

    #[test]
    fn errors_name_option_value_and_range() {
        let with = |change: fn(&mut SamplingOptions)| {
            let mut options = SamplingOptions::default();
            change(&mut options);
            options.validate().expect_err("out of range").to_string()
        };
        assert_eq!(with(|o| o.temperature = -1.0), "option temperature is -1, it must be 0 or more");
        assert_eq!(with(|o| o.temperature = f32::NAN), "option temperature is NaN, it must be 0 or more");
        assert_eq!(with(|o| o.top_p = 0.0), "option top_p is 0, it must be above 0 and at most 1");
        assert_eq!(with(|o| o.top_p = 1.5), "option top_p is 1.5, it must be above 0 and at most 1");
        assert_eq!(with(|o| o.min_p = -0.5), "option min_p is -0.5, it must be from 0 to 1");
        assert_eq!(with(|o| o.repetition_penalty = 0.0), "option repetition_penalty is 0, it must be above 0");
    }

    #[test]
    fn zero_budget_and_empty_stop_string_are_refused() {
        let budget = GenerateOptions { max_new_tokens: Some(0), ..Default::default() };
        assert!(budget.validate().expect_err("zero").to_string().contains("max_new_tokens is 0"));
        let stop = GenerateOptions { stop: vec!["a".into(), String::new()], ..Default::default() };
        assert!(stop.validate().expect_err("empty").to_string().contains("string number 1 is empty"));
    }

    #[test]
    fn threads_have_a_range() {
        let with = |threads| RunnerOptions { threads: Some(threads), ..Default::default() }.validate();
        assert!(with(1).is_ok() && with(256).is_ok());
        for threads in [0, 257] {
            let error = with(threads).expect_err("out of range").to_string();
            assert_eq!(error, format!("option threads is {threads}, it must be from 1 to 256"));
        }
    }

    #[test]
    fn unknown_json_keys_are_named() {
        let error = serde_json::from_str::<SamplingOptions>(r#"{"topk": 4}"#).expect_err("unknown key");
        assert!(error.to_string().contains("topk"), "{error}");
    }
}
