//! The ExecuTorch engine for tests: built once with CMake from the fetched packages.

mod build;

use build::{cmake, fetched};
use etgenai::engine::plugin::PluginEngine;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub use build::root;

/// A file of the fixtures: `pte/…`.
pub fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures").join(name)
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
    let folder = cmake("executorch-engine", &["-DCMAKE_BUILD_TYPE=Release"], "etgenai_executorch");
    folder.join("libetgenai_executorch.so")
}

/// The engine, with the HTP emulator.
pub fn engine() -> PluginEngine {
    let options = serde_json::json!({ "qnn_library_dir": qnn_library_dir() });
    // SAFETY: the library this repository builds.
    unsafe { PluginEngine::open_library(library(), &options.to_string()) }.expect("the engine library opens")
}
