//! Where each weight of the decoder graphs lies in a checkpoint.
//!
//! Graphs use upstream's names (`layers.0.attention.wq.weight`), checkpoints use Hugging Face's
//! (`model.layers.0.self_attn.q_proj.weight`), and some hold several weights in one tensor. [`BoundWeights`] is the
//! bridge. It is strict: every weight must be there in the right shape, and every tensor must have a use.

use super::rope::{RopePart, RopeTable};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::graph::WeightProvider;
use crate::registry::{DecoderSpec, LayerKind, RopeSpec};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

/// The weights of a decoder, read from a checkpoint row by row when asked for.
#[derive(Debug)]
pub struct BoundWeights<'a> {
    checkpoint: &'a Checkpoint,
    bindings: BTreeMap<String, Binding>,
}

/// One weight: its shape in the graph and where its rows come from.
#[derive(Debug, Clone, PartialEq)]
struct Binding {
    shape: Vec<usize>,
    source: Source,
}

#[derive(Debug, Clone, PartialEq)]
enum Source {
    /// Rows from `first_row` on of a checkpoint tensor; `plus_one` for norms that are stored as `w - 1`.
    Tensor { name: String, first_row: usize, plus_one: bool },
    /// Computed.
    Rope { table: RopeTable, part: RopePart },
}

impl<'a> BoundWeights<'a> {
    /// Bind the weights of `spec`'s graphs, compiled for `max_context` positions, to the tensors of `checkpoint`.
    ///
    /// # Errors
    /// [`Error::Format`] naming the file and the tensor for a tensor that is missing, has another shape (both are
    /// given) or belongs to no weight; [`Error::InvalidArgument`] for an invalid `spec`.
    pub fn new(spec: &DecoderSpec, max_context: usize, checkpoint: &'a Checkpoint) -> Result<Self> {
        spec.validate()?;
        let layout = Layout::of(checkpoint);
        let mut binder = Binder { checkpoint, spec, layout, bindings: BTreeMap::new(), used: HashSet::new() };
        binder.bind_ends()?;
        for layer in 0..spec.layers {
            binder.bind_layer(layer)?;
        }
        binder.bind_ropes(max_context);
        binder.check_all_used()?;
        Ok(Self { checkpoint, bindings: binder.bindings })
    }

    /// Names and shapes of all weights, sorted by name.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.bindings.iter().map(|(name, binding)| (name.as_str(), &binding.shape[..]))
    }

    /// The checkpoint tensor behind a weight; `None` for an unknown weight and for computed ones (RoPE tables).
    pub fn tensor_of(&self, weight: &str) -> Option<&str> {
        match &self.bindings.get(weight)?.source {
            Source::Tensor { name, .. } => Some(name),
            Source::Rope { .. } => None,
        }
    }
}

impl WeightProvider for BoundWeights<'_> {
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let binding = self.bindings.get(name);
        let binding = binding.ok_or_else(|| Error::NotFound(format!("the decoder has no weight called {name}")))?;
        let (count, row_len) = match binding.shape[..] {
            [rows, row_len] => (rows, row_len),
            _ => (1, binding.shape.iter().product()),
        };
        if rows.start > rows.end || rows.end > count || rows.len().checked_mul(row_len) != Some(out.len()) {
            let (shape, length) = (&binding.shape, out.len());
            return Err(Error::invalid(format!("weight {name} {shape:?}: rows {rows:?} into {length} elements")));
        }
        match &binding.source {
            Source::Tensor { name, first_row, plus_one } => {
                self.checkpoint.read_rows(name, first_row + rows.start..first_row + rows.end, out)?;
                if *plus_one {
                    out.iter_mut().for_each(|w| *w += 1.0);
                }
            }
            Source::Rope { table, part } => {
                for (position, out) in rows.zip(out.chunks_exact_mut(row_len)) {
                    out.iter_mut().zip(table.row(*part, position)).for_each(|(out, value)| *out = value);
                }
            }
        }
        Ok(())
    }
}

/// Where the decoder's tensors are in a checkpoint, and which others lie beside them.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Prefix of the decoder's tensors.
    decoder: &'static str,
    /// The output projection.
    head: &'static str,
    /// Prefixes of other parts of a multimodal model.
    beside: &'static [&'static str],
}

const LAYOUTS: [Layout; 3] = [
    Layout { decoder: "model.", head: "lm_head.weight", beside: &[] },
    Layout {
        decoder: "language_model.model.",
        head: "language_model.lm_head.weight",
        beside: &["vision_tower.", "multi_modal_projector."],
    },
    Layout {
        decoder: "model.language_model.",
        head: "lm_head.weight",
        beside: &["model.vision_tower.", "model.multi_modal_projector."],
    },
];

impl Layout {
    /// The layout whose embedding table exists; the plain one if there is none, so that the error names that table.
    fn of(checkpoint: &Checkpoint) -> Self {
        let [plain, ..] = LAYOUTS;
        let fits = |layout: &Layout| checkpoint.tensor(&format!("{}embed_tokens.weight", layout.decoder)).is_some();
        LAYOUTS.into_iter().find(fits).unwrap_or(plain)
    }
}

struct Binder<'a> {
    checkpoint: &'a Checkpoint,
    spec: &'a DecoderSpec,
    layout: Layout,
    bindings: BTreeMap<String, Binding>,
    used: HashSet<String>,
}

/// Consecutive row ranges of one tensor: weight name and number of rows, in order.
type Parts<'p> = &'p [(&'p str, usize)];

impl Binder<'_> {
    /// The embedding table, the last norm and the head.
    fn bind_ends(&mut self) -> Result<()> {
        let &DecoderSpec { vocab_size, hidden_size, tied_embeddings, .. } = self.spec;
        let table = [vocab_size, hidden_size];
        self.bind("tok_embeddings.weight", &format!("{}embed_tokens.weight", self.layout.decoder), &table)?;
        self.bind_norm("norm", &format!("{}norm", self.layout.decoder), hidden_size)?;
        if !tied_embeddings {
            return self.bind("output.weight", self.layout.head, &table);
        }
        // Some tied checkpoints carry a copy of the table; transformers does not look at it either.
        if self.checkpoint.tensor(self.layout.head).is_some() {
            self.require(self.layout.head, &table)?;
        }
        Ok(())
    }

    fn bind_layer(&mut self, layer: usize) -> Result<()> {
        let &DecoderSpec { hidden_size, heads, kv_heads, head_dim, ffn_size, .. } = self.spec;
        let (own, theirs) = (format!("layers.{layer}"), format!("{}layers.{layer}", self.layout.decoder));
        let (q_rows, kv_rows) = (heads * head_dim, kv_heads * head_dim);

        let attention = format!("{theirs}.self_attn");
        let [wq, wk, wv, wo] = ["wq", "wk", "wv", "wo"].map(|name| format!("{own}.attention.{name}"));
        if self.spec.fused_qkv {
            let parts: Parts<'_> = &[(&wq, q_rows), (&wk, kv_rows), (&wv, kv_rows)];
            self.bind_parts(parts, &format!("{attention}.qkv_proj.weight"), hidden_size)?;
        } else {
            self.bind_linear(&wq, &format!("{attention}.q_proj"), [q_rows, hidden_size], self.spec.qkv_bias)?;
            self.bind_linear(&wk, &format!("{attention}.k_proj"), [kv_rows, hidden_size], self.spec.qkv_bias)?;
            self.bind_linear(&wv, &format!("{attention}.v_proj"), [kv_rows, hidden_size], self.spec.qkv_bias)?;
        }
        self.bind_linear(&wo, &format!("{attention}.o_proj"), [hidden_size, q_rows], self.spec.out_bias)?;
        if self.spec.qk_norm {
            self.bind_norm(&format!("{own}.attention.q_norm_fn"), &format!("{attention}.q_norm"), head_dim)?;
            self.bind_norm(&format!("{own}.attention.k_norm_fn"), &format!("{attention}.k_norm"), head_dim)?;
        }

        let mlp = format!("{theirs}.mlp");
        let [w1, w2, w3] = ["w1", "w2", "w3"].map(|name| format!("{own}.feed_forward.{name}"));
        if self.spec.fused_gate_up {
            let parts: Parts<'_> = &[(&w1, ffn_size), (&w3, ffn_size)];
            self.bind_parts(parts, &format!("{mlp}.gate_up_proj.weight"), hidden_size)?;
        } else {
            self.bind_linear(&w1, &format!("{mlp}.gate_proj"), [ffn_size, hidden_size], false)?;
            self.bind_linear(&w3, &format!("{mlp}.up_proj"), [ffn_size, hidden_size], false)?;
        }
        self.bind_linear(&w2, &format!("{mlp}.down_proj"), [hidden_size, ffn_size], false)?;

        // Hugging Face's "post attention" norm stands before the MLP, except where there are post norms as well.
        let norms: &[(&str, &str)] = if self.spec.post_norms {
            &[
                ("attention_norm", "input_layernorm"),
                ("post_attention_norm", "post_attention_layernorm"),
                ("ffn_norm", "pre_feedforward_layernorm"),
                ("post_ffn_norm", "post_feedforward_layernorm"),
            ]
        } else {
            &[("attention_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")]
        };
        for (name, tensor) in norms {
            self.bind_norm(&format!("{own}.{name}"), &format!("{theirs}.{tensor}"), hidden_size)?;
        }
        Ok(())
    }

    /// The tables of every RoPE some layer uses.
    fn bind_ropes(&mut self, max_context: usize) {
        let spec = self.spec;
        let slides = spec.layer_kinds.contains(&LayerKind::Sliding);
        let rotates_fully = spec.layer_kinds.contains(&LayerKind::Full);
        if rotates_fully || (slides && spec.local_rope.is_none()) {
            self.bind_rope("rope", &spec.rope, max_context);
        }
        if let Some(local) = spec.local_rope.as_ref().filter(|_| slides) {
            self.bind_rope("rope_local", local, max_context);
        }
    }

    fn bind_rope(&mut self, name: &str, rope: &RopeSpec, max_context: usize) {
        let table = RopeTable::new(rope, max_context);
        let shape = vec![max_context, rope.rotary_dim / 2];
        for (suffix, part) in [("cos", RopePart::Cos), ("sin", RopePart::Sin)] {
            let source = Source::Rope { table: table.clone(), part };
            self.bindings.insert(format!("{name}.{suffix}"), Binding { shape: shape.clone(), source });
        }
    }

    fn bind_linear(&mut self, weight: &str, tensor: &str, shape: [usize; 2], bias: bool) -> Result<()> {
        self.bind(&format!("{weight}.weight"), &format!("{tensor}.weight"), &shape)?;
        if bias {
            self.bind(&format!("{weight}.bias"), &format!("{tensor}.bias"), &shape[..1])?;
        }
        Ok(())
    }

    fn bind_norm(&mut self, weight: &str, tensor: &str, width: usize) -> Result<()> {
        let name = format!("{tensor}.weight");
        self.require(&name, &[width])?;
        let source = Source::Tensor { name, first_row: 0, plus_one: self.spec.norm_plus_one };
        self.bindings.insert(format!("{weight}.weight"), Binding { shape: vec![width], source });
        Ok(())
    }

    /// Several matrices stored one below the other.
    fn bind_parts(&mut self, parts: Parts<'_>, tensor: &str, width: usize) -> Result<()> {
        self.require(tensor, &[parts.iter().map(|(_, rows)| rows).sum(), width])?;
        let mut first_row = 0;
        for &(weight, rows) in parts {
            let source = Source::Tensor { name: tensor.into(), first_row, plus_one: false };
            self.bindings.insert(format!("{weight}.weight"), Binding { shape: vec![rows, width], source });
            first_row += rows;
        }
        Ok(())
    }

    fn bind(&mut self, weight: &str, tensor: &str, shape: &[usize]) -> Result<()> {
        self.require(tensor, shape)?;
        let source = Source::Tensor { name: tensor.into(), first_row: 0, plus_one: false };
        self.bindings.insert(weight.into(), Binding { shape: shape.to_vec(), source });
        Ok(())
    }

    /// A tensor that must exist in exactly this shape.
    fn require(&mut self, tensor: &str, shape: &[usize]) -> Result<()> {
        let Some(entry) = self.checkpoint.tensor(tensor) else {
            return Err(self.error(tensor, format!("missing; the configuration asks for shape {shape:?}")));
        };
        if entry.shape != shape {
            let reason = format!("has shape {:?}, but the configuration asks for {shape:?}", entry.shape);
            return Err(self.error(tensor, reason));
        }
        self.used.insert(tensor.into());
        Ok(())
    }

    /// A tensor nobody reads means that the configuration does not describe this checkpoint.
    fn check_all_used(&self) -> Result<()> {
        let mut unused = self.checkpoint.tensors().filter(|entry| !self.may_stay_unused(&entry.name));
        let Some(first) = unused.next() else { return Ok(()) };
        let reason = format!(
            "no weight of this decoder uses this tensor of shape {:?} ({} more like it); does config.json belong to \
             these weights?",
            first.shape,
            unused.count()
        );
        Err(self.error(&first.name, reason))
    }

    fn may_stay_unused(&self, tensor: &str) -> bool {
        // Old checkpoints saved this buffer; it follows from the configuration.
        let derived = tensor.ends_with(".rotary_emb.inv_freq");
        derived || self.used.contains(tensor) || self.layout.beside.iter().any(|part| tensor.starts_with(part))
    }

    fn error(&self, tensor: &str, reason: String) -> Error {
        Error::format(self.checkpoint.path(), tensor, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::build_decoder;
    use crate::registry::ModelSpec;
    use safetensors::tensor::{Dtype, TensorView};
    use std::path::{Path, PathBuf};

    fn fixture(family: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny").join(family)
    }

    /// Bind the tiny checkpoint of a family after `change` was applied to its tensors (name, shape, bytes).
    fn bind_changed(family: &str, change: impl FnOnce(&mut Vec<(String, Vec<usize>, Vec<u8>)>)) -> Result<()> {
        let bytes = std::fs::read(fixture(family).join("model.safetensors")).unwrap();
        let stored = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let dtype = stored.iter().next().unwrap().1.dtype();
        let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> =
            stored.iter().map(|(name, t)| (name.into(), t.shape().to_vec(), t.data().to_vec())).collect();
        change(&mut tensors);
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(fixture(family).join("config.json"), folder.path().join("config.json")).unwrap();
        save(&folder.path().join("model.safetensors"), dtype, &tensors);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let spec = ModelSpec::from_config(checkpoint.config()).unwrap().decoder;
        BoundWeights::new(&spec, 64, &checkpoint).map(drop)
    }

    fn save(path: &Path, dtype: Dtype, tensors: &[(String, Vec<usize>, Vec<u8>)]) {
        let views = tensors.iter().map(|(n, shape, data)| (n, TensorView::new(dtype, shape.clone(), data).unwrap()));
        safetensors::serialize_to_file(views, None, path).unwrap();
    }

    #[test]
    fn every_weight_of_the_graphs_is_bound_and_no_other() {
        let families = [
            "llama", "smollm2", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "granite", "phi4mini", "glm", "smollm3",
        ];
        for family in families {
            let checkpoint = Checkpoint::open(&fixture(family)).unwrap();
            let spec = ModelSpec::from_config(checkpoint.config()).unwrap().decoder;
            let bound = BoundWeights::new(&spec, 64, &checkpoint).unwrap();
            for graph in build_decoder(&spec, 64, 7).unwrap() {
                let mut wanted: Vec<(&str, &[usize])> =
                    graph.weights().map(|w| (w.name.as_str(), &w.shape[..])).collect();
                wanted.sort_unstable();
                assert_eq!(bound.shapes().collect::<Vec<_>>(), wanted, "{family} {}", graph.name);
            }
        }
    }

    #[test]
    fn a_missing_tensor_is_named_with_its_shape() {
        let error = bind_changed("llama", |tensors| {
            tensors.retain(|(name, ..)| name != "model.layers.1.self_attn.k_proj.weight");
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("layers.1.self_attn.k_proj.weight: missing") && error.contains("[32, 64]"), "{error}");
    }

    #[test]
    fn a_misshapen_tensor_is_named_with_both_shapes() {
        let error = bind_changed("llama", |tensors| {
            let (_, shape, _) = tensors.iter_mut().find(|(name, ..)| name.contains("1.mlp.down_proj")).unwrap();
            shape.reverse();
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("down_proj") && error.contains("[160, 64]") && error.contains("[64, 160]"), "{error}");
    }

    #[test]
    fn an_extra_tensor_is_named() {
        let error = bind_changed("llama", |tensors| {
            tensors.push(("model.layers.0.self_attn.q_norm.weight".into(), vec![1], vec![0; 2]));
        });
        assert!(error.unwrap_err().to_string().contains("self_attn.q_norm.weight"));
    }

    #[test]
    fn derived_buffers_and_copies_of_a_tied_head_are_allowed() {
        bind_changed("llama", |tensors| {
            let table = tensors.iter().find(|(name, ..)| name == "model.embed_tokens.weight").unwrap().clone();
            tensors.push(("lm_head.weight".into(), table.1, table.2));
            tensors.push(("model.layers.0.self_attn.rotary_emb.inv_freq".into(), vec![8], vec![0; 16]));
        })
        .unwrap();
        let error = bind_changed("llama", |tensors| {
            tensors.push(("lm_head.weight".into(), vec![1, 64], vec![0; 128]));
        });
        assert!(error.unwrap_err().to_string().contains("lm_head.weight"));
    }

    #[test]
    fn a_multimodal_layout_is_found_and_its_other_parts_are_left_alone() {
        for layout in &LAYOUTS[1..] {
            bind_changed("gemma3", |tensors| {
                for (name, ..) in tensors.iter_mut() {
                    *name = name.replacen("model.", layout.decoder, 1);
                }
                tensors.push((format!("{}x.weight", layout.beside[0]), vec![1], vec![0; 2]));
            })
            .unwrap();
        }
    }

    #[test]
    fn rows_of_fused_tensors_norms_and_tables_are_read() {
        let checkpoint = Checkpoint::open(&fixture("phi4mini")).unwrap();
        let spec = ModelSpec::from_config(checkpoint.config()).unwrap().decoder;
        let bound = BoundWeights::new(&spec, 64, &checkpoint).unwrap();
        let (mut row, mut expected) = ([0.0; 64], [0.0; 64]);
        bound.read_rows("layers.1.attention.wv.weight", 3..4, &mut row).unwrap();
        checkpoint.read_rows("model.layers.1.self_attn.qkv_proj.weight", 99..100, &mut expected).unwrap();
        assert_eq!(row, expected);
        assert_eq!(bound.tensor_of("layers.1.feed_forward.w3.weight"), Some("model.layers.1.mlp.gate_up_proj.weight"));
        assert_eq!(bound.tensor_of("rope.cos"), None);
        let mut cos = [0.0; 12];
        bound.read_rows("rope.cos", 0..2, &mut cos).unwrap();
        assert_eq!(cos[..6], [1.264_911; 6]);

        let checkpoint = Checkpoint::open(&fixture("gemma")).unwrap();
        let spec = ModelSpec::from_config(checkpoint.config()).unwrap().decoder;
        let bound = BoundWeights::new(&spec, 64, &checkpoint).unwrap();
        bound.read_rows("norm.weight", 0..1, &mut row).unwrap();
        checkpoint.read_rows("model.norm.weight", 0..1, &mut expected).unwrap();
        assert_eq!(row, expected.map(|w| w + 1.0));
    }

    #[test]
    fn rows_out_of_range_and_unknown_names_are_errors() {
        let checkpoint = Checkpoint::open(&fixture("llama")).unwrap();
        let spec = ModelSpec::from_config(checkpoint.config()).unwrap().decoder;
        let bound = BoundWeights::new(&spec, 64, &checkpoint).unwrap();
        assert!(bound.read_rows("layers.9.attention.wq.weight", 0..1, &mut [0.0; 64]).is_err());
        assert!(bound.read_rows("layers.0.attention.wk.weight", 32..33, &mut [0.0; 64]).is_err());
        assert!(bound.read_rows("layers.0.attention.wk.weight", 0..1, &mut [0.0; 63]).is_err());
    }
}
