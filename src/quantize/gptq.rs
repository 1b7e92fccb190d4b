//! Rounding that makes later weights correct the errors of earlier ones (GPTQ).
//!
//! With `H = R Rᵀ`, `R` upper triangular, the error of the outputs that an error `e` of a row of weights makes is
//! `e H eᵀ = ‖e R‖²`, and entry `k` of `e R` is `e[k] R[k][k] + Σ_{j<k} e[j] R[j][k]`. Going from the first weight to the
//! last, that is least if `w[k] + Σ_{j<k} e[j] R[j][k] / R[k][k]` is rounded instead of `w[k]`. These are the same integers
//! that GPTQ finds by updating weights with the Cholesky factor of `H⁻¹` (which is `R⁻¹`), without inverting anything.

use super::metric::{OutputError, nearest_rows};
use super::moments::InputMoments;
use super::tiles::{Tiles, side_by_side};
use super::weight::{WeightScales, round_to_whole};
use crate::engine::cpu::kernels::{Kernels, PANEL};
use crate::engine::cpu::pool::Pool;
use crate::error::{Error, Result};

/// Weights of a row that are rounded between two products with the kernels.
const BLOCK: usize = 64;
/// Columns of a factor that are computed together.
const FACTOR_BLOCK: usize = 32;
/// A pivot that rounding errors alone could have made, where the mean square of an input is 1.
const SINGULAR: f64 = 1e-9;

/// Integers of `values`, `[rows, cols]`, on grids fixed beforehand. A row for which feedback does worse than rounding to the
/// nearest (clipping can cause that) is rounded to the nearest.
pub(super) fn round(
    values: &[f32],
    cols: usize,
    scales: &WeightScales,
    damping: f32,
    moments: &InputMoments,
    pool: &Pool,
) -> Result<Vec<i16>> {
    let feedback = Feedback::new(moments, damping, pool)?;
    let metric = OutputError::new(moments, pool);
    let mut levels = vec![0; values.len()];
    pool.for_each_chunk(&mut levels, PANEL * cols, &|panel, levels| {
        let first = panel * PANEL;
        let values = &values[first * cols..][..levels.len()];
        feedback.round_rows(first, values, scales, levels);
        let nearest = nearest_rows(first, values, cols, scales);
        let found = metric.of_rows(first, values, scales, levels);
        let plain = metric.of_rows(first, values, scales, &nearest);
        let rows = levels.chunks_exact_mut(cols).zip(nearest.chunks_exact(cols)).enumerate();
        rows.filter(|(lane, _)| plain[*lane] < found[*lane])
            .for_each(|(_, (row, nearest))| row.copy_from_slice(nearest));
    });
    Ok(levels)
}

/// How errors of weights are handed on to those that are rounded later.
struct Feedback {
    /// Inputs in the order in which their weights are rounded: those with the largest squares first, as long as there are
    /// many others left to correct them.
    order: Vec<usize>,
    blocks: Vec<Block>,
    kernels: Kernels,
}

/// Weights that are rounded between two products, as places in the order.
struct Block {
    first: usize,
    /// `R[j][k] / R[k][k]` for all `j` before the block: `[k of the block, j]`.
    before: Tiles,
    /// The same for `j` in the block, `[k][j]`, 0 from `j = k` on.
    within: Vec<f32>,
}

impl Feedback {
    fn new(moments: &InputMoments, damping: f32, pool: &Pool) -> Result<Self> {
        let (cols, kernels) = (moments.cols(), moments.kernels());
        let squares = moments.diagonal();
        let mut order: Vec<usize> = (0..cols).collect();
        order.sort_unstable_by(|&a, &b| squares[b].total_cmp(&squares[a]).then(a.cmp(&b)));
        let factor = scaled_factor(moments, &order, damping, pool)?;
        let block = |first: usize| {
            let width = BLOCK.min(cols - first);
            let above = if first == 0 { &[] } else { &factor[first..][..(first - 1) * cols + width] };
            let entry = |k: usize, j: usize| if j < k { factor[(first + j) * cols + first + k] } else { 0.0 };
            Block {
                first,
                before: Tiles::transposed(&kernels, pool, above, width, cols),
                within: (0..width * width).map(|at| entry(at / width, at % width)).collect(),
            }
        };
        let blocks = (0..cols).step_by(BLOCK).map(block).collect();
        Ok(Self { order, blocks, kernels })
    }

    /// Round up to 16 rows, the first of which is row `first` of its matrix.
    fn round_rows(&self, first: usize, values: &[f32], scales: &WeightScales, levels: &mut [i16]) {
        let cols = self.order.len();
        let grids = LaneGrids::new(scales, first, values.len() / cols, cols);
        let mut weights = vec![0.0; cols * PANEL];
        side_by_side(values, cols, &mut weights);
        let mut errors = vec![0.0; cols * PANEL];
        let mut handed_on = [0.0; BLOCK * PANEL];
        for block in &self.blocks {
            let width = block.before.rows();
            block.before.product(&self.kernels, 0..width, &errors[..block.first * PANEL], &mut handed_on);
            for k in 0..width {
                let (before, own) = errors[block.first * PANEL..].split_at_mut(k * PANEL);
                let mut target = [0.0; PANEL];
                target.copy_from_slice(&handed_on[k * PANEL..][..PANEL]);
                for (&part, errors) in block.within[k * width..].iter().zip(before.chunks_exact(PANEL)) {
                    target.iter_mut().zip(errors).for_each(|(target, error)| *target += part * error);
                }
                let col = self.order[block.first + k];
                let weights = &weights[col * PANEL..][..PANEL];
                let grid = &grids.runs[col / grids.length];
                for lane in 0..PANEL {
                    let wanted = (weights[lane] + target[lane]) * grid.inverse[lane];
                    let level = round_to_whole(wanted.max(grids.lo).min(grids.hi));
                    own[lane] = weights[lane] - level * grid.scale[lane];
                    if let Some(to) = levels.get_mut(lane * cols + col) {
                        *to = (level as i32 + grids.zero_point) as i16;
                    }
                }
            }
        }
    }
}

/// Grids of 16 rows side by side.
struct LaneGrids {
    /// Inputs that share a grid.
    length: usize,
    runs: Vec<LaneScales>,
    /// Smallest and largest integer, seen from the one that means 0.
    lo: f32,
    hi: f32,
    zero_point: i32,
}

struct LaneScales {
    scale: [f32; PANEL],
    inverse: [f32; PANEL],
}

impl LaneGrids {
    fn new(scales: &WeightScales, first: usize, rows: usize, cols: usize) -> Self {
        let length = scales.run_length(cols);
        let run = |col: usize| {
            // Lanes beyond the last row hold zeros, on any grid.
            let scale = std::array::from_fn(|lane| scales.grid(first + lane.min(rows - 1), col).scale);
            LaneScales { scale, inverse: scale.map(|scale| 1.0 / scale) }
        };
        let any = scales.grid(first, 0);
        Self {
            length,
            runs: (0..cols).step_by(length).map(run).collect(),
            lo: (any.qmin - any.zero_point) as f32,
            hi: (any.qmax - any.zero_point) as f32,
            zero_point: any.zero_point,
        }
    }
}

/// `R[j][k] / R[k][k]` above the diagonal of the upper triangular `R` with `R Rᵀ = H + damping · mean(diag H) · 1`, in the
/// given order of inputs; below, anything.
fn scaled_factor(moments: &InputMoments, order: &[usize], damping: f32, pool: &Pool) -> Result<Vec<f32>> {
    let cols = order.len();
    let squares = moments.diagonal();
    let mean = squares.iter().sum::<f64>() / cols as f64;
    let unit = if mean > 0.0 { 1.0 / mean } else { 0.0 };
    // Backwards, because the usual factor is lower triangular.
    let input = |at: usize| order[cols - 1 - at];
    let mut factor = vec![0.0; cols * cols];
    pool.for_each_chunk(&mut factor, cols, &|i, row| {
        for (j, value) in row[..=i].iter_mut().enumerate() {
            *value = moments.get(input(i), input(j)) * unit;
        }
        // An input that was always 0 has nothing to correct and cannot correct anything.
        let square = if squares[input(i)] > 0.0 { row[i] } else { 1.0 };
        row[i] = square + f64::from(damping);
    });
    cholesky(&mut factor, cols, pool).map_err(|at| {
        let (input, rows) = (input(at), moments.rows());
        Error::invalid(format!(
            "feedback cannot be computed: among {rows} rows of inputs, input {input} is determined by others; use a damping \
             above {damping} (0.01 is usual), or more calibration data"
        ))
    })?;
    let mut scaled = vec![0.0; cols * cols];
    pool.for_each_chunk(&mut scaled, cols, &|j, row| {
        let line = &factor[(cols - 1 - j) * cols..][..cols];
        for (k, value) in row.iter_mut().enumerate().skip(j) {
            let diagonal = (cols - 1 - k) * (cols + 1);
            *value = (line[cols - 1 - k] / factor[diagonal]) as f32;
        }
    });
    Ok(scaled)
}

/// The lower triangular `L` with `L Lᵀ = a` in place of the lower triangle of `a`, `[n, n]`. The error is the first index at
/// which `a` is not positive definite.
fn cholesky(a: &mut [f64], n: usize, pool: &Pool) -> Result<(), usize> {
    for first in (0..n).step_by(FACTOR_BLOCK) {
        let width = FACTOR_BLOCK.min(n - first);
        let (done, below) = a.split_at_mut((first + width) * n);
        factor_block(&mut done[first * n..], n, first, width)?;
        let square = &done[first * n..];
        // Rows below: their part of these columns, by substitution; then transposed, for the product that follows.
        pool.for_each_chunk(below, n, &|_, row| {
            for k in 0..width {
                let solved = &line(square, n, k)[first..first + k];
                let sum: f64 = solved.iter().zip(&row[first..]).map(|(l, x)| l * x).sum();
                row[first + k] = (row[first + k] - sum) / square[k * n + first + k];
            }
        });
        let rest = n - first - width;
        let mut across = vec![0.0; width * rest];
        for (at, row) in below.chunks_exact(n).enumerate() {
            (0..width).for_each(|k| across[k * rest + at] = row[first + k]);
        }
        pool.for_each_chunk(below, n, &|at, row| {
            let (own, tail) = row.split_at_mut(first + width);
            subtract_products(&own[first..], &across, rest, &mut tail[..=at]);
        });
    }
    Ok(())
}

/// Row `row` of lines of `n` values.
fn line(lines: &[f64], n: usize, row: usize) -> &[f64] {
    &lines[row * n..(row + 1) * n]
}

/// Factor the `width` columns from `first` of as many `lines`, the first of which is row `first` of the matrix.
fn factor_block(lines: &mut [f64], n: usize, first: usize, width: usize) -> Result<(), usize> {
    for i in 0..width {
        for j in 0..=i {
            let (a, b) = (&line(lines, n, i)[first..first + j], &line(lines, n, j)[first..first + j]);
            let sum: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            let value = lines[i * n + first + j] - sum;
            if i != j {
                lines[i * n + first + j] = value / lines[j * n + first + j];
            } else if value > SINGULAR {
                lines[i * n + first + j] = value.sqrt();
            } else {
                return Err(first + i);
            }
        }
    }
    Ok(())
}

/// `row[j] -= Σ_k own[k] · across[k][j]`, lines of `across` `stride` values apart.
fn subtract_products(own: &[f64], across: &[f64], stride: usize, row: &mut [f64]) {
    let count = row.len();
    // Four at a time: the row is read and written a quarter as often.
    for (own, lines) in own.chunks(4).zip(across.chunks(4 * stride)) {
        match own {
            &[a, b, c, d] => {
                let at = |k: usize| &lines[k * stride..][..count];
                let lines = at(0).iter().zip(at(1)).zip(at(2).iter().zip(at(3)));
                for (value, ((w, x), (y, z))) in row.iter_mut().zip(lines) {
                    *value -= (a * w + b * x) + (c * y + d * z);
                }
            }
            few => {
                for (own, line) in few.iter().zip(lines.chunks_exact(stride)) {
                    row.iter_mut().zip(line).for_each(|(value, across)| *value -= own * across);
                }
            }
        }
    }
}
