//! From a graph to a list of steps: what is computed together, in which order, in which memory.
//!
//! [`Plan::new`] goes through four stages:
//!
//! 1. `fuse`: nodes become [`Step`]s. Known `patterns` (attention, activations and residual adds with the matrix before
//!    them) become one step, everything else a step per node, so that any valid graph runs.
//! 2. `demand`: which rows of each value anyone will look at, and which steps nobody needs.
//! 3. `group`: linear steps that read the same rows are put into one parallel region.
//! 4. `memory`: where each value lives, so that memory is reused as soon as it is free.

mod demand;
mod fuse;
mod group;
mod memory;
mod patterns;

use super::kernels::Nonlinearity;
use super::weights::WeightTable;
use crate::error::Result;
use crate::graph::{Graph, Op};

pub(super) use memory::Place;

/// Matrices one [`Action::Linear`] step multiplies at most.
pub(super) const MAX_JOBS: usize = 4;

/// A graph, ready to be executed.
#[derive(Debug)]
pub(super) struct Plan {
    /// In execution order.
    pub steps: Vec<Step<Place>>,
    /// Rows of a block (AR) if every step can work on some rows only; otherwise all rows are always computed.
    pub block_rows: Option<usize>,
    /// Elements of each scratch buffer.
    pub buffers: Vec<usize>,
    /// Index operands and their bounds, checked before anything is computed.
    pub checks: Vec<IndexCheck>,
    /// Inputs that are attention masks, each once.
    pub masks: Vec<MaskInput>,
}

/// Elements of an `i32` input index the rows of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexCheck {
    /// Number of the input.
    pub input: usize,
    /// What an element is, for messages: "token id", "position".
    pub what: &'static str,
    /// Elements are in `0..bound`.
    pub bound: usize,
}

/// An attention mask `[1, 1, rows, columns]` over the cache and then the block's own columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MaskInput {
    /// Number of the input.
    pub input: usize,
    /// Columns of the cache.
    pub cache: usize,
    /// Columns of the block.
    pub block: usize,
}

/// One thing to do. `V` is how operands are named: values while planning, places in the finished plan.
#[derive(Debug, Clone)]
pub(super) struct Step<V> {
    /// What is done.
    pub action: Action,
    /// What is read, in the order the action documents.
    pub reads: Vec<V>,
    /// What is written.
    pub writes: Vec<V>,
    /// Which rows.
    pub demand: Demand,
    /// How the step can be restricted to some rows.
    pub rows: RowRule,
}

/// Which rows of a block a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Demand {
    /// The rows whose logits are asked for.
    Logits,
    /// All valid rows.
    Valid,
}

/// How a step relates rows of its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowRule {
    /// Row i of the results depends on row i of the operands only, rows being the outermost axis in memory.
    RowWise,
    /// The step itself takes care of rows.
    Own,
    /// The step mixes rows: all of them are needed.
    Whole,
}

/// Shape of one attention step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Attention {
    /// Rows of the block.
    pub rows: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a query and key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Columns of the cache.
    pub cache: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Caps the scores.
    pub soft_cap: Option<f32>,
    /// Index into [`Plan::masks`].
    pub mask: usize,
}

/// Shape of one attention step without cache and mask.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SelfAttention {
    /// Rows of the queries.
    pub rows: usize,
    /// Rows of the keys and values.
    pub columns: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a query and key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
}

/// One matrix of a linear step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Job {
    /// Packed weight.
    pub weight: usize,
    /// Plain vector.
    pub bias: Option<usize>,
    /// Applied to the result, bias included.
    pub activation: Option<Nonlinearity>,
    /// Which of the step's reads is added.
    pub residual: Option<usize>,
}

/// What a step does. Weights are numbers in the component's [`WeightTable`].
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    /// Reads token ids; decodes rows of a packed table.
    Embedding { table: usize },
    /// Reads `x` and the residuals; writes one result per job.
    Linear {
        jobs: Vec<Job>,
        /// Rows of `x`.
        rows: usize,
        /// Input channels.
        width: usize,
        /// All weights are of integer formats, so `x` is quantized.
        integer: bool,
    },
    /// Reads `x`.
    RmsNorm { weight: usize, eps: f32 },
    /// Reads `x`.
    LayerNorm { weight: usize, bias: usize, eps: f32 },
    /// Reads `x`.
    Activation(Nonlinearity),
    /// Reads `x` and the positions.
    Rope {
        cos: usize,
        sin: usize,
        heads: usize,
        head_dim: usize,
        /// Pairs rotated per head.
        pairs: usize,
        interleaved: bool,
    },
    /// Reads gate and up.
    Gated(Nonlinearity),
    /// Reads two operands of one shape.
    Add,
    /// Reads `x`.
    Scale(f32),
    /// Reads `x`.
    SoftCap(f32),
    /// `[rows, heads, dim]` to `[heads, dim, rows]` (keys) or `[heads, rows, dim]` (values).
    KvTranspose { keys: bool, rows: usize, heads: usize, dim: usize },
    /// Reads q, cached keys, cached values, new keys, new values, the mask; writes `[rows, heads, value_dim]`.
    Attention(Attention),
    /// Reads q `[rows, heads, head_dim]`, k and v `[columns, kv_heads, …]`; writes `[rows, heads, value_dim]`.
    SelfAttention(SelfAttention),
    /// The same elements in another place.
    Copy,
    /// Any operator, as the IR defines it; reads its operands.
    Generic { op: Op, shapes: Vec<Vec<usize>>, shape: Vec<usize> },
}

impl Plan {
    /// Plan the execution of a valid graph whose weights are all in `weights`.
    pub fn new(graph: &Graph, weights: &WeightTable) -> Result<Self> {
        let fused = fuse::fuse(graph, weights);
        let mut steps = fused.steps;
        let whole = demand::restrict(graph, &mut steps, &fused.alias);
        let steps = group::group_linears(steps, &fused.alias);
        let (steps, buffers) = memory::place(graph, weights, steps, &fused.alias)?;
        let block_rows = if whole { None } else { fused.block_rows };
        Ok(Self { steps, block_rows, buffers, checks: fused.checks, masks: fused.masks })
    }
}

#[cfg(test)]
mod tests;
