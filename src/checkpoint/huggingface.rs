//! Opening a Hugging Face folder.

use super::tensors::TensorTable;
use super::{Adapter, Checkpoint, CheckpointKind, TokenizerSource, adapter, safetensors};
use crate::chat::tokenizer_files::{Configs, chat_template, read_json_object, special_tokens};
use crate::error::{Error, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

pub(super) fn open(folder: &Path, adapter: Adapter) -> Result<Checkpoint> {
    let Some(config) = read_json_object(&folder.join("config.json"))? else {
        return Err(no_config(folder));
    };
    let generation_config = read_json_object(&folder.join("generation_config.json"))?;
    let tokenizer_config = read_json_object(&folder.join("tokenizer_config.json"))?;
    let special_tokens_map = read_json_object(&folder.join("special_tokens_map.json"))?;
    let configs = Configs {
        model: Some(&config),
        generation: generation_config.as_ref(),
        tokenizer: tokenizer_config.as_ref(),
        special_tokens_map: special_tokens_map.as_ref(),
    };
    let tokenizer_json = folder.join("tokenizer.json");
    let special_tokens = special_tokens(&tokenizer_json, &read_if_there(&tokenizer_json)?, configs)?;
    let tensors = open_weights(folder)?;
    let adapter = match adapter {
        Adapter::Merge => adapter::Lora::open(folder, &tensors)?,
        Adapter::Ignore => None,
    };
    Ok(Checkpoint {
        path: folder.to_path_buf(),
        kind: CheckpointKind::HuggingFace,
        tensors,
        adapter,
        tokenizer: TokenizerSource::File(tokenizer_json),
        chat_template: chat_template(folder, tokenizer_config.as_ref())?,
        preprocessor_config: read_json_object(&folder.join("preprocessor_config.json"))?,
        processor_config: read_json_object(&folder.join("processor_config.json"))?,
        config,
        generation_config,
        special_tokens,
    })
}

fn no_config(folder: &Path) -> Error {
    let hint = if folder.join(adapter::CONFIG).is_file() {
        "; it holds an adapter: put it into the folder of the model it adapts"
    } else if folder.join("params.json").is_file() {
        "; it holds a params.json: open its weights together with that"
    } else {
        ""
    };
    Error::NotFound(format!("{}: no config.json: not a Hugging Face checkpoint{hint}", folder.display()))
}

/// The bytes of a file, none if there is no such file.
fn read_if_there(path: &Path) -> Result<Vec<u8>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(bytes),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(Error::io(path, e)),
    }
}

fn open_weights(folder: &Path) -> Result<TensorTable> {
    let mut table = TensorTable::default();
    let single = folder.join(WEIGHTS);
    let index = folder.join(INDEX);
    if single.exists() {
        safetensors::add_file(&single, &mut table)?;
    } else if index.exists() {
        add_shards(folder, &index, &mut table)?;
    } else {
        return Err(Error::NotFound(format!(
            "{}: neither {WEIGHTS} nor {INDEX}: only safetensors weights can be read, convert other formats first",
            folder.display()
        )));
    }
    Ok(table)
}

/// Adds every shard the index names, and checks that each tensor is in the shard the index says.
fn add_shards(folder: &Path, index: &Path, table: &mut TensorTable) -> Result<()> {
    for (shard, tensors) in tensors_by_shard(index)? {
        let path = shard_path(folder, index, &shard)?;
        if !path.exists() {
            let example = tensors.first().map_or("no tensor", String::as_str);
            return Err(Error::NotFound(format!(
                "{}: the shard is missing; {} expects {} tensors in it, {example} among them",
                path.display(),
                index.display(),
                tensors.len()
            )));
        }
        let found: std::collections::HashSet<String> = safetensors::add_file(&path, table)?.into_iter().collect();
        if let Some(absent) = tensors.iter().find(|name| !found.contains(*name)) {
            return Err(Error::format(
                &path,
                absent.as_str(),
                format!("the tensor is not in this shard, though {INDEX} says so"),
            ));
        }
    }
    Ok(())
}

/// The index turned round: shard file name to the tensors in it.
fn tensors_by_shard(index: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let object = read_json_object(index)?.unwrap_or_default();
    let Some(weight_map) = object.get("weight_map").and_then(Value::as_object) else {
        return Err(Error::format(index, "weight_map", "missing or not an object"));
    };
    let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, shard) in weight_map {
        let Some(shard) = shard.as_str() else {
            return Err(Error::format(index, format!("weight_map.{tensor}"), format!("{shard} is not a file name")));
        };
        shards.entry(shard.to_owned()).or_default().push(tensor.clone());
    }
    Ok(shards)
}

/// The path of a shard, which must not lead out of the folder: an index comes from whoever made the download.
fn shard_path(folder: &Path, index: &Path, shard: &str) -> Result<PathBuf> {
    let relative = Path::new(shard);
    let stays_inside = !shard.is_empty() && relative.components().all(|c| matches!(c, Component::Normal(_)));
    if !stays_inside {
        return Err(Error::format(index, "weight_map", format!("shard {shard:?} is not a path inside the folder")));
    }
    Ok(folder.join(relative))
}
