//! Resampling of RGB bytes, to the byte as Pillow does it.
//!
//! A separable convolution: one side, rounded to bytes, then the other. Both passes use weights with 22 bits behind the
//! binary point, normalized in double precision, and round to nearest. A side that keeps its length is not touched.

use std::f64::consts::PI;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::convolve::{PRECISION, Pair, weigh_rows};
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
        let columns = |picture: &Picture<'_>| resize_columns(picture, size.height, filter);
        let rows = |picture: &Picture<'_>| resize_rows(picture, size.width, filter);
        match (size.width != source.width, size.height != source.height) {
            (true, false) => rows(self),
            (false, _) => columns(self),
            (true, true) if height_first(source, size) => rows(&columns(self)),
            (true, true) => columns(&rows(self)),
        }
    }
}

/// Which side goes first decides the bytes, because the picture is rounded in between. Pillow 13 starts with the height
/// where that shrinks by more than twice as many pixels as the width, which leaves less to do; earlier versions never
/// did.
fn height_first(source: Size, target: Size) -> bool {
    let shrinks_by = |source: usize, target: usize| source as i64 - target as i64;
    let height = shrinks_by(source.height, target.height);
    height > 0 && height > 2 * shrinks_by(source.width, target.width)
}

/// The weights of one side.
struct Kernel {
    /// One for each output position.
    windows: Vec<Window>,
    /// All taps, window after window.
    taps: Vec<Pair>,
}

struct Window {
    /// First source position.
    start: usize,
    /// Where its taps are.
    taps: Range<usize>,
}

impl Kernel {
    fn new(filter: Filter, source: usize, target: usize) -> Kernel {
        let scale = source as f64 / target as f64;
        // When shrinking, the kernel widens so that every source pixel counts.
        let stretch = scale.max(1.0);
        let support = filter.support() * stretch;
        let mut kernel = Kernel { windows: Vec::with_capacity(target), taps: Vec::new() };
        let mut weights = Vec::new();
        for position in 0..target {
            let center = (position as f64 + 0.5) * scale;
            // Casts truncate, and bring what is below zero to zero.
            let start = (center - support + 0.5) as usize;
            let end = ((center + support + 0.5) as usize).min(source);
            weights.clear();
            weights.extend((start..end).map(|x| filter.weight((x as f64 - center + 0.5) * (1.0 / stretch))));
            kernel.push(start, &weights);
        }
        kernel
    }

    fn push(&mut self, start: usize, weights: &[f64]) {
        let sum: f64 = weights.iter().sum();
        let share = |weight: f64| fixed(if sum == 0.0 { weight } else { weight / sum });
        let first = self.taps.len();
        self.taps
            .extend(weights.chunks(2).map(|pair| Pair::new([share(pair[0]), pair.get(1).map_or(0, |&w| share(w))])));
        self.windows.push(Window { start, taps: first..self.taps.len() });
    }

    /// For each output position the first source position and the taps from there on.
    fn windows(&self) -> impl Iterator<Item = (usize, &[Pair])> {
        self.windows.iter().map(|window| (window.start, &self.taps[window.taps.clone()]))
    }
}

/// To fixed point, halves away from zero.
fn fixed(weight: f64) -> i32 {
    let scaled = weight * f64::from(1 << PRECISION);
    (if scaled < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
}

/// `picture` with rows of `width` pixels.
///
/// Weighing rows is fast and weighing neighbours in a row is not, so a few rows at a time are turned on their side.
fn resize_rows<'a>(picture: &Picture<'_>, width: usize, filter: Filter) -> Picture<'a> {
    /// Rows turned at a time: enough to fill vectors, few enough to stay in the cache.
    const STRIP: usize = 16;
    let source_width = picture.size().width;
    let kernel = Kernel::new(filter, source_width, width);
    let size = Size { width, ..picture.size() };
    let mut out = vec![[0; 3]; size.area()];
    let mut turned = vec![[0; 3]; STRIP * source_width];
    let mut resized = vec![[0; 3]; STRIP * width];
    for (strip, out) in picture.pixels().chunks(STRIP * source_width).zip(out.chunks_mut(STRIP * width)) {
        let rows = strip.len() / source_width;
        let (turned, resized) = (&mut turned[..strip.len()], &mut resized[..out.len()]);
        transpose(strip, source_width, turned);
        for (column, (start, taps)) in resized.chunks_exact_mut(rows).zip(kernel.windows()) {
            weigh_rows(turned[start * rows..].as_flattened(), taps, column.as_flattened_mut());
        }
        transpose(resized, rows, out);
    }
    Picture::new(size, out.into_flattened())
}

/// Rows of `width` pixels to columns.
fn transpose(pixels: &[[u8; 3]], width: usize, out: &mut [[u8; 3]]) {
    let height = pixels.len() / width;
    for (x, column) in out.chunks_exact_mut(height).enumerate() {
        for (y, pixel) in column.iter_mut().enumerate() {
            *pixel = pixels[y * width + x];
        }
    }
}

/// `picture` with `height` rows.
fn resize_columns<'a>(picture: &Picture<'_>, height: usize, filter: Filter) -> Picture<'a> {
    let kernel = Kernel::new(filter, picture.size().height, height);
    let size = Size { height, ..picture.size() };
    let length = size.width * 3;
    let mut rgb = vec![0; size.area() * 3];
    for (row, (start, taps)) in rgb.chunks_exact_mut(length).zip(kernel.windows()) {
        weigh_rows(&picture.rgb()[start * length..], taps, row);
    }
    Picture::new(size, rgb)
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
