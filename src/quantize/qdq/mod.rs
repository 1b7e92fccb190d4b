//! Graphs and weights with integers in them: what a quantized component is, in memory and on disk.
//!
//! - `insert`: a graph, its plan and its grids to the graph that computes with what integers leave of values.
//! - `stored`: how each weight is stored as integers.
//! - `writer`: the safetensors file of a component, array by array.
//! - `weights`: that file, read back: the weights of the graphs.

mod insert;
mod stored;
mod weights;
mod writer;

pub use insert::insert;
pub use stored::{StoredForm, StoredWeight};
pub use weights::{QdqWeights, WeightSummary};
pub use writer::{QdqWriter, WrittenFile};
