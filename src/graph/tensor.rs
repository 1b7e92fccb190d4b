//! Tensors: element types, described shapes, owned aligned buffers and borrowed views.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// Unsigned 8 bit.
    U8,
    /// Signed 8 bit.
    I8,
    /// Unsigned 16 bit.
    U16,
    /// Signed 16 bit.
    I16,
    /// Signed 32 bit.
    I32,
    /// Signed 64 bit.
    I64,
}

impl DType {
    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            DType::U8 | DType::I8 => 1,
            DType::F16 | DType::BF16 | DType::U16 | DType::I16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::I64 => 8,
        }
    }

    /// Lower-case name as in the manifest, e.g. `f32`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::U16 => "u16",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
        }
    }
}

/// Name, element type and fixed shape of a graph input or output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorInfo {
    /// Name in the graph contract, e.g. `k_cache_0`.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// Number of elements; `None` if it overflows.
    pub fn element_count(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
    }

    /// Size in bytes; `None` if it overflows.
    pub fn size_bytes(&self) -> Option<usize> {
        self.element_count()?.checked_mul(self.dtype.size_bytes())
    }
}

/// An owned tensor: zero-initialised, its first byte aligned to 64 (or as an engine's own memory is).
#[derive(Debug)]
pub struct Tensor {
    info: TensorInfo,
    storage: Storage,
    bytes: usize,
}

/// Where a tensor's elements are.
#[derive(Debug)]
enum Storage {
    /// 64-byte blocks, so that the alignment holds without unsafe code.
    Blocks(Vec<Block>),
    /// Memory that an engine gave.
    Device(Box<dyn DeviceMemory>),
}

/// Memory of an engine that can be used like any other, e.g. memory that a processor shares. Freed when dropped.
pub trait DeviceMemory: std::fmt::Debug + Send + Sync {
    /// The bytes; always the same ones.
    fn bytes(&self) -> &[u8];

    /// The bytes, writable.
    fn bytes_mut(&mut self) -> &mut [u8];
}

#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Block([u8; 64]);

impl Tensor {
    /// A tensor of zeros.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the size overflows or the memory cannot be had.
    pub fn zeros(info: TensorInfo) -> Result<Self> {
        let too_big = || Error::invalid(format!("tensor {} {:?} is too large to allocate", info.name, info.shape));
        let bytes = info.size_bytes().ok_or_else(too_big)?;
        let count = bytes.div_ceil(64);
        // The system's own zero pages: a long context costs memory only as far as it is used.
        let blocks = bytemuck::allocation::try_zeroed_vec(count).map_err(|()| too_big())?;
        Ok(Self { info, storage: Storage::Blocks(blocks), bytes })
    }

    /// A tensor in memory that an engine gave; the memory must be zeroed and may be longer than the tensor.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is shorter.
    pub fn in_memory(info: TensorInfo, memory: Box<dyn DeviceMemory>) -> Result<Self> {
        match info.size_bytes() {
            Some(bytes) if bytes <= memory.bytes().len() => Ok(Self { info, storage: Storage::Device(memory), bytes }),
            _ => {
                let have = memory.bytes().len();
                Err(Error::invalid(format!("tensor {} {:?} does not fit {have} bytes", info.name, info.shape)))
            }
        }
    }

    /// An f32 tensor with the given values.
    pub fn from_f32(name: &str, shape: &[usize], values: &[f32]) -> Result<Self> {
        Self::from_pod(name, DType::F32, shape, values)
    }

    /// An i32 tensor with the given values.
    pub fn from_i32(name: &str, shape: &[usize], values: &[i32]) -> Result<Self> {
        Self::from_pod(name, DType::I32, shape, values)
    }

    fn from_pod<T: bytemuck::Pod>(name: &str, dtype: DType, shape: &[usize], values: &[T]) -> Result<Self> {
        let info = TensorInfo { name: name.into(), dtype, shape: shape.to_vec() };
        if info.element_count() != Some(values.len()) {
            return Err(Error::invalid(format!("tensor {name} {shape:?} cannot hold {} values", values.len())));
        }
        let mut tensor = Self::zeros(info)?;
        tensor.bytes_mut().copy_from_slice(bytemuck::cast_slice(values));
        Ok(tensor)
    }

    /// Name, type and shape.
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// The raw bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Blocks(blocks) => &bytemuck::cast_slice(blocks)[..self.bytes],
            Storage::Device(memory) => &memory.bytes()[..self.bytes],
        }
    }

    /// The raw bytes, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.storage.bytes_mut(self.bytes)
    }

    /// Borrow as a view.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { dtype: self.info.dtype, shape: &self.info.shape, bytes: self.bytes() }
    }

    /// Borrow as a writable view.
    pub fn view_mut(&mut self) -> TensorViewMut<'_> {
        let bytes = self.storage.bytes_mut(self.bytes);
        TensorViewMut { dtype: self.info.dtype, shape: &self.info.shape, bytes }
    }

    /// The elements as `T`; see [`TensorView::as_slice`].
    pub fn as_slice<T: bytemuck::Pod>(&self) -> Result<&[T]> {
        self.view().as_slice()
    }
}

impl Storage {
    fn bytes_mut(&mut self, bytes: usize) -> &mut [u8] {
        match self {
            Storage::Blocks(blocks) => &mut bytemuck::cast_slice_mut(blocks)[..bytes],
            Storage::Device(memory) => &mut memory.bytes_mut()[..bytes],
        }
    }
}

/// A copy is in ordinary memory, wherever the original is.
impl Clone for Tensor {
    fn clone(&self) -> Self {
        let mut blocks = vec![<Block as bytemuck::Zeroable>::zeroed(); self.bytes.div_ceil(64)];
        bytemuck::cast_slice_mut(&mut blocks)[..self.bytes].copy_from_slice(self.bytes());
        Self { info: self.info.clone(), storage: Storage::Blocks(blocks), bytes: self.bytes }
    }
}

/// A borrowed, dense, row-major tensor. `bytes` is aligned to its element type.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// The elements.
    pub bytes: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// The elements as `T`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the element size or alignment does not fit.
    pub fn as_slice<T: bytemuck::Pod>(&self) -> Result<&'a [T]> {
        check_cast::<T>(self.dtype)?;
        bytemuck::try_cast_slice(self.bytes).map_err(|e| Error::invalid(format!("{} tensor: {e}", self.dtype.name())))
    }
}

/// A borrowed, dense, row-major tensor that a graph writes to.
#[derive(Debug)]
pub struct TensorViewMut<'a> {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// The elements.
    pub bytes: &'a mut [u8],
}

impl TensorViewMut<'_> {
    /// The elements as `T`; see [`TensorView::as_slice`].
    pub fn as_mut_slice<T: bytemuck::Pod>(&mut self) -> Result<&mut [T]> {
        check_cast::<T>(self.dtype)?;
        bytemuck::try_cast_slice_mut(self.bytes)
            .map_err(|e| Error::invalid(format!("{} tensor: {e}", self.dtype.name())))
    }
}

fn check_cast<T>(dtype: DType) -> Result<()> {
    if size_of::<T>() == dtype.size_bytes() {
        return Ok(());
    }
    Err(Error::invalid(format!("a {} tensor cannot be read as {}", dtype.name(), std::any::type_name::<T>())))
}
