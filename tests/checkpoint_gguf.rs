//! Promise: a GGUF file is read exactly and presented in Hugging Face terms; a damaged one is refused, never believed.

#[path = "support/gguf.rs"]
mod gguf;

use etgenai::checkpoint::{Checkpoint, CheckpointKind};
use gguf::{F32, GgufWriter, minimal};
use proptest::prelude::*;
use safetensors::SafeTensors;
use std::path::Path;

fn open(writer: &GgufWriter) -> Checkpoint {
    let (_dir, path) = writer.write();
    Checkpoint::open(&path).expect("a valid file")
}

fn error_of(bytes: &[u8]) -> String {
    let (_dir, path) = gguf::write(bytes);
    Checkpoint::open(&path).expect_err("a malformed file").to_string()
}

fn read_all(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let entry = checkpoint.tensor(name).unwrap_or_else(|| panic!("no {name}"));
    let mut values = vec![f32::NAN; entry.rows() * entry.row_len()];
    checkpoint.read_rows(name, 0..entry.rows(), &mut values).expect(name);
    values
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn blocks_of_every_format_decode_like_the_reference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf/blocks.safetensors");
    let bytes = std::fs::read(path).expect("fixture");
    let golden = SafeTensors::deserialize(&bytes).expect("fixture");
    let formats = [
        ("F32", 0u32),
        ("F16", 1),
        ("Q4_0", 2),
        ("Q4_1", 3),
        ("Q5_0", 6),
        ("Q5_1", 7),
        ("Q8_0", 8),
        ("Q4_K", 12),
        ("Q5_K", 13),
        ("Q6_K", 14),
        ("BF16", 30),
    ];
    for (format, type_number) in formats {
        let stored = golden.tensor(&format!("{format}.stored")).expect(format);
        let expected = floats(golden.tensor(&format!("{format}.values")).expect(format).data());
        // Two rows, so that finding a row is tested with the decoding.
        let shape = [2, expected.len() as u64 / 2];
        let file = minimal("llama").stored("matrix", &shape, type_number, stored.data());
        let checkpoint = open(&file);
        let entry = checkpoint.tensor("matrix").expect("matrix");
        assert_eq!(entry.storage.name(), format);
        assert_eq!(entry.bytes as usize, stored.data().len());
        let values = read_all(&checkpoint, "matrix");
        let largest = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
        for (value, expected) in values.iter().zip(&expected) {
            assert!((value - expected).abs() <= 1e-6 * largest, "{format}: {value} instead of {expected}");
        }
        let mut second = vec![0.0; expected.len() / 2];
        checkpoint.read_rows("matrix", 1..2, &mut second).expect("second row");
        assert_eq!(second, values[expected.len() / 2..], "{format}");
    }
}

/// How the converter stores the rows of a matrix of `heads` heads: halves of each head interleaved.
fn interleaved(rows: &[Vec<f32>], heads: usize) -> Vec<f32> {
    let half = rows.len() / heads / 2;
    let mut stored = Vec::new();
    for head in rows.chunks(rows.len() / heads) {
        for j in 0..half {
            stored.extend_from_slice(&head[j]);
            stored.extend_from_slice(&head[half + j]);
        }
    }
    stored
}

#[test]
fn rotary_rows_come_back_in_hugging_face_order() {
    let rows: Vec<Vec<f32>> = (0..8).map(|row| (0..8).map(|col| (row * 10 + col) as f32).collect()).collect();
    let bias: Vec<Vec<f32>> = (0..8).map(|row| vec![row as f32]).collect();
    for architecture in ["llama", "granite", "smollm3"] {
        let checkpoint = open(
            &minimal(architecture)
                .tensor("blk.0.attn_q.weight", &[8, 8], &interleaved(&rows, 2))
                .tensor("blk.0.attn_q.bias", &[8], &interleaved(&bias, 2))
                .tensor("blk.0.attn_k.weight", &[4, 8], &interleaved(&rows[..4], 1)),
        );
        assert_eq!(read_all(&checkpoint, "model.layers.0.self_attn.q_proj.weight"), rows.concat(), "{architecture}");
        assert_eq!(read_all(&checkpoint, "model.layers.0.self_attn.q_proj.bias"), bias.concat(), "{architecture}");
        assert_eq!(read_all(&checkpoint, "model.layers.0.self_attn.k_proj.weight"), rows[..4].concat());
        let mut middle = vec![0.0; 16];
        checkpoint.read_rows("model.layers.0.self_attn.q_proj.weight", 3..5, &mut middle).expect("rows");
        assert_eq!(middle, rows[3..5].concat());
    }
    let qwen = open(&minimal("qwen2").tensor("blk.0.attn_q.weight", &[8, 8], &rows.concat()));
    assert_eq!(read_all(&qwen, "model.layers.0.self_attn.q_proj.weight"), rows.concat(), "stored as it was");
}

#[test]
fn gemma_norms_lose_the_one_that_was_added() {
    let gemma = minimal("gemma3")
        .u32("gemma3.attention.sliding_window", 16)
        .u32("gemma3.attention.key_length", 4)
        .tensor("output_norm.weight", &[8], &[1.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
        .tensor("blk.0.attn_q_norm.weight", &[4], &[2.0; 4])
        .tensor("blk.0.post_ffw_norm.weight", &[8], &[1.25; 8]);
    let checkpoint = open(&gemma);
    assert_eq!(read_all(&checkpoint, "model.norm.weight")[..3], [0.5, -0.25, 0.0]);
    assert_eq!(read_all(&checkpoint, "model.layers.0.self_attn.q_norm.weight"), [1.0; 4]);
    assert_eq!(read_all(&checkpoint, "model.layers.0.post_feedforward_layernorm.weight"), [0.25; 8]);
    let config = checkpoint.config();
    assert_eq!(config["model_type"], "gemma3_text");
    assert_eq!(config["sliding_window"], 16);
    assert_eq!(config["sliding_window_pattern"], 6);
    assert_eq!(config["rope_local_base_freq"], 10000.0);
    assert_eq!(config["query_pre_attn_scalar"], 4);
    assert_eq!(config["hidden_activation"], "gelu_pytorch_tanh");
    let llama = open(&minimal("llama").tensor("output_norm.weight", &[8], &[1.5; 8]));
    assert_eq!(read_all(&llama, "model.norm.weight"), [1.5; 8]);
}

#[test]
fn metadata_becomes_a_hugging_face_config() {
    let checkpoint = open(&minimal("llama").u32("tokenizer.ggml.eos_token_id", 2));
    assert_eq!(checkpoint.kind(), CheckpointKind::Gguf);
    assert!(checkpoint.generation_config().is_none());
    let expected = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4, "hidden_size": 8,
        "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": true, "eos_token_id": 2,
        "rope_theta": 100000.0, "rope_scaling": null,
    });
    assert_eq!(serde_json::Value::Object(checkpoint.config().clone()), expected);

    let untied = open(&minimal("qwen2").tensor("output.weight", &[4, 8], &[0.0; 32]).tensor(
        "blk.0.attn_q.bias",
        &[8],
        &[0.0; 8],
    ));
    assert_eq!(untied.config()["tie_word_embeddings"], false);
    assert_eq!(untied.config()["attention_bias"], true);

    let granite = open(
        &minimal("granite")
            .f32("granite.attention.scale", 0.0078125)
            .f32("granite.embedding_scale", 12.0)
            .f32("granite.residual_scale", 0.22)
            .f32("granite.logit_scale", 8.0),
    );
    let names = ["attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"];
    assert_eq!(names.map(|name| granite.config()[name].as_f64()), [0.0078125, 12.0, 0.22, 8.0].map(Some));
}

#[test]
fn rotary_scaling_is_found_wherever_it_is_stored() {
    let linear =
        open(&minimal("qwen3").text("qwen3.rope.scaling.type", "linear").f32("qwen3.rope.scaling.factor", 8.0));
    assert_eq!(linear.config()["rope_scaling"], serde_json::json!({"rope_type": "linear", "factor": 8.0}));

    let unknown = open(&minimal("llama").tensor("rope_freqs.weight", &[2], &[1.0, 3.25]));
    assert_eq!(
        unknown.config()["rope_scaling"],
        serde_json::json!({"rope_type": "freq_factors", "rope_freq_factors": [1.0, 3.25]})
    );
    assert!(unknown.tensor("rope_freqs.weight").is_none(), "it is configuration, not a weight");

    let phi = open(
        &minimal("phi3")
            .u32("phi3.rope.dimension_count", 2)
            .u32("phi3.rope.scaling.original_context_length", 32)
            .f32("phi3.rope.scaling.attn_factor", 1.25)
            .tensor("rope_factors_short.weight", &[1], &[1.0])
            .tensor("rope_factors_long.weight", &[1], &[2.0]),
    );
    assert_eq!(
        phi.config()["rope_scaling"],
        serde_json::json!({"type": "longrope", "short_factor": [1.0], "long_factor": [2.0], "attention_factor": 1.25})
    );
    assert_eq!(phi.config()["partial_rotary_factor"], 0.5);
    assert_eq!(phi.config()["original_max_position_embeddings"], 32);
}

#[test]
fn malformed_files_are_refused_by_name() {
    let valid = minimal("llama").tensor("output_norm.weight", &[8], &[1.0; 8]).bytes();
    let cut = error_of(&valid[..valid.len() - 1]);
    assert!(cut.contains("output_norm.weight: its data ends at byte"), "{cut}");

    let cases: [(GgufWriter, &str); 10] = [
        (minimal("llama").tensor("token_embd.weight", &[1], &[0.0]), "token_embd.weight: two tensors"),
        (minimal("llama").u32("llama.block_count", 2), "llama.block_count: the key occurs twice"),
        (minimal("mamba"), "GGUF architecture \"mamba\" cannot be read"),
        (minimal("llama").u32("general.alignment", 24), "general.alignment: 24 is not a power of two"),
        (minimal("llama").stored("x", &[1, 32], 39, &[0; 64]), "x: GGUF tensor type 39 cannot be read"),
        (minimal("llama").stored("x", &[2, 33], 8, &[0; 128]), "x: rows of 33 values do not fill Q8_0 blocks"),
        (minimal("llama").stored("x", &[u64::MAX, 32], F32, &[0; 4]), "x: shape [18446744073709551615, 32]"),
        (minimal("llama").stored("x", &[1 << 40, 1 << 40], F32, &[0; 4]), "x: shape [1099511627776, 1099511627776]"),
        (minimal("llama").raw("flag", 7, &[2]), "flag: 2 is neither false"),
        (minimal("llama").tensor("blk.0.attn_q.weight", &[7, 8], &[0.0; 56]), "blk.0.attn_q.weight: 7 rows"),
    ];
    for (writer, expected) in cases {
        let message = error_of(&writer.bytes());
        assert!(message.contains(expected), "{message} does not say {expected}");
    }
    let of_version = |version: [u8; 4]| {
        let mut bytes = valid.clone();
        bytes[4..8].copy_from_slice(&version);
        error_of(&bytes)
    };
    assert!(of_version([0, 0, 0, 3]).contains("big-endian"));
    assert!(of_version([4, 0, 0, 0]).contains("GGUF version 4"));
    assert!(error_of(b"\x7fELF something else").contains("does not begin with GGUF"));
    assert!(error_of(b"PK\x03\x04 something else").contains("safetensors"), "a pickle, and what to do with it");
}

#[test]
fn claimed_sizes_beyond_the_file_are_not_believed() {
    let mut counts = b"GGUF\x03\0\0\0".to_vec();
    counts.extend_from_slice(&u64::MAX.to_le_bytes());
    counts.extend_from_slice(&[0; 64]);
    assert!(error_of(&counts).contains("claims 18446744073709551615 items"));

    let array = |item_type: u32, count: u64| {
        let mut payload = item_type.to_le_bytes().to_vec();
        payload.extend_from_slice(&count.to_le_bytes());
        minimal("llama").raw("list", 9, &payload).bytes()
    };
    assert!(error_of(&array(8, 1 << 60)).contains("list: claims 1152921504606846976 items"));
    assert!(error_of(&array(12, 1 << 61)).contains("list: claims 2305843009213693952 items"));
    let mut nested = Vec::new();
    for _ in 0..9 {
        nested.extend_from_slice(&9u32.to_le_bytes());
        nested.extend_from_slice(&1u64.to_le_bytes());
    }
    assert!(error_of(&minimal("llama").raw("list", 9, &nested).bytes()).contains("nested more than 4 deep"));
}

/// The tiny tokenizers of `tests/fixtures`, written the way GGUF stores them.
fn with_tokenizer(family: &str, writer: GgufWriter) -> (GgufWriter, Vec<serde_json::Value>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny").join(family);
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(folder.join(name)).expect(name)).expect(name)
    };
    let tokenizer = json("tokenizer.json");
    let mut texts: Vec<(u64, String, i32)> = Vec::new();
    for (text, id) in tokenizer["model"]["vocab"].as_object().expect("vocab") {
        let kind = if text.starts_with("<0x") { 6 } else { 1 };
        texts.push((id.as_u64().expect("id"), text.clone(), kind));
    }
    for token in tokenizer["added_tokens"].as_array().expect("added") {
        let id = token["id"].as_u64().expect("id");
        texts.retain(|(other, _, _)| *other != id);
        let kind = if token["special"] == true { 3 } else { 4 };
        texts.push((id, token["content"].as_str().expect("content").to_owned(), kind));
    }
    texts.sort();
    let tokens: Vec<&String> = texts.iter().map(|(_, text, _)| text).collect();
    let kinds: Vec<i32> = texts.iter().map(|(_, _, kind)| *kind).collect();
    let merges: Vec<String> = tokenizer["model"]["merges"]
        .as_array()
        .expect("merges")
        .iter()
        .map(|pair| format!("{} {}", pair[0].as_str().expect("left"), pair[1].as_str().expect("right")))
        .collect();
    // SentencePiece stores no merges but scores: what is merged first scores best.
    let rank = |text: &String| merges.iter().position(|merge| merge.replacen(' ', "", 1) == **text);
    let scores: Vec<f32> = tokens.iter().map(|text| -(rank(text).unwrap_or(merges.len()) as f32)).collect();
    let writer = writer
        .texts("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", &merges)
        .f32s("tokenizer.ggml.scores", &scores);
    (writer, json("golden.json")["tokenizer_cases"].as_array().expect("cases").clone())
}

#[test]
fn tokenizers_give_the_ids_of_the_original_files() {
    let families = [
        ("smollm2", "gpt2", "smollm", false),
        ("llama", "gpt2", "llama-bpe", true),
        ("qwen2", "gpt2", "qwen2", false),
        ("gemma3", "llama", "default", true),
    ];
    for (family, model, pre, add_bos) in families {
        let (writer, cases) = with_tokenizer(family, minimal("llama"));
        let bos = if family == "gemma3" { 2 } else { 0 };
        let writer = writer
            .text("tokenizer.ggml.model", model)
            .text("tokenizer.ggml.pre", pre)
            .bool("tokenizer.ggml.add_bos_token", add_bos)
            .bool("tokenizer.ggml.add_space_prefix", false)
            .u32("tokenizer.ggml.bos_token_id", bos);
        let json = open(&writer).tokenizer_json().expect(family);
        let tokenizer = tokenizers::Tokenizer::from_bytes(json).expect(family);
        for case in &cases {
            let text = case["text"].as_str().expect("text");
            let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).expect("ids");
            let encoding = tokenizer.encode(text, true).expect("encode");
            assert_eq!(encoding.get_ids(), expected, "{family}: {text:?}");
        }
    }
}

#[test]
fn control_tokens_are_matched_but_never_merged() {
    let tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁ab", "<end_of_turn>", "  "];
    let writer = minimal("llama")
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &[2, 3, 3, 1, 1, 1, 3, 1, 3, 4])
        .f32s("tokenizer.ggml.scores", &[0.0; 10])
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.unknown_token_id", 0);
    let checkpoint = open(&writer);
    let special = checkpoint.special_tokens();
    assert_eq!(special.eos_ids, [2, 8], "the named one and the end of a turn");
    assert_eq!((special.bos_id, special.add_bos), (Some(1), Some(true)));
    assert_eq!(special.unk_token.as_deref(), Some("<unk>"));
    let json: serde_json::Value =
        serde_json::from_slice(&checkpoint.tokenizer_json().expect("tokenizer")).expect("JSON");
    assert_eq!(json["model"]["merges"], serde_json::json!([]), "\"ab\" is a control token here");
    let added: Vec<(&str, bool)> = json["added_tokens"]
        .as_array()
        .expect("list")
        .iter()
        .map(|t| (t["content"].as_str().expect("text"), t["special"] == true))
        .collect();
    assert_eq!(
        added,
        [("<unk>", true), ("<s>", true), ("</s>", true), ("ab", true), ("<end_of_turn>", true), ("  ", false)]
    );
}

#[test]
fn ids_outside_the_vocabulary_and_uneven_lists_are_refused() {
    let base = || minimal("llama").text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", &["a", "b"]);
    let message = error_of(&base().u32("tokenizer.ggml.eos_token_id", 2).bytes());
    assert!(message.contains("2 is outside the vocabulary of 2"), "{message}");
    let message = error_of(&base().i32s("tokenizer.ggml.token_type", &[1]).bytes());
    assert!(message.contains("1 types for 2 tokens"), "{message}");
    let no_scores = open(&base()).tokenizer_json().expect_err("no scores").to_string();
    assert!(no_scores.contains("tokenizer.ggml.scores: missing"), "{no_scores}");
    let unknown = minimal("llama").text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", &["a"]);
    let unknown = open(&unknown.text("tokenizer.ggml.pre", "martian")).tokenizer_json().expect_err("pre").to_string();
    assert!(unknown.contains("\"martian\" is not known"), "{unknown}");
}

/// Everything that can be asked of a file that opened. Nothing here may panic.
fn exercise(path: &Path) {
    let Ok(checkpoint) = Checkpoint::open(path) else { return };
    for entry in checkpoint.tensors() {
        let mut row = vec![0.0; entry.row_len()];
        for row_index in [0, entry.rows() - 1] {
            checkpoint.read_rows(&entry.name, row_index..row_index + 1, &mut row).expect("checked on opening");
        }
    }
    if let Ok(json) = checkpoint.tokenizer_json() {
        let _parsed: serde_json::Value = serde_json::from_slice(&json).expect("valid JSON");
    }
}

fn small_file() -> Vec<u8> {
    minimal("llama")
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &["<unk>", "<s>", "ab", "a", "b"])
        .i32s("tokenizer.ggml.token_type", &[2, 3, 1, 1, 1])
        .f32s("tokenizer.ggml.scores", &[0.0, 0.0, -1.0, -2.0, -3.0])
        .u32("tokenizer.ggml.bos_token_id", 1)
        .tensor("blk.0.attn_q.weight", &[8, 8], &[0.25; 64])
        .stored("blk.0.ffn_down.weight", &[2, 32], 8, &[1; 68])
        .bytes()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bits_never_panic(flips in proptest::collection::vec((0usize..2000, 0u8..8), 1..4)) {
        let mut bytes = small_file();
        for (position, bit) in flips {
            let position = position % bytes.len();
            bytes[position] ^= 1 << bit;
        }
        let (_dir, path) = gguf::write(&bytes);
        exercise(&path);
    }

    #[test]
    fn random_bytes_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..300), valid in 0usize..400) {
        let mut bytes = small_file();
        bytes.truncate(valid);
        bytes.extend_from_slice(&tail);
        let (_dir, path) = gguf::write(&bytes);
        exercise(&path);
    }
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = small_file();
    for len in 0..bytes.len() {
        let (_dir, path) = gguf::write(&bytes[..len]);
        assert!(Checkpoint::open(&path).is_err(), "cut to {len} of {} bytes", bytes.len());
    }
}
