//! The metadata of a GGUF file: typed values under string keys.
//!
//! Arrays stay where they are in the mapped file (a vocabulary has hundreds of thousands of strings): parsing checks that
//! they are whole and remembers where they lie.

use super::cursor::{Cursor, Malformed};
use crate::checkpoint::mapped::MappedFile;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// How deep arrays may be nested. Real files do not nest them at all.
const MAX_NESTING: usize = 4;

/// The type number in front of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Ok(match cursor.u32()? {
            0 => ValueType::U8,
            1 => ValueType::I8,
            2 => ValueType::U16,
            3 => ValueType::I16,
            4 => ValueType::U32,
            5 => ValueType::I32,
            6 => ValueType::F32,
            7 => ValueType::Bool,
            8 => ValueType::String,
            9 => ValueType::Array,
            10 => ValueType::U64,
            11 => ValueType::I64,
            12 => ValueType::F64,
            other => return Err(Malformed(format!("value type {other} is unknown"))),
        })
    }

    /// The fewest bytes a value of this type can take.
    fn min_bytes(self) -> usize {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 | ValueType::String => 8,
            ValueType::Array => 4 + 8,
        }
    }
}

/// A value. Integers and floats of every width are widened.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// Where the items of an array lie in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Array {
    item_type: ValueType,
    count: usize,
    start: usize,
}

impl Value {
    /// Reads a value with its type in front.
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let value_type = ValueType::read(cursor)?;
        Value::read_as(value_type, cursor, 0)
    }

    fn read_as(value_type: ValueType, cursor: &mut Cursor<'_>, nesting: usize) -> Result<Self, Malformed> {
        Ok(match value_type {
            ValueType::U8 => Value::Unsigned(u8::from_le_bytes(cursor.array()?).into()),
            ValueType::I8 => Value::Signed(i8::from_le_bytes(cursor.array()?).into()),
            ValueType::U16 => Value::Unsigned(u16::from_le_bytes(cursor.array()?).into()),
            ValueType::I16 => Value::Signed(i16::from_le_bytes(cursor.array()?).into()),
            ValueType::U32 => Value::Unsigned(cursor.u32()?.into()),
            ValueType::I32 => Value::Signed(i32::from_le_bytes(cursor.array()?).into()),
            ValueType::F32 => Value::Float(widened(f32::from_le_bytes(cursor.array()?))),
            ValueType::U64 => Value::Unsigned(cursor.u64()?),
            ValueType::I64 => Value::Signed(i64::from_le_bytes(cursor.array()?)),
            ValueType::F64 => Value::Float(f64::from_le_bytes(cursor.array()?)),
            ValueType::Bool => match cursor.array()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(Malformed(format!("{other} is neither false (0) nor true (1)"))),
            },
            ValueType::String => Value::String(cursor.string()?.to_owned()),
            ValueType::Array => Value::Array(Array::read(cursor, nesting)?),
        })
    }
}

impl Array {
    /// Steps over an array, checking that every item is there.
    fn read(cursor: &mut Cursor<'_>, nesting: usize) -> Result<Self, Malformed> {
        if nesting == MAX_NESTING {
            return Err(Malformed(format!("arrays are nested more than {MAX_NESTING} deep")));
        }
        let item_type = ValueType::read(cursor)?;
        let count = cursor.count(item_type.min_bytes())?;
        let start = cursor.position();
        match item_type {
            ValueType::String => {
                for _ in 0..count {
                    cursor.string()?;
                }
            }
            ValueType::Array => {
                for _ in 0..count {
                    Array::read(cursor, nesting + 1)?;
                }
            }
            // The count was checked against the bytes left, so this cannot overflow.
            fixed => {
                cursor.take(count * fixed.min_bytes())?;
            }
        }
        Ok(Array { item_type, count, start })
    }
}

/// The f64 with the same shortest decimal digits: `1e-5` stays `1e-5` and does not become `9.99999974e-6`.
fn widened(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| value.into())
}

/// All metadata of a file.
#[derive(Debug)]
pub(in super::super) struct Metadata {
    file: Arc<MappedFile>,
    values: HashMap<String, Value>,
}

impl Metadata {
    pub(super) fn new(file: Arc<MappedFile>, values: HashMap<String, Value>) -> Self {
        Metadata { file, values }
    }

    /// An error about `key` of this file.
    pub(super) fn malformed(&self, key: &str, reason: impl Into<String>) -> Error {
        Error::format(self.file.path(), key, reason)
    }

    fn wrong_type<T>(&self, key: &str, wanted: &str) -> Result<T> {
        Err(self.malformed(key, format!("the value is not {wanted}")))
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => self.wrong_type(key, "a string"),
        }
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => self.wrong_type(key, "a boolean"),
        }
    }

    pub(super) fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Float(value)) if value.is_finite() => Ok(Some(*value)),
            Some(Value::Unsigned(value)) => Ok(Some(*value as f64)),
            Some(Value::Signed(value)) => Ok(Some(*value as f64)),
            Some(_) => self.wrong_type(key, "a finite number"),
        }
    }

    pub(super) fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        let value = match self.values.get(key) {
            None => return Ok(None),
            Some(Value::Unsigned(value)) => Some(*value),
            Some(Value::Signed(value)) => u64::try_from(*value).ok(),
            Some(_) => None,
        };
        match value {
            Some(value) => Ok(Some(value)),
            None => self.wrong_type(key, "a non-negative integer"),
        }
    }

    /// One number, which may also be given once a layer as long as all layers agree.
    pub(super) fn uniform_unsigned(&self, key: &str) -> Result<Option<u64>> {
        if !matches!(self.values.get(key), Some(Value::Array(_))) {
            return self.unsigned(key);
        }
        let layers = self.integers(key)?.unwrap_or_default();
        match layers.split_first() {
            Some((first, rest)) if rest.iter().all(|other| other == first) => match u64::try_from(*first) {
                Ok(value) => Ok(Some(value)),
                Err(_) => self.wrong_type(key, "a non-negative integer"),
            },
            _ => Err(Error::Unsupported(format!(
                "{}: {key}: layers that differ from each other cannot be read",
                self.file.path().display()
            ))),
        }
    }

    pub(super) fn token_id(&self, key: &str) -> Result<Option<u32>> {
        match self.unsigned(key)? {
            None => Ok(None),
            Some(id) => match u32::try_from(id) {
                Ok(id) => Ok(Some(id)),
                Err(_) => Err(self.malformed(key, format!("{id} is not a token id"))),
            },
        }
    }

    pub(super) fn strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(array) = self.array(key)? else { return Ok(None) };
        if array.item_type != ValueType::String {
            return self.wrong_type(key, "an array of strings");
        }
        let mut cursor = Cursor::new(self.file.bytes(), array.start);
        let strings = (0..array.count).map(|_| cursor.string()).collect::<Result<Vec<_>, _>>();
        strings.map(Some).map_err(|Malformed(reason)| self.malformed(key, reason))
    }

    pub(super) fn floats(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.numbers(key, |value| match value {
            Value::Float(value) => Some(value),
            _ => None,
        })
    }

    pub(super) fn integers(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.numbers(key, |value| match value {
            Value::Signed(value) => Some(value),
            Value::Unsigned(value) => i64::try_from(value).ok(),
            _ => None,
        })
    }

    fn numbers<T>(&self, key: &str, convert: impl Fn(Value) -> Option<T>) -> Result<Option<Vec<T>>> {
        let Some(array) = self.array(key)? else { return Ok(None) };
        let mut cursor = Cursor::new(self.file.bytes(), array.start);
        let mut numbers = Vec::new();
        for _ in 0..array.count {
            let value = Value::read_as(array.item_type, &mut cursor, MAX_NESTING)
                .map_err(|Malformed(reason)| self.malformed(key, reason))?;
            match convert(value) {
                Some(number) => numbers.push(number),
                None => return self.wrong_type(key, "an array of numbers of the right kind"),
            }
        }
        Ok(Some(numbers))
    }

    fn array(&self, key: &str) -> Result<Option<Array>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(*array)),
            Some(_) => self.wrong_type(key, "an array"),
        }
    }
}
