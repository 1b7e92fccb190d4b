//! Promise: the real files people download are read right. Needs them: run `.ci/fetch-models`.

mod support;

use etgenai::checkpoint::{Checkpoint, CheckpointKind, StorageType};
use safetensors::SafeTensors;
use std::path::Path;
use std::time::{Duration, Instant};
use support::model;
use tokenizers::Tokenizer;

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn tokenizer(checkpoint: &Checkpoint) -> Tokenizer {
    Tokenizer::from_bytes(checkpoint.tokenizer_json().expect("tokenizer.json")).expect("a valid tokenizer")
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, false).expect("encode").get_ids().to_vec()
}

#[test]
fn smollm2_is_presented_as_the_original_model() {
    let checkpoint = Checkpoint::open(&model(SMOLLM2)).expect("SmolLM2");
    assert_eq!(checkpoint.kind(), CheckpointKind::Gguf);
    let config = checkpoint.config();
    let sizes = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"];
    assert_eq!(sizes.map(|key| config[key].as_u64()), [49152, 576, 1536, 30, 9].map(Some));
    assert_eq!(config["rms_norm_eps"], 1e-5);
    assert_eq!(config["tie_word_embeddings"], true);
    assert!(checkpoint.chat_template().is_some_and(|t| t.contains("<|im_start|>")));
    let special = checkpoint.special_tokens();
    assert_eq!((special.bos_id, special.add_bos), (Some(1), Some(false)));
    assert!(special.eos_ids.contains(&2), "{:?}", special.eos_ids);

    assert_eq!(checkpoint.tensors().count(), 2 + 30 * 9);
    assert!(checkpoint.tensors().all(|t| t.name.starts_with("model.")), "every tensor has its Hugging Face name");
    let down = checkpoint.tensor("model.layers.29.mlp.down_proj.weight").expect("down_proj");
    assert_eq!((down.shape.as_slice(), down.storage), (&[576, 1536][..], StorageType::Q4_1));
    let mut row = vec![0.0; 576];
    checkpoint.read_rows("model.embed_tokens.weight", 49151..49152, &mut row).expect("last row");
    assert!(row.iter().any(|v| *v != 0.0) && row.iter().all(|v| v.abs() < 10.0));
}

/// A row as the `gguf` Python package decodes it, in Hugging Face row order: its first values and the sum of all
/// magnitudes.
struct ReferenceRow {
    tensor: &'static str,
    row: usize,
    storage: StorageType,
    first: [f32; 4],
    magnitude: f64,
}

fn assert_rows(checkpoint: &Checkpoint, rows: &[ReferenceRow]) {
    for ReferenceRow { tensor, row, storage, first, magnitude } in rows {
        let entry = checkpoint.tensor(tensor).unwrap_or_else(|| panic!("no {tensor}"));
        assert_eq!(entry.storage, *storage, "{tensor}");
        let mut values = vec![0.0; entry.row_len()];
        checkpoint.read_rows(tensor, *row..row + 1, &mut values).expect(tensor);
        for (value, expected) in values.iter().zip(first) {
            assert!((value - expected).abs() <= 1e-7, "{tensor}: {:?} instead of {first:?}", &values[..4]);
        }
        let sum: f64 = values.iter().map(|v| f64::from(v.abs())).sum();
        assert!((sum / magnitude - 1.0).abs() < 1e-6, "{tensor}: magnitudes sum to {sum} instead of {magnitude}");
    }
}

#[test]
fn smollm2_rows_are_those_of_the_reference_decoder() {
    let row = |tensor, row, storage, first, magnitude| ReferenceRow { tensor, row, storage, first, magnitude };
    use StorageType::{Q4_1, Q8_0};
    assert_rows(
        &Checkpoint::open(&model(SMOLLM2)).expect("SmolLM2"),
        &[
            row(
                "model.embed_tokens.weight",
                7042,
                Q8_0,
                [-0.09188652, -0.053_294_18, 0.009188652, 0.023890495],
                40.975382804870605,
            ),
            row(
                "model.layers.5.self_attn.q_proj.weight",
                70,
                Q4_1,
                [0.06555176, -0.19299316, 0.10864258, 0.06555176],
                63.270233154296875,
            ),
            row(
                "model.layers.29.self_attn.k_proj.weight",
                150,
                Q4_1,
                [-0.024261475, -0.29492188, -0.14025879, 0.13040161],
                61.6492919921875,
            ),
            row(
                "model.layers.12.mlp.down_proj.weight",
                3,
                Q4_1,
                [0.2003479, 0.050567627, -0.061767578, -0.061767578],
                177.91790771484375,
            ),
        ],
    );
}

#[test]
fn gemma3_rows_are_those_of_the_reference_decoder() {
    let row = |tensor, row, storage, first, magnitude| ReferenceRow { tensor, row, storage, first, magnitude };
    use StorageType::{F32, Q4_K, Q5_0, Q6_K, Q8_0};
    assert_rows(
        &Checkpoint::open(&model(GEMMA3)).expect("Gemma 3"),
        &[
            row(
                "model.layers.0.self_attn.q_proj.weight",
                1000,
                Q5_0,
                [0.01638794, -0.0027313232, 0.0027313232, -0.0027313232],
                10.447647094726562,
            ),
            row(
                "model.layers.0.self_attn.o_proj.weight",
                600,
                Q4_K,
                [-0.024540186, 0.03431821, -0.063779116, 0.04412794],
                31.45733141899109,
            ),
            row(
                "model.layers.0.mlp.down_proj.weight",
                321,
                Q6_K,
                [-0.007955074, -0.0066292286, -0.0066292286, -0.019887686],
                35.45618897676468,
            ),
            row(
                "model.layers.0.self_attn.v_proj.weight",
                255,
                Q8_0,
                [0.07305908, -0.06849289, -0.0053272247, 0.013698578],
                18.517070770263672,
            ),
            // Stored with one added; the original is what the reference gives less one.
            row(
                "model.layers.3.post_feedforward_layernorm.weight",
                0,
                F32,
                [0.3984375, 0.828125, 10.0, 2.328125],
                7948.169494628906,
            ),
        ],
    );
}

#[test]
fn smollm2_tokenizes_like_the_original() {
    let tokenizer = tokenizer(&Checkpoint::open(&model(SMOLLM2)).expect("SmolLM2"));
    let fixtures = root().join("tests/fixtures/smollm2");
    let golden: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixtures.join("golden.json")).expect("golden")).expect("golden");
    for case in golden["tokenizer_cases"].as_array().expect("cases") {
        let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).expect("ids");
        let text = case["text"].as_str().expect("text");
        assert_eq!(ids(&tokenizer, text), expected, "{text:?}");
    }
    let bytes = std::fs::read(fixtures.join("golden.safetensors")).expect("golden");
    let golden = SafeTensors::deserialize(&bytes).expect("golden");
    let text_ids = golden.tensor("text_ids").expect("text_ids");
    let expected: Vec<u32> = text_ids.data().as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let text = std::fs::read_to_string(fixtures.join("text.txt")).expect("text");
    assert_eq!(expected.len(), 3046);
    assert_eq!(ids(&tokenizer, &text), expected);
}

#[test]
fn gemma3_is_presented_as_the_original_model() {
    let checkpoint = Checkpoint::open(&model(GEMMA3)).expect("Gemma 3");
    let config = checkpoint.config();
    assert_eq!(config["model_type"], "gemma3_text");
    let sizes = ["vocab_size", "hidden_size", "head_dim", "num_hidden_layers", "num_key_value_heads", "sliding_window"];
    assert_eq!(sizes.map(|key| config[key].as_u64()), [262144, 640, 256, 18, 1, 512].map(Some));
    assert_eq!(config["query_pre_attn_scalar"], 256);
    assert_eq!(config["rope_theta"], 1e6);
    let special = checkpoint.special_tokens();
    assert_eq!((special.bos_token.as_deref(), special.bos_id, special.add_bos), (Some("<bos>"), Some(2), Some(true)));
    assert!([1, 106].iter().all(|id| special.eos_ids.contains(id)), "{:?}", special.eos_ids);
    assert!(checkpoint.tensors().all(|t| t.name.starts_with("model.")), "every tensor has its Hugging Face name");
    for entry in checkpoint.tensors() {
        let mut row = vec![f32::NAN; entry.row_len()];
        checkpoint.read_rows(&entry.name, entry.rows() - 1..entry.rows(), &mut row).expect("last row");
        assert!(row.iter().all(|v| v.is_finite()), "{}", entry.name);
    }
}

#[test]
fn gemma3_tokenizer_is_built_quickly_and_round_trips() {
    let checkpoint = Checkpoint::open(&model(GEMMA3)).expect("Gemma 3");
    let start = Instant::now();
    let json = checkpoint.tokenizer_json().expect("tokenizer.json");
    let elapsed = start.elapsed();
    // Two seconds on an idle machine; the limit leaves room for a busy one.
    assert!(elapsed < Duration::from_secs(10), "building took {elapsed:?}");
    eprintln!("tokenizer.json of 262144 tokens: {} bytes in {elapsed:?}", json.len());
    let tokenizer = Tokenizer::from_bytes(json).expect("a valid tokenizer");
    // Ids that every Gemma 3 tokenizer gives.
    assert_eq!(ids(&tokenizer, "<start_of_turn>user\nHello<end_of_turn>"), [105, 2364, 107, 9259, 106]);
    let text = std::fs::read_to_string(root().join("tests/fixtures/smollm2/text.txt")).expect("text");
    let texts = [
        text.as_str(),
        "a  2   spaces    of\n\n\nevery\tlength ",
        " leading, 12345 and 3.14",
        "émigré 你好 👍🏽 na\u{308}ive \u{0} \u{ff} \u{1F468}\u{200D}\u{1F469}",
        "fn main() {\n        println!(\"{}\", 1 << 5);\n}\r\n",
    ];
    for text in texts {
        let encoded = ids(&tokenizer, text);
        assert!(encoded.len() < text.len(), "merging happened");
        assert_eq!(tokenizer.decode(&encoded, false).expect("decode"), text);
    }
}
