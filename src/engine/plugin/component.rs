//! A component behind the plug-in ABI.

use super::abi::{self, etg_engine_call, etg_engine_component, etg_engine_tensor, etg_engine_tensor_info};
use super::functions::{Opaque, Shared, call, slice, text};
use crate::engine::{
    ComponentSource, Constant, ConstantValue, Constants, ExecuteOptions, GraphSignature, LoadedComponent, SourceBytes,
    check_call,
};
use crate::error::{Error, Result};
use crate::graph::{DeviceMemory, Tensor, TensorInfo, TensorView, TensorViewMut};
use std::ptr;
use std::sync::Arc;

/// Alignment of memory asked of an engine, as of our own tensors.
const ALIGNMENT: usize = 64;
/// Alignment the ABI promises to engines.
const LEAST_ALIGNMENT: usize = 16;

/// A loaded component of a plug-in engine.
#[derive(Debug)]
pub(super) struct PluginComponent {
    handle: Arc<Handle>,
    signatures: Vec<GraphSignature>,
    constants: Constants,
    weight_bytes: u64,
    description: String,
    /// Scratch memory of `execute`.
    tensors: Tensors,
}

/// The engine's own pointer; closed when the last owner (the component, or memory it gave) is gone.
#[derive(Debug)]
struct Handle {
    engine: Arc<Shared>,
    handle: Opaque,
    shared_memory: bool,
    /// The program, if the engine may use it in place.
    _bytes: Option<SourceBytes>,
}

// SAFETY: the ABI's thread rule: a component may be used by one thread after another. `PluginComponent::execute` takes
// `&mut self`; memory is given and released by functions that the ABI lets any thread call.
unsafe impl Send for Handle {}
// SAFETY: as above; nothing is read or written through the pointer here.
unsafe impl Sync for Handle {}

#[derive(Debug, Default)]
struct Tensors {
    inputs: Vec<etg_engine_tensor>,
    outputs: Vec<etg_engine_tensor>,
}

// SAFETY: the pointers are those of the call that is going on, and are not looked at between calls.
unsafe impl Send for Tensors {}

impl std::fmt::Debug for etg_engine_tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}+{}", self.data, self.bytes)
    }
}

impl PluginComponent {
    /// Copy what the engine says about a component it loaded; the component is closed if that is not acceptable.
    ///
    /// # Safety
    /// `described` is what a successful `load` filled in.
    pub unsafe fn new(
        engine: Arc<Shared>,
        described: &etg_engine_component,
        bytes: Option<SourceBytes>,
        source: &ComponentSource,
    ) -> Result<Self> {
        let name = engine.name.clone();
        let shared_memory = source.shared_memory && engine.functions.allocate.is_some();
        let handle = Arc::new(Handle { engine, handle: described.handle, shared_memory, _bytes: bytes });
        let describe = || -> std::result::Result<Self, String> {
            // SAFETY: arrays of the engine, valid until the component is closed.
            let (graphs, constants) = unsafe {
                (slice(described.graphs, described.graph_count), slice(described.constants, described.constant_count))
            };
            let signatures = graphs
                .iter()
                .map(|graph| {
                    // SAFETY: as above.
                    let (inputs, outputs) =
                        unsafe { (slice(graph.inputs, graph.input_count), slice(graph.outputs, graph.output_count)) };
                    // SAFETY: text of the engine.
                    let name = unsafe { text(graph.name, graph.name_length) }.ok_or("a graph's name is not UTF-8")?;
                    let read = |infos: &[etg_engine_tensor_info]| {
                        let infos = infos.iter().map(|info| {
                            // SAFETY: text and array of the engine.
                            unsafe { read_info(info) }.map_err(|reason| format!("graph {name}: {reason}"))
                        });
                        infos.collect::<std::result::Result<Vec<_>, String>>()
                    };
                    Ok(GraphSignature { inputs: read(inputs)?, outputs: read(outputs)?, name })
                })
                .collect::<std::result::Result<Vec<_>, String>>()?;
            let constants = constants
                .iter()
                .map(|constant| {
                    // SAFETY: text and array of the engine.
                    unsafe {
                        let name = text(constant.name, constant.name_length).ok_or("a constant's name is not UTF-8")?;
                        let values = slice(constant.values, constant.value_count).iter();
                        let values = values.map(|value| read_value(value).map_err(|e| format!("constant {name}: {e}")));
                        Ok(Constant { values: values.collect::<std::result::Result<_, String>>()?, name })
                    }
                })
                .collect::<std::result::Result<Vec<_>, String>>()?;
            // SAFETY: text of the engine.
            let description = unsafe { text(described.description, described.description_length) };
            Ok(Self {
                handle: handle.clone(),
                signatures,
                constants: Constants::new(constants),
                weight_bytes: described.weight_bytes,
                description: description.filter(|text| !text.is_empty()).unwrap_or_else(|| name.clone()),
                tensors: Tensors::default(),
            })
        };
        describe().map_err(|reason| Error::Engine {
            engine: name.clone(),
            reason: format!("{}: its description of the component is not valid: {reason}", source.describe()),
        })
    }
}

/// # Safety
/// The pointers of `info` are valid.
unsafe fn read_info(info: &etg_engine_tensor_info) -> std::result::Result<TensorInfo, String> {
    // SAFETY: text of the engine.
    let name = unsafe { text(info.name, info.name_length) }.ok_or("a tensor's name is not UTF-8")?;
    let dtype = abi::dtype_of(info.dtype).ok_or_else(|| format!("{name} has the unknown type {}", info.dtype))?;
    if info.rank > abi::MAX_RANK || (info.rank > 0 && info.dims.is_null()) {
        return Err(format!("{name} has {} dimensions, or no array of them", info.rank));
    }
    // SAFETY: array of the engine, not NULL.
    let dims = unsafe { slice(info.dims, info.rank as usize) };
    let shape = dims.iter().map(|&dim| usize::try_from(dim).map_err(|_| format!("{name} has a dimension of {dim}")));
    let shape = shape.collect::<std::result::Result<_, _>>()?;
    let info = TensorInfo { name, dtype, shape };
    // No tensor is larger than memory can be.
    match info.size_bytes().filter(|&bytes| isize::try_from(bytes).is_ok()) {
        Some(_) => Ok(info),
        None => Err(format!("{} {:?} is larger than any memory", info.name, info.shape)),
    }
}

/// # Safety
/// The text of `value` is valid, if it is one.
unsafe fn read_value(value: &abi::etg_engine_value) -> std::result::Result<ConstantValue, String> {
    match value.kind {
        abi::VALUE_INTEGER => Ok(ConstantValue::Integer(value.integer)),
        abi::VALUE_REAL => Ok(ConstantValue::Real(value.real)),
        abi::VALUE_BOOLEAN => Ok(ConstantValue::Boolean(value.integer != 0)),
        abi::VALUE_TEXT => {
            // SAFETY: text of the engine.
            let text = unsafe { text(value.text, value.text_length) };
            text.map(ConstantValue::Text).ok_or_else(|| "a text that is not UTF-8".into())
        }
        kind => Err(format!("a value of the unknown kind {kind}")),
    }
}

impl LoadedComponent for PluginComponent {
    fn graphs(&self) -> &[GraphSignature] {
        &self.signatures
    }

    fn execute(
        &mut self,
        graph: usize,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        options: &ExecuteOptions,
    ) -> Result<()> {
        let Some(signature) = self.signatures.get(graph) else {
            let count = self.signatures.len();
            return Err(Error::invalid(format!("graph number {graph} does not exist, the component has {count}")));
        };
        check_call(signature, inputs, outputs)?;
        let Tensors { inputs: given, outputs: wanted } = &mut self.tensors;
        given.clear();
        // Of inputs the engine only reads; the ABI says so.
        given.extend(inputs.iter().map(|view| tensor(view.bytes.as_ptr().cast_mut(), view.bytes.len())));
        wanted.clear();
        wanted.extend(outputs.iter_mut().map(|view| tensor(view.bytes.as_mut_ptr(), view.bytes.len())));
        let misplaced = |tensor: &&etg_engine_tensor| !tensor.data.addr().is_multiple_of(LEAST_ALIGNMENT);
        if given.iter().chain(wanted.iter()).find(misplaced).is_some() {
            let name = &signature.name;
            return Err(Error::invalid(format!("graph {name}: a tensor is not aligned to {LEAST_ALIGNMENT} bytes")));
        }
        let logits = options.logits_rows.clone().unwrap_or(0..usize::MAX);
        let raw = etg_engine_call {
            struct_size: size_of::<etg_engine_call>() as u32,
            graph: u32::try_from(graph).unwrap_or(u32::MAX),
            inputs: given.as_ptr(),
            input_count: given.len(),
            outputs: wanted.as_ptr(),
            output_count: wanted.len(),
            valid_rows: options.valid_rows.unwrap_or(usize::MAX),
            first_logits_row: logits.start,
            end_logits_row: logits.end,
        };
        let Shared { functions, name, .. } = &*self.handle.engine;
        let execute = functions.execute.ok_or_else(|| Error::internal("an engine without execute"))?;
        call(name, &signature.name, |error| {
            // SAFETY: the tensors were checked against the signature; they live during the call, the outputs are ours alone.
            unsafe { execute(functions.user_data, self.handle.handle, &raw, error) }
        })
    }

    fn constants(&self) -> &Constants {
        &self.constants
    }

    fn allocate(&self, info: &TensorInfo) -> Result<Tensor> {
        match (self.handle.shared_memory, info.size_bytes()) {
            (true, Some(bytes)) if bytes > 0 => match SharedMemory::new(self.handle.clone(), bytes)? {
                Some(memory) => Tensor::in_memory(info.clone(), Box::new(memory)),
                None => Tensor::zeros(info.clone()),
            },
            _ => Tensor::zeros(info.clone()),
        }
    }

    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    fn description(&self) -> String {
        self.description.clone()
    }
}

fn tensor(data: *mut u8, bytes: usize) -> etg_engine_tensor {
    etg_engine_tensor { data: data.cast(), bytes }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(close) = self.engine.functions.close {
            // SAFETY: the component was loaded, nobody uses it any more, and its memory has been released.
            unsafe { close(self.engine.functions.user_data, self.handle) }
        }
    }
}

/// Memory that an engine gave.
#[derive(Debug)]
struct SharedMemory {
    owner: Arc<Handle>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory, owned by this value alone.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; it is written through `&mut` only.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// `None`: the engine has none of that kind.
    fn new(owner: Arc<Handle>, bytes: usize) -> Result<Option<Self>> {
        let Some(allocate) = owner.engine.functions.allocate else { return Ok(None) };
        let mut start = ptr::null_mut();
        call(&owner.engine.name, "allocating shared memory", |error| {
            // SAFETY: a live component and an out-parameter.
            unsafe { allocate(owner.engine.functions.user_data, owner.handle, bytes, ALIGNMENT, &mut start, error) }
        })?;
        if start.is_null() {
            return Ok(None);
        }
        let memory = Self { owner, start: start.cast(), bytes };
        if !start.addr().is_multiple_of(ALIGNMENT) {
            let engine = memory.owner.engine.name.clone();
            return Err(Error::Engine { engine, reason: format!("gave memory not aligned to {ALIGNMENT} bytes") });
        }
        Ok(Some(memory))
    }
}

impl DeviceMemory for SharedMemory {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the engine gave that many bytes, zeroed, and touches them only during `execute`.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this value is the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if let Some(release) = self.owner.engine.functions.release {
            // SAFETY: the memory came from `allocate` of the same component, which is still open.
            unsafe { release(self.owner.engine.functions.user_data, self.owner.handle, self.start.cast()) }
        }
    }
}
