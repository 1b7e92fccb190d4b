//! The `Runner`: a model, a conversation, and the single steps they are made of.

use super::conversation::{Conversation, Reply, Turn};
use super::decoder::{Decoder, DecoderParts, DecodingMode, Progress};
use super::eval::{self, EvalOptions, EvalProgress, Perplexity};
use super::event::{CancelHandle, Flow};
use super::media::{Draft, Media};
use super::media_encoder::{MediaParts, MediaProcessor};
use super::options::{GenerateOptions, RunnerOptions, SamplingOptions};
use super::requant::RequantRounding;
use super::sampler::Sampler;
use super::sequence::Sequence;
use super::stats::{Clock, TotalStats};
use super::token_embedding::TokenEmbedding;
use crate::artefact::{Artefact, GenerationDefaults, TEXT_DECODER, TOK_EMBEDDING, VISION_ENCODER};
use crate::chat::{ChatTemplate, Message, PromptEncoder, RenderOptions, Tokenizer};
use crate::engine::cpu::{CpuEngine, CpuOptions};
use crate::engine::{ComponentSource, Engine, LoadedComponent};
use crate::error::{Error, Result};
use crate::media::Tiling;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::thread;

/// Name prefix of the built-in compatibility templates in [`RunnerOptions::template`].
pub(super) const COMPAT_PREFIX: &str = "upstream:";

/// A conversation with a model.
///
/// The runner keeps the messages of the history, the encoded rows of its pictures and sounds, and the sampled ids of every
/// reply. Each run renders the whole history with the new messages, compares it with what the KV cache holds, and computes
/// only what is new, so the cache always equals what the chat template renders, token for token.
///
/// One thread at a time; it may move between threads. Only [`CancelHandle`] is for other threads.
pub struct Runner {
    pub(super) decoder: Decoder,
    pub(super) media: Option<Media>,
    pub(super) encoder: PromptEncoder,
    pub(super) render_options: RenderOptions,
    pub(super) eos_ids: Vec<u32>,
    defaults: GenerateOptions,
    pub(super) conversation: Conversation,
    pub(super) cancel: CancelHandle,
    pub(super) stats: TotalStats,
    pub(super) clock: Clock,
    /// When loading ended, by `clock`; it began at 0.
    pub(super) loaded_ms: f64,
    /// Sampler of the single steps; a run has its own.
    step_sampler: Option<Sampler>,
}

/// What a runner is made of, for engines other than the built-in one.
pub struct RunnerParts {
    /// The loaded text decoder.
    pub component: Box<dyn LoadedComponent>,
    /// Its sliding window in tokens, if it takes a window mask.
    pub sliding_window: Option<usize>,
    /// The tokenizer; its end-of-sequence ids end replies.
    pub tokenizer: Tokenizer,
    /// The chat template; without one a prompt is the plain text of the messages.
    pub template: Option<ChatTemplate>,
    /// Further variables for the template.
    pub template_variables: serde_json::Map<String, serde_json::Value>,
    /// End-of-sequence ids beyond those of the tokenizer.
    pub eos_ids: Vec<u32>,
    /// First message of every conversation, with the role `system`.
    pub system_prompt: Option<String>,
    /// The loaded component `tok_embedding`, if the decoder takes embeddings.
    pub token_embedding: Option<Box<dyn LoadedComponent>>,
    /// What looks at pictures or listens to sound, if the model takes either.
    pub media: Option<MediaParts>,
    /// The loaded evictor of an attention sink: the conversation may then be longer than the context.
    pub evictor: Option<Box<dyn LoadedComponent>>,
    /// Which graphs of the decoder run.
    pub decoding: DecodingMode,
    /// How the KV cache is re-quantized, in files that ask for it.
    pub requant: RequantRounding,
}

impl RunnerParts {
    /// A text model without a chat template.
    pub fn new(component: Box<dyn LoadedComponent>, tokenizer: Tokenizer) -> Self {
        Self {
            component,
            sliding_window: None,
            tokenizer,
            template: None,
            template_variables: serde_json::Map::new(),
            eos_ids: Vec::new(),
            system_prompt: None,
            token_embedding: None,
            media: None,
            evictor: None,
            decoding: DecodingMode::default(),
            requant: RequantRounding::default(),
        }
    }
}

impl Runner {
    /// Open a compiled model with the built-in CPU engine.
    ///
    /// # Errors
    /// A missing, malformed or unsupported artefact, option or template; the error names it.
    pub fn open(dir: impl AsRef<Path>, options: &RunnerOptions) -> Result<Self> {
        options.validate()?;
        let engine = CpuEngine::new(CpuOptions { threads: options.threads, ..Default::default() });
        Self::open_with(dir, &engine, options)
    }

    /// Open a compiled model with any engine; [`RunnerOptions::threads`] is the engine's own matter then.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(dir: impl AsRef<Path>, engine: &dyn Engine, options: &RunnerOptions) -> Result<Self> {
        options.validate()?;
        let clock = Clock::new();
        let artefact = Artefact::open(dir.as_ref())?;
        let manifest = artefact.manifest();
        let special = &manifest.special_tokens;
        let template = match &options.template {
            Some(name) if name.starts_with(COMPAT_PREFIX) => Some(ChatTemplate::compat(name)?),
            Some(source) => Some(ChatTemplate::from_source(source, special)?),
            None => artefact.chat_template()?.map(|source| ChatTemplate::from_source(&source, special)).transpose()?,
        };
        let source = |name: &str| -> Result<ComponentSource> {
            let file = ComponentSource::file(name, artefact.component_path(name)?);
            Ok(ComponentSource { shared_memory: options.shared_memory, ..file })
        };
        let load = |name: &str| -> Result<Option<Box<dyn LoadedComponent>>> {
            if !manifest.components.contains_key(name) {
                return Ok(None);
            }
            engine.load(&source(name)?).map(Some)
        };
        let (decoder_source, tokenizer_json) = (source(TEXT_DECODER)?, artefact.tokenizer_json()?);
        // The vocabulary takes longest; the components are loaded beside it.
        let (components, tokenizer) = thread::scope(|scope| {
            let components =
                scope.spawn(|| Ok((engine.load(&decoder_source)?, load(TOK_EMBEDDING)?, load(VISION_ENCODER)?)));
            let tokenizer = Tokenizer::from_bytes(&tokenizer_json, special);
            let panicked = |_| Err(Error::internal(format!("engine {} panicked while loading", engine.name())));
            (components.join().unwrap_or_else(panicked), tokenizer)
        });
        let (component, token_embedding, encoder) = components?;
        let media = match (encoder, &manifest.image) {
            (Some(encoder), Some(image)) => Some(MediaParts {
                encoder,
                processor: MediaProcessor::Image { processor: image.processor.clone(), tiling: tiling(options) },
                markup: image.markup.clone(),
                model_key: Sha256::digest(manifest.component(VISION_ENCODER)?.sha256.as_bytes()).into(),
                cache_bytes: options.image_cache_bytes,
            }),
            _ => None,
        };
        let tokenizer = tokenizer?;
        let ends = template.as_ref().map(ChatTemplate::end_tokens).unwrap_or_default();
        let ends = ends.iter().filter_map(|text| tokenizer.token_id(text));
        let eos_ids = special.eos_ids.iter().copied().chain(ends).collect();
        let parts = RunnerParts {
            sliding_window: manifest.model.decoder.sliding_window,
            eos_ids,
            template,
            template_variables: options.template_variables.clone(),
            system_prompt: options.system_prompt.clone(),
            token_embedding,
            media,
            decoding: options.decoding,
            requant: options.requant_rounding,
            ..RunnerParts::new(component, tokenizer)
        };
        let mut runner = Self::assemble(parts, clock)?;
        runner.defaults.sampling = recommended(&manifest.generation);
        Ok(runner)
    }

    /// Put a runner together from its parts.
    ///
    /// # Errors
    /// Those of [`Decoder::from_parts`] and [`PromptEncoder::new`].
    pub fn from_parts(parts: RunnerParts) -> Result<Self> {
        Self::assemble(parts, Clock::new())
    }

    pub(super) fn assemble(parts: RunnerParts, clock: Clock) -> Result<Self> {
        let embedding = parts.token_embedding.map(TokenEmbedding::new).transpose()?;
        let decoder = Decoder::from_parts(DecoderParts {
            component: parts.component,
            embedding,
            evictor: parts.evictor,
            window: parts.sliding_window,
            mode: parts.decoding,
            requant: parts.requant,
        })?;
        let media = parts.media.map(|media| Media::new(media, &parts.tokenizer)).transpose()?;
        check_widths(&decoder, media.as_ref())?;
        let mut eos_ids = [parts.tokenizer.eos_ids(), &parts.eos_ids].concat();
        eos_ids.sort_unstable();
        eos_ids.dedup();
        let encoder = PromptEncoder::new(parts.tokenizer, parts.template)?;
        let loaded_ms = clock.ms();
        Ok(Self {
            decoder,
            media,
            encoder,
            render_options: RenderOptions { extra: parts.template_variables, now: Some(now()), ..Default::default() },
            eos_ids,
            defaults: GenerateOptions::default(),
            conversation: Conversation::new(parts.system_prompt),
            cancel: CancelHandle::default(),
            stats: TotalStats { load_ms: loaded_ms, ..Default::default() },
            clock,
            loaded_ms,
            step_sampler: None,
        })
    }

    /// Options as the checkpoint recommends them (greedy if it recommends nothing).
    pub fn default_options(&self) -> GenerateOptions {
        self.defaults.clone()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.encoder.tokenizer()
    }

    /// Ids that end a reply: the union of all sources, ascending.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Keep the logits of every token that is computed from now on (`true`), as the program gives them, or stop.
    pub fn record_logits(&mut self, on: bool) {
        self.decoder.record_logits(on);
    }

    /// The logits that were recorded since the last call: rows `[V]` of the program's element type, in the order they
    /// were computed.
    pub fn take_recorded_logits(&mut self) -> Vec<u8> {
        self.decoder.take_recorded_logits()
    }

    /// The loaded text decoder, to switch its profiling.
    pub fn component_mut(&mut self) -> &mut dyn LoadedComponent {
        self.decoder.component_mut()
    }

    /// Most tokens of a conversation: history, prompt and reply together.
    pub fn context_capacity(&self) -> usize {
        self.decoder.context_capacity()
    }

    /// Number of tokens of the history, the last sampled one included.
    pub fn position(&self) -> usize {
        self.conversation.tokens().len()
    }

    /// Number of finished turns.
    pub fn turn_count(&self) -> usize {
        self.conversation.turn_count()
    }

    /// The tokens of the history: what the template renders for it, up to and including the last sampled token. A row of
    /// a picture or of sound counts as its placeholder token.
    pub fn history_tokens(&self) -> &[u32] {
        self.conversation.tokens().ids()
    }

    /// Sums over all runs since the runner was opened.
    pub fn stats(&self) -> &TotalStats {
        &self.stats
    }

    /// A handle that cancels runs from any thread.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// Start a new conversation. This is also the way out after a failed engine call.
    pub fn reset(&mut self) {
        self.decoder.reset();
        self.conversation.clear();
        self.render_options.now = Some(now());
        self.step_sampler = None;
    }

    /// Forget all but the first `turns_to_keep` turns. What they share with a later prompt is not computed again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are fewer turns, [`Error::Poisoned`] after a failed engine call.
    pub fn rewind(&mut self, turns_to_keep: usize) -> Result<()> {
        self.decoder.check_usable()?;
        self.conversation.rewind(turns_to_keep)?;
        self.decoder.rewind(self.conversation.tokens().common_prefix(self.decoder.committed()));
        Ok(())
    }

    /// The text a run with these new messages would process: the whole history, with the opening of the next reply.
    /// Where a picture or sound stands it shows what the template writes there.
    ///
    /// # Errors
    /// What the template raises; [`Error::Unsupported`] for pictures or audio in a model that takes none.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        Ok(self.draft(messages)?.prompt.text)
    }

    /// The tokens a run with these new messages would process, history included. A picture or audio clip
    /// has one placeholder token for each of its rows; none is encoded for this.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn encode(&self, messages: &[Message]) -> Result<Vec<u32>> {
        Ok(self.draft(messages)?.prompt.ids)
    }

    /// Single step: append `tokens` to the history and process them; afterwards [`logits`](Self::logits) are those of
    /// the last one. Tokens of single steps belong to no message until [`commit_turn`](Self::commit_turn): the next
    /// [`generate`](Self::generate) leaves them out (what they share with its prompt is still reused).
    ///
    /// # Errors
    /// As [`Decoder::prefill`], and [`Error::Cancelled`] between blocks; the history is unchanged.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<()> {
        self.step_sampler = None;
        let outcome = self.append(tokens);
        self.cancel.clear();
        outcome
    }

    /// Single step: make the history exactly `prompt` (as [`encode`](Self::encode) gives it) and process what the
    /// cache does not have yet; otherwise as [`prefill`](Self::prefill).
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn prefill_prompt(&mut self, prompt: &[u32]) -> Result<()> {
        self.step_to_sequence(Sequence::from_ids(prompt.to_vec()))
    }

    /// Single step: make the history exactly the prompt of these new messages, their media encoded and in their places;
    /// otherwise as [`prefill_prompt`](Self::prefill_prompt).
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn prefill_messages(&mut self, messages: &[Message]) -> Result<()> {
        self.decoder.check_usable()?;
        let draft = self.draft(messages)?;
        self.check_fits(&draft)?;
        let cancel = self.cancel.clone();
        let seen =
            self.look_at(&draft.media, &mut |_, _| if cancel.is_cancelled() { Flow::Stop } else { Flow::Continue });
        let Some((embeddings, _)) = seen? else {
            self.cancel.clear();
            return Err(Error::Cancelled);
        };
        self.step_to_sequence(draft.with_rows(&embeddings))
    }

    /// Make the history exactly this, as a single step.
    pub(super) fn step_to_sequence(&mut self, history: Sequence) -> Result<()> {
        self.step_sampler = None;
        let outcome = self.step_to(history);
        self.cancel.clear();
        outcome
    }

    /// Single step: append one token and process it.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn decode(&mut self, token: u32) -> Result<()> {
        let outcome = self.append(&[token]);
        self.cancel.clear();
        outcome
    }

    fn append(&mut self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::invalid("there are no tokens to process"));
        }
        let mut history = self.conversation.tokens().clone();
        history.extend_ids(tokens);
        self.step_to(history)
    }

    fn step_to(&mut self, history: Sequence) -> Result<()> {
        let cancel = self.cancel.clone();
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let fed = self.feed_to(&history, &mut |done, total| {
            if done < total && cancel.is_cancelled() { Flow::Stop } else { Flow::Continue }
        })?;
        if !fed.complete {
            return Err(Error::Cancelled);
        }
        self.conversation.set_tokens(history);
        Ok(())
    }

    /// Make a turn that was generated by single steps a part of the conversation: the new messages, and the sampled
    /// ids of the reply without the end-of-sequence token.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no messages or an id outside the vocabulary, [`Error::Poisoned`], and what the
    /// template raises; the conversation is unchanged.
    pub fn commit_turn(&mut self, messages: &[Message], reply: &[u32]) -> Result<()> {
        self.decoder.check_usable()?;
        if messages.is_empty() {
            return Err(Error::invalid("there are no messages the reply could answer"));
        }
        self.decoder.check_ids(reply)?;
        let draft = self.draft(messages)?;
        let seen = self.look_at(&draft.media, &mut |_, _| Flow::Continue)?;
        let (embeddings, _) = seen.ok_or_else(|| Error::internal("encoding stopped by itself"))?;
        let messages = Self::with_rows(messages, of_new_messages(messages, &embeddings));
        let mut tokens = draft.with_rows(&embeddings);
        tokens.extend_ids(reply);
        // The end-of-sequence token may have been processed as well; it is no part of the reply, but of the history.
        let processed = self.conversation.tokens().ids();
        if let [end] = processed.strip_prefix(tokens.ids()).unwrap_or_default()
            && self.eos_ids.contains(end)
        {
            tokens.push(*end);
        }
        let reply = Reply { text: self.tokenizer().decode(reply, true), tokens: Some(reply.to_vec()) };
        self.conversation.push(Turn { messages, reply, tokens });
        Ok(())
    }

    /// Logits `[V]` of the newest processed token; `None` before the first and after `reset` or `rewind`.
    pub fn logits(&self) -> Option<&[f32]> {
        self.decoder.logits()
    }

    /// Single step: choose a token from [`logits`](Self::logits). The random numbers start anew with each
    /// [`prefill`](Self::prefill) and when the options change, so that a loop of `sample` and
    /// [`decode`](Self::decode) gives the tokens of a run with the same options.
    ///
    /// # Errors
    /// [`Error::InvalidState`] if there are no logits; what [`Sampler`] returns.
    pub fn sample(&mut self, options: &SamplingOptions) -> Result<u32> {
        let missing = || Error::InvalidState("there are no logits to sample from: call prefill or decode first".into());
        self.check_sampling(options)?;
        let logits = self.decoder.logits().ok_or_else(missing)?;
        let reusable = self.step_sampler.take().filter(|sampler| sampler.options() == options);
        let mut sampler = reusable.map_or_else(|| Sampler::new(options), Ok)?;
        let token = sampler.sample(logits, self.conversation.tokens().ids());
        self.step_sampler = Some(sampler);
        token
    }

    /// Whether tokens can be chosen this way: by chance only from logits that are real numbers.
    ///
    /// # Errors
    /// [`Error::Unsupported`] naming what the program lacks.
    pub(super) fn check_sampling(&self, options: &SamplingOptions) -> Result<()> {
        let plain = options.is_greedy() && options.repetition_penalty == 1.0;
        if plain || !self.decoder.has_unscaled_logits() {
            return Ok(());
        }
        Err(Error::Unsupported(
            "the text decoder gives quantized logits without the constants get_logits_scale and get_logits_zero_point: \
             only temperature 0 without a repetition penalty can be used"
                .into(),
        ))
    }

    /// Perplexity of a text; see [`eval::perplexity`]. The conversation is reset.
    ///
    /// # Errors
    /// As [`eval::perplexity`]; a waiting cancel gives [`Error::Cancelled`].
    pub fn evaluate(
        &mut self,
        tokens: &[u32],
        options: &EvalOptions,
        progress: &mut dyn FnMut(&EvalProgress) -> Flow,
    ) -> Result<Perplexity> {
        self.reset();
        let cancel = self.cancel.clone();
        let outcome = eval::perplexity(&mut self.decoder, tokens, options, &mut |so_far| {
            let flow = progress(so_far);
            if cancel.is_cancelled() { Flow::Stop } else { flow }
        });
        cancel.clear();
        // After a failed engine call the decoder stays poisoned until the caller resets.
        if self.decoder.check_usable().is_ok() {
            self.reset();
        }
        outcome
    }

    /// Whether a prompt (history included) leaves room for at least one new token.
    ///
    /// # Errors
    /// [`Error::ContextFull`] with both numbers.
    pub(super) fn check_fits(&self, draft: &Draft) -> Result<()> {
        self.check_room(draft.prompt.ids.len(), || draft.describe())
    }

    fn check_room(&self, tokens: usize, what: impl FnOnce() -> String) -> Result<()> {
        let (needed, capacity) = (tokens + 1, self.context_capacity());
        if needed <= capacity || self.decoder.is_unbounded() {
            Ok(())
        } else {
            Err(Error::ContextFull { what: what(), needed, capacity })
        }
    }

    /// Make the KV cache hold exactly `target` with the logits of its last token, keeping what it shares with it.
    ///
    /// # Errors
    /// As [`Decoder::prefill`].
    pub(super) fn feed_to(&mut self, target: &Sequence, progress: &mut Progress<'_>) -> Result<Fed> {
        self.decoder.check_usable()?;
        self.check_room(target.len(), || "the conversation with the new tokens and one more".into())?;
        // The last token is computed again even if the cache has it: its logits are needed.
        let reused = target.common_prefix(self.decoder.committed()).min(target.len().saturating_sub(1));
        let reused = self.decoder.rewind(reused);
        let prefilled = self.decoder.prefill_sequence(target, reused, progress)?;
        Ok(Fed { reused, prefilled, complete: reused + prefilled == target.len() })
    }
}

/// What [`Runner::feed_to`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fed {
    /// Tokens that were in the cache.
    pub reused: usize,
    /// Tokens that were computed.
    pub prefilled: usize,
    /// Whether the target was reached.
    pub complete: bool,
}

/// The pictures and sounds of new messages are the last of a conversation.
pub(super) fn of_new_messages<'e, T>(new: &[Message], all: &'e [T]) -> &'e [T] {
    let count = new.iter().flat_map(|message| &message.parts).filter(|part| part.is_media()).count();
    all.get(all.len().saturating_sub(count)..).unwrap_or_default()
}

/// How pictures are cut: as asked for, and upstream's templates know only one tile.
pub(super) fn tiling(options: &RunnerOptions) -> Tiling {
    let is_compat = options.template.as_ref().is_some_and(|name| name.starts_with(COMPAT_PREFIX));
    match options.image_tiling {
        Tiling::Checkpoint if is_compat => Tiling::Single,
        asked => asked,
    }
}

/// Encoder and decoder must agree on the width of rows.
fn check_widths(decoder: &Decoder, media: Option<&Media>) -> Result<()> {
    let Some(media) = media else { return Ok(()) };
    let rows = media.encoder.width();
    match decoder.contract().hidden_size() {
        Some(width) if width == rows => Ok(()),
        Some(width) => Err(Error::invalid(format!(
            "the encoder of pictures or sound gives rows of {rows} numbers, the text decoder takes {width}"
        ))),
        None => Err(Error::invalid(
            "the model has an encoder of pictures or sound, but its text decoder takes token ids only",
        )),
    }
}

/// The time templates see. It is fixed for a conversation: a clock that moves on would change the beginning of the
/// prompt, and with it everything in the cache.
fn now() -> chrono::NaiveDateTime {
    chrono::Local::now().naive_local()
}

/// The checkpoint's recommendation as options; without `do_sample` it is greedy.
fn recommended(defaults: &GenerationDefaults) -> SamplingOptions {
    let plain = SamplingOptions::default();
    let penalty = defaults.repetition_penalty.unwrap_or(plain.repetition_penalty);
    let options = if defaults.do_sample == Some(true) {
        SamplingOptions {
            temperature: defaults.temperature.unwrap_or(1.0),
            top_k: defaults.top_k.map_or(plain.top_k, |k| k as usize),
            top_p: defaults.top_p.unwrap_or(plain.top_p),
            min_p: defaults.min_p.unwrap_or(plain.min_p),
            repetition_penalty: penalty,
            ..plain
        }
    } else {
        SamplingOptions { repetition_penalty: penalty, ..plain }
    };
    // A recommendation out of range is no reason not to run the model.
    if options.validate().is_ok() { options } else { SamplingOptions::default() }
}
