//! One of our engines as functions of the plug-in ABI.

use super::abi::{
    self, etg_engine_call, etg_engine_component, etg_engine_constant, etg_engine_error, etg_engine_functions,
    etg_engine_graph, etg_engine_source, etg_engine_tensor_info, etg_engine_value,
};
use super::functions::{slice, text};
use crate::engine::{ComponentSource, ConstantValue, Engine, ExecuteOptions, LoadedComponent, SourceBytes, SourceData};
use crate::error::{Error, Result};
use crate::graph::{TensorInfo, TensorView, TensorViewMut};
use crate::panics::catch;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// An engine that functions can be made of.
#[derive(Clone)]
pub struct ExportedEngine(Arc<dyn Engine>);

impl ExportedEngine {
    /// Export `engine`.
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        Self(engine)
    }

    /// Functions that call the engine. It lives until their `destroy` is called.
    pub fn into_functions(self) -> etg_engine_functions {
        let engine = Box::new(self);
        let (name, name_length) = (engine.0.name().as_ptr(), engine.0.name().len());
        etg_engine_functions {
            struct_size: size_of::<etg_engine_functions>() as u32,
            abi_version: abi::ABI_VERSION,
            // The name belongs to the engine behind the reference count and does not move with the box.
            user_data: Box::into_raw(engine).cast(),
            name: name.cast(),
            name_length,
            load: Some(load),
            execute: Some(execute),
            close: Some(close),
            allocate: None,
            release: None,
            destroy: Some(destroy),
        }
    }
}

/// A component, and its description in the terms of C.
struct Exported {
    component: Box<dyn LoadedComponent>,
    graphs: Vec<etg_engine_graph>,
    constants: Vec<etg_engine_constant>,
    description: String,
    /// Scratch memory: shapes of a call.
    _infos: Vec<Vec<etg_engine_tensor_info>>,
    _dims: Vec<Vec<u64>>,
    _values: Vec<Vec<etg_engine_value>>,
}

impl Exported {
    fn new(component: Box<dyn LoadedComponent>) -> Self {
        let (mut infos, mut dims, mut values) = (Vec::new(), Vec::new(), Vec::new());
        // Vectors are moved into their owners after pointers to their elements are taken: the elements stay in place.
        let mut describe = |tensors: &[TensorInfo]| {
            let described = tensors.iter().map(|info| {
                let shape: Vec<u64> = info.shape.iter().map(|&dim| dim as u64).collect();
                let raw = etg_engine_tensor_info {
                    name: info.name.as_ptr().cast(),
                    name_length: info.name.len(),
                    dtype: abi::dtype_number(info.dtype),
                    rank: u32::try_from(info.shape.len()).unwrap_or(u32::MAX),
                    dims: shape.as_ptr(),
                };
                dims.push(shape);
                raw
            });
            let described: Vec<_> = described.collect();
            let start = described.as_ptr();
            infos.push(described);
            start
        };
        let graphs = component.graphs().iter().map(|graph| etg_engine_graph {
            name: graph.name.as_ptr().cast(),
            name_length: graph.name.len(),
            inputs: describe(&graph.inputs),
            input_count: graph.inputs.len(),
            outputs: describe(&graph.outputs),
            output_count: graph.outputs.len(),
        });
        let graphs = graphs.collect();
        let constants = component.constants().iter().map(|constant| {
            let described: Vec<_> = constant.values.iter().map(describe_value).collect();
            let raw = etg_engine_constant {
                name: constant.name.as_ptr().cast(),
                name_length: constant.name.len(),
                values: described.as_ptr(),
                value_count: described.len(),
            };
            values.push(described);
            raw
        });
        let constants = constants.collect();
        let description = component.description();
        Self { component, graphs, constants, description, _infos: infos, _dims: dims, _values: values }
    }

    fn describe(&self) -> etg_engine_component {
        etg_engine_component {
            struct_size: size_of::<etg_engine_component>() as u32,
            handle: ptr::null_mut(),
            graphs: self.graphs.as_ptr(),
            graph_count: self.graphs.len(),
            constants: self.constants.as_ptr(),
            constant_count: self.constants.len(),
            weight_bytes: self.component.weight_bytes(),
            description: self.description.as_ptr().cast(),
            description_length: self.description.len(),
        }
    }

    fn execute(&mut self, call: &etg_engine_call) -> Result<()> {
        let graph = call.graph as usize;
        let Some(signature) = self.component.graphs().get(graph).cloned() else {
            let count = self.graphs.len();
            return Err(Error::invalid(format!("graph number {graph} does not exist, the component has {count}")));
        };
        // SAFETY: arrays of the caller.
        let (inputs, outputs) =
            unsafe { (slice(call.inputs, call.input_count), slice(call.outputs, call.output_count)) };
        for (role, infos, given) in [("input", &signature.inputs, inputs), ("output", &signature.outputs, outputs)] {
            if infos.len() != given.len() {
                let (want, have, name) = (infos.len(), given.len(), &signature.name);
                return Err(Error::invalid(format!("graph {name} has {want} {role}s, {have} were given")));
            }
            for (info, tensor) in infos.iter().zip(given) {
                if tensor.data.is_null() || info.size_bytes() != Some(tensor.bytes) {
                    let (want, have) = (info.size_bytes().unwrap_or(0), tensor.bytes);
                    let (graph, name) = (&signature.name, &info.name);
                    return Err(Error::invalid(format!(
                        "graph {graph}: {role} {name} has {want} bytes, {have} were given"
                    )));
                }
            }
        }
        let inputs: Vec<TensorView<'_>> = signature
            .inputs
            .iter()
            .zip(inputs)
            .map(|(info, tensor)| TensorView {
                dtype: info.dtype,
                shape: &info.shape,
                // SAFETY: not NULL and of this size; nobody writes to it during the call.
                bytes: unsafe { slice(tensor.data.cast::<u8>(), tensor.bytes) },
            })
            .collect();
        let mut outputs: Vec<TensorViewMut<'_>> = signature
            .outputs
            .iter()
            .zip(outputs)
            .map(|(info, tensor)| TensorViewMut {
                dtype: info.dtype,
                shape: &info.shape,
                // SAFETY: not NULL and of this size; the caller leaves it to us during the call.
                bytes: unsafe { std::slice::from_raw_parts_mut(tensor.data.cast::<u8>(), tensor.bytes) },
            })
            .collect();
        let options = ExecuteOptions {
            valid_rows: Some(call.valid_rows).filter(|&rows| rows != usize::MAX),
            logits_rows: Some(call.first_logits_row..call.end_logits_row).filter(|rows| rows.end != usize::MAX),
        };
        self.component.execute(graph, &inputs, &mut outputs, &options)
    }
}

fn describe_value(value: &ConstantValue) -> etg_engine_value {
    let empty = etg_engine_value { kind: 0, integer: 0, real: 0.0, text: ptr::null(), text_length: 0 };
    match value {
        ConstantValue::Integer(integer) => etg_engine_value { kind: abi::VALUE_INTEGER, integer: *integer, ..empty },
        ConstantValue::Real(real) => etg_engine_value { kind: abi::VALUE_REAL, real: *real, ..empty },
        ConstantValue::Boolean(yes) => etg_engine_value { kind: abi::VALUE_BOOLEAN, integer: i64::from(*yes), ..empty },
        ConstantValue::Text(words) => {
            etg_engine_value { kind: abi::VALUE_TEXT, text: words.as_ptr().cast(), text_length: words.len(), ..empty }
        }
    }
}

unsafe extern "C" fn load(
    user_data: *mut c_void,
    source: *const etg_engine_source,
    component_out: *mut etg_engine_component,
    error: *mut etg_engine_error,
) -> i32 {
    guard(error, || {
        if source.is_null() || component_out.is_null() {
            return Err(Error::invalid("the source or the place for the component is NULL"));
        }
        // SAFETY: `into_functions` made `user_data`, and `destroy` has not been called.
        let engine = unsafe { &*user_data.cast::<ExportedEngine>() };
        // SAFETY: a source of the caller.
        let source = unsafe { read_source(&*source) }?;
        let exported = Box::new(Exported::new(engine.0.load(&source)?));
        let mut described = exported.describe();
        // SAFETY: the caller's struct begins with its size.
        let room = unsafe { (*component_out).struct_size } as usize;
        let known = room.min(size_of::<etg_engine_component>());
        described.struct_size = u32::try_from(room).unwrap_or(u32::MAX);
        described.handle = Box::into_raw(exported).cast();
        // SAFETY: both have `known` bytes.
        unsafe { ptr::copy_nonoverlapping((&raw const described).cast::<u8>(), component_out.cast::<u8>(), known) };
        Ok(())
    })
}

unsafe extern "C" fn execute(
    _: *mut c_void,
    component: *mut c_void,
    call: *const etg_engine_call,
    error: *mut etg_engine_error,
) -> i32 {
    guard(error, || {
        if component.is_null() || call.is_null() {
            return Err(Error::invalid("the component or the call is NULL"));
        }
        // SAFETY: `load` made the component; calls about it do not overlap.
        let exported = unsafe { &mut *component.cast::<Exported>() };
        // SAFETY: a call of the caller.
        exported.execute(unsafe { &*call })
    })
}

unsafe extern "C" fn close(_: *mut c_void, component: *mut c_void) {
    if !component.is_null() {
        // SAFETY: `load` made it, and this is the last call about it.
        let exported = unsafe { Box::from_raw(component.cast::<Exported>()) };
        let _ = catch(|| drop(exported));
    }
}

unsafe extern "C" fn destroy(user_data: *mut c_void) {
    if !user_data.is_null() {
        // SAFETY: `into_functions` made it, and this is the last call.
        let engine = unsafe { Box::from_raw(user_data.cast::<ExportedEngine>()) };
        let _ = catch(|| drop(engine));
    }
}

/// # Safety
/// The pointers of `source` are valid.
unsafe fn read_source(source: &etg_engine_source) -> Result<ComponentSource> {
    let not_text = || Error::invalid("the component's name or path is not UTF-8");
    // SAFETY: text of the caller.
    let (component, path) = unsafe {
        (
            text(source.component, source.component_length).ok_or_else(not_text)?,
            text(source.path, source.path_length).ok_or_else(not_text)?,
        )
    };
    let data = match (source.bytes.is_null(), path.is_empty()) {
        // SAFETY: bytes of the caller.
        (false, _) => SourceData::Bytes(SourceBytes::copy_of(unsafe { slice(source.bytes, source.bytes_length) })),
        (true, false) => SourceData::File(path.into()),
        (true, true) => SourceData::Held,
    };
    Ok(ComponentSource { component, data, shared_memory: source.shared_memory != 0 })
}

/// Run `body`; its failure or panic becomes a code and words.
fn guard(error: *mut etg_engine_error, body: impl FnOnce() -> Result<()>) -> i32 {
    let outcome = catch(body).unwrap_or_else(|panicked| Err(panicked.into()));
    let Err(failure) = outcome else { return abi::OK };
    // SAFETY: an error struct of the caller, or NULL.
    unsafe { write_message(error, &failure.to_string()) };
    match failure {
        Error::InvalidArgument(_) => abi::ERROR_INVALID_ARGUMENT,
        Error::NotFound(_) => abi::ERROR_NOT_FOUND,
        Error::Io { .. } => abi::ERROR_IO,
        Error::Format { .. } => abi::ERROR_FORMAT,
        Error::Unsupported(_) => abi::ERROR_UNSUPPORTED,
        _ => abi::ERROR_FAILED,
    }
}

/// # Safety
/// `error` is NULL or valid, with as much room as it says.
unsafe fn write_message(error: *mut etg_engine_error, words: &str) {
    // SAFETY: the caller's promise.
    let Some(error) = (unsafe { error.as_mut() }) else { return };
    if error.message.is_null() || error.capacity == 0 {
        return;
    }
    let mut end = words.len().min(error.capacity - 1);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: `end` and the NUL fit the room.
    unsafe {
        ptr::copy_nonoverlapping(words.as_ptr().cast(), error.message, end);
        *error.message.add(end) = 0;
    }
}
