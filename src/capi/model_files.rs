//! `etg_model_files`: a model as single program files beside a tokenizer, and opening runners with any engine.

use super::engine::{self, etg_engine};
use super::guard::guard;
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::json_fields::{self, Field};
use super::runner::etg_runner;
use super::runner_options::{self, etg_runner_options};
use super::status::ETG_OK;
use crate::artefact::{AUDIO_ENCODER, TEXT_DECODER, TOK_EMBEDDING, VISION_ENCODER};
use crate::engine::{ComponentSource, SourceData};
use crate::runner::{EVICTOR, ModelFiles, RequantRounding, Runner, requantize_levels};
use crate::{Error, Result};
use parking_lot::Mutex;
use std::ffi::c_char;
use std::path::PathBuf;
use std::ptr;

/// The files of a model as upstream's exporter writes them: a text decoder, and for models with pictures or sound a token
/// embedding and a vision or audio encoder, each of which can be replaced by itself; and a tokenizer. Read when a runner is opened.
pub struct etg_model_files {
    files: Mutex<Files>,
}

#[derive(Clone, Default)]
struct Files {
    components: Vec<ComponentSource>,
    tokenizer: Option<PathBuf>,
}

impl Handle for etg_model_files {
    const NAME: &'static str = "etg_model_files";
}

/// Components by name.
const COMPONENTS: [&str; 5] = [TEXT_DECODER, TOK_EMBEDDING, VISION_ENCODER, AUDIO_ENCODER, EVICTOR];
/// Keys of the JSON setter.
const KEYS: [&str; 6] = [TEXT_DECODER, TOK_EMBEDDING, VISION_ENCODER, AUDIO_ENCODER, EVICTOR, "tokenizer"];

impl Files {
    fn set(&mut self, source: ComponentSource) -> Result<()> {
        if !COMPONENTS.contains(&source.component.as_str()) {
            let (name, known) = (&source.component, COMPONENTS.join(", "));
            return Err(Error::NotFound(format!("there is no component {name:?}; there are: {known}")));
        }
        self.components.retain(|known| known.component != source.component);
        self.components.push(source);
        Ok(())
    }

    fn set_field(&mut self, field: &Field<'_>) -> Result<bool> {
        let path = field.or_null(Field::text)?;
        match (field.key(), path) {
            ("tokenizer", path) => self.tokenizer = path.map(PathBuf::from),
            (name, Some(path)) if COMPONENTS.contains(&name) => self.set(ComponentSource::file(name, path))?,
            (name, None) if COMPONENTS.contains(&name) => self.components.retain(|known| known.component != name),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn complete(self) -> Result<ModelFiles> {
        let tokenizer = self.tokenizer.ok_or_else(|| Error::invalid("the model files lack a tokenizer"))?;
        let mut components = self.components;
        let decoder = components.iter().position(|source| source.component == TEXT_DECODER);
        let decoder = decoder.ok_or_else(|| Error::invalid(format!("the model files lack a {TEXT_DECODER}")))?;
        let mut files = ModelFiles::with_decoder(components.swap_remove(decoder), tokenizer);
        components.into_iter().try_for_each(|source| files.set(source))?;
        Ok(files)
    }
}

/// Change `files` with `change`, all or nothing.
fn update(function: &'static str, files: *mut etg_model_files, change: impl FnOnce(&mut Files) -> Result<()>) -> i32 {
    guard(function, || {
        let files = handle::get(files)?;
        let mut files = files.files.lock();
        let mut changed = files.clone();
        change(&mut changed)?;
        *files = changed;
        Ok(ETG_OK)
    })
}

/// Make an empty set of files.
///
/// - Threads: any.
/// - Owns: `*files_out` is the caller's; free it with `etg_model_files_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
/// - After a failure: nothing was made, `*files_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_model_files_create(files_out: *mut *mut etg_model_files) -> i32 {
    guard("etg_model_files_create", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(files_out, ptr::null_mut(), "files_out") }?;
        out.set(handle::issue(etg_model_files { files: Mutex::default() }));
        Ok(ETG_OK)
    })
}

/// Free a set of files. NULL is allowed and does nothing.
///
/// - Threads: any; runners opened from it are not touched.
/// - Owns: takes the set back, and bytes that were copied into it.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_model_files_free(files: *mut etg_model_files) -> i32 {
    guard("etg_model_files_free", || handle::free(files).map(|()| ETG_OK))
}

/// Set the file of a component: "text_decoder", "tok_embedding", "vision_encoder", "audio_encoder" or
/// "attention_sink_evictor". It is looked at when a runner is opened.
///
/// - Threads: any.
/// - Owns: the texts are copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, empty path), `ETG_ERROR_NOT_FOUND` (no such
///   component; the message lists them).
/// - After a failure: the set is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_model_files_set_component(
    files: *mut etg_model_files,
    component: *const c_char,
    component_length: usize,
    path: *const c_char,
    path_length: usize,
) -> i32 {
    update("etg_model_files_set_component", files, |files| {
        // SAFETY: texts of the caller.
        let (component, path) = unsafe {
            (input::text(component, component_length, "component")?, input::path(path, path_length, "path")?)
        };
        files.set(ComponentSource::file(component, path))
    })
}

/// Set a component's program from memory.
///
/// - Threads: any.
/// - Owns: the bytes are copied; the copy lives until the set and all runners opened from it are gone.
/// - Codes: as `etg_model_files_set_component`.
/// - After a failure: the set is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_model_files_set_component_bytes(
    files: *mut etg_model_files,
    component: *const c_char,
    component_length: usize,
    bytes: *const u8,
    bytes_length: usize,
) -> i32 {
    update("etg_model_files_set_component_bytes", files, |files| {
        // SAFETY: text and bytes of the caller.
        let (component, bytes) = unsafe {
            (input::text(component, component_length, "component")?, input::values(bytes, bytes_length, "bytes")?)
        };
        if bytes.is_empty() {
            return Err(Error::invalid("bytes is empty"));
        }
        files.set(ComponentSource::bytes(component, bytes))
    })
}

/// Say that the engine holds a component's program already, under this name: for engines of the host.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: as `etg_model_files_set_component`.
/// - After a failure: the set is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_model_files_set_component_held(
    files: *mut etg_model_files,
    component: *const c_char,
    component_length: usize,
) -> i32 {
    update("etg_model_files_set_component_held", files, |files| {
        // SAFETY: text of the caller.
        let component = unsafe { input::text(component, component_length, "component") }?;
        files.set(ComponentSource { data: SourceData::Held, ..ComponentSource::held(component) })
    })
}

/// Set the tokenizer: tokenizer.json, tokenizer.model (SentencePiece or tiktoken), tokenizer.bin (llama2.c), or a folder
/// with one of them. Special tokens, the chat template and the settings of pictures and sound are read from the files beside it
/// (tokenizer_config.json, chat_template.jinja, preprocessor_config.json …), as far as they are there.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, empty).
/// - After a failure: the set is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_model_files_set_tokenizer(
    files: *mut etg_model_files,
    path: *const c_char,
    path_length: usize,
) -> i32 {
    update("etg_model_files_set_tokenizer", files, |files| {
        // SAFETY: text of the caller.
        files.tokenizer = Some(unsafe { input::path(path, path_length, "path") }?);
        Ok(())
    })
}

/// Set any of the files from one JSON object of paths. Keys: text_decoder, tok_embedding, vision_encoder,
/// audio_encoder, attention_sink_evictor, tokenizer; null takes a file out.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
///   key), `ETG_ERROR_FORMAT` (not a JSON object).
/// - After a failure: the set is unchanged, also by the keys that were right.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_model_files_set_json(
    files: *mut etg_model_files,
    json: *const c_char,
    length: usize,
) -> i32 {
    update("etg_model_files_set_json", files, |files| {
        // SAFETY: text of the caller.
        let json = unsafe { input::text(json, length, "json") }?;
        json_fields::for_each(etg_model_files::NAME, json, &KEYS, |field| files.set_field(field))
    })
}

/// Open a model from its files with an engine, and begin an empty conversation. `options` may be NULL: the defaults.
///
/// - Threads: any.
/// - Owns: `*runner_out` is the caller's; free it with `etg_runner_free`. Files, engine handle and options may be freed at
///   once; the runner keeps the engine.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a file is not set, files that do not belong together),
///   `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`, `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_ENGINE`.
/// - After a failure: nothing was opened, `*runner_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_open_files(
    files: *const etg_model_files,
    engine: *const etg_engine,
    options: *const etg_runner_options,
    runner_out: *mut *mut etg_runner,
) -> i32 {
    guard("etg_runner_open_files", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(runner_out, ptr::null_mut(), "runner_out") }?;
        let files = handle::get(files)?.files.lock().clone();
        let (engine, options) = (engine::read(engine)?, runner_options::read(options)?);
        out.set(etg_runner::issue(Runner::open_files(&files.complete()?, &*engine, &options)?));
        Ok(ETG_OK)
    })
}

/// Open a compiled model folder with an engine, and begin an empty conversation. `options` may be NULL: the defaults; their
/// threads are the engine's own matter.
///
/// - Threads: any.
/// - Owns: as `etg_runner_open_files`.
/// - Codes: as `etg_runner_open`.
/// - After a failure: nothing was opened, `*runner_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_open_with_engine(
    path: *const c_char,
    path_length: usize,
    engine: *const etg_engine,
    options: *const etg_runner_options,
    runner_out: *mut *mut etg_runner,
) -> i32 {
    guard("etg_runner_open_with_engine", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(runner_out, ptr::null_mut(), "runner_out") }?;
        // SAFETY: text of the caller.
        let path = unsafe { input::path(path, path_length, "path") }?;
        let (engine, options) = (engine::read(engine)?, runner_options::read(options)?);
        out.set(etg_runner::issue(Runner::open_with(&path, &*engine, &options)?));
        Ok(ETG_OK)
    })
}

/// Rounding of re-quantized levels: to the nearest, ties to even.
pub const ETG_REQUANT_NEAREST: i32 = 0;
/// Rounding of re-quantized levels: towards zero, as upstream's runner did.
pub const ETG_REQUANT_TRUNCATE: i32 = 1;

/// The rounding with this number.
pub(super) fn rounding_of(rounding: i32) -> Result<RequantRounding> {
    match rounding {
        ETG_REQUANT_NEAREST => Ok(RequantRounding::Nearest),
        ETG_REQUANT_TRUNCATE => Ok(RequantRounding::Truncate),
        other => Err(Error::invalid(format!("rounding is {other}, but must be an ETG_REQUANT_ constant (0 or 1)"))),
    }
}

/// Re-quantize levels of a KV cache in place, for runners that keep a cache of their own: what a prefill graph wrote with
/// one encoding (real = (level - zero_point) * scale) becomes what a decode graph reads with another, within the levels'
/// range. `level_bytes` is 1 (uint8_t) or 2 (uint16_t, aligned). `etg_runner` does this by itself.
///
/// - Threads: any; `levels` is the caller's alone during the call.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, a level size other than 1 and 2, a scale that is not above 0, not such a
///   constant).
/// - After a failure: the levels are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_kv_requantize(
    levels: *mut u8,
    level_count: usize,
    level_bytes: usize,
    from_scale: f32,
    from_zero_point: i32,
    to_scale: f32,
    to_zero_point: i32,
    rounding: i32,
) -> i32 {
    guard("etg_kv_requantize", || {
        let bytes = level_count.saturating_mul(level_bytes);
        // SAFETY: levels of the caller.
        let levels = unsafe { input::values_mut(levels, bytes, "levels") }?;
        let (from, to) = ((from_scale, from_zero_point), (to_scale, to_zero_point));
        requantize_levels(levels, level_bytes, from, to, rounding_of(rounding)?)?;
        Ok(ETG_OK)
    })
}
