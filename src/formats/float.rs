//! f32, f16 and bf16 panels: for each column 16 values, row 0 to 15, little endian.

use super::{PANEL_ROWS, WeightFormat, bad_weight};
use crate::error::Result;
use half::{bf16, f16};

/// Store f32 rows.
pub(super) fn pack_f32(rows: &[f32], cols: usize, out: &mut [u8]) {
    for (column, out) in out.chunks_exact_mut(PANEL_ROWS * 4).enumerate() {
        for (row, out) in out.chunks_exact_mut(4).enumerate() {
            let value = rows.get(row * cols + column).copied().unwrap_or(0.0);
            out.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// Store rows as f16; a value beyond ±65504 is an error.
pub(super) fn pack_f16(rows: &[f32], cols: usize, out: &mut [u8]) -> Result<()> {
    pack_halves(WeightFormat::F16, rows, cols, out, |value| {
        let half = f16::from_f32(value);
        half.is_finite().then_some(half.to_bits())
    })
}

/// Store rows as bf16; a value that rounds to infinity is an error.
pub(super) fn pack_bf16(rows: &[f32], cols: usize, out: &mut [u8]) -> Result<()> {
    pack_halves(WeightFormat::Bf16, rows, cols, out, |value| {
        let half = bf16::from_f32(value);
        half.is_finite().then_some(half.to_bits())
    })
}

fn pack_halves(
    format: WeightFormat,
    rows: &[f32],
    cols: usize,
    out: &mut [u8],
    convert: impl Fn(f32) -> Option<u16>,
) -> Result<()> {
    for (column, out) in out.chunks_exact_mut(PANEL_ROWS * 2).enumerate() {
        for (row, out) in out.chunks_exact_mut(2).enumerate() {
            let value = rows.get(row * cols + column).copied().unwrap_or(0.0);
            let bits = convert(value).ok_or_else(|| bad_weight(format, row, column, value))?;
            out.copy_from_slice(&bits.to_le_bytes());
        }
    }
    Ok(())
}

/// Decode one row of an f32 panel.
pub(super) fn read_f32(panel: &[u8], row: usize, out: &mut [f32]) {
    for (column, out) in panel.chunks_exact(PANEL_ROWS * 4).zip(out) {
        let bytes = &column[row * 4..];
        *out = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
}

/// Decode one row of an f16 panel.
pub(super) fn read_f16(panel: &[u8], row: usize, out: &mut [f32]) {
    for (column, out) in panel.chunks_exact(PANEL_ROWS * 2).zip(out) {
        *out = f16::from_le_bytes([column[row * 2], column[row * 2 + 1]]).to_f32();
    }
}

/// Decode one row of a bf16 panel.
pub(super) fn read_bf16(panel: &[u8], row: usize, out: &mut [f32]) {
    for (column, out) in panel.chunks_exact(PANEL_ROWS * 2).zip(out) {
        *out = bf16::from_le_bytes([column[row * 2], column[row * 2 + 1]]).to_f32();
    }
}
