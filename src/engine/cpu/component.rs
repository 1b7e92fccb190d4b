//! A component loaded into the CPU engine.

use super::attention::find_spans;
use super::execute::{Call, Rows, Workspace};
use super::kernels::Kernels;
use super::plan::{Place, Plan};
use super::pool::Pool;
use super::profile::{Profile, step_cost, step_name};
use super::weights::WeightTable;
use crate::artefact::Component;
use crate::engine::{ExecuteOptions, GraphSignature, LoadedComponent, OpProfile, check_call};
use crate::error::{Error, Result};
use crate::graph::{DType, TensorView, TensorViewMut};
use std::sync::Arc;
use std::time::Instant;

/// Graphs with their plans, over one set of mapped weights and one set of scratch memory.
#[derive(Debug)]
pub(super) struct CpuComponent {
    weights: WeightTable,
    signatures: Vec<GraphSignature>,
    plans: Vec<Plan>,
    workspace: Workspace,
    profile: Option<Profile>,
}

impl CpuComponent {
    pub fn new(component: Component, kernels: Kernels, pool: Arc<Pool>) -> Result<Self> {
        component.prefetch();
        let signatures = component.signatures();
        let mut weights = WeightTable::new(component);
        let graphs = weights.component().graphs();
        let plans = graphs.iter().map(|graph| Plan::new(graph, &weights)).collect::<Result<Vec<_>>>()?;
        // Whatever reads a weight as a plain operand has no kernel for packed ones.
        for place in plans.iter().flat_map(|plan| &plan.steps).flat_map(|step| &step.reads) {
            if let Place::Weight(number) = place {
                weights.unpack(*number)?;
            }
        }
        let mut workspace = Workspace::new(kernels, pool);
        for plan in &plans {
            workspace.reserve(plan)?;
        }
        Ok(Self { weights, signatures, plans, workspace, profile: None })
    }
}

impl LoadedComponent for CpuComponent {
    fn graphs(&self) -> &[GraphSignature] {
        &self.signatures
    }

    fn execute(
        &mut self,
        graph: usize,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        options: &ExecuteOptions,
    ) -> Result<()> {
        let (Some(signature), Some(plan)) = (self.signatures.get(graph), self.plans.get(graph)) else {
            let count = self.plans.len();
            return Err(Error::invalid(format!("graph number {graph} does not exist, the component has {count}")));
        };
        check_call(signature, inputs, outputs)?;
        check_alignment(signature, inputs, outputs)?;
        let rows = select_rows(signature, plan, options)?;
        check_indices(signature, plan, inputs, &rows)?;
        for (mask, spans) in plan.masks.iter().zip(&mut self.workspace.spans) {
            let computed = if rows.whole { mask.block } else { rows.valid.end };
            find_spans(inputs[mask.input].as_slice()?, mask, computed, spans);
        }
        let workspace = &mut self.workspace;
        let mut call = Call { weights: &self.weights, inputs, outputs, rows, workspace };
        for step in &plan.steps {
            let Some(profile) = &mut self.profile else {
                call.run(step)?;
                continue;
            };
            let start = Instant::now();
            call.run(step)?;
            let time = start.elapsed();
            let cost = step_cost(step, plan, &call.rows, &self.weights, call.workspace);
            profile.add(step_name(step, &self.weights), time, cost);
        }
        Ok(())
    }

    fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }

    fn description(&self) -> String {
        let threads = self.workspace.pool.threads();
        let plural = if threads == 1 { "" } else { "s" };
        format!("cpu {}, {threads} thread{plural}", self.workspace.kernels.name())
    }

    fn set_profiling(&mut self, on: bool) {
        self.profile = on.then(Profile::default);
    }

    fn profile(&self) -> Vec<OpProfile> {
        self.profile.as_ref().map(Profile::report).unwrap_or_default()
    }
}

/// Every tensor can be read as its element type, so that nothing fails half way.
fn check_alignment(signature: &GraphSignature, inputs: &[TensorView<'_>], outputs: &[TensorViewMut<'_>]) -> Result<()> {
    let given = inputs.iter().map(|t| (t.dtype, t.bytes.as_ptr()));
    let written = outputs.iter().map(|t| (t.dtype, t.bytes.as_ptr()));
    let infos = signature.inputs.iter().chain(&signature.outputs);
    for ((dtype, start), info) in given.chain(written).zip(infos) {
        if !start.addr().is_multiple_of(dtype.size_bytes()) {
            let (graph, name, bytes) = (&signature.name, &info.name, dtype.size_bytes());
            return Err(Error::invalid(format!("graph {graph}: the memory of {name} is not aligned to {bytes} bytes")));
        }
        if !matches!(dtype, DType::F32 | DType::I32) {
            let (graph, name, dtype) = (&signature.name, &info.name, dtype.name());
            return Err(Error::Unsupported(format!(
                "graph {graph}: {name} is {dtype}; the CPU engine takes f32 and i32"
            )));
        }
    }
    Ok(())
}

/// The rows that the options ask for.
fn select_rows(signature: &GraphSignature, plan: &Plan, options: &ExecuteOptions) -> Result<Rows> {
    let Some(of) = plan.block_rows else {
        // Some step mixes rows: the engine computes all of them, which is always allowed.
        return Ok(Rows { of: 1, whole: true, valid: 0..1, logits: 0..1 });
    };
    let graph = &signature.name;
    let valid = options.valid_rows.unwrap_or(of);
    if valid == 0 || valid > of {
        return Err(Error::invalid(format!("graph {graph}: valid_rows is {valid}, it must be 1 to {of}")));
    }
    let logits = options.logits_rows.clone().unwrap_or(0..valid);
    if logits.start > logits.end || logits.end > valid {
        return Err(Error::invalid(format!(
            "graph {graph}: logits_rows {logits:?} are not within the {valid} valid rows"
        )));
    }
    Ok(Rows { of, whole: false, valid: 0..valid, logits })
}

/// Token ids and positions are inside their tables.
fn check_indices(signature: &GraphSignature, plan: &Plan, inputs: &[TensorView<'_>], rows: &Rows) -> Result<()> {
    for check in &plan.checks {
        let indices = inputs[check.input].as_slice::<i32>()?;
        let count = indices.len() / rows.of * rows.valid.end;
        let outside = |index: i32| usize::try_from(index).map_or(true, |index| index >= check.bound);
        if let Some(row) = indices.iter().take(count).position(|&index| outside(index)) {
            let (graph, input) = (&signature.name, &signature.inputs[check.input].name);
            let (what, value, last) = (check.what, indices[row], check.bound.saturating_sub(1));
            return Err(Error::invalid(format!("graph {graph}: {input}[{row}]: {what} {value} is not in 0..={last}")));
        }
    }
    Ok(())
}
