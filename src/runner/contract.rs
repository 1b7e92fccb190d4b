//! What a text decoder's graphs say about themselves: block size, context length, heads, layers, element types.
//!
//! Everything is read from the signatures, never from flags or names of models, and checked to agree between the
//! graphs, so that the rest of the runner can rely on it.

use super::logits::is_logits;
use super::mask;
use crate::engine::GraphSignature;
use crate::error::{Error, Result};
use crate::graph::{DType, TensorInfo};

/// The shape of a decoder, as all its graphs agree on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecoderContract {
    /// CL: most positions a row can see, itself included.
    pub context_length: usize,
    /// V: width of the logits; may exceed the tokenizer's vocabulary.
    pub vocabulary: usize,
    /// Element type of every KV tensor.
    pub kv_dtype: DType,
    /// KV heads and head width of each layer.
    pub layers: Vec<LayerShape>,
    /// Whether the graphs take a second mask, for layers with a sliding window.
    pub has_window_mask: bool,
    /// The graphs, by block size, smallest first.
    pub graphs: Vec<StepGraph>,
}

/// KV shape of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerShape {
    /// Number of KV heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

/// One graph: how many tokens it takes, and which tensor is which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepGraph {
    /// Index in [`LoadedComponent::graphs`](crate::engine::LoadedComponent::graphs).
    pub index: usize,
    /// Graph name.
    pub name: String,
    /// AR: tokens of a block.
    pub ar: usize,
    /// C: cache slots the graph sees, CL - AR. 0 for a graph without cache, which takes the whole text at once.
    pub cache_slots: usize,
    /// What input 0 holds.
    pub takes: StepInput,
    /// Token ids `[1, AR]` (i32 or i64), or hidden states `[1, AR, E]` (f32).
    pub input: TensorInfo,
    /// Mask of full-attention layers.
    pub mask: TensorInfo,
    /// Mask of sliding layers.
    pub window_mask: Option<TensorInfo>,
    /// Positions, i32 `[1, AR]`; graphs without cache have none.
    pub positions: Option<TensorInfo>,
    /// Caches, K of all layers `[1, H, D, C]`, then V of all layers `[1, H, C, D]`. Older files have a cache a head:
    /// `[1, D, C]` and `[1, C, D]`, which here count as layers of one head.
    pub caches: Vec<TensorInfo>,
    /// `[1, AR, V]`, then the block's K `[1, H, D, AR]` and V `[1, H, AR, D]` of all layers.
    pub outputs: Vec<TensorInfo>,
}

impl StepGraph {
    /// Whether the graph has a KV cache. One without takes the whole text at once (BERT-like).
    pub fn has_cache(&self) -> bool {
        self.positions.is_some()
    }
}

/// What a graph is fed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepInput {
    /// Token ids.
    Tokens,
    /// Rows of a token embedding or of an encoder.
    HiddenStates,
}

impl DecoderContract {
    /// Derive the contract from the graphs of a component.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for element types this runner cannot drive; [`Error::InvalidArgument`] for graphs that break
    /// the contract or disagree. Both name graph and tensor.
    pub fn from_graphs(signatures: &[GraphSignature]) -> Result<Self> {
        Self::from_selected(signatures, &|_| true)
    }

    /// As [`from_graphs`](Self::from_graphs), of the graphs whose signature `wanted` accepts.
    ///
    /// # Errors
    /// As [`from_graphs`](Self::from_graphs).
    pub fn from_selected(signatures: &[GraphSignature], wanted: &dyn Fn(&GraphSignature) -> bool) -> Result<Self> {
        let mut graphs = Vec::new();
        for (index, signature) in signatures.iter().enumerate().filter(|(_, signature)| wanted(signature)) {
            graphs.push(Reader::new(index, signature).read()?);
        }
        graphs.sort_by_key(|graph| graph.ar);
        // A graph without cache says nothing of layers: the first one with a cache speaks for all.
        let Some(first) = graphs.iter().find(|graph| graph.has_cache()).or_else(|| graphs.first()) else {
            return Err(Error::invalid("the text decoder has no graphs"));
        };
        let contract = shape_of(first);
        for graph in &graphs {
            contract.check_agrees(first, &shape_of(graph), graph)?;
            contract.check_commits(graph)?;
        }
        Ok(Self { graphs, ..contract })
    }

    /// A graph without cache beside others must say what its K and V are, or its tokens could not be gone on from.
    fn check_commits(&self, graph: &StepGraph) -> Result<()> {
        let layers = self.layers.iter();
        let sizes: Vec<usize> = layers.map(|layer| layer.heads * layer.head_dim * graph.ar).collect();
        let expected = sizes.iter().chain(&sizes).copied().map(Some);
        let found = graph.outputs.iter().skip(1).map(TensorInfo::element_count);
        if graph.has_cache() || self.layers.is_empty() || expected.eq(found) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "graph {} of the text decoder has no KV cache, and its outputs are not the K and V of the other graphs' layers",
            graph.name
        )))
    }

    /// Whether the graphs keep a KV cache. Without one every step computes the whole text again.
    pub fn has_cache(&self) -> bool {
        self.graphs.iter().any(StepGraph::has_cache)
    }

    /// E, if the graphs take hidden states.
    pub fn hidden_size(&self) -> Option<usize> {
        let input = self.graphs.iter().find(|graph| graph.takes == StepInput::HiddenStates)?;
        input.input.shape.last().copied()
    }

    /// Number of tokens that can be committed: what the graph with the smallest block sees of the KV cache; without a
    /// cache all but the newest of the context.
    pub fn cache_slots(&self) -> usize {
        match self.has_cache() {
            true => self.graphs.iter().map(|graph| graph.cache_slots).max().unwrap_or(0),
            false => self.context_length.saturating_sub(1),
        }
    }

    /// Bytes of the KV cache of all layers.
    pub fn kv_bytes(&self) -> u64 {
        let slot: u64 = self.layers.iter().map(|layer| 2 * (layer.heads * layer.head_dim) as u64).sum();
        slot * self.cache_slots() as u64 * self.kv_dtype.size_bytes() as u64
    }

    fn check_agrees(&self, first: &StepGraph, other: &Self, graph: &StepGraph) -> Result<()> {
        let width = |graph: &StepGraph| match graph.takes {
            StepInput::Tokens => "token ids".into(),
            StepInput::HiddenStates => format!("hidden states of {}", graph.input.shape.last().unwrap_or(&0)),
        };
        let differing = [
            ("first input", width(first), width(graph)),
            ("context length", self.context_length.to_string(), other.context_length.to_string()),
            ("vocabulary", self.vocabulary.to_string(), other.vocabulary.to_string()),
            ("window mask", self.has_window_mask.to_string(), other.has_window_mask.to_string()),
            ("KV element type", self.kv_dtype.name().into(), other.kv_dtype.name().into()),
            ("number of layers", self.layers.len().to_string(), other.layers.len().to_string()),
            ("KV shape of the layers", format!("{:?}", self.layers), format!("{:?}", other.layers)),
        ];
        let comparable = if graph.has_cache() || !first.has_cache() { differing.len() } else { 4 };
        match differing.into_iter().take(comparable).find(|(_, a, b)| a != b) {
            None => Ok(()),
            Some((what, a, b)) => Err(Error::invalid(format!(
                "graphs {} and {} of the text decoder disagree on the {what}: {a} and {b}",
                first.name, graph.name
            ))),
        }
    }
}

/// What one graph says about the decoder as a whole.
fn shape_of(graph: &StepGraph) -> DecoderContract {
    let layer_count = graph.caches.len() / 2;
    let keys = graph.caches.get(..layer_count).unwrap_or_default();
    let layers = keys.iter().filter_map(|info| match info.shape[..] {
        [1, heads, head_dim, _] => Some(LayerShape { heads, head_dim }),
        [1, head_dim, _] => Some(LayerShape { heads: 1, head_dim }),
        _ => None,
    });
    let vocabulary = graph.outputs.first().and_then(|logits| logits.shape.last()).copied().unwrap_or(0);
    DecoderContract {
        context_length: graph.ar + graph.cache_slots,
        vocabulary,
        kv_dtype: keys.first().map_or(DType::F32, |info| info.dtype),
        layers: layers.collect(),
        has_window_mask: graph.window_mask.is_some(),
        graphs: Vec::new(),
    }
}

/// Reads one signature in contract order.
struct Reader<'a> {
    index: usize,
    signature: &'a GraphSignature,
}

impl<'a> Reader<'a> {
    fn new(index: usize, signature: &'a GraphSignature) -> Self {
        Self { index, signature }
    }

    fn read(&self) -> Result<StepGraph> {
        let input = self.input(0, "tokens or hidden states")?;
        let mask = self.input(1, "attention mask")?;
        let (ar, context) = self.block_and_context(mask)?;
        let takes = self.check_first_input(input, ar)?;
        self.check_logits(ar)?;
        let second = self.signature.inputs.get(2);
        let window_mask = second.filter(|second| second.dtype == mask.dtype && second.shape == mask.shape);
        let next = if window_mask.is_some() { 3 } else { 2 };
        let (positions, caches) = if ar == context {
            self.check_no_cache(next)?;
            (None, Vec::new())
        } else {
            let positions = self.input(next, "positions")?;
            self.expect(positions, DType::I32, &[1, ar])?;
            let caches = self.signature.inputs.get(next + 1..).unwrap_or_default();
            self.check_kv(caches, ar, context - ar)?;
            (Some(positions.clone()), caches.to_vec())
        };
        Ok(StepGraph {
            index: self.index,
            name: self.signature.name.clone(),
            ar,
            cache_slots: context - ar,
            takes,
            input: input.clone(),
            mask: mask.clone(),
            window_mask: window_mask.cloned(),
            positions,
            caches,
            outputs: self.signature.outputs.clone(),
        })
    }

    fn input(&self, index: usize, what: &str) -> Result<&'a TensorInfo> {
        self.signature.inputs.get(index).ok_or_else(|| self.error(format!("input {index} ({what}) is missing")))
    }

    fn block_and_context(&self, mask: &TensorInfo) -> Result<(usize, usize)> {
        let (ar, context) = match mask.shape[..] {
            [1, 1, ar, context] | [1, ar, context] if ar > 0 && ar <= context => (ar, context),
            _ => return Err(self.error(format!("mask {} has shape {:?}, not [1, 1, AR, CL]", mask.name, mask.shape))),
        };
        mask::check_dtype(mask)?;
        Ok((ar, context))
    }

    /// A block that fills the whole context has tokens and masks only, and may say what its K and V are.
    fn check_no_cache(&self, inputs: usize) -> Result<()> {
        let (have, outputs) = (self.signature.inputs.len(), self.signature.outputs.len());
        if have == inputs && outputs % 2 == 1 {
            return Ok(());
        }
        Err(self.error(format!(
            "its block fills the whole context, so it takes {inputs} inputs and no KV cache, and gives logits and perhaps \
             a K and a V a layer; it has {have} inputs and {outputs} outputs"
        )))
    }

    fn check_logits(&self, ar: usize) -> Result<()> {
        let info = self.output(0)?;
        if is_logits(info, ar) {
            return Ok(());
        }
        let (dtype, shape) = (info.dtype.name(), &info.shape);
        Err(self.error(format!("{} is {dtype} {shape:?}; logits are f32, u16 or u8 [1, {ar}, V]", info.name)))
    }

    fn check_first_input(&self, input: &TensorInfo, ar: usize) -> Result<StepInput> {
        if input.dtype == DType::F32 {
            let width = input.shape.last().copied().filter(|&width| width > 0).unwrap_or(1);
            self.expect(input, DType::F32, &[1, ar, width])?;
            return Ok(StepInput::HiddenStates);
        }
        let dtype = if input.dtype == DType::I64 { DType::I64 } else { DType::I32 };
        self.expect(input, dtype, &[1, ar])?;
        Ok(StepInput::Tokens)
    }

    fn check_kv(&self, caches: &[TensorInfo], ar: usize, slots: usize) -> Result<()> {
        let layers = caches.len() / 2;
        if layers == 0 || !caches.len().is_multiple_of(2) || self.signature.outputs.len() != 1 + 2 * layers {
            let outputs = self.signature.outputs.len();
            return Err(self.error(format!(
                "{} KV caches in and {outputs} outputs; there must be a K and a V cache a layer, and logits plus a K \
                 and a V a layer come out",
                caches.len()
            )));
        }
        let dtype = caches.first().map_or(DType::F32, |info| info.dtype);
        if !matches!(dtype, DType::F32 | DType::U16 | DType::U8) {
            let (name, dtype) = (&self.signature.name, dtype.name());
            return Err(Error::Unsupported(format!("graph {name}: the KV cache is {dtype}; it may be f32, u16 or u8")));
        }
        for (layer, (keys, values)) in caches.iter().zip(caches.iter().skip(layers)).take(layers).enumerate() {
            let (heads, head_dim) = match keys.shape[..] {
                [1, heads, head_dim, _] => (Some(heads), head_dim),
                [1, head_dim, _] => (None, head_dim),
                _ => {
                    let (name, shape) = (&keys.name, &keys.shape);
                    return Err(self.error(format!("{name} has shape {shape:?}, not [1, heads, dim, slots]")));
                }
            };
            if heads == Some(0) || head_dim == 0 {
                return Err(self.error(format!("{} has shape {:?} without elements", keys.name, keys.shape)));
            }
            let shape = |a: usize, b: usize| [1].into_iter().chain(heads).chain([a, b]).collect::<Vec<_>>();
            self.expect(keys, dtype, &shape(head_dim, slots))?;
            self.expect(values, dtype, &shape(slots, head_dim))?;
            self.expect(self.output(1 + layer)?, dtype, &shape(head_dim, ar))?;
            self.expect(self.output(1 + layers + layer)?, dtype, &shape(ar, head_dim))?;
        }
        Ok(())
    }

    fn output(&self, index: usize) -> Result<&'a TensorInfo> {
        self.signature.outputs.get(index).ok_or_else(|| self.error(format!("output {index} is missing")))
    }

    fn expect(&self, info: &TensorInfo, dtype: DType, shape: &[usize]) -> Result<()> {
        if info.dtype == dtype && info.shape == shape && info.size_bytes().is_some() {
            return Ok(());
        }
        Err(self.error(format!(
            "{} is {} {:?}, the contract asks for {} {shape:?}",
            info.name,
            info.dtype.name(),
            info.shape,
            dtype.name()
        )))
    }

    fn error(&self, reason: String) -> Error {
        Error::invalid(format!("graph {} of the text decoder: {reason}", self.signature.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, dtype: DType, shape: &[usize]) -> TensorInfo {
        TensorInfo { name: name.into(), dtype, shape: shape.to_vec() }
    }

    /// One layer, two heads of three, vocabulary 10, context 16.
    fn graph(name: &str, ar: usize) -> GraphSignature {
        let slots = 16 - ar;
        GraphSignature {
            name: name.into(),
            inputs: vec![
                info("tokens", DType::I32, &[1, ar]),
                info("attention_mask", DType::F32, &[1, 1, ar, 16]),
                info("input_pos", DType::I32, &[1, ar]),
                info("k_cache_0", DType::F32, &[1, 2, 3, slots]),
                info("v_cache_0", DType::F32, &[1, 2, slots, 3]),
            ],
            outputs: vec![
                info("logits", DType::F32, &[1, ar, 10]),
                info("k_out_0", DType::F32, &[1, 2, 3, ar]),
                info("v_out_0", DType::F32, &[1, 2, ar, 3]),
            ],
        }
    }

    /// The error a change to the prefill graph gives.
    fn refusal(change: impl FnOnce(&mut GraphSignature)) -> String {
        let mut prefill = graph("prefill_forward", 4);
        change(&mut prefill);
        let graphs = [graph("kv_forward", 1), prefill];
        DecoderContract::from_graphs(&graphs).expect_err("a broken contract").to_string()
    }

    #[test]
    fn graphs_are_sorted_by_block_size_and_keep_their_index() {
        let graphs = [graph("prefill_forward", 4), graph("kv_forward", 1)];
        let contract = DecoderContract::from_graphs(&graphs).expect("valid");
        let order: Vec<_> = contract.graphs.iter().map(|g| (g.index, g.ar, g.cache_slots)).collect();
        assert_eq!(order, [(1, 1, 15), (0, 4, 12)]);
        assert_eq!(contract.layers, [LayerShape { heads: 2, head_dim: 3 }]);
    }

    #[test]
    fn decoders_may_take_hidden_states() {
        let graphs = [("kv_forward", 1), ("prefill_forward", 4)].map(|(name, ar)| {
            let mut graph = graph(name, ar);
            graph.inputs[0] = info("hidden_states", DType::F32, &[1, ar, 8]);
            graph
        });
        let contract = DecoderContract::from_graphs(&graphs).expect("valid");
        assert_eq!(contract.hidden_size(), Some(8));
        assert!(contract.graphs.iter().all(|graph| graph.takes == StepInput::HiddenStates));
    }

    #[test]
    fn gemma4_layers_may_differ_in_width() {
        let mut wide = graph("kv_forward", 1);
        wide.inputs.insert(4, info("k_cache_1", DType::F32, &[1, 1, 8, 15]));
        wide.inputs.push(info("v_cache_1", DType::F32, &[1, 1, 15, 8]));
        wide.outputs.insert(2, info("k_out_1", DType::F32, &[1, 1, 8, 1]));
        wide.outputs.push(info("v_out_1", DType::F32, &[1, 1, 1, 8]));
        let contract = DecoderContract::from_graphs(&[wide]).expect("valid");
        assert_eq!(contract.layers[1], LayerShape { heads: 1, head_dim: 8 });
    }

    #[test]
    fn quantized_logits_and_caches_are_accepted() {
        let graphs = [graph("kv_forward", 1), graph("prefill_forward", 4)].map(|mut graph| {
            graph.outputs[0].dtype = DType::U16;
            let caches = graph.inputs.iter_mut().skip(3).chain(graph.outputs.iter_mut().skip(1));
            caches.for_each(|info| info.dtype = DType::U8);
            graph
        });
        let contract = DecoderContract::from_graphs(&graphs).expect("valid");
        assert_eq!(contract.kv_dtype, DType::U8);
    }

    #[test]
    fn older_files_have_a_cache_for_every_head() {
        let mut old = graph("kv_forward", 1);
        old.inputs.truncate(3);
        old.outputs.truncate(1);
        old.inputs[1].shape = vec![1, 1, 16];
        for head in 0..2 {
            old.inputs.push(info(&format!("k_cache_0_{head}"), DType::F32, &[1, 3, 15]));
            old.outputs.push(info(&format!("k_out_0_{head}"), DType::F32, &[1, 3, 1]));
        }
        for head in 0..2 {
            old.inputs.push(info(&format!("v_cache_0_{head}"), DType::F32, &[1, 15, 3]));
            old.outputs.push(info(&format!("v_out_0_{head}"), DType::F32, &[1, 1, 3]));
        }
        let contract = DecoderContract::from_graphs(&[old]).expect("valid");
        assert_eq!(contract.layers, [LayerShape { heads: 1, head_dim: 3 }; 2]);
    }

    /// A block of the whole context: no positions, no caches.
    fn without_cache(kv_outputs: bool) -> GraphSignature {
        let mut graph = graph("prefill_forward", 1);
        graph.inputs = vec![info("tokens", DType::I32, &[1, 16]), info("mask", DType::F32, &[1, 1, 16, 16])];
        graph.outputs = vec![info("logits", DType::F32, &[1, 16, 10])];
        if kv_outputs {
            graph.outputs.push(info("k_out_0", DType::F32, &[1, 2, 3, 16]));
            graph.outputs.push(info("v_out_0", DType::F32, &[1, 2, 16, 3]));
        }
        graph
    }

    #[test]
    fn graphs_without_cache_take_the_whole_context() {
        let alone = DecoderContract::from_graphs(&[without_cache(false)]).expect("valid");
        assert_eq!((alone.has_cache(), alone.cache_slots(), alone.layers.len()), (false, 15, 0));
        let beside = DecoderContract::from_graphs(&[without_cache(true), graph("kv_forward", 1)]).expect("valid");
        assert_eq!((beside.has_cache(), beside.cache_slots(), beside.layers.len()), (true, 15, 1));
    }

    #[test]
    fn disagreeing_graphs_are_named_with_both_values() {
        let vocabulary = refusal(|g| g.outputs[0].shape[2] = 11);
        assert_eq!(
            vocabulary,
            "graphs kv_forward and prefill_forward of the text decoder disagree on the vocabulary: 10 and 11"
        );
        let window = refusal(|g| g.inputs.insert(2, g.inputs[1].clone()));
        assert!(window.contains("disagree on the window mask: false and true"), "{window}");
    }

    #[test]
    fn broken_graphs_are_refused_by_tensor() {
        let has = |text: String, words: &[&str]| assert!(words.iter().all(|word| text.contains(word)), "{text}");
        has(refusal(|g| g.inputs.truncate(1)), &["prefill_forward", "input 1 (attention mask) is missing"]);
        has(refusal(|g| g.inputs[1].shape = vec![1, 1, 17, 16]), &["attention_mask has shape"]);
        has(refusal(|g| g.inputs[1].dtype = DType::F16), &["attention_mask is f16"]);
        has(refusal(|g| g.inputs[2].dtype = DType::F32), &["input_pos is f32 [1, 4]", "i32 [1, 4]"]);
        has(refusal(|g| g.inputs[3].shape[3] = 13), &["k_cache_0", "[1, 2, 3, 12]"]);
        has(refusal(|g| g.inputs[3].shape = vec![1, 0, 3, 12]), &["k_cache_0", "without elements"]);
        has(refusal(|g| g.inputs[4].dtype = DType::U8), &["v_cache_0 is u8"]);
        has(refusal(|g| g.outputs[2].shape[2] = 5), &["v_out_0"]);
        has(refusal(|g| g.outputs[0].dtype = DType::I16), &["logits is i16", "f32, u16 or u8"]);
        has(refusal(|g| g.outputs[0].shape[1] = 3), &["logits is f32 [1, 3, 10]", "[1, 4, V]"]);
        has(refusal(|g| drop(g.inputs.pop())), &["1 KV caches in"]);
        has(
            refusal(|g| g.inputs[0] = info("hidden_states", DType::F32, &[1, 4, 8])),
            &["disagree on the first input: token ids and hidden states of 8"],
        );
        has(refusal(|g| g.inputs[0] = info("hidden_states", DType::F32, &[1, 3, 8])), &["hidden_states", "[1, 4, 8]"]);
        has(refusal(|g| g.inputs[1].shape = vec![1, 1, 16, 16]), &["tokens is i32 [1, 4]", "i32 [1, 16]"]);
        assert!(DecoderContract::from_graphs(&[]).is_err());
    }
}
