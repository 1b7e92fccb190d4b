//! What integration tests of the compiler and the engine share: fixtures, goldens, and the host's side of the graph
//! contract in its plainest form.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use etgenai::checkpoint::Checkpoint;
use etgenai::compile::{CompileOptions, CompileReport, Flow, compile_checkpoint};
use etgenai::engine::{ExecuteOptions, LoadedComponent};
use etgenai::formats::WeightFormat;
use etgenai::graph::{Tensor, TensorInfo, TensorView, TensorViewMut};
use etgenai::registry::{DecoderSpec, ModelSpec};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

pub const MASKED: f32 = -65535.0;

/// The folder of a tiny checkpoint.
pub fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny").join(family)
}

/// A real model file, from `$ETGENAI_TEST_MODELS` or `.deps/models`.
pub fn model(name: &str) -> PathBuf {
    let fetched = || Path::new(env!("CARGO_MANIFEST_DIR")).join(".deps/models");
    let path = std::env::var_os("ETGENAI_TEST_MODELS").map_or_else(fetched, PathBuf::from).join(name);
    assert!(path.is_file(), "{} is missing: run .ci/fetch-models", path.display());
    path
}

pub fn checkpoint(family: &str) -> Checkpoint {
    Checkpoint::open(&folder(family)).unwrap()
}

pub fn decoder_spec(checkpoint: &Checkpoint) -> DecoderSpec {
    ModelSpec::from_config(checkpoint.config()).unwrap().decoder
}

/// Compile a tiny checkpoint into `out`.
pub fn compile(family: &str, out: &Path, format: WeightFormat, context: usize, block: usize) -> CompileReport {
    let options = CompileOptions {
        max_context: Some(context),
        prefill_ar: Some(block),
        threads: Some(2),
        ..CompileOptions::new(format)
    };
    compile_with(&checkpoint(family), out, &options)
}

/// Compile a checkpoint into `out`.
pub fn compile_with(checkpoint: &Checkpoint, out: &Path, options: &CompileOptions) -> CompileReport {
    compile_checkpoint(checkpoint, out, options, &mut |_| Flow::Continue).unwrap()
}

/// Reference values of one family.
pub struct Golden {
    bytes: Vec<u8>,
}

impl Golden {
    pub fn open(family: &str) -> Self {
        let path = folder(family).join("golden.safetensors");
        Self { bytes: std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())) }
    }

    fn words(&self, name: &str) -> Vec<[u8; 4]> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        tensor.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_le_bytes).collect()
    }

    /// Bytes of a tensor of any type.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        SafeTensors::deserialize(&self.bytes).unwrap().tensor(name).unwrap().data().to_vec()
    }

    pub fn i32(&self, name: &str) -> Vec<i32> {
        self.words(name).into_iter().map(i32::from_le_bytes).collect()
    }
}

/// Signal-to-noise ratio in dB.
pub fn sqnr(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |v: f64| v * v;
    let signal: f64 = expected.iter().map(|&e| square(e.into())).sum();
    let noise: f64 = found.iter().zip(expected).map(|(&f, &e)| square(f64::from(f) - f64::from(e))).sum();
    if noise == 0.0 { f64::INFINITY } else { 10.0 * (signal / noise).log10() }
}

pub fn argmax(logits: &[f32]) -> i32 {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as i32
}

/// Execute one graph on owned tensors; outputs start as NaN, so that what the engine does not write is noticed.
pub fn execute(
    component: &mut dyn LoadedComponent,
    graph: usize,
    inputs: &[Tensor],
    options: &ExecuteOptions,
) -> etgenai::Result<Vec<Tensor>> {
    let mut outputs = component.graphs()[graph].outputs.iter().map(|info| nans(info.clone())).collect::<Vec<_>>();
    let views = inputs.iter().map(Tensor::view).collect::<Vec<TensorView<'_>>>();
    let mut written = outputs.iter_mut().map(Tensor::view_mut).collect::<Vec<TensorViewMut<'_>>>();
    component.execute(graph, &views, &mut written, options)?;
    assert!(written.iter().all(|t| !t.bytes.is_empty()), "the engine gives the caller's memory back");
    Ok(outputs)
}

fn nans(info: TensorInfo) -> Tensor {
    let mut tensor = Tensor::zeros(info).unwrap();
    tensor.view_mut().as_mut_slice::<f32>().unwrap().fill(f32::NAN);
    tensor
}

/// The tokens of one call, as a decoder takes them.
#[derive(Clone, Copy)]
enum Block<'a> {
    Tokens(&'a [i32]),
    /// `[count, width]`.
    Rows {
        values: &'a [f32],
        width: usize,
    },
}

impl Block<'_> {
    fn count(&self) -> usize {
        match self {
            Block::Tokens(tokens) => tokens.len(),
            Block::Rows { values, width } => values.len() / width,
        }
    }
}

/// One conversation: keys and values of all tokens, masks, blocks.
pub struct Session<'c> {
    component: &'c mut dyn LoadedComponent,
    window: Option<usize>,
    context: usize,
    vocab: usize,
    /// Tokens stored.
    length: usize,
    /// Per layer `[Hkv, D, context]`.
    keys: Vec<Vec<f32>>,
    /// Per layer `[Hkv, context, D]`.
    values: Vec<Vec<f32>>,
    head_dim: usize,
}

impl<'c> Session<'c> {
    pub fn new(spec: &DecoderSpec, component: &'c mut dyn LoadedComponent, context: usize) -> Self {
        let empty = vec![vec![0.0; spec.kv_heads * spec.head_dim * context]; spec.layers];
        Self {
            component,
            window: spec.sliding_window,
            context,
            vocab: spec.vocab_size,
            length: 0,
            keys: empty.clone(),
            values: empty,
            head_dim: spec.head_dim,
        }
    }

    /// Rows of a block of graph `graph`.
    pub fn block(&self, graph: usize) -> usize {
        self.component.graphs()[graph].inputs[0].shape[1]
    }

    /// Logits of every token, computed in blocks of graph `graph`.
    pub fn feed(&mut self, graph: usize, tokens: &[i32]) -> Vec<f32> {
        let block = self.block(graph);
        tokens.chunks(block).flat_map(|tokens| self.forward(graph, tokens, None)).collect()
    }

    /// Logits of every row of `rows`, each `width` wide, computed in blocks of graph `graph`: for decoders that take rows.
    pub fn feed_rows(&mut self, graph: usize, rows: &[f32], width: usize) -> Vec<f32> {
        let block = self.block(graph) * width;
        rows.chunks(block).flat_map(|values| self.step(graph, Block::Rows { values, width }, None)).collect()
    }

    /// The likeliest tokens after `logits`, one at a time.
    pub fn greedy(&mut self, logits: &[f32], count: usize) -> Vec<i32> {
        let mut next = argmax(&logits[logits.len() - self.vocab..]);
        let mut ids = Vec::new();
        while ids.len() < count {
            ids.push(next);
            next = argmax(&self.forward(0, &[next], None));
        }
        ids
    }

    /// Run `tokens` (at most a block) and store their keys and values; logits of `rows` (`None`: all tokens).
    pub fn forward(&mut self, graph: usize, tokens: &[i32], rows: Option<std::ops::Range<usize>>) -> Vec<f32> {
        self.step(graph, Block::Tokens(tokens), rows)
    }

    fn step(&mut self, graph: usize, block: Block<'_>, rows: Option<std::ops::Range<usize>>) -> Vec<f32> {
        let inputs = self.inputs_of(graph, block);
        let (ar, count) = (self.block(graph), block.count());
        let options = ExecuteOptions { valid_rows: Some(count), logits_rows: rows.clone() };
        let outputs = execute(self.component, graph, &inputs, &options).unwrap();
        for output in &outputs[1..] {
            self.store(output, ar, count);
        }
        self.length += count;
        let rows = rows.unwrap_or(0..count);
        let logits = outputs[0].as_slice::<f32>().unwrap();
        logits[rows.start * self.vocab..rows.end * self.vocab].to_vec()
    }

    /// The inputs of one call, in contract order.
    pub fn inputs(&self, graph: usize, tokens: &[i32]) -> Vec<Tensor> {
        self.inputs_of(graph, Block::Tokens(tokens))
    }

    fn inputs_of(&self, graph: usize, block: Block<'_>) -> Vec<Tensor> {
        let ar = self.block(graph);
        self.component.graphs()[graph].inputs.iter().map(|info| self.input(info, ar, block)).collect()
    }

    fn input(&self, info: &TensorInfo, ar: usize, block: Block<'_>) -> Tensor {
        let count = block.count();
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
                let dim = self.head_dim;
                let stored = self.values[layer.parse::<usize>().unwrap()].chunks_exact(self.context * dim);
                let rows: Vec<f32> = stored.flat_map(|head| &head[..past * dim]).copied().collect();
                Tensor::from_f32(name, shape, &rows).unwrap()
            }
            Some(("attention", _)) => Tensor::from_f32(name, shape, &self.mask(ar, count, usize::MAX)).unwrap(),
            Some(("window", _)) => Tensor::from_f32(name, shape, &self.mask(ar, count, self.window.unwrap())).unwrap(),
            Some(("input", _)) => {
                let last = self.context - 1;
                Tensor::from_i32(name, shape, &padded(&|row| (self.length + row).min(last) as i32)).unwrap()
            }
            _ => match block {
                Block::Tokens(tokens) => {
                    assert_eq!(name, "tokens");
                    Tensor::from_i32(name, shape, &padded(&|row| tokens.get(row).copied().unwrap_or(0))).unwrap()
                }
                Block::Rows { values, width } => {
                    assert_eq!((name, shape), ("hidden_states", &[1, ar, width][..]));
                    let mut padded = values.to_vec();
                    padded.resize(ar * width, 0.0);
                    Tensor::from_f32(name, shape, &padded).unwrap()
                }
            },
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
        let (context, length, dim) = (self.context, self.length, self.head_dim);
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
}
