//! The KV cache: one buffer a layer for K and one for V, shared by all graphs.
//!
//! Graphs with different block sizes see a different number of cache slots, and their cache inputs are dense, so the
//! distance between rows (the *stride*) depends on which graph runs next. The store holds the buffers at one stride at
//! a time and moves the filled columns when the stride changes; what lies behind them stays masked and is never read.
//! Elements are moved as bytes, so 1, 2 and 4 byte types are handled alike.

use super::contract::DecoderContract;
use super::requant::{KvDomain, Requant};
use crate::error::{Error, Result};
use crate::graph::{DType, Tensor, TensorInfo, TensorView, TensorViewMut};
use std::ops::Range;

/// Where the memory of tensors comes from.
pub(super) type Allocate<'a> = dyn Fn(&TensorInfo) -> Result<Tensor> + 'a;

/// Reads all of a cache, and writes all of another.
pub(super) type Move<'a> = dyn FnMut(&[TensorView<'_>], &mut [TensorViewMut<'_>]) -> Result<()> + 'a;

/// The KV cache of one conversation.
#[derive(Debug)]
pub(super) struct KvStore {
    layers: Vec<LayerCache>,
    dtype: DType,
    /// Slots a row has room for at the present stride.
    stride: usize,
    /// The widest stride, for which the buffers are allocated.
    max_stride: usize,
    /// Filled slots, from the front: for which graphs each was made.
    domains: Vec<KvDomain>,
    /// Where prefill and decode have encodings of their own.
    requant: Option<Requant>,
    /// Second buffers, into which an attention sink's evictor writes; they are exchanged with the first.
    spare: Vec<LayerCache>,
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
    pub fn new(contract: &DecoderContract, requant: Option<Requant>, allocate: &Allocate<'_>) -> Result<Self> {
        let max_stride = contract.cache_slots();
        let layers = LayerCache::all_of(contract, allocate)?;
        let (domains, spare) = (Vec::with_capacity(max_stride), Vec::new());
        Ok(Self { layers, dtype: contract.kv_dtype, stride: max_stride, max_stride, domains, requant, spare })
    }

    /// Allocate the second buffers that [`evict`](Self::evict) needs.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the memory cannot be had.
    pub fn reserve_spare(&mut self, contract: &DecoderContract, allocate: &Allocate<'_>) -> Result<()> {
        self.spare = LayerCache::all_of(contract, allocate)?;
        Ok(())
    }

    /// Number of tokens in the cache.
    pub fn len(&self) -> usize {
        self.domains.len()
    }

    /// Whether it holds no tokens.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
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
        if stride < self.len() || stride > self.max_stride {
            let (filled, max) = (self.len(), self.max_stride);
            return Err(Error::internal(format!("KV stride {stride} with {filled} slots filled of at most {max}")));
        }
        let filled = self.len();
        for layer in &mut self.layers {
            layer.keys.restride(self.stride, stride, filled);
            layer.values.restride(self.stride, stride, filled);
        }
        self.stride = stride;
        Ok(())
    }

    /// Convert the slots that were made for graphs of another domain. Each is touched once, however often this is called.
    pub fn convert_to(&mut self, domain: KvDomain) {
        let Some(requant) = &self.requant else { return };
        let mut start = 0;
        while let Some(first) = self.domains[start..].iter().position(|&slot| slot != domain) {
            let first = start + first;
            let foreign = self.domains[first..].iter().take_while(|&&slot| slot != domain).count();
            start = first + foreign;
            for (layer, [keys, values]) in self.layers.iter_mut().zip(&requant.layers) {
                for (rows, pair) in [(&mut layer.keys, keys), (&mut layer.values, values)] {
                    if let Some(conversion) = pair.conversion_to(domain, requant.rounding) {
                        rows.for_each_row(self.stride, first..start, &mut |bytes| conversion.apply(bytes, self.dtype));
                    }
                }
            }
            self.domains[first..start].fill(domain);
        }
    }

    /// Have `run` move the cache's content: it reads the cache, shaped as `infos` (K of all layers, then V), and writes
    /// what shall be the cache, which is `removed` shorter. If it fails nothing is changed.
    ///
    /// # Errors
    /// [`Error::Internal`] if a shape does not fit, and what `run` reports.
    pub fn evict(&mut self, infos: &[TensorInfo], removed: Range<usize>, run: &mut Move<'_>) -> Result<()> {
        if removed.end > self.len() || self.spare.len() != self.layers.len() {
            let filled = self.len();
            return Err(Error::internal(format!("eviction of slots {removed:?} of {filled}")));
        }
        let mut spare = std::mem::take(&mut self.spare);
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        let (keys, values): (Vec<_>, Vec<_>) =
            spare.iter_mut().map(|layer| (&mut layer.keys, &mut layer.values)).unzip();
        for (info, rows) in infos.iter().zip(keys.into_iter().chain(values)) {
            let bytes = rows.rows * self.stride * rows.width;
            let bytes = rows.bytes.bytes_mut().get_mut(..bytes);
            let bytes = bytes.ok_or_else(|| Error::internal(format!("KV cache does not fit output {}", info.name)))?;
            outputs.push(TensorViewMut { dtype: info.dtype, shape: &info.shape, bytes });
        }
        let outcome = self.views(infos, &mut inputs).and_then(|()| run(&inputs, &mut outputs));
        drop((inputs, outputs));
        if outcome.is_ok() {
            std::mem::swap(&mut self.layers, &mut spare);
            self.domains.drain(removed);
        }
        self.spare = spare;
        outcome
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

    /// Append slots `rows` of the `ar` new ones of every layer: `outputs` are the K of all layers `[1, H, D, AR]`,
    /// then the V of all layers `[1, H, AR, D]`, made by a graph of `domain`.
    ///
    /// # Errors
    /// [`Error::Internal`] if the slots do not fit the present stride or the outputs do not fit the layers; nothing is
    /// changed.
    pub fn commit(&mut self, outputs: &[Tensor], ar: usize, rows: Range<usize>, domain: KvDomain) -> Result<()> {
        let (filled, stride) = (self.len(), self.stride);
        // Without layers there is nothing to keep but the count: graphs without a cache.
        let misfits = outputs.len() != 2 * self.layers.len() && !self.layers.is_empty();
        if filled + rows.len() > stride || rows.start > rows.end || rows.end > ar || misfits {
            return Err(Error::internal(format!("commit of KV slots {rows:?} of {ar} at {filled} of {stride}")));
        }
        if rows.is_empty() {
            return Ok(());
        }
        let (keys, values) = outputs.split_at(outputs.len() / 2);
        for ((layer, keys), values) in self.layers.iter_mut().zip(keys).zip(values) {
            layer.keys.append(keys.bytes(), ar, rows.clone(), filled, stride);
            layer.values.append(values.bytes(), ar, rows.clone(), filled, stride);
        }
        self.domains.resize(filled + rows.len(), domain);
        Ok(())
    }

    /// Forget all but the first `len` tokens; what they leave behind is masked until overwritten. No effect if fewer
    /// are held.
    pub fn truncate(&mut self, len: usize) {
        self.domains.truncate(len);
    }

    /// Forget everything and overwrite it with zeros, so that nothing of an earlier failure (NaN, say) can leak
    /// through a mask that multiplies by zero.
    pub fn clear(&mut self) {
        for layer in &mut self.layers {
            layer.keys.bytes.bytes_mut().fill(0);
            layer.values.bytes.bytes_mut().fill(0);
        }
        self.domains.clear();
    }
}

impl LayerCache {
    fn all_of(contract: &DecoderContract, allocate: &Allocate<'_>) -> Result<Vec<Self>> {
        let (slots, element) = (contract.cache_slots(), contract.kv_dtype.size_bytes());
        let layers = contract.layers.iter().enumerate().map(|(index, layer)| {
            let rows = |kind: &str, shape: [usize; 3], rows: usize, width: usize| -> Result<SlotRows> {
                let name = format!("{kind}_cache_{index}");
                let info = TensorInfo { name, dtype: contract.kv_dtype, shape: shape.to_vec() };
                Ok(SlotRows { bytes: allocate(&info)?, rows, width })
            };
            let (heads, dim) = (layer.heads, layer.head_dim);
            Ok(Self {
                keys: rows("k", [heads, dim, slots], heads * dim, element)?,
                values: rows("v", [heads, slots, dim], heads, dim * element)?,
            })
        });
        layers.collect()
    }
}

impl SlotRows {
    /// Call `change` with slots `slots` of every row.
    fn for_each_row(&mut self, stride: usize, slots: Range<usize>, change: &mut dyn FnMut(&mut [u8])) {
        let (start, end, row) = (slots.start * self.width, slots.end * self.width, stride * self.width);
        for bytes in self.bytes.bytes_mut().chunks_exact_mut(row.max(1)).take(self.rows) {
            change(&mut bytes[start..end]);
        }
    }

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

    /// Copy slots `new` of the `ar` of every row behind the `filled` ones.
    fn append(&mut self, source: &[u8], ar: usize, new: Range<usize>, filled: usize, stride: usize) {
        let (source_row, row, length) = (ar * self.width, stride * self.width, new.len() * self.width);
        let (start, first) = (filled * self.width, new.start * self.width);
        let rows = self.bytes.bytes_mut().chunks_exact_mut(row).take(self.rows);
        for (to, from) in rows.zip(source.chunks_exact(source_row)) {
            to[start..start + length].copy_from_slice(&from[first..first + length]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::contract::LayerShape;
    use super::*;
    use crate::graph::DType;
    use proptest::prelude::*;

    const LAYERS: [LayerShape; 2] = [LayerShape { heads: 2, head_dim: 3 }, LayerShape { heads: 1, head_dim: 5 }];

    fn store(dtype: DType, slots: usize) -> KvStore {
        let contract = DecoderContract {
            context_length: slots + 1,
            vocabulary: 1,
            kv_dtype: dtype,
            layers: LAYERS.to_vec(),
            has_window_mask: false,
            graphs: vec![super::super::contract::StepGraph {
                index: 0,
                name: "kv_forward".into(),
                ar: 1,
                cache_slots: slots,
                takes: crate::runner::StepInput::Tokens,
                input: info("tokens", DType::I32, &[1, 1]),
                mask: info("mask", DType::F32, &[1, 1, 1, slots + 1]),
                window_mask: None,
                positions: Some(info("input_pos", DType::I32, &[1, 1])),
                caches: Vec::new(),
                outputs: Vec::new(),
            }],
        };
        KvStore::new(&contract, None, &|info| Tensor::zeros(info.clone())).expect("a small store")
    }

    fn info(name: &str, dtype: DType, shape: &[usize]) -> TensorInfo {
        TensorInfo { name: name.into(), dtype, shape: shape.to_vec() }
    }

    /// A byte that tells layer, K or V, row of the tensor and slot apart well enough.
    fn byte(layer: usize, kind: usize, row: usize, slot: usize) -> u8 {
        (1 + layer * 101 + kind * 53 + row * 17 + slot * 7) as u8
    }

    /// A block's outputs: `ar` slots, the first `count` of them those from `first` on, the rest garbage.
    fn outputs(dtype: DType, ar: usize, first: usize, count: usize) -> Vec<Tensor> {
        let width = dtype.size_bytes();
        let build = |layer: usize, kind: usize| {
            let (heads, dim) = (LAYERS[layer].heads, LAYERS[layer].head_dim);
            let shape = if kind == 0 { [1, heads, dim, ar] } else { [1, heads, ar, dim] };
            let mut tensor = Tensor::zeros(info("out", dtype, &shape)).expect("small");
            for (index, element) in tensor.bytes_mut().chunks_mut(width).enumerate() {
                let (row, slot) = row_and_slot(index, kind, dim, ar);
                element.fill(if slot < count { byte(layer, kind, row, first + slot) } else { 0xee });
            }
            tensor
        };
        [0, 1].into_iter().flat_map(|kind| [build(0, kind), build(1, kind)]).collect()
    }

    /// K element `index` is row `h·D + d`, slot innermost; V the same row with the slot in the middle.
    fn row_and_slot(index: usize, kind: usize, dim: usize, slots: usize) -> (usize, usize) {
        match kind {
            0 => (index / slots, index % slots),
            _ => (index / (slots * dim) * dim + index % dim, index / dim % slots),
        }
    }

    /// Every filled slot of every tensor, seen through views at the present stride, is what was committed there.
    fn check(store: &KvStore, dtype: DType) {
        let stride = store.stride;
        let infos: Vec<TensorInfo> = [0, 1]
            .into_iter()
            .flat_map(|kind| {
                LAYERS.map(
                    |l| if kind == 0 { [1, l.heads, l.head_dim, stride] } else { [1, l.heads, stride, l.head_dim] },
                )
            })
            .map(|shape| info("cache", dtype, &shape))
            .collect();
        let mut views = Vec::new();
        store.views(&infos, &mut views).expect("views fit");
        for (number, view) in views.iter().enumerate() {
            let (kind, layer) = (number / LAYERS.len(), number % LAYERS.len());
            for (index, element) in view.bytes.chunks(dtype.size_bytes()).enumerate() {
                let (row, slot) = row_and_slot(index, kind, LAYERS[layer].head_dim, stride);
                if slot < store.len() {
                    assert!(element.iter().all(|&b| b == byte(layer, kind, row, slot)), "{number} {row} {slot}");
                }
            }
        }
    }

    #[test]
    fn commits_past_the_stride_are_refused_unchanged() {
        let mut store = store(DType::F32, 8);
        store.set_stride(4).expect("stride");
        store.commit(&outputs(DType::F32, 3, 0, 3), 3, 0..3, KvDomain::Decode).expect("fits");
        assert!(store.commit(&outputs(DType::F32, 3, 3, 2), 3, 0..2, KvDomain::Decode).is_err());
        assert!(
            store.commit(&outputs(DType::F32, 3, 3, 2)[1..], 3, 0..1, KvDomain::Decode).is_err(),
            "a tensor is missing"
        );
        assert!(store.commit(&outputs(DType::F32, 3, 3, 2), 3, 0..4, KvDomain::Decode).is_err(), "more than the block");
        assert_eq!(store.len(), 3);
        assert!(store.set_stride(2).is_err(), "narrower than what is filled");
        assert!(store.set_stride(9).is_err(), "wider than the buffer");
        check(&store, DType::F32);
    }

    #[test]
    fn clear_leaves_zeros() {
        let mut store = store(DType::U16, 4);
        store.commit(&outputs(DType::U16, 2, 0, 2), 2, 0..2, KvDomain::Decode).expect("fits");
        store.clear();
        assert!(store.is_empty());
        assert!(
            store.layers.iter().all(|l| l.keys.bytes.bytes().iter().chain(l.values.bytes.bytes()).all(|&b| b == 0))
        );
    }

    proptest! {
        #[test]
        fn any_sequence_of_strides_commits_and_rewinds_keeps_every_slot(
            slots in 4usize..20, width in 0usize..3,
            steps in prop::collection::vec((0usize..3, 0usize..100, 1usize..6), 1..20),
        ) {
            let dtype = [DType::U8, DType::U16, DType::F32][width];
            let mut store = store(dtype, slots);
            for (action, number, ar) in steps {
                match action {
                    0 => store.set_stride(store.len() + number % (slots - store.len() + 1)).expect("in range"),
                    1 => store.truncate(number % (slots + 1)),
                    _ => {
                        let count = (number % ar + 1).min(store.stride - store.len());
                        let outputs = outputs(dtype, ar, store.len(), count);
                        store.commit(&outputs, ar, 0..count, KvDomain::Decode).expect("fits");
                    }
                }
                check(&store, dtype);
            }
        }
    }
}
