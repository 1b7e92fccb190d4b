//! Prefill and decode speed of the CPU engine, and where the time goes.
//!
//! `cargo bench --bench decoder [-- CHECKPOINT] [--weights w4] [--context 512] [--threads N]`
//!
//! Without a checkpoint the weights are random numbers in the shapes of SmolLM2-135M: speed does not depend on their
//! values. A plain harness, because a decode step is timed over a whole reply while its context grows.

use etgenai::artefact::TEXT_DECODER;
use etgenai::checkpoint::Checkpoint;
use etgenai::compile::{Flow, plan_storage, write_component};
use etgenai::engine::cpu::pool::{Pool, physical_cores};
use etgenai::engine::cpu::{CpuEngine, CpuOptions};
use etgenai::engine::{Engine, ExecuteOptions, GraphSignature, LoadedComponent};
use etgenai::formats::WeightFormat;
use etgenai::graph::{DType, Tensor, TensorInfo, WeightProvider};
use etgenai::models::{BoundWeights, build_decoder};
use etgenai::registry::ModelSpec;
use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

const MASKED: f32 = -65535.0;
const REPEATS: usize = 5;

struct Settings {
    checkpoint: Option<String>,
    weights: WeightFormat,
    context: usize,
    block: usize,
    threads: usize,
}

impl Settings {
    fn from_arguments() -> Outcome<Self> {
        let threads = physical_cores();
        let mut settings = Self { checkpoint: None, weights: WeightFormat::W4, context: 512, block: 32, threads };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--bench" => {}
                "--weights" => {
                    let name = value()?;
                    settings.weights = WeightFormat::parse(&name).ok_or(format!("no weight format {name}"))?;
                }
                "--context" => settings.context = value()?.parse()?,
                "--block" => settings.block = value()?.parse()?,
                "--threads" => settings.threads = value()?.parse()?,
                _ => settings.checkpoint = Some(argument),
            }
        }
        Ok(settings)
    }
}

/// Shapes of SmolLM2-135M.
fn smollm2() -> serde_json::Map<String, serde_json::Value> {
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192, "rope_theta": 100000.0, "tie_word_embeddings": true,
    });
    config.as_object().cloned().unwrap_or_default()
}

/// Small numbers without a pattern.
struct Noise;

impl WeightProvider for Noise {
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> etgenai::Result<()> {
        let mut state = (name.len() + rows.start) as u32;
        for value in out {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *value = ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * 0.05;
        }
        Ok(())
    }
}

fn write(settings: &Settings, path: &Path) -> Outcome<()> {
    let checkpoint = settings.checkpoint.as_ref().map(|path| Checkpoint::open(Path::new(path))).transpose()?;
    let spec = match &checkpoint {
        Some(checkpoint) => ModelSpec::from_config(checkpoint.config())?,
        None => ModelSpec::from_config(&smollm2())?,
    };
    let graphs = build_decoder(&spec.decoder, settings.context, settings.block)?;
    let header = plan_storage(TEXT_DECODER, graphs, settings.weights)?;
    let pool = Pool::new(settings.threads);
    let start = Instant::now();
    let written = match &checkpoint {
        Some(checkpoint) => {
            let weights = BoundWeights::new(&spec.decoder, settings.context, checkpoint)?;
            write_component(path, &header, &weights, &pool, &mut |_| Flow::Continue)?
        }
        None => write_component(path, &header, &Noise, &pool, &mut |_| Flow::Continue)?,
    };
    let (name, weights) = (&spec.name, settings.weights.name());
    println!("{name} {weights}: {} MB packed in {:.1} s", written.bytes >> 20, start.elapsed().as_secs_f64());
    Ok(())
}

/// Inputs and outputs of one graph, as a host holds them.
struct Host {
    signature: GraphSignature,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl Host {
    fn new(signature: &GraphSignature) -> Outcome<Self> {
        let zeros = |infos: &[TensorInfo]| infos.iter().cloned().map(Tensor::zeros).collect::<Result<Vec<_>, _>>();
        let (inputs, outputs) = (zeros(&signature.inputs)?, zeros(&signature.outputs)?);
        Ok(Self { signature: signature.clone(), inputs, outputs })
    }

    fn block(&self) -> usize {
        self.signature.inputs[0].shape[1]
    }

    /// Run one block behind `past` tokens.
    fn run(&mut self, component: &mut dyn LoadedComponent, graph: usize, past: usize) -> Outcome<Duration> {
        let block = self.block();
        for tensor in &mut self.inputs {
            let info = tensor.info().clone();
            match (info.dtype, info.name.as_str()) {
                (DType::I32, name) => {
                    let offset = if name == "input_pos" { past } else { 7 };
                    let mut view = tensor.view_mut();
                    view.as_mut_slice::<i32>()?.iter_mut().enumerate().for_each(|(i, x)| *x = (offset + i) as i32);
                }
                (_, name) if name.ends_with("mask") => {
                    let (columns, mut view) = (info.shape[3], tensor.view_mut());
                    let cache = columns - block;
                    for (row, mask) in view.as_mut_slice::<f32>()?.chunks_exact_mut(columns).enumerate() {
                        let seen = |column: usize| column < past || (column >= cache && column - cache <= row);
                        mask.iter_mut().enumerate().for_each(|(c, m)| *m = if seen(c) { 0.0 } else { MASKED });
                    }
                }
                _ => {}
            }
        }
        let inputs = self.inputs.iter().map(Tensor::view).collect::<Vec<_>>();
        let mut outputs = self.outputs.iter_mut().map(Tensor::view_mut).collect::<Vec<_>>();
        let options = ExecuteOptions { valid_rows: None, logits_rows: Some(block - 1..block) };
        let start = Instant::now();
        component.execute(graph, &inputs, &mut outputs, &options)?;
        Ok(start.elapsed())
    }
}

fn measure(component: &mut dyn LoadedComponent, graph: usize, context: usize) -> Outcome<()> {
    let mut host = Host::new(&component.graphs()[graph].clone())?;
    let block = host.block();
    let positions = (0..context - block).step_by(block).collect::<Vec<_>>();
    let mut speeds = Vec::new();
    for repeat in 0..=REPEATS {
        let mut time = Duration::ZERO;
        for &past in &positions {
            time += host.run(component, graph, past)?;
        }
        // The first round reads the file and wakes the threads.
        if repeat > 0 {
            speeds.push((positions.len() * block) as f64 / time.as_secs_f64());
        }
    }
    speeds.sort_by(f64::total_cmp);
    let (least, median, most) = (speeds[0], speeds[speeds.len() / 2], speeds[speeds.len() - 1]);
    println!("\n{}: {median:.1} tokens/s ({least:.1} to {most:.1})", host.signature.name);

    component.set_profiling(true);
    for &past in &positions {
        host.run(component, graph, past)?;
    }
    let profile = component.profile();
    component.set_profiling(false);
    let total = profile.iter().map(|op| op.ms).sum::<f64>();
    println!("{:<16} {:>8} {:>9} {:>6} {:>7} {:>8}", "operator", "calls", "ms", "%", "GB/s", "GFLOP/s");
    for op in profile {
        let per_second = |amount: u64| amount as f64 / (op.ms * 1e6);
        let (share, bytes, flops) = (100.0 * op.ms / total, per_second(op.bytes), per_second(op.flops));
        println!("{:<16} {:>8} {:>9.1} {share:>6.1} {bytes:>7.1} {flops:>8.1}", op.name, op.calls, op.ms);
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let settings = Settings::from_arguments()?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("text_decoder.safetensors");
    write(&settings, &path)?;
    let start = Instant::now();
    let engine = CpuEngine::new(CpuOptions { threads: Some(settings.threads), kernels: None });
    let mut component = engine.load_file(&path)?;
    println!("{}; loaded in {:.1} ms", component.description(), start.elapsed().as_secs_f64() * 1e3);
    measure(&mut *component, 1, settings.context)?;
    measure(&mut *component, 0, settings.context)
}
