//! Which rows of each value anyone will look at.
//!
//! A caller that prefills wants logits of the last row only, and of no row while more blocks follow. Going backwards
//! from the outputs, everything that only leads to logits is computed for those rows alone: the head, and in the last
//! layer all but the new keys and values.

use super::fuse::Aliases;
use super::{Action, Demand, RowRule, Step};
use crate::graph::{Graph, ValueId};

/// Set each step's demand and drop the steps nobody needs. Returns whether some step needs all rows, always.
pub(super) fn restrict(graph: &Graph, steps: &mut Vec<Step<ValueId>>, alias: &Aliases) -> bool {
    let mut wanted: Vec<Option<Demand>> = vec![None; graph.values.len()];
    let want = |wanted: &mut Vec<Option<Demand>>, id: ValueId, demand: Demand| {
        let at = &mut wanted[alias.root(id).0 as usize];
        *at = (*at).max(Some(demand));
    };
    for (number, &id) in graph.outputs.iter().enumerate() {
        want(&mut wanted, id, if number == 0 { Demand::Logits } else { Demand::Valid });
    }
    let mut needed = vec![false; steps.len()];
    for (step, needed) in steps.iter_mut().zip(&mut needed).rev() {
        let Some(demand) = step.writes.iter().filter_map(|&id| wanted[alias.root(id).0 as usize]).max() else {
            continue;
        };
        *needed = true;
        step.demand = if step.rows == RowRule::Whole { Demand::Valid } else { demand };
        for (number, &id) in step.reads.iter().enumerate() {
            // New keys and values are read by every later row, whichever rows are asked for.
            let same_rows =
                step.rows == RowRule::RowWise || (number == 0 && matches!(step.action, Action::Attention(_)));
            want(&mut wanted, id, if same_rows { step.demand } else { Demand::Valid });
        }
    }
    let mut needed = needed.into_iter();
    steps.retain(|_| needed.next().unwrap_or(false));
    steps.iter().any(|step| step.rows == RowRule::Whole)
}
