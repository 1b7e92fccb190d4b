//! Reading token ids and texts out of configuration objects.

use crate::chat::SpecialTokens;
use serde_json::{Map, Value};

/// Adds ids that end a reply, keeping the list sorted and free of repeats.
pub(crate) fn add_eos_ids(special: &mut SpecialTokens, ids: impl IntoIterator<Item = u32>) {
    special.eos_ids.extend(ids);
    special.eos_ids.sort_unstable();
    special.eos_ids.dedup();
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
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ids_and_texts_come_in_several_shapes() {
        let object =
            json!({"one": 2, "many": [3, 1, "x", -1], "none": null, "text": "<s>", "object": {"content": "</s>"}});
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
        add_eos_ids(&mut tokens, [5, 2]);
        add_eos_ids(&mut tokens, [2, 1]);
        assert_eq!(tokens.eos_ids, [1, 2, 5]);
    }
}
