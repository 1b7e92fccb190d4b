//! A quantized component as AIMET writes its encodings: a JSON file that Qualcomm's converters read beside a float model.
//!
//! In such a file an integer `q` from 0 to `2^bw - 1` means `(q + offset) · scale`, whatever integers a device holds: a grid of
//! unsigned integers with zero point `z` has the offset `-z`, one of signed integers around 0 has `-2^(bw-1)`. What follows the
//! "encoding format specification" of AIMET's documentation (versions 0.6.1 and 1.0.0) and, where that is silent, what AIMET's
//! own exporters do (`AffineEncoding`, `GroupedBlockEncoding`, `LPBQEncoding`): the offset of signed integers, scales of channels
//! and blocks flattened with the output channel first, `bw` of LPBQ being the width once block multipliers are applied (8 for
//! 4-bit weights) and `compressed_bw` that of the integers.
//!
//! Converters make their own integers from float weights by these grids. Given the values that the integers of a
//! [`QdqWeights`] file stand for, they find exactly these integers again; given the weights of the checkpoint they round to the
//! nearest ones, which undoes what a rounding with calibration data has chosen.

use super::component::ComponentFile;
use super::encoding::Encoding;
use super::graphs::ModelGraphs;
use super::plan::GraphPlan;
use super::qdq::{QdqWeights, StoredForm, StoredWeight};
use super::recipe::Recipe;
use super::weight::LPBQ_MULTIPLIER_BITS;
use crate::error::{Error, Result};
use crate::graph::ValueKind;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Layout of an encodings file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AimetVersion {
    /// Maps of names to lists, one entry a channel. Knows no blocks.
    V0_6_1,
    /// Lists of entries with names; knows LPBQ.
    #[default]
    V1_0_0,
}

impl AimetVersion {
    /// As it stands in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::V0_6_1 => "0.6.1",
            Self::V1_0_0 => "1.0.0",
        }
    }

    /// The version of that name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that lists the versions there are.
    pub fn parse(name: &str) -> Result<Self> {
        [Self::V0_6_1, Self::V1_0_0].into_iter().find(|version| version.name() == name).ok_or_else(|| {
            Error::invalid(format!("there is no version {name:?} of AIMET encodings here; there are: 0.6.1, 1.0.0"))
        })
    }
}

/// The encodings of a quantized component: of every tensor of its graphs that is stored as an integer, by the tensor's name in
/// the float graphs, and of every weight. An operand that is stored once more, in other integers than it was computed in, goes by
/// the name it has in the graphs of the file, `<node>.operand<number>.qdq`.
///
/// # Errors
/// [`Error::InvalidArgument`] for a component that stayed float; [`Error::Unsupported`] naming a weight in blocks, for version
/// 0.6.1; a tensor without an encoding.
pub fn aimet_encodings(
    graphs: &ModelGraphs,
    file: &ComponentFile,
    weights: &QdqWeights,
    version: AimetVersion,
) -> Result<Value> {
    let recipe = file.recipe.as_ref().ok_or_else(|| {
        Error::invalid(format!("component {} was not quantized, so it has no encodings to export", file.component))
    })?;
    let activations = activations(graphs, file, recipe)?.into_iter().map(|(name, grid)| (name, Entry::Grid(grid)));
    let mut parameters = BTreeMap::new();
    for (name, stored) in &file.weights {
        parameters.insert(name.clone(), Entry::of_weight(name, stored, weights)?);
    }
    let activations = version.section(activations)?;
    let parameters = version.section(parameters.into_iter())?;
    let mut document = Map::new();
    document.insert("version".into(), json!(version.name()));
    document.insert("activation_encodings".into(), activations);
    document.insert("param_encodings".into(), parameters);
    document.insert("quantizer_args".into(), version.quantizer_args(recipe));
    if version == AimetVersion::V1_0_0 {
        document.insert("excluded_layers".into(), json!([]));
    }
    Ok(Value::Object(document))
}

/// Grids of the tensors of all graphs, by name.
fn activations(graphs: &ModelGraphs, file: &ComponentFile, recipe: &Recipe) -> Result<BTreeMap<String, Grid>> {
    let mut grids = BTreeMap::new();
    for graph in graphs.deployed(&file.component)? {
        let plan = GraphPlan::new(&graph, recipe)?;
        let grid = |slot: usize| {
            let slot = &plan.slots[slot];
            Ok::<_, Error>(Grid::of(file.encodings.get(&slot.name)?, slot.spec.symmetric))
        };
        for (value, slot) in graph.values.iter().zip(&plan.produced) {
            if let (Some(slot), ValueKind::Input | ValueKind::Node) = (slot, value.kind) {
                grids.insert(value.info.name.clone(), grid(*slot)?);
            }
        }
        for (&(node, operand), &slot) in &plan.consumed {
            grids.insert(format!("{}.operand{operand}.qdq", graph.nodes[node].name), grid(slot)?);
        }
    }
    Ok(grids)
}

/// Integers of one scale, as encodings describe them.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Grid {
    bits: u32,
    symmetric: bool,
    scale: f32,
    offset: i64,
}

impl Grid {
    fn of(encoding: Encoding, symmetric: bool) -> Self {
        let Encoding { scale, zero_point, qmin, qmax } = encoding;
        let (bits, offset) = width_and_offset(qmin, qmax, zero_point);
        Self { bits, symmetric, scale, offset }
    }

    fn min(&self) -> f64 {
        self.offset as f64 * f64::from(self.scale)
    }

    fn max(&self) -> f64 {
        (((1i64 << self.bits) - 1) + self.offset) as f64 * f64::from(self.scale)
    }
}

/// Bits of integers from `qmin` to `qmax`, and what is added to their unsigned form.
fn width_and_offset(qmin: i32, qmax: i32, zero_point: i32) -> (u32, i64) {
    let steps = i64::from(qmax).saturating_sub(qmin.into()).max(1);
    let bits = 64 - steps.leading_zeros();
    let lowest = if qmin < 0 { -(1i64 << (bits - 1)) } else { 0 };
    (bits, lowest - i64::from(zero_point))
}

/// What a tensor is stored as.
enum Entry {
    Float {
        bits: u32,
    },
    Grid(Grid),
    /// One scale an output channel; all have the same integers.
    Channels {
        bits: u32,
        offset: i64,
        scales: Vec<f32>,
    },
    /// LPBQ.
    Blocks {
        bits: u32,
        size: usize,
        scales: Vec<f32>,
        multipliers: Vec<u8>,
    },
}

impl Entry {
    fn of_weight(name: &str, stored: &StoredWeight, weights: &QdqWeights) -> Result<Self> {
        let (scales, multipliers) =
            weights.scales(name).ok_or_else(|| Error::NotFound(format!("there is no weight {name}")))?;
        let channels = |qmin, qmax| {
            let (bits, offset) = width_and_offset(qmin, qmax, 0);
            Entry::Channels { bits, offset, scales: scales.to_vec() }
        };
        Ok(match stored.form {
            StoredForm::Float => Entry::Float { bits: stored.dtype.size_bytes() as u32 * 8 },
            StoredForm::Grid { encoding } => {
                let encoding = encoding.ok_or_else(|| Error::NotFound(format!("weight {name} has no encoding")))?;
                let (bits, offset) = width_and_offset(encoding.qmin, encoding.qmax, encoding.zero_point);
                Entry::Grid(Grid::of(encoding, offset == -(1i64 << (bits - 1))))
            }
            StoredForm::Channels { qmin, qmax } => channels(qmin, qmax),
            StoredForm::Bias => channels(i32::MIN, i32::MAX),
            StoredForm::Blocks { size, qmin, qmax } => {
                let (bits, _) = width_and_offset(qmin, qmax, 0);
                Entry::Blocks { bits, size, scales: scales.to_vec(), multipliers: multipliers.to_vec() }
            }
        })
    }
}

impl AimetVersion {
    /// Entries as this version lays them out.
    fn section(self, entries: impl Iterator<Item = (String, Entry)>) -> Result<Value> {
        match self {
            Self::V0_6_1 => {
                let entries = entries.map(|(name, entry)| {
                    let value = legacy(&name, entry)?;
                    Ok((name, value))
                });
                Ok(Value::Object(entries.collect::<Result<_>>()?))
            }
            Self::V1_0_0 => Ok(Value::Array(entries.map(|(name, entry)| named(&name, entry)).collect())),
        }
    }

    /// How the encodings came about; converters only show it.
    fn quantizer_args(self, recipe: &Recipe) -> Value {
        let dtype = recipe.default_dtype();
        let (activations, parameters) = (dtype.activation_bits(), dtype.weight_bits());
        let yes = match self {
            Self::V0_6_1 => json!("True"),
            Self::V1_0_0 => json!(true),
        };
        json!({
            "activation_bitwidth": activations,
            "dtype": "int",
            "is_symmetric": yes,
            "param_bitwidth": parameters,
            "per_channel_quantization": yes,
            "quant_scheme": "post_training_tf",
        })
    }
}

/// An entry of version 0.6.1: a list with an element a channel.
fn legacy(name: &str, entry: Entry) -> Result<Value> {
    let element = |grid: Grid| {
        json!({
            "bitwidth": grid.bits,
            "dtype": "int",
            "is_symmetric": if grid.symmetric { "True" } else { "False" },
            "max": grid.max(),
            "min": grid.min(),
            "offset": grid.offset,
            "scale": grid.scale,
        })
    };
    match entry {
        Entry::Float { bits } => Ok(json!([{ "bitwidth": bits, "dtype": "float" }])),
        Entry::Grid(grid) => Ok(json!([element(grid)])),
        Entry::Channels { bits, offset, scales } => {
            let channel = |scale| element(Grid { bits, symmetric: true, scale, offset });
            Ok(Value::Array(scales.into_iter().map(channel).collect()))
        }
        Entry::Blocks { .. } => Err(Error::Unsupported(format!(
            "weight {name} has a scale for each block, which encodings of version 0.6.1 cannot say: export version 1.0.0"
        ))),
    }
}

/// An entry of version 1.0.0.
fn named(name: &str, entry: Entry) -> Value {
    match entry {
        Entry::Float { bits } => json!({ "name": name, "enc_type": "PER_TENSOR", "dtype": "FLOAT", "bw": bits }),
        Entry::Grid(Grid { bits, symmetric, scale, offset }) => json!({
            "name": name,
            "enc_type": "PER_TENSOR",
            "dtype": "INT",
            "bw": bits,
            "is_sym": symmetric,
            "scale": [scale],
            "offset": [offset],
        }),
        Entry::Channels { bits, offset, scales } => json!({
            "name": name,
            "enc_type": "PER_CHANNEL",
            "dtype": "INT",
            "bw": bits,
            "is_sym": true,
            "offset": vec![offset; scales.len()],
            "scale": scales,
        }),
        Entry::Blocks { bits, size, scales, multipliers } => {
            let expanded = bits + LPBQ_MULTIPLIER_BITS;
            json!({
                "name": name,
                "enc_type": "LPBQ",
                "dtype": "INT",
                "bw": expanded,
                "compressed_bw": bits,
                "is_sym": true,
                "block_size": size,
                "offset": vec![-(1i64 << (expanded - 1)); scales.len()],
                "scale": scales,
                "per_block_int_scale": multipliers,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::{QuantDtype, ValueRange};

    #[test]
    fn offsets_are_those_of_unsigned_integers() {
        assert_eq!(width_and_offset(0, 65535, 16384), (16, -16384));
        assert_eq!(width_and_offset(0, 255, 128), (8, -128));
        assert_eq!(width_and_offset(-127, 127, 0), (8, -128));
        assert_eq!(width_and_offset(-7, 7, 0), (4, -8));
        assert_eq!(width_and_offset(-32767, 32767, 0), (16, -32768));
        assert_eq!(width_and_offset(i32::MIN, i32::MAX, 0), (32, -(1 << 31)));
        assert_eq!(width_and_offset(-i32::MAX, i32::MAX, 0), (32, -(1 << 31)));
    }

    /// The same values from the grid and from the formula of the file.
    #[test]
    fn integers_mean_what_they_mean_here() {
        let range = ValueRange::new(-1.0, 3.0);
        let grids = [
            QuantDtype::A16W8.activation_encoding(range),
            QuantDtype::A8W8.activation_encoding(range),
            Encoding::symmetric(range, -32767, 32767, 1e-9),
            Encoding::symmetric(range, -7, 7, 1e-9),
            Encoding::symmetric_u8(range, 1e-9),
        ];
        for encoding in grids {
            let grid = Grid::of(encoding, false);
            let signed = if encoding.qmin < 0 { 1i64 << (grid.bits - 1) } else { 0 };
            for level in [encoding.qmin, encoding.zero_point, encoding.qmax] {
                let stored = i64::from(level) + signed;
                assert!((0..1 << grid.bits).contains(&stored));
                let meant = (stored + grid.offset) as f32 * grid.scale;
                assert_eq!(meant, encoding.dequantize(level), "{encoding:?}");
            }
            assert!(
                grid.min() <= encoding.covered().min.into() && grid.max() >= f64::from(encoding.covered().max) - 1e-6
            );
        }
    }

    #[test]
    fn versions_go_by_their_names() {
        assert_eq!(AimetVersion::parse("0.6.1").unwrap(), AimetVersion::V0_6_1);
        assert_eq!(AimetVersion::parse(AimetVersion::default().name()).unwrap(), AimetVersion::V1_0_0);
        let error = AimetVersion::parse("2.0.0").unwrap_err().to_string();
        assert!(error.contains("\"2.0.0\"") && error.contains("0.6.1, 1.0.0"), "{error}");
    }

    #[test]
    fn blocks_need_the_newer_version() {
        let blocks = || Entry::Blocks { bits: 4, size: 2, scales: vec![0.5], multipliers: vec![16, 3] };
        let error = legacy("wq.weight", blocks()).unwrap_err().to_string();
        assert!(error.contains("wq.weight") && error.contains("1.0.0"), "{error}");
        assert_eq!(
            named("wq.weight", blocks()),
            json!({"name": "wq.weight", "enc_type": "LPBQ", "dtype": "INT", "bw": 8, "compressed_bw": 4, "is_sym": true,
                "block_size": 2, "offset": [-128], "scale": [0.5], "per_block_int_scale": [16, 3]})
        );
    }
}
