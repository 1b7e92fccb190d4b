//! The promise: `etgenai run-pte` runs what upstream's exporter makes, through the real ExecuTorch runtime, and writes
//! what upstream's runners write.
//!
//! Needs `.ci/fetch-executorch`. What does not depend on the engine is tested in `run_pte.rs`.

mod executorch_engine;

use etgenai::chat::{Message, Part, Role};
use etgenai::engine::{ComponentSource, Engine};
use etgenai::media::{DecodeOptions, Image};
use etgenai::runner::{Flow, GenerateOptions, ModelFiles, Runner, RunnerOptions};
use executorch_engine::{engine, fixture, library, qnn_library_dir};
use safetensors::SafeTensors;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Run `etgenai run-pte` in `folder`.
fn run(folder: &Path, arguments: &[String]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_etgenai"));
    command.arg("run-pte").args(arguments).current_dir(folder).stdin(Stdio::null());
    command.arg("--engine_library").arg(library()).arg("--qnn_library_dir").arg(qnn_library_dir());
    command.output().expect("the command starts")
}

/// Run with success; gives standard output.
fn ok(folder: &Path, arguments: &[String]) -> String {
    let output = run(folder, arguments);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {}\n{log}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn flag(name: &str, value: impl AsRef<Path>) -> String {
    format!("--{name}={}", value.as_ref().display())
}

fn text_model(set: &str, file: &str) -> Vec<String> {
    vec![
        flag("model_path", fixture("pte").join(set).join(file)),
        flag("tokenizer_path", fixture("tiny/smollm2/tokenizer.json")),
        "--decoder_model_version=smollm2_135m".into(),
    ]
}

fn words(path: &Path, name: &str) -> Vec<[u8; 4]> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let data = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}")).data();
    data.chunks_exact(4).map(|word| word.try_into().expect("four bytes")).collect()
}

fn ids(path: &Path, name: &str) -> Vec<u32> {
    words(path, name).into_iter().map(u32::from_le_bytes).collect()
}

/// Prompt ids of the golden file in kv mode: the logits file holds the emulator's levels, the reply its greedy ids.
#[test]
fn logits_and_ids_are_the_emulators() {
    let folder = TempDir::new().expect("a temporary folder");
    let model = fixture("pte/smollm2_kv_16a8w/kv_llama_qnn.pte");
    let prompt = ids(&fixture("tiny/smollm2/golden.safetensors"), "prompt_ids");
    let greedy = ids(&model.with_file_name("emulator.safetensors"), "greedy_ids");
    let bytes: Vec<u8> = prompt.iter().flat_map(|&id| u64::from(id).to_le_bytes()).collect();
    fs::write(folder.path().join("ids"), bytes).expect("a file");
    let mut arguments = text_model("smollm2_kv_16a8w", "kv_llama_qnn.pte");
    let seq_len = format!("--seq_len={}", prompt.len() + greedy.len());
    arguments.extend(
        ["--tokenized_prompt=ids", "--eval_mode=0", "--dump_logits_path=logits", &seq_len, "--json"].map(String::from),
    );
    let document: Value = serde_json::from_str(&ok(folder.path(), &arguments)).expect("nothing but one JSON document");
    let sampled: Vec<u32> = serde_json::from_value(document["turns"][0]["tokens"].clone()).expect("ids");
    assert_eq!(sampled, greedy);

    let component = engine().load_file(&model).expect("loads");
    let constants = component.constants();
    let scale = constants.real("get_logits_scale").unwrap().expect("a scale") as f32;
    let zero = constants.integer("get_logits_zero_point").unwrap().expect("a zero point") as f32;
    let levels = fs::read(folder.path().join("logits")).expect("the logits file");
    let real = |level: &[u8]| (f32::from(u16::from_le_bytes([level[0], level[1]])) - zero) * scale;
    let logits: Vec<f32> = levels.chunks_exact(2).map(real).collect();
    let expected = words(&model.with_file_name("emulator.safetensors"), "logits");
    let expected: Vec<f32> = expected.into_iter().map(f32::from_le_bytes).collect();
    let vocabulary = expected.len() / prompt.len();
    assert_eq!(logits.len(), (prompt.len() + greedy.len() - 1) * vocabulary, "a row for each token but the last");
    assert!(logits[..expected.len()] == expected[..], "the logits of the prompt differ");
}

#[test]
fn modes_give_the_same_conversation() {
    let folder = TempDir::new().expect("a temporary folder");
    let said = |mode: &str| {
        let mut arguments = text_model("smollm2_hybrid_16a4w_kv8", "hybrid_llama_qnn.pte");
        arguments.extend(["--prompt=Hello there", "--seq_len=40", mode].map(String::from));
        let out = ok(folder.path(), &arguments);
        assert!(out.contains("PyTorchObserver {\"prefill_token_per_sec\":"), "{out}");
        fs::read(folder.path().join("outputs.txt")).expect("the output file")
    };
    let hybrid = said("--eval_mode=1");
    let formatted = b"<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n\n";
    assert!(hybrid.starts_with(formatted) && hybrid.len() > formatted.len());
    assert_eq!(said("--eval_mode=0"), hybrid);
}

/// The parts of a vision-language set.
struct VisionSet {
    encoder: PathBuf,
    embedding: PathBuf,
    decoder: PathBuf,
    mode: &'static str,
}

impl VisionSet {
    fn all() -> [Self; 2] {
        [("smolvlm_hybrid_16a8w", "hybrid", "--eval_mode=1"), ("smolvlm_kv_16a8w_fp16enc", "kv", "--eval_mode=0")].map(
            |(set, decoder, mode)| {
                let file = |name: &str| fixture("pte").join(set).join(name);
                let decoder = file(&format!("{decoder}_llama_qnn.pte"));
                let (encoder, embedding) = (file("vision_encoder_qnn.pte"), file("tok_embedding_qnn.pte"));
                Self { encoder, embedding, decoder, mode }
            },
        )
    }

    fn arguments(&self, more: &[&str]) -> Vec<String> {
        let mut arguments = vec![
            flag("encoder_path", &self.encoder),
            flag("tok_embedding_path", &self.embedding),
            flag("decoder_path", &self.decoder),
            "--decoder_model_version=smolvlm".into(),
            self.mode.into(),
        ];
        arguments.extend(more.iter().map(ToString::to_string));
        arguments
    }

    /// A runner over the same files, with the same prompt format.
    fn runner(&self, tokenizer: &Path) -> Runner {
        let mut files = ModelFiles::new(&self.decoder, tokenizer);
        files.set(ComponentSource::file("vision_encoder", &self.encoder)).expect("a component");
        files.set(ComponentSource::file("tok_embedding", &self.embedding)).expect("a component");
        let options = RunnerOptions { template: Some("upstream:smolvlm".into()), ..RunnerOptions::default() };
        Runner::open_files(&files, &engine(), &options).expect("opens")
    }
}

const PICTURES: [&str; 3] = ["media/rgb_97x61.png", "media/rgb_45x130.png", "media/gray_33x47.png"];

fn pictures() -> [Image; 3] {
    PICTURES.map(|name| Image::open(&fixture(name), &DecodeOptions::default()).expect("a picture"))
}

/// What the prompts `<image><image>Hi` and `and <image>?` mean.
fn messages() -> [Message; 2] {
    let [a, b, c] = pictures().map(Part::Image);
    let text = |text: &str| Part::Text(text.into());
    [vec![a, b, text("Hi")], vec![text("and "), c, text("?")]].map(|parts| Message { role: Role::User, parts })
}

/// The tokenizer's files with `id` as the only end token beside the format's own.
fn tokenizer_ending_at(id: u32, folder: &Path) {
    fs::copy(fixture("tiny/smolvlm/tokenizer.json"), folder.join("tokenizer.json")).expect("a copy");
    fs::write(folder.join("generation_config.json"), format!("{{\"eos_token_id\": {id}}}")).expect("a file");
}

fn reply(runner: &mut Runner, message: &Message, most: usize) -> Vec<u32> {
    let options = GenerateOptions { max_new_tokens: Some(most), ..GenerateOptions::default() };
    let turn = runner.generate(std::slice::from_ref(message), &options, &mut |_| Flow::Continue);
    turn.expect("a reply").tokens
}

/// Several pictures over two turns: from image files, and from raw tensors in a list as upstream's exporter makes them.
/// Both give what the runner gives for typed messages.
#[test]
fn pictures_over_two_turns_from_image_files_and_raw_tensors() {
    for set in VisionSet::all() {
        let folder = TempDir::new().expect("a temporary folder");
        let file = |name: &str, content: &[u8]| fs::write(folder.path().join(name), content).expect("a file");
        let mut runner = set.runner(&fixture("tiny/smolvlm/tokenizer.json"));
        for (number, image) in pictures().iter().enumerate() {
            let pixels = runner.preprocess(image).expect("pixels").values;
            let bytes: Vec<u8> = pixels.iter().flat_map(|value| value.to_le_bytes()).collect();
            file(&format!("vision_encoder_input_{number}_0.raw"), &bytes);
        }
        let [first, second, third] = PICTURES.map(|name| fixture(name).display().to_string());
        file("files.txt", format!("{first} {second}\n{third}\n").as_bytes());
        let [first, second, third] = [0, 1, 2].map(|number| format!("vision_encoder_input_{number}_0.raw"));
        file("raw.txt", format!("{first} {second}\r\n\r\n{third}").as_bytes());

        // A model with random weights ends no reply by itself: what it says sixth shall be its end token.
        let [first, second] = messages();
        let end = reply(&mut runner, &first, 6)[5];
        tokenizer_ending_at(end, folder.path());
        let mut runner = set.runner(folder.path());
        let expected = [reply(&mut runner, &first, 12), reply(&mut runner, &second, 12)];

        let said = |list: &str| {
            let more =
                [list, "--tokenizer_path=.", "--prompt=<image><image>Hi", "--prompt=and <image>?", "--seq_len=0"];
            let out = ok(folder.path(), &[set.arguments(&more), vec!["--json".into()]].concat());
            let document: Value = serde_json::from_str(&out).expect("one JSON document");
            let tokens = |turn: usize| -> Vec<u32> {
                serde_json::from_value(document["turns"][turn]["tokens"].clone()).expect("ids")
            };
            assert_eq!(tokens(0), expected[0], "{list} {}", set.mode);
            assert_eq!(tokens(1)[..expected[1].len()], expected[1], "{list} {}", set.mode);
            fs::read(folder.path().join("outputs.txt")).expect("the output file")
        };
        assert_eq!(said("--image_path=files.txt"), said("--image_path=raw.txt"), "{}", set.mode);
    }
}
