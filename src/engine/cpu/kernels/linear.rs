//! Linear layers: `out [m, rows] = x [m, cols] · weightᵀ (+ bias) (+ residual)`, several of them in one region.

use super::activations::Activations;
use super::gemm::Product;
use super::{Disjoint, Kernels};
use crate::engine::cpu::pool::Pool;
use crate::formats::{PANEL_ROWS, PackedMatrix, WeightFormat};
use std::marker::PhantomData;

/// Input rows a panel is multiplied with at once; their results wait in a tile on the stack.
pub(super) const TILE_TOKENS: usize = 32;
/// Results of one panel: `[token][16 rows]`.
pub(super) type Tile = [f32; TILE_TOKENS * PANEL_ROWS];
/// Multiply-adds below which a region is not worth its microsecond.
const SERIAL_BELOW: usize = 1 << 15;
/// Tasks a thread, so that a thread that is held up leaves work to the others.
const TASKS_PER_THREAD: usize = 8;

/// One matrix to multiply the prepared activations with.
#[derive(Debug)]
pub struct LinearJob<'a> {
    /// `[rows, cols]`; `cols` is that of the activations.
    pub weight: PackedMatrix<'a>,
    /// Added to every output row: `rows` values.
    pub bias: Option<&'a [f32]>,
    /// Added to the output: `[m, rows]`.
    pub residual: Option<&'a [f32]>,
    /// Overwritten: `[m, rows]`.
    pub out: &'a mut [f32],
}

/// A job whose output several threads write to.
struct SharedJob<'a> {
    weight: PackedMatrix<'a>,
    bias: Option<&'a [f32]>,
    residual: Option<&'a [f32]>,
    out: Disjoint<'a, f32>,
    first_panel: usize,
}

impl Kernels {
    /// Compute all `jobs` on the activations `x` in one parallel region.
    ///
    /// # Panics
    /// If the length of a bias, residual or output does not match the shapes, or `x` was not prepared for the weight's
    /// number of columns and kind of format.
    pub fn linear(&self, pool: &Pool, x: &Activations, jobs: &mut [LinearJob<'_>]) {
        let m = x.rows();
        let mut panels = 0;
        let shared = jobs
            .iter_mut()
            .map(|job| {
                check(job, x);
                let first_panel = panels;
                panels += job.weight.panels();
                let (weight, bias, residual) = (job.weight, job.bias, job.residual);
                SharedJob { weight, bias, residual, out: Disjoint::new(job.out), first_panel }
            })
            .collect::<Vec<_>>();
        if m == 0 || panels == 0 {
            return;
        }
        let serial = pool.threads() == 1 || panels * PANEL_ROWS * x.cols() * m < SERIAL_BELOW;
        let tasks = if serial { 1 } else { panels.min(pool.threads() * TASKS_PER_THREAD) };
        pool.run(tasks, &|task| {
            let (begin, end) = (task * panels / tasks, (task + 1) * panels / tasks);
            for job in &shared {
                let last_panel = job.first_panel + job.weight.panels();
                for panel in begin.max(job.first_panel)..end.min(last_panel) {
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
        let (all_rows, first_row) = (job.weight.rows(), panel * PANEL_ROWS);
        let rows = PANEL_ROWS.min(all_rows - first_row);
        let mut tile: Tile = [0.0; TILE_TOKENS * PANEL_ROWS];
        for first in (0..x.rows()).step_by(TILE_TOKENS) {
            let tokens = TILE_TOKENS.min(x.rows() - first);
            self.tile(job.weight.format(), bytes, x, first, tokens, &mut tile);
            for (t, sums) in tile.chunks_exact(PANEL_ROWS).take(tokens).enumerate() {
                let at = (first + t) * all_rows + first_row;
                // SAFETY: `check` compared the length of the output with m · rows; the rows of this panel are ours
                // alone, by the caller.
                let out = unsafe { job.out.slice(at, rows) };
                out.copy_from_slice(&sums[..rows]);
                if let Some(bias) = job.bias {
                    out.iter_mut().zip(&bias[first_row..]).for_each(|(y, b)| *y += b);
                }
                if let Some(residual) = job.residual {
                    out.iter_mut().zip(&residual[at..]).for_each(|(y, r)| *y += r);
                }
            }
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
