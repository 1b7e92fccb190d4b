//! The KV cache: one buffer a layer for K and one for V, shared by all graphs.
//!
//! Graphs with different block sizes see a different number of cache slots, and their cache inputs are dense, so the
//! distance between rows (the *stride*) depends on which graph runs next. The store holds the buffers at one stride at
//! a time and moves the filled columns when the stride changes; what lies behind them stays masked and is never read.
//! Elements are moved as bytes, so 1, 2 and 4 byte types are handled alike.

use super::contract::DecoderContract;
use crate::error::{Error, Result};
use crate::graph::{Tensor, TensorInfo, TensorView};

/// The KV cache of one conversation.
#[derive(Debug)]
pub struct KvStore {
    layers: Vec<LayerCache>,
    /// Slots a row has room for at the present stride.
    stride: usize,
    /// The widest stride, for which the buffers are allocated.
    max_stride: usize,
    /// Slots filled, from the front.
    filled: usize,
}

/// `rows` rows of `slots` elements, each element `width` bytes wide.
///
/// K `[H, D, C]` is H·D rows of single elements; V `[H, C, D]` is H rows of elements that are D values wide.
#[derive(Debug)]
struct SlotRows {
    bytes: Tensor,
    rows: usize,
    width: usize,
}

#[derive(Debug)]
struct LayerCache {
    keys: SlotRows,
    values: SlotRows,
}

impl KvStore {
    /// Allocate an empty cache.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the memory cannot be had.
    pub fn new(contract: &DecoderContract) -> Result<Self> {
        let max_stride = contract.cache_slots();
        let element = contract.kv_dtype.size_bytes();
        let layers = contract.layers.iter().enumerate().map(|(index, layer)| {
            let allocate = |kind: &str, shape: [usize; 3], rows: usize, width: usize| -> Result<SlotRows> {
                let name = format!("{kind}_cache_{index}");
                let info = TensorInfo { name, dtype: contract.kv_dtype, shape: shape.to_vec() };
                Ok(SlotRows { bytes: Tensor::zeros(info)?, rows, width })
            };
            let (heads, dim) = (layer.heads, layer.head_dim);
            Ok(LayerCache {
                keys: allocate("k", [heads, dim, max_stride], heads * dim, element)?,
                values: allocate("v", [heads, max_stride, dim], heads, dim * element)?,
            })
        });
        Ok(Self { layers: layers.collect::<Result<_>>()?, stride: max_stride, max_stride, filled: 0 })
    }

    /// Number of tokens in the cache.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether it holds no tokens.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Number of tokens it can hold.
    pub fn capacity(&self) -> usize {
        self.max_stride
    }

    /// Lay the rows out for graphs that see `stride` slots. Only the filled columns move.
    ///
    /// # Errors
    /// [`Error::Internal`] if the filled slots do not fit.
    pub fn set_stride(&mut self, stride: usize) -> Result<()> {
        if stride < self.filled || stride > self.max_stride {
            let (filled, max) = (self.filled, self.max_stride);
            return Err(Error::internal(format!("KV stride {stride} with {filled} slots filled of at most {max}")));
        }
        for layer in &mut self.layers {
            layer.keys.restride(self.stride, stride, self.filled);
            layer.values.restride(self.stride, stride, self.filled);
        }
        self.stride = stride;
        Ok(())
    }

    /// The cache inputs of a graph that sees the present stride's slots, shaped as `infos` (K of all layers, then V).
    ///
    /// # Errors
    /// [`Error::Internal`] if a shape is larger than the buffer.
    pub fn views<'a>(&'a self, infos: &'a [TensorInfo], into: &mut Vec<TensorView<'a>>) -> Result<()> {
        let keys = self.layers.iter().map(|layer| &layer.keys);
        let rows = keys.chain(self.layers.iter().map(|layer| &layer.values));
        for (info, rows) in infos.iter().zip(rows) {
            let bytes = rows.bytes.bytes().get(..rows.rows * self.stride * rows.width);
            let bytes = bytes.filter(|bytes| info.size_bytes() == Some(bytes.len()));
            let bytes = bytes.ok_or_else(|| Error::internal(format!("KV cache does not fit input {}", info.name)))?;
            into.push(TensorView { dtype: info.dtype, shape: &info.shape, bytes });
        }
        Ok(())
    }

    /// Append the first `count` of `ar` new slots of every layer: `outputs` are the K of all layers `[1, H, D, AR]`,
    /// then the V of all layers `[1, H, AR, D]`.
    ///
    /// # Errors
    /// [`Error::Internal`] if the slots do not fit the present stride or the outputs do not fit the layers; nothing is
    /// changed.
    pub fn commit(&mut self, outputs: &[Tensor], ar: usize, count: usize) -> Result<()> {
        if self.filled + count > self.stride || count > ar || outputs.len() != 2 * self.layers.len() {
            let (filled, stride) = (self.filled, self.stride);
            return Err(Error::internal(format!("commit of {count} of {ar} KV slots at {filled} of {stride}")));
        }
        let (keys, values) = outputs.split_at(self.layers.len());
        for ((layer, keys), values) in self.layers.iter_mut().zip(keys).zip(values) {
            layer.keys.append(keys.bytes(), ar, count, self.filled, self.stride);
            layer.values.append(values.bytes(), ar, count, self.filled, self.stride);
        }
        self.filled += count;
        Ok(())
    }

    /// Forget all but the first `len` tokens; what they leave behind is masked until overwritten. No effect if fewer
    /// are held.
    pub fn truncate(&mut self, len: usize) {
        self.filled = self.filled.min(len);
    }

    /// Forget everything and overwrite it with zeros, so that nothing of an earlier failure (NaN, say) can leak
    /// through a mask that multiplies by zero.
    pub fn clear(&mut self) {
        for layer in &mut self.layers {
            layer.keys.bytes.bytes_mut().fill(0);
            layer.values.bytes.bytes_mut().fill(0);
        }
        self.filled = 0;
    }
}

impl SlotRows {
    /// Move the filled part of every row to where it belongs at the new stride. Rows move towards the front in
    /// ascending order and towards the back in descending order, so none is overwritten before it was moved.
    fn restride(&mut self, from: usize, to: usize, filled: usize) {
        if from == to || filled == 0 {
            return;
        }
        let (from, to, length) = (from * self.width, to * self.width, filled * self.width);
        let bytes = self.bytes.bytes_mut();
        let mut shift = |row: usize| bytes.copy_within(row * from..row * from + length, row * to);
        if to < from {
            (0..self.rows).for_each(&mut shift);
        } else {
            (0..self.rows).rev().for_each(&mut shift);
        }
    }

    /// Copy the first `count` of `ar` slots of every row behind the `filled` ones.
    fn append(&mut self, source: &[u8], ar: usize, count: usize, filled: usize, stride: usize) {
        let (source_row, row, length) = (ar * self.width, stride * self.width, count * self.width);
        let start = filled * self.width;
        let rows = self.bytes.bytes_mut().chunks_exact_mut(row).take(self.rows);
        for (to, from) in rows.zip(source.chunks_exact(source_row)) {
            to[start..start + length].copy_from_slice(&from[..length]);
        }
    }
}
