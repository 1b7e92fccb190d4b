//! Building the ExecuTorch engine with CMake, from the fetched packages.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the fetched packages.
pub fn fetched(path: &str) -> PathBuf {
    let path = root().join(".deps").join(path);
    assert!(path.exists(), "{} is missing: run .ci/fetch-executorch", path.display());
    path
}

/// Configure `cmake/executorch` in a folder called `name` and build `target`; gives the folder.
pub fn cmake(name: &str, options: &[&str], target: &str) -> PathBuf {
    let package = fetched("executorch/executorch");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder to build in");
    // Test programs may run beside each other.
    let lock = File::create(folder.join("lock")).expect("a lock file");
    lock.lock().expect("the lock");
    let cmake = || tool("cmake");
    run(cmake()
        .args(options)
        .arg("-S")
        .arg(root().join("cmake/executorch"))
        .arg("-B")
        .arg(&folder)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", package.display())));
    run(cmake().arg("--build").arg(&folder).args(["--target", target]));
    folder
}

/// `cmake` or `ctest`, as fetched or as the system has it.
pub fn tool(name: &str) -> Command {
    let own = root().join(".deps/cmake/cmake/data/bin").join(name);
    Command::new(if own.is_file() { own } else { name.into() })
}

/// Run a command, which must succeed.
pub fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: run .ci/fetch-tools"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed\n{out}\n{err}");
}
