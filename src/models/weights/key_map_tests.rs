//! Which tensor each weight of each family is (spec/pipeline-contract.md 3.8), and what is done to its values (3.1).

use super::tests::fixture;
use super::*;
use crate::graph::Op;
use crate::models::build_decoder;
use crate::models::decoder::TABLE;

/// Weights and tensors of layer 1 that the families share.
const STANDARD: [(&str, &str); 9] = [
    ("attention.wq.weight", "self_attn.q_proj.weight"),
    ("attention.wk.weight", "self_attn.k_proj.weight"),
    ("attention.wv.weight", "self_attn.v_proj.weight"),
    ("attention.wo.weight", "self_attn.o_proj.weight"),
    ("feed_forward.w1.weight", "mlp.gate_proj.weight"),
    ("feed_forward.w2.weight", "mlp.down_proj.weight"),
    ("feed_forward.w3.weight", "mlp.up_proj.weight"),
    ("attention_norm.weight", "input_layernorm.weight"),
    ("ffn_norm.weight", "post_attention_layernorm.weight"),
];
const BIASES: [(&str, &str); 3] = [
    ("attention.wq.bias", "self_attn.q_proj.bias"),
    ("attention.wk.bias", "self_attn.k_proj.bias"),
    ("attention.wv.bias", "self_attn.v_proj.bias"),
];
const HEAD_NORMS: [(&str, &str); 2] = [
    ("attention.q_norm_fn.weight", "self_attn.q_norm.weight"),
    ("attention.k_norm_fn.weight", "self_attn.k_norm.weight"),
];
const POST_NORMS: [(&str, &str); 3] = [
    ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    ("ffn_norm.weight", "pre_feedforward_layernorm.weight"),
    ("post_ffn_norm.weight", "post_feedforward_layernorm.weight"),
];
const FUSED_MLP: [(&str, &str); 2] =
    [("feed_forward.w1.weight", "mlp.gate_up_proj.weight"), ("feed_forward.w3.weight", "mlp.gate_up_proj.weight")];
const FUSED_QKV: [(&str, &str); 3] = [
    ("attention.wq.weight", "self_attn.qkv_proj.weight"),
    ("attention.wk.weight", "self_attn.qkv_proj.weight"),
    ("attention.wv.weight", "self_attn.qkv_proj.weight"),
];

/// Where a family differs from [`STANDARD`].
type Deviations = &'static [&'static [(&'static str, &'static str)]];

const FAMILIES: [(&str, &str, Option<&str>, Deviations); 14] = [
    ("llama", "model.", None, &[]),
    ("smollm2", "model.", None, &[]),
    ("smollm3", "model.", None, &[]),
    ("granite", "model.", None, &[]),
    ("gemma", "model.", None, &[]),
    ("gemma2", "model.", None, &[&POST_NORMS]),
    ("gemma3", "model.", None, &[&POST_NORMS, &HEAD_NORMS]),
    ("qwen2", "model.", None, &[&BIASES]),
    ("qwen3", "model.", None, &[&HEAD_NORMS]),
    ("glm", "model.", Some("lm_head.weight"), &[&FUSED_MLP, &BIASES]),
    ("glm_edge", "model.", Some("lm_head.weight"), &[&FUSED_MLP]),
    ("phi4mini", "model.", None, &[&FUSED_MLP, &FUSED_QKV]),
    ("smolvlm", "model.text_model.", Some("lm_head.weight"), &[]),
    ("internvl3", "language_model.model.", Some("language_model.lm_head.weight"), &[&BIASES]),
];

fn open(family: &str) -> (Checkpoint, ModelSpec) {
    let checkpoint = Checkpoint::open(&fixture(family)).unwrap();
    let spec = ModelSpec::from_config(checkpoint.config()).unwrap();
    (checkpoint, spec)
}

#[test]
fn every_weight_of_every_family_is_the_tensor_of_the_key_map() {
    for (family, prefix, head, deviations) in FAMILIES {
        let (checkpoint, spec) = open(family);
        let bound = ModelWeights::new(&spec, 32, &checkpoint).unwrap();
        let mut expected: BTreeMap<String, String> = BTreeMap::new();
        for (weight, tensor) in STANDARD.iter().chain(deviations.iter().flat_map(|pairs| pairs.iter())) {
            expected.insert(format!("layers.1.{weight}"), format!("{prefix}layers.1.{tensor}"));
        }
        expected.insert("norm.weight".into(), format!("{prefix}norm.weight"));
        if let Some(head) = head {
            expected.insert("output.weight".into(), head.into());
        }
        let table = (TABLE.to_owned(), format!("{prefix}embed_tokens.weight"));
        match &bound.vision {
            Some(vision) => assert_eq!(vision.token_embedding.tensor_of(TABLE), Some(table.1.as_str()), "{family}"),
            None => drop(expected.insert(table.0, table.1)),
        }
        // Nothing of layer 1, and nothing outside of layers, that is not listed.
        let listed = |name: &&str| name.starts_with("layers.1.") || !name.starts_with("layers.");
        let found: BTreeMap<String, String> = bound
            .text_decoder
            .shapes()
            .map(|(name, _)| name)
            .filter(listed)
            .filter_map(|name| Some((name.to_owned(), bound.text_decoder.tensor_of(name)?.to_owned())))
            .collect();
        assert_eq!(found, expected, "{family}");
    }
}

#[test]
fn one_is_added_to_every_norm_of_gemma_and_to_nothing_else() {
    for (family, offset) in [("gemma", 1.0), ("gemma2", 1.0), ("gemma3", 1.0), ("llama", 0.0), ("qwen3", 0.0)] {
        let (checkpoint, spec) = open(family);
        let bound = BoundWeights::new(&spec.decoder, 32, &checkpoint).unwrap();
        for (name, shape) in bound.shapes().filter(|(name, _)| !name.starts_with("rope")) {
            let rows = if shape.len() == 1 { 0..1 } else { 1..2 };
            let (mut found, mut stored) = (vec![0.0; shape[shape.len() - 1]], vec![0.0; shape[shape.len() - 1]]);
            bound.read_rows(name, rows.clone(), &mut found).unwrap();
            checkpoint.read_rows(bound.tensor_of(name).unwrap(), rows, &mut stored).unwrap();
            if name.contains("norm") {
                stored.iter_mut().for_each(|w| *w += offset);
            }
            assert_eq!(found, stored, "{family} {name}");
        }
    }
}

/// Upstream multiplies the table and leaves its copy in the head as it is; here the multiplication is a node, so both are
/// the stored table and the head may share it.
#[test]
fn the_embedding_multiplier_is_applied_behind_the_table_only() {
    let (checkpoint, spec) = open("gemma");
    let spec = spec.decoder;
    let graph = &build_decoder(&spec, 32, 8).unwrap()[1];
    let factor = graph.nodes.iter().find_map(|node| match node.op {
        Op::Scale { factor } if node.name == "tok_embeddings.scale" => Some(factor),
        _ => None,
    });
    assert_eq!(factor, Some(8.0), "the square root of 64");
    let head = graph.nodes.iter().find(|node| node.name == "output").unwrap();
    assert_eq!(graph.value(head.inputs[1]).info.name, TABLE);

    let form = DecoderForm { separate_head: true, ..DecoderForm::default() };
    let bound = BoundWeights::with_form(&spec, form, 32, &checkpoint).unwrap();
    for name in [TABLE, "output.weight"] {
        let (mut found, mut stored) = ([0.0; 64], [0.0; 64]);
        bound.read_rows(name, 7..8, &mut found).unwrap();
        checkpoint.read_rows("model.embed_tokens.weight", 7..8, &mut stored).unwrap();
        assert_eq!(found, stored, "{name}");
    }
}
