//! An engine that is a table of functions.

use super::abi::{self, etg_engine_component, etg_engine_error, etg_engine_functions, etg_engine_source};
use super::component::PluginComponent;
use crate::engine::{ComponentSource, Engine, LoadedComponent, SourceData};
use crate::error::{Error, Result};
use libloading::Library;
use std::ffi::{c_char, c_void};
use std::fmt;
use std::mem::offset_of;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// Bytes of room for the reason of a failure.
const MESSAGE_CAPACITY: usize = 1024;

/// An engine behind the plug-in ABI.
#[derive(Debug, Clone)]
pub struct PluginEngine {
    shared: Arc<Shared>,
}

/// The functions, for as long as the engine or one of its components lives.
pub(super) struct Shared {
    pub functions: etg_engine_functions,
    pub name: String,
    /// The library they are in; dropped after them.
    _library: Option<Library>,
}

// SAFETY: the ABI's thread rule: functions may be called from any thread, and `user_data` is theirs alone. Calls about one
// component are kept apart by `&mut` on it.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl PluginEngine {
    /// Take an engine over.
    ///
    /// # Safety
    /// `functions` points to a struct of at least as many bytes as its `struct_size` says, whose pointers are valid until
    /// `destroy`, and whose functions do what `include/etgenai_engine.h` says.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another version of the ABI, [`Error::InvalidArgument`] for a struct that is too small or
    /// lacks a function. `destroy` is not called then.
    pub unsafe fn from_functions(functions: *const etg_engine_functions) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::take(functions, None) }
    }

    /// Open an engine library. `options` is a JSON object for it, or empty.
    ///
    /// # Safety
    /// Loading a library runs its code; it must be one whose `etg_engine_open` does what the header says.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such file, [`Error::Engine`] if it cannot be loaded or is no engine, and what
    /// its `etg_engine_open` reports.
    pub unsafe fn open_library(path: &Path, options: &str) -> Result<Self> {
        // SAFETY: the caller's promise.
        let (functions, library) = unsafe { super::library::open(path, options) }?;
        // SAFETY: `functions` was filled in by the library, which lives as long as the engine.
        unsafe { Self::take(&functions, Some(library)) }
    }

    unsafe fn take(functions: *const etg_engine_functions, library: Option<Library>) -> Result<Self> {
        // SAFETY: the caller's promise: the struct is as long as it says.
        let functions = unsafe { read_functions(functions) }?;
        // SAFETY: text of the engine, valid until `destroy`.
        let name = unsafe { text(functions.name, functions.name_length) }
            .ok_or_else(|| Error::invalid("an engine's name is not UTF-8 text"))?;
        let name = if name.is_empty() { "plug-in".into() } else { name };
        Ok(Self { shared: Arc::new(Shared { functions, name, _library: library }) })
    }
}

impl Engine for PluginEngine {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn load(&self, source: &ComponentSource) -> Result<Box<dyn LoadedComponent>> {
        let path = match &source.data {
            SourceData::File(path) => Some(path_text(path)?),
            SourceData::Bytes(_) | SourceData::Held => None,
        };
        let bytes = match &source.data {
            SourceData::Bytes(bytes) => Some(bytes.clone()),
            SourceData::File(_) | SourceData::Held => None,
        };
        let empty: &[u8] = &[];
        let (path_bytes, slice) = (path.unwrap_or_default(), bytes.as_ref().map_or(empty, |bytes| bytes.as_slice()));
        let raw = etg_engine_source {
            struct_size: size_of::<etg_engine_source>() as u32,
            component: source.component.as_ptr().cast(),
            component_length: source.component.len(),
            path: path_bytes.as_ptr().cast(),
            path_length: path_bytes.len(),
            bytes: if bytes.is_some() { slice.as_ptr() } else { ptr::null() },
            bytes_length: slice.len(),
            shared_memory: u32::from(source.shared_memory),
        };
        let mut described = etg_engine_component {
            struct_size: size_of::<etg_engine_component>() as u32,
            handle: ptr::null_mut(),
            graphs: ptr::null(),
            graph_count: 0,
            constants: ptr::null(),
            constant_count: 0,
            weight_bytes: 0,
            description: ptr::null(),
            description_length: 0,
        };
        let Shared { functions, name, .. } = &*self.shared;
        let load = functions.load.ok_or_else(|| Error::internal("an engine without load"))?;
        let code = call(name, &source.describe(), |error| {
            // SAFETY: all pointers are valid during the call; the bytes live as long as the component that is made of them.
            unsafe { load(functions.user_data, &raw, &mut described, error) }
        });
        code?;
        // SAFETY: `load` succeeded and described the component.
        let component = unsafe { PluginComponent::new(self.shared.clone(), &described, bytes, source) }?;
        Ok(Box::new(component))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "engine {}", self.name)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(destroy) = self.functions.destroy {
            // SAFETY: the last owner is gone, so all components are closed.
            unsafe { destroy(self.functions.user_data) }
        }
    }
}

/// Call a function of engine `name` about `what`; its code and words become an error.
pub(super) fn call(name: &str, what: &str, function: impl FnOnce(*mut etg_engine_error) -> i32) -> Result<()> {
    let mut message = [0u8; MESSAGE_CAPACITY];
    let mut error = etg_engine_error {
        struct_size: size_of::<etg_engine_error>() as u32,
        message: message.as_mut_ptr().cast(),
        capacity: message.len(),
    };
    match function(&mut error) {
        abi::OK => Ok(()),
        code => Err(error_of(code, name, what, &message)),
    }
}

/// What an engine's status and words say.
fn error_of(code: i32, name: &str, what: &str, message: &[u8]) -> Error {
    let end = message.iter().position(|&byte| byte == 0).unwrap_or(message.len());
    let words = String::from_utf8_lossy(message.get(..end).unwrap_or_default());
    let words = if words.is_empty() { format!("failed without words (code {code})") } else { words.into_owned() };
    let reason = if words.contains(what) { words } else { format!("{what}: {words}") };
    match code {
        abi::ERROR_INVALID_ARGUMENT => Error::invalid(format!("engine {name}: {reason}")),
        abi::ERROR_NOT_FOUND => Error::NotFound(format!("engine {name}: {reason}")),
        abi::ERROR_IO => Error::Io { path: what.into(), source: std::io::Error::other(reason) },
        abi::ERROR_FORMAT => Error::format(what, format!("engine {name}"), reason),
        abi::ERROR_UNSUPPORTED => Error::Unsupported(format!("engine {name}: {reason}")),
        _ => Error::Engine { engine: name.into(), reason },
    }
}

/// Read a table of functions that may be of another minor version: shorter or longer than ours.
///
/// # Safety
/// `functions` is NULL or points to as many bytes as its `struct_size` says.
unsafe fn read_functions(functions: *const etg_engine_functions) -> Result<etg_engine_functions> {
    if functions.is_null() {
        return Err(Error::invalid("the engine's functions are NULL"));
    }
    // SAFETY: every version of the struct begins with these two fields.
    let (size, version) = unsafe { ((*functions).struct_size as usize, (*functions).abi_version) };
    let least = offset_of!(etg_engine_functions, allocate);
    if version / 1000 != abi::ABI_MAJOR {
        let ours = abi::ABI_VERSION;
        return Err(Error::Unsupported(format!(
            "the engine is made for version {}.{} of the engine ABI, this library has {}.{}: build it with this \
             library's etgenai_engine.h",
            version / 1000,
            version % 1000,
            ours / 1000,
            ours % 1000
        )));
    }
    if size < least {
        return Err(Error::invalid(format!(
            "struct_size of etg_engine_functions is {size}, it must be {least} or more: set it to sizeof"
        )));
    }
    let mut read = etg_engine_functions::empty();
    let known = size.min(size_of::<etg_engine_functions>());
    // SAFETY: `known` bytes are there on both sides; any bytes are a valid value of pointers and optional functions.
    unsafe { ptr::copy_nonoverlapping(functions.cast::<u8>(), (&raw mut read).cast::<u8>(), known) };
    for (missing, function) in
        [("load", read.load.is_none()), ("execute", read.execute.is_none()), ("close", read.close.is_none())]
            .map(|(name, missing)| (missing, name))
    {
        if missing {
            return Err(Error::invalid(format!("the engine has no function {function}")));
        }
    }
    if read.allocate.is_some() != read.release.is_some() {
        return Err(Error::invalid("the engine has only one of the functions allocate and release"));
    }
    Ok(read)
}

/// Text of an engine; `None` if it is not UTF-8.
///
/// # Safety
/// `start` is NULL or points to `length` bytes.
pub(super) unsafe fn text(start: *const c_char, length: usize) -> Option<String> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { slice(start.cast::<u8>(), length) };
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

/// An array of an engine; empty for NULL.
///
/// # Safety
/// `start` is NULL or points to `length` values that live for `'a`.
pub(super) unsafe fn slice<'a, T>(start: *const T, length: usize) -> &'a [T] {
    if start.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, length) }
}

fn path_text(path: &Path) -> Result<&[u8]> {
    let text = path.to_str().ok_or_else(|| Error::invalid(format!("{}: the path is not UTF-8", path.display())))?;
    Ok(text.as_bytes())
}

/// The untyped form of an engine's pointer, for `Send` wrappers.
pub(super) type Opaque = *mut c_void;
