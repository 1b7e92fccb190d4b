//! `etg_engine`: what executes a model. Built in, a library of its own, or functions of the host.

use super::buffer::{self, etg_buffer};
use super::guard::guard;
use super::handle::{self, Handle};
use super::input::{self, Out};
use super::json_fields;
use super::status::ETG_OK;
use crate::engine::cpu::{CpuEngine, CpuOptions};
use crate::engine::plugin::abi::etg_engine_functions;
use crate::engine::plugin::{ExportedEngine, PluginEngine};
use crate::engine::{ComponentSource, Engine};
use crate::runner::RunnerOptions;
use crate::{Error, Result};
use serde_json::json;
use std::ffi::c_char;
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;

/// What executes a model: loads its components and runs their graphs. Runners and other handles that use it keep it alive.
pub struct etg_engine {
    engine: Arc<dyn Engine>,
}

impl Handle for etg_engine {
    const NAME: &'static str = "etg_engine";
}

/// The engine behind a handle.
pub(super) fn read(engine: *const etg_engine) -> Result<Arc<dyn Engine>> {
    Ok(handle::get(engine)?.engine.clone())
}

/// Keys of a built-in engine's options.
const KEYS: [&str; 1] = ["threads"];

/// Make an engine that is inside the library: the only name is "cpu". `options` is a JSON object, or empty; its only key is
/// threads (0: one a physical core).
///
/// - Threads: any.
/// - Owns: the texts are not kept. `*engine_out` is the caller's; free it with `etg_engine_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not UTF-8, unknown key, wrong type), `ETG_ERROR_NOT_FOUND` (no such
///   engine), `ETG_ERROR_FORMAT` (not a JSON object).
/// - After a failure: nothing was made, `*engine_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_engine_builtin(
    name: *const c_char,
    name_length: usize,
    options: *const c_char,
    options_length: usize,
    engine_out: *mut *mut etg_engine,
) -> i32 {
    guard("etg_engine_builtin", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(engine_out, ptr::null_mut(), "engine_out") }?;
        // SAFETY: texts of the caller.
        let (name, json) =
            unsafe { (input::text(name, name_length, "name")?, input::text(options, options_length, "options")?) };
        if name != "cpu" {
            return Err(Error::NotFound(format!("there is no built-in engine {name:?}; there is: cpu")));
        }
        let mut options = RunnerOptions::default();
        if !json.is_empty() {
            json_fields::for_each(etg_engine::NAME, json, &KEYS, |field| match field.key() {
                "threads" => {
                    options.threads = Some(field.count()?).filter(|&threads| threads > 0);
                    Ok(true)
                }
                _ => Ok(false),
            })?;
        }
        options.validate()?;
        let engine = CpuEngine::new(CpuOptions { threads: options.threads, ..Default::default() });
        out.set(handle::issue(etg_engine { engine: Arc::new(engine) }));
        Ok(ETG_OK)
    })
}

/// Take an engine of the host over; see `etgenai_engine.h`. The struct is copied. Its `destroy` is called when the handle
/// and everything that uses the engine is gone.
///
/// - Threads: any. The engine's functions are called as `etgenai_engine.h` says.
/// - Owns: takes the engine over if it succeeds. `*engine_out` is the caller's; free it with `etg_engine_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, struct_size too small, a function is missing), `ETG_ERROR_UNSUPPORTED`
///   (made for another major version of the engine ABI).
/// - After a failure: nothing was taken over (`destroy` is not called), `*engine_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_engine_from_functions(
    functions: *const etg_engine_functions,
    engine_out: *mut *mut etg_engine,
) -> i32 {
    guard("etg_engine_from_functions", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(engine_out, ptr::null_mut(), "engine_out") }?;
        if !functions.is_aligned() {
            return Err(Error::invalid("functions is not aligned"));
        }
        // SAFETY: a struct of the caller that is as long as it says; the header states what its functions must do.
        let engine = unsafe { PluginEngine::from_functions(functions) }?;
        out.set(handle::issue(etg_engine { engine: Arc::new(engine) }));
        Ok(ETG_OK)
    })
}

/// Open an engine library, e.g. libetgenai_executorch.so; a path without a folder is looked for by the system. `options` is
/// a JSON object for it, or empty.
///
/// - Threads: any.
/// - Owns: the texts are not kept. `*engine_out` is the caller's; free it with `etg_engine_free`. The library stays loaded
///   as long as the engine is used.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not UTF-8, and what the library refuses), `ETG_ERROR_NOT_FOUND`,
///   `ETG_ERROR_ENGINE` (cannot be loaded, or is no engine library), `ETG_ERROR_UNSUPPORTED` (made for another major version
///   of the engine ABI).
/// - After a failure: there is no engine, `*engine_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_engine_load_library(
    path: *const c_char,
    path_length: usize,
    options: *const c_char,
    options_length: usize,
    engine_out: *mut *mut etg_engine,
) -> i32 {
    guard("etg_engine_load_library", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(engine_out, ptr::null_mut(), "engine_out") }?;
        // SAFETY: texts of the caller.
        let (path, options) =
            unsafe { (input::path(path, path_length, "path")?, input::text(options, options_length, "options")?) };
        // SAFETY: the caller names a library to run.
        let engine = unsafe { PluginEngine::open_library(&path, options) }?;
        out.set(handle::issue(etg_engine { engine: Arc::new(engine) }));
        Ok(ETG_OK)
    })
}

/// Free an engine handle. NULL is allowed and does nothing.
///
/// - Threads: any; runners that use the engine keep it.
/// - Owns: takes the handle back.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live engine: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_engine_free(engine: *mut etg_engine) -> i32 {
    guard("etg_engine_free", || handle::free(engine).map(|()| ETG_OK))
}

/// The engine as functions of `etgenai_engine.h`, for programs that want to execute graphs themselves. Set
/// `functions_out->struct_size` first. Whoever has the functions calls their `destroy` when done; the handle may be freed
/// before.
///
/// - Threads: any.
/// - Owns: the functions are the caller's until it calls their `destroy`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, struct_size too small).
/// - After a failure: `*functions_out` is unchanged.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_engine_get_functions(
    engine: *const etg_engine,
    functions_out: *mut etg_engine_functions,
) -> i32 {
    guard("etg_engine_get_functions", || {
        let engine = read(engine)?;
        if functions_out.is_null() || !functions_out.is_aligned() {
            return Err(Error::invalid("functions_out is NULL or not aligned"));
        }
        // SAFETY: a struct of the caller, which begins with its size.
        let room = unsafe { (*functions_out).struct_size };
        let known = (room as usize).min(size_of::<etg_engine_functions>());
        if known < offset_of!(etg_engine_functions, destroy) {
            return Err(Error::invalid(format!("functions_out->struct_size is {room}: set it to sizeof")));
        }
        let functions = etg_engine_functions { struct_size: room, ..ExportedEngine::new(engine).into_functions() };
        // SAFETY: both have `known` bytes.
        unsafe { ptr::copy_nonoverlapping((&raw const functions).cast::<u8>(), functions_out.cast::<u8>(), known) };
        Ok(ETG_OK)
    })
}

/// What a program file holds, as one JSON object: description, weight_bytes, graphs (name, inputs and outputs with name,
/// dtype and shape), constants (name and values). The program is loaded and closed again. `component` is what it is for, e.g.
/// "text_decoder"; an engine that does not care takes any.
///
/// - Threads: any.
/// - Owns: the texts are not kept. `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8), and what the engine reports: `ETG_ERROR_NOT_FOUND`,
///   `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`, `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_ENGINE`.
/// - After a failure: `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_engine_inspect_json(
    engine: *const etg_engine,
    component: *const c_char,
    component_length: usize,
    path: *const c_char,
    path_length: usize,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    guard("etg_engine_inspect_json", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { buffer::out(buffer_out) }?;
        // SAFETY: texts of the caller.
        let (component, path) = unsafe {
            (input::text(component, component_length, "component")?, input::path(path, path_length, "path")?)
        };
        let loaded = read(engine)?.load(&ComponentSource::file(component, path))?;
        let constants = loaded.constants().iter().map(|constant| (constant.name.clone(), json!(constant.values)));
        let constants: serde_json::Map<_, _> = constants.collect();
        let description = json!({
            "description": loaded.description(),
            "weight_bytes": loaded.weight_bytes(),
            "graphs": loaded.graphs(),
            "constants": constants,
        });
        out.set(buffer::text(description.to_string()));
        Ok(ETG_OK)
    })
}
