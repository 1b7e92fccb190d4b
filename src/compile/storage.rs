//! Which number format each weight gets.

use crate::artefact::{ComponentHeader, Layout, StoredWeight};
use crate::error::{Error, Result};
use crate::formats::WeightFormat;
use crate::graph::{Graph, Op, ValueKind};
use std::collections::BTreeMap;

/// How the graphs use a weight.
#[derive(Debug, Clone, Copy, Default)]
struct Uses {
    /// As the matrix of a linear operator or an embedding table.
    matrix: bool,
    /// As anything else.
    other: bool,
    /// As an embedding table or the matrix of the last linear operator: a decoder's head, an encoder's connector.
    sensitive: bool,
}

/// Which format the matrices of a component get.
#[derive(Debug, Clone, Copy)]
pub enum MatrixFormats<'a> {
    /// The same for all; with [`WeightFormat::W4`] an embedding table and the last matrix of a graph (the output head of a
    /// decoder, the connector of a vision encoder) are stored as [`WeightFormat::W8`], because nothing behind it makes up
    /// for an error there.
    All(WeightFormat),
    /// One for each, by the name of the weight.
    Each(&'a BTreeMap<String, WeightFormat>),
}

impl From<WeightFormat> for MatrixFormats<'_> {
    fn from(format: WeightFormat) -> Self {
        Self::All(format)
    }
}

impl MatrixFormats<'_> {
    fn of(self, name: &str, sensitive: bool) -> Result<WeightFormat> {
        match self {
            Self::All(WeightFormat::W4) if sensitive => Ok(WeightFormat::W8),
            Self::All(format) => Ok(format),
            Self::Each(formats) => formats
                .get(name)
                .copied()
                .ok_or_else(|| Error::NotFound(format!("no format was chosen for the matrix {name}"))),
        }
    }
}

/// Decide how each weight of `graphs` is stored.
///
/// Matrices of linear operators and embedding tables are stored as `formats` says. All other weights (norms, biases,
/// position and RoPE tables) are f32. A weight that several operators or graphs use is stored once.
///
/// # Errors
/// [`Error::InvalidArgument`] if two graphs want different shapes of one weight; [`Error::NotFound`] for a matrix that
/// `formats` does not name.
pub fn plan_storage<'a>(
    component: &str,
    graphs: Vec<Graph>,
    formats: impl Into<MatrixFormats<'a>>,
) -> Result<ComponentHeader> {
    let formats = formats.into();
    let mut uses = BTreeMap::<&str, Uses>::new();
    graphs.iter().for_each(|graph| find_uses(graph, &mut uses));
    let mut weights = BTreeMap::<String, StoredWeight>::new();
    for info in graphs.iter().flat_map(Graph::weights) {
        let uses = uses.get(info.name.as_str()).copied().unwrap_or_default();
        let stored = match info.shape.as_slice() {
            &[rows, cols] if uses.matrix && !uses.other => {
                let format = formats.of(&info.name, uses.sensitive)?;
                StoredWeight { format, layout: Layout::Panels, shape: vec![rows, cols] }
            }
            shape => StoredWeight::plain(shape),
        };
        match weights.insert(info.name.clone(), stored.clone()) {
            Some(before) if before.shape != stored.shape => {
                let (name, a, b) = (&info.name, before.shape, stored.shape);
                return Err(Error::invalid(format!("weight {name} is {a:?} in one graph and {b:?} in another")));
            }
            _ => {}
        }
    }
    Ok(ComponentHeader { component: component.into(), graphs, weights })
}

fn find_uses<'a>(graph: &'a Graph, uses: &mut BTreeMap<&'a str, Uses>) {
    let head = graph.nodes.iter().rposition(|node| node.op == Op::Linear);
    for (index, node) in graph.nodes.iter().enumerate() {
        for (number, &id) in node.inputs.iter().enumerate() {
            let value = graph.value(id);
            if value.kind != ValueKind::Weight {
                continue;
            }
            let uses = uses.entry(&value.info.name).or_default();
            let is_matrix = number == 1 && matches!(node.op, Op::Linear | Op::Embedding);
            uses.matrix |= is_matrix;
            uses.other |= !is_matrix;
            uses.sensitive |= is_matrix && (node.op == Op::Embedding || Some(index) == head);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{DType, GraphBuilder};

    fn graph(tied: bool) -> Graph {
        let mut b = GraphBuilder::new("kv_forward");
        let tokens = b.input("tokens", DType::I32, &[1, 1]).unwrap();
        let table = b.weight("tok_embeddings.weight", &[64, 32]).unwrap();
        let x = b.node("tok_embeddings", Op::Embedding, &[tokens, table]).unwrap();
        let inner = b.weight("inner.weight", &[32, 32]).unwrap();
        let bias = b.weight("inner.bias", &[32]).unwrap();
        let x = b.node("inner", Op::Linear, &[x, inner, bias]).unwrap();
        let head = if tied { table } else { b.weight("output.weight", &[64, 32]).unwrap() };
        let logits = b.node("output", Op::Linear, &[x, head]).unwrap();
        b.output(logits, "logits").unwrap();
        b.finish().unwrap()
    }

    fn stored(tied: bool, format: WeightFormat) -> BTreeMap<String, (WeightFormat, Layout)> {
        let header = plan_storage("text_decoder", vec![graph(tied), graph(tied)], format).unwrap();
        header.weights.into_iter().map(|(name, w)| (name, (w.format, w.layout))).collect()
    }

    #[test]
    fn four_bit_weights_keep_table_and_head_at_eight() {
        for tied in [true, false] {
            let stored = stored(tied, WeightFormat::W4);
            assert_eq!(stored["tok_embeddings.weight"], (WeightFormat::W8, Layout::Panels));
            assert_eq!(stored["inner.weight"], (WeightFormat::W4, Layout::Panels));
            assert_eq!(stored["inner.bias"], (WeightFormat::F32, Layout::Plain));
            assert_eq!(!stored.contains_key("output.weight"), tied, "a tied head is stored once");
            assert!(tied || stored["output.weight"] == (WeightFormat::W8, Layout::Panels));
        }
    }

    #[test]
    fn other_formats_are_the_same_everywhere() {
        for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16, WeightFormat::W8] {
            let stored = stored(false, format);
            for name in ["tok_embeddings.weight", "inner.weight", "output.weight"] {
                assert_eq!(stored[name], (format, Layout::Panels));
            }
        }
    }

    #[test]
    fn formats_by_name_are_taken_as_they_are() {
        let formats = [("tok_embeddings.weight", WeightFormat::F16), ("inner.weight", WeightFormat::W8)];
        let mut formats = formats.map(|(name, format)| (name.to_owned(), format)).into_iter().collect();
        let plan = |formats: &BTreeMap<_, _>| plan_storage("c", vec![graph(false)], MatrixFormats::Each(formats));
        let error = plan(&formats).unwrap_err().to_string();
        assert!(error.contains("output.weight"), "{error}");
        formats.insert("output.weight".into(), WeightFormat::W4);
        let header = plan(&formats).unwrap();
        assert_eq!(header.weights["output.weight"].format, WeightFormat::W4, "the head too");
        assert_eq!(header.weights["tok_embeddings.weight"].format, WeightFormat::F16);
        assert_eq!(header.weights["inner.bias"].layout, Layout::Plain);
    }

    #[test]
    fn a_matrix_with_another_use_stays_plain() {
        let mut b = GraphBuilder::new("g");
        let x = b.input("x", DType::F32, &[4, 4]).unwrap();
        let w = b.weight("w", &[4, 4]).unwrap();
        let y = b.node("linear", Op::Linear, &[x, w]).unwrap();
        let z = b.node("add", Op::Add, &[y, w]).unwrap();
        b.output(z, "z").unwrap();
        let header = plan_storage("c", vec![b.finish().unwrap()], WeightFormat::W4).unwrap();
        assert_eq!(header.weights["w"], StoredWeight::plain(&[4, 4]));
    }
}
