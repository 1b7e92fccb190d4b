//! Sanity of a decoder specification, whoever wrote it: a configuration, a manifest, a caller.

use super::spec::{DecoderSpec, LayerKind, RopeScaling, RopeSpec};
use crate::error::{Error, Result};

/// More layers than this is taken for a damaged file.
pub(super) const MAX_LAYERS: usize = 1000;

/// A field, in the words of `config.json`, and what is wrong with its value.
pub(super) type Problem = (&'static str, String);

pub(super) fn too_many_layers(layers: usize) -> String {
    format!("{layers} layers; at most {MAX_LAYERS} are supported")
}

impl DecoderSpec {
    /// Check that a graph can be built from this: sizes positive, heads divisible, RoPE within the head, no overflow.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the field and its value.
    pub fn validate(&self) -> Result<()> {
        self.check().map_err(|(field, reason)| Error::InvalidArgument(format!("decoder: {field}: {reason}")))
    }

    pub(super) fn check(&self) -> std::result::Result<(), Problem> {
        self.check_sizes()?;
        self.check_layers()?;
        check_rope(&self.rope, self.head_dim)?;
        if let Some(rope) = &self.local_rope {
            check_rope(rope, self.head_dim)?;
        }
        self.check_numbers()?;
        if self.fused_qkv && self.qkv_bias {
            return Err(("attention_bias", "biases of a fused q/k/v projection are not supported".into()));
        }
        Ok(())
    }

    fn check_sizes(&self) -> std::result::Result<(), Problem> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.layers),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("intermediate_size", self.ffn_size),
            ("max_position_embeddings", self.max_position),
        ];
        if let Some((field, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err((field, "0 is not allowed".into()));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let reason = format!("{} is not a multiple of num_key_value_heads {}", self.heads, self.kv_heads);
            return Err(("num_attention_heads", reason));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(("head_dim", format!("{} is odd", self.head_dim)));
        }
        let q_rows = self.heads.checked_mul(self.head_dim);
        // The widest fused matrix has the rows of q and twice those of k, at most three times q.
        let widest = [Some(self.vocab_size), q_rows.and_then(|q| q.checked_mul(3)), self.ffn_size.checked_mul(2)];
        let bytes = |rows: usize| rows.checked_mul(self.hidden_size)?.checked_mul(size_of::<f32>());
        for (rows, field) in widest.into_iter().zip(["vocab_size", "num_attention_heads", "intermediate_size"]) {
            if rows.and_then(bytes).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
                return Err((field, format!("a matrix of {rows:?} rows and {} columns overflows", self.hidden_size)));
            }
        }
        Ok(())
    }

    fn check_layers(&self) -> std::result::Result<(), Problem> {
        if self.layers > MAX_LAYERS {
            return Err(("num_hidden_layers", too_many_layers(self.layers)));
        }
        if self.layer_kinds.len() != self.layers {
            return Err(("layer_types", format!("{} entries for {} layers", self.layer_kinds.len(), self.layers)));
        }
        match self.sliding_window {
            None if self.layer_kinds.contains(&LayerKind::Sliding) => {
                Err(("sliding_window", "missing, but layers slide".into()))
            }
            Some(0) => Err(("sliding_window", "0 is not allowed".into())),
            _ => Ok(()),
        }
    }

    fn check_numbers(&self) -> std::result::Result<(), Problem> {
        if !(self.norm_eps.is_finite() && self.norm_eps >= 0.0) {
            return Err(("rms_norm_eps", format!("{} is not a non-negative number", self.norm_eps)));
        }
        let factors = [
            ("embedding_multiplier", self.embedding_multiplier),
            ("attention_multiplier", self.attention_multiplier),
            ("residual_multiplier", self.residual_multiplier),
            ("logits_scaling", self.logits_divisor),
        ];
        if let Some((field, value)) = factors.iter().find(|(_, v)| !v.is_finite() || *v == 0.0) {
            return Err((field, format!("{value} is not a finite number other than 0")));
        }
        let caps =
            [("attn_logit_softcapping", self.attention_softcap), ("final_logit_softcapping", self.logits_softcap)];
        for (field, cap) in caps {
            if let Some(cap) = cap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
                return Err((field, format!("{cap} is not a positive number")));
            }
        }
        Ok(())
    }
}

fn check_rope(rope: &RopeSpec, head_dim: usize) -> std::result::Result<(), Problem> {
    if !(rope.theta.is_finite() && rope.theta > 0.0) {
        return Err(("rope_theta", format!("{} is not a positive number", rope.theta)));
    }
    let dim = rope.rotary_dim;
    if dim == 0 || !dim.is_multiple_of(2) || dim > head_dim {
        let reason = format!("{dim} rotated elements of a head of {head_dim}; an even number up to that is needed");
        return Err(("partial_rotary_factor", reason));
    }
    let positive = |field, value: f64| {
        if value.is_finite() && value > 0.0 { Ok(()) } else { Err((field, format!("{value} is not positive"))) }
    };
    let divisors = |field, list: &[f64]| {
        if list.len() != dim / 2 {
            return Err((field, format!("{} divisors for {} frequencies", list.len(), dim / 2)));
        }
        list.iter().try_for_each(|&value| positive(field, value))
    };
    match &rope.scaling {
        RopeScaling::None => Ok(()),
        RopeScaling::Linear { factor } => positive("rope_scaling.factor", *factor),
        RopeScaling::FreqFactors { factors } => divisors("rope_freq_factors", factors),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            positive("rope_scaling.factor", *factor)?;
            positive("rope_scaling.low_freq_factor", *low_freq_factor)?;
            positive("rope_scaling.original_max_position_embeddings", *original_context as f64)?;
            match high_freq_factor - low_freq_factor {
                gap if gap.is_finite() && gap > 0.0 => Ok(()),
                _ => Err((
                    "rope_scaling.high_freq_factor",
                    format!("{high_freq_factor} is not above low_freq_factor {low_freq_factor}"),
                )),
            }
        }
        RopeScaling::LongRope { short_factor, long_factor, original_context, attention_factor } => {
            divisors("rope_scaling.short_factor", short_factor)?;
            divisors("rope_scaling.long_factor", long_factor)?;
            positive("original_max_position_embeddings", *original_context as f64)?;
            positive("rope_scaling.attention_factor", *attention_factor)
        }
    }
}
