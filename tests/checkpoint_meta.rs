//! Promise: weights in Meta's layout with a `params.json` are the same model as the Hugging Face folder they were made from,
//! and what is no such checkpoint is refused with an error that says what to do.

mod support;

use etgenai::Error;
use etgenai::checkpoint::{Checkpoint, CheckpointKind};
use etgenai::compile::CompileOptions;
use etgenai::engine::reference::ReferenceComponent;
use etgenai::formats::WeightFormat;
use etgenai::models::{BoundWeights, build_decoder};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::path::PathBuf;
use support::{Golden, Session, sqnr};

/// Rows of a head of tiny SmolLM2.
const HEAD: usize = 16;

/// A tensor: name, shape, values.
type Stored = (String, Vec<usize>, Vec<f32>);

/// Tiny SmolLM2 in Meta's layout: other names, and query and key heads with neighbouring pairs.
struct Meta {
    folder: tempfile::TempDir,
    tensors: Vec<Stored>,
    params: Value,
}

impl Meta {
    fn new() -> Self {
        let original = support::checkpoint("smollm2");
        let tensors = original.tensors().map(|entry| {
            let mut values = vec![0.0; entry.rows() * entry.row_len()];
            original.read_rows(&entry.name, 0..entry.rows(), &mut values).unwrap();
            let name = meta_name(&entry.name);
            if name.contains(".wq.") || name.contains(".wk.") {
                values = with_neighbouring_pairs(&values, entry.row_len());
            }
            (name, entry.shape.clone(), values)
        });
        let params = json!({
            "dim": 64, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 512, "multiple_of": 32,
            "ffn_dim_multiplier": 0.9, "norm_eps": 1e-5, "rope_theta": 100000.0, "max_seq_len": 512,
        });
        Self { folder: tempfile::tempdir().unwrap(), tensors: tensors.collect(), params }
    }

    fn weights(&self) -> PathBuf {
        self.folder.path().join("consolidated.safetensors")
    }

    fn params(&self) -> PathBuf {
        self.folder.path().join("params.json")
    }

    fn write(&self) {
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let stored: Vec<_> = self.tensors.iter().map(|(name, shape, values)| (name, shape, bytes(values))).collect();
        let views = stored
            .iter()
            .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap()));
        safetensors::serialize_to_file(views, None, &self.weights()).unwrap();
        std::fs::write(self.params(), self.params.to_string()).unwrap();
    }

    fn open(&self) -> etgenai::Result<Checkpoint> {
        self.write();
        Checkpoint::open_with_params(&self.weights(), &self.params())
    }

    fn error(&self) -> String {
        self.open().expect_err("no such checkpoint").to_string()
    }
}

fn meta_name(hugging_face: &str) -> String {
    let names = [
        ("model.", ""),
        ("embed_tokens", "tok_embeddings"),
        ("self_attn.q_proj", "attention.wq"),
        ("self_attn.k_proj", "attention.wk"),
        ("self_attn.v_proj", "attention.wv"),
        ("self_attn.o_proj", "attention.wo"),
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.down_proj", "feed_forward.w2"),
        ("mlp.up_proj", "feed_forward.w3"),
    ];
    names.iter().fold(hugging_face.to_owned(), |name, (from, to)| name.replacen(from, to, 1))
}

/// Rows `i` and `i + HEAD/2` of each head next to each other.
fn with_neighbouring_pairs(values: &[f32], width: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks(width).collect();
    let pairs = rows.chunks(HEAD).flat_map(|head| (0..HEAD).map(move |row| head[row / 2 + row % 2 * (HEAD / 2)]));
    pairs.flatten().copied().collect()
}

#[test]
fn the_model_is_the_one_of_the_hugging_face_folder() {
    let original = support::checkpoint("smollm2");
    for prefix in ["", "model.", "_orig_mod.", "model._orig_mod."] {
        let mut meta = Meta::new();
        meta.tensors.push(("rope.freqs".into(), vec![HEAD / 2], vec![0.5; HEAD / 2]));
        meta.tensors.iter_mut().for_each(|(name, ..)| *name = format!("{prefix}{name}"));
        let checkpoint = meta.open().unwrap();
        assert_eq!(checkpoint.kind(), CheckpointKind::Meta);
        let spec = support::decoder_spec(&checkpoint);
        assert_eq!(spec, support::decoder_spec(&original), "{prefix}");
        assert_eq!(checkpoint.tensors().count(), original.tensors().count());
        for entry in original.tensors() {
            assert_eq!(checkpoint.tensor(&entry.name).map(|found| &found.shape), Some(&entry.shape), "{}", entry.name);
            // All rows at once, and one from the middle.
            for rows in [0..entry.rows(), entry.rows() / 3..entry.rows() / 3 + 1] {
                let mut values = vec![vec![0.0; rows.len() * entry.row_len()]; 2];
                original.read_rows(&entry.name, rows.clone(), &mut values[0]).unwrap();
                checkpoint.read_rows(&entry.name, rows.clone(), &mut values[1]).unwrap();
                assert!(values[0] == values[1], "{prefix}{} {rows:?}", entry.name);
            }
        }
    }
}

#[test]
fn logits_are_those_of_transformers() {
    let meta = Meta::new();
    let checkpoint = meta.open().unwrap();
    let spec = support::decoder_spec(&checkpoint);
    let weights = BoundWeights::new(&spec, 64, &checkpoint).unwrap();
    let mut component = ReferenceComponent::new(build_decoder(&spec, 64, 16).unwrap(), &weights).unwrap();
    let golden = Golden::open("smollm2");
    let logits = Session::new(&spec, &mut component, 64).feed(1, &golden.i32("prompt_ids"));
    let db = sqnr(&logits, &golden.f32("logits"));
    assert!(db >= 100.0, "{db:.1} dB");
}

#[test]
fn a_head_of_its_own_is_used() {
    let mut meta = Meta::new();
    meta.tensors.push(("output.weight".into(), vec![512, 64], vec![0.25; 512 * 64]));
    let checkpoint = meta.open().unwrap();
    let spec = support::decoder_spec(&checkpoint);
    assert!(!spec.tied_embeddings);
    let weights = BoundWeights::new(&spec, 64, &checkpoint).unwrap();
    assert_eq!(weights.tensor_of("output.weight"), Some("lm_head.weight"));
}

/// Llama 2 leaves the vocabulary open.
#[test]
fn an_open_vocabulary_is_as_large_as_the_table() {
    for open in [json!(-1), Value::Null] {
        let mut meta = Meta::new();
        meta.params["vocab_size"] = open;
        assert_eq!(support::decoder_spec(&meta.open().unwrap()).vocab_size, 512);
    }
}

#[test]
fn a_tokenizer_beside_the_weights_or_elsewhere_is_taken() {
    let meta = Meta::new();
    let checkpoint = meta.open().unwrap();
    let error = checkpoint.tokenizer_json().unwrap_err().to_string();
    assert!(error.contains("no tokenizer"), "{error}");

    let elsewhere = checkpoint.with_tokenizer(&support::folder("smollm2")).unwrap();
    let original = support::checkpoint("smollm2");
    assert_eq!(elsewhere.tokenizer_json().unwrap(), original.tokenizer_json().unwrap());
    assert_eq!(elsewhere.special_tokens(), original.special_tokens());
    assert_eq!(elsewhere.chat_template(), original.chat_template());

    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(support::folder("smollm2").join(name), meta.folder.path().join(name)).unwrap();
    }
    let beside = meta.open().unwrap();
    assert_eq!(beside.tokenizer_json().unwrap(), original.tokenizer_json().unwrap());
    assert_eq!(beside.special_tokens().eos_token, original.special_tokens().eos_token);

    let out = tempfile::tempdir().unwrap();
    let options = CompileOptions { max_context: Some(64), ..CompileOptions::new(WeightFormat::W8) };
    support::compile_with(&beside, out.path(), &options);
    assert!(out.path().join("manifest.json").is_file());

    let missing = beside.with_tokenizer(&meta.folder.path().join("tokenizer.model")).unwrap_err();
    assert!(matches!(missing, Error::NotFound(_)), "{missing}");
}

#[test]
fn pytorch_files_are_refused_with_the_way_to_convert_them() {
    let meta = Meta::new();
    meta.write();
    let zip = b"PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00\x00\x00archive/data.pkl".as_slice();
    let pickle = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02".as_slice();
    for bytes in [zip, pickle] {
        let path = meta.folder.path().join("consolidated.00.pth");
        std::fs::write(&path, bytes).unwrap();
        for opened in [Checkpoint::open_with_params(&path, &meta.params()), Checkpoint::open(&path)] {
            let error = opened.unwrap_err();
            assert!(matches!(error, Error::Unsupported(_)), "{error}");
            let error = error.to_string();
            assert!(error.contains("consolidated.00.pth") && error.contains("save_file"), "{error}");
        }
    }
}

#[test]
fn what_is_missing_or_does_not_fit_is_named() {
    let meta = Meta::new();
    meta.write();
    std::fs::remove_file(meta.params()).unwrap();
    let error = Checkpoint::open_with_params(&meta.weights(), &meta.params()).unwrap_err();
    assert!(matches!(&error, Error::NotFound(text) if text.contains("params.json")), "{error}");
    let error = Checkpoint::open_with_params(&meta.params(), &meta.params()).unwrap_err();
    assert!(matches!(error, Error::NotFound(_)), "{error}");

    let mut meta = Meta::new();
    meta.tensors[5].0 = "layers.0.attention.wq.bias".into();
    let error = meta.error();
    assert!(error.contains("wq.bias") && error.contains("Meta's layout"), "{error}");

    let mut meta = Meta::new();
    meta.params["head_dim"] = json!(24);
    let error = meta.error();
    assert!(error.contains("q_proj") || error.contains("k_proj"), "{error}");
    assert!(error.contains("heads of 24 rows"), "{error}");

    let mut meta = Meta::new();
    meta.params["dim"] = json!("64");
    assert!(meta.error().contains("params.json: dim: \"64\""), "{}", meta.error());

    let mut meta = Meta::new();
    meta.tensors.retain(|(name, ..)| name != "layers.1.feed_forward.w2.weight");
    let checkpoint = meta.open().unwrap();
    let spec = support::decoder_spec(&checkpoint);
    let error = BoundWeights::new(&spec, 64, &checkpoint).unwrap_err().to_string();
    assert!(error.contains("layers.1.mlp.down_proj.weight") && error.contains("[64, 160]"), "{error}");

    let meta = Meta::new();
    meta.write();
    let bytes = std::fs::read(meta.weights()).unwrap();
    std::fs::write(meta.weights(), &bytes[..bytes.len() - 1]).unwrap();
    let error = Checkpoint::open_with_params(&meta.weights(), &meta.params()).unwrap_err().to_string();
    assert!(error.contains("truncated"), "{error}");
}

#[test]
fn a_folder_in_metas_layout_says_how_it_is_opened() {
    let meta = Meta::new();
    meta.write();
    let error = Checkpoint::open(meta.folder.path()).unwrap_err().to_string();
    assert!(error.contains("config.json") && error.contains("params.json"), "{error}");
}
