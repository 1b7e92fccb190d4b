//! Promise: a Hugging Face folder is read exactly, and a broken one is refused with an error that names file and tensor.

use etgenai::checkpoint::{Checkpoint, CheckpointKind, StorageType};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny").join(family)
}

/// A copy of a fixture folder that a test may damage.
fn copy_of(family: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary folder");
    for file in std::fs::read_dir(fixture(family)).expect("fixture") {
        let file = file.expect("entry");
        std::fs::copy(file.path(), dir.path().join(file.file_name())).expect("copy");
    }
    dir
}

fn error_of(folder: &Path) -> String {
    Checkpoint::open(folder).expect_err("a broken checkpoint").to_string()
}

/// The values of a tensor as the safetensors crate gives them.
fn reference(view: &safetensors::tensor::TensorView<'_>) -> Vec<f32> {
    match view.dtype() {
        safetensors::Dtype::F32 => view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        safetensors::Dtype::F16 => {
            view.data().as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect()
        }
        safetensors::Dtype::BF16 => {
            view.data().as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect()
        }
        other => panic!("{other} is not in the fixtures"),
    }
}

#[test]
fn every_tensor_of_every_family_reads_like_the_reference() {
    let families = [
        ("llama", StorageType::F16),
        ("smollm2", StorageType::BF16),
        ("qwen2", StorageType::F32),
        ("qwen3", StorageType::BF16),
        ("gemma3", StorageType::BF16),
    ];
    for (family, storage) in families {
        let checkpoint = Checkpoint::open(&fixture(family)).expect(family);
        assert_eq!(checkpoint.kind(), CheckpointKind::HuggingFace);
        let mut seen = 0;
        for file in std::fs::read_dir(fixture(family)).expect("fixture") {
            let path = file.expect("entry").path();
            let name = path.file_name().and_then(|n| n.to_str()).expect("name");
            if !(name.starts_with("model") && name.ends_with(".safetensors")) {
                continue;
            }
            let bytes = std::fs::read(&path).expect("read");
            for (name, view) in SafeTensors::deserialize(&bytes).expect("valid").iter() {
                let entry = checkpoint.tensor(name).unwrap_or_else(|| panic!("{family}: {name}"));
                assert_eq!((entry.shape.as_slice(), entry.storage), (view.shape(), storage), "{name}");
                assert_eq!(entry.bytes as usize, view.data().len(), "{name}");
                let expected = reference(&view);
                let mut whole = vec![0.0; expected.len()];
                checkpoint.read_rows(name, 0..entry.rows(), &mut whole).expect(name);
                assert_eq!(whole, expected, "{family}: {name}");
                let mut last = vec![0.0; entry.row_len()];
                checkpoint.read_rows(name, entry.rows() - 1..entry.rows(), &mut last).expect(name);
                assert_eq!(last, expected[expected.len() - entry.row_len()..], "{family}: last row of {name}");
                seen += 1;
            }
        }
        assert_eq!(checkpoint.tensors().count(), seen, "{family}");
        let names: Vec<&String> = checkpoint.tensors().map(|t| &t.name).collect();
        assert!(names.is_sorted(), "{family}: tensors come sorted by name");
    }
}

#[test]
fn special_tokens_and_template_come_from_the_folder() {
    let llama = Checkpoint::open(&fixture("llama")).expect("llama");
    let special = llama.special_tokens();
    assert_eq!(special.bos_token.as_deref(), Some("<|begin_of_text|>"));
    assert_eq!(special.eos_token.as_deref(), Some("<|eot_id|>"));
    assert_eq!((special.bos_id, special.eos_ids.as_slice()), (Some(0), &[4][..]));
    assert_eq!(special.add_bos, Some(true), "its post-processor adds it");
    assert_eq!(llama.chat_template(), None);

    let qwen = Checkpoint::open(&fixture("qwen2")).expect("qwen2");
    assert!(qwen.chat_template().is_some_and(|t| t.contains("<|im_start|>")));
    assert_eq!(qwen.special_tokens().add_bos, Some(false));
    assert_eq!(qwen.config()["model_type"], "qwen2");
    assert!(qwen.generation_config().is_some());
    assert!(qwen.tokenizer_json().expect("tokenizer").starts_with(b"{"));
}

#[test]
fn rows_out_of_range_and_wrong_buffers_are_refused() {
    let checkpoint = Checkpoint::open(&fixture("llama")).expect("llama");
    let mut row = vec![0.0; 64];
    let past = checkpoint.read_rows("model.embed_tokens.weight", 512..513, &mut row).expect_err("past");
    assert!(past.to_string().contains("rows 512..513 of tensor model.embed_tokens.weight"), "{past}");
    let short = checkpoint.read_rows("model.norm.weight", 0..1, &mut row[..63]).expect_err("short");
    assert!(short.to_string().contains("the buffer is for 63"), "{short}");
    let unknown = checkpoint.read_rows("model.nrom.weight", 0..1, &mut row).expect_err("unknown");
    assert!(unknown.to_string().contains("no tensor named model.nrom.weight"), "{unknown}");
}

#[test]
fn a_truncated_shard_names_itself_and_the_tensor() {
    let dir = copy_of("qwen3");
    let shard = dir.path().join("model-00002-of-00002.safetensors");
    let bytes = std::fs::read(&shard).expect("read");
    std::fs::write(&shard, &bytes[..bytes.len() - 100]).expect("write");
    let message = error_of(dir.path());
    assert!(message.contains("model-00002-of-00002.safetensors: model."), "{message}");
    assert!(message.contains("truncated"), "{message}");
}

#[test]
fn a_missing_shard_is_named() {
    let dir = copy_of("qwen3");
    std::fs::remove_file(dir.path().join("model-00001-of-00002.safetensors")).expect("remove");
    let message = error_of(dir.path());
    assert!(message.contains("model-00001-of-00002.safetensors: the shard is missing"), "{message}");
}

#[test]
fn a_tensor_in_two_shards_names_both() {
    let dir = copy_of("qwen3");
    let index = dir.path().join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).expect("read");
    let listed = "\"model.norm.weight\": \"model-00002-of-00002.safetensors\"";
    assert!(text.contains(listed));
    let text = text.replacen(listed, "\"model.norm.weight\": \"copy.safetensors\"", 1);
    std::fs::write(&index, text).expect("write");
    std::fs::copy(dir.path().join("model-00002-of-00002.safetensors"), dir.path().join("copy.safetensors"))
        .expect("copy");
    let message = error_of(dir.path());
    assert!(message.contains("already defined in"), "{message}");
    assert!(message.contains("copy.safetensors") && message.contains("model-00002"), "{message}");
}

#[test]
fn an_index_that_promises_too_much_or_leads_outside_is_refused() {
    let dir = copy_of("qwen3");
    let index = dir.path().join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).expect("read");
    let promised = text.replacen("\"model.norm.weight\"", "\"model.norm.bias\"", 1);
    std::fs::write(&index, promised).expect("write");
    let message = error_of(dir.path());
    assert!(message.contains("model.norm.bias: the tensor is not in this shard"), "{message}");

    for outside in ["../model.safetensors", "/etc/passwd", "a/../../b", ""] {
        let text = format!(r#"{{"weight_map": {{"x": "{outside}"}}}}"#);
        std::fs::write(&index, text).expect("write");
        let message = error_of(dir.path());
        assert!(message.contains("is not a path inside the folder"), "{outside}: {message}");
    }
}

#[test]
fn missing_files_and_bad_json_are_named() {
    let dir = tempfile::tempdir().expect("temporary folder");
    assert!(error_of(dir.path()).contains("no config.json"));
    std::fs::write(dir.path().join("config.json"), "{}").expect("write");
    assert!(error_of(dir.path()).contains("neither model.safetensors nor"));
    std::fs::write(dir.path().join("generation_config.json"), "{").expect("write");
    assert!(error_of(dir.path()).contains("generation_config.json: JSON"));
    assert!(error_of(&dir.path().join("absent")).contains("no such file or folder"));
}
