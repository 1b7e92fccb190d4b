//! Token ids to the hidden states a multimodal decoder takes.

use super::step::write_ids;
use crate::engine::{ExecuteOptions, GraphSignature, LoadedComponent};
use crate::error::{Error, Result};
use crate::graph::{DType, Tensor};

/// The component `tok_embedding`: graphs `[1, n]` ids (i32 or i64) → `[1, n, E]` f32, for one or several n.
pub struct TokenEmbedding {
    component: Box<dyn LoadedComponent>,
    width: usize,
    /// By block size, smallest first.
    blocks: Vec<Block>,
}

/// One graph with its tensors.
struct Block {
    graph: usize,
    tokens: usize,
    ids: Tensor,
    rows: Tensor,
}

impl TokenEmbedding {
    /// Set a token embedding up. Its block sizes need not be the decoder's: ids are embedded in as many calls as it
    /// takes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming graph and shapes if a graph is of another kind, or if they disagree on E.
    pub fn new(component: Box<dyn LoadedComponent>) -> Result<Self> {
        let mut blocks = Vec::new();
        let mut width = None;
        for (graph, signature) in component.graphs().iter().enumerate() {
            let (tokens, own_width) = shape_of(signature)?;
            if *width.get_or_insert(own_width) != own_width {
                let (name, first) = (&signature.name, width.unwrap_or_default());
                return Err(Error::invalid(format!(
                    "graph {name} of the token embedding gives rows of {own_width} numbers, another one rows of {first}"
                )));
            }
            let (ids, rows) = (signature.inputs[0].clone(), signature.outputs[0].clone());
            blocks.push(Block { graph, tokens, ids: Tensor::zeros(ids)?, rows: Tensor::zeros(rows)? });
        }
        blocks.sort_by_key(|block| block.tokens);
        let width = width.ok_or_else(|| Error::invalid("the token embedding has no graphs"))?;
        Ok(Self { component, width, blocks })
    }

    /// E: numbers of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The loaded component.
    pub fn component(&self) -> &dyn LoadedComponent {
        self.component.as_ref()
    }

    /// Embed `ids` into `rows`, `[ids, E]` row-major.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `rows` has another size; what the engine reports, e.g. an id outside the table.
    pub fn embed(&mut self, ids: &[u32], rows: &mut [f32]) -> Result<()> {
        if ids.len().checked_mul(self.width) != Some(rows.len()) {
            let (count, width, room) = (ids.len(), self.width, rows.len());
            return Err(Error::invalid(format!("{count} rows of {width} numbers do not fill {room} numbers")));
        }
        let (mut ids, mut rows) = (ids, rows);
        while !ids.is_empty() {
            let fitting = self.blocks.iter().position(|block| block.tokens >= ids.len());
            let block = fitting.unwrap_or(self.blocks.len().saturating_sub(1));
            let Some(block) = self.blocks.get_mut(block) else {
                return Err(Error::internal("the token embedding has no graphs"));
            };
            let count = block.tokens.min(ids.len());
            let (now, later) = ids.split_at(count);
            write_ids(&mut block.ids, now)?;
            let options = ExecuteOptions { valid_rows: Some(count), logits_rows: None };
            self.component.execute(block.graph, &[block.ids.view()], &mut [block.rows.view_mut()], &options)?;
            let (filled, rest) = std::mem::take(&mut rows).split_at_mut(count * self.width);
            filled.copy_from_slice(&block.rows.as_slice::<f32>()?[..filled.len()]);
            (ids, rows) = (later, rest);
        }
        Ok(())
    }
}

/// Tokens and row width of a graph.
fn shape_of(signature: &GraphSignature) -> Result<(usize, usize)> {
    let misfit = || {
        let describe = |infos: &[crate::graph::TensorInfo]| {
            infos.iter().map(|t| format!("{} {:?}", t.dtype.name(), t.shape)).collect::<Vec<_>>().join(", ")
        };
        Error::invalid(format!(
            "graph {} is no token embedding: it takes {} and gives {}, not ids [1, n] and f32 [1, n, E]",
            signature.name,
            describe(&signature.inputs),
            describe(&signature.outputs)
        ))
    };
    let ([ids], [rows]) = (&signature.inputs[..], &signature.outputs[..]) else { return Err(misfit()) };
    match (&ids.shape[..], &rows.shape[..]) {
        (&[1, tokens], &[1, count, width])
            if tokens > 0
                && tokens == count
                && width > 0
                && matches!(ids.dtype, DType::I32 | DType::I64)
                && rows.dtype == DType::F32 =>
        {
            Ok((tokens, width))
        }
        _ => Err(misfit()),
    }
}
