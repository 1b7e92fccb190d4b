//! The report of a quantization as a page for people: one HTML file that needs neither a network nor scripts. Several reports on
//! one page stand side by side.

mod html;
mod plot;

use super::report::{ActivationReport, CalibrationSummary, ComponentReport, QuantizationReport};
use crate::quantize::{LayerError, ObserverKind, ValueRange, qdq::StoredForm};
use html::{Align, Table, bytes, escape, number};
use plot::{Reach, Series};
use std::fmt::Write;

/// File name of the page inside a quantized model.
pub const PAGE_FILE: &str = "report.html";
/// Layers below this many decibels deserve a look: upstream's tool for mixed precision calls them sensitive.
const LOW_DB: f64 = 10.0;
/// Rows of long tables that are visible before they are unfolded.
const SHOWN: usize = 12;
const STYLE: &str = include_str!("report_page/style.css");

/// A report on a page: the name to call it by, the report, and the model's perplexity if it was measured.
pub type PageEntry<'r> = (&'r str, &'r QuantizationReport, Option<f64>);

/// The page of these reports: a table that compares them, then each by itself.
pub fn page(entries: &[PageEntry<'_>]) -> String {
    let names = entries.iter().map(|(name, ..)| escape(name)).collect::<Vec<_>>().join(", ");
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Quantization of {names}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Quantization of {names}</h1>\n"
    );
    for (name, ..) in entries.iter().filter(|(_, report, _)| report.calibration.smoke_only) {
        let _ = writeln!(
            html,
            "<p class=\"banner\">Smoke only: {} was calibrated with random data. Its numbers say that the tools work, not how good \
             the model is.</p>",
            escape(name)
        );
    }
    html.push_str(&summary(entries));
    if entries.len() > 1 {
        html.push_str(&side_by_side(entries));
    }
    for (name, report, _) in entries {
        html.push_str(&section(name, report));
    }
    html.push_str("</body>\n</html>\n");
    html
}

/// One row a report.
fn summary(entries: &[PageEntry<'_>]) -> String {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("precision", Align::Left),
        ("perplexity", Align::Right),
        ("worst layer, dB", Align::Right),
        ("outputs, dB", Align::Right),
        ("bits/weight", Align::Right),
        ("on disk", Align::Right),
        ("on a device", Align::Right),
        ("time", Align::Right),
        ("peak memory", Align::Right),
        ("warnings", Align::Right),
    ]);
    for (name, report, perplexity) in entries {
        let components = || report.components.values();
        let precision = report.components.iter().map(|(name, component)| format!("{name} {}", component.precision));
        let layers = || components().flat_map(|component| &component.layers);
        let worst = layers().filter_map(LayerError::mean_db).min_by(f64::total_cmp);
        let outputs = layers().filter(|layer| layer.layer.starts_with("output ")).filter_map(LayerError::mean_db);
        let sum = |of: fn(&ComponentReport) -> u64| components().map(of).fold(0, u64::saturating_add);
        let elements =
            |c: &ComponentReport| c.formats.values().map(|format| format.elements).fold(0, u64::saturating_add);
        let (device, elements) = (sum(|component| component.device_bytes), sum(elements));
        let peak = report.stages.iter().filter_map(|stage| stage.peak_memory_bytes).max();
        table.row([
            (*name).to_owned(),
            precision.collect::<Vec<_>>().join(", "),
            perplexity.map_or_else(|| "not measured".to_owned(), |perplexity| format!("{perplexity:.3}")),
            decibels(worst),
            decibels(outputs.min_by(f64::total_cmp)),
            if elements == 0 { "–".to_owned() } else { format!("{:.2}", device as f64 * 8.0 / elements as f64) },
            bytes(sum(|component| component.bytes)),
            bytes(device),
            format!("{:.1} s", report.stages.iter().map(|stage| stage.seconds).sum::<f64>()),
            peak.map_or_else(|| "–".to_owned(), bytes),
            report.warnings.len().to_string(),
        ]);
    }
    table.html()
}

/// Layers of all reports in one plot and one table, a component at a time.
fn side_by_side(entries: &[PageEntry<'_>]) -> String {
    let mut html = String::from("<h2>Side by side</h2>\n");
    let mut components = entries.iter().flat_map(|(_, report, _)| report.components.keys()).collect::<Vec<_>>();
    components.sort();
    components.dedup();
    for component in components {
        let of = |report: &QuantizationReport| {
            report.components.get(component).map(|c| c.layers.clone()).unwrap_or_default()
        };
        let lines =
            entries.iter().map(|(name, report, _)| (*name, of(report))).filter(|(_, layers)| !layers.is_empty());
        let lines = lines.collect::<Vec<_>>();
        let Some((_, first)) = lines.first() else { continue };
        let names = first.iter().map(|layer| layer.layer.as_str()).collect::<Vec<_>>();
        let value =
            |layers: &[LayerError], name: &str| layers.iter().find(|l| l.layer == name).and_then(LayerError::mean_db);
        let series = lines.iter().map(|(name, layers)| {
            let values = names.iter().map(|layer| value(layers, layer)).collect();
            Series { name, values }
        });
        let series = series.collect::<Vec<_>>();
        let columns =
            std::iter::once(("layer", Align::Left)).chain(lines.iter().map(|(name, _)| (*name, Align::Right)));
        let columns = columns.collect::<Vec<_>>();
        let mut table = Table::new(&columns);
        let mut order = (0..names.len()).collect::<Vec<_>>();
        let worst = |layer: &usize| series.iter().filter_map(|line| line.values[*layer]).fold(f64::INFINITY, f64::min);
        order.sort_by(|a, b| worst(a).total_cmp(&worst(b)));
        for layer in order {
            let values = series.iter().map(|line| decibels(line.values[layer]));
            table.row(std::iter::once(names[layer].to_owned()).chain(values));
        }
        let plot = plot::decibels(&series, &names, LOW_DB);
        let _ = writeln!(html, "<h3>{}</h3>\n{}", escape(component), figure(&plot, LAYERS_CAPTION));
        html.push_str(&table.folded(SHOWN, "layers"));
    }
    html
}

const LAYERS_CAPTION: &str = "Signal-to-noise ratio of every matrix and output beside the float model, in graph order; the dashed \
                              line is at 10 dB.";

/// One report.
fn section(name: &str, report: &QuantizationReport) -> String {
    let mut html = format!(
        "<h2>{} <small>{}, written by {}</small></h2>\n",
        escape(name),
        escape(&report.model),
        escape(&report.generator)
    );
    for warning in &report.warnings {
        let _ = writeln!(html, "<p class=\"warning\">{}</p>", escape(warning));
    }
    for (name, component) in &report.components {
        html.push_str(&component_section(name, component));
    }
    let mut stages =
        Table::new(&[("stage", Align::Left), ("time", Align::Right), ("peak memory so far", Align::Right)]);
    for stage in &report.stages {
        let peak = stage.peak_memory_bytes.map_or_else(|| "–".to_owned(), bytes);
        stages.row([stage.stage.clone(), format!("{:.2} s", stage.seconds), peak]);
    }
    let _ = writeln!(html, "<h3>Time and memory</h3>\n{}", stages.html());
    html.push_str(&calibration(&report.calibration));
    for (title, json) in [
        ("Options", serde_json::to_string_pretty(&report.options)),
        ("Model and graphs", serde_json::to_string_pretty(&report.graphs)),
    ] {
        let json = json.unwrap_or_else(|error| error.to_string());
        let _ = writeln!(html, "<details><summary>{title}</summary>\n<pre>{}</pre></details>", escape(&json));
    }
    html
}

fn component_section(name: &str, component: &ComponentReport) -> String {
    let seconds =
        component.seconds.iter().map(|(phase, seconds)| format!(", {phase} {seconds:.2} s")).collect::<String>();
    let mut html = format!(
        "<h3>{} <small>{}; {} on disk, {} on a device{}</small></h3>\n",
        escape(name),
        escape(&component.precision),
        bytes(component.bytes),
        bytes(component.device_bytes),
        escape(&seconds)
    );
    let mut formats = Table::new(&[
        ("bits as read back", Align::Left),
        ("weights", Align::Right),
        ("elements", Align::Right),
        ("on a device", Align::Right),
        ("bits/weight, scales included", Align::Right),
    ]);
    for (format, sum) in &component.formats {
        let bits = format!("{:.2}", sum.bits_per_weight);
        formats.row([format.clone(), sum.tensors.to_string(), sum.elements.to_string(), bytes(sum.bytes), bits]);
    }
    html.push_str(&formats.html());
    html.push_str(&layers(&component.layers));
    html.push_str(&activations(&component.activations));
    html.push_str(&weights(component));
    html
}

fn layers(layers: &[LayerError]) -> String {
    if layers.is_empty() {
        return String::from("<p>Not compared with the float model.</p>\n");
    }
    let names = layers.iter().map(|layer| layer.layer.as_str()).collect::<Vec<_>>();
    let series = [Series { name: "", values: layers.iter().map(LayerError::mean_db).collect() }];
    let mut table = Table::new(&[
        ("layer", Align::Left),
        ("mean SQNR, dB", Align::Right),
        ("worst sample, dB", Align::Right),
        ("samples", Align::Right),
    ]);
    let mut sorted = layers.iter().collect::<Vec<_>>();
    let key = |layer: &LayerError| layer.mean_db().unwrap_or(f64::INFINITY);
    sorted.sort_by(|a, b| key(a).total_cmp(&key(b)));
    for layer in sorted {
        let worst = layer.sqnr_db.iter().flatten().copied().min_by(f64::total_cmp);
        table.row([layer.layer.clone(), decibels(layer.mean_db()), decibels(worst), layer.sqnr_db.len().to_string()]);
    }
    let plot = figure(&plot::decibels(&series, &names, LOW_DB), LAYERS_CAPTION);
    format!("<h4>Layers, the worst first</h4>\n{plot}{}", table.folded(SHOWN, "layers"))
}

fn activations(activations: &[ActivationReport]) -> String {
    if activations.is_empty() {
        return String::from("<p>No activations on grids.</p>\n");
    }
    let magnitude = |range: ValueRange| f64::from(range.magnitude());
    let reaches = activations.iter().map(|tensor| Reach {
        step: tensor.encoding.scale.into(),
        most: magnitude(tensor.encoding.covered()),
        seen: tensor.seen.map(magnitude),
    });
    let plot = plot::reaches(&reaches.collect::<Vec<_>>());
    let mut table = Table::new(&[
        ("tensor", Align::Left),
        ("observer", Align::Left),
        ("seen", Align::Right),
        ("grid", Align::Right),
        ("step", Align::Right),
        ("zero point", Align::Right),
        ("bits", Align::Right),
        ("clipped", Align::Right),
    ]);
    // What clips most comes first; the others stay as they are.
    let mut sorted = activations.iter().collect::<Vec<_>>();
    sorted.sort_by(|a, b| b.clipped.total_cmp(&a.clipped));
    for tensor in sorted {
        let grid = tensor.encoding;
        table.row([
            tensor.name.clone(),
            tensor.observer.map_or_else(|| "fixed".to_owned(), observer),
            tensor.seen.map_or_else(|| "–".to_owned(), range),
            range(grid.covered()),
            number(grid.scale.into()),
            grid.zero_point.to_string(),
            bits(grid.qmin, grid.qmax).to_string(),
            format!("{:.4} %", tensor.clipped * 100.0),
        ]);
    }
    let caption = "Grids of activations: from the step to the largest magnitude, on a logarithmic scale; dots are the largest \
                   magnitudes seen.";
    let count = activations.iter().filter(|tensor| tensor.clipped > 0.0).count();
    let title =
        format!("<h4>Activations <small>{} grids, {count} of them clip something</small></h4>\n", activations.len());
    format!("{title}{}{}", figure(&plot, caption), table.folded(SHOWN, "tensors"))
}

fn weights(component: &ComponentReport) -> String {
    let mut table = Table::new(&[
        ("weight", Align::Left),
        ("shape", Align::Left),
        ("scales", Align::Left),
        ("bits", Align::Right),
        ("integers", Align::Right),
        ("at the ends", Align::Right),
        ("on a device", Align::Right),
    ]);
    for weight in &component.weights {
        let shape = weight.stored.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
        let scales = match weight.stored.form {
            StoredForm::Float => "none, float".to_owned(),
            StoredForm::Grid { .. } => "one".to_owned(),
            StoredForm::Channels { .. } => "one a channel".to_owned(),
            StoredForm::Blocks { size, .. } => format!("one a block of {size}"),
            StoredForm::Bias => "one an element".to_owned(),
        };
        let levels = weight.levels.map_or_else(|| "–".to_owned(), |(low, high)| format!("{low} to {high}"));
        table.row([
            weight.name.clone(),
            shape,
            scales,
            weight.bits.to_string(),
            levels,
            format!("{:.3} %", weight.saturated * 100.0),
            bytes(weight.device_bytes),
        ]);
    }
    format!("<details><summary>{} weights</summary>\n{}</details>\n", component.weights.len(), table.html())
}

fn calibration(calibration: &CalibrationSummary) -> String {
    let CalibrationSummary { samples, tokens, media, fingerprint, .. } = calibration;
    let part = calibration.shard.map(|shard| format!(", part {shard} of the set")).unwrap_or_default();
    let mut html = format!(
        "<h3>Calibration</h3>\n<p>{samples} samples, {tokens} tokens, {media} pictures and sounds{}; fingerprint {}</p>\n",
        escape(&part),
        escape(fingerprint)
    );
    let mut table = Table::new(&[
        ("source", Align::Left),
        ("kind", Align::Left),
        ("samples", Align::Right),
        ("tokens", Align::Right),
        ("media", Align::Right),
        ("note", Align::Left),
    ]);
    for source in &calibration.sources {
        let path = source.path.as_ref().map_or_else(|| "generated".to_owned(), |path| path.display().to_string());
        let (samples, tokens, media) =
            (source.samples.to_string(), source.tokens.to_string(), source.media.to_string());
        let note =
            source.note.as_deref().map(|note| format!("{} left out: {note}", source.skipped)).unwrap_or_default();
        table.row([path, format!("{:?}", source.kind), samples, tokens, media, note]);
    }
    html.push_str(&table.html());
    if !calibration.merged.is_empty() {
        let _ = writeln!(html, "<p>Joined from {}.</p>", escape(&calibration.merged.join(", ")));
    }
    html
}

fn figure(plot: &str, caption: &str) -> String {
    match plot {
        "" => String::new(),
        _ => format!("<figure>\n{plot}<figcaption>{}</figcaption>\n</figure>\n", escape(caption)),
    }
}

/// Decibels in a cell; without noise there are none.
fn decibels(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |db| format!("{db:.1}"))
}

fn range(range: ValueRange) -> String {
    format!("{} to {}", number(range.min.into()), number(range.max.into()))
}

/// Bits of integers from `qmin` to `qmax`.
fn bits(qmin: i32, qmax: i32) -> u32 {
    let steps = i64::from(qmax) - i64::from(qmin);
    64 - steps.max(0).cast_unsigned().leading_zeros()
}

fn observer(kind: ObserverKind) -> String {
    match kind {
        ObserverKind::MinMax => "min-max".to_owned(),
        ObserverKind::MovingAverage(weight) => format!("moving average {weight}"),
        ObserverKind::Histogram => "histogram".to_owned(),
        ObserverKind::Percentile(share) => format!("percentile {share}"),
    }
}

#[cfg(test)]
mod tests;
