//! The arithmetic of the CPU engine, once for every instruction set.
//!
//! A [`Kernels`] value is chosen when a component is loaded and handed down; there is no global choice. Integer dot
//! products are exact and equal on all sets; float results differ in the last bits only.
//!
//! - `vector`, `gemm`: float kernels, generic over a register type.
//! - `scalar`, `avx2`, `avx512`, `neon`: integer kernels and the instances of the generic ones.
//! - `scalar_words`, `avx2_words`: integer kernels for many rows.
//! - `activations`, `linear`, `attention`: what the engine calls; `blocked` is `linear` for many rows.

mod activations;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_words;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocked;
mod gemm;
mod linear;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
mod scalar_words;
#[cfg(test)]
mod tests;
mod vector;

pub use activations::Activations;
pub use attention::{Matrix, MatrixMut};
pub use linear::LinearJob;

/// Columns of a panel: rows of a weight matrix, or queries.
pub use crate::formats::PANEL_ROWS as PANEL;

use activations::IntRows;
use blocked::WordKernels;
use gemm::{Finish, Product, Tiled};
use linear::Tile;
use std::marker::PhantomData;

/// Activation function of a feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nonlinearity {
    /// `x · sigmoid(x)`.
    Silu,
    /// `x · Φ(x)`, the exact GELU.
    Gelu,
    /// GELU by its tanh approximation.
    GeluTanh,
}

/// `(gate or a, up or b, out)`, equal lengths.
type ZipFn = unsafe fn(&[f32], &[f32], &mut [f32]);
/// `(x, weight, bias, epsilon, out)`, equal lengths.
type LayerNormFn = unsafe fn(&[f32], &[f32], &[f32], f32, &mut [f32]);
/// `(panel, x, first row of x, rows of x, results)`.
type IntPanelFn = unsafe fn(&[u8], IntRows<'_>, usize, usize, &mut Tile);

/// The functions of one instruction set. Calling one needs a processor that has it.
struct Table {
    name: &'static str,
    rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    layer_norm: LayerNormFn,
    activate: unsafe fn(&mut [f32], Nonlinearity),
    silu_mul: ZipFn,
    gelu_tanh_mul: ZipFn,
    gelu_mul: ZipFn,
    add: ZipFn,
    scale: unsafe fn(&mut [f32], f32),
    soft_cap: unsafe fn(&mut [f32], f32),
    /// `(x, smallest and largest element)`
    range: unsafe fn(&[f32], &mut [f32; 2]),
    softmax: unsafe fn(&mut [f32]),
    /// `([n][16], scale, 16 sums)`.
    softmax_panel: unsafe fn(&mut [f32], f32, &mut [f32; PANEL]),
    product: unsafe fn(Product<'_>),
    panel_f32: unsafe fn(Product<'_>),
    panel_f16: unsafe fn(Product<'_>),
    panel_bf16: unsafe fn(Product<'_>),
    tile_rows: usize,
    tiled: unsafe fn(Tiled<'_>),
    finish: unsafe fn(Finish<'_>),
    /// `(bytes, their values)`, a multiple of 16.
    widen_f16: unsafe fn(&[u8], &mut [f32]),
    widen_bf16: unsafe fn(&[u8], &mut [f32]),
    panel_w8: IntPanelFn,
    panel_w4: IntPanelFn,
    /// `(up to 32 values, their 32 quantized values)` → scale, `scale · Σ q`.
    quantize_group: unsafe fn(&[f32], &mut [i8]) -> (f32, f32),
    /// Integer kernels for many rows, if they beat `panel_w8` and `panel_w4` there.
    words: Option<&'static WordKernels>,
}

/// Define `TABLE` for a register type: the generic kernels compiled with the given target features, and the module's
/// own `panel_w8`, `panel_w4`, `quantize_group` and `WORDS`.
macro_rules! instantiate {
    ($name:literal, $vector:ty $(, $features:literal)?) => {
        /// The kernels of this instruction set.
        pub(in crate::engine::cpu::kernels) static TABLE: crate::engine::cpu::kernels::Table = crate::engine::cpu::kernels::Table {
            name: $name,
            rms_norm: generic::rms_norm,
            layer_norm: generic::layer_norm,
            activate: generic::activate,
            silu_mul: generic::silu_mul,
            gelu_tanh_mul: generic::gelu_tanh_mul,
            gelu_mul: generic::gelu_mul,
            add: generic::add,
            scale: generic::scale,
            soft_cap: generic::soft_cap,
            range: generic::range,
            softmax: generic::softmax,
            softmax_panel: generic::softmax_panel,
            product: generic::product,
            panel_f32: generic::product,
            panel_f16: generic::panel_f16,
            panel_bf16: generic::panel_bf16,
            tile_rows: <$vector as crate::engine::cpu::kernels::vector::Vector>::TILE_ROWS,
            tiled: generic::tiled,
            finish: generic::finish,
            widen_f16: generic::widen_f16,
            widen_bf16: generic::widen_bf16,
            panel_w8,
            panel_w4,
            quantize_group,
            words: WORDS,
        };

        mod generic {
            #[allow(unused_imports, reason = "the scalar instance needs no vector type")]
            use super::*;
            use crate::engine::cpu::kernels::{Nonlinearity, PANEL};
            use crate::engine::cpu::kernels::gemm::{self, Brain, Finish, Half, Product, Single, Tiled};
            use crate::engine::cpu::kernels::vector;

            crate::engine::cpu::kernels::instantiate!(@rows $vector, [$($features)?],
                rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]);
                layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]);
                activate(row: &mut [f32], function: Nonlinearity);
                silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]);
                gelu_tanh_mul(gate: &[f32], up: &[f32], out: &mut [f32]);
                gelu_mul(gate: &[f32], up: &[f32], out: &mut [f32]);
                add(a: &[f32], b: &[f32], out: &mut [f32]);
                scale(row: &mut [f32], factor: f32);
                soft_cap(row: &mut [f32], cap: f32);
                range(x: &[f32], range: &mut [f32; 2]);
                softmax(row: &mut [f32]);
            );
            crate::engine::cpu::kernels::instantiate!(@product $vector, [$($features)?],
                product Single; panel_f16 Half; panel_bf16 Brain;
            );
            crate::engine::cpu::kernels::instantiate!(@blocked $vector, [$($features)?]);
        }
    };
    (@rows $vector:ty, $features:tt, $($function:ident($($arg:ident: $type:ty),*);)*) => {
        $(crate::engine::cpu::kernels::instantiate!(@one $features,
            pub(super) unsafe fn $function($($arg: $type),*) {
                // SAFETY: the caller's processor has the features, see `Table`.
                unsafe { vector::$function::<$vector>($($arg),*) }
            }
        );)*
    };
    (@product $vector:ty, $features:tt, $($function:ident $source:ident;)*) => {
        $(crate::engine::cpu::kernels::instantiate!(@one $features,
            pub(super) unsafe fn $function(p: Product<'_>) {
                // SAFETY: the caller's processor has the features, see `Table`; operands as the caller promises.
                unsafe { gemm::product::<$vector, $source>(p) }
            }
        );)*
    };
    (@blocked $vector:ty, $features:tt) => {
        crate::engine::cpu::kernels::instantiate!(@one $features,
            pub(super) unsafe fn tiled(p: Tiled<'_>) {
                // SAFETY: the caller's processor has the features, see `Table`; operands as the caller promises.
                unsafe { gemm::tiled::<$vector, { gemm::vectors::<$vector>() }>(p) }
            }
        );
        crate::engine::cpu::kernels::instantiate!(@one $features,
            pub(super) unsafe fn softmax_panel(panel: &mut [f32], scale: f32, sums: &mut [f32; PANEL]) {
                // SAFETY: as for `tiled`.
                unsafe { vector::softmax_panel::<$vector, { gemm::vectors::<$vector>() }>(panel, scale, sums) }
            }
        );
        crate::engine::cpu::kernels::instantiate!(@one $features,
            pub(super) unsafe fn finish(f: Finish<'_>) {
                // SAFETY: as for `tiled`.
                unsafe { gemm::finish::<$vector>(f) }
            }
        );
        crate::engine::cpu::kernels::instantiate!(@one $features,
            pub(super) unsafe fn widen_f16(from: &[u8], to: &mut [f32]) {
                // SAFETY: as for `tiled`.
                unsafe { gemm::widen::<$vector, Half>(from, to) }
            }
        );
        crate::engine::cpu::kernels::instantiate!(@one $features,
            pub(super) unsafe fn widen_bf16(from: &[u8], to: &mut [f32]) {
                // SAFETY: as for `tiled`.
                unsafe { gemm::widen::<$vector, Brain>(from, to) }
            }
        );
    };
    (@one [], $function:item) => { $function };
    (@one [$features:literal], $function:item) => { #[target_feature(enable = $features)] $function };
}
use instantiate;

/// One instruction set's kernels, chosen once and passed by value.
#[derive(Clone, Copy)]
pub struct Kernels {
    table: &'static Table,
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernels").field(&self.name()).finish()
    }
}

impl Kernels {
    /// The fastest set this processor can run.
    pub fn detect() -> Self {
        Self::available()[0]
    }

    /// Plain Rust, on every processor.
    pub fn scalar() -> Self {
        Kernels { table: &scalar::TABLE }
    }

    /// Every set this processor can run, fastest first; the scalar one is last.
    pub fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if avx512::is_supported() {
                sets.push(Kernels { table: &avx512::TABLE });
            }
            if avx2::is_supported() {
                sets.push(Kernels { table: &avx2::TABLE });
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            if neon::dotprod::is_supported() {
                sets.push(Kernels { table: &neon::dotprod::TABLE });
            }
            sets.push(Kernels { table: &neon::plain::TABLE });
        }
        sets.push(Self::scalar());
        sets
    }

    /// Instruction set, e.g. `avx2`.
    pub fn name(&self) -> &'static str {
        self.table.name
    }

    /// `out = x / sqrt(mean(x²) + eps) · weight`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        same_length(x, weight, out);
        // SAFETY: a table is only handed out on a processor that has its instructions (so too below).
        unsafe { (self.table.rms_norm)(x, weight, eps, out) }
    }

    /// Layer normalization of one row: `out = (x - mean) / sqrt(variance + eps) · weight + bias`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn layer_norm(&self, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
        same_length(x, weight, out);
        same_length(x, bias, out);
        // SAFETY: see `rms_norm`.
        unsafe { (self.table.layer_norm)(x, weight, bias, eps, out) }
    }

    /// `row = function(row)`.
    pub fn activate(&self, row: &mut [f32], function: Nonlinearity) {
        // SAFETY: see `rms_norm`.
        unsafe { (self.table.activate)(row, function) }
    }

    /// `out = gate · sigmoid(gate) · up`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn silu_mul(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        same_length(gate, up, out);
        // SAFETY: see `rms_norm`.
        unsafe { (self.table.silu_mul)(gate, up, out) }
    }

    /// `out = gelu(gate) · up` with the tanh approximation of GELU.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gelu_tanh_mul(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        same_length(gate, up, out);
        // SAFETY: see `rms_norm`.
        unsafe { (self.table.gelu_tanh_mul)(gate, up, out) }
    }

    /// `out = gelu(gate) · up` with the exact (erf) GELU.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gelu_mul(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        same_length(gate, up, out);
        // SAFETY: see `rms_norm`.
        unsafe { (self.table.gelu_mul)(gate, up, out) }
    }

    /// `out = a + b`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add(&self, a: &[f32], b: &[f32], out: &mut [f32]) {
        same_length(a, b, out);
        // SAFETY: see `rms_norm`.
        unsafe { (self.table.add)(a, b, out) }
    }

    /// `row = row · factor`.
    pub fn scale(&self, row: &mut [f32], factor: f32) {
        // SAFETY: see `rms_norm`.
        unsafe { (self.table.scale)(row, factor) }
    }

    /// `row = cap · tanh(row / cap)`.
    pub fn soft_cap(&self, row: &mut [f32], cap: f32) {
        // SAFETY: see `rms_norm`.
        unsafe { (self.table.soft_cap)(row, cap) }
    }

    /// Smallest and largest element, NaN left out; infinity and minus infinity if there is none.
    pub fn range(&self, x: &[f32]) -> (f32, f32) {
        let mut range = [0.0; 2];
        // SAFETY: see `rms_norm`.
        unsafe { (self.table.range)(x, &mut range) };
        (range[0], range[1])
    }

    /// Softmax of one row; values 87 below the largest become exactly 0.
    pub fn softmax(&self, row: &mut [f32]) {
        // SAFETY: see `rms_norm`.
        unsafe { (self.table.softmax)(row) }
    }

    /// Softmax down each of 16 columns (`panel` is `[n][16]`) of `scale · panel`, but for the division: returns the sums
    /// to divide by. Values 87 below the largest become exactly 0.
    ///
    /// # Panics
    /// If `panel` is not whole rows of 16.
    pub fn softmax_panel(&self, panel: &mut [f32], scale: f32) -> [f32; PANEL] {
        assert!(panel.len().is_multiple_of(PANEL), "rows of {PANEL} values");
        let mut sums = [0.0; PANEL];
        // SAFETY: see `rms_norm`.
        unsafe { (self.table.softmax_panel)(panel, scale, &mut sums) };
        sums
    }

    /// Rows of a tile, see [`tiled_product`](Self::tiled_product).
    pub fn tile_rows(&self) -> usize {
        self.table.tile_rows
    }

    /// `out [rows, 16] = a [rows, k] · b [k, 16]`, or `out +=` with `accumulate`. `a` is in tiles of
    /// [`tile_rows`](Self::tile_rows) rows, each `[k][tile_rows]`; rows beyond the last may hold anything.
    ///
    /// # Panics
    /// If the lengths do not fit each other.
    pub fn tiled_product(&self, a: &[f32], b: &[f32], out: &mut [f32], accumulate: bool) {
        let (rows, k) = (out.len() / PANEL, b.len() / PANEL);
        let fits = out.len() == rows * PANEL && b.len() == k * PANEL;
        let lines = rows.next_multiple_of(self.tile_rows());
        assert!(fits && a.len() == lines * k, "{} values do not hold {lines} rows of {k}", a.len());
        let tiled = Tiled {
            a: a.as_ptr(),
            a_tile: k * self.tile_rows(),
            b: b.as_ptr(),
            c: out.as_mut_ptr(),
            c_stride: PANEL,
            rows,
            cols: PANEL,
            k,
            accumulate,
            borrows: PhantomData,
        };
        // SAFETY: see `rms_norm`; the lengths were compared, `out` is borrowed mutably and so overlaps nothing.
        unsafe { (self.table.tiled)(tiled) }
    }

    /// Quantize up to 32 values into 32; returns the scale and `scale · Σ q`.
    fn quantize_group(&self, x: &[f32], digits: &mut [i8]) -> (f32, f32) {
        assert!(x.len() <= crate::formats::GROUP && digits.len() == activations::DIGITS, "one group");
        // SAFETY: see `rms_norm`; the lengths are as the function wants them.
        unsafe { (self.table.quantize_group)(x, digits) }
    }
}

fn same_length(a: &[f32], b: &[f32], out: &[f32]) {
    assert!(a.len() == out.len() && b.len() == out.len(), "lengths {}, {}, {}", a.len(), b.len(), out.len());
}

/// A slice that several threads write to, each in its own part.
pub(crate) struct Disjoint<'a, T> {
    data: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose parts go to different threads, by the promise of `slice`.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(data: &'a mut [T]) -> Self {
        Disjoint { data: data.as_mut_ptr(), len: data.len(), borrow: PhantomData }
    }

    /// Where element `index` is.
    pub(crate) fn pointer(&self, index: usize) -> *mut T {
        debug_assert!(index <= self.len);
        self.data.wrapping_add(index)
    }

    /// Elements `start .. start + len`.
    ///
    /// # Safety
    /// They are inside the slice, and while the result lives no other part that overlaps is in use.
    #[allow(clippy::mut_from_ref, reason = "handing out disjoint parts is the purpose; `unsafe` says who checks")]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        debug_assert!(start <= self.len && len <= self.len - start);
        // SAFETY: inside and not aliased, as the caller promises; the borrow of the whole slice outlives `self`.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), len) }
    }
}
