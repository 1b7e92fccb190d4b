//! Promise: every form a decoder can be written in computes what the plain one does, on the reference interpreter and on the
//! CPU engine.

mod support;

use etgenai::checkpoint::Checkpoint;
use etgenai::compile::{Flow, plan_storage, write_component};
use etgenai::engine::cpu::kernels::Kernels;
use etgenai::engine::cpu::pool::Pool;
use etgenai::engine::cpu::{CpuEngine, CpuOptions};
use etgenai::engine::reference::ReferenceComponent;
use etgenai::engine::{Engine, ExecuteOptions, LoadedComponent};
use etgenai::formats::WeightFormat;
use etgenai::graph::{DType, Graph, GraphBuilder, Interpreter, Op, Tensor, Value, ValueId, WeightProvider};
use etgenai::models::{
    BoundWeights, DecoderForm, FirstInput, KV_FORWARD, ModelWeights, PREFILL_FORWARD, build_decoder_form,
};
use etgenai::registry::{DecoderSpec, ModelSpec};
use etgenai::transform::decompose_silu;
use std::ops::Range;
use support::{Golden, MASKED, Session, execute, sqnr};

const FAMILIES: [&str; 12] = [
    "llama", "smollm2", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "granite", "phi4mini", "glm", "glm_edge",
    "smollm3",
];
fn plain() -> DecoderForm {
    DecoderForm::default()
}

fn r3() -> DecoderForm {
    DecoderForm { r3: true, ..plain() }
}

fn masked_softmax() -> DecoderForm {
    DecoderForm { masked_softmax: true, ..plain() }
}

fn half_split() -> DecoderForm {
    DecoderForm { half_split_rope: true, ..plain() }
}

/// What an NPU wants.
fn everything() -> DecoderForm {
    DecoderForm { separate_head: true, r3: true, masked_softmax: true, half_split_rope: true, ..plain() }
}

struct Model {
    checkpoint: Checkpoint,
    spec: DecoderSpec,
    context: usize,
}

impl Model {
    fn open(family: &str) -> Self {
        let checkpoint = support::checkpoint(family);
        let spec = support::decoder_spec(&checkpoint);
        // LongRoPE takes its short frequencies only in a short context.
        Self { checkpoint, spec, context: if family == "phi4mini" { 32 } else { 64 } }
    }

    /// As if the family paired neighbours.
    fn interleaved(family: &str) -> Self {
        let mut model = Self::open(family);
        model.spec.rope.interleaved = true;
        model
    }

    /// `kv_forward`, and `prefill_forward` for blocks of 16.
    fn graphs(&self, form: DecoderForm) -> Vec<Graph> {
        let graph = |name, ar| build_decoder_form(&self.spec, form, name, self.context, (self.context - ar, ar));
        vec![graph(KV_FORWARD, 1).unwrap(), graph(PREFILL_FORWARD, 16).unwrap()]
    }

    fn weights(&self, form: DecoderForm) -> BoundWeights<'_> {
        BoundWeights::with_form(&self.spec, form, self.context, &self.checkpoint).unwrap()
    }

    fn reference(&self, form: DecoderForm) -> ReferenceComponent {
        ReferenceComponent::new(self.graphs(form), &self.weights(form)).unwrap()
    }

    /// Logits of all tokens, a block at a time and, for the last ones, a token at a time.
    fn logits(&self, component: &mut dyn LoadedComponent, tokens: &[i32]) -> Vec<f32> {
        let mut session = Session::new(&self.spec, component, self.context);
        let (block, rest) = tokens.split_at(tokens.len() - 3);
        let mut logits = session.feed(1, block);
        logits.extend(session.feed(0, rest));
        logits
    }

    /// All outputs of the first block: logits, then the keys and the values of each layer.
    fn first_block(&self, form: DecoderForm, tokens: &[i32]) -> Vec<Tensor> {
        let mut component = self.reference(form);
        let inputs = Session::new(&self.spec, &mut component, self.context).inputs(1, &tokens[..16]);
        execute(&mut component, 1, &inputs, &ExecuteOptions::default()).unwrap()
    }
}

/// Largest difference, as a share of the largest value.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
    found.iter().zip(expected).fold(0.0f32, |most, (f, e)| most.max((f - e).abs())) / largest
}

#[test]
fn every_form_of_every_family_reproduces_transformers() {
    for family in FAMILIES {
        let (model, golden) = (Model::open(family), Golden::open(family));
        let prompt = golden.i32("prompt_ids");
        for form in [plain(), r3(), masked_softmax(), half_split(), everything()] {
            let logits = model.logits(&mut model.reference(form), &prompt);
            let db = sqnr(&logits, &golden.f32("logits"));
            assert!(db >= 100.0, "{family}, {form:?}: {db:.1} dB");
        }
    }
}

/// Families that pair neighbours, whole heads (GLM-Edge) and half of each (GLM); and what no published family combines with
/// that: biases, a fused projection with three quarters of each head rotated, norms of heads.
#[test]
fn half_split_pairs_compute_the_same_as_neighbours() {
    let pairs_neighbours = ["glm", "glm_edge"].map(|family| (family, Model::open(family)));
    let as_if = ["qwen2", "phi4mini", "qwen3"].map(|family| (family, Model::interleaved(family)));
    for (family, model) in pairs_neighbours.into_iter().chain(as_if) {
        assert!(model.spec.rope.interleaved, "{family}");
        let prompt = Golden::open(family).i32("prompt_ids");
        let [neighbours, halves] =
            [plain(), half_split()].map(|form| model.logits(&mut model.reference(form), &prompt));
        let apart = difference(&halves, &neighbours);
        assert!(apart <= 1e-5, "{family}: {apart}");
        let graph = &model.graphs(half_split())[1];
        let halves = |op: &Op| *op == Op::Rope { interleaved: false };
        assert_eq!(graph.nodes.iter().filter(|node| halves(&node.op)).count(), 2 * model.spec.layers, "{family}");
    }
}

/// Keys of the half-split form are those of the other one, with the rows of each head moved.
#[test]
fn half_split_keys_are_the_same_rows_in_another_order() {
    let model = Model::open("glm");
    let prompt = Golden::open("glm").i32("prompt_ids");
    let [neighbours, halves] = [plain(), half_split()].map(|form| model.first_block(form, &prompt));
    let rows =
        |outputs: &[Tensor]| outputs[1].as_slice::<f32>().unwrap().chunks(16).map(<[f32]>::to_vec).collect::<Vec<_>>();
    let (neighbours, halves) = (rows(&neighbours), rows(&halves));
    // Heads of 16, the first 8 of which are rotated.
    let moved = [0, 2, 4, 6, 1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    for (row, halves) in halves.iter().enumerate() {
        assert_eq!(*halves, neighbours[row / 16 * 16 + moved[row % 16]], "row {row}");
    }
}

/// A family that pairs halves already is not touched.
#[test]
fn a_family_that_pairs_halves_is_bound_as_it_is() {
    let model = Model::open("qwen3");
    assert_eq!(model.graphs(half_split()), model.graphs(plain()));
    let (mut whole, mut halves) = (vec![0.0; 64 * 64], vec![0.0; 64 * 64]);
    model.weights(plain()).read_rows("layers.1.attention.wq.weight", 8..72, &mut whole).unwrap();
    model.weights(half_split()).read_rows("layers.1.attention.wq.weight", 8..72, &mut halves).unwrap();
    assert_eq!(whole, halves);
}

#[test]
fn r3_leaves_logits_and_turns_keys() {
    for family in ["smollm2", "qwen3"] {
        let model = Model::open(family);
        let prompt = Golden::open(family).i32("prompt_ids");
        let [plain, turned] = [plain(), r3()].map(|form| model.first_block(form, &prompt));
        let apart = difference(turned[0].as_slice().unwrap(), plain[0].as_slice().unwrap());
        assert!(apart <= 1e-5, "{family}: {apart}");

        let (layers, dim) = (model.spec.layers, model.spec.head_dim);
        let hadamard = hadamard(dim);
        for layer in 0..layers {
            let keys = plain[1 + layer].as_slice::<f32>().unwrap();
            let expected: Vec<f32> = keys.chunks(dim * 16).flat_map(|head| turn(head, &hadamard)).collect();
            let apart = difference(turned[1 + layer].as_slice().unwrap(), &expected);
            assert!(apart <= 1e-5, "{family} keys of layer {layer}: {apart}");
            assert!(difference(keys, &expected) > 0.1, "{family}: the turn must be seen");
            let values = [&plain, &turned].map(|outputs| outputs[1 + layers + layer].as_slice::<f32>().unwrap());
            assert!(difference(values[1], values[0]) <= 1e-5, "{family} values of layer {layer}");
        }
    }
}

/// The Hadamard matrix by doubling, rows scaled to length 1.
fn hadamard(size: usize) -> Vec<Vec<f32>> {
    let mut rows = vec![vec![1.0f32]];
    while rows.len() < size {
        let above = rows.iter().map(|row| [row.clone(), row.clone()].concat());
        let below = rows.iter().map(|row| [row.clone(), row.iter().map(|v| -v).collect()].concat());
        rows = above.chain(below).collect();
    }
    rows.iter_mut().flatten().for_each(|v| *v /= (size as f32).sqrt());
    rows
}

/// `k H` of each column of `[D, 16]`.
fn turn(head: &[f32], hadamard: &[Vec<f32>]) -> Vec<f32> {
    let size = hadamard.len();
    let element = |j: usize, token: usize| (0..size).map(|d| head[d * 16 + token] * hadamard[d][j]).sum();
    (0..size).flat_map(|j| (0..16).map(move |token| element(j, token))).collect()
}

#[test]
fn the_matrix_of_r3_is_hadamards() {
    let mut model = Model::open("smollm2");
    // The projections have the same 64 and 32 rows.
    (model.spec.heads, model.spec.kv_heads, model.spec.head_dim, model.spec.rope.rotary_dim) = (16, 8, 4, 4);
    let mut rows = [0.0; 16];
    model.weights(r3()).read_rows("r3.weight", 0..4, &mut rows).unwrap();
    let expected = [[0.5, 0.5, 0.5, 0.5], [0.5, -0.5, 0.5, -0.5], [0.5, 0.5, -0.5, -0.5], [0.5, -0.5, -0.5, 0.5]];
    assert_eq!(rows, expected.concat()[..]);
    let mut row = [0.0; 4];
    model.weights(r3()).read_rows("r3.weight", 2..3, &mut row).unwrap();
    assert_eq!(row, expected[2]);
    assert!(!model.weights(plain()).shapes().any(|(name, _)| name == "r3.weight"));
}

#[test]
fn r3_refuses_heads_that_are_no_power_of_two_wide() {
    let mut model = Model::open("smollm2");
    (model.spec.head_dim, model.spec.rope.rotary_dim) = (12, 12);
    let error = build_decoder_form(&model.spec, r3(), KV_FORWARD, 64, (63, 1)).unwrap_err().to_string();
    assert!(error.contains("power of two") && error.contains("12"), "{error}");
    build_decoder_form(&model.spec, masked_softmax(), KV_FORWARD, 64, (63, 1)).unwrap();
}

/// Both ways to block a score, on scores that differ by far more than real ones do.
#[test]
fn masked_fill_and_an_additive_mask_agree_where_attention_is() {
    let (heads, rows, columns) = (3, 5, 24);
    let weights_of = |blocking: Op| {
        let mut b = GraphBuilder::new("softmax");
        let scores = b.input("scores", DType::F32, &[1, heads, rows, columns]).unwrap();
        let mask = b.input("mask", DType::F32, &[1, 1, rows, columns]).unwrap();
        let blocked = b.node("blocked", blocking, &[scores, mask]).unwrap();
        let weights = b.node("softmax", Op::Softmax, &[blocked]).unwrap();
        b.output(weights, "weights").unwrap();
        let mut state = 7u32;
        let mut random = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        };
        let scores: Vec<f32> = (0..heads * rows * columns).map(|_| 30.0 * random() - 15.0).collect();
        let scores = Tensor::from_f32("scores", &[1, heads, rows, columns], &scores).unwrap();
        let mask = Tensor::from_f32("mask", &[1, 1, rows, columns], &mask_of(rows, columns)).unwrap();
        let graph = Interpreter::new(b.finish().unwrap(), &NoWeights).unwrap();
        let outputs = graph.run(&[scores.view(), mask.view()]).unwrap();
        outputs[0].as_slice::<f32>().unwrap().to_vec()
    };
    let (added, filled) = (weights_of(Op::Add), weights_of(Op::MaskedFill { drop: 20.0 }));
    let mask = mask_of(rows, columns);
    // Each blocked column may take this much.
    let share = (-20.0f32).exp();
    for (index, (added, filled)) in added.iter().zip(&filled).enumerate() {
        let position = index % (rows * columns);
        if mask[position] == 0.0 {
            let tolerance = columns as f32 * share + 2.0 * f32::EPSILON * added;
            assert!((added - filled).abs() <= tolerance, "{index}: {added} and {filled}");
        } else {
            assert!(*added == 0.0 && *filled <= share, "{index}: {added} and {filled}");
        }
    }
}

/// Row `r` attends to the first `3 r + 2` columns.
fn mask_of(rows: usize, columns: usize) -> Vec<f32> {
    let row = |r: usize| (0..columns).map(move |c| if c < 3 * r + 2 { 0.0 } else { MASKED });
    (0..rows).flat_map(row).collect()
}

struct NoWeights;

impl WeightProvider for NoWeights {
    fn read_rows(&self, name: &str, _: Range<usize>, _: &mut [f32]) -> etgenai::Result<()> {
        Err(etgenai::Error::NotFound(name.into()))
    }
}

/// Behind an encoder the head is a weight of its own anyway; the other choices are the same.
#[test]
fn a_decoder_that_takes_rows_has_the_same_forms() {
    let checkpoint = support::checkpoint("smolvlm");
    let spec = ModelSpec::from_config(checkpoint.config()).unwrap();
    let golden = Golden::open("smolvlm");
    let rows = golden.f32("one.inputs_embeds");
    let forms = [plain(), everything()].map(|form| DecoderForm { first: FirstInput::HiddenStates, ..form });
    let [plain, everything] = forms.map(|form| {
        let graphs = [(KV_FORWARD, 1), (PREFILL_FORWARD, 16)];
        let graphs =
            graphs.map(|(name, ar)| build_decoder_form(&spec.decoder, form, name, 128, (128 - ar, ar)).unwrap());
        let weights = ModelWeights::with_form(&spec, form, 128, &checkpoint).unwrap().text_decoder;
        let mut component = ReferenceComponent::new(graphs.into(), &weights).unwrap();
        Session::new(&spec.decoder, &mut component, 128).feed_rows(1, &rows, spec.decoder.hidden_size)
    });
    let apart = difference(&everything, &plain);
    assert!(apart <= 1e-5, "{apart}");
    let db = sqnr(&everything, &golden.f32("one.logits"));
    assert!(db >= 100.0, "{db:.1} dB");
}

/// A component with its file.
struct OnCpu {
    component: Box<dyn LoadedComponent>,
    _folder: tempfile::TempDir,
}

impl OnCpu {
    fn load(graphs: Vec<Graph>, weights: &BoundWeights<'_>, kernels: Kernels) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text_decoder.safetensors");
        let header = plan_storage("text_decoder", graphs, WeightFormat::F32).unwrap();
        write_component(&path, &header, weights, &Pool::new(1), &mut |_| Flow::Continue).unwrap();
        let engine = CpuEngine::new(CpuOptions { threads: Some(2), kernels: Some(kernels) });
        Self { component: engine.load_file(&path).unwrap(), _folder: folder }
    }
}

/// `graph` with the result of every projection stored as a 16-bit integer in between.
fn with_stored_projections(graph: &Graph) -> Graph {
    let mut stored = Graph { nodes: Vec::new(), ..graph.clone() };
    for node in &graph.nodes {
        let mut node = node.clone();
        if node.op != Op::Linear || graph.outputs.contains(&node.output) {
            stored.nodes.push(node);
            continue;
        }
        let result = std::mem::replace(&mut node.output, ValueId(stored.values.len() as u32));
        let name = format!("{}.stored", node.name);
        let float =
            Value { info: Graph::f32_info(&name, &graph.value(result).info.shape), ..graph.value(result).clone() };
        stored.values.push(float);
        // From -2 to 2, so some of the values are outside, and finely: a value at the edge of two steps may fall on either
        // side.
        let op = Op::QuantizeDequantize { scale: 1.0 / 16384.0, zero_point: 32768, qmin: 0, qmax: 65535 };
        let input = node.output;
        stored.nodes.push(node);
        stored.nodes.push(etgenai::graph::Node { name, op, inputs: vec![input], output: result });
    }
    stored.validate().unwrap();
    stored
}

#[test]
fn the_cpu_engine_answers_like_the_reference_in_every_form() {
    let prompt = Golden::open("smollm2").i32("prompt_ids");
    let model = Model::open("smollm2");
    type Change = fn(&Graph) -> Graph;
    let whole: Change = Graph::clone;
    let without_silu: Change = |graph| decompose_silu(graph).unwrap();
    let cases = [
        ("R3", r3(), whole),
        ("masked softmax", masked_softmax(), whole),
        ("everything", everything(), whole),
        ("sigmoid and product", plain(), without_silu),
        ("stored projections", plain(), with_stored_projections),
        ("stored everything", everything(), |graph| with_stored_projections(&decompose_silu(graph).unwrap())),
    ];
    for (name, form, change) in cases {
        let graphs: Vec<Graph> = model.graphs(form).iter().map(change).collect();
        let weights = model.weights(form);
        let mut reference = ReferenceComponent::new(graphs.clone(), &weights).unwrap();
        let expected = model.logits(&mut reference, &prompt);
        for kernels in Kernels::available() {
            let mut cpu = OnCpu::load(graphs.clone(), &weights, kernels);
            let apart = difference(&model.logits(&mut *cpu.component, &prompt), &expected);
            assert!(apart <= 1e-4, "{name}, {}: {apart}", kernels.name());
        }
    }
}

/// Rows behind the last token, and logits nobody asked for, change nothing in graphs that no pattern covers.
#[test]
fn rows_without_a_token_change_nothing() {
    let prompt = Golden::open("smollm2").i32("prompt_ids");
    let model = Model::open("smollm2");
    let graphs: Vec<Graph> = model.graphs(everything()).iter().map(with_stored_projections).collect();
    let weights = model.weights(everything());
    let mut reference = ReferenceComponent::new(graphs.clone(), &weights).unwrap();
    let mut session = Session::new(&model.spec, &mut reference, model.context);
    let expected = [session.forward(1, &prompt[..5], None), session.forward(1, &prompt[5..8], None)];
    let mut cpu = OnCpu::load(graphs, &weights, Kernels::detect());
    let mut session = Session::new(&model.spec, &mut *cpu.component, model.context);
    let found = [session.forward(1, &prompt[..5], Some(4..5)), session.forward(1, &prompt[5..8], Some(2..3))];
    for (found, expected) in found.iter().zip(&expected) {
        let last = &expected[expected.len() - model.spec.vocab_size..];
        assert!(difference(found, last) <= 1e-4);
    }
}
