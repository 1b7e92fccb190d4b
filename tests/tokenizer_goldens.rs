//! The tokenizer answers as Hugging Face's does, and its streaming decoder as its own whole decode.

use std::fs;
use std::path::PathBuf;

use etgenai::chat::{EncodeOptions, SpecialTokens, Tokenizer};
use proptest::prelude::*;
use serde_json::Value;

/// Every tiny checkpoint that records tokenizer cases.
const FAMILIES: [&str; 12] = [
    "gemma", "gemma2", "gemma3", "glm", "glm_edge", "granite", "llama", "phi4mini", "qwen2", "qwen3", "smollm2",
    "smollm3",
];

fn fixture(family: &str, file: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny").join(family).join(file);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}: it belongs to the repository", path.display()))
}

fn json(family: &str, file: &str) -> Value {
    serde_json::from_slice(&fixture(family, file)).unwrap()
}

fn tokenizer(family: &str) -> Tokenizer {
    let config = json(family, "tokenizer_config.json");
    let text = |key: &str| config[key].as_str().map(str::to_string);
    let special =
        SpecialTokens { bos_token: text("bos_token"), eos_token: text("eos_token"), ..SpecialTokens::default() };
    Tokenizer::from_bytes(&fixture(family, "tokenizer.json"), &special).unwrap()
}

#[test]
fn ids_and_decoded_text_equal_hugging_face() {
    for family in FAMILIES {
        let tokenizer = tokenizer(family);
        let golden = json(family, "golden.json");
        let cases = golden["tokenizer_cases"].as_array().unwrap();
        assert!(!cases.is_empty(), "{family}");
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            let ids = tokenizer.encode(text, EncodeOptions { add_bos: true, parse_special: true }).unwrap();
            assert_eq!(ids, expected, "{family}: {text:?}");
            assert_eq!(tokenizer.decode(&ids, false), case["decoded"].as_str().unwrap(), "{family}: {text:?}");
        }
    }
}

#[test]
fn plain_encoding_holds_no_control_token_and_the_same_text() {
    for family in FAMILIES {
        let tokenizer = tokenizer(family);
        let controls: Vec<String> = (0..tokenizer.vocab_size() as u32)
            .filter(|&id| tokenizer.is_control(id))
            .map(|id| tokenizer.token_text(id).unwrap())
            .collect();
        assert!(controls.len() >= 2, "{family}");
        let text = format!("a {} b", controls.concat());
        let parsed = tokenizer.encode(&text, EncodeOptions { add_bos: false, parse_special: true }).unwrap();
        assert_eq!(parsed.iter().filter(|&&id| tokenizer.is_control(id)).count(), controls.len(), "{family}");
        let plain = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
        assert!(!plain.iter().any(|&id| tokenizer.is_control(id)), "{family}");
        assert_eq!(tokenizer.decode(&plain, false), text, "{family}");
    }
}

#[test]
fn special_tokens_are_left_out_only_on_demand() {
    let tokenizer = tokenizer("smollm2");
    let ids = tokenizer.encode("<|im_start|>Hi<|im_end|>", EncodeOptions { add_bos: false, parse_special: true });
    let ids = ids.unwrap();
    assert_eq!(tokenizer.decode(&ids, true), "Hi");
    assert_eq!(tokenizer.decode(&ids, false), "<|im_start|>Hi<|im_end|>");
}

#[test]
fn ids_outside_of_the_vocabulary_give_nothing() {
    let tokenizer = tokenizer("llama");
    assert_eq!(tokenizer.token_bytes(u32::MAX), Vec::<u8>::new());
    assert_eq!(tokenizer.token_text(u32::MAX), None);
    assert_eq!(tokenizer.decode(&[u32::MAX], false), "");
    assert!(!tokenizer.is_control(u32::MAX));
}

#[test]
fn malformed_files_name_the_file() {
    let whole = fixture("llama", "tokenizer.json");
    for length in [0, 1, 100, whole.len() / 2, whole.len() - 2] {
        let error = Tokenizer::from_bytes(&whole[..length], &SpecialTokens::default()).unwrap_err().to_string();
        assert!(error.starts_with("tokenizer.json: "), "{error}");
    }
}

#[test]
fn a_hostile_padding_length_allocates_nothing() {
    let mut file: Value = json("smollm2", "tokenizer.json");
    file["padding"] = serde_json::json!({
        "strategy": {"Fixed": 1u64 << 40}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<|endoftext|>"
    });
    file["truncation"] = serde_json::json!({
        "direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0
    });
    let tokenizer = Tokenizer::from_bytes(&serde_json::to_vec(&file).unwrap(), &SpecialTokens::default()).unwrap();
    let ids = tokenizer.encode("two words", EncodeOptions::default()).unwrap();
    assert_eq!(tokenizer.decode(&ids, false), "two words");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn streamed_text_equals_the_whole_decode(family in prop::sample::select(FAMILIES.to_vec()),
                                             picks in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
                                             skip_special: bool) {
        let tokenizer = tokenizer(family);
        let ids: Vec<u32> = picks.iter().map(|pick| pick.index(tokenizer.vocab_size() + 2) as u32).collect();
        let mut stream = tokenizer.stream(skip_special);
        let mut text = String::new();
        for &id in &ids {
            text += &stream.push(id);
        }
        text += &stream.finish();
        prop_assert_eq!(&text, &tokenizer.decode(&ids, skip_special));
        let shown = |id: &&u32| !(skip_special && tokenizer.is_special(**id));
        let bytes: Vec<u8> = ids.iter().filter(shown).flat_map(|&id| tokenizer.token_bytes(id)).collect();
        prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn encoding_keeps_any_text(family in prop::sample::select(vec!["llama", "smollm2", "gemma3", "phi4mini"]),
                               text in any::<String>()) {
        let tokenizer = tokenizer(family);
        let ids = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids, false), text);
    }
}
