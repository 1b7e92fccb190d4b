//! Promise: a quantized model becomes an artefact for the CPU engine without its checkpoint, and the integers come back.

#[path = "support/quantized.rs"]
mod quantized;
mod support;

use etgenai::Error;
use etgenai::artefact::{Artefact, Component, TEXT_DECODER, VISION_ENCODER};
use etgenai::chat::{EncodeOptions, Message, Part, Role};
use etgenai::compile::{CompileReport, Flow, QuantizedCompileOptions, Stage, compile_quantized};
use etgenai::dataset::{DatasetOptions, RandomData};
use etgenai::formats::WeightFormat;
use etgenai::graph::WeightProvider;
use etgenai::media::{DecodeOptions, Image};
use etgenai::pipeline::QuantizedModel;
use etgenai::quantize::{ComponentFile, EncoderPrecision, ModelMode, QuantDtype, QuantizeOptions};
use etgenai::runner::{EvalOptions, Flow as RunFlow, GenerateOptions, Runner, RunnerOptions};
use quantized::{conversations, decoder_options, picture_conversations, quantize_into, sizes};
use std::path::Path;
use support::folder;

const CONTEXT: usize = 48;

fn random() -> DatasetOptions {
    let random = RandomData { samples: 4, length: CONTEXT, seed: 5 };
    DatasetOptions { random: Some(random), max_context: CONTEXT, ..DatasetOptions::default() }
}

/// Quantize tiny SmolLM2 on random tokens.
fn text_model(out: &Path, mode: ModelMode, options: &QuantizeOptions) -> QuantizedModel {
    quantize_into(&folder("smollm2"), &sizes(CONTEXT, 16, mode), &random(), options, out).expect("quantizes")
}

fn compile(from: &Path, to: &Path) -> CompileReport {
    compile_quantized(from, to, &QuantizedCompileOptions::default(), &mut |_| Flow::Continue).expect("compiles")
}

/// Half of the distance of f16 numbers below its normal range, where scales of very small weights are, times the levels.
const SUBNORMAL: f32 = 127.0 * 2.98e-8;

/// Every weight of a component comes back from its panels: next to the largest of its row, no more is lost than f16 leaves of a
/// scale, which is far less than half a step of 8 bits.
fn check_weights(quantized: &Path, compiled: &Path, component: &str) {
    let path = Artefact::open(quantized).unwrap().component_path(component).unwrap();
    let file = ComponentFile::open(&path).unwrap();
    let integers = file.open_weights(&path.with_extension("safetensors")).unwrap();
    let panels = Component::open(&Artefact::open(compiled).unwrap().component_path(component).unwrap()).unwrap();
    let mut seen = 0;
    for (name, stored) in panels.weights() {
        let (rows, width) = stored.rows().unwrap();
        let (mut expected, mut found) = (vec![0.0f32; rows * width], vec![0.0; rows * width]);
        integers.read_rows(name, 0..rows, &mut expected).unwrap();
        panels.read_rows(name, 0..rows, &mut found).unwrap();
        for (expected, found) in expected.chunks_exact(width).zip(found.chunks_exact(width)) {
            let largest = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            let worst = expected.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(
                worst <= largest / 1024.0 + SUBNORMAL,
                "{component}: {name} ({:?}): {worst} of {largest}",
                stored.format
            );
        }
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn integers_of_every_width_come_back_from_panels() {
    let folder = tempfile::tempdir().unwrap();
    // What each recipe makes of the layers' matrices, and of the head.
    for (dtype, block, layers, head) in [
        (QuantDtype::A16W8, 32, WeightFormat::W8, WeightFormat::W8),
        (QuantDtype::A16W4, 32, WeightFormat::W4, WeightFormat::W8),
        (QuantDtype::A16W4Block, 32, WeightFormat::W4, WeightFormat::W8),
        // Two blocks of a group have scales of their own, but both are multiples of the channel's.
        (QuantDtype::A16W4Block, 16, WeightFormat::W8, WeightFormat::W8),
        (QuantDtype::A16W16, 32, WeightFormat::F16, WeightFormat::F16),
    ] {
        let name = format!("{}-{block}", dtype.name());
        let (from, to) = (folder.path().join(&name), folder.path().join(format!("{name}-cpu")));
        text_model(&from, ModelMode::Hybrid, &decoder_options(dtype, block));
        let report = compile(&from, &to);
        assert_eq!(report.weights, "quantized");
        let component = Component::open(&to.join("text_decoder.safetensors")).unwrap();
        let format = |name: &str| component.weight_number(name).and_then(|at| component.stored(at)).unwrap().1.format;
        assert_eq!(format("layers.1.attention.wq.weight"), layers, "{name}");
        assert_eq!(format("output.weight"), head, "{name}");
        assert_eq!(format("tok_embeddings.weight"), WeightFormat::F16, "{name}: a table of 16 bits");
        check_weights(&from, &to, TEXT_DECODER);
        let manifest = Artefact::open(&to).unwrap().manifest().clone();
        assert!(!manifest.is_quantized_model() && manifest.extra_files.is_empty());
        let formats = &manifest.components[TEXT_DECODER].weights;
        assert!(formats.contains_key(layers.name()), "{formats:?}");
        Artefact::open(&to).unwrap().verify_hashes().unwrap();
    }
}

#[test]
fn both_engines_think_alike_of_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let text = "The harbour was quiet, and a grey cat sat on the wall. Later, somebody counted 17 crates of fish.";
    let file = folder.path().join("text.txt");
    std::fs::write(&file, text).unwrap();
    // Ranges of the very text, so that nothing is clipped.
    let data = DatasetOptions { texts: vec![file], max_context: 24, ..DatasetOptions::default() };
    for mode in [ModelMode::Hybrid, ModelMode::Kv] {
        let (from, to) = (folder.path().join(format!("{mode:?}")), folder.path().join(format!("{mode:?}-cpu")));
        let options = decoder_options(QuantDtype::A16W8, 32);
        let quantized = quantize_into(&support::folder("smollm2"), &sizes(CONTEXT, 16, mode), &data, &options, &from)
            .expect("quantizes");
        compile(&from, &to);
        let mut runner = Runner::open(&to, &RunnerOptions::default()).unwrap();
        let tokens = runner.tokenizer().encode(text, EncodeOptions { add_bos: false, parse_special: false }).unwrap();
        let eval = EvalOptions { window: 24, full_windows_only: true };
        let expected = quantized.perplexity(&tokens, &eval, Some(2), &mut |_, _, _| Ok(())).unwrap().perplexity;
        let found = runner.evaluate(&tokens, &eval, &mut |_| RunFlow::Continue).unwrap().perplexity;
        assert!((found / expected - 1.0).abs() < 1e-2, "{mode:?}: {found} on the CPU, {expected} quantized");
    }
}

#[test]
fn a_model_that_sees_keeps_the_precision_of_each_component() {
    let folder = tempfile::tempdir().unwrap();
    let samples = picture_conversations(folder.path());
    for (family, encoder, format) in [
        ("smolvlm", EncoderPrecision::Quantized, "w8"),
        ("smolvlm", EncoderPrecision::Float, "bf16"),
        ("internvl3", EncoderPrecision::Quantized, "w8"),
    ] {
        let name = format!("{family}-{encoder:?}");
        let (from, to) = (folder.path().join(&name), folder.path().join(format!("{name}-cpu")));
        let options = QuantizeOptions { encoder, ..decoder_options(QuantDtype::A16W4Block, 32) };
        let preparation = sizes(512, 32, ModelMode::Hybrid);
        let data = conversations(&samples, 512);
        quantize_into(&support::folder(family), &preparation, &data, &options, &from).expect("quantizes");
        let report = compile(&from, &to);
        let of_encoder = &report.components[VISION_ENCODER];
        let requested = if encoder == EncoderPrecision::Float { "float" } else { "quantized" };
        assert_eq!(of_encoder.weights, requested, "{name}");
        assert!(of_encoder.formats.contains_key(format), "{name}: {:?}", of_encoder.formats);
        assert!(report.components[TEXT_DECODER].formats.contains_key("w4"), "{name}");
        for component in [VISION_ENCODER, "tok_embedding", TEXT_DECODER] {
            check_weights(&from, &to, component);
        }
        let mut runner = Runner::open(&to, &RunnerOptions::default()).unwrap();
        let picture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/media/rgb_45x130.png");
        let picture = Image::open(&picture, &DecodeOptions::default()).unwrap();
        let message =
            Message { role: Role::User, parts: vec![Part::Image(picture), Part::Text("what is this?".into())] };
        let greedy = GenerateOptions { max_new_tokens: Some(4), ..GenerateOptions::default() };
        let reply = runner.generate(&[message], &greedy, &mut |_| RunFlow::Continue).unwrap();
        assert!(reply.stats.generated_tokens > 0, "{name}");
    }
}

#[test]
fn block_size_is_chosen_again_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("q"), folder.path().join("cpu"));
    text_model(&from, ModelMode::Hybrid, &decoder_options(QuantDtype::A16W8, 32));
    let compile = |prefill_ar| {
        let options = QuantizedCompileOptions { prefill_ar: Some(prefill_ar), threads: Some(1) };
        compile_quantized(&from, &to, &options, &mut |_| Flow::Continue)
    };
    assert_eq!(compile(8).unwrap().prefill_ar, 8);
    assert_eq!(Artefact::open(&to).unwrap().manifest().prefill_ar, 8);
    for wrong in [0, CONTEXT, usize::MAX] {
        let error = compile(wrong).unwrap_err().to_string();
        assert!(error.contains(&wrong.to_string()) && error.contains(&(CONTEXT - 1).to_string()), "{error}");
    }
    assert_eq!(Artefact::open(&to).unwrap().manifest().prefill_ar, 8, "as it was");
}

#[test]
fn what_cannot_be_compiled_is_named_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("q"), folder.path().join("cpu"));
    text_model(&from, ModelMode::Hybrid, &decoder_options(QuantDtype::A16W8, 32));
    let options = QuantizedCompileOptions::default();
    let try_it = |from: &Path, to: &Path| compile_quantized(from, to, &options, &mut |_| Flow::Continue);

    let itself = try_it(&from, &from).unwrap_err().to_string();
    assert!(itself.contains("choose another directory"), "{itself}");
    compile(&from, &to);
    let compiled = try_it(&to, &folder.path().join("x")).unwrap_err().to_string();
    assert!(compiled.contains("compiled model already"), "{compiled}");
    assert!(matches!(try_it(&folder.path().join("nothing"), &to), Err(Error::NotFound(_))));

    let cancelled =
        compile_quantized(&from, &folder.path().join("x"), &options, &mut |progress| match progress.stage {
            Stage::Weights => Flow::Cancel,
            _ => Flow::Continue,
        });
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    assert!(!folder.path().join("x").exists());

    std::fs::write(from.join("graphs.json"), "{").unwrap();
    let damaged = try_it(&from, &folder.path().join("x")).unwrap_err().to_string();
    assert!(damaged.contains("graphs.json"), "{damaged}");
    assert!(!folder.path().join("x").exists());
}
