//! The promise: sound stands in a conversation where the message puts it, whether it comes as samples, as features or as
//! rows; it is encoded once; and what does not fit is refused, with both numbers, before anything runs.
//!
//! The decoder is the fake one behind hidden states of one number, a token's id or what the encoder heard, so that a row
//! in the wrong place is another text or an error.

mod fake_decoder;

use etgenai::chat::{ChatTemplate, ImageMarkup, Message, Part, Role, SpecialTokens};
use etgenai::engine::{ComponentSource, Constant, ConstantValue, Constants, Engine, ExecuteOptions, GraphSignature};
use etgenai::engine::{LoadedComponent, SourceData};
use etgenai::error::Status;
use etgenai::graph::{DType, TensorInfo, TensorView, TensorViewMut};
use etgenai::media::{Audio, AudioProcessor, DecodeOptions, Image};
use etgenai::runner::{Event, Flow, GenerateOptions, MediaParts, MediaProcessor, ModelFiles, Runner, RunnerOptions};
use etgenai::runner::{RunnerParts, TurnResult};
use etgenai::{Error, Result};
use fake_decoder::{AUDIO, CHATML, FakeDecoder, Shape, ignore, tokenizer};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Frames of the fake encoder and rows it makes of them.
const FRAMES: usize = 75;
const WIDTH: usize = 160;
const ROWS: usize = 15;

fn info(name: &str, dtype: DType, shape: &[usize]) -> TensorInfo {
    TensorInfo { name: name.into(), dtype, shape: shape.to_vec() }
}

/// A fake decoder that takes hidden states.
struct States {
    tokens: FakeDecoder,
    graphs: Vec<GraphSignature>,
    constants: Constants,
}

impl States {
    fn new(shape: &Shape) -> Self {
        let (tokens, _) = FakeDecoder::new(shape);
        let mut graphs = tokens.graphs().to_vec();
        for graph in &mut graphs {
            let ar = graph.inputs[0].shape[1];
            graph.inputs[0] = info("hidden_states", DType::F32, &[1, ar, 1]);
        }
        Self { tokens, graphs, constants: Constants::default() }
    }
}

impl LoadedComponent for States {
    fn graphs(&self) -> &[GraphSignature] {
        &self.graphs
    }

    fn execute(
        &mut self,
        graph: usize,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        options: &ExecuteOptions,
    ) -> Result<()> {
        let ids: Vec<i32> = inputs[0].as_slice::<f32>()?.iter().map(|&state| state as i32).collect();
        let shape = [1, ids.len()];
        let tokens = TensorView { dtype: DType::I32, shape: &shape, bytes: bytemuck::cast_slice(&ids) };
        let inputs: Vec<TensorView<'_>> = std::iter::once(tokens).chain(inputs[1..].iter().copied()).collect();
        self.tokens.execute(graph, &inputs, outputs, options)
    }

    fn constants(&self) -> &Constants {
        &self.constants
    }

    fn weight_bytes(&self) -> u64 {
        0
    }

    fn description(&self) -> String {
        "fake states".into()
    }
}

type Compute = dyn FnMut(&TensorView<'_>) -> Vec<f32> + Send;

/// A component of one input and one output, whose numbers `compute` makes.
struct Simple {
    graphs: Vec<GraphSignature>,
    compute: Box<Compute>,
}

impl LoadedComponent for Simple {
    fn graphs(&self) -> &[GraphSignature] {
        &self.graphs
    }

    fn execute(
        &mut self,
        _: usize,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        _: &ExecuteOptions,
    ) -> Result<()> {
        outputs[0].as_mut_slice::<f32>()?.copy_from_slice(&(self.compute)(&inputs[0]));
        Ok(())
    }

    fn weight_bytes(&self) -> u64 {
        0
    }

    fn description(&self) -> String {
        "fake".into()
    }
}

fn simple(
    name: &str,
    input: (DType, &[usize]),
    output: &[usize],
    compute: impl FnMut(&TensorView<'_>) -> Vec<f32> + Send + 'static,
) -> Box<dyn LoadedComponent> {
    let (inputs, outputs) = (vec![info("in", input.0, input.1)], vec![info("out", DType::F32, output)]);
    let graphs = vec![GraphSignature { name: name.into(), inputs, outputs }];
    Box::new(Simple { graphs, compute: Box::new(compute) })
}

/// Each token's id.
fn token_embedding() -> Box<dyn LoadedComponent> {
    simple("tok_embedding_kv_forward", (DType::I32, &[1, 1]), &[1, 1, 1], |ids| {
        ids.as_slice::<i32>().expect("ids").iter().map(|&id| id as f32).collect()
    })
}

/// Rows that tell what was heard, and how often the encoder ran.
fn audio_encoder(shape: &[usize]) -> (Box<dyn LoadedComponent>, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let encoder = simple("forward", (DType::F32, shape), &[1, ROWS, 1], move |features| {
        counter.fetch_add(1, Ordering::Relaxed);
        let features = features.as_slice::<f32>().expect("features");
        let part = features.len().div_ceil(ROWS);
        let heard = |part: &[f32]| (part.iter().map(|value| (value + 2.0) * 1000.0).sum::<f32>() as u32 % 251) as f32;
        features.chunks(part).map(heard).collect()
    });
    (encoder, calls)
}

fn parts(encoder: Box<dyn LoadedComponent>, processor: MediaProcessor, shape: &Shape) -> RunnerParts {
    RunnerParts {
        template: Some(ChatTemplate::from_source(CHATML, &SpecialTokens::default()).expect("a template")),
        token_embedding: Some(token_embedding()),
        media: Some(MediaParts {
            encoder,
            processor,
            markup: ImageMarkup::granite_speech(),
            model_key: [7; 32],
            cache_bytes: 1 << 20,
        }),
        ..RunnerParts::new(Box::new(States::new(shape)), tokenizer())
    }
}

fn granite() -> MediaProcessor {
    MediaProcessor::Audio(AudioProcessor::from_config(None, None).expect("Granite's settings"))
}

/// A runner that listens, and how often its encoder ran.
fn listener(shape: &Shape) -> (Runner, Arc<AtomicUsize>) {
    let (encoder, calls) = audio_encoder(&[1, FRAMES, WIDTH]);
    (Runner::from_parts(parts(encoder, granite(), shape)).expect("a runner"), calls)
}

fn roomy(blocks: &[usize]) -> Shape {
    Shape { context: 512, ..Shape::blocks(blocks) }
}

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

fn chirp() -> Audio {
    Audio::open(&fixture("media/chirp_16k_21920.wav")).expect("a recording")
}

fn tone(hertz: f32) -> Audio {
    let value = |at: usize| (at as f32 / 16_000.0 * hertz * std::f32::consts::TAU).sin();
    Audio::from_samples((0..8_000).map(value).collect(), 16_000).expect("a tone")
}

fn ask(parts: Vec<Part>) -> Vec<Message> {
    vec![Message { role: Role::User, parts }]
}

fn text(text: &str) -> Part {
    Part::Text(text.into())
}

fn tokens(count: usize) -> GenerateOptions {
    GenerateOptions { max_new_tokens: Some(count), ignore_eos: true, ..Default::default() }
}

fn generate(runner: &mut Runner, messages: &[Message]) -> TurnResult {
    runner.generate(messages, &tokens(12), &mut ignore).expect("a reply")
}

fn refusal(runner: &mut Runner, messages: &[Message]) -> (Status, String) {
    let error = runner.generate(messages, &tokens(1), &mut |event| {
        assert!(matches!(event, Event::Finished(Err(_))), "nothing runs: {event:?}");
        Flow::Continue
    });
    let error = error.expect_err("it does not fit");
    (error.code(), error.to_string())
}

#[test]
fn rows_stand_where_the_message_puts_the_sound() {
    let (mut runner, _) = listener(&roomy(&[1, 32]));
    let messages = ask(vec![text("hear "), Part::Audio(chirp()), text(" now")]);
    let prompt = runner.encode(&messages).expect("a prompt");
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let (im_start, im_end) = (fake_decoder::IM_START, fake_decoder::IM_END);
    let expected = [
        vec![im_start],
        bytes("user\nhear "),
        vec![AUDIO; ROWS],
        bytes(" now"),
        vec![im_end],
        bytes("\n"),
        vec![im_start],
        bytes("assistant\n"),
    ];
    assert_eq!(prompt, expected.concat());
    let heard = generate(&mut runner, &messages);
    assert_eq!((heard.stats.images, heard.stats.encoded_images), (1, 1));

    // Blocks of any size and kv mode see the same rows; another place or another sound gives another text.
    for blocks in [&[1][..], &[1, 7], &[64, 1]] {
        assert_eq!(generate(&mut listener(&roomy(blocks)).0, &messages).text, heard.text, "{blocks:?}");
    }
    for other in
        [vec![Part::Audio(chirp()), text("hear  now")], vec![text("hear "), Part::Audio(tone(440.0)), text(" now")]]
    {
        assert_ne!(generate(&mut listener(&roomy(&[1, 32])).0, &ask(other)).text, heard.text);
    }
}

#[test]
fn samples_features_and_rows_are_the_same_sound() {
    let (mut runner, calls) = listener(&roomy(&[1, 32]));
    let say = |runner: &mut Runner, part: Part| {
        runner.reset();
        generate(runner, &ask(vec![part, text("what?")])).text
    };
    let heard = say(&mut runner, Part::Audio(chirp()));
    let features = runner.preprocess_audio(&chirp()).expect("features");
    assert_eq!((features.frames, features.width, features.values.len()), (FRAMES, WIDTH, FRAMES * WIDTH));
    let ready = Audio::from_features(features.values.clone()).expect("features");
    assert_eq!(say(&mut runner, Part::Audio(ready)), heard);
    let rows = Arc::new(runner.encode_features(&features.values).expect("rows"));
    assert_eq!((rows.row_count(), rows.width()), (ROWS, 1));
    let before = calls.load(Ordering::Relaxed);
    assert_eq!(say(&mut runner, Part::Embedding(rows)), heard);
    let cached = runner.encode_audio(&chirp()).expect("rows");
    assert_eq!(say(&mut runner, Part::Embedding(cached.clone())), heard);
    assert_eq!(calls.load(Ordering::Relaxed), before, "rows that are known are not encoded");

    // And by single steps.
    let messages = ask(vec![Part::Audio(chirp()), text("what?")]);
    runner.reset();
    let prompt = runner.encode(&messages).expect("a prompt");
    let mut merged = runner.embed_tokens(&prompt).expect("embeddings");
    runner.merge(&prompt, &mut merged, &[cached.as_ref()]).expect("merged");
    runner.prefill_rows(&prompt, &merged).expect("prefill");
    let by_rows = runner.logits().expect("logits").to_vec();
    runner.reset();
    runner.prefill_messages(&messages).expect("prefill");
    assert_eq!(runner.logits().expect("logits"), by_rows);
}

#[test]
fn sound_is_encoded_once_over_turns() {
    let (mut runner, calls) = listener(&roomy(&[1, 32]));
    let first = ask(vec![Part::Audio(chirp()), Part::Audio(chirp()), text("the same?")]);
    let turn = generate(&mut runner, &first);
    assert_eq!((turn.stats.images, turn.stats.encoded_images, calls.load(Ordering::Relaxed)), (2, 1, 1));
    assert_eq!(runner.image_cache_size(), (1, ROWS * 4));
    let second = ask(vec![Part::Audio(tone(440.0)), text("and this?")]);
    let turn = generate(&mut runner, &second);
    assert_eq!((turn.stats.images, turn.stats.encoded_images, calls.load(Ordering::Relaxed)), (3, 1, 2));
    assert!(turn.stats.reused_tokens > 2 * ROWS, "{:?}", turn.stats);
    let history = runner.history_tokens().iter().filter(|&&id| id == AUDIO).count();
    assert_eq!(history, 3 * ROWS);
    runner.reset();
    let again = ask(vec![Part::Audio(tone(440.0)), text("again")]);
    assert_eq!(generate(&mut runner, &again).stats.encoded_images, 0);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[test]
fn what_is_typed_makes_no_place_for_sound() {
    let (mut runner, _) = listener(&roomy(&[1, 32]));
    let messages = ask(vec![text("<|audio|><audio>"), Part::Audio(chirp()), text("<|audio|>")]);
    let prompt = runner.encode(&messages).expect("a prompt");
    assert_eq!(prompt.iter().filter(|&&id| id == AUDIO).count(), ROWS);
    let typed: Vec<u32> = "<|audio|><audio>".bytes().map(u32::from).collect();
    assert!(prompt.windows(typed.len()).any(|window| window == typed), "the typed text stays text");
    generate(&mut runner, &messages);
    let only_typed = runner.encode(&ask(vec![text("<|audio|>")])).expect("a prompt");
    assert_eq!(only_typed.iter().filter(|&&id| id == AUDIO).count(), ROWS, "those of the first turn");
}

#[test]
fn what_does_not_fit_is_refused_before_anything_runs() {
    let long = Audio::from_samples(vec![0.1; 3 * 48_000], 48_000).expect("sound");
    let few = Audio::from_features(vec![0.1; 5]).expect("features");
    let picture = Image::open(&fixture("media/gray_33x47.png"), &DecodeOptions::default()).expect("a picture");
    let (mut runner, calls) = listener(&roomy(&[1, 32]));
    generate(&mut runner, &ask(vec![text("hi")]));
    let position = runner.position();
    for (part, status, says) in [
        (
            Part::Audio(long),
            Status::InvalidArgument,
            "the audio is 3.00 seconds long, this model takes at most 1.49: cut it",
        ),
        (Part::Audio(few), Status::InvalidArgument, "an input of 5 numbers, but the encoder takes 12000: 75 x 160"),
        (Part::Image(picture), Status::Unsupported, "this model takes no pictures"),
    ] {
        let (found, error) = refusal(&mut runner, &ask(vec![part, text("?")]));
        assert!(found == status && error.contains(says), "{error}");
        assert_eq!((runner.position(), runner.turn_count(), calls.load(Ordering::Relaxed)), (position, 1, 0));
    }
    assert!(runner.encode_features(&[0.0; 5]).unwrap_err().to_string().contains("12000"));
    let nan = runner.encode_features(&[f32::NAN; FRAMES * WIDTH]).unwrap_err().to_string();
    assert_eq!(nan, "feature 0 is NaN: features must be finite");

    // The room is counted with the rows of sound.
    let (mut narrow, calls) = listener(&Shape { context: 64, ..Shape::blocks(&[1, 8]) });
    let (status, error) = refusal(&mut narrow, &ask(vec![Part::Audio(chirp()), text(&"x".repeat(40))]));
    assert!(status == Status::ContextFull && error.contains("one audio clip: 15 tokens"), "{error}");
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[test]
fn models_without_audio_say_so() {
    let (mut reader, _) = fake_decoder::runner(&roomy(&[1, 32]));
    let sound = ask(vec![Part::Audio(chirp())]);
    let (status, error) = refusal(&mut reader, &sound);
    assert!(status == Status::Unsupported && error.contains("this model takes no audio"), "{error}");
    assert!(!reader.takes_audio() && reader.audio_geometry().is_none());
    for error in [
        reader.encode_audio(&chirp()).unwrap_err(),
        reader.preprocess_audio(&chirp()).unwrap_err(),
        reader.encode_features(&[0.0]).unwrap_err(),
    ] {
        assert_eq!(error.code(), Status::Unsupported, "{error}");
    }
}

#[test]
fn encoders_of_other_features_take_ready_ones() {
    let (encoder, _) = audio_encoder(&[1, 6, 5]);
    let mut runner = Runner::from_parts(parts(encoder, granite(), &roomy(&[1, 32]))).expect("a runner");
    assert_eq!(runner.audio_geometry(), Some((30, ROWS, 1)));
    let ready = Audio::from_features((0..30).map(|at| at as f32).collect()).expect("features");
    generate(&mut runner, &ask(vec![Part::Audio(ready), text("?")]));
    runner.reset();
    let (status, error) = refusal(&mut runner, &ask(vec![Part::Audio(chirp())]));
    assert!(status == Status::Unsupported && error.contains("[1, 6, 5]") && error.contains("160"), "{error}");
    let (encoder, _) = audio_encoder(&[1]);
    let error = Runner::from_parts(parts(encoder, granite(), &roomy(&[1, 32]))).err().expect("no encoder");
    assert!(error.to_string().contains("graph forward is no encoder"), "{error}");
}

/// Components by name; the decoder's constants name `audio_token`.
struct Fakes {
    audio_token: Option<i64>,
}

impl Engine for Fakes {
    fn name(&self) -> &str {
        "fakes"
    }

    fn load(&self, source: &ComponentSource) -> Result<Box<dyn LoadedComponent>> {
        assert!(matches!(source.data, SourceData::Held));
        Ok(match source.component.as_str() {
            "text_decoder" => {
                let mut decoder = States::new(&roomy(&[1, 32]));
                let named = self
                    .audio_token
                    .map(|id| Constant { name: "audio_token_id".into(), values: vec![ConstantValue::Integer(id)] });
                decoder.constants = Constants::new(named.into_iter().collect());
                Box::new(decoder)
            }
            "tok_embedding" => token_embedding(),
            "audio_encoder" | "vision_encoder" => audio_encoder(&[1, FRAMES, WIDTH]).0,
            other => return Err(Error::NotFound(other.into())),
        })
    }
}

fn files(tokenizer: &Path, components: &[&str]) -> ModelFiles {
    let held = |component: &str| ComponentSource { data: SourceData::Held, ..ComponentSource::held(component) };
    let mut files = ModelFiles::with_decoder(held("text_decoder"), tokenizer);
    components.iter().for_each(|component| files.set(held(component)).expect("a component"));
    files
}

#[test]
fn a_models_files_give_the_prompt_of_the_published_processor() {
    let files = files(&fixture("tiny/granite_speech"), &["tok_embedding", "audio_encoder"]);
    let options = RunnerOptions {
        template: Some("upstream:granite_speech".into()),
        system_prompt: Some("You are a helpful assistant.".into()),
        ..RunnerOptions::default()
    };
    let runner = Runner::open_files(&files, &Fakes { audio_token: None }, &options).expect("a runner");
    assert!(runner.takes_audio() && !runner.takes_images());
    let messages = [Message::user_with_audio([chirp()], "Can you transcribe the speech into a written format?")];
    let golden = std::fs::read(fixture("tiny/granite_speech/features.safetensors")).expect("a file");
    let golden = SafeTensors::deserialize(&golden).expect("tensors");
    let wanted = golden.tensor("plain.input_ids").expect("ids");
    let wanted: Vec<u32> =
        wanted.data().chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect();
    assert_eq!(runner.encode(&messages).expect("a prompt"), wanted);
    // A template of Hugging Face's kind, which knows text alone.
    let template = "{% for message in messages %}<|start_of_role|>{{ message['role'] }}<|end_of_role|>\
                    {{ message['content'] }}<|end_of_text|>\n{% endfor %}\
                    {% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}";
    let options = RunnerOptions { template: Some(template.into()), ..options };
    let runner = Runner::open_files(&files, &Fakes { audio_token: None }, &options).expect("a runner");
    assert_eq!(runner.encode(&messages).expect("a prompt"), wanted);
}

#[test]
fn the_decoder_may_name_the_audio_token() {
    // A tokenizer that calls it something else.
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let text = std::fs::read_to_string(fixture("tiny/granite_speech").join(name)).expect("a file");
        std::fs::write(folder.path().join(name), text.replace("<|audio|>", "<|sound|>")).expect("a file");
    }
    let open = |audio_token, components: &[&str]| {
        let options = RunnerOptions { template: Some("upstream:granite_speech".into()), ..RunnerOptions::default() };
        Runner::open_files(&files(folder.path(), components), &Fakes { audio_token }, &options)
    };
    let parts = ["tok_embedding", "audio_encoder"];
    let runner = open(Some(560), &parts).expect("a runner");
    let prompt = runner.encode(&ask(vec![Part::Audio(chirp()), text("<|audio|><|sound|>")])).expect("a prompt");
    assert_eq!(prompt.iter().filter(|&&id| id == 560).count(), ROWS);
    for (audio_token, components, says) in [
        (None, &parts[..], "has no constant audio_token_id"),
        (Some(1 << 20), &parts[..], "names token 1048576 in audio_token_id, which is no control token"),
        (Some(300), &parts[..], "names token 300 in audio_token_id, which is no control token"),
        (Some(-1), &parts[..], "constant audio_token_id is [Integer(-1)]"),
        (Some(560), &["tok_embedding", "audio_encoder", "vision_encoder"][..], "give one of them"),
    ] {
        let error = open(audio_token, components).err().expect("no runner").to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
    // The end token stands elsewhere in the prompt too.
    let confused = open(Some(0), &parts).expect("a runner");
    let error = confused.encode(&ask(vec![Part::Audio(chirp())])).expect_err("one token for two things").to_string();
    assert!(error.contains("<|end_of_text|>"), "{error}");
}
