//! Any texts as the files of a Hugging Face folder: opening ends in a checkpoint whose tensors can be read, or an error.

#![no_main]

use arbitrary::Arbitrary;
use etgenai::checkpoint::Checkpoint;
use libfuzzer_sys::fuzz_target;

/// The contents of a folder.
#[derive(Arbitrary, Debug)]
struct Folder<'a> {
    config: &'a str,
    generation_config: Option<&'a str>,
    tokenizer_config: Option<&'a str>,
    tokenizer: Option<&'a str>,
    index: &'a str,
    /// The header of the one shard; its length field is written for it.
    shard_header: &'a str,
    shard_data: &'a [u8],
}

fuzz_target!(|folder: Folder<'_>| {
    let dir = tempfile::tempdir().expect("temporary folder");
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).expect("write");
    write("config.json", folder.config.as_bytes());
    write("model.safetensors.index.json", folder.index.as_bytes());
    for (name, text) in [
        ("generation_config.json", folder.generation_config),
        ("tokenizer_config.json", folder.tokenizer_config),
        ("tokenizer.json", folder.tokenizer),
    ] {
        if let Some(text) = text {
            write(name, text.as_bytes());
        }
    }
    let mut shard = (folder.shard_header.len() as u64).to_le_bytes().to_vec();
    shard.extend_from_slice(folder.shard_header.as_bytes());
    shard.extend_from_slice(folder.shard_data);
    write("a", &shard);

    let Ok(checkpoint) = Checkpoint::open(dir.path()) else { return };
    for entry in checkpoint.tensors() {
        let mut values = vec![0.0; entry.rows() * entry.row_len()];
        checkpoint.read_rows(&entry.name, 0..entry.rows(), &mut values).expect("checked on opening");
    }
});
