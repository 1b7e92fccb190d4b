//! Promise: a LoRA adapter in a checkpoint's folder is merged exactly, row by row, or ignored if asked; one that is more than
//! that, or does not fit, is refused with an error that names what is wrong.

mod support;

use etgenai::Error;
use etgenai::checkpoint::{Adapter, Checkpoint};
use etgenai::graph::WeightProvider;
use etgenai::models::{BoundWeights, DecoderForm};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};

const RANK: usize = 3;

/// A tensor: name, shape, values.
type Stored = (String, Vec<usize>, Vec<f32>);

/// A tiny checkpoint with an adapter of rank 3 on some of its matrices.
struct Adapted {
    family: &'static str,
    folder: tempfile::TempDir,
    config: Map<String, Value>,
    tensors: Vec<Stored>,
}

impl Adapted {
    /// `modules`: path, rows, columns.
    fn new(family: &'static str, modules: &[(&str, usize, usize)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(support::folder(family)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        let targets: Vec<&str> = modules.iter().filter_map(|(path, ..)| path.rsplit('.').next()).collect();
        let config = json!({
            "peft_type": "LORA", "r": RANK, "lora_alpha": 12, "target_modules": targets, "use_rslora": false,
            "fan_in_fan_out": false, "bias": "none", "use_dora": false, "modules_to_save": null, "lora_dropout": 0.05,
            "rank_pattern": {}, "alpha_pattern": {}, "task_type": "CAUSAL_LM", "inference_mode": true,
            "init_lora_weights": true, "base_model_name_or_path": "base", "layers_to_transform": null,
            "loftq_config": {}, "megatron_config": null, "megatron_core": "megatron.core",
        });
        let mut state = 99u32;
        let mut random = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut tensors = Vec::new();
        for (path, rows, columns) in modules {
            for (half, shape) in [("A", [RANK, *columns]), ("B", [*rows, RANK])] {
                let values = (0..shape[0] * shape[1]).map(|_| random()).collect();
                tensors.push((format!("base_model.model.{path}.lora_{half}.weight"), shape.to_vec(), values));
            }
        }
        Self { family, folder, config: config.as_object().unwrap().clone(), tensors }
    }

    fn smollm2() -> Self {
        Self::new("smollm2", &[(Q, 64, 64), (DOWN, 64, 160)])
    }

    fn open(&self, adapter: Adapter) -> etgenai::Result<Checkpoint> {
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let stored: Vec<_> = self.tensors.iter().map(|(name, shape, values)| (name, shape, bytes(values))).collect();
        let views = stored
            .iter()
            .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap()));
        let path = |name| self.folder.path().join(name);
        safetensors::serialize_to_file(views, None, &path("adapter_model.safetensors")).unwrap();
        std::fs::write(path("adapter_config.json"), serde_json::to_vec(&self.config).unwrap()).unwrap();
        Checkpoint::open_with_adapter(self.folder.path(), adapter)
    }

    fn error(&self) -> Error {
        self.open(Adapter::Merge).expect_err("an adapter that cannot be merged")
    }

    /// The adapted matrix of a module by the definition, in f64.
    fn product(&self, module: &str, scale: f64) -> Vec<f32> {
        let base = support::checkpoint(self.family);
        let half = |half| {
            let name = format!("base_model.model.{module}.lora_{half}.weight");
            &self.tensors.iter().find(|(stored, ..)| *stored == name).unwrap().2
        };
        let (a, b) = (half("A"), half("B"));
        let mut values = read(&base, &format!("{module}.weight"));
        let width = a.len() / RANK;
        for (index, value) in values.iter_mut().enumerate() {
            let (row, column) = (index / width, index % width);
            let update: f64 = (0..RANK).map(|k| f64::from(b[row * RANK + k]) * f64::from(a[k * width + column])).sum();
            *value = (f64::from(*value) + scale * update) as f32;
        }
        values
    }
}

const Q: &str = "model.layers.1.self_attn.q_proj";
const DOWN: &str = "model.layers.2.mlp.down_proj";

/// All values of a tensor.
fn read(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let entry = checkpoint.tensor(name).unwrap();
    let mut values = vec![0.0; entry.rows() * entry.row_len()];
    checkpoint.read_rows(name, 0..entry.rows(), &mut values).unwrap();
    values
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-5, "{found} is not {expected}");
    }
}

#[test]
fn merged_weights_are_the_direct_product() {
    let mut adapted = Adapted::smollm2();
    for (stabilised, scale) in [(false, 12.0 / 3.0), (true, 12.0 / 3f64.sqrt())] {
        adapted.config.insert("use_rslora".into(), stabilised.into());
        let merged = adapted.open(Adapter::Merge).unwrap();
        for module in [Q, DOWN] {
            let (name, expected) = (format!("{module}.weight"), adapted.product(module, scale));
            assert_close(&read(&merged, &name), &expected);
            let width = expected.len() / 64;
            let mut rows = vec![0.0; 5 * width];
            merged.read_rows(&name, 17..22, &mut rows).unwrap();
            assert_close(&rows, &expected[17 * width..22 * width]);
        }
        let untouched = "model.layers.0.self_attn.q_proj.weight";
        assert_eq!(read(&merged, untouched), read(&support::checkpoint("smollm2"), untouched));
    }
}

#[test]
fn merging_is_the_default_and_can_be_declined() {
    let adapted = Adapted::smollm2();
    let name = format!("{Q}.weight");
    let ignored = adapted.open(Adapter::Ignore).unwrap();
    assert_eq!(read(&ignored, &name), read(&support::checkpoint("smollm2"), &name));
    let by_default = Checkpoint::open(adapted.folder.path()).unwrap();
    assert_close(&read(&by_default, &name), &adapted.product(Q, 4.0));
}

/// Bound weights are rows of the merged matrix: of a fused one, and in another order.
#[test]
fn parts_and_permuted_rows_of_adapted_weights_are_adapted() {
    let module = "model.layers.0.self_attn.qkv_proj";
    let adapted = Adapted::new("phi4mini", &[(module, 128, 64)]);
    let merged = adapted.open(Adapter::Merge).unwrap();
    let weights = BoundWeights::new(&support::decoder_spec(&merged), 32, &merged).unwrap();
    let mut keys = vec![0.0; 32 * 64];
    weights.read_rows("layers.0.attention.wk.weight", 0..32, &mut keys).unwrap();
    assert_close(&keys, &adapted.product(module, 4.0)[64 * 64..96 * 64]);

    let module = "model.layers.2.self_attn.q_proj";
    let adapted = Adapted::new("glm_edge", &[(module, 64, 64)]);
    let merged = adapted.open(Adapter::Merge).unwrap();
    let form = DecoderForm { half_split_rope: true, ..DecoderForm::default() };
    let weights = BoundWeights::with_form(&support::decoder_spec(&merged), form, 32, &merged).unwrap();
    let mut row = [0.0; 64];
    // Row 9 of a head of 16 is the odd row of pair 1.
    weights.read_rows("layers.2.attention.wq.weight", 25..26, &mut row).unwrap();
    assert_close(&row, &adapted.product(module, 4.0)[19 * 64..20 * 64]);
}

/// What stands in front of the layers differs from release to release, and so may adapter and weights.
#[test]
fn paths_count_from_the_layers_on() {
    let mut adapted = Adapted::smollm2();
    let expected = adapted.product(Q, 4.0);
    for (name, ..) in &mut adapted.tensors {
        *name = name.replace("base_model.model.model.layers", "base_model.model.language_model.model.layers");
    }
    assert_close(&read(&adapted.open(Adapter::Merge).unwrap(), &format!("{Q}.weight")), &expected);
    let again = adapted
        .tensors
        .clone()
        .into_iter()
        .map(|(name, shape, values)| (name.replace("language_model.model.layers", "layers"), shape, values));
    adapted.tensors.extend(again.collect::<Vec<_>>());
    assert!(adapted.error().to_string().contains("adapted twice"));
}

#[test]
fn adapters_that_are_more_are_refused_by_name() {
    let cases = [
        ("peft_type", json!("LOHA")),
        ("peft_type", Value::Null),
        ("use_dora", json!(true)),
        ("bias", json!("lora_only")),
        ("modules_to_save", json!(["lm_head"])),
        ("fan_in_fan_out", json!(true)),
        ("rank_pattern", json!({"q_proj": 8})),
        ("alpha_pattern", json!({"q_proj": 8})),
        ("lora_bias", json!(true)),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("trainable_token_indices", json!([1])),
        ("a_setting_of_later_releases", json!("on")),
    ];
    for (field, value) in cases {
        let mut adapted = Adapted::smollm2();
        adapted.config.insert(field.into(), value.clone());
        let error = adapted.error();
        assert!(matches!(error, Error::Unsupported(_)), "{field}: {error}");
        let error = error.to_string();
        assert!(error.contains(field) && error.contains("adapter_config.json"), "{error}");
        adapted.open(Adapter::Ignore).unwrap();
    }
}

#[test]
fn malformed_settings_are_named_with_their_value() {
    let cases = [
        ("r", json!(0), "r: 0"),
        ("r", json!("3"), "r: \"3\""),
        ("r", Value::Null, "r: missing"),
        ("lora_alpha", json!("12"), "lora_alpha: \"12\""),
        ("use_rslora", json!("yes"), "use_rslora: \"yes\""),
    ];
    for (field, value, expected) in cases {
        let mut adapted = Adapted::smollm2();
        adapted.config.insert(field.into(), value);
        let error = adapted.error();
        assert!(matches!(error, Error::Format { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn tensors_that_do_not_fit_are_named_with_their_shapes() {
    let refused = |change: &dyn Fn(&mut Adapted)| {
        let mut adapted = Adapted::smollm2();
        change(&mut adapted);
        let error = adapted.error();
        assert!(matches!(error, Error::Format { .. }), "{error}");
        error.to_string()
    };
    let error = refused(&|adapted| adapted.tensors[0].1 = vec![64, RANK]);
    let parts = ["q_proj", "[64, 3]", "[64, 64]", "rank 3"];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    let error = refused(&|adapted| drop(adapted.config.insert("r".into(), json!(4))));
    assert!(error.contains("[3, 64]") && error.contains("rank 4"), "{error}");
    let error = refused(&|adapted| drop(adapted.tensors.remove(1)));
    assert!(error.contains("q_proj.lora_B.weight") && error.contains("missing"), "{error}");
    let error = refused(&|adapted| {
        adapted.tensors.iter_mut().for_each(|(name, ..)| *name = name.replace("layers.1", "layers.7"));
    });
    assert!(error.contains("layers.7.self_attn.q_proj.weight") && error.contains("does not have"), "{error}");
    let error =
        refused(&|adapted| adapted.tensors[0].0 = "base_model.model.model.embed_tokens.lora_embedding_A".into());
    assert!(error.contains("lora_embedding_A"), "{error}");
    let error = refused(&|adapted| drop(adapted.config.insert("target_modules".into(), json!(["v_proj"]))));
    assert!(error.contains("target_modules"), "{error}");
    let error = refused(&|adapted| adapted.tensors.clear());
    assert!(error.contains("lora_A.weight"), "{error}");
}

#[test]
fn half_an_adapter_says_what_is_missing() {
    let adapted = Adapted::smollm2();
    adapted.open(Adapter::Merge).unwrap();
    std::fs::remove_file(adapted.folder.path().join("adapter_model.safetensors")).unwrap();
    let error = Checkpoint::open(adapted.folder.path()).unwrap_err();
    assert!(matches!(&error, Error::NotFound(text) if text.contains("adapter_model.safetensors")), "{error}");

    let adapted = Adapted::smollm2();
    adapted.open(Adapter::Merge).unwrap();
    std::fs::remove_file(adapted.folder.path().join("config.json")).unwrap();
    let error = Checkpoint::open(adapted.folder.path()).unwrap_err();
    assert!(matches!(&error, Error::NotFound(text) if text.contains("adapter")), "{error}");
}
