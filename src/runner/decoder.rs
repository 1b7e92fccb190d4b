//! The text decoder: a loaded component, its KV cache and masks, driven block by block.

use super::contract::{DecoderContract, StepGraph, StepInput};
use super::event::Flow;
use super::kv_store::KvStore;
use super::mask::AttentionMask;
use super::sequence::Sequence;
use super::token_embedding::TokenEmbedding;
use crate::engine::{ExecuteOptions, LoadedComponent};
use crate::error::{Error, Result};
use crate::graph::{DType, Tensor, TensorInfo, TensorView};
use std::ops::Range;
use std::time::Instant;

/// Prefill and decode over one KV cache. All tensors are allocated once, at creation.
///
/// A token is *committed* when its K and V are in the cache. After a failed engine call nothing more may run until
/// [`reset`](Self::reset): the decoder is *poisoned*.
pub struct Decoder {
    component: Box<dyn LoadedComponent>,
    /// Where the decoder takes embeddings instead of ids.
    embedding: Option<TokenEmbedding>,
    contract: DecoderContract,
    kv: KvStore,
    steps: Vec<Step>,
    committed: Sequence,
    /// Where the logits of the newest token are: which step's output, which row.
    newest: Option<(usize, usize)>,
    poisoned: Option<String>,
    engine_ms: f64,
}

/// One graph with its inputs and outputs.
struct Step {
    graph: StepGraph,
    /// Ids, or hidden states.
    input: Tensor,
    mask: AttentionMask,
    window_mask: Option<AttentionMask>,
    positions: Tensor,
    logits: Tensor,
    kv_out: Vec<Tensor>,
}

/// Called after each block with the tokens done and the tokens to do.
pub type Progress<'a> = dyn FnMut(usize, usize) -> Flow + 'a;

/// Called for each token of a prompt with its index in the prompt and its row of logits.
pub type EachRow<'a> = dyn FnMut(usize, &[f32]) -> Result<Flow> + 'a;

impl Decoder {
    /// Set a decoder up that takes token ids. `window` is the sliding window in tokens (a token sees itself and
    /// `window - 1` before it); it is needed if, and only if, the graphs take a window mask.
    ///
    /// # Errors
    /// Those of [`DecoderContract::from_graphs`]; [`Error::InvalidArgument`] if the window or the token embedding is
    /// missing or the memory cannot be had.
    pub fn new(component: Box<dyn LoadedComponent>, window: Option<usize>) -> Result<Self> {
        Self::with_embedding(component, None, window)
    }

    /// Set a decoder up. `embedding` turns ids into the hidden states it takes; it is needed if, and only if, the graphs
    /// take those instead of ids.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if the two components do not fit together (both sizes are named).
    pub fn with_embedding(
        component: Box<dyn LoadedComponent>,
        embedding: Option<TokenEmbedding>,
        window: Option<usize>,
    ) -> Result<Self> {
        let contract = DecoderContract::from_graphs(component.graphs())?;
        check_embedding(&contract, embedding.as_ref())?;
        if contract.has_window_mask && window.is_none() {
            return Err(Error::invalid(
                "the text decoder takes a sliding-window mask, but its window size is not known",
            ));
        }
        let kv = KvStore::new(&contract)?;
        let steps = contract.graphs.iter().map(|graph| Step::new(graph, window)).collect::<Result<_>>()?;
        let (committed, newest, poisoned) = (Sequence::default(), None, None);
        Ok(Self { component, embedding, contract, kv, steps, committed, newest, poisoned, engine_ms: 0.0 })
    }

    /// The shapes the graphs agree on.
    pub fn contract(&self) -> &DecoderContract {
        &self.contract
    }

    /// The loaded component.
    pub fn component(&self) -> &dyn LoadedComponent {
        self.component.as_ref()
    }

    /// The loaded component, to switch profiling.
    pub fn component_mut(&mut self) -> &mut dyn LoadedComponent {
        self.component.as_mut()
    }

    /// Most tokens of a conversation: those the cache holds, and a newest one that is not committed.
    pub fn context_capacity(&self) -> usize {
        self.kv.capacity() + 1
    }

    /// The token embedding, where the decoder takes hidden states.
    pub fn embedding(&self) -> Option<&TokenEmbedding> {
        self.embedding.as_ref()
    }

    /// The token embedding, to use it.
    pub fn embedding_mut(&mut self) -> Option<&mut TokenEmbedding> {
        self.embedding.as_mut()
    }

    /// The ids of the committed tokens, oldest first.
    pub fn tokens(&self) -> &[u32] {
        self.committed.ids()
    }

    /// What is committed, oldest first.
    pub fn committed(&self) -> &Sequence {
        &self.committed
    }

    /// Number of committed tokens, which is the position of the next one.
    pub fn position(&self) -> usize {
        self.committed.len()
    }

    /// Milliseconds spent in the engine since creation.
    pub fn engine_ms(&self) -> f64 {
        self.engine_ms
    }

    /// Logits `[V]` of the newest committed token; `None` before the first, and after `rewind` or `reset`.
    pub fn logits(&self) -> Option<&[f32]> {
        let (step, row) = self.newest?;
        self.steps.get(step)?.logits_row(row, self.contract.vocabulary)
    }

    /// Process and commit `tokens`; afterwards [`logits`](Self::logits) are those of the last one.
    ///
    /// `progress` is called after each block. If it returns [`Flow::Stop`] the rest is left out; the blocks done stay
    /// committed ([`rewind`](Self::rewind) takes them back) and the number of tokens done is less than `tokens.len()`.
    ///
    /// # Errors
    /// Before anything runs: [`Error::Poisoned`], [`Error::InvalidArgument`] (no tokens, an id outside the
    /// vocabulary), [`Error::ContextFull`]. A failed engine call poisons the decoder; earlier blocks stay committed.
    pub fn prefill(&mut self, tokens: &[u32], progress: &mut Progress<'_>) -> Result<usize> {
        self.feed(&Sequence::from_ids(tokens.to_vec()), 0, None, progress)
    }

    /// As [`prefill`](Self::prefill), for the positions of `sequence` from `from` on, pictures among them.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill); [`Error::InvalidArgument`] for rows of pictures where the decoder takes ids, or of
    /// another width than it takes.
    pub fn prefill_sequence(&mut self, sequence: &Sequence, from: usize, progress: &mut Progress<'_>) -> Result<usize> {
        self.feed(sequence, from, None, progress)
    }

    /// As [`prefill`](Self::prefill), with the logits of every token. [`Flow::Stop`] from `each_row` ends it; the
    /// block the row belongs to stays committed.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill), and what `each_row` returns.
    pub fn prefill_all_logits(&mut self, tokens: &[u32], each_row: &mut EachRow<'_>) -> Result<usize> {
        self.feed(&Sequence::from_ids(tokens.to_vec()), 0, Some(each_row), &mut |_, _| Flow::Continue)
    }

    /// Process and commit one token.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn decode(&mut self, token: u32) -> Result<()> {
        self.feed(&Sequence::from_ids(vec![token]), 0, None, &mut |_, _| Flow::Continue).map(|_| ())
    }

    /// Forget all but the first `len` committed tokens. No effect if there are fewer.
    pub fn rewind(&mut self, len: usize) {
        if len < self.committed.len() {
            self.committed.truncate(len);
            self.kv.truncate(len);
            self.newest = None;
        }
    }

    /// Forget everything, a failure included.
    pub fn reset(&mut self) {
        self.committed.clear();
        self.kv.clear();
        self.newest = None;
        self.poisoned = None;
    }

    /// Whether an engine call has failed since the last reset.
    ///
    /// # Errors
    /// [`Error::Poisoned`] with the words of that failure.
    pub fn check_usable(&self) -> Result<()> {
        self.poisoned.as_ref().map_or(Ok(()), |reason| Err(Error::Poisoned(reason.clone())))
    }

    fn feed(
        &mut self,
        sequence: &Sequence,
        from: usize,
        mut each_row: Option<&mut EachRow<'_>>,
        progress: &mut Progress<'_>,
    ) -> Result<usize> {
        self.check_usable()?;
        self.check_new(sequence, from)?;
        let total = sequence.len() - from;
        let mut done = 0;
        while done < total {
            let step = self.choose_step(total - done)?;
            let rows = self.steps.get(step).map_or(0, |step| step.graph.ar.min(total - done));
            let is_last = done + rows == total;
            let wanted = match (each_row.is_some(), is_last) {
                (true, _) => 0..rows,
                (false, true) => rows - 1..rows,
                (false, false) => 0..0,
            };
            self.run_block(step, sequence, from + done..from + done + rows, wanted)?;
            if let Some(each_row) = each_row.as_mut()
                && self.visit_rows(step, done, rows, each_row)? == Flow::Stop
            {
                return Ok(done + rows);
            }
            done += rows;
            if !is_last {
                self.newest = None;
            }
            if progress(done, total) == Flow::Stop {
                break;
            }
        }
        Ok(done)
    }

    fn visit_rows(&self, step: usize, first: usize, rows: usize, each_row: &mut EachRow<'_>) -> Result<Flow> {
        for row in 0..rows {
            let logits = self.steps.get(step).and_then(|step| step.logits_row(row, self.contract.vocabulary));
            if each_row(first + row, logits.unwrap_or_default())? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::Continue)
    }

    fn check_new(&self, sequence: &Sequence, from: usize) -> Result<()> {
        let new = sequence.ids().get(from..).unwrap_or_default();
        if new.is_empty() {
            return Err(Error::invalid("there are no tokens to process"));
        }
        self.check_ids(new)?;
        self.check_rows(sequence, from)?;
        // One more than is fed, so that the token sampled next belongs to the same conversation.
        let (needed, capacity) = (self.committed.len() + new.len() + 1, self.context_capacity());
        if needed > capacity {
            return Err(Error::ContextFull { what: "the conversation".into(), needed, capacity });
        }
        Ok(())
    }

    /// Whether rows of pictures can take the place of tokens, and have the right width.
    fn check_rows(&self, sequence: &Sequence, from: usize) -> Result<()> {
        let rows = sequence.rows_in(from, sequence.len());
        match (rows.first(), &self.embedding) {
            (None, _) => Ok(()),
            (Some(_), None) => Err(Error::Unsupported("this model's decoder takes token ids only, no pictures".into())),
            (Some(_), Some(tokens)) => match rows.iter().find(|row| row.embedding.width() != tokens.width()) {
                None => Ok(()),
                Some(row) => Err(Error::invalid(format!(
                    "the rows of a picture are {} numbers wide, the decoder takes {}",
                    row.embedding.width(),
                    tokens.width()
                ))),
            },
        }
    }

    /// Whether every id is one the decoder knows.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the id and the size of the vocabulary.
    pub(super) fn check_ids(&self, tokens: &[u32]) -> Result<()> {
        let vocabulary = self.contract.vocabulary;
        match tokens.iter().find(|&&id| id as usize >= vocabulary) {
            None => Ok(()),
            Some(id) => {
                Err(Error::invalid(format!("token id {id} is outside the decoder's vocabulary of {vocabulary}")))
            }
        }
    }

    /// The graph for the next block: the smallest block that takes all the `remaining` tokens, or else the largest,
    /// among the graphs whose cache columns reach over what is committed. Towards the end of the context only the
    /// graph with the smallest block is left, which makes the whole cache usable.
    fn choose_step(&self, remaining: usize) -> Result<usize> {
        let past = self.committed.len();
        let usable = || self.steps.iter().enumerate().filter(move |(_, step)| step.graph.cache_slots >= past);
        let fitting = usable().find(|(_, step)| step.graph.ar >= remaining);
        let chosen = fitting.or_else(|| usable().next_back()).map(|(index, _)| index);
        chosen.ok_or_else(|| Error::internal(format!("no graph reaches over {past} committed tokens")))
    }

    /// Compute and commit positions `block` of `sequence`.
    fn run_block(
        &mut self,
        index: usize,
        sequence: &Sequence,
        block: Range<usize>,
        logits_rows: Range<usize>,
    ) -> Result<()> {
        let past = self.committed.len();
        let Some(step) = self.steps.get_mut(index) else {
            return Err(Error::internal(format!("there is no step {index}")));
        };
        let rows = block.len();
        self.kv.set_stride(step.graph.cache_slots)?;
        self.newest = None;
        let started = Instant::now();
        let outcome = step.prepare(sequence, block.clone(), past, self.embedding.as_mut()).and_then(|()| {
            let options = ExecuteOptions { valid_rows: Some(rows), logits_rows: Some(logits_rows) };
            step.execute(self.component.as_mut(), &self.kv, &options)
        });
        self.engine_ms += started.elapsed().as_secs_f64() * 1000.0;
        if let Err(error) = outcome {
            self.poisoned = Some(error.to_string());
            return Err(error);
        }
        if past + rows > step.graph.cache_slots {
            // The block was computed at a narrow stride, but its tokens lie beyond it.
            self.kv.set_stride(self.kv.capacity())?;
        }
        self.kv.commit(&step.kv_out, step.graph.ar, rows)?;
        self.committed.extend_from(sequence, block.start, block.end);
        self.newest = Some((index, rows - 1));
        Ok(())
    }
}

/// Decoders that take hidden states need a token embedding of their width; others must not have one.
fn check_embedding(contract: &DecoderContract, embedding: Option<&TokenEmbedding>) -> Result<()> {
    match (contract.hidden_size(), embedding) {
        (None, None) => Ok(()),
        (Some(width), Some(embedding)) if embedding.width() == width => Ok(()),
        (Some(width), Some(embedding)) => Err(Error::invalid(format!(
            "the token embedding gives rows of {} numbers, the text decoder takes {width}",
            embedding.width()
        ))),
        (Some(_), None) => {
            Err(Error::invalid("the text decoder takes embeddings: the component tok_embedding is needed as well"))
        }
        (None, Some(_)) => Err(Error::invalid("the text decoder takes token ids, it has no use for a token embedding")),
    }
}

impl Step {
    fn new(graph: &StepGraph, window: Option<usize>) -> Result<Self> {
        let zeros = |info: &TensorInfo| Tensor::zeros(info.clone());
        let (logits, kv_out) = graph
            .outputs
            .split_first()
            .ok_or_else(|| Error::internal(format!("graph {} has no outputs", graph.name)))?;
        let window_mask = graph.window_mask.as_ref().map(|info| AttentionMask::new(info, window));
        Ok(Self {
            input: zeros(&graph.input)?,
            mask: AttentionMask::new(&graph.mask, None)?,
            window_mask: window_mask.transpose()?,
            positions: zeros(&graph.positions)?,
            logits: zeros(logits)?,
            kv_out: kv_out.iter().map(zeros).collect::<Result<_>>()?,
            graph: graph.clone(),
        })
    }

    /// Fill the inputs for positions `block` of `sequence`, behind `past` committed ones. Rows of the block without a
    /// position get id 0 and go on counting; what they compute is never committed.
    fn prepare(
        &mut self,
        sequence: &Sequence,
        block: Range<usize>,
        past: usize,
        embedding: Option<&mut TokenEmbedding>,
    ) -> Result<()> {
        let ids = sequence.ids().get(block.clone()).unwrap_or_default();
        match (self.graph.takes, embedding) {
            (StepInput::HiddenStates, Some(embedding)) => {
                let width = embedding.width();
                let mut input = self.input.view_mut();
                let states = input.as_mut_slice::<f32>()?;
                let (given, rest) = states.split_at_mut(ids.len() * width);
                embedding.embed(ids, given)?;
                for placed in sequence.rows_in(block.start, block.end) {
                    let at = (placed.position - block.start) * width;
                    let row = placed.embedding.row(placed.row).unwrap_or_default();
                    given[at..at + row.len()].copy_from_slice(row);
                }
                rest.fill(0.0);
            }
            (StepInput::HiddenStates, None) => return Err(Error::internal("a decoder without its token embedding")),
            (StepInput::Tokens, _) => write_ids(&mut self.input, ids)?,
        }
        write_i32(&mut self.positions, (past as u32)..)?;
        self.mask.set_past(past)?;
        self.window_mask.as_mut().map_or(Ok(()), |mask| mask.set_past(past))
    }

    fn execute(&mut self, component: &mut dyn LoadedComponent, kv: &KvStore, options: &ExecuteOptions) -> Result<()> {
        let mut inputs: Vec<TensorView<'_>> = Vec::with_capacity(4 + self.graph.caches.len());
        inputs.extend([self.input.view(), self.mask.tensor().view()]);
        inputs.extend(self.window_mask.as_ref().map(|mask| mask.tensor().view()));
        inputs.push(self.positions.view());
        kv.views(&self.graph.caches, &mut inputs)?;
        let mut outputs = Vec::with_capacity(1 + self.kv_out.len());
        outputs.push(self.logits.view_mut());
        outputs.extend(self.kv_out.iter_mut().map(Tensor::view_mut));
        component.execute(self.graph.index, &inputs, &mut outputs, options)
    }

    fn logits_row(&self, row: usize, vocabulary: usize) -> Option<&[f32]> {
        self.logits.as_slice::<f32>().ok()?.get(row * vocabulary..(row + 1) * vocabulary)
    }
}

/// Write ids into a tensor of i32 or i64, and 0 behind them.
pub(super) fn write_ids(tensor: &mut Tensor, ids: &[u32]) -> Result<()> {
    let ids = ids.iter().copied().chain(std::iter::repeat(0));
    if tensor.info().dtype == DType::I64 {
        tensor.view_mut().as_mut_slice::<i64>()?.iter_mut().zip(ids).for_each(|(to, id)| *to = id.into());
        return Ok(());
    }
    write_i32(tensor, ids)
}

/// Ids and positions are far below 2³¹: ids are checked against the vocabulary, positions against the context.
fn write_i32(tensor: &mut Tensor, values: impl Iterator<Item = u32>) -> Result<()> {
    tensor.view_mut().as_mut_slice::<i32>()?.iter_mut().zip(values).for_each(|(to, value)| *to = value as i32);
    Ok(())
}
