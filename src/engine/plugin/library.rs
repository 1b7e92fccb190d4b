//! Opening engine libraries.

use super::abi::{self, etg_engine_functions, etg_engine_host, etg_engine_open_fn};
use super::functions::{call, slice};
use crate::error::{Error, Result};
use libloading::Library;
use std::ffi::{c_char, c_void};
use std::path::Path;
use std::ptr;

/// What libraries may use of us. It lives as long as the process.
static HOST: Host = Host(etg_engine_host {
    struct_size: size_of::<etg_engine_host>() as u32,
    abi_version: abi::ABI_VERSION,
    user_data: ptr::null_mut(),
    log: Some(log),
});

struct Host(etg_engine_host);

// SAFETY: its only pointers are NULL and a function.
unsafe impl Sync for Host {}

/// Load the library at `path` and let it fill in its functions.
///
/// # Safety
/// As [`super::PluginEngine::open_library`].
pub(super) unsafe fn open(path: &Path, options: &str) -> Result<(etg_engine_functions, Library)> {
    // A bare name is looked for by the system.
    if path.components().count() > 1 && !path.exists() {
        return Err(Error::NotFound(format!("{}: there is no such engine library", path.display())));
    }
    let name = path.display().to_string();
    let refused = |reason: String| Error::Engine { engine: name.clone(), reason };
    // SAFETY: the caller's promise.
    let library = unsafe { Library::new(path) }.map_err(|error| refused(format!("cannot be loaded: {error}")))?;
    // SAFETY: a symbol of this name is this function; the header says so.
    let open = unsafe { library.get::<etg_engine_open_fn>(abi::OPEN_SYMBOL) };
    let open = open.map_err(|_| refused(format!("is no engine library: it does not export {}", abi::OPEN_SYMBOL)))?;
    let mut functions = etg_engine_functions::empty();
    call(&name, "opening it", |error| {
        // SAFETY: all pointers are valid during the call, the host for ever.
        unsafe { open(&HOST.0, options.as_ptr().cast(), options.len(), &mut functions, error) }
    })?;
    Ok((functions, library))
}

/// A line of a library for our log.
unsafe extern "C" fn log(_: *mut c_void, level: i32, message: *const c_char, length: usize) {
    // SAFETY: the header asks for `length` bytes.
    let words = String::from_utf8_lossy(unsafe { slice(message.cast::<u8>(), length) });
    let level = match level {
        1 => log::Level::Error,
        2 => log::Level::Warn,
        3 => log::Level::Info,
        4 => log::Level::Debug,
        _ => log::Level::Trace,
    };
    // A logger that panics must not unwind into C.
    let _ = crate::panics::catch(|| log::log!(level, "{words}"));
}
