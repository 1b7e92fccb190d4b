//! The intermediate representation: typed tensors with names, operators, graphs, and the reference interpreter.
//!
//! A [`Graph`] is a list of nodes in execution order over values with fixed shapes. It knows nothing of models,
//! quantization or engines; engines fuse what they like, the interpreter runs it word for word in f32.

mod builder;
mod grid;
mod interpreter;
mod ir;
mod reference_ops;
mod shape;
mod tensor;
mod validate;

pub use builder::GraphBuilder;
pub use grid::Grid;
pub use interpreter::{Interpreter, WeightProvider, Weights};
pub use ir::{Graph, Node, Op, Value, ValueId, ValueKind};
pub use tensor::{DType, DeviceMemory, Tensor, TensorInfo, TensorView, TensorViewMut};
