//! The prompt strings of the upstream ExecuTorch runners, byte for byte.
//!
//! They deviate from what the models were trained on (system parts in odd places, replies never closed), and exist
//! here so that a program that moves over gets the prompts it had. Each turn is formatted by itself, with the system
//! part again, and appended to whatever the model replied before.

use super::{Message, Part, Role};
use crate::{Error, Result};

use Segment::{Literal, Prompt, System, WhenSystem};

/// Prefix of template names of this set.
pub(super) const PREFIX: &str = "upstream:";

/// The turn format of one model family.
#[derive(Debug)]
pub(super) struct UpstreamTemplate {
    /// Upstream's `decoder_model_version`.
    pub name: &'static str,
    /// Text runners begin a conversation with the tokenizer's begin-of-text token, multimodal ones do not.
    pub starts_with_bos: bool,
    /// Where a picture stands, in multimodal templates that take pictures.
    pub image_placeholder: Option<&'static str>,
    /// Where sound stands, in multimodal templates that take sound. Prompts for a runner never show it: rows stand where
    /// the model's own audio token is written, which no message can spell.
    pub audio_placeholder: Option<&'static str>,
    /// What upstream ends replies at, beyond the tokenizer's own end token (contract 5.6).
    pub end_tokens: &'static [&'static str],
    default_system: Option<&'static str>,
    turn: &'static [Segment],
}

#[derive(Debug)]
enum Segment {
    Literal(&'static str),
    System,
    Prompt,
    /// Only with a system prompt that is not empty.
    WhenSystem(&'static [Segment]),
}

type Texts = &'static [&'static str];

const fn text_model(name: &'static str, end_tokens: Texts, turn: &'static [Segment]) -> UpstreamTemplate {
    UpstreamTemplate {
        name,
        starts_with_bos: true,
        image_placeholder: None,
        audio_placeholder: None,
        end_tokens,
        default_system: None,
        turn,
    }
}

const fn vision_model(
    name: &'static str,
    placeholder: &'static str,
    end_tokens: Texts,
    turn: &'static [Segment],
) -> UpstreamTemplate {
    UpstreamTemplate {
        image_placeholder: Some(placeholder),
        starts_with_bos: false,
        ..text_model(name, end_tokens, turn)
    }
}

const GEMMA: &[Segment] = &[
    Literal("<start_of_turn>user\n"),
    Prompt,
    Literal("<end_of_turn>\n<start_of_turn>model\n"),
    WhenSystem(&[System, Literal("<end_of_turn>\n")]),
];

const GRANITE_TURN: &[Segment] = &[
    WhenSystem(&[Literal("<|start_of_role|>system<|end_of_role|>"), System, Literal("<|end_of_text|>\n")]),
    Literal("<|start_of_role|>user<|end_of_role|>"),
    Prompt,
    Literal("<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"),
];

static TEMPLATES: &[UpstreamTemplate] = &[
    text_model("llama2", &[], &[Prompt]),
    text_model(
        "llama3",
        &["<|eot_id|>"],
        &[
            WhenSystem(&[Literal("<|start_header_id|>system<|end_header_id|>\n\n"), System, Literal("<|eot_id|>")]),
            Literal("<|start_header_id|>user<|end_header_id|>\n\n"),
            Prompt,
            Literal("<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"),
        ],
    ),
    text_model("gemma", &["<end_of_turn>"], GEMMA),
    text_model(
        "gemma2",
        &["<end_of_turn>"],
        &[Literal("<start_of_turn>user\n"), Prompt, Literal("<end_of_turn>\n<start_of_turn>model\n")],
    ),
    text_model("gemma3", &["<end_of_turn>"], GEMMA),
    text_model(
        "gemma4",
        &["<turn|>"],
        &[
            Literal("<bos>"),
            WhenSystem(&[Literal("<|turn>system\n"), System, Literal("<turn|>\n")]),
            Literal("<|turn>user\n"),
            Prompt,
            Literal("<turn|>\n<|turn>model\n"),
        ],
    ),
    text_model("granite", &[], GRANITE_TURN),
    text_model(
        "phi_4_mini",
        &["<|end|>"],
        &[
            WhenSystem(&[Literal("<|system|>"), System, Literal("<|end|>")]),
            Literal("<|user|>"),
            Prompt,
            Literal("<|end|><|assistant|>"),
        ],
    ),
    text_model("qwen2_5", &[], &[Prompt]),
    text_model(
        "qwen3",
        &["<|im_end|>"],
        &[
            Literal("<|im_start|>user\n"),
            Prompt,
            Literal("<|im_end|>\n"),
            WhenSystem(&[Literal("<|im_start|>system\n"), System, Literal("<|im_end|>\n")]),
            Literal("<|im_start|>assistant"),
        ],
    ),
    text_model(
        "smollm2_135m",
        &["<|im_end|>"],
        &[
            WhenSystem(&[Literal("<|im_start|>system\n"), System, Literal("<|im_end|>\n")]),
            Literal("<|im_start|>user\n"),
            Prompt,
            Literal("<|im_end|>\n<|im_start|>assistant\n\n"),
        ],
    ),
    text_model(
        "smollm3",
        &["<|im_end|>"],
        &[
            WhenSystem(&[Literal("<|im_start|>system\n"), System, Literal("\n\n")]),
            Literal("<|im_start|>user\n"),
            Prompt,
            Literal("<|im_end|>\n<|im_start|>assistant\n"),
        ],
    ),
    text_model("codegen", &["<|endoftext|>"], &[Prompt]),
    text_model(
        "glm",
        &["<|user|>"],
        &[Literal("<|user|>\n"), Prompt, WhenSystem(&[Literal("<|system|>\n"), System]), Literal("<|assistant|>\n")],
    ),
    vision_model(
        "smolvlm",
        "<image>",
        &["<end_of_utterance>"],
        &[
            WhenSystem(&[Literal("<|start_header_id|>system<|end_header_id|>\n\n"), System, Literal("<|eot_id|>")]),
            Literal("<|im_start|>User:"),
            Prompt,
            Literal("<end_of_utterance>\nAssistant:"),
        ],
    ),
    vision_model(
        "internvl3",
        "<IMG_CONTEXT>",
        &["<|im_end|>"],
        &[
            WhenSystem(&[Literal("<|im_start|>system<|im_end|>\n\n"), System, Literal("<|im_end|>")]),
            Literal("<|im_start|>user:\n"),
            Prompt,
            Literal("<|im_end|>assistant\n"),
        ],
    ),
    UpstreamTemplate {
        name: "granite_speech",
        starts_with_bos: false,
        image_placeholder: None,
        audio_placeholder: Some("<audio>"),
        end_tokens: &["<|end_of_text|>"],
        default_system: Some("You are Granite, developed by IBM. You are a helpful AI assistant."),
        turn: GRANITE_TURN,
    },
];

impl UpstreamTemplate {
    /// Looks a name up, with or without the prefix `upstream:`.
    ///
    /// # Errors
    /// [`Error::NotFound`] that lists the names there are.
    pub(super) fn find(name: &str) -> Result<&'static Self> {
        let wanted = name.strip_prefix(PREFIX).unwrap_or(name);
        TEMPLATES.iter().find(|template| template.name == wanted).ok_or_else(|| {
            let names: Vec<&str> = TEMPLATES.iter().map(|template| template.name).collect();
            Error::NotFound(format!("no upstream chat template {wanted:?}; there are: {}", names.join(", ")))
        })
    }

    /// The whole conversation: every user message as a turn, every reply as it is.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for pictures or sound where upstream's format takes none.
    pub(super) fn render(&self, messages: &[Message]) -> Result<String> {
        let mut system = self.default_system.unwrap_or_default().to_string();
        let mut out = String::new();
        for message in messages {
            match message.role {
                Role::System => system = self.content(message)?,
                Role::User | Role::Tool => write(self.turn, &system, &self.content(message)?, &mut out),
                Role::Assistant => out.push_str(&self.content(message)?),
            }
        }
        Ok(out)
    }

    fn content(&self, message: &Message) -> Result<String> {
        let refused = |what: &str| Error::Unsupported(format!("the template upstream:{} takes no {what}", self.name));
        let written = message.parts.iter().map(|part| match part {
            Part::Text(text) => Ok(text.as_str()),
            Part::Image(_) | Part::Embedding(_) => self.image_placeholder.ok_or_else(|| refused("pictures")),
            Part::Audio(_) => self.audio_placeholder.ok_or_else(|| refused("audio")),
        });
        written.collect()
    }

    /// All literal text, in which control tokens are found by name.
    pub(super) fn literals(&self) -> String {
        fn collect(segments: &[Segment], out: &mut String) {
            for segment in segments {
                match segment {
                    Literal(text) => out.push_str(text),
                    WhenSystem(inner) => collect(inner, out),
                    System | Prompt => out.push('\n'),
                }
            }
        }
        let mut out = String::new();
        collect(self.turn, &mut out);
        out
    }
}

fn write(segments: &[Segment], system: &str, prompt: &str, out: &mut String) {
    for segment in segments {
        match segment {
            Literal(text) => out.push_str(text),
            System => out.push_str(system),
            Prompt => out.push_str(prompt),
            WhenSystem(inner) if !system.is_empty() => write(inner, system, prompt, out),
            WhenSystem(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Strings as the contract lists them, with and without a system prompt.
    #[test]
    fn every_family_gives_the_upstream_string() {
        let cases = [
            ("llama2", "P", "P"),
            ("qwen2_5", "P", "P"),
            ("codegen", "P", "P"),
            (
                "llama3",
                "<|start_header_id|>user<|end_header_id|>\n\nP<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
                "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nP<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            (
                "gemma",
                "<start_of_turn>user\nP<end_of_turn>\n<start_of_turn>model\n",
                "<start_of_turn>user\nP<end_of_turn>\n<start_of_turn>model\nS<end_of_turn>\n",
            ),
            (
                "gemma3",
                "<start_of_turn>user\nP<end_of_turn>\n<start_of_turn>model\n",
                "<start_of_turn>user\nP<end_of_turn>\n<start_of_turn>model\nS<end_of_turn>\n",
            ),
            (
                "gemma2",
                "<start_of_turn>user\nP<end_of_turn>\n<start_of_turn>model\n",
                "<start_of_turn>user\nP<end_of_turn>\n<start_of_turn>model\n",
            ),
            (
                "gemma4",
                "<bos><|turn>user\nP<turn|>\n<|turn>model\n",
                "<bos><|turn>system\nS<turn|>\n<|turn>user\nP<turn|>\n<|turn>model\n",
            ),
            (
                "granite",
                "<|start_of_role|>user<|end_of_role|>P<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
                "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>P<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
            ),
            ("phi_4_mini", "<|user|>P<|end|><|assistant|>", "<|system|>S<|end|><|user|>P<|end|><|assistant|>"),
            (
                "qwen3",
                "<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant",
                "<|im_start|>user\nP<|im_end|>\n<|im_start|>system\nS<|im_end|>\n<|im_start|>assistant",
            ),
            (
                "smollm2_135m",
                "<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\n\n",
                "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\n\n",
            ),
            (
                "smollm3",
                "<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\n",
                "<|im_start|>system\nS\n\n<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\n",
            ),
            ("glm", "<|user|>\nP<|assistant|>\n", "<|user|>\nP<|system|>\nS<|assistant|>\n"),
            (
                "smolvlm",
                "<|im_start|>User:P<end_of_utterance>\nAssistant:",
                "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|im_start|>User:P<end_of_utterance>\nAssistant:",
            ),
            (
                "internvl3",
                "<|im_start|>user:\nP<|im_end|>assistant\n",
                "<|im_start|>system<|im_end|>\n\nS<|im_end|><|im_start|>user:\nP<|im_end|>assistant\n",
            ),
            (
                "granite_speech",
                "<|start_of_role|>system<|end_of_role|>You are Granite, developed by IBM. You are a helpful AI assistant.<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>P<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
                "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>P<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
            ),
        ];
        assert_eq!(cases.len(), TEMPLATES.len());
        for (name, alone, with_system) in cases {
            let template = UpstreamTemplate::find(name).unwrap();
            assert_eq!(template.render(&[Message::user("P")]).unwrap(), alone, "{name}");
            assert_eq!(template.render(&[Message::system("S"), Message::user("P")]).unwrap(), with_system, "{name}");
        }
    }

    #[test]
    fn each_turn_repeats_the_system_part_and_closes_nothing() {
        let template = UpstreamTemplate::find("upstream:phi_4_mini").unwrap();
        let chat = [Message::system("S"), Message::user("1"), Message::assistant("R"), Message::user("2")];
        assert_eq!(
            template.render(&chat).unwrap(),
            "<|system|>S<|end|><|user|>1<|end|><|assistant|>R<|system|>S<|end|><|user|>2<|end|><|assistant|>"
        );
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = UpstreamTemplate::find("upstream:gpt5").unwrap_err().to_string();
        assert!(error.contains("\"gpt5\"") && error.contains("smollm2_135m"), "{error}");
    }
}
