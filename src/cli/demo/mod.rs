//! `etgenai demo`: compile the model that ships inside the command and play a conversation about three pictures, in the
//! terminal and as an HTML page.

pub mod assets;
mod page;

use super::output::{bytes, print_json, print_line, print_piece};
use super::{Failure, Outcome, interrupt, positive, terminal};
use assets::ScriptTurn;
use etgenai::chat::Message;
use etgenai::checkpoint::Checkpoint;
use etgenai::compile::{CompileOptions, CompileReport, Flow as CompileFlow, compile_checkpoint};
use etgenai::formats::WeightFormat;
use etgenai::media::{DecodeOptions, Image};
use etgenai::runner::{Event, Flow, GenerateOptions, Runner, RunnerOptions, StopReason, TurnResult, TurnStats};
use etgenai::{Error, Result};
use serde_json::json;
use std::path::{Path, PathBuf};

/// File name of the page.
const PAGE: &str = "index.html";
/// What the model is compiled to: half of f32's size, and not distinguishable from it in the answers.
const WEIGHTS: WeightFormat = WeightFormat::F16;

/// Arguments of `demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder for the checkpoint, the compiled model and the page
    #[arg(long, value_name = "DIR", default_value = "etgenai-demo")]
    out: PathBuf,
    /// Threads that compute; without it one a physical core
    #[arg(long, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
}

/// A turn that was played.
struct Played {
    /// The new pictures: as their files, and decoded.
    images: Vec<(&'static [u8], Image)>,
    text: String,
    result: TurnResult,
}

/// Unpack the shipped checkpoint below `folder` and compile it there; gives the compiled directory.
pub fn compile_shipped_model(folder: &Path) -> Result<(PathBuf, CompileReport)> {
    let (checkpoint, model) = (folder.join("checkpoint"), folder.join("model"));
    assets::write_model(&checkpoint)?;
    let checkpoint = Checkpoint::open(&checkpoint)?;
    let report =
        compile_checkpoint(&checkpoint, &model, &CompileOptions::new(WEIGHTS), &mut |_| CompileFlow::Continue)?;
    Ok((model, report))
}

/// Run `etgenai demo`.
pub fn run(args: &Args, json: bool) -> Outcome {
    let (model, report) = compile_shipped_model(&args.out)?;
    let mut runner = Runner::open(&model, &RunnerOptions { threads: args.threads, ..RunnerOptions::default() })?;
    if !json {
        print_line(&format!(
            "compiled {} ({}) in {:.1} s, opened in {:.0} ms: {}",
            report.model,
            bytes(report.bytes),
            report.seconds,
            runner.stats().load_ms,
            runner.decoder().component().description()
        ))?;
    }
    let mut played = Vec::new();
    for turn in assets::script()?.turns {
        let turn = play(&mut runner, turn, json)?;
        let cancelled = turn.result.stop_reason == StopReason::Cancelled;
        played.push(turn);
        if cancelled {
            return Err(Error::Cancelled.into());
        }
    }
    let page = args.out.join(PAGE);
    let html = page::write(&played, &report, &runner);
    std::fs::write(&page, html).map_err(|error| Error::io(&page, error))?;
    if json {
        let turns = played.iter().map(|turn| {
            json!({
                "prompt": turn.text,
                "images": turn.images.len(),
                "text": turn.result.text.trim(),
                "stop_reason": turn.result.stop_reason.name(),
                "stats": turn.result.stats,
            })
        });
        let turns: Vec<_> = turns.collect();
        return Ok(print_json(&json!({ "model": model, "page": page, "turns": turns, "total": runner.stats() }))?);
    }
    print_line(&format!("\npictures, messages and times to look at: {}", page.display()))?;
    Ok(print_line(&format!("the same with your own files: etgenai chat {} --image FILE", model.display()))?)
}

fn play(runner: &mut Runner, turn: ScriptTurn, json: bool) -> std::result::Result<Played, Failure> {
    let decode = |name: &String| -> Result<(&'static [u8], Image)> {
        let file = assets::image(name)?;
        Ok((file, Image::decode(file, &DecodeOptions::default())?))
    };
    let images = turn.images.iter().map(decode).collect::<Result<Vec<_>>>()?;
    if !json {
        show(&images, &turn.images, &turn.text)?;
    }
    let cancel = runner.cancel_handle();
    let _scope = interrupt::cancels_with(move || cancel.cancel());
    let message = Message::user_with_images(images.iter().map(|(_, image)| image.clone()), &turn.text);
    let mut printed = Ok(());
    let mut at_start = true;
    let result = runner.generate(&[message], &GenerateOptions::default(), &mut |event| {
        if let (Event::Text(text), false) = (event, json) {
            // The template ends in "Assistant:" and leaves the space behind it to the model.
            printed = print_piece(if at_start { text.trim_start_matches(' ') } else { text });
            at_start = false;
        }
        if printed.is_ok() { Flow::Continue } else { Flow::Stop }
    })?;
    printed?;
    if !json {
        print_line("")?;
        print_line(&format!("  [{}]", describe(&result.stats)))?;
    }
    Ok(Played { images, text: turn.text, result })
}

fn show(images: &[(&[u8], Image)], names: &[String], text: &str) -> std::io::Result<()> {
    print_line("")?;
    for ((_, image), name) in images.iter().zip(names) {
        match terminal::draw(image).filter(|_| terminal::shows_pictures()) {
            Some(drawn) => print_line(&format!("{drawn}\n"))?,
            None => print_line(&format!("  ({name}: {} x {} pixels)", image.width(), image.height()))?,
        }
    }
    print_line(&format!("> {text}"))
}

/// The times of a turn in a line.
fn describe(stats: &TurnStats) -> String {
    let rate = |rate: Option<f64>| rate.map_or("-".into(), |rate| format!("{rate:.0}/s"));
    let mut parts = Vec::new();
    if stats.encoded_images > 0 {
        let count = stats.encoded_images;
        let each = (stats.image_preprocess_ms + stats.image_encode_ms) / count as f64;
        parts.push(format!("{count} new picture{}, {each:.1} ms each", if count == 1 { "" } else { "s" }));
    }
    parts.push(format!(
        "{} prompt tokens, {} of them new ({})",
        stats.prompt_tokens,
        stats.prefilled_tokens,
        rate(stats.prefill_tokens_per_second())
    ));
    parts.push(format!("{} generated ({})", stats.generated_tokens, rate(stats.decode_tokens_per_second())));
    parts.push(format!("first token after {:.1} ms, {:.1} ms in all", stats.first_token_ms, stats.total_ms));
    parts.join("; ")
}
