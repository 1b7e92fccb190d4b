//! The ExecuTorch engine for tests: built once with CMake from the fetched packages.

use etgenai::engine::plugin::PluginEngine;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the fixtures: `pte/…`.
pub fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures").join(name)
}

/// A file of the fetched packages.
fn fetched(path: &str) -> PathBuf {
    let path = root().join(".deps").join(path);
    assert!(path.exists(), "{} is missing: run .ci/fetch-executorch", path.display());
    path
}

/// Where the HTP emulator is.
pub fn qnn_library_dir() -> PathBuf {
    fetched("qnn/onnxruntime_qnn")
}

/// The engine library, built if that has not been done.
pub fn library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(build);
    &LIBRARY
}

fn build() -> PathBuf {
    let package = fetched("executorch/executorch");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("executorch-engine");
    std::fs::create_dir_all(&folder).expect("a folder to build in");
    // Test programs may run beside each other.
    let lock = File::create(folder.join("lock")).expect("a lock file");
    lock.lock().expect("the lock");
    let cmake = || {
        let own = root().join(".deps/cmake/cmake/data/bin/cmake");
        Command::new(if own.is_file() { own } else { "cmake".into() })
    };
    run(cmake()
        .args(["-DCMAKE_BUILD_TYPE=Release", "-S"])
        .arg(root().join("cmake/executorch"))
        .arg("-B")
        .arg(&folder)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", package.display())));
    run(cmake().arg("--build").arg(&folder).args(["--target", "etgenai_executorch"]));
    folder.join("libetgenai_executorch.so")
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: run .ci/fetch-tools"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed\n{out}\n{err}");
}

/// The engine, with the HTP emulator.
pub fn engine() -> PluginEngine {
    let options = serde_json::json!({ "qnn_library_dir": qnn_library_dir() });
    // SAFETY: the library this repository builds.
    unsafe { PluginEngine::open_library(library(), &options.to_string()) }.expect("the engine library opens")
}
