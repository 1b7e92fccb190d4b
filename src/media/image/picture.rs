//! Packed RGB bytes on their way through resampling and cutting.

use std::borrow::Cow;

/// Width and height in pixels, neither of them 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub width: usize,
    pub height: usize,
}

impl Size {
    pub(super) fn square(side: usize) -> Size {
        Size { width: side, height: side }
    }

    /// Pixels.
    pub(super) fn area(self) -> usize {
        self.width * self.height
    }

    /// Width over height.
    pub(super) fn aspect(self) -> f64 {
        self.width as f64 / self.height as f64
    }
}

/// Rows from top to bottom, three bytes a pixel; borrowed from the caller until something changes.
#[derive(Debug, Clone)]
pub(super) struct Picture<'a> {
    size: Size,
    rgb: Cow<'a, [u8]>,
}

impl<'a> Picture<'a> {
    /// `rgb` holds `3 * size.area()` bytes.
    pub(super) fn new(size: Size, rgb: impl Into<Cow<'a, [u8]>>) -> Picture<'a> {
        Picture { size, rgb: rgb.into() }
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    pub(super) fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    pub(super) fn pixels(&self) -> &[[u8; 3]] {
        self.rgb.as_chunks().0
    }

    /// The parts of `tile` size it is made of, in row-major order; what is left over at the right and below is none.
    pub(super) fn tiles(&self, tile: Size) -> impl Iterator<Item = Crop<'_>> {
        let (rows, cols) = (self.size.height / tile.height, self.size.width / tile.width);
        (0..rows).flat_map(move |row| {
            (0..cols).map(move |col| Crop { of: self, left: col * tile.width, top: row * tile.height, size: tile })
        })
    }
}

/// A part of a picture.
pub(super) struct Crop<'a> {
    of: &'a Picture<'a>,
    left: usize,
    top: usize,
    size: Size,
}

impl<'a> Crop<'a> {
    /// Its pixels, row after row.
    pub(super) fn pixels(&self) -> impl Iterator<Item = &'a [u8; 3]> {
        let (left, width) = (self.left, self.size.width);
        let rows = self.of.pixels().chunks_exact(self.of.size.width).skip(self.top).take(self.size.height);
        rows.flat_map(move |row| &row[left..left + width])
    }
}
