//! Beginning, end, unknown and padding tokens, gathered from every file that mentions them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The tokens with a meaning of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpecialTokens {
    /// Text of the token that begins a sequence.
    pub bos_token: Option<String>,
    /// Text of the token that ends a reply, as chat templates use it.
    pub eos_token: Option<String>,
    /// Text of the token for text the vocabulary cannot spell.
    pub unk_token: Option<String>,
    /// Text of the padding token.
    pub pad_token: Option<String>,
    /// Whether plain text gets `bos_token` in front; `None` when the checkpoint does not say.
    pub add_bos: Option<bool>,
    /// Id of the token that begins a sequence.
    pub bos_id: Option<u32>,
    /// Ids that end a reply: the union of every source, ascending.
    pub eos_ids: Vec<u32>,
}

impl SpecialTokens {
    /// Adds ids that end a reply.
    pub(super) fn add_eos_ids(&mut self, ids: impl IntoIterator<Item = u32>) {
        self.eos_ids.extend(ids);
        self.eos_ids.sort_unstable();
        self.eos_ids.dedup();
    }
}

/// The ids under `key`: one integer or a list of them. Anything else (a missing key, `null`) holds none.
pub(super) fn token_ids(object: &Map<String, Value>, key: &str) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match object.get(key) {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// The text under `key`: a string, or an added-token object with `content`.
pub(super) fn token_text(object: &Map<String, Value>, key: &str) -> Option<String> {
    let value = object.get(key)?;
    value
        .as_str()
        .or_else(|| value.get("content")?.as_str())
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ids_and_texts_come_in_several_shapes() {
        let object = json!({"one": 2, "many": [3, 1, "x", -1], "none": null, "text": "<s>", "object": {"content": "</s>"}});
        let object = object.as_object().expect("object");
        assert_eq!(token_ids(object, "one"), [2]);
        assert_eq!(token_ids(object, "many"), [3, 1]);
        assert!(token_ids(object, "none").is_empty() && token_ids(object, "absent").is_empty());
        assert_eq!(token_text(object, "text").as_deref(), Some("<s>"));
        assert_eq!(token_text(object, "object").as_deref(), Some("</s>"));
        assert_eq!(token_text(object, "none"), None);
    }

    #[test]
    fn the_union_of_ids_is_sorted_and_free_of_repeats() {
        let mut tokens = SpecialTokens::default();
        tokens.add_eos_ids([5, 2]);
        tokens.add_eos_ids([2, 1]);
        assert_eq!(tokens.eos_ids, [1, 2, 5]);
    }
}
