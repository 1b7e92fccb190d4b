//! The graph: its signature, its order of nodes, its odd sizes.

use super::*;
use crate::registry::{Activation, PositionRule, VisionTower};

/// A SigLIP tower of one layer: 4 × 4 patches of 4 pixels.
fn siglip() -> VisionSpec {
    VisionSpec {
        tower: VisionTower::Siglip,
        image_size: 16,
        patch_size: 4,
        channels: 3,
        hidden_size: 8,
        layers: 1,
        heads: 2,
        ffn_size: 12,
        norm_eps: 1e-6,
        activation: Activation::GeluTanh,
        qkv_bias: true,
        class_token: false,
        layer_scale: false,
        post_norm: true,
        pixel_shuffle: 2,
        connector: Connector::Linear,
        output_size: 6,
        position_rule: PositionRule::Identity,
    }
}

fn intern_vit() -> VisionSpec {
    VisionSpec {
        tower: VisionTower::InternVit,
        qkv_bias: false,
        class_token: true,
        layer_scale: true,
        post_norm: false,
        connector: Connector::Mlp { norm_eps: 1e-5, activation: Activation::Gelu },
        ..siglip()
    }
}

fn nodes(graph: &Graph) -> Vec<String> {
    graph.nodes.iter().map(|node| format!("{} {}", node.name, node.op.name())).collect()
}

#[test]
fn the_signature_is_the_graph_contract() {
    for spec in [siglip(), intern_vit()] {
        let graph = build_vision_encoder(&spec).unwrap();
        assert_eq!(graph.name, FORWARD);
        assert_eq!(graph.input_infos(), [Graph::f32_info("pixel_values", &[1, 3, 16, 16])]);
        assert_eq!(graph.output_infos(), [Graph::f32_info("image_features", &[1, 4, 6])]);
    }
}

/// Engines find attention and residual adds by this order.
#[test]
fn a_layer_has_its_nodes_in_the_order_engines_know() {
    let graph = build_vision_encoder(&siglip()).unwrap();
    let at = "encoder.layers.0";
    let expected = [
        "layer_norm1 layer_norm",
        "self_attn.q_proj linear",
        "self_attn.q_heads reshape",
        "self_attn.q_transpose transpose",
        "self_attn.k_proj linear",
        "self_attn.k_heads reshape",
        "self_attn.k_transpose transpose",
        "self_attn.v_proj linear",
        "self_attn.v_heads reshape",
        "self_attn.v_transpose transpose",
        "self_attn.scores mat_mul",
        "self_attn.scores_scale scale",
        "self_attn.softmax softmax",
        "self_attn.mix mat_mul",
        "self_attn.mix_transpose transpose",
        "self_attn.mix_reshape reshape",
        "self_attn.out_proj linear",
        "attention_residual add",
        "layer_norm2 layer_norm",
        "mlp.fc1 linear",
        "mlp.activation_fn gelu_tanh",
        "mlp.fc2 linear",
        "mlp_residual add",
    ];
    let layer: Vec<_> = nodes(&graph).into_iter().filter(|name| name.starts_with(at)).collect();
    assert_eq!(layer, expected.map(|name| format!("{at}.{name}")));
    let keys = graph.nodes.iter().find(|node| node.name.ends_with("k_transpose")).unwrap();
    assert_eq!(keys.op, Op::Transpose { perm: vec![0, 2, 3, 1] }, "keys come transposed, so that no node turns them");
}

#[test]
fn intern_vit_has_a_class_token_no_last_norm_and_no_nodes_for_layer_scale() {
    let names = nodes(&build_vision_encoder(&intern_vit()).unwrap());
    for name in ["embeddings.concat concat", "drop_class_token slice", "multi_modal_projector.act gelu"] {
        assert!(names.iter().any(|found| found == name), "{name} is missing in {names:?}");
    }
    assert!(
        !names.iter().any(|name| name.starts_with("layernorm") || name.contains("lambda") || name.ends_with(" mul"))
    );
    let with_norm = VisionSpec { post_norm: true, ..intern_vit() };
    assert!(nodes(&build_vision_encoder(&with_norm).unwrap()).contains(&"layernorm layer_norm".to_owned()));
}

#[test]
fn biases_exist_where_the_specification_says() {
    let graph = build_vision_encoder(&intern_vit()).unwrap();
    let weights: Vec<&str> = graph.weights().map(|weight| weight.name.as_str()).collect();
    assert!(!weights.contains(&"encoder.layer.0.attention.q_proj.bias"));
    assert!(weights.contains(&"encoder.layer.0.attention.projection_layer.bias"));
    let graph = build_vision_encoder(&siglip()).unwrap();
    let weights: Vec<&str> = graph.weights().map(|weight| weight.name.as_str()).collect();
    assert!(weights.contains(&"encoder.layers.0.self_attn.q_proj.bias"));
    assert!(!weights.contains(&"connector.modality_projection.proj.bias"));
}

/// Pixels beyond the last whole patch are cut off in front of the patches, as a convolution without padding does.
#[test]
fn a_picture_that_is_no_multiple_of_the_patch_is_cropped() {
    let graph = build_vision_encoder(&VisionSpec { image_size: 19, ..siglip() }).unwrap();
    assert_eq!(graph.input_infos()[0].shape, [1, 3, 19, 19]);
    assert_eq!(graph.output_infos()[0].shape, [1, 4, 6]);
    assert_eq!(nodes(&graph)[..2], ["crop.rows slice", "crop.columns slice"]);
}

#[test]
fn an_invalid_specification_is_an_error() {
    let error = build_vision_encoder(&VisionSpec { heads: 3, ..siglip() }).unwrap_err().to_string();
    assert!(error.contains("vision: hidden_size: 8 is not a multiple of num_attention_heads 3"), "{error}");
}
