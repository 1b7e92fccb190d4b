//! How a weight is stored as integers.

use crate::error::{Error, Result};
use crate::graph::{DType, Graph};
use crate::quantize::dtype::WeightGranularity;
use crate::quantize::encoding::Encoding;
use crate::quantize::plan::{ActivationSpec, GraphPlan, WeightPlan};
use crate::quantize::range::ValueRange;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A weight of a component file: its shape, its integers, and what they mean.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredWeight {
    /// Shape as the graphs see it.
    pub shape: Vec<usize>,
    /// Element type of the array called after the weight.
    pub dtype: DType,
    /// What the integers mean.
    #[serde(flatten)]
    pub form: StoredForm,
}

/// What integers of a weight mean.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "form", rename_all = "snake_case")]
pub enum StoredForm {
    /// Not quantized.
    Float,
    /// `(q - zero_point) · scale`, one grid for all. `encoding` is `None` until the weight was looked at.
    Grid {
        /// The grid.
        encoding: Option<Encoding>,
    },
    /// `q · scale[row]`; the scales are f32 `[rows]`, called `<weight>.scale`.
    Channels {
        /// Smallest integer.
        qmin: i32,
        /// Largest integer.
        qmax: i32,
    },
    /// LPBQ: `q · scale[row] · multiplier[row, block]`; scales as above, multipliers u8 `[rows, blocks]`, called
    /// `<weight>.multiplier`, from 1 to 16.
    Blocks {
        /// Inputs of a block.
        size: usize,
        /// Smallest integer.
        qmin: i32,
        /// Largest integer.
        qmax: i32,
    },
    /// A bias: i32, `q · scale[row]`, scales as above.
    Bias,
}

/// An array of a component file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredArray {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
}

impl StoredWeight {
    /// A weight that stays float.
    pub fn float(shape: &[usize], dtype: DType) -> Self {
        Self { shape: shape.to_vec(), dtype, form: StoredForm::Float }
    }

    /// How every weight of `graph` will be stored by `plan`; grids are not known yet.
    ///
    /// # Errors
    /// [`Error::Internal`] if the plan is of another graph.
    pub fn of_plan(graph: &Graph, plan: &GraphPlan) -> Result<BTreeMap<String, Self>> {
        let mut stored = BTreeMap::new();
        for (&value, weight) in &plan.weights {
            let info = &graph.values.get(value).ok_or_else(|| Error::internal("a plan of another graph"))?.info;
            let (dtype, form) = form_of(weight, plan);
            stored.insert(info.name.clone(), Self { shape: info.shape.clone(), dtype, form });
        }
        Ok(stored)
    }

    /// Rows and the length of one: the first axis and the product of the others; a vector is one row.
    pub fn rows(&self) -> Option<(usize, usize)> {
        match self.shape.as_slice() {
            [] => Some((1, 1)),
            &[length] => Some((1, length)),
            [rows, rest @ ..] => Some((*rows, rest.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?)),
        }
    }

    /// Scales it has: one a row of a matrix, one an element of a bias; 0 if the form has none.
    pub(super) fn scales(&self) -> usize {
        match self.form {
            StoredForm::Channels { .. } | StoredForm::Blocks { .. } | StoredForm::Bias => {
                self.shape.first().copied().unwrap_or(0)
            }
            StoredForm::Float | StoredForm::Grid { .. } => 0,
        }
    }

    /// The arrays of the file it is made of.
    pub(super) fn arrays(&self, name: &str) -> Vec<StoredArray> {
        let array = |name: String, dtype, shape: &[usize]| StoredArray { name, dtype, shape: shape.to_vec() };
        let mut arrays = vec![array(name.to_owned(), self.dtype, &self.shape)];
        if self.scales() > 0 {
            arrays.push(array(format!("{name}.scale"), DType::F32, &[self.scales()]));
        }
        if let (StoredForm::Blocks { size, .. }, &[rows, cols]) = (self.form, self.shape.as_slice()) {
            arrays.push(array(format!("{name}.multiplier"), DType::U8, &[rows, cols / size.max(1)]));
        }
        arrays
    }
}

/// Integers that hold everything from `qmin` to `qmax`.
pub(super) fn smallest_dtype(qmin: i32, qmax: i32) -> DType {
    match (qmin, qmax) {
        (-128.., ..=127) => DType::I8,
        (0.., ..=255) => DType::U8,
        (-32768.., ..=32767) => DType::I16,
        (0.., ..=65535) => DType::U16,
        _ => DType::I32,
    }
}

fn form_of(weight: &WeightPlan, plan: &GraphPlan) -> (DType, StoredForm) {
    let grid = |spec: ActivationSpec| {
        let Encoding { qmin, qmax, .. } = spec.encoding(ValueRange::default());
        (smallest_dtype(qmin, qmax), StoredForm::Grid { encoding: None })
    };
    match weight {
        WeightPlan::Matrix(layer) => {
            let Encoding { qmin, qmax, .. } = layer.dtype.weight_encoding(ValueRange::default(), layer.granularity);
            let form = match layer.granularity {
                WeightGranularity::PerTensor => StoredForm::Grid { encoding: None },
                WeightGranularity::PerChannel => StoredForm::Channels { qmin, qmax },
                WeightGranularity::PerBlock(size) => StoredForm::Blocks { size, qmin, qmax },
            };
            (smallest_dtype(qmin, qmax), form)
        }
        WeightPlan::Table(spec) | WeightPlan::Constant(spec) => grid(*spec),
        WeightPlan::OnSlot(slot) => grid(plan.slots[*slot].spec),
        WeightPlan::Bias { .. } => (DType::I32, StoredForm::Bias),
        WeightPlan::LooseBias => (DType::I32, StoredForm::Grid { encoding: None }),
    }
}
