//! The `tojson` filter as Hugging Face's Jinja environment has it: Python's `json.dumps(ensure_ascii=False)`.
//!
//! Unlike Jinja's own filter it escapes nothing for HTML, and keeps the order of keys.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Deepest nesting that is written, far beyond any tool description.
const MAX_DEPTH: usize = 64;

/// `value | tojson(indent=None, separators=None, sort_keys=False, ensure_ascii=False)`.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let writer = Writer::new(&options)?;
    options.assert_all_used()?;
    let mut out = String::new();
    writer.write(value, 0, &mut out)?;
    Ok(out)
}

struct Writer {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

impl Writer {
    fn new(options: &Kwargs) -> Result<Self, Error> {
        let indent = match options.get::<Option<Value>>("indent")?.filter(|value| !value.is_none()) {
            None => None,
            Some(value) => match value.as_str() {
                Some(text) => Some(text.to_string()),
                None => Some(" ".repeat(usize::try_from(value)?.min(MAX_DEPTH))),
            },
        };
        let separators = options.get::<Option<Vec<String>>>("separators")?;
        let (item_separator, key_separator) = match separators.as_deref() {
            Some([item, key]) => (item.clone(), key.clone()),
            Some(_) => return Err(invalid("separators must be a pair")),
            None if indent.is_some() => (",".to_string(), ": ".to_string()),
            None => (", ".to_string(), ": ".to_string()),
        };
        Ok(Writer {
            indent,
            item_separator,
            key_separator,
            sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
            ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        })
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("value is nested too deeply for tojson"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&python_float(f64::try_from(value.clone())?)),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_group(['[', ']'], &items, depth, out, |item, out| self.write(item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_group(['{', '}'], &keys, depth, out, |key, out| {
                    self.write_key(key, out)?;
                    out.push_str(&self.key_separator);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            kind => return Err(invalid(format!("{kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn write_group(
        &self,
        [open, close]: [char; 2],
        items: &[Value],
        depth: usize,
        out: &mut String,
        mut write_item: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            self.break_line(depth + 1, out);
            write_item(item, out)?;
        }
        if !items.is_empty() {
            self.break_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    /// Python turns keys that are not strings into what JSON spells them like.
    fn write_key(&self, key: &Value, out: &mut String) -> Result<(), Error> {
        if key.as_str().is_some() {
            return self.write(key, 0, out);
        }
        let mut spelled = String::new();
        self.write(key, 0, &mut spelled)?;
        self.write_string(&spelled, out);
        Ok(())
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                control if (control as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", control as u32)),
                other if self.ensure_ascii && !other.is_ascii() => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                other => out.push(other),
            }
        }
        out.push('"');
    }
}

/// A float as Python writes it: shortest digits, an exponent below 1e-4 and from 1e16 on.
fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) || value == 0.0 {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn invalid(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(expression: &str) -> String {
        let mut environment = minijinja::Environment::new();
        environment.add_filter("tojson", tojson);
        environment.render_str(&format!("{{{{ {expression} }}}}"), ()).unwrap()
    }

    #[test]
    fn equals_python_json_dumps() {
        let value = r#"{"b": [1, 2.5, 1e16, true, none], "a": "é<b>&'\"\\\n\u{1}"}"#.replace("\\u{1}", "\u{1}");
        assert_eq!(
            render(&format!("{value}|tojson")),
            "{\"b\": [1, 2.5, 1e+16, true, null], \"a\": \"é<b>&'\\\"\\\\\\n\\u0001\"}"
        );
        assert_eq!(
            render("{'b': 1, 'a': [], 'c': {}}|tojson(indent=2)"),
            "{\n  \"b\": 1,\n  \"a\": [],\n  \"c\": {}\n}"
        );
        assert_eq!(render("{'b': [1], 'a': 2}|tojson(sort_keys=true)"), "{\"a\": 2, \"b\": [1]}");
        assert_eq!(render("[1, {2: 3}]|tojson(separators=(',', ':'))"), "[1,{\"2\":3}]");
        assert_eq!(render("'é👍'|tojson(ensure_ascii=true)"), "\"\\u00e9\\ud83d\\udc4d\"");
    }

    #[test]
    fn floats_are_written_as_python_does() {
        for (value, text) in [(1.0, "1.0"), (1e15, "1000000000000000.0"), (1e16, "1e+16"), (1e-4, "0.0001")] {
            assert_eq!(python_float(value), text);
        }
        assert_eq!(python_float(1.5e-5), "1.5e-05");
        assert_eq!(python_float(-2.5e100), "-2.5e+100");
        assert_eq!(python_float(0.0), "0.0");
    }
}
