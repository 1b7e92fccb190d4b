//! The input of linear layers, in the form the weight format's kernels want.
//!
//! Integer formats get 16-bit activations, as the `16a8w` and `16a4w` graphs of a phone do: with 8 bits, whose error is
//! hundreds of times larger, a small model answers differently. Byte products are what processors are fast at, so a
//! value is kept as two digits in base [`BASE`], each in -127..=127, and the dot products of the digits are put together
//! afterwards. Where many rows are multiplied and the processor has a product of 16-bit words, they stay words: same
//! numbers, same results.
//!
//! Many rows are stored in *tiles*, as many rows as a kernel computes at once, in the order in which it reads them: first
//! the columns of the first slice of all tiles, then those of the next slice, see [`super::blocked`].

use super::blocked::{SLICE, SLICE_GROUPS, WordKernels};
use super::{Disjoint, Kernels};
use crate::engine::cpu::pool::Pool;
use crate::formats::{GROUP, groups};

/// `q = BASE · high + low`. Odd and one less than a byte's values, so that no digit is -128, whose sign cannot be turned.
pub(super) const BASE: i32 = 255;
/// Largest magnitude of a quantized value: both digits 127.
pub(super) const LARGEST: f32 = 32512.0;
/// Digits of a group: 32 high ones, then 32 low ones.
pub(super) const DIGITS: usize = 2 * GROUP;

/// Rows from which f32 activations are stored in tiles: fewer stay in the caches without being cut into blocks.
const FLOAT_TILES_FROM: usize = 128;
/// Rows from which 16-bit activations are stored in tiles: for fewer, unpacking weights to words takes too long.
const WORD_TILES_FROM: usize = 8;
/// Values below which preparing takes less time than waking a thread.
const SERIAL_BELOW: usize = 4096;

/// How prepared activations are stored.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// f32, row after row.
    #[default]
    Floats,
    /// f32, tiles of so many rows: `[slice][tile][column of the slice][row]`.
    FloatTiles(usize),
    /// 16-bit integers as byte digits, see [`IntRows`].
    Digits,
    /// 16-bit integers as words, tiles of so many rows, see [`WordTiles`].
    WordTiles(usize),
}

/// Rows of activations, prepared once and multiplied with several matrices. Reusable: memory is kept between calls.
#[derive(Debug, Default)]
pub struct Activations {
    rows: usize,
    cols: usize,
    form: Form,
    floats: Vec<f32>,
    digits: Vec<i8>,
    words: Vec<i16>,
    scales: Vec<f32>,
    sums: Vec<f32>,
}

/// 16-bit rows: for group `g` and row `t` the digits are at `(g · rows + t) · DIGITS`, the scale and the sum at
/// `g · rows + t`. Padding columns are zero.
#[derive(Debug, Clone, Copy)]
pub(super) struct IntRows<'a> {
    /// Row count.
    pub rows: usize,
    /// `x ≈ scale · (BASE · high + low)`.
    pub digits: &'a [i8],
    /// Largest magnitude of the group / [`LARGEST`].
    pub scales: &'a [f32],
    /// `scale · Σ q` of the group: what a weight group's minimum is multiplied with.
    pub sums: &'a [f32],
}

/// 16-bit rows in tiles of `R`: `[slice][tile][group of the slice]`, of each group words `[16 pairs of columns][R][2]`,
/// scales and sums `[R]`. Padding columns are zero, rows beyond the last hold anything.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordTiles<'a> {
    /// `x ≈ scale · word`.
    pub words: &'a [i16],
    /// As in [`IntRows`].
    pub scales: &'a [f32],
    /// As in [`IntRows`].
    pub sums: &'a [f32],
}

impl Activations {
    /// Nothing prepared yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Take `rows` rows of `cols` values from `x`, for products with the same `kernels`. With `integer` they are
    /// quantized to 16 bits in groups of 32 (scale = largest magnitude / 32512, round to nearest even), for
    /// [`crate::formats::WeightFormat::is_integer`] formats; otherwise they stay f32.
    ///
    /// # Panics
    /// If `x` does not hold `rows · cols` values.
    pub fn prepare(&mut self, kernels: &Kernels, pool: &Pool, integer: bool, x: &[f32], rows: usize, cols: usize) {
        assert_eq!(x.len(), rows * cols, "activations of shape [{rows}, {cols}]");
        (self.rows, self.cols) = (rows, cols);
        self.form = match (integer, kernels.words()) {
            (false, _) if rows >= FLOAT_TILES_FROM => self.tile(pool, x, kernels.tile_rows()),
            (false, _) => self.copy(x),
            (true, Some(words)) if rows >= WORD_TILES_FROM => self.quantize_to_tiles(words, pool, x),
            (true, _) => self.quantize(kernels, pool, x),
        };
    }

    /// Row count.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Column count.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Whether the rows are 16-bit integers.
    pub fn is_integer(&self) -> bool {
        matches!(self.form, Form::Digits | Form::WordTiles(_))
    }

    /// Rows of a tile, if the rows are in tiles.
    pub(super) fn tile_rows(&self) -> Option<usize> {
        match self.form {
            Form::FloatTiles(rows) | Form::WordTiles(rows) => Some(rows),
            Form::Floats | Form::Digits => None,
        }
    }

    /// f32 values, in rows or tiles.
    pub(super) fn floats(&self) -> &[f32] {
        &self.floats
    }

    pub(super) fn integers(&self) -> IntRows<'_> {
        let n = groups(self.cols) * self.rows;
        IntRows {
            rows: self.rows,
            digits: &self.digits[..n * DIGITS],
            scales: &self.scales[..n],
            sums: &self.sums[..n],
        }
    }

    pub(super) fn words(&self) -> WordTiles<'_> {
        WordTiles { words: &self.words, scales: &self.scales, sums: &self.sums }
    }

    fn copy(&mut self, x: &[f32]) -> Form {
        self.floats.clear();
        self.floats.extend_from_slice(x);
        Form::Floats
    }

    fn tile(&mut self, pool: &Pool, x: &[f32], height: usize) -> Form {
        let (rows, cols) = (self.rows, self.cols);
        let lines = rows.div_ceil(height) * height;
        grow(&mut self.floats, lines * cols);
        for (first, slab) in (0..cols).step_by(SLICE).zip(self.floats[..lines * cols].chunks_mut(SLICE * lines)) {
            let width = SLICE.min(cols - first);
            pool.for_each_chunk(slab, height * width, &|number, tile| {
                let own = number * height..rows.min((number + 1) * height);
                for (lane, row) in own.enumerate() {
                    let from = &x[row * cols + first..][..width];
                    tile[lane..].iter_mut().step_by(height).zip(from).for_each(|(to, &x)| *to = x);
                }
            });
        }
        Form::FloatTiles(height)
    }

    fn quantize(&mut self, kernels: &Kernels, pool: &Pool, x: &[f32]) -> Form {
        let (rows, cols) = (self.rows, self.cols);
        let n = groups(cols) * rows;
        grow(&mut self.digits, n * DIGITS);
        grow(&mut self.scales, n);
        grow(&mut self.sums, n);
        let digits = Disjoint::new(&mut self.digits);
        let scales = Disjoint::new(&mut self.scales);
        let sums = Disjoint::new(&mut self.sums);
        let row = |t: usize| {
            for (g, group) in x[t * cols..(t + 1) * cols].chunks(GROUP).enumerate() {
                let at = g * rows + t;
                // SAFETY: `at` differs for every row and group and is below n, which all three hold.
                let (digits, scale, sum) =
                    unsafe { (digits.slice(at * DIGITS, DIGITS), scales.slice(at, 1), sums.slice(at, 1)) };
                (scale[0], sum[0]) = kernels.quantize_group(group, digits);
            }
        };
        if rows < 4 || rows * cols < SERIAL_BELOW {
            (0..rows).for_each(row);
        } else {
            pool.run(rows.div_ceil(4), &|task| (task * 4..rows.min(task * 4 + 4)).for_each(row));
        }
        Form::Digits
    }

    fn quantize_to_tiles(&mut self, kernels: &WordKernels, pool: &Pool, x: &[f32]) -> Form {
        let (rows, cols, height) = (self.rows, self.cols, kernels.tile_rows);
        let (tiles, groups) = (rows.div_ceil(height), groups(cols));
        let lines = groups * tiles * height;
        grow(&mut self.words, lines * GROUP);
        grow(&mut self.scales, lines);
        grow(&mut self.sums, lines);
        let words = Disjoint::new(&mut self.words);
        let scales = Disjoint::new(&mut self.scales);
        let sums = Disjoint::new(&mut self.sums);
        let task = |number: usize| {
            let (first_group, tile) = (number / tiles * SLICE_GROUPS, number % tiles);
            let count = SLICE_GROUPS.min(groups - first_group);
            let (start, lines) = ((first_group * tiles + tile * count) * height, count * height);
            // SAFETY: every slice of a tile has its own part of the three.
            let (words, scales, sums) = unsafe {
                (words.slice(start * GROUP, lines * GROUP), scales.slice(start, lines), sums.slice(start, lines))
            };
            let columns = first_group * GROUP..cols.min((first_group + count) * GROUP);
            for (lane, row) in (tile * height..rows.min((tile + 1) * height)).enumerate() {
                let groups = x[row * cols..][columns.clone()].chunks(GROUP);
                for (g, (group, words)) in groups.zip(words.chunks_exact_mut(GROUP * height)).enumerate() {
                    let mut quantized = [0i16; GROUP];
                    let at = g * height + lane;
                    (scales[at], sums[at]) = kernels.quantize_group(group, &mut quantized);
                    let to = words.chunks_exact_mut(2 * height).zip(quantized.chunks_exact(2));
                    to.for_each(|(to, pair)| to[2 * lane..2 * lane + 2].copy_from_slice(pair));
                }
            }
        };
        let tasks = groups.div_ceil(SLICE_GROUPS) * tiles;
        if rows * cols < SERIAL_BELOW {
            (0..tasks).for_each(task);
        } else {
            pool.run(tasks, &task);
        }
        Form::WordTiles(height)
    }

    /// The rows as products see them, quantized ones decoded again.
    #[cfg(test)]
    pub(super) fn decoded(&self) -> Vec<f32> {
        let value = |row: usize, column: usize| match self.form {
            Form::Floats => self.floats[row * self.cols + column],
            Form::FloatTiles(height) => {
                let (lines, first) = (self.rows.next_multiple_of(height), column / SLICE * SLICE);
                let tile = first * lines + row / height * height * SLICE.min(self.cols - first);
                self.floats[tile + (column - first) * height + row % height]
            }
            Form::Digits => {
                let (int, at) = (self.integers(), column / GROUP * self.rows + row);
                let digit = |number: usize| i32::from(int.digits[at * DIGITS + number * GROUP + column % GROUP]);
                int.scales[at] * (BASE * digit(0) + digit(1)) as f32
            }
            Form::WordTiles(height) => {
                let (tiles, group) = (self.rows.div_ceil(height), column / GROUP);
                let first = group / SLICE_GROUPS * SLICE_GROUPS;
                let tile = first * tiles + row / height * SLICE_GROUPS.min(groups(self.cols) - first);
                let line = (tile + group - first) * height;
                let pair = line * GROUP + column % GROUP / 2 * 2 * height;
                self.scales[line + row % height] * f32::from(self.words[pair + row % height * 2 + column % 2])
            }
        };
        (0..self.rows)
            .flat_map(|row| (0..self.cols).map(move |column| (row, column)))
            .map(|(r, c)| value(r, c))
            .collect()
    }
}

/// Make `values` at least `len` long.
fn grow<T: Copy + Default>(values: &mut Vec<T>, len: usize) {
    if values.len() < len {
        values.resize(len, T::default());
    }
}
