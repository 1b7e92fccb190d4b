//! Typed messages, chat templates, the tokenizer and the streaming detokenizer.
//!
//! In reading order: [`Message`], [`Tokenizer`] with [`SpecialTokens`], [`DetokenizeStream`], [`StopMatcher`].

mod detokenize;
mod message;
mod special;
mod stop;
mod tokenizer;

pub use detokenize::DetokenizeStream;
pub use message::{Message, Part, Role};
pub use special::SpecialTokens;
pub use stop::{StopMatcher, StopResult};
pub use tokenizer::{EncodeOptions, Tokenizer};
