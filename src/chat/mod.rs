//! Typed messages, chat templates, the tokenizer and the streaming detokenizer.
//!
//! In reading order: [`Message`], [`Tokenizer`] with [`SpecialTokens`] (from any [`TokenizerFile`]), [`ChatTemplate`],
//! [`PromptEncoder`] which joins the two, and for what the model answers [`DetokenizeStream`] and [`StopMatcher`].

mod compat;
mod detokenize;
mod escape;
mod images;
mod message;
mod placeholders;
mod prompt;
mod special;
mod stop;
mod template;
mod tojson;
mod tokenizer;
pub(crate) mod tokenizer_files;

pub use detokenize::DetokenizeStream;
pub use images::{ImageMarkup, ImageTexts};
pub use message::{Message, Part, Role};
pub use placeholders::{messages_with_audio_placeholders, messages_with_placeholders};
pub use prompt::{Prompt, PromptEncoder, SampledReply};
pub use special::SpecialTokens;
pub use stop::{StopMatcher, StopResult};
pub use template::{ChatTemplate, RenderOptions};
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use tokenizer_files::{TokenizerFile, TokenizerFormat};
