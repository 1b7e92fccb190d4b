//! What the files beside a vocabulary say: special tokens and the chat template.

use super::config_tokens::{add_eos_ids, token_ids, token_text};
use crate::chat::SpecialTokens;
use crate::error::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::Path;

/// The parts of `tokenizer.json` needed to resolve special tokens. The vocabulary is looked at only when it must be:
/// it can have hundreds of thousands of entries.
#[derive(Deserialize, Default)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    post_processor: Value,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

/// The configuration files of a model, as far as they are there.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Configs<'a> {
    /// `config.json`.
    pub(crate) model: Option<&'a Map<String, Value>>,
    /// `generation_config.json`.
    pub(crate) generation: Option<&'a Map<String, Value>>,
    /// `tokenizer_config.json`.
    pub(crate) tokenizer: Option<&'a Map<String, Value>>,
    /// `special_tokens_map.json`, asked where `tokenizer_config.json` is silent.
    pub(crate) special_tokens_map: Option<&'a Map<String, Value>>,
}

/// Collects the special tokens of a model. `json` is its `tokenizer.json`, empty if it has none: a folder of weights
/// alone is fine until its tokenizer is asked for.
///
/// # Errors
/// [`Error::Format`], with `path`, if `json` is malformed.
pub(crate) fn special_tokens(path: &Path, json: &[u8], configs: Configs<'_>) -> Result<SpecialTokens> {
    let tokenizer: TokenizerJson = match json.is_empty() {
        true => TokenizerJson::default(),
        false => serde_json::from_slice(json).map_err(|e| Error::format(path, "tokenizer", e.to_string()))?,
    };
    let id_of = |text: &str| {
        let added = tokenizer.added_tokens.iter().find(|token| token.content == text);
        added.map(|token| token.id).or_else(|| vocabulary_id(json, text))
    };
    let text_of = |id: u32| {
        let added = tokenizer.added_tokens.iter().find(|token| token.id == id);
        added.map(|token| token.content.clone())
    };

    // Multimodal checkpoints keep the decoder's ids one level down.
    let text_config = configs.model.and_then(|config| config.get("text_config")).and_then(Value::as_object);
    let with_ids = [configs.model, text_config, configs.generation];
    let with_texts = [configs.tokenizer, configs.special_tokens_map];
    let first_id = |key| with_ids.iter().flatten().flat_map(|c| token_ids(c, key)).next();
    let text = |token_key, id_key| {
        let named = with_texts.iter().flatten().find_map(|c| token_text(c, token_key));
        named.or_else(|| first_id(id_key).and_then(text_of))
    };

    let mut special = SpecialTokens {
        bos_token: text("bos_token", "bos_token_id"),
        eos_token: text("eos_token", "eos_token_id"),
        unk_token: text("unk_token", "unk_token_id"),
        pad_token: text("pad_token", "pad_token_id"),
        ..SpecialTokens::default()
    };
    special.bos_id = special.bos_token.as_deref().and_then(id_of).or_else(|| first_id("bos_token_id"));
    add_eos_ids(&mut special, with_ids.iter().flatten().flat_map(|c| token_ids(c, "eos_token_id")));
    let eos_id = special.eos_token.as_deref().and_then(id_of);
    add_eos_ids(&mut special, eos_id);
    special.add_bos = configs
        .tokenizer
        .and_then(|c| c.get("add_bos_token"))
        .and_then(Value::as_bool)
        .or_else(|| (!json.is_empty()).then(|| adds_token_in_front(&tokenizer.post_processor)));
    Ok(special)
}

/// The id of a vocabulary entry of a BPE, WordPiece or WordLevel `tokenizer.json`.
fn vocabulary_id(tokenizer_json: &[u8], text: &str) -> Option<u32> {
    #[derive(Deserialize)]
    struct File<'a> {
        #[serde(borrow)]
        model: Model<'a>,
    }
    #[derive(Deserialize)]
    struct Model<'a> {
        #[serde(borrow)]
        vocab: HashMap<std::borrow::Cow<'a, str>, u32>,
    }
    let file: File = serde_json::from_slice(tokenizer_json).ok()?;
    file.model.vocab.get(text).copied()
}

/// Whether a post-processor puts a special token in front of a single sequence.
fn adds_token_in_front(post_processor: &Value) -> bool {
    match post_processor.get("type").and_then(Value::as_str) {
        Some("TemplateProcessing") => post_processor
            .get("single")
            .and_then(|pieces| pieces.get(0))
            .is_some_and(|first| first.get("SpecialToken").is_some()),
        Some("Sequence") => post_processor
            .get("processors")
            .and_then(Value::as_array)
            .is_some_and(|list| list.iter().any(adds_token_in_front)),
        _ => false,
    }
}

/// The JSON object in a file, or `None` if there is no such file.
///
/// # Errors
/// [`Error::Io`], [`Error::Format`] if it is not a JSON object.
pub(crate) fn read_json_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(path, e)),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|e| Error::format(path, "JSON", e.to_string()))
}

/// The chat template: `chat_template.jinja`, else the one in `tokenizer_config.json`, else `chat_template.json`.
pub(crate) fn chat_template(folder: &Path, tokenizer_config: Option<&Map<String, Value>>) -> Result<Option<String>> {
    let path = folder.join("chat_template.jinja");
    match std::fs::read_to_string(&path) {
        Ok(source) => return Ok(Some(source)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(Error::io(&path, e)),
    }
    let in_tokenizer_config = match tokenizer_config.and_then(|c| c.get("chat_template")) {
        Some(value) => template_source(&folder.join("tokenizer_config.json"), value)?,
        None => None,
    };
    if in_tokenizer_config.is_some() {
        return Ok(in_tokenizer_config);
    }
    let path = folder.join("chat_template.json");
    match read_json_object(&path)?.as_ref().and_then(|object| object.get("chat_template")) {
        Some(value) => template_source(&path, value),
        None => Ok(None),
    }
}

/// A template is a string, or a list of named ones of which `default` is meant.
fn template_source(path: &Path, value: &Value) -> Result<Option<String>> {
    match value {
        Value::Null => Ok(None),
        Value::String(source) => Ok(Some(source.clone())),
        Value::Array(named) => {
            let default = named.iter().find(|t| t.get("name").and_then(Value::as_str) == Some("default"));
            Ok(default.and_then(|t| t.get("template")).and_then(Value::as_str).map(str::to_owned))
        }
        _ => Err(Error::format(path, "chat_template", "neither a string nor a list of named templates")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("object")
    }

    #[test]
    fn the_jinja_file_wins_over_tokenizer_config_over_the_json_file() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let named = object(
            json!({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}),
        );
        assert_eq!(chat_template(dir.path(), None).expect("none"), None);
        std::fs::write(dir.path().join("chat_template.json"), r#"{"chat_template": "J"}"#).expect("write");
        assert_eq!(chat_template(dir.path(), None).expect("json").as_deref(), Some("J"));
        assert_eq!(chat_template(dir.path(), Some(&named)).expect("config").as_deref(), Some("D"));
        std::fs::write(dir.path().join("chat_template.jinja"), "F").expect("write");
        assert_eq!(chat_template(dir.path(), Some(&named)).expect("file").as_deref(), Some("F"));
    }

    #[test]
    fn end_ids_are_gathered_from_every_file() {
        let tokenizer = json!({
            "added_tokens": [{"id": 7, "content": "<|end|>"}],
            "model": {"type": "BPE", "vocab": {"a": 0, "</s>": 9}},
            "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
        });
        let config = object(json!({"eos_token_id": 3, "bos_token_id": 7, "text_config": {"eos_token_id": [4]}}));
        let generation = object(json!({"eos_token_id": [3, 5]}));
        let tokenizer_config = object(json!({"eos_token": {"content": "</s>"}}));
        let map = object(json!({"eos_token": "a", "pad_token": {"content": "<|end|>"}}));
        let configs = Configs {
            model: Some(&config),
            generation: Some(&generation),
            tokenizer: Some(&tokenizer_config),
            special_tokens_map: Some(&map),
        };
        let special =
            special_tokens(Path::new("tokenizer.json"), tokenizer.to_string().as_bytes(), configs).expect("valid");
        assert_eq!(special.eos_ids, [3, 4, 5, 9]);
        assert_eq!(special.eos_token.as_deref(), Some("</s>"));
        assert_eq!(special.pad_token.as_deref(), Some("<|end|>"), "from special_tokens_map.json");
        assert_eq!(special.bos_token.as_deref(), Some("<|end|>"), "resolved from bos_token_id");
        assert_eq!(special.bos_id, Some(7));
        assert_eq!(special.add_bos, Some(true), "the post-processor adds it");
    }
}
