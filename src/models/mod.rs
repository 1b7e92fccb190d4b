//! Hyper-parameters and a checkpoint to graphs and their weights.
//!
//! - [`decoder`]: what a decoder computes, as graphs; the token embedding beside an encoder.
//! - [`vision`]: what a vision encoder computes.
//! - [`weights`]: where each weight of those graphs lies in a checkpoint.
//! - [`rope`]: frequencies of the rotary position embedding.

pub mod decoder;
mod nodes;
pub mod rope;
pub mod vision;
pub mod weights;

pub use decoder::{
    DecoderForm, FirstInput, KV_FORWARD, PREFILL_FORWARD, TOK_EMBEDDING_KV_FORWARD, TOK_EMBEDDING_PREFILL_FORWARD,
    build_decoder, build_decoder_form, build_decoder_graph, build_embedding_decoder, build_token_embedding,
};
pub use vision::{FORWARD, build_vision_encoder};
pub use weights::{BoundWeights, ModelWeights, VisionWeights};
