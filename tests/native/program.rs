//! C and C++ programs against the library that cargo built.

use crate::built::libraries;
use crate::native::run;
use std::path::Path;
use std::process::Command;

/// Compile a program against the shared library and, apart, against the static one, and run both.
pub fn run_program(mut compile: impl FnMut() -> Command, source: &Path, arguments: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let libraries = libraries();
    // Programs look for the name in the library, which an installation provides as a link.
    let soname = format!("libetgenai.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
    std::os::unix::fs::symlink(&libraries.shared, folder.path().join(soname)).expect("a link");
    let (shared, fixed) = (folder.path().join("shared"), folder.path().join("static"));
    run(compile().arg(source).arg("-o").arg(&shared).arg(&libraries.shared).arg("-lpthread"));
    run(Command::new(&shared).args(arguments).env("LD_LIBRARY_PATH", folder.path()));
    run(compile().arg(source).arg("-o").arg(&fixed).arg(&libraries.archive).args(["-lm", "-lpthread", "-ldl"]));
    run(Command::new(&fixed).args(arguments));
}
