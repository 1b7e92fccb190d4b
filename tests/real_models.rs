//! Promise: real models answer as their reference does, from the downloaded file to the last token. Needs them: run
//! `.ci/fetch-models`.

mod support;

use etgenai::chat::{EncodeOptions, Message};
use etgenai::checkpoint::Checkpoint;
use etgenai::compile::{CompileOptions, Flow as CompileFlow, compile_checkpoint};
use etgenai::formats::WeightFormat;
use etgenai::runner::{EvalOptions, Flow, GenerateOptions, Runner, RunnerOptions, SamplingOptions, StopReason};
use half::f16;
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

fn goldens(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/smollm2").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn words<T>(tensors: &SafeTensors<'_>, name: &str, read: impl Fn([u8; 4]) -> T) -> Vec<T> {
    let data = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).data();
    data.chunks_exact(4).map(|b| read([b[0], b[1], b[2], b[3]])).collect()
}

/// A model of the test's folder, compiled and open; the directory must outlive the runner.
fn open(checkpoint: &Path, weights: WeightFormat, context: usize, block: usize) -> (TempDir, Runner) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let out = directory.path().join("model");
    let options =
        CompileOptions { max_context: Some(context), prefill_ar: Some(block), ..CompileOptions::new(weights) };
    let checkpoint = Checkpoint::open(checkpoint).expect("a checkpoint");
    compile_checkpoint(&checkpoint, &out, &options, &mut |_| CompileFlow::Continue).expect("compiles");
    let runner = Runner::open(&out, &RunnerOptions::default()).expect("a runner");
    (directory, runner)
}

fn greedy(max_new_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_new_tokens: Some(max_new_tokens), ..Default::default() }
}

fn ask(runner: &mut Runner, question: &str) -> String {
    runner.generate(&[Message::user(question)], &greedy(40), &mut |_| Flow::Continue).expect("a reply").text
}

fn messages_of(chat: &Value) -> Vec<Message> {
    let messages = chat["messages"].as_array().expect("messages");
    let text = |message: &Value| message["content"].as_str().expect("content").to_string();
    let convert = |message: &Value| match message["role"].as_str() {
        Some("system") => Message::system(text(message)),
        Some("assistant") => Message::assistant(text(message)),
        _ => Message::user(text(message)),
    };
    messages.iter().map(convert).collect()
}

#[test]
fn smollm2_gives_the_reference_tokens_and_perplexity() {
    let (_directory, mut runner) = open(&support::model(SMOLLM2), WeightFormat::F32, 2048, 32);
    let bytes = goldens("golden.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).expect("golden.safetensors");
    let chats: Value = serde_json::from_slice(&goldens("golden.json")).expect("golden.json");
    for name in ["france", "multiturn", "unicode"] {
        let ids = |kind: &str| words(&tensors, &format!("{name}.{kind}"), u32::from_le_bytes);
        let messages = messages_of(&chats["chats"][name]);
        runner.reset();
        assert_eq!(runner.encode(&messages).expect("a prompt"), ids("prompt_ids"), "{name}");
        let reply = runner.generate(&messages, &greedy(64), &mut |_| Flow::Continue).expect("a reply");
        let mut expected = ids("greedy_ids");
        if reply.stop_reason == StopReason::Eos {
            expected.pop();
        }
        assert_eq!(reply.tokens, expected, "{name}");
    }

    let text = String::from_utf8(goldens("text.txt")).expect("UTF-8");
    let options = EncodeOptions { add_bos: false, parse_special: false };
    let tokens = runner.tokenizer().encode(&text, options).expect("ids");
    assert_eq!(tokens, words(&tensors, "text_ids", u32::from_le_bytes));
    let result =
        runner.evaluate(&tokens, &EvalOptions { window: 512, full_windows_only: false }, &mut |_| Flow::Continue);
    let perplexity = result.expect("a perplexity").perplexity;
    assert!((perplexity / 22.924 - 1.0).abs() < 1e-3, "{perplexity}");
}

/// The goldens were computed from weights rounded to f16, so the logits are compared with such a checkpoint.
#[test]
fn smollm2_gives_the_reference_logits() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    write_as_f16(&support::model(SMOLLM2), folder.path());
    let (_directory, mut runner) = open(folder.path(), WeightFormat::F32, 256, 32);
    let bytes = goldens("golden.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).expect("golden.safetensors");
    runner.prefill_prompt(&words(&tensors, "france.prompt_ids", u32::from_le_bytes)).expect("prefill");
    let logits = runner.logits().expect("logits");
    for (found, expected) in logits.iter().zip(words(&tensors, "france.last_logits", f32::from_le_bytes)) {
        assert!((found - expected).abs() < 1e-3, "{found} instead of {expected}");
    }
}

/// A GGUF file as a Hugging Face folder with f16 weights.
fn write_as_f16(gguf: &Path, folder: &Path) {
    let checkpoint = Checkpoint::open(gguf).expect("a checkpoint");
    let tensors = checkpoint.tensors().map(|tensor| {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        checkpoint.read_rows(&tensor.name, 0..tensor.rows(), &mut values).expect("rows");
        let bytes: Vec<u8> = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        (tensor.name.clone(), tensor.shape.clone(), bytes)
    });
    let tensors: Vec<_> = tensors.collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F16, shape.clone(), bytes);
        (name, view.expect("a view"))
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).expect("written");
    let config = serde_json::to_vec(checkpoint.config()).expect("JSON");
    std::fs::write(folder.join("config.json"), config).expect("written");
    std::fs::write(folder.join("tokenizer.json"), checkpoint.tokenizer_json().expect("a tokenizer")).expect("written");
}

#[test]
fn smollm2_in_4_bits_knows_the_capitals() {
    let (_directory, mut runner) = open(&support::model(SMOLLM2), WeightFormat::W4, 512, 32);
    assert!(ask(&mut runner, "What is the capital of France?").contains("Paris"));
    assert!(ask(&mut runner, "And of Italy?").contains("Rome"));

    // The file is 4-bit already: nothing is lost on the way.
    let text = String::from_utf8(goldens("text.txt")).expect("UTF-8");
    let tokens = runner.tokenizer().encode(&text, EncodeOptions::default()).expect("ids");
    let options = EvalOptions { window: 512, full_windows_only: true };
    let perplexity = runner.evaluate(&tokens, &options, &mut |_| Flow::Continue).expect("a perplexity").perplexity;
    assert!((perplexity / 23.366 - 1.0).abs() < 2e-3, "{perplexity}");
}

#[test]
fn gemma3_crosses_its_sliding_window_whatever_the_block() {
    let text = String::from_utf8(goldens("text.txt")).expect("UTF-8");
    let mut reference: Option<(Vec<f32>, Vec<u32>)> = None;
    for block in [1, 32, 100] {
        let (_directory, mut runner) = open(&support::model(GEMMA3), WeightFormat::F32, 1024, block);
        let tokens = runner.tokenizer().encode(&text, EncodeOptions { add_bos: true, parse_special: false });
        let prompt = tokens.expect("ids")[..700].to_vec();
        runner.prefill_prompt(&prompt).expect("prefill");
        let logits = runner.logits().expect("logits").to_vec();
        let mut continuation = Vec::new();
        for _ in 0..12 {
            let token = runner.sample(&SamplingOptions::default()).expect("a token");
            continuation.push(token);
            runner.decode(token).expect("a step");
        }
        let Some((expected, text)) = &reference else {
            let options = EvalOptions { window: 700, full_windows_only: true };
            let perplexity = runner.evaluate(&prompt, &options, &mut |_| Flow::Continue).expect("a perplexity");
            assert!(perplexity.perplexity < 30.0, "a known text surprises: {perplexity:?}");
            reference = Some((logits, continuation));
            continue;
        };
        let db = support::sqnr(&logits, expected);
        assert!(db >= 90.0, "block {block}: {db:.1} dB");
        assert_eq!(continuation, *text, "block {block}");
    }
}
