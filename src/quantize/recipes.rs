//! Upstream's recipes, by the names of the models they were made for.
//!
//! Patterns are written for upstream's module paths (`layers.0.feed_forward.w2_conv`); [`upstream_name`] translates the names of
//! checkpoints.

use super::dtype::QuantDtype::{self, A8W4, A16W4, A16W4Block, A16W8};
use super::dtype::WeightGranularity::{PerBlock, PerChannel};
use super::recipe::{Recipe, Rule};
use crate::error::{Error, Result};

/// A line of the table. Projections without an override get 4-bit blocks of `block` inputs, or per-channel weights of the
/// default if there are none.
struct Line {
    model: &'static str,
    default: QuantDtype,
    block: Option<usize>,
    /// Patterns of layers with 8-bit weights per channel.
    wide: &'static [&'static str],
    /// Pattern of layers with 8-bit symmetric activations and 4-bit weights per channel.
    narrow_activations: Option<&'static str>,
    kv8: bool,
}

const HEAD: &str = r"output\.conv";

const fn line(model: &'static str, default: QuantDtype, block: Option<usize>, wide: &'static [&'static str]) -> Line {
    Line { model, default, block, wide, narrow_activations: None, kv8: true }
}

const fn without_kv8(line: Line) -> Line {
    Line { kv8: false, ..line }
}

const fn with_narrow(line: Line, pattern: &'static str) -> Line {
    Line { narrow_activations: Some(pattern), ..line }
}

static TABLE: [Line; 21] = [
    line("stories260k", A16W4, None, &[HEAD]),
    with_narrow(line("stories110m", A16W4, None, &[HEAD]), "wv"),
    line("llama3_2-1b_instruct", A16W4Block, Some(32), &[HEAD, r"layers\.[0-3]\..*w2_conv"]),
    line("llama3_2-3b_instruct", A16W4Block, Some(32), &[HEAD, r"layers\.2[1-7]\..*w2_conv"]),
    without_kv8(line("codegen2_1b", A16W8, None, &[])),
    line("gemma-2b", A16W4, Some(64), &["wv", HEAD]),
    line("gemma2-2b", A16W4, Some(32), &["wv"]),
    line("gemma3-1b", A16W4, Some(64), &["wv"]),
    without_kv8(line("gemma4-e2b", A16W8, Some(64), &[])),
    line("glm-1_5b", A16W4, Some(32), &[HEAD]),
    line("granite_3_3-2b_instruct", A16W4, Some(64), &["wv"]),
    without_kv8(line("granite_speech_3_3-2b", A16W4, Some(64), &["wv", "w3_conv", "w2_conv", HEAD])),
    with_narrow(line("phi_4_mini", A16W4, Some(16), &[HEAD]), "wv"),
    without_kv8(line("qwen2_5-0_5b", A16W4, Some(16), &[])),
    without_kv8(line("qwen2_5-1_5b", A16W4, Some(16), &[HEAD])),
    without_kv8(line("qwen3-0_6b", A16W4, Some(32), &["w2_conv"])),
    line("qwen3-1_7b", A16W4, Some(16), &[HEAD]),
    without_kv8(line("smollm2_135m", A16W8, None, &[])),
    line("smollm3-3b", A16W4, Some(32), &["wq", "wk", "wv", HEAD]),
    without_kv8(line("internvl3_1b", A16W8, None, &[])),
    without_kv8(line("smolvlm_500m_instruct", A16W8, None, &[])),
];

impl Recipe {
    /// Upstream's recipe for the decoder of a model.
    ///
    /// # Errors
    /// [`Error::NotFound`] that lists the models there are.
    pub fn of_model(model: &str) -> Result<Self> {
        let line = TABLE.iter().find(|line| line.model == model).ok_or_else(|| {
            let known = TABLE.iter().map(|line| line.model).collect::<Vec<_>>().join(", ");
            Error::NotFound(format!("there is no recipe for {model:?}; there are: {known}"))
        })?;
        let mut recipe = Recipe::new(line.default);
        recipe.set_kv8(line.kv8);
        recipe.add(match line.block {
            Some(size) => Rule::for_linear(A16W4Block, PerBlock(size)),
            None => Rule::for_linear(line.default, PerChannel),
        })?;
        for pattern in line.wide {
            recipe.add(Rule::for_name(pattern, A16W8, PerChannel))?;
        }
        if let Some(pattern) = line.narrow_activations {
            let rule = Rule::for_name(pattern, A8W4, PerChannel);
            recipe.add(Rule { symmetric_activations: true, ..rule })?;
        }
        Ok(recipe)
    }
}

/// The module path upstream has for a checkpoint's layer, e.g. `layers.3.feed_forward.w2_conv` for
/// `model.layers.3.mlp.down_proj`; `None` for layers it has no name for.
pub fn upstream_name(layer: &str) -> Option<String> {
    let layer = layer.strip_suffix(".weight").unwrap_or(layer);
    let layer = ["model.text_model.", "language_model.model.", "model.language_model.", "model."]
        .iter()
        .find_map(|prefix| layer.strip_prefix(prefix))
        .unwrap_or(layer);
    match layer {
        "embed_tokens" => return Some("tok_embeddings".into()),
        "lm_head" | "language_model.lm_head" => return Some("output.conv".into()),
        _ => {}
    }
    let (index, rest) = layer.strip_prefix("layers.")?.split_once('.')?;
    let upstream = match rest {
        "self_attn.q_proj" => "attention.wq_conv",
        "self_attn.k_proj" => "attention.wk_conv",
        "self_attn.v_proj" => "attention.wv_conv",
        "self_attn.o_proj" => "attention.wo_conv",
        "mlp.gate_proj" => "feed_forward.w1_conv",
        "mlp.down_proj" => "feed_forward.w2_conv",
        "mlp.up_proj" => "feed_forward.w3_conv",
        _ => return None,
    };
    Some(format!("layers.{index}.{upstream}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::{LayerKind, WeightGranularity};
    use crate::registry;

    /// What a projection of a checkpoint gets.
    fn plan(model: &str, layer: &str) -> (QuantDtype, WeightGranularity) {
        let recipe = Recipe::of_model(model).expect("in the table");
        let upstream = upstream_name(layer).expect("a layer upstream has");
        let plan = recipe.plan(&[layer, &upstream], LayerKind::Linear);
        (plan.dtype, plan.granularity)
    }

    #[test]
    fn lines_of_the_contract() {
        let (down, head) = ("model.layers.2.mlp.down_proj.weight", "lm_head.weight");
        assert_eq!(plan("llama3_2-1b_instruct", down), (A16W8, PerChannel));
        assert_eq!(plan("llama3_2-1b_instruct", "model.layers.4.mlp.down_proj.weight"), (A16W4Block, PerBlock(32)));
        assert_eq!(plan("llama3_2-3b_instruct", "model.layers.21.mlp.down_proj.weight"), (A16W8, PerChannel));
        assert_eq!(plan("llama3_2-3b_instruct", down), (A16W4Block, PerBlock(32)));
        assert_eq!(plan("qwen2_5-0_5b", head), (A16W4Block, PerBlock(16)));
        assert_eq!(plan("qwen2_5-1_5b", head), (A16W8, PerChannel));
        assert_eq!(plan("smollm2_135m", head), (A16W8, PerChannel));
        assert_eq!(plan("stories260k", down), (A16W4, PerChannel));
        let value = "model.layers.0.self_attn.v_proj.weight";
        assert_eq!(plan("phi_4_mini", value), (A8W4, PerChannel));
        assert_eq!(plan("gemma2-2b", value), (A16W8, PerChannel));
        assert_eq!(plan("smollm3-3b", "model.layers.0.self_attn.o_proj.weight"), (A16W4Block, PerBlock(32)));
        let bits = |model| Recipe::of_model(model).unwrap().kv_bits();
        assert_eq!((bits("llama3_2-1b_instruct"), bits("smollm2_135m"), bits("granite_speech_3_3-2b")), (8, 16, 16));
    }

    #[test]
    fn every_model_of_the_registry_has_a_recipe() {
        for entry in registry::entries() {
            assert!(Recipe::of_model(entry.name).is_ok(), "{}", entry.name);
        }
        let error = Recipe::of_model("gpt2").unwrap_err().to_string();
        assert!(error.contains("\"gpt2\"") && error.contains("smollm2_135m"), "{error}");
    }

    #[test]
    fn names_of_every_kind_of_checkpoint_are_translated() {
        for (layer, upstream) in [
            ("model.layers.11.self_attn.q_proj.weight", Some("layers.11.attention.wq_conv")),
            ("model.text_model.layers.0.mlp.gate_proj.weight", Some("layers.0.feed_forward.w1_conv")),
            ("language_model.model.layers.7.mlp.up_proj", Some("layers.7.feed_forward.w3_conv")),
            ("model.embed_tokens.weight", Some("tok_embeddings")),
            ("language_model.lm_head.weight", Some("output.conv")),
            ("model.norm.weight", None),
        ] {
            assert_eq!(upstream_name(layer).as_deref(), upstream, "{layer}");
        }
    }
}
