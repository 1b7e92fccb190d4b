//! Any bytes as a GGUF file: opening, reading every tensor and building the tokenizer end in a value or an error.

#![no_main]

use etgenai::checkpoint::Checkpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), bytes).expect("write");
    // An empty or foreign file is refused before anything is parsed; everything else is worth a look.
    let Ok(checkpoint) = Checkpoint::open(file.path()) else { return };
    for entry in checkpoint.tensors() {
        let mut row = vec![0.0; entry.row_len()];
        for index in [0, entry.rows() - 1] {
            checkpoint.read_rows(&entry.name, index..index + 1, &mut row).expect("checked on opening");
        }
    }
    if let Ok(json) = checkpoint.tokenizer_json() {
        let _parsed: serde_json::Value = serde_json::from_slice(&json).expect("valid JSON");
    }
});
