//! The special tokens a checkpoint declares beside its tokenizer.

use serde::{Deserialize, Serialize};

/// Special tokens of a model, as collected from its configuration files.
///
/// `tokenizer.json` alone does not say which token begins a text or ends a turn, so these travel with it from the
/// checkpoint into the manifest of a compiled model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpecialTokens {
    /// Text of the begin-of-text token, the template variable `bos_token`.
    pub bos_token: Option<String>,
    /// Text of the end token, the template variable `eos_token`.
    pub eos_token: Option<String>,
    /// Text of the unknown token.
    pub unk_token: Option<String>,
    /// Text of the padding token.
    pub pad_token: Option<String>,
    /// Whether plain text starts with the begin-of-text token. `None`: as the tokenizer's post-processor says.
    pub add_bos: Option<bool>,
    /// Id of the begin-of-text token.
    pub bos_id: Option<u32>,
    /// Every id that ends a reply: the union of all sources, sorted, each once.
    pub eos_ids: Vec<u32>,
}
