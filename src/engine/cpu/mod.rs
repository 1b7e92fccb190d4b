//! The built-in CPU engine.
