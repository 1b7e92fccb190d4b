//! Promise: models that see compile and run in their real sizes. One layer of each kind, random weights, made on the
//! spot; the reference interpreter over the same stored weights says what is right.

#[path = "support/random_checkpoint.rs"]
mod random_checkpoint;
mod support;

use etgenai::artefact::{Artefact, Component};
use etgenai::checkpoint::Checkpoint;
use etgenai::compile::CompileOptions;
use etgenai::engine::cpu::{CpuEngine, CpuOptions};
use etgenai::engine::reference::ReferenceComponent;
use etgenai::engine::{Engine, ExecuteOptions, LoadedComponent};
use etgenai::formats::WeightFormat;
use etgenai::graph::Tensor;
use etgenai::registry::ModelSpec;
use random_checkpoint::{RandomCheckpoint, internvl3_1b, smolvlm_500m};
use std::path::Path;
use support::{Session, execute, sqnr};

const CONTEXT: usize = 320;

#[test]
fn smolvlm_500m_compiles_and_runs() {
    check(&smolvlm_500m(1, 1), [512, 64, 960]);
}

#[test]
fn internvl3_1b_compiles_and_runs() {
    check(&internvl3_1b(1, 1), [448, 256, 896]);
}

fn check(random: &RandomCheckpoint, [picture, tokens, width]: [usize; 3]) {
    let (source, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    random.write(source.path(), 1);
    let checkpoint = Checkpoint::open(source.path()).unwrap();
    let parameters: usize = checkpoint.tensors().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
    assert_eq!(parameters, random.parameters());
    let options = CompileOptions {
        max_context: Some(CONTEXT),
        prefill_ar: Some(32),
        threads: Some(2),
        vision_weights: Some(WeightFormat::F16),
        ..CompileOptions::new(WeightFormat::W8)
    };
    support::compile_with(&checkpoint, out.path(), &options);

    let features = encode(out.path(), [picture, tokens, width]);
    let spec = ModelSpec::from_config(checkpoint.config()).unwrap();
    decode(out.path(), &spec, &features);
}

fn load(directory: &Path, component: &str) -> Box<dyn LoadedComponent> {
    let path = Artefact::open(directory).unwrap().component_path(component).unwrap();
    CpuEngine::new(CpuOptions { threads: Some(2), kernels: None }).load_file(&path).unwrap()
}

/// Rows of a picture that is different everywhere, and as close to the reference as half precision allows.
fn encode(directory: &Path, [picture, tokens, width]: [usize; 3]) -> Vec<f32> {
    let path = Artefact::open(directory).unwrap().component_path("vision_encoder").unwrap();
    let stored = Component::open(&path).unwrap();
    let shape = [1, 3, picture, picture];
    let values: Vec<f32> =
        (0..shape.iter().product()).map(|i: usize| ((i * 37 % 4001) as f32 / 2000.0) - 1.0).collect();
    let tile = Tensor::from_f32("pixel_values", &shape, &values).unwrap();

    let mut reference = ReferenceComponent::new(stored.graphs().to_vec(), &stored).unwrap();
    let expected = execute(&mut reference, 0, std::slice::from_ref(&tile), &ExecuteOptions::default()).unwrap();
    let found = execute(&mut *load(directory, "vision_encoder"), 0, &[tile], &ExecuteOptions::default()).unwrap();
    assert_eq!(found[0].info().shape, [1, tokens, width]);
    let (found, expected) = (found[0].as_slice::<f32>().unwrap(), expected[0].as_slice::<f32>().unwrap());
    let rows = found.chunks_exact(width).zip(expected.chunks_exact(width));
    let worst = rows.map(|(found, expected)| sqnr(found, expected)).fold(f64::INFINITY, f64::min);
    println!("encoder, {picture} pixels: worst token {worst:.1} dB of the reference");
    assert!(worst >= 80.0, "{worst:.1} dB");
    found.to_vec()
}

/// A picture between tokens, in blocks and one row at a time: the same logits.
fn decode(directory: &Path, spec: &ModelSpec, features: &[f32]) {
    let (width, vocab) = (spec.decoder.hidden_size, spec.decoder.vocab_size);
    let mut embedding = load(directory, "tok_embedding");
    let mut embed = |token: i32| {
        let input = Tensor::from_i32("tokens", &[1, 1], &[token]).unwrap();
        execute(&mut *embedding, 0, &[input], &ExecuteOptions::default()).unwrap()[0]
            .as_slice::<f32>()
            .unwrap()
            .to_vec()
    };
    let last = i32::try_from(vocab - 1).unwrap();
    let rows = [embed(0), embed(last), features.to_vec(), embed(7)].concat();

    let mut decoder = load(directory, "text_decoder");
    let mut blocks = Session::new(&spec.decoder, &mut *decoder, CONTEXT);
    let logits = blocks.feed_rows(1, &rows, width);
    assert_eq!(logits.len(), rows.len() / width * vocab);
    assert!(logits.iter().all(|logit| logit.is_finite()));
    let mut single = Session::new(&spec.decoder, &mut *decoder, CONTEXT);
    let steps = single.feed_rows(0, &rows, width);
    let db = sqnr(&steps[steps.len() - vocab..], &logits[logits.len() - vocab..]);
    println!("decoder: step by step {db:.1} dB of blocks");
    assert!(db >= 60.0, "{db:.1} dB");
}
