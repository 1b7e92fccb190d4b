//! Number formats of stored weight matrices: f32, f16, bf16, and int8/int4 in groups of 32 input channels.
//!
//! A matrix `[rows, cols]` (out, in) is stored as *panels* of [`PANEL_ROWS`] output rows. A panel is one contiguous
//! block of [`WeightFormat::panel_bytes`] bytes; rows beyond the matrix and columns beyond `cols` are zero. Packing
//! happens when the artefact is written, so that kernels read the mapped file in place, front to back.
//!
//! - `float`: f32, f16 and bf16, column after column.
//! - `w8`: symmetric int8 with an f16 scale per group.
//! - `w4`: affine int4 with an f16 scale and minimum per group.

pub(crate) mod float;
pub(crate) mod w4;
pub(crate) mod w8;

use crate::error::{Error, Result};
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

impl WeightFormat {
    /// Every format, most precise first.
    pub const ALL: [WeightFormat; 5] =
        [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16, WeightFormat::W8, WeightFormat::W4];

    /// Name in manifests and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            WeightFormat::F32 => "f32",
            WeightFormat::F16 => "f16",
            WeightFormat::Bf16 => "bf16",
            WeightFormat::W8 => "w8",
            WeightFormat::W4 => "w4",
        }
    }

    /// The format called `name`, as [`name`](Self::name) spells it.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Whether kernels multiply this format with 8-bit activations (otherwise with f32 ones).
    pub fn is_integer(self) -> bool {
        matches!(self, WeightFormat::W8 | WeightFormat::W4)
    }

    /// Bytes of one panel of a matrix with `cols` columns; `None` if that overflows.
    pub fn panel_bytes(self, cols: usize) -> Option<usize> {
        match self {
            WeightFormat::F32 => cols.checked_mul(PANEL_ROWS * 4),
            WeightFormat::F16 | WeightFormat::Bf16 => cols.checked_mul(PANEL_ROWS * 2),
            WeightFormat::W8 => groups(cols).checked_mul(w8::GROUP_BYTES),
            WeightFormat::W4 => groups(cols).checked_mul(w4::GROUP_BYTES),
        }
    }

    /// Bytes of a whole matrix; `None` if that overflows.
    pub fn matrix_bytes(self, rows: usize, cols: usize) -> Option<usize> {
        self.panel_bytes(cols)?.checked_mul(panels(rows))
    }
}

/// Panels of a matrix with `rows` rows.
pub fn panels(rows: usize) -> usize {
    rows.div_ceil(PANEL_ROWS)
}

/// Groups of [`GROUP`] columns in a row of `cols` columns; the last one may be partial.
pub fn groups(cols: usize) -> usize {
    cols.div_ceil(GROUP)
}

/// Pack up to [`PANEL_ROWS`] rows (`rows`: row-major, `cols` values each) into `out`, one panel of `format`.
///
/// Missing rows and the padding of the last group become zeros.
///
/// # Errors
/// [`Error::InvalidArgument`] if the slices do not have the right lengths, or if a value is not finite or too large for
/// the format; the message names the row of the panel and the column.
pub fn pack_panel(format: WeightFormat, rows: &[f32], cols: usize, out: &mut [u8]) -> Result<()> {
    if cols == 0 || rows.is_empty() || !rows.len().is_multiple_of(cols) || rows.len() / cols > PANEL_ROWS {
        return Err(Error::invalid(format!(
            "cannot pack {} values as rows of {cols} columns: a panel takes 1 to {PANEL_ROWS} whole rows",
            rows.len()
        )));
    }
    if format.panel_bytes(cols) != Some(out.len()) {
        return Err(Error::invalid(format!(
            "a {} panel of {cols} columns takes {:?} bytes, the buffer has {}",
            format.name(),
            format.panel_bytes(cols),
            out.len()
        )));
    }
    if let Some(at) = rows.iter().position(|w| !w.is_finite()) {
        return Err(bad_weight(format, at / cols, at % cols, rows[at]));
    }
    match format {
        WeightFormat::F32 => float::pack_f32(rows, cols, out),
        WeightFormat::F16 => float::pack_f16(rows, cols, out)?,
        WeightFormat::Bf16 => float::pack_bf16(rows, cols, out)?,
        WeightFormat::W8 => w8::pack(rows, cols, out)?,
        WeightFormat::W4 => w4::pack(rows, cols, out)?,
    }
    Ok(())
}

/// The error for a weight that `format` cannot hold.
fn bad_weight(format: WeightFormat, row: usize, col: usize, value: f32) -> Error {
    let hint = if value.is_finite() { ": choose f32 or bf16 weights" } else { "" };
    Error::invalid(format!(
        "weight {value:e} in row {row} of the panel, column {col}, cannot be stored as {}{hint}",
        format.name()
    ))
}

/// A packed matrix in borrowed bytes (usually a mapped file).
#[derive(Debug, Clone, Copy)]
pub struct PackedMatrix<'a> {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    panel_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> PackedMatrix<'a> {
    /// View `bytes` as the packed matrix `[rows, cols]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a dimension is zero or `bytes` is not exactly as long as the matrix.
    pub fn new(format: WeightFormat, rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self> {
        if rows == 0 || cols == 0 {
            return Err(Error::invalid(format!("a matrix of shape [{rows}, {cols}] has no elements")));
        }
        match (format.panel_bytes(cols), format.matrix_bytes(rows, cols)) {
            (Some(panel_bytes), Some(need)) if need == bytes.len() => {
                Ok(PackedMatrix { format, rows, cols, panel_bytes, bytes })
            }
            (_, need) => Err(Error::invalid(format!(
                "a {} matrix of shape [{rows}, {cols}] takes {} bytes, {} are there",
                format.name(),
                need.map_or("too many".to_string(), |n| n.to_string()),
                bytes.len()
            ))),
        }
    }

    /// Storage format.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Output channels.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input channels.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of panels.
    pub fn panels(&self) -> usize {
        panels(self.rows)
    }

    /// All bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes of panel `i`: rows `16·i ..`.
    ///
    /// # Panics
    /// If `i` is not below [`panels`](Self::panels).
    pub fn panel(&self, i: usize) -> &'a [u8] {
        &self.bytes[i * self.panel_bytes..][..self.panel_bytes]
    }

    /// Decode row `row` into `out` (`cols` values).
    ///
    /// # Panics
    /// If `row` is outside the matrix or `out` has another length.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of a matrix with {} rows", self.rows);
        assert_eq!(out.len(), self.cols, "row buffer length");
        let (panel, row) = (self.panel(row / PANEL_ROWS), row % PANEL_ROWS);
        match self.format {
            WeightFormat::F32 => float::read_f32(panel, row, out),
            WeightFormat::F16 => float::read_f16(panel, row, out),
            WeightFormat::Bf16 => float::read_bf16(panel, row, out),
            WeightFormat::W8 => w8::read_row(panel, row, out),
            WeightFormat::W4 => w4::read_row(panel, row, out),
        }
    }
}
