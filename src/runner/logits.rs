//! Logits as a graph gives them, and as the sampler takes them.

use crate::engine::Constants;
use crate::error::{Error, Result};
use crate::graph::{DType, Tensor, TensorInfo, TensorView, TensorViewMut};

/// `real = (level - zero_point) · scale` of quantized logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitsEncoding {
    /// Step between two levels, above 0.
    pub scale: f32,
    /// Level that means 0.
    pub zero_point: f32,
}

impl LogitsEncoding {
    /// What the program's constants `get_logits_scale` and `get_logits_zero_point` say; `None` if either is absent.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the constant and its value.
    pub fn from_constants(constants: &Constants) -> Result<Option<Self>> {
        let scale = constants.real("get_logits_scale")?;
        let zero_point = constants.integer("get_logits_zero_point")?;
        let (Some(scale), Some(zero_point)) = (scale, zero_point) else { return Ok(None) };
        if scale as f32 <= 0.0 {
            return Err(Error::invalid(format!("constant get_logits_scale is {scale}, it must be above 0")));
        }
        Ok(Some(Self { scale: scale as f32, zero_point: zero_point as f32 }))
    }
}

/// The logits output `[1, AR, V]` of one graph: f32, or u16 or u8 levels.
#[derive(Debug)]
pub(super) struct Logits {
    tensor: Tensor,
    vocabulary: usize,
    encoding: Option<LogitsEncoding>,
    /// Row that [`current`](Self::current) shows.
    selected: usize,
    /// That row in f32, for quantized logits.
    values: Vec<f32>,
}

impl Logits {
    /// `encoding` is only looked at for quantized logits; without one their levels are taken as they are, which orders
    /// tokens but says nothing of probabilities.
    pub fn new(tensor: Tensor, encoding: Option<LogitsEncoding>) -> Self {
        let vocabulary = tensor.info().shape.last().copied().unwrap_or(0);
        Self { tensor, vocabulary, encoding, selected: 0, values: Vec::new() }
    }

    /// For the graph to write to.
    pub fn view_mut(&mut self) -> TensorViewMut<'_> {
        self.tensor.view_mut()
    }

    /// Make `row` the current one.
    pub fn select(&mut self, row: usize) -> Result<()> {
        self.selected = row;
        let encoding = self.encoding.unwrap_or(LogitsEncoding { scale: 1.0, zero_point: 0.0 });
        let real = |level: f32| (level - encoding.zero_point) * encoding.scale;
        let Self { tensor, values, vocabulary, .. } = self;
        let (view, range) = (tensor.view(), row * *vocabulary..(row + 1) * *vocabulary);
        values.clear();
        match view.dtype {
            DType::U16 => values.extend(elements::<u16>(&view, range)?.iter().map(|&level| real(level.into()))),
            DType::U8 => values.extend(elements::<u8>(&view, range)?.iter().map(|&level| real(level.into()))),
            _ => {
                elements::<f32>(&view, range)?;
            }
        }
        Ok(())
    }

    /// The current row in f32, `[V]`.
    pub fn current(&self) -> Option<&[f32]> {
        if self.tensor.info().dtype != DType::F32 {
            return Some(&self.values);
        }
        let start = self.selected * self.vocabulary;
        self.tensor.as_slice::<f32>().ok()?.get(start..start + self.vocabulary)
    }

    /// Bytes of a row as the graph wrote them.
    pub fn raw_row(&self, row: usize) -> &[u8] {
        let width = self.vocabulary * self.tensor.info().dtype.size_bytes();
        self.tensor.bytes().get(row * width..(row + 1) * width).unwrap_or_default()
    }

    /// The token with the largest logit of a row; the first one of equals. NaN counts as smallest.
    pub fn argmax(&self, row: usize) -> Result<u32> {
        fn largest<T: PartialOrd + Copy>(values: &[T]) -> u32 {
            let mut best: Option<(u32, T)> = None;
            for (id, &value) in (0u32..).zip(values) {
                if best.is_none_or(|(_, most)| value > most) && value.partial_cmp(&value).is_some() {
                    best = Some((id, value));
                }
            }
            best.map_or(0, |(id, _)| id)
        }
        let (view, range) = (self.tensor.view(), row * self.vocabulary..(row + 1) * self.vocabulary);
        match view.dtype {
            DType::U16 => elements::<u16>(&view, range).map(largest),
            DType::U8 => elements::<u8>(&view, range).map(largest),
            _ => elements::<f32>(&view, range).map(largest),
        }
    }
}

/// Whether `info` can be logits of a block of `ar` tokens.
pub(super) fn is_logits(info: &TensorInfo, ar: usize) -> bool {
    let known = matches!(info.dtype, DType::F32 | DType::U16 | DType::U8);
    known && matches!(info.shape[..], [1, rows, vocabulary] if rows == ar && vocabulary > 0)
}

fn elements<'a, T: bytemuck::Pod>(view: &TensorView<'a>, range: std::ops::Range<usize>) -> Result<&'a [T]> {
    let rows = view.shape.get(1).copied().unwrap_or(0);
    view.as_slice::<T>()?
        .get(range)
        .ok_or_else(|| Error::internal(format!("logits of {rows} rows are read past the end")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Constant, ConstantValue};

    fn logits(dtype: DType, levels: &[u16], encoding: Option<LogitsEncoding>) -> Logits {
        let info = TensorInfo { name: "logits".into(), dtype, shape: vec![1, levels.len() / 3, 3] };
        let mut tensor = Tensor::zeros(info).expect("small");
        match dtype {
            DType::U16 => tensor.view_mut().as_mut_slice::<u16>().expect("u16").copy_from_slice(levels),
            DType::U8 => tensor.bytes_mut().iter_mut().zip(levels).for_each(|(to, &level)| *to = level as u8),
            _ => {
                let mut view = tensor.view_mut();
                let values = view.as_mut_slice::<f32>().expect("f32");
                values.iter_mut().zip(levels).for_each(|(to, &level)| *to = level.into());
            }
        }
        Logits::new(tensor, encoding)
    }

    #[test]
    fn levels_become_real_numbers() {
        let encoding = LogitsEncoding { scale: 0.5, zero_point: 100.0 };
        for dtype in [DType::U8, DType::U16] {
            let mut logits = logits(dtype, &[1, 2, 3, 100, 102, 98], Some(encoding));
            logits.select(1).expect("row 1");
            assert_eq!(logits.current(), Some(&[0.0, 1.0, -1.0][..]));
            assert_eq!((logits.argmax(0).unwrap(), logits.argmax(1).unwrap()), (2, 1));
            assert!(logits.select(2).is_err());
            assert_eq!(logits.raw_row(1).len(), 3 * dtype.size_bytes());
        }
    }

    #[test]
    fn floats_are_left_alone() {
        let mut logits = logits(DType::F32, &[1, 5, 5], Some(LogitsEncoding { scale: 0.5, zero_point: 100.0 }));
        logits.select(0).expect("row 0");
        assert_eq!(logits.current(), Some(&[1.0, 5.0, 5.0][..]));
        assert_eq!(logits.argmax(0).unwrap(), 1, "the first of equals");
    }

    #[test]
    fn the_encoding_comes_from_both_constants() {
        let scale = |value| Constant { name: "get_logits_scale".into(), values: vec![ConstantValue::Real(value)] };
        let zero = Constant { name: "get_logits_zero_point".into(), values: vec![ConstantValue::Integer(7)] };
        let read = |constants: Vec<Constant>| LogitsEncoding::from_constants(&Constants::new(constants));
        let both = read(vec![scale(0.25), zero.clone()]).expect("valid");
        assert_eq!(both, Some(LogitsEncoding { scale: 0.25, zero_point: 7.0 }));
        assert_eq!(read(vec![scale(0.25)]).expect("valid"), None);
        assert!(read(vec![scale(0.0), zero]).unwrap_err().to_string().contains("get_logits_scale is 0"));
    }
}
