//! The reference interpreter behind the engine traits: slow, exact, for tests and comparisons.

use super::{ExecuteOptions, GraphSignature, LoadedComponent, check_call};
use crate::error::{Error, Result};
use crate::graph::{Graph, Interpreter, TensorView, TensorViewMut, WeightProvider, Weights};

/// A component whose graphs are run word for word in f32, over one set of weights.
#[derive(Debug)]
pub struct ReferenceComponent {
    interpreters: Vec<Interpreter>,
    signatures: Vec<GraphSignature>,
    weight_bytes: u64,
}

impl ReferenceComponent {
    /// Load the weights of `graphs` from `provider` (all of them in f32) and prepare the graphs.
    ///
    /// # Errors
    /// An invalid graph, or what `provider` reports.
    pub fn new(graphs: Vec<Graph>, provider: &dyn WeightProvider) -> Result<Self> {
        graphs.iter().try_for_each(Graph::validate)?;
        let weights = Weights::load(&graphs, provider)?;
        let signatures = graphs.iter().map(signature).collect();
        let interpreters = graphs.into_iter().map(|graph| Interpreter::with_weights(graph, &weights));
        Ok(Self { interpreters: interpreters.collect::<Result<_>>()?, signatures, weight_bytes: weights.bytes() })
    }
}

fn signature(graph: &Graph) -> GraphSignature {
    GraphSignature { name: graph.name.clone(), inputs: graph.input_infos(), outputs: graph.output_infos() }
}

impl LoadedComponent for ReferenceComponent {
    fn graphs(&self) -> &[GraphSignature] {
        &self.signatures
    }

    fn execute(
        &mut self,
        graph: usize,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        _options: &ExecuteOptions,
    ) -> Result<()> {
        let (Some(interpreter), Some(signature)) = (self.interpreters.get(graph), self.signatures.get(graph)) else {
            return Err(Error::invalid(format!("graph {graph}: there are only {}", self.signatures.len())));
        };
        check_call(signature, inputs, outputs)?;
        interpreter.run_into(inputs, outputs)
    }

    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    fn description(&self) -> String {
        "reference interpreter, f32, 1 thread".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{DType, GraphBuilder, Op, Tensor};
    use std::ops::Range;

    struct Threes;

    impl WeightProvider for Threes {
        fn read_rows(&self, _: &str, _: Range<usize>, out: &mut [f32]) -> Result<()> {
            out.fill(3.0);
            Ok(())
        }
    }

    #[test]
    fn graphs_share_weights_and_are_addressed_by_index() {
        let graph = |name: &str, rows: usize| {
            let mut b = GraphBuilder::new(name);
            let x = b.input("x", DType::F32, &[rows, 2]).unwrap();
            let w = b.weight("fc.weight", &[1, 2]).unwrap();
            let y = b.node("fc", Op::Linear, &[x, w]).unwrap();
            b.output(y, "y").unwrap();
            b.finish().unwrap()
        };
        let mut component = ReferenceComponent::new(vec![graph("one", 1), graph("two", 2)], &Threes).unwrap();
        assert_eq!((component.graphs().len(), component.weight_bytes()), (2, 8));
        let x = Tensor::from_f32("x", &[2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        let mut y = Tensor::from_f32("y", &[2, 1], &[0.0; 2]).unwrap();
        let options = ExecuteOptions::default();
        component.execute(1, &[x.view()], &mut [y.view_mut()], &options).unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap(), [9.0, 21.0]);
        assert!(component.execute(0, &[x.view()], &mut [y.view_mut()], &options).is_err());
        assert!(component.execute(2, &[x.view()], &mut [y.view_mut()], &options).is_err());
    }
}
