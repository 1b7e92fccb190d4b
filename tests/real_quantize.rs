//! Promise: a real model, quantized, is as good as it is said to be: perplexities of SmolLM2-135M beside those of upstream's
//! exporter on the same calibration data and the same windows. Needs the model: run `.ci/fetch-models`.

mod support;

use etgenai::chat::EncodeOptions;
use etgenai::checkpoint::Checkpoint;
use etgenai::dataset::{CalibrationSet, DatasetOptions};
use etgenai::pipeline::{
    ObservationsFile, PreparationOptions, PreparedModel, QuantizationInput, QuantizedModel, load_calibration, quantize,
};
use etgenai::quantize::{QuantDtype, QuantizeOptions, Recipe, Rounding, ScaleSearch, SearchGranularity, WeightOptions};
use etgenai::runner::EvalOptions;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/smollm2").join(name)
}

/// The model and what it is calibrated and scored with.
struct Bench {
    prepared: PreparedModel,
    set: CalibrationSet,
    text: Vec<u32>,
    directory: TempDir,
    /// Ranges that the first quantization found: they hold for every recipe with 16-bit activations.
    observations: Option<ObservationsFile>,
}

impl Bench {
    fn new() -> Self {
        let checkpoint = Checkpoint::open(&support::model("SmolLM2-135M-Instruct.Q4_1.gguf")).expect("a checkpoint");
        let options = PreparationOptions { model: Some("smollm2_135m".into()), r3: Some(false), ..Default::default() };
        let prepared = PreparedModel::new(checkpoint, &options).expect("prepares");
        let data = DatasetOptions {
            samples: vec![fixture("calib_messages.json")],
            texts: vec![fixture("calib_raw.txt")],
            text_limit: Some(4),
            ..DatasetOptions::default()
        };
        let set = load_calibration(&prepared, &data).expect("calibration data");
        assert_eq!((set.samples.len(), set.longest()), (9, 512), "5 chats and 4 windows");
        let text = std::fs::read_to_string(fixture("text.txt")).expect("text");
        let options = EncodeOptions { add_bos: false, parse_special: false };
        let text = prepared.text().expect("a tokenizer").prompts().tokenizer().encode(&text, options).expect("encodes");
        Self { prepared, set, text, directory: tempfile::tempdir().expect("a folder"), observations: None }
    }

    /// Perplexity of the first five full windows of 512 tokens.
    fn perplexity(&mut self, name: &str, dtype: QuantDtype, weights: WeightOptions) -> f64 {
        let mut options = QuantizeOptions { weights, report_samples: 0, ..QuantizeOptions::default() };
        options.recipes.insert("text_decoder".into(), Recipe::uniform(dtype, 32).expect("a recipe"));
        let out = self.directory.path().join(name);
        let input = QuantizationInput {
            prepared: &self.prepared,
            set: &self.set,
            options: &options,
            observations: self.observations.clone(),
            threads: None,
            unfinished: None,
            stages: Vec::new(),
        };
        let model = quantize(input, &out, &mut |_| Ok(())).expect("quantizes");
        self.observations = Some(ObservationsFile::open(&out.join("observations.json")).expect("observations"));
        let options = EvalOptions { window: 512, full_windows_only: true };
        let found = score(&model, &self.text, &options);
        println!("{name}: {found:.3}");
        found
    }
}

fn score(model: &QuantizedModel, text: &[u32], options: &EvalOptions) -> f64 {
    let result = model.perplexity(text, options, None, &mut |_, _, _| Ok(())).expect("scores");
    assert_eq!((result.windows, result.scored_tokens), (5, 2555));
    result.perplexity
}

/// Upstream: 23.645, 33.062 and 48.638; float: 23.366.
#[test]
fn plain_integers_are_no_worse_than_upstreams() {
    let mut bench = Bench::new();
    let plain = WeightOptions::default();
    let wide = bench.perplexity("16a8w", QuantDtype::A16W8, plain);
    assert!((23.36..=23.55).contains(&wide), "{wide}");
    let blocks = bench.perplexity("16a4w_block", QuantDtype::A16W4Block, plain);
    assert!(blocks <= 33.06, "{blocks}");
    let channels = bench.perplexity("16a4w", QuantDtype::A16W4, plain);
    assert!(channels <= 48.63, "{channels}");
}

#[test]
#[ignore = "takes minutes; tests/run-all --slow runs it"]
fn integers_fitted_to_what_they_are_multiplied_with_are_far_better() {
    let mut bench = Bench::new();
    let scales = |granularity| ScaleSearch::SeqMse { candidates: 20, granularity };
    let fitted = |granularity| WeightOptions { scales: scales(granularity), rounding: Rounding::GPTQ };
    let blocks = bench.perplexity("16a4w_block", QuantDtype::A16W4Block, fitted(SearchGranularity::Block));
    assert!(blocks <= 29.0, "{blocks}");
    let channels = bench.perplexity("16a4w", QuantDtype::A16W4, fitted(SearchGranularity::Channel));
    assert!(channels <= 38.0, "{channels}");
}
