//! An attention sink's evictor for the fake decoder.

use crate::fake_decoder::{Encoding, FakeDecoder, HEADS, LAYERS, Shape, element, locate, read, write};
use etgenai::Result;
use etgenai::engine::{
    Constant, ConstantValue, Constants, ExecuteOptions, GraphSignature, LoadedComponent, check_call,
};
use etgenai::graph::{TensorInfo, TensorView, TensorViewMut};

/// Moves the slots behind the removed ones down, to their new positions.
pub struct FakeEvictor {
    graphs: Vec<GraphSignature>,
    shape: Shape,
    sink: usize,
    batch: usize,
    constants: Constants,
}

impl FakeEvictor {
    pub fn new(shape: &Shape, sink: usize, batch: usize) -> Self {
        let graphs = FakeDecoder::new(shape).0.graphs().to_vec().into_iter().map(|graph| {
            let caches: Vec<TensorInfo> = graph.inputs.into_iter().filter(|info| info.name.contains("cache")).collect();
            GraphSignature { name: graph.name, inputs: caches.clone(), outputs: caches }
        });
        let constant = |name: &str, value: usize| Constant {
            name: name.into(),
            values: vec![ConstantValue::Integer(value as i64)],
        };
        let constants = vec![constant("get_eviction_batch_size", batch), constant("get_sink_size", sink)];
        let constants = Constants::new(constants);
        Self { graphs: graphs.collect(), shape: shape.clone(), sink, batch, constants }
    }
}

impl LoadedComponent for FakeEvictor {
    fn graphs(&self) -> &[GraphSignature] {
        &self.graphs
    }

    fn execute(
        &mut self,
        graph: usize,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        _: &ExecuteOptions,
    ) -> Result<()> {
        check_call(&self.graphs[graph], inputs, outputs)?;
        let slots = inputs[0].shape[3];
        let encoding = Encoding::of(&self.shape, self.graphs[graph].name.starts_with("prefill"));
        for (index, (input, output)) in inputs.iter().zip(outputs.iter_mut()).enumerate() {
            let (kind, layer) = (index / LAYERS, index % LAYERS);
            output.bytes.fill(0);
            for (slot, head) in (0..slots).flat_map(|slot| (0..HEADS).map(move |head| (slot, head))) {
                let from = if slot < self.sink { slot } else { slot + self.batch };
                if from >= slots {
                    continue;
                }
                let element_at =
                    |place: usize| encoding.element(read(input, locate(false, kind, head, place, from, slots).1));
                // The third element tells which of the two ids with this remainder it is.
                let remainder = element_at(0);
                let ids = [remainder, remainder.wrapping_add(251)];
                let id = ids.into_iter().find(|&id| element(layer, kind, head, 2, id, from as u64) == element_at(2));
                for place in 0..3 {
                    let moved = id.map_or(0, |id| element(layer, kind, head, place, id, slot as u64));
                    write(output, locate(false, kind, head, place, slot, slots).1, encoding.level(moved));
                }
            }
        }
        Ok(())
    }

    fn constants(&self) -> &Constants {
        &self.constants
    }

    fn weight_bytes(&self) -> u64 {
        0
    }

    fn description(&self) -> String {
        "fake evictor".into()
    }
}
