//! Values that a program carries beside its graphs.

use crate::error::{Error, Result};
use serde::Serialize;

/// The constants of a component, in file order.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Constants(Vec<Constant>);

/// A named constant: one value, or several (`get_kv_output_0_quant_attr`).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Constant {
    /// Name, e.g. `get_n_layers`.
    pub name: String,
    /// The values, at least one.
    pub values: Vec<ConstantValue>,
}

/// One value of a constant.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ConstantValue {
    /// A whole number.
    Integer(i64),
    /// A real number.
    Real(f64),
    /// Yes or no.
    Boolean(bool),
    /// Text.
    Text(String),
}

static NONE: Constants = Constants(Vec::new());

impl Constants {
    /// Constants in file order.
    pub fn new(constants: Vec<Constant>) -> Self {
        Self(constants)
    }

    /// No constants.
    pub fn none() -> &'static Self {
        &NONE
    }

    /// All of them, in file order.
    pub fn iter(&self) -> impl Iterator<Item = &Constant> {
        self.0.iter()
    }

    /// The values of constant `name`.
    pub fn get(&self, name: &str) -> Option<&[ConstantValue]> {
        self.0.iter().find(|constant| constant.name == name).map(|constant| constant.values.as_slice())
    }

    /// A whole number; `None` if there is no such constant.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the constant and its value if it is of another kind.
    pub fn integer(&self, name: &str) -> Result<Option<i64>> {
        self.one(name, "a whole number", |value| match value {
            ConstantValue::Integer(value) => Some(*value),
            _ => None,
        })
    }

    /// A count: a whole number of at least 0; `None` if there is no such constant.
    ///
    /// # Errors
    /// As [`integer`](Self::integer), and if it is negative.
    pub fn count(&self, name: &str) -> Result<Option<usize>> {
        self.one(name, "a whole number of at least 0", |value| match value {
            ConstantValue::Integer(value) => usize::try_from(*value).ok(),
            _ => None,
        })
    }

    /// A finite real number (a whole one counts); `None` if there is no such constant.
    ///
    /// # Errors
    /// As [`integer`](Self::integer).
    pub fn real(&self, name: &str) -> Result<Option<f64>> {
        self.one(name, "a number", |value| match value {
            ConstantValue::Real(value) => Some(*value).filter(|value| value.is_finite()),
            ConstantValue::Integer(value) => Some(*value as f64),
            _ => None,
        })
    }

    fn one<T>(&self, name: &str, kind: &str, read: impl Fn(&ConstantValue) -> Option<T>) -> Result<Option<T>> {
        let Some(values) = self.get(name) else { return Ok(None) };
        let read = if let [value] = values { read(value) } else { None };
        read.map(Some).ok_or_else(|| Error::invalid(format!("constant {name} is {values:?}, not {kind}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_read_by_kind() {
        let constant = |name: &str, values: Vec<ConstantValue>| Constant { name: name.into(), values };
        let constants = Constants::new(vec![
            constant("layers", vec![ConstantValue::Integer(3)]),
            constant("scale", vec![ConstantValue::Real(0.5)]),
            constant("below", vec![ConstantValue::Integer(-1)]),
            constant("pair", vec![ConstantValue::Integer(1), ConstantValue::Integer(2)]),
        ]);
        assert_eq!(constants.count("layers").unwrap(), Some(3));
        assert_eq!(constants.real("layers").unwrap(), Some(3.0));
        assert_eq!(constants.real("scale").unwrap(), Some(0.5));
        assert_eq!(constants.integer("below").unwrap(), Some(-1));
        assert_eq!(constants.integer("absent").unwrap(), None);
        assert!(constants.count("below").unwrap_err().to_string().contains("below"));
        assert!(constants.integer("scale").is_err());
        assert!(constants.integer("pair").is_err());
        assert!(Constants::none().get("layers").is_none());
    }
}
