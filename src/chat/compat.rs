//! The prompt strings of the upstream ExecuTorch runners, byte for byte.
//!
//! They deviate from what the models were trained on (system parts in odd places, replies never closed), and exist
//! here so that a program that moves over gets the prompts it had. Each turn is formatted by itself, with the system
//! part again, and appended to whatever the model replied before.

use super::{Message, Role};
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

const fn text_model(name: &'static str, turn: &'static [Segment]) -> UpstreamTemplate {
    UpstreamTemplate { name, starts_with_bos: true, default_system: None, turn }
}

const fn multimodal(name: &'static str, turn: &'static [Segment]) -> UpstreamTemplate {
    UpstreamTemplate { name, starts_with_bos: false, default_system: None, turn }
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
    text_model("llama2", &[Prompt]),
    text_model(
        "llama3",
        &[
            WhenSystem(&[Literal("<|start_header_id|>system<|end_header_id|>\n\n"), System, Literal("<|eot_id|>")]),
            Literal("<|start_header_id|>user<|end_header_id|>\n\n"),
            Prompt,
            Literal("<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"),
        ],
    ),
    text_model("gemma", GEMMA),
    text_model("gemma2", &[Literal("<start_of_turn>user\n"), Prompt, Literal("<end_of_turn>\n<start_of_turn>model\n")]),
    text_model("gemma3", GEMMA),
    text_model(
        "gemma4",
        &[
            Literal("<bos>"),
            WhenSystem(&[Literal("<|turn>system\n"), System, Literal("<turn|>\n")]),
            Literal("<|turn>user\n"),
            Prompt,
            Literal("<turn|>\n<|turn>model\n"),
        ],
    ),
    text_model("granite", GRANITE_TURN),
    text_model(
        "phi_4_mini",
        &[
            WhenSystem(&[Literal("<|system|>"), System, Literal("<|end|>")]),
            Literal("<|user|>"),
            Prompt,
            Literal("<|end|><|assistant|>"),
        ],
    ),
    text_model("qwen2_5", &[Prompt]),
    text_model(
        "qwen3",
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
        &[
            WhenSystem(&[Literal("<|im_start|>system\n"), System, Literal("<|im_end|>\n")]),
            Literal("<|im_start|>user\n"),
            Prompt,
            Literal("<|im_end|>\n<|im_start|>assistant\n\n"),
        ],
    ),
    text_model(
        "smollm3",
        &[
            WhenSystem(&[Literal("<|im_start|>system\n"), System, Literal("\n\n")]),
            Literal("<|im_start|>user\n"),
            Prompt,
            Literal("<|im_end|>\n<|im_start|>assistant\n"),
        ],
    ),
    text_model("codegen", &[Prompt]),
    text_model(
        "glm",
        &[Literal("<|user|>\n"), Prompt, WhenSystem(&[Literal("<|system|>\n"), System]), Literal("<|assistant|>\n")],
    ),
    multimodal(
        "smolvlm",
        &[
            WhenSystem(&[Literal("<|start_header_id|>system<|end_header_id|>\n\n"), System, Literal("<|eot_id|>")]),
            Literal("<|im_start|>User:"),
            Prompt,
            Literal("<end_of_utterance>\nAssistant:"),
        ],
    ),
    multimodal(
        "internvl3",
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
    pub(super) fn render(&self, messages: &[Message]) -> String {
        let mut system = self.default_system.unwrap_or_default().to_string();
        let mut out = String::new();
        for message in messages {
            match message.role {
                Role::System => system = message.joined_text(),
                Role::User | Role::Tool => write(self.turn, &system, &message.joined_text(), &mut out),
                Role::Assistant => out.push_str(&message.joined_text()),
            }
        }
        out
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
            assert_eq!(template.render(&[Message::user("P")]), alone, "{name}");
            assert_eq!(template.render(&[Message::system("S"), Message::user("P")]), with_system, "{name}");
        }
    }

    #[test]
    fn each_turn_repeats_the_system_part_and_closes_nothing() {
        let template = UpstreamTemplate::find("upstream:phi_4_mini").unwrap();
        let chat = [Message::system("S"), Message::user("1"), Message::assistant("R"), Message::user("2")];
        assert_eq!(
            template.render(&chat),
            "<|system|>S<|end|><|user|>1<|end|><|assistant|>R<|system|>S<|end|><|user|>2<|end|><|assistant|>"
        );
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = UpstreamTemplate::find("upstream:gpt5").unwrap_err().to_string();
        assert!(error.contains("\"gpt5\"") && error.contains("smollm2_135m"), "{error}");
    }
}
