//! The text decoder: a loaded component, its KV cache and masks, driven block by block.

use super::attention_sink::AttentionSink;
use super::contract::{DecoderContract, StepGraph};
use super::event::Flow;
use super::kv_store::KvStore;
use super::logits::LogitsEncoding;
use super::lookahead::{Lookahead, LookaheadOptions, LookaheadStats};
use super::requant::{Requant, RequantRounding};
use super::sequence::Sequence;
use super::step::{PREFILL_GRAPH, Step};
use super::token_embedding::TokenEmbedding;
use crate::engine::{ExecuteOptions, LoadedComponent};
use crate::error::{Error, Result};
use crate::graph::DType;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::time::Instant;

/// Name of the graph that decodes.
const KV_GRAPH: &str = "kv_forward";

/// Which graphs of a decoder run, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecodingMode {
    /// Every graph there is: prompts in the largest blocks that fit, replies in the smallest.
    #[default]
    Auto,
    /// The graph `kv_forward` alone, for prompts too.
    Kv,
    /// `prefill_forward` and `kv_forward`, which must both be there.
    Hybrid,
    /// Several tokens guessed and verified a call; the text is that of the other modes.
    Lookahead(LookaheadOptions),
}

/// What a decoder is made of.
pub struct DecoderParts {
    /// The loaded text decoder.
    pub component: Box<dyn LoadedComponent>,
    /// Ids to hidden states; needed if, and only if, the graphs take those instead of ids.
    pub embedding: Option<TokenEmbedding>,
    /// The loaded evictor of an attention sink: the conversation may then be longer than the context.
    pub evictor: Option<Box<dyn LoadedComponent>>,
    /// The sliding window in tokens (a token sees itself and `window - 1` before it), where the graphs take a window mask.
    /// `None`: what the program's constant `get_sliding_window` says.
    pub window: Option<usize>,
    /// Which graphs run.
    pub mode: DecodingMode,
    /// How the KV cache is re-quantized, in files that ask for it.
    pub requant: RequantRounding,
}

impl DecoderParts {
    /// A decoder that takes token ids, everything else as the program says.
    pub fn new(component: Box<dyn LoadedComponent>) -> Self {
        let (mode, requant) = (DecodingMode::default(), RequantRounding::default());
        Self { component, embedding: None, evictor: None, window: None, mode, requant }
    }
}

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
    /// With an attention sink some of it may have been evicted from the cache: what lies behind the sink.
    committed: Sequence,
    /// The step whose selected row of logits is that of the newest token.
    newest: Option<usize>,
    poisoned: Option<String>,
    engine_ms: f64,
    /// Ids from here on are not the decoder's.
    vocabulary: usize,
    logits_encoding: Option<LogitsEncoding>,
    lookahead: Option<Ahead>,
    sink: Option<AttentionSink>,
    recorded: Option<Vec<u8>>,
}

/// Lookahead on the graph of step `step`.
struct Ahead {
    step: usize,
    lookahead: Lookahead,
}

/// Called after each block with the tokens done and the tokens to do.
pub type Progress<'a> = dyn FnMut(usize, usize) -> Flow + 'a;

/// Called for each token of a prompt with its index in the prompt and its row of logits.
pub type EachRow<'a> = dyn FnMut(usize, &[f32]) -> Result<Flow> + 'a;

impl Decoder {
    /// Set a decoder up that takes token ids; `window` as in [`DecoderParts::window`].
    ///
    /// # Errors
    /// As [`from_parts`](Self::from_parts).
    pub fn new(component: Box<dyn LoadedComponent>, window: Option<usize>) -> Result<Self> {
        Self::from_parts(DecoderParts { window, ..DecoderParts::new(component) })
    }

    /// Set a decoder up.
    ///
    /// # Errors
    /// Those of [`DecoderContract::from_graphs`]; [`Error::InvalidArgument`] if a part is missing or does not fit another
    /// (both sizes are named), a graph of the mode is not there, or the memory cannot be had.
    pub fn from_parts(parts: DecoderParts) -> Result<Self> {
        let DecoderParts { component, embedding, evictor, window, mode, requant } = parts;
        let mut contract = DecoderContract::from_graphs(component.graphs())?;
        select_graphs(&mut contract, mode)?;
        check_embedding(&contract, embedding.as_ref())?;
        let constants = component.constants();
        let window = match contract.has_window_mask {
            true => Some(window_size(component.as_ref(), &contract, window)?),
            false => None,
        };
        let allocate = |info: &crate::graph::TensorInfo| component.allocate(info);
        let conversion = Requant::from_constants(constants, &contract, requant)?;
        let mut kv = KvStore::new(&contract, conversion, &allocate)?;
        let logits_encoding = LogitsEncoding::from_constants(constants)?;
        let steps = contract.graphs.iter().map(|graph| Step::new(graph, window, logits_encoding, &allocate));
        let steps = steps.collect::<Result<Vec<_>>>()?;
        let lookahead = match mode {
            DecodingMode::Lookahead(options) => Some(Ahead::new(options, &contract.graphs)?),
            _ => None,
        };
        let least_batch = lookahead.as_ref().map_or(1, |ahead| ahead.lookahead.ngram());
        let sink = evictor.map(|evictor| AttentionSink::new(evictor, &contract, least_batch)).transpose()?;
        if sink.is_some() {
            kv.reserve_spare(&contract, &allocate)?;
        }
        let vocabulary = constants.count("get_vocab_size")?.unwrap_or(usize::MAX).min(contract.vocabulary);
        Ok(Self {
            embedding,
            contract,
            kv,
            steps,
            committed: Sequence::default(),
            newest: None,
            poisoned: None,
            engine_ms: 0.0,
            vocabulary,
            logits_encoding,
            lookahead,
            sink,
            recorded: None,
            component,
        })
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

    /// Whether the conversation may be longer than that, because an attention sink evicts what is in the middle.
    pub fn is_unbounded(&self) -> bool {
        self.sink.is_some()
    }

    /// Tokens that an attention sink has evicted from the cache.
    pub fn evicted_tokens(&self) -> usize {
        self.committed.len() - self.kv.len()
    }

    /// How lookahead decoding went since creation; `None` in other modes.
    pub fn lookahead_stats(&self) -> Option<LookaheadStats> {
        self.lookahead.as_ref().map(|ahead| ahead.lookahead.stats())
    }

    /// Whether the logits are quantized and the program does not say how: their order is right, and nothing else.
    pub fn has_unscaled_logits(&self) -> bool {
        let quantized = self.contract.graphs.first().and_then(|graph| graph.outputs.first());
        self.logits_encoding.is_none() && quantized.is_some_and(|logits| logits.dtype != DType::F32)
    }

    /// Keep the logits of every token that is computed from now on (`true`), as the graphs write them, or stop.
    pub fn record_logits(&mut self, on: bool) {
        self.recorded = on.then(Vec::new);
    }

    /// What was recorded since the last call: rows `[V]` of the logits' element type, in the order they were computed.
    pub fn take_recorded_logits(&mut self) -> Vec<u8> {
        self.recorded.as_mut().map(std::mem::take).unwrap_or_default()
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
        self.steps.get(self.newest?)?.logits.current()
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

    /// Process and commit one token. In lookahead mode it may have been computed already.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn decode(&mut self, token: u32) -> Result<()> {
        let sequence = Sequence::from_ids(vec![token]);
        self.check_usable()?;
        self.check_new(&sequence, 0)?;
        if self.decode_ahead(token, &sequence)? {
            return Ok(());
        }
        self.feed(&sequence, 0, None, &mut |_, _| Flow::Continue).map(|_| ())
    }

    /// Forget all but the first `len` committed tokens; no effect if there are fewer. Gives how many are left, which is
    /// less than `len` where an attention sink has evicted some of them.
    pub fn rewind(&mut self, len: usize) -> usize {
        if len < self.committed.len() {
            let (sink, evicted) = (self.sink.as_ref().map_or(0, AttentionSink::sink), self.evicted_tokens());
            // Behind the sink lie the latest tokens: either some of them stay, or none.
            let (kept, cached) = match evicted {
                0 => (len, len),
                _ if len >= sink + evicted => (len, len - evicted),
                _ => (len.min(sink), len.min(sink)),
            };
            self.committed.truncate(kept);
            self.kv.truncate(cached);
            self.go_on_elsewhere();
        }
        self.committed.len()
    }

    /// Forget everything, a failure included.
    pub fn reset(&mut self) {
        self.committed.clear();
        self.kv.clear();
        self.go_on_elsewhere();
        self.poisoned = None;
    }

    fn go_on_elsewhere(&mut self) {
        self.newest = None;
        if let Some(ahead) = &mut self.lookahead {
            ahead.lookahead.forget_guesses();
        }
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
        self.go_on_elsewhere();
        let total = sequence.len() - from;
        let mut done = 0;
        while done < total {
            let (step, rows) = self.choose_step(total - done)?;
            let is_last = done + rows == total;
            let wanted = match (each_row.is_some() || self.recorded.is_some(), is_last) {
                (true, _) => 0..rows,
                (false, true) => rows - 1..rows,
                (false, false) => 0..0,
            };
            let first_row = self.run_block(step, sequence, from + done..from + done + rows, wanted)?;
            if let Some(each_row) = each_row.as_mut()
                && self.visit_rows(step, first_row, done, rows, each_row)? == Flow::Stop
            {
                return Ok(done + rows);
            }
            done += rows;
            if is_last {
                self.select_newest(step, first_row + rows - 1)?;
            }
            if progress(done, total) == Flow::Stop {
                break;
            }
        }
        Ok(done)
    }

    fn visit_rows(
        &mut self,
        step: usize,
        first_row: usize,
        done: usize,
        rows: usize,
        each_row: &mut EachRow<'_>,
    ) -> Result<Flow> {
        let Some(step) = self.steps.get_mut(step) else { return Ok(Flow::Continue) };
        for row in 0..rows {
            step.logits.select(first_row + row)?;
            if each_row(done + row, step.logits.current().unwrap_or_default())? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::Continue)
    }

    fn select_newest(&mut self, index: usize, row: usize) -> Result<()> {
        if let Some(step) = self.steps.get_mut(index) {
            step.logits.select(row)?;
            self.newest = Some(index);
        }
        Ok(())
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
        if needed > capacity && !self.is_unbounded() {
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
        let vocabulary = self.vocabulary;
        match tokens.iter().find(|&&id| id as usize >= vocabulary) {
            None => Ok(()),
            Some(id) => {
                Err(Error::invalid(format!("token id {id} is outside the decoder's vocabulary of {vocabulary}")))
            }
        }
    }

    /// The graph for the next block and how many of the `remaining` tokens it takes: the smallest block that takes all of
    /// them, or else the largest, among the graphs whose cache columns reach over what is cached. Towards the end of the
    /// context only the graph with the smallest block is left, which makes the whole cache usable.
    fn choose_step(&self, remaining: usize) -> Result<(usize, usize)> {
        let past = self.kv.len();
        let room = |graph: &StepGraph| match (graph.has_cache(), self.contract.has_cache()) {
            (true, _) => (graph.cache_slots >= past || self.sink.is_some()).then_some(graph.ar),
            // Beside others a graph without cache can only begin a text; alone it computes all of it again.
            (false, true) => (past == 0).then_some(graph.ar),
            (false, false) => graph.ar.checked_sub(past).filter(|&room| room > 0),
        };
        let usable = || self.steps.iter().enumerate().filter_map(|(index, step)| Some((index, room(&step.graph)?)));
        let fitting = usable().find(|&(_, room)| room >= remaining);
        let chosen = fitting.or_else(|| usable().max_by_key(|&(index, room)| (room, index)));
        let (index, room) = chosen.ok_or_else(|| Error::internal(format!("no graph reaches over {past} tokens")))?;
        Ok((index, room.min(remaining)))
    }

    /// Compute and commit positions `block` of `sequence`. Gives the row of the graph's block that the first is in.
    fn run_block(
        &mut self,
        index: usize,
        sequence: &Sequence,
        block: Range<usize>,
        logits_rows: Range<usize>,
    ) -> Result<usize> {
        let step_size = self.steps.get(index).map_or(1, |step| step.graph.ar);
        self.make_room(index, step_size)?;
        let past = self.kv.len();
        let step = self.steps.get_mut(index).ok_or_else(|| Error::internal(format!("there is no step {index}")))?;
        // Without a cache everything before is part of the block.
        let whole = (!step.graph.has_cache()).then(|| {
            let mut whole = self.committed.clone();
            whole.extend_from(sequence, block.start, block.end);
            whole
        });
        let (text, rows) = whole.as_ref().map_or((sequence, block.clone()), |whole| (whole, 0..whole.len()));
        let first_row = rows.len() - block.len();
        if step.graph.has_cache() {
            self.kv.set_stride(step.graph.cache_slots)?;
            self.kv.convert_to(step.domain);
        }
        let started = Instant::now();
        let outcome = step.prepare(text, rows.clone(), past, self.embedding.as_mut()).and_then(|()| {
            let logits_rows = logits_rows.start + first_row..logits_rows.end + first_row;
            let options = ExecuteOptions { valid_rows: Some(rows.len()), logits_rows: Some(logits_rows) };
            step.execute(self.component.as_mut(), &self.kv, &options)
        });
        self.finish_call(outcome, started)?;
        self.record(index, first_row..rows.len());
        self.commit(index, first_row..rows.len(), sequence, block)?;
        Ok(first_row)
    }

    /// Take `token` from the guesses of the last call, or make new ones with it. `false`: neither is possible here.
    fn decode_ahead(&mut self, token: u32, sequence: &Sequence) -> Result<bool> {
        let Some(Ahead { step: index, lookahead }) = &mut self.lookahead else { return Ok(false) };
        let index = *index;
        if let Some(row) = lookahead.accept(token) {
            self.commit(index, row..row + 1, sequence, 0..1)?;
            self.record(index, row..row + 1);
            return self.select_newest(index, row).map(|()| true);
        }
        let ngram = lookahead.ngram();
        self.make_room(index, ngram)?;
        let past = self.kv.len();
        let (Some(step), Some(Ahead { lookahead, .. })) = (self.steps.get_mut(index), &mut self.lookahead) else {
            return Err(Error::internal(format!("there is no step {index}")));
        };
        if past > step.graph.cache_slots {
            return Ok(false);
        }
        let block = lookahead.block(token, &self.committed.text_ids());
        self.kv.set_stride(step.graph.cache_slots)?;
        self.kv.convert_to(step.domain);
        let started = Instant::now();
        let outcome = step.prepare_tree(&block.ids, &block.tree, past, self.embedding.as_mut()).and_then(|()| {
            let options = ExecuteOptions { valid_rows: Some(block.ids.len()), logits_rows: None };
            step.execute(self.component.as_mut(), &self.kv, &options)
        });
        let outcome = outcome.and_then(|()| {
            let next_level = lookahead.last_level().map(|row| step.logits.argmax(row)).collect::<Result<_>>()?;
            lookahead.learn(next_level);
            Ok(())
        });
        self.finish_call(outcome, started)?;
        self.commit(index, 0..1, sequence, 0..1)?;
        self.record(index, 0..1);
        self.select_newest(index, 0).map(|()| true)
    }

    /// With an attention sink: evict until `step` more tokens fit behind what is cached.
    fn make_room(&mut self, index: usize, step: usize) -> Result<()> {
        let Some(sink) = &mut self.sink else { return Ok(()) };
        let widest = self.steps.iter().enumerate().max_by_key(|(_, step)| step.graph.cache_slots);
        let widest = widest.map_or(index, |(widest, _)| widest);
        while self.steps.get(index).is_some_and(|own| sink.is_due(self.kv.len(), step, &own.graph)) {
            // The layout of the graph that comes next may be too narrow for what has to be moved.
            let fits = self.steps.get(index).is_some_and(|own| own.graph.cache_slots >= self.kv.len());
            let chosen = if fits { index } else { widest };
            let Some(layout) = self.steps.get(chosen) else { break };
            self.kv.set_stride(layout.graph.cache_slots)?;
            self.kv.convert_to(layout.domain);
            let before = self.kv.len();
            let started = Instant::now();
            let outcome = sink.evict(&mut self.kv, chosen, &layout.graph);
            self.engine_ms += started.elapsed().as_secs_f64() * 1000.0;
            if let Err(error) = outcome {
                self.poisoned = Some(error.to_string());
                return Err(error);
            }
            if self.kv.len() == before {
                return Err(Error::internal(format!("an eviction removed none of {before} tokens")));
            }
        }
        Ok(())
    }

    /// An engine call is over.
    fn finish_call(&mut self, outcome: Result<()>, started: Instant) -> Result<()> {
        self.engine_ms += started.elapsed().as_secs_f64() * 1000.0;
        outcome.inspect_err(|error| self.poisoned = Some(error.to_string()))
    }

    /// Commit rows `rows` of a step's outputs, which are positions `block` of `sequence`.
    fn commit(&mut self, index: usize, rows: Range<usize>, sequence: &Sequence, block: Range<usize>) -> Result<()> {
        let step = self.steps.get(index).ok_or_else(|| Error::internal(format!("there is no step {index}")))?;
        if self.kv.len() + rows.len() > step.graph.cache_slots {
            // The block was computed at a narrow stride, but its tokens lie beyond it.
            self.kv.set_stride(self.kv.capacity())?;
        }
        self.kv.commit(&step.kv_out, step.graph.ar, rows, step.domain)?;
        self.committed.extend_from(sequence, block.start, block.end);
        Ok(())
    }

    fn record(&mut self, index: usize, rows: Range<usize>) {
        if let (Some(recorded), Some(step)) = (&mut self.recorded, self.steps.get(index)) {
            rows.for_each(|row| recorded.extend_from_slice(step.logits.raw_row(row)));
        }
    }
}

impl Ahead {
    fn new(options: LookaheadOptions, graphs: &[StepGraph]) -> Result<Self> {
        let rows = options.rows()?;
        let cached = || graphs.iter().enumerate().filter(|(_, graph)| graph.has_cache());
        let wide = cached().find(|(_, graph)| graph.ar >= rows && graph.name == KV_GRAPH);
        let wide = wide.or_else(|| cached().find(|(_, graph)| graph.ar >= rows)).or_else(|| cached().next_back());
        let Some((step, graph)) = wide else {
            return Err(Error::invalid("lookahead needs a text decoder with a KV cache"));
        };
        Ok(Self { step, lookahead: Lookahead::new(options, graph.ar)? })
    }
}

/// Keep the graphs of the mode.
fn select_graphs(contract: &mut DecoderContract, mode: DecodingMode) -> Result<()> {
    let has = |name: &str| contract.graphs.iter().any(|graph| graph.name == name);
    match mode {
        DecodingMode::Auto | DecodingMode::Lookahead(_) => {}
        DecodingMode::Kv if has(KV_GRAPH) => contract.graphs.retain(|graph| graph.name == KV_GRAPH),
        DecodingMode::Kv => contract.graphs.truncate(1),
        DecodingMode::Hybrid => match [KV_GRAPH, PREFILL_GRAPH].into_iter().find(|name| !has(name)) {
            None => contract.graphs.retain(|graph| [KV_GRAPH, PREFILL_GRAPH].contains(&graph.name.as_str())),
            Some(missing) => {
                let have: Vec<&str> = contract.graphs.iter().map(|graph| graph.name.as_str()).collect();
                return Err(Error::invalid(format!(
                    "hybrid mode needs the graph {missing}, the text decoder has: {}; use kv mode",
                    have.join(", ")
                )));
            }
        },
    }
    Ok(())
}

/// The sliding window of a decoder that takes a mask for it.
fn window_size(component: &dyn LoadedComponent, contract: &DecoderContract, given: Option<usize>) -> Result<usize> {
    let constants = component.constants();
    if let Some(window) = given.map_or_else(|| constants.count("get_sliding_window"), |window| Ok(Some(window)))? {
        return Ok(window);
    }
    if constants.iter().next().is_some() {
        log::warn!("the text decoder takes a sliding-window mask but does not say its window: it is the whole context");
        return Ok(contract.context_length);
    }
    Err(Error::invalid("the text decoder takes a sliding-window mask, but its window size is not known"))
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
