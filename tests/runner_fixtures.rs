//! The promise: over real networks too (tiny ones, compiled for the CPU engine) the runner gives the reference's
//! tokens, and neither block size, turns nor rewinds change what the model reads.

mod support;

use etgenai::Error;
use etgenai::chat::{EncodeOptions, Message};
use etgenai::formats::WeightFormat;
use etgenai::runner::{EvalOptions, Event, Flow, GenerateOptions, Runner, RunnerOptions, SamplingOptions};
use std::fs;
use support::{Golden, compile};
use tempfile::TempDir;

const FAMILIES: [&str; 5] = ["llama", "smollm2", "qwen2", "qwen3", "gemma3"];

/// A compiled tiny model, open; the directory must outlive it.
fn open(family: &str, context: usize, block: usize, options: &RunnerOptions) -> (TempDir, Runner) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let out = directory.path().join("model");
    compile(family, &out, WeightFormat::F32, context, block);
    let runner = Runner::open(&out, &RunnerOptions { threads: Some(2), ..options.clone() }).expect("a runner");
    (directory, runner)
}

fn ids(values: Vec<i32>) -> Vec<u32> {
    values.into_iter().map(|id| u32::try_from(id).expect("an id")).collect()
}

/// Single steps: a prompt, then greedy tokens.
fn greedy(runner: &mut Runner, prompt: &[u32], count: usize) -> Vec<u32> {
    runner.prefill_prompt(prompt).expect("prefill");
    let mut tokens = Vec::new();
    while tokens.len() < count {
        let token = runner.sample(&SamplingOptions::default()).expect("sample");
        tokens.push(token);
        runner.decode(token).expect("decode");
    }
    tokens
}

fn without_eos(max_new_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_new_tokens: Some(max_new_tokens), ignore_eos: true, ..Default::default() }
}

fn ask(runner: &mut Runner, question: &str, tokens: usize) -> Vec<u32> {
    let messages = [Message::user(question)];
    runner.generate(&messages, &without_eos(tokens), &mut |_| Flow::Continue).expect("a reply").tokens
}

#[test]
fn the_references_tokens_with_any_block_size() {
    for family in FAMILIES {
        let golden = Golden::open(family);
        for block in [1, 7, 32] {
            let (_directory, mut runner) = open(family, 128, block, &RunnerOptions::default());
            for case in ["", "long."] {
                let prompt = ids(golden.i32(&format!("{case}prompt_ids")));
                let expected = ids(golden.i32(&format!("{case}greedy_ids")));
                assert_eq!(greedy(&mut runner, &prompt, expected.len()), expected, "{family} {case} block {block}");
            }
        }
    }
}

#[test]
fn turns_equal_the_whole_history_at_once_and_nothing_is_computed_twice() {
    let (_first, mut turns) = open("smollm2", 512, 32, &RunnerOptions::default());
    let (_second, mut once) = open("smollm2", 512, 7, &RunnerOptions::default());
    ask(&mut turns, "Hello there, how are you?", 12);
    ask(&mut turns, "And what is the capital of France?", 12);
    let prompt = turns.encode(&[Message::user("Why?")]).expect("a prompt");
    let known = turns.history_tokens().to_vec();
    assert_eq!(prompt[..known.len()], known, "the history is what the template renders");
    let messages = [Message::user("Why?")];
    let third = turns.generate(&messages, &without_eos(12), &mut |_| Flow::Continue).expect("a reply");
    assert_eq!(third.stats.reused_tokens, known.len() - 1, "all but the token sampled last");
    assert_eq!(greedy(&mut once, &prompt, 12), third.tokens);
}

#[test]
fn rewind_and_reset_lead_to_the_same_tokens_again() {
    let (_directory, mut runner) = open("qwen3", 512, 32, &RunnerOptions::default());
    let first = ask(&mut runner, "one", 8);
    let second = ask(&mut runner, "a second, longer question", 8);
    runner.rewind(1).expect("rewind");
    assert_eq!(ask(&mut runner, "a second, longer question", 8), second);
    runner.reset();
    assert_eq!(ask(&mut runner, "one", 8), first);
}

#[test]
fn perplexity_is_that_of_the_rows_and_does_not_depend_on_the_block() {
    let text = "A text of some words, long enough for several windows. ".repeat(6);
    let options = EvalOptions { window: 48, full_windows_only: false };
    let results = [1, 7, 32].map(|block| {
        let (_directory, mut runner) = open("smollm2", 64, block, &RunnerOptions::default());
        let tokens = runner.tokenizer().encode(&text, EncodeOptions::default()).expect("tokens");
        runner.evaluate(&tokens, &options, &mut |_| Flow::Continue).expect("perplexity")
    });
    for result in &results {
        assert!((result.mean_nll - results[0].mean_nll).abs() < 1e-5, "{results:?}");
        assert_eq!(result.scored_tokens, results[0].scored_tokens);
    }
}

#[test]
fn options_of_opening() {
    let upstream = RunnerOptions { template: Some("upstream:smollm2_135m".into()), ..Default::default() };
    let (directory, runner) = open("smollm2", 64, 8, &upstream);
    let rendered = runner.render(&[Message::user("Hi")]).expect("rendered");
    assert_eq!(rendered, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\n");

    let out = directory.path().join("model");
    let own = RunnerOptions {
        template: Some("{{ messages[0].content }}/{{ messages[1].content }}/{{ tone }}".into()),
        template_variables: serde_json::json!({"tone": "kind"}).as_object().expect("an object").clone(),
        system_prompt: Some("sys".into()),
        ..Default::default()
    };
    let runner = Runner::open(&out, &own).expect("a runner");
    assert_eq!(runner.render(&[Message::user("Hi")]).expect("rendered"), "sys/Hi/kind");
    assert_eq!(runner.context_capacity(), 64);

    let refused = |options: RunnerOptions| Runner::open(&out, &options).err().expect("refused").to_string();
    assert!(refused(RunnerOptions { threads: Some(0), ..Default::default() }).contains("threads is 0"));
    let unknown = refused(RunnerOptions { template: Some("upstream:nobody".into()), ..Default::default() });
    assert!(unknown.contains("nobody") && unknown.contains("smollm2_135m"), "{unknown}");
    let broken = refused(RunnerOptions { template: Some("{% for %}".into()), ..Default::default() });
    assert!(broken.contains("line 1"), "{broken}");
}

#[test]
fn damaged_artefacts_are_refused_by_file() {
    let (directory, runner) = open("smollm2", 64, 8, &RunnerOptions::default());
    drop(runner);
    let out = directory.path().join("model");
    fs::remove_file(out.join("tokenizer.json")).expect("remove");
    let error = Runner::open(&out, &RunnerOptions::default()).err().expect("no tokenizer");
    assert!(matches!(&error, Error::NotFound(text) if text.contains("tokenizer.json")), "{error}");
    let nowhere = Runner::open(directory.path().join("nothing"), &RunnerOptions::default()).err().expect("missing");
    assert!(matches!(nowhere, Error::NotFound(_)), "{nowhere}");
}

#[test]
fn a_tokenizer_larger_than_the_logits_cannot_break_the_session() {
    let (_directory, mut runner) = open("smollm2", 64, 8, &RunnerOptions::default());
    let vocabulary = runner.decoder().contract().vocabulary as u32;
    assert!(matches!(runner.prefill(&[vocabulary]), Err(Error::InvalidArgument(_))));
    runner.prefill(&[1]).expect("still usable");
}

#[test]
fn text_arrives_while_it_is_generated() {
    let (_directory, mut runner) = open("smollm2", 256, 32, &RunnerOptions::default());
    let (mut text, mut pieces) = (String::new(), 0);
    let result = runner.generate(&[Message::user("Hello")], &without_eos(24), &mut |event| {
        if let Event::Text(piece) = event {
            assert!(!piece.is_empty());
            text.push_str(piece);
            pieces += 1;
        }
        Flow::Continue
    });
    assert_eq!(result.expect("a reply").text, text);
    assert!(pieces > 1, "{pieces} pieces: {text:?}");
}
