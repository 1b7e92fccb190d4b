//! Row operations written once over a vector of f32 lanes; each instruction set instantiates them.
//!
//! Everything here is `#[inline(always)]`, so that it is compiled with the target features of the function it ends up
//! in (see `instantiate!`).

use super::{Nonlinearity, PANEL};

/// As many f32 lanes as one register holds.
///
/// # Safety
/// All functions need a processor with the instruction set of the implementing type; loads and stores need the
/// pointer to be valid for the lanes they touch (no alignment needed).
pub(super) trait Vector: Copy {
    const LANES: usize;
    /// Rows of a register tile 16 columns wide: as many as the registers hold sums for.
    const TILE_ROWS: usize;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// The first `n < LANES` lanes from memory, the others 0.
    unsafe fn load_part(from: *const f32, n: usize) -> Self;
    /// Only the first `n < LANES` lanes to memory.
    unsafe fn store_part(self, to: *mut f32, n: usize);
    /// `LANES` values of f16.
    unsafe fn load_f16(from: *const u8) -> Self;
    /// `LANES` values of bf16.
    unsafe fn load_bf16(from: *const u8) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// `self · factor + summand`.
    unsafe fn mul_add(self, factor: Self, summand: Self) -> Self;
    /// The larger one; `other` if a lane is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// The smaller one; `other` if a lane is NaN.
    unsafe fn min(self, other: Self) -> Self;
    unsafe fn abs(self) -> Self;
    /// To the nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// 2 to the power of an integer-valued lane in -126..=127.
    unsafe fn power_of_two(self) -> Self;
    /// `yes` in lanes where `self < limit`, else `no`.
    unsafe fn if_less(self, limit: Self, yes: Self, no: Self) -> Self;
    /// Sum of the lanes.
    unsafe fn sum(self) -> f32;
    /// Largest lane.
    unsafe fn largest(self) -> f32;
}

/// Horner's rule, highest power first.
#[inline(always)]
unsafe fn polynomial<V: Vector, const N: usize>(x: V, coefficients: [f32; N]) -> V {
    // SAFETY: the caller's processor has V's instructions.
    unsafe {
        let mut y = V::splat(coefficients[0]);
        for &c in &coefficients[1..] {
            y = y.mul_add(x, V::splat(c));
        }
        y
    }
}

/// eˣ, relative error below 2e-7; 0 below -87.3 and e⁸⁸ above 88.
#[inline(always)]
pub(super) unsafe fn exp<V: Vector>(x: V) -> V {
    // SAFETY: the caller's processor has V's instructions.
    unsafe {
        // x = n·ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts, so that n times the first is exact.
        let bounded = V::splat(-87.3).max(V::splat(88.0).min(x));
        let n = bounded.mul(V::splat(std::f32::consts::LOG2_E)).round();
        let r = n.mul_add(V::splat(-0.693_359_4), bounded);
        let r = n.mul_add(V::splat(2.121_944_4e-4), r);
        let tail = polynomial(r, [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5]);
        let y = tail.mul_add(r.mul(r), r).add(V::splat(1.0));
        x.if_less(V::splat(-87.3), V::splat(0.0), y.mul(n.power_of_two()))
    }
}

/// tanh x, relative error below 5e-7.
#[inline(always)]
unsafe fn tanh<V: Vector>(x: V) -> V {
    // SAFETY: the caller's processor has V's instructions.
    unsafe {
        // Near 0 the formula with exp cancels; an odd polynomial does not.
        let z = x.mul(x);
        let series = [-5.704_988_7e-3, 2.063_908_8e-2, -5.373_971_5e-2, 0.133_314_42, -0.333_332_8];
        let small = polynomial(z, series).mul(z).mul_add(x, x);
        let e = exp(x.add(x));
        let large = V::splat(1.0).sub(V::splat(2.0).div(e.add(V::splat(1.0))));
        x.abs().if_less(V::splat(0.625), small, large)
    }
}

/// x / (1 + e^-s): x times the logistic function of s.
#[inline(always)]
unsafe fn times_sigmoid<V: Vector>(x: V, s: V) -> V {
    // SAFETY: the caller's processor has V's instructions.
    unsafe { x.div(V::splat(1.0).add(exp(V::splat(0.0).sub(s)))) }
}

/// x · Φ(x) with the error function after Abramowitz and Stegun 7.1.26 (absolute error 1.5e-7), written so that the
/// tail of negative x keeps its relative precision.
#[inline(always)]
unsafe fn gelu<V: Vector>(x: V) -> V {
    // SAFETY: the caller's processor has V's instructions.
    unsafe {
        let one = V::splat(1.0);
        let z = x.abs().mul(V::splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = one.div(V::splat(0.327_591_1).mul_add(z, one));
        let series = [1.061_405_4, -1.453_152_1, 1.421_413_7, -0.284_496_72, 0.254_829_6];
        let half_tail = polynomial(t, series).mul(t).mul(exp(V::splat(0.0).sub(z.mul(z)))).mul(V::splat(0.5));
        x.mul(x.if_less(V::splat(0.0), half_tail, one.sub(half_tail)))
    }
}

/// GELU by its tanh approximation: 0.5·(1 + tanh u) is the logistic function of 2u.
#[inline(always)]
unsafe fn gelu_tanh<V: Vector>(x: V) -> V {
    // SAFETY: the caller's processor has V's instructions.
    unsafe {
        let inner = V::splat(0.044_715).mul_add(x.mul(x).mul(x), x);
        times_sigmoid(x, inner.mul(V::splat(1.595_769)))
    }
}

// Loops over whole vectors and the remainder. Macros, not functions with a closure: a closure is compiled without the
// target features of the function around it and would call, not inline, its instructions.

/// `out[i] = expression of a[i], b[i]`; the slices have one length (checked by the safe callers).
macro_rules! zip {
    ($V:ty, $a:ident, $b:ident, $out:ident, |$x:ident, $y:ident| $value:expr) => {{
        let n = $out.len().min($a.len()).min($b.len());
        let whole = n - n % <$V>::LANES;
        // SAFETY: every access is below n, which is within all three slices; instructions as the caller promises.
        unsafe {
            for i in (0..whole).step_by(<$V>::LANES) {
                let ($x, $y) = (<$V>::load($a.as_ptr().add(i)), <$V>::load($b.as_ptr().add(i)));
                $value.store($out.as_mut_ptr().add(i));
            }
            if whole < n {
                let left = n - whole;
                let $x = <$V>::load_part($a.as_ptr().add(whole), left);
                let $y = <$V>::load_part($b.as_ptr().add(whole), left);
                $value.store_part($out.as_mut_ptr().add(whole), left);
            }
        }
    }};
}

/// `row[i] = expression of row[i]`.
macro_rules! map {
    ($V:ty, $row:ident, |$x:ident| $value:expr) => {{
        let whole = $row.len() - $row.len() % <$V>::LANES;
        let left = $row.len() - whole;
        // SAFETY: every access is within the row; instructions as the caller promises.
        unsafe {
            for i in (0..whole).step_by(<$V>::LANES) {
                let at = $row.as_mut_ptr().add(i);
                let $x = <$V>::load(at);
                $value.store(at);
            }
            if left > 0 {
                let at = $row.as_mut_ptr().add(whole);
                let $x = <$V>::load_part(at, left);
                $value.store_part(at, left);
            }
        }
    }};
}

#[inline(always)]
pub(super) unsafe fn rms_norm<V: Vector>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let whole = x.len() - x.len() % V::LANES;
    // SAFETY: every access is within `x`; instructions as the caller promises.
    let factor = unsafe {
        let mut squares = V::splat(0.0);
        for i in (0..whole).step_by(V::LANES) {
            let v = V::load(x.as_ptr().add(i));
            squares = v.mul_add(v, squares);
        }
        if whole < x.len() {
            let v = V::load_part(x.as_ptr().add(whole), x.len() - whole);
            squares = v.mul_add(v, squares);
        }
        V::splat(1.0 / (squares.sum() / x.len() as f32 + eps).sqrt())
    };
    zip!(V, x, weight, out, |x, w| x.mul(factor).mul(w));
}

#[inline(always)]
pub(super) unsafe fn layer_norm<V: Vector>(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    let n = out.len().min(x.len()).min(weight.len()).min(bias.len());
    let (whole, left) = (n - n % V::LANES, n % V::LANES);
    // SAFETY: every access is below n, which is within all four slices; instructions as the caller promises.
    unsafe {
        let mut total = V::splat(0.0);
        for i in (0..whole).step_by(V::LANES) {
            total = total.add(V::load(x.as_ptr().add(i)));
        }
        let mean = (total.sum() + x[whole..n].iter().sum::<f32>()) / n as f32;
        // The variance from the differences: from the squares it would cancel when the mean is large.
        let mut squares = V::splat(0.0);
        for i in (0..whole).step_by(V::LANES) {
            let difference = V::load(x.as_ptr().add(i)).sub(V::splat(mean));
            squares = difference.mul_add(difference, squares);
        }
        let rest = x[whole..n].iter().map(|x| (x - mean) * (x - mean)).sum::<f32>();
        let factor = 1.0 / ((squares.sum() + rest) / n as f32 + eps).sqrt();
        let (mean, factor) = (V::splat(mean), V::splat(factor));
        for i in (0..whole).step_by(V::LANES) {
            let (weight, bias) = (V::load(weight.as_ptr().add(i)), V::load(bias.as_ptr().add(i)));
            let normal = V::load(x.as_ptr().add(i)).sub(mean).mul(factor);
            normal.mul_add(weight, bias).store(out.as_mut_ptr().add(i));
        }
        if left > 0 {
            let (x, to) = (V::load_part(x.as_ptr().add(whole), left), out.as_mut_ptr().add(whole));
            let weight = V::load_part(weight.as_ptr().add(whole), left);
            let bias = V::load_part(bias.as_ptr().add(whole), left);
            x.sub(mean).mul(factor).mul_add(weight, bias).store_part(to, left);
        }
    }
}

/// `function` of one vector.
#[inline(always)]
pub(super) unsafe fn apply<V: Vector>(function: Nonlinearity, x: V) -> V {
    // SAFETY: the caller's processor has V's instructions.
    unsafe {
        match function {
            Nonlinearity::Silu => times_sigmoid(x, x),
            Nonlinearity::Gelu => gelu(x),
            Nonlinearity::GeluTanh => gelu_tanh(x),
        }
    }
}

/// `row = function(row)`; the function is looked at once, not for each vector.
#[inline(always)]
pub(super) unsafe fn activate<V: Vector>(row: &mut [f32], function: Nonlinearity) {
    match function {
        Nonlinearity::Silu => map!(V, row, |x| times_sigmoid(x, x)),
        Nonlinearity::Gelu => map!(V, row, |x| gelu(x)),
        Nonlinearity::GeluTanh => map!(V, row, |x| gelu_tanh(x)),
    }
}

#[inline(always)]
pub(super) unsafe fn silu_mul<V: Vector>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    zip!(V, gate, up, out, |g, u| times_sigmoid(g, g).mul(u));
}

#[inline(always)]
pub(super) unsafe fn gelu_tanh_mul<V: Vector>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    zip!(V, gate, up, out, |g, u| gelu_tanh(g).mul(u));
}

#[inline(always)]
pub(super) unsafe fn gelu_mul<V: Vector>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    zip!(V, gate, up, out, |g, u| gelu(g).mul(u));
}

#[inline(always)]
pub(super) unsafe fn add<V: Vector>(a: &[f32], b: &[f32], out: &mut [f32]) {
    zip!(V, a, b, out, |a, b| a.add(b));
}

#[inline(always)]
pub(super) unsafe fn scale<V: Vector>(row: &mut [f32], factor: f32) {
    map!(V, row, |x| x.mul(V::splat(factor)));
}

#[inline(always)]
pub(super) unsafe fn soft_cap<V: Vector>(row: &mut [f32], cap: f32) {
    map!(V, row, |x| tanh(x.mul(V::splat(1.0 / cap))).mul(V::splat(cap)));
}

/// Smallest and largest element, NaN left out; infinity and minus infinity if there is none.
#[inline(always)]
pub(super) unsafe fn range<V: Vector>(x: &[f32], range: &mut [f32; 2]) {
    /// Independent chains, so that none waits for another.
    const CHAINS: usize = 4;
    let step = CHAINS * V::LANES;
    let whole = x.len() - x.len() % step;
    // SAFETY: every access is within `x`; instructions as the caller promises.
    unsafe {
        let mut smallest = [V::splat(f32::INFINITY); CHAINS];
        let mut largest = [V::splat(f32::NEG_INFINITY); CHAINS];
        for i in (0..whole).step_by(step) {
            for chain in 0..CHAINS {
                let values = V::load(x.as_ptr().add(i + chain * V::LANES));
                smallest[chain] = values.min(smallest[chain]);
                largest[chain] = values.max(largest[chain]);
            }
        }
        let (mut low, mut high) = (f32::INFINITY, f32::NEG_INFINITY);
        for chain in 0..CHAINS {
            low = low.min(-V::splat(0.0).sub(smallest[chain]).largest());
            high = high.max(largest[chain].largest());
        }
        for &value in &x[whole..] {
            (low, high) = (low.min(value), high.max(value));
        }
        *range = [low, high];
    }
}

#[inline(always)]
pub(super) unsafe fn softmax<V: Vector>(row: &mut [f32]) {
    let whole = row.len() - row.len() % V::LANES;
    let left = row.len() - whole;
    // SAFETY: every access is within `row`; instructions as the caller promises.
    unsafe {
        let at = row.as_mut_ptr();
        let mut largest = V::splat(f32::NEG_INFINITY);
        for i in (0..whole).step_by(V::LANES) {
            largest = largest.max(V::load(at.add(i)));
        }
        let largest = row[whole..].iter().copied().fold(largest.largest(), f32::max);
        let mut sums = V::splat(0.0);
        for i in (0..whole).step_by(V::LANES) {
            let e = exp(V::load(at.add(i)).sub(V::splat(largest)));
            e.store(at.add(i));
            sums = sums.add(e);
        }
        if left > 0 {
            exp(V::load_part(at.add(whole), left).sub(V::splat(largest))).store_part(at.add(whole), left);
        }
        let sum = sums.sum() + row[whole..].iter().sum::<f32>();
        scale::<V>(row, 1.0 / sum);
    }
}

/// Softmax down the columns of `[n][16]` but for the division, `NV` vectors a row; see
/// [`super::Kernels::softmax_panel`].
#[inline(always)]
pub(super) unsafe fn softmax_panel<V: Vector, const NV: usize>(panel: &mut [f32], scale: f32, sums: &mut [f32; PANEL]) {
    const { assert!(NV * V::LANES == PANEL) };
    let rows = panel.len() / PANEL;
    // SAFETY: every access is within `rows` rows of 16; instructions as the caller promises.
    unsafe {
        let (at, scale) = (panel.as_mut_ptr(), V::splat(scale));
        let mut largest = [V::splat(f32::NEG_INFINITY); NV];
        for row in 0..rows {
            for v in 0..NV {
                largest[v] = largest[v].max(V::load(at.add(row * PANEL + v * V::LANES)).mul(scale));
            }
        }
        let mut totals = [V::splat(0.0); NV];
        for row in 0..rows {
            for v in 0..NV {
                let at = at.add(row * PANEL + v * V::LANES);
                let e = exp(V::load(at).mul(scale).sub(largest[v]));
                e.store(at);
                totals[v] = totals[v].add(e);
            }
        }
        for v in 0..NV {
            totals[v].store(sums.as_mut_ptr().add(v * V::LANES));
        }
    }
}

/// One f32: the scalar instance.
impl Vector for f32 {
    const LANES: usize = 1;
    const TILE_ROWS: usize = 2;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        x
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's pointer is valid for one value.
        unsafe { from.read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's pointer is valid for one value.
        unsafe { to.write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn load_part(_: *const f32, _: usize) -> Self {
        0.0 // no lane is left over
    }
    #[inline(always)]
    unsafe fn store_part(self, _: *mut f32, _: usize) {}
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller's pointer is valid for one value.
        half::f16::from_le_bytes(unsafe { from.cast::<[u8; 2]>().read() }).to_f32()
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: the caller's pointer is valid for one value.
        half::bf16::from_le_bytes(unsafe { from.cast::<[u8; 2]>().read() }).to_f32()
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self - other
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self * other
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self / other
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, summand: Self) -> Self {
        self * factor + summand // two roundings: a fused one is a slow library call without the instruction
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        if self < other { self } else { other }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        f32::abs(self)
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        self.round_ties_even()
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        f32::from_bits(((self as i32 + 127) as u32) << 23)
    }
    #[inline(always)]
    unsafe fn if_less(self, limit: Self, yes: Self, no: Self) -> Self {
        if self < limit { yes } else { no }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        self
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        self
    }
}
