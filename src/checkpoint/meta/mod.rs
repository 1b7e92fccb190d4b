//! Opening Meta's layout, weights and a `params.json`, and presenting it in Hugging Face terms: what llama.com, llama2.c and
//! upstream's `--checkpoint` and `--params` mean.
//!
//! Meta rotates neighbouring rows of a query or key head together. Those rows are put in Hugging Face's order while they are
//! read, so the graph pairs rows half a head apart, as that of every other Llama.

mod names;
mod params;

use super::mapped::MappedFile;
use super::tensors::{TensorEntry, TensorTable, Transform};
use super::{Checkpoint, CheckpointKind, TokenizerSource, safetensors};
use crate::chat::SpecialTokens;
use crate::chat::tokenizer_files::read_json_object;
use crate::error::{Error, Result};
use names::{Meaning, meaning};
use params::Params;
use std::path::Path;

/// Opens a safetensors file in Meta's layout, its configuration, and the tokenizer beside it, if there is one.
pub(super) fn open(weights: &Path, params: &Path) -> Result<Checkpoint> {
    refuse_pickles(weights)?;
    let Some(object) = read_json_object(params)? else {
        return Err(Error::NotFound(format!("{}: there is no such params.json", params.display())));
    };
    let mut stored = TensorTable::default();
    safetensors::add_file(weights, &mut stored)?;
    let entries = hugging_face_entries(weights, &stored)?;
    let table = entries.iter().find(|entry| entry.name == names::TABLE);
    let params = Params::read(params, &object, table.and_then(|table| table.shape.first().copied()))?;
    let tensors = with_half_split_heads(weights, stored, entries, params.head_dim)?;
    let tied = tensors.get(names::HEAD).is_none();
    let checkpoint = Checkpoint {
        path: weights.to_path_buf(),
        kind: CheckpointKind::Meta,
        config: params.hugging_face_config(tied),
        generation_config: None,
        preprocessor_config: None,
        processor_config: None,
        tensors,
        tokenizer: TokenizerSource::None,
        chat_template: None,
        special_tokens: SpecialTokens::default(),
        adapter: None,
    };
    let folder = weights.parent().unwrap_or(Path::new(""));
    match crate::chat::tokenizer_files::tokenizer_in(folder) {
        Some(tokenizer) => checkpoint.with_tokenizer(&tokenizer),
        None => Ok(checkpoint),
    }
}

/// The stored tensors under their Hugging Face names, without buffers that follow from the configuration.
fn hugging_face_entries(weights: &Path, stored: &TensorTable) -> Result<Vec<TensorEntry>> {
    let mut entries = Vec::new();
    for entry in stored.iter() {
        match meaning(&entry.name) {
            Meaning::Weight(name) => entries.push(entry.clone().with_name(name)),
            Meaning::Derived => {}
            Meaning::Unknown => {
                let reason = "no tensor of Meta's layout has such a name (tok_embeddings.weight, \
                              layers.0.attention.wq.weight, …); a Hugging Face checkpoint is opened by its folder, \
                              without params.json";
                return Err(Error::format(weights, entry.name.as_str(), reason));
            }
        }
    }
    Ok(entries)
}

/// The table of these tensors over the files of `stored`, query and key heads in Hugging Face's order of rows.
fn with_half_split_heads(
    weights: &Path,
    stored: TensorTable,
    entries: Vec<TensorEntry>,
    head_dim: usize,
) -> Result<TensorTable> {
    let mut table = stored.emptied();
    for entry in entries {
        if !(entry.name.ends_with(".q_proj.weight") || entry.name.ends_with(".k_proj.weight")) {
            table.insert(entry)?;
            continue;
        }
        let rows = entry.rows();
        if entry.shape.len() != 2 || !rows.is_multiple_of(head_dim) {
            let reason = format!("shape {:?} is not that of heads of {head_dim} rows", entry.shape);
            return Err(Error::format(weights, entry.name.as_str(), reason));
        }
        table.insert(entry.with_transform(Transform::InterleavedHeads { head_rows: head_dim }))?;
    }
    Ok(table)
}

/// PyTorch's own formats are archives of pickled objects: reading one means to run what is in it.
pub(super) fn refuse_pickles(path: &Path) -> Result<()> {
    let file = MappedFile::open(path)?;
    let bytes = file.bytes();
    // A safetensors file begins with the length of its header, which is below the file's.
    let may_be_length = bytes.first_chunk::<8>().is_some_and(|&len| u64::from_le_bytes(len) < bytes.len() as u64);
    let is_zip = bytes.starts_with(b"PK\x03\x04");
    let is_pickle = matches!(bytes, [0x80, 2..=5, ..]);
    if may_be_length || !(is_zip || is_pickle) {
        return Ok(());
    }
    let path = path.display();
    Err(Error::Unsupported(format!(
        "{path}: a PyTorch file (pickle), which is not read because that could run code in it; convert it where PyTorch is \
         installed: python3 -c \"import torch, safetensors.torch as s; c = torch.load('{path}', map_location='cpu', \
         weights_only=True); s.save_file({{k: v.clone().contiguous() for k, v in c.get('model', c).items() if \
         torch.is_tensor(v)}}, 'model.safetensors')\""
    )))
}
