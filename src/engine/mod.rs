//! Engines: "load this component, execute this graph on these tensors".
//!
//! An engine knows the graph contract (named graphs, fixed shapes, caller-owned input and output memory) and nothing
//! of conversations. [`cpu`] is built in; others plug in behind the same two traits, or behind the C ABI of
//! `include/etgenai_engine.h` ([`plugin`]).

mod constants;
pub mod cpu;
pub mod plugin;
pub mod reference;
mod source;

pub use constants::{Constant, ConstantValue, Constants};
pub use source::{ComponentSource, SourceBytes, SourceData};

use crate::error::Result;
use crate::graph::{Tensor, TensorInfo, TensorView, TensorViewMut};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;

/// Names, types and shapes of one graph's inputs and outputs, in contract order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphSignature {
    /// Graph name, e.g. `prefill_forward`.
    pub name: String,
    /// Inputs in contract order.
    pub inputs: Vec<TensorInfo>,
    /// Outputs in contract order.
    pub outputs: Vec<TensorInfo>,
}

/// What of a call the caller will look at. An engine may compute more, never less.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecuteOptions {
    /// Rows `0..valid_rows` of the block are real; the outputs of later rows may hold anything. `None`: all rows.
    pub valid_rows: Option<usize>,
    /// Rows of output 0 (logits) that are needed; other rows may hold anything. `None`: all valid rows.
    pub logits_rows: Option<Range<usize>>,
}

/// Time spent in one operator of one graph since the last reset.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpProfile {
    /// Operator (or fused kernel) name, e.g. `linear.w4`.
    pub name: String,
    /// Number of executions.
    pub calls: u64,
    /// Total time, milliseconds.
    pub ms: f64,
    /// Bytes of weights and KV cache read in total.
    pub bytes: u64,
    /// Floating-point (or integer) operations in total, multiply and add counted apart.
    pub flops: u64,
}

/// Loads components.
pub trait Engine: Send + Sync {
    /// Short name, e.g. `cpu`.
    fn name(&self) -> &str;

    /// Load one component.
    ///
    /// # Errors
    /// A missing, malformed or unsupported file; the error names the file and field.
    fn load(&self, source: &ComponentSource) -> Result<Box<dyn LoadedComponent>>;

    /// Load one component from a file, whatever it is for.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn load_file(&self, path: &Path) -> Result<Box<dyn LoadedComponent>> {
        self.load(&ComponentSource::file("component", path))
    }
}

/// A loaded component. One thread at a time; may move between threads.
pub trait LoadedComponent: Send {
    /// The graphs inside, in file order.
    fn graphs(&self) -> &[GraphSignature];

    /// Execute graph number `graph` (index into [`graphs`](Self::graphs)).
    ///
    /// `inputs` and `outputs` match the signature exactly; memory belongs to the caller, is dense and row-major.
    ///
    /// # Errors
    /// Wrong count, type or shape: nothing was written. An engine failure: outputs hold anything.
    fn execute(
        &mut self,
        graph: usize,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        options: &ExecuteOptions,
    ) -> Result<()>;

    /// Values the program carries beside its graphs, e.g. `get_n_layers`.
    fn constants(&self) -> &Constants {
        Constants::none()
    }

    /// A zeroed tensor for an input or output of this component, in memory its processor can use without a copy where
    /// there is such memory.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] if the memory cannot be had.
    fn allocate(&self, info: &TensorInfo) -> Result<Tensor> {
        Tensor::zeros(info.clone())
    }

    /// Bytes of weights held (mapped or in memory).
    fn weight_bytes(&self) -> u64;

    /// What executes: kernel set and threads, e.g. `cpu avx2, 2 threads`.
    fn description(&self) -> String;

    /// Start (`true`) or stop collecting [`OpProfile`]s; starting clears them. Engines that cannot, ignore it.
    fn set_profiling(&mut self, _on: bool) {}

    /// Times per operator since profiling started.
    fn profile(&self) -> Vec<OpProfile> {
        Vec::new()
    }
}

/// Check the tensors of a call against a graph's signature: count, element type, shape and byte length.
///
/// # Errors
/// [`crate::Error::InvalidArgument`] naming the graph, the tensor and both shapes.
pub fn check_call(signature: &GraphSignature, inputs: &[TensorView<'_>], outputs: &[TensorViewMut<'_>]) -> Result<()> {
    let given = inputs.iter().map(|t| (t.dtype, t.shape, t.bytes.len())).collect::<Vec<_>>();
    check_tensors(&signature.name, "input", &signature.inputs, &given)?;
    let given = outputs.iter().map(|t| (t.dtype, t.shape, t.bytes.len())).collect::<Vec<_>>();
    check_tensors(&signature.name, "output", &signature.outputs, &given)
}

fn check_tensors(
    graph: &str,
    role: &str,
    wanted: &[TensorInfo],
    given: &[(crate::graph::DType, &[usize], usize)],
) -> Result<()> {
    if wanted.len() != given.len() {
        let (want, have) = (wanted.len(), given.len());
        return Err(crate::Error::invalid(format!("graph {graph} has {want} {role}s, {have} were given")));
    }
    for (want, &(dtype, shape, bytes)) in wanted.iter().zip(given) {
        if want.dtype != dtype || want.shape != shape || want.size_bytes() != Some(bytes) {
            return Err(crate::Error::invalid(format!(
                "graph {graph}: {role} {} is {} {:?}, but {} {shape:?} ({bytes} bytes) was given",
                want.name,
                want.dtype.name(),
                want.shape,
                dtype.name(),
            )));
        }
    }
    Ok(())
}
