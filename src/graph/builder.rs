//! Builds graphs; infers shapes.
