//! The combinations of activation and weight integers that Qualcomm's HTP has, by upstream's names.

use super::encoding::Encoding;
use super::range::ValueRange;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which integers activations and weights become. `16a4w` reads: 16-bit activations, 4-bit weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum QuantDtype {
    /// 16-bit activations, 16-bit weights.
    A16W16,
    /// 16-bit activations, 8-bit weights.
    A16W8,
    /// 16-bit activations, 4-bit weights.
    A16W4,
    /// 16-bit activations, 4-bit weights in blocks with scales of their own (LPBQ) where a rule asks for blocks.
    A16W4Block,
    /// 8-bit activations, 8-bit weights.
    A8W8,
    /// 8-bit activations, 4-bit weights.
    A8W4,
}

/// How many weights share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightGranularity {
    /// All of a tensor.
    PerTensor,
    /// Those of one output channel.
    PerChannel,
    /// So many neighbours of one output channel, along the inputs.
    PerBlock(usize),
}

impl QuantDtype {
    /// All of them, in the order of upstream's codes.
    pub const ALL: [Self; 6] = [Self::A16W16, Self::A16W8, Self::A16W4, Self::A16W4Block, Self::A8W8, Self::A8W4];

    /// Upstream's name, e.g. `16a4w_block`.
    pub fn name(self) -> &'static str {
        match self {
            Self::A16W16 => "16a16w",
            Self::A16W8 => "16a8w",
            Self::A16W4 => "16a4w",
            Self::A16W4Block => "16a4w_block",
            Self::A8W8 => "8a8w",
            Self::A8W4 => "8a4w",
        }
    }

    /// The one of that name.
    ///
    /// # Errors
    /// [`Error::NotFound`] that lists the names there are.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::NotFound(format!("there is no quantization {name:?}; there are: {known}"))
        })
    }

    /// Bits of an activation: 8 or 16.
    pub fn activation_bits(self) -> u32 {
        match self {
            Self::A8W8 | Self::A8W4 => 8,
            _ => 16,
        }
    }

    /// Bits of a weight: 4, 8 or 16.
    pub fn weight_bits(self) -> u32 {
        match self {
            Self::A16W16 => 16,
            Self::A16W8 | Self::A8W8 => 8,
            Self::A16W4 | Self::A16W4Block | Self::A8W4 => 4,
        }
    }

    /// Smallest scale of an activation: upstream's `1e-4 / (2^bits - 1)`.
    pub fn activation_eps(self) -> f32 {
        1e-4 / ((1u32 << self.activation_bits()) - 1) as f32
    }

    /// The grid of an activation with values in `range`.
    pub fn activation_encoding(self, range: ValueRange) -> Encoding {
        Encoding::affine(range, 0, (1 << self.activation_bits()) - 1, self.activation_eps())
    }

    /// Smallest and largest integer of a weight: symmetric, without the odd one out (-8, -128).
    pub fn weight_range(self) -> (i32, i32) {
        let most = (1 << (self.weight_bits() - 1)) - 1;
        (-most, most)
    }

    /// The grid of weights that share a scale. 8-bit weights of a whole tensor beside 16-bit activations are unsigned bytes, as
    /// HTP wants them; all others are signed.
    pub fn weight_encoding(self, range: ValueRange, granularity: WeightGranularity) -> Encoding {
        let eps = match granularity {
            WeightGranularity::PerTensor => self.activation_eps(),
            _ => 1e-4 / 65535.0,
        };
        if self == Self::A16W8 && granularity == WeightGranularity::PerTensor {
            return Encoding::symmetric_u8(range, eps);
        }
        let (qmin, qmax) = self.weight_range();
        Encoding::symmetric(range, qmin, qmax, eps)
    }
}

impl fmt::Display for QuantDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<QuantDtype> for String {
    fn from(dtype: QuantDtype) -> Self {
        dtype.name().into()
    }
}

impl TryFrom<String> for QuantDtype {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::parse(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_upstreams_and_unknown_ones_are_listed() {
        for dtype in QuantDtype::ALL {
            assert_eq!(QuantDtype::parse(dtype.name()).unwrap(), dtype);
            let json = serde_json::to_string(&dtype).unwrap();
            assert_eq!(serde_json::from_str::<QuantDtype>(&json).unwrap(), dtype);
        }
        let error = QuantDtype::parse("4a4w").unwrap_err().to_string();
        assert!(error.contains("\"4a4w\"") && error.contains("16a4w_block"), "{error}");
    }

    #[test]
    fn grids_are_those_of_the_contract() {
        let range = ValueRange::new(-2.0, 1.0);
        let weight = |dtype: QuantDtype, granularity| dtype.weight_encoding(range, granularity);
        let tensor = weight(QuantDtype::A16W8, WeightGranularity::PerTensor);
        assert_eq!((tensor.zero_point, tensor.qmin, tensor.qmax), (128, 0, 255));
        let channel = weight(QuantDtype::A16W8, WeightGranularity::PerChannel);
        assert_eq!((channel.zero_point, channel.qmin, channel.qmax), (0, -127, 127));
        assert_eq!(weight(QuantDtype::A16W4, WeightGranularity::PerBlock(32)).qmax, 7);
        assert_eq!(weight(QuantDtype::A16W16, WeightGranularity::PerTensor).qmin, -32767);
        assert_eq!(weight(QuantDtype::A8W8, WeightGranularity::PerTensor).qmin, -127);
        assert_eq!(QuantDtype::A16W4.activation_encoding(range).qmax, 65535);
        assert_eq!(QuantDtype::A8W4.activation_encoding(range).qmax, 255);
    }
}
