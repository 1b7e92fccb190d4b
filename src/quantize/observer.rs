//! Observers: they look at a tensor during calibration and say what range its integers must cover.

use super::encoding::Encoding;
use super::histogram::Histogram;
use super::range::ValueRange;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// How a range is found.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObserverKind {
    /// From the smallest to the largest value ever seen.
    #[default]
    MinMax,
    /// Smallest and largest value of a batch, averaged over batches: the first counts whole, each later one with this weight
    /// (upstream's is 0.01). Depends on the order of the batches, so it cannot be joined from shards.
    MovingAverage(f32),
    /// The range whose rounding and clipping err least.
    Histogram,
    /// The range without this share of values that are farthest out: 0.9999 keeps all but one in ten thousand.
    Percentile(f64),
}

/// What was seen of one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Observer {
    kind: ObserverKind,
    range: ValueRange,
    histogram: Option<Histogram>,
}

impl Observer {
    /// An observer that has seen nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming a weight or share that is out of range.
    pub fn new(kind: ObserverKind) -> Result<Self> {
        match kind {
            ObserverKind::MovingAverage(weight) if !(weight > 0.0 && weight <= 1.0) => {
                Err(Error::invalid(format!("moving_average is {weight}, it must be above 0 and at most 1")))
            }
            ObserverKind::Percentile(share) if !(share > 0.0 && share <= 1.0) => {
                Err(Error::invalid(format!("percentile is {share}, it must be above 0 and at most 1")))
            }
            ObserverKind::Histogram | ObserverKind::Percentile(_) => {
                Ok(Self { kind, range: ValueRange::default(), histogram: Some(Histogram::default()) })
            }
            _ => Ok(Self { kind, range: ValueRange::default(), histogram: None }),
        }
    }

    /// Look at a batch of the tensor. A batch without finite values changes nothing.
    pub fn observe(&mut self, values: &[f32]) {
        if let Some(histogram) = &mut self.histogram {
            histogram.add(values);
            self.range = histogram.range();
            return;
        }
        self.add(ValueRange::of(values));
    }

    fn add(&mut self, batch: ValueRange) {
        self.range = match self.kind {
            ObserverKind::MovingAverage(weight) if !self.range.is_empty() && !batch.is_empty() => ValueRange {
                min: self.range.min + weight * (batch.min - self.range.min),
                max: self.range.max + weight * (batch.max - self.range.max),
            },
            _ => self.range.union(batch),
        };
    }

    /// Look at a tensor of which only the range is known; for observers that need no more.
    ///
    /// # Errors
    /// [`Error::Internal`] for an observer that counts values.
    pub fn observe_range(&mut self, batch: ValueRange) -> Result<()> {
        if self.histogram.is_some() {
            return Err(Error::internal("an observer that counts values was given a range"));
        }
        self.add(batch);
        Ok(())
    }

    /// Whether it needs the values and not only their range.
    pub fn counts_values(&self) -> bool {
        self.histogram.is_some()
    }

    /// How it works.
    pub fn kind(&self) -> ObserverKind {
        self.kind
    }

    /// All that was seen, before anything is cut off.
    pub fn seen(&self) -> ValueRange {
        self.range
    }

    /// Whether it has seen nothing.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Take in what another observer of the same tensor saw, in any order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an observer of another kind, or of a kind that depends on the order.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        if self.kind != other.kind {
            return Err(Error::invalid(format!("observers {:?} and {:?} cannot be joined", self.kind, other.kind)));
        }
        match (&mut self.histogram, &other.histogram) {
            (Some(mine), Some(theirs)) => mine.merge(theirs),
            _ if matches!(self.kind, ObserverKind::MovingAverage(_)) => {
                return Err(Error::invalid("moving averages depend on the order of the batches and cannot be joined"));
            }
            _ => {}
        }
        self.range = self.range.union(other.range);
        Ok(())
    }

    /// The range to cover; `encoding` says what grid a range gives.
    pub fn range(&self, encoding: impl Fn(ValueRange) -> Encoding) -> ValueRange {
        match (self.kind, &self.histogram) {
            (ObserverKind::Percentile(share), Some(histogram)) => histogram.percentile(share),
            (ObserverKind::Histogram, Some(histogram)) => histogram.least_error(encoding),
            _ => self.range,
        }
    }
}

/// An observer as it is written down: exactly what it saw.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    kind: ObserverKind,
    /// `None` before the first value.
    range: Option<ValueRange>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    histogram: Option<Histogram>,
}

impl Serialize for Observer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let range = (!self.range.is_empty()).then_some(self.range);
        Written { kind: self.kind, range, histogram: self.histogram.clone() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Observer {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        use serde::de::Error as _;
        let written = Written::deserialize(deserializer)?;
        let mut observer = Observer::new(written.kind).map_err(D::Error::custom)?;
        if observer.histogram.is_some() != written.histogram.is_some() {
            return Err(D::Error::custom("the observer's kind and its histogram do not belong together"));
        }
        observer.range = written.range.unwrap_or_default();
        observer.histogram = written.histogram;
        Ok(observer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::QuantDtype;

    fn observer(kind: ObserverKind, batches: &[&[f32]]) -> Observer {
        let mut observer = Observer::new(kind).expect("a valid kind");
        batches.iter().for_each(|batch| observer.observe(batch));
        observer
    }

    fn range(observer: &Observer) -> ValueRange {
        observer.range(|range| QuantDtype::A16W8.activation_encoding(range))
    }

    #[test]
    fn every_kind_finds_its_range() {
        let batches: [&[f32]; 4] = [&[-1.0, 2.0], &[], &[f32::NAN], &[-3.0, 1.0]];
        assert_eq!(range(&observer(ObserverKind::MinMax, &batches)), ValueRange::new(-3.0, 2.0));
        let average = range(&observer(ObserverKind::MovingAverage(0.01), &batches));
        assert!((average.min + 1.02).abs() < 1e-6 && (average.max - 1.99).abs() < 1e-6, "{average:?}");
        let kinds = [ObserverKind::Histogram, ObserverKind::Percentile(1.0)];
        for kind in kinds {
            let found = range(&observer(kind, &batches));
            assert!((found.min + 3.0).abs() < 0.02 && (found.max - 2.0).abs() < 0.02, "{kind:?} {found:?}");
        }
    }

    #[test]
    fn an_observer_that_saw_nothing_says_so() {
        let observers = [ObserverKind::MinMax, ObserverKind::Histogram].map(|kind| observer(kind, &[&[], &[f32::NAN]]));
        assert!(observers.iter().all(Observer::is_empty));
    }

    #[test]
    fn shards_are_joined_where_order_does_not_matter() {
        for kind in [ObserverKind::MinMax, ObserverKind::Histogram, ObserverKind::Percentile(0.99)] {
            let (first, second): (&[f32], &[f32]) = (&[1.0, 2.0, -0.5], &[-4.0, 0.25]);
            let mut joined = observer(kind, &[second]);
            joined.merge(&observer(kind, &[first])).expect("the same kind");
            assert_eq!(range(&joined), range(&observer(kind, &[first, second])), "{kind:?}");
        }
        let mut average = observer(ObserverKind::MovingAverage(0.1), &[&[1.0]]);
        assert!(average.merge(&average.clone()).is_err());
        assert!(average.merge(&observer(ObserverKind::MinMax, &[])).is_err());
    }

    #[test]
    fn settings_out_of_range_are_named() {
        for (kind, words) in [
            (ObserverKind::MovingAverage(0.0), "moving_average is 0"),
            (ObserverKind::MovingAverage(f32::NAN), "moving_average is NaN"),
            (ObserverKind::Percentile(1.5), "percentile is 1.5"),
        ] {
            let error = Observer::new(kind).expect_err("out of range").to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
