//! A hostile tokenizer file of any kind: an error, or a tokenizer that can be used.
#![no_main]

use etgenai::chat::{EncodeOptions, TokenizerFile};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, &str)| {
    let (bytes, text) = input;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("tokenizer");
    std::fs::write(&path, bytes).expect("a file");
    let Ok(file) = TokenizerFile::open(&path) else { return };
    if let Ok(ids) = file.tokenizer.encode(text, EncodeOptions::default()) {
        assert!(!ids.iter().any(|&id| file.tokenizer.is_control(id)));
        file.tokenizer.decode(&ids, false);
    }
});
