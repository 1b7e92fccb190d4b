//! `etgenai chat`: a conversation, typed at a terminal, read from a pipe or given as `--prompt`s, with pictures where the
//! model takes them.

use super::interrupt;
use super::output::{print_json, print_line, print_piece};
use super::{Failure, Outcome, complain, positive};
use clap::ValueEnum;
use etgenai::Error;
use etgenai::chat::{Message, messages_with_placeholders};
use etgenai::media::{DecodeOptions, Image, Tiling};
use etgenai::pipeline::open_runner;
use etgenai::runner::{
    Event, Flow, GenerateOptions, Runner, RunnerOptions, SamplingOptions, StopReason, TotalStats, TurnResult, TurnStats,
};
use serde_json::{Value, json};
use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};

const COMMANDS: &str = "\
/reset          forget the conversation
/rewind [N]     take back the last N turns (1 without N)
/stats          times and token rates of the last turn and in total
/image FILE     show a picture with the next message
/help           this list
/quit           end, as Ctrl-D does
Ctrl-C cancels the reply; where there is none, it ends the chat.";

/// Arguments of `chat`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory written by `etgenai compile` or `etgenai quantize`
    dir: PathBuf,
    /// Play this turn, then end; may be given several times. Without it the turns are typed, or read from a pipe, one a
    /// line
    #[arg(long = "prompt", value_name = "TEXT")]
    prompts: Vec<String>,
    /// A picture (JPEG, PNG, WebP, BMP or GIF); may be given several times. Pictures go to the `<image>` placeholders of
    /// the prompts in order, or all in front of the first prompt if there is no placeholder
    #[arg(long = "image", value_name = "FILE")]
    images: Vec<PathBuf>,
    /// How pictures are cut into tiles
    #[arg(long, value_enum, default_value_t = Cut::Checkpoint)]
    image_tiling: Cut,
    /// Encode a picture anew each time it is shown
    #[arg(long)]
    no_image_cache: bool,
    /// System message at the start of the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Longest reply, in tokens; without it the context is the limit
    #[arg(long, value_name = "N", value_parser = positive)]
    max_new_tokens: Option<usize>,
    /// 0 picks the most likely token every time; above 0 samples
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Sample among the K most likely tokens; 0 is all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Sample among the fewest tokens whose probabilities exceed P together
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,
    /// Leave out tokens less likely than P times the most likely one
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f32,
    /// Make tokens that were seen before less likely; 1 leaves them alone
    #[arg(long, value_name = "F", default_value_t = 1.0)]
    repetition_penalty: f32,
    /// Seed of the random numbers: the same seed gives the same replies
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// End the reply before this text; may be given several times
    #[arg(long = "stop", value_name = "TEXT")]
    stop: Vec<String>,
    /// Chat template instead of the model's own: `upstream:NAME`, or Jinja source
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Threads that compute; without it one a physical core
    #[arg(long, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
    /// Report the times of each turn on standard error, in the form ExecuTorch's runners log them
    #[arg(long)]
    stats: bool,
}

impl Args {
    fn runner_options(&self) -> RunnerOptions {
        let options = RunnerOptions::default();
        RunnerOptions {
            threads: self.threads,
            template: self.template.clone(),
            system_prompt: self.system.clone(),
            image_tiling: self.image_tiling.into(),
            image_cache_bytes: if self.no_image_cache { 0 } else { options.image_cache_bytes },
            ..options
        }
    }

    fn generate_options(&self) -> GenerateOptions {
        GenerateOptions {
            max_new_tokens: self.max_new_tokens,
            sampling: SamplingOptions {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                repetition_penalty: self.repetition_penalty,
                seed: self.seed,
                ..SamplingOptions::default()
            },
            stop: self.stop.clone(),
            ..GenerateOptions::default()
        }
    }
}

/// `--image-tiling`.
#[derive(Clone, Copy, ValueEnum)]
enum Cut {
    /// As the checkpoint's preprocessor configuration says
    Checkpoint,
    /// Into tiles and an overview
    Split,
    /// Not at all, as Hugging Face prepares an uncut picture
    Whole,
    /// One tile, stretched to the encoder's square as upstream's runners do
    Single,
}

impl From<Cut> for Tiling {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Checkpoint => Self::Checkpoint,
            Cut::Split => Self::Split,
            Cut::Whole => Self::Whole,
            Cut::Single => Self::Single,
        }
    }
}

/// Run `etgenai chat`.
pub fn run(args: &Args, json: bool) -> Outcome {
    let options = args.generate_options();
    options.validate().map_err(Failure::Usage)?;
    let images = args.images.iter().map(|path| open_image(path)).collect::<etgenai::Result<Vec<_>>>()?;
    let runner = open_runner(&args.dir, &args.runner_options())?;
    let mut session = Session { runner, options, stream: !json, stats: args.stats };
    if !args.prompts.is_empty() {
        let turns = turns_of(&args.prompts, images, &session.runner)?;
        play(&mut session, turns.into_iter().map(Ok), json)
    } else if io::stdin().is_terminal() && !json {
        converse(&mut session, images)
    } else if images.is_empty() {
        play(&mut session, prompts_in(io::stdin().lock()).map(|line| line.map(Turn::plain)), json)
    } else {
        // Which picture belongs to which line is known only when all lines are.
        let prompts = prompts_in(io::stdin().lock()).collect::<io::Result<Vec<_>>>()?;
        let turns = turns_of(&prompts, images, &session.runner)?;
        play(&mut session, turns.into_iter().map(Ok), json)
    }
}

/// Read and decode a picture.
fn open_image(path: &Path) -> etgenai::Result<Image> {
    Image::open(path, &DecodeOptions::default())
}

/// A turn that is known beforehand.
struct Turn {
    /// As it was given.
    prompt: String,
    message: Message,
}

impl Turn {
    fn plain(prompt: String) -> Self {
        Self { message: Message::user(&prompt), prompt }
    }
}

/// Hand the pictures to the placeholders of the prompts. Where the model takes no pictures and none are given, prompts
/// are plain text.
fn turns_of(prompts: &[String], images: Vec<Image>, runner: &Runner) -> etgenai::Result<Vec<Turn>> {
    if images.is_empty() && !runner.takes_images() {
        return Ok(prompts.iter().cloned().map(Turn::plain).collect());
    }
    let messages = messages_with_placeholders(prompts, images)?;
    Ok(prompts.iter().zip(messages).map(|(prompt, message)| Turn { prompt: prompt.clone(), message }).collect())
}

/// The lines of a pipe, empty ones left out.
fn prompts_in(input: impl BufRead) -> impl Iterator<Item = io::Result<String>> {
    input.lines().filter(|line| line.as_ref().map_or(true, |text| !text.trim().is_empty()))
}

/// A conversation and how its replies are shown.
struct Session {
    runner: Runner,
    options: GenerateOptions,
    /// Replies go to standard output as they come.
    stream: bool,
    /// Times go to standard error after each turn.
    stats: bool,
}

impl Session {
    /// One turn. Ctrl-C cancels it; the result says so.
    fn say(&mut self, message: Message) -> Result<TurnResult, Failure> {
        let cancel = self.runner.cancel_handle();
        let scope = interrupt::cancels_with({
            let cancel = cancel.clone();
            move || cancel.cancel()
        });
        let stream = self.stream;
        let mut printed = Ok(());
        let mut at_start = true;
        let mut on_event = |event: Event<'_>| {
            if let (true, Event::Text(text)) = (stream, event) {
                // Templates that end in "Assistant:" leave the space behind it to the model.
                printed = print_piece(if at_start { text.trim_start_matches(' ') } else { text });
                at_start = false;
            }
            if printed.is_ok() { Flow::Continue } else { Flow::Stop }
        };
        let result = self.runner.generate(&[message], &self.options, &mut on_event);
        drop(scope);
        // A Ctrl-C that came too late for this turn must not cancel the next one.
        cancel.clear();
        printed?;
        let turn = result?;
        if self.stream {
            print_line("")?;
        }
        if self.stats {
            turn.stats.log_lines().iter().for_each(|line| complain(line));
        }
        Ok(turn)
    }
}

/// Turns that are known beforehand. The first error or Ctrl-C ends them.
fn play(session: &mut Session, given: impl Iterator<Item = io::Result<Turn>>, json: bool) -> Outcome {
    let show_prompts = !json && io::stdout().is_terminal();
    let mut turns = Vec::new();
    let mut cancelled = false;
    for turn in given {
        let Turn { prompt, message } = turn?;
        if show_prompts {
            print_line(&format!("> {prompt}"))?;
        }
        let turn = session.say(message)?;
        cancelled = turn.stop_reason == StopReason::Cancelled;
        turns.push(turn_json(&prompt, &turn));
        if cancelled {
            break;
        }
    }
    if json {
        print_json(&json!({ "turns": turns, "total": total_json(session.runner.stats()) }))?;
    }
    if cancelled { Err(Error::Cancelled.into()) } else { Ok(()) }
}

/// A finished turn as JSON.
pub(super) fn turn_json(prompt: &str, turn: &TurnResult) -> Value {
    json!({
        "prompt": prompt,
        "text": turn.text,
        "tokens": turn.tokens,
        "stop_reason": turn.stop_reason.name(),
        "seed": turn.seed,
        "stats": with_rates(json!(turn.stats), turn.stats.prefill_tokens_per_second(), turn.stats.decode_tokens_per_second()),
    })
}

fn total_json(total: &TotalStats) -> Value {
    with_rates(json!(total), total.prefill_tokens_per_second(), total.decode_tokens_per_second())
}

fn with_rates(mut stats: Value, prefill: Option<f64>, decode: Option<f64>) -> Value {
    if let Value::Object(fields) = &mut stats {
        fields.insert("prefill_tokens_per_second".into(), json!(prefill));
        fields.insert("decode_tokens_per_second".into(), json!(decode));
    }
    stats
}

/// What a person can type.
#[derive(Debug, PartialEq, Eq)]
enum Input<'a> {
    Nothing,
    Prompt(&'a str),
    Reset,
    /// Take back this many turns.
    Rewind(usize),
    Stats,
    /// A picture for the next message.
    Image(&'a str),
    Help,
    Quit,
    /// A slash and something that is no command, or a command with a wrong argument.
    Unknown(&'a str),
}

impl<'a> Input<'a> {
    fn parse(line: &'a str) -> Self {
        let line = line.trim();
        let mut words = line.split_whitespace();
        let words = (words.next(), words.next(), words.next());
        match words {
            (None, ..) => Self::Nothing,
            (Some(first), ..) if !first.starts_with('/') => Self::Prompt(line),
            (Some("/reset"), None, _) => Self::Reset,
            (Some("/rewind"), None, _) => Self::Rewind(1),
            (Some("/rewind"), Some(count), None) => count.parse().map_or(Self::Unknown(line), Self::Rewind),
            (Some("/stats"), None, _) => Self::Stats,
            (Some("/image"), Some(_), _) => Self::Image(line.trim_start_matches("/image").trim_start()),
            (Some("/help"), None, _) => Self::Help,
            (Some("/quit"), None, _) => Self::Quit,
            _ => Self::Unknown(line),
        }
    }
}

/// A conversation typed at a terminal. An error ends the turn, not the chat.
///
/// Text typed here is never searched for placeholders: pictures stand in front of it.
fn converse(session: &mut Session, mut images: Vec<Image>) -> Outcome {
    print_line(&format!(
        "{}. Type a message; /help lists the commands.",
        session.runner.decoder().component().description()
    ))?;
    let mut last = None;
    let mut line = String::new();
    loop {
        print_piece("> ")?;
        line.clear();
        if io::stdin().lock().read_line(&mut line)? == 0 {
            return Ok(print_line("")?);
        }
        match Input::parse(&line) {
            Input::Nothing => {}
            Input::Quit => return Ok(()),
            Input::Help => print_line(COMMANDS)?,
            Input::Unknown(text) => print_line(&format!("{text}: no such command; /help lists them"))?,
            Input::Stats => print_stats(last.as_ref(), session.runner.stats())?,
            Input::Reset => {
                session.runner.reset();
                print_line("(the conversation is empty)")?;
            }
            Input::Rewind(count) => {
                let kept = session.runner.turn_count().saturating_sub(count);
                match session.runner.rewind(kept) {
                    Ok(()) => print_line(&format!("({kept} turns are left)"))?,
                    Err(error) => complain(&format!("error: {error}")),
                }
            }
            Input::Image(file) => match open_image(Path::new(file)) {
                Ok(image) => {
                    print_line(&format!("({} x {}, goes with the next message)", image.width(), image.height()))?;
                    images.push(image);
                }
                Err(error) => complain(&format!("error: {error}")),
            },
            Input::Prompt(prompt) => match session.say(Message::user_with_images(images.drain(..), prompt)) {
                Ok(turn) => last = remark(turn)?,
                Err(Failure::Library(error)) => complain(&format!("error: {error}")),
                Err(failure) => return Err(failure),
            },
        }
    }
}

/// Say why a reply ended if it did not end by itself.
fn remark(turn: TurnResult) -> Result<Option<TurnStats>, Failure> {
    if !matches!(turn.stop_reason, StopReason::Eos | StopReason::StopString) {
        complain(&format!("({})", turn.stop_reason.name().replace('_', " ")));
    }
    Ok(Some(turn.stats))
}

fn print_stats(last: Option<&TurnStats>, total: &TotalStats) -> Outcome {
    match last {
        Some(stats) => stats.log_lines().iter().try_for_each(|line| print_line(line))?,
        None => print_line("no turn yet")?,
    }
    let rate = |tokens: Option<f64>| tokens.map_or("-".into(), |rate| format!("{rate:.1} tokens/s"));
    print_line(&format!(
        "in total: {} turns, {} prompt tokens at {}, {} generated tokens at {}",
        total.turns,
        total.prefilled_tokens,
        rate(total.prefill_tokens_per_second()),
        total.generated_tokens,
        rate(total.decode_tokens_per_second()),
    ))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_start_with_a_slash_are_commands() {
        assert_eq!(Input::parse("  \n"), Input::Nothing);
        assert_eq!(Input::parse(" hello there \n"), Input::Prompt("hello there"));
        assert_eq!(Input::parse("/reset\n"), Input::Reset);
        assert_eq!(Input::parse("/rewind"), Input::Rewind(1));
        assert_eq!(Input::parse("/rewind 3"), Input::Rewind(3));
        assert_eq!(Input::parse("/stats"), Input::Stats);
        assert_eq!(Input::parse("/image my cat.png\n"), Input::Image("my cat.png"));
        assert_eq!(Input::parse("/help"), Input::Help);
        assert_eq!(Input::parse("/quit"), Input::Quit);
    }

    #[test]
    fn wrong_commands_are_not_taken_for_prompts() {
        for line in ["/rewind x", "/rewind -1", "/rewind 1 2", "/reset now", "/unknown", "/image", "/"] {
            assert_eq!(Input::parse(line), Input::Unknown(line), "{line}");
        }
    }

    #[test]
    fn empty_lines_of_a_pipe_are_no_turns() {
        let lines = prompts_in("one\n\n  \ntwo".as_bytes()).collect::<io::Result<Vec<_>>>();
        assert_eq!(lines.ok(), Some(vec!["one".to_owned(), "two".to_owned()]));
    }
}
