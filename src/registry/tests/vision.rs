//! Configurations of models that see: published ones, what they leave out, damaged ones.

use super::*;

/// SmolVLM-500M as published: most fields have their defaults and are left out.
pub(super) fn smolvlm_500m() -> Value {
    json!({
        "architectures": ["Idefics3ForConditionalGeneration"], "image_token_id": 49190, "model_type": "idefics3",
        "scale_factor": 4, "tie_word_embeddings": false, "vocab_size": 49280,
        "text_config": {
            "head_dim": 64, "hidden_size": 960, "intermediate_size": 2560, "is_llama_config": true,
            "max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": 15,
            "num_key_value_heads": 5, "pixel_shuffle_factor": 4, "rms_norm_eps": 1e-5, "rope_theta": 100000,
            "vocab_size": 49280
        },
        "vision_config": {
            "hidden_size": 768, "image_size": 512, "max_image_size": {"longest_edge": 512}, "model_type": "idefics3",
            "num_attention_heads": 12, "patch_size": 16, "size": {"longest_edge": 2048},
            "tie_word_embeddings": false, "use_base_siglip": true
        }
    })
}

/// InternVL3-1B as published for transformers.
pub(super) fn internvl3_1b() -> Value {
    json!({
        "architectures": ["InternVLForConditionalGeneration"], "downsample_ratio": 0.5, "image_seq_length": 256,
        "image_token_id": 151667, "model_type": "internvl", "projector_hidden_act": "gelu",
        "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
        "text_config": {
            "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768,
            "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
            "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}, "sliding_window": null,
            "use_sliding_window": false, "vocab_size": 151674
        },
        "vision_config": {
            "attention_bias": true, "hidden_act": "gelu", "hidden_size": 1024, "image_size": [448, 448],
            "intermediate_size": 4096, "layer_norm_eps": 1e-6, "model_type": "internvl_vision",
            "norm_type": "layer_norm", "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 24,
            "patch_size": [14, 14], "use_absolute_position_embeddings": true, "use_mask_token": false,
            "use_mean_pooling": true, "use_qk_norm": false
        }
    })
}

fn vision(config: Value) -> VisionSpec {
    read(config).unwrap().vision.unwrap()
}

/// `config` with fields of one of its objects replaced.
fn with_inner(mut config: Value, section: &str, change: Value) -> Value {
    config[section] = with(config[section].take(), change);
    config
}

#[test]
fn published_configurations_of_models_that_see_are_recognised() {
    assert_published(smolvlm_500m(), "smolvlm_500m_instruct");
    assert_published(internvl3_1b(), "internvl3_1b");
}

#[test]
fn smolvlm_reads_its_tower_and_fills_in_what_is_left_out() {
    let spec = read(smolvlm_500m()).unwrap();
    assert_eq!(spec.image_token_id, Some(49_190));
    assert_eq!((spec.decoder.layers, spec.decoder.rope.theta), (32, 1e5), "32 layers is the default of LlamaConfig");
    let expected = VisionSpec {
        tower: VisionTower::Siglip,
        image_size: 512,
        patch_size: 16,
        channels: 3,
        hidden_size: 768,
        layers: 12,
        heads: 12,
        ffn_size: 3072,
        norm_eps: 1e-6,
        activation: Activation::GeluTanh,
        qkv_bias: true,
        class_token: false,
        layer_scale: false,
        post_norm: true,
        pixel_shuffle: 4,
        connector: Connector::Linear,
        output_size: 960,
        position_rule: PositionRule::Identity,
    };
    assert_eq!(spec.vision.as_ref(), Some(&expected));
    assert_eq!(expected.tokens_per_tile(), 64);
}

#[test]
fn internvl_reads_its_tower() {
    let spec = read(internvl3_1b()).unwrap();
    assert_eq!(spec.image_token_id, Some(151_667));
    assert_eq!(spec.decoder.rope.scaling, RopeScaling::None, "within the trained length nothing is stretched");
    let expected = VisionSpec {
        tower: VisionTower::InternVit,
        image_size: 448,
        patch_size: 14,
        channels: 3,
        hidden_size: 1024,
        layers: 24,
        heads: 16,
        ffn_size: 4096,
        norm_eps: 1e-6,
        activation: Activation::Gelu,
        qkv_bias: true,
        class_token: true,
        layer_scale: true,
        post_norm: false,
        pixel_shuffle: 2,
        connector: Connector::Mlp { norm_eps: 1e-5, activation: Activation::Gelu },
        output_size: 896,
        position_rule: PositionRule::Identity,
    };
    assert_eq!(spec.vision.as_ref(), Some(&expected));
    assert_eq!(expected.tokens_per_tile(), 256);
}

/// SmolVLM 256M and SmolVLM2 differ in numbers and names only.
#[test]
fn the_other_sizes_and_smolvlm2_are_read() {
    let text = json!({"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
                      "num_key_value_heads": 3, "num_hidden_layers": 30});
    let small = with_inner(smolvlm_500m(), "text_config", text);
    let spec = read(small.clone()).unwrap();
    assert_eq!((spec.decoder.layers, spec.vision.as_ref().unwrap().output_size), (30, 576));
    let second = with(small, json!({"model_type": "smolvlm"}));
    let second = with_inner(second, "vision_config", json!({"model_type": "smolvlm_vision"}));
    let second = read(second).unwrap();
    assert_eq!((second.name.as_str(), second.family.as_str()), ("smolvlm", "smolvlm"));
    assert_eq!((second.vision, second.decoder), (spec.vision, spec.decoder));
    // The 2.2B: 384 pixels are 27 patches of 14 and a rest.
    let change = json!({"hidden_size": 1152, "image_size": 384, "intermediate_size": 4304, "num_hidden_layers": 27,
                        "num_attention_heads": 16, "patch_size": 14});
    let large = with_inner(with(smolvlm_500m(), json!({"scale_factor": 3})), "vision_config", change);
    assert_eq!(vision(large).tokens_per_tile(), 81);
}

/// What transformers builds from a configuration that says nothing.
#[test]
fn empty_parts_have_the_defaults_of_their_classes() {
    let bare = json!({"model_type": "idefics3", "vision_config": {"image_size": 224, "patch_size": 14},
                      "text_config": {"vocab_size": 128260}});
    let spec = read(bare).unwrap();
    let (d, v) = (&spec.decoder, spec.vision.as_ref().unwrap());
    assert_eq!((d.hidden_size, d.layers, d.heads, d.kv_heads, d.ffn_size), (4096, 32, 32, 32, 11_008));
    assert_eq!((d.max_position, d.rope.theta, d.tied_embeddings), (2048, 1e4, false));
    assert_eq!((v.hidden_size, v.layers, v.heads, v.ffn_size, v.pixel_shuffle), (1152, 12, 16, 3072, 2));
    assert_eq!(spec.image_token_id, Some(128_257));

    let spec = read(json!({"model_type": "internvl"})).unwrap();
    let (d, v) = (&spec.decoder, spec.vision.as_ref().unwrap());
    assert_eq!((d.vocab_size, d.hidden_size, d.layers, d.kv_heads, d.ffn_size), (151_936, 4096, 32, 32, 22_016));
    assert!(d.qkv_bias && d.tied_embeddings, "InternVLConfig ties unless it says otherwise");
    assert_eq!((v.image_size, v.patch_size, v.hidden_size, v.layers, v.heads), (448, 14, 1024, 24, 16));
    assert!(!v.qkv_bias && !v.post_norm);
    assert_eq!(spec.image_token_id, Some(151_667));
}

#[test]
fn either_flag_ties_the_head() {
    for (outer, inner, tied) in [
        (json!(true), json!(false), true),
        (json!(false), json!(true), true),
        (json!(null), json!(null), false),
        (json!(false), json!(false), false),
    ] {
        let config = with(smolvlm_500m(), json!({"tie_word_embeddings": outer}));
        let config = with_inner(config, "text_config", json!({"tie_word_embeddings": inner}));
        assert_eq!(read(config).unwrap().decoder.tied_embeddings, tied);
    }
}

#[test]
fn other_text_models_and_spellings_are_read() {
    let qwen3 = json!({"model_type": "qwen3", "head_dim": 128});
    assert!(read(with_inner(internvl3_1b(), "text_config", qwen3)).unwrap().decoder.qk_norm);
    let mut older = with(internvl3_1b(), json!({"image_token_index": 151_666}));
    older.as_object_mut().unwrap().remove("image_token_id");
    assert_eq!(read(older).unwrap().image_token_id, Some(151_666));
    let third = with(internvl3_1b(), json!({"downsample_ratio": 1.0 / 3.0}));
    let third = with_inner(third, "vision_config", json!({"image_size": 420}));
    assert_eq!(vision(third).pixel_shuffle, 3);
    let newer = json!({"rope_scaling": null, "rope_theta": null,
                       "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000000.0}});
    assert_eq!(read(with_inner(internvl3_1b(), "text_config", newer)).unwrap(), read(internvl3_1b()).unwrap());
}

#[test]
fn a_specification_survives_the_manifest() {
    for config in [smolvlm_500m(), internvl3_1b()] {
        let spec = read(config).unwrap();
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<ModelSpec>(&text).unwrap(), spec);
    }
    let text = serde_json::to_string(&read(smollm2()).unwrap()).unwrap();
    assert!(!text.contains("vision") && !text.contains("image_token"), "text models are described as before: {text}");
}

#[test]
fn what_is_wrong_with_a_model_that_sees_is_named_with_its_value() {
    let smolvlm = |section: &str, change: Value| match section {
        "" => with(smolvlm_500m(), change),
        _ => with_inner(smolvlm_500m(), section, change),
    };
    let internvl = |section: &str, change: Value| match section {
        "" => with(internvl3_1b(), change),
        _ => with_inner(internvl3_1b(), section, change),
    };
    let cases = [
        (smolvlm("", json!({"scale_factor": 5})), "config.json: scale_factor: 32 patches a side"),
        (
            smolvlm("", json!({"image_token_id": 49_280})),
            "image_token_id: 49280 is not a token of a vocabulary of 49280",
        ),
        (smolvlm("", json!({"image_token_id": -1})), "image_token_id: -1"),
        (smolvlm("", json!({"text_config": 7})), "text_config: 7 is not an object"),
        (smolvlm("text_config", json!({"model_type": "mamba"})), "text_config.model_type: \"mamba\""),
        (smolvlm("text_config", json!({"num_attention_heads": 7})), "text_config."),
        (smolvlm("vision_config", json!({"hidden_size": 770})), "vision_config.hidden_size: 770 is not a multiple"),
        (smolvlm("vision_config", json!({"image_size": [512, 384]})), "vision_config.image_size: [512,384]"),
        (smolvlm("vision_config", json!({"image_size": 8192})), "vision_config.image_size: 8192 pixels"),
        (smolvlm("vision_config", json!({"patch_size": 1024})), "vision_config.patch_size: 1024 is larger"),
        (smolvlm("vision_config", json!({"num_channels": 4})), "vision_config.num_channels: 4 channels"),
        (smolvlm("vision_config", json!({"hidden_act": "relu"})), "vision_config.hidden_act: \"relu\""),
        (smolvlm("vision_config", json!({"num_hidden_layers": 5000})), "vision_config.num_hidden_layers: 5000"),
        (smolvlm("vision_config", json!({"layer_norm_eps": -1})), "vision_config.layer_norm_eps: -1"),
        (internvl("", json!({"downsample_ratio": 0.3})), "downsample_ratio: 0.3"),
        (internvl("", json!({"downsample_ratio": 0})), "downsample_ratio: 0"),
        (internvl("", json!({"downsample_ratio": 0.2})), "downsample_ratio: 32 patches a side"),
        (internvl("", json!({"vision_feature_layer": -2})), "vision_feature_layer: -2"),
        (internvl("", json!({"vision_feature_select_strategy": "full"})), "vision_feature_select_strategy: full"),
        (internvl("", json!({"projector_hidden_act": "relu"})), "projector_hidden_act: \"relu\""),
        (internvl("vision_config", json!({"use_qk_norm": true})), "vision_config.use_qk_norm: true is not supported"),
        (internvl("vision_config", json!({"norm_type": "rms_norm"})), "vision_config.norm_type: rms_norm"),
        (internvl("vision_config", json!({"use_mask_token": true})), "vision_config.use_mask_token: true"),
        (
            internvl("vision_config", json!({"use_absolute_position_embeddings": false})),
            "vision_config.use_absolute_position_embeddings: false",
        ),
    ];
    for (config, expected) in cases {
        let error = read(config).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected} is missing in: {error}");
    }
}

#[test]
fn the_original_internvl_layout_points_to_the_converted_one() {
    let error = read(json!({"model_type": "internvl_chat"})).unwrap_err().to_string();
    assert!(error.contains("internvl_chat") && error.contains("-hf"), "{error}");
    let error = read(json!({"model_type": "llava"})).unwrap_err().to_string();
    assert!(error.contains("smolvlm") && error.contains("internvl") && error.contains("gemma3_text"), "{error}");
}
