//! Resampling of RGB bytes, to the byte as Pillow does it.
//!
//! A separable convolution: rows first, rounded to bytes, then columns. Both passes use weights with 22 bits behind the
//! binary point, normalized in double precision, and round to nearest. A side that keeps its length is not touched.

use std::borrow::Cow;
use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use super::picture::{Picture, Size};

/// A resampling filter; the number is what `resample` in a processor file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Filter {
    Nearest = 0,
    Lanczos = 1,
    Bilinear = 2,
    Bicubic = 3,
    Box = 4,
    Hamming = 5,
}

impl Filter {
    pub(super) const ALL: [Filter; 6] =
        [Filter::Nearest, Filter::Lanczos, Filter::Bilinear, Filter::Bicubic, Filter::Box, Filter::Hamming];

    /// Half the width of the kernel in source pixels at scale 1.
    fn support(self) -> f64 {
        match self {
            Filter::Nearest | Filter::Box => 0.5,
            Filter::Bilinear | Filter::Hamming => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    /// The kernel at distance `x` from its centre.
    fn weight(self, x: f64) -> f64 {
        match self {
            Filter::Nearest | Filter::Box => f64::from(x > -0.5 && x <= 0.5),
            Filter::Bilinear => (1.0 - x.abs()).max(0.0),
            Filter::Bicubic => bicubic(x.abs()),
            Filter::Lanczos => {
                if (-3.0..3.0).contains(&x) {
                    sinc(x) * sinc(x / 3.0)
                } else {
                    0.0
                }
            }
            Filter::Hamming => hamming(x.abs()),
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}

/// Keys' cubic with a = -0.5, for `x >= 0`.
fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// A sinc under a Hamming window of width 2, for `x >= 0`.
fn hamming(x: f64) -> f64 {
    // Pillow writes the window's constants in single precision.
    const BASE: f64 = 0.54_f32 as f64;
    const SWING: f64 = 0.46_f32 as f64;
    if x == 0.0 {
        1.0
    } else if x >= 1.0 {
        0.0
    } else {
        sinc(x) * (BASE + SWING * (x * PI).cos())
    }
}

/// Bits behind the binary point of a weight: 8 bits of a level and 2 of headroom leave 22 of 32.
const PRECISION: u32 = 22;

impl Picture<'_> {
    /// The picture scaled to `size`; borrowed if that is its size.
    pub(super) fn resized(&self, size: Size, filter: Filter) -> Picture<'_> {
        let source = self.size();
        if size == source {
            return Picture::new(size, self.rgb());
        }
        if filter == Filter::Nearest {
            return Picture::new(size, nearest(self, size));
        }
        let columns = (size.width != source.width).then(|| Kernel::new(filter, source.width, size.width));
        let rows = (size.height != source.height).then(|| Kernel::new(filter, source.height, size.height));
        let narrowed = match columns {
            Some(kernel) => Cow::Owned(resize_rows(self.rgb(), source.width, &kernel)),
            None => Cow::Borrowed(self.rgb()),
        };
        match rows {
            Some(kernel) => Picture::new(size, resize_columns(&narrowed, size.width * 3, &kernel)),
            None => Picture::new(size, narrowed),
        }
    }
}

/// The weights of one side: for each output position the first source position and what follows counts.
struct Kernel {
    windows: Vec<Window>,
    /// All weights, window after window.
    weights: Vec<i32>,
}

struct Window {
    /// First source position.
    start: usize,
    /// Where its weights are.
    weights: std::ops::Range<usize>,
}

impl Kernel {
    fn new(filter: Filter, source: usize, target: usize) -> Kernel {
        let scale = source as f64 / target as f64;
        // When shrinking, the kernel widens so that every source pixel counts.
        let stretch = scale.max(1.0);
        let support = filter.support() * stretch;
        let mut windows = Vec::with_capacity(target);
        let mut weights = Vec::new();
        let mut window = Vec::new();
        for position in 0..target {
            let center = (position as f64 + 0.5) * scale;
            // Casts truncate, and bring what is below zero to zero.
            let start = (center - support + 0.5) as usize;
            let end = ((center + support + 0.5) as usize).min(source);
            window.clear();
            window.extend((start..end).map(|x| filter.weight((x as f64 - center + 0.5) * (1.0 / stretch))));
            let sum: f64 = window.iter().sum();
            let first = weights.len();
            weights.extend(window.iter().map(|&weight| fixed(if sum == 0.0 { weight } else { weight / sum })));
            windows.push(Window { start, weights: first..weights.len() });
        }
        Kernel { windows, weights }
    }
}

/// To fixed point, halves away from zero.
fn fixed(weight: f64) -> i32 {
    let scaled = weight * f64::from(1 << PRECISION);
    (if scaled < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
}

/// A sum of weighted levels, to the nearest level.
#[inline]
fn level(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// Half a level: where sums start, so that a shift rounds.
const HALF: i32 = 1 << (PRECISION - 1);

/// Resamples every row of `width` pixels.
fn resize_rows(rgb: &[u8], width: usize, kernel: &Kernel) -> Vec<u8> {
    let mut out = Vec::with_capacity(rgb.len() / width * kernel.windows.len());
    for row in rgb.chunks_exact(width * 3) {
        let (pixels, _) = row.as_chunks::<3>();
        for window in &kernel.windows {
            let weights = &kernel.weights[window.weights.clone()];
            let mut sums = [HALF; 3];
            for (pixel, &weight) in pixels[window.start..].iter().zip(weights) {
                for (sum, &level) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(level) * weight;
                }
            }
            out.extend_from_slice(&sums.map(level));
        }
    }
    out
}

/// Resamples every column of rows of `row` bytes.
fn resize_columns(rgb: &[u8], row: usize, kernel: &Kernel) -> Vec<u8> {
    /// Bytes of a row whose sums are kept in registers.
    const LANES: usize = 32;
    let mut out = Vec::with_capacity(row * kernel.windows.len());
    for window in &kernel.windows {
        let weights = &kernel.weights[window.weights.clone()];
        let rows = &rgb[window.start * row..];
        for at in (0..row).step_by(LANES) {
            let lanes = LANES.min(row - at);
            let mut sums = [HALF; LANES];
            for (source, &weight) in rows.chunks_exact(row).zip(weights) {
                for (sum, &level) in sums.iter_mut().zip(&source[at..at + lanes]) {
                    *sum += i32::from(level) * weight;
                }
            }
            out.extend(sums[..lanes].iter().map(|&sum| level(sum)));
        }
    }
    out
}

/// The pixel under the centre of each output pixel.
fn nearest(picture: &Picture<'_>, size: Size) -> Vec<u8> {
    let columns = nearest_positions(picture.size().width, size.width);
    let rows = nearest_positions(picture.size().height, size.height);
    let mut rgb = Vec::with_capacity(size.area() * 3);
    for row in rows {
        let row = &picture.pixels()[row * picture.size().width..];
        for &column in &columns {
            rgb.extend_from_slice(&row[column]);
        }
    }
    rgb
}

/// Pillow adds the step up instead of multiplying it; the rounding of the sum decides between neighbours.
fn nearest_positions(source: usize, target: usize) -> Vec<usize> {
    let step = source as f64 / target as f64;
    let centers = std::iter::successors(Some(step * 0.5), |at| Some(at + step));
    centers.take(target).map(|at| (at as usize).min(source - 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;

    /// Noise of many shapes, shrunk and stretched, against what Pillow makes of it.
    #[test]
    fn every_filter_gives_the_bytes_of_pillow() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/media/pillow_resize.safetensors");
        let bytes = std::fs::read(path).unwrap();
        let goldens = SafeTensors::deserialize(&bytes).unwrap();
        let size = |shape: &[usize]| Size { width: shape[1], height: shape[0] };
        for filter in Filter::ALL {
            for case in 0..14 {
                let from = goldens.tensor(&format!("{}.{case}.from", filter as u8)).unwrap();
                let to = goldens.tensor(&format!("{}.{case}.to", filter as u8)).unwrap();
                let source = Picture::new(size(from.shape()), from.data());
                let resized = source.resized(size(to.shape()), filter);
                assert_eq!(resized.size(), size(to.shape()));
                assert_eq!(resized.rgb(), to.data(), "{filter:?} {:?} to {:?}", from.shape(), to.shape());
            }
        }
    }

    #[test]
    fn a_size_that_stays_is_not_copied() {
        let rgb = [1, 2, 3, 4, 5, 6];
        let picture = Picture::new(Size { width: 2, height: 1 }, &rgb[..]);
        for filter in Filter::ALL {
            let same = picture.resized(picture.size(), filter);
            assert_eq!(same.rgb().as_ptr(), rgb.as_ptr());
        }
    }

    #[test]
    fn a_flat_picture_stays_flat() {
        let rgb = vec![201; 31 * 7 * 3];
        let picture = Picture::new(Size { width: 31, height: 7 }, rgb);
        for filter in Filter::ALL {
            for (width, height) in [(1, 1), (64, 3), (5, 40), (31, 8), (200, 200)] {
                let resized = picture.resized(Size { width, height }, filter);
                assert_eq!(resized.rgb().len(), width * height * 3);
                assert!(resized.rgb().iter().all(|&level| level == 201), "{filter:?} {width}x{height}");
            }
        }
    }
}
