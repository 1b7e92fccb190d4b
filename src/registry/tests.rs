//! Registry and configuration, against published configurations and damaged ones.

use super::*;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::path::Path;

mod vision;

#[test]
fn names_are_unique_and_found_in_any_case() {
    let names: HashSet<_> = entries().iter().map(|e| e.name.to_ascii_lowercase()).collect();
    assert_eq!(names.len(), 21);
    assert_eq!(find("SmolLM2_135M").unwrap().name, "smollm2_135m");
    assert_eq!(find("GEMMA3-1B").unwrap().decoder.layers, 26);
}

#[test]
fn an_unknown_name_lists_all() {
    let error = find("gpt2").unwrap_err().to_string();
    for entry in entries() {
        assert!(error.contains(entry.name), "{error}");
    }
}

#[test]
fn sizes_are_consistent() {
    for entry in entries() {
        let d = &entry.decoder;
        assert!([d.dim, d.layers, d.heads, d.kv_heads, d.head_dim, d.ffn, d.vocab].iter().all(|&n| n > 0));
        assert_eq!(d.heads % d.kv_heads, 0, "{}", entry.name);
        assert!(!entry.prompt_format.is_empty() && entry.shards > 0, "{}", entry.name);
    }
}

#[test]
fn the_required_families_are_runnable_and_the_rest_say_why_not() {
    let required = [
        "llama3_2-1b_instruct",
        "smollm2_135m",
        "qwen2_5-0_5b",
        "qwen3-0_6b",
        "gemma3-1b",
        "smolvlm_500m_instruct",
        "internvl3_1b",
    ];
    for name in required {
        assert_eq!(find(name).unwrap().runnable, Runnable::Yes, "{name}");
    }
    for entry in entries() {
        if let Runnable::NotYet { why } = entry.runnable {
            assert!(why.len() > 10, "{}", entry.name);
        }
    }
}

fn read(config: Value) -> Result<ModelSpec> {
    let Value::Object(config) = config else { panic!("{config} is no object") };
    ModelSpec::from_config(&config)
}

/// `config` with the fields of `change` replaced.
fn with(mut config: Value, change: Value) -> Value {
    if let (Value::Object(config), Value::Object(change)) = (&mut config, change) {
        config.extend(change);
    }
    config
}

fn smollm2() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "rope_theta": 100000,
        "rope_scaling": null, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "hidden_act": "silu",
        "tie_word_embeddings": true
    })
}

fn gemma3() -> Value {
    json!({
        "model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 26, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 6912, "vocab_size": 262144,
        "query_pre_attn_scalar": 256, "rope_theta": 1000000, "rope_local_base_freq": 10000, "rope_scaling": null,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512, "sliding_window_pattern": 6, "attn_logit_softcapping": null
    })
}

fn qwen3() -> Value {
    json!({
        "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
        "rope_theta": 1000000, "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "hidden_act": "silu",
        "tie_word_embeddings": true, "sliding_window": null, "use_sliding_window": false, "max_window_layers": 28
    })
}

/// What the configuration says is what the registry says, under the registry's name.
fn assert_published(config: Value, name: &str) {
    let spec = read(config).unwrap();
    let entry = find(name).unwrap();
    assert_eq!((spec.name.as_str(), spec.family.as_str()), (entry.name, entry.family));
    let (d, e) = (&spec.decoder, &entry.decoder);
    assert_eq!((d.norm_eps, d.activation), (e.norm_eps, e.activation), "{name}");
    assert_eq!(
        (d.qkv_bias, d.qk_norm, d.post_norms, d.norm_plus_one),
        (e.qkv_bias, e.qk_norm, e.post_norms, e.norm_plus_one)
    );
    assert_eq!((d.attention_softcap, d.logits_softcap), (e.attention_softcap, e.logits_softcap), "{name}");
    assert_eq!((d.embedding_multiplier, d.logits_divisor), (e.embedding_multiplier, e.logits_divisor), "{name}");
    let attention = e.attention_multiplier.unwrap_or(1.0 / (e.head_dim as f32).sqrt());
    assert_eq!((d.attention_multiplier, d.residual_multiplier), (attention, e.residual_multiplier), "{name}");
    let rotary_dim = (e.head_dim as f64 * e.rotary_fraction) as usize;
    assert_eq!((d.rope.rotary_dim, d.rope.interleaved), (rotary_dim, e.rope_interleaved), "{name}");
    for (layer, kind) in d.layer_kinds.iter().enumerate() {
        let expected = match e.layer_pattern {
            LayerPattern::SlidingExceptEvery { period, .. } if (layer + 1) % period != 0 => LayerKind::Sliding,
            LayerPattern::NoRopeEvery { period } if (layer + 1) % period == 0 => LayerKind::FullNoRope,
            _ => LayerKind::Full,
        };
        assert_eq!(*kind, expected, "{name} layer {layer}");
    }
}

#[test]
fn published_configurations_are_recognised() {
    assert_published(smollm2(), "smollm2_135m");
    assert_published(gemma3(), "gemma3-1b");
    assert_published(qwen3(), "qwen3-0_6b");
    let llama = json!({
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 8192, "vocab_size": 128256, "rope_theta": 500000.0, "max_position_embeddings": 131072,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"}
    });
    assert_published(with(smollm2(), llama), "llama3_2-1b_instruct");
    let qwen2 = json!({
        "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6, "sliding_window": 32768, "use_sliding_window": false, "max_window_layers": 24
    });
    assert_published(with(smollm2(), qwen2), "qwen2_5-0_5b");
    let granite = json!({
        "model_type": "granite", "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 49159, "rope_theta": 10000000.0,
        "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "logits_scaling": 8.0
    });
    assert_published(with(smollm2(), granite), "granite_3_3-2b_instruct");
    let gemma2 = json!({
        "model_type": "gemma2", "hidden_size": 2304, "num_key_value_heads": 4, "num_attention_heads": 8,
        "intermediate_size": 9216, "vocab_size": 256000, "rope_theta": 10000.0, "max_position_embeddings": 8192,
        "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0
    });
    assert_published(with(gemma3(), gemma2), "gemma2-2b");
    let gemma = json!({
        "model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 8,
        "intermediate_size": 16384, "vocab_size": 256000, "rope_theta": 10000.0, "hidden_activation": null,
        "hidden_act": "gelu"
    });
    assert_published(with(gemma3(), gemma), "gemma-2b");
    let smollm3 = json!({
        "model_type": "smollm3", "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 4, "intermediate_size": 11008, "vocab_size": 128256, "rope_theta": 5000000.0,
        "rms_norm_eps": 1e-6, "no_rope_layer_interval": 4
    });
    assert_published(with(smollm2(), smollm3), "smollm3-3b");
    let phi = json!({
        "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 24,
        "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 200064, "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
        "sliding_window": 262144,
        "rope_scaling": {"type": "longrope", "short_factor": vec![1.0; 48], "long_factor": vec![2.0; 48]}
    });
    assert_published(with(smollm2(), phi.clone()), "phi_4_mini");
    let RopeScaling::LongRope { attention_factor, .. } = read(with(smollm2(), phi)).unwrap().decoder.rope.scaling
    else {
        panic!("not longrope");
    };
    assert!((attention_factor - 1.19024).abs() < 1e-5, "{attention_factor}");
    let glm = json!({
        "model_type": "glm", "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 59264,
        "rope_theta": 10000.0, "partial_rotary_factor": 1.0
    });
    assert_published(with(smollm2(), glm), "glm-1_5b");
}

#[test]
fn every_fixture_is_read() {
    let families = [
        "llama",
        "smollm2",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3",
        "granite",
        "phi4mini",
        "glm",
        "glm_edge",
        "smollm3",
        "smolvlm",
        "internvl3",
    ];
    for family in families {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny").join(family).join("config.json");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let spec = read(serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(spec.decoder.hidden_size, 64, "{family}");
        assert!(entries().iter().all(|entry| entry.name != spec.name), "{family} is no published model");
    }
}

#[test]
fn new_spellings_mean_the_same_as_old_ones() {
    let mut newer = gemma3();
    let Value::Object(fields) = &mut newer else { unreachable!() };
    for old in ["rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern"] {
        fields.remove(old);
    }
    let kinds: Vec<_> = (1..=26).map(|n| if n % 6 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    let newer = with(
        newer,
        json!({
            "layer_types": kinds,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}
            }
        }),
    );
    assert_eq!(read(newer).unwrap(), read(gemma3()).unwrap());

    let flat = json!({"rope_theta": null, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}});
    assert_eq!(read(with(smollm2(), flat)).unwrap(), read(smollm2()).unwrap());
}

#[test]
fn a_multimodal_gemma3_uses_its_text_part_and_the_defaults_it_leaves_out() {
    let config = json!({
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}
        },
        "vision_config": {"hidden_size": 1152}
    });
    let decoder = read(config).unwrap().decoder;
    assert_eq!((decoder.heads, decoder.kv_heads, decoder.head_dim, decoder.vocab_size), (8, 4, 256, 262_208));
    assert_eq!(decoder.rope.scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(decoder.local_rope.unwrap().scaling, RopeScaling::None);
    assert_eq!(decoder.layer_kinds.iter().filter(|&&kind| kind == LayerKind::Full).count(), 5);
}

#[test]
fn divisors_from_gguf_are_read_at_both_places() {
    let factors = vec![1.5; 32];
    let inside = json!({"rope_scaling": {"rope_type": "freq_factors", "rope_freq_factors": factors}});
    let beside = json!({"rope_scaling": {"rope_type": "freq_factors"}, "rope_freq_factors": factors});
    for change in [inside, beside] {
        let decoder = read(with(smollm2(), change)).unwrap().decoder;
        assert_eq!(decoder.rope.scaling, RopeScaling::FreqFactors { factors: factors.clone() });
    }
}

/// The error of the SmolLM2 configuration with one field changed.
fn refusal(field: &str, value: Value) -> String {
    read(with(smollm2(), json!({ field: value }))).unwrap_err().to_string()
}

#[test]
fn an_unknown_type_lists_the_known_ones() {
    let error = refusal("model_type", json!("mamba"));
    assert!(error.contains("\"mamba\"") && error.contains("qwen3") && error.contains("gemma3_text"), "{error}");
    let error = refusal("model_type", json!(7));
    assert!(error.contains("config.json: model_type: 7"), "{error}");
}

#[test]
fn missing_ill_typed_and_absurd_fields_are_named_with_their_value() {
    let cases = [
        ("hidden_size", json!(null), "hidden_size: missing"),
        ("vocab_size", json!("many"), "vocab_size: \"many\""),
        ("num_attention_heads", json!(0), "num_attention_heads: 0"),
        ("num_attention_heads", json!(-9), "num_attention_heads: -9"),
        ("num_attention_heads", json!(9.5), "num_attention_heads: 9.5"),
        ("num_attention_heads", json!(10), "head_dim: missing, and hidden_size 576 is not a multiple of 10 heads"),
        ("num_key_value_heads", json!(4), "num_attention_heads: 9 is not a multiple of num_key_value_heads 4"),
        ("head_dim", json!(63), "head_dim: 63 is odd"),
        ("intermediate_size", json!(u64::MAX), "intermediate_size: 18446744073709551615"),
        ("num_hidden_layers", json!(1001), "num_hidden_layers: 1001 layers"),
        ("rms_norm_eps", json!(-1.0), "rms_norm_eps: -1"),
        ("rope_theta", json!(0), "rope_theta: 0"),
        ("hidden_act", json!("relu"), "hidden_act: \"relu\""),
        ("tie_word_embeddings", json!(1), "tie_word_embeddings: 1 is neither"),
        ("partial_rotary_factor", json!(1.5), "partial_rotary_factor: 1.5"),
        ("rope_scaling", json!("linear"), "rope_scaling: \"linear\" is not an object"),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 0.0}), "rope_scaling.factor: 0"),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0}), "rope_scaling.rope_type: \"yarn\""),
        ("rope_scaling", json!({"rope_type": "llama3", "factor": 4.0}), "rope_scaling.low_freq_factor: missing"),
        ("rope_scaling", json!({"rope_type": "freq_factors", "rope_freq_factors": [1.0]}), "rope_freq_factors: 1 div"),
        ("mlp_bias", json!(true), "mlp_bias: true"),
    ];
    for (field, value, expected) in cases {
        let error = refusal(field, value);
        assert!(error.contains(expected), "{expected} is missing in: {error}");
    }
    let window = with(qwen3(), json!({"layer_types": ["full_attention"]}));
    assert!(read(window).unwrap_err().to_string().contains("layer_types: 1 entries for 28 layers"));
    let chunked = with(qwen3(), json!({"layer_types": vec!["chunked_attention"; 28]}));
    assert!(read(chunked).unwrap_err().to_string().contains("chunked_attention"));
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u64..200).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z_]{0,12}".prop_map(Value::from),
        Just(json!({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [0.0]})),
    ];
    prop_oneof![leaf.clone(), proptest::collection::vec(leaf, 0..4).prop_map(Value::from)]
}

proptest! {
    /// Whatever a configuration holds, the answer is a valid specification or an error.
    #[test]
    fn hostile_configurations_do_not_panic(
        base in prop_oneof![
            Just(smollm2()), Just(gemma3()), Just(qwen3()), Just(vision::smolvlm_500m()), Just(vision::internvl3_1b()),
        ],
        model_type in proptest::sample::select(vec![
            "llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "granite", "phi3", "smollm3", "glm",
            "idefics3", "smolvlm", "internvl",
        ]),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any_value()), 1..4),
    ) {
        let mut config: Map<String, Value> = base.as_object().unwrap().clone();
        let names: Vec<String> = config.keys().cloned().collect();
        for (index, value) in changes {
            config.insert(names[index.index(names.len())].clone(), value);
        }
        config.insert("model_type".into(), model_type.into());
        if let Ok(spec) = ModelSpec::from_config(&config) {
            spec.decoder.validate().unwrap();
            spec.vision.iter().for_each(|vision| vision.validate().unwrap());
        }
    }
}
