//! Options as one JSON object: every key is known or the call fails, and a failure says which key and why.

use crate::{Error, Result};
use serde_json::{Map, Value};

/// One key of an options object.
pub(super) struct Field<'a> {
    /// The options type, e.g. `etg_generate_options`.
    owner: &'static str,
    key: &'a str,
    value: &'a Value,
}

/// Read `json` as an object and hand each key to `set`, which gives `Ok(false)` for a key it does not know. `known`
/// lists the keys for the error text.
///
/// # Errors
/// Not JSON, not an object, an unknown key, or what `set` says.
pub(super) fn for_each(
    owner: &'static str,
    json: &str,
    known: &[&str],
    mut set: impl FnMut(&Field<'_>) -> Result<bool>,
) -> Result<()> {
    for (key, value) in &object(owner, json)? {
        if !set(&Field { owner, key, value })? {
            return Err(Error::invalid(format!("{owner} has no option {key:?}; it has {}", known.join(", "))));
        }
    }
    Ok(())
}

/// `json` as an object; `what` names it in the error text.
///
/// # Errors
/// Not JSON, or not an object.
pub(super) fn object(what: &str, json: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(json).map_err(|error| Error::Format {
        file: format!("{what} JSON"),
        field: format!("line {}, column {}", error.line(), error.column()),
        reason: format!("not a JSON object: {error}"),
    })
}

impl Field<'_> {
    /// The key.
    pub(super) fn key(&self) -> &str {
        self.key
    }

    /// The value as a number.
    ///
    /// # Errors
    /// Not a number, or one that `f32` cannot hold.
    pub(super) fn number(&self) -> Result<f32> {
        #[allow(clippy::cast_possible_truncation, reason = "rounding is meant; what overflows is infinite and refused")]
        let number = self.value.as_f64().map(|number| number as f32);
        number.filter(|number| number.is_finite()).ok_or_else(|| self.wanted("a number"))
    }

    /// The value as a whole number from 0.
    ///
    /// # Errors
    /// Negative, with a fraction, too large, or not a number.
    pub(super) fn count(&self) -> Result<usize> {
        let count = self.value.as_u64().and_then(|count| usize::try_from(count).ok());
        count.ok_or_else(|| self.wanted("a whole number, 0 or more"))
    }

    /// The value as a whole number of 64 bits.
    ///
    /// # Errors
    /// As [`count`](Self::count).
    pub(super) fn unsigned(&self) -> Result<u64> {
        self.value.as_u64().ok_or_else(|| self.wanted("a whole number, 0 or more"))
    }

    /// The value as true or false.
    ///
    /// # Errors
    /// Anything else.
    pub(super) fn flag(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.wanted("true or false"))
    }

    /// `null` is `None`, anything else is read by `read`.
    ///
    /// # Errors
    /// Those of `read`.
    pub(super) fn or_null<'s, T>(&'s self, read: impl FnOnce(&'s Self) -> Result<T>) -> Result<Option<T>> {
        if self.value.is_null() { Ok(None) } else { read(self).map(Some) }
    }

    /// The value as text.
    ///
    /// # Errors
    /// Not a string.
    pub(super) fn text(&self) -> Result<&str> {
        self.value.as_str().ok_or_else(|| self.wanted("a string"))
    }

    /// The value as an object.
    ///
    /// # Errors
    /// Anything else.
    pub(super) fn object(&self) -> Result<&Map<String, Value>> {
        self.value.as_object().ok_or_else(|| self.wanted("an object"))
    }

    /// The value as a list of texts.
    ///
    /// # Errors
    /// Not a list of strings.
    pub(super) fn texts(&self) -> Result<Vec<String>> {
        let list = self.value.as_array().ok_or_else(|| self.wanted("a list of strings"))?;
        let texts = list.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
        texts.ok_or_else(|| self.wanted("a list of strings"))
    }

    /// The value as a list of `N` bytes.
    ///
    /// # Errors
    /// Not a list of so many whole numbers from 0 to 255.
    pub(super) fn bytes<const N: usize>(&self) -> Result<[u8; N]> {
        let byte = |item: &Value| item.as_u64().and_then(|number| u8::try_from(number).ok());
        let list = self.value.as_array().and_then(|list| list.iter().map(byte).collect::<Option<Vec<_>>>());
        let bytes = list.and_then(|list| list.try_into().ok());
        bytes.ok_or_else(|| self.wanted(&format!("a list of {N} numbers, 0 to 255")))
    }

    /// The value as `T`, if it is one.
    pub(super) fn parsed<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_value(self.value.clone()).ok()
    }

    /// The value as `T`; what does not fit is named in the words of whoever reads it, an unknown key inside of it for instance.
    ///
    /// # Errors
    /// Not a `T`.
    pub(super) fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        let (owner, key) = (self.owner, self.key);
        serde_json::from_value(self.value.clone()).map_err(|error| Error::invalid(format!("{owner}: {key:?}: {error}")))
    }

    /// The error for a value that is not what was wanted.
    pub(super) fn wanted(&self, wanted: &str) -> Error {
        let mut found = self.value.to_string();
        if let Some((end, _)) = found.char_indices().nth(60) {
            found.truncate(end);
            found.push('…');
        }
        let (owner, key) = (self.owner, self.key);
        Error::invalid(format!("{owner}: {key:?} must be {wanted}, but is {found}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<(f32, usize)> {
        let (mut temperature, mut top_k) = (0.0, 0);
        for_each("etg_x", json, &["temperature", "top_k"], |field| {
            match field.key() {
                "temperature" => temperature = field.number()?,
                "top_k" => top_k = field.count()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok((temperature, top_k))
    }

    #[test]
    fn good_values_are_read() {
        assert!(read(r#"{"temperature": 0.5, "top_k": 40}"#).is_ok_and(|got| got == (0.5, 40)));
        assert!(read("{}").is_ok());
    }

    #[test]
    fn errors_name_key_wanted_and_found() {
        for (json, parts) in [
            (r#"{"temprature": 1}"#, ["\"temprature\"", "temperature, top_k"]),
            (r#"{"top_k": "many"}"#, ["\"top_k\" must be a whole number", "is \"many\""]),
            (r#"{"top_k": -1}"#, ["\"top_k\"", "is -1"]),
            (r#"{"top_k": 1.5}"#, ["\"top_k\"", "is 1.5"]),
            (r#"{"temperature": 1e300}"#, ["\"temperature\" must be a number", "is 1e"]),
            ("[1]", ["etg_x JSON", "not a JSON object"]),
            ("{\"top_k\": ", ["line 1", "not a JSON object"]),
        ] {
            let error = read(json).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(parts.iter().all(|part| error.contains(part)), "{json}: {error}");
        }
    }
}
