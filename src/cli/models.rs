//! `etgenai models`: the models known by name.

use super::Outcome;
use super::output::{Align, Table, print_json};
use etgenai::registry::{self, RegistryEntry, Runnable};
use serde_json::json;

/// Arguments of `models`.
#[derive(clap::Args)]
pub struct Args {
    /// Only this model; upper and lower case are the same
    name: Option<String>,
}

/// Run `etgenai models`.
pub fn run(args: &Args, json: bool) -> Outcome {
    let entries = match &args.name {
        Some(name) => std::slice::from_ref(registry::find(name)?),
        None => registry::entries(),
    };
    if json {
        return Ok(print_json(&json!({ "models": entries }))?);
    }
    let mut table = Table::new(&[
        ("name", Align::Left),
        ("family", Align::Left),
        ("layers", Align::Right),
        ("hidden", Align::Right),
        ("vocabulary", Align::Right),
        ("checkpoint", Align::Left),
        ("runs", Align::Left),
    ]);
    for entry in entries {
        table.row(cells(entry));
    }
    Ok(table.print()?)
}

fn cells(entry: &RegistryEntry) -> Vec<String> {
    let runs = match entry.runnable {
        Runnable::Yes => "yes".into(),
        Runnable::NotYet { why } => format!("not yet: {why}"),
    };
    vec![
        entry.name.into(),
        entry.family.into(),
        entry.decoder.layers.to_string(),
        entry.decoder.dim.to_string(),
        entry.decoder.vocab.to_string(),
        entry.repository.unwrap_or("a local file").into(),
        runs,
    ]
}
