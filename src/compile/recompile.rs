//! One component of an artefact, compiled again: another precision for the encoder does not need the decoder redone.

use super::components::{PlannedComponent, plan_components};
use super::options::CompileOptions;
use super::{CompileReport, ProgressFn, Stage, identify, step, write_components};
use crate::artefact::{Artefact, ArtefactWriter, ComponentEntry, MANIFEST_FILE, Manifest, VISION_ENCODER};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::registry::ModelSpec;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

/// Compile one component of the artefact in `directory` again, from the checkpoint it was made from.
///
/// Format, position rule, threads and model name come from `options`; context and block size are those of the artefact
/// (an option that asks for others is an error). All other files stay byte for byte what they are: they are hard-linked
/// into the new directory, or copied where the file system cannot link. The artefact changes all at once or not at
/// all; an open runner goes on with the files it has mapped.
///
/// # Errors
/// [`Error::NotFound`] for a component the model does not have, listing those it has; [`Error::InvalidArgument`] for
/// a checkpoint that is another model than the artefact's or options that do not fit; otherwise as
/// [`compile_checkpoint`](super::compile_checkpoint). The artefact is then as it was.
pub fn recompile_component(
    checkpoint: &Checkpoint,
    directory: &Path,
    component: &str,
    options: &CompileOptions,
    progress: &mut ProgressFn<'_>,
) -> Result<CompileReport> {
    let start = Instant::now();
    let artefact = Artefact::open(directory)?;
    let manifest = artefact.manifest();
    manifest.component(component)?;
    let spec = identify(checkpoint, options)?;
    check_same_model(&manifest.model, &spec)?;
    check_sizes(manifest, options)?;
    let writer = ArtefactWriter::create(directory)?;

    step(progress, Stage::Graphs, component, 0, 1)?;
    let sizes = (manifest.context_capacity, manifest.prefill_ar);
    let planned = plan_one(checkpoint, &spec, sizes, component, options)?;
    step(progress, Stage::Graphs, component, 1, 1)?;

    let entries = write_components(&writer, &planned, options.threads, progress)?;
    let mut report = CompileReport::new(&manifest.model.name, options.weights.name(), sizes, &planned, &entries);
    let renewed = renew(manifest, spec, component, entries);
    let replaced = &manifest.component(component)?.file;
    for file in manifest.files().into_iter().filter(|file| *file != MANIFEST_FILE && file != replaced) {
        take_over(&directory.join(file), &writer.file_path(file)?)?;
    }
    step(progress, Stage::Finish, MANIFEST_FILE, 3, 3)?;
    writer.publish(&renewed)?;
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// The manifest with the new component in place of the old one.
fn renew(old: &Manifest, spec: ModelSpec, component: &str, entries: BTreeMap<String, ComponentEntry>) -> Manifest {
    let mut renewed = old.clone();
    (_, renewed.generator) = Manifest::identity();
    renewed.components.extend(entries);
    // Equal to the old one but for what may differ. A specification that was read from text again and again could
    // drift in the last digit of a number.
    renewed.model = ModelSpec { name: old.model.name.clone(), ..spec };
    if let (Some(vision), Some(old)) = (&mut renewed.model.vision, &old.model.vision)
        && component != VISION_ENCODER
    {
        vision.position_rule = old.position_rule;
    }
    renewed
}

/// The component called `name`. The others are planned too, since only then every tensor of the checkpoint has a use.
fn plan_one<'a>(
    checkpoint: &'a Checkpoint,
    spec: &ModelSpec,
    sizes: (usize, usize),
    name: &str,
    options: &CompileOptions,
) -> Result<Vec<PlannedComponent<'a>>> {
    let mut planned = plan_components(checkpoint, spec, sizes, options)?;
    if !planned.iter().any(|component| component.name == name) {
        let have = planned.iter().map(|component| component.name).collect::<Vec<_>>().join(", ");
        return Err(Error::NotFound(format!("model {} is not compiled into a {name}, but into: {have}", spec.name)));
    }
    planned.retain(|component| component.name == name);
    Ok(planned)
}

/// The checkpoint describes the model that the artefact was made from; the name and the position rule may differ.
fn check_same_model(compiled: &ModelSpec, checkpoint: &ModelSpec) -> Result<()> {
    let mut expected = compiled.clone();
    expected.name.clone_from(&checkpoint.name);
    if let (Some(expected), Some(found)) = (&mut expected.vision, &checkpoint.vision) {
        expected.position_rule = found.position_rule;
    }
    let failed = |e: serde_json::Error| Error::internal(format!("model spec: {e}"));
    // Written and read like the other one, so that both lost the same digits.
    let text = serde_json::to_string(checkpoint).map_err(failed)?;
    let found: ModelSpec = serde_json::from_str(&text).map_err(failed)?;
    if expected == found {
        return Ok(());
    }
    let (expected, found) =
        (serde_json::to_value(expected).map_err(failed)?, serde_json::to_value(found).map_err(failed)?);
    let difference = first_difference("", &expected, &found).unwrap_or_default();
    Err(Error::invalid(format!(
        "the checkpoint is another model than the artefact was compiled from: {difference}; compile all of it instead"
    )))
}

/// Path of the first value that differs, and both values.
fn first_difference(at: &str, a: &Value, b: &Value) -> Option<String> {
    if a == b {
        return None;
    }
    if let (Some(a), Some(b)) = (a.as_object(), b.as_object()) {
        let absent = Value::Null;
        let fields = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
        let path = |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
        return fields.into_iter().find_map(|key| {
            first_difference(&path(key), a.get(key).unwrap_or(&absent), b.get(key).unwrap_or(&absent))
        });
    }
    Some(format!("{at} is {a} in the artefact and {b} in the checkpoint"))
}

/// Options about sizes may only repeat what the artefact has.
fn check_sizes(manifest: &Manifest, options: &CompileOptions) -> Result<()> {
    let sizes = [
        ("max_context", options.max_context, manifest.context_capacity),
        ("prefill_ar", options.prefill_ar, manifest.prefill_ar),
    ];
    match sizes.into_iter().find(|(_, asked, has)| asked.is_some_and(|asked| asked != *has)) {
        Some((option, Some(asked), has)) => Err(Error::invalid(format!(
            "{option} is {asked}, but the artefact was compiled for {has}: compile all of it to change that"
        ))),
        _ => Ok(()),
    }
}

/// Make `target` the same file as `source`.
fn take_over(source: &Path, target: &Path) -> Result<()> {
    if fs::hard_link(source, target).is_ok() {
        return Ok(());
    }
    // Some file systems cannot link; a copy is the same, only slower. A file that is there already is not overwritten.
    let mut copy = File::create_new(target).map_err(|e| Error::io(target, e))?;
    let mut original = File::open(source).map_err(|e| Error::io(source, e))?;
    std::io::copy(&mut original, &mut copy).and_then(|_| copy.sync_all()).map_err(|e| Error::io(target, e))
}
