//! What `etgenai inspect` makes of quantized models for others: a page that compares them, encodings for Qualcomm's converters,
//! recipes to try next.

use super::output::{print_json, print_line};
use super::{Failure, Outcome};
use etgenai::Error;
use etgenai::artefact::TEXT_DECODER;
use etgenai::chat::{EncodeOptions, Tokenizer};
use etgenai::pipeline::{QuantizedModel, report_page, save_page, save_suggestion};
use etgenai::quantize::AimetVersion;
use etgenai::runner::EvalOptions;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Tokens of a window of the text that `--text` scores.
const WINDOW: usize = 512;

/// Arguments of `inspect` that write files.
#[derive(clap::Args)]
#[group(id = "exports", multiple = true)]
pub struct Args {
    /// More quantized models, beside the first on the page of --html
    #[arg(value_name = "MORE", requires = "html")]
    more: Vec<PathBuf>,
    /// Write the reports of quantized models as one HTML page that compares them
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Measure the perplexity of this UTF-8 text for the page, in full windows of 512 tokens
    #[arg(long, value_name = "FILE", requires = "html")]
    text: Option<PathBuf>,
    /// Write the encodings of a quantized component as AIMET does, for Qualcomm's converters
    #[arg(long, value_name = "FILE")]
    aimet: Option<PathBuf>,
    /// Version of the encodings: 0.6.1 or 1.0.0, which is the default
    #[arg(long, value_name = "VERSION", requires = "aimet")]
    aimet_version: Option<String>,
    /// Write recipes with more bits for the decoder's layers that need them, and the errors they are derived from, into this folder
    #[arg(long, value_name = "DIR")]
    suggest: Option<PathBuf>,
    /// The component for --aimet; the decoder if it is left out
    #[arg(long, value_name = "NAME", requires = "aimet")]
    component: Option<String>,
}

impl Args {
    /// Whether any file was asked for.
    pub fn any(&self) -> bool {
        self.html.is_some() || self.aimet.is_some() || self.suggest.is_some()
    }
}

/// Write what was asked for of the model in `first`.
pub fn run(first: &Path, args: &Args, json: bool) -> Outcome {
    let version = args.aimet_version.as_deref().map(AimetVersion::parse).transpose().map_err(Failure::Usage)?;
    let component = args.component.as_deref().unwrap_or(TEXT_DECODER);
    let mut written = Vec::new();
    if let Some(path) = &args.html {
        let directories = std::iter::once(first).chain(args.more.iter().map(PathBuf::as_path)).collect::<Vec<_>>();
        write_page(&directories, args.text.as_deref(), path)?;
        written.push(path.clone());
    }
    if args.aimet.is_some() || args.suggest.is_some() {
        let model = QuantizedModel::open(first)?;
        if let Some(path) = &args.aimet {
            model.save_aimet_encodings(component, version.unwrap_or_default(), path)?;
            written.push(path.clone());
        }
        if let Some(dir) = &args.suggest {
            written.extend(save_suggestion(&model.suggest(TEXT_DECODER)?, dir)?);
        }
    }
    if json {
        return Ok(print_json(&json!({ "path": first, "written": written }))?);
    }
    Ok(written.iter().try_for_each(|path| print_line(&format!("wrote {}", path.display())))?)
}

fn write_page(directories: &[&Path], text: Option<&Path>, path: &Path) -> etgenai::Result<()> {
    let text = text.map(read_text).transpose()?;
    let mut models = Vec::with_capacity(directories.len());
    for directory in directories {
        let model = QuantizedModel::open(directory)?;
        let perplexity = text.as_deref().map(|text| perplexity(&model, text)).transpose()?;
        models.push((name_of(directory, directories), model, perplexity));
    }
    let entries = models.iter().map(|(name, model, perplexity)| (name.as_str(), model.report(), *perplexity));
    save_page(&report_page::page(&entries.collect::<Vec<_>>()), path)
}

fn read_text(path: &Path) -> etgenai::Result<String> {
    let bytes = std::fs::read(path).map_err(|error| Error::io(path, error))?;
    String::from_utf8(bytes).map_err(|error| Error::format(path, "text", error.to_string()))
}

fn perplexity(model: &QuantizedModel, text: &str) -> etgenai::Result<f64> {
    let artefact = model.artefact();
    let tokenizer = Tokenizer::from_bytes(&artefact.tokenizer_json()?, &artefact.manifest().special_tokens)?;
    let tokens = tokenizer.encode(text, EncodeOptions { add_bos: false, parse_special: false })?;
    let window = WINDOW.min(model.graphs().context_capacity);
    let options = EvalOptions { window, full_windows_only: true };
    Ok(model.perplexity(&tokens, &options, None, &mut |_, _, _| Ok(()))?.perplexity)
}

/// The last part of a path, or all of it where another path ends alike.
fn name_of(directory: &Path, all: &[&Path]) -> String {
    let last = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = last(directory);
    let alike = all.iter().filter(|other| last(other) == name).count();
    name.filter(|_| alike == 1).unwrap_or_else(|| directory.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_go_by_the_shortest_name_that_tells_them_apart() {
        let paths = [Path::new("a/16a8w"), Path::new("b/16a8w"), Path::new("b/16a4w"), Path::new(".")];
        let names = paths.map(|path| name_of(path, &paths));
        assert_eq!(names, ["a/16a8w", "b/16a8w", "16a4w", "."]);
    }
}
