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

    /// Whether kernels multiply this format with 16-bit activations (otherwise with f32 ones).
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Repeatable values in -1..1.
    pub(super) fn noise(seed: u64, n: usize) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    /// Pack a matrix and decode it again.
    pub(super) fn round_trip(format: WeightFormat, weights: &[f32], cols: usize) -> Vec<f32> {
        let rows = weights.len() / cols;
        let mut bytes = vec![0xa5; format.matrix_bytes(rows, cols).expect("small")];
        let panel_bytes = format.panel_bytes(cols).expect("small");
        for (rows, panel) in weights.chunks(PANEL_ROWS * cols).zip(bytes.chunks_exact_mut(panel_bytes)) {
            pack_panel(format, rows, cols, panel).expect("packs");
        }
        let matrix = PackedMatrix::new(format, rows, cols, &bytes).expect("right length");
        let mut decoded = vec![f32::NAN; weights.len()];
        decoded.chunks_exact_mut(cols).enumerate().for_each(|(row, out)| matrix.read_row(row, out));
        decoded
    }

    #[test]
    fn float_formats_round_to_nearest() {
        for (rows, cols) in [(1, 1), (16, 5), (17, 33), (40, 64)] {
            let weights = noise(1, rows * cols);
            assert_eq!(round_trip(WeightFormat::F32, &weights, cols), weights);
            let f16 = weights.iter().map(|&w| half::f16::from_f32(w).to_f32()).collect::<Vec<_>>();
            assert_eq!(round_trip(WeightFormat::F16, &weights, cols), f16);
            let bf16 = weights.iter().map(|&w| half::bf16::from_f32(w).to_f32()).collect::<Vec<_>>();
            assert_eq!(round_trip(WeightFormat::Bf16, &weights, cols), bf16);
        }
    }

    #[test]
    fn padding_is_zero() {
        for format in WeightFormat::ALL {
            let (rows, cols) = (3, 40);
            let mut panel = vec![0xffu8; format.panel_bytes(cols).expect("small")];
            pack_panel(format, &noise(2, rows * cols), cols, &mut panel).expect("packs");
            let padded = cols.next_multiple_of(if format.is_integer() { GROUP } else { 1 });
            let whole = PackedMatrix::new(format, PANEL_ROWS, padded, &panel).expect("same length");
            let mut row = vec![1.0; padded];
            for r in rows..PANEL_ROWS {
                whole.read_row(r, &mut row);
                assert!(row.iter().all(|&w| w == 0.0), "{} row {r}", format.name());
            }
        }
    }

    #[test]
    fn names_round_trip() {
        for format in WeightFormat::ALL {
            assert_eq!(WeightFormat::parse(format.name()), Some(format));
            assert_eq!(serde_json::to_value(format).expect("serializes"), format.name());
        }
        assert_eq!(WeightFormat::parse("W4"), None);
    }

    #[test]
    fn lengths_are_checked_and_never_overflow() {
        assert_eq!(WeightFormat::W4.matrix_bytes(17, 33), Some(2 * 2 * 320));
        assert_eq!(WeightFormat::W8.matrix_bytes(16, 32), Some(544));
        for format in WeightFormat::ALL {
            assert_eq!(format.matrix_bytes(usize::MAX, usize::MAX), None);
            assert!(PackedMatrix::new(format, usize::MAX, usize::MAX, &[]).is_err());
            assert!(PackedMatrix::new(format, 0, 32, &[]).is_err());
            let need = format.matrix_bytes(20, 50).expect("small");
            assert!(PackedMatrix::new(format, 20, 50, &vec![0; need]).is_ok());
            for wrong in [need - 1, need + 1] {
                let message = PackedMatrix::new(format, 20, 50, &vec![0; wrong]).expect_err("wrong length").to_string();
                assert!(message.contains("[20, 50]") && message.contains(&wrong.to_string()), "{message}");
            }
            assert!(pack_panel(format, &[0.0; 50], 50, &mut vec![0; need]).is_err());
            assert!(pack_panel(format, &[0.0; 49], 50, &mut vec![0; need / 2]).is_err());
            assert!(pack_panel(format, &[0.0; 17 * 50], 50, &mut vec![0; need / 2]).is_err());
        }
    }

    #[test]
    fn values_that_are_not_finite_are_errors_that_name_the_place() {
        for format in WeightFormat::ALL {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut rows = vec![0.25f32; 4 * 50];
                rows[3 * 50 + 49] = bad;
                let mut out = vec![0; format.panel_bytes(50).expect("small")];
                let message = pack_panel(format, &rows, 50, &mut out).expect_err("not finite").to_string();
                assert!(message.contains("row 3") && message.contains("column 49"), "{message}");
            }
        }
        let mut out = vec![0; WeightFormat::F16.panel_bytes(1).expect("small")];
        let message = pack_panel(WeightFormat::F16, &[1.0, 1e5], 1, &mut out).expect_err("too large").to_string();
        assert!(message.contains("row 1") && message.contains("bf16"), "{message}");
    }
}
