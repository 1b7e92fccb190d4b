//! Side by side with llama.cpp: the same GGUF file, the same tokens, the same number of threads, in one process, turn
//! and turn about (a machine that slows down slows both). Run with
//!
//! ```text
//! cargo bench --bench llama_cpp --features compare-llama-cpp
//! ```
//!
//! after `.ci/fetch-models` and with the environment of docs/performance.md, which makes llama.cpp use the vector
//! instructions of the machine. Prints minimum, median and maximum of both and the ratio of the medians.

use etgenai::checkpoint::Checkpoint;
use etgenai::compile::{CompileOptions, Flow, compile_checkpoint};
use etgenai::formats::WeightFormat;
use etgenai::runner::{Runner, RunnerOptions};
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use std::error::Error;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const THREADS: usize = 2;
const CONTEXT: usize = 512;
const REPEATS: usize = 7;
/// Prompt length and number of decoded tokens; together they fit the context.
const CASES: [(usize, usize); 2] = [(256, 128), (448, 64)];

fn main() -> Result<()> {
    let gguf = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map(PathBuf::from);
    let gguf = gguf
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".deps/models/SmolLM2-135M-Instruct.Q4_1.gguf"));
    if !gguf.is_file() {
        return Err(format!("{}: not found; run .ci/fetch-models first", gguf.display()).into());
    }
    println!("model     {}", gguf.file_name().unwrap_or_default().to_string_lossy());
    println!("settings  {THREADS} threads, context {CONTEXT}, {REPEATS} repeats, greedy");

    let compiled = tempfile::tempdir()?;
    let compiled = compiled.path().join("model");
    let options = CompileOptions { max_context: Some(CONTEXT), ..CompileOptions::new(WeightFormat::W4) };
    compile_checkpoint(&Checkpoint::open(&gguf)?, &compiled, &options, &mut |_| Flow::Continue)?;

    let start = Instant::now();
    let mut ours = Ours(Runner::open(&compiled, &RunnerOptions { threads: Some(THREADS), ..Default::default() })?);
    let our_load = start.elapsed();

    let mut backend = LlamaBackend::init()?;
    backend.void_logs();
    let start = Instant::now();
    let model = LlamaModel::load_from_file(&backend, &gguf, &LlamaModelParams::default())?;
    let threads = i32::try_from(THREADS)?;
    let params = LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(u32::try_from(CONTEXT)?))
        .with_n_threads(threads)
        .with_n_threads_batch(threads);
    let mut theirs = Theirs { context: model.new_context(&backend, params)?, next: 0 };
    let their_load = start.elapsed();

    let component = ours.0.decoder().component();
    let (version, engine) = (env!("CARGO_PKG_VERSION"), component.description());
    println!("etgenai   {version}, w4, weights {} bytes, {engine}", component.weight_bytes());
    println!("llama.cpp crate llama-cpp-2 0.1.160, weights {} bytes, {}", model.size(), system_info());
    println!("load      {:.1} ms against {:.1} ms", our_load.as_secs_f64() * 1e3, their_load.as_secs_f64() * 1e3);

    for (prompt, new) in CASES {
        compare(&mut ours, &mut theirs, prompt, new, model.n_vocab())?;
    }
    Ok(())
}

/// One of the two runtimes.
trait Contender {
    /// Forget everything, take in the prompt.
    fn prefill(&mut self, prompt: &[u32]) -> Result<()>;
    /// Take the most likely next token and feed it.
    fn step(&mut self) -> Result<()>;
}

struct Ours(Runner);

impl Contender for Ours {
    fn prefill(&mut self, prompt: &[u32]) -> Result<()> {
        self.0.reset();
        Ok(self.0.prefill(prompt)?)
    }

    fn step(&mut self) -> Result<()> {
        let next = most_likely(self.0.logits().ok_or("no logits")?);
        Ok(self.0.decode(next)?)
    }
}

struct Theirs<'a> {
    context: LlamaContext<'a>,
    /// Position of the next token.
    next: usize,
}

impl Theirs<'_> {
    fn feed(&mut self, tokens: &[u32]) -> Result<()> {
        let mut batch = LlamaBatch::new(CONTEXT, 1);
        for (index, &token) in tokens.iter().enumerate() {
            let position = i32::try_from(self.next + index)?;
            batch.add(LlamaToken(i32::try_from(token)?), position, &[0], index + 1 == tokens.len())?;
        }
        self.context.decode(&mut batch)?;
        self.context.synchronize();
        self.next += tokens.len();
        Ok(())
    }
}

impl Contender for Theirs<'_> {
    fn prefill(&mut self, prompt: &[u32]) -> Result<()> {
        self.context.clear_kv_cache();
        self.next = 0;
        self.feed(prompt)
    }

    fn step(&mut self) -> Result<()> {
        let next = most_likely(self.context.get_logits_ith(-1));
        self.feed(&[next])
    }
}

fn most_likely(logits: &[f32]) -> u32 {
    let best = logits
        .iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (index, &logit)| if logit > best.1 { (index, logit) } else { best });
    u32::try_from(best.0).unwrap_or_default()
}

fn compare(ours: &mut Ours, theirs: &mut Theirs<'_>, prompt: usize, new: usize, vocab: i32) -> Result<()> {
    let vocab = u32::try_from(vocab)?;
    // Spread over the vocabulary; both runtimes compute the same whatever the ids mean.
    let tokens = (0u32..).map(|i| (i * 7919 + 13) % vocab).take(prompt).collect::<Vec<_>>();
    let mut rates = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for repeat in 0..=REPEATS {
        let contenders: [&mut dyn Contender; 2] = [&mut *ours, &mut *theirs];
        for (contender, rates) in contenders.into_iter().zip(&mut rates) {
            let [prefill, decode] = measure(contender, &tokens, new)?;
            // The first round warms caches and page tables.
            if repeat > 0 {
                rates[0].push(prefill);
                rates[1].push(decode);
            }
        }
    }
    let [ours, theirs] = rates;
    println!("\nprompt {prompt}, {new} new tokens (tokens/s: minimum, median, maximum)");
    for (what, (ours, theirs)) in ["prefill", "decode"].iter().zip(ours.into_iter().zip(theirs)) {
        let (ours, theirs) = (spread(ours), spread(theirs));
        println!("{what:8}  etgenai    {:8.1} {:8.1} {:8.1}", ours[0], ours[1], ours[2]);
        println!("{what:8}  llama.cpp  {:8.1} {:8.1} {:8.1}", theirs[0], theirs[1], theirs[2]);
        println!("{what:8}  ratio of the medians {:.2}", ours[1] / theirs[1]);
    }
    Ok(())
}

/// Tokens a second of the prompt and of the reply.
fn measure(contender: &mut dyn Contender, prompt: &[u32], new: usize) -> Result<[f64; 2]> {
    let start = Instant::now();
    contender.prefill(prompt)?;
    let prefill = prompt.len() as f64 / start.elapsed().as_secs_f64();
    let start = Instant::now();
    for _ in 0..new {
        contender.step()?;
    }
    Ok([prefill, new as f64 / start.elapsed().as_secs_f64()])
}

fn spread(mut rates: Vec<f64>) -> [f64; 3] {
    rates.sort_by(f64::total_cmp);
    [rates[0], rates[rates.len() / 2], rates[rates.len() - 1]]
}

/// The vector instructions llama.cpp was built with, in its own words.
fn system_info() -> String {
    unsafe extern "C" {
        fn llama_print_system_info() -> *const std::ffi::c_char;
    }
    // SAFETY: the function takes nothing and returns a C string in static storage of the library; nothing else in this
    // program calls it, so the storage is not rewritten while we copy it.
    unsafe { std::ffi::CStr::from_ptr(llama_print_system_info()) }.to_string_lossy().into_owned()
}
