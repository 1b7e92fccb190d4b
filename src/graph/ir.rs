//! Operators, values and graphs.

use super::tensor::{DType, TensorInfo};
use serde::{Deserialize, Serialize};

/// Index of a value in [`Graph::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(pub u32);

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueKind {
    /// Given by the caller at each call.
    Input,
    /// A constant of the component, found by name; graphs of one component share them.
    Weight,
    /// Produced by a node (graph outputs are such values too).
    Node,
}

/// A tensor of a graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Name, element type as the IR sees it (weights are f32 whatever their storage), shape.
    #[serde(flatten)]
    pub info: TensorInfo,
    /// Where it comes from.
    pub kind: ValueKind,
}

/// One operator application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Module path, e.g. `layers.3.attention.wq`; recipes match on it.
    pub name: String,
    /// What is computed.
    pub op: Op,
    /// Operands, in the order the operator documents.
    pub inputs: Vec<ValueId>,
    /// Result (every operator has exactly one).
    pub output: ValueId,
}

/// Operators. Shapes are written `[outer, …, inner]`; all arithmetic is f32 in the reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// `tokens [1, AR] i32`, `table [vocab, dim]` → `[1, AR, dim]`. An id outside the table is an error.
    Embedding,
    /// `x [.., in]`, `weight [out, in]`, optional `bias [out]` → `[.., out]`.
    Linear,
    /// `x [.., n]`, `weight [n]` → `x / sqrt(mean(x²) + eps) · weight` over the last axis.
    RmsNorm {
        /// Added to the mean square.
        eps: f32,
    },
    /// `x [.., n]`, `weight [n]`, `bias [n]` → layer normalization over the last axis.
    LayerNorm {
        /// Added to the variance.
        eps: f32,
    },
    /// `x [1, AR, heads, head_dim]`, `cos [CL, r/2]`, `sin [CL, r/2]`, `positions [1, AR] i32` → rotary embedding of
    /// the first `r` elements of each head; the rest passes through.
    Rope {
        /// `false`: pairs `(i, i + r/2)`; `true`: pairs `(2i, 2i + 1)`.
        interleaved: bool,
    },
    /// `a`, `b` of equal shape, or `b` with axes of length 1 that are repeated → `a + b`.
    Add,
    /// As [`Op::Add`] → `a · b`.
    Mul,
    /// `x` → `x · factor`.
    Scale {
        /// The factor.
        factor: f32,
    },
    /// `x` → `cap · tanh(x / cap)`.
    SoftCap {
        /// The cap.
        cap: f32,
    },
    /// `x` → `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x` → `x · sigmoid(x)`.
    Silu,
    /// `x` → exact (erf) GELU.
    Gelu,
    /// `x` → tanh-approximated GELU.
    GeluTanh,
    /// Same elements, the output's shape.
    Reshape,
    /// Axis `i` of the output is axis `perm[i]` of the input.
    Transpose {
        /// The permutation.
        perm: Vec<usize>,
    },
    /// Operands one after the other along `axis`.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// Elements `start .. start + len` of `axis`.
    Slice {
        /// The axis.
        axis: usize,
        /// First index kept.
        start: usize,
        /// How many are kept.
        len: usize,
    },
    /// `a [1, h, m, k]`, `b [1, g, k, n]` with `h` a multiple of `g` → `[1, h, m, n]`; head `i` of `a` meets head
    /// `i / (h/g)` of `b` (grouped-query attention).
    MatMul,
    /// Softmax over the last axis.
    Softmax,
    /// `scores [.., n]`, `mask` as the second operand of [`Op::Add`] → the scores where the mask is 0, and elsewhere the
    /// smallest score of the row less `drop`: a mask that needs no numbers far outside of what scores are.
    MaskedFill {
        /// How far below the smallest score a masked one is.
        drop: f32,
    },
    /// `x` → `(clamp(round(x / scale) + zero_point, qmin, qmax) - zero_point) · scale`, ties to even: what is left of a
    /// value that was stored as an integer.
    QuantizeDequantize {
        /// Distance of two values that can be stored, above 0.
        scale: f32,
        /// The integer that means 0.
        zero_point: i32,
        /// Smallest integer.
        qmin: i32,
        /// Largest integer.
        qmax: i32,
    },
}

impl Op {
    /// Operator name as in the serialized form.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embedding => "embedding",
            Op::Linear => "linear",
            Op::RmsNorm { .. } => "rms_norm",
            Op::LayerNorm { .. } => "layer_norm",
            Op::Rope { .. } => "rope",
            Op::Add => "add",
            Op::Mul => "mul",
            Op::Scale { .. } => "scale",
            Op::SoftCap { .. } => "soft_cap",
            Op::Sigmoid => "sigmoid",
            Op::Silu => "silu",
            Op::Gelu => "gelu",
            Op::GeluTanh => "gelu_tanh",
            Op::Reshape => "reshape",
            Op::Transpose { .. } => "transpose",
            Op::Concat { .. } => "concat",
            Op::Slice { .. } => "slice",
            Op::MatMul => "mat_mul",
            Op::Softmax => "softmax",
            Op::MaskedFill { .. } => "masked_fill",
            Op::QuantizeDequantize { .. } => "quantize_dequantize",
        }
    }
}

/// A graph of fixed shapes, nodes in execution order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// Name in the graph contract, e.g. `kv_forward`.
    pub name: String,
    /// All tensors.
    pub values: Vec<Value>,
    /// Inputs in contract order.
    pub inputs: Vec<ValueId>,
    /// Outputs in contract order.
    pub outputs: Vec<ValueId>,
    /// Operators in execution order: a node reads only inputs, weights and results of earlier nodes.
    pub nodes: Vec<Node>,
}

impl Graph {
    /// The value behind an id. Ids of a validated graph are always in range.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// Contract signature of the inputs.
    pub fn input_infos(&self) -> Vec<TensorInfo> {
        self.inputs.iter().map(|&id| self.value(id).info.clone()).collect()
    }

    /// Contract signature of the outputs.
    pub fn output_infos(&self) -> Vec<TensorInfo> {
        self.outputs.iter().map(|&id| self.value(id).info.clone()).collect()
    }

    /// All weights the graph reads, in value order.
    pub fn weights(&self) -> impl Iterator<Item = &TensorInfo> {
        self.values.iter().filter(|v| v.kind == ValueKind::Weight).map(|v| &v.info)
    }

    /// An f32 value's description; used by builders and tests.
    pub fn f32_info(name: &str, shape: &[usize]) -> TensorInfo {
        TensorInfo { name: name.into(), dtype: DType::F32, shape: shape.to_vec() }
    }
}
