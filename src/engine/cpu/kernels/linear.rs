//! Linear layers: `out [m, rows] = activation(x [m, cols] · weightᵀ (+ bias)) (+ residual)`, several of them in one
//! region.

use super::activations::Activations;
use super::gemm::{Finish, Product};
use super::{Disjoint, Kernels, Nonlinearity, blocked};
use crate::engine::cpu::pool::Pool;
use crate::formats::{PANEL_ROWS, PackedMatrix, WeightFormat};
use std::marker::PhantomData;
use std::ops::Range;

/// Input rows a panel is multiplied with at once; their results wait in a tile on the stack.
pub(super) const TILE_TOKENS: usize = 32;
/// Results of one panel: `[token][16 rows]`.
pub(super) type Tile = [f32; TILE_TOKENS * PANEL_ROWS];
/// Multiply-adds below which a region is not worth its microsecond.
const SERIAL_BELOW: usize = 1 << 15;
/// Tasks a thread, so that a thread that is held up leaves work to the others.
pub(super) const TASKS_PER_THREAD: usize = 8;

/// One matrix to multiply the prepared activations with.
#[derive(Debug)]
pub struct LinearJob<'a> {
    /// `[rows, cols]`; `cols` is that of the activations.
    pub weight: PackedMatrix<'a>,
    /// Added to every output row: `rows` values.
    pub bias: Option<&'a [f32]>,
    /// Applied to the sums, bias included.
    pub activation: Option<Nonlinearity>,
    /// Added to the output: `[m, rows]`.
    pub residual: Option<&'a [f32]>,
    /// Overwritten: `[m, rows]`.
    pub out: &'a mut [f32],
}

impl<'a> LinearJob<'a> {
    /// The product alone.
    pub fn new(weight: PackedMatrix<'a>, out: &'a mut [f32]) -> Self {
        Self { weight, bias: None, activation: None, residual: None, out }
    }
}

/// A job whose output several threads write to.
pub(super) struct SharedJob<'a> {
    pub weight: PackedMatrix<'a>,
    bias: Option<&'a [f32]>,
    activation: Option<Nonlinearity>,
    residual: Option<&'a [f32]>,
    pub out: Disjoint<'a, f32>,
    pub first_panel: usize,
}

impl SharedJob<'_> {
    /// Panels of the weight, counted through all jobs.
    pub fn panels(&self) -> Range<usize> {
        self.first_panel..self.first_panel + self.weight.panels()
    }

    /// Rows of the weight in its panel `panel`, the first and how many.
    pub fn rows(&self, panel: usize) -> (usize, usize) {
        let first = panel * PANEL_ROWS;
        (first, PANEL_ROWS.min(self.weight.rows() - first))
    }

    /// Do what is left to do when the sums of `rows` of the output, those of panel `panel`, are there.
    ///
    /// # Safety
    /// The rows are below m; no other thread works on the same panel and rows.
    pub unsafe fn finish(&self, kernels: &Kernels, rows: Range<usize>, panel: usize) {
        if self.bias.is_none() && self.activation.is_none() && self.residual.is_none() {
            return;
        }
        let (first, cols) = self.rows(panel);
        let at = rows.start * self.weight.rows() + first;
        let finish = Finish {
            out: self.out.pointer(at),
            stride: self.weight.rows(),
            rows: rows.len(),
            cols,
            bias: self.bias.map_or(std::ptr::null(), |bias| bias[first..].as_ptr()),
            activation: self.activation,
            residual: self.residual.map_or(std::ptr::null(), |residual| residual[at..].as_ptr()),
            borrows: PhantomData,
        };
        // SAFETY: a table is only handed out on a processor that has its instructions; `check` compared the lengths
        // with the shapes; the piece of the output is ours, by the caller.
        unsafe { (kernels.table.finish)(finish) }
    }
}

impl Kernels {
    /// Compute all `jobs` on the activations `x` in one parallel region.
    ///
    /// # Panics
    /// If the length of a bias, residual or output does not match the shapes, or `x` was not prepared for these kernels,
    /// the weight's number of columns and kind of format.
    pub fn linear(&self, pool: &Pool, x: &Activations, jobs: &mut [LinearJob<'_>]) {
        let m = x.rows();
        let mut panels = 0;
        let shared = jobs
            .iter_mut()
            .map(|job| {
                check(job, x);
                let first_panel = panels;
                panels += job.weight.panels();
                let LinearJob { weight, bias, activation, residual, .. } = *job;
                SharedJob { weight, bias, activation, residual, out: Disjoint::new(job.out), first_panel }
            })
            .collect::<Vec<_>>();
        if m == 0 || panels == 0 {
            return;
        }
        if let Some(height) = x.tile_rows() {
            return blocked::linear(self, pool, x, height, &shared, panels);
        }
        let serial = pool.threads() == 1 || panels * PANEL_ROWS * x.cols() * m < SERIAL_BELOW;
        let tasks = if serial { 1 } else { panels.min(pool.threads() * TASKS_PER_THREAD) };
        pool.run(tasks, &|task| {
            let (begin, end) = (task * panels / tasks, (task + 1) * panels / tasks);
            for job in &shared {
                let own = job.panels();
                for panel in begin.max(own.start)..end.min(own.end) {
                    // SAFETY: each panel of each job is in exactly one task, each task runs once.
                    unsafe { self.panel(job, x, panel - job.first_panel) };
                }
            }
        });
    }

    /// Multiply one panel with all rows of `x`.
    ///
    /// # Safety
    /// No other thread works on the same panel of the same job.
    unsafe fn panel(&self, job: &SharedJob<'_>, x: &Activations, panel: usize) {
        let bytes = job.weight.panel(panel);
        let (first_row, rows) = job.rows(panel);
        let mut tile: Tile = [0.0; TILE_TOKENS * PANEL_ROWS];
        for first in (0..x.rows()).step_by(TILE_TOKENS) {
            let tokens = TILE_TOKENS.min(x.rows() - first);
            self.tile(job.weight.format(), bytes, x, first, tokens, &mut tile);
            for (t, sums) in tile.chunks_exact(PANEL_ROWS).take(tokens).enumerate() {
                let at = (first + t) * job.weight.rows() + first_row;
                // SAFETY: `check` compared the length of the output with m · rows; the rows of this panel are ours
                // alone, by the caller.
                unsafe { job.out.slice(at, rows) }.copy_from_slice(&sums[..rows]);
            }
            // SAFETY: as above.
            unsafe { job.finish(self, first..first + tokens, panel) };
        }
    }

    /// `tokens` rows of `x` from row `first` times one panel.
    fn tile(&self, format: WeightFormat, panel: &[u8], x: &Activations, first: usize, tokens: usize, tile: &mut Tile) {
        let table = self.table;
        let float = match format {
            WeightFormat::F32 => table.panel_f32,
            WeightFormat::F16 => table.panel_f16,
            WeightFormat::Bf16 => table.panel_bf16,
            // SAFETY: a table is only handed out on a processor that has its instructions; `x` was prepared as
            // integers for as many columns as the panel has groups for.
            WeightFormat::W8 => return unsafe { (table.panel_w8)(panel, x.integers(), first, tokens, tile) },
            // SAFETY: as above.
            WeightFormat::W4 => return unsafe { (table.panel_w4)(panel, x.integers(), first, tokens, tile) },
        };
        let product = Product {
            a: x.floats()[first * x.cols()..].as_ptr(),
            a_stride: x.cols(),
            b: panel.as_ptr(),
            b_stride: PANEL_ROWS,
            c: tile.as_mut_ptr(),
            c_stride: PANEL_ROWS,
            m: tokens,
            n: PANEL_ROWS,
            k: x.cols(),
            alpha: 1.0,
            accumulate: false,
            borrows: PhantomData,
        };
        // SAFETY: a table is only handed out on a processor that has its instructions; rows `first .. first + tokens`
        // are within `x`, the panel has `cols` rows of 16 values, the tile holds `tokens` rows.
        unsafe { float(product) }
    }
}

fn check(job: &LinearJob<'_>, x: &Activations) {
    let (m, rows) = (x.rows(), job.weight.rows());
    assert_eq!(job.weight.cols(), x.cols(), "columns of the weight and of the activations");
    assert_eq!(job.weight.format().is_integer(), x.is_integer(), "activations prepared for the weight format");
    assert_eq!(job.out.len(), m * rows, "output of shape [{m}, {rows}]");
    assert!(job.bias.is_none_or(|b| b.len() == rows), "bias of {rows} values");
    assert!(job.residual.is_none_or(|r| r.len() == m * rows), "residual of shape [{m}, {rows}]");
}
