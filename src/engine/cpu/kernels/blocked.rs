//! Linear layers for many rows: a vision encoder has a thousand, a prefill block dozens. Activations come in tiles, see
//! [`Activations`].
//!
//! Each operand is read as often as needed from a cache that holds it. A *slice* (some columns of a panel) is brought
//! into the form the arithmetic wants once and stays in the first-level cache, while the same columns of a *block* of
//! rows pass by tile after tile; those stay in the second-level cache until all panels of the task have met them.
//!
//! Sums are taken in the same order whatever the number of threads.

use super::Kernels;
use super::activations::{Activations, WordTiles};
use super::gemm::Tiled;
use super::linear::{SharedJob, TASKS_PER_THREAD};
use crate::engine::cpu::pool::Pool;
use crate::formats::{GROUP, PANEL_ROWS, WeightFormat, groups, w4, w8};
use std::marker::PhantomData;
use std::ops::Range;

/// Columns of a slice of f32: 16 KB, half a first-level cache.
pub(super) const SLICE: usize = 256;
/// Groups of a slice of words: as many bytes.
pub(super) const SLICE_GROUPS: usize = 2 * SLICE / GROUP;
/// Rows of a block at most: their slices take 256 KB, half a second-level cache.
const BLOCK_ROWS: usize = 256;
/// Panels of a task at most.
const TASK_PANELS: usize = 8;

/// Products of 16-bit words, for instruction sets that have them.
pub(super) struct WordKernels {
    /// Rows of a tile of activations.
    pub tile_rows: usize,
    /// `(up to 32 values, their 32 quantized values)` → scale, `scale · Σ q`.
    pub quantize: unsafe fn(&[f32], &mut [i16]) -> (f32, f32),
    /// `(values of one group of a panel, pairs of columns [16][16 rows][2])`.
    pub unpack_w8: unsafe fn(&[u8], &mut [i16]),
    /// As `unpack_w8`.
    pub unpack_w4: unsafe fn(&[u8], &mut [i16]),
    /// The product.
    pub tiled: unsafe fn(TiledWords<'_>),
}

impl WordKernels {
    /// Quantize up to 32 values into 32; returns the scale and `scale · Σ q`.
    pub fn quantize_group(&self, x: &[f32], words: &mut [i16; GROUP]) -> (f32, f32) {
        assert!(x.len() <= GROUP, "one group");
        // SAFETY: a table is only handed out on a processor that has its instructions; the lengths are as wanted.
        unsafe { (self.quantize)(x, words) }
    }
}

/// Operands of a product of some groups of a panel with rows in tiles: `C [rows, cols] = A · B (+ C)`.
#[derive(Clone, Copy)]
pub(super) struct TiledWords<'a> {
    /// Words of the first tile's first group, tiles `a_tile` words apart; see [`WordTiles`].
    pub a: *const i16,
    pub a_tile: usize,
    /// Scales and sums of the first tile's first group, tiles `params_tile` apart.
    pub scales: *const f32,
    pub sums: *const f32,
    pub params_tile: usize,
    /// Unpacked weights of the groups.
    pub slice: &'a WordSlice,
    pub groups: usize,
    /// Weights have minima.
    pub affine: bool,
    pub c: *mut f32,
    pub c_stride: usize,
    pub rows: usize,
    pub cols: usize,
    pub accumulate: bool,
}

/// A slice of an integer panel, unpacked.
pub(super) struct WordSlice {
    /// For each group pairs of columns: `[16][16 rows][2]`.
    pub words: [i16; SLICE_GROUPS * GROUP * PANEL_ROWS],
    /// For each group and row.
    pub scales: [f32; SLICE_GROUPS * PANEL_ROWS],
    /// For each group and row.
    pub minima: [f32; SLICE_GROUPS * PANEL_ROWS],
}

/// Compute all jobs, which have `panels` panels together, on activations in tiles of `height` rows.
pub(super) fn linear(
    kernels: &Kernels,
    pool: &Pool,
    x: &Activations,
    height: usize,
    jobs: &[SharedJob<'_>],
    panels: usize,
) {
    let expected =
        if x.is_integer() { kernels.words().map(|words| words.tile_rows) } else { Some(kernels.tile_rows()) };
    assert_eq!(expected, Some(height), "activations prepared for other kernels");
    let tiles = x.rows().div_ceil(height);
    let blocks = tiles.div_ceil(BLOCK_ROWS / height);
    let wanted = (pool.threads() * TASKS_PER_THREAD).div_ceil(blocks);
    let chunks = wanted.max(panels.div_ceil(TASK_PANELS)).min(panels);
    // Blocks innermost: the first one reads the weights of a chunk from memory, the others find them in a cache.
    pool.run(chunks * blocks, &|task| {
        let (chunk, block) = (task / blocks, task % blocks);
        let task = Task {
            kernels,
            x,
            height,
            tiles: block * tiles / blocks..(block + 1) * tiles / blocks,
            panels: chunk * panels / chunks..(chunk + 1) * panels / chunks,
        };
        // SAFETY: each pair of a panel and a tile is in exactly one task, each task runs once.
        unsafe { if x.is_integer() { task.integers(jobs) } else { task.floats(jobs) } }
    });
}

/// Some panels for some rows.
struct Task<'a> {
    kernels: &'a Kernels,
    x: &'a Activations,
    /// Rows of a tile.
    height: usize,
    tiles: Range<usize>,
    /// Counted through all jobs.
    panels: Range<usize>,
}

impl Task<'_> {
    fn rows(&self) -> Range<usize> {
        self.tiles.start * self.height..self.x.rows().min(self.tiles.end * self.height)
    }

    /// The task's panels, each with its job and its number there.
    fn panels<'j, 'd>(&self, jobs: &'j [SharedJob<'d>]) -> impl Iterator<Item = (&'j SharedJob<'d>, usize)> {
        let wanted = self.panels.clone();
        jobs.iter().flat_map(move |job| {
            let own = job.panels();
            (wanted.start.max(own.start)..wanted.end.min(own.end)).map(move |panel| (job, panel - own.start))
        })
    }

    /// # Safety
    /// No other thread works on the same panels and tiles.
    unsafe fn floats(&self, jobs: &[SharedJob<'_>]) {
        let (cols, rows) = (self.x.cols(), self.rows());
        let lines = self.x.rows().next_multiple_of(self.height);
        let mut widened = [0.0f32; SLICE * PANEL_ROWS];
        for first in (0..cols).step_by(SLICE) {
            let k = SLICE.min(cols - first);
            for (job, panel) in self.panels(jobs) {
                let (first_row, width) = job.rows(panel);
                let tiled = Tiled {
                    a: self.x.floats()[first * lines + self.tiles.start * self.height * k..].as_ptr(),
                    a_tile: self.height * k,
                    b: self.slice(job.weight.format(), job.weight.panel(panel), first, &mut widened[..k * PANEL_ROWS]),
                    c: job.out.pointer(rows.start * job.weight.rows() + first_row),
                    c_stride: job.weight.rows(),
                    rows: rows.len(),
                    cols: width,
                    k,
                    accumulate: first > 0,
                    borrows: PhantomData,
                };
                // SAFETY: a table is only handed out on a processor that has its instructions; the task's tiles are
                // within A, k columns within each; the rows and the panel's columns are within the output, as its
                // length was compared with m · rows, and ours alone, by the caller.
                unsafe {
                    (self.kernels.table.tiled)(tiled);
                    if first + k == cols {
                        job.finish(self.kernels, rows.clone(), panel);
                    }
                }
            }
        }
    }

    /// Columns `first ..` of a float panel as f32: where they are, or in `widened`, whose length says how many.
    fn slice(&self, format: WeightFormat, panel: &[u8], first: usize, widened: &mut [f32]) -> *const f32 {
        let table = self.kernels.table;
        let widen = match format {
            WeightFormat::F16 => table.widen_f16,
            WeightFormat::Bf16 => table.widen_bf16,
            // Integer formats have integer activations.
            WeightFormat::F32 | WeightFormat::W8 | WeightFormat::W4 => {
                return panel[first * PANEL_ROWS * size_of::<f32>()..].as_ptr().cast();
            }
        };
        let start = first * PANEL_ROWS * 2;
        // SAFETY: a table is only handed out on a processor that has its instructions; the slice of the panel was
        // taken as long as needed.
        unsafe { widen(&panel[start..start + 2 * widened.len()], widened) };
        widened.as_ptr()
    }

    /// # Safety
    /// No other thread works on the same panels and tiles.
    unsafe fn integers(&self, jobs: &[SharedJob<'_>]) {
        let Some(kernels) = self.kernels.words() else { return };
        let (all, rows, tiles) = (groups(self.x.cols()), self.rows(), self.x.rows().div_ceil(self.height));
        let WordTiles { words, scales, sums } = self.x.words();
        let mut slice = WordSlice {
            words: [0; SLICE_GROUPS * GROUP * PANEL_ROWS],
            scales: [0.0; SLICE_GROUPS * PANEL_ROWS],
            minima: [0.0; SLICE_GROUPS * PANEL_ROWS],
        };
        for first in (0..all).step_by(SLICE_GROUPS) {
            let count = SLICE_GROUPS.min(all - first);
            let line = (first * tiles + self.tiles.start * count) * self.height;
            for (job, panel) in self.panels(jobs) {
                let (first_row, width) = job.rows(panel);
                let format = job.weight.format();
                self.unpack(kernels, format, job.weight.panel(panel), first..first + count, &mut slice);
                let tiled = TiledWords {
                    a: words[line * GROUP..].as_ptr(),
                    a_tile: count * self.height * GROUP,
                    scales: scales[line..].as_ptr(),
                    sums: sums[line..].as_ptr(),
                    params_tile: count * self.height,
                    slice: &slice,
                    groups: count,
                    affine: format == WeightFormat::W4,
                    c: job.out.pointer(rows.start * job.weight.rows() + first_row),
                    c_stride: job.weight.rows(),
                    rows: rows.len(),
                    cols: width,
                    accumulate: first > 0,
                };
                // SAFETY: as in `floats`; the groups are within the slice.
                unsafe {
                    (kernels.tiled)(tiled);
                    if first + count == all {
                        job.finish(self.kernels, rows.clone(), panel);
                    }
                }
            }
        }
    }

    /// Bring groups of an integer panel into the form of [`WordSlice`].
    fn unpack(
        &self,
        kernels: &WordKernels,
        format: WeightFormat,
        panel: &[u8],
        groups: Range<usize>,
        slice: &mut WordSlice,
    ) {
        let (values, scales, minima, block, unpack) = if format == WeightFormat::W4 {
            let (values, scales, minima) = w4::split(panel);
            (values, scales, minima, w4::BLOCK_BYTES, kernels.unpack_w4)
        } else {
            let (values, scales) = w8::split(panel);
            (values, scales, &[][..], w8::BLOCK_BYTES, kernels.unpack_w8)
        };
        let values = values[groups.start * block..groups.end * block].chunks_exact(block);
        for (values, words) in values.zip(slice.words.chunks_exact_mut(GROUP * PANEL_ROWS)) {
            // SAFETY: a table is only handed out on a processor that has its instructions; one group each.
            unsafe { unpack(values, words) };
        }
        let params = groups.start * PANEL_ROWS * 2..groups.end * PANEL_ROWS * 2;
        let count = groups.len() * PANEL_ROWS;
        // SAFETY: as above; two bytes for each value.
        unsafe {
            (self.kernels.table.widen_f16)(&scales[params.clone()], &mut slice.scales[..count]);
            if format == WeightFormat::W4 {
                (self.kernels.table.widen_f16)(&minima[params], &mut slice.minima[..count]);
            }
        }
    }
}

impl Kernels {
    /// Kernels for products of words.
    pub(super) fn words(&self) -> Option<&'static WordKernels> {
        self.table.words
    }
}
