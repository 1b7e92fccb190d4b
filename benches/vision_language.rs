//! Vision-language models of full size and depth, with random weights made on the spot: encoder time of a picture,
//! prefill and decode speed, peak memory.
//!
//! `cargo bench --bench vision_language [-- smolvlm_500m|internvl3_1b] [--weights w4] [--vision-weights w8]
//! [--threads N] [--repeat N]`
//!
//! Speed does not depend on what the weights are. The checkpoint (1 to 2 GB) and the compiled model are written to a
//! temporary folder and removed. Measuring happens in a process of its own, so that peak memory is that of opening the
//! model and talking to it. A plain harness, because one picture takes seconds.

#[path = "../tests/support/random_checkpoint.rs"]
mod random_checkpoint;

use etgenai::chat::Message;
use etgenai::checkpoint::Checkpoint;
use etgenai::compile::{CompileOptions, Flow as CompileFlow, compile_checkpoint};
use etgenai::formats::WeightFormat;
use etgenai::media::{DecodeOptions, Image, PixelFormat, Pixels, Tiling};
use etgenai::runner::{Flow, GenerateOptions, Runner, RunnerOptions};
use random_checkpoint::{internvl3_1b, smolvlm_500m};
use std::error::Error;
use std::path::Path;
use std::process::Command;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Reply tokens that are timed.
const NEW_TOKENS: usize = 32;
/// Token slots: a picture of 256 rows, a question, a reply.
const CONTEXT: usize = 512;

struct Settings {
    models: Vec<String>,
    weights: WeightFormat,
    vision_weights: WeightFormat,
    threads: Option<usize>,
    repeat: usize,
    /// Only measure this compiled model: what the process starts itself with.
    measure: Option<String>,
}

impl Settings {
    fn from_arguments() -> Outcome<Self> {
        let mut settings = Self {
            models: Vec::new(),
            weights: WeightFormat::W4,
            vision_weights: WeightFormat::W8,
            threads: None,
            repeat: 3,
            measure: None,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            let format = |name: &str| WeightFormat::parse(name).ok_or(format!("there is no weight format {name}"));
            match argument.as_str() {
                // Added by `cargo bench`.
                "--bench" => {}
                "--weights" => settings.weights = format(&value()?)?,
                "--vision-weights" => settings.vision_weights = format(&value()?)?,
                "--threads" => settings.threads = Some(value()?.parse()?),
                "--repeat" => settings.repeat = value()?.parse::<usize>()?.max(1),
                "--measure" => settings.measure = Some(value()?),
                "smolvlm_500m" | "internvl3_1b" => settings.models.push(argument),
                other => return Err(format!("{other}: smolvlm_500m or internvl3_1b?").into()),
            }
        }
        if settings.models.is_empty() {
            settings.models = vec!["smolvlm_500m".into(), "internvl3_1b".into()];
        }
        Ok(settings)
    }
}

fn main() -> Outcome<()> {
    let settings = Settings::from_arguments()?;
    if let Some(directory) = &settings.measure {
        return measure(Path::new(directory), &settings);
    }
    for name in &settings.models {
        let checkpoint = if name == "smolvlm_500m" { smolvlm_500m(12, 32) } else { internvl3_1b(24, 24) };
        let folder = tempfile::tempdir()?;
        let (source, out) = (folder.path().join("checkpoint"), folder.path().join("model"));
        std::fs::create_dir(&source)?;
        checkpoint.write(&source, 1);
        let options = CompileOptions {
            max_context: Some(CONTEXT),
            vision_weights: Some(settings.vision_weights),
            threads: settings.threads,
            ..CompileOptions::new(settings.weights)
        };
        let report = compile_checkpoint(&Checkpoint::open(&source)?, &out, &options, &mut |_| CompileFlow::Continue)?;
        std::fs::remove_dir_all(&source)?;
        println!(
            "{name}: {:.0} M parameters, {} ({} vision encoder), {:.0} MB, compiled in {:.1} s",
            checkpoint.parameters() as f64 / 1e6,
            settings.weights.name(),
            settings.vision_weights.name(),
            report.bytes as f64 / 1e6,
            report.seconds
        );
        let mut child = Command::new(std::env::current_exe()?);
        child.arg("--measure").arg(&out).args(["--repeat", &settings.repeat.to_string()]);
        if let Some(threads) = settings.threads {
            child.args(["--threads", &threads.to_string()]);
        }
        let status = child.status()?;
        if !status.success() {
            return Err(format!("{name}: measuring failed: {status}").into());
        }
    }
    Ok(())
}

/// Open a compiled model and talk to it about pictures it has not seen.
fn measure(directory: &Path, settings: &Settings) -> Outcome<()> {
    let options = RunnerOptions { threads: settings.threads, image_tiling: Tiling::Single, ..RunnerOptions::default() };
    let mut runner = Runner::open(directory, &options)?;
    let reply = GenerateOptions { max_new_tokens: Some(NEW_TOKENS), ignore_eos: true, ..GenerateOptions::default() };
    let (mut preprocess, mut encode, mut prefill, mut decode) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // The first run touches the weights for the first time; it is not counted.
    for run in 0..=settings.repeat {
        runner.reset();
        let message = Message::user_with_images([picture(run as u8)?], "Describe the image in detail.");
        let stats = runner.generate(&[message], &reply, &mut |_| Flow::Continue)?.stats;
        if run > 0 {
            preprocess.push(stats.image_preprocess_ms);
            encode.push(stats.image_encode_ms);
            prefill.push(stats.prefill_tokens_per_second().unwrap_or_default());
            decode.push(stats.decode_tokens_per_second().unwrap_or_default());
        }
    }
    println!("  engine        {}", runner.decoder().component().description());
    println!("  load          {:.0} ms", runner.stats().load_ms);
    println!("  preprocessing {:.1} ms a picture of 1280 x 960", median(&mut preprocess));
    println!("  encoder       {:.0} ms a picture", median(&mut encode));
    println!("  prefill       {:.1} tokens/s", median(&mut prefill));
    println!("  decode        {:.1} tokens/s", median(&mut decode));
    match peak_memory_mb() {
        Some(megabytes) => println!("  peak memory   {megabytes:.0} MB"),
        None => println!("  peak memory   not known on this system"),
    }
    Ok(())
}

/// A picture like no other.
fn picture(seed: u8) -> Outcome<Image> {
    let (width, height) = (1280, 960);
    let byte = |at: usize| (at * 31 / 7 + at / 640) as u8 ^ seed;
    let data: Vec<u8> = (0..width * height * 3).map(byte).collect();
    let pixels = Pixels { format: PixelFormat::Rgb8, width, height, row_stride: width * 3, data: &data };
    Ok(Image::from_pixels(&pixels, &DecodeOptions::default())?)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Peak resident memory of this process.
fn peak_memory_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024.0 / 1e6)
}
