//! Checks a graph that came from outside before anything trusts its ids, order or shapes.

use super::ir::{Graph, Node, ValueId, ValueKind};
use super::shape;
use super::tensor::{DType, TensorInfo};
use crate::error::{Error, Result};
use std::collections::HashSet;

impl Graph {
    /// Check everything engines rely on: ids in range, inputs and outputs of the right kind, nodes in execution order,
    /// each value defined exactly once, names unique, and each node's result equal to what its operands imply.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the graph, the node or value, and what is wrong. Never panics.
    pub fn validate(&self) -> Result<()> {
        let checked = Validator { graph: self, defined: vec![false; self.values.len()] }.run();
        checked.map_err(|reason| Error::InvalidArgument(format!("graph {}: {reason}", self.name)))
    }
}

type Check = std::result::Result<(), String>;

struct Validator<'a> {
    graph: &'a Graph,
    /// Values that have a definition so far.
    defined: Vec<bool>,
}

impl Validator<'_> {
    fn run(mut self) -> Check {
        if self.graph.name.is_empty() {
            return Err("it has no name".into());
        }
        self.check_values()?;
        self.check_inputs()?;
        let mut names = HashSet::new();
        for node in &self.graph.nodes {
            if node.name.is_empty() || !names.insert(node.name.as_str()) {
                return Err(format!("node name {:?} is empty or used twice", node.name));
            }
            self.check_node(node).map_err(|reason| format!("node {} ({}): {reason}", node.name, node.op.name()))?;
        }
        self.check_all_defined()?;
        self.check_outputs()
    }

    fn check_values(&mut self) -> Check {
        let mut names = HashSet::new();
        for (value, defined) in self.graph.values.iter().zip(&mut self.defined) {
            let info = &value.info;
            if info.name.is_empty() || !names.insert(info.name.as_str()) {
                return Err(format!("value name {:?} is empty or used twice", info.name));
            }
            shape::check_size(info).map_err(|reason| format!("value {}: {reason}", info.name))?;
            if value.kind != ValueKind::Input && info.dtype != DType::F32 {
                return Err(format!("value {} is {}; weights and results are f32", info.name, info.dtype.name()));
            }
            if value.kind == ValueKind::Weight {
                if info.shape.is_empty() || info.shape.contains(&0) {
                    return Err(format!("weight {} {:?} has no elements", info.name, info.shape));
                }
                *defined = true;
            }
        }
        Ok(())
    }

    fn check_inputs(&mut self) -> Check {
        for &id in &self.graph.inputs {
            let name = &self.info(id)?.name;
            if self.kind(id) != Some(ValueKind::Input) || self.is_defined(id) {
                return Err(format!("input {name} is not of kind input, or is listed twice"));
            }
            self.define(id);
        }
        Ok(())
    }

    fn check_node(&mut self, node: &Node) -> Check {
        let mut operands = Vec::with_capacity(node.inputs.len());
        for &id in &node.inputs {
            let info = self.info(id)?;
            if !self.is_defined(id) {
                return Err(format!("reads {} before it is computed", info.name));
            }
            operands.push(info);
        }
        let result = self.info(node.output)?;
        if self.kind(node.output) != Some(ValueKind::Node) || self.is_defined(node.output) {
            return Err(format!("writes {}, which is no node's result or was computed before", result.name));
        }
        let shape = shape::infer(&node.op, &operands, Some(&result.shape))?;
        if shape != result.shape {
            return Err(format!("gives {shape:?}, but {} is declared as {:?}", result.name, result.shape));
        }
        self.define(node.output);
        Ok(())
    }

    fn check_all_defined(&self) -> Check {
        match self.graph.values.iter().zip(&self.defined).find(|(_, defined)| !**defined) {
            Some((value, _)) => Err(format!("value {} is neither an input nor computed", value.info.name)),
            None => Ok(()),
        }
    }

    fn check_outputs(&self) -> Check {
        if self.graph.outputs.is_empty() {
            return Err("it has no outputs".into());
        }
        let mut seen = HashSet::new();
        for &id in &self.graph.outputs {
            let name = &self.info(id)?.name;
            if self.kind(id) != Some(ValueKind::Node) || !seen.insert(id) {
                return Err(format!("output {name} is no node's result, or is listed twice"));
            }
        }
        Ok(())
    }

    fn info(&self, id: ValueId) -> std::result::Result<&'_ TensorInfo, String> {
        let count = self.graph.values.len();
        let value = self.graph.values.get(id.0 as usize);
        Ok(&value.ok_or_else(|| format!("value id {} is out of range, there are {count}", id.0))?.info)
    }

    fn kind(&self, id: ValueId) -> Option<ValueKind> {
        self.graph.values.get(id.0 as usize).map(|value| value.kind)
    }

    fn is_defined(&self, id: ValueId) -> bool {
        self.defined.get(id.0 as usize).copied().unwrap_or(false)
    }

    fn define(&mut self, id: ValueId) {
        if let Some(defined) = self.defined.get_mut(id.0 as usize) {
            *defined = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Op};
    use proptest::prelude::*;

    fn small_graph() -> Graph {
        let mut b = GraphBuilder::new("forward");
        let x = b.input("x", DType::F32, &[1, 2, 4]).unwrap();
        let w = b.weight("fc.weight", &[4, 4]).unwrap();
        let h = b.node("fc", Op::Linear, &[x, w]).unwrap();
        let a = b.node("act", Op::Silu, &[h]).unwrap();
        let y = b.node("add", Op::Add, &[x, a]).unwrap();
        b.output(y, "y").unwrap();
        b.finish().unwrap()
    }

    fn refusal(change: impl FnOnce(&mut Graph)) -> String {
        let mut graph = small_graph();
        change(&mut graph);
        graph.validate().unwrap_err().to_string()
    }

    #[test]
    fn a_graph_survives_its_json() {
        let graph = small_graph();
        let json = serde_json::to_string(&graph).unwrap();
        let read: Graph = serde_json::from_str(&json).unwrap();
        read.validate().unwrap();
        assert_eq!(read, graph);
    }

    #[test]
    fn each_kind_of_damage_is_named() {
        assert!(refusal(|g| g.nodes.swap(0, 1)).contains("before it is computed"));
        assert!(refusal(|g| g.nodes[0].inputs[0] = ValueId(99)).contains("value id 99 is out of range"));
        assert!(refusal(|g| g.outputs[0] = ValueId(u32::MAX)).contains("out of range"));
        assert!(refusal(|g| g.outputs.clear()).contains("no outputs"));
        assert!(refusal(|g| g.inputs.clear()).contains("reads x before"));
        assert!(refusal(|g| g.inputs.push(ValueId(0))).contains("listed twice"));
        assert!(refusal(|g| g.outputs[0] = ValueId(0)).contains("no node's result"));
        assert!(refusal(|g| g.nodes[0].inputs.truncate(1)).contains("1 operands, it takes 2 to 3"));
        assert!(refusal(|g| g.values[2].info.shape = vec![1, 2, 5]).contains("declared as [1, 2, 5]"));
        assert!(refusal(|g| g.values[1].info.shape = vec![4, 3]).contains("fc.weight [4, 3]"));
        assert!(refusal(|g| g.values[0].info.shape = vec![usize::MAX, 2]).contains("overflows"));
        assert!(refusal(|g| g.values[0].info.dtype = DType::I32).contains("is i32, not f32"));
        assert!(refusal(|g| g.values[1].info.dtype = DType::F16).contains("weights and results are f32"));
        assert!(refusal(|g| g.nodes[1].name = "fc".into()).contains("used twice"));
        assert!(refusal(|g| g.values[3].info.name = "x".into()).contains("used twice"));
        assert!(refusal(|g| g.nodes[1].op = Op::SoftCap { cap: 0.0 }).contains("cap 0"));
        assert!(refusal(|g| drop(g.nodes.pop())).contains("neither an input nor computed"));
    }

    fn any_op() -> impl Strategy<Value = Op> {
        let axis = 0usize..5;
        let any_len = prop_oneof![0usize..6, Just(usize::MAX)];
        prop_oneof![
            Just(Op::Embedding),
            Just(Op::Linear),
            Just(Op::MatMul),
            Just(Op::Softmax),
            Just(Op::Reshape),
            Just(Op::Add),
            any::<f32>().prop_map(|eps| Op::RmsNorm { eps }),
            any::<f32>().prop_map(|eps| Op::LayerNorm { eps }),
            any::<bool>().prop_map(|interleaved| Op::Rope { interleaved }),
            proptest::collection::vec(axis.clone(), 0..5).prop_map(|perm| Op::Transpose { perm }),
            axis.clone().prop_map(|axis| Op::Concat { axis }),
            (axis, any_len.clone(), any_len).prop_map(|(axis, start, len)| Op::Slice { axis, start, len }),
        ]
    }

    proptest! {
        /// Hostile graphs are refused or accepted, never a panic or an overflow.
        #[test]
        fn hostile_graphs_do_not_panic(
            op in any_op(),
            inputs in proptest::collection::vec(0u32..6, 0..5),
            output in 0u32..6,
            shapes in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![0usize..6, Just(usize::MAX), Just(1usize << 62)], 0..5), 5),
            kinds in proptest::collection::vec(0u8..3, 5),
        ) {
            let values = shapes.into_iter().zip(&kinds).enumerate().map(|(i, (shape, kind))| super::super::Value {
                info: TensorInfo {
                    name: format!("v{i}"),
                    dtype: if i == 4 { DType::I32 } else { DType::F32 },
                    shape,
                },
                kind: [ValueKind::Input, ValueKind::Weight, ValueKind::Node][*kind as usize],
            });
            let values = values.collect::<Vec<_>>();
            let given = (0..5).filter(|&i| values[i as usize].kind == ValueKind::Input).map(ValueId).collect();
            let node = Node {
                name: "n".into(),
                op,
                inputs: inputs.into_iter().map(ValueId).collect(),
                output: ValueId(output),
            };
            let outputs = vec![ValueId(output)];
            let graph = Graph { name: "g".into(), values, inputs: given, outputs, nodes: vec![node] };
            let _ = graph.validate();
        }
    }
}
