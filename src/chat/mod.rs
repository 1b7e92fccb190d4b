//! Typed messages, chat templates, the tokenizer and the streaming detokenizer.
//!
//! In reading order: [`SpecialTokens`].

mod special;

pub use special::SpecialTokens;
