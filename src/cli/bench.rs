//! `etgenai bench`: load time, encoder time of a picture, prefill and decode speed, memory; with `--ops` the time operator
//! by operator.

use super::machine::memory_read_speed;
use super::output::{self, Align, Spread, Table, print_fields, print_json, print_line};
use super::progress::Progress;
use super::{Outcome, interrupt, positive};
use etgenai::engine::OpProfile;
use etgenai::engine::cpu::pool::physical_cores;
use etgenai::media::{PixelTensor, TileLayout};
use etgenai::pipeline::memory::peak_memory_bytes;
use etgenai::pipeline::open_runner;
use etgenai::runner::{Runner, RunnerOptions, SamplingOptions};
use etgenai::{Error, Result};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Arguments of `bench`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory written by `etgenai compile` or `etgenai quantize`
    dir: PathBuf,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    prompt_tokens: usize,
    /// Tokens decoded after it
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = positive)]
    new_tokens: usize,
    /// Threads that compute; without it one a physical core
    #[arg(long, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    repeat: usize,
    /// Explain the time operator by operator
    #[arg(long)]
    ops: bool,
}

impl Args {
    fn threads(&self) -> usize {
        self.threads.unwrap_or_else(physical_cores)
    }
}

/// Run `etgenai bench`.
pub fn run(args: &Args, json: bool) -> Outcome {
    let cancelled = Arc::new(AtomicBool::new(false));
    let _scope = interrupt::cancels_with({
        let cancelled = cancelled.clone();
        move || cancelled.store(true, Ordering::Relaxed)
    });
    let report = measure(args, json, &cancelled)?;
    if json { Ok(print_json(&report.json(args))?) } else { report.print(args) }
}

/// Everything that was measured.
struct Report {
    engine: String,
    threads: usize,
    weight_bytes: u64,
    kv_bytes: u64,
    context_capacity: usize,
    load_ms: Spread,
    /// Of models that take pictures.
    encoder: Option<Encoder>,
    /// Tokens a second.
    prefill: Spread,
    /// Tokens a second, choosing the most likely token included.
    decode: Spread,
    peak_memory_bytes: Option<u64>,
    ops: Option<Operators>,
}

/// The vision encoder's part.
struct Encoder {
    /// Side of a tile, pixels.
    tile_size: usize,
    /// Tokens a tile becomes.
    rows_per_tile: usize,
    /// Milliseconds a tile.
    tile_ms: Spread,
}

/// Where the time goes, for `--ops`.
struct Operators {
    /// Bytes a second.
    memory_read_speed: f64,
    encoder: Vec<OpProfile>,
    prefill: Vec<OpProfile>,
    decode: Vec<OpProfile>,
}

fn measure(args: &Args, json: bool, cancelled: &AtomicBool) -> Result<Report> {
    let (load_ms, mut runner) = load(args, cancelled)?;
    check_capacity(args, runner.context_capacity())?;
    let prompt = prompt(args.prompt_tokens, runner.decoder().contract().vocabulary);

    let encoder = measure_encoder(&mut runner, args.repeat, cancelled)?;
    let bar = Progress::steps("measuring", "runs", json);
    // The first run touches the weights and the KV cache for the first time; it is not counted.
    time_run(&mut runner, &prompt, args.new_tokens)?;
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for run in 0..args.repeat {
        check(cancelled)?;
        let rates = time_run(&mut runner, &prompt, args.new_tokens)?;
        prefill.push(rates.prefill);
        decode.push(rates.decode);
        bar.set(run as u64 + 1, args.repeat as u64);
    }
    // Before the operators are looked at: the buffer for the memory speed is not the model's memory.
    let peak_memory_bytes = peak_memory_bytes();
    let ops = if args.ops { Some(profile(&mut runner, &prompt, args)?) } else { None };
    let decoder = runner.decoder();
    Ok(Report {
        engine: decoder.component().description(),
        threads: args.threads(),
        weight_bytes: runner.weight_bytes(),
        kv_bytes: decoder.contract().kv_bytes(),
        context_capacity: decoder.context_capacity(),
        load_ms,
        encoder,
        prefill: spread(&prefill)?,
        decode: spread(&decode)?,
        peak_memory_bytes,
        ops,
    })
}

fn spread(samples: &[f64]) -> Result<Spread> {
    Spread::of(samples).ok_or_else(|| Error::internal("a benchmark without a run"))
}

/// Open the model several times, keep the last one.
fn load(args: &Args, cancelled: &AtomicBool) -> Result<(Spread, Runner)> {
    let options = RunnerOptions { threads: Some(args.threads()), ..RunnerOptions::default() };
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        let runner = open_runner(&args.dir, &options)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        check(cancelled)?;
        if times.len() >= args.repeat {
            return Ok((spread(&times)?, runner));
        }
    }
}

/// Whether Ctrl-C has come.
fn check(cancelled: &AtomicBool) -> Result<()> {
    if cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
}

fn check_capacity(args: &Args, capacity: usize) -> Result<()> {
    // One more: the last token fed predicts one that is sampled but not fed.
    let needed = args.prompt_tokens.saturating_add(args.new_tokens).saturating_add(1);
    if needed > capacity {
        let what = format!("a run of --prompt-tokens {} and --new-tokens {}", args.prompt_tokens, args.new_tokens);
        return Err(Error::ContextFull { what, needed, capacity });
    }
    Ok(())
}

/// Token ids spread over the vocabulary: what they mean does not change the work.
fn prompt(len: usize, vocabulary: usize) -> Vec<u32> {
    let vocabulary = vocabulary.max(1) as u64;
    (0..len as u64).map(|index| ((index * 7919 + 13) % vocabulary) as u32).collect()
}

/// Tokens a second of one run.
struct Rates {
    prefill: f64,
    decode: f64,
}

fn time_run(runner: &mut Runner, prompt: &[u32], new_tokens: usize) -> Result<Rates> {
    runner.reset();
    let start = Instant::now();
    runner.prefill(prompt)?;
    let prefill = prompt.len() as f64 / start.elapsed().as_secs_f64();
    let start = Instant::now();
    decode(runner, new_tokens)?;
    Ok(Rates { prefill, decode: new_tokens as f64 / start.elapsed().as_secs_f64() })
}

/// Feed the most likely token, again and again; end-of-sequence tokens do not end it.
fn decode(runner: &mut Runner, count: usize) -> Result<()> {
    let greedy = SamplingOptions::default();
    for _ in 0..count {
        let next = runner.sample(&greedy)?;
        runner.decode(next)?;
    }
    Ok(())
}

/// Time the vision encoder on one tile, whose pixels do not change the work.
fn measure_encoder(runner: &mut Runner, repeat: usize, cancelled: &AtomicBool) -> Result<Option<Encoder>> {
    let Some((tile_size, rows_per_tile, _)) = runner.image_geometry() else { return Ok(None) };
    let pixels = gray_tile(tile_size);
    runner.encode_pixels(&pixels)?;
    let mut times = Vec::new();
    for _ in 0..repeat {
        check(cancelled)?;
        let start = Instant::now();
        runner.encode_pixels(&pixels)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(Some(Encoder { tile_size, rows_per_tile, tile_ms: spread(&times)? }))
}

fn gray_tile(side: usize) -> PixelTensor {
    let layout = TileLayout { rows: 0, cols: 0, overview: true };
    PixelTensor { values: vec![0.25; 3 * side * side], tiles: 1, height: side, width: side, layout }
}

/// Operator times of the vision encoder on one tile.
fn profile_encoder(runner: &mut Runner) -> Result<Vec<OpProfile>> {
    let Some((tile_size, ..)) = runner.image_geometry() else { return Ok(Vec::new()) };
    let set_profiling = |runner: &mut Runner, on| {
        if let Some(encoder) = runner.media_encoder_mut() {
            encoder.component_mut().set_profiling(on);
        }
    };
    set_profiling(runner, true);
    runner.encode_pixels(&gray_tile(tile_size))?;
    let profile = runner.media_encoder_mut().map(|encoder| encoder.component().profile()).unwrap_or_default();
    set_profiling(runner, false);
    Ok(profile)
}

fn profile(runner: &mut Runner, prompt: &[u32], args: &Args) -> Result<Operators> {
    let encoder = profile_encoder(runner)?;
    runner.reset();
    runner.component_mut().set_profiling(true);
    runner.prefill(prompt)?;
    let prefill = runner.decoder().component().profile();
    // Switching it on again forgets what was counted.
    runner.component_mut().set_profiling(true);
    decode(runner, args.new_tokens)?;
    let decode = runner.decoder().component().profile();
    runner.component_mut().set_profiling(false);
    Ok(Operators { memory_read_speed: memory_read_speed(args.threads()), encoder, prefill, decode })
}

impl Report {
    fn json(&self, args: &Args) -> Value {
        json!({
            "engine": self.engine,
            "threads": self.threads,
            "repeat": args.repeat,
            "prompt_tokens": args.prompt_tokens,
            "new_tokens": args.new_tokens,
            "context_capacity": self.context_capacity,
            "load_ms": self.load_ms,
            "encoder": self.encoder.as_ref().map(|encoder| {
                json!({
                    "tile_size": encoder.tile_size,
                    "rows_per_tile": encoder.rows_per_tile,
                    "tile_ms": encoder.tile_ms,
                })
            }),
            "prefill_tokens_per_second": self.prefill,
            "decode_tokens_per_second": self.decode,
            "weight_bytes": self.weight_bytes,
            "kv_bytes": self.kv_bytes,
            "peak_memory_bytes": self.peak_memory_bytes,
            "ops": self.ops.as_ref().map(Operators::json),
        })
    }

    fn print(&self, args: &Args) -> Outcome {
        let mut fields = vec![("engine", self.engine.clone()), ("load", format!("{} ms", self.load_ms))];
        if let Some(Encoder { tile_size, rows_per_tile, tile_ms }) = &self.encoder {
            let size = format!("{tile_size} x {tile_size} pixels to {rows_per_tile} tokens");
            fields.push(("encoder", format!("{tile_ms} ms a tile, {size}")));
        }
        fields.extend([
            ("prefill", format!("{} tokens/s, {} tokens", self.prefill, args.prompt_tokens)),
            ("decode", format!("{} tokens/s, {} tokens", self.decode, args.new_tokens)),
            ("weights", output::bytes(self.weight_bytes)),
            ("KV cache", format!("{}, {} tokens", output::bytes(self.kv_bytes), self.context_capacity)),
            ("peak memory", self.peak_memory_bytes.map_or("not known".into(), output::bytes)),
        ]);
        print_fields(&fields)?;
        self.ops.as_ref().map_or(Ok(()), Operators::print)
    }
}

impl Operators {
    fn json(&self) -> Value {
        json!({
            "memory_read_bytes_per_second": self.memory_read_speed,
            "encoder": self.encoder.iter().map(|op| self.op_json(op, &self.encoder)).collect::<Vec<_>>(),
            "prefill": self.prefill.iter().map(|op| self.op_json(op, &self.prefill)).collect::<Vec<_>>(),
            "decode": self.decode.iter().map(|op| self.op_json(op, &self.decode)).collect::<Vec<_>>(),
        })
    }

    fn op_json(&self, op: &OpProfile, all: &[OpProfile]) -> Value {
        json!({
            "name": op.name,
            "calls": op.calls,
            "ms": op.ms,
            "share": share(op, all),
            "bytes": op.bytes,
            "flops": op.flops,
            "bytes_per_second": per_second(op.bytes, op.ms),
            "share_of_memory_read_speed": per_second(op.bytes, op.ms) / self.memory_read_speed,
            "flops_per_second": per_second(op.flops, op.ms),
        })
    }

    fn print(&self) -> Outcome {
        print_line(&format!("\nmemory reads at {:.1} GB/s", self.memory_read_speed / 1e9))?;
        let phases = [("encoder", &self.encoder), ("prefill", &self.prefill), ("decode", &self.decode)];
        for (phase, ops) in phases.into_iter().filter(|(_, ops)| !ops.is_empty()) {
            print_line("")?;
            let mut table = Table::new(&[
                (phase, Align::Left),
                ("calls", Align::Right),
                ("ms", Align::Right),
                ("share", Align::Right),
                ("GB/s", Align::Right),
                ("of memory", Align::Right),
                ("GFLOP/s", Align::Right),
            ]);
            let mut sorted = ops.iter().collect::<Vec<_>>();
            sorted.sort_by(|a, b| b.ms.total_cmp(&a.ms));
            for op in sorted {
                let bytes = per_second(op.bytes, op.ms);
                table.row(vec![
                    op.name.clone(),
                    op.calls.to_string(),
                    format!("{:.2}", op.ms),
                    format!("{:.1} %", share(op, ops) * 100.0),
                    format!("{:.1}", bytes / 1e9),
                    format!("{:.0} %", bytes / self.memory_read_speed * 100.0),
                    format!("{:.1}", per_second(op.flops, op.ms) / 1e9),
                ]);
            }
            table.print()?;
        }
        Ok(())
    }
}

/// Share of the time of all operators; 0 if none took any.
fn share(op: &OpProfile, all: &[OpProfile]) -> f64 {
    let total = all.iter().map(|op| op.ms).sum::<f64>();
    if total > 0.0 { op.ms / total } else { 0.0 }
}

fn per_second(count: u64, ms: f64) -> f64 {
    if ms > 0.0 { count as f64 / (ms / 1e3) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_defined_for_no_time() {
        let op = OpProfile { name: "add".into(), calls: 0, ms: 0.0, bytes: 5, flops: 7 };
        assert_eq!(per_second(op.bytes, op.ms), 0.0);
        assert_eq!(share(&op, std::slice::from_ref(&op)), 0.0);
        assert_eq!(per_second(6, 3.0), 2000.0);
    }

    #[test]
    fn prompts_stay_inside_the_vocabulary() {
        assert_eq!(prompt(3, 10), [3, 2, 1]);
        assert_eq!(prompt(2, 1), [0, 0]);
    }
}
