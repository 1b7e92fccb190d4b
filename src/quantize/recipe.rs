//! Recipes: which layer gets which integers, as data.
//!
//! A recipe is a default and a list of rules. Of the rules that match a layer the one with the highest priority counts, and of
//! equal ones the one that was added last; without a match the default does. Resolving is pure: a layer's names and kind in,
//! its settings out.

use super::dtype::{QuantDtype, WeightGranularity};
use super::observer::{Observer, ObserverKind};
use crate::error::{Error, Result};
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Kinds of layers that rules tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// A matrix times activations: projections and the head (upstream writes them as 1x1 convolutions).
    Linear,
    /// A table of rows that are looked up.
    Embedding,
    /// Everything else.
    Other,
}

/// What a layer gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerPlan {
    /// Integers of activations and weights.
    pub dtype: QuantDtype,
    /// How many weights share a scale.
    pub granularity: WeightGranularity,
    /// How ranges of activations are found.
    pub observer: ObserverKind,
    /// Activations have 0 in the middle of their grid.
    pub symmetric_activations: bool,
    /// Index of the rule that decided; `None`: the default.
    pub rule: Option<usize>,
}

/// A rule of a recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Regular expression that must be found in one of the layer's names; absent: every name.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Kind of layer it is for; absent: every kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<LayerKind>,
    /// Integers of activations and weights.
    pub dtype: QuantDtype,
    /// How many weights share a scale.
    #[serde(default = "per_channel")]
    pub granularity: WeightGranularity,
    /// How ranges of activations are found.
    #[serde(default)]
    pub observer: ObserverKind,
    /// Activations have 0 in the middle of their grid.
    #[serde(default)]
    pub symmetric_activations: bool,
    /// Rules of a higher priority win.
    #[serde(default)]
    pub priority: i32,
}

fn per_channel() -> WeightGranularity {
    WeightGranularity::PerChannel
}

impl Rule {
    /// A rule for the layers whose name has `pattern` in it.
    pub fn for_name(pattern: &str, dtype: QuantDtype, granularity: WeightGranularity) -> Self {
        Self { pattern: Some(pattern.into()), kind: None, ..Self::for_all(dtype, granularity) }
    }

    /// A rule for all projections and the head.
    pub fn for_linear(dtype: QuantDtype, granularity: WeightGranularity) -> Self {
        Self { kind: Some(LayerKind::Linear), ..Self::for_all(dtype, granularity) }
    }

    fn for_all(dtype: QuantDtype, granularity: WeightGranularity) -> Self {
        let (observer, symmetric_activations, priority) = (ObserverKind::MinMax, false, 0);
        Self { pattern: None, kind: None, dtype, granularity, observer, symmetric_activations, priority }
    }
}

/// A recipe as it is written down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    default: QuantDtype,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    kv8: bool,
    /// How ranges of activations are found where no rule says.
    #[serde(default)]
    observer: ObserverKind,
}

/// Which layer gets which integers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub struct Recipe {
    written: Written,
    /// One a rule.
    patterns: Vec<Option<Regex>>,
}

impl Recipe {
    /// A recipe without rules.
    pub fn new(default: QuantDtype) -> Self {
        Self {
            written: Written { default, rules: Vec::new(), kv8: false, observer: ObserverKind::MinMax },
            patterns: Vec::new(),
        }
    }

    /// Add a rule; of rules with the same priority it counts most.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming a pattern that is no regular expression, or settings no weight can have.
    pub fn add(&mut self, rule: Rule) -> Result<()> {
        let pattern = rule.pattern.as_deref().map(|pattern| {
            Regex::new(pattern).map_err(|error| Error::invalid(format!("recipe rule {pattern:?}: {error}")))
        });
        let pattern = pattern.transpose()?;
        match rule.granularity {
            WeightGranularity::PerBlock(0) => return Err(Error::invalid("recipe rule: a block of 0 weights")),
            WeightGranularity::PerBlock(_) if rule.dtype.weight_bits() != 4 => {
                let dtype = rule.dtype;
                return Err(Error::invalid(format!("recipe rule: blocks are for 4-bit weights, not for {dtype}")));
            }
            _ => {}
        }
        self.written.rules.push(rule);
        self.patterns.push(pattern);
        Ok(())
    }

    /// Keep the KV cache in 8 bits.
    pub fn set_kv8(&mut self, on: bool) {
        self.written.kv8 = on;
    }

    /// Find all ranges of activations this way, whatever the rules say.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a setting of the observer that is out of range.
    pub fn set_observer(&mut self, kind: ObserverKind) -> Result<()> {
        Observer::new(kind)?;
        self.written.observer = kind;
        self.written.rules.iter_mut().for_each(|rule| rule.observer = kind);
        Ok(())
    }

    /// Whether the KV cache is kept in 8 bits.
    pub fn kv8(&self) -> bool {
        self.written.kv8
    }

    /// Bits of the KV cache where a graph takes and gives it: 8 with `kv8` and for 8-bit activations, else 16.
    pub fn kv_bits(&self) -> u32 {
        if self.written.kv8 || self.written.default == QuantDtype::A8W8 { 8 } else { 16 }
    }

    /// The integers of layers without a rule.
    pub fn default_dtype(&self) -> QuantDtype {
        self.written.default
    }

    /// The rules, as they were added.
    pub fn rules(&self) -> &[Rule] {
        &self.written.rules
    }

    /// Read a recipe: `{"default": "16a4w", "kv8": true, "rules": [{"match": "lm_head", "dtype": "16a8w"}, …]}`; `origin` is
    /// for messages.
    ///
    /// # Errors
    /// [`Error::Format`] naming the line and what is wrong there: an unknown key, a dtype that does not exist.
    pub fn from_json(json: &str, origin: &str) -> Result<Self> {
        let wrong = |field: String, reason: String| Error::format(origin, field, reason);
        if let Ok(Value::Object(fields)) = serde_json::from_str(json)
            && let Some(rotation) = ["r1", "r2"].into_iter().find(|rotation| fields.contains_key(*rotation))
        {
            return Err(Error::Unsupported(format!(
                "{origin}: {rotation}: SpinQuant no longer supported; only the rotation r3 is there, and it is chosen for a model"
            )));
        }
        let written: Written = serde_json::from_str(json)
            .map_err(|error| wrong(format!("line {}, column {}", error.line(), error.column()), error.to_string()))?;
        Self::from_written(written).map_err(|(index, error)| wrong(format!("rules[{index}]"), error.to_string()))
    }

    /// The recipe, or which rule is wrong and why.
    fn from_written(written: Written) -> std::result::Result<Self, (usize, Error)> {
        let mut recipe = Self::new(written.default);
        recipe.set_kv8(written.kv8);
        recipe.written.observer = written.observer;
        for (index, rule) in written.rules.into_iter().enumerate() {
            recipe.add(rule).map_err(|error| (index, error))?;
        }
        Ok(recipe)
    }

    /// The recipe as [`from_json`](Self::from_json) reads it.
    ///
    /// # Errors
    /// [`Error::Internal`] if it cannot be written down.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(&self.written).map_err(|error| Error::internal(format!("recipe: {error}")))
    }

    /// What a layer gets that goes by any of `names`.
    pub fn plan(&self, names: &[&str], kind: LayerKind) -> LayerPlan {
        let matches = |(index, rule): &(usize, &Rule)| {
            let of_kind = rule.kind.is_none_or(|wanted| wanted == kind);
            let pattern = self.patterns.get(*index).and_then(Option::as_ref);
            of_kind && pattern.is_none_or(|pattern| names.iter().any(|name| pattern.is_match(name)))
        };
        // The last of equal maxima is taken, which is the one added last.
        let rule = self.written.rules.iter().enumerate().filter(matches).max_by_key(|(_, rule)| rule.priority);
        match rule {
            Some((index, rule)) => LayerPlan {
                dtype: rule.dtype,
                granularity: rule.granularity,
                observer: rule.observer,
                symmetric_activations: rule.symmetric_activations,
                rule: Some(index),
            },
            None => LayerPlan {
                dtype: self.written.default,
                granularity: WeightGranularity::PerTensor,
                observer: self.written.observer,
                symmetric_activations: false,
                rule: None,
            },
        }
    }

    /// Rules that decide nothing for any of these layers: a typing error in a pattern, most likely.
    pub fn unused_rules<'l>(&self, layers: impl Iterator<Item = (&'l [&'l str], LayerKind)>) -> Vec<usize> {
        let mut used = vec![false; self.written.rules.len()];
        for (names, kind) in layers {
            if let Some(used) = self.plan(names, kind).rule.and_then(|rule| used.get_mut(rule)) {
                *used = true;
            }
        }
        used.iter().enumerate().filter(|(_, used)| !**used).map(|(rule, _)| rule).collect()
    }
}

impl From<Recipe> for Written {
    fn from(recipe: Recipe) -> Self {
        recipe.written
    }
}

impl TryFrom<Written> for Recipe {
    type Error = String;

    fn try_from(written: Written) -> std::result::Result<Self, String> {
        Self::from_written(written).map_err(|(index, error)| format!("rules[{index}]: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use WeightGranularity::{PerBlock, PerChannel, PerTensor};

    fn recipe(json: &str) -> Result<Recipe> {
        Recipe::from_json(json, "recipe.json")
    }

    #[test]
    fn the_rule_added_last_wins_unless_another_has_priority() {
        let mut recipe = Recipe::new(QuantDtype::A16W8);
        recipe.add(Rule::for_linear(QuantDtype::A16W4Block, PerBlock(32))).unwrap();
        recipe.add(Rule::for_name("w2_conv", QuantDtype::A16W8, PerChannel)).unwrap();
        let plan = |name: &str| recipe.plan(&[name], LayerKind::Linear);
        assert_eq!(
            (plan("layers.0.feed_forward.w2_conv").dtype, plan("x").granularity),
            (QuantDtype::A16W8, PerBlock(32))
        );
        let embedding = recipe.plan(&["tok_embeddings"], LayerKind::Embedding);
        assert_eq!((embedding.dtype, embedding.granularity, embedding.rule), (QuantDtype::A16W8, PerTensor, None));
        let mut first = recipe.clone();
        first.add(Rule { priority: -1, ..Rule::for_name("w2_conv", QuantDtype::A8W4, PerChannel) }).unwrap();
        assert_eq!(first.plan(&["w2_conv"], LayerKind::Linear).dtype, QuantDtype::A16W8);
        first.add(Rule { priority: 1, ..Rule::for_linear(QuantDtype::A16W4, PerChannel) }).unwrap();
        assert_eq!(first.plan(&["w2_conv"], LayerKind::Linear).dtype, QuantDtype::A16W4);
    }

    #[test]
    fn patterns_are_searched_in_every_name() {
        let mut recipe = Recipe::new(QuantDtype::A16W4);
        recipe.add(Rule::for_name(r"layers\.[0-3]\..*w2_conv", QuantDtype::A16W8, PerChannel)).unwrap();
        let names = ["model.layers.3.mlp.down_proj", "layers.3.feed_forward.w2_conv"];
        assert_eq!(recipe.plan(&names, LayerKind::Linear).rule, Some(0));
        assert_eq!(recipe.plan(&["layers.4.feed_forward.w2_conv"], LayerKind::Linear).rule, None);
        let layers: [(&[&str], LayerKind); 1] = [(&["layers.4.feed_forward.w2_conv"], LayerKind::Linear)];
        assert_eq!(recipe.unused_rules(layers.into_iter()), [0]);
    }

    #[test]
    fn recipes_are_read_and_written() {
        let json = r#"{"default": "16a4w", "kv8": true, "rules": [
            {"kind": "linear", "dtype": "16a4w_block", "granularity": {"per_block": 32}},
            {"match": "lm_head", "dtype": "16a8w", "observer": {"percentile": 0.9999}, "priority": 2}]}"#;
        let read = recipe(json).expect("valid");
        assert_eq!((read.kv_bits(), read.rules().len()), (8, 2));
        let again = recipe(&read.to_json().unwrap()).expect("what was written");
        assert_eq!(again.rules(), read.rules());
        assert_eq!(read.plan(&["lm_head"], LayerKind::Linear).observer, ObserverKind::Percentile(0.9999));
    }

    #[test]
    fn one_observer_can_be_asked_for_everywhere() {
        let mut recipe = Recipe::new(QuantDtype::A16W4);
        recipe.add(Rule::for_name("lm_head", QuantDtype::A16W8, PerChannel)).unwrap();
        recipe.set_observer(ObserverKind::Histogram).unwrap();
        let again = self::recipe(&recipe.to_json().unwrap()).expect("what was written");
        for name in ["lm_head", "x"] {
            assert_eq!(again.plan(&[name], LayerKind::Linear).observer, ObserverKind::Histogram);
        }
        assert!(recipe.set_observer(ObserverKind::Percentile(2.0)).is_err());
    }

    #[test]
    fn mistakes_are_named() {
        let error = |json: &str| recipe(json).expect_err("a mistake").to_string();
        assert!(error(r#"{"default": "16a4x"}"#).contains("16a4x"));
        assert!(error(r#"{"default": "16a4w", "rule": []}"#).contains("unknown field `rule`"));
        let pattern = error(r#"{"default": "16a4w", "rules": [{"match": "(", "dtype": "16a8w"}]}"#);
        assert!(pattern.contains("rules[0]") && pattern.contains("\"(\""), "{pattern}");
        let blocks = error(r#"{"default": "16a4w", "rules": [{"dtype": "16a8w", "granularity": {"per_block": 32}}]}"#);
        assert!(blocks.contains("blocks are for 4-bit weights, not for 16a8w"), "{blocks}");
        assert!(error("[").contains("line 1"));
        assert!(error(r#"{"default": "16a4w", "r1": true}"#).contains("r1: SpinQuant no longer supported"));
    }
}
