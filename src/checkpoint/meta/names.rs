//! Meta's tensor names to Hugging Face names.

/// The embedding table, in Hugging Face's words.
pub(super) const TABLE: &str = "model.embed_tokens.weight";
/// The output projection, in Hugging Face's words.
pub(super) const HEAD: &str = "lm_head.weight";

/// What a stored tensor is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The weight of this Hugging Face name.
    Weight(String),
    /// A buffer that follows from the configuration.
    Derived,
    /// Nothing that Meta's layout has.
    Unknown,
}

/// What the tensor of that name is. Checkpoints of training scripts keep the weights below `model`, and compiled modules put
/// `_orig_mod` in front of their names.
pub(super) fn meaning(stored: &str) -> Meaning {
    let mut name = stored;
    while let Some(inner) = name.strip_prefix("model.").or_else(|| name.strip_prefix("_orig_mod.")) {
        name = inner;
    }
    match name {
        "tok_embeddings.weight" => return Meaning::Weight(TABLE.into()),
        "norm.weight" => return Meaning::Weight("model.norm.weight".into()),
        "output.weight" => return Meaning::Weight(HEAD.into()),
        "rope.freqs" | "freqs_cis" | "freqs_cos" | "freqs_sin" => return Meaning::Derived,
        _ => {}
    }
    match layer_weight(name) {
        Some(weight) => Meaning::Weight(weight),
        None => Meaning::Unknown,
    }
}

fn layer_weight(name: &str) -> Option<String> {
    let (layer, module) = name.strip_prefix("layers.")?.split_once('.')?;
    let is_number = !layer.is_empty() && layer.bytes().all(|b| b.is_ascii_digit());
    let module = match module.strip_suffix(".weight")? {
        "attention.wq" => "self_attn.q_proj",
        "attention.wk" => "self_attn.k_proj",
        "attention.wv" => "self_attn.v_proj",
        "attention.wo" => "self_attn.o_proj",
        "attention_norm" => "input_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "feed_forward.w1" => "mlp.gate_proj",
        "feed_forward.w2" => "mlp.down_proj",
        "feed_forward.w3" => "mlp.up_proj",
        _ => return None,
    };
    is_number.then(|| format!("model.layers.{layer}.{module}.weight"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_has_its_counterpart() {
        let weights = [
            ("tok_embeddings.weight", "model.embed_tokens.weight"),
            ("norm.weight", "model.norm.weight"),
            ("output.weight", "lm_head.weight"),
            ("layers.0.attention.wq.weight", "model.layers.0.self_attn.q_proj.weight"),
            ("layers.0.attention.wk.weight", "model.layers.0.self_attn.k_proj.weight"),
            ("layers.0.attention.wv.weight", "model.layers.0.self_attn.v_proj.weight"),
            ("layers.0.attention.wo.weight", "model.layers.0.self_attn.o_proj.weight"),
            ("layers.12.attention_norm.weight", "model.layers.12.input_layernorm.weight"),
            ("layers.12.ffn_norm.weight", "model.layers.12.post_attention_layernorm.weight"),
            ("layers.12.feed_forward.w1.weight", "model.layers.12.mlp.gate_proj.weight"),
            ("layers.12.feed_forward.w2.weight", "model.layers.12.mlp.down_proj.weight"),
            ("layers.12.feed_forward.w3.weight", "model.layers.12.mlp.up_proj.weight"),
        ];
        for (stored, expected) in weights {
            for prefix in ["", "model.", "_orig_mod.", "model._orig_mod.", "_orig_mod.model."] {
                assert_eq!(meaning(&format!("{prefix}{stored}")), Meaning::Weight(expected.into()), "{prefix}{stored}");
            }
        }
    }

    #[test]
    fn buffers_are_left_out_and_other_names_unknown() {
        assert_eq!(meaning("rope.freqs"), Meaning::Derived);
        assert_eq!(meaning("_orig_mod.freqs_cos"), Meaning::Derived);
        for name in
            ["layers.x.attention.wq.weight", "layers.0.attention.wq.bias", "model.layers.0.self_attn.q_proj.weight", ""]
        {
            assert_eq!(meaning(name), Meaning::Unknown, "{name}");
        }
    }
}
