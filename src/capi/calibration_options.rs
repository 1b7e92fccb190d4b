//! `etg_calibration_options`: what a model is calibrated with.

use super::guard::guard;
use super::handle::{self, Handle};
use super::image_processor;
use super::input::{self, Out};
use super::json_fields::{self, Field};
use super::runner_options;
use super::status::ETG_OK;
use crate::Result;
use crate::dataset::{DatasetOptions, RandomData, Shard};
use parking_lot::Mutex;
use std::ffi::c_char;
use std::path::PathBuf;
use std::ptr;

/// Sources of calibration data and how they are cut. There is no source by default. All sources that are named are joined: token
/// rows, conversations, chat sets, texts, random ids, each kind in the order in which its files were added.
pub struct etg_calibration_options {
    options: Mutex<DatasetOptions>,
}

impl Handle for etg_calibration_options {
    const NAME: &'static str = "etg_calibration_options";
}

/// What `options` say now.
pub(super) fn read(options: *const etg_calibration_options) -> Result<DatasetOptions> {
    let options = handle::get(options)?;
    let options = options.options.lock();
    Ok(options.clone())
}

/// Change `options` with `change`, all or nothing.
fn update(
    function: &'static str,
    options: *mut etg_calibration_options,
    change: impl FnOnce(&mut DatasetOptions) -> Result<()>,
) -> i32 {
    guard(function, || {
        let options = handle::get(options)?;
        let mut options = options.options.lock();
        let mut changed = options.clone();
        change(&mut changed)?;
        *options = changed;
        Ok(ETG_OK)
    })
}

/// Add a file to one of the lists.
///
/// # Safety
/// As [`input::path`].
unsafe fn add(
    function: &'static str,
    options: *mut etg_calibration_options,
    (path, length): (*const c_char, usize),
    list: impl FnOnce(&mut DatasetOptions) -> &mut Vec<PathBuf>,
) -> i32 {
    update(function, options, |options| {
        // SAFETY: this function's contract.
        list(options).push(unsafe { input::path(path, length, "path") }?);
        Ok(())
    })
}

/// A number where 0 is "not said".
fn some_size(size: usize) -> Option<usize> {
    (size > 0).then_some(size)
}

/// Tokens of the longest sample if nothing is said.
fn default_max_context() -> usize {
    DatasetOptions::default().max_context
}

/// Keys of the JSON setter.
const KEYS: [&str; 11] = [
    "samples",
    "texts",
    "chats",
    "token_rows",
    "random",
    "text_limit",
    "text_window",
    "chat_limit",
    "max_context",
    "image_tiling",
    "shard",
];

fn set_field(options: &mut DatasetOptions, field: &Field<'_>) -> Result<bool> {
    match field.key() {
        "samples" => options.samples = paths(field)?,
        "texts" => options.texts = paths(field)?,
        "chats" => options.chats = paths(field)?,
        "token_rows" => options.token_rows = paths(field)?,
        "random" => options.random = field.or_null(Field::read)?,
        "text_limit" => options.text_limit = field.or_null(Field::count)?.and_then(some_size),
        "text_window" => options.text_window = field.or_null(Field::count)?.and_then(some_size),
        "chat_limit" => options.chat_limit = field.or_null(Field::count)?.and_then(some_size),
        "max_context" => {
            let tokens = field.or_null(Field::count)?.and_then(some_size);
            options.max_context = tokens.unwrap_or_else(default_max_context);
        }
        "image_tiling" => options.image_tiling = field.or_null(runner_options::tiling)?.unwrap_or_default(),
        "shard" => {
            let shard = |field: &Field<'_>| field.text()?.parse().map_err(|_| field.wanted("I/N with 1 <= I <= N"));
            options.shard = field.or_null(shard)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn paths(field: &Field<'_>) -> Result<Vec<PathBuf>> {
    let paths = field.or_null(Field::texts)?.unwrap_or_default();
    if paths.iter().any(|path| path.is_empty() || path.contains('\0')) {
        return Err(field.wanted("a list of paths, none of them empty or with a NUL inside"));
    }
    Ok(paths.into_iter().map(PathBuf::from).collect())
}

/// Make options without any source.
///
/// - Threads: any.
/// - Owns: `*options_out` is the caller's; free it with `etg_calibration_options_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
/// - After a failure: nothing was made, `*options_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_calibration_options_create(options_out: *mut *mut etg_calibration_options) -> i32 {
    guard("etg_calibration_options_create", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(options_out, ptr::null_mut(), "options_out") }?;
        out.set(handle::issue(etg_calibration_options { options: Mutex::default() }));
        Ok(ETG_OK)
    })
}

/// Free options. NULL is allowed and does nothing.
///
/// - Threads: any; a call that is using the options goes on with the values it has read.
/// - Owns: takes the options back.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live options: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_calibration_options_free(options: *mut etg_calibration_options) -> i32 {
    guard("etg_calibration_options_free", || handle::free(options).map(|()| ETG_OK))
}

/// Add a JSON file with a list of conversations: each has "messages" and names the pictures or sounds it shows in "files", which
/// are looked for beside the file.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, empty). The file is read when it is used.
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_calibration_options_add_samples(
    options: *mut etg_calibration_options,
    path: *const c_char,
    path_length: usize,
) -> i32 {
    // SAFETY: text of the caller.
    unsafe { add("etg_calibration_options_add_samples", options, (path, path_length), |options| &mut options.samples) }
}

/// Add a plain UTF-8 text. Its tokens, without template and begin-of-text token, are cut into windows.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: as `etg_calibration_options_add_samples`.
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_calibration_options_add_text(
    options: *mut etg_calibration_options,
    path: *const c_char,
    path_length: usize,
) -> i32 {
    // SAFETY: text of the caller.
    unsafe { add("etg_calibration_options_add_text", options, (path, path_length), |options| &mut options.texts) }
}

/// Add a chat set: a JSON object a line, with "messages". Rows that the template refuses or that are too long are left out.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: as `etg_calibration_options_add_samples`.
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_calibration_options_add_chat(
    options: *mut etg_calibration_options,
    path: *const c_char,
    path_length: usize,
) -> i32 {
    // SAFETY: text of the caller.
    unsafe { add("etg_calibration_options_add_chat", options, (path, path_length), |options| &mut options.chats) }
}

/// Add a JSON file with a list of lists of token ids.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: as `etg_calibration_options_add_samples`.
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_calibration_options_add_tokens(
    options: *mut etg_calibration_options,
    path: *const c_char,
    path_length: usize,
) -> i32 {
    // SAFETY: text of the caller.
    unsafe {
        add("etg_calibration_options_add_tokens", options, (path, path_length), |options| &mut options.token_rows)
    }
}

/// Add random token ids: `samples` rows of `length` tokens; 0 samples takes them out again. Good for smoke tests only, and marked so
/// in every report.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live). The sizes are checked when the data is used.
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_calibration_options_set_random(
    options: *mut etg_calibration_options,
    samples: usize,
    length: usize,
    seed: u64,
) -> i32 {
    update("etg_calibration_options_set_random", options, |options| {
        options.random = (samples > 0).then_some(RandomData { samples, length, seed });
        Ok(())
    })
}

/// The most windows of each text; 0, the default, takes all.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_calibration_options_set_text_limit(options: *mut etg_calibration_options, windows: usize) -> i32 {
    update("etg_calibration_options_set_text_limit", options, |options| {
        options.text_limit = some_size(windows);
        Ok(())
    })
}

/// Tokens of a window of a text; 0, the default, is as many as the longest sample has.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_calibration_options_set_text_window(options: *mut etg_calibration_options, tokens: usize) -> i32 {
    update("etg_calibration_options_set_text_window", options, |options| {
        options.text_window = some_size(tokens);
        Ok(())
    })
}

/// Rows of each chat set that are looked at, from its beginning; 0, the default, looks at all.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_calibration_options_set_chat_limit(options: *mut etg_calibration_options, rows: usize) -> i32 {
    update("etg_calibration_options_set_chat_limit", options, |options| {
        options.chat_limit = some_size(rows);
        Ok(())
    })
}

/// Tokens of the longest sample; 0, the default, is 512. Never more than the context of the prepared model.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_calibration_options_set_max_context(options: *mut etg_calibration_options, tokens: usize) -> i32 {
    update("etg_calibration_options_set_max_context", options, |options| {
        options.max_context = some_size(tokens).unwrap_or_else(default_max_context);
        Ok(())
    })
}

/// How pictures are cut, an `ETG_TILING_` constant; should be what the runner will be told.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_calibration_options_set_image_tiling(options: *mut etg_calibration_options, tiling: i32) -> i32 {
    update("etg_calibration_options_set_image_tiling", options, |options| {
        options.image_tiling = image_processor::tiling_of(tiling)?;
        Ok(())
    })
}

/// Take only part `index` (from 1) of `count` equal parts of the samples, so that a big set is spread over many machines and joined
/// with `etg_observations_merge`. 0, 0, the default, takes all.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not 1 <= index <= count).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_calibration_options_set_shard(
    options: *mut etg_calibration_options,
    index: usize,
    count: usize,
) -> i32 {
    update("etg_calibration_options_set_shard", options, |options| {
        options.shard = if (index, count) == (0, 0) { None } else { Some(Shard::new(index, count)?) };
        Ok(())
    })
}

/// Set any of the options from one JSON object, e.g. `{"texts": ["calib.txt"], "text_limit": 4, "shard": "1/2"}`. Keys: samples,
/// texts, chats, token_rows (lists of paths, in place of those that were added), random (an object with samples, length and seed),
/// text_limit, text_window, chat_limit, max_context, image_tiling (checkpoint, split, whole or single), shard ("I/N"); null takes
/// the default.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
///   key), `ETG_ERROR_FORMAT` (not a JSON object).
/// - After a failure: the options are unchanged, also by the keys that were right.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_calibration_options_set_json(
    options: *mut etg_calibration_options,
    json: *const c_char,
    length: usize,
) -> i32 {
    update("etg_calibration_options_set_json", options, |options| {
        // SAFETY: text of the caller.
        let json = unsafe { input::text(json, length, "json") }?;
        json_fields::for_each(etg_calibration_options::NAME, json, &KEYS, |field| set_field(options, field))
    })
}
