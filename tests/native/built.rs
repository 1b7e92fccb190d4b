//! The library that a test is about, and the compilers it is used with.

use crate::native::root;
use std::path::PathBuf;
use std::process::Command;

/// The library as cargo built it for this test.
pub struct Libraries {
    /// `libetgenai.so`
    pub shared: PathBuf,
    /// `libetgenai.a`
    pub archive: PathBuf,
}

/// The shared and the static library, which cargo puts beside the test program.
pub fn libraries() -> Libraries {
    let program = std::env::current_exe().expect("the path of this test");
    let folder = program.parent().expect("a test program is in a folder");
    let libraries = Libraries { shared: folder.join("libetgenai.so"), archive: folder.join("libetgenai.a") };
    for path in [&libraries.shared, &libraries.archive] {
        assert!(path.is_file(), "{} is missing: cargo builds it with every test", path.display());
    }
    libraries
}

/// The system's C or C++ compiler with the house's warnings as errors.
pub fn compiler(cpp: bool, standard: &str) -> Command {
    let tool = cc::Build::new()
        .cpp(cpp)
        .target(env!("ETGENAI_TARGET"))
        .host(env!("ETGENAI_TARGET"))
        .opt_level(1)
        .cargo_metadata(false)
        .try_get_compiler()
        .unwrap_or_else(|error| panic!("no C and C++ compiler ({error}): install gcc and g++"));
    let mut command = tool.to_command();
    command.args(["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wundef", "-Werror"]);
    command.arg(format!("-std={standard}")).arg("-I").arg(root().join("include"));
    command
}
