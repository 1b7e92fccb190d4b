//! `etgenai run-pte`: what upstream's runners take and write, with an engine that counts.
//!
//! The engine is compiled from `run_pte/toy_engine.c`; the real one is tested in `executorch_cli.rs`.

#[path = "run_pte/engine.rs"]
mod toy;

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;
use toy::{engine, root};

/// Ids of the toy's vocabulary that spell `go` and follow it.
const GO: u32 = 270;
const END_PIECE: &str = "\n</s>\n";
const VOCABULARY: usize = 600;

/// A folder with the toy's programs and tokenizer, in which the command runs.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let place = Self { folder };
        for (name, kind) in [
            ("tokens.pte", "t"),
            ("kv.pte", "k"),
            ("failing.pte", "x"),
            ("endless.pte", "n"),
            ("sink.pte", "s"),
            ("decoder.pte", "h"),
            ("tok_embedding.pte", "e"),
            ("encoder.pte", "v"),
            ("audio.pte", "a"),
            ("strange.pte", "?"),
        ] {
            place.write(name, kind.as_bytes());
        }
        place.write("tokenizer.bin", &tokenizer());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.path(name), content).expect("a file can be written");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_etgenai"));
        command.arg("run-pte").args(arguments).arg("--engine_library").arg(engine());
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Report {
        Report::of(self.command(arguments).output().expect("the command starts"))
    }

    /// Run with success.
    fn ok(&self, arguments: &[&str]) -> Report {
        let report = self.run(arguments);
        assert_eq!(report.code, Some(0), "{arguments:?}: {}", report.log);
        report
    }
}

/// What a run printed.
struct Report {
    code: Option<i32>,
    out: String,
    log: String,
}

impl Report {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), log: text(output.stderr) }
    }

    /// The messages of the log, each of which must begin as ExecuTorch's do.
    fn messages(&self) -> Vec<&str> {
        let mut messages = Vec::new();
        let mut lines = self.log.lines();
        while let Some(line) = lines.next() {
            let (prefix, message) = line.split_once("] ").unwrap_or_else(|| panic!("{line:?} has no prefix"));
            assert_prefix(prefix);
            // One message begins with a newline.
            messages.push(if message.is_empty() { lines.next().expect("more") } else { message });
        }
        messages
    }

    fn observer(&self) -> Vec<Value> {
        let lines = self.out.lines().filter_map(|line| line.strip_prefix("PyTorchObserver "));
        lines.map(|json| serde_json::from_str(json).expect("JSON")).collect()
    }
}

/// `I 00:00:00.012345 executorch:file.rs:12`
fn assert_prefix(prefix: &str) {
    let words: Vec<&str> = prefix.split(' ').collect();
    let [level, time, place] = words[..] else { panic!("{prefix:?} is not three words") };
    assert!(["I", "E", "W"].contains(&level), "{prefix}");
    assert!(time.len() == 15 && time.chars().filter(|c| c.is_ascii_digit()).count() == 12, "{prefix}");
    let place: Vec<&str> = place.split(':').collect();
    assert!(
        matches!(place[..], ["executorch", file, line] if !file.is_empty() && line.parse::<u32>().is_ok()),
        "{prefix}"
    );
}

/// A `tokenizer.bin` with ExecuTorch's header: bytes, then words ` w259`, ` w260`, … and what it takes to spell `go`.
fn tokenizer() -> Vec<u8> {
    let mut texts: Vec<String> = ["<unk>", "\n<s>\n", END_PIECE].map(String::from).to_vec();
    texts.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    texts.extend((texts.len()..VOCABULARY).map(|id| format!(" w{id}")));
    for (id, text) in [(GO as usize, " go"), (590, " g"), (591, " "), (592, "g"), (593, "o")] {
        texts[id] = text.into();
    }
    let header = [VOCABULARY as i32, 1, 2, 8].map(i32::to_le_bytes).concat();
    let records = texts.iter().map(|text| {
        let score = -(text.len() as f32);
        [&score.to_le_bytes()[..], &(text.len() as i32).to_le_bytes(), text.as_bytes()].concat()
    });
    header.into_iter().chain(records.flatten()).collect()
}

/// ` w271 w272 …` up to, not including, `end`.
fn words(from: u32, end: u32) -> String {
    (from..end).map(|id| format!(" w{id}")).collect()
}

/// What the toy answers to `go`.
fn whole_reply() -> String {
    words(GO + 1, 280) + END_PIECE
}

#[test]
fn a_turn_leaves_upstreams_files_and_lines() {
    let place = Place::new();
    let report = place.ok(&["--model_path", "tokens.pte", "--prompt", "go"]);
    assert_eq!(place.read("outputs.txt"), format!("go{}", whole_reply()));
    let speed = place.read("inference_speed.txt");
    assert!(speed.parse::<f64>().expect("one number") >= 0.0 && !speed.ends_with('\n'));
    // The begin token and the prompt's; nine decode steps after the token that the prefill gives.
    let [observer] = &report.observer()[..] else { panic!("one line: {}", report.out) };
    assert_eq!((&observer["prompt_tokens"], &observer["generated_tokens"]), (&2.into(), &9.into()));
    assert_eq!(observer["SCALING_FACTOR_UNITS_PER_SECOND"], 1000);
    assert!(report.out.starts_with('\n'), "a bare newline comes before the end of generation is logged");
    let messages = report.messages();
    let at = |message: &str| {
        let found = messages.iter().position(|line| line.starts_with(message));
        found.unwrap_or_else(|| panic!("{message:?} is not in {messages:#?}"))
    };
    let order = [
        at("creating module: model_path=tokens.pte"),
        at("creating runner: tokenizer_path=tokenizer.bin"),
        at("eval mode=1"),
        at("Loaded BPE tokenizer"),
        at("Prompt Processor: total 2 prompt tokens (AR-4 * 1 iters)"),
        at("RSS after prompt prefill: "),
        at("Reached to the end of generation"),
        at("RSS after finishing text generation: "),
        at("\tPrompt Tokens: 2    Generated Tokens: 9"),
        at("\tModel Load Time:\t\t"),
        at("\tTotal inference time:\t\t"),
        at("\t\tPrompt evaluation:\t"),
        at("\t\tGenerated 9 tokens:\t"),
        at("\tTime to first generated token:\t"),
        at("\tSampling time over 11 tokens:\t"),
    ];
    assert!(order.is_sorted(), "{order:?}: {messages:#?}");
    let rss = messages[order[5]].strip_prefix("RSS after prompt prefill: ").expect("found");
    let rss = rss.strip_suffix(" MiB (0 if unsupported)").expect("its unit");
    assert!(
        rss.parse::<f64>().expect("a number") > 0.0 && rss.split_once('.').is_some_and(|(_, digits)| digits.len() == 6)
    );
}

#[test]
fn prompts_are_turns_in_either_form() {
    let place = Place::new();
    let report = place.ok(&["-model_path=tokens.pte", "--prompt", "go", "--prompt=go", "--seq_len=0"]);
    assert_eq!(place.read("outputs.txt"), format!("go{0}go{0}", whole_reply()));
    let observer = report.observer();
    assert_eq!(observer[1]["prompt_tokens"], 1, "no begin token, nothing of the first turn again");
    assert!(report.messages().contains(&"Warning: Invalid seq_len (0). Using compiled max_context_len (256)."));
}

#[test]
fn modes_give_the_same_text() {
    let place = Place::new();
    for mode in
        [&["--eval_mode", "0"][..], &["--eval_mode", "1"], &["--eval_mode=2", "--ngram=3", "--window=1", "--gcap=1"]]
    {
        let report = place.ok(&[&["--model_path", "tokens.pte", "--prompt", "go"][..], mode].concat());
        assert_eq!(place.read("outputs.txt"), format!("go{}", whole_reply()), "{mode:?}");
        let lookahead =
            report.messages().iter().any(|line| line.starts_with("Lookahead Decoding: n_generated = 9 / n_accept = "));
        assert_eq!(lookahead, mode.len() > 2, "{mode:?}: {}", report.log);
    }
    let report = place.ok(&["--model_path", "kv.pte", "--prompt", "go", "--eval_mode=0"]);
    assert!(report.messages().contains(&"Prompt Processor: total 2 prompt tokens (AR-1 * 2 iters)"));
    let report = place.run(&["--model_path", "kv.pte", "--prompt", "go"]);
    assert_eq!(report.code, Some(1));
    assert!(report.log.contains("hybrid mode needs the graph prefill_forward"), "{}", report.log);
}

#[test]
fn seq_len_counts_the_whole_conversation() {
    let place = Place::new();
    let report = place.ok(&["--model_path", "tokens.pte", "--prompt", "go", "--seq_len", "6"]);
    assert_eq!(place.read("outputs.txt"), format!("go{}", words(GO + 1, GO + 5)));
    assert_eq!(report.observer()[0]["generated_tokens"], 3);
    let messages = report.messages();
    assert!(messages.iter().any(|line| line.starts_with("Warning: Generation stopped at seq_len limit (6)")));
    assert!(messages.iter().any(|line| line.ends_with("Consider increasing --seq_len (up to 256).")), "{messages:#?}");

    let report = place.ok(&["--model_path", "tokens.pte", "--prompt", "go", "--seq_len", "1000"]);
    assert!(report.log.contains("Requested seq_len (1000) exceeds compiled max_context_len (256)"));

    let report = place.run(&["--model_path", "tokens.pte", "--prompt", "go", "--prompt", "go", "--seq_len", "12"]);
    assert_eq!(report.code, Some(1), "the second prompt has no room for a reply");
    let says = "error: sequence length exceeded: the conversation with this prompt has 12 tokens";
    assert!(report.log.contains(says), "{}", report.log);
    assert_eq!(place.read("outputs.txt"), format!("go{}", whole_reply()), "what was said is written");
}

#[test]
fn an_attention_sink_lets_the_conversation_outgrow_the_context() {
    let place = Place::new();
    let model = ["--model_path=endless.pte", "--prompt=go", "--seq_len=600"];
    let word = |id: u32| if id == GO { " go".to_owned() } else { format!(" w{id}") };
    let reply = |tokens: u32| (1..=tokens).map(|at| word(GO + at % 10)).collect::<String>();
    place.ok(&model);
    assert_eq!(place.read("outputs.txt"), format!("go{}", reply(254)), "the context without one");
    for mode in ["--eval_mode=0", "--eval_mode=1"] {
        let report = place.ok(&[&model[..], &["--attention_sink_rope_path=sink.pte", mode]].concat());
        assert_eq!(place.read("outputs.txt"), format!("go{}", reply(598)), "{mode}");
        assert!(report.messages().iter().any(|line| line.contains("stopped at seq_len limit (600)")), "{mode}");
    }
    let report = place.run(&[&model[..], &["--attention_sink_rope_path=encoder.pte"]].concat());
    assert_eq!(report.code, Some(1));
    assert!(report.log.contains("get_eviction_batch_size"), "{}", report.log);
}

#[test]
fn iterations_begin_anew() {
    let place = Place::new();
    let report = place.ok(&["--model_path", "tokens.pte", "--prompt", "go", "--num_iters", "3"]);
    assert_eq!(place.read("outputs.txt"), format!("go{}", whole_reply()).repeat(3));
    let observer = report.observer();
    assert_eq!(observer.len(), 3);
    assert!(observer.iter().all(|turn| turn["generated_tokens"] == 9), "{observer:?}");
}

#[test]
fn logits_are_the_programs_levels_prompts_first() {
    let place = Place::new();
    let arguments = ["--model_path", "tokens.pte", "--eval_mode", "0", "--dump_logits_path", "logits.raw"];
    place.ok(&[&arguments[..], &["--prompt", "go", "--prompt", "go"]].concat());
    let bytes = fs::read(place.path("logits.raw")).expect("the file is there");
    let levels: Vec<u16> = bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect();
    let best = |row: &[u16]| row.iter().position(|&level| level == 60_000).expect("one is larger");
    let chosen: Vec<usize> = levels.chunks_exact(VOCABULARY).map(best).collect();
    let reply: Vec<usize> = (272..280).chain([2]).collect();
    let expected = [&[2, 271, 271][..], &reply, &reply].concat();
    assert_eq!(chosen, expected, "two and one prompt tokens, then nine decode steps twice");
    assert_eq!(bytes.len(), expected.len() * VOCABULARY * 2);

    let report = place.run(&["--model_path", "tokens.pte", "--dump_logits_path", "logits.raw"]);
    assert_eq!(report.code, Some(2));
    assert!(report.log.contains("--dump_logits_path needs --eval_mode 0"), "{}", report.log);
}

#[test]
fn prompts_of_token_ids_are_taken() {
    let place = Place::new();
    let ids: Vec<u8> = [1u64, 275, 276].iter().flat_map(|id| id.to_le_bytes()).collect();
    place.write("ids.raw", &ids);
    let report = place.ok(&["--model_path", "tokens.pte", "--tokenized_prompt", "ids.raw"]);
    assert_eq!(place.read("outputs.txt"), format!("w275 w276{}{END_PIECE}", words(277, 280)));
    assert_eq!(report.observer()[0]["prompt_tokens"], 3);
    assert_eq!(report.observer()[0]["generated_tokens"], 3);
    assert!(report.messages().contains(&"Prompt Processor: total 3 prompt tokens (AR-4 * 1 iters)"));

    place.write("ids.raw", &ids[..20]);
    let report = place.run(&["--model_path", "tokens.pte", "--tokenized_prompt", "ids.raw"]);
    assert_eq!(report.code, Some(1));
    assert!(report.log.contains("ids.raw: size: 20 bytes are no list of ids"), "{}", report.log);
    place.write("ids.raw", &600u64.to_le_bytes());
    let report = place.run(&["--model_path", "tokens.pte", "--tokenized_prompt", "ids.raw"]);
    assert_eq!(report.code, Some(1));
    assert!(report.log.contains("600"), "{}", report.log);
}

#[test]
fn pictures_come_from_lists_of_tensors_and_image_files() {
    let place = Place::new();
    let tokenizer = root().join("tests/fixtures/tiny/smolvlm");
    let png = root().join("tests/fixtures/media/rgb_97x61.png");
    let tensor: Vec<u8> = std::iter::repeat_n(0.5f32.to_le_bytes(), 3 * 64 * 64).flatten().collect();
    place.write("a.raw", &tensor);
    place.write("list.txt", format!("a.raw {}\r\n\na.raw\n", png.display()).as_bytes());
    let tokenizer = tokenizer.display().to_string();
    let model = [
        "--encoder_path=encoder.pte",
        "--decoder_model_version=smolvlm",
        "--tokenizer_path",
        &tokenizer,
        "--seq_len=200",
    ];
    let conversation = ["--image_path", "list.txt", "--prompt", "<image><image>a?", "--prompt", "b <image>"];
    let report = place.ok(&[&model[..], &conversation].concat());
    let around = "<fake_token_around_image><global-img><fake_token_around_image>";
    let first = format!("<|im_start|>User:{around}{around}a?<end_of_utterance>\nAssistant:");
    let second = format!("<|im_start|>User:b {around}<end_of_utterance>\nAssistant:");
    let text = place.read("outputs.txt");
    assert!(text.starts_with(&first) && text[first.len()..].contains(&second), "{text}");
    // Both turns are of the same tokens but for the pictures and the text: four rows and three tokens a picture.
    let prompt = |turn: usize| report.observer()[turn]["prompt_tokens"].as_u64().expect("a count");
    assert_eq!(prompt(0) - prompt(1), 7, "{}", report.out);

    // Without a placeholder all pictures open the first prompt; a picture may be given by itself.
    let alone = png.display().to_string();
    place.ok(&[&model[..], &["--image_path", &alone, "--prompt", "a?"]].concat());
    assert!(place.read("outputs.txt").starts_with(&format!("<|im_start|>User:{around}a?")));
    place.ok(&[&model[..], &["--image_path", "a.raw"]].concat());
    assert!(place.read("outputs.txt").starts_with(&format!("<|im_start|>User:{around}Describe this image:")));

    for (arguments, says) in [
        (
            &["--image_path", "list.txt", "--prompt", "<image>"][..],
            "placeholders <image> in the prompts: 1, images given: 3",
        ),
        (&["--image_path", "none.txt"], "none.txt: there is no such file"),
        (&["--image_path", "decoder.pte"], "h: there is no such file"),
        (&["--image_path", "tokenizer.bin"], "neither a picture, nor a tensor, nor a list of paths"),
        (&[], "--image_path is missing"),
    ] {
        let report = place.run(&[&model[..], arguments].concat());
        assert_eq!(report.code, Some(1), "{arguments:?}");
        assert!(report.log.contains(says), "{arguments:?}: {}", report.log);
    }
}

#[test]
fn audio_comes_from_lists_of_feature_tensors_and_wav_files() {
    let place = Place::new();
    let tokenizer = root().join("tests/fixtures/tiny/granite_speech").display().to_string();
    let wav = root().join("tests/fixtures/media/chirp_16k_21920.wav").display().to_string();
    let features: Vec<u8> = std::iter::repeat_n(0.5f32.to_le_bytes(), 75 * 160).flatten().collect();
    place.write("a.raw", &features);
    place.write("list.txt", b"a.raw\n");
    let model = [
        "--encoder_path=audio.pte",
        "--decoder_model_version=granite_speech",
        "--tokenizer_path",
        &tokenizer,
        "--seq_len=0",
    ];
    let turn = "<|start_of_role|>system<|end_of_role|>You are Granite, developed by IBM. You are a helpful AI \
                assistant.<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>a<|end_of_text|>\n\
                <|start_of_role|>assistant<|end_of_role|>";
    let prompt_tokens = |report: &Report| report.observer()[0]["prompt_tokens"].as_u64().expect("a count");
    let one = place.ok(&[&model[..], &["--audio_path", "list.txt", "--prompt", "<audio>a"]].concat());
    assert!(place.read("outputs.txt").starts_with(turn), "{}", place.read("outputs.txt"));
    for alone in ["a.raw", &wav] {
        let alone = place.ok(&[&model[..], &["--audio_path", alone, "--prompt", "a"]].concat());
        assert_eq!(prompt_tokens(&one), prompt_tokens(&alone));
    }
    place.write("list.txt", format!("a.raw {wav}").as_bytes());
    let two = place.ok(&[&model[..], &["--audio_path", "list.txt", "--prompt", "<audio><audio>a"]].concat());
    assert_eq!(prompt_tokens(&two) - prompt_tokens(&one), 4, "four rows more, nothing around them");
    // What is typed is text: the token itself makes no place for audio, and pictures are another model's.
    let typed = ["--audio_path", "a.raw", "--prompt", "<audio>a<|audio|>", "--image_path", "none.txt"];
    place.ok(&[&model[..], &typed].concat());
    assert!(place.read("outputs.txt").contains("a<|audio|><|end_of_text|>"), "{}", place.read("outputs.txt"));

    place.write("a.raw", &features[4..]);
    for (arguments, says) in [
        (
            &["--audio_path", "list.txt", "--prompt", "<audio>"][..],
            "a.raw: 47996 bytes are neither a WAV file nor the 48000 bytes of a f32 tensor",
        ),
        (
            &["--audio_path", &wav, "--prompt", "<audio><audio>"],
            "placeholders <audio> in the prompts: 2, audio clips given: 1",
        ),
        (&["--audio_path", "none.txt"], "none.txt: there is no such file"),
        (&[], "--audio_path is missing"),
    ] {
        let report = place.run(&[&model[..], arguments].concat());
        assert_eq!(report.code, Some(1), "{arguments:?}");
        assert!(report.log.contains(says), "{arguments:?}: {}", report.log);
    }
}

#[test]
fn failures_are_errors_that_keep_what_was_said() {
    let place = Place::new();
    let report = place.run(&["--model_path", "failing.pte", "--prompt", "go"]);
    assert_eq!(report.code, Some(1));
    assert!(
        report.log.contains("error: engine toy: ") && report.log.contains("the third call fails"),
        "{}",
        report.log
    );
    assert_eq!(place.read("outputs.txt"), format!("go{}", words(GO + 1, GO + 3)));
    for (arguments, code, says) in [
        (&["--model_path", "none.pte"][..], 1, "none.pte"),
        (&["--model_path", "strange.pte"], 1, "no program of this engine"),
        (&["--model_path", "encoder.pte"], 1, "forward"),
        (
            &["--model_path", "tokens.pte", "--tokenizer_path", "none.bin"],
            1,
            "none.bin: there is no such tokenizer file",
        ),
        (&["--model_path", "tokens.pte", "--tokenizer_path", "tokens.pte"], 1, "max_token_length"),
        (&["--model_path", "tokens.pte", "--decoder_model_version", "gpt5"], 1, "\"gpt5\""),
        (&["--model_path", "tokens.pte", "--prompt="], 1, "the prompt is empty"),
        (&["--model_path", "tokens.pte", "--output_path", "no/such/folder/out"], 1, "no/such/folder/out"),
        (&["--model_path", "tokens.pte", "--eval_mode", "2"], 1, "lookahead ngram is 0"),
        (&["--model_path", "tokens.pte", "--no_such_flag"], 2, "unknown command line flag \"no_such_flag\""),
        (&["--model_path", "tokens.pte", "--seq_len", "many"], 2, "illegal value \"many\" for int32 flag --seq_len"),
    ] {
        let report = place.run(arguments);
        assert_eq!(report.code, Some(code), "{arguments:?}: {}", report.log);
        let last = report.log.lines().next_back().unwrap_or_default();
        assert!(last.starts_with("error: ") && last.contains(says), "{arguments:?}: {}", report.log);
        assert!(!report.log.contains("panicked"), "{arguments:?}");
    }
}

#[test]
fn the_engine_library_is_named_or_searched_for() {
    let place = Place::new();
    let run = |command: &mut Command| Report::of(command.output().expect("the command starts"));
    let bare = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_etgenai"));
        command.args(["run-pte", "--model_path", "tokens.pte", "--prompt", "go"]).current_dir(place.folder.path());
        command
    };
    assert_eq!(run(bare().env("ETGENAI_EXECUTORCH_LIBRARY", engine())).code, Some(0));
    let report = run(bare().env("ETGENAI_EXECUTORCH_LIBRARY", "none.so"));
    assert_eq!(report.code, Some(1));
    assert!(report.log.contains("none.so") && report.log.contains("--engine_library"), "{}", report.log);
    let report = run(bare().args(["--engine_library", "tokenizer.bin"]));
    assert_eq!(report.code, Some(1), "{}", report.log);
}

#[test]
fn a_link_with_upstreams_name_is_upstreams_runner() {
    let place = Place::new();
    let link = place.path("qnn_llama_runner");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_etgenai"), &link).expect("a link");
    let mut command = Command::new(link);
    command.args(["--model_path", "tokens.pte", "--prompt", "go"]).current_dir(place.folder.path());
    let report = Report::of(command.env("ETGENAI_EXECUTORCH_LIBRARY", engine()).output().expect("the link starts"));
    assert_eq!(report.code, Some(0), "{}", report.log);
    assert_eq!(place.read("outputs.txt"), format!("go{}", whole_reply()));
}

#[test]
fn json_is_one_document() {
    let place = Place::new();
    let report = place.ok(&["--model_path", "tokens.pte", "--prompt", "go", "--json"]);
    let document: Value = serde_json::from_str(&report.out).expect("one JSON document");
    let turn = &document["turns"][0];
    assert_eq!((&turn["prompt"], &turn["stop_reason"]), (&"go".into(), &"eos".into()));
    assert_eq!(turn["text"], words(GO + 1, 280).trim_start());
    assert_eq!(turn["stats"]["generated_tokens"], 10);
    let help = place.ok(&["--help"]);
    assert!(help.out.contains("--decoder_model_version") && help.log.is_empty());
}
