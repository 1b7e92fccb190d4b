//! The weights of a component by number, so that a step finds its own without looking up names.

use crate::artefact::{Component, Layout, Weight};
use crate::error::{Error, Result};
use crate::formats::PackedMatrix;
use crate::graph::WeightProvider;
use std::collections::HashMap;

/// The weights of one component. Numbers count them in name order.
#[derive(Debug)]
pub(super) struct WeightTable {
    component: Component,
    /// Packed matrices that some operator without a packed kernel reads, decoded to f32.
    unpacked: HashMap<usize, Vec<f32>>,
}

impl WeightTable {
    pub fn new(component: Component) -> Self {
        Self { component, unpacked: HashMap::new() }
    }

    pub fn component(&self) -> &Component {
        &self.component
    }

    /// The number of a weight.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.component.weight_number(name)
    }

    /// The weight is a matrix in panels.
    pub fn is_packed(&self, number: usize) -> bool {
        self.component.stored(number).is_some_and(|(_, stored)| stored.layout == Layout::Panels)
    }

    /// The weight is in a format that is multiplied with quantized activations.
    pub fn is_integer(&self, number: usize) -> bool {
        self.component.stored(number).is_some_and(|(_, stored)| stored.format.is_integer())
    }

    /// A packed weight.
    pub fn packed(&self, number: usize) -> Result<PackedMatrix<'_>> {
        match self.component.weight_at(number)? {
            Weight::Packed(matrix) => Ok(matrix),
            Weight::Plain { .. } => Err(Error::internal(format!("weight number {number} is not packed"))),
        }
    }

    /// A weight as f32, row after row.
    pub fn plain(&self, number: usize) -> Result<&[f32]> {
        if let Some(values) = self.unpacked.get(&number) {
            return Ok(values);
        }
        match self.component.weight_at(number)? {
            Weight::Plain { values, .. } => Ok(values),
            Weight::Packed(_) => Err(Error::internal(format!("weight number {number} is packed"))),
        }
    }

    /// Decode a packed weight to f32, so that [`plain`](Self::plain) can give it.
    pub fn unpack(&mut self, number: usize) -> Result<()> {
        if !self.is_packed(number) || self.unpacked.contains_key(&number) {
            return Ok(());
        }
        let (name, stored) =
            self.component.stored(number).ok_or_else(|| Error::internal(format!("there is no weight {number}")))?;
        let too_big = || Error::invalid(format!("weight {name} {:?} is too large to unpack", stored.shape));
        let rows = stored.rows().ok_or_else(too_big)?.0;
        let elements = stored.elements().ok_or_else(too_big)?;
        let mut values = Vec::new();
        values.try_reserve_exact(elements).map_err(|_| too_big())?;
        values.resize(elements, 0.0);
        self.component.read_rows(name, 0..rows, &mut values)?;
        self.unpacked.insert(number, values);
        Ok(())
    }

    /// Bytes mapped and held.
    pub fn bytes(&self) -> u64 {
        let unpacked = self.unpacked.values().map(|values| size_of_val(values.as_slice()) as u64).sum::<u64>();
        self.component.weight_bytes() + unpacked
    }
}
