//! Promise: a model that sees is quantized as a whole, its decoder on the rows that its encoder will deliver.

#[path = "support/quantized.rs"]
mod quantized;

use etgenai::Error;
use etgenai::chat::{Message, Part, Role};
use etgenai::dataset::{DatasetOptions, RandomData};
use etgenai::media::{DecodeOptions, Image};
use etgenai::pipeline::{QuantizedModel, open_runner};
use etgenai::quantize::{ComponentFile, EncoderPrecision, EncoderRows, ModelMode, QuantDtype, QuantizeOptions, Recipe};
use etgenai::runner::{Flow, GenerateOptions, RunnerOptions};
use quantized::{conversations, decoder_options, picture_conversations, quantize_into, sizes};
use serde_json::Value;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const FAMILIES: [&str; 2] = ["smolvlm", "internvl3"];

fn tiny(family: &str) -> PathBuf {
    Path::new(ROOT).join("tests/fixtures/tiny").join(family)
}

fn with_pictures(family: &str, folder: &Path, options: &QuantizeOptions) -> QuantizedModel {
    let samples = picture_conversations(folder);
    let out = folder.join("model");
    let data = conversations(&samples, 512);
    quantize_into(&tiny(family), &sizes(512, 32, ModelMode::Hybrid), &data, options, &out).expect("quantizes")
}

/// Everything a component's file says of its grids.
fn encodings(model: &QuantizedModel, component: &str) -> Value {
    let file = ComponentFile::open(&model.artefact().component_path(component).unwrap()).unwrap();
    serde_json::to_value(&file.encodings).unwrap()
}

#[test]
fn the_decoder_is_calibrated_on_the_rows_that_the_encoder_delivers() {
    for family in FAMILIES {
        let calibrate = |rows, encoder| {
            let folder = tempfile::tempdir().unwrap();
            let mut options = decoder_options(QuantDtype::A16W8, 32);
            // Few bits, so that its rows differ from those of the float encoder.
            options.recipes.insert("vision_encoder".into(), Recipe::uniform(QuantDtype::A8W4, 32).unwrap());
            let options = QuantizeOptions { encoder, encoder_rows: rows, ..options };
            encodings(&with_pictures(family, folder.path(), &options), "text_decoder")
        };
        let delivered = calibrate(EncoderRows::Delivered, EncoderPrecision::Quantized);
        let float = calibrate(EncoderRows::Float, EncoderPrecision::Quantized);
        assert_ne!(delivered, float, "{family}");
        let without = calibrate(EncoderRows::Delivered, EncoderPrecision::Float);
        assert_eq!(without, float, "{family}: what a float encoder delivers are float rows");
    }
}

#[test]
fn text_alone_does_not_calibrate_an_encoder() {
    let folder = tempfile::tempdir().unwrap();
    let random = RandomData { samples: 2, length: 16, seed: 1 };
    let text = DatasetOptions { random: Some(random), ..DatasetOptions::default() };
    for family in FAMILIES {
        let out = folder.path().join(family);
        let run = |encoder| {
            let options = QuantizeOptions { encoder, ..decoder_options(QuantDtype::A16W8, 32) };
            quantize_into(&tiny(family), &sizes(64, 16, ModelMode::Hybrid), &text, &options, &out)
        };
        let refused = run(EncoderPrecision::Quantized).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused:?}");
        let refused = refused.to_string();
        assert!(refused.contains("vision_encoder") && refused.contains("--encoder-precision float"), "{refused}");
        assert!(!out.exists());
        run(EncoderPrecision::Float).expect("a float encoder needs no pictures");
    }
}

#[test]
fn several_images_keep_the_encoder_float_unless_told_otherwise() {
    for (encoder, several_images, precision) in [
        (EncoderPrecision::Auto, false, "16a8w"),
        (EncoderPrecision::Auto, true, "float"),
        (EncoderPrecision::Quantized, true, "16a8w"),
        (EncoderPrecision::Float, false, "float"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let options = QuantizeOptions { encoder, several_images, ..decoder_options(QuantDtype::A16W8, 32) };
        let model = with_pictures("smolvlm", folder.path(), &options);
        let found = &model.report().components["vision_encoder"].precision;
        assert_eq!(found, precision, "{encoder:?}, several images: {several_images}");
    }
}

#[test]
fn blocks_and_single_tokens_answer_alike() {
    for family in FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        let samples = picture_conversations(folder.path());
        let mut replies = Vec::new();
        for mode in [ModelMode::Hybrid, ModelMode::Kv] {
            let out = folder.path().join(format!("{mode:?}"));
            let options = decoder_options(QuantDtype::A16W8, 32);
            let data = conversations(&samples, 512);
            quantize_into(&tiny(family), &sizes(512, 32, mode), &data, &options, &out).expect("quantizes");
            let mut runner = open_runner(&out, &RunnerOptions::default()).expect("a runner");
            let picture = Path::new(ROOT).join("tests/fixtures/media/rgb_97x61.png");
            let picture = Image::open(&picture, &DecodeOptions::default()).expect("a picture");
            let parts = vec![Part::Image(picture), Part::Text("what is this?".into())];
            let greedy = GenerateOptions { max_new_tokens: Some(3), ..GenerateOptions::default() };
            let message = Message { role: Role::User, parts };
            replies.push(runner.generate(&[message], &greedy, &mut |_| Flow::Continue).expect("a reply").text);
        }
        assert_eq!(replies[0], replies[1], "{family}");
    }
}
