//! What an encoder made of a picture or of sound: rows that stand in a prompt in its place.

use super::TileLayout;
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::fmt;

/// Encoder output for one picture or audio clip: `row_count` rows of `width` numbers (the decoder's embedding width E),
/// tile after tile. Sound has the layout of a picture that is not cut, [`TileLayout::WHOLE`].
///
/// Shared as `Arc<Embedding>` between the history of a conversation, the KV cache's record of what it holds, and the
/// image cache: nothing copies rows. Two embeddings are equal if their keys are.
#[derive(Clone)]
pub struct Embedding {
    key: [u8; 32],
    rows: Vec<f32>,
    width: usize,
    layout: TileLayout,
}

impl Embedding {
    /// Rows from outside, `[row_count, width]` row-major. Their key is the SHA-256 of layout and bytes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are not whole rows, do not divide into the layout's tiles, or hold a number
    /// that is not finite, and for a layout of rows without columns (all numbers involved are named).
    pub fn from_rows(rows: Vec<f32>, width: usize, layout: TileLayout) -> Result<Self> {
        let mut hash = Sha256::new();
        hash.update(b"rows");
        for size in [width, layout.rows, layout.cols, usize::from(layout.overview)] {
            hash.update((size as u64).to_le_bytes());
        }
        hash.update(bytemuck::cast_slice::<f32, u8>(&rows));
        Self::with_key(hash.finalize().into(), rows, width, layout)
    }

    /// Rows whose origin `key` identifies (a hash of picture, options and encoder).
    ///
    /// # Errors
    /// As [`from_rows`](Self::from_rows).
    pub fn with_key(key: [u8; 32], rows: Vec<f32>, width: usize, layout: TileLayout) -> Result<Self> {
        if (layout.rows == 0) != (layout.cols == 0) {
            let TileLayout { rows, cols, .. } = layout;
            return Err(Error::invalid(format!("a layout of {rows} rows and {cols} columns of tiles is none")));
        }
        let tiles = layout.tiles();
        if width == 0 || rows.is_empty() || !rows.len().is_multiple_of(width) {
            let have = rows.len();
            return Err(Error::invalid(format!("an embedding of {have} numbers does not consist of rows of {width}")));
        }
        let count = rows.len() / width;
        if tiles == 0 || !count.is_multiple_of(tiles) {
            return Err(Error::invalid(format!(
                "an embedding of {count} rows cannot belong to a picture of {tiles} tiles"
            )));
        }
        if let Some(at) = rows.iter().position(|value| !value.is_finite()) {
            let (row, column) = (at / width, at % width);
            return Err(Error::invalid(format!("row {row} of the embedding, column {column} is {}", rows[at])));
        }
        Ok(Self { key, rows, width, layout })
    }

    /// Identifies the content.
    pub fn key(&self) -> &[u8; 32] {
        &self.key
    }

    /// All numbers, `[row_count, width]`.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// One row.
    pub fn row(&self, index: usize) -> Option<&[f32]> {
        self.rows.chunks_exact(self.width).nth(index)
    }

    /// Number of rows, and so of prompt slots it fills.
    pub fn row_count(&self) -> usize {
        self.rows.len() / self.width
    }

    /// Numbers of a row (E).
    pub fn width(&self) -> usize {
        self.width
    }

    /// How the picture was cut.
    pub fn layout(&self) -> TileLayout {
        self.layout
    }

    /// Rows of each tile.
    pub fn rows_per_tile(&self) -> usize {
        self.row_count() / self.layout.tiles()
    }

    /// Memory the rows take.
    pub fn bytes(&self) -> usize {
        size_of_val(self.rows.as_slice())
    }
}

impl PartialEq for Embedding {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Embedding {}

impl fmt::Debug for Embedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedding")
            .field("rows", &self.row_count())
            .field("width", &self.width)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_TILES: TileLayout = TileLayout { rows: 1, cols: 1, overview: true };

    #[test]
    fn rows_are_found_by_number() {
        let embedding = Embedding::from_rows((0..12).map(|i| i as f32).collect(), 3, TWO_TILES).unwrap();
        assert_eq!((embedding.row_count(), embedding.rows_per_tile(), embedding.bytes()), (4, 2, 48));
        assert_eq!(embedding.row(3), Some(&[9.0, 10.0, 11.0][..]));
        assert_eq!(embedding.row(4), None);
    }

    #[test]
    fn the_key_follows_values_and_layout() {
        let whole = TileLayout { rows: 0, cols: 0, overview: true };
        let rows = |last: f32, layout| Embedding::from_rows(vec![1.0, 2.0, 3.0, last], 2, layout).unwrap();
        assert_eq!(rows(4.0, whole), rows(4.0, whole));
        assert_ne!(rows(4.0, whole), rows(5.0, whole));
        assert_ne!(rows(4.0, whole), rows(4.0, TWO_TILES));
    }

    #[test]
    fn misfits_say_both_numbers() {
        let error = |rows: Vec<f32>, width| Embedding::from_rows(rows, width, TWO_TILES).unwrap_err().to_string();
        assert_eq!(error(vec![0.0; 7], 3), "an embedding of 7 numbers does not consist of rows of 3");
        assert_eq!(error(vec![0.0; 9], 3), "an embedding of 3 rows cannot belong to a picture of 2 tiles");
        assert_eq!(error(vec![0.0, f32::NAN, 0.0, 0.0], 2), "row 0 of the embedding, column 1 is NaN");
        assert!(error(vec![], 0).contains("0 numbers"));
        let endless = TileLayout { rows: usize::MAX, cols: 0, overview: true };
        let error = Embedding::from_rows(vec![0.0; 2], 2, endless).unwrap_err().to_string();
        assert!(error.contains("and 0 columns"), "{error}");
    }
}
