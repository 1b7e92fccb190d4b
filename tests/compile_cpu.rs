//! Promise: a checkpoint becomes an artefact all at once or not at all, and the report says what was written.

mod support;

use etgenai::artefact::{Artefact, Component};
use etgenai::checkpoint::Checkpoint;
use etgenai::compile::{CompileOptions, Flow, Progress, Stage, compile_checkpoint};
use etgenai::error::Error;
use etgenai::formats::WeightFormat;
use std::fs;
use std::path::{Path, PathBuf};
use support::{checkpoint, compile, folder};

/// A folder to compile into, and everything that is in it (hidden files too).
struct Place {
    root: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    fn out(&self) -> PathBuf {
        self.root.path().join("model")
    }

    /// Paths and contents of all files below.
    fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        let mut folders = vec![self.root.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    files.push((path.clone(), Vec::new()));
                    folders.push(path);
                } else {
                    files.push((path.clone(), fs::read(&path).unwrap()));
                }
            }
        }
        files.sort();
        files
    }
}

fn options(format: WeightFormat) -> CompileOptions {
    let sizes = CompileOptions::new(format);
    CompileOptions { max_context: Some(64), prefill_ar: Some(8), threads: Some(2), ..sizes }
}

fn try_compile(family: &str, out: &Path, options: &CompileOptions) -> etgenai::Result<()> {
    compile_checkpoint(&checkpoint(family), out, options, &mut |_| Flow::Continue).map(|_| ())
}

#[test]
fn the_manifest_says_what_the_files_hold() {
    for format in WeightFormat::ALL {
        let place = Place::new();
        let report = compile("qwen2", &place.out(), format, 64, 8);
        let artefact = Artefact::open(&place.out()).unwrap();
        artefact.verify_hashes().unwrap();
        let manifest = artefact.manifest();
        assert_eq!((manifest.context_capacity, manifest.prefill_ar), (64, 8));
        assert_eq!(manifest.special_tokens, *checkpoint("qwen2").special_tokens());
        assert_eq!(artefact.tokenizer_json().unwrap(), fs::read(folder("qwen2").join("tokenizer.json")).unwrap());

        let entry = manifest.component("text_decoder").unwrap();
        assert_eq!(entry.weights, report.formats);
        assert_eq!(entry.bytes, fs::metadata(place.out().join(&entry.file)).unwrap().len());
        let names = entry.graphs.iter().map(|g| g.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names, ["kv_forward", "prefill_forward"]);
        assert_eq!(entry.graphs[1].inputs[0].shape, [1, 8]);

        let matrices = entry.weights[format.name()];
        let per_weight = matrices.bytes as f64 * 8.0 / matrices.elements as f64;
        assert_eq!(matrices.bits_per_weight, per_weight);
        assert_eq!(entry.weights.contains_key("w8"), matches!(format, WeightFormat::W8 | WeightFormat::W4));
        let summary = artefact.summary().unwrap();
        let on_disk = fs::read_dir(place.out()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum::<u64>();
        assert_eq!(summary.total_bytes, on_disk);
    }
}

#[test]
fn a_component_is_a_plain_safetensors_file_with_aligned_data() {
    let place = Place::new();
    compile("gemma3", &place.out(), WeightFormat::W4, 64, 8);
    let bytes = fs::read(place.out().join("text_decoder.safetensors")).unwrap();
    let (header, _) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!((header + 8) % 64, 0);
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let component = Component::open(&place.out().join("text_decoder.safetensors")).unwrap();
    assert_eq!(tensors.len(), component.weights().count());
    for (name, tensor) in tensors.tensors() {
        let offset = tensor.data().as_ptr().addr() - bytes.as_ptr().addr();
        assert_eq!(offset % 4, 0, "{name}");
    }
    // The head is the embedding table: stored once, with 8 bits.
    assert!(tensors.tensor("output.weight").is_err());
    let (_, table) = component.weights().find(|(name, _)| *name == "tok_embeddings.weight").unwrap();
    assert_eq!(table.format, WeightFormat::W8);
}

#[test]
fn a_cancel_at_any_step_leaves_everything_as_it_was() {
    let place = Place::new();
    compile("smollm2", &place.out(), WeightFormat::W8, 64, 8);
    let before = place.contents();
    let checkpoint = checkpoint("smollm2");
    let mut steps = 0;
    let mut count = |_: Progress<'_>| {
        steps += 1;
        Flow::Continue
    };
    compile_checkpoint(&checkpoint, &Place::new().out(), &options(WeightFormat::W4), &mut count).unwrap();
    assert!(steps > 10, "{steps} steps");
    for cancelled_at in 0..steps {
        let mut step = 0;
        let mut cancel = |_: Progress<'_>| {
            step += 1;
            if step > cancelled_at { Flow::Cancel } else { Flow::Continue }
        };
        let result = compile_checkpoint(&checkpoint, &place.out(), &options(WeightFormat::W4), &mut cancel);
        assert!(matches!(result, Err(Error::Cancelled)), "step {cancelled_at}: {result:?}");
        assert_eq!(step, cancelled_at + 1, "a cancel is not asked for twice");
        assert!(place.contents() == before, "step {cancelled_at} left something behind");
    }
    compile_checkpoint(&checkpoint, &place.out(), &options(WeightFormat::W4), &mut |_| Flow::Continue).unwrap();
    let files = place.contents();
    let hidden = files.iter().find(|(path, _)| path.file_name().unwrap().to_string_lossy().starts_with('.'));
    assert!(hidden.is_none(), "{hidden:?}");
    assert!(
        Artefact::open(&place.out()).unwrap().manifest().component("text_decoder").unwrap().weights.contains_key("w4")
    );
}

#[test]
fn progress_counts_up_to_the_total() {
    let mut last = (0, 0);
    let mut stages = Vec::new();
    let mut watch = |p: Progress<'_>| {
        assert!(p.done <= p.total, "{p:?}");
        if p.stage == Stage::Weights {
            assert!(p.done >= last.0, "{p:?}");
            last = (p.done, p.total);
        }
        if stages.last() != Some(&p.stage) {
            stages.push(p.stage);
        }
        Flow::Continue
    };
    let place = Place::new();
    let report =
        compile_checkpoint(&checkpoint("llama"), &place.out(), &options(WeightFormat::F16), &mut watch).unwrap();
    assert_eq!(stages, [Stage::Graphs, Stage::Weights, Stage::Finish]);
    assert_eq!(last.0, last.1);
    assert_eq!(last.1, report.formats.values().map(|f| f.bytes).sum::<u64>());
}

#[test]
fn only_what_is_ours_is_replaced() {
    let place = Place::new();
    let notes = place.out().join("notes.txt");
    fs::create_dir(place.out()).unwrap();
    // An empty folder may be taken.
    try_compile("llama", &place.out(), &options(WeightFormat::W4)).unwrap();
    // A compiled model may be replaced, unless somebody put a file into it.
    try_compile("llama", &place.out(), &options(WeightFormat::W8)).unwrap();
    fs::write(&notes, "mine").unwrap();
    let before = place.contents();
    let error = try_compile("llama", &place.out(), &options(WeightFormat::W4)).unwrap_err().to_string();
    assert!(error.contains("notes.txt") && error.contains("choose another"), "{error}");
    assert!(place.contents() == before);

    let place = Place::new();
    fs::create_dir(place.out()).unwrap();
    fs::write(place.out().join("thesis.tex"), "mine").unwrap();
    let before = place.contents();
    let error = try_compile("llama", &place.out(), &options(WeightFormat::W4)).unwrap_err().to_string();
    assert!(error.contains("not a compiled model"), "{error}");
    assert!(place.contents() == before);
    fs::write(place.out().join("manifest.json"), "{\"name\": \"web app\"}").unwrap();
    assert!(try_compile("llama", &place.out(), &options(WeightFormat::W4)).is_err());

    let file = place.root.path().join("file");
    fs::write(&file, "mine").unwrap();
    let error = try_compile("llama", &file, &options(WeightFormat::W4)).unwrap_err().to_string();
    assert!(error.contains("is not a directory"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

#[test]
fn options_that_do_not_fit_say_both_numbers() {
    let place = Place::new();
    let made_for = support::decoder_spec(&checkpoint("llama")).max_position;
    let base = options(WeightFormat::W4);
    let too_long = CompileOptions { max_context: Some(made_for + 1), ..base.clone() };
    let error = try_compile("llama", &place.out(), &too_long).unwrap_err().to_string();
    assert!(error.contains(&made_for.to_string()) && error.contains(&(made_for + 1).to_string()), "{error}");
    let too_wide = CompileOptions { prefill_ar: Some(64), ..base.clone() };
    let error = try_compile("llama", &place.out(), &too_wide).unwrap_err().to_string();
    assert!(error.contains("64") && error.contains("63"), "{error}");
    let unknown = CompileOptions { model: Some("llama9".into()), ..base.clone() };
    let error = try_compile("llama", &place.out(), &unknown).unwrap_err().to_string();
    assert!(error.contains("llama9") && error.contains("smollm2_135m"), "{error}");
    let another = CompileOptions { model: Some("SMOLLM2_135M".into()), ..base };
    let error = try_compile("llama", &place.out(), &another).unwrap_err().to_string();
    assert!(error.contains("smollm2_135m") && error.contains("llama"), "{error}");
    assert!(place.contents().is_empty());
}

#[test]
fn a_weight_that_a_format_cannot_hold_is_named() {
    // A bf16 checkpoint whose first matrix has a value beyond f16.
    let source = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder("smollm2")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, source.path().join(path.file_name().unwrap())).unwrap();
    }
    let weights = source.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let offset = {
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensor = tensors.tensor("model.layers.0.mlp.down_proj.weight").unwrap();
        tensor.data().as_ptr().addr() - bytes.as_ptr().addr()
    };
    bytes[offset..offset + 2].copy_from_slice(&half::bf16::from_f32(1e6).to_le_bytes());
    fs::write(&weights, bytes).unwrap();
    let checkpoint = Checkpoint::open(source.path()).unwrap();
    let place = Place::new();
    let result = compile_checkpoint(&checkpoint, &place.out(), &options(WeightFormat::F16), &mut |_| Flow::Continue);
    let error = result.unwrap_err().to_string();
    assert!(error.contains("layers.0.feed_forward.w2.weight") && error.contains("f16"), "{error}");
    assert!(place.contents().is_empty(), "nothing is left behind");
    compile_checkpoint(&checkpoint, &place.out(), &options(WeightFormat::Bf16), &mut |_| Flow::Continue).unwrap();
}
