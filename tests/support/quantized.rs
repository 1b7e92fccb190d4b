//! What tests of quantized models share: quantizing a checkpoint in a few lines.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use etgenai::checkpoint::Checkpoint;
use etgenai::dataset::DatasetOptions;
use etgenai::pipeline::{
    PreparationOptions, PreparedModel, QuantizationInput, QuantizedModel, load_calibration, quantize,
};
use etgenai::quantize::{ModelMode, QuantDtype, QuantizeOptions, Recipe};
use std::path::{Path, PathBuf};

/// Sizes of the graphs.
pub fn sizes(max_context: usize, prefill_ar: usize, mode: ModelMode) -> PreparationOptions {
    PreparationOptions { max_context, prefill_ar, mode, ..PreparationOptions::default() }
}

/// Options with one precision for the decoder, and the report without a run beside the float model.
pub fn decoder_options(dtype: QuantDtype, block: usize) -> QuantizeOptions {
    let recipe = Recipe::uniform(dtype, block).expect("a recipe");
    QuantizeOptions {
        recipes: [("text_decoder".to_owned(), recipe)].into(),
        report_samples: 0,
        ..QuantizeOptions::default()
    }
}

/// Quantize the checkpoint in `folder` into `out`.
pub fn quantize_into(
    folder: &Path,
    preparation: &PreparationOptions,
    data: &DatasetOptions,
    options: &QuantizeOptions,
    out: &Path,
) -> etgenai::Result<QuantizedModel> {
    let prepared = PreparedModel::new(Checkpoint::open(folder)?, preparation)?;
    let set = load_calibration(&prepared, data)?;
    let input = QuantizationInput {
        prepared: &prepared,
        set: &set,
        options,
        observations: None,
        threads: Some(2),
        unfinished: None,
        stages: Vec::new(),
    };
    quantize(input, out, &mut |_| Ok(()))
}

/// Calibration with conversations in a JSON file.
pub fn conversations(file: &Path, max_context: usize) -> DatasetOptions {
    DatasetOptions { samples: vec![file.into()], max_context, ..DatasetOptions::default() }
}

/// Write conversations about pictures of `tests/fixtures/media`: one of one picture, one of two.
pub fn picture_conversations(folder: &Path) -> PathBuf {
    let media = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/media");
    let picture = |name: &str| media.join(name).display().to_string();
    let (a, b, c) = (picture("rgb_45x130.png"), picture("rgb_97x61.png"), picture("palette_64x40.png"));
    let image = serde_json::json!({"type": "image"});
    let text = |text: &str| serde_json::json!({"type": "text", "text": text});
    let samples = serde_json::json!([
        {"messages": [
            {"role": "user", "content": [image, text("what is this?")]},
            {"role": "assistant", "content": [text("a red circle")]},
        ], "files": [a]},
        {"messages": [{"role": "user", "content": [image, image, text("are they the same?")]}], "files": [b, c]},
    ]);
    let file = folder.join("samples.json");
    std::fs::write(&file, samples.to_string()).expect("a file");
    file
}
