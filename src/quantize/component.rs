//! A quantized component as it is written down: graphs, grids, and how its weights are stored.

use super::calibration::Encodings;
use super::graphs::ModelGraphs;
use super::plan::GraphPlan;
use super::qdq::{QdqWeights, StoredWeight, insert};
use super::recipe::Recipe;
use crate::artefact::{TEXT_DECODER, TOK_EMBEDDING, component_signature};
use crate::engine::GraphSignature;
use crate::error::{Error, Result};
use crate::graph::{DType, Graph, TensorInfo};
use crate::registry::DecoderSpec;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Value of [`ComponentFile::format`].
const FORMAT: &str = "etgenai-qdq-component";
/// The layout of the file this build writes, and the only one it reads.
const SCHEMA_VERSION: u32 = 1;

/// The JSON file of a component.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComponentFile {
    /// Always `etgenai-qdq-component`.
    pub format: String,
    /// Layout of this file.
    pub schema_version: u32,
    /// Name of the component.
    pub component: String,
    /// The recipe it was quantized by; absent for one that stayed float.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<Recipe>,
    /// Grids of the activations, by the tensor that is computed first of those on one grid; `<node>#<operand>` for an operand that
    /// is stored once more.
    pub encodings: Encodings,
    /// How the weights are stored in the safetensors file beside this one.
    pub weights: BTreeMap<String, StoredWeight>,
    /// Integers of the tensors that cross the boundary of the graphs; `null` if nothing was quantized, and for encoders, which take
    /// and give floats.
    pub quant_io_dtypes: Option<QuantIoDtypes>,
    /// The graphs that are deployed.
    pub graphs: Vec<GraphBundle>,
}

/// Integers at the boundary of quantized decoder graphs: exactly these two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuantIoDtypes {
    /// Of the KV cache, in and out: `u8` or `u16`.
    pub kv_type: DType,
    /// Of logits and masks: `u16`.
    pub io_type: DType,
}

/// A graph that is deployed, with what a compiler must know beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphBundle {
    /// Element types of the inputs once the graph is compiled, in order.
    pub input_types: Vec<DType>,
    /// Element types of the outputs once the graph is compiled, in order.
    pub output_types: Vec<DType>,
    /// Values that become constant methods of the program, e.g. `get_ar_len`.
    pub meta: Map<String, Value>,
    /// The graph; quantize-dequantize nodes stand where integers are.
    pub graph: Graph,
}

impl ComponentFile {
    /// Describe a component of `graphs`: quantized by `recipe` on these grids, or float without both.
    ///
    /// # Errors
    /// A tensor without an encoding, sizes that do not fit the model.
    pub fn new(
        graphs: &ModelGraphs,
        component: &str,
        recipe: Option<&Recipe>,
        encodings: Encodings,
        weights: BTreeMap<String, StoredWeight>,
    ) -> Result<Self> {
        let quant_io_dtypes = recipe.filter(|_| component == TEXT_DECODER).map(|recipe| QuantIoDtypes {
            kv_type: if recipe.kv_bits() == 8 { DType::U8 } else { DType::U16 },
            io_type: DType::U16,
        });
        let mut bundles = Vec::new();
        for float in graphs.deployed(component)? {
            let graph = match recipe {
                Some(recipe) => insert(&float, &GraphPlan::new(&float, recipe)?, &encodings)?,
                None => float.clone(),
            };
            let types = |infos: Vec<TensorInfo>| {
                infos.iter().map(|info| boundary_type(&info.name, info.dtype, quant_io_dtypes)).collect()
            };
            let mut meta = match component {
                TEXT_DECODER | TOK_EMBEDDING => decoder_meta(graphs, &float, quant_io_dtypes),
                _ => Map::new(),
            };
            if let (Some(recipe), TEXT_DECODER) = (recipe, component) {
                add_encodings(&mut meta, &float, &GraphPlan::new(&float, recipe)?, &encodings)?;
            }
            bundles.push(GraphBundle {
                input_types: types(graph.input_infos()),
                output_types: types(graph.output_infos()),
                meta,
                graph,
            });
        }
        Ok(Self {
            format: FORMAT.into(),
            schema_version: SCHEMA_VERSION,
            component: component.into(),
            recipe: recipe.cloned(),
            encodings,
            weights,
            quant_io_dtypes,
            graphs: bundles,
        })
    }

    /// Read the JSON file of a component.
    ///
    /// # Errors
    /// [`Error::NotFound`] or [`Error::Io`] if it cannot be read; [`Error::Format`] naming the place for another kind of file,
    /// another version, an invalid graph.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).map_err(|e| Error::io(path, e))?;
        let prologue: Value = serde_json::from_slice(&bytes)
            .map_err(|e| Error::format(path, format!("line {}", e.line()), e.to_string()))?;
        if prologue.get("format").and_then(Value::as_str) != Some(FORMAT) {
            return Err(Error::format(path, "format", format!("is not {FORMAT:?}: this is no quantized component")));
        }
        if prologue.get("schema_version").and_then(Value::as_u64) != Some(SCHEMA_VERSION.into()) {
            let reason = format!("is not {SCHEMA_VERSION}, which is all this build reads: quantize the model again");
            return Err(Error::format(path, "schema_version", reason));
        }
        let file: Self =
            serde_json::from_value(prologue).map_err(|e| Error::format(path, "component", e.to_string()))?;
        for bundle in &file.graphs {
            let wrong = |reason: String| Error::format(path, format!("graphs.{}", bundle.graph.name), reason);
            bundle.graph.validate().map_err(|e| wrong(e.to_string()))?;
            let counts = (bundle.graph.inputs.len(), bundle.graph.outputs.len());
            if counts != (bundle.input_types.len(), bundle.output_types.len()) {
                return Err(wrong("has element types for another number of inputs or outputs".into()));
            }
            for info in bundle.graph.weights() {
                match file.weights.get(&info.name) {
                    Some(stored) if stored.shape == info.shape => {}
                    Some(stored) => {
                        return Err(wrong(format!(
                            "{} is {:?} in it and {:?} in the file",
                            info.name, info.shape, stored.shape
                        )));
                    }
                    None => return Err(wrong(format!("there is no weight {}", info.name))),
                }
            }
        }
        Ok(file)
    }

    /// Pretty-printed JSON.
    ///
    /// # Errors
    /// [`Error::Internal`] if it cannot be written down.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| Error::internal(format!("component {}: {e}", self.component)))
    }

    /// The weights, in the safetensors file `path`.
    ///
    /// # Errors
    /// As [`QdqWeights::open`].
    pub fn open_weights(&self, path: &Path) -> Result<QdqWeights> {
        QdqWeights::open(path, &self.weights)
    }

    /// The graph over a whole sequence of `length` tokens, with its quantize-dequantize nodes.
    ///
    /// # Errors
    /// A length that does not fit the model, a tensor without an encoding.
    pub fn whole(&self, graphs: &ModelGraphs, length: usize) -> Result<Graph> {
        let float = graphs.whole(&self.component, length)?;
        match &self.recipe {
            Some(recipe) => insert(&float, &GraphPlan::new(&float, recipe)?, &self.encodings),
            None => Ok(float),
        }
    }

    /// Names, types and shapes of the graphs as engines here run them: in floats.
    pub fn signatures(&self) -> Vec<GraphSignature> {
        self.graphs.iter().map(|bundle| component_signature(&bundle.graph)).collect()
    }
}

/// Element type of a tensor at the boundary of a compiled graph.
fn boundary_type(name: &str, dtype: DType, io: Option<QuantIoDtypes>) -> DType {
    let Some(io) = io.filter(|_| dtype == DType::F32) else { return dtype };
    let is_kv = ["k_cache_", "v_cache_", "k_out_", "v_out_"].iter().any(|prefix| name.starts_with(prefix));
    match name {
        "hidden_states" => DType::F32,
        _ if is_kv => io.kv_type,
        _ => io.io_type,
    }
}

/// Constant methods of a decoder's or token embedding's graph, named as upstream names them.
fn decoder_meta(graphs: &ModelGraphs, graph: &Graph, io: Option<QuantIoDtypes>) -> Map<String, Value> {
    let DecoderSpec { hidden_size, head_dim, kv_heads, layers, vocab_size, sliding_window, .. } = &graphs.model.decoder;
    let ar = graph.value(graph.inputs[0]).info.shape.get(1).copied().unwrap_or(1);
    let bits = io.map_or(32, |io| io.kv_type.size_bytes() * 8);
    let mut meta = Map::new();
    let mut put = |key: &str, value: Value| drop(meta.insert(key.into(), value));
    put("get_ar_len", json!(ar));
    put("get_max_batch_size", json!(1));
    put("get_max_seq_len", json!(graphs.context_capacity));
    put("get_max_context_len", json!(graphs.context_capacity));
    put("get_use_kv_cache", json!(true));
    put("get_dim", json!(hidden_size));
    put("get_head_dim", json!(head_dim));
    put("get_n_kv_heads", json!(kv_heads));
    put("get_n_layers", json!(layers));
    put("get_vocab_size", json!(vocab_size));
    put("get_kv_io_bit_width", json!(bits));
    if let Some(window) = sliding_window {
        put("get_sliding_window", json!(window));
    }
    meta
}

/// What a runner must know of the grids: that of the logits, and those of the new keys and values in output order.
fn add_encodings(meta: &mut Map<String, Value>, graph: &Graph, plan: &GraphPlan, encodings: &Encodings) -> Result<()> {
    let mut number = 0;
    for &id in &graph.outputs {
        let name = &graph.value(id).info.name;
        let slot =
            plan.slot_of(graph, name).ok_or_else(|| Error::internal(format!("output {name} is not quantized")))?;
        let encoding = encodings.get(&slot.name)?;
        if name == "logits" {
            meta.insert("get_logits_scale".into(), json!(encoding.scale));
            meta.insert("get_logits_zero_point".into(), json!(encoding.zero_point));
            continue;
        }
        let dtype = if slot.spec.bits == 8 { "uint8" } else { "uint16" };
        let attributes = json!([encoding.scale, encoding.zero_point, encoding.qmin, encoding.qmax, dtype]);
        meta.insert(format!("get_kv_output_{number}_quant_attr"), attributes);
        number += 1;
    }
    Ok(())
}
