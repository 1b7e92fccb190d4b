//! The decoder graphs, run by the reference interpreter over the tiny checkpoints, against transformers in fp32.

use etgenai::checkpoint::Checkpoint;
use etgenai::engine::reference::ReferenceComponent;
use etgenai::engine::{ExecuteOptions, LoadedComponent};
use etgenai::graph::{Tensor, TensorInfo, TensorView, TensorViewMut};
use etgenai::models::{BoundWeights, build_decoder};
use etgenai::registry::{DecoderSpec, ModelSpec};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

const MASKED: f32 = -65535.0;
const MIN_SQNR_DB: f64 = 100.0;

/// Contexts and prefill blocks one family is run with.
struct Run {
    family: &'static str,
    short: (usize, &'static [usize]),
    long: (usize, &'static [usize]),
}

impl Run {
    fn of(family: &'static str) -> Self {
        Self { family, short: (64, &[1, 7, 32]), long: (128, &[1, 7, 32]) }
    }
}

#[test]
fn llama() {
    check(&Run::of("llama"));
}

#[test]
fn smollm2() {
    check(&Run::of("smollm2"));
}

#[test]
fn qwen2() {
    check(&Run::of("qwen2"));
}

#[test]
fn qwen3() {
    check(&Run::of("qwen3"));
}

#[test]
fn gemma() {
    check(&Run::of("gemma"));
}

#[test]
fn gemma2() {
    check(&Run::of("gemma2"));
}

#[test]
fn gemma3() {
    check(&Run::of("gemma3"));
}

#[test]
fn granite() {
    check(&Run::of("granite"));
}

/// LongRoPE takes its short frequencies only if the compiled context stays within the original 32 positions.
#[test]
fn phi4mini() {
    check(&Run { short: (32, &[1, 7, 16]), ..Run::of("phi4mini") });
}

#[test]
fn glm() {
    check(&Run::of("glm"));
}

#[test]
fn glm_edge() {
    check(&Run::of("glm_edge"));
}

#[test]
fn smollm3() {
    check(&Run::of("smollm3"));
}

/// Checks one prompt in one context with one block size; gives the logits of the prompt.
type CaseCheck = fn(&Model, &Golden, usize, usize) -> Vec<f32>;

fn check(run: &Run) {
    let golden = Golden::open(run.family);
    let model = Model::open(run.family);
    for (check, (context, blocks)) in [(check_short as CaseCheck, run.short), (check_long, run.long)] {
        let logits: Vec<_> = blocks.iter().map(|&block| check(&model, &golden, context, block)).collect();
        assert!(logits.windows(2).all(|pair| pair[0] == pair[1]), "{}: blocks {blocks:?} differ", run.family);
    }
}

fn check_short(model: &Model, golden: &Golden, context: usize, block: usize) -> Vec<f32> {
    let prompt = golden.i32("prompt_ids");
    let mut session = Session::new(model, context, block);
    let logits = session.prefill(&prompt);
    assert_sqnr(&logits, &golden.f32("logits").1, &format!("{} logits, block {block}", model.name));

    for layer in [0, model.spec.layers - 1] {
        for (which, stored) in [("k", session.keys(layer)), ("v", session.values(layer))] {
            let (shape, expected) = golden.f32(&format!("{which}_cache.{layer}"));
            let found = last_tokens(&stored, &shape, prompt.len());
            assert_sqnr(&found, &expected, &format!("{} {which}_cache.{layer}, block {block}", model.name));
        }
    }
    let greedy = session.greedy(&logits, 16);
    assert_eq!(greedy, golden.i32("greedy_ids"), "{} greedy, block {block}", model.name);
    logits
}

fn check_long(model: &Model, golden: &Golden, context: usize, block: usize) -> Vec<f32> {
    let prompt = golden.i32("long.prompt_ids");
    let mut session = Session::new(model, context, block);
    let logits = session.prefill(&prompt);
    let (_, expected) = golden.f32("long.logits");
    let found = &logits[logits.len() - expected.len()..];
    assert_sqnr(found, &expected, &format!("{} long logits, block {block}", model.name));
    let greedy = session.greedy(&logits, 16);
    assert_eq!(greedy, golden.i32("long.greedy_ids"), "{} long greedy, block {block}", model.name);
    logits
}

/// Of `[heads, tokens, D]`, the last `shape[1]` tokens: goldens of sliding layers keep no more.
fn last_tokens(stored: &[f32], shape: &[usize], tokens: usize) -> Vec<f32> {
    let (kept, dim) = (shape[1], shape[2]);
    stored.chunks_exact(tokens * dim).flat_map(|head| &head[(tokens - kept) * dim..]).copied().collect()
}

fn assert_sqnr(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let square = |v: f64| v * v;
    let signal: f64 = expected.iter().map(|&e| square(e.into())).sum();
    let noise: f64 = found.iter().zip(expected).map(|(&f, &e)| square(f64::from(f) - f64::from(e))).sum();
    let db = 10.0 * (signal / noise).log10();
    println!("{what}: {db:.1} dB");
    assert!(db >= MIN_SQNR_DB, "{what}: SQNR {db:.1} dB");
}

fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny").join(family)
}

/// Reference values of one family.
struct Golden {
    bytes: Vec<u8>,
}

impl Golden {
    fn open(family: &str) -> Self {
        let path = folder(family).join("golden.safetensors");
        Self { bytes: std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())) }
    }

    fn tensor(&self, name: &str) -> (Vec<usize>, Vec<[u8; 4]>) {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let words = tensor.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect();
        (tensor.shape().to_vec(), words)
    }

    fn f32(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let (shape, words) = self.tensor(name);
        (shape, words.into_iter().map(f32::from_le_bytes).collect())
    }

    fn i32(&self, name: &str) -> Vec<i32> {
        self.tensor(name).1.into_iter().map(i32::from_le_bytes).collect()
    }
}

struct Model {
    name: &'static str,
    checkpoint: Checkpoint,
    spec: DecoderSpec,
}

impl Model {
    fn open(name: &'static str) -> Self {
        let checkpoint = Checkpoint::open(&folder(name)).unwrap();
        let spec = ModelSpec::from_config(checkpoint.config()).unwrap().decoder;
        Self { name, checkpoint, spec }
    }
}

/// The host's side of the graph contract, as plainly as possible: keys and values of all tokens, masks, blocks.
struct Session<'m> {
    spec: &'m DecoderSpec,
    component: ReferenceComponent,
    context: usize,
    block: usize,
    /// Tokens stored.
    length: usize,
    /// Per layer `[Hkv, D, context]`.
    keys: Vec<Vec<f32>>,
    /// Per layer `[Hkv, context, D]`.
    values: Vec<Vec<f32>>,
}

impl<'m> Session<'m> {
    fn new(model: &'m Model, context: usize, block: usize) -> Self {
        let graphs = build_decoder(&model.spec, context, block).unwrap();
        let weights = BoundWeights::new(&model.spec, context, &model.checkpoint).unwrap();
        let component = ReferenceComponent::new(graphs, &weights).unwrap();
        let size = model.spec.kv_heads * model.spec.head_dim * context;
        let empty = vec![vec![0.0; size]; model.spec.layers];
        Self { spec: &model.spec, component, context, block, length: 0, keys: empty.clone(), values: empty }
    }

    /// Logits of every token of the prompt.
    fn prefill(&mut self, prompt: &[i32]) -> Vec<f32> {
        prompt.chunks(self.block).flat_map(|tokens| self.forward(1, self.block, tokens)).collect()
    }

    /// The likeliest token of the last row, and so on, one token at a time.
    fn greedy(&mut self, logits: &[f32], count: usize) -> Vec<i32> {
        let mut ids = Vec::new();
        let mut next = argmax(&logits[logits.len() - self.spec.vocab_size..]);
        while ids.len() < count {
            ids.push(next);
            next = argmax(&self.forward(0, 1, &[next]));
        }
        ids
    }

    /// Run `tokens` (at most `ar`) through graph number `graph`; their logits.
    fn forward(&mut self, graph: usize, ar: usize, tokens: &[i32]) -> Vec<f32> {
        let signature = self.component.graphs()[graph].clone();
        let inputs: Vec<Tensor> = signature.inputs.iter().map(|info| self.input(info, ar, tokens)).collect();
        let mut outputs: Vec<Tensor> = signature.outputs.iter().map(|i| Tensor::zeros(i.clone()).unwrap()).collect();
        let input_views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
        let mut output_views: Vec<TensorViewMut<'_>> = outputs.iter_mut().map(Tensor::view_mut).collect();
        self.component.execute(graph, &input_views, &mut output_views, &ExecuteOptions::default()).unwrap();
        for output in &outputs[1..] {
            self.store(output, ar, tokens.len());
        }
        self.length += tokens.len();
        let logits = outputs[0].as_slice::<f32>().unwrap();
        logits[..tokens.len() * self.spec.vocab_size].to_vec()
    }

    fn input(&self, info: &TensorInfo, ar: usize, tokens: &[i32]) -> Tensor {
        let past = self.context - ar;
        assert!(self.length <= past, "the test's context is too short");
        let padded = |value: &dyn Fn(usize) -> i32| (0..ar).map(value).collect::<Vec<_>>();
        let (name, shape) = (&info.name[..], &info.shape[..]);
        match name.rsplit_once('_') {
            Some(("k_cache", layer)) => {
                let stored = self.keys[layer.parse::<usize>().unwrap()].chunks_exact(self.context);
                let columns: Vec<f32> = stored.flat_map(|row| &row[..past]).copied().collect();
                Tensor::from_f32(name, shape, &columns).unwrap()
            }
            Some(("v_cache", layer)) => {
                let dim = self.spec.head_dim;
                let stored = self.values[layer.parse::<usize>().unwrap()].chunks_exact(self.context * dim);
                let rows: Vec<f32> = stored.flat_map(|head| &head[..past * dim]).copied().collect();
                Tensor::from_f32(name, shape, &rows).unwrap()
            }
            Some(("attention", _)) => Tensor::from_f32(name, shape, &self.mask(ar, tokens.len(), usize::MAX)).unwrap(),
            Some(("window", _)) => {
                let window = self.spec.sliding_window.unwrap();
                Tensor::from_f32(name, shape, &self.mask(ar, tokens.len(), window)).unwrap()
            }
            Some(("input", _)) => {
                let last = self.context - 1;
                let positions = padded(&|row| (self.length + row).min(last) as i32);
                Tensor::from_i32(name, shape, &positions).unwrap()
            }
            _ => {
                assert_eq!(name, "tokens");
                Tensor::from_i32(name, shape, &padded(&|row| tokens.get(row).copied().unwrap_or(0))).unwrap()
            }
        }
    }

    /// `[AR, context]`: column `c < past` is stored token `c`, column `past + j` is token `j` of the block.
    fn mask(&self, ar: usize, tokens: usize, window: usize) -> Vec<f32> {
        let past = self.context - ar;
        let position = |column: usize| match column {
            c if c < self.length => Some(c),
            c if c >= past && c - past < tokens => Some(self.length + c - past),
            _ => None,
        };
        let mut mask = Vec::new();
        for row in 0..ar {
            let own = self.length + row;
            let sees = |seen: usize| seen <= own && own - seen < window;
            mask.extend((0..self.context).map(|c| if position(c).is_some_and(sees) { 0.0 } else { MASKED }));
        }
        mask
    }

    /// Append the first `tokens` new keys or values of an output.
    fn store(&mut self, output: &Tensor, ar: usize, tokens: usize) {
        let (context, length, dim) = (self.context, self.length, self.spec.head_dim);
        let new = output.as_slice::<f32>().unwrap();
        let (which, layer) = output.info().name.rsplit_once('_').unwrap();
        let layer: usize = layer.parse().unwrap();
        if which == "k_out" {
            for (old, new) in self.keys[layer].chunks_exact_mut(context).zip(new.chunks_exact(ar)) {
                old[length..length + tokens].copy_from_slice(&new[..tokens]);
            }
        } else {
            assert_eq!(which, "v_out");
            for (old, new) in self.values[layer].chunks_exact_mut(context * dim).zip(new.chunks_exact(ar * dim)) {
                old[length * dim..(length + tokens) * dim].copy_from_slice(&new[..tokens * dim]);
            }
        }
    }

    /// Stored keys of a layer as `[Hkv, tokens, D]`.
    fn keys(&self, layer: usize) -> Vec<f32> {
        let heads = self.keys[layer].chunks_exact(self.spec.head_dim * self.context);
        let tokens = |head: &'_ [f32]| -> Vec<f32> {
            (0..self.length).flat_map(|t| head.chunks_exact(self.context).map(move |row| row[t])).collect()
        };
        heads.flat_map(tokens).collect()
    }

    /// Stored values of a layer as `[Hkv, tokens, D]`.
    fn values(&self, layer: usize) -> Vec<f32> {
        let dim = self.spec.head_dim;
        self.values[layer].chunks_exact(self.context * dim).flat_map(|h| &h[..self.length * dim]).copied().collect()
    }
}

fn argmax(logits: &[f32]) -> i32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.unwrap().0 as i32
}
