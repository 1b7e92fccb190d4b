//! The toy engine of `toy_engine.c` as a library.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::TempDir;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The engine library, compiled once.
pub fn engine() -> &'static Path {
    static ENGINE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, library) = ENGINE.get_or_init(|| {
        let folder = TempDir::new().expect("a temporary folder");
        let library = folder.path().join("libtoy_engine.so");
        let compiler = cc::Build::new()
            .target(env!("ETGENAI_TARGET"))
            .host(env!("ETGENAI_TARGET"))
            .opt_level(1)
            .cargo_metadata(false)
            .try_get_compiler()
            .unwrap_or_else(|error| panic!("no C compiler ({error}): install gcc"));
        let mut command = compiler.to_command();
        command.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]);
        command.args(["-shared", "-fPIC", "-I"]).arg(root().join("include"));
        command.arg(root().join("tests/run_pte/toy_engine.c")).arg("-o").arg(&library);
        let output = command.output().expect("the compiler starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (folder, library)
    });
    library
}
