//! The promise: programs without an accelerator (ExecuTorch's own kernels, XNNPACK) run behind the same runner, in every form
//! that files come in, and give the text of the same model on the built-in CPU engine.
//!
//! Needs `.ci/fetch-executorch`. `tests/executorch/make_programs.py` writes the programs from a tiny checkpoint.

mod executorch_engine;
mod support;

use etgenai::Result;
use etgenai::chat::Message;
use etgenai::engine::ComponentSource;
use etgenai::engine::plugin::PluginEngine;
use etgenai::formats::WeightFormat;
use etgenai::runner::{
    DecodingMode, Flow, GenerateOptions, LookaheadOptions, ModelFiles, Runner, RunnerOptions, StopReason,
};
use executorch_engine::{engine, fixture, root};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Slots of the programs.
const CONTEXT: usize = 64;

/// A program of the tiny SmolLM2, written for this test.
fn program(kind: &str, flags: &[&str]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("programs");
    std::fs::create_dir_all(&folder).expect("a folder");
    let name = std::iter::once(&kind).chain(flags).map(|word| word.trim_start_matches('-')).collect::<Vec<_>>();
    let path = folder.join(format!("{}.pte", name.join("_")));
    // Written beside and renamed: tests run at the same time.
    let partial = tempfile::NamedTempFile::new_in(&folder).expect("a temporary file").into_temp_path();
    let mut command = Command::new("python3");
    command.arg(root().join("tests/executorch/make_programs.py")).arg(kind).arg(fixture("tiny/smollm2"));
    let output = command.arg(&partial).args(flags).output().expect("python3 is needed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    partial.persist(&path).expect("renamed");
    path
}

fn tokenizer() -> PathBuf {
    fixture("tiny/smollm2/tokenizer.json")
}

static ENGINE: LazyLock<PluginEngine> = LazyLock::new(engine);

/// The model's own template fills most of the context with a system prompt.
fn options(decoding: DecodingMode) -> RunnerOptions {
    RunnerOptions { decoding, template: Some("upstream:llama2".into()), ..Default::default() }
}

fn open(files: &ModelFiles, decoding: DecodingMode) -> Result<Runner> {
    Runner::open_files(files, &*ENGINE, &options(decoding))
}

fn decoder(flags: &[&str]) -> ModelFiles {
    ModelFiles::new(program("decoder", flags), tokenizer())
}

/// Two turns, greedy.
fn talk(runner: &mut Runner) -> Vec<Vec<u32>> {
    let options = GenerateOptions { max_new_tokens: Some(9), ..Default::default() };
    ["The sea", "More"]
        .map(|text| {
            let turn = runner.generate(&[Message::user(text)], &options, &mut |_| Flow::Continue).expect("a reply");
            turn.tokens
        })
        .to_vec()
}

/// The same model, compiled for the CPU engine.
static EXPECTED: LazyLock<Vec<Vec<u32>>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("model");
    support::compile("smollm2", &model, WeightFormat::F32, CONTEXT, 8);
    talk(&mut Runner::open(&model, &options(DecodingMode::Auto)).expect("opens"))
});

#[test]
fn every_form_of_a_program_gives_the_text_of_the_cpu_engine() {
    let forms: [&[&str]; 8] = [
        &[],
        &["--xnnpack"],
        // Several delegates, with an operator that the host must bring between them.
        &["--xnnpack", "--cut"],
        &["--int64-tokens"],
        &["--mask-rank", "3"],
        &["--per-head-kv"],
        &["--kv-only"],
        &["--per-head-kv", "--mask-rank", "3", "--int64-tokens", "--xnnpack"],
    ];
    for flags in forms {
        let mut runner = open(&decoder(flags), DecodingMode::Auto).expect("opens");
        assert_eq!(talk(&mut runner), *EXPECTED, "{flags:?}");
    }
}

#[test]
fn embeddings_may_come_from_a_file_of_their_own() {
    for embedding in [vec![], vec!["--int64-tokens"]] {
        let mut files = decoder(&["--rows-in"]);
        let missing = open(&files, DecodingMode::Auto).err().expect("no embedding").to_string();
        assert!(missing.contains("tok_embedding is needed"), "{missing}");
        files.set(ComponentSource::file("tok_embedding", program("embedding", &embedding))).expect("known");
        assert_eq!(talk(&mut open(&files, DecodingMode::Auto).expect("opens")), *EXPECTED, "{embedding:?}");
    }
    let mut files = decoder(&[]);
    files.set(ComponentSource::file("tok_embedding", program("embedding", &[]))).expect("known");
    let useless = open(&files, DecodingMode::Auto).err().expect("not needed").to_string();
    assert!(useless.contains("no use for a token embedding"), "{useless}");
}

#[test]
fn kv_hybrid_and_lookahead_give_the_same_text() {
    let lookahead = |ngram, window, gcap| DecodingMode::Lookahead(LookaheadOptions { ngram, window, gcap });
    for flags in [&[][..], &["--xnnpack"]] {
        for mode in [DecodingMode::Kv, DecodingMode::Hybrid, lookahead(3, 2, 2), lookahead(2, 4, 4), lookahead(5, 1, 1)]
        {
            let mut runner = open(&decoder(flags), mode).expect("opens");
            assert_eq!(talk(&mut runner), *EXPECTED, "{flags:?} {mode:?}");
        }
    }
    let error = open(&decoder(&["--kv-only"]), DecodingMode::Hybrid).err().expect("no prefill graph").to_string();
    assert!(error.contains("needs the graph prefill_forward"), "{error}");
    let error = open(&decoder(&[]), lookahead(5, 8, 8)).err().expect("64 rows in 8").to_string();
    assert!(error.contains("needs blocks of 64 tokens, the widest graph takes 8"), "{error}");
}

#[test]
fn programs_load_from_memory() {
    let bytes = std::fs::read(program("decoder", &["--xnnpack"])).expect("the program");
    let mut files = decoder(&[]);
    files.set(ComponentSource::bytes("text_decoder", &bytes)).expect("known");
    drop(bytes);
    assert_eq!(talk(&mut open(&files, DecodingMode::Auto).expect("opens")), *EXPECTED);
}

/// Until the context is full the text is that without a sink; then it goes on.
#[test]
fn an_attention_sink_carries_a_conversation_past_the_context() {
    for per_head in [&[][..], &["--per-head-kv"]] {
        let mut files = decoder(per_head);
        files.set(ComponentSource::file("attention_sink_evictor", program("evictor", per_head))).expect("known");
        for mode in [DecodingMode::Kv, DecodingMode::Hybrid] {
            let mut runner = open(&files, mode).expect("opens");
            assert_eq!(talk(&mut runner), *EXPECTED, "{mode:?}");
            let options = GenerateOptions { max_new_tokens: Some(120), ignore_eos: true, ..Default::default() };
            let turn = runner.generate(&[Message::user("On")], &options, &mut |_| Flow::Continue).expect("a reply");
            assert_eq!((turn.stop_reason, turn.tokens.len()), (StopReason::Length, 120));
            assert!(runner.position() > 2 * CONTEXT && runner.decoder().evicted_tokens() >= 96, "{mode:?}");
            // Another turn computes what is new, not the whole history again.
            let options = GenerateOptions { max_new_tokens: Some(5), ..options };
            let turn = runner.generate(&[Message::user("Again")], &options, &mut |_| Flow::Continue).expect("a reply");
            assert!(turn.stats.prefilled_tokens < 40, "{:?}", turn.stats);
        }
    }
}

#[test]
fn two_runners_in_two_threads_over_one_file() {
    let files = decoder(&["--xnnpack"]);
    let expected = &*EXPECTED;
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut runner = open(&files, DecodingMode::Auto).expect("opens");
                for _ in 0..3 {
                    assert_eq!(talk(&mut runner), *expected);
                    runner.reset();
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

#[test]
fn opening_fifty_times_leaves_memory_flat() {
    let files = decoder(&["--xnnpack"]);
    let once = || drop(talk(&mut open(&files, DecodingMode::Auto).expect("opens")));
    (0..10).for_each(|_| once());
    let before = resident();
    (0..50).for_each(|_| once());
    let grown = resident().saturating_sub(before);
    // A leaked program alone would be 50 times its 600 KB; other tests of this program run beside it.
    assert!(grown < 24 << 20, "{} KB more", grown >> 10);
}

#[test]
fn ids_outside_of_the_vocabulary_are_refused_before_they_reach_a_kernel() {
    let mut runner = open(&decoder(&[]), DecodingMode::Auto).expect("opens");
    let error = runner.prefill(&[1, 512]).expect_err("512 tokens").to_string();
    assert!(error.contains("token id 512 is outside the decoder's vocabulary of 512"), "{error}");
    talk(&mut runner);
}

#[test]
fn files_that_are_no_programs_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let garbage = folder.path().join("garbage.pte");
    std::fs::write(&garbage, [b'x'; 5000]).expect("written");
    let truncated = folder.path().join("truncated.pte");
    let whole = std::fs::read(program("decoder", &[])).expect("the program");
    std::fs::write(&truncated, &whole[..whole.len() / 2]).expect("written");
    for (path, words) in [
        (garbage.as_path(), "garbage.pte"),
        (&truncated, "truncated.pte"),
        (Path::new("/no/such.pte"), "/no/such.pte"),
        (folder.path(), folder.path().to_str().expect("UTF-8")),
        (&tokenizer(), "tokenizer.json"),
    ] {
        let files = ModelFiles::new(path, tokenizer());
        let error = open(&files, DecodingMode::Auto).err().expect("an error").to_string();
        assert!(error.contains(words), "{error}");
    }
}
