//! Files of what observers saw: joined from the shards of a calibration set.

use super::guard::guard;
use super::input;
use super::stage_progress::in_stage;
use super::status::ETG_OK;
use crate::pipeline::{ObservationsFile, StageName};
use crate::{Error, Result};
use std::ffi::c_char;
use std::path::{Path, PathBuf};

/// The paths behind an array of texts.
///
/// # Safety
/// Not NULL means: `count` readable pointers and lengths, each of a text as [`input::path`] wants it.
unsafe fn paths(paths: *const *const c_char, lengths: *const usize, count: usize) -> Result<Vec<PathBuf>> {
    // SAFETY: this function's contract.
    let paths = unsafe { input::values(paths, count, "paths") }?;
    // SAFETY: as above.
    let lengths = unsafe { input::values(lengths, count, "path_lengths") }?;
    let path = |(index, (&path, &length)): (usize, (&*const c_char, &usize))| {
        // SAFETY: as above.
        unsafe { input::path(path, length, &format!("paths[{index}]")) }
    };
    paths.iter().zip(lengths).enumerate().map(path).collect()
}

/// A file that has seen all of its samples.
fn open(path: &Path) -> Result<ObservationsFile> {
    let file = ObservationsFile::open(path)?;
    file.check_complete().map_err(|error| Error::InvalidState(format!("{}: {error}", path.display())))?;
    Ok(file)
}

/// Join files of `etg_prepared_model_observe`, one a shard of the same calibration set, into the file `out`. The order does not
/// matter: minima, maxima and histograms are joined exactly. `paths` and `path_lengths` have `path_count` elements each.
///
/// - Threads: any.
/// - Owns: nothing is kept.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, no path, files of different models, recipes or sets, the same shard twice, moving
///   averages), `ETG_ERROR_INVALID_STATE` (a file of a part of its samples), `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`,
///   `ETG_ERROR_FORMAT`. The message begins with `[quantization]`.
/// - After a failure: `out` is as it was.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_observations_merge(
    paths: *const *const c_char,
    path_lengths: *const usize,
    path_count: usize,
    out: *const c_char,
    out_length: usize,
) -> i32 {
    guard("etg_observations_merge", || {
        // SAFETY: arrays of the caller's.
        let paths = unsafe { self::paths(paths, path_lengths, path_count) }?;
        // SAFETY: text of the caller.
        let out = unsafe { input::path(out, out_length, "out") }?;
        let Some((first, others)) = paths.split_first() else {
            return Err(Error::invalid("path_count is 0: there is nothing to join"));
        };
        in_stage(StageName::Quantization, || {
            let mut joined = open(first)?;
            for path in others {
                let located = |error| match error {
                    Error::InvalidArgument(reason) => Error::invalid(format!("{}: {reason}", path.display())),
                    other => other,
                };
                joined = joined.merge(&open(path)?).map_err(located)?;
            }
            joined.save(&out)
        })?;
        Ok(ETG_OK)
    })
}
