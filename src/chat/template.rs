//! Chat templates: the checkpoint's own Jinja, rendered as Hugging Face renders it.

use std::fmt::Write as _;
use std::io;

use chrono::format::{Item, StrftimeItems};
use chrono::{Local, NaiveDateTime};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, State, UndefinedBehavior, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value as Json, json};

use super::compat::UpstreamTemplate;
use super::tojson::tojson;
use super::{Message, Part, SpecialTokens};
use crate::{Error, Result};

/// The name errors give a template.
const NAME: &str = "chat_template.jinja";
/// Bytes a template may create for one unit of fuel, as minijinja counts; an instruction costs one unit as well.
const FUEL_UNIT_BYTES: u64 = 64;
/// Work a template may do for an empty conversation, in units of fuel.
const BASE_FUEL: u64 = 2_000_000;
/// More work for each message, and for each byte of content.
const FUEL_PER_MESSAGE: u64 = 5_000;
const FUEL_PER_BYTE: u64 = 1;
/// Most bytes a template may write beyond a multiple of what it was given.
const BASE_OUTPUT: usize = 4 << 20;
const OUTPUT_PER_BYTE: usize = 8;
/// Nested macros and loops; each level costs stack.
const MAX_RECURSION: usize = 100;

/// What a template is rendered with besides the messages.
#[derive(Debug, Clone)]
pub struct RenderOptions {
    /// End with the beginning of the reply, so that the model answers (the default).
    pub add_generation_prompt: bool,
    /// Further variables for the template, e.g. `enable_thinking`, `date_string`, `tools`, `documents`.
    pub extra: Map<String, Json>,
    /// The time `strftime_now` tells; the clock if `None`.
    pub now: Option<NaiveDateTime>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        RenderOptions { add_generation_prompt: true, extra: Map::new(), now: None }
    }
}

/// Turns a conversation into the text a model was trained on.
#[derive(Debug)]
pub struct ChatTemplate {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Jinja(Box<Jinja>),
    Upstream(&'static UpstreamTemplate),
}

#[derive(Debug)]
struct Jinja {
    environment: Environment<'static>,
    source: String,
    special: Map<String, Json>,
    content: ContentForm,
}

/// What a template expects in `message['content']` of a message of text alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentForm {
    Text,
    /// `[{"type": "text", "text": …}]`, as templates of multimodal models walk it.
    Parts,
}

impl ChatTemplate {
    /// Compiles a Jinja chat template. `special` gives `bos_token`, `eos_token`, … their values.
    ///
    /// # Errors
    /// [`Error::Format`] with the line and the reason of a syntax error.
    pub fn from_source(source: &str, special: &SpecialTokens) -> Result<Self> {
        let mut environment = hugging_face_environment()?;
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| template_error(&error))?;
        let mut jinja = Jinja {
            environment,
            source: source.to_string(),
            special: special_variables(special),
            content: ContentForm::Text,
        };
        jinja.content = jinja.expected_content();
        Ok(ChatTemplate { kind: Kind::Jinja(Box::new(jinja)) })
    }

    /// The template that reproduces the strings of upstream's runners for a `decoder_model_version`, with or without
    /// the prefix `upstream:`.
    ///
    /// # Errors
    /// [`Error::NotFound`] that lists the names.
    pub fn compat(name: &str) -> Result<Self> {
        Ok(ChatTemplate { kind: Kind::Upstream(UpstreamTemplate::find(name)?) })
    }

    /// Renders a conversation.
    ///
    /// The text may hold what looks like control tokens where a message says so: to get token ids use
    /// [`PromptEncoder`](super::PromptEncoder), which keeps them apart.
    ///
    /// # Errors
    /// [`Error::Format`] with line and reason when the template fails, refuses the conversation (`raise_exception`)
    /// or does not end.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        match &self.kind {
            Kind::Upstream(template) => template.render(messages),
            Kind::Jinja(jinja) => {
                let messages: Vec<Json> = messages.iter().map(|message| message_json(message, jinja.content)).collect();
                jinja.render(&messages, options)
            }
        }
    }

    /// Renders messages given as `transformers`' `apply_chat_template` takes them, with whatever fields the template
    /// reads (`tool_calls`, `reasoning_content`, content parts of any type).
    ///
    /// # Errors
    /// As [`render`](Self::render); [`Error::Unsupported`] for upstream's templates, which know no such fields.
    pub fn render_json(&self, messages: &[Json], options: &RenderOptions) -> Result<String> {
        match &self.kind {
            Kind::Jinja(jinja) => jinja.render(messages, options),
            Kind::Upstream(template) => {
                Err(Error::Unsupported(format!("the template upstream:{} takes text messages only", template.name)))
            }
        }
    }

    /// The template's text: its Jinja source, or the literal parts of an upstream template.
    pub fn source(&self) -> String {
        match &self.kind {
            Kind::Jinja(jinja) => jinja.source.clone(),
            Kind::Upstream(template) => template.literals(),
        }
    }

    /// What the template writes where a picture stands, if it does not follow the model's own markup.
    pub(super) fn image_placeholder(&self) -> Option<&'static str> {
        match &self.kind {
            Kind::Upstream(template) => template.image_placeholder,
            Kind::Jinja(_) => None,
        }
    }

    /// Texts of the tokens that end a reply under this template, beyond those the checkpoint declares.
    pub fn end_tokens(&self) -> &'static [&'static str] {
        match &self.kind {
            Kind::Upstream(template) => template.end_tokens,
            Kind::Jinja(_) => &[],
        }
    }

    /// Whether the tokenizer's begin-of-text token comes before the rendered text. Jinja templates write their own.
    pub(super) fn starts_with_bos(&self) -> bool {
        matches!(&self.kind, Kind::Upstream(template) if template.starts_with_bos)
    }
}

impl Jinja {
    fn render(&self, messages: &[Json], options: &RenderOptions) -> Result<String> {
        let content: usize =
            messages.iter().map(json_size).sum::<usize>() + options.extra.values().map(json_size).sum::<usize>();
        let fuel = BASE_FUEL + FUEL_PER_MESSAGE * messages.len() as u64 + FUEL_PER_BYTE * content as u64;
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let template = environment.get_template(NAME).map_err(|error| template_error(&error))?;
        let mut output = LimitedOutput { bytes: Vec::new(), limit: BASE_OUTPUT + OUTPUT_PER_BYTE * content };
        template
            .render_captured_to(self.variables(messages, options), &mut output)
            .map_err(|error| template_error(&error))?;
        String::from_utf8(output.bytes).map_err(|_| Error::internal("a template wrote text that is not UTF-8"))
    }

    fn variables(&self, messages: &[Json], options: &RenderOptions) -> Value {
        let given = [
            ("messages", messages.iter().map(to_jinja).collect::<Value>()),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            ("strftime_now", strftime_now(options.now)),
        ];
        let given = given.into_iter().map(|(name, value)| (name.to_string(), value));
        let named = self.special.iter().chain(&options.extra);
        Value::from_pairs(given.chain(named.map(|(name, value)| (name.clone(), to_jinja(value)))))
    }

    /// Finds out by trying: a template that loses plain text but shows typed parts wants parts.
    fn expected_content(&self) -> ContentForm {
        const PROBE: &str = "etgenai probe";
        let shows = |content: Json| {
            let message = json!({"role": "user", "content": content});
            self.render(&[message], &RenderOptions::default()).is_ok_and(|text| text.contains(PROBE))
        };
        let text_is_lost = !shows(json!(PROBE));
        if text_is_lost && shows(json!([{"type": "text", "text": PROBE}])) {
            ContentForm::Parts
        } else {
            ContentForm::Text
        }
    }
}

/// Jinja as `transformers` sets it up.
fn hugging_face_environment() -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| template_error(&error))?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(python_method);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_recursion_limit(MAX_RECURSION);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise_exception);
    Ok(environment)
}

/// Methods of Python's own types. `str.format` asks for any width it likes, so that is paid for first.
fn python_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, minijinja::Error> {
    if let (Some(format), "format") = (value.as_str(), method) {
        let numbers = format.split(|character: char| !character.is_ascii_digit()).filter(|digits| !digits.is_empty());
        let widths = numbers.map(|digits| digits.parse().unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
        state.consume_fuel(widths / FUEL_UNIT_BYTES)?;
    }
    unknown_method_callback(state, value, method, args)
}

fn raise_exception(message: String) -> Result<String, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(fixed: Option<NaiveDateTime>) -> Value {
    Value::from_function(move |format: &str| -> Result<String, minijinja::Error> {
        let invalid =
            || minijinja::Error::new(ErrorKind::InvalidOperation, format!("strftime_now: bad format {format:?}"));
        if StrftimeItems::new(format).any(|item| item == Item::Error) {
            return Err(invalid());
        }
        let now = fixed.unwrap_or_else(|| Local::now().naive_local());
        let mut text = String::new();
        // Codes that need a time zone fail while writing.
        write!(text, "{}", now.format(format)).map_err(|_| invalid())?;
        Ok(text)
    })
}

fn special_variables(special: &SpecialTokens) -> Map<String, Json> {
    let named = [
        ("bos_token", &special.bos_token),
        ("eos_token", &special.eos_token),
        ("unk_token", &special.unk_token),
        ("pad_token", &special.pad_token),
    ];
    let set = named.into_iter().filter_map(|(name, text)| Some((name.to_string(), Json::from(text.clone()?))));
    set.collect()
}

fn message_json(message: &Message, form: ContentForm) -> Json {
    let content = if form == ContentForm::Parts || message.has_media() {
        typed_parts(message).into()
    } else {
        Json::from(message.joined_text())
    };
    json!({"role": message.role.as_str(), "content": content})
}

/// `{"type": "text", …}`, `{"type": "image"}` and `{"type": "audio"}` in order.
fn typed_parts(message: &Message) -> Vec<Json> {
    let typed = message.parts.iter().map(|part| match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Image(_) | Part::Embedding(_) => json!({"type": "image"}),
        Part::Audio(_) => json!({"type": "audio"}),
    });
    typed.collect()
}

fn to_jinja(value: &Json) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(to_jinja).collect(),
        Json::Object(fields) => Value::from_pairs(fields.iter().map(|(name, value)| (name.clone(), to_jinja(value)))),
    }
}

fn json_size(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(json_size).sum(),
        Json::Object(fields) => fields.iter().map(|(name, value)| name.len() + json_size(value)).sum(),
        _ => 8,
    }
}

/// `{% generation %}` only marks the model's own tokens for training: it becomes a block that changes nothing.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        let Some(length) = tag.find("%}") else { break };
        let (inside, after) = (&tag[2..length], &tag[length..]);
        out.push_str(before);
        out.push_str("{%");
        let name = inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match name {
            "generation" => out.push_str(&inside.replace(name, "if true")),
            "endgeneration" => out.push_str(&inside.replace(name, "endif")),
            _ => out.push_str(inside),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Collects output up to a limit, so that a template cannot fill the memory.
struct LimitedOutput {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for LimitedOutput {
    fn write(&mut self, chunk: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + chunk.len() > self.limit {
            return Err(io::Error::other(format!("writes more than {} bytes", self.limit)));
        }
        self.bytes.extend_from_slice(chunk);
        Ok(chunk.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn template_error(error: &minijinja::Error) -> Error {
    let line = error.line().map_or("template".to_string(), |line| format!("line {line}"));
    let mut reason = match error.kind() {
        ErrorKind::OutOfFuel => "does too much work for this conversation (an endless loop?)".to_string(),
        kind => error.detail().map_or_else(|| kind.to_string(), str::to_string),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let _ = write!(reason, ": {inner}");
        cause = inner.source();
    }
    Error::format(NAME, line, reason)
}
