//! Binding against tiny checkpoints, whole and damaged.

use super::layout::TEXT_MODELS;
use super::*;
use crate::models::build_decoder;
use crate::registry::ModelSpec;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

pub(super) fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny").join(family)
}

/// A tensor of a changed checkpoint: name, shape, bytes.
pub(super) type Stored = (String, Vec<usize>, Vec<u8>);

/// A copy of a tiny checkpoint, changed.
pub(super) struct Changed {
    folder: tempfile::TempDir,
}

impl Changed {
    /// The checkpoint of a family after `change` was applied to its configuration and its tensors.
    pub fn new(family: &str, change: impl FnOnce(&mut Map<String, Value>, &mut Vec<Stored>)) -> Self {
        let bytes = std::fs::read(fixture(family).join("model.safetensors")).unwrap();
        let stored = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let dtype = stored.iter().next().unwrap().1.dtype();
        let mut tensors: Vec<Stored> =
            stored.iter().map(|(name, t)| (name.into(), t.shape().to_vec(), t.data().to_vec())).collect();
        let config = std::fs::read(fixture(family).join("config.json")).unwrap();
        let mut config = serde_json::from_slice(&config).unwrap();
        change(&mut config, &mut tensors);

        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
        let views = tensors.iter().map(|(n, shape, data)| (n, TensorView::new(dtype, shape.clone(), data).unwrap()));
        safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
        Self { folder }
    }

    pub fn open(&self) -> Checkpoint {
        Checkpoint::open(self.folder.path()).unwrap()
    }
}

/// Bind the decoder of a text model after `change` was applied to its tensors.
fn bind_changed(family: &str, change: impl FnOnce(&mut Vec<Stored>)) -> Result<()> {
    let checkpoint = Changed::new(family, |_, tensors| change(tensors)).open();
    let spec = ModelSpec::from_config(checkpoint.config()).unwrap().decoder;
    BoundWeights::new(&spec, 64, &checkpoint).map(drop)
}

#[test]
fn every_weight_of_the_graphs_is_bound_and_no_other() {
    let families =
        ["llama", "smollm2", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "granite", "phi4mini", "glm", "smollm3"];
    for family in families {
        let checkpoint = Checkpoint::open(&fixture(family)).unwrap();
        let spec = ModelSpec::from_config(checkpoint.config()).unwrap().decoder;
        let bound = BoundWeights::new(&spec, 64, &checkpoint).unwrap();
        for graph in build_decoder(&spec, 64, 7).unwrap() {
            let mut wanted: Vec<(&str, &[usize])> = graph.weights().map(|w| (w.name.as_str(), &w.shape[..])).collect();
            wanted.sort_unstable();
            assert_eq!(bound.shapes().collect::<Vec<_>>(), wanted, "{family} {}", graph.name);
        }
    }
}

#[test]
fn a_missing_tensor_is_named_with_its_shape() {
    let error = bind_changed("llama", |tensors| {
        tensors.retain(|(name, ..)| name != "model.layers.1.self_attn.k_proj.weight");
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("layers.1.self_attn.k_proj.weight: missing") && error.contains("[32, 64]"), "{error}");
}

#[test]
fn a_misshapen_tensor_is_named_with_both_shapes() {
    let error = bind_changed("llama", |tensors| {
        let (_, shape, _) = tensors.iter_mut().find(|(name, ..)| name.contains("1.mlp.down_proj")).unwrap();
        shape.reverse();
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("down_proj") && error.contains("[160, 64]") && error.contains("[64, 160]"), "{error}");
}

#[test]
fn an_extra_tensor_is_named() {
    let error = bind_changed("llama", |tensors| {
        tensors.push(("model.layers.0.self_attn.q_norm.weight".into(), vec![1], vec![0; 2]));
    });
    assert!(error.unwrap_err().to_string().contains("self_attn.q_norm.weight"));
}

#[test]
fn derived_buffers_and_copies_of_a_tied_head_are_allowed() {
    bind_changed("llama", |tensors| {
        let table = tensors.iter().find(|(name, ..)| name == "model.embed_tokens.weight").unwrap().clone();
        tensors.push(("lm_head.weight".into(), table.1, table.2));
        tensors.push(("model.layers.0.self_attn.rotary_emb.inv_freq".into(), vec![8], vec![0; 16]));
    })
    .unwrap();
    let error = bind_changed("llama", |tensors| {
        tensors.push(("lm_head.weight".into(), vec![1, 64], vec![0; 128]));
    });
    assert!(error.unwrap_err().to_string().contains("lm_head.weight"));
}

#[test]
fn a_multimodal_layout_is_found_and_its_other_parts_are_left_alone() {
    for layout in &TEXT_MODELS[1..] {
        bind_changed("gemma3", |tensors| {
            for (name, ..) in tensors.iter_mut() {
                *name = name.replacen("model.", layout.decoder, 1);
            }
            tensors.push((format!("{}x.weight", layout.beside[0]), vec![1], vec![0; 2]));
        })
        .unwrap();
    }
}

#[test]
fn rows_of_fused_tensors_norms_and_tables_are_read() {
    let checkpoint = Checkpoint::open(&fixture("phi4mini")).unwrap();
    let spec = ModelSpec::from_config(checkpoint.config()).unwrap().decoder;
    let bound = BoundWeights::new(&spec, 64, &checkpoint).unwrap();
    let (mut row, mut expected) = ([0.0; 64], [0.0; 64]);
    bound.read_rows("layers.1.attention.wv.weight", 3..4, &mut row).unwrap();
    checkpoint.read_rows("model.layers.1.self_attn.qkv_proj.weight", 99..100, &mut expected).unwrap();
    assert_eq!(row, expected);
    assert_eq!(bound.tensor_of("layers.1.feed_forward.w3.weight"), Some("model.layers.1.mlp.gate_up_proj.weight"));
    assert_eq!(bound.tensor_of("rope.cos"), None);
    let mut cos = [0.0; 12];
    bound.read_rows("rope.cos", 0..2, &mut cos).unwrap();
    assert_eq!(cos[..6], [1.264_911; 6]);

    let checkpoint = Checkpoint::open(&fixture("gemma")).unwrap();
    let spec = ModelSpec::from_config(checkpoint.config()).unwrap().decoder;
    let bound = BoundWeights::new(&spec, 64, &checkpoint).unwrap();
    bound.read_rows("norm.weight", 0..1, &mut row).unwrap();
    checkpoint.read_rows("model.norm.weight", 0..1, &mut expected).unwrap();
    assert_eq!(row, expected.map(|w| w + 1.0));
}

#[test]
fn rows_out_of_range_and_unknown_names_are_errors() {
    let checkpoint = Checkpoint::open(&fixture("llama")).unwrap();
    let spec = ModelSpec::from_config(checkpoint.config()).unwrap().decoder;
    let bound = BoundWeights::new(&spec, 64, &checkpoint).unwrap();
    assert!(bound.read_rows("layers.9.attention.wq.weight", 0..1, &mut [0.0; 64]).is_err());
    assert!(bound.read_rows("layers.0.attention.wk.weight", 32..33, &mut [0.0; 64]).is_err());
    assert!(bound.read_rows("layers.0.attention.wk.weight", 0..1, &mut [0.0; 63]).is_err());
}
