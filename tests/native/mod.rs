//! What the tests of the C ABI share: where the repository is, and running a program.

use std::path::Path;
use std::process::Command;

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Run `command`, which must succeed; gives its standard output.
pub fn run(command: &mut Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let output = command.output().unwrap_or_else(|error| panic!("{line} does not start: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{line} failed with {}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}
