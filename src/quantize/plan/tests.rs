use super::*;
use crate::models::{DecoderForm, build_decoder_form, build_vision_encoder};
use crate::quantize::Rule;
use crate::registry::ModelSpec;
use serde_json::json;

fn decoder(name: &str, past: usize, ar: usize) -> Graph {
    let config = json!({
        "model_type": "qwen2", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 12, "vocab_size": 32,
        "max_position_embeddings": 64, "tie_word_embeddings": true
    });
    let spec = ModelSpec::from_config(config.as_object().unwrap()).unwrap().decoder;
    let form = DecoderForm { separate_head: true, ..DecoderForm::default() };
    build_decoder_form(&spec, form, name, 16, (past, ar)).unwrap()
}

fn recipe(kv8: bool) -> Recipe {
    let mut recipe = Recipe::new(QuantDtype::A16W4);
    recipe.add(Rule::for_linear(QuantDtype::A16W4Block, WeightGranularity::PerBlock(4))).unwrap();
    recipe.add(Rule::for_name(r"output\.conv", QuantDtype::A16W8, WeightGranularity::PerChannel)).unwrap();
    recipe.set_kv8(kv8);
    recipe
}

const WIDE: ActivationSpec = ActivationSpec { bits: 16, symmetric: false };
const CACHE_8: ActivationSpec = ActivationSpec { bits: 8, symmetric: true };

#[test]
fn a_cache_its_new_columns_and_both_together_share_a_grid_in_every_graph() {
    for (kv8, spec) in [(false, WIDE), (true, CACHE_8)] {
        for (name, past, ar) in [("forward", 0, 5), ("kv_forward", 15, 1), ("prefill_forward", 11, 5)] {
            let graph = decoder(name, past, ar);
            let plan = GraphPlan::new(&graph, &recipe(kv8)).unwrap();
            for layer in 0..2 {
                for (which, first) in
                    [("k", format!("layers.{layer}.attention.k_rope")), ("v", format!("layers.{layer}.attention.wv"))]
                {
                    let cache = plan.slot_of(&graph, &format!("{which}_cache_{layer}")).unwrap();
                    assert_eq!((cache.name.as_str(), cache.spec), (first.as_str(), spec));
                    assert_eq!(plan.slot_of(&graph, &format!("{which}_out_{layer}")), Some(cache));
                    let both = format!("layers.{layer}.attention.{which}_concat");
                    assert_eq!(plan.slot_of(&graph, &both), Some(cache));
                }
            }
            // With an 8-bit cache the products read it as it is; otherwise they store it again, signed.
            let again = plan.consumed.values().map(|&slot| &plan.slots[slot]).collect::<Vec<_>>();
            assert_eq!(again.len(), if kv8 { 0 } else { 4 });
            assert!(again.iter().all(|slot| slot.spec == ActivationSpec { bits: 16, symmetric: true }));
        }
    }
}

#[test]
fn weights_become_what_the_recipe_and_their_operator_say() {
    let graph = decoder("forward", 0, 5);
    let plan = GraphPlan::new(&graph, &recipe(false)).unwrap();
    let weight = |name: &str| {
        let at = graph.values.iter().position(|value| value.info.name == name).unwrap();
        plan.weights[&at]
    };
    let matrix = |name: &str| match weight(name) {
        WeightPlan::Matrix(layer) => (layer.dtype, layer.granularity),
        other => panic!("{name} is {other:?}"),
    };
    assert_eq!(matrix("layers.1.feed_forward.w2.weight"), (QuantDtype::A16W4Block, WeightGranularity::PerBlock(4)));
    assert_eq!(matrix("output.weight"), (QuantDtype::A16W8, WeightGranularity::PerChannel));
    assert_eq!(weight("tok_embeddings.weight"), WeightPlan::Table(WIDE));
    assert_eq!(weight("layers.0.attention_norm.weight"), WeightPlan::Constant(WIDE));
    assert_eq!(weight("rope.cos"), WeightPlan::Constant(WIDE));
    let WeightPlan::Bias { matrix, input } = weight("layers.0.attention.wq.bias") else { panic!("a bias") };
    assert_eq!(graph.values[matrix].info.name, "layers.0.attention.wq.weight");
    assert_eq!(plan.slots[input].name, "layers.0.attention_norm");
    assert_eq!(plan.layers.len(), 2 * 7 + 2);
}

#[test]
fn what_goes_into_a_softmax_and_masks_have_ranges_of_their_own() {
    let graph = decoder("forward", 0, 5);
    let plan = GraphPlan::new(&graph, &recipe(false)).unwrap();
    let slot = |name: &str| plan.slot_of(&graph, name).unwrap();
    assert_eq!(slot("layers.0.attention.mask").range, RangeRule::ObservedScores(ObserverKind::MinMax));
    let RangeRule::Fixed(mask) = slot("attention_mask").range else { panic!("fixed") };
    assert_eq!((mask.quantize(BLOCKED), mask.quantize(0.0)), (0, 65535));
    assert!(matches!(slot("tok_embeddings").range, RangeRule::OfTable(_)));
    assert_eq!(plan.slot_of(&graph, "tokens"), None);
}

#[test]
fn narrow_activations_of_a_layer_are_stored_again_for_it() {
    let mut recipe = recipe(false);
    let rule = Rule::for_name(r"wv", QuantDtype::A8W4, WeightGranularity::PerChannel);
    recipe.add(Rule { symmetric_activations: true, ..rule }).unwrap();
    let graph = decoder("forward", 0, 5);
    let plan = GraphPlan::new(&graph, &recipe).unwrap();
    let again = plan.consumed.values().map(|&slot| &plan.slots[slot]).find(|slot| slot.name.contains("0.attention.wv"));
    assert_eq!(again.unwrap().name, "layers.0.attention.wv#0");
    assert_eq!(again.unwrap().spec, CACHE_8);
    assert_eq!(plan.slot_of(&graph, "v_out_0").unwrap().spec, CACHE_8);
    assert_eq!(plan.slot_of(&graph, "layers.0.attention_norm").unwrap().spec, WIDE, "queries and keys keep 16 bits");
}

#[test]
fn block_sizes_that_do_not_divide_and_tied_tables_are_named() {
    let mut blocks = Recipe::new(QuantDtype::A16W4);
    blocks.add(Rule::for_linear(QuantDtype::A16W4Block, WeightGranularity::PerBlock(8))).unwrap();
    let error = GraphPlan::new(&decoder("forward", 0, 5), &blocks).unwrap_err().to_string();
    assert!(
        error.contains("layers.0.feed_forward.w2") && error.contains("blocks of 8") && error.contains("12"),
        "{error}"
    );
    let spec = ModelSpec::from_config(
        json!({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 32, "max_position_embeddings": 64,
        "tie_word_embeddings": true})
        .as_object()
        .unwrap(),
    );
    let tied = build_decoder_form(&spec.unwrap().decoder, DecoderForm::default(), "forward", 16, (0, 5)).unwrap();
    let error = GraphPlan::new(&tied, &recipe(false)).unwrap_err().to_string();
    assert!(error.contains("tok_embeddings.weight") && error.contains("separate head"), "{error}");
}

/// The class token stands beside computed patches, so it is on their grid.
#[test]
fn encoders_are_planned_too() {
    let config = include_str!("../../../tests/fixtures/tiny/internvl3/config.json");
    let config: serde_json::Value = serde_json::from_str(config).unwrap();
    let spec = ModelSpec::from_config(config.as_object().unwrap()).unwrap();
    let graph = build_vision_encoder(&spec.vision.unwrap()).unwrap();
    let plan = GraphPlan::new(&graph, &Recipe::new(QuantDtype::A16W8)).unwrap();
    let on_slot = plan.weights.values().filter(|plan| matches!(plan, WeightPlan::OnSlot(_))).count();
    assert_eq!(on_slot, 1);
    assert!(plan.weights.values().any(|plan| *plan == WeightPlan::LooseBias));
    assert!(plan.slot_of(&graph, "pixel_values").is_some());
}
