//! SiLU as the two operators it is made of.

use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Op, Value, ValueId, ValueKind};
use std::collections::HashSet;

/// `graph` with each [`Op::Silu`] written as [`Op::Sigmoid`] and [`Op::Mul`].
///
/// The product keeps the name and the result of the node that it replaces, so readers, outputs and rules on module paths
/// stay as they are; the sigmoid and its result are called `<name>.sigmoid` (`<name>.sigmoid_2` where that is taken, and so
/// on). Quantization wants this form: a sigmoid lies between 0 and 1 whatever its operand, so its range needs no
/// observation, while that of the product does.
///
/// # Errors
/// What [`Graph::validate`] finds in `graph`.
pub fn decompose_silu(graph: &Graph) -> Result<Graph> {
    graph.validate()?;
    let mut names = Names::of(graph);
    let mut decomposed = Graph { nodes: Vec::with_capacity(graph.nodes.len()), ..graph.clone() };
    for node in &graph.nodes {
        let (Op::Silu, &[x]) = (&node.op, &node.inputs[..]) else {
            decomposed.nodes.push(node.clone());
            continue;
        };
        let name = names.unused(&format!("{}.sigmoid", node.name));
        let gate = add_value(&mut decomposed, &name, &graph.value(x).info.shape)?;
        decomposed.nodes.push(Node { name, op: Op::Sigmoid, inputs: vec![x], output: gate });
        decomposed.nodes.push(Node {
            name: node.name.clone(),
            op: Op::Mul,
            inputs: vec![x, gate],
            output: node.output,
        });
    }
    decomposed.validate()?;
    Ok(decomposed)
}

fn add_value(graph: &mut Graph, name: &str, shape: &[usize]) -> Result<ValueId> {
    let id = u32::try_from(graph.values.len());
    let id = id.map_err(|_| Error::invalid(format!("graph {}: too many values", graph.name)))?;
    graph.values.push(Value { info: Graph::f32_info(name, shape), kind: ValueKind::Node });
    Ok(ValueId(id))
}

/// Names of nodes and values, each of which must stay unique.
struct Names(HashSet<String>);

impl Names {
    fn of(graph: &Graph) -> Self {
        let nodes = graph.nodes.iter().map(|node| node.name.clone());
        Self(nodes.chain(graph.values.iter().map(|value| value.info.name.clone())).collect())
    }

    /// `wanted`, or the first of `wanted_2`, `wanted_3`, … that is no name yet. It is one from now on.
    fn unused(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_string();
        let mut count = 1u32;
        while !self.0.insert(name.clone()) {
            count += 1;
            name = format!("{wanted}_{count}");
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{DType, GraphBuilder, Interpreter, Tensor, WeightProvider};
    use std::ops::Range;

    struct NoWeights;

    impl WeightProvider for NoWeights {
        fn read_rows(&self, name: &str, _: Range<usize>, _: &mut [f32]) -> Result<()> {
            Err(Error::NotFound(name.into()))
        }
    }

    /// Two activations in a row, the first of which is an output too.
    fn graph(first: &str, second: &str) -> Graph {
        let mut b = GraphBuilder::new("forward");
        let x = b.input("x", DType::F32, &[1, 6]).unwrap();
        let h = b.node(first, Op::Silu, &[x]).unwrap();
        let y = b.node(second, Op::Silu, &[h]).unwrap();
        let z = b.node("sum", Op::Add, &[y, x]).unwrap();
        b.output(h, "hidden").unwrap();
        b.output(z, "z").unwrap();
        b.finish().unwrap()
    }

    fn run(graph: Graph) -> Vec<Vec<f32>> {
        let x = Tensor::from_f32("x", &[1, 6], &[-30.0, -2.0, -0.5, 0.0, 0.75, 8.0]).unwrap();
        let outputs = Interpreter::new(graph, &NoWeights).unwrap().run(&[x.view()]).unwrap();
        outputs.iter().map(|output| output.as_slice().unwrap().to_vec()).collect()
    }

    #[test]
    fn the_result_is_the_same_and_keeps_its_names() {
        let whole = graph("layers.0.act", "layers.1.act");
        let parts = decompose_silu(&whole).unwrap();
        let nodes: Vec<_> = parts.nodes.iter().map(|node| (node.name.as_str(), node.op.name())).collect();
        let expected = [
            ("layers.0.act.sigmoid", "sigmoid"),
            ("layers.0.act", "mul"),
            ("layers.1.act.sigmoid", "sigmoid"),
            ("layers.1.act", "mul"),
            ("sum", "add"),
        ];
        assert_eq!(nodes, expected);
        assert_eq!((&parts.inputs, parts.output_infos()), (&whole.inputs, whole.output_infos()));
        for (whole, parts) in run(whole).iter().flatten().zip(run(parts).iter().flatten()) {
            assert!((whole - parts).abs() <= 1e-6 * whole.abs(), "{parts} is not {whole}");
        }
    }

    #[test]
    fn a_name_that_is_taken_is_not_used_again() {
        let parts = decompose_silu(&graph("a.sigmoid", "a")).unwrap();
        let names: Vec<&str> = parts.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["a.sigmoid.sigmoid", "a.sigmoid", "a.sigmoid_2", "a", "sum"]);
    }

    #[test]
    fn a_graph_without_silu_stays_and_a_damaged_one_is_refused() {
        let parts = decompose_silu(&graph("a", "b")).unwrap();
        assert_eq!(decompose_silu(&parts).unwrap(), parts);
        let mut damaged = graph("a", "b");
        damaged.nodes[0].inputs.clear();
        assert!(decompose_silu(&damaged).unwrap_err().to_string().contains("node a"));
    }
}
