//! The promise: calibration data is read as it is written: token for token what transformers makes of the same files,
//! pictures in the places of their conversation, nothing lost between the sources; and what is wrong with a file is said
//! with its name, the sample and the field.

mod support;

use etgenai::chat::{EncodeOptions, ImageMarkup};
use etgenai::checkpoint::Checkpoint;
use etgenai::dataset::{AudioText, CalibrationSet, DatasetOptions, ModelText, ModelTextParts, RandomData, Sample};
use etgenai::dataset::{SourceKind, load};
use etgenai::error::Status;
use etgenai::media::{AudioProcessor, DecodeOptions, Image, Tiling};
use etgenai::registry::ModelSpec;
use etgenai::{Error, Result};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use support::{Golden, folder};
use tempfile::TempDir;

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

static TEXT: LazyLock<ModelText> = LazyLock::new(|| model("smollm2"));
static SMOLVLM: LazyLock<ModelText> = LazyLock::new(|| model("smolvlm"));
static INTERNVL: LazyLock<ModelText> = LazyLock::new(|| model("internvl3"));

fn model(family: &str) -> ModelText {
    ModelText::from_checkpoint(&support::checkpoint(family)).expect("a tiny checkpoint")
}

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

fn picture(name: &str) -> String {
    fixture("media").join(name).display().to_string()
}

/// A folder of calibration files.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, content).expect("a file");
        path
    }

    fn json(&self, name: &str, value: &Value) -> PathBuf {
        self.write(name, value.to_string())
    }

    fn copy(&self, name: &str, to: &str) {
        self.write(to, fs::read(picture(name)).expect("a fixture"));
    }
}

fn options() -> DatasetOptions {
    DatasetOptions { max_context: 256, ..Default::default() }
}

/// The samples that a list of conversations becomes.
fn try_conversations(value: &Value, model: &ModelText, options: &DatasetOptions) -> Result<CalibrationSet> {
    let files = Files::new();
    let samples = vec![files.json("calib.json", value)];
    load(&DatasetOptions { samples, ..options.clone() }, model)
}

fn conversations(value: &Value, model: &ModelText) -> Vec<Sample> {
    try_conversations(value, model, &options()).expect("a calibration set").samples
}

/// What is wrong with a list of conversations, without the folder of the file.
fn refusal(value: &Value, model: &ModelText) -> String {
    strip_folder(try_conversations(value, model, &options()).expect_err("is refused"))
}

fn strip_folder(error: Error) -> String {
    let text = error.to_string();
    let start = text.find("calib.").unwrap_or_default();
    text[start..].to_string()
}

fn user(content: Value) -> Value {
    json!({"messages": [{"role": "user", "content": content}]})
}

fn shows(files: &[String], content: Value) -> Value {
    json!({"messages": [{"role": "user", "content": content}], "files": files})
}

fn image() -> Value {
    json!({"type": "image"})
}

fn says(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn tokens_of(set: &CalibrationSet) -> Vec<&[u32]> {
    set.samples.iter().map(|sample| sample.tokens.as_slice()).collect()
}

#[test]
fn smollm2_gets_the_tokens_that_transformers_makes_of_the_same_files() {
    let checkpoint = Checkpoint::open(&support::model(SMOLLM2)).expect("a checkpoint");
    let model = ModelText::from_checkpoint(&checkpoint).expect("tokenizer and template");
    let golden = fs::read(fixture("smollm2/calib_ids.json")).expect("golden ids");
    let golden: Value = serde_json::from_slice(&golden).expect("golden ids");
    let rows = |name: &str| serde_json::from_value::<Vec<Vec<u32>>>(golden[name].clone()).expect("rows of ids");
    let wanted: Vec<Vec<u32>> = [rows("chats"), rows("windows")].concat();

    let options = DatasetOptions {
        samples: vec![fixture("smollm2/calib_messages.json")],
        texts: vec![fixture("smollm2/calib_raw.txt")],
        text_limit: Some(4),
        ..Default::default()
    };
    let set = load(&options, &model).expect("the calibration data");
    assert_eq!(tokens_of(&set), wanted);
    assert!(!set.smoke_only && !set.has_media());
    assert_eq!(
        (set.sources[0].kind, set.sources[0].samples, set.sources[0].tokens),
        (SourceKind::Conversations, 5, 1809)
    );
    assert_eq!((set.sources[1].kind, set.sources[1].samples, set.sources[1].tokens), (SourceKind::Text, 4, 2048));

    let whole = load(&DatasetOptions { text_limit: None, ..options }, &model).expect("the calibration data");
    let (first, rest) = whole.samples.split_at(wanted.len());
    assert!(first.iter().map(|sample| &sample.tokens).eq(&wanted));
    let lengths: Vec<usize> = rest.iter().map(|sample| sample.tokens.len()).collect();
    assert_eq!(lengths, [512, 512, 512, golden["raw_tokens"].as_u64().expect("a count") as usize - 7 * 512]);
    assert!(rest[3].origin.ends_with("calib_raw.txt, tokens 3584..3693"), "{}", rest[3].origin);
}

/// The ids of a golden prompt, whose end is the beginning of a reply.
fn golden_ids(family: &str, case: &str) -> Vec<u32> {
    Golden::open(family).i32(&format!("{case}.input_ids")).into_iter().map(|id| id as u32).collect()
}

#[test]
fn pictures_stand_where_the_reference_has_them() {
    let (one, two) = ("Describe the image in detail.", "What differs?");
    let (a, b) = (picture("rgb_97x61.png"), picture("gray_33x47.png"));
    let cases = [
        ("smolvlm", "one", Tiling::Whole, vec![a.clone()], one),
        ("smolvlm", "two", Tiling::Whole, vec![a.clone(), b.clone()], two),
        ("smolvlm", "split", Tiling::Checkpoint, vec![a.clone()], one),
        ("internvl3", "one", Tiling::Checkpoint, vec![b.clone()], one),
        ("internvl3", "two", Tiling::Checkpoint, vec![a.clone(), b], two),
        ("internvl3", "tiles", Tiling::Split, vec![a], one),
    ];
    for (family, case, image_tiling, files, question) in cases {
        let model = if family == "smolvlm" { &*SMOLVLM } else { &*INTERNVL };
        let mut content = vec![image(); files.len()];
        content.push(says(question));
        let options = DatasetOptions { image_tiling, ..options() };
        let set = try_conversations(&json!([shows(&files, content.into())]), model, &options).expect(case);
        let [sample] = &set.samples[..] else { panic!("{family} {case}: one sample") };
        let golden = golden_ids(family, case);
        assert!(golden.starts_with(&sample.tokens), "{family} {case}: {:?} begins {golden:?}", sample.tokens);
        let reply = model.prompts().tokenizer().decode(&golden[sample.tokens.len()..], false);
        assert!(["Assistant:", "<|im_start|>assistant\n"].contains(&reply.as_str()), "{family} {case}: {reply:?}");

        assert!(set.has_media());
        assert_eq!(sample.media.len(), files.len());
        let row = model.media_token().expect("an image token");
        let rows: Vec<usize> = (0..sample.tokens.len()).filter(|&at| sample.tokens[at] == row).collect();
        assert_eq!(sample.media_rows, rows, "{family} {case}");
        assert_eq!(rows.len(), sample.media.iter().map(|medium| medium.rows()).sum::<usize>());
        let processor = model.image_processor().expect("pictures");
        for (medium, file) in sample.media.iter().zip(&files) {
            let image = Image::open(Path::new(file), &DecodeOptions::default()).expect("a picture");
            let pixels = medium.pixels(processor).expect("pixels");
            assert_eq!(pixels, processor.process(&image, image_tiling).expect("pixels"), "{family} {case}");
            assert_eq!((medium.inputs(), medium.rows()), (pixels.tiles, 4 * pixels.tiles));
            assert!(medium.is_picture() && medium.path() == Path::new(file));
        }
    }
}

/// The tiny Granite-speech: its decoder's configuration and an encoder of 75 frames, 15 rows.
fn granite_speech() -> ModelText {
    const TEMPLATE: &str = "{% for m in messages %}{{ '<|start_of_role|>' + m['role'] + '<|end_of_role|>' + m['content'] + \
        '<|end_of_text|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'x' }}{% endif %}";
    let config = fs::read(folder("granite_speech").join("config.json")).expect("a configuration");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let spec = ModelSpec::from_config(config["text_config"].as_object().expect("an object")).expect("a decoder");
    let model = ModelText::from_parts(&ModelTextParts {
        spec: &spec,
        tokenizer_json: &fs::read(folder("granite_speech").join("tokenizer.json")).expect("a tokenizer"),
        special_tokens: &Default::default(),
        chat_template: Some(TEMPLATE),
        image: None,
    });
    let audio = AudioText {
        processor: AudioProcessor::from_config(None, None).expect("published settings"),
        markup: ImageMarkup::granite_speech(),
        frames: 75,
        rows: 15,
    };
    model.and_then(|model| model.with_audio(audio)).expect("a model that hears")
}

#[test]
fn sound_stands_where_the_text_has_its_placeholder() {
    let model = granite_speech();
    let sample = |text: &str, files: &[String]| {
        json!([{"messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": text}], "files": files}])
    };
    let clip = [picture("chirp_16k_21920.wav")];
    let samples =
        conversations(&sample("<|audio|>Can you transcribe the speech into a written format?", &clip), &model);
    let golden = fs::read(folder("granite_speech").join("golden.json")).expect("a golden prompt");
    let golden: Value = serde_json::from_slice(&golden).expect("JSON");
    let rendered = golden["rendered"].as_str().expect("a prompt").replace("<|audio|>", &"<|audio|>".repeat(15));
    let parsed = EncodeOptions { add_bos: false, parse_special: true };
    let golden = model.prompts().tokenizer().encode(&rendered, parsed).expect("ids");
    assert!(golden.starts_with(&samples[0].tokens), "{:?} begins {golden:?}", samples[0].tokens);
    assert_eq!((samples[0].media.len(), samples[0].media_rows.len(), samples[0].media[0].rows()), (1, 15, 15));
    let features = samples[0].media[0].features(model.audio_processor().expect("sound")).expect("features");
    assert_eq!((features.frames, features.width), (75, 160));
    assert!(samples[0].media[0].pixels(SMOLVLM.image_processor().expect("pictures")).is_err());

    let error = refusal(&sample("<|audio|> and <|audio|>", &clip), &model);
    assert!(
        error.starts_with("calib.json[0]: files: the messages have 2 placeholders, but there are 1 files"),
        "{error}"
    );
    let error = refusal(&sample("no sound here", &clip), &model);
    assert!(error.contains("have 0 placeholders, but there are 1 files"), "{error}");
    let error = refusal(&json!([shows(&clip, json!([image()]))]), &model);
    assert!(error.contains("content[0].type: is \"image\", but this model takes no pictures"), "{error}");
    let error = refusal(&sample("<|audio|>", &[picture("rgb_97x61.png")]), &model);
    assert!(error.starts_with("calib.json[0]: files[0]: ") && error.contains("rgb_97x61.png"), "{error}");
}

#[test]
fn sources_are_joined_in_their_order_and_described() {
    let files = Files::new();
    let set = load(
        &DatasetOptions {
            samples: vec![files.json("calib.json", &json!([user(json!("one")), user(json!([says("o"), says("ne")]))]))],
            chats: vec![
                files.write("chat.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":\"one\"}],\"id\":7}\r\n\n"),
            ],
            texts: vec![files.write("text.txt", "\u{feff}one two three")],
            token_rows: vec![files.json("rows.json", &json!([[1, 2, 3], [4]]))],
            random: Some(RandomData { samples: 2, length: 5, seed: 42 }),
            text_window: Some(2),
            ..options()
        },
        &TEXT,
    )
    .expect("a calibration set");
    let kinds: Vec<_> = set.sources.iter().map(|source| (source.kind, source.samples)).collect();
    let text = set.sources[3].tokens.div_ceil(2);
    use SourceKind::*;
    assert_eq!(kinds, [(TokenRows, 2), (Conversations, 2), (Chats, 1), (Text, text), (Random, 2)]);
    assert!(set.smoke_only, "random data is marked");
    assert_eq!(set.samples[0].tokens, [1, 2, 3]);
    assert_eq!(set.samples[2].tokens, set.samples[3].tokens, "blocks of text are joined");
    assert_eq!(set.samples[2].tokens, set.samples[4].tokens, "a chat set has the same schema");
    let plain = TEXT.prompts().encode_plain("one two three", false).expect("ids");
    let windows: Vec<u32> = set.samples[5..5 + text].iter().flat_map(|sample| sample.tokens.clone()).collect();
    assert_eq!(windows, plain, "text without template, begin-of-text and byte order mark");
    assert!(set.samples[5..5 + text].iter().rev().skip(1).all(|sample| sample.tokens.len() == 2));
    let origins: Vec<&str> =
        set.samples.iter().map(|sample| sample.origin.rsplit('/').next().unwrap_or_default()).collect();
    assert_eq!(
        origins[..6],
        ["rows.json[0]", "rows.json[1]", "calib.json[0]", "calib.json[1]", "chat.jsonl:1", "text.txt, tokens 0..2"]
    );
    assert_eq!(origins[5 + text..], ["random[0]", "random[1]"]);
}

#[test]
fn random_data_is_that_of_its_seed_and_has_no_media_tokens() {
    let draw = |seed, model: &ModelText| {
        let random = Some(RandomData { samples: 40, length: 300, seed });
        load(&DatasetOptions { random, ..options() }, model).expect("random data")
    };
    let set = draw(42, &SMOLVLM);
    assert_eq!(set.fingerprint, draw(42, &SMOLVLM).fingerprint);
    assert_ne!(set.fingerprint, draw(43, &SMOLVLM).fingerprint);
    let lengths: Vec<usize> = set.samples.iter().map(|sample| sample.tokens.len()).collect();
    assert_eq!(lengths, [256, 44].repeat(40), "rows longer than the context are cut");
    assert_eq!(set.sources[0].cut, 40);
    let mut seen = vec![false; SMOLVLM.vocab_size()];
    set.samples.iter().flat_map(|sample| &sample.tokens).for_each(|&token| seen[token as usize] = true);
    let image = SMOLVLM.media_token().expect("an image token") as usize;
    assert!(seen.iter().enumerate().all(|(token, &seen)| seen == (token != image)), "uniform over the vocabulary");
    assert_eq!(RandomData::default(), RandomData { samples: 128, length: 1024, seed: 42 });
}

#[test]
fn long_text_is_cut_and_long_pictures_are_refused() {
    let long = user(json!("word ".repeat(400)));
    let short = DatasetOptions { max_context: 100, ..options() };
    let whole = try_conversations(&json!([long]), &TEXT, &DatasetOptions { max_context: 10_000, ..options() });
    let whole = whole.expect("one sample");
    let cut = try_conversations(&json!([long]), &TEXT, &short).expect("several samples");
    assert_eq!((whole.samples.len(), whole.sources[0].cut, cut.sources[0].cut), (1, 0, 1));
    let joined: Vec<u32> = cut.samples.iter().flat_map(|sample| sample.tokens.clone()).collect();
    assert_eq!(joined, whole.samples[0].tokens);
    let (last, full) = cut.samples.split_last().expect("samples");
    assert!(full.iter().all(|sample| sample.tokens.len() == 100) && last.tokens.len() <= 100);
    assert!(full[1].origin.ends_with("calib.json[0], tokens 100..200"), "{}", full[1].origin);
    assert_eq!((cut.longest(), cut.token_count()), (100, joined.len()));

    let seen = json!([shows(&[picture("rgb_97x61.png")], json!([image(), says("?")]))]);
    let error = try_conversations(&seen, &SMOLVLM, &DatasetOptions { max_context: 50, ..options() });
    let error = strip_folder(error.expect_err("13 tiles do not fit"));
    let needed = conversations(&seen, &SMOLVLM)[0].tokens.len();
    let expected = format!("calib.json[0]: messages: become {needed} tokens, but max_context is 50");
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn a_model_that_sees_takes_text_and_one_that_does_not_takes_no_files() {
    let set = try_conversations(&json!([user(json!("Hello"))]), &SMOLVLM, &options()).expect("text");
    assert!(!set.has_media(), "the caller can tell that no encoder can be calibrated");
    let error = refusal(&json!([shows(&[picture("rgb_97x61.png")], json!("?"))]), &TEXT);
    assert!(error.starts_with("calib.json[0]: files: names 1 files, but this model takes neither"), "{error}");
    let error = refusal(&json!([user(json!([image(), says("?")]))]), &TEXT);
    assert!(error.starts_with("calib.json[0]: messages[0].content[0].type: is \"image\", but"), "{error}");
    let nothing = json!([{"messages": [{"role": "user", "content": "Hi"}], "files": []},
        {"messages": [{"role": "user", "content": "Hi"}], "files": null}]);
    assert_eq!(conversations(&nothing, &TEXT).len(), 2);
}

#[test]
fn files_are_looked_for_beside_the_list_first() {
    let files = Files::new();
    files.copy("rgb_97x61.png", "media/a.png");
    let both = json!([image(), image(), says("What differs?")]);
    let content = json!([shows(&["media/a.png".into(), picture("gray_33x47.png")], both)]);
    let samples = vec![files.json("calib.json", &content)];
    let set = load(&DatasetOptions { samples, image_tiling: Tiling::Whole, ..options() }, &SMOLVLM);
    let media = &set.expect("both files").samples[0].media;
    assert_eq!(media[0].path(), files.0.path().join("media/a.png"));
    let (first, second) = (picture("rgb_97x61.png"), picture("gray_33x47.png"));
    let hash = |path: &str| Image::open(Path::new(path), &DecodeOptions::default()).expect("a picture").content_hash();
    assert_eq!((media[0].content_hash(), media[1].content_hash()), (&hash(&first), &hash(&second)), "in their order");

    // Tensors are made on demand, so a file that is exchanged in between must not go unnoticed.
    files.copy("gray_33x47.png", "media/a.png");
    let error = media[0].pixels(SMOLVLM.image_processor().expect("pictures")).expect_err("another picture");
    assert!(matches!(error, Error::InvalidState(_)) && error.to_string().contains("a.png"), "{error}");

    let lost = json!([user(json!("Hi")), shows(&["lost.png".into()], json!([image()]))]);
    let samples = vec![files.json("calib.json", &lost)];
    let error = load(&DatasetOptions { samples, ..options() }, &SMOLVLM).expect_err("a missing file");
    assert_eq!(error.code(), Status::NotFound);
    let text = strip_folder(error);
    assert!(text.starts_with("calib.json[1]: files[0]: \"lost.png\": no such file"), "{text}");
}

#[test]
fn errors_name_file_sample_and_field() {
    let message =
        |message: Value| json!([user(json!("fine")), {"messages": [{"role": "user", "content": "fine"}, message]}]);
    let block = |block: Value| message(json!({"role": "user", "content": [says("fine"), block]}));
    let a = picture("rgb_97x61.png");
    let cases = [
        (json!([7]), "calib.json[0]: entry: is 7: expected an object with `messages`"),
        (json!([{"text": "?"}]), "calib.json[0]: messages: is missing"),
        (json!([{"messages": "?"}]), "calib.json[0]: messages: is a text: expected a list of messages"),
        (json!([{"messages": []}]), "calib.json[0]: messages: is an empty list"),
        (message(json!("hi")), "calib.json[1]: messages[1]: is a text: expected an object"),
        (message(json!({"content": "hi"})), "calib.json[1]: messages[1].role: is missing"),
        (message(json!({"role": 1, "content": "hi"})), "calib.json[1]: messages[1].role: is 1"),
        (message(json!({"role": "bot", "content": "hi"})), "calib.json[1]: messages[1].role: unknown role \"bot\""),
        (message(json!({"role": "user"})), "calib.json[1]: messages[1].content: is missing"),
        (message(json!({"role": "user", "content": null})), "calib.json[1]: messages[1].content: is null"),
        (message(json!({"role": "user", "content": []})), "calib.json[1]: messages[1].content: is an empty list"),
        (block(json!("hi")), "calib.json[1]: messages[1].content[1]: is a text: expected an object"),
        (block(json!({"text": "hi"})), "calib.json[1]: messages[1].content[1].type: is missing"),
        (block(json!({"type": "video"})), "calib.json[1]: messages[1].content[1].type: is \"video\""),
        (block(json!({"type": "text"})), "calib.json[1]: messages[1].content[1].text: is missing"),
        (block(json!({"type": "text", "text": 1.5})), "calib.json[1]: messages[1].content[1].text: is 1.5"),
        (
            json!([{"messages": [{"role": "user", "content": "?"}], "files": "a.png"}]),
            "calib.json[0]: files: is a text",
        ),
        (json!([{"messages": [{"role": "user", "content": "?"}], "files": [1]}]), "calib.json[0]: files[0]: is 1"),
        (json!([shows(&["".into()], json!([image()]))]), "calib.json[0]: files[0]: is an empty path"),
        (
            json!([shows(&[a.clone(), a.clone()], json!([image(), says("?")]))]),
            "calib.json[0]: files: the messages have 1 image blocks, but there are 2 files",
        ),
        (
            json!([user(json!([image()]))]),
            "calib.json[0]: files: the messages have 1 image blocks, but there are 0 files",
        ),
        (json!([shows(&[a], json!("<image>"))]), "calib.json[0]: files: the messages have 0 image blocks, but"),
        (json!([shows(&[picture("chirp_16k_21920.wav")], json!([image()]))]), "calib.json[0]: files[0]: "),
    ];
    for (value, expected) in cases {
        let error = refusal(&value, &SMOLVLM);
        assert!(error.starts_with(expected), "{error}\nexpected {expected}");
    }
}

#[test]
fn malformed_files_are_errors_with_the_place() {
    let files = Files::new();
    let fine = r#"{"messages": [{"role": "user", "content": "fine"}]}"#;
    let error = |options: DatasetOptions| strip_folder(load(&options, &TEXT).expect_err("malformed"));
    let samples =
        |content: &[u8]| error(DatasetOptions { samples: vec![files.write("calib.json", content)], ..options() });
    let chats = |content: &str| error(DatasetOptions { chats: vec![files.write("calib.jsonl", content)], ..options() });
    let rows =
        |content: &str| error(DatasetOptions { token_rows: vec![files.write("calib.rows", content)], ..options() });
    let text = |content: &[u8]| error(DatasetOptions { texts: vec![files.write("calib.txt", content)], ..options() });
    let deep = format!("[{}", "[".repeat(100_000));
    let cases = [
        (samples(b""), "calib.json: JSON: the file is empty"),
        (samples(b"[]"), "calib.json: JSON: is an empty list"),
        (samples(fine.as_bytes()), "calib.json: JSON: is an object: expected a list of conversations"),
        (samples(b"\"text\""), "calib.json: JSON: is no list"),
        (samples(format!("[{fine},\n{fine},\n{{\"messages\": ]").as_bytes()), "calib.json[2]: line 3, column 14: "),
        (samples(format!("[{fine}").as_bytes()), "calib.json[1]: line 1, column 52: EOF while parsing a list"),
        (samples(format!("[{fine}] x").as_bytes()), "calib.json: line 1, column 55: trailing characters"),
        (samples(b"[{\"messages\": \"\xff\"}]"), "calib.json[0]: line 1, column 16: "),
        (samples(deep.as_bytes()), "calib.json[0]: line 1, column 128: recursion limit"),
        (chats(""), "calib.jsonl: rows: the file has no rows"),
        (chats(&format!("\n{fine}\n\n{{\"messages\"\n")), "calib.jsonl:4: column 11: "),
        (chats(&format!("[{fine}]")), "calib.jsonl:1: JSON: begins a list"),
        (chats(&format!("{fine}\n{{\"text\": \"no messages\"}}")), "calib.jsonl:2: messages: is missing"),
        (
            chats(r#"{"messages": [{"role": "human", "content": "?"}]}"#),
            "calib.jsonl:1: messages[0].role: unknown role",
        ),
        (rows("[1, 2]"), "calib.rows[0]: row: is 1: expected a list of token ids"),
        (rows("[[1], []]"), "calib.rows[1]: row: is an empty list"),
        (rows("[[1, -2]]"), "calib.rows[0]: token 1: is -2"),
        (rows("[[1, 2.5]]"), "calib.rows[0]: token 1: is 2.5"),
        (rows("[[1], [4, 512]]"), "calib.rows[1]: token 1: 512 is outside the vocabulary of 512"),
        (rows("[[99999999999]]"), "calib.rows[0]: token 0: is 99999999999"),
        (text(b""), "calib.txt: text: 0 bytes become no token"),
        (text(b"good \xff bad"), "calib.txt: byte 5: is not UTF-8"),
    ];
    for (error, expected) in cases {
        assert!(error.starts_with(expected), "{error}\nexpected {expected}");
    }
    for (field, options) in [
        ("samples", DatasetOptions { samples: vec!["calib.lost".into()], ..options() }),
        ("chats", DatasetOptions { chats: vec!["calib.lost".into()], ..options() }),
        ("texts", DatasetOptions { texts: vec!["calib.lost".into()], ..options() }),
        ("rows", DatasetOptions { token_rows: vec!["calib.lost".into()], ..options() }),
    ] {
        let error = load(&options, &TEXT).expect_err(field);
        assert!(error.code() == Status::NotFound && error.to_string().contains("calib.lost"), "{field}: {error}");
    }
    let image = SMOLVLM.media_token().expect("an image token");
    let token_rows = vec![files.json("calib.rows", &json!([[5, image]]))];
    let error = strip_folder(load(&DatasetOptions { token_rows, ..options() }, &SMOLVLM).expect_err("an image token"));
    assert!(error.contains("token 1: ") && error.contains("row of a picture"), "{error}");
}

#[test]
fn rows_of_a_chat_set_that_do_not_fit_are_left_out_and_counted() {
    let files = Files::new();
    let row = |content: &str| user(json!(content)).to_string();
    let tools = r#"{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": null}]}"#;
    let content = [row("first"), row(&"word ".repeat(400)), tools.into(), row("second")].join("\n");
    let chats = vec![files.write("calib.jsonl", content)];
    let set = load(&DatasetOptions { chats: chats.clone(), ..options() }, &TEXT).expect("two rows");
    assert_eq!((set.samples.len(), set.sources[0].skipped, set.sources[0].cut), (2, 2, 0));
    let note = set.sources[0].note.clone().expect("a note");
    assert!(note.contains("calib.jsonl:2: becomes ") && note.contains("max_context is 256"), "{note}");
    assert!(set.samples[1].origin.ends_with("calib.jsonl:4"));
    let limited = load(&DatasetOptions { chats, chat_limit: Some(2), ..options() }, &TEXT).expect("one row");
    assert_eq!((limited.samples.len(), limited.sources[0].skipped), (1, 1));

    let chats = vec![files.write("calib.jsonl", [tools, tools].join("\n"))];
    let error = strip_folder(load(&DatasetOptions { chats, ..options() }, &TEXT).expect_err("nothing is left"));
    assert!(error.starts_with("calib.jsonl: rows: all 2 rows were left out, the first because of"), "{error}");
}

#[test]
fn shards_share_out_the_samples_of_all_sources() {
    let files = Files::new();
    let all = DatasetOptions {
        token_rows: vec![files.json("rows.json", &json!([[1], [2], [3]]))],
        samples: vec![files.json("calib.json", &json!([user(json!("a")), user(json!("b"))]))],
        ..options()
    };
    let whole = load(&all, &TEXT).expect("five samples");
    assert_eq!((whole.joined.samples, &whole.joined.fingerprint), (5, &whole.fingerprint));
    let mut shared: Vec<Option<Sample>> = vec![None; 5];
    for index in 1..=2 {
        let shard = Some(format!("{index}/2").parse().expect("a shard"));
        let part = load(&DatasetOptions { shard, ..all.clone() }, &TEXT).expect("a part");
        assert_eq!((&part.joined, part.shard), (&whole.joined, shard));
        assert_eq!(part.sources, whole.sources, "sources are described as a whole");
        assert_ne!(part.fingerprint, whole.fingerprint);
        for (turn, sample) in part.samples.into_iter().enumerate() {
            shared[turn * 2 + index - 1] = Some(sample);
        }
    }
    assert_eq!(shared.into_iter().flatten().collect::<Vec<_>>(), whole.samples);
    let shard = Some("6/6".parse().expect("a shard"));
    let error = load(&DatasetOptions { shard, ..all }, &TEXT).expect_err("five samples, six shards").to_string();
    assert!(error.contains("shard 6/6") && error.contains("have 5"), "{error}");
}

#[test]
fn the_fingerprint_follows_tokens_and_pictures_not_names() {
    let files = Files::new();
    files.copy("rgb_97x61.png", "a.png");
    files.copy("rgb_97x61.png", "b.png");
    files.copy("rgb_45x130.png", "c.png");
    let of = |name: &str, picture: &str, text: &str| {
        let content = json!([shows(&[picture.into()], json!([image(), says(text)]))]);
        let samples = vec![files.json(name, &content)];
        load(&DatasetOptions { samples, image_tiling: Tiling::Whole, ..options() }, &SMOLVLM)
            .expect("a set")
            .fingerprint
    };
    let base = of("calib.json", "a.png", "?");
    assert_eq!(base, of("other.json", "b.png", "?"));
    assert_ne!(base, of("calib.json", "c.png", "?"));
    assert_ne!(base, of("calib.json", "a.png", "!"));
    assert!(base.len() == 64 && base.bytes().all(|byte| byte.is_ascii_hexdigit()), "{base}");
}

/// A tiny checkpoint with another template, or none.
fn with_template(family: &str, template: Option<&str>) -> ModelText {
    let checkpoint = support::checkpoint(family);
    let spec = ModelSpec::from_config(checkpoint.config()).expect("a spec");
    ModelText::from_parts(&ModelTextParts {
        spec: &spec,
        tokenizer_json: &checkpoint.tokenizer_json().expect("a tokenizer"),
        special_tokens: checkpoint.special_tokens(),
        chat_template: template,
        image: None,
    })
    .expect("a model")
}

#[test]
fn templates_end_with_the_last_message_and_begin_of_text_is_written_once() {
    // In the manner of Gemma: the template writes the token that the tokenizer would put in front as well.
    const GEMMA: &str = "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + m.role + '\n' + m.content + \
        '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";
    let talk =
        json!([{"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": " there"}]}]);
    for family in ["gemma", "gemma3"] {
        let model = with_template(family, Some(GEMMA));
        let tokens = &conversations(&talk, &model)[0].tokens;
        let text = model.prompts().tokenizer().decode(tokens, false);
        let expected = "<bos><start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>assistant\n there<end_of_turn>\n";
        assert_eq!(text, expected, "{family}");
        let bos = model.prompts().tokenizer().bos_id().expect("a begin-of-text token");
        assert_eq!(tokens.iter().filter(|&&token| token == bos).count(), 1, "{family}: {tokens:?}");
        // Without a template: contents one after the other, behind what the model begins plain text with.
        let base = with_template(family, None);
        let expected = base.prompts().encode_plain("Hello there", true).expect("ids");
        assert_eq!((&conversations(&talk, &base)[0].tokens, expected[0]), (&expected, bos), "{family}");
    }
    let text = |model: &ModelText| model.prompts().tokenizer().decode(&conversations(&talk, model)[0].tokens, false);
    assert!(text(&TEXT).ends_with("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n there<|im_end|>\n"));
    assert_eq!(text(&SMOLVLM), "<|im_start|>User: Hello<end_of_utterance>\nAssistant:  there<end_of_utterance>\n");
}

#[test]
fn what_a_template_refuses_is_an_error_of_the_conversation_and_left_out_of_a_chat_set() {
    const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turns') }}\
        {% endif %}{{ m.content }}{% endfor %}";
    let model = with_template("llama", Some(STRICT));
    let system = json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]});
    let error = refusal(&json!([user(json!("Hi")), system]), &model);
    assert!(error.starts_with("calib.json[1]: messages: ") && error.contains("no system turns"), "{error}");
    let error = refusal(&json!([user(json!(""))]), &model);
    assert_eq!(error, "calib.json[0]: messages: become no token at all");

    let files = Files::new();
    let rows = [system, user(json!("")), user(json!("Hi"))].map(|row| row.to_string()).join("\n");
    let chats = vec![files.write("calib.jsonl", rows)];
    let set = load(&DatasetOptions { chats, ..options() }, &model).expect("one row");
    assert_eq!((set.samples.len(), set.sources[0].skipped), (1, 2));
    assert!(set.sources[0].note.as_ref().is_some_and(|note| note.contains("no system turns")));
}

/// Values that look like the schema, with anything anywhere.
fn near_misses() -> impl Strategy<Value = Value> {
    let texts =
        ["", "user", "assistant", "system", "text", "image", "<image>", "a.png", "<|im_start|>", "\u{0}é\u{10fffc}"];
    let leaf = prop_oneof![
        3 => prop::sample::select(texts.to_vec()).prop_map(Value::from),
        1 => ".{0,12}".prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    let keys = prop::sample::select(vec!["messages", "files", "role", "content", "type", "text", "x"]);
    leaf.prop_recursive(6, 48, 6, move |inner| {
        let message =
            (inner.clone(), inner.clone()).prop_map(|(role, content)| json!({"role": role, "content": content}));
        let spoken = (prop::sample::select(vec!["user", "assistant"]), inner.clone())
            .prop_map(|(role, content)| json!({"role": role, "content": content}));
        let entry =
            (inner.clone(), inner.clone()).prop_map(|(messages, files)| json!({"messages": messages, "files": files}));
        let block = inner.clone().prop_map(|text| json!({"type": "text", "text": text}));
        let any_object = prop::collection::hash_map(keys.clone(), inner.clone(), 0..4)
            .prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_string(), value)).collect::<Value>());
        prop_oneof![
            2 => prop::collection::vec(inner, 0..5).prop_map(Value::from),
            1 => any_object,
            1 => message,
            2 => spoken,
            2 => entry,
            1 => block,
            1 => Just(json!({"type": "image"})),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_json_value_panics(value in near_misses()) {
        let files = Files::new();
        let (list, line) = (files.json("calib.json", &json!([value])), files.json("calib.jsonl", &value));
        let plain = files.json("plain.json", &value);
        for model in [&*TEXT, &*SMOLVLM] {
            for path in [&list, &plain] {
                let _ = load(&DatasetOptions { samples: vec![path.clone()], ..options() }, model);
                let _ = load(&DatasetOptions { token_rows: vec![path.clone()], ..options() }, model);
            }
            let _ = load(&DatasetOptions { chats: vec![line.clone()], ..options() }, model);
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(prop_oneof![
        2 => prop::sample::select(b"[]{}\",:0123456789.e-\n\\".to_vec()), 1 => any::<u8>()], 0..200)) {
        let files = Files::new();
        let path = vec![files.write("calib", &bytes)];
        for options in [
            DatasetOptions { samples: path.clone(), ..options() },
            DatasetOptions { token_rows: path.clone(), ..options() },
            DatasetOptions { chats: path.clone(), ..options() },
            DatasetOptions { texts: path.clone(), text_limit: Some(1), ..options() },
        ] {
            let _ = load(&options, &TEXT);
        }
    }
}
