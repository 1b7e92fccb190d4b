//! Puts linear steps that read the same rows into one step: `x` is prepared once, and one parallel region does all.

use super::fuse::Aliases;
use super::{Action, Demand, MAX_JOBS, Step};
use crate::graph::ValueId;
use std::collections::HashMap;

/// Merge linear steps without residuals into the first one that reads the same value.
///
/// Moving a step forward is always possible: what it reads (x, weights) was there for the first one too.
pub(super) fn group_linears(steps: Vec<Step<ValueId>>, alias: &Aliases) -> Vec<Step<ValueId>> {
    let mut grouped: Vec<Step<ValueId>> = Vec::with_capacity(steps.len());
    let mut open: HashMap<(ValueId, Demand, bool), usize> = HashMap::new();
    for step in steps {
        let Action::Linear { jobs, integer, .. } = &step.action else {
            grouped.push(step);
            continue;
        };
        if step.reads.len() > 1 {
            grouped.push(step);
            continue;
        }
        let key = (alias.root(step.reads[0]), step.demand, *integer);
        let first = open.get(&key).and_then(|&index| grouped.get_mut(index));
        match first.map(|first| (&mut first.action, &mut first.writes)) {
            Some((Action::Linear { jobs: first, .. }, writes)) if first.len() < MAX_JOBS => {
                first.extend_from_slice(jobs);
                writes.extend(step.writes);
            }
            _ => {
                open.insert(key, grouped.len());
                grouped.push(step);
            }
        }
    }
    grouped
}
