//! `include/etgenai_engine.h` in Rust, field for field; `tests/capi_layout.rs` compares the layouts.

#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(missing_docs, reason = "the header documents them")]

use crate::graph::DType;
use std::ffi::{c_char, c_void};

/// `ETG_ENGINE_ABI_MAJOR`
pub const ABI_MAJOR: u32 = 1;
/// `ETG_ENGINE_ABI_MINOR`
pub const ABI_MINOR: u32 = 0;
/// `ETG_ENGINE_ABI_VERSION`
pub const ABI_VERSION: u32 = ABI_MAJOR * 1000 + ABI_MINOR;
/// `ETG_ENGINE_OPEN_SYMBOL`
pub const OPEN_SYMBOL: &str = "etg_engine_open";

pub const OK: i32 = 0;
pub const ERROR_INVALID_ARGUMENT: i32 = -1;
pub const ERROR_NOT_FOUND: i32 = -2;
pub const ERROR_IO: i32 = -3;
pub const ERROR_FORMAT: i32 = -4;
pub const ERROR_UNSUPPORTED: i32 = -5;
pub const ERROR_FAILED: i32 = -11;

pub const VALUE_INTEGER: i32 = 1;
pub const VALUE_REAL: i32 = 2;
pub const VALUE_BOOLEAN: i32 = 3;
pub const VALUE_TEXT: i32 = 4;

/// Most dimensions of a tensor.
pub const MAX_RANK: u32 = 16;

#[repr(C)]
pub struct etg_engine_error {
    pub struct_size: u32,
    pub message: *mut c_char,
    pub capacity: usize,
}

#[repr(C)]
pub struct etg_engine_source {
    pub struct_size: u32,
    pub component: *const c_char,
    pub component_length: usize,
    pub path: *const c_char,
    pub path_length: usize,
    pub bytes: *const u8,
    pub bytes_length: usize,
    pub shared_memory: u32,
}

#[repr(C)]
pub struct etg_engine_tensor_info {
    pub name: *const c_char,
    pub name_length: usize,
    pub dtype: i32,
    pub rank: u32,
    pub dims: *const u64,
}

#[repr(C)]
pub struct etg_engine_graph {
    pub name: *const c_char,
    pub name_length: usize,
    pub inputs: *const etg_engine_tensor_info,
    pub input_count: usize,
    pub outputs: *const etg_engine_tensor_info,
    pub output_count: usize,
}

#[repr(C)]
pub struct etg_engine_value {
    pub kind: i32,
    pub integer: i64,
    pub real: f64,
    pub text: *const c_char,
    pub text_length: usize,
}

#[repr(C)]
pub struct etg_engine_constant {
    pub name: *const c_char,
    pub name_length: usize,
    pub values: *const etg_engine_value,
    pub value_count: usize,
}

#[repr(C)]
pub struct etg_engine_component {
    pub struct_size: u32,
    pub handle: *mut c_void,
    pub graphs: *const etg_engine_graph,
    pub graph_count: usize,
    pub constants: *const etg_engine_constant,
    pub constant_count: usize,
    pub weight_bytes: u64,
    pub description: *const c_char,
    pub description_length: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct etg_engine_tensor {
    pub data: *mut c_void,
    pub bytes: usize,
}

#[repr(C)]
pub struct etg_engine_call {
    pub struct_size: u32,
    pub graph: u32,
    pub inputs: *const etg_engine_tensor,
    pub input_count: usize,
    pub outputs: *const etg_engine_tensor,
    pub output_count: usize,
    pub valid_rows: usize,
    pub first_logits_row: usize,
    pub end_logits_row: usize,
}

pub type etg_engine_load_fn = unsafe extern "C" fn(
    user_data: *mut c_void,
    source: *const etg_engine_source,
    component_out: *mut etg_engine_component,
    error: *mut etg_engine_error,
) -> i32;

pub type etg_engine_execute_fn = unsafe extern "C" fn(
    user_data: *mut c_void,
    component: *mut c_void,
    call: *const etg_engine_call,
    error: *mut etg_engine_error,
) -> i32;

pub type etg_engine_close_fn = unsafe extern "C" fn(user_data: *mut c_void, component: *mut c_void);

pub type etg_engine_allocate_fn = unsafe extern "C" fn(
    user_data: *mut c_void,
    component: *mut c_void,
    bytes: usize,
    alignment: usize,
    memory_out: *mut *mut c_void,
    error: *mut etg_engine_error,
) -> i32;

pub type etg_engine_release_fn =
    unsafe extern "C" fn(user_data: *mut c_void, component: *mut c_void, memory: *mut c_void);

pub type etg_engine_destroy_fn = unsafe extern "C" fn(user_data: *mut c_void);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct etg_engine_functions {
    pub struct_size: u32,
    pub abi_version: u32,
    pub user_data: *mut c_void,
    pub name: *const c_char,
    pub name_length: usize,
    pub load: Option<etg_engine_load_fn>,
    pub execute: Option<etg_engine_execute_fn>,
    pub close: Option<etg_engine_close_fn>,
    pub allocate: Option<etg_engine_allocate_fn>,
    pub release: Option<etg_engine_release_fn>,
    pub destroy: Option<etg_engine_destroy_fn>,
}

#[repr(C)]
pub struct etg_engine_host {
    pub struct_size: u32,
    pub abi_version: u32,
    pub user_data: *mut c_void,
    pub log:
        Option<unsafe extern "C" fn(user_data: *mut c_void, level: i32, message: *const c_char, message_length: usize)>,
}

pub type etg_engine_open_fn = unsafe extern "C" fn(
    host: *const etg_engine_host,
    options: *const c_char,
    options_length: usize,
    functions_out: *mut etg_engine_functions,
    error: *mut etg_engine_error,
) -> i32;

impl etg_engine_functions {
    /// All bytes zero but for the size: ready to be filled in.
    pub fn empty() -> Self {
        Self {
            struct_size: size_of::<Self>() as u32,
            abi_version: 0,
            user_data: std::ptr::null_mut(),
            name: std::ptr::null(),
            name_length: 0,
            load: None,
            execute: None,
            close: None,
            allocate: None,
            release: None,
            destroy: None,
        }
    }
}

const DTYPES: [(i32, DType); 9] = [
    (1, DType::F32),
    (2, DType::F16),
    (3, DType::BF16),
    (4, DType::U8),
    (5, DType::I8),
    (6, DType::U16),
    (7, DType::I16),
    (8, DType::I32),
    (9, DType::I64),
];

/// `ETG_DTYPE_…` to an element type.
pub(super) fn dtype_of(number: i32) -> Option<DType> {
    DTYPES.iter().find(|(known, _)| *known == number).map(|(_, dtype)| *dtype)
}

/// An element type as `ETG_DTYPE_…`.
pub(super) fn dtype_number(dtype: DType) -> i32 {
    DTYPES.iter().find(|(_, known)| *known == dtype).map_or(0, |(number, _)| *number)
}
