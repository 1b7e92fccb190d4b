//! Opening a GGUF file and presenting it in Hugging Face terms.
//!
//! - `cursor`, `header`, `metadata`: the container, parsed with every claim checked against the bytes there are.
//! - `architecture`, `config`, `names`: what differs from family to family.
//! - `tokenizer`: a `tokenizer.json` from the vocabulary in the metadata.

mod architecture;
mod config;
mod cursor;
mod header;
mod metadata;
mod names;
mod tokenizer;

use super::tensors::{TensorEntry, TensorTable, Transform};
use super::{Checkpoint, CheckpointKind, TokenizerSource};
use crate::error::{Error, Result};
use architecture::Architecture;
use config::HeadCounts;
use header::{GgufFile, StoredTensor};
use std::path::Path;
use std::sync::Arc;

pub(super) use metadata::Metadata;
pub(super) use tokenizer::tokenizer_json;

pub(super) fn open(path: &Path) -> Result<Checkpoint> {
    let gguf = GgufFile::open(path)?;
    let architecture = Architecture::of(&gguf.metadata)?;
    Ok(Checkpoint {
        path: path.to_path_buf(),
        kind: CheckpointKind::Gguf,
        config: config::hugging_face_config(&gguf, architecture)?,
        generation_config: None,
        preprocessor_config: None,
        processor_config: None,
        tensors: tensor_table(&gguf, architecture)?,
        chat_template: gguf.metadata.text("tokenizer.chat_template")?.map(str::to_owned),
        special_tokens: tokenizer::special_tokens(&gguf.metadata)?,
        tokenizer: TokenizerSource::Gguf(gguf.metadata),
        adapter: None,
    })
}

/// The tensors under their Hugging Face names. One without a counterpart keeps its GGUF name, so that whoever builds the
/// model can say which tensor it did not expect.
fn tensor_table(gguf: &GgufFile, architecture: Architecture) -> Result<TensorTable> {
    let heads = config::head_counts(gguf, architecture)?;
    let mut table = TensorTable::default();
    let file = table.add_file(Arc::clone(&gguf.file));
    for (name, stored) in &gguf.tensors {
        if [names::ROPE_FACTORS, names::ROPE_FACTORS_SHORT, names::ROPE_FACTORS_LONG].contains(&name.as_str()) {
            continue;
        }
        let transform = transform(architecture, &heads, name, stored)
            .map_err(|reason| Error::format(gguf.file.path(), name.as_str(), reason))?;
        let hugging_face = names::hugging_face_name(architecture, name).unwrap_or_else(|| name.clone());
        let entry = TensorEntry::new(hugging_face, stored.shape.clone(), stored.storage, file, stored.offset);
        let entry = entry.ok_or_else(|| Error::internal(format!("the size of {name} was not checked")))?;
        table.insert(entry.with_transform(transform))?;
    }
    Ok(table)
}

/// What the converter did to a tensor of that GGUF name.
fn transform(
    architecture: Architecture,
    heads: &HeadCounts,
    name: &str,
    stored: &StoredTensor,
) -> Result<Transform, String> {
    if architecture.is_gemma() && name.ends_with("norm.weight") {
        return Ok(Transform::PlusOne);
    }
    let heads = match name.rsplit('.').nth(1) {
        Some("attn_q") if architecture.interleaves_heads() => heads.query,
        Some("attn_k") if architecture.interleaves_heads() => heads.key_value,
        _ => return Ok(Transform::None),
    };
    let rows = stored.shape.first().copied().unwrap_or(0);
    let head_rows = rows / heads;
    if head_rows * heads != rows || head_rows == 0 || head_rows % 2 != 0 {
        return Err(format!("{rows} rows are not {heads} heads of an even number of rows"));
    }
    Ok(Transform::InterleavedHeads { head_rows })
}
