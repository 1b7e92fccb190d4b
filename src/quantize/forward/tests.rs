use super::*;
use crate::graph::{DType, Graph, GraphBuilder, Interpreter, Tensor};
use std::ops::Range;

/// Weights that differ from each other, the same ones every time.
struct Waves;

impl WeightProvider for Waves {
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let (seed, first) = (name.len() as f32, rows.start * (out.len() / rows.len().max(1)));
        out.iter_mut().enumerate().for_each(|(i, out)| *out = ((first + i) as f32 * 0.7 + seed).sin());
        Ok(())
    }
}

fn block() -> Graph {
    let mut b = GraphBuilder::new("forward");
    let tokens = b.input("tokens", DType::I32, &[1, 3]).unwrap();
    let mask = b.input("mask", DType::F32, &[1, 1, 3, 3]).unwrap();
    let table = b.weight("table", &[9, 8]).unwrap();
    let x = b.node("embed", Op::Embedding, &[tokens, table]).unwrap();
    let (norm, bias) = (b.weight("norm.weight", &[8]).unwrap(), b.weight("fc.bias", &[16]).unwrap());
    let n = b.node("norm", Op::RmsNorm { eps: 1e-5 }, &[x, norm]).unwrap();
    let w = b.weight("fc.weight", &[16, 8]).unwrap();
    let h = b.node("fc", Op::Linear, &[n, w, bias]).unwrap();
    let h = b.node("act", Op::Silu, &[h]).unwrap();
    let heads = b.reshape("heads", h, &[1, 3, 2, 8]).unwrap();
    let q = b.node("q", Op::Transpose { perm: vec![0, 2, 1, 3] }, &[heads]).unwrap();
    let k = b.node("k", Op::Transpose { perm: vec![0, 2, 3, 1] }, &[heads]).unwrap();
    let s = b.node("scores", Op::MatMul, &[q, k]).unwrap();
    let s = b.node("masked", Op::MaskedFill { drop: 20.0 }, &[s, mask]).unwrap();
    let s = b.node("rounded", Op::QuantizeDequantize { scale: 0.01, zero_point: 9, qmin: 0, qmax: 999 }, &[s]).unwrap();
    let p = b.node("softmax", Op::Softmax, &[s]).unwrap();
    let y = b.node("mix", Op::MatMul, &[p, q]).unwrap();
    let y = b.node("gate", Op::Sigmoid, &[y]).unwrap();
    let y = b.reshape("flat", y, &[1, 6, 8]).unwrap();
    let w = b.weight("out.weight", &[4, 8]).unwrap();
    let y = b.node("out", Op::Linear, &[y, w]).unwrap();
    b.output(y, "y").unwrap();
    b.finish().unwrap()
}

fn inputs(tokens: [i32; 3]) -> Vec<Input> {
    let masked = [0.0, -255.0, -255.0, 0.0, 0.0, -255.0, 0.0, 0.0, 0.0];
    let tokens = Tensor::from_i32("tokens", &[1, 3], &tokens).unwrap();
    vec![Arc::new(tokens), Arc::new(Tensor::from_f32("mask", &[1, 1, 3, 3], &masked).unwrap())]
}

#[test]
fn it_computes_what_the_interpreter_does_and_shows_every_value() {
    let graph = block();
    let interpreter = Interpreter::new(graph.clone(), &Waves).unwrap();
    let samples = [inputs([1, 8, 3]), inputs([0, 0, 5])];
    let mut sequences = samples.iter().map(|sample| Sequence::new(&graph, sample, true).unwrap()).collect::<Vec<_>>();
    let mut seen = vec![Vec::new(); 2];
    let mut matrices = Vec::new();
    let mut forward = Forward::new(Arc::new(Pool::new(2)), &Waves);
    let mut before = |node: &Node, done: usize, total: usize| {
        matrices.push((node.name.clone(), done, total));
        Ok(())
    };
    let mut observe = |sample: usize, node: &Node, values: &[f32]| {
        assert_eq!(values.len(), graph.value(node.output).info.element_count().unwrap());
        seen[sample].push(node.name.clone());
        Ok(())
    };
    forward.run(&mut sequences, &mut before, &mut observe).unwrap();
    for (sample, sequence) in samples.iter().zip(&sequences) {
        let views = sample.iter().map(|input| input.view()).collect::<Vec<_>>();
        let expected = interpreter.run(&views).unwrap();
        let expected = expected[0].as_slice::<f32>().unwrap();
        let found = sequence.output("y").unwrap();
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4), "{found:?} {expected:?}");
    }
    let names = graph.nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>();
    assert_eq!(seen, [names.clone(), names]);
    assert_eq!(matrices, [("fc".to_owned(), 0, 2), ("out".to_owned(), 1, 2)]);
}

#[test]
fn inputs_that_do_not_fit_and_ids_outside_are_named() {
    let graph = block();
    let given = inputs([1, 9, 3]);
    let error = Sequence::new(&graph, &given[..1], false).unwrap_err().to_string();
    assert!(error.contains("2 inputs, 1 were given"), "{error}");
    let swapped = [Arc::clone(&given[1]), Arc::clone(&given[0])];
    assert!(Sequence::new(&graph, &swapped, false).unwrap_err().to_string().contains("input tokens is i32 [1, 3]"));
    let mut sequences = [Sequence::new(&graph, &given, false).unwrap()];
    let mut forward = Forward::new(Arc::new(Pool::new(1)), &Waves);
    let error = forward.run(&mut sequences, &mut |_, _, _| Ok(()), &mut |_, _, _| Ok(())).unwrap_err().to_string();
    assert!(error.contains("token id 9"), "{error}");
}
