//! Number formats of stored weight matrices: f32, f16, bf16, and int8/int4 in groups of 32 input channels.
//!
//! A matrix `[rows, cols]` (out, in) is stored as *panels* of [`PANEL_ROWS`] output rows. A panel is one contiguous
//! block of [`WeightFormat::panel_bytes`] bytes; rows beyond the matrix and columns beyond `cols` are zero. Packing
//! happens when the artefact is written, so that kernels read the mapped file in place, front to back.

use crate::error::Result;
use serde::{Deserialize, Serialize};

/// Output rows of one panel.
pub const PANEL_ROWS: usize = 16;
/// Input channels that share a scale in [`WeightFormat::W8`] and [`WeightFormat::W4`].
pub const GROUP: usize = 32;

/// Storage format of a weight matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightFormat {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Symmetric int8, one f16 scale a group: `w = scale · q`, q in -127..=127.
    W8,
    /// Affine int4, f16 scale and f16 minimum a group: `w = scale · q + min`, q in 0..=15.
    W4,
}
