//! Nodes to steps: one for each pattern that has a kernel of its own, one for each other node.

use super::super::kernels::Nonlinearity;
use super::super::weights::WeightTable;
use super::{Action, Demand, IndexCheck, Job, MaskInput, RowRule, Step};
use crate::graph::{Graph, Node, Op, ValueId, ValueKind};

/// Result of fusing.
pub(super) struct Fused {
    pub steps: Vec<Step<ValueId>>,
    pub alias: Aliases,
    pub block_rows: Option<usize>,
    pub checks: Vec<IndexCheck>,
    pub masks: Vec<MaskInput>,
}

/// Values that are the same memory: reshapes, and transposes that only move axes of length 1.
pub(super) struct Aliases {
    parent: Vec<u32>,
}

impl Aliases {
    fn new(values: usize) -> Self {
        Self { parent: (0..values as u32).collect() }
    }

    /// The value that stands for all of `id`'s memory.
    pub fn root(&self, id: ValueId) -> ValueId {
        let mut at = id.0;
        while self.parent[at as usize] != at {
            at = self.parent[at as usize];
        }
        ValueId(at)
    }

    /// `result` is the same memory as `operand`. An output (or input, or weight) stays the root of its memory.
    fn join(&mut self, operand: ValueId, result: ValueId, result_is_fixed: bool) {
        let root = self.root(operand);
        if result_is_fixed {
            self.parent[root.0 as usize] = result.0;
        } else {
            self.parent[result.0 as usize] = root.0;
        }
    }
}

/// What is known about each value of the graph.
pub(super) struct Facts<'a> {
    pub graph: &'a Graph,
    weights: &'a WeightTable,
    /// Node that computes the value.
    producer: Vec<Option<usize>>,
    /// Nodes that read the value (a node that reads it twice counts twice).
    readers: Vec<usize>,
    is_output: Vec<bool>,
}

impl<'a> Facts<'a> {
    fn new(graph: &'a Graph, weights: &'a WeightTable) -> Self {
        let mut facts = Self {
            graph,
            weights,
            producer: vec![None; graph.values.len()],
            readers: vec![0; graph.values.len()],
            is_output: vec![false; graph.values.len()],
        };
        for (index, node) in graph.nodes.iter().enumerate() {
            facts.producer[node.output.0 as usize] = Some(index);
            for id in &node.inputs {
                facts.readers[id.0 as usize] += 1;
            }
        }
        for id in &graph.outputs {
            facts.is_output[id.0 as usize] = true;
        }
        facts
    }

    pub fn shape(&self, id: ValueId) -> &'a [usize] {
        &self.graph.value(id).info.shape
    }

    /// Number of the graph input that `id` is.
    pub fn input(&self, id: ValueId) -> Option<usize> {
        self.graph.inputs.iter().position(|&input| input == id)
    }

    /// The node that computes `id`, if nobody but one reader sees the value: then it need not exist.
    pub fn private(&self, id: ValueId) -> Option<(usize, &'a Node)> {
        let index = self.producer[id.0 as usize]?;
        let unseen = self.readers[id.0 as usize] == 1 && !self.is_output[id.0 as usize];
        unseen.then(|| (index, &self.graph.nodes[index]))
    }

    pub fn plain_weight(&self, id: ValueId) -> Option<usize> {
        let value = self.graph.value(id);
        let number = (value.kind == ValueKind::Weight).then(|| self.weights.number(&value.info.name)).flatten()?;
        (!self.weights.is_packed(number)).then_some(number)
    }

    pub fn packed_weight(&self, id: ValueId) -> Option<usize> {
        let value = self.graph.value(id);
        let number = (value.kind == ValueKind::Weight).then(|| self.weights.number(&value.info.name)).flatten()?;
        self.weights.is_packed(number).then_some(number)
    }

    /// The memory of `id` is given from outside.
    fn is_given(&self, id: ValueId) -> bool {
        self.graph.value(id).kind != ValueKind::Node
    }
}

/// A step found by a pattern, and the nodes it makes unnecessary.
pub(super) struct Match {
    pub step: Step<ValueId>,
    pub absorbed: Vec<usize>,
}

/// Turn every node into a step, or a part of one.
pub(super) fn fuse(graph: &Graph, weights: &WeightTable) -> Fused {
    let facts = Facts::new(graph, weights);
    let mut fuser = Fuser {
        alias: Aliases::new(graph.values.len()),
        masks: Vec::new(),
        block_rows: block_rows(graph),
        has_rows: vec![false; graph.values.len()],
        matches: (0..graph.nodes.len()).map(|_| None).collect(),
        absorbed: vec![false; graph.nodes.len()],
        facts,
    };
    fuser.find_patterns();
    let steps = fuser.emit();
    let checks = index_checks(graph);
    Fused { steps, alias: fuser.alias, block_rows: fuser.block_rows, checks, masks: fuser.masks }
}

/// Rows of the block: those of output 0, `[1, AR, vocab]`.
fn block_rows(graph: &Graph) -> Option<usize> {
    match graph.value(*graph.outputs.first()?).info.shape.as_slice() {
        &[1, rows, _] => Some(rows),
        _ => None,
    }
}

fn index_checks(graph: &Graph) -> Vec<IndexCheck> {
    let mut checks = Vec::new();
    for node in &graph.nodes {
        let (what, index, table) = match node.op {
            Op::Embedding => ("token id", node.inputs[0], node.inputs[1]),
            Op::Rope { .. } => ("position", node.inputs[3], node.inputs[1]),
            _ => continue,
        };
        let bound = graph.value(table).info.shape[0];
        if let Some(input) = graph.inputs.iter().position(|&id| id == index) {
            let check = IndexCheck { input, what, bound };
            if !checks.contains(&check) {
                checks.push(check);
            }
        }
    }
    checks
}

pub(super) struct Fuser<'a> {
    pub facts: Facts<'a>,
    alias: Aliases,
    pub masks: Vec<MaskInput>,
    block_rows: Option<usize>,
    /// The value's outermost axis in memory is the rows of the block.
    has_rows: Vec<bool>,
    /// By node: the step it is the last node of.
    matches: Vec<Option<Step<ValueId>>>,
    /// By node: part of another node's step.
    pub absorbed: Vec<bool>,
}

impl Fuser<'_> {
    fn find_patterns(&mut self) {
        // Attention first: its pieces (adds, scales) would match smaller patterns too.
        let finders: [fn(&mut Self, usize) -> Option<Match>; 5] =
            [Self::attention, Self::self_attention, Self::gated, Self::activation, Self::residual];
        for find in finders {
            for index in 0..self.facts.graph.nodes.len() {
                if self.absorbed[index] || self.matches[index].is_some() {
                    continue;
                }
                if let Some(found) = find(self, index) {
                    found.absorbed.iter().for_each(|&node| self.absorbed[node] = true);
                    self.matches[index] = Some(found.step);
                }
            }
        }
    }

    fn emit(&mut self) -> Vec<Step<ValueId>> {
        let graph = self.facts.graph;
        for &id in &graph.inputs {
            let shape = self.facts.shape(id);
            self.has_rows[id.0 as usize] = (2..=3).contains(&shape.len()) && self.starts_with_rows(shape);
        }
        let mut steps = Vec::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            if self.absorbed[index] {
                continue;
            }
            if self.matches[index].is_none() && is_same_memory(graph, node) {
                self.emit_same_memory(node, &mut steps);
                continue;
            }
            let mut step = self.matches[index].take().unwrap_or_else(|| self.single(node));
            self.check_rows(&mut step);
            steps.push(step);
        }
        steps
    }

    fn starts_with_rows(&self, shape: &[usize]) -> bool {
        matches!(shape, &[1, rows, ..] if Some(rows) == self.block_rows)
    }

    /// A reshape: the result is another name of the operand, unless both have a place of their own.
    fn emit_same_memory(&mut self, node: &Node, steps: &mut Vec<Step<ValueId>>) {
        let (operand, result) = (node.inputs[0], node.output);
        let rows = self.has_rows[operand.0 as usize] && self.starts_with_rows(self.facts.shape(result));
        self.has_rows[result.0 as usize] = rows;
        let root = self.alias.root(operand);
        let operand_is_fixed = self.facts.is_given(root) || self.facts.is_output[root.0 as usize];
        let result_is_fixed = self.facts.is_output[result.0 as usize];
        if operand_is_fixed && result_is_fixed {
            let mut copy = step(Action::Copy, &[operand], result, RowRule::RowWise);
            self.check_rows(&mut copy);
            steps.push(copy);
        } else {
            self.alias.join(operand, result, result_is_fixed);
        }
    }

    /// Decide whether the step can work on some rows only, and whether its results have rows.
    fn check_rows(&mut self, step: &mut Step<ValueId>) {
        let has_rows = |id: &ValueId| self.has_rows[id.0 as usize];
        match (&step.action, step.rows) {
            (Action::Attention(_), _)
                if has_rows(&step.reads[0]) && self.starts_with_rows(self.facts.shape(step.writes[0])) =>
            {
                self.has_rows[step.writes[0].0 as usize] = true;
            }
            (Action::KvTranspose { .. }, _) if has_rows(&step.reads[0]) => {}
            (_, RowRule::RowWise) => {
                let mut writes = step.writes.iter();
                let row_wise =
                    step.reads.iter().all(has_rows) && writes.all(|id| self.starts_with_rows(self.facts.shape(*id)));
                if row_wise {
                    step.writes.iter().for_each(|id| self.has_rows[id.0 as usize] = true);
                } else {
                    step.rows = RowRule::Whole;
                }
            }
            _ => step.rows = RowRule::Whole,
        }
    }

    /// A step for one node.
    fn single(&self, node: &Node) -> Step<ValueId> {
        self.special(node).unwrap_or_else(|| self.generic(node))
    }

    /// A step with a kernel of its own.
    fn special(&self, node: &Node) -> Option<Step<ValueId>> {
        let f = &self.facts;
        let (inputs, shape) = (&node.inputs, f.shape(node.output));
        let action = match &node.op {
            Op::Linear => return self.linear(node),
            Op::Embedding => Action::Embedding { table: f.packed_weight(inputs[1])? },
            Op::RmsNorm { eps } => Action::RmsNorm { weight: f.plain_weight(inputs[1])?, eps: *eps },
            Op::LayerNorm { eps } => {
                Action::LayerNorm { weight: f.plain_weight(inputs[1])?, bias: f.plain_weight(inputs[2])?, eps: *eps }
            }
            Op::Silu | Op::Gelu | Op::GeluTanh => Action::Activation(nonlinearity(&node.op)?),
            Op::Rope { interleaved } => Action::Rope {
                cos: f.plain_weight(inputs[1])?,
                sin: f.plain_weight(inputs[2])?,
                heads: shape[2],
                head_dim: shape[3],
                pairs: f.shape(inputs[1])[1],
                interleaved: *interleaved,
            },
            Op::Add if f.shape(inputs[0]) == f.shape(inputs[1]) => {
                return Some(step(Action::Add, inputs, node.output, RowRule::RowWise));
            }
            Op::Scale { factor } => Action::Scale(*factor),
            Op::SoftCap { cap } => Action::SoftCap(*cap),
            Op::Transpose { perm } => {
                let &[1, rows, heads, dim] = f.shape(inputs[0]) else { return None };
                let keys = match perm.as_slice() {
                    [0, 2, 3, 1] => true,
                    [0, 2, 1, 3] => false,
                    _ => return None,
                };
                let action = Action::KvTranspose { keys, rows, heads, dim };
                return self.has_rows[inputs[0].0 as usize].then(|| step(action, inputs, node.output, RowRule::Own));
            }
            _ => return None,
        };
        let reads = match &node.op {
            Op::Rope { .. } => vec![inputs[0], inputs[3]],
            _ => vec![inputs[0]],
        };
        Some(step(action, &reads, node.output, RowRule::RowWise))
    }

    pub fn linear(&self, node: &Node) -> Option<Step<ValueId>> {
        let f = &self.facts;
        let weight = f.packed_weight(node.inputs[1])?;
        let bias = match node.inputs.get(2) {
            Some(&id) => Some(f.plain_weight(id)?),
            None => None,
        };
        let width = f.shape(node.inputs[1])[1];
        let rows = f.shape(node.inputs[0]).iter().rev().skip(1).product();
        let integer = f.weights.is_integer(weight);
        let jobs = vec![Job { weight, bias, activation: None, residual: None }];
        Some(step(Action::Linear { jobs, rows, width, integer }, &node.inputs[..1], node.output, RowRule::RowWise))
    }

    fn generic(&self, node: &Node) -> Step<ValueId> {
        let f = &self.facts;
        let shapes = node.inputs.iter().map(|&id| f.shape(id).to_vec()).collect();
        let action = Action::Generic { op: node.op.clone(), shapes, shape: f.shape(node.output).to_vec() };
        step(action, &node.inputs, node.output, RowRule::Whole)
    }
}

pub(super) fn step(action: Action, reads: &[ValueId], write: ValueId, rows: RowRule) -> Step<ValueId> {
    Step { action, reads: reads.to_vec(), writes: vec![write], demand: Demand::Valid, rows }
}

pub(super) fn is_transpose(node: &Node, wanted: &[usize]) -> Option<()> {
    matches!(&node.op, Op::Transpose { perm } if perm == wanted).then_some(())
}

/// The activation function that an operator is.
pub(super) fn nonlinearity(op: &Op) -> Option<Nonlinearity> {
    match op {
        Op::Silu => Some(Nonlinearity::Silu),
        Op::Gelu => Some(Nonlinearity::Gelu),
        Op::GeluTanh => Some(Nonlinearity::GeluTanh),
        _ => None,
    }
}

/// The node's result has its operand's elements in the same order.
fn is_same_memory(graph: &Graph, node: &Node) -> bool {
    match &node.op {
        Op::Reshape => true,
        Op::Transpose { perm } => {
            let shape = &graph.value(node.inputs[0]).info.shape;
            let moved = perm.iter().filter(|&&axis| shape[axis] != 1).collect::<Vec<_>>();
            moved.is_sorted()
        }
        _ => false,
    }
}
