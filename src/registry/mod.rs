//! Model names and hyper-parameters as data.

mod spec;

pub use spec::{Activation, DecoderSpec, LayerKind, ModelSpec, RopeScaling, RopeSpec};
