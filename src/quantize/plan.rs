//! Which values of a graph become integers, and which of them share a grid.
//!
//! The rules are those of upstream's HTP quantizer. Every result of arithmetic is stored as an integer, so it gets a *slot*: one
//! observer, one grid. Operators that only move values (reshape, transpose, concat) share the slot of their operand; that puts a KV
//! cache, its new columns and both together on one grid, without which the cache could not be handed back as it is. The second
//! operand of a product of two computed values is stored once more as a signed 16-bit integer, unless the recipe keeps the KV cache
//! in 8 bits, which goes all the way back to where keys and values are computed.

use super::dtype::{QuantDtype, WeightGranularity};
use super::encoding::Encoding;
use super::observer::ObserverKind;
use super::range::ValueRange;
use super::recipe::{LayerKind, LayerPlan, Recipe};
use crate::error::{Error, Result};
use crate::graph::{DType, Graph, Node, Op, ValueId, ValueKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What an attended (0) and a blocked position have in an additive mask.
pub const BLOCKED: f32 = -255.0;

/// Which integers an activation becomes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ActivationSpec {
    /// 8 or 16.
    pub bits: u32,
    /// 0 is in the middle: signed for 16 bits, unsigned around 128 for 8.
    pub symmetric: bool,
}

/// How the range of a slot is found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RangeRule {
    /// By looking at values.
    Observed(ObserverKind),
    /// By looking at values, of which those 20 below the largest of their row count as that: softmax makes nothing of them.
    ObservedScores(ObserverKind),
    /// It is known beforehand.
    Fixed(Encoding),
    /// That of an embedding table, whose rows the values are.
    OfTable(usize),
}

/// Values on one grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    /// Name of the value that is computed first, the same in all graphs of a component.
    pub name: String,
    /// The integers.
    pub spec: ActivationSpec,
    /// How the range is found.
    pub range: RangeRule,
}

/// What a weight becomes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WeightPlan {
    /// A matrix that is multiplied with, or an embedding table that a rule names.
    Matrix(LayerPlan),
    /// An embedding table on one grid, with the integers of an activation.
    Table(ActivationSpec),
    /// Norms, tables of positions: on one grid, unsigned or signed.
    Constant(ActivationSpec),
    /// A bias of a matrix: 32-bit integers in units of the input's scale times the matrix row's.
    Bias {
        /// The matrix.
        matrix: usize,
        /// Slot of what the matrix is multiplied with.
        input: usize,
    },
    /// A bias that belongs to no matrix: 32-bit integers on one grid.
    LooseBias,
    /// A constant that is moved together with computed values and so is on their grid.
    OnSlot(usize),
}

/// Everything that becomes integers in one graph.
#[derive(Debug, Clone)]
pub struct GraphPlan {
    /// Grids.
    pub slots: Vec<Slot>,
    /// By value: the slot it is stored in where it is produced.
    pub produced: Vec<Option<usize>>,
    /// Operands `(node, operand)` that are stored once more, in another slot.
    pub consumed: BTreeMap<(usize, usize), usize>,
    /// By value: what a weight becomes.
    pub weights: BTreeMap<usize, WeightPlan>,
    /// Matrices and what the recipe gives them, in graph order.
    pub layers: Vec<PlannedLayer>,
}

/// A matrix or a table, and the rule that decided about it.
#[derive(Debug, Clone)]
pub struct PlannedLayer {
    /// Names the rules looked at: the node's, and the one upstream has for it.
    pub names: Vec<String>,
    /// What kind it is.
    pub kind: LayerKind,
    /// What it gets.
    pub plan: LayerPlan,
}

impl ActivationSpec {
    /// The grid of these integers for values in `range`.
    pub fn encoding(self, range: ValueRange) -> Encoding {
        let most = (1 << self.bits) - 1;
        let eps = 1e-4 / most as f32;
        match (self.symmetric, self.bits) {
            (false, _) => Encoding::affine(range, 0, most, eps),
            (true, 8) => Encoding::symmetric_u8(range, eps),
            (true, _) => Encoding::symmetric(range, -most / 2, most / 2, eps),
        }
    }
}

impl GraphPlan {
    /// Apply a recipe to a graph.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a graph that uses one weight as a matrix and as a table (see
    /// [`DecoderForm::separate_head`](crate::models::DecoderForm)), or a block size that does not divide a layer's inputs: the
    /// layer and both sizes are named.
    pub fn new(graph: &Graph, recipe: &Recipe) -> Result<Self> {
        let mut planner = Planner::new(graph, recipe);
        planner.share();
        planner.produce();
        planner.consume()?;
        planner.finish()
    }

    /// Nothing becomes an integer.
    pub fn empty(graph: &Graph) -> Self {
        let produced = vec![None; graph.values.len()];
        Self { slots: Vec::new(), produced, consumed: BTreeMap::new(), weights: BTreeMap::new(), layers: Vec::new() }
    }

    /// The slot of a value, by its name.
    pub fn slot_of<'p>(&'p self, graph: &Graph, value: &str) -> Option<&'p Slot> {
        let at = graph.values.iter().position(|known| known.info.name == value)?;
        self.produced.get(at).copied().flatten().map(|slot| &self.slots[slot])
    }
}

/// Names by which rules know a layer.
pub fn layer_names(node: &str) -> Vec<String> {
    let upstream = match node.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((_, "attention.wq" | "attention.wk" | "attention.wv" | "attention.wo"))
        | Some((_, "feed_forward.w1" | "feed_forward.w2" | "feed_forward.w3")) => Some(format!("{node}_conv")),
        _ if node == "output" => Some("output.conv".to_owned()),
        _ => None,
    };
    [Some(node.to_owned()), upstream].into_iter().flatten().collect()
}

struct Planner<'a> {
    graph: &'a Graph,
    recipe: &'a Recipe,
    /// By value: another one that it shares its slot with.
    parent: Vec<usize>,
    /// By root value.
    slot_of_root: BTreeMap<usize, usize>,
    plan: GraphPlan,
}

impl<'a> Planner<'a> {
    fn new(graph: &'a Graph, recipe: &'a Recipe) -> Self {
        let (parent, plan) = ((0..graph.values.len()).collect(), GraphPlan::empty(graph));
        Self { graph, recipe, parent, slot_of_root: BTreeMap::new(), plan }
    }

    /// Put the values of operators that only move them together.
    fn share(&mut self) {
        for node in &self.graph.nodes {
            match node.op {
                Op::Reshape | Op::Transpose { .. } => self.unite(node.inputs[0], node.output),
                Op::Concat { .. } => node.inputs.iter().for_each(|&input| self.unite(input, node.output)),
                _ => {}
            }
        }
    }

    fn root(&self, id: usize) -> usize {
        let mut at = id;
        while self.parent[at] != at {
            at = self.parent[at];
        }
        at
    }

    fn unite(&mut self, a: ValueId, b: ValueId) {
        let (a, b) = (self.root(a.0 as usize), self.root(b.0 as usize));
        self.parent[b] = a;
    }

    /// Give every value a slot.
    fn produce(&mut self) {
        for node in &self.graph.nodes {
            if !moves_values(&node.op) {
                let (spec, range) = self.result(node);
                self.give_slot(node.output, spec, range);
            }
        }
        let default = self.default_spec();
        for &id in &self.graph.inputs {
            if self.graph.value(id).info.dtype == DType::F32 && self.slot(id).is_none() {
                let range = if self.is_mask(id) {
                    RangeRule::Fixed(default.encoding(ValueRange::new(BLOCKED, 0.0)))
                } else {
                    RangeRule::Observed(self.recipe.plan(&[&self.graph.value(id).info.name], LayerKind::Other).observer)
                };
                self.give_slot(id, default, range);
            }
        }
        if self.recipe.kv8() {
            for node in self.products() {
                if let Some(slot) = self.slot(node.inputs[1]) {
                    self.plan.slots[slot].spec = ActivationSpec { bits: 8, symmetric: true };
                }
            }
        }
        for id in 0..self.graph.values.len() {
            self.plan.produced[id] = self.slot_of_root.get(&self.root(id)).copied();
        }
    }

    /// What a result is stored as.
    fn result(&self, node: &Node) -> (ActivationSpec, RangeRule) {
        let layer = self.layer(node);
        let spec = spec_of(&layer);
        let range = match &node.op {
            Op::Embedding if !self.is_named(&layer) => RangeRule::OfTable(node.inputs[1].0 as usize),
            Op::Sigmoid => RangeRule::Fixed(Encoding {
                scale: 1.0 / (1u32 << spec.bits) as f32,
                zero_point: 0,
                qmin: 0,
                qmax: (1 << spec.bits) - 1,
            }),
            _ if self.feeds_softmax(node.output) => RangeRule::ObservedScores(layer.observer),
            _ => RangeRule::Observed(layer.observer),
        };
        (spec, range)
    }

    /// Whether a rule was written for this layer or for its kind, and not just for everything.
    fn is_named(&self, layer: &LayerPlan) -> bool {
        let rule = layer.rule.and_then(|rule| self.recipe.rules().get(rule));
        rule.is_some_and(|rule| rule.pattern.is_some() || rule.kind == Some(LayerKind::Embedding))
    }

    fn layer(&self, node: &Node) -> LayerPlan {
        let names = layer_names(&node.name);
        let names = names.iter().map(String::as_str).collect::<Vec<_>>();
        self.recipe.plan(&names, layer_kind(&node.op))
    }

    /// The first value of those that share a slot decides what it is.
    fn give_slot(&mut self, id: ValueId, spec: ActivationSpec, range: RangeRule) {
        let root = self.root(id.0 as usize);
        if self.slot_of_root.contains_key(&root) {
            return;
        }
        self.slot_of_root.insert(root, self.plan.slots.len());
        self.plan.slots.push(Slot { name: self.graph.value(id).info.name.clone(), spec, range });
    }

    fn slot(&self, id: ValueId) -> Option<usize> {
        self.slot_of_root.get(&self.root(id.0 as usize)).copied()
    }

    /// Products of two computed values.
    fn products(&self) -> Vec<&'a Node> {
        let computed = |id: ValueId| self.graph.value(id).kind == ValueKind::Node;
        let is_product = |node: &&Node| node.op == Op::MatMul && node.inputs.iter().all(|&id| computed(id));
        self.graph.nodes.iter().filter(is_product).collect()
    }

    fn is_mask(&self, id: ValueId) -> bool {
        self.graph.nodes.iter().any(|node| node.inputs.get(1) == Some(&id) && blocks_scores(self.graph, node))
    }

    fn feeds_softmax(&self, id: ValueId) -> bool {
        self.graph.nodes.iter().any(|node| node.op == Op::Softmax && node.inputs[0] == id)
    }

    fn default_spec(&self) -> ActivationSpec {
        ActivationSpec { bits: self.recipe.default_dtype().activation_bits(), symmetric: false }
    }

    /// Find operands that are read as other integers than they were produced as, and what weights become.
    fn consume(&mut self) -> Result<()> {
        for (index, node) in self.graph.nodes.iter().enumerate() {
            let layer = self.layer(node);
            match &node.op {
                Op::Linear => self.consume_linear(index, node, layer)?,
                Op::Embedding if self.is_named(&layer) => {
                    check_blocks(self.graph, node, &layer)?;
                    self.weigh(node.inputs[1], WeightPlan::Matrix(layer))?;
                }
                Op::Embedding => self.weigh(node.inputs[1], WeightPlan::Table(layer.dtype.activation_spec()))?,
                Op::MatMul if layer.dtype.activation_bits() == 16 => {
                    let signed = ActivationSpec { bits: 16, symmetric: true };
                    // An 8-bit cache is read as it is.
                    if self.slot(node.inputs[1]).is_some_and(|slot| self.plan.slots[slot].spec.bits == 16) {
                        self.store_again(index, node, 1, signed);
                    }
                }
                Op::LayerNorm { .. } => {
                    self.weigh(node.inputs[1], WeightPlan::Constant(ActivationSpec { bits: 16, symmetric: true }))?;
                    self.weigh(node.inputs[2], WeightPlan::LooseBias)?;
                }
                _ => {
                    let spec = ActivationSpec { bits: layer.dtype.activation_bits(), symmetric: false };
                    for &id in node.inputs.iter().filter(|&&id| self.graph.value(id).kind == ValueKind::Weight) {
                        self.weigh(id, self.slot(id).map_or(WeightPlan::Constant(spec), WeightPlan::OnSlot))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn consume_linear(&mut self, index: usize, node: &Node, layer: LayerPlan) -> Result<()> {
        let spec = spec_of(&layer);
        let input = match self.slot(node.inputs[0]) {
            Some(slot) if self.plan.slots[slot].spec == spec => slot,
            _ => self.store_again(index, node, 0, spec),
        };
        let matrix = node.inputs[1];
        check_blocks(self.graph, node, &layer)?;
        self.weigh(matrix, WeightPlan::Matrix(layer))?;
        if let Some(&bias) = node.inputs.get(2) {
            self.weigh(bias, WeightPlan::Bias { matrix: matrix.0 as usize, input })?;
        }
        Ok(())
    }

    /// A slot of its own for an operand.
    fn store_again(&mut self, index: usize, node: &Node, operand: usize, spec: ActivationSpec) -> usize {
        let observer = self.layer(node).observer;
        let name = format!("{}#{operand}", node.name);
        self.plan.slots.push(Slot { name, spec, range: RangeRule::Observed(observer) });
        self.plan.consumed.insert((index, operand), self.plan.slots.len() - 1);
        self.plan.slots.len() - 1
    }

    fn weigh(&mut self, id: ValueId, plan: WeightPlan) -> Result<()> {
        match self.plan.weights.insert(id.0 as usize, plan) {
            Some(before) if std::mem::discriminant(&before) != std::mem::discriminant(&plan) => {
                let name = &self.graph.value(id).info.name;
                Err(Error::invalid(format!(
                    "weight {name} is used in two ways that need different integers; build the decoder with a separate head"
                )))
            }
            _ => Ok(()),
        }
    }

    fn finish(mut self) -> Result<GraphPlan> {
        for node in &self.graph.nodes {
            if matches!(node.op, Op::Linear | Op::Embedding) {
                let (names, kind, plan) = (layer_names(&node.name), layer_kind(&node.op), self.layer(node));
                self.plan.layers.push(PlannedLayer { names, kind, plan });
            }
        }
        Ok(self.plan)
    }
}

/// What a rule makes of activations.
fn spec_of(layer: &LayerPlan) -> ActivationSpec {
    ActivationSpec { bits: layer.dtype.activation_bits(), symmetric: layer.symmetric_activations }
}

fn layer_kind(op: &Op) -> LayerKind {
    match op {
        Op::Linear => LayerKind::Linear,
        Op::Embedding => LayerKind::Embedding,
        _ => LayerKind::Other,
    }
}

/// Whether an operator's results are its operands in other places.
pub(super) fn moves_values(op: &Op) -> bool {
    matches!(op, Op::Reshape | Op::Transpose { .. } | Op::Concat { .. })
}

/// Whether a node puts an attention mask on scores: its result goes into a softmax, its second operand comes from outside.
fn blocks_scores(graph: &Graph, node: &Node) -> bool {
    let second_is_input = node.inputs.get(1).is_some_and(|&id| graph.value(id).kind == ValueKind::Input);
    let blocks = matches!(node.op, Op::Add | Op::MaskedFill { .. }) && second_is_input;
    blocks && graph.nodes.iter().any(|next| next.op == Op::Softmax && next.inputs[0] == node.output)
}

fn check_blocks(graph: &Graph, node: &Node, layer: &LayerPlan) -> Result<()> {
    let (WeightGranularity::PerBlock(size), Some(cols)) =
        (layer.granularity, graph.value(node.inputs[1]).info.shape.last().copied())
    else {
        return Ok(());
    };
    if size > 0 && cols.is_multiple_of(size) {
        return Ok(());
    }
    let name = &node.name;
    Err(Error::invalid(format!(
        "layer {name}: blocks of {size} do not divide its {cols} inputs; give it another block size or granularity by a rule"
    )))
}

impl QuantDtype {
    /// The integers of activations, unsigned with any zero point.
    pub fn activation_spec(self) -> ActivationSpec {
        ActivationSpec { bits: self.activation_bits(), symmetric: false }
    }
}

#[cfg(test)]
mod tests;
