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
        let mut found = feedback.round_rows(first, values, scales, levels);
        let nearest = nearest_rows(first, values, cols, scales);
        let plain = metric.of_rows(first, values, scales, &nearest);
        // Feedback knows what its error is at most. That is nearly always enough to see that it is the lesser one.
        if plain.iter().zip(&found).any(|(plain, found)| plain < found) {
            found = metric.of_rows(first, values, scales, levels);
        }
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
    /// `R[k][k]²` in that order.
    pivots: Vec<f32>,
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
        let (factor, pivots) = scaled_factor(moments, &order, damping, pool)?;
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
        Ok(Self { order, pivots, blocks, kernels })
    }

    /// Round up to 16 rows, the first of which is row `first` of its matrix. Returns what [`OutputError`] is at most:
    /// `‖e R‖²`, which counts the damping too.
    fn round_rows(&self, first: usize, values: &[f32], scales: &WeightScales, levels: &mut [i16]) -> [f64; PANEL] {
        let cols = self.order.len();
        let grids = LaneGrids::new(scales, first, values.len() / cols, cols);
        let mut weights = vec![0.0; cols * PANEL];
        side_by_side(values, cols, &mut weights);
        let mut errors = vec![0.0; cols * PANEL];
        let mut handed_on = [0.0; BLOCK * PANEL];
        let mut squares = [0.0; PANEL];
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
                let (col, pivot) = (self.order[block.first + k], self.pivots[block.first + k]);
                let weights = &weights[col * PANEL..][..PANEL];
                let grid = &grids.runs[col / grids.length];
                for lane in 0..PANEL {
                    let wanted = weights[lane] + target[lane];
                    let level = round_to_whole((wanted * grid.inverse[lane]).max(grids.lo).min(grids.hi));
                    own[lane] = weights[lane] - level * grid.scale[lane];
                    let left = wanted - level * grid.scale[lane];
                    squares[lane] += f64::from(left * left * pivot);
                    if let Some(to) = levels.get_mut(lane * cols + col) {
                        *to = (level as i32 + grids.zero_point) as i16;
                    }
                }
            }
        }
        squares
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
/// given order of inputs, and `R[k][k]²`. `H` is divided by the mean of its diagonal, as in [`OutputError`].
fn scaled_factor(moments: &InputMoments, order: &[usize], damping: f32, pool: &Pool) -> Result<(Vec<f32>, Vec<f32>)> {
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
    let pivots = (0..cols).map(|k| factor[(cols - 1 - k) * (cols + 1)].powi(2) as f32).collect();
    Ok((scaled, pivots))
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

#[cfg(test)]
mod tests {
    use super::super::metric::tests::{inputs, moments_of, noise, output_error};
    use super::*;
    use crate::quantize::{QuantDtype, QuantizedWeight, Rounding, WeightGranularity, WeightOptions, quantize_weight};
    use proptest::prelude::*;

    const GRANULARITIES: [WeightGranularity; 3] =
        [WeightGranularity::PerTensor, WeightGranularity::PerChannel, WeightGranularity::PerBlock(8)];

    fn fit(
        x: &[f32],
        values: &[f32],
        cols: usize,
        granularity: WeightGranularity,
        damping: f32,
    ) -> Result<QuantizedWeight> {
        let options = WeightOptions { rounding: Rounding::Gptq { damping }, ..WeightOptions::default() };
        let (moments, shape) = (moments_of(x, cols), (values.len() / cols, cols));
        quantize_weight(values, shape, QuantDtype::A16W4, granularity, &options, Some(&moments), &Pool::new(2))
    }

    fn nearest(values: &[f32], cols: usize, granularity: WeightGranularity) -> QuantizedWeight {
        QuantizedWeight::nearest(values, (values.len() / cols, cols), QuantDtype::A16W4, granularity).expect("fits")
    }

    fn total(x: &[f32], values: &[f32], weight: &QuantizedWeight) -> f64 {
        (0..weight.shape().0).map(|row| output_error(x, values, weight, row)).sum()
    }

    #[test]
    fn later_weights_correct_earlier_ones() {
        let cols = 160;
        let (x, values) = (inputs(400, cols, 1), noise(33 * cols, 2));
        for granularity in GRANULARITIES {
            let found = fit(&x, &values, cols, granularity, 0.01).unwrap();
            let plain = nearest(&values, cols, granularity);
            assert_eq!(found.scales(), plain.scales(), "scales are fixed beforehand");
            let (found, plain) = (total(&x, &values, &found), total(&x, &values, &plain));
            assert!(found < 0.7 * plain, "{granularity:?}: {found} {plain}");
        }
    }

    /// GPTQ as it is usually written: after each weight the others are moved by a row of the Cholesky factor of the inverse.
    fn textbook(values: &[f32], scales: &WeightScales, moments: &InputMoments, damping: f64) -> Vec<i16> {
        let n = moments.cols();
        let squares = moments.diagonal();
        let mean = squares.iter().sum::<f64>() / n as f64;
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&a, &b| squares[b].total_cmp(&squares[a]));
        let entry = |i: usize, j: usize| {
            let value = moments.get(order[i], order[j]) / mean;
            let dead = i == j && squares[order[i]] == 0.0;
            value + if i == j { damping } else { 0.0 } + if dead { 1.0 } else { 0.0 }
        };
        // Inverse by elimination.
        let mut h: Vec<Vec<f64>> = (0..n).map(|i| (0..n).map(|j| entry(i, j)).collect()).collect();
        let mut inverse: Vec<Vec<f64>> =
            (0..n).map(|i| (0..n).map(|j| if i == j { 1.0 } else { 0.0 }).collect()).collect();
        for i in 0..n {
            let pivot = h[i][i];
            for j in 0..n {
                h[i][j] /= pivot;
                inverse[i][j] /= pivot;
            }
            for other in (0..n).filter(|&other| other != i) {
                let part = h[other][i];
                for j in 0..n {
                    h[other][j] -= part * h[i][j];
                    inverse[other][j] -= part * inverse[i][j];
                }
            }
        }
        let mut levels = vec![0; values.len()];
        for (row, values) in values.chunks_exact(n).enumerate() {
            let mut weights: Vec<f64> = order.iter().map(|&col| values[col].into()).collect();
            let mut inverse = inverse.clone();
            for k in 0..n {
                let grid = scales.grid(row, order[k]);
                let level = grid.quantize(weights[k] as f32);
                levels[row * n + order[k]] = level as i16;
                let error = (weights[k] - f64::from(grid.dequantize(level))) / inverse[k][k];
                for j in k + 1..n {
                    weights[j] -= error * inverse[k][j];
                }
                // What is left to choose from: the inverse without input k.
                for i in k + 1..n {
                    for j in k + 1..n {
                        inverse[i][j] -= inverse[i][k] * inverse[k][j] / inverse[k][k];
                    }
                }
            }
        }
        levels
    }

    #[test]
    fn integers_are_those_of_the_textbook() {
        let cols = 72;
        let (x, values) = (inputs(200, cols, 5), noise(20 * cols, 6));
        let moments = moments_of(&x, cols);
        let feedback = Feedback::new(&moments, 0.01, &Pool::new(1)).unwrap();
        for granularity in GRANULARITIES {
            let plain = nearest(&values, cols, granularity);
            let mut found = vec![0; values.len()];
            for (panel, (levels, values)) in found.chunks_mut(PANEL * cols).zip(values.chunks(PANEL * cols)).enumerate()
            {
                feedback.round_rows(panel * PANEL, values, plain.scales(), levels);
            }
            let expected = textbook(&values, plain.scales(), &moments, 0.01);
            // A value between two integers may go the other way in single precision, and others of its row with it.
            let rows = found.chunks_exact(cols).zip(expected.chunks_exact(cols));
            let equal = rows.filter(|(found, expected)| found == expected).count();
            assert!(equal >= 18, "{granularity:?}: {equal} of 20 rows");
        }
    }

    #[test]
    fn weights_on_the_grid_stay_as_they_are() {
        let cols = 24;
        let levels: Vec<i16> = (0..20 * cols).map(|at| ((at * 11) % 15) as i16 - 7).collect();
        let values: Vec<f32> = levels.iter().map(|&level| f32::from(level) * 0.25).collect();
        let found = fit(&inputs(60, cols, 3), &values, cols, WeightGranularity::PerTensor, 0.01).unwrap();
        assert_eq!(found.levels(), levels);
    }

    #[test]
    fn inputs_that_tell_little_are_no_obstacle() {
        let cols = 24;
        let values = noise(20 * cols, 8);
        for granularity in GRANULARITIES {
            let silent = fit(&vec![0.0; 3 * cols], &values, cols, granularity, 0.01).unwrap();
            assert_eq!(silent, nearest(&values, cols, granularity), "inputs of zeros tell nothing");
            let silent = fit(&vec![0.0; 3 * cols], &values, cols, granularity, 0.0).unwrap();
            assert_eq!(silent, nearest(&values, cols, granularity));
            for x in [inputs(1, cols, 9), vec![1.0; 50 * cols], vec![1e18; cols]] {
                let (found, plain) =
                    (fit(&x, &values, cols, granularity, 0.01).unwrap(), nearest(&values, cols, granularity));
                assert!(total(&x, &values, &found) <= total(&x, &values, &plain) * 1.0001);
            }
        }
        let error =
            fit(&vec![1.0; 50 * cols], &values, cols, WeightGranularity::PerChannel, 0.0).unwrap_err().to_string();
        assert!(error.contains("50 rows") && error.contains("a damping above 0"), "{error}");
    }

    #[test]
    fn factors_multiply_to_the_matrix() {
        for n in [1, 31, 32, 33, 100] {
            let x = inputs(2 * n + 8, n, 4);
            let moments = moments_of(&x, n);
            let full: Vec<f64> =
                (0..n * n).map(|at| moments.get(at / n, at % n) + if at % (n + 1) == 0 { 1.0 } else { 0.0 }).collect();
            let mut factor = full.clone();
            cholesky(&mut factor, n, &Pool::new(2)).unwrap();
            for (i, j) in (0..n).flat_map(|i| (0..=i).map(move |j| (i, j))) {
                let found: f64 = (0..=j).map(|k| factor[i * n + k] * factor[j * n + k]).sum();
                assert!((found - full[i * n + j]).abs() < 1e-9 * full[i * n + i].max(full[j * n + j]), "{n} {i} {j}");
            }
        }
        let mut singular = vec![1.0; 40 * 40];
        assert_eq!(cholesky(&mut singular, 40, &Pool::new(1)), Err(1));
        let mut broken = vec![f64::NAN; 4];
        assert_eq!(cholesky(&mut broken, 2, &Pool::new(1)), Err(0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn no_row_is_worse_than_with_the_nearest_integers(
            seed in any::<u64>(), samples in 1usize..80, which in 0usize..3, damping in 0.001f32..0.2, outlier in 1f32..50.0,
        ) {
            let cols = 40;
            let (mut x, values) = (inputs(samples, cols, seed), noise(18 * cols, !seed));
            x[seed as usize % cols] *= outlier;
            let plain = nearest(&values, cols, GRANULARITIES[which]);
            let found = fit(&x, &values, cols, GRANULARITIES[which], damping).unwrap();
            for row in 0..18 {
                let (found, plain) = (output_error(&x, &values, &found, row), output_error(&x, &values, &plain, row));
                prop_assert!(found <= plain * 1.001 + 1e-6, "row {}: {} {}", row, found, plain);
            }
        }
    }
}
