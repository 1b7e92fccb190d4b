//! Conversations to token ids: what a person writes never becomes a control token, and what the model sampled stays
//! exactly what it sampled.

use super::escape::{ControlTexts, Marks};
use super::{ChatTemplate, EncodeOptions, ImageTexts, Message, Part, RenderOptions, Role, Tokenizer};
use crate::{Error, Result};

/// The ids behind an assistant message that the model itself produced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampledReply {
    /// Index of the assistant message it is the content of.
    pub message_index: usize,
    /// The sampled ids, without the token that ended the reply.
    pub ids: Vec<u32>,
}

/// A conversation ready for prefill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids of the whole conversation.
    pub ids: Vec<u32>,
    /// The same as text, as the template rendered it: a picture is its placeholder.
    pub text: String,
    /// Indices into `ids` of the rows of pictures and sound, in the order of the conversation.
    pub image_rows: Vec<usize>,
}

/// Tokenizer and chat template of one model.
///
/// Where no message spells a control token, the ids are exactly those of Hugging Face's `apply_chat_template`:
/// begin-of-text tokens come from the template alone. Without a template (base models) a prompt is the plain text of
/// the messages, with a begin-of-text token if the model uses one.
#[derive(Debug)]
pub struct PromptEncoder {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// What no message may spell.
    controls: ControlTexts,
    /// What no reply may spell: less, because templates look for `</think>` and the like in replies.
    reply_controls: ControlTexts,
    /// White space that the template writes in front of a reply, but not at the end of a prompt (SmolVLM: `Assistant: hi`
    /// after `Assistant:`). The model samples it as a part of its reply.
    seam: String,
}

/// A conversation whose contents carry marks.
struct Escaped {
    messages: Vec<Message>,
    marks: Marks,
}

/// A stretch of the rendered conversation.
enum Segment<'a> {
    Text(String),
    Sampled(&'a [u32]),
}

impl PromptEncoder {
    /// Joins the two; the added tokens that `template` writes become control tokens.
    ///
    /// # Errors
    /// As [`Tokenizer::with_template`].
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Result<Self> {
        let source = template.as_ref().map(ChatTemplate::source).unwrap_or_default();
        let tokenizer = tokenizer.with_template(&source)?;
        let unread = tokenizer.control_texts(true).filter(|token| !looks_for(&source, token));
        Ok(PromptEncoder {
            controls: ControlTexts::new(tokenizer.control_texts(false)),
            reply_controls: ControlTexts::new(unread),
            seam: template.as_ref().and_then(seam_of).unwrap_or_default(),
            tokenizer,
            template,
        })
    }

    /// The tokenizer, aware of the template's control tokens.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The template, if the model has one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// The conversation as text.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        let escaped = self.escape(messages.to_vec(), "", options)?;
        Ok(escaped.marks.restore(&self.write(&escaped.messages, "", options)?))
    }

    /// The conversation as token ids. [`encode_with_images`](Self::encode_with_images) without pictures and sound.
    ///
    /// # Errors
    /// As there.
    pub fn encode(&self, messages: &[Message], replies: &[SampledReply], options: &RenderOptions) -> Result<Prompt> {
        self.encode_with_images(messages, replies, &ImageTexts::NONE, options)
    }

    /// The conversation as token ids. The placeholder of each picture or sound is replaced by its text in `images`.
    ///
    /// `replies` are assistant messages that the model sampled, in order. Their text is what their ids decode to,
    /// whatever the message holds, and the ids appear unchanged in the prompt wherever the template shows a reply
    /// unmodified. Where it does not (it trims, or drops the thinking of earlier turns) its version is encoded.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a reply that is not of an assistant message or out of order, for another number of
    /// pictures than texts, or of placeholders than pictures; otherwise as [`ChatTemplate::render`] and
    /// [`Tokenizer::encode`].
    pub fn encode_with_images(
        &self,
        messages: &[Message],
        replies: &[SampledReply],
        images: &ImageTexts<'_>,
        options: &RenderOptions,
    ) -> Result<Prompt> {
        let pictures = messages.iter().flat_map(|message| &message.parts).filter(|part| part.is_media()).count();
        if pictures != images.texts.len() {
            let texts = images.texts.len();
            return Err(Error::invalid(format!(
                "the conversation has {pictures} pictures and audio clips, texts are known for {texts}"
            )));
        }
        let messages = self.with_sampled_text(messages, replies)?;
        let mut escaped = self.escape(messages, images.placeholder, options)?;
        if images.in_text {
            // After the marks were set, so that it is the control token which no message can spell.
            escaped.messages.iter_mut().for_each(|message| spell_media(message, images.placeholder));
        }
        let rendered = self.write(&escaped.messages, images.placeholder, options)?;
        let mut segments = self.splice(&mut escaped, &rendered, replies, images.placeholder, options)?;
        if pictures > 0 {
            self.show_images(&mut segments, images)?;
        }
        let start = self.start_ids();
        let (mut ids, mut image_rows) = (Vec::new(), Vec::new());
        for segment in segments {
            match segment {
                Segment::Sampled(sampled) => ids.extend_from_slice(sampled),
                Segment::Text(text) => {
                    let written = self.encode_text(&text, ids.is_empty(), &escaped.marks)?;
                    let is_row = |&(_, &id): &(usize, &u32)| pictures > 0 && id == images.row_id;
                    image_rows.extend(written.iter().enumerate().filter(is_row).map(|(at, _)| ids.len() + at));
                    ids.extend(written);
                }
            }
        }
        if !ids.starts_with(start) {
            ids.splice(0..0, start.iter().copied());
            image_rows.iter_mut().for_each(|at| *at += start.len());
        }
        Ok(Prompt { ids, text: escaped.marks.restore(&rendered), image_rows })
    }

    /// Replaces each placeholder by the text of its picture or sound. All placeholders in these segments are the template's own:
    /// those in contents carry marks.
    fn show_images(&self, segments: &mut [Segment<'_>], images: &ImageTexts<'_>) -> Result<()> {
        let placeholder = self.placeholder(images.placeholder);
        let mut texts = images.texts.iter();
        let mut written = 0;
        for segment in segments {
            let Segment::Text(text) = segment else { continue };
            let mut shown = String::with_capacity(text.len());
            for (piece, part) in text.split(placeholder).enumerate() {
                if piece > 0 {
                    written += 1;
                    shown.push_str(texts.next().map_or("", String::as_str));
                }
                shown.push_str(part);
            }
            *text = shown;
        }
        let pictures = images.texts.len();
        if written == pictures {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the chat template wrote {written} {placeholder} placeholders for {pictures} pictures or audio clips: use a \
             template of this model that shows them where they stand in these messages"
        )))
    }

    /// What stands for a picture or sound in rendered text.
    fn placeholder<'p>(&self, of_the_model: &'p str) -> &'p str {
        self.template.as_ref().and_then(ChatTemplate::image_placeholder).unwrap_or(of_the_model)
    }

    fn with_sampled_text(&self, messages: &[Message], replies: &[SampledReply]) -> Result<Vec<Message>> {
        let mut messages = messages.to_vec();
        let mut last = None;
        for reply in replies {
            let index = reply.message_index;
            let count = messages.len();
            let Some(message) = messages.get_mut(index).filter(|message| message.role == Role::Assistant) else {
                return Err(Error::invalid(format!(
                    "sampled reply for message {index}: not an assistant message ({count} messages)"
                )));
            };
            if last.is_some_and(|last| last >= index) {
                return Err(Error::invalid(format!("sampled reply for message {index}: replies must be in order")));
            }
            last = Some(index);
            let text = self.tokenizer.decode(&reply.ids, true);
            *message = Message::assistant(text.strip_prefix(self.seam.as_str()).unwrap_or(&text));
        }
        Ok(messages)
    }

    fn escape(&self, messages: Vec<Message>, placeholder: &str, options: &RenderOptions) -> Result<Escaped> {
        let source = self.template.as_ref().map(ChatTemplate::source).unwrap_or_default();
        let extra = serde_json::to_string(&options.extra).unwrap_or_default();
        let contents: Vec<String> = messages.iter().map(Message::joined_text).collect();
        let texts = contents.iter().map(String::as_str).chain([source.as_str(), extra.as_str(), placeholder]);
        let mut marks = Marks::absent_from(texts)?;
        let escaped = messages.iter().map(|message| self.escape_message(message, &mut marks)).collect::<Result<_>>()?;
        Ok(Escaped { messages: escaped, marks })
    }

    /// The message with marks in its texts. Each text by itself: marks at its borders keep it from completing a control
    /// token with whatever will stand beside it.
    fn escape_message(&self, message: &Message, marks: &mut Marks) -> Result<Message> {
        let controls = if message.role == Role::Assistant { &self.reply_controls } else { &self.controls };
        let mut message = message.clone();
        for part in &mut message.parts {
            if let Part::Text(text) = part {
                let escaped = controls.escape(text, marks)?;
                *text = self.break_other_spellings(message.role, escaped, marks)?;
            }
        }
        Ok(message)
    }

    /// A tokenizer that normalises before it looks for control tokens finds them in other spellings too (full-width
    /// letters, say): those are found by encoding, and broken as well.
    fn break_other_spellings(&self, role: Role, content: String, marks: &Marks) -> Result<String> {
        if role == Role::Assistant || !self.tokenizer.has_normalized_control() {
            return Ok(content);
        }
        let mut content = content;
        for token in self.tokenizer.encode_spanned(&content, false)?.iter().rev() {
            if let Some(covered) = content.get(token.span.clone()).filter(|_| self.tokenizer.is_control(token.id)) {
                let first = covered.chars().next().map_or(0, char::len_utf8);
                content.insert(token.span.start + first, marks.mark);
            }
        }
        Ok(content)
    }

    fn write(&self, messages: &[Message], placeholder: &str, options: &RenderOptions) -> Result<String> {
        if let Some(template) = &self.template {
            return template.render(messages, options);
        }
        let written = messages.iter().flat_map(|message| &message.parts).map(|part| match part {
            Part::Text(text) => text.as_str(),
            Part::Image(_) | Part::Audio(_) | Part::Embedding(_) => placeholder,
        });
        Ok(written.collect())
    }

    /// Cuts the rendered conversation where sampled ids replace text.
    fn splice<'a>(
        &self,
        escaped: &mut Escaped,
        rendered: &str,
        replies: &'a [SampledReply],
        placeholder: &str,
        options: &RenderOptions,
    ) -> Result<Vec<Segment<'a>>> {
        let all: Vec<&SampledReply> = replies.iter().collect();
        if let Some(segments) = self.try_splice(escaped, rendered, &all, placeholder, options)? {
            return Ok(segments);
        }
        // The template modifies some reply. The others are still spliced.
        let mut unmodified = Vec::new();
        for reply in replies {
            if self.try_splice(escaped, rendered, &[reply], placeholder, options)?.is_some() {
                unmodified.push(reply);
            }
        }
        let segments = self.try_splice(escaped, rendered, &unmodified, placeholder, options)?;
        Ok(segments.unwrap_or_else(|| vec![Segment::Text(rendered.to_string())]))
    }

    /// Renders with a pair of private characters around each of these replies. `None` unless that changes nothing
    /// else and every reply comes out whole, once and in order.
    fn try_splice<'a>(
        &self,
        escaped: &mut Escaped,
        rendered: &str,
        replies: &[&'a SampledReply],
        placeholder: &str,
        options: &RenderOptions,
    ) -> Result<Option<Vec<Segment<'a>>>> {
        let mut messages = escaped.messages.clone();
        let mut fences = Vec::new();
        for reply in replies {
            let (open, close) = (escaped.marks.fresh()?, escaped.marks.fresh()?);
            let content = messages[reply.message_index].joined_text();
            let fenced = format!("{open}{content}{close}");
            messages[reply.message_index] = Message::assistant(&fenced);
            fences.push((open, close, fenced));
        }
        // A template may refuse a reply that begins differently; then it does not show it unmodified.
        let Ok(marked) = self.write(&messages, placeholder, options) else { return Ok(None) };
        let is_fence = |character| fences.iter().any(|&(open, close, _)| character == open || character == close);
        if marked.chars().filter(|&character| !is_fence(character)).ne(rendered.chars()) {
            return Ok(None);
        }
        let mut segments = Vec::new();
        let mut rest = marked.as_str();
        for (reply, (_, _, fenced)) in replies.iter().zip(&fences) {
            let Some((before, after)) = rest.split_once(fenced.as_str()) else { return Ok(None) };
            // The ids begin with the seam, which the template has written already.
            let brings_seam = self.tokenizer.decode(&reply.ids, true).starts_with(self.seam.as_str());
            let before = if brings_seam { before.strip_suffix(self.seam.as_str()) } else { Some(before) };
            let Some(before) = before else { return Ok(None) };
            segments.push(Segment::Text(before.to_string()));
            segments.push(Segment::Sampled(&reply.ids));
            rest = after;
        }
        segments.push(Segment::Text(rest.to_string()));
        let is_clean = |segment: &Segment| !matches!(segment, Segment::Text(text) if text.chars().any(is_fence));
        Ok(segments.iter().all(is_clean).then_some(segments))
    }

    /// Encodes rendered text. Control tokens in it are the template's own; the stretches between them that carry
    /// marks are restored and encoded as plain text.
    fn encode_text(&self, text: &str, at_start: bool, marks: &Marks) -> Result<Vec<u32>> {
        let tokens = self.tokenizer.encode_spanned(text, at_start)?;
        if !marks.any_in(text) {
            return Ok(tokens.into_iter().map(|token| token.id).collect());
        }
        let mut ids = Vec::new();
        let mut from = 0;
        for stretch in tokens.split_inclusive(|token| self.tokenizer.is_control(token.id)) {
            let control = stretch.last().filter(|token| self.tokenizer.is_control(token.id));
            let to = control.map_or(text.len(), |token| token.span.start);
            let between = text.get(from..to).ok_or_else(|| {
                Error::internal(format!("tokenizer offsets {from}..{to} are not within the rendered text"))
            })?;
            if marks.any_in(between) {
                let start = at_start && from == 0;
                ids.extend(self.tokenizer.encode_plain(&marks.restore(between), start)?);
                ids.extend(control.map(|token| token.id));
            } else {
                ids.extend(stretch.iter().map(|token| token.id));
            }
            from = control.map_or(text.len(), |token| token.span.end);
        }
        if let Some(rest) = text.get(from..).filter(|rest| !rest.is_empty()) {
            ids.extend(self.tokenizer.encode_plain(&marks.restore(rest), at_start && from == 0)?);
        }
        Ok(ids)
    }

    fn start_ids(&self) -> &[u32] {
        match &self.template {
            Some(template) if !template.starts_with_bos() => &[],
            _ => self.tokenizer.start_ids(),
        }
    }

    /// Encodes text that is no conversation, e.g. for perplexity: no control tokens, begin-of-text as asked.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_plain(&self, text: &str, add_bos: bool) -> Result<Vec<u32>> {
        self.tokenizer.encode(text, EncodeOptions { add_bos, parse_special: false })
    }
}

/// Writes `placeholder` where pictures or sound stand in a message.
fn spell_media(message: &mut Message, placeholder: &str) {
    for part in message.parts.iter_mut().filter(|part| part.is_media()) {
        *part = Part::Text(placeholder.into());
    }
}

/// The white space between the end of a prompt and a reply in the history, if that is all there is between them.
fn seam_of(template: &ChatTemplate) -> Option<String> {
    const PROBE: &str = "etgenai";
    let prompt = template.render(&[Message::user("?")], &RenderOptions::default()).ok()?;
    let history = [Message::user("?"), Message::assistant(PROBE)];
    let history =
        template.render(&history, &RenderOptions { add_generation_prompt: false, ..Default::default() }).ok()?;
    let (before, _) = history.split_once(PROBE)?;
    let seam = before.strip_prefix(prompt.as_str())?;
    seam.chars().all(char::is_whitespace).then(|| seam.to_string())
}

/// Whether a template looks for a token within contents: `'</think>' in content`, `content.split('</think>')`.
fn looks_for(template: &str, token: &str) -> bool {
    const METHODS: [&str; 7] = ["split", "startswith", "endswith", "replace", "partition", "find", "strip"];
    ["'", "\""].iter().any(|quote| {
        let literal = format!("{quote}{token}{quote}");
        template.match_indices(&literal).any(|(at, _)| {
            let after = template[at + literal.len()..].trim_start();
            let is_searched = after.starts_with("in ") || after.starts_with("not in ");
            let before = template[..at].trim_end();
            let is_argument =
                before.strip_suffix('(').is_some_and(|call| METHODS.iter().any(|name| call.ends_with(name)));
            is_searched || is_argument
        })
    })
}
