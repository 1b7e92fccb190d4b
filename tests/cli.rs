//! The `etgenai` command: what it prints, its exit codes, and that wrong input leaves nothing behind.

use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_etgenai"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the command starts")
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("standard output is UTF-8")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("standard error is UTF-8")
}

/// Run with success and parse what is printed.
fn json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    assert_eq!(stderr(&output), "", "{arguments:?}");
    serde_json::from_slice(&output.stdout).expect("standard output is one JSON document")
}

/// Run, expect this exit code, nothing on standard output, no panic; give standard error.
fn failure(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    let complaint = stderr(&output).to_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {complaint}");
    assert_eq!(stdout(&output), "", "{arguments:?}");
    assert!(complaint.starts_with("error: ") && !complaint.contains("panicked"), "{arguments:?}: {complaint}");
    complaint
}

/// The tiny SmolLM2 fixture compiled once for all tests: f32, 256 tokens of context, prefill blocks of 16.
fn compiled() -> &'static str {
    static COMPILED: OnceLock<(TempDir, String)> = OnceLock::new();
    let (_, path) = COMPILED.get_or_init(|| {
        let folder = TempDir::new().expect("a temporary folder");
        let out = folder.path().join("smollm2").display().to_string();
        let checkpoint = fixture("tiny/smollm2").display().to_string();
        let arguments =
            ["compile", &checkpoint, "--out", &out, "--weights", "f32", "--max-context", "256", "--prefill-ar", "16"];
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        (folder, out)
    });
    path
}

fn names_in(folder: &Path) -> Vec<String> {
    let mut names = fs::read_dir(folder)
        .expect("a readable folder")
        .map(|entry| entry.expect("a readable entry").file_name().to_string_lossy().into_owned())
        .collect::<Vec<_>>();
    names.sort();
    names
}

/// A copy of a fixture folder that a test may spoil.
fn copy_of(name: &str, to: &Path) {
    fs::create_dir(to).expect("a new folder");
    for entry in fs::read_dir(fixture(name)).expect("the fixture is there") {
        let entry = entry.expect("a readable entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

mod usage {
    use super::*;

    #[test]
    fn help_and_version_are_no_errors() {
        for arguments in [&["--help"][..], &["chat", "--help"], &["--version"]] {
            let output = run(arguments);
            assert_eq!(output.status.code(), Some(0), "{arguments:?}");
            assert!(stdout(&output).contains("etgenai"), "{arguments:?}");
        }
        assert!(stdout(&run(&["--help"])).contains("Exit codes: 0 done, 1 error"));
    }

    #[test]
    fn no_subcommand_is_wrong_usage() {
        assert_eq!(run(&[]).status.code(), Some(2));
    }

    #[test]
    fn wrong_values_name_the_option_and_the_value() {
        let model = compiled();
        for (arguments, says) in [
            (&["chat", model, "--max-new-tokens", "0"][..], "must be 1 or more"),
            (&["chat", model, "--threads", "many"], "'many'"),
            (&["chat", model, "--temperature=-1"], "temperature is -1"),
            (&["chat", model, "--temperature", "nan"], "temperature is NaN"),
            (&["chat", model, "--top-p", "1.5"], "top_p is 1.5"),
            (&["chat", model, "--min-p", "2"], "min_p is 2"),
            (&["chat", model, "--repetition-penalty", "0"], "repetition_penalty is 0"),
            (&["chat", model, "--stop", ""], "is empty"),
            (&["chat", model, "--no-such-option"], "--no-such-option"),
            (&["compile", "x", "--out", "y", "--weights", "q3"], "'q3'"),
            (&["compile", "x"], "--out"),
            (&["eval", model, "--text", "x", "--window", "1"], "must be 2 or more"),
            (&["bench", model, "--repeat", "0"], "must be 1 or more"),
        ] {
            let complaint = failure(arguments, 2);
            assert!(complaint.contains(says), "{arguments:?}: {complaint}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_reader_that_leaves_early_is_no_error() {
        let mut child = command(&["models"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
    }
}

mod models {
    use super::*;

    #[test]
    fn all_names_are_listed() {
        let document = json(&["models", "--json"]);
        let models = document["models"].as_array().expect("an array");
        assert_eq!(models.len(), 21);
        let text = run(&["models"]);
        for model in models {
            let name = model["name"].as_str().expect("a name");
            assert!(stdout(&text).lines().any(|line| line.starts_with(name)), "{name}");
        }
    }

    #[test]
    fn a_name_is_found_in_any_case_and_an_unknown_one_lists_all() {
        let one = json(&["--json", "models", "SMOLLM2_135M"]);
        assert_eq!(one["models"][0]["name"], "smollm2_135m");
        assert_eq!(one["models"].as_array().map(Vec::len), Some(1));
        let complaint = failure(&["models", "gpt2", "--json"], 1);
        assert!(complaint.contains("gpt2") && complaint.contains("qwen3-0_6b"), "{complaint}");
    }
}

mod inspect {
    use super::*;

    #[test]
    fn a_folder_shows_its_model_and_tensors() {
        let path = fixture("tiny/qwen3").display().to_string();
        let document = json(&["inspect", &path, "--json", "--tensors"]);
        assert_eq!(document["kind"], "huggingface");
        assert_eq!(document["model"]["family"], "qwen3");
        assert_eq!(document["model"]["decoder"]["qk_norm"], true);
        let tensors = document["tensors"].as_array().expect("tensors");
        let bytes = tensors.iter().filter_map(|tensor| tensor["bytes"].as_u64()).sum::<u64>();
        let summed = document["storage"].as_array().expect("storage");
        assert_eq!(summed.iter().filter_map(|sum| sum["bytes"].as_u64()).sum::<u64>(), bytes);
        assert!(bytes > 0);

        let text = run(&["inspect", &path, "--tensors"]);
        assert_eq!(text.status.code(), Some(0));
        assert!(stdout(&text).contains("model.layers.0.self_attn.q_norm.weight"), "{}", stdout(&text));
    }

    #[test]
    fn a_compiled_directory_shows_what_was_written() {
        let document = json(&["inspect", compiled(), "--json", "--verify"]);
        assert_eq!(document["kind"], "compiled");
        assert_eq!(document["verified"], true);
        assert_eq!(document["context_capacity"], 256);
        assert_eq!(document["prefill_ar"], 16);
        let graphs = document["components"]["text_decoder"]["graphs"].as_array().expect("graphs");
        let names = graphs.iter().filter_map(|graph| graph["name"].as_str()).collect::<Vec<_>>();
        assert_eq!(names, ["kv_forward", "prefill_forward"]);

        let text = run(&["inspect", compiled(), "--tensors"]);
        for expected in ["kv_forward", "k_cache_0", "attention_mask", "1 x 16", "f32"] {
            assert!(stdout(&text).contains(expected), "{expected}: {}", stdout(&text));
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = TempDir::new().expect("a temporary folder");
        let missing = folder.path().join("nothing").display().to_string();
        assert!(failure(&["inspect", &missing], 1).contains(&missing));

        // A GGUF header that promises more tensors than any file holds, and stops.
        let hostile = folder.path().join("hostile.gguf");
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(u64::MAX.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        fs::write(&hostile, bytes).expect("a written file");
        assert!(failure(&["inspect", &hostile.display().to_string()], 1).contains("hostile.gguf"));

        let spoiled = folder.path().join("spoiled");
        fs::create_dir(&spoiled).expect("a new folder");
        fs::write(spoiled.join("manifest.json"), "{\"format\": 7").expect("a written file");
        assert!(failure(&["inspect", &spoiled.display().to_string()], 1).contains("manifest.json"));
    }

    #[test]
    fn a_changed_component_is_found() {
        let folder = TempDir::new().expect("a temporary folder");
        let copy = folder.path().join("copy");
        fs::create_dir(&copy).expect("a new folder");
        for name in names_in(Path::new(compiled())) {
            fs::copy(Path::new(compiled()).join(&name), copy.join(&name)).expect("a copy");
        }
        let component = copy.join("text_decoder.safetensors");
        let mut bytes = fs::read(&component).expect("the component");
        *bytes.last_mut().expect("not empty") ^= 1;
        fs::write(&component, bytes).expect("a written file");
        let complaint = failure(&["inspect", &copy.display().to_string(), "--verify"], 1);
        assert!(complaint.contains("sha256"), "{complaint}");
    }
}

mod compile {
    use super::*;

    #[test]
    fn every_weight_format_gives_a_model_that_answers() {
        let folder = TempDir::new().expect("a temporary folder");
        let checkpoint = fixture("tiny/llama").display().to_string();
        for format in ["f32", "f16", "bf16", "w8", "w4"] {
            let out = folder.path().join(format).display().to_string();
            let report = json(&["compile", &checkpoint, "--out", &out, "--weights", format, "--json"]);
            assert_eq!(report["weights"], format);
            assert_eq!(report["out"], out.as_str());
            let inspected = json(&["inspect", &out, "--json"]);
            let formats = inspected["components"]["text_decoder"]["weights"].as_object().expect("weights");
            assert!(formats.contains_key(format), "{format}: {formats:?}");
            let chat =
                ["chat", &out, "--prompt", "Hello", "--template", "upstream:llama3", "--max-new-tokens", "4", "--json"];
            assert!(json(&chat)["turns"][0]["stats"]["generated_tokens"].as_u64() > Some(0));
        }
    }

    #[test]
    fn a_failed_compile_leaves_nothing_behind() {
        let folder = TempDir::new().expect("a temporary folder");
        let spoiled = folder.path().join("checkpoint");
        copy_of("tiny/smollm2", &spoiled);
        let weights = spoiled.join("model.safetensors");
        let bytes = fs::read(&weights).expect("the weights");
        fs::write(&weights, &bytes[..bytes.len() / 2]).expect("a written file");
        let out = folder.path().join("out").display().to_string();
        let complaint = failure(&["compile", &spoiled.display().to_string(), "--out", &out], 1);
        assert!(complaint.contains("model.safetensors"), "{complaint}");
        assert_eq!(names_in(folder.path()), ["checkpoint"]);
    }

    #[test]
    fn a_checkpoint_without_a_needed_tensor_leaves_nothing_behind() {
        let folder = TempDir::new().expect("a temporary folder");
        let spoiled = folder.path().join("checkpoint");
        copy_of("tiny/smollm2", &spoiled);
        let config = spoiled.join("config.json");
        let text = fs::read_to_string(&config).expect("the configuration");
        fs::write(&config, text.replace("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4")).expect("written");
        let out = folder.path().join("out").display().to_string();
        let complaint = failure(&["compile", &spoiled.display().to_string(), "--out", &out, "--json"], 1);
        assert!(complaint.contains("layers.3"), "{complaint}");
        assert_eq!(names_in(folder.path()), ["checkpoint"]);
    }

    #[test]
    fn unknown_names_and_missing_checkpoints_are_named() {
        let folder = TempDir::new().expect("a temporary folder");
        let out = folder.path().join("out").display().to_string();
        let checkpoint = fixture("tiny/smollm2").display().to_string();
        let complaint = failure(&["compile", &checkpoint, "--out", &out, "--model", "gpt2"], 1);
        assert!(complaint.contains("gpt2") && complaint.contains("smollm2_135m"), "{complaint}");
        let missing = folder.path().join("missing").display().to_string();
        assert!(failure(&["compile", &missing, "--out", &out], 1).contains(&missing));
        assert_eq!(names_in(folder.path()), [""; 0]);
    }
}

mod chat {
    use super::*;

    const TEMPLATE: [&str; 2] = ["--template", "upstream:smollm2_135m"];

    fn chat<'a>(rest: &[&'a str]) -> Vec<&'a str> {
        [&["chat", compiled()][..], &TEMPLATE, rest].concat()
    }

    #[test]
    fn turns_are_played_with_ids_reasons_and_stats() {
        let rest = ["--prompt", "What is the capital of France?", "--prompt", "And of Italy?", "--max-new-tokens", "5"];
        let document = json(&[&chat(&rest)[..], &["--json"]].concat());
        let turns = document["turns"].as_array().expect("turns");
        assert_eq!(turns.len(), 2);
        assert_eq!(turns[1]["prompt"], "And of Italy?");
        for turn in turns {
            let ids = turn["tokens"].as_array().expect("ids");
            assert!(ids.len() <= 5 && turn["text"].is_string());
            let reason = turn["stop_reason"].as_str().expect("a reason");
            assert!(matches!(reason, "length" | "eos"), "{reason}");
            assert!(turn["stats"]["prefilled_tokens"].as_u64() > Some(0));
            assert!(turn["stats"]["prefill_tokens_per_second"].as_f64() > Some(0.0));
        }
        assert!(turns[1]["stats"]["reused_tokens"].as_u64() > Some(0), "the second turn reuses the first");
        assert_eq!(document["total"]["turns"], 2);
    }

    #[test]
    fn text_holds_what_json_holds() {
        let rest = ["--prompt", "Hello", "--max-new-tokens", "8"];
        let document = json(&[&chat(&rest)[..], &["--json"]].concat());
        let output = run(&chat(&rest));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = document["turns"][0]["text"].as_str().expect("text");
        assert_eq!(stdout(&output), format!("{text}\n"));
    }

    #[test]
    fn a_pipe_gives_one_turn_a_line() {
        let arguments = [&chat(&["--max-new-tokens", "3"])[..], &["--json"]].concat();
        let mut child =
            command(&arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the command starts");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all("Hello\n\nAnd again\n".as_bytes()).expect("the lines are taken");
        drop(input);
        let output = child.wait_with_output().expect("it ends");
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let prompts = document["turns"].as_array().expect("turns").iter().map(|turn| turn["prompt"].clone());
        assert_eq!(prompts.collect::<Vec<_>>(), ["Hello", "And again"]);
    }

    #[test]
    fn equal_seeds_give_equal_replies_and_different_ones_do_not() {
        let reply = |seed: &str| {
            let rest =
                ["--prompt", "Hello", "--max-new-tokens", "24", "--temperature", "1.5", "--seed", seed, "--json"];
            json(&chat(&rest))["turns"][0]["tokens"].clone()
        };
        assert_eq!(reply("7"), reply("7"));
        assert!(["8", "9", "10"].iter().any(|seed| reply(seed) != reply("7")));
    }

    #[test]
    fn stop_strings_end_the_reply_and_are_not_shown() {
        let rest = ["--prompt", "Hello", "--max-new-tokens", "12", "--json"];
        let whole = json(&chat(&rest));
        let text = whole["turns"][0]["text"].as_str().expect("text").to_owned();
        let stop = text.chars().nth(3).expect("a few characters").to_string();
        let cut = json(&chat(&[&rest[..], &["--stop", &stop]].concat()));
        let turn = &cut["turns"][0];
        assert_eq!(turn["stop_reason"], "stop_string");
        assert_eq!(turn["text"].as_str(), text.split(&stop).next());
    }

    #[test]
    fn a_prompt_that_does_not_fit_says_both_numbers() {
        let long = "word ".repeat(400);
        let complaint = failure(&chat(&["--prompt", &long]), 1);
        assert!(complaint.contains("256"), "{complaint}");
        let needed = complaint.split_whitespace().filter_map(|word| word.parse::<usize>().ok()).max();
        assert!(needed > Some(256), "{complaint}");
    }

    #[test]
    fn stats_go_to_standard_error() {
        let output = run(&chat(&["--prompt", "Hello", "--max-new-tokens", "2", "--stats"]));
        assert!(stderr(&output).contains("Prompt Tokens:") && !stdout(&output).contains("Prompt Tokens:"));
    }

    #[test]
    fn what_is_no_compiled_model_is_named() {
        let checkpoint = fixture("tiny/smollm2").display().to_string();
        let complaint = failure(&["chat", &checkpoint, "--prompt", "x"], 1);
        assert!(complaint.contains("not a compiled model"), "{complaint}");
        let complaint = failure(&["chat", compiled(), "--prompt", "x", "--template", "upstream:nothing"], 1);
        assert!(complaint.contains("nothing"), "{complaint}");
    }
}

mod eval {
    use super::*;

    #[test]
    fn windows_start_cold_and_leave_their_first_token_out() {
        let text = fixture("smollm2/text.txt").display().to_string();
        let document = json(&["eval", compiled(), "--text", &text, "--window", "100", "--json"]);
        let count = |key: &str| document[key].as_u64().expect("a number");
        assert_eq!(count("windows"), count("text_tokens").div_ceil(100));
        assert_eq!(count("scored_tokens"), count("text_tokens") - count("windows"));
        let mean = document["nll_sum"].as_f64().expect("a number") / count("scored_tokens") as f64;
        let perplexity = document["perplexity"].as_f64().expect("a number");
        assert!((mean.exp() / perplexity - 1.0).abs() < 1e-9);
        // Random weights: about as good as guessing among the 512 tokens of the vocabulary.
        assert!((50.0..5000.0).contains(&perplexity), "{perplexity}");

        let full = json(&["eval", compiled(), "--text", &text, "--window", "100", "--full-windows-only", "--json"]);
        assert_eq!(full["windows"].as_u64(), Some(count("text_tokens") / 100));
    }

    #[test]
    fn unusable_texts_are_named() {
        let folder = TempDir::new().expect("a temporary folder");
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).expect("a written file");
            path.display().to_string()
        };
        assert!(failure(&["eval", compiled(), "--text", "no-such-file.txt"], 1).contains("no-such-file.txt"));
        let binary = file("binary.txt", &[0xff, 0xfe, 0x00]);
        assert!(failure(&["eval", compiled(), "--text", &binary, "--window", "64"], 1).contains("binary.txt"));
        let empty = file("empty.txt", b"");
        failure(&["eval", compiled(), "--text", &empty, "--window", "64"], 1);
        let text = fixture("smollm2/text.txt").display().to_string();
        let complaint = failure(&["eval", compiled(), "--text", &text, "--window", "512"], 1);
        assert!(complaint.contains("512") && complaint.contains("256"), "{complaint}");
    }
}

mod bench {
    use super::*;

    #[test]
    fn figures_are_numbers_in_order() {
        let arguments = ["bench", compiled(), "--prompt-tokens", "40", "--new-tokens", "8", "--repeat", "3", "--json"];
        let document = json(&arguments);
        for key in ["load_ms", "prefill_tokens_per_second", "decode_tokens_per_second"] {
            let figure = |name: &str| document[key][name].as_f64().expect("a number");
            assert!(0.0 < figure("min") && figure("min") <= figure("median") && figure("median") <= figure("max"));
        }
        for key in ["weight_bytes", "kv_bytes", "peak_memory_bytes", "threads"] {
            assert!(document[key].as_u64() > Some(0), "{key}: {}", document[key]);
        }
        assert!(document["engine"].as_str().is_some_and(|engine| engine.contains("cpu")), "{}", document["engine"]);
        assert!(document["ops"].is_null());
    }

    #[test]
    fn operators_explain_the_time() {
        let arguments =
            ["bench", compiled(), "--prompt-tokens", "40", "--new-tokens", "8", "--repeat", "1", "--ops", "--json"];
        let ops = &json(&arguments)["ops"];
        assert!(ops["memory_read_bytes_per_second"].as_f64() > Some(1e8));
        for phase in ["prefill", "decode"] {
            let operators = ops[phase].as_array().expect("operators");
            let shares = operators.iter().filter_map(|op| op["share"].as_f64()).sum::<f64>();
            assert!((shares - 1.0).abs() < 1e-6, "{phase}: {operators:?}");
            let linear = operators.iter().find(|op| op["name"].as_str().is_some_and(|name| name.contains("linear")));
            assert!(linear.is_some_and(|op| op["bytes"].as_u64() > Some(0)), "{phase}: {operators:?}");
        }
    }

    #[test]
    fn a_run_that_does_not_fit_says_both_numbers() {
        let complaint = failure(&["bench", compiled(), "--prompt-tokens", "250", "--new-tokens", "50"], 1);
        assert!(complaint.contains("301") && complaint.contains("256"), "{complaint}");
    }

    #[cfg(unix)]
    #[test]
    fn ctrl_c_cancels() {
        let arguments = ["bench", compiled(), "--prompt-tokens", "200", "--repeat", "1000000", "--new-tokens", "50"];
        let mut child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert!(child.try_wait().expect("a state").is_none(), "a million repeats do not end in half a second");
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        assert_eq!(stderr(&output), "cancelled\n");
    }
}
