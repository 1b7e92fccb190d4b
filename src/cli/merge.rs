//! `etgenai merge`: observations of the shards of a calibration set to those of the whole.

use super::Outcome;
use super::output::{print_fields, print_json};
use etgenai::pipeline::ObservationsFile;
use etgenai::{Error, Result};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Arguments of `merge`.
#[derive(clap::Args)]
pub struct Args {
    /// File to write
    out: PathBuf,
    /// Files that `etgenai quantize --shard I/N --observations FILE` wrote, each shard once
    #[arg(required = true, num_args = 2.., value_name = "IN")]
    inputs: Vec<PathBuf>,
}

/// Run `etgenai merge`.
pub fn run(args: &Args, json: bool) -> Outcome {
    check_target(&args.out)?;
    let joined = join(&args.inputs)?;
    joined.save(&args.out)?;
    let (calibration, model) = (&joined.calibration, &joined.model);
    if json {
        let document = json!({
            "out": args.out, "model": model, "parts": args.inputs.len(),
            "calibration": calibration, "components": joined.observed.components.keys().collect::<Vec<_>>(),
        });
        return Ok(print_json(&document)?);
    }
    let seen = format!("{} samples, {} tokens, {} media", calibration.samples, calibration.tokens, calibration.media);
    Ok(print_fields(&[
        ("model", model.clone()),
        ("parts", args.inputs.len().to_string()),
        ("seen", seen),
        ("written to", args.out.display().to_string()),
    ])?)
}

fn join(inputs: &[PathBuf]) -> Result<ObservationsFile> {
    let mut joined: Option<ObservationsFile> = None;
    for path in inputs {
        let part = ObservationsFile::open(path)?;
        // The library knows the parts, not the files they were read from.
        let of_file = |error: Error| match error {
            Error::InvalidArgument(text) => Error::InvalidArgument(format!("{}: {text}", path.display())),
            Error::InvalidState(text) => Error::InvalidState(format!("{}: {text}", path.display())),
            error => error,
        };
        part.check_complete().map_err(of_file)?;
        joined = Some(match joined {
            Some(whole) => whole.merge(&part).map_err(of_file)?,
            None => part,
        });
    }
    joined.ok_or_else(|| Error::invalid("there is nothing to join"))
}

/// Only observations are replaced.
fn check_target(out: &Path) -> Result<()> {
    if out.exists() && ObservationsFile::open(out).is_err() {
        let out = out.display();
        return Err(Error::invalid(format!("{out} exists and holds no observations: choose another file")));
    }
    Ok(())
}
