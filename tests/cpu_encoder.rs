//! Promise: the CPU engine runs vision encoders, token embeddings and decoders behind them like the reference
//! interpreter, row by row, and never holds the attention scores of all heads.

mod support;
#[path = "support/encoder.rs"]
mod vision;

use etgenai::artefact::Component;
use etgenai::compile::{Flow, plan_storage, write_component};
use etgenai::engine::cpu::kernels::Kernels;
use etgenai::engine::cpu::pool::Pool;
use etgenai::engine::cpu::{CpuEngine, CpuOptions};
use etgenai::engine::reference::ReferenceComponent;
use etgenai::engine::{Engine, ExecuteOptions, LoadedComponent};
use etgenai::formats::WeightFormat;
use etgenai::graph::{DType, Graph, GraphBuilder, Op, Tensor, TensorInfo, ValueId, ValueKind};
use etgenai::models::build_decoder;
use etgenai::registry::ModelSpec;
use std::ops::Range;
use std::path::{Path, PathBuf};
use support::{MASKED, execute, sqnr};
use vision::{Encoder, RandomWeights, noise};

/// A component file of some graphs with random weights.
struct Written {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Written {
    fn new(graphs: Vec<Graph>, format: WeightFormat) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("component.safetensors");
        let header = plan_storage("component", graphs, format).unwrap();
        write_component(&path, &header, &RandomWeights, &Pool::new(2), &mut |_| Flow::Continue).unwrap();
        Self { _directory: directory, path }
    }

    /// The interpreter over the weights that the file really holds.
    fn reference(&self) -> ReferenceComponent {
        let component = Component::open(&self.path).unwrap();
        ReferenceComponent::new(component.graphs().to_vec(), &component).unwrap()
    }

    fn load(&self, kernels: Kernels, threads: usize) -> Box<dyn LoadedComponent> {
        load(&self.path, kernels, threads)
    }
}

fn load(path: &Path, kernels: Kernels, threads: usize) -> Box<dyn LoadedComponent> {
    CpuEngine::new(CpuOptions { threads: Some(threads), kernels: Some(kernels) }).load_file(path).unwrap()
}

fn random_tensor(info: &TensorInfo, seed: u64) -> Tensor {
    let (mut random, count) = (noise(seed), info.element_count().unwrap());
    Tensor::from_f32(&info.name, &info.shape, &(0..count).map(|_| random()).collect::<Vec<_>>()).unwrap()
}

/// Random f32 inputs; indices count up from 0.
fn random_inputs(component: &dyn LoadedComponent, graph: usize) -> Vec<Tensor> {
    let infos = component.graphs()[graph].inputs.iter().enumerate();
    let tensor = |(number, info): (usize, &TensorInfo)| match info.dtype {
        DType::I32 => {
            let indices = (0..info.element_count().unwrap() as i32).collect::<Vec<_>>();
            Tensor::from_i32(&info.name, &info.shape, &indices).unwrap()
        }
        _ => random_tensor(info, number as u64 + 7),
    };
    infos.map(tensor).collect()
}

/// The worst row's signal-to-noise ratio, in dB.
fn worst_row(found: &Tensor, expected: &Tensor) -> f64 {
    let width = found.info().shape.last().copied().unwrap();
    let rows = found.as_slice::<f32>().unwrap().chunks_exact(width);
    let pairs = rows.zip(expected.as_slice::<f32>().unwrap().chunks_exact(width));
    pairs.map(|(found, expected)| sqnr(found, expected)).fold(f64::INFINITY, f64::min)
}

fn run(component: &mut dyn LoadedComponent, inputs: &[Tensor]) -> Vec<Tensor> {
    execute(component, 0, inputs, &ExecuteOptions::default()).unwrap()
}

/// Shapes that fill no tile, strip or slice, with more rows than a block of any kernel.
fn odd_encoder() -> Encoder {
    Encoder { image: 136, patch: 8, width: 60, heads: 3, ffn: 70, layers: 1, shuffle: 1, ..Encoder::tiny_internvl3() }
}

#[test]
fn encoders_answer_like_the_reference_row_by_row() {
    for encoder in [Encoder::tiny_smolvlm(), Encoder::tiny_internvl3(), odd_encoder()] {
        for format in WeightFormat::ALL {
            let written = Written::new(vec![encoder.graph()], format);
            let mut reference = written.reference();
            let inputs = random_inputs(&reference, 0);
            let expected = run(&mut reference, &inputs);
            for kernels in Kernels::available() {
                let found = run(&mut *written.load(kernels, 2), &inputs);
                let db = worst_row(&found[0], &expected[0]);
                // The reference does not quantize activations to 16 bits.
                let floor = if format.is_integer() { 70.0 } else { 100.0 };
                let (format, kernels) = (format.name(), kernels.name());
                assert!(db >= floor, "{} rows, {format}, {kernels}: {db:.1} dB", encoder.rows());
            }
        }
    }
}

#[test]
fn threads_do_not_change_a_bit_of_an_encoding() {
    for encoder in [Encoder::tiny_smolvlm(), odd_encoder()] {
        for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::W8, WeightFormat::W4] {
            let written = Written::new(vec![encoder.graph()], format);
            let mut one = written.load(Kernels::detect(), 1);
            let inputs = random_inputs(&*one, 0);
            let expected = run(&mut *one, &inputs);
            for threads in [2, 3, 8] {
                let found = run(&mut *written.load(Kernels::detect(), threads), &inputs);
                let equal = found[0].bytes() == expected[0].bytes();
                assert!(equal, "{} rows, {}, {threads} threads", encoder.rows(), format.name());
            }
        }
    }
}

#[test]
fn every_heavy_part_of_an_encoder_has_a_kernel_of_its_own() {
    for (encoder, layout) in [(Encoder::tiny_smolvlm(), 2), (Encoder::tiny_internvl3(), 4)] {
        let written = Written::new(vec![encoder.graph()], WeightFormat::F16);
        let mut component = written.load(Kernels::detect(), 2);
        component.set_profiling(true);
        let inputs = random_inputs(&*component, 0);
        run(&mut *component, &inputs);
        let profile = component.profile();
        let calls = |name: &str| profile.iter().filter(|op| op.name == name).map(|op| op.calls).sum::<u64>();
        assert_eq!(calls("self_attention"), encoder.layers as u64);
        let names = profile.iter().map(|op| op.name.as_str()).collect::<Vec<_>>();
        assert!(!names.iter().any(|name| name.contains("gelu")), "activations go with their matrix: {names:?}");
        // What is left are moves: into patches, class token in and out (and its positions), pixel shuffle.
        let generic = profile.iter().filter(|op| op.name.starts_with("generic")).map(|op| op.calls).sum::<u64>();
        assert_eq!(generic, layout, "{names:?}");
        let flops = profile.iter().map(|op| op.flops).sum::<u64>();
        let moved = 4 * (3 * encoder.image * encoder.image + encoder.rows() * encoder.width) as u64;
        assert!(flops >= encoder.flops() && flops - encoder.flops() <= moved, "{flops} of {}", encoder.flops());
    }
}

/// `q`, `k` and `v` of any number of rows and heads, and what becomes of the weights.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    columns: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    value_dim: usize,
    scale: Option<f32>,
}

fn attention(shape: Shape, weights_are_an_output: bool) -> Graph {
    let build = || {
        let mut b = GraphBuilder::new("attention");
        let mut operand = |name: &str, [rows, heads, dim]: [usize; 3], perm: [usize; 4]| {
            let x = b.input(name, DType::F32, &[1, rows, heads, dim])?;
            b.node(&format!("{name}_transposed"), Op::Transpose { perm: perm.to_vec() }, &[x])
        };
        let q = operand("q", [shape.rows, shape.heads, shape.head_dim], [0, 2, 1, 3])?;
        let k = operand("k", [shape.columns, shape.kv_heads, shape.head_dim], [0, 2, 3, 1])?;
        let v = operand("v", [shape.columns, shape.kv_heads, shape.value_dim], [0, 2, 1, 3])?;
        let mut scores = b.node("scores", Op::MatMul, &[q, k])?;
        if let Some(factor) = shape.scale {
            scores = b.node("scaled", Op::Scale { factor }, &[scores])?;
        }
        let weights = b.node("weights", Op::Softmax, &[scores])?;
        let mixed = b.node("mixed", Op::MatMul, &[weights, v])?;
        let out = b.node("out", Op::Transpose { perm: vec![0, 2, 1, 3] }, &[mixed])?;
        b.output(out, "attended")?;
        if weights_are_an_output {
            b.output(weights, "attention_weights")?;
        }
        b.finish()
    };
    let graph: etgenai::Result<Graph> = build();
    graph.unwrap()
}

#[test]
fn attention_of_any_shape_is_fused_and_right() {
    let plain = Shape { rows: 5, columns: 5, heads: 2, kv_heads: 2, head_dim: 8, value_dim: 8, scale: Some(0.3) };
    let shapes = [
        plain,
        Shape { rows: 1, columns: 1, heads: 1, kv_heads: 1, ..plain },
        Shape { rows: 25, columns: 300, ..plain },
        Shape { rows: 49, columns: 17, heads: 6, kv_heads: 2, head_dim: 20, value_dim: 37, scale: None },
    ];
    for shape in shapes {
        let written = Written::new(vec![attention(shape, false)], WeightFormat::F32);
        let mut reference = written.reference();
        let inputs = random_inputs(&reference, 0);
        let expected = run(&mut reference, &inputs);
        for kernels in Kernels::available() {
            let mut component = written.load(kernels, 3);
            component.set_profiling(true);
            let found = run(&mut *component, &inputs);
            let db = worst_row(&found[0], &expected[0]);
            assert!(db >= 100.0, "{} by {}, {}: {db:.1} dB", shape.rows, shape.columns, kernels.name());
            assert_eq!(component.profile().len(), 1, "one step");
        }
    }
}

#[test]
fn attention_whose_weights_are_wanted_is_not_fused() {
    let shape = Shape { rows: 9, columns: 9, heads: 2, kv_heads: 1, head_dim: 8, value_dim: 8, scale: Some(0.3) };
    let written = Written::new(vec![attention(shape, true)], WeightFormat::F32);
    let mut reference = written.reference();
    let inputs = random_inputs(&reference, 0);
    let expected = run(&mut reference, &inputs);
    let mut component = written.load(Kernels::detect(), 2);
    component.set_profiling(true);
    let found = run(&mut *component, &inputs);
    assert!(worst_row(&found[0], &expected[0]) >= 100.0 && worst_row(&found[1], &expected[1]) >= 100.0);
    assert!(component.profile().iter().all(|op| op.name != "self_attention"));
}

/// An activation that somebody else looks at, or whose input somebody else looks at.
#[test]
fn activations_with_several_readers_stay_apart() {
    let mut b = GraphBuilder::new("g");
    let x = b.input("x", DType::F32, &[1, 9, 8]).unwrap();
    let w = b.weight("w.weight", &[8, 8]).unwrap();
    let sums = b.node("sums", Op::Linear, &[x, w]).unwrap();
    let active = b.node("active", Op::Gelu, &[sums]).unwrap();
    let both = b.node("both", Op::Add, &[sums, active]).unwrap();
    let again = b.node("again", Op::Linear, &[both, w]).unwrap();
    let silu = b.node("silu", Op::Silu, &[again]).unwrap();
    let out = b.node("out", Op::Add, &[x, silu]).unwrap();
    b.output(silu, "seen").unwrap();
    b.output(out, "y").unwrap();
    let written = Written::new(vec![b.finish().unwrap()], WeightFormat::F32);
    let mut reference = written.reference();
    let inputs = random_inputs(&reference, 0);
    let expected = run(&mut reference, &inputs);
    let found = run(&mut *written.load(Kernels::detect(), 2), &inputs);
    for (found, expected) in found.iter().zip(&expected) {
        assert!(worst_row(found, expected) >= 100.0, "{}", found.info().name);
    }
}

/// The graphs of the `tok_embedding` component.
fn token_embedding(vocab: usize, width: usize, block: usize) -> Vec<Graph> {
    let graph = |name: &str, rows: usize| {
        let mut b = GraphBuilder::new(name);
        let tokens = b.input("tokens", DType::I32, &[1, rows])?;
        let table = b.weight("tok_embeddings.weight", &[vocab, width])?;
        let x = b.node("tok_embeddings", Op::Embedding, &[tokens, table])?;
        b.output(x, "hidden_states")?;
        b.finish()
    };
    let graphs: etgenai::Result<Vec<Graph>> =
        [("tok_embedding_kv_forward", 1), ("tok_embedding_prefill_forward", block)]
            .into_iter()
            .map(|(name, rows)| graph(name, rows))
            .collect();
    graphs.unwrap()
}

#[test]
fn embedding_rows_are_those_of_the_table_and_only_valid_rows_are_read() {
    for format in WeightFormat::ALL {
        let written = Written::new(token_embedding(300, 70, 40), format);
        let mut reference = written.reference();
        let mut component = written.load(Kernels::detect(), 2);
        let one = Tensor::from_i32("tokens", &[1, 1], &[299]).unwrap();
        let expected = run(&mut reference, std::slice::from_ref(&one));
        assert_eq!(run(&mut *component, &[one])[0].bytes(), expected[0].bytes(), "{}", format.name());

        let mut tokens = (0..40).map(|i| i * 7).collect::<Vec<_>>();
        let block = Tensor::from_i32("tokens", &[1, 40], &tokens).unwrap();
        let expected = execute(&mut reference, 1, &[block], &ExecuteOptions::default()).unwrap();
        // Rows that are not valid may hold anything.
        tokens[33..].fill(-5);
        let block = Tensor::from_i32("tokens", &[1, 40], &tokens).unwrap();
        let options = ExecuteOptions { valid_rows: Some(33), logits_rows: None };
        let found = execute(&mut *component, 1, &[block], &options).unwrap();
        let (found, expected) = (found[0].as_slice::<f32>().unwrap(), expected[0].as_slice::<f32>().unwrap());
        assert_eq!(found[..33 * 70], expected[..33 * 70], "{}", format.name());
        assert!(found[33 * 70..].iter().all(|x| x.is_nan()), "rows that are not valid are left alone");
    }
}

/// A decoder graph that takes `hidden_states` in place of `tokens`.
fn behind_embedding(mut graph: Graph) -> Graph {
    let at = graph.nodes.iter().position(|node| node.op == Op::Embedding).unwrap();
    let embedding = graph.nodes.remove(at);
    let (tokens, embedded) = (embedding.inputs[0], embedding.output);
    let shape = graph.value(embedded).info.shape.clone();
    graph.values[tokens.0 as usize].info = Graph::f32_info("hidden_states", &shape);
    assert_eq!(graph.value(tokens).kind, ValueKind::Input);
    graph.values.remove(embedded.0 as usize);
    let renumber = |id: &mut ValueId| match *id {
        old if old == embedded => *id = tokens,
        old if old > embedded => id.0 -= 1,
        _ => {}
    };
    graph.inputs.iter_mut().chain(&mut graph.outputs).for_each(renumber);
    for node in &mut graph.nodes {
        node.inputs.iter_mut().chain([&mut node.output]).for_each(renumber);
    }
    graph.validate().unwrap();
    graph
}

fn decoder(block: usize) -> Vec<Graph> {
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": 90, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
        "rope_theta": 10000.0, "tie_word_embeddings": true,
    });
    let spec = ModelSpec::from_config(config.as_object().unwrap()).unwrap();
    build_decoder(&spec.decoder, 64, block).unwrap().into_iter().map(behind_embedding).collect()
}

/// Hidden states, an empty cache and a causal mask.
fn first_block(component: &dyn LoadedComponent, graph: usize) -> Vec<Tensor> {
    let mut inputs = random_inputs(component, graph);
    let block = inputs[0].info().shape[1];
    for tensor in inputs.iter_mut().filter(|tensor| tensor.info().name.ends_with("mask")) {
        let columns = tensor.info().shape[3];
        let past = columns - block;
        let seen = |row: usize, column: usize| (past..=past + row).contains(&column);
        let mut view = tensor.view_mut();
        let values = view.as_mut_slice::<f32>().unwrap().iter_mut().enumerate();
        values.for_each(|(i, x)| *x = if seen(i / columns, i % columns) { 0.0 } else { MASKED });
    }
    inputs
}

fn rows(tensor: &Tensor, rows: Range<usize>) -> &[f32] {
    let width = tensor.info().shape[2];
    &tensor.as_slice::<f32>().unwrap()[rows.start * width..rows.end * width]
}

#[test]
fn a_decoder_of_hidden_states_computes_only_the_rows_that_are_asked_for() {
    for format in [WeightFormat::F32, WeightFormat::W8, WeightFormat::W4] {
        let written = Written::new(decoder(24), format);
        let mut reference = written.reference();
        let mut component = written.load(Kernels::detect(), 2);
        let floor = if format.is_integer() { 65.0 } else { 100.0 };
        for graph in [0, 1] {
            let inputs = first_block(&reference, graph);
            let expected = execute(&mut reference, graph, &inputs, &ExecuteOptions::default()).unwrap();
            let found = execute(&mut *component, graph, &inputs, &ExecuteOptions::default()).unwrap();
            for (found, expected) in found.iter().zip(&expected) {
                let db = sqnr(found.as_slice().unwrap(), expected.as_slice().unwrap());
                assert!(db >= floor, "{} {}: {db:.1} dB", format.name(), found.info().name);
            }
        }

        let mut inputs = first_block(&reference, 1);
        let expected = execute(&mut *component, 1, &inputs, &ExecuteOptions::default()).unwrap();
        // What padding rows hold must not matter.
        let width = inputs[0].info().shape[2];
        inputs[0].view_mut().as_mut_slice::<f32>().unwrap()[19 * width..].fill(f32::NAN);
        for asked in [18..19, 3..7, 0..0] {
            let options = ExecuteOptions { valid_rows: Some(19), logits_rows: Some(asked.clone()) };
            component.set_profiling(true);
            let found = execute(&mut *component, 1, &inputs, &options).unwrap();
            // Few rows are multiplied by other kernels than many, whose sums are rounded in another order.
            let floor = if format.is_integer() { 80.0 } else { 110.0 };
            if !asked.is_empty() {
                let db = sqnr(rows(&found[0], asked.clone()), rows(&expected[0], asked.clone()));
                assert!(db >= floor, "{} {asked:?}: {db:.1} dB", format.name());
            }
            let others = [rows(&found[0], 0..asked.start), rows(&found[0], asked.end..24)].concat();
            assert!(others.iter().all(|x| x.is_nan()), "{} {asked:?}: other logits are not computed", format.name());
            for (found, expected) in found[1..].iter().zip(&expected[1..]) {
                let valid = |i: &usize| {
                    let shape = &found.info().shape;
                    let row = if found.info().name.starts_with('k') { i % shape[3] } else { i / shape[3] % shape[2] };
                    row < 19
                };
                let pick = |tensor: &Tensor| {
                    let values = tensor.as_slice::<f32>().unwrap();
                    (0..values.len()).filter(valid).map(|i| values[i]).collect::<Vec<_>>()
                };
                let db = sqnr(&pick(found), &pick(expected));
                assert!(db >= floor, "{} {asked:?} {}: {db:.1} dB", format.name(), found.info().name);
            }
            let linear = component.profile().into_iter().filter(|op| op.name.starts_with("linear"));
            let flops = linear.map(|op| op.flops).sum::<u64>();
            assert_eq!(flops, decoder_flops(19, asked.len()), "{} {asked:?}", format.name());
        }
    }
}

/// Multiplications and additions of the matrices for `valid` rows of which `asked` get logits: the last layer computes
/// only keys and values of the others.
fn decoder_flops(valid: usize, asked: usize) -> u64 {
    let (width, kv, ffn, vocab) = (64, 32, 96, 90);
    let keys_and_values = 2 * width * kv;
    let rest = 2 * width * width + 3 * width * ffn;
    let whole_layer = valid * (keys_and_values + rest);
    2 * (whole_layer + valid * keys_and_values + asked * (rest + width * vocab)) as u64
}
