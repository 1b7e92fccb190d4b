//! The two products of attention, for several query rows at once.

use super::Kernels;
use super::gemm::Product;
use std::marker::PhantomData;

/// A row-major f32 matrix whose rows are `stride` values apart.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

/// As [`Matrix`], to be written.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

fn check(len: usize, rows: usize, cols: usize, stride: usize) {
    let last = rows.saturating_sub(1).checked_mul(stride).and_then(|start| start.checked_add(cols));
    let fits = rows == 0 || last.is_some_and(|end| end <= len) && (cols <= stride || rows == 1);
    assert!(fits, "{len} values do not hold {rows} rows of {cols}, {stride} apart");
}

impl<'a> Matrix<'a> {
    /// `rows` rows of `cols` values, `stride` apart, from the start of `data`.
    ///
    /// # Panics
    /// If `data` is too short or rows overlap.
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Matrix { data, rows, cols, stride }
    }
}

impl<'a> MatrixMut<'a> {
    /// `rows` rows of `cols` values, `stride` apart, from the start of `data`.
    ///
    /// # Panics
    /// If `data` is too short or rows overlap.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        MatrixMut { data, rows, cols, stride }
    }
}

impl Kernels {
    /// `out [m, n] = scale · q [m, D] · k [D, n]`: scores of m query rows against n cached positions (keys are stored
    /// one dimension a row). Query heads that share a key head are best put together in one call.
    ///
    /// # Panics
    /// If the shapes do not fit each other.
    pub fn attention_scores(&self, q: Matrix<'_>, k: Matrix<'_>, scale: f32, out: MatrixMut<'_>) {
        self.product(q, k, scale, false, out);
    }

    /// `out [m, D] = p [m, n] · v [n, D]`, or `out +=` with `accumulate`.
    ///
    /// # Panics
    /// If the shapes do not fit each other.
    pub fn attention_weighted_sum(&self, p: Matrix<'_>, v: Matrix<'_>, accumulate: bool, out: MatrixMut<'_>) {
        self.product(p, v, 1.0, accumulate, out);
    }

    fn product(&self, a: Matrix<'_>, b: Matrix<'_>, alpha: f32, accumulate: bool, c: MatrixMut<'_>) {
        let shapes = (a.rows, a.cols, b.cols);
        assert_eq!(shapes, (c.rows, b.rows, c.cols), "shapes of a product");
        let product = Product {
            a: a.data.as_ptr(),
            a_stride: a.stride,
            b: b.data.as_ptr().cast(),
            b_stride: b.stride,
            c: c.data.as_mut_ptr(),
            c_stride: c.stride,
            m: a.rows,
            n: b.cols,
            k: a.cols,
            alpha,
            accumulate,
            borrows: PhantomData,
        };
        // SAFETY: `Matrix::new` checked each operand's shape against its slice, C is borrowed mutably and so overlaps
        // none; a table is only handed out on a processor that has its instructions.
        unsafe { (self.table.product)(product) }
    }
}
