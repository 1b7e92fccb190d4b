//! Promise: the demo model, quantized as a whole, answers as it did: about one picture, about several, in blocks and token by
//! token, and compiled for the CPU engine. Needs easy-VQA's test pictures: run `.ci/fetch-models easy-vqa`.
//!
//! A part of the test questions is asked here, which takes minutes; `etgenai eval --suite demo` asks all of them.

#[path = "support/quantized.rs"]
mod quantized;

use etgenai::chat::{Message, Part, Role};
use etgenai::checkpoint::Checkpoint;
use etgenai::compile::{
    CompileOptions, Flow as CompileFlow, QuantizedCompileOptions, compile_checkpoint, compile_quantized,
};
use etgenai::formats::WeightFormat;
use etgenai::media::{DecodeOptions, Image};
use etgenai::pipeline::open_runner;
use etgenai::quantize::{EncoderPrecision, ModelMode, QuantDtype, QuantizeOptions};
use etgenai::runner::{Flow, GenerateOptions, Runner, RunnerOptions};
use quantized::{conversations, decoder_options, quantize_into, sizes};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::TempDir;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Longer than any conversation of the suite.
const CONTEXT: usize = 320;
/// One picture in so many is asked about.
const EVERY_PICTURE: u32 = 8;
/// Every so many-th conversation of each kind is held.
const EVERY_CONVERSATION: usize = 3;
/// Kinds of conversations, which take turns in the suite.
const KINDS: usize = 9;

fn root(path: &str) -> PathBuf {
    Path::new(ROOT).join(path)
}

/// What was asked and what was right to say.
struct Questions {
    /// Question, answer, number of the picture.
    single: Vec<(String, String, u32)>,
    /// Turns of each.
    several: Vec<Vec<Value>>,
}

impl Questions {
    fn open() -> Self {
        let path = root(".deps/easy-vqa/easy_vqa/data/test/questions.json");
        assert!(path.is_file(), "{} is missing: run .ci/fetch-models", path.display());
        let mut single: Vec<(String, String, u32)> = read(&path);
        single.retain(|(.., picture)| picture % EVERY_PICTURE == 0);
        single.sort_by_key(|&(.., picture)| picture);
        let suite: Value = read(&root("src/cli/demo/assets/suite.json"));
        let all = suite["conversations"].as_array().expect("conversations").iter();
        let asked = all.enumerate().filter(|(at, _)| (at / KINDS).is_multiple_of(EVERY_CONVERSATION));
        let several = asked.map(|(_, one)| one["turns"].as_array().expect("turns").clone()).collect();
        Self { single, several }
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn picture(number: u64) -> Image {
    let path = root(&format!(".deps/easy-vqa/easy_vqa/data/test/images/{number}.png"));
    Image::open(&path, &DecodeOptions::default()).expect("a picture")
}

fn ask(runner: &mut Runner, pictures: Vec<Image>, text: &str) -> String {
    let mut parts: Vec<Part> = pictures.into_iter().map(Part::Image).collect();
    parts.push(Part::Text(text.into()));
    let greedy = GenerateOptions { max_new_tokens: Some(16), ..GenerateOptions::default() };
    let reply = runner.generate(&[Message { role: Role::User, parts }], &greedy, &mut |_| Flow::Continue);
    reply.expect("a reply").text.trim().trim_end_matches('.').to_lowercase()
}

/// What a model said, and how much of it was right.
struct Answers {
    said: Vec<String>,
    /// Percent, of questions about one picture.
    single: f64,
    /// Percent, of questions about several.
    several: f64,
}

fn answers(directory: &Path) -> Answers {
    let questions = Questions::open();
    let mut runner = open_runner(directory, &RunnerOptions::default()).expect("opens");
    let (mut said, mut right) = (Vec::new(), 0);
    for (text, answer, number) in &questions.single {
        runner.reset();
        let reply = ask(&mut runner, vec![picture((*number).into())], text);
        right += usize::from(reply == *answer);
        said.push(reply);
    }
    let single = percent(right, questions.single.len());
    let (mut right, mut scored) = (0, 0);
    for turns in &questions.several {
        runner.reset();
        for turn in turns {
            let numbers = turn["images"].as_array().expect("images").iter().filter_map(Value::as_u64);
            let reply = ask(&mut runner, numbers.map(picture).collect(), turn["text"].as_str().expect("a text"));
            if turn["scored"] == true {
                scored += 1;
                right += usize::from(reply == turn["answer"].as_str().expect("an answer").to_lowercase());
            }
            said.push(reply);
        }
    }
    let several = percent(right, scored);
    println!("{}: one picture {single:.2} %, several {several:.2} %", directory.display());
    Answers { said, single, several }
}

fn percent(right: usize, of: usize) -> f64 {
    assert!(of > 200, "only {of} questions");
    100.0 * right as f64 / of as f64
}

/// What the model says in floats.
fn float() -> &'static Answers {
    static FLOAT: OnceLock<Answers> = OnceLock::new();
    FLOAT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().join("float");
        let checkpoint = Checkpoint::open(&root("src/cli/demo/assets/model")).expect("the demo's checkpoint");
        let options = CompileOptions::new(WeightFormat::F32);
        compile_checkpoint(&checkpoint, &out, &options, &mut |_| CompileFlow::Continue).expect("compiles");
        answers(&out)
    })
}

/// The demo model with these integers in the decoder, and 16a8w in the encoder.
fn quantized(dtype: QuantDtype, mode: ModelMode) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("quantized");
    let options = QuantizeOptions { encoder: EncoderPrecision::Quantized, ..decoder_options(dtype, 32) };
    let data = conversations(&root("tests/fixtures/demo-calibration/samples.json"), CONTEXT);
    quantize_into(&root("src/cli/demo/assets/model"), &sizes(CONTEXT, 32, mode), &data, &options, &out)
        .expect("quantizes");
    (folder, out)
}

/// Compare with the float model: points that may be lost with one picture, and with several.
fn loses_at_most(found: &Answers, single: f64, several: f64) {
    let float = float();
    assert!(float.single >= 99.0 && float.several >= 90.0, "{} and {}", float.single, float.several);
    assert!(found.single >= float.single - single, "one picture: {} of {}", found.single, float.single);
    assert!(found.several >= float.several - several, "several pictures: {} of {}", found.several, float.several);
}

fn agreement(a: &Answers, b: &Answers) -> f64 {
    assert_eq!(a.said.len(), b.said.len());
    percent(a.said.iter().zip(&b.said).filter(|(a, b)| a == b).count(), a.said.len())
}

#[test]
#[ignore = "takes minutes: tests/run-all --slow"]
fn eight_bit_weights_in_encoder_and_decoder_lose_no_answers() {
    let (_folder, out) = quantized(QuantDtype::A16W8, ModelMode::Hybrid);
    let found = answers(&out);
    loses_at_most(&found, 0.5, 1.0);

    let (_folder, token_by_token) = quantized(QuantDtype::A16W8, ModelMode::Kv);
    let agree = agreement(&found, &answers(&token_by_token));
    assert!(agree >= 99.5, "{agree} % of the answers are the same token by token");
}

#[test]
#[ignore = "takes minutes: tests/run-all --slow"]
fn blocks_of_four_bit_weights_lose_few_answers_also_on_the_cpu_engine() {
    let (folder, out) = quantized(QuantDtype::A16W4Block, ModelMode::Hybrid);
    let found = answers(&out);
    loses_at_most(&found, 1.5, 1.0);

    let compiled = folder.path().join("compiled");
    compile_quantized(&out, &compiled, &QuantizedCompileOptions::default(), &mut |_| CompileFlow::Continue)
        .expect("compiles");
    let on_cpu = answers(&compiled);
    loses_at_most(&on_cpu, 1.5, 1.0);
    let agree = agreement(&found, &on_cpu);
    assert!(agree >= 99.0, "{agree} % of the answers are the same on the CPU engine");
}
