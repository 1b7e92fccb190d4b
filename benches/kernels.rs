//! Speed of the CPU engine's kernels, beside what the machine could do at best.
//!
//! `cargo bench --bench kernels`. Two settings for each format and number of rows m: `cached`, one matrix again and
//! again, shows the arithmetic; `streamed`, matrices that do not fit the caches one after the other as in a decoder,
//! shows what decode gets. The table at the end gives GB/s of weights read and GFLOP/s (multiply and add counted
//! apart), with the memory read speed measured in the same run.

use criterion::{Criterion, Throughput};
use etgenai::engine::cpu::kernels::{Activations, Kernels, LinearJob};
use etgenai::engine::cpu::pool::Pool;
use etgenai::formats::{PANEL_ROWS, PackedMatrix, WeightFormat, pack_panel};
use std::hint::black_box;
use std::time::Instant;

/// A feed-forward matrix of SmolLM2-135M.
const ROWS: usize = 1536;
const COLS: usize = 576;
/// More than the last-level cache of common processors.
const STREAMED_BYTES: usize = 128 << 20;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for format in WeightFormat::ALL {
        let matrix = packed(format);
        for threads in [1, 2] {
            for m in [1, 32] {
                linear(&mut criterion, format, &matrix, threads, m);
            }
        }
    }
    rows(&mut criterion);
    summary();
    criterion.final_summary();
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as f32 % 1000.0 / 500.0 - 1.0).collect()
}

fn packed(format: WeightFormat) -> Vec<u8> {
    let panel_bytes = format.panel_bytes(COLS).expect("small");
    let mut bytes = vec![0; format.matrix_bytes(ROWS, COLS).expect("small")];
    let weights = values(ROWS * COLS);
    for (rows, panel) in weights.chunks(PANEL_ROWS * COLS).zip(bytes.chunks_exact_mut(panel_bytes)) {
        pack_panel(format, rows, COLS, panel).expect("finite weights");
    }
    bytes
}

/// A pool, kernels and prepared activations.
struct Setup {
    kernels: Kernels,
    pool: Pool,
    x: Activations,
    out: Vec<f32>,
}

impl Setup {
    fn new(format: WeightFormat, threads: usize, m: usize) -> Self {
        let (kernels, pool, mut x) = (Kernels::detect(), Pool::new(threads), Activations::new());
        x.prepare(&kernels, &pool, format.is_integer(), &values(m * COLS), m, COLS);
        Setup { kernels, pool, x, out: vec![0.0; m * ROWS] }
    }

    fn run(&mut self, format: WeightFormat, bytes: &[u8]) {
        let weight = PackedMatrix::new(format, ROWS, COLS, bytes).expect("right length");
        let job = LinearJob::new(weight, &mut self.out);
        self.kernels.linear(&self.pool, &self.x, &mut [job]);
    }
}

fn linear(criterion: &mut Criterion, format: WeightFormat, matrix: &[u8], threads: usize, m: usize) {
    let mut setup = Setup::new(format, threads, m);
    let mut group = criterion.benchmark_group(format!("linear/{}/{ROWS}x{COLS}", format.name()));
    group.throughput(Throughput::Elements((2 * ROWS * COLS * m) as u64));
    group.bench_function(format!("m{m}/{threads}t/{}", setup.kernels.name()), |b| b.iter(|| setup.run(format, matrix)));
    group.finish();
}

fn rows(criterion: &mut Criterion) {
    let kernels = Kernels::detect();
    let (x, y, mut out) = (values(ROWS), values(ROWS), vec![0.0; ROWS]);
    let mut group = criterion.benchmark_group(format!("row/{ROWS}"));
    group.throughput(Throughput::Elements(ROWS as u64));
    group.bench_function("rms_norm", |b| b.iter(|| kernels.rms_norm(black_box(&x), &y, 1e-5, &mut out)));
    group.bench_function("silu_mul", |b| b.iter(|| kernels.silu_mul(black_box(&x), &y, &mut out)));
    group.bench_function("softmax", |b| b.iter(|| kernels.softmax(black_box(&mut out))));
    group.finish();
}

/// Shortest of several runs, seconds.
fn shortest(runs: usize, mut f: impl FnMut()) -> f64 {
    let time = |f: &mut dyn FnMut()| {
        let begin = Instant::now();
        f();
        begin.elapsed().as_secs_f64()
    };
    (0..runs).map(|_| time(&mut f)).fold(f64::INFINITY, f64::min)
}

/// Bytes a second that `threads` threads read from memory.
fn memory_read_speed(threads: usize) -> f64 {
    let (pool, data) = (Pool::new(threads), vec![1u64; STREAMED_BYTES / 8]);
    let part = data.len() / 64;
    let seconds = shortest(8, || {
        pool.run(64, &|i| {
            let mut sums = [0u64; 16];
            for line in data[i * part..(i + 1) * part].chunks_exact(16) {
                sums.iter_mut().zip(line).for_each(|(sum, x)| *sum = sum.wrapping_add(*x));
            }
            black_box(sums);
        });
    });
    STREAMED_BYTES as f64 / seconds
}

fn summary() {
    println!("\n[{ROWS}, {COLS}] on {}, shortest of many runs", Kernels::detect().name());
    for threads in [1, 2] {
        let read = memory_read_speed(threads);
        println!("{threads} thread(s): memory read {:.1} GB/s", read / 1e9);
        for format in WeightFormat::ALL {
            let matrix = packed(format);
            let stream = matrix.repeat(STREAMED_BYTES / matrix.len());
            for m in [1, 32] {
                let mut setup = Setup::new(format, threads, m);
                let cached = shortest(200, || setup.run(format, &matrix));
                let matrices = stream.len() / matrix.len();
                let streamed = shortest(4, || stream.chunks_exact(matrix.len()).for_each(|w| setup.run(format, w)));
                let rate = |seconds: f64| {
                    let (bytes, flops) = (matrix.len() as f64 / seconds, (2 * ROWS * COLS * m) as f64 / seconds);
                    (bytes / 1e9, flops / 1e9, 100.0 * bytes / read)
                };
                let ((gb, gf, _), (sgb, sgf, share)) = (rate(cached), rate(streamed / matrices as f64));
                println!(
                    "  {:4} m={m:<2} cached {gb:6.1} GB/s {gf:6.1} GFLOP/s, streamed {sgb:5.1} GB/s ({share:3.0} % of \
                     memory) {sgf:6.1} GFLOP/s",
                    format.name()
                );
            }
        }
    }
}
