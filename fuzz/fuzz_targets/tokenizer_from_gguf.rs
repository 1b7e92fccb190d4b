//! Any vocabulary in GGUF metadata: a tokenizer that is built can be loaded and used.

#![no_main]

#[path = "../../tests/support/gguf.rs"]
mod gguf;

use arbitrary::Arbitrary;
use etgenai::checkpoint::Checkpoint;
use libfuzzer_sys::fuzz_target;

/// A tokenizer as GGUF stores it.
#[derive(Arbitrary, Debug)]
struct Vocabulary<'a> {
    byte_level: bool,
    pre_tokenizer: u8,
    /// Text, token type, score.
    tokens: Vec<(&'a str, u8, f32)>,
    merges: Vec<&'a str>,
    bos: Option<u8>,
    add_space_prefix: Option<bool>,
    text: &'a str,
}

const PRE_TOKENIZERS: [&str; 6] = ["default", "smollm", "llama-bpe", "qwen2", "gpt-4o", "tekken"];

fuzz_target!(|vocabulary: Vocabulary<'_>| {
    let texts: Vec<&str> = vocabulary.tokens.iter().map(|(text, ..)| *text).collect();
    let kinds: Vec<i32> = vocabulary.tokens.iter().map(|(_, kind, _)| i32::from(kind % 8)).collect();
    let scores: Vec<f32> = vocabulary.tokens.iter().map(|(.., score)| *score).collect();
    let pre_tokenizer = PRE_TOKENIZERS[usize::from(vocabulary.pre_tokenizer) % PRE_TOKENIZERS.len()];
    let mut writer = gguf::minimal("llama")
        .text("tokenizer.ggml.model", if vocabulary.byte_level { "gpt2" } else { "llama" })
        .text("tokenizer.ggml.pre", pre_tokenizer)
        .texts("tokenizer.ggml.tokens", &texts)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .f32s("tokenizer.ggml.scores", &scores)
        .texts("tokenizer.ggml.merges", &vocabulary.merges);
    if let Some(bos) = vocabulary.bos {
        writer = writer.u32("tokenizer.ggml.bos_token_id", bos.into());
    }
    if let Some(add) = vocabulary.add_space_prefix {
        writer = writer.bool("tokenizer.ggml.add_space_prefix", add);
    }
    let (_dir, path) = writer.write();
    let Ok(checkpoint) = Checkpoint::open(&path) else { return };
    let Ok(json) = checkpoint.tokenizer_json() else { return };
    // A vocabulary need not be able to spell the text, so encoding may fail; it may not panic.
    if let Ok(tokenizer) = tokenizers::Tokenizer::from_bytes(json) {
        let _ids = tokenizer.encode(vocabulary.text, true).map(|encoding| encoding.get_ids().to_vec());
    }
});
