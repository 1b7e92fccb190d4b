//! Binding all components of models that see: layouts, damage, folded transforms.

use super::layout::{INTERNVL, SMOLVLM};
use super::tests::{Changed, Stored, fixture};
use super::*;
use crate::registry::PositionRule;
use serde_json::{Map, Value, json};

/// Families, their layouts, the published one first.
const FAMILIES: [(&str, &[VisionLayout]); 2] = [("smolvlm", &SMOLVLM), ("internvl3", &INTERNVL)];

fn spec(checkpoint: &Checkpoint) -> ModelSpec {
    ModelSpec::from_config(checkpoint.config()).unwrap()
}

fn bind(checkpoint: &Checkpoint) -> Result<ModelWeights<'_>> {
    ModelWeights::new(&spec(checkpoint), 64, checkpoint)
}

/// The error of a checkpoint whose tensors were changed.
fn refusal(family: &str, change: impl FnOnce(&mut Vec<Stored>)) -> String {
    let checkpoint = Changed::new(family, |_, tensors| change(tensors)).open();
    bind(&checkpoint).unwrap_err().to_string()
}

fn read(weights: &BoundWeights<'_>, name: &str) -> Vec<f32> {
    let (rows, length) = weights.bindings[name].rows();
    let mut values = vec![0.0; rows * length];
    weights.read_rows(name, 0..rows, &mut values).unwrap();
    values
}

fn tensor(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let entry = checkpoint.tensor(name).unwrap_or_else(|| panic!("{name}"));
    let mut values = vec![0.0; entry.shape.iter().product()];
    checkpoint.read_rows(name, 0..entry.rows(), &mut values).unwrap();
    values
}

/// Names and values of all weights of all components.
fn everything(weights: &ModelWeights<'_>) -> Vec<(String, Vec<f32>)> {
    let vision = weights.vision.as_ref().unwrap();
    let components = [&vision.encoder, &vision.token_embedding, &weights.text_decoder];
    components
        .into_iter()
        .flat_map(|component| component.shapes().map(|(name, _)| (name.to_owned(), read(component, name))))
        .collect()
}

/// Move a tensor from the published layout to another one.
fn renamed(name: &str, from: &VisionLayout, to: &VisionLayout) -> String {
    if name == from.text.head {
        return to.text.head.into();
    }
    // The connector comes last: its prefix may be empty, or that of everything.
    let prefixes = [(from.text.decoder, to.text.decoder), (from.tower, to.tower), (from.connector, to.connector)];
    let found = prefixes.into_iter().find_map(|(old, new)| name.strip_prefix(old).map(|rest| format!("{new}{rest}")));
    found.unwrap_or_else(|| panic!("{name} has no known prefix"))
}

#[test]
fn every_layout_of_past_and_present_releases_gives_the_same_weights() {
    for (family, layouts) in FAMILIES {
        let published = Checkpoint::open(&fixture(family)).unwrap();
        let expected = everything(&bind(&published).unwrap());
        for to in layouts {
            let checkpoint = Changed::new(family, |_, tensors| {
                tensors.iter_mut().for_each(|(name, ..)| *name = renamed(name, &layouts[0], to));
            });
            let checkpoint = checkpoint.open();
            assert!(checkpoint.tensor(&to.text.table()).is_some());
            assert_eq!(everything(&bind(&checkpoint).unwrap()), expected, "{family} as {to:?}");
        }
    }
}

#[test]
fn a_checkpoint_that_mixes_layouts_is_refused() {
    let error = refusal("smolvlm", |tensors| {
        for (name, ..) in tensors.iter_mut().filter(|(name, ..)| name.contains("vision_model")) {
            *name = name.replacen("model.", "", 1);
        }
    });
    assert!(error.contains("model.vision_model.embeddings.patch_embedding.weight: missing"), "{error}");
    let error = refusal("internvl3", |tensors| {
        for (name, ..) in tensors.iter_mut().filter(|(name, ..)| name.starts_with("multi_modal_projector")) {
            *name = format!("model.{name}");
        }
    });
    assert!(error.contains("multi_modal_projector.layer_norm.weight: missing"), "{error}");
}

#[test]
fn missing_tensors_of_every_part_are_named_with_their_shape() {
    let cases = [
        ("smolvlm", "model.vision_model.embeddings.position_embedding.weight", "[64, 48]"),
        ("smolvlm", "model.vision_model.encoder.layers.1.self_attn.out_proj.bias", "[48]"),
        ("smolvlm", "model.vision_model.post_layernorm.weight", "[48]"),
        ("smolvlm", "model.connector.modality_projection.proj.weight", "[64, 768]"),
        ("smolvlm", "model.text_model.norm.weight", "[64]"),
        ("smolvlm", "lm_head.weight", "[600, 64]"),
        ("internvl3", "vision_tower.embeddings.cls_token", "[1, 1, 48]"),
        ("internvl3", "vision_tower.encoder.layer.0.lambda_2", "[48]"),
        ("internvl3", "vision_tower.encoder.layer.1.attention.q_proj.bias", "[48]"),
        ("internvl3", "multi_modal_projector.linear_2.bias", "[64]"),
        ("internvl3", "language_model.lm_head.weight", "[576, 64]"),
    ];
    for (family, missing, shape) in cases {
        let error = refusal(family, |tensors| {
            let count = tensors.len();
            tensors.retain(|(name, ..)| name != missing);
            assert_eq!(tensors.len() + 1, count, "{missing}");
        });
        assert!(error.contains(&format!("{missing}: missing")) && error.contains(shape), "{error}");
    }
}

#[test]
fn a_missing_embedding_table_is_named_in_the_published_layout() {
    let error = refusal("internvl3", |tensors| tensors.retain(|(name, ..)| !name.contains("embed_tokens")));
    assert!(error.contains("language_model.model.embed_tokens.weight: missing"), "{error}");
}

#[test]
fn misshapen_tensors_are_named_with_both_shapes() {
    let cases = [
        ("smolvlm", "model.vision_model.embeddings.patch_embedding.weight", vec![48, 192], "[48, 3, 8, 8]"),
        ("smolvlm", "model.vision_model.encoder.layers.0.mlp.fc2.weight", vec![96, 48], "[48, 96]"),
        ("internvl3", "vision_tower.embeddings.position_embeddings", vec![17, 48], "[1, 17, 48]"),
        ("internvl3", "vision_tower.encoder.layer.0.lambda_1", vec![1, 48], "[48]"),
    ];
    for (family, wrong, shape, wanted) in cases {
        let error = refusal(family, |tensors| {
            let (_, stored, _) = tensors.iter_mut().find(|(name, ..)| name == wrong).unwrap();
            stored.clone_from(&shape);
        });
        assert!(error.contains(wrong) && error.contains(&format!("{shape:?}")) && error.contains(wanted), "{error}");
    }
}

#[test]
fn tensors_without_a_use_are_named() {
    let cases = [
        ("smolvlm", "model.vision_model.encoder.layers.2.layer_norm1.weight"),
        ("smolvlm", "model.vision_model.head.probe"),
        ("smolvlm", "model.connector.modality_projection.proj.bias"),
        ("internvl3", "vision_tower.layernorm.weight"),
        ("internvl3", "vision_tower.encoder.layer.0.attention.q_norm.weight"),
        ("internvl3", "audio_tower.conv1.weight"),
    ];
    for (family, extra) in cases {
        let error = refusal(family, |tensors| tensors.push((extra.into(), vec![1], vec![0; 2])));
        assert!(error.contains(extra) && error.contains("no weight of this model"), "{error}");
    }
}

/// Remove the head and set the flags beside and inside `text_config`.
fn tied(family: &str, outer: Option<bool>, inner: Option<bool>) -> Changed {
    Changed::new(family, |config, tensors| {
        tensors.retain(|(name, ..)| !name.ends_with("lm_head.weight"));
        set_ties(config, outer, inner);
    })
}

fn set_ties(config: &mut Map<String, Value>, outer: Option<bool>, inner: Option<bool>) {
    let set = |map: &mut Map<String, Value>, flag: Option<bool>| {
        map.remove("tie_word_embeddings");
        if let Some(flag) = flag {
            map.insert("tie_word_embeddings".into(), json!(flag));
        }
    };
    set(config, outer);
    set(config["text_config"].as_object_mut().unwrap(), inner);
}

#[test]
fn a_head_that_is_not_there_is_the_table_if_either_flag_ties_them() {
    let cases = [
        ("smolvlm", Some(true), Some(false)),
        ("smolvlm", Some(false), Some(true)),
        ("smolvlm", None, Some(true)),
        ("internvl3", Some(true), None),
        ("internvl3", Some(false), Some(true)),
        // What InternVL's configuration means when it says nothing.
        ("internvl3", None, None),
    ];
    for (family, outer, inner) in cases {
        let checkpoint = tied(family, outer, inner).open();
        let weights = bind(&checkpoint).unwrap();
        let table = read(&weights.vision.as_ref().unwrap().token_embedding, "tok_embeddings.weight");
        assert_eq!(read(&weights.text_decoder, "output.weight"), table, "{family} {outer:?} {inner:?}");
    }
    for (family, outer, inner) in [("smolvlm", None, None), ("internvl3", Some(false), Some(false))] {
        let error = bind(&tied(family, outer, inner).open()).unwrap_err().to_string();
        assert!(error.contains("lm_head.weight: missing"), "{family}: {error}");
    }
}

#[test]
fn a_head_that_is_there_is_used_whatever_the_flags_say() {
    for (family, head) in [("smolvlm", "lm_head.weight"), ("internvl3", "language_model.lm_head.weight")] {
        let checkpoint = Changed::new(family, |config, _| set_ties(config, Some(true), Some(true))).open();
        let weights = bind(&checkpoint).unwrap();
        assert_eq!(weights.text_decoder.tensor_of("output.weight"), Some(head));
        assert_eq!(read(&weights.text_decoder, "output.weight"), tensor(&checkpoint, head));
    }
}

#[test]
fn position_rows_follow_the_rule() {
    const TABLE: &str = "embeddings.position_embedding.weight";
    let checkpoint = Checkpoint::open(&fixture("smolvlm")).unwrap();
    let stored = tensor(&checkpoint, &format!("model.vision_model.{TABLE}"));
    let bound = |rule: PositionRule| {
        let mut spec = spec(&checkpoint);
        spec.vision.as_mut().unwrap().position_rule = rule;
        read(&ModelWeights::new(&spec, 64, &checkpoint).unwrap().vision.unwrap().encoder, TABLE)
    };
    assert_eq!(bound(PositionRule::Identity), stored);
    // Spelled out for 8 patches a side: 0 0 1 2 3 4 5 6 on each axis.
    let axis = [0, 0, 1, 2, 3, 4, 5, 6];
    let rows = axis.iter().flat_map(|row| axis.iter().map(move |column| row * 8 + column));
    let gathered: Vec<f32> = rows.flat_map(|row| stored[row * 48..(row + 1) * 48].to_vec()).collect();
    assert_ne!(gathered, stored);
    assert_eq!(bound(PositionRule::UpstreamShifted), gathered);
}

#[test]
fn the_shifted_rule_is_refused_where_there_are_no_buckets() {
    let checkpoint = Checkpoint::open(&fixture("internvl3")).unwrap();
    let mut spec = spec(&checkpoint);
    spec.vision.as_mut().unwrap().position_rule = PositionRule::UpstreamShifted;
    let error = ModelWeights::new(&spec, 64, &checkpoint).unwrap_err().to_string();
    assert!(error.contains("position_rule: upstream_shifted"), "{error}");
}

#[test]
fn layer_scale_is_folded_into_the_ends_of_both_branches() {
    let checkpoint = Checkpoint::open(&fixture("internvl3")).unwrap();
    let weights = bind(&checkpoint).unwrap();
    let encoder = &weights.vision.as_ref().unwrap().encoder;
    for layer in ["encoder.layer.0", "encoder.layer.1"] {
        for (scale, node, width) in [("lambda_1", "attention.projection_layer", 48), ("lambda_2", "mlp.fc2", 96)] {
            let stored = |name: &str| tensor(&checkpoint, &format!("vision_tower.{layer}.{name}"));
            let factors = stored(scale);
            assert!(factors.iter().all(|factor| *factor != 1.0), "the fixture has a scale worth its name");
            let matrix = stored(&format!("{node}.weight"));
            let scaled = matrix.iter().enumerate().map(|(i, w)| w * factors[i / width]).collect::<Vec<f32>>();
            assert_eq!(read(encoder, &format!("{layer}.{node}.weight")), scaled);
            let bias = stored(&format!("{node}.bias"));
            let scaled = bias.iter().zip(&factors).map(|(w, factor)| w * factor).collect::<Vec<f32>>();
            assert_eq!(read(encoder, &format!("{layer}.{node}.bias")), scaled);
            // A part of the rows, as packing asks for them.
            let mut rows = vec![0.0; 2 * width];
            encoder.read_rows(&format!("{layer}.{node}.weight"), 17..19, &mut rows).unwrap();
            let expected: Vec<f32> = (17..19)
                .flat_map(|row| matrix[row * width..(row + 1) * width].iter().map(move |w| (row, *w)))
                .map(|(row, w)| w * factors[row])
                .collect();
            assert_eq!(rows, expected);
        }
    }
}
