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
    // What they write to a relative path goes with the folder, and the second does not find it.
    let places = ["beside shared", "beside static"].map(|name| folder.path().join(name));
    places.iter().for_each(|place| std::fs::create_dir(place).expect("a folder can be made"));
    run(Command::new(&shared).args(arguments).env("LD_LIBRARY_PATH", folder.path()).current_dir(&places[0]));
    run(compile().arg(source).arg("-o").arg(&fixed).arg(&libraries.archive).args(["-lm", "-lpthread", "-ldl"]));
    run(Command::new(&fixed).args(arguments).current_dir(&places[1]));
}
