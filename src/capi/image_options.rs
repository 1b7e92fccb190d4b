//! `etg_image_options`: how pictures are decoded.

use super::guard::guard;
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::json_fields::{self, Field};
use super::status::ETG_OK;
use crate::Result;
use crate::media::{Alpha, DecodeOptions};
use parking_lot::Mutex;
use std::ffi::c_char;
use std::ptr;

/// How pictures are decoded: limits, and what becomes of transparency. The values are read when a picture is made.
pub struct etg_image_options {
    options: Mutex<DecodeOptions>,
}

impl Handle for etg_image_options {
    const NAME: &'static str = "etg_image_options";
}

/// What `options` say now; NULL is the defaults.
pub(super) fn read(options: *const etg_image_options) -> Result<DecodeOptions> {
    if options.is_null() {
        return Ok(DecodeOptions::default());
    }
    Ok(*handle::get(options)?.options.lock())
}

/// Change `options` with `change`, all or nothing.
fn update(
    function: &'static str,
    options: *mut etg_image_options,
    change: impl FnOnce(&mut DecodeOptions) -> Result<()>,
) -> i32 {
    guard(function, || {
        let options = handle::get(options)?;
        let mut options = options.options.lock();
        let mut changed = *options;
        change(&mut changed)?;
        *options = changed;
        Ok(ETG_OK)
    })
}

/// Keys of the JSON setter.
const KEYS: [&str; 3] = ["max_pixels", "max_bytes", "alpha"];

fn set_field(options: &mut DecodeOptions, field: &Field<'_>) -> Result<bool> {
    let defaults = DecodeOptions::default();
    match field.key() {
        "max_pixels" => options.max_pixels = limit(field)?.unwrap_or(defaults.max_pixels),
        "max_bytes" => options.max_bytes = limit(field)?.unwrap_or(defaults.max_bytes),
        "alpha" => options.alpha = field.or_null(alpha)?.unwrap_or(defaults.alpha),
        _ => return Ok(false),
    }
    Ok(true)
}

/// A number; `None` (0 or null) is the default.
fn limit(field: &Field<'_>) -> Result<Option<u64>> {
    Ok(field.or_null(Field::unsigned)?.filter(|&limit| limit > 0))
}

/// `"ignore"` or a colour.
fn alpha(field: &Field<'_>) -> Result<Alpha> {
    if field.text().is_ok_and(|text| text == "ignore") {
        return Ok(Alpha::Ignore);
    }
    field
        .bytes()
        .map(Alpha::Background)
        .map_err(|_| field.wanted("\"ignore\" or a colour [red, green, blue] of 0 to 255"))
}

/// Make options with the default values: at most 67,108,864 pixels and 256 MiB, transparency over white.
///
/// - Threads: any.
/// - Owns: `*options_out` is the caller's; free it with `etg_image_options_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
/// - After a failure: nothing was made, `*options_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_options_create(options_out: *mut *mut etg_image_options) -> i32 {
    guard("etg_image_options_create", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(options_out, ptr::null_mut(), "options_out") }?;
        out.set(handle::issue(etg_image_options { options: Mutex::default() }));
        Ok(ETG_OK)
    })
}

/// Free options. NULL is allowed and does nothing.
///
/// - Threads: any; pictures made with them are not touched.
/// - Owns: takes the options back.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live options: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_image_options_free(options: *mut etg_image_options) -> i32 {
    guard("etg_image_options_free", || handle::free(options).map(|()| ETG_OK))
}

/// Most pixels (width times height) a picture may have; 0, the default, is 67,108,864. It is checked on the header of a
/// file, before memory for pixels is taken. No side may be longer than 65,535 pixels.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_image_options_set_max_pixels(options: *mut etg_image_options, pixels: u64) -> i32 {
    update("etg_image_options_set_max_pixels", options, |options| {
        options.max_pixels = if pixels > 0 { pixels } else { DecodeOptions::default().max_pixels };
        Ok(())
    })
}

/// Most bytes an encoded file may have; 0, the default, is 256 MiB.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_image_options_set_max_bytes(options: *mut etg_image_options, bytes: u64) -> i32 {
    update("etg_image_options_set_max_bytes", options, |options| {
        options.max_bytes = if bytes > 0 { bytes } else { DecodeOptions::default().max_bytes };
        Ok(())
    })
}

/// The colour that shows through transparent pixels. White is the default.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_image_options_set_alpha_background(
    options: *mut etg_image_options,
    red: u8,
    green: u8,
    blue: u8,
) -> i32 {
    update("etg_image_options_set_alpha_background", options, |options| {
        options.alpha = Alpha::Background([red, green, blue]);
        Ok(())
    })
}

/// Drop transparency and keep the colours under it. `etg_image_options_set_alpha_background` takes this back.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the options are unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn etg_image_options_set_alpha_ignored(options: *mut etg_image_options) -> i32 {
    update("etg_image_options_set_alpha_ignored", options, |options| {
        options.alpha = Alpha::Ignore;
        Ok(())
    })
}

/// Set any of the options from one JSON object, e.g. `{"max_pixels": 4000000, "alpha": [0, 0, 0]}`. Keys: max_pixels,
/// max_bytes, alpha (a colour [red, green, blue] that shows through, or "ignore"); null takes the default.
///
/// - Threads: any.
/// - Owns: the text is copied.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
///   key), `ETG_ERROR_FORMAT` (not a JSON object).
/// - After a failure: the options are unchanged, also by the keys that were right.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_options_set_json(
    options: *mut etg_image_options,
    json: *const c_char,
    length: usize,
) -> i32 {
    update("etg_image_options_set_json", options, |options| {
        // SAFETY: text of the caller.
        let json = unsafe { input::text(json, length, "json") }?;
        json_fields::for_each(etg_image_options::NAME, json, &KEYS, |field| set_field(options, field))
    })
}
