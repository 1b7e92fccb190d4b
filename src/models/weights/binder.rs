//! Strict bookkeeping: which weight is which tensor, and which tensors have a use.

use super::{Adjust, Binding, BoundWeights, Order, Source};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Binds the components of a model one after the other.
pub(super) struct Binder<'a> {
    checkpoint: &'a Checkpoint,
    /// Of the component that is being bound.
    bindings: BTreeMap<String, Binding>,
    /// Tensors that some component uses.
    used: HashSet<String>,
}

/// One of several matrices that are stored one below the other.
pub(super) struct Part<'p> {
    /// Name of the node that reads it.
    pub node: &'p str,
    /// Number of its rows.
    pub rows: usize,
    /// Order of its rows.
    pub order: Order,
}

impl<'a> Binder<'a> {
    pub fn new(checkpoint: &'a Checkpoint) -> Self {
        Self { checkpoint, bindings: BTreeMap::new(), used: HashSet::new() }
    }

    /// The weights bound since the component before.
    pub fn finish_component(&mut self) -> BoundWeights<'a> {
        BoundWeights { checkpoint: self.checkpoint, bindings: std::mem::take(&mut self.bindings) }
    }

    pub fn has(&self, tensor: &str) -> bool {
        self.checkpoint.tensor(tensor).is_some()
    }

    /// `weight` is `tensor`, in the same shape.
    pub fn bind(&mut self, weight: &str, tensor: &str, shape: &[usize]) -> Result<()> {
        self.bind_as(weight, shape, tensor, shape, Adjust::None)
    }

    /// `weight` is `tensor`, in the same shape, its rows in order and adjusted.
    pub fn bind_in_order(
        &mut self,
        weight: &str,
        tensor: &str,
        shape: &[usize],
        order: Order,
        adjust: Adjust,
    ) -> Result<()> {
        self.require(tensor, shape)?;
        self.insert(weight, shape, Source::Tensor { name: tensor.into(), first_row: 0, order, adjust });
        Ok(())
    }

    /// `weight` of shape `shape` is `tensor` of shape `stored`, which has the same elements in the same rows, adjusted.
    pub fn bind_as(
        &mut self,
        weight: &str,
        shape: &[usize],
        tensor: &str,
        stored: &[usize],
        adjust: Adjust,
    ) -> Result<()> {
        self.require(tensor, stored)?;
        self.insert(weight, shape, Source::Tensor { name: tensor.into(), first_row: 0, order: None, adjust });
        Ok(())
    }

    /// The weight, and with `bias` the bias, of a linear layer: `[out, in]` and `[out]`.
    pub fn bind_linear(&mut self, node: &str, tensor: &str, shape: [usize; 2], bias: bool) -> Result<()> {
        self.bind_ordered_linear(node, tensor, shape, bias, None)
    }

    /// As [`bind_linear`](Self::bind_linear), with the results of the layer in order.
    pub fn bind_ordered_linear(
        &mut self,
        node: &str,
        tensor: &str,
        shape: [usize; 2],
        bias: bool,
        order: Order,
    ) -> Result<()> {
        let [weight, bias_of] = ["weight", "bias"].map(|part| (format!("{node}.{part}"), format!("{tensor}.{part}")));
        if bias {
            self.bind_in_order(&bias_of.0, &bias_of.1, &shape[..1], order.clone(), Adjust::None)?;
        }
        self.bind_in_order(&weight.0, &weight.1, &shape, order, Adjust::None)
    }

    /// Weight and bias of a linear layer whose results are multiplied by `factors`.
    pub fn bind_scaled_linear(
        &mut self,
        node: &str,
        tensor: &str,
        shape: [usize; 2],
        factors: &Arc<[f32]>,
    ) -> Result<()> {
        for (part, shape) in [("weight", &shape[..]), ("bias", &shape[..1])] {
            let adjust = Adjust::Scaled(Arc::clone(factors));
            self.bind_as(&format!("{node}.{part}"), shape, &format!("{tensor}.{part}"), shape, adjust)?;
        }
        Ok(())
    }

    /// Several matrices stored one below the other.
    pub fn bind_parts<const N: usize>(&mut self, parts: [Part<'_>; N], tensor: &str, width: usize) -> Result<()> {
        self.require(tensor, &[parts.iter().map(|part| part.rows).sum(), width])?;
        let mut first_row = 0;
        for Part { node, rows, order } in parts {
            let source = Source::Tensor { name: tensor.into(), first_row, order, adjust: Adjust::None };
            self.insert(&format!("{node}.weight"), &[rows, width], source);
            first_row += rows;
        }
        Ok(())
    }

    /// `weight`, of shape `[1, rows, width]`, is these rows of `tensor`, of shape `[count, width]`.
    pub fn bind_gathered(
        &mut self,
        weight: &str,
        tensor: &str,
        [count, width]: [usize; 2],
        rows: Vec<usize>,
    ) -> Result<()> {
        self.require(tensor, &[count, width])?;
        self.insert(weight, &[1, rows.len(), width], Source::Gathered { name: tensor.into(), rows });
        Ok(())
    }

    /// A weight that is not in the checkpoint.
    pub fn insert(&mut self, weight: &str, shape: &[usize], source: Source) {
        self.bindings.insert(weight.into(), Binding { shape: shape.to_vec(), source });
    }

    /// The values of a vector that is folded into other weights.
    pub fn vector(&mut self, tensor: &str, length: usize) -> Result<Arc<[f32]>> {
        self.require(tensor, &[length])?;
        let mut values = vec![0.0; length];
        self.checkpoint.read_rows(tensor, 0..1, &mut values)?;
        Ok(values.into())
    }

    /// A tensor that must exist in exactly this shape; it counts as used.
    pub fn require(&mut self, tensor: &str, shape: &[usize]) -> Result<()> {
        let Some(entry) = self.checkpoint.tensor(tensor) else {
            return Err(self.error(tensor, format!("missing; the configuration asks for shape {shape:?}")));
        };
        if entry.shape != shape {
            let reason = format!("has shape {:?}, but the configuration asks for {shape:?}", entry.shape);
            return Err(self.error(tensor, reason));
        }
        self.used.insert(tensor.into());
        Ok(())
    }

    /// A tensor nobody reads means that the configuration does not describe this checkpoint. Tensors below one of the
    /// prefixes `beside` are left alone.
    pub fn check_all_used(&self, beside: &[&str]) -> Result<()> {
        let left_alone = |name: &str| {
            // Old checkpoints saved this buffer; it follows from the configuration.
            let derived = name.ends_with(".rotary_emb.inv_freq");
            derived || self.used.contains(name) || beside.iter().any(|prefix| name.starts_with(prefix))
        };
        let mut unused = self.checkpoint.tensors().filter(|entry| !left_alone(&entry.name));
        let Some(first) = unused.next() else { return Ok(()) };
        let reason = format!(
            "no weight of this model uses this tensor of shape {:?} ({} more like it); does config.json belong to these \
             weights?",
            first.shape,
            unused.count()
        );
        Err(self.error(&first.name, reason))
    }

    fn error(&self, tensor: &str, reason: String) -> Error {
        Error::format(self.checkpoint.path(), tensor, reason)
    }
}
