//! Every kernel set this machine can run against plain f64 arithmetic, with shapes that leave remainders everywhere.

use super::activations::LARGEST;
use super::scalar::TINY;
use super::*;
use crate::engine::cpu::pool::Pool;
use crate::formats::{GROUP, PANEL_ROWS, PackedMatrix, WeightFormat, pack_panel};

const TOKENS: [usize; 12] = [1, 2, 3, 5, 7, 8, 11, 31, 32, 33, 70, 131];
const SHAPES: [(usize, usize); 7] = [(1, 1), (16, 32), (17, 33), (40, 96), (5, 130), (48, 31), (20, 300)];

/// Repeatable values in -1..1.
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn packed(format: WeightFormat, weights: &[f32], cols: usize) -> Vec<u8> {
    let rows = weights.len() / cols;
    let mut bytes = vec![0; format.matrix_bytes(rows, cols).expect("small")];
    let panel_bytes = format.panel_bytes(cols).expect("small");
    for (rows, panel) in weights.chunks(PANEL_ROWS * cols).zip(bytes.chunks_exact_mut(panel_bytes)) {
        pack_panel(format, rows, cols, panel).expect("packs");
    }
    bytes
}

fn close(got: f32, want: f64, size: f64, relative: f64, what: &str) {
    let error = (f64::from(got) - want).abs();
    assert!(error <= relative * size + 1e-30, "{what}: {got} instead of {want}, error {error:e} of {size:e}");
}

#[test]
fn integer_dot_products_are_exact() {
    let pool = Pool::new(2);
    for (format, low, high) in [(WeightFormat::W4, 0.0, 15.0), (WeightFormat::W8, -127.0, 127.0)] {
        for (rows, cols) in SHAPES.map(|(rows, cols)| (rows, cols.next_multiple_of(GROUP))) {
            // Whole numbers with an extreme in each group: all scales are exactly 1. The extremes of the activations
            // meet weights of opposite signs, and the others are small, so that f32 holds every sum.
            let whole = |seed, n, [low, high]: [f32; 2], extremes: [f32; 2]| {
                let mut values = noise(seed, n);
                values.iter_mut().for_each(|v| *v = (low + (*v + 1.0) / 2.0 * (high - low)).round());
                values.chunks_exact_mut(GROUP).for_each(|group| [group[1], group[20]] = extremes);
                values
            };
            let weights = whole(3, rows * cols, [low, high], [low, high]);
            let bytes = packed(format, &weights, cols);
            for m in TOKENS {
                let x = whole(4, m * cols, [-500.0, 500.0], [LARGEST; 2]);
                for kernels in Kernels::available() {
                    let mut activations = Activations::new();
                    activations.prepare(&kernels, &pool, true, &x, m, cols);
                    let mut out = vec![f32::NAN; m * rows];
                    let weight = PackedMatrix::new(format, rows, cols, &bytes).expect("right length");
                    kernels.linear(&pool, &activations, &mut [LinearJob::new(weight, &mut out)]);
                    for (i, &got) in out.iter().enumerate() {
                        let (w, x) = (&weights[i % rows * cols..][..cols], &x[i / rows * cols..][..cols]);
                        let want = w.iter().zip(x).map(|(w, x)| *w as i64 * *x as i64).sum::<i64>();
                        assert_eq!(got as i64, want, "{kernels:?} {format:?} [{m}, {rows}, {cols}] at {i}");
                    }
                }
            }
        }
    }
}

#[test]
fn extreme_integers_do_not_saturate() {
    let pool = Pool::new(1);
    for (format, levels) in [(WeightFormat::W4, [15.0, 0.0]), (WeightFormat::W8, [127.0, -127.0])] {
        for kernels in Kernels::available() {
            for m in [1, 4] {
                let mut weights = vec![levels[0]; PANEL_ROWS * GROUP];
                weights.iter_mut().skip(PANEL_ROWS * GROUP / 2).for_each(|w| *w = levels[1]);
                (0..PANEL_ROWS).for_each(|row| weights[row * GROUP] = levels[row % 2]);
                let bytes = packed(format, &weights, GROUP);
                let weight = PackedMatrix::new(format, PANEL_ROWS, GROUP, &bytes).expect("right length");
                for sign in [127.0f32, -127.0] {
                    let mut x = Activations::new();
                    x.prepare(&kernels, &pool, true, &vec![sign; m * GROUP], m, GROUP);
                    let mut out = vec![0.0; m * PANEL_ROWS];
                    kernels.linear(&pool, &x, &mut [LinearJob::new(weight, &mut out)]);
                    for (i, &got) in out.iter().enumerate() {
                        let want = weights[i % PANEL_ROWS * GROUP..][..GROUP].iter().sum::<f32>() * sign;
                        close(got, want.into(), 127.0 * 127.0 * 32.0, 1e-6, "dot of extremes");
                    }
                }
            }
        }
    }
}

#[test]
fn linear_agrees_with_f64_in_every_format_and_shape() {
    let pool = Pool::new(3);
    for format in WeightFormat::ALL {
        for (rows, cols) in SHAPES {
            let weights = noise(5, rows * cols);
            let bytes = packed(format, &weights, cols);
            let weight = PackedMatrix::new(format, rows, cols, &bytes).expect("right length");
            let mut decoded = vec![0.0; rows * cols];
            decoded.chunks_exact_mut(cols).enumerate().for_each(|(row, out)| weight.read_row(row, out));
            let bias = noise(6, rows);
            for m in TOKENS {
                let (x, residual) = (noise(7, m * cols), noise(8, m * rows));
                for kernels in Kernels::available() {
                    let mut activations = Activations::new();
                    activations.prepare(&kernels, &pool, format.is_integer(), &x, m, cols);
                    let seen = activations.decoded();
                    let (mut plain, mut full) = (vec![f32::NAN; m * rows], vec![f32::NAN; m * rows]);
                    kernels.linear(
                        &pool,
                        &activations,
                        &mut [
                            LinearJob::new(weight, &mut plain),
                            LinearJob {
                                bias: Some(&bias),
                                residual: Some(&residual),
                                ..LinearJob::new(weight, &mut full)
                            },
                        ],
                    );
                    let what = format!("{kernels:?} {format:?} [{m}, {rows}, {cols}]");
                    for i in 0..m * rows {
                        let (w, x) = (&decoded[i % rows * cols..][..cols], &seen[i / rows * cols..][..cols]);
                        let products = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                        let (sum, size) = products.fold((0.0, 2.0), |(sum, size), p| (sum + p, size + p.abs()));
                        close(plain[i], sum, size, 1e-6, &what);
                        let extra = f64::from(bias[i % rows]) + f64::from(residual[i]);
                        close(full[i], sum + extra, size, 1e-6, &what);
                    }
                }
            }
        }
    }
}

/// More columns than a slice, rows that fill blocks or leave any rest of a tile, on any number of threads.
#[test]
fn many_rows_agree_with_f64_and_do_not_depend_on_threads() {
    for m in [128, 129, 130, 132, 133, 300] {
        check_many_rows(35, 530, m);
    }
}

fn check_many_rows(rows: usize, cols: usize, m: usize) {
    let (weights, x, bias, residual) = (noise(5, rows * cols), noise(6, m * cols), noise(7, rows), noise(8, m * rows));
    for format in WeightFormat::ALL {
        let bytes = packed(format, &weights, cols);
        let weight = PackedMatrix::new(format, rows, cols, &bytes).expect("right length");
        let mut decoded = vec![0.0; rows * cols];
        decoded.chunks_exact_mut(cols).enumerate().for_each(|(row, out)| weight.read_row(row, out));
        for kernels in Kernels::available() {
            let run = |threads| {
                let (pool, mut activations) = (Pool::new(threads), Activations::new());
                activations.prepare(&kernels, &pool, format.is_integer(), &x, m, cols);
                let mut outs = [vec![f32::NAN; m * rows], vec![f32::NAN; m * rows]];
                let [plain, full] = &mut outs;
                let job = LinearJob {
                    bias: Some(&bias),
                    activation: Some(Nonlinearity::GeluTanh),
                    residual: Some(&residual),
                    ..LinearJob::new(weight, full)
                };
                kernels.linear(&pool, &activations, &mut [LinearJob::new(weight, plain), job]);
                (outs, activations.decoded())
            };
            let ([plain, full], seen) = run(3);
            assert_eq!(run(1).0, [plain.clone(), full.clone()], "{kernels:?} {format:?}");
            for i in 0..m * rows {
                let (w, x) = (&decoded[i % rows * cols..][..cols], &seen[i / rows * cols..][..cols]);
                let products = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                let (sum, size) = products.fold((0.0, 2.0), |(sum, size), p| (sum + p, size + p.abs()));
                close(plain[i], sum, size, 1e-6, &format!("{kernels:?} {format:?}"));
                let y = sum + f64::from(bias[i % rows]);
                let want = gelu_tanh(y) + f64::from(residual[i]);
                close(full[i], want, size + y.abs(), 1e-6, &format!("{kernels:?} {format:?} finished"));
            }
        }
    }
}

#[test]
#[should_panic(expected = "prepared for other kernels")]
fn activations_of_other_kernels_are_refused() {
    let (pool, bytes) = (Pool::new(1), packed(WeightFormat::F32, &[0.0; 16 * 4], 4));
    let weight = PackedMatrix::new(WeightFormat::F32, 16, 4, &bytes).expect("right length");
    let mut x = Activations::new();
    x.prepare(&Kernels::detect(), &pool, false, &[0.0; 200 * 4], 200, 4);
    if Kernels::detect().name() == Kernels::scalar().name() {
        panic!("prepared for other kernels: this processor has one set");
    }
    Kernels::scalar().linear(&pool, &x, &mut [LinearJob::new(weight, &mut [0.0; 200 * 16])]);
}

#[test]
fn the_error_of_quantization_is_within_the_bound_of_the_format() {
    let (pool, rows, cols, m) = (Pool::new(1), 32, 256, 4);
    let (weights, x) = (noise(9, rows * cols), noise(10, m * cols));
    // Root mean square error of a product of uniform values, relative to the product's own: one uniform rounding error
    // for the weight, one for the activation.
    let bounds = [(WeightFormat::F32, 1e-6), (WeightFormat::F16, 5e-4), (WeightFormat::Bf16, 4e-3)];
    let bounds = bounds.into_iter().chain([(WeightFormat::W8, 0.006), (WeightFormat::W4, 0.07)]);
    for (format, bound) in bounds {
        let bytes = packed(format, &weights, cols);
        let weight = PackedMatrix::new(format, rows, cols, &bytes).expect("right length");
        for kernels in Kernels::available() {
            let mut activations = Activations::new();
            activations.prepare(&kernels, &pool, format.is_integer(), &x, m, cols);
            let mut out = vec![0.0; m * rows];
            kernels.linear(&pool, &activations, &mut [LinearJob::new(weight, &mut out)]);
            let (mut noise, mut signal) = (0.0, 0.0);
            for (i, &got) in out.iter().enumerate() {
                let (w, x) = (&weights[i % rows * cols..][..cols], &x[i / rows * cols..][..cols]);
                let want = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>();
                noise += (f64::from(got) - want).powi(2);
                signal += want * want;
            }
            let ratio = (noise / signal).sqrt();
            assert!(ratio < bound, "{kernels:?} {format:?}: {ratio}");
        }
    }
}

#[test]
fn activations_quantize_alike_on_every_set() {
    let pool = Pool::new(2);
    for (rows, cols) in [(1, 1), (3, 31), (5, 64), (33, 200)] {
        let mut x = noise(11, rows * cols);
        x.iter_mut().skip(cols / 2).step_by(7).for_each(|v| *v *= 1e4);
        if cols >= 64 {
            x[..32].fill(0.0);
            x[32..64].fill(f32::from_bits(7));
        }
        let mut reference = Activations::new();
        reference.prepare(&Kernels::scalar(), &pool, true, &x, rows, cols);
        for kernels in Kernels::available() {
            let mut other = Activations::new();
            other.prepare(&kernels, &pool, true, &x, rows, cols);
            assert_eq!(reference.decoded(), other.decoded(), "{kernels:?} [{rows}, {cols}]");
        }
        for (decoded, x) in reference.decoded().chunks(cols).zip(x.chunks(cols)) {
            for (decoded, x) in decoded.chunks(GROUP).zip(x.chunks(GROUP)) {
                let scale = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs())) / LARGEST;
                let close = |(value, x): (&f32, &f32)| (value - x).abs() <= 0.51 * scale + TINY;
                assert!(decoded.iter().zip(x).all(close), "{decoded:?} for {x:?}");
            }
        }
    }
}

#[test]
fn not_a_number_comes_out_as_not_a_number() {
    let (pool, rows, cols) = (Pool::new(1), 16, 64);
    for format in WeightFormat::ALL {
        let bytes = packed(format, &noise(12, rows * cols), cols);
        let weight = PackedMatrix::new(format, rows, cols, &bytes).expect("right length");
        for kernels in Kernels::available() {
            for (m, bad) in [(1, f32::NAN), (5, f32::NAN), (5, f32::INFINITY), (9, f32::NAN), (9, f32::INFINITY)] {
                let mut x = noise(13, m * cols);
                x[40] = bad;
                let mut activations = Activations::new();
                activations.prepare(&kernels, &pool, format.is_integer(), &x, m, cols);
                let mut out = vec![0.0; m * rows];
                kernels.linear(&pool, &activations, &mut [LinearJob::new(weight, &mut out)]);
                assert!(out[..rows].iter().all(|y| !y.is_finite()), "{kernels:?} {format:?} {bad}");
                assert!(out[rows..].iter().all(|y| y.is_finite()), "{kernels:?} {format:?} {bad}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "output of shape [2, 16]")]
fn a_wrong_output_length_is_refused() {
    let (pool, kernels) = (Pool::new(1), Kernels::detect());
    let bytes = packed(WeightFormat::F32, &[0.0; 16 * 4], 4);
    let weight = PackedMatrix::new(WeightFormat::F32, 16, 4, &bytes).expect("right length");
    let mut x = Activations::new();
    x.prepare(&kernels, &pool, false, &[0.0; 8], 2, 4);
    kernels.linear(&pool, &x, &mut [LinearJob::new(weight, &mut [0.0; 31])]);
}

#[test]
fn attention_products_agree_with_f64_and_stay_in_their_shape() {
    for kernels in Kernels::available() {
        for (m, n, k) in [(1, 1, 1), (1, 100, 64), (3, 77, 64), (4, 9, 5), (6, 64, 130), (7, 33, 64), (13, 21, 7)] {
            let (a_stride, b_stride, c_stride) = (k + 3, n + 5, n + 2);
            let (a, b) = (noise(14, m * a_stride), noise(15, k * b_stride));
            let before = noise(16, m * c_stride);
            let (mut scores, mut sums) = (before.clone(), before.clone());
            let a_view = Matrix::new(&a, m, k, a_stride);
            let b_view = Matrix::new(&b, k, n, b_stride);
            kernels.attention_scores(a_view, b_view, 0.125, MatrixMut::new(&mut scores, m, n, c_stride));
            kernels.attention_weighted_sum(a_view, b_view, true, MatrixMut::new(&mut sums, m, n, c_stride));
            for (i, &old) in before.iter().enumerate() {
                let (row, column) = (i / c_stride, i % c_stride);
                if column >= n {
                    assert_eq!((scores[i], sums[i]), (old, old), "{kernels:?} wrote outside of [{m}, {n}]");
                    continue;
                }
                let product = |j| f64::from(a[row * a_stride + j]) * f64::from(b[j * b_stride + column]);
                let want = (0..k).map(product).sum::<f64>();
                let what = format!("{kernels:?} [{m}, {k}] · [{k}, {n}]");
                close(scores[i], want * 0.125, k as f64, 1e-6, &what);
                close(sums[i], want + f64::from(old), k as f64, 1e-6, &what);
            }
        }
    }
}

#[test]
#[should_panic(expected = "do not hold")]
fn a_matrix_larger_than_its_slice_is_refused() {
    Matrix::new(&[0.0; 11], 3, 4, 4);
}

/// Values from -100 to 100, denser around 0, and a length that leaves a remainder.
fn sweep() -> Vec<f32> {
    (-4999..5000).map(|i| (i as f32 / 5000.0).powi(3) * 100.0).collect()
}

fn sigmoid(s: f64) -> f64 {
    1.0 / (1.0 + (-s).exp())
}

fn gelu_tanh(x: f64) -> f64 {
    x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x))
}

#[test]
fn gated_activations_agree_with_f64() {
    let x = sweep();
    let up = noise(17, x.len());
    let phi = x.iter().map(|&x| 0.5 * erfc(-f64::from(x) / std::f64::consts::SQRT_2)).collect::<Vec<_>>();
    for kernels in Kernels::available() {
        let mut out = vec![0.0; x.len()];
        kernels.silu_mul(&x, &up, &mut out);
        for i in 0..x.len() {
            let g = f64::from(x[i]);
            let want = g * sigmoid(g) * f64::from(up[i]);
            // Beyond 87 the result is smaller than 1e-35, which counts as nothing.
            close(out[i], want, want.abs() + 1e-30, 5e-7, &format!("{kernels:?} silu {g}"));
        }
        kernels.gelu_tanh_mul(&x, &up, &mut out);
        for i in 0..x.len() {
            let g = f64::from(x[i]);
            let inner = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
            let want = g * sigmoid(inner) * f64::from(up[i]);
            // e^-s magnifies the rounding of s = `inner` by |s|.
            let size = want.abs() * (1.0 + inner.abs()) + 1e-30;
            close(out[i], want, size, 5e-7, &format!("{kernels:?} gelu tanh {g}"));
        }
        kernels.gelu_mul(&x, &up, &mut out);
        for i in 0..x.len() {
            let g = f64::from(x[i]);
            close(out[i], g * phi[i] * f64::from(up[i]), g.abs(), 3e-7, &format!("{kernels:?} gelu {g}"));
        }
    }
}

#[test]
fn activations_alone_are_the_gated_ones_with_ones() {
    let (x, ones) = (sweep(), vec![1.0; sweep().len()]);
    for kernels in Kernels::available() {
        let mut gated = vec![0.0; x.len()];
        type Gated = fn(&Kernels, &[f32], &[f32], &mut [f32]);
        let functions: [(Nonlinearity, Gated); 3] = [
            (Nonlinearity::Silu, Kernels::silu_mul),
            (Nonlinearity::Gelu, Kernels::gelu_mul),
            (Nonlinearity::GeluTanh, Kernels::gelu_tanh_mul),
        ];
        for (function, multiply) in functions {
            multiply(&kernels, &x, &ones, &mut gated);
            let mut alone = x.clone();
            kernels.activate(&mut alone, function);
            assert_eq!(alone, gated, "{kernels:?} {function:?}");
        }
    }
}

/// Complementary error function, by integration: slow and independent of the kernels' formula.
fn erfc(x: f64) -> f64 {
    let (n, end) = (1_000, x.abs().min(6.5));
    let h = end / f64::from(n);
    let f = |t: f64| (-t * t).exp();
    let inner = (1..n).map(|i| f(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum::<f64>();
    let erf = (f(0.0) + inner + f(end)) * h / 3.0 * 2.0 / std::f64::consts::PI.sqrt();
    if x < 0.0 { 1.0 + erf } else { 1.0 - erf }
}

#[test]
fn ranges_leave_nan_out_whatever_the_length() {
    for kernels in Kernels::available() {
        for length in [0, 1, 7, 8, 31, 32, 33, 100] {
            let mut values = (0..length).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.5).collect::<Vec<_>>();
            let expected = values
                .iter()
                .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &value| (low.min(value), high.max(value)));
            assert_eq!(kernels.range(&values), expected, "{} {length}", kernels.name());
            values.insert(length / 2, f32::NAN);
            assert_eq!(kernels.range(&values), expected, "{} {length} with NaN", kernels.name());
        }
    }
}

#[test]
fn soft_cap_keeps_relative_precision_near_zero() {
    for kernels in Kernels::available() {
        let mut row = sweep();
        kernels.soft_cap(&mut row, 30.0);
        for (x, got) in sweep().into_iter().zip(row) {
            let want = 30.0 * (f64::from(x) / 30.0).tanh();
            close(got, want, want.abs(), 5e-7, &format!("{kernels:?} soft cap {x}"));
        }
    }
}

#[test]
fn exp_is_precise_to_two_in_ten_million() {
    for i in -87_000..=87_000 {
        let x = i as f32 / 1000.0;
        // SAFETY: the scalar instance needs no special processor.
        let got = unsafe { vector::exp(x) };
        close(got, f64::from(x).exp(), f64::from(x).exp(), 2e-7, &format!("exp {x}"));
    }
    // SAFETY: as above.
    unsafe {
        assert_eq!((vector::exp(0.0f32), vector::exp(-65535.0f32), vector::exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert!(vector::exp(f32::NAN).is_nan() && vector::exp(f32::INFINITY).is_finite());
    }
}

#[test]
fn softmax_agrees_with_f64_and_drops_masked_values() {
    for kernels in Kernels::available() {
        for n in [1, 2, 7, 8, 9, 16, 100, 513] {
            let mut row = noise(18, n).into_iter().map(|x| x * 20.0).collect::<Vec<_>>();
            row.iter_mut().skip(1).step_by(3).for_each(|x| *x -= 65535.0);
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let wanted = row.iter().map(|&x| f64::from(x - largest).exp()).collect::<Vec<_>>();
            let sum = wanted.iter().sum::<f64>();
            kernels.softmax(&mut row);
            for (i, (&got, want)) in row.iter().zip(wanted).enumerate() {
                close(got, want / sum, want / sum, 1e-6, &format!("{kernels:?} softmax {n}"));
                assert!(i % 3 != 1 || got == 0.0, "masked");
            }
            let total = row.iter().map(|&p| f64::from(p)).sum::<f64>();
            close(total as f32, 1.0, 1.0, 1e-6, "sum");
        }
        kernels.softmax(&mut []);
    }
}

#[test]
fn softmax_of_a_panel_agrees_with_f64_down_each_column() {
    for kernels in Kernels::available() {
        for (n, scale) in [(1, 1.0), (2, 0.3), (5, -2.0), (8, 20.0), (1025, 5.0)] {
            let before = noise(22, n * PANEL);
            let mut panel = before.clone();
            let sums = kernels.softmax_panel(&mut panel, scale);
            for lane in 0..PANEL {
                let column = |values: &[f32]| values[lane..].iter().step_by(PANEL).copied().collect::<Vec<_>>();
                let scaled = column(&before).into_iter().map(|x| f64::from(x) * f64::from(scale)).collect::<Vec<_>>();
                let largest = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let wanted = scaled.iter().map(|x| (x - largest).exp()).collect::<Vec<_>>();
                let sum = wanted.iter().sum::<f64>();
                for (got, want) in column(&panel).into_iter().zip(wanted) {
                    close(got / sums[lane], want / sum, want / sum, 5e-6, &format!("{kernels:?} softmax of {n}"));
                }
            }
        }
    }
}

#[test]
fn tiled_products_agree_with_f64() {
    for kernels in Kernels::available() {
        let height = kernels.tile_rows();
        for (rows, k) in [(1, 1), (3, 64), (height, 7), (height + 1, 20), (5 * height - 1, 33)] {
            let lines = rows.next_multiple_of(height);
            let (a, b, before) = (noise(23, lines * k), noise(24, k * PANEL), noise(25, rows * PANEL));
            let (mut product, mut sum) = (vec![f32::NAN; rows * PANEL], before.clone());
            kernels.tiled_product(&a, &b, &mut product, false);
            kernels.tiled_product(&a, &b, &mut sum, true);
            for (i, &before) in before.iter().enumerate() {
                let (row, column) = (i / PANEL, i % PANEL);
                let a = |j: usize| a[row / height * height * k + j * height + row % height];
                let want = (0..k).map(|j| f64::from(a(j)) * f64::from(b[j * PANEL + column])).sum::<f64>();
                let what = format!("{kernels:?} [{rows}, {k}]");
                close(product[i], want, k as f64, 1e-6, &what);
                close(sum[i], want + f64::from(before), k as f64, 1e-6, &what);
            }
        }
    }
}

#[test]
fn row_operations_agree_with_f64() {
    for kernels in Kernels::available() {
        for n in [1, 3, 8, 15, 16, 17, 576, 577] {
            let (a, b) = (noise(19, n), noise(20, n));
            let mut out = vec![0.0; n];
            kernels.rms_norm(&a, &b, 1e-5, &mut out);
            let mean = a.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
            for i in 0..n {
                let want = f64::from(a[i]) / (mean + 1e-5).sqrt() * f64::from(b[i]);
                close(out[i], want, want.abs(), 1e-6, &format!("{kernels:?} rms_norm {n}"));
            }
            let c = noise(21, n);
            // A mean that is large beside the differences: these must not be computed from squares.
            let shifted = a.iter().map(|x| x + 100.0).collect::<Vec<_>>();
            kernels.layer_norm(&shifted, &b, &c, 1e-5, &mut out);
            let mean = shifted.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
            let variance = shifted.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n as f64;
            for i in 0..n {
                let normal = (f64::from(shifted[i]) - mean) / (variance + 1e-5).sqrt();
                let want = normal * f64::from(b[i]) + f64::from(c[i]);
                // The mean is rounded to f32.
                close(out[i], want, 1.0, 1e-4, &format!("{kernels:?} layer_norm {n}"));
            }
            kernels.add(&a, &b, &mut out);
            assert!((0..n).all(|i| out[i] == a[i] + b[i]), "{kernels:?} add {n}");
            kernels.scale(&mut out, 3.5);
            assert!((0..n).all(|i| out[i] == (a[i] + b[i]) * 3.5), "{kernels:?} scale {n}");
        }
    }
}

#[test]
fn the_scalar_set_is_last_and_detection_takes_the_first() {
    let sets = Kernels::available();
    assert_eq!(sets.last().map(Kernels::name), Some("scalar"));
    assert_eq!(sets.first().map(Kernels::name), Some(Kernels::detect().name()));
}
