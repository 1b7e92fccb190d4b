//! The promise: the ExecuTorch engine by itself, through its C functions, gives the recorded answers, and no damaged program
//! ends the process: plain, and compiled with AddressSanitizer. `tests/executorch/engine_test.cpp` says what is tested.
//!
//! Needs `.ci/fetch-executorch`.

#[path = "executorch_engine/build.rs"]
mod build;

use build::{cmake, run, tool};

fn engine_tests(folder: &str, options: &[&str]) {
    let options = [&["-DETGENAI_EXECUTORCH_TESTS=ON"], options].concat();
    let folder = cmake(folder, &options, "all");
    run(tool("ctest").arg("--test-dir").arg(folder).args(["--output-on-failure", "--no-tests=error"]));
}

#[test]
fn the_engine_by_itself() {
    engine_tests("executorch-tests", &["-DCMAKE_BUILD_TYPE=Release"]);
}

#[test]
fn the_engine_by_itself_under_the_address_sanitizer() {
    engine_tests("executorch-tests-asan", &["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DETGENAI_SANITIZE=address"]);
}
