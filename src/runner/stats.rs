//! Counts and times of runs, and upstream's report formats.

use serde::Serialize;
use std::fmt::Write as _;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Counts and times of one turn. Times are milliseconds; every number is defined for zero tokens, one token and a
/// cancelled turn (a rate without tokens or without time is `None`).
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct TurnStats {
    /// Tokens of the whole prompt, history included: `reused_tokens + prefilled_tokens` unless it was cut short.
    pub prompt_tokens: usize,
    /// Prompt tokens that were in the KV cache already.
    pub reused_tokens: usize,
    /// Prompt tokens that were computed in this turn.
    pub prefilled_tokens: usize,
    /// Tokens sampled, the first and the end-of-sequence token included.
    pub generated_tokens: usize,
    /// Pictures and audio clips of the whole prompt, history included.
    pub images: usize,
    /// Pictures and audio clips that were encoded in this turn; the rows of the others were known.
    pub encoded_images: usize,
    /// Decoded pictures to tiles of the encoder, samples to its features.
    pub image_preprocess_ms: f64,
    /// Inside the vision or audio encoder.
    pub image_encode_ms: f64,
    /// Rendering and tokenizing.
    pub encode_ms: f64,
    /// Computing the prompt tokens.
    pub prefill_ms: f64,
    /// From the start of the run to the first sampled token; 0 if there was none.
    pub first_token_ms: f64,
    /// From the first sampled token to the end.
    pub decode_ms: f64,
    /// Choosing tokens, in total.
    pub sampling_ms: f64,
    /// Inside the engine, in total.
    pub engine_ms: f64,
    /// The whole run.
    pub total_ms: f64,
    /// Moments on the wall clock, for the report formats.
    #[serde(flatten)]
    pub moments: Moments,
}

/// Moments of a run, milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Moments {
    /// Loading the model began.
    pub model_load_start_ms: u64,
    /// Loading the model ended.
    pub model_load_end_ms: u64,
    /// The run began.
    pub inference_start_ms: u64,
    /// The prompt was in the KV cache and the first token sampled.
    pub prompt_eval_end_ms: u64,
    /// The run ended.
    pub inference_end_ms: u64,
}

impl TurnStats {
    /// Tokens sampled from decode steps: all but the first, which the prefill gives.
    pub fn decoded_tokens(&self) -> usize {
        self.generated_tokens.saturating_sub(1)
    }

    /// Computed prompt tokens a second.
    pub fn prefill_tokens_per_second(&self) -> Option<f64> {
        rate(self.prefilled_tokens, self.prefill_ms)
    }

    /// Decode steps a second.
    pub fn decode_tokens_per_second(&self) -> Option<f64> {
        rate(self.decoded_tokens(), self.decode_ms)
    }

    /// The line `PyTorchObserver {…}` with its newline, as upstream runners print it.
    ///
    /// Keys, order and number format are upstream's. Where upstream leaves the first token out of `generated_tokens`
    /// it is counted here ([`upstream_report`](Self::upstream_report) counts as upstream does); the decode rate is of
    /// decode steps, and a rate that is not defined is left out.
    pub fn observer_line(&self) -> String {
        Report::from(self).observer_line()
    }

    /// The lines upstream runners log at INFO, without the prefix that a platform adds.
    pub fn log_lines(&self) -> Vec<String> {
        Report::from(self).log_lines()
    }

    /// Content of upstream's performance file: one number, tokens a second over the whole run, no newline.
    pub fn performance_file(&self) -> String {
        Report::from(self).performance_file()
    }

    /// The three reports with upstream's numbers: the first token of a reply, which the prefill gives, is not counted as
    /// generated.
    pub fn upstream_report(&self) -> UpstreamReport {
        let report = Report { generated_tokens: self.decoded_tokens(), ..Report::from(self) };
        UpstreamReport {
            observer_line: report.observer_line(),
            log_lines: report.log_lines(),
            performance_file: report.performance_file(),
        }
    }
}

/// What an upstream runner reports of a turn, number by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamReport {
    /// The line `PyTorchObserver {…}` with its newline, for standard output.
    pub observer_line: String,
    /// The lines it logs, without the prefix that a platform adds.
    pub log_lines: Vec<String>,
    /// Content of the performance file.
    pub performance_file: String,
}

/// Sums over all turns since the runner was opened; `reset` and `rewind` do not change them.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct TotalStats {
    /// Runs that returned a result, cancelled ones included.
    pub turns: usize,
    /// Sum of [`TurnStats::reused_tokens`].
    pub reused_tokens: usize,
    /// Sum of [`TurnStats::prefilled_tokens`].
    pub prefilled_tokens: usize,
    /// Sum of [`TurnStats::generated_tokens`].
    pub generated_tokens: usize,
    /// Sum of [`TurnStats::decoded_tokens`].
    pub decoded_tokens: usize,
    /// Sum of [`TurnStats::encoded_images`].
    pub encoded_images: usize,
    /// Sum of [`TurnStats::image_encode_ms`].
    pub image_encode_ms: f64,
    /// Opening the artefact, milliseconds.
    pub load_ms: f64,
    /// Sum of [`TurnStats::prefill_ms`].
    pub prefill_ms: f64,
    /// Sum of [`TurnStats::decode_ms`].
    pub decode_ms: f64,
    /// Sum of [`TurnStats::sampling_ms`].
    pub sampling_ms: f64,
    /// Sum of [`TurnStats::engine_ms`].
    pub engine_ms: f64,
    /// Sum of [`TurnStats::total_ms`].
    pub total_ms: f64,
}

impl TotalStats {
    /// Add a turn.
    pub fn add(&mut self, turn: &TurnStats) {
        self.turns += 1;
        self.reused_tokens += turn.reused_tokens;
        self.prefilled_tokens += turn.prefilled_tokens;
        self.generated_tokens += turn.generated_tokens;
        self.decoded_tokens += turn.decoded_tokens();
        self.encoded_images += turn.encoded_images;
        self.image_encode_ms += turn.image_encode_ms;
        self.prefill_ms += turn.prefill_ms;
        self.decode_ms += turn.decode_ms;
        self.sampling_ms += turn.sampling_ms;
        self.engine_ms += turn.engine_ms;
        self.total_ms += turn.total_ms;
    }

    /// Computed prompt tokens a second.
    pub fn prefill_tokens_per_second(&self) -> Option<f64> {
        rate(self.prefilled_tokens, self.prefill_ms)
    }

    /// Decode steps a second.
    pub fn decode_tokens_per_second(&self) -> Option<f64> {
        rate(self.decoded_tokens, self.decode_ms)
    }
}

fn rate(tokens: usize, ms: f64) -> Option<f64> {
    (tokens > 0 && ms > 0.0).then(|| tokens as f64 * 1000.0 / ms)
}

/// A monotonic clock that can also say the wall time of its readings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
    start_epoch_ms: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_epoch_ms: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Milliseconds since the clock was made.
    pub(crate) fn ms(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1000.0
    }

    /// The wall time `ms` after the clock was made, in milliseconds since the Unix epoch.
    pub(crate) fn epoch_ms(&self, ms: f64) -> u64 {
        self.start_epoch_ms.saturating_add(ms as u64)
    }
}

/// The numbers of upstream's report formats (spec of the runner contract, 5.9).
#[derive(Debug, Clone, Default)]
struct Report {
    prompt_tokens: usize,
    generated_tokens: usize,
    decoded_tokens: usize,
    moments: Moments,
    sampling_ms: u64,
    engine_ms: u64,
}

impl From<&TurnStats> for Report {
    fn from(stats: &TurnStats) -> Self {
        Self {
            prompt_tokens: stats.prefilled_tokens,
            generated_tokens: stats.generated_tokens,
            decoded_tokens: stats.decoded_tokens(),
            moments: stats.moments,
            sampling_ms: stats.sampling_ms.round() as u64,
            engine_ms: stats.engine_ms.round() as u64,
        }
    }
}

impl Report {
    fn prompt_ms(&self) -> f64 {
        ms_between(self.moments.inference_start_ms, self.moments.prompt_eval_end_ms)
    }

    fn decode_ms(&self) -> f64 {
        ms_between(self.moments.prompt_eval_end_ms, self.moments.inference_end_ms)
    }

    fn total_ms(&self) -> f64 {
        ms_between(self.moments.inference_start_ms, self.moments.inference_end_ms)
    }

    fn observer_line(&self) -> String {
        let mut json = String::from("{");
        for (key, tokens, ms) in [
            ("prefill_token_per_sec", self.prompt_tokens, self.prompt_ms()),
            ("decode_token_per_sec", self.decoded_tokens, self.decode_ms()),
        ] {
            if let Some(rate) = rate(tokens, ms) {
                // Writing to a String cannot fail.
                let _ = write!(json, "\"{key}\":{},", format_g6(rate));
            }
        }
        let m = &self.moments;
        // Upstream's QNN runners stamp the first token and the end of the prompt with the same moment.
        let fields = [
            ("prompt_tokens", self.prompt_tokens as u64),
            ("generated_tokens", self.generated_tokens as u64),
            ("model_load_start_ms", m.model_load_start_ms),
            ("model_load_end_ms", m.model_load_end_ms),
            ("inference_start_ms", m.inference_start_ms),
            ("inference_end_ms", m.inference_end_ms),
            ("model_execution_start_ms", 0),
            ("model_execution_end_ms", 0),
            ("prompt_eval_end_ms", m.prompt_eval_end_ms),
            ("first_token_ms", m.prompt_eval_end_ms),
            ("aggregate_sampling_time_ms", self.sampling_ms),
            ("aggregate_model_execution_time_ms", self.engine_ms),
        ];
        for (key, value) in fields {
            let _ = write!(json, "\"{key}\":{value},");
        }
        format!("PyTorchObserver {json}\"SCALING_FACTOR_UNITS_PER_SECOND\":1000}}\n")
    }

    fn log_lines(&self) -> Vec<String> {
        let (prompt, generated) = (self.prompt_tokens, self.generated_tokens);
        let rate = |tokens, ms| rate(tokens, ms).unwrap_or(0.0);
        let load_ms = ms_between(self.moments.model_load_start_ms, self.moments.model_load_end_ms);
        let (prompt_ms, decode_ms, total_ms) = (self.prompt_ms(), self.decode_ms(), self.total_ms());
        let timed = |label: String, ms: f64, rate: f64| {
            format!("{label}\t{:.6} (seconds)\t\t Rate: \t{rate:.6} (tokens/second)", ms / 1000.0)
        };
        vec![
            format!("\tPrompt Tokens: {prompt}    Generated Tokens: {generated}"),
            format!("\tModel Load Time:\t\t{:.6} (seconds)", load_ms / 1000.0),
            timed("\tTotal inference time:\t".into(), total_ms, rate(generated, total_ms)),
            timed("\t\tPrompt evaluation:".into(), prompt_ms, rate(prompt, prompt_ms)),
            timed(format!("\t\tGenerated {generated} tokens:"), decode_ms, rate(self.decoded_tokens, decode_ms)),
            format!("\tTime to first generated token:\t{:.6} (seconds)", prompt_ms / 1000.0),
            format!(
                "\tSampling time over {} tokens:\t{:.6} (seconds)",
                prompt + generated,
                self.sampling_ms as f64 / 1000.0
            ),
        ]
    }

    fn performance_file(&self) -> String {
        let whole = rate(self.generated_tokens, self.total_ms());
        format_g6(whole.or_else(|| rate(self.prompt_tokens, self.prompt_ms())).unwrap_or(0.0))
    }
}

fn ms_between(start: u64, end: u64) -> f64 {
    end.saturating_sub(start) as f64
}

/// A finite number as a C++ stream prints it by default: `%g`, 6 significant digits, no trailing zeros.
fn format_g6(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    // Rust's exponent form rounds to 6 digits first, as %g does when it picks the notation.
    let rounded = format!("{value:.5e}");
    let (mantissa, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        let decimals = usize::try_from(5 - exponent).unwrap_or(0);
        return trim_zeros(&format!("{value:.decimals$}")).to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim_zeros(mantissa), exponent.unsigned_abs())
}

fn trim_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> TurnStats {
        TurnStats {
            prompt_tokens: 100,
            reused_tokens: 19,
            prefilled_tokens: 81,
            generated_tokens: 455,
            sampling_ms: 49.4,
            engine_ms: 5000.0,
            moments: Moments {
                model_load_start_ms: 1000,
                model_load_end_ms: 2500,
                inference_start_ms: 3000,
                prompt_eval_end_ms: 3300,
                inference_end_ms: 9300,
            },
            ..Default::default()
        }
    }

    #[test]
    fn observer_line_is_upstreams() {
        assert_eq!(
            example().observer_line(),
            "PyTorchObserver {\"prefill_token_per_sec\":270,\"decode_token_per_sec\":75.6667,\"prompt_tokens\":81,\
             \"generated_tokens\":455,\"model_load_start_ms\":1000,\"model_load_end_ms\":2500,\
             \"inference_start_ms\":3000,\"inference_end_ms\":9300,\"model_execution_start_ms\":0,\
             \"model_execution_end_ms\":0,\"prompt_eval_end_ms\":3300,\"first_token_ms\":3300,\
             \"aggregate_sampling_time_ms\":49,\"aggregate_model_execution_time_ms\":5000,\
             \"SCALING_FACTOR_UNITS_PER_SECOND\":1000}\n"
        );
    }

    #[test]
    fn log_lines_are_upstreams() {
        assert_eq!(
            example().log_lines(),
            [
                "\tPrompt Tokens: 81    Generated Tokens: 455",
                "\tModel Load Time:\t\t1.500000 (seconds)",
                "\tTotal inference time:\t\t6.300000 (seconds)\t\t Rate: \t72.222222 (tokens/second)",
                "\t\tPrompt evaluation:\t0.300000 (seconds)\t\t Rate: \t270.000000 (tokens/second)",
                "\t\tGenerated 455 tokens:\t6.000000 (seconds)\t\t Rate: \t75.666667 (tokens/second)",
                "\tTime to first generated token:\t0.300000 (seconds)",
                "\tSampling time over 536 tokens:\t0.049000 (seconds)",
            ]
        );
    }

    #[test]
    fn upstream_does_not_count_the_first_token() {
        let report = example().upstream_report();
        assert!(report.observer_line.contains("\"prompt_tokens\":81,\"generated_tokens\":454,"));
        assert!(report.observer_line.contains("\"decode_token_per_sec\":75.6667,"), "decode steps in either count");
        assert_eq!(report.log_lines[0], "\tPrompt Tokens: 81    Generated Tokens: 454");
        assert!(report.log_lines[6].starts_with("\tSampling time over 535 tokens:"));
        assert_eq!(report.performance_file, "72.0635");
        let first_only = TurnStats { generated_tokens: 1, ..example() };
        assert_eq!(first_only.upstream_report().performance_file, "270", "the prompt's rate");
    }

    #[test]
    fn performance_file_is_one_number() {
        assert_eq!(example().performance_file(), "72.2222");
        let prompt_only = TurnStats { generated_tokens: 0, ..example() };
        assert_eq!(prompt_only.performance_file(), "270");
    }

    #[test]
    fn nothing_generated_gives_defined_numbers() {
        let empty = TurnStats::default();
        assert_eq!(empty.decode_tokens_per_second(), None);
        assert_eq!(empty.prefill_tokens_per_second(), None);
        assert_eq!(empty.performance_file(), "0");
        assert!(empty.observer_line().starts_with("PyTorchObserver {\"prompt_tokens\":0,"));
        for line in empty.log_lines() {
            assert!(!line.contains("NaN") && !line.contains("inf "), "{line}");
        }
        let one = TurnStats { generated_tokens: 1, decode_ms: 0.01, ..Default::default() };
        assert_eq!(one.decode_tokens_per_second(), None, "the first token is no decode step");
    }

    #[test]
    fn totals_are_sums() {
        let mut total = TotalStats::default();
        total.add(&example());
        total.add(&example());
        assert_eq!((total.turns, total.generated_tokens, total.decoded_tokens), (2, 910, 908));
        assert_eq!((total.reused_tokens, total.prefilled_tokens), (38, 162));
    }

    #[test]
    fn numbers_look_like_a_cpp_stream() {
        for (value, text) in [
            (0.0, "0"),
            (270.0, "270"),
            (75.666_666, "75.6667"),
            (999_999.4, "999999"),
            (999_999.5, "1e+06"),
            (1_234_567.0, "1.23457e+06"),
            (0.000_123_456_7, "0.000123457"),
            (0.000_012_345_67, "1.23457e-05"),
            (100_000.0, "100000"),
        ] {
            assert_eq!(format_g6(value), text, "{value}");
        }
    }
}
