//! Time spent, by kind of step.

use super::attention::attended_columns;
use super::execute::{Rows, Workspace};
use super::kernels::Nonlinearity;
use super::plan::{Action, Plan, Step};
use super::weights::WeightTable;
use crate::engine::OpProfile;
use std::collections::HashMap;
use std::time::Duration;

/// Totals by kind of step.
#[derive(Debug, Default)]
pub(super) struct Profile {
    totals: HashMap<String, Totals>,
}

#[derive(Debug, Default)]
struct Totals {
    calls: u64,
    time: Duration,
    bytes: u64,
    flops: u64,
}

/// What a step reads from memory that is not in cache by nature (weights, keys, values), and computes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cost {
    /// Bytes.
    pub bytes: u64,
    /// Multiplications and additions.
    pub flops: u64,
}

impl Profile {
    pub fn add(&mut self, name: String, time: Duration, cost: Cost) {
        let totals = self.totals.entry(name).or_default();
        totals.calls += 1;
        totals.time += time;
        totals.bytes += cost.bytes;
        totals.flops += cost.flops;
    }

    /// The totals, longest first.
    pub fn report(&self) -> Vec<OpProfile> {
        let entry = |(name, t): (&String, &Totals)| OpProfile {
            name: name.clone(),
            calls: t.calls,
            ms: t.time.as_secs_f64() * 1e3,
            bytes: t.bytes,
            flops: t.flops,
        };
        let mut report = self.totals.iter().map(entry).collect::<Vec<_>>();
        report.sort_by(|a, b| b.ms.total_cmp(&a.ms).then_with(|| a.name.cmp(&b.name)));
        report
    }
}

/// Name of a step's kind, e.g. `linear.w4`.
pub(super) fn step_name<V>(step: &Step<V>, weights: &WeightTable) -> String {
    let format = |weight: usize| weights.packed(weight).map_or("plain", |matrix| matrix.format().name());
    match &step.action {
        Action::Embedding { table } => format!("embedding.{}", format(*table)),
        Action::Linear { jobs, .. } => format!("linear.{}", jobs.first().map_or("none", |job| format(job.weight))),
        Action::RmsNorm { .. } => "rms_norm".into(),
        Action::Rope { .. } => "rope".into(),
        Action::LayerNorm { .. } => "layer_norm".into(),
        Action::Gated(function) => format!("{}_mul", function_name(*function)),
        Action::Activation(function) => function_name(*function).into(),
        Action::Add => "add".into(),
        Action::Scale(_) => "scale".into(),
        Action::SoftCap(_) => "soft_cap".into(),
        Action::KvTranspose { .. } => "kv_transpose".into(),
        Action::Attention(_) => "attention".into(),
        Action::SelfAttention(_) => "self_attention".into(),
        Action::Copy => "copy".into(),
        Action::Generic { op, .. } => format!("generic.{}", op.name()),
    }
}

fn function_name(function: Nonlinearity) -> &'static str {
    match function {
        Nonlinearity::Silu => "silu",
        Nonlinearity::Gelu => "gelu",
        Nonlinearity::GeluTanh => "gelu_tanh",
    }
}

/// What one execution of a step costs.
pub(super) fn step_cost<V>(step: &Step<V>, plan: &Plan, rows: &Rows, weights: &WeightTable, w: &Workspace) -> Cost {
    let range = rows.of_step(step);
    let count = range.len() as u64;
    match &step.action {
        Action::Linear { jobs, rows: all, .. } => {
            let count = (all / rows.of * range.len()) as u64;
            jobs.iter().filter_map(|job| weights.packed(job.weight).ok()).fold(Cost::default(), |cost, matrix| Cost {
                bytes: cost.bytes + if count > 0 { matrix.bytes().len() as u64 } else { 0 },
                flops: cost.flops + 2 * count * matrix.rows() as u64 * matrix.cols() as u64,
            })
        }
        Action::Embedding { table } => {
            let row = weights.packed(*table).map_or(0, |m| m.bytes().len() / m.rows());
            Cost { bytes: count * row as u64, flops: 0 }
        }
        Action::SelfAttention(shape) => {
            let products = shape.rows * shape.columns * shape.heads * (shape.head_dim + shape.value_dim);
            Cost { bytes: 0, flops: 2 * products as u64 }
        }
        Action::Attention(shape) => {
            let spans = w.spans.get(shape.mask).map(Vec::as_slice).unwrap_or_default();
            let columns = attended_columns(spans, range.clone());
            // Rows of a block share the cache they read: count it once, by the last (longest) row.
            let cached = attended_columns(spans, range.end.saturating_sub(1)..range.end);
            let widths = (shape.head_dim + shape.value_dim) as u64;
            Cost {
                bytes: cached * widths * shape.kv_heads as u64 * size_of::<f32>() as u64,
                flops: 2 * columns * widths * shape.heads as u64,
            }
        }
        Action::Generic { shape, .. } if plan.block_rows.is_none() => {
            Cost { bytes: 0, flops: shape.iter().product::<usize>() as u64 }
        }
        _ => Cost::default(),
    }
}
