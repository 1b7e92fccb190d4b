//! GGUF tensor names to Hugging Face names, and what has to be undone while reading.

use super::architecture::Architecture;

/// Tensors that hold rotary factors: they become part of the configuration.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";
pub(super) const ROPE_FACTORS_SHORT: &str = "rope_factors_short.weight";
pub(super) const ROPE_FACTORS_LONG: &str = "rope_factors_long.weight";

/// The Hugging Face name of a GGUF tensor; `None` for one that has no counterpart.
pub(super) fn hugging_face_name(architecture: Architecture, gguf: &str) -> Option<String> {
    match gguf {
        "token_embd.weight" => return Some("model.embed_tokens.weight".into()),
        "output_norm.weight" => return Some("model.norm.weight".into()),
        "output.weight" => return Some("lm_head.weight".into()),
        "output.bias" => return Some("lm_head.bias".into()),
        _ => {}
    }
    let (layer, rest) = gguf.strip_prefix("blk.")?.split_once('.')?;
    let (module, parameter) = rest.split_once('.')?;
    let is_layer_number = !layer.is_empty() && layer.bytes().all(|b| b.is_ascii_digit());
    if !is_layer_number || !matches!(parameter, "weight" | "bias") {
        return None;
    }
    let module = layer_module(architecture, module)?;
    Some(format!("model.layers.{layer}.{module}.{parameter}"))
}

fn layer_module(architecture: Architecture, gguf: &str) -> Option<&'static str> {
    Some(match gguf {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_qkv" => "self_attn.qkv_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" if architecture.fuses_gate_up() => "mlp.gate_up_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        // In front of the MLP. Gemma 2 and 3 call the norm *after* attention what others call the one before the MLP.
        "ffn_norm" if architecture.is_gemma() && architecture.has_post_norms() => "pre_feedforward_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "post_attention_norm" if architecture == Architecture::Glm4 => "post_self_attn_layernorm",
        "post_attention_norm" if architecture.has_post_norms() => "post_attention_layernorm",
        "post_ffw_norm" if architecture == Architecture::Glm4 => "post_mlp_layernorm",
        "post_ffw_norm" if architecture.has_post_norms() => "post_feedforward_layernorm",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Architecture::*;

    #[test]
    fn norms_around_the_mlp_are_named_as_each_family_names_them() {
        let name = |architecture, gguf| hugging_face_name(architecture, gguf);
        let cases = [
            (Llama, "blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
            (Gemma, "blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
            (Gemma3, "blk.3.ffn_norm.weight", "model.layers.3.pre_feedforward_layernorm.weight"),
            (Gemma3, "blk.3.post_attention_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
            (Gemma2, "blk.3.post_ffw_norm.weight", "model.layers.3.post_feedforward_layernorm.weight"),
            (Glm4, "blk.3.post_attention_norm.weight", "model.layers.3.post_self_attn_layernorm.weight"),
            (Glm4, "blk.3.ffn_up.weight", "model.layers.3.mlp.gate_up_proj.weight"),
            (Qwen2, "blk.10.attn_q.bias", "model.layers.10.self_attn.q_proj.bias"),
            (Phi3, "blk.0.attn_qkv.weight", "model.layers.0.self_attn.qkv_proj.weight"),
            (Llama, "output.weight", "lm_head.weight"),
        ];
        for (architecture, gguf, expected) in cases {
            assert_eq!(name(architecture, gguf).as_deref(), Some(expected), "{gguf}");
        }
    }

    #[test]
    fn what_has_no_counterpart_has_no_name() {
        for gguf in ["blk.0.ffn_gate_exps.weight", "blk.x.attn_q.weight", "blk..attn_q.weight", "blk.0.attn_q.scale"] {
            assert_eq!(hugging_face_name(Llama, gguf), None, "{gguf}");
        }
        assert_eq!(hugging_face_name(Llama, "blk.0.post_ffw_norm.weight"), None);
    }
}
