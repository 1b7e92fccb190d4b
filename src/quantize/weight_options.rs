//! Temporary.
use super::*;
use crate::engine::cpu::pool::Pool;
use crate::error::Result;
/// x
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct WeightOptions {}
impl WeightOptions {
    pub fn need_moments(&self) -> bool {
        false
    }
}
/// x
pub struct InputMoments;
impl InputMoments {
    pub fn new(_: usize) -> Result<Self> {
        Ok(Self)
    }
    pub fn add(&mut self, _: &[f32], _: &Pool) -> Result<()> {
        Ok(())
    }
}
/// x
pub fn quantize_weight(
    values: &[f32],
    shape: (usize, usize),
    dtype: QuantDtype,
    granularity: WeightGranularity,
    _: &WeightOptions,
    _: Option<&InputMoments>,
    _: &Pool,
) -> Result<QuantizedWeight> {
    QuantizedWeight::nearest(values, shape, dtype, granularity)
}
