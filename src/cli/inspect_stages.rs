//! `etgenai inspect` on what the stages of the pipeline save: quantized models, observations, preparations.

use super::Outcome;
use super::inspect::model_fields;
use super::output::{self, Align, Table, print_fields, print_json, print_line};
use super::quantize::{component_table, time_and_memory};
use etgenai::pipeline::preparation::PREPARED_FILE;
use etgenai::pipeline::report::{CalibrationSummary, ComponentReport};
use etgenai::pipeline::{ObservationsFile, PreparedModel, QuantizationReport, QuantizedModel};
use etgenai::quantize::LayerError;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Layers that are listed if not all are asked for: the worst ones.
const WORST: usize = 10;

/// Whether the path is a file that a stage saved, or the folder of a preparation.
pub fn is_saved_stage(path: &Path) -> bool {
    path.join(PREPARED_FILE).is_file() || (path.is_file() && path.extension().is_some_and(|end| end == "json"))
}

/// A saved preparation, or observations.
pub fn show_file(path: &Path, json: bool) -> Outcome {
    let folder = match path.file_name() {
        _ if path.is_dir() => Some(path.to_path_buf()),
        Some(name) if name == PREPARED_FILE => Some(path.parent().map_or_else(PathBuf::new, Path::to_path_buf)),
        _ => None,
    };
    match folder {
        Some(folder) => show_prepared(path, &PreparedModel::load(&folder, None)?, json),
        None => show_observations(path, &ObservationsFile::open(path)?, json),
    }
}

fn show_prepared(path: &Path, prepared: &PreparedModel, json: bool) -> Outcome {
    let graphs = prepared.graphs();
    if json {
        return Ok(print_json(&json!({
            "kind": "prepared", "path": path, "checkpoint": prepared.checkpoint().path(), "graphs": graphs,
            "options": prepared.options(), "components": graphs.components(),
        }))?);
    }
    let mut fields = vec![("kind", format!("prepared model of {}", prepared.checkpoint().path().display()))];
    fields.extend(model_fields(&graphs.model));
    fields.extend([
        ("capacity", format!("{} tokens, prefill in blocks of {}", graphs.context_capacity, graphs.prefill_ar)),
        ("mode", format!("{:?}, {} token(s) a step", graphs.mode, graphs.decode_ar).to_lowercase()),
        ("components", graphs.components().join(", ")),
    ]);
    Ok(print_fields(&fields)?)
}

fn show_observations(path: &Path, file: &ObservationsFile, json: bool) -> Outcome {
    let complete = file.check_complete().is_ok();
    if json {
        return Ok(print_json(&json!({
            "kind": "observations", "path": path, "model": file.model, "calibration": file.calibration,
            "complete": complete, "samples_seen": file.observed.samples,
            "components": file.observed.components.keys().collect::<Vec<_>>(),
            "residual_scaling": file.observed.residual_factors.is_some(),
        }))?);
    }
    let mut fields = vec![("kind", "observations".to_owned()), ("model", file.model.clone())];
    fields.extend(calibration_fields(&file.calibration));
    let seen = format!("{} of {} samples", file.observed.samples, file.calibration.samples);
    let components = file.observed.components.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    fields.extend([
        ("seen", if complete { seen } else { format!("{seen}: it was interrupted") }),
        ("components", components),
        ("residual", if file.observed.residual_factors.is_some() { "scaled" } else { "as it is" }.to_owned()),
    ]);
    Ok(print_fields(&fields)?)
}

fn calibration_fields(calibration: &CalibrationSummary) -> Vec<(&'static str, String)> {
    let of = |count: usize, what: &str| format!("{count} {what}");
    let parts = [of(calibration.samples, "samples"), of(calibration.tokens, "tokens"), of(calibration.media, "media")];
    let mut fields = vec![("calibration", parts.join(", "))];
    if calibration.smoke_only {
        fields.push(("smoke only", "there is random data among it: its ranges say little about real text".into()));
    }
    if let Some(shard) = calibration.shard {
        fields.push(("shard", shard.to_string()));
    }
    if !calibration.merged.is_empty() {
        fields.push(("joined of", of(calibration.merged.len(), "parts")));
    }
    for source in &calibration.sources {
        let from = source.path.as_ref().map_or_else(|| "random ids".into(), |path| path.display().to_string());
        let left_out = if source.skipped > 0 { format!(", {} left out", source.skipped) } else { String::new() };
        fields.push(("source", format!("{from}: {} samples, {} tokens{left_out}", source.samples, source.tokens)));
    }
    fields
}

/// A directory that `etgenai quantize` wrote; `(tensors, verified)` are the options of the command.
pub fn show_quantized(path: &Path, (tensors, verified): (bool, bool), json: bool) -> Outcome {
    let model = QuantizedModel::open(path)?;
    let summary = model.artefact().summary()?;
    let report = model.report();
    if json {
        return Ok(print_json(&json!({
            "kind": "quantized", "path": path, "verified": verified.then_some(true), "manifest": summary, "report": report,
            "worst_layers": report.components.iter().map(|(name, component)| {
                let layers = worst(component).into_iter().take(WORST);
                (name.clone(), json!(layers.map(|(layer, db)| json!({ "layer": layer.layer, "sqnr_db": db })).collect::<Vec<_>>()))
            }).collect::<serde_json::Map<_, _>>(),
        }))?);
    }
    let graphs = model.graphs();
    let mut fields = vec![("kind", format!("quantized model, written by {}", report.generator))];
    fields.extend(model_fields(&graphs.model));
    fields.extend([
        ("capacity", format!("{} tokens, prefill in blocks of {}", graphs.context_capacity, graphs.prefill_ar)),
        ("size", output::bytes(summary.total_bytes)),
    ]);
    fields.extend(calibration_fields(&report.calibration));
    fields.extend(report.stages.iter().map(|stage| (stage.stage.as_str(), time_and_memory(stage))));
    fields.extend(report.warnings.iter().map(|warning| ("warning", warning.clone())));
    if verified {
        fields.push(("verified", "every file equals its hash in the manifest".into()));
    }
    print_fields(&fields)?;
    print_line("")?;
    component_table(report).print()?;
    show_layers(report, tensors)
}

/// Layers of each component, the worst first: ten, or all.
fn show_layers(report: &QuantizationReport, all: bool) -> Outcome {
    for (name, component) in &report.components {
        let layers = worst(component);
        if layers.is_empty() {
            continue;
        }
        print_line("")?;
        let mut table = Table::new(&[(name.as_str(), Align::Left), ("SQNR", Align::Right)]);
        let count = if all { layers.len() } else { WORST };
        for (layer, db) in layers.into_iter().take(count) {
            table.row(vec![layer.layer.clone(), format!("{db:.1} dB")]);
        }
        table.print()?;
    }
    Ok(())
}

/// Layers with an error, the lowest SQNR first.
fn worst(component: &ComponentReport) -> Vec<(&LayerError, f64)> {
    let mut layers = component.layers.iter().filter_map(|layer| Some((layer, layer.mean_db()?))).collect::<Vec<_>>();
    layers.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    layers
}
