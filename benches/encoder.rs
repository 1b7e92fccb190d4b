//! Time of one picture in a vision encoder on the CPU engine, and where it goes.
//!
//! `cargo bench --bench encoder [-- smolvlm|internvl3] [--weights f32,f16,w8,w4] [--threads 1,2] [--layers N] [--ops]`
//!
//! Weights are random numbers, made on the spot, in the shapes of SmolVLM-500M or InternVL3-1B: speed does not depend on
//! their values. A plain harness, because one call takes seconds.

#[path = "../tests/support/encoder.rs"]
mod encoder;

use encoder::{Encoder, RandomWeights};
use etgenai::artefact::VISION_ENCODER;
use etgenai::compile::{Flow, plan_storage, write_component};
use etgenai::engine::cpu::pool::{Pool, physical_cores};
use etgenai::engine::cpu::{CpuEngine, CpuOptions};
use etgenai::engine::{Engine, ExecuteOptions, LoadedComponent};
use etgenai::formats::WeightFormat;
use etgenai::graph::Tensor;
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

struct Settings {
    name: String,
    encoder: Encoder,
    weights: Vec<WeightFormat>,
    threads: Vec<usize>,
    repeats: usize,
    ops: bool,
}

impl Settings {
    fn from_arguments() -> Outcome<Self> {
        let mut settings = Self {
            name: "smolvlm".into(),
            encoder: Encoder::smolvlm_500m(),
            weights: vec![WeightFormat::F32, WeightFormat::F16, WeightFormat::W8, WeightFormat::W4],
            threads: vec![1, physical_cores()],
            repeats: 3,
            ops: false,
        };
        let mut layers = None;
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--bench" => {}
                "--weights" => {
                    let known = |name: &str| WeightFormat::parse(name).ok_or(format!("no weight format {name}"));
                    settings.weights = value()?.split(',').map(known).collect::<Result<_, _>>()?;
                }
                "--threads" => settings.threads = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
                "--layers" => layers = Some(value()?.parse()?),
                "--repeat" => settings.repeats = value()?.parse()?,
                "--ops" => settings.ops = true,
                "smolvlm" => settings.encoder = Encoder::smolvlm_500m(),
                "internvl3" => (settings.name, settings.encoder) = (argument, Encoder::internvl3_1b()),
                _ => return Err(format!("{argument}: smolvlm or internvl3?").into()),
            }
        }
        settings.encoder.layers = layers.unwrap_or(settings.encoder.layers);
        Ok(settings)
    }
}

fn write(encoder: &Encoder, format: WeightFormat, path: &Path) -> Outcome<()> {
    let header = plan_storage(VISION_ENCODER, vec![encoder.graph()], format)?;
    write_component(path, &header, &RandomWeights, &Pool::new(physical_cores()), &mut |_| Flow::Continue)?;
    Ok(())
}

/// Encode one picture.
fn encode(component: &mut dyn LoadedComponent, pixels: &Tensor, features: &mut Tensor) -> Outcome<Duration> {
    let start = Instant::now();
    component.execute(0, &[pixels.view()], &mut [features.view_mut()], &ExecuteOptions::default())?;
    Ok(start.elapsed())
}

fn measure(settings: &Settings, format: WeightFormat, path: &Path, threads: usize) -> Outcome<()> {
    reset_peak_memory();
    let engine = CpuEngine::new(CpuOptions { threads: Some(threads), kernels: None });
    let mut component = engine.load_file(path)?;
    let signature = component.graphs()[0].clone();
    let mut random = encoder::noise(1);
    let values = (0..3 * settings.encoder.image.pow(2)).map(|_| random()).collect::<Vec<_>>();
    let pixels = Tensor::from_f32("pixel_values", &signature.inputs[0].shape, &values)?;
    let mut features = Tensor::zeros(signature.outputs[0].clone())?;
    // The first call reads the file and gets the memory.
    let first = encode(&mut *component, &pixels, &mut features)?;
    let mut times = Vec::new();
    let before = processor_time();
    for _ in 0..settings.repeats {
        times.push(encode(&mut *component, &pixels, &mut features)?);
    }
    let processor =
        before.zip(processor_time()).map(|(before, after)| (after - before) / settings.repeats.max(1) as u32);
    times.sort();
    let (least, most) = (times.first().copied().unwrap_or(first), times.last().copied().unwrap_or(first));
    let median = times.get(times.len() / 2).copied().unwrap_or(first);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{} {:<4} {}: {:.0} ms per image ({:.0} to {:.0}, first {:.0}), processor time {}, {:.1} GFLOP/s, peak memory {}",
        settings.name,
        format.name(),
        component.description(),
        ms(median),
        ms(least),
        ms(most),
        ms(first),
        processor.map_or("unknown".into(), |time| format!("{:.0} ms", ms(time))),
        settings.encoder.flops() as f64 / (ms(median) * 1e6),
        peak_memory().map_or("unknown".into(), |bytes| format!("{} MB", bytes >> 20)),
    );
    if settings.ops {
        print_operators(&mut *component, &pixels, &mut features)?;
    }
    Ok(())
}

fn print_operators(component: &mut dyn LoadedComponent, pixels: &Tensor, features: &mut Tensor) -> Outcome<()> {
    component.set_profiling(true);
    encode(component, pixels, features)?;
    let profile = component.profile();
    component.set_profiling(false);
    let total = profile.iter().map(|op| op.ms).sum::<f64>();
    for op in profile {
        let (share, speed) = (100.0 * op.ms / total, op.flops as f64 / (op.ms * 1e6));
        println!("  {:<20} {:>4} {:>9.1} ms {share:>5.1} % {speed:>7.1} GFLOP/s", op.name, op.calls, op.ms);
    }
    Ok(())
}

/// Time this process has spent on processors: on a busy machine it says more than the time that has passed.
fn processor_time() -> Option<Duration> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Some(Duration::from_nanos(nanoseconds.sum()))
}

/// Count [`peak_memory`] from here on.
fn reset_peak_memory() {
    // Systems without this file have no such count either.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The most memory this process had in RAM: the mapped weights, scratch memory and the host's tensors.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

fn main() -> Outcome<()> {
    let settings = Settings::from_arguments()?;
    let directory = tempfile::tempdir()?;
    for &format in &settings.weights {
        let path = directory.path().join(format!("{}.safetensors", format.name()));
        write(&settings.encoder, format, &path)?;
        for &threads in &settings.threads {
            measure(&settings, format, &path, threads)?;
        }
        std::fs::remove_file(&path)?;
    }
    Ok(())
}
