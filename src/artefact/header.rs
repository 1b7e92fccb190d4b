//! The header of a component file: graphs and weight table inside a safetensors header.

use crate::error::{Error, Result};
use crate::formats::WeightFormat;
use crate::graph::Graph;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Name of the decoder: the one component of a text model.
pub const TEXT_DECODER: &str = "text_decoder";
/// Name of the component that makes rows of pictures.
pub const VISION_ENCODER: &str = "vision_encoder";
/// Name of the audio encoder component.
pub const AUDIO_ENCODER: &str = "audio_encoder";
/// Name of the component that makes rows of tokens, where the decoder takes rows.
pub const TOK_EMBEDDING: &str = "tok_embedding";
/// Value of the metadata key `format`.
pub const COMPONENT_FORMAT: &str = "etgenai-component";
/// Value of the metadata key `version`; the only one this build reads.
pub const COMPONENT_VERSION: &str = "1";
/// Tensor data begins at a multiple of this, in bytes.
const DATA_ALIGNMENT: usize = 64;
/// Bytes of the length field in front of the JSON.
pub(super) const LENGTH_BYTES: usize = 8;

/// How the elements of a weight are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Row after row, f32.
    Plain,
    /// A matrix in panels of 16 rows, see [`crate::formats`].
    Panels,
}

/// How one weight is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredWeight {
    /// Number format; [`WeightFormat::F32`] if the layout is plain.
    pub format: WeightFormat,
    /// Arrangement.
    pub layout: Layout,
    /// Shape as the graphs see it.
    pub shape: Vec<usize>,
}

impl StoredWeight {
    /// A plain f32 weight.
    pub fn plain(shape: &[usize]) -> Self {
        Self { format: WeightFormat::F32, layout: Layout::Plain, shape: shape.to_vec() }
    }

    /// A `[rows, cols]` matrix in panels.
    pub fn panels(format: WeightFormat, rows: usize, cols: usize) -> Self {
        Self { format, layout: Layout::Panels, shape: vec![rows, cols] }
    }

    /// Number of elements; `None` if it overflows.
    pub fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
    }

    /// Bytes in the file; `None` if it overflows or the combination of format, layout and shape does not exist.
    pub fn bytes(&self) -> Option<usize> {
        match (self.layout, self.format, self.shape.as_slice()) {
            (Layout::Plain, WeightFormat::F32, _) => self.elements()?.checked_mul(size_of::<f32>()),
            (Layout::Panels, format, &[rows, cols]) => format.matrix_bytes(rows, cols),
            _ => None,
        }
    }

    /// `(rows, row length)`: the first axis and the product of the others; a vector is one row.
    pub fn rows(&self) -> Option<(usize, usize)> {
        match self.shape.as_slice() {
            [] => Some((1, 1)),
            &[n] => Some((1, n)),
            [rows, rest @ ..] => Some((*rows, rest.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?)),
        }
    }
}

/// What a component file is made of, apart from the tensor data.
#[derive(Debug, Clone, PartialEq)]
pub struct ComponentHeader {
    /// Component name, e.g. `text_decoder`.
    pub component: String,
    /// The graphs, in the order the contract names them.
    pub graphs: Vec<Graph>,
    /// Every weight of the file, by name.
    pub weights: BTreeMap<String, StoredWeight>,
}

impl ComponentHeader {
    /// Names and byte sizes of the weights in file order.
    ///
    /// Panels come first: their sizes are multiples of 32 bytes, so that each begins on such a boundary and the f32
    /// data behind them stays aligned too.
    pub(super) fn file_order(&self) -> Result<Vec<(&str, &StoredWeight, usize)>> {
        let mut order = Vec::with_capacity(self.weights.len());
        for (name, weight) in &self.weights {
            let bytes = weight.bytes().ok_or_else(|| {
                Error::invalid(format!("weight {name} {:?} cannot be stored as {:?}", weight.shape, weight.format))
            })?;
            order.push((name.as_str(), weight, bytes));
        }
        order.sort_by_key(|(_, weight, bytes)| (weight.layout == Layout::Plain, bytes % DATA_ALIGNMENT != 0));
        Ok(order)
    }

    /// The bytes in front of the tensor data: length, JSON, padding.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        let encode = |value: serde_json::Result<String>| value.map_err(|e| Error::internal(format!("component: {e}")));
        let mut tensors = serde_json::Map::new();
        tensors.insert(
            "__metadata__".into(),
            json!({
                "format": COMPONENT_FORMAT,
                "version": COMPONENT_VERSION,
                "component": self.component,
                "graphs": encode(serde_json::to_string(&self.graphs))?,
                "weights": encode(serde_json::to_string(&self.weights))?,
            }),
        );
        let mut offset = 0usize;
        for (name, weight, bytes) in self.file_order()? {
            let end = offset
                .checked_add(bytes)
                .ok_or_else(|| Error::invalid(format!("weight {name}: the component is too large for this machine")))?;
            tensors.insert(name.into(), tensor_entry(weight, offset, end));
            offset = end;
        }
        let mut text = encode(serde_json::to_string(&Value::Object(tensors)))?.into_bytes();
        text.resize((LENGTH_BYTES + text.len()).next_multiple_of(DATA_ALIGNMENT) - LENGTH_BYTES, b' ');
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.append(&mut text);
        Ok(bytes)
    }
}

fn tensor_entry(weight: &StoredWeight, start: usize, end: usize) -> Value {
    match weight.layout {
        Layout::Plain => json!({"dtype": "F32", "shape": weight.shape, "data_offsets": [start, end]}),
        Layout::Panels => json!({"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}),
    }
}
