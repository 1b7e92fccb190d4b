//! Promise: a model that sees becomes three components; each has a precision of its own and is compiled again without
//! the others.

mod support;

use etgenai::artefact::{Artefact, Component, Manifest};
use etgenai::checkpoint::Checkpoint;
use etgenai::compile::{CompileOptions, Flow, Progress, Stage, compile_checkpoint, recompile_component};
use etgenai::error::Error;
use etgenai::formats::WeightFormat;
use etgenai::registry::PositionRule;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{checkpoint, compile, compile_with, folder};

const FAMILIES: [&str; 2] = ["smolvlm", "internvl3"];
const COMPONENTS: [&str; 3] = ["text_decoder", "tok_embedding", "vision_encoder"];

fn options(weights: WeightFormat) -> CompileOptions {
    let base = CompileOptions::new(weights);
    CompileOptions { max_context: Some(64), prefill_ar: Some(8), threads: Some(2), ..base }
}

/// Contents of all files, by name.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect()
}

fn manifest(directory: &Path) -> Manifest {
    Artefact::open(directory).unwrap().manifest().clone()
}

/// Format of a weight of a component.
fn stored(directory: &Path, component: &str, weight: &str) -> WeightFormat {
    let path = Artefact::open(directory).unwrap().component_path(component).unwrap();
    let component = Component::open(&path).unwrap();
    let (_, stored) = component.weights().find(|(name, _)| *name == weight).unwrap_or_else(|| panic!("{weight}"));
    stored.format
}

#[test]
fn a_model_that_sees_has_three_components_that_the_report_and_the_manifest_describe() {
    for family in FAMILIES {
        let out = tempfile::tempdir().unwrap();
        let report = compile(family, out.path(), WeightFormat::F16, 64, 8);
        let artefact = Artefact::open(out.path()).unwrap();
        artefact.verify_hashes().unwrap();
        let manifest = artefact.manifest();
        assert_eq!(manifest.components.keys().map(String::as_str).collect::<Vec<_>>(), COMPONENTS);
        for (name, entry) in &manifest.components {
            assert_eq!(entry.file, format!("{name}.safetensors"));
            let part = &report.components[name];
            assert_eq!((part.weights, &part.formats, part.bytes), ("f16", &entry.weights, entry.bytes));
        }
        assert_eq!(report.bytes, manifest.components.values().map(|entry| entry.bytes).sum::<u64>());
        let elements: u64 = manifest.components.values().map(|entry| entry.weights["f16"].elements).sum();
        assert_eq!(report.formats["f16"].elements, elements);
        let graphs = |name: &str| manifest.components[name].graphs.iter().map(|g| g.name.clone()).collect::<Vec<_>>();
        assert_eq!(graphs("vision_encoder"), ["forward"]);
        assert_eq!(graphs("tok_embedding"), ["tok_embedding_kv_forward", "tok_embedding_prefill_forward"]);
        assert_eq!(graphs("text_decoder"), ["kv_forward", "prefill_forward"]);
        let vision = manifest.model.vision.as_ref().unwrap();
        assert_eq!((vision.tokens_per_tile(), vision.output_size), (4, 64));
        assert!(manifest.model.image_token_id.is_some());
        assert!(artefact.chat_template().unwrap().is_some(), "chat_template.json");
    }
}

#[test]
fn each_component_has_its_own_precision() {
    let out = tempfile::tempdir().unwrap();
    let options = CompileOptions {
        vision_weights: Some(WeightFormat::F32),
        embedding_weights: Some(WeightFormat::Bf16),
        ..options(WeightFormat::W8)
    };
    let report = compile_with(&checkpoint("smolvlm"), out.path(), &options);
    let requested = COMPONENTS.map(|name| report.components[name].weights);
    assert_eq!((report.weights, requested), ("w8", ["w8", "bf16", "f32"]));
    assert_eq!(stored(out.path(), "vision_encoder", "encoder.layers.0.mlp.fc1.weight"), WeightFormat::F32);
    assert_eq!(stored(out.path(), "tok_embedding", "tok_embeddings.weight"), WeightFormat::Bf16);
    assert_eq!(stored(out.path(), "text_decoder", "output.weight"), WeightFormat::W8);
}

#[test]
fn four_bits_stop_where_nothing_behind_makes_up_for_the_error() {
    let out = tempfile::tempdir().unwrap();
    compile_with(&checkpoint("internvl3"), out.path(), &options(WeightFormat::W4));
    let fc1 = "encoder.layer.0.mlp.fc1.weight";
    assert_eq!(stored(out.path(), "vision_encoder", fc1), WeightFormat::W8, "an encoder is w8 if nothing is said");
    assert_eq!(stored(out.path(), "tok_embedding", "tok_embeddings.weight"), WeightFormat::W8);
    assert_eq!(stored(out.path(), "text_decoder", "output.weight"), WeightFormat::W8);
    assert_eq!(stored(out.path(), "text_decoder", "layers.0.attention.wq.weight"), WeightFormat::W4);

    let asked = CompileOptions { vision_weights: Some(WeightFormat::W4), ..options(WeightFormat::W4) };
    compile_with(&checkpoint("internvl3"), out.path(), &asked);
    assert_eq!(stored(out.path(), "vision_encoder", fc1), WeightFormat::W4, "but w4 if it is asked for");
    assert_eq!(stored(out.path(), "vision_encoder", "multi_modal_projector.linear_1.weight"), WeightFormat::W4);
    assert_eq!(stored(out.path(), "vision_encoder", "multi_modal_projector.linear_2.weight"), WeightFormat::W8);
}

#[test]
fn progress_counts_the_bytes_of_all_components() {
    let out = tempfile::tempdir().unwrap();
    let mut weights = Vec::new();
    let mut count = |progress: Progress<'_>| {
        if progress.stage == Stage::Weights {
            weights.push((progress.done, progress.total));
        }
        Flow::Continue
    };
    compile_checkpoint(&checkpoint("smolvlm"), out.path(), &options(WeightFormat::W8), &mut count).unwrap();
    let (done, total) = *weights.last().unwrap();
    assert!(done == total && weights.iter().all(|(_, t)| *t == total), "one total for all components");
    assert!(weights.is_sorted(), "{weights:?}");
}

#[test]
fn one_component_is_compiled_again_and_the_others_keep_their_bytes() {
    for family in FAMILIES {
        for component in COMPONENTS {
            let out = tempfile::tempdir().unwrap();
            compile_with(&checkpoint(family), out.path(), &options(WeightFormat::W8));
            let (before, mut expected) = (files(out.path()), manifest(out.path()));
            let changed = CompileOptions {
                threads: Some(2),
                vision_weights: Some(WeightFormat::F32),
                embedding_weights: Some(WeightFormat::F32),
                ..CompileOptions::new(WeightFormat::F32)
            };
            let report =
                recompile_component(&checkpoint(family), out.path(), component, &changed, &mut |_| Flow::Continue);
            let report = report.unwrap();
            assert_eq!(report.components.keys().collect::<Vec<_>>(), [component]);
            Artefact::open(out.path()).unwrap().verify_hashes().unwrap();

            let after = files(out.path());
            assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
            let own = format!("{component}.safetensors");
            for (name, bytes) in &before {
                let same = after[name] == *bytes;
                assert_eq!(same, *name != own && name != "manifest.json", "{family} {component}: {name}");
            }
            // What comes out is what compiling all of it in that precision gives for the component.
            let whole = tempfile::tempdir().unwrap();
            compile_with(&checkpoint(family), whole.path(), &options(WeightFormat::F32));
            assert_eq!(files(whole.path())[&own], after[&own], "{family} {component}");
            expected.components.insert(component.into(), manifest(whole.path()).components[component].clone());
            assert_eq!(manifest(out.path()), expected);
        }
    }
}

#[test]
fn a_text_model_can_be_compiled_again_too() {
    // Phi-4-mini has numbers in its RoPE that text cannot hold exactly.
    for family in ["llama", "phi4mini"] {
        let out = tempfile::tempdir().unwrap();
        compile(family, out.path(), WeightFormat::W8, 32, 8);
        let again = CompileOptions { threads: Some(2), ..CompileOptions::new(WeightFormat::F16) };
        for _ in 0..2 {
            let done =
                recompile_component(&checkpoint(family), out.path(), "text_decoder", &again, &mut |_| Flow::Continue);
            done.unwrap();
        }
        let formats = &manifest(out.path()).components["text_decoder"].weights;
        assert_eq!(formats.keys().collect::<Vec<_>>(), ["f16", "f32"], "{family}");
    }
}

#[test]
fn what_cannot_be_compiled_again_is_refused_and_nothing_changes() {
    let out = tempfile::tempdir().unwrap();
    compile_with(&checkpoint("smolvlm"), out.path(), &options(WeightFormat::W8));
    let before = files(out.path());
    let plain = CompileOptions::new(WeightFormat::F16);
    let try_with = |checkpoint: &Checkpoint, component: &str, options: &CompileOptions| {
        recompile_component(checkpoint, out.path(), component, options, &mut |_| Flow::Continue).unwrap_err()
    };

    let error = try_with(&checkpoint("smolvlm"), "audio_encoder", &plain);
    assert!(matches!(error, Error::NotFound(_)) && error.to_string().contains("vision_encoder"), "{error}");
    let error = try_with(&checkpoint("internvl3"), "vision_encoder", &plain).to_string();
    assert!(error.contains("another model") && error.contains("smolvlm") && error.contains("internvl3"), "{error}");
    let longer = CompileOptions { max_context: Some(128), ..plain.clone() };
    let error = try_with(&checkpoint("smolvlm"), "text_decoder", &longer).to_string();
    assert!(error.contains("max_context is 128") && error.contains("64"), "{error}");
    let wider = CompileOptions { prefill_ar: Some(16), ..plain.clone() };
    let error = try_with(&checkpoint("smolvlm"), "text_decoder", &wider).to_string();
    assert!(error.contains("prefill_ar is 16"), "{error}");

    for stop_at in 0..6 {
        let mut calls = 0;
        let mut stop = |_: Progress<'_>| {
            calls += 1;
            if calls > stop_at { Flow::Cancel } else { Flow::Continue }
        };
        let done = recompile_component(&checkpoint("smolvlm"), out.path(), "tok_embedding", &plain, &mut stop);
        assert!(matches!(done, Err(Error::Cancelled)), "call {stop_at}: {done:?}");
    }
    assert_eq!(files(out.path()), before);
}

/// A number of the configuration that differs names itself, with both values.
#[test]
fn the_difference_between_two_models_is_named() {
    let (out, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    compile_with(&checkpoint("smolvlm"), out.path(), &options(WeightFormat::W8));
    for entry in fs::read_dir(folder("smolvlm")).unwrap().map(|entry| entry.unwrap()) {
        fs::copy(entry.path(), other.path().join(entry.file_name())).unwrap();
    }
    let config = fs::read_to_string(other.path().join("config.json")).unwrap();
    let changed = config.replace("\"layer_norm_eps\": 1e-06", "\"layer_norm_eps\": 1e-05");
    assert_ne!(changed, config);
    fs::write(other.path().join("config.json"), changed).unwrap();
    let checkpoint = Checkpoint::open(other.path()).unwrap();
    let options = CompileOptions::new(WeightFormat::F16);
    let error = recompile_component(&checkpoint, out.path(), "vision_encoder", &options, &mut |_| Flow::Continue);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("vision.norm_eps is") && error.contains("in the artefact and"), "{error}");
}

#[test]
fn the_position_rule_belongs_to_the_encoder_and_is_written_down() {
    let out = tempfile::tempdir().unwrap();
    let shifted = CompileOptions { position_rule: PositionRule::UpstreamShifted, ..options(WeightFormat::F32) };
    compile_with(&checkpoint("smolvlm"), out.path(), &shifted);
    let rule = || manifest(out.path()).model.vision.unwrap().position_rule;
    assert_eq!(rule(), PositionRule::UpstreamShifted);
    let before = files(out.path());

    let identity = CompileOptions::new(WeightFormat::F32);
    let again = |component: &str| {
        recompile_component(&checkpoint("smolvlm"), out.path(), component, &identity, &mut |_| Flow::Continue).unwrap();
    };
    again("tok_embedding");
    assert_eq!(rule(), PositionRule::UpstreamShifted, "the encoder is still the shifted one");
    assert_eq!(files(out.path()), before, "and the embedding is in the format it had");
    again("vision_encoder");
    assert_eq!(rule(), PositionRule::Identity);
    assert_ne!(files(out.path())["vision_encoder.safetensors"], before["vision_encoder.safetensors"]);

    for (family, part) in [("internvl3", "SmolVLM's tower only"), ("llama", "has no vision encoder")] {
        let error = compile_checkpoint(&checkpoint(family), out.path(), &shifted, &mut |_| Flow::Continue);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("position_rule") && error.contains(part), "{error}");
    }
}

#[test]
fn the_processor_files_are_read() {
    let seeing = checkpoint("smolvlm");
    assert_eq!(seeing.preprocessor_config().unwrap()["resample"], 1);
    assert_eq!(seeing.processor_config().unwrap()["image_seq_len"], 4);
    let text = checkpoint("llama");
    assert!(text.preprocessor_config().is_none() && text.processor_config().is_none());
}

fn etgenai(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_etgenai")).args(arguments).output().unwrap()
}

#[test]
fn the_command_compiles_all_and_one() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("model");
    let (source, out_text) = (folder("smolvlm"), out.display().to_string());
    let base = ["--json", "compile", source.to_str().unwrap(), "--out", &out_text, "--threads", "2"];
    let run = |more: &[&str]| etgenai(&[&base[..], more].concat());

    let done =
        run(&["--weights", "w8", "--vision-weights", "f16", "--embedding-weights", "bf16", "--max-context", "64"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let requested = COMPONENTS.map(|name| report["components"][name]["weights"].as_str().unwrap().to_owned());
    assert_eq!(requested, ["w8", "bf16", "f16"]);

    let done = run(&["--only", "vision_encoder", "--vision-weights", "w4", "--position-rule", "upstream-shifted"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(report["components"].as_object().unwrap().len(), 1);
    assert_eq!(stored(&out, "vision_encoder", "encoder.layers.0.mlp.fc1.weight"), WeightFormat::W4);
    assert_eq!(stored(&out, "tok_embedding", "tok_embeddings.weight"), WeightFormat::Bf16);
    assert_eq!(manifest(&out).model.vision.unwrap().position_rule, PositionRule::UpstreamShifted);

    let done = run(&["--only", "audio_encoder"]);
    assert!(!done.status.success());
    assert!(String::from_utf8_lossy(&done.stderr).contains("tok_embedding"), "the components there are are listed");
}
