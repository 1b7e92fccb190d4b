//! The `etgenai` command: parse the arguments, call the library, print what it answers.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
