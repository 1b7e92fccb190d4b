//! A place for files that live as long as the test program.

use std::path::{Path, PathBuf};

/// An empty folder of this name in the place that cargo gives to tests, for what lives as long as the test program.
pub fn fresh_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).expect("the folder of the last run can be removed");
    }
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}
