//! A component file, read back: the weights of quantized graphs.

use super::stored::{StoredForm, StoredWeight};
use crate::error::{Error, Result};
use crate::graph::{DType, WeightProvider};
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The weights of a component file, dequantized row by row when asked for. The file is mapped; it must not be changed while it
/// is open.
#[derive(Debug)]
pub struct QdqWeights {
    path: PathBuf,
    map: Mmap,
    weights: BTreeMap<String, Weight>,
}

#[derive(Debug)]
struct Weight {
    stored: StoredWeight,
    /// The integers, in the file.
    data: Range<usize>,
    scales: Vec<f32>,
    /// `[rows, blocks]`
    multipliers: Vec<u8>,
}

/// What the file says of a weight, found by looking at its integers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WeightSummary {
    /// Name of the weight.
    pub name: String,
    /// How it is stored.
    #[serde(flatten)]
    pub stored: StoredWeight,
    /// Bits that the integers really need, sign included; of the float type for what is not quantized.
    pub bits: u32,
    /// Smallest and largest integer there is.
    pub levels: Option<(i32, i32)>,
    /// Share of integers at the ends of their grid.
    pub saturated: f64,
    /// Bytes of integers at that width, and of scales, as a device stores them.
    pub device_bytes: u64,
}

impl WeightSummary {
    /// `int4`, `uint16`, `f16`, …: what a device needs to hold it.
    pub fn format_name(&self) -> String {
        match (self.stored.form, self.stored.dtype) {
            (StoredForm::Float, dtype) => dtype.name().into(),
            (_, DType::U8 | DType::U16) => format!("uint{}", self.bits),
            _ => format!("int{}", self.bits),
        }
    }
}

impl QdqWeights {
    /// Map a component file that holds exactly these weights.
    ///
    /// # Errors
    /// [`Error::NotFound`] or [`Error::Io`] if it cannot be opened; [`Error::Format`] naming the array that is missing, has another
    /// type or shape, or scales no quantizer writes.
    pub fn open(path: &Path, stored: &BTreeMap<String, StoredWeight>) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        // SAFETY: the mapping is read-only. Rust cannot rule out that another process changes the file under it; that is part of
        // the documented contract of this type, as for every memory-mapped model format.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(path, e))?;
        let malformed = |e: safetensors::SafeTensorError| Error::format(path, "header", e.to_string());
        let tensors = SafeTensors::deserialize(&map).map_err(malformed)?;
        let mut expected = 0;
        let mut weights = BTreeMap::new();
        for (name, stored) in stored {
            let mut found = Vec::new();
            for array in stored.arrays(name) {
                expected += 1;
                let view = tensors.tensor(&array.name).map_err(|e| Error::format(path, &array.name, e.to_string()))?;
                let dtype = of_safetensors(view.dtype());
                if dtype != Some(array.dtype) || view.shape() != array.shape {
                    let (have, shape, want) = (view.dtype(), view.shape(), array.dtype.name());
                    let reason = format!("is {have:?} {shape:?}, but the model says {want} {:?}", array.shape);
                    return Err(Error::format(path, &array.name, reason));
                }
                let start = view.data().as_ptr().addr() - map.as_ptr().addr();
                found.push(start..start + view.data().len());
            }
            let mut found = found.into_iter();
            let data = found.next().unwrap_or_default();
            let scales = found.next().map(|range| floats(&map[range])).unwrap_or_default();
            let multipliers = found.next().map(|range| map[range].to_vec()).unwrap_or_default();
            let weight = Weight { stored: stored.clone(), data, scales, multipliers };
            weight.check().map_err(|reason| Error::format(path, name, reason))?;
            weights.insert(name.clone(), weight);
        }
        if tensors.len() != expected {
            let reason = format!("holds {} arrays, the model says {expected}", tensors.len());
            return Err(Error::format(path, "header", reason));
        }
        Ok(Self { path: path.into(), map, weights })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How a weight is stored.
    pub fn stored(&self, name: &str) -> Option<&StoredWeight> {
        self.weights.get(name).map(|weight| &weight.stored)
    }

    /// Scales of a weight, one a row, and its block multipliers `[rows, blocks]`; empty where its form has none.
    pub fn scales(&self, name: &str) -> Option<(&[f32], &[u8])> {
        self.weights.get(name).map(|weight| (weight.scales.as_slice(), weight.multipliers.as_slice()))
    }

    /// Look at all integers.
    ///
    /// # Errors
    /// [`Error::Format`] naming a weight with an integer outside of what its form allows.
    pub fn summaries(&self) -> Result<Vec<WeightSummary>> {
        self.weights.iter().map(|(name, weight)| self.summary(name, weight)).collect()
    }

    fn summary(&self, name: &str, weight: &Weight) -> Result<WeightSummary> {
        let stored = weight.stored.clone();
        let elements = (weight.data.len() / stored.dtype.size_bytes()) as u64;
        let name = name.to_owned();
        let Some((qmin, qmax)) = weight.limits() else {
            let bits = stored.dtype.size_bytes() as u32 * 8;
            let device_bytes = weight.data.len() as u64;
            return Ok(WeightSummary { name, stored, bits, levels: None, saturated: 0.0, device_bytes });
        };
        let (mut lowest, mut highest, mut saturated) = (i32::MAX, i32::MIN, 0u64);
        for_each_level(stored.dtype, &self.map[weight.data.clone()], |level| {
            lowest = lowest.min(level);
            highest = highest.max(level);
            saturated += u64::from(level == qmin || level == qmax);
        });
        if lowest < qmin || highest > qmax {
            let reason = format!("has integers from {lowest} to {highest}, outside of {qmin} to {qmax}");
            return Err(Error::format(&self.path, &name, reason));
        }
        // What is allowed decides about the width on a device, not what happens to occur.
        let bits = bits_of(qmin, qmax);
        let device_bytes =
            (elements * u64::from(bits)).div_ceil(8) + weight.scales.len() as u64 * 4 + weight.multipliers.len() as u64;
        let saturated = saturated as f64 / elements.max(1) as f64;
        Ok(WeightSummary { name, stored, bits, levels: Some((lowest, highest)), saturated, device_bytes })
    }
}

impl WeightProvider for QdqWeights {
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let weight = self.weights.get(name).ok_or_else(|| Error::NotFound(format!("there is no weight {name}")))?;
        let (count, width) = weight.stored.rows().unwrap_or((0, 0));
        if rows.start > rows.end || rows.end > count || rows.len().checked_mul(width) != Some(out.len()) {
            let (shape, length) = (&weight.stored.shape, out.len());
            return Err(Error::invalid(format!("weight {name} {shape:?}: rows {rows:?} into {length} elements")));
        }
        let size = weight.stored.dtype.size_bytes();
        let data = &self.map[weight.data.clone()][rows.start * width * size..rows.end * width * size];
        weight.dequantize(rows, width, data, out);
        Ok(())
    }
}

impl Weight {
    fn check(&self) -> std::result::Result<(), String> {
        if let Some(scale) = self.scales.iter().find(|scale| !(scale.is_finite() && **scale > 0.0)) {
            return Err(format!("has the scale {scale}"));
        }
        if let Some(multiplier) = self.multipliers.iter().find(|multiplier| !(1..=16).contains(*multiplier)) {
            return Err(format!("has the multiplier {multiplier}, which must be 1 to 16"));
        }
        match self.stored.form {
            StoredForm::Blocks { size, .. }
                if self.stored.shape.get(1).is_none_or(|cols| size == 0 || cols % size != 0) =>
            {
                Err(format!("has blocks of {size}, which do not divide {:?}", self.stored.shape))
            }
            StoredForm::Grid { encoding: None } => Err("has no encoding".into()),
            StoredForm::Grid { encoding: Some(encoding) } if !(encoding.scale.is_finite() && encoding.scale > 0.0) => {
                Err(format!("has the scale {}", encoding.scale))
            }
            _ => Ok(()),
        }
    }

    /// Integers that are allowed; `None` for floats.
    fn limits(&self) -> Option<(i32, i32)> {
        match self.stored.form {
            StoredForm::Float => None,
            StoredForm::Grid { encoding } => encoding.map(|encoding| (encoding.qmin, encoding.qmax)),
            StoredForm::Channels { qmin, qmax } | StoredForm::Blocks { qmin, qmax, .. } => Some((qmin, qmax)),
            StoredForm::Bias => Some((i32::MIN, i32::MAX)),
        }
    }

    fn dequantize(&self, rows: Range<usize>, width: usize, data: &[u8], out: &mut [f32]) {
        let levels = |out: &mut [f32]| read_levels(self.stored.dtype, data, out);
        levels(out);
        match self.stored.form {
            StoredForm::Float => {}
            StoredForm::Grid { encoding } => {
                let Some(encoding) = encoding else { return };
                let zero_point = encoding.zero_point as f32;
                out.iter_mut().for_each(|out| *out = (*out - zero_point) * encoding.scale);
            }
            StoredForm::Bias => out.iter_mut().zip(&self.scales).for_each(|(out, scale)| *out *= scale),
            StoredForm::Channels { .. } => {
                for (out, scale) in out.chunks_exact_mut(width).zip(&self.scales[rows]) {
                    out.iter_mut().for_each(|out| *out *= scale);
                }
            }
            StoredForm::Blocks { size, .. } => {
                let blocks = width / size;
                for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
                    let multipliers = &self.multipliers[row * blocks..(row + 1) * blocks];
                    for (out, multiplier) in out.chunks_exact_mut(size).zip(multipliers) {
                        let scale = self.scales[row] * f32::from(*multiplier);
                        out.iter_mut().for_each(|out| *out *= scale);
                    }
                }
            }
        }
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}

/// Bits of integers from `qmin` to `qmax`.
fn bits_of(qmin: i32, qmax: i32) -> u32 {
    let values = (i64::from(qmax) - i64::from(qmin) + 1) as u64;
    64 - (values - 1).leading_zeros()
}

fn of_safetensors(dtype: safetensors::Dtype) -> Option<DType> {
    Some(match dtype {
        safetensors::Dtype::F32 => DType::F32,
        safetensors::Dtype::F16 => DType::F16,
        safetensors::Dtype::BF16 => DType::BF16,
        safetensors::Dtype::U8 => DType::U8,
        safetensors::Dtype::I8 => DType::I8,
        safetensors::Dtype::U16 => DType::U16,
        safetensors::Dtype::I16 => DType::I16,
        safetensors::Dtype::I32 => DType::I32,
        _ => return None,
    })
}

/// The numbers of an array as f32; 32-bit integers are rounded to single precision.
fn read_levels(dtype: DType, data: &[u8], out: &mut [f32]) {
    match dtype {
        DType::I8 => out.iter_mut().zip(data).for_each(|(out, byte)| *out = f32::from(byte.cast_signed())),
        DType::U8 => out.iter_mut().zip(data).for_each(|(out, byte)| *out = f32::from(*byte)),
        DType::F32 => pairs(out, data, |b: [u8; 4]| f32::from_le_bytes(b)),
        DType::I32 => pairs(out, data, |b: [u8; 4]| i32::from_le_bytes(b) as f32),
        DType::F16 => pairs(out, data, |b: [u8; 2]| f16::from_le_bytes(b).to_f32()),
        DType::BF16 => pairs(out, data, |b: [u8; 2]| bf16::from_le_bytes(b).to_f32()),
        DType::I16 => pairs(out, data, |b: [u8; 2]| f32::from(i16::from_le_bytes(b))),
        DType::U16 => pairs(out, data, |b: [u8; 2]| f32::from(u16::from_le_bytes(b))),
        DType::I64 => pairs(out, data, |b: [u8; 8]| i64::from_le_bytes(b) as f32),
    }
}

fn pairs<const N: usize>(out: &mut [f32], data: &[u8], value: impl Fn([u8; N]) -> f32) {
    for (out, bytes) in out.iter_mut().zip(data.as_chunks::<N>().0) {
        *out = value(*bytes);
    }
}

fn for_each_level(dtype: DType, data: &[u8], mut f: impl FnMut(i32)) {
    match dtype {
        DType::I8 => data.iter().for_each(|byte| f(byte.cast_signed().into())),
        DType::U8 => data.iter().for_each(|byte| f((*byte).into())),
        DType::I16 => data.as_chunks::<2>().0.iter().for_each(|bytes| f(i16::from_le_bytes(*bytes).into())),
        DType::U16 => data.as_chunks::<2>().0.iter().for_each(|bytes| f(u16::from_le_bytes(*bytes).into())),
        DType::I32 => data.as_chunks::<4>().0.iter().for_each(|bytes| f(i32::from_le_bytes(*bytes))),
        DType::F32 | DType::F16 | DType::BF16 | DType::I64 => {}
    }
}
