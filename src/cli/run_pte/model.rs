//! Opening the engine and the programs a command line names.

use super::flags::{Flags, Mode, Programs};
use etgenai::engine::ComponentSource;
use etgenai::engine::plugin::PluginEngine;
use etgenai::runner::{DecodingMode, LookaheadOptions, ModelFiles, RequantRounding, Runner, RunnerOptions};
use etgenai::{Error, Result};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Names the engine library where no flag does.
const LIBRARY_VARIABLE: &str = "ETGENAI_EXECUTORCH_LIBRARY";
const LIBRARY_NAME: &str = "libetgenai_executorch.so";

/// The engine that runs programs.
///
/// # Errors
/// As [`PluginEngine::open_library`]; the error says how to name another library.
pub fn open_engine(flags: &Flags) -> Result<PluginEngine> {
    let path = library_path(flags.engine_library.as_deref());
    let mut options = serde_json::Map::new();
    if let Some(folder) = &flags.qnn_library_dir {
        options.insert("qnn_library_dir".into(), json!(folder));
    }
    let options = if options.is_empty() { String::new() } else { serde_json::Value::Object(options).to_string() };
    // SAFETY: whoever calls this command says which engine library it loads, as with any program's plug-ins.
    let engine = unsafe { PluginEngine::open_library(&path, &options) };
    engine.map_err(|error| match error {
        Error::NotFound(_) | Error::Engine { .. } if flags.engine_library.is_none() => Error::NotFound(format!(
            "{error}; build {LIBRARY_NAME} with cmake/executorch and name it with --engine_library or {LIBRARY_VARIABLE}"
        )),
        error => error,
    })
}

/// The library that was named, else the one of the environment, else the one beside this command, else whichever the
/// system finds.
fn library_path(named: Option<&Path>) -> PathBuf {
    let from_environment = || std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let beside_us = || {
        let beside = std::env::current_exe().ok()?.parent()?.join(LIBRARY_NAME);
        beside.exists().then_some(beside)
    };
    let named = named.map(Path::to_owned);
    named.or_else(from_environment).or_else(beside_us).unwrap_or_else(|| LIBRARY_NAME.into())
}

/// The runner over the programs.
///
/// # Errors
/// As [`Runner::open_files`].
pub fn open_runner(flags: &Flags, engine: &PluginEngine) -> Result<Runner> {
    let decoding = match flags.mode {
        Mode::Kv => DecodingMode::Kv,
        Mode::Hybrid => DecodingMode::Hybrid,
        Mode::Lookahead { ngram, window, gcap } => DecodingMode::Lookahead(LookaheadOptions { ngram, window, gcap }),
    };
    let options = RunnerOptions {
        template: Some(template_name(flags)),
        system_prompt: Some(flags.system_prompt.clone()).filter(|prompt| !prompt.is_empty()),
        decoding,
        requant_rounding: match flags.truncating_requant {
            true => RequantRounding::Truncate,
            false => RequantRounding::Nearest,
        },
        shared_memory: flags.shared_buffer,
        ..RunnerOptions::default()
    };
    Runner::open_files(&files(flags)?, engine, &options)
}

/// The name of the prompt format among our templates.
pub fn template_name(flags: &Flags) -> String {
    format!("upstream:{}", flags.version)
}

fn files(flags: &Flags) -> Result<ModelFiles> {
    let mut files = match &flags.programs {
        Programs::Text { model } => ModelFiles::new(model, &flags.tokenizer),
        Programs::Multimodal { encoder, tok_embedding, decoder } => {
            let mut files = ModelFiles::new(decoder, &flags.tokenizer);
            let kind = if flags.is_audio() { "audio_encoder" } else { "vision_encoder" };
            files.set(ComponentSource::file(kind, encoder))?;
            files.set(ComponentSource::file("tok_embedding", tok_embedding))?;
            files
        }
    };
    if let Some(evictor) = &flags.attention_sink {
        files.set(ComponentSource::file("attention_sink_evictor", evictor))?;
    }
    Ok(files)
}
