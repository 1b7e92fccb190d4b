//! How a picture is cut into the squares an encoder takes.

use serde::{Deserialize, Serialize};

/// How a picture is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tiling {
    /// As the checkpoint's image settings say (`do_image_splitting`, `crop_to_patches`). InternVL checkpoints say one
    /// tile there, while transformers' `InternVLProcessor` cuts unless told not to: that is [`Split`](Tiling::Split).
    #[default]
    Checkpoint,
    /// Crops and an overview, if the picture is cut at all.
    Split,
    /// One tile, the way the Hugging Face processor makes it when it does not split.
    Whole,
    /// One tile, stretched straight to the square: what the ExecuTorch runtime feeds.
    Single,
}

/// How the tiles of a picture lie: `rows * cols` crops in row-major order, then the overview if there is one.
///
/// A picture that is not cut has no rows and no columns, and is its own overview.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TileLayout {
    /// Crops from top to bottom.
    pub rows: usize,
    /// Crops from left to right.
    pub cols: usize,
    /// The whole picture, scaled to one tile, comes last.
    pub overview: bool,
}

impl TileLayout {
    /// A picture that is not cut.
    pub const WHOLE: TileLayout = TileLayout { rows: 0, cols: 0, overview: true };

    /// Number of tiles, the overview included.
    pub fn tiles(&self) -> usize {
        self.checked_tiles().unwrap_or(usize::MAX)
    }

    /// [`tiles`](TileLayout::tiles), or `None` if no such number exists.
    pub(super) fn checked_tiles(&self) -> Option<usize> {
        self.rows.checked_mul(self.cols)?.checked_add(usize::from(self.overview))
    }
}
