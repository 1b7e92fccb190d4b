//! Turn after turn, with what upstream's runners say about each.

use super::super::chat::turn_json;
use super::super::output::print_piece;
use super::super::{Failure, Outcome, interrupt};
use super::flags::{Flags, Prompts};
use super::inputs;
use super::model::template_name;
use super::outputs::Outputs;
use super::pieces::Pieces;
use super::tokens;
use etgenai::chat::{
    ChatTemplate, ImageMarkup, Message, Part, RenderOptions, TokenizerFormat, messages_with_audio_placeholders,
    messages_with_placeholders,
};
use etgenai::media::TileLayout;
use etgenai::runner::{Event, Flow, GenerateOptions, Runner, SamplingOptions, StopReason, TurnResult};
use etgenai::{Error, Result};
use log::info;
use serde_json::Value;
use std::time::{SystemTime, UNIX_EPOCH};

/// What upstream's sampler keeps of the probability when it does not just take the most likely token.
const TOP_P: f32 = 0.9;

/// A conversation and where it is written down.
pub struct Conversation<'c> {
    flags: &'c Flags,
    runner: Runner,
    template: ChatTemplate,
    pieces: Pieces,
    outputs: &'c mut Outputs,
    /// When loading began and ended, milliseconds since the Unix epoch.
    loaded: (u64, u64),
    /// Most tokens of the conversation.
    seq_len: usize,
}

/// What has to be known of a turn before it runs.
struct Plan {
    options: GenerateOptions,
    /// Guesses of lookahead that came true before.
    accepted: usize,
}

impl<'c> Conversation<'c> {
    /// Begin a conversation.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an unknown prompt format.
    pub fn new(
        flags: &'c Flags,
        mut runner: Runner,
        format: TokenizerFormat,
        loaded: (u64, u64),
        outputs: &'c mut Outputs,
    ) -> Result<Self> {
        runner.record_logits(outputs.wants_logits());
        Ok(Self {
            template: ChatTemplate::compat(&template_name(flags))?,
            pieces: Pieces::new(runner.tokenizer().clone(), format),
            seq_len: effective_seq_len(flags.seq_len, &runner),
            flags,
            runner,
            outputs,
            loaded,
        })
    }

    /// Hold it: all turns, as often as asked for, each time from the beginning. What the turns gave goes to `turns`.
    pub fn hold(&mut self, turns: &mut Vec<Value>) -> Outcome {
        match &self.flags.prompts {
            Prompts::Tokens(path) => {
                let ids = inputs::token_ids(path)?;
                let prompt = self.pieces.text_of(&ids);
                let turn = self.say_tokens(&ids, &prompt)?;
                self.keep(turn, &prompt, turns)
            }
            Prompts::Turns(prompts) => {
                let messages = self.messages(prompts)?;
                for iteration in 0..self.flags.iterations {
                    if iteration > 0 {
                        self.runner.reset();
                    }
                    for (prompt, message) in prompts.iter().zip(&messages) {
                        let turn = self.say(message)?;
                        self.keep(turn, prompt, turns)?;
                    }
                }
                Ok(())
            }
        }
    }

    fn keep(&self, turn: TurnResult, prompt: &str, turns: &mut Vec<Value>) -> Outcome {
        turns.push(turn_json(prompt, &turn));
        match turn.stop_reason {
            StopReason::Cancelled => Err(Error::Cancelled.into()),
            _ => Ok(()),
        }
    }

    /// The prompts as messages, pictures or sound in their places. As with upstream's runner, files of the other kind are
    /// not looked at.
    fn messages(&self, prompts: &[String]) -> Result<Vec<Message>> {
        let Flags { images, audio, .. } = self.flags;
        if let Some((side, ..)) = self.runner.image_geometry() {
            let path = images.as_deref();
            let path = path.ok_or_else(|| Error::invalid("--image_path is missing: this model looks at pictures"))?;
            return messages_with_placeholders(prompts, inputs::pictures(path, side)?);
        }
        if let Some((features, ..)) = self.runner.audio_geometry() {
            let path = audio.as_deref();
            let path = path.ok_or_else(|| Error::invalid("--audio_path is missing: this model listens to audio"))?;
            return messages_with_audio_placeholders(prompts, inputs::audio(path, features)?);
        }
        Ok(prompts.iter().map(Message::user).collect())
    }

    /// One turn of the conversation.
    fn say(&mut self, message: &Message) -> Result<TurnResult, Failure> {
        let messages = std::slice::from_ref(message);
        let echo = self.echo(message)?;
        if echo.is_empty() {
            return Err(Error::invalid("the prompt is empty").into());
        }
        let length = self.runner.encode(messages)?.len();
        let plan = self.plan(length)?;
        self.outputs.say(echo.as_bytes());
        self.pieces.begin();
        let prefill_block = prefill_block(&self.runner);
        let Self { runner, pieces, outputs, .. } = self;
        let mut prefilled = 0;
        let cancel = runner.cancel_handle();
        let scope = interrupt::cancels_with(move || cancel.cancel());
        let turn = runner.generate(messages, &plan.options, &mut |event| {
            match event {
                Event::Prefill { total, .. } => prefilled = total,
                Event::Token { id, index } => {
                    if index == 0 {
                        log_prefill(prefilled, prefill_block);
                    }
                    outputs.say(&pieces.next(id));
                }
                _ => {}
            }
            Flow::Continue
        });
        drop(scope);
        let turn = turn?;
        self.report(&turn, &plan)?;
        Ok(turn)
    }

    /// The one turn of a conversation whose prompt is token ids.
    fn say_tokens(&mut self, ids: &[u32], echo: &str) -> Result<TurnResult, Failure> {
        let plan = self.plan(ids.len())?;
        self.outputs.say(echo.as_bytes());
        self.pieces.begin();
        let prefill_block = prefill_block(&self.runner);
        let Self { runner, pieces, outputs, .. } = self;
        let cancel = runner.cancel_handle();
        let scope = interrupt::cancels_with(move || cancel.cancel());
        let mut first = true;
        let turn = tokens::generate(runner, ids, &plan.options, self.loaded, &mut |id| {
            if std::mem::take(&mut first) {
                log_prefill(ids.len(), prefill_block);
            }
            outputs.say(&pieces.next(id));
        });
        drop(scope);
        let turn = turn?;
        self.report(&turn, &plan)?;
        Ok(turn)
    }

    /// The text of a turn as the runners repeat it: formatted, without what stands for the rows of pictures and sound.
    fn echo(&self, message: &Message) -> Result<String> {
        let mut message = message.clone();
        for part in message.parts.iter_mut().filter(|part| part.is_media()) {
            *part = Part::Text(self.around_rows()?);
        }
        let system = Some(&self.flags.system_prompt).filter(|prompt| !prompt.is_empty()).map(Message::system);
        let messages: Vec<Message> = system.into_iter().chain([message]).collect();
        self.template.render(&messages, &RenderOptions::default())
    }

    /// The tokens around the rows of a picture or of sound.
    fn around_rows(&self) -> Result<String> {
        let markup = match self.flags.version.as_str() {
            "smolvlm" => ImageMarkup::smol_vlm(),
            "granite_speech" => ImageMarkup::granite_speech(),
            _ => ImageMarkup::intern_vl(),
        };
        Ok(markup.expand(TileLayout::WHOLE, 1)?.replace(markup.row_token(), ""))
    }

    /// How a turn runs that makes the conversation `length` tokens long before its reply.
    fn plan(&self, length: usize) -> Result<Plan> {
        let seq_len = self.seq_len;
        let Some(budget) = seq_len.checked_sub(length).filter(|&budget| budget > 0) else {
            return Err(Error::invalid(format!(
                "sequence length exceeded: the conversation with this prompt has {length} tokens, with at least one of \
                 the reply it must not be longer than seq_len, {seq_len} - please increase the seq_len value"
            )));
        };
        let sampling = match self.flags.temperature {
            0.0 => SamplingOptions::default(),
            temperature => SamplingOptions { temperature, top_p: TOP_P, ..SamplingOptions::default() },
        };
        Ok(Plan {
            options: GenerateOptions { max_new_tokens: Some(budget), sampling, ..GenerateOptions::default() },
            accepted: accepted(&self.runner).unwrap_or(0),
        })
    }

    /// Say how a turn went, in the order and words of upstream's runners.
    fn report(&mut self, turn: &TurnResult, plan: &Plan) -> Outcome {
        let stats = &turn.stats;
        let rows = self.runner.take_recorded_logits();
        self.outputs.add_logits(&rows, stats.prefilled_tokens, stats.decoded_tokens());
        if turn.stop_reason != StopReason::Cancelled && !self.flags.json {
            print_piece("\n")?;
        }
        match turn.stop_reason {
            StopReason::Eos => info!("\nReached to the end of generation"),
            StopReason::Length | StopReason::ContextFull => self.log_limit(),
            _ => {}
        }
        if let Some(accepted) = accepted(&self.runner) {
            let (generated, accepted) = (stats.decoded_tokens(), accepted - plan.accepted);
            info!("Lookahead Decoding: n_generated = {generated} / n_accept = {accepted}");
        }
        info!("RSS after finishing text generation: {:.6} MiB (0 if unsupported)", peak_mebibytes());
        let report = stats.upstream_report();
        if !self.flags.json {
            print_piece(&report.observer_line)?;
        }
        report.log_lines.iter().for_each(|line| info!("{line}"));
        Ok(self.outputs.write_performance(&report.performance_file)?)
    }

    fn log_limit(&self) {
        let (seq_len, context) = (self.seq_len, self.runner.decoder().contract().context_length);
        info!(
            "Warning: Generation stopped at seq_len limit ({seq_len}) without reaching EOS token. Response may be \
             incomplete."
        );
        if self.runner.decoder().is_unbounded() {
            return;
        }
        match seq_len >= context {
            true => info!(
                "- seq_len ({seq_len}) already equals compiled max_context_len ({context}). Consider recompiling with \
                 larger --max_context_len."
            ),
            false => info!(
                "- seq_len ({seq_len}) is less than compiled max_context_len ({context}). Consider increasing --seq_len \
                 (up to {context})."
            ),
        }
    }
}

/// Most tokens of a conversation: as asked for, but no more than the context has, unless an attention sink makes room.
fn effective_seq_len(asked: i32, runner: &Runner) -> usize {
    let context = runner.decoder().contract().context_length;
    match usize::try_from(asked) {
        Ok(asked) if asked > context && !runner.decoder().is_unbounded() => {
            info!(
                "Warning: Requested seq_len ({asked}) exceeds compiled max_context_len ({context}) without attention \
                 sink. Clamping to {context}."
            );
            context
        }
        Ok(asked) if asked > 0 => asked,
        _ => {
            info!("Warning: Invalid seq_len ({asked}). Using compiled max_context_len ({context}).");
            context
        }
    }
}

/// Tokens of a block of the graph that reads prompts.
fn prefill_block(runner: &Runner) -> usize {
    let graphs = &runner.decoder().contract().graphs;
    let prefill = graphs.iter().find(|graph| graph.name == "prefill_forward").or(graphs.first());
    prefill.map_or(1, |graph| graph.ar.max(1))
}

fn log_prefill(tokens: usize, block: usize) {
    let blocks = tokens.div_ceil(block);
    info!("Prompt Processor: total {tokens} prompt tokens (AR-{block} * {blocks} iters)");
    info!("RSS after prompt prefill: {:.6} MiB (0 if unsupported)", peak_mebibytes());
}

/// Guesses of lookahead that came true since the runner was opened; `None` in other modes.
fn accepted(runner: &Runner) -> Option<usize> {
    runner.decoder().lookahead_stats().map(|stats| stats.accepted)
}

fn peak_mebibytes() -> f64 {
    etgenai::pipeline::memory::peak_memory_bytes().map_or(0.0, |bytes| bytes as f64 / (1 << 20) as f64)
}

/// Now, in milliseconds since the Unix epoch.
pub fn epoch_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
