//! The patterns of nodes that become one step. Each is found from its last node; what lies between must be seen by
//! nobody else.

use super::fuse::{Fuser, Match, is_transpose, nonlinearity, step};
use super::{Action, Attention, MaskInput, RowRule, SelfAttention};
use crate::graph::{Op, ValueId};

impl Fuser<'_> {
    /// The whole of one attention, seen from the transpose behind it.
    pub fn attention(&mut self, index: usize) -> Option<Match> {
        let f = &self.facts;
        let last = &f.graph.nodes[index];
        is_transpose(last, &[0, 2, 1, 3])?;
        let mut absorbed = Vec::new();
        let mut step_back = |id: ValueId| {
            let (index, node) = f.private(id)?;
            absorbed.push(index);
            Some(node)
        };
        let weighted = step_back(last.inputs[0]).filter(|n| n.op == Op::MatMul)?;
        let softmax = step_back(weighted.inputs[0]).filter(|n| n.op == Op::Softmax)?;
        let masked = step_back(softmax.inputs[0]).filter(|n| n.op == Op::Add)?;
        let mut scores = step_back(masked.inputs[0])?;
        let soft_cap = if let Op::SoftCap { cap } = scores.op { Some(cap) } else { None };
        if soft_cap.is_some() {
            scores = step_back(scores.inputs[0])?;
        }
        let scale = if let Op::Scale { factor } = scores.op { Some(factor) } else { None };
        if scale.is_some() {
            scores = step_back(scores.inputs[0])?;
        }
        let scores = Some(scores).filter(|n| n.op == Op::MatMul)?;
        let turned = step_back(scores.inputs[0])?;
        is_transpose(turned, &[0, 2, 1, 3])?;
        let keys = step_back(scores.inputs[1]).filter(|n| n.op == Op::Concat { axis: 3 } && n.inputs.len() == 2)?;
        let values = step_back(weighted.inputs[1]).filter(|n| n.op == Op::Concat { axis: 2 } && n.inputs.len() == 2)?;

        let (&[1, rows, heads, head_dim], &[_, kv_heads, _, cache]) =
            (f.shape(turned.inputs[0]), f.shape(keys.inputs[0]))
        else {
            return None;
        };
        let &[_, value_heads, value_cache, value_dim] = f.shape(values.inputs[0]) else { return None };
        let block = f.shape(keys.inputs[1])[3];
        let fits = value_heads == kv_heads && value_cache == cache;
        let fits = fits && block == rows && f.shape(values.inputs[1])[2] == rows;
        let given = f.input(keys.inputs[0]).is_some() && f.input(values.inputs[0]).is_some();
        let mask = f.input(masked.inputs[1])?;
        if !fits || !given || f.shape(masked.inputs[1]) != [1, 1, rows, cache + rows] {
            return None;
        }
        let cached = [keys.inputs[0], values.inputs[0]];
        let new = [keys.inputs[1], values.inputs[1]];
        let reads = [turned.inputs[0], cached[0], cached[1], new[0], new[1], masked.inputs[1]];
        let output = last.output;
        let mask = self.mask_number(MaskInput { input: mask, cache, block });
        let scale = scale.unwrap_or(1.0);
        let attention = Attention { rows, heads, kv_heads, head_dim, value_dim, cache, scale, soft_cap, mask };
        let step = step(Action::Attention(attention), &reads, output, RowRule::Own);
        Some(Match { step, absorbed })
    }

    fn mask_number(&mut self, mask: MaskInput) -> usize {
        self.masks.iter().position(|known| *known == mask).unwrap_or_else(|| {
            self.masks.push(mask);
            self.masks.len() - 1
        })
    }

    /// Attention of a block with itself, without cache and mask, seen from the transpose behind it.
    pub fn self_attention(&mut self, index: usize) -> Option<Match> {
        let f = &self.facts;
        let last = &f.graph.nodes[index];
        is_transpose(last, &[0, 2, 1, 3])?;
        let mut absorbed = Vec::new();
        let mut step_back = |id: ValueId| {
            let (index, node) = f.private(id)?;
            absorbed.push(index);
            Some(node)
        };
        let weighted = step_back(last.inputs[0]).filter(|n| n.op == Op::MatMul)?;
        let softmax = step_back(weighted.inputs[0]).filter(|n| n.op == Op::Softmax)?;
        let mut scores = step_back(softmax.inputs[0])?;
        let scale = if let Op::Scale { factor } = scores.op { Some(factor) } else { None };
        if scale.is_some() {
            scores = step_back(scores.inputs[0])?;
        }
        let scores = Some(scores).filter(|n| n.op == Op::MatMul)?;
        let (queries, keys) = (step_back(scores.inputs[0])?, step_back(scores.inputs[1])?);
        let values = step_back(weighted.inputs[1])?;
        is_transpose(queries, &[0, 2, 1, 3])?;
        is_transpose(keys, &[0, 2, 3, 1])?;
        is_transpose(values, &[0, 2, 1, 3])?;

        // The products were checked when the graph was: keys and values have as many columns, heads are multiples.
        let reads = [queries.inputs[0], keys.inputs[0], values.inputs[0]];
        let (&[1, rows, heads, head_dim], &[_, columns, kv_heads, _], &[_, _, value_heads, value_dim]) =
            (f.shape(reads[0]), f.shape(reads[1]), f.shape(reads[2]))
        else {
            return None;
        };
        if value_heads != kv_heads {
            return None;
        }
        let scale = scale.unwrap_or(1.0);
        let shape = SelfAttention { rows, columns, heads, kv_heads, head_dim, value_dim, scale };
        let step = step(Action::SelfAttention(shape), &reads, last.output, RowRule::Whole);
        Some(Match { step, absorbed })
    }

    /// `Mul(act(gate), up)`.
    pub fn gated(&mut self, index: usize) -> Option<Match> {
        let f = &self.facts;
        let node = &f.graph.nodes[index];
        if node.op != Op::Mul || f.shape(node.inputs[0]) != f.shape(node.inputs[1]) {
            return None;
        }
        for (gate, up) in [(node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])] {
            let Some((absorbed, activation)) = f.private(gate) else { continue };
            let Some(gate) = nonlinearity(&activation.op) else { continue };
            let step = step(Action::Gated(gate), &[activation.inputs[0], up], node.output, RowRule::RowWise);
            return Some(Match { step, absorbed: vec![absorbed] });
        }
        None
    }

    /// `act(Linear(x))`: the linear step applies the activation itself.
    pub fn activation(&mut self, index: usize) -> Option<Match> {
        let f = &self.facts;
        let node = &f.graph.nodes[index];
        let function = nonlinearity(&node.op)?;
        let (absorbed, linear) = f.private(node.inputs[0])?;
        if linear.op != Op::Linear {
            return None;
        }
        let mut step = self.linear(linear)?;
        step.writes = vec![node.output];
        if let Action::Linear { jobs, .. } = &mut step.action {
            jobs[0].activation = Some(function);
        }
        Some(Match { step, absorbed: vec![absorbed] })
    }

    /// `Add(x, Linear(y))`: the linear step adds `x` itself.
    pub fn residual(&mut self, index: usize) -> Option<Match> {
        let f = &self.facts;
        let node = &f.graph.nodes[index];
        if node.op != Op::Add || f.shape(node.inputs[0]) != f.shape(node.inputs[1]) {
            return None;
        }
        for (branch, residual) in [(node.inputs[1], node.inputs[0]), (node.inputs[0], node.inputs[1])] {
            let Some((absorbed, linear)) = f.private(branch) else { continue };
            if self.absorbed[absorbed] || linear.op != Op::Linear {
                continue;
            }
            if let Some(mut step) = self.linear(linear) {
                step.reads.push(residual);
                step.writes = vec![node.output];
                if let Action::Linear { jobs, .. } = &mut step.action {
                    jobs[0].residual = Some(1);
                }
                return Some(Match { step, absorbed: vec![absorbed] });
            }
        }
        None
    }
}
