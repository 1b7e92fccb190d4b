//! Re-quantization of the KV cache between prefill and decode.
//!
//! Files of one period carry graphs whose K and V have other encodings in prefill than in decode, and constants that say
//! both: `get_{k,v}_{scale,zero_point}_output_{layer}` is what the prefill graph writes (and reads of its earlier blocks),
//! `…_input_{layer}` what the decode graph reads (and writes). A slot is converted when a graph of the other kind is about
//! to read it, and only then:
//!
//! `q' = clamp(round((q - z_from) · s_from / s_to + z_to))`, to the nearest level, ties to even.
//!
//! Converting there and back is not free: the coarser of two grids rounds. It happens once only: a value that lies on
//! both grids' nearest points comes back to itself ever after (see the tests).

use super::contract::DecoderContract;
use crate::engine::Constants;
use crate::error::{Error, Result};
use crate::graph::DType;
use serde::{Deserialize, Serialize};

/// Which graphs a slot's levels were made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KvDomain {
    /// As the prefill graph writes them.
    Prefill,
    /// As the decode graph reads and writes them.
    Decode,
}

/// How a converted level becomes a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequantRounding {
    /// To the nearest level, ties to even, within the type's range.
    #[default]
    Nearest,
    /// Towards zero, as the upstream runner of that period did (where it was defined: within the type's range).
    Truncate,
}

/// `real = (level - zero_point) · scale`
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Encoding {
    pub scale: f32,
    pub zero_point: f32,
}

/// The encodings of one cache tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pair {
    pub prefill: Encoding,
    pub decode: Encoding,
}

/// How the caches of all layers are converted.
#[derive(Debug, Clone)]
pub(super) struct Requant {
    /// K and V of every layer of the contract.
    pub layers: Vec<[Pair; 2]>,
    pub rounding: RequantRounding,
}

impl Requant {
    /// What the constants ask for: `None` if they say nothing, or that nothing is to be done.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming a constant that is missing among others, or not usable.
    pub fn from_constants(
        constants: &Constants,
        contract: &DecoderContract,
        rounding: RequantRounding,
    ) -> Result<Option<Self>> {
        if constants.get("get_k_scale_output_0").is_none() && constants.get("get_k_scale_input_0").is_none() {
            return Ok(None);
        }
        if contract.kv_dtype == DType::F32 {
            return Ok(None);
        }
        // Where every head has a cache of its own, the constants are still those of layers.
        let caches = contract.layers.len();
        let layers = constants.count("get_n_layers")?.filter(|&count| count > 0 && caches.is_multiple_of(count));
        let per_layer = caches / layers.unwrap_or(caches).max(1);
        let pairs = (0..caches).map(|cache| {
            let layer = cache / per_layer.max(1);
            let pair = |kind: &str| -> Result<Pair> {
                let encoding = |side: &str| Encoding::read(constants, kind, side, layer);
                Ok(Pair { prefill: encoding("output")?, decode: encoding("input")? })
            };
            Ok([pair("k")?, pair("v")?])
        });
        let layers: Vec<[Pair; 2]> = pairs.collect::<Result<_>>()?;
        let all_equal = layers.iter().flatten().all(|pair| pair.prefill == pair.decode);
        Ok((!all_equal).then_some(Self { layers, rounding }))
    }
}

impl Encoding {
    fn read(constants: &Constants, kind: &str, side: &str, layer: usize) -> Result<Self> {
        let (scale_name, zero_name) =
            (format!("get_{kind}_scale_{side}_{layer}"), format!("get_{kind}_zero_point_{side}_{layer}"));
        let missing = |name: &str| {
            Error::invalid(format!(
                "the text decoder has encodings of its KV cache for prefill and decode, but lacks the constant {name}: \
                 export it again, or run it in kv mode"
            ))
        };
        let scale = constants.real(&scale_name)?.ok_or_else(|| missing(&scale_name))? as f32;
        let zero_point = constants.integer(&zero_name)?.ok_or_else(|| missing(&zero_name))?;
        if !(scale > 0.0 && scale.is_finite()) {
            return Err(Error::invalid(format!("constant {scale_name} is {scale}, it must be above 0")));
        }
        Ok(Self { scale, zero_point: zero_point as f32 })
    }
}

/// A level of one encoding to one of another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conversion {
    from_zero: f32,
    ratio: f32,
    to_zero: f32,
    rounding: RequantRounding,
}

impl Pair {
    /// The conversion to `domain`; `None` if both encodings are the same.
    pub fn conversion_to(&self, domain: KvDomain, rounding: RequantRounding) -> Option<Conversion> {
        let (from, to) = match domain {
            KvDomain::Prefill => (self.decode, self.prefill),
            KvDomain::Decode => (self.prefill, self.decode),
        };
        let ratio = from.scale / to.scale;
        (from != to).then_some(Conversion { from_zero: from.zero_point, ratio, to_zero: to.zero_point, rounding })
    }
}

impl Conversion {
    /// Convert levels in place; `bytes` are u8, or u16 of this machine's byte order.
    pub fn apply(&self, bytes: &mut [u8], dtype: DType) {
        if dtype == DType::U8 {
            bytes.iter_mut().for_each(|level| *level = self.convert((*level).into(), u8::MAX.into()) as u8);
            return;
        }
        for level in bytes.chunks_exact_mut(2) {
            if let Ok(array) = <[u8; 2]>::try_from(&*level) {
                let converted = self.convert(u16::from_ne_bytes(array).into(), u16::MAX.into()) as u16;
                level.copy_from_slice(&converted.to_ne_bytes());
            }
        }
    }

    fn convert(&self, level: f32, most: f32) -> f32 {
        let exact = (level - self.from_zero) * self.ratio + self.to_zero;
        let whole = match self.rounding {
            RequantRounding::Nearest => exact.round_ties_even(),
            RequantRounding::Truncate => exact.trunc(),
        };
        whole.clamp(0.0, most)
    }
}

/// Convert levels of `level_bytes` (1 or 2) bytes each in place, from one encoding `(scale, zero point)` to another, for
/// programs that keep a KV cache of their own.
///
/// # Errors
/// [`Error::InvalidArgument`] naming the value for another level size, bytes that are not whole levels, or a scale that is
/// not above 0; the levels are unchanged then.
pub fn requantize_levels(
    levels: &mut [u8],
    level_bytes: usize,
    from: (f32, i32),
    to: (f32, i32),
    rounding: RequantRounding,
) -> Result<()> {
    let dtype = match level_bytes {
        1 => DType::U8,
        2 => DType::U16,
        other => return Err(Error::invalid(format!("a KV level of {other} bytes; it has 1 or 2"))),
    };
    if let Some(scale) = [from.0, to.0].into_iter().find(|scale| !(*scale > 0.0 && scale.is_finite())) {
        return Err(Error::invalid(format!("a scale of {scale}; it must be above 0 and finite")));
    }
    if !levels.len().is_multiple_of(level_bytes) {
        return Err(Error::invalid(format!("{} bytes are not whole levels of {level_bytes} bytes", levels.len())));
    }
    let encoding = |(scale, zero): (f32, i32)| Encoding { scale, zero_point: zero as f32 };
    let pair = Pair { prefill: encoding(from), decode: encoding(to) };
    if let Some(conversion) = pair.conversion_to(KvDomain::Decode, rounding) {
        conversion.apply(levels, dtype);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(prefill: (f32, f32), decode: (f32, f32)) -> Pair {
        let encoding = |(scale, zero_point)| Encoding { scale, zero_point };
        Pair { prefill: encoding(prefill), decode: encoding(decode) }
    }

    fn to_decode(pair: Pair, rounding: RequantRounding, levels: &[u8]) -> Vec<u8> {
        let mut levels = levels.to_vec();
        pair.conversion_to(KvDomain::Decode, rounding).expect("encodings differ").apply(&mut levels, DType::U8);
        levels
    }

    #[test]
    fn numbers_of_the_contract() {
        let pair = pair((0.02, 128.0), (0.025, 120.0));
        assert_eq!(to_decode(pair, RequantRounding::Nearest, &[128, 255, 0]), [120, 222, 18]);
        assert_eq!(to_decode(pair, RequantRounding::Truncate, &[128, 255, 0]), [120, 221, 17]);
    }

    #[test]
    fn levels_out_of_range_are_clamped() {
        let pair = pair((0.1, 0.0), (0.01, 10.0));
        assert_eq!(to_decode(pair, RequantRounding::Nearest, &[0, 1, 200]), [10, 20, 255]);
        let negative = super::tests::pair((0.1, 200.0), (0.1, 10.0));
        assert_eq!(to_decode(negative, RequantRounding::Nearest, &[0, 195]), [0, 5]);
    }

    #[test]
    fn equal_encodings_need_no_conversion() {
        assert!(pair((0.1, 3.0), (0.1, 3.0)).conversion_to(KvDomain::Decode, RequantRounding::Nearest).is_none());
    }

    proptest! {
        /// The first conversion rounds; after it, going there and back changes nothing any more.
        #[test]
        fn there_and_back_drifts_no_further(
            level in any::<u16>(), scales in (0.001f32..0.1, 0.001f32..0.1), zeros in (20000u16..40000, 20000u16..40000),
        ) {
            let pair = pair((scales.0, zeros.0.into()), (scales.1, zeros.1.into()));
            let convert = |level: u16, domain| {
                let mut bytes = level.to_ne_bytes();
                if let Some(conversion) = pair.conversion_to(domain, RequantRounding::Nearest) {
                    conversion.apply(&mut bytes, DType::U16);
                }
                u16::from_ne_bytes(bytes)
            };
            let decode = convert(level, KvDomain::Decode);
            let prefill = convert(decode, KvDomain::Prefill);
            let decode_again = convert(prefill, KvDomain::Decode);
            let prefill_again = convert(decode_again, KvDomain::Prefill);
            prop_assert_eq!(convert(prefill_again, KvDomain::Decode), decode_again);
            prop_assert!(prefill_again.abs_diff(prefill) <= 1);
        }
    }
}
