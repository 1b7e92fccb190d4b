//! A hostile `tokenizer.json`: an error or a tokenizer that keeps its promises.
#![no_main]

use etgenai::chat::{EncodeOptions, SpecialTokens, Tokenizer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, String, Vec<u32>)| {
    let (json, text, ids) = input;
    let Ok(tokenizer) = Tokenizer::from_bytes(&json, &SpecialTokens::default()) else { return };
    if let Ok(plain) = tokenizer.encode(&text, EncodeOptions::default()) {
        assert!(!plain.iter().any(|&id| tokenizer.is_control(id)));
    }
    let mut stream = tokenizer.stream(false);
    let streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
    assert_eq!(streamed + &stream.finish(), tokenizer.decode(&ids, false));
});
