//! The built-in CPU engine.

pub mod kernels;
pub mod pool;
