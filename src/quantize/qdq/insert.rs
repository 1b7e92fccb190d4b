//! Quantize-dequantize nodes in a graph.

use crate::error::Result;
use crate::graph::{Graph, GraphBuilder, Op, ValueId, ValueKind};
use crate::quantize::calibration::Encodings;
use crate::quantize::encoding::Encoding;
use crate::quantize::plan::{GraphPlan, RangeRule, moves_values};

/// The graph with a [`Op::QuantizeDequantize`] behind every result, input and operand that `plan` stores as an integer, on the
/// grids of `encodings`. Inputs, outputs and weights keep names, types and shapes.
///
/// Values that are only moved, and rows of a table, are on their grid already and get no node.
///
/// # Errors
/// [`Error::NotFound`](crate::Error::NotFound) naming a tensor without an encoding.
pub fn insert(graph: &Graph, plan: &GraphPlan, encodings: &Encodings) -> Result<Graph> {
    let mut b = GraphBuilder::new(&graph.name);
    // By old value: the new one that readers shall have.
    let mut new: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    for &id in &graph.inputs {
        let info = &graph.value(id).info;
        let input = b.input(&info.name, info.dtype, &info.shape)?;
        let slot = plan.produced[id.0 as usize].filter(|_| !info.shape.contains(&0));
        new[id.0 as usize] = Some(match slot {
            Some(slot) => {
                b.node(&format!("{}.qdq", info.name), grid(encodings.get(&plan.slots[slot].name)?), &[input])?
            }
            None => input,
        });
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let mut operands = Vec::with_capacity(node.inputs.len());
        for (number, &id) in node.inputs.iter().enumerate() {
            let value = graph.value(id);
            let operand = match new[id.0 as usize] {
                Some(operand) => operand,
                None => b.weight(&value.info.name, &value.info.shape)?,
            };
            operands.push(match plan.consumed.get(&(index, number)) {
                Some(&slot) => {
                    let encoding = encodings.get(&plan.slots[slot].name)?;
                    b.node(&format!("{}.operand{number}.qdq", node.name), grid(encoding), &[operand])?
                }
                None => operand,
            });
        }
        let result = match node.op {
            Op::Reshape => b.reshape(&node.name, operands[0], &graph.value(node.output).info.shape)?,
            _ => b.node(&node.name, node.op.clone(), &operands)?,
        };
        let slot = plan.produced[node.output.0 as usize].map(|slot| &plan.slots[slot]);
        new[node.output.0 as usize] = Some(match slot {
            Some(slot) if !moves_values(&node.op) && !matches!(slot.range, RangeRule::OfTable(_)) => {
                b.node(&format!("{}.qdq", node.name), grid(encodings.get(&slot.name)?), &[result])?
            }
            _ => result,
        });
    }
    for &id in &graph.outputs {
        debug_assert_eq!(graph.value(id).kind, ValueKind::Node);
        if let Some(output) = new[id.0 as usize] {
            b.output(output, &graph.value(id).info.name)?;
        }
    }
    b.finish()
}

fn grid(encoding: Encoding) -> Op {
    let Encoding { scale, zero_point, qmin, qmax } = encoding;
    Op::QuantizeDequantize { scale, zero_point, qmin, qmax }
}
