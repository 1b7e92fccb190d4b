//! The command line, one file a subcommand: arguments in, one call into the library, text or JSON out.

mod bench;
mod calibration_args;
mod chat;
mod compile;
mod demo;
mod eval;
mod inspect;
mod inspect_exports;
mod inspect_stages;
mod interrupt;
mod machine;
mod merge;
mod models;
mod output;
mod pipeline;
mod progress;
mod quantize;
mod quantize_args;
mod run_pte;
mod stage_progress;
mod suite;
mod terminal;

use clap::{Parser, Subcommand};
use etgenai::Error;
use std::io;
use std::process::ExitCode;

const AFTER_HELP: &str = "Exit codes: 0 done, 1 error (one line on standard error says which), 2 wrong usage, 130 \
                          cancelled by Ctrl-C.\nWith --json standard output holds one JSON document and nothing else; \
                          errors stay plain text on standard error.";

/// From a checkpoint to a conversation on this machine: compile a Hugging Face folder or a GGUF file, chat with the
/// result, measure it.
#[derive(Parser)]
#[command(name = "etgenai", version, after_help = AFTER_HELP, max_term_width = 100)]
struct Args {
    /// Print one JSON document instead of text
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the models known by name
    Models(models::Args),
    /// Show what a checkpoint, a GGUF file, a compiled or quantized directory or a file of observations holds
    Inspect(inspect::Args),
    /// Compile a checkpoint to a directory that `chat`, `eval` and `bench` open
    Compile(compile::Args),
    /// Quantize a checkpoint with calibration data
    Quantize(Box<quantize::Args>),
    /// Join what several `quantize --shard` observed
    Merge(merge::Args),
    /// Prepare, quantize, compile and answer prompts, with the options of upstream's GenAI pipeline
    Pipeline(Box<pipeline::Args>),
    /// Talk with a compiled or quantized model
    Chat(chat::Args),
    /// Compile the model that ships inside this command and play a conversation about three pictures
    Demo(demo::Args),
    /// Measure the perplexity of a compiled or quantized model on a text, or how well it sees
    Eval(eval::Args),
    /// Measure the speed and memory of a compiled model
    Bench(bench::Args),
    /// Run .pte programs with the flags of ExecuTorch's Qualcomm runners, and write what they write
    RunPte(run_pte::Args),
}

/// Why a subcommand did not end well.
enum Failure {
    /// The options were wrong, beyond what the parser of the arguments can tell.
    Usage(Error),
    /// The library refused or failed.
    Library(Error),
    /// Standard input or output failed.
    Stdio(io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Stdio(error)
    }
}

/// What every subcommand returns.
type Outcome = Result<(), Failure>;

/// Parse the arguments, run the subcommand, turn its outcome into an exit code.
pub fn main() -> ExitCode {
    if let Some(arguments) = called_as_upstream() {
        interrupt::install();
        return exit_code(run_pte::run_flags(&arguments, false));
    }
    let args = Args::parse();
    interrupt::install();
    let outcome = match args.command {
        Command::Models(command) => models::run(&command, args.json),
        Command::Inspect(command) => inspect::run(&command, args.json),
        Command::Compile(command) => compile::run(&command, args.json),
        Command::Quantize(command) => quantize::run(&command, args.json),
        Command::Merge(command) => merge::run(&command, args.json),
        Command::Pipeline(command) => pipeline::run(&command, args.json),
        Command::Chat(command) => chat::run(&command, args.json),
        Command::Demo(command) => demo::run(&command, args.json),
        Command::Eval(command) => eval::run(&command, args.json),
        Command::Bench(command) => bench::run(&command, args.json),
        Command::RunPte(command) => run_pte::run(&command, args.json),
    };
    exit_code(outcome)
}

/// The arguments, if this command goes by the name of one of upstream's runners (a link of that name to it).
fn called_as_upstream() -> Option<Vec<String>> {
    let mut arguments = std::env::args_os();
    let name = std::path::PathBuf::from(arguments.next()?);
    let is_upstream =
        run_pte::UPSTREAM_NAMES.iter().any(|upstream| name.file_stem().is_some_and(|stem| stem == *upstream));
    is_upstream.then(|| arguments.map(|argument| argument.to_string_lossy().into_owned()).collect())
}

fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough (`etgenai models | head`).
        Err(Failure::Stdio(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Failure::Stdio(error)) => fail(&error, 1),
        Err(Failure::Usage(error)) => fail(&error, 2),
        Err(Failure::Library(Error::Cancelled)) => {
            complain("cancelled");
            ExitCode::from(interrupt::EXIT_CODE)
        }
        Err(Failure::Library(error)) => fail(&error, 1),
    }
}

fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    complain(&format!("error: {error}"));
    ExitCode::from(code)
}

/// Parse a count of at least one.
fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be 1 or more".into()),
        Ok(count) => Ok(count),
        Err(error) => Err(error.to_string()),
    }
}

/// A line on standard error; if even that is closed there is nobody left to tell.
fn complain(text: &str) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_argument_definitions_are_consistent() {
        Args::command().debug_assert();
    }
}
