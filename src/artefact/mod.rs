//! A compiled model on disk: a directory with a manifest, one file per component, the tokenizer and the chat template.
//!
//! | file | what |
//! | --- | --- |
//! | `manifest.json` | [`Manifest`]: model, components with sizes, hashes and signatures, special tokens |
//! | `text_decoder.safetensors` | a component: graphs and packed weights, memory-mapped and used in place ([`Component`]) |
//! | `vision_encoder.safetensors`, `tok_embedding.safetensors` | the other components of a model that sees |
//! | `tokenizer.json` | the tokenizer in Hugging Face's format |
//! | `chat_template.jinja` | the chat template, if the checkpoint has one |
//!
//! [`ArtefactWriter`] makes such a directory appear under its name all at once or not at all; [`Artefact`] opens one.

mod component;
mod directory;
mod header;
mod manifest;
mod writer;

pub use component::{Component, Weight, component_signature};
pub use directory::{Artefact, ArtefactSummary};
pub use header::{
    AUDIO_ENCODER, COMPONENT_FORMAT, COMPONENT_VERSION, ComponentHeader, Layout, StoredWeight, TEXT_DECODER,
    TOK_EMBEDDING, VISION_ENCODER,
};
pub use manifest::{
    ComponentEntry, FileEntry, FormatSummary, GenerationDefaults, ImageSection, MANIFEST_FILE, Manifest,
    SCHEMA_VERSION, check_file_name,
};
pub(crate) use writer::hex;
pub use writer::{ArtefactWriter, ComponentWriter, WrittenComponent};
