//! The commands that quantize: `quantize`, `merge`, `pipeline`, and what `eval`, `inspect` and `chat` make of what they write.

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

fn tiny(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny").join(name).display().to_string()
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_etgenai"));
    command.args(arguments).stdin(Stdio::null()).output().expect("the command starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("standard output is UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("standard error is UTF-8")
}

/// Run with success and parse what is printed.
fn json(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    assert_eq!(stderr(&output), "", "{arguments:?}");
    serde_json::from_slice(&output.stdout).expect("standard output is one JSON document")
}

/// Run, expect this exit code and no panic; give standard error.
fn failure(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    let complaint = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {complaint}");
    assert_eq!(stdout(&output), "", "{arguments:?}");
    assert!(complaint.contains("error: ") && !complaint.contains("panicked"), "{arguments:?}: {complaint}");
    complaint
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("a writable folder");
    path.display().to_string()
}

fn path_in(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

/// Rows of ids that every tiny vocabulary has.
fn token_rows(folder: &Path) -> String {
    let row = |first: usize| (0..24).map(|i| (first + 7 * i) % 60).collect::<Vec<_>>();
    write(folder, "rows.json", &json!((1..7).map(row).collect::<Vec<_>>()).to_string())
}

/// Options that make the tiny SmolLM2 small and its recipe explicit: it is not one of upstream's models.
const SMALL: [&str; 6] = ["--quant-dtype", "16a8w", "--max-seq-len", "64", "--prefill-ar-len", "8"];

fn quantize(checkpoint: &str, out: &str, rows: &str, more: &[&str]) -> Value {
    json(&[&["quantize", checkpoint, "--out", out, "--calib-tokens", rows][..], &SMALL, more].concat())
}

/// The tiny SmolLM2 quantized once for all tests.
fn quantized() -> &'static str {
    static QUANTIZED: OnceLock<(TempDir, String)> = OnceLock::new();
    let (_, path) = QUANTIZED.get_or_init(|| {
        let folder = TempDir::new().expect("a temporary folder");
        let out = path_in(&folder, "model");
        quantize(&tiny("smollm2"), &out, &token_rows(folder.path()), &[]);
        (folder, out)
    });
    path
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a readable folder");
    let mut names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect::<Vec<_>>();
    names.sort();
    names
}

mod quantizing {
    use super::*;

    #[test]
    fn a_summary_says_what_was_made_and_what_it_took() {
        let folder = TempDir::new().unwrap();
        let rows = token_rows(folder.path());
        let out = path_in(&folder, "model");
        let checkpoint = tiny("smollm2");
        let arguments = [&["quantize", &checkpoint, "--out", &out, "--calib-tokens", &rows][..], &SMALL].concat();
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = stdout(&output);
        for part in ["text_decoder", "16a8w", "6 samples, 144 tokens", "model_preparation", "peak", "dB"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let summary = quantize(&tiny("smollm2"), &out, &rows, &[]);
        let stages = summary["stages"].as_array().unwrap();
        let names = stages.iter().map(|stage| stage["stage"].as_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(names, ["model_preparation", "calibration_data", "quantization"]);
        assert!(stages.iter().all(|stage| stage["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0)));
        assert!(summary["components"]["text_decoder"]["output_sqnr_db"].as_f64().is_some_and(|db| db > 20.0));
    }

    #[test]
    fn options_reach_the_recipe() {
        let folder = TempDir::new().unwrap();
        let rows = token_rows(folder.path());
        let out = path_in(&folder, "model");
        let recipe = write(
            folder.path(),
            "recipe.json",
            r#"{"default": "16a4w", "rules": [{"kind": "linear", "dtype": "16a4w", "granularity": "per_channel"},
                {"match": "no_such_layer", "dtype": "16a8w"}]}"#,
        );
        let arguments = ["quantize", &tiny("smollm2"), "--out", &out, "--calib-tokens", &rows, "--max-seq-len", "64"];
        let more = ["--prefill-ar-len", "8", "--recipe", &recipe, "--kv8", "--observer", "percentile=0.999"];
        let summary = json(&[&arguments[..], &more].concat());
        assert!(summary["warnings"][0].as_str().unwrap().contains("no_such_layer"), "{summary}");
        let report: Value =
            serde_json::from_slice(&fs::read(folder.path().join("model/report.json")).unwrap()).unwrap();
        let written = &report["options"]["recipes"]["text_decoder"];
        assert_eq!((&written["kv8"], &written["default"]), (&json!(true), &json!("16a4w")));
        assert_eq!(written["rules"][0]["observer"], json!({ "percentile": 0.999 }));
        assert!(summary["components"]["text_decoder"]["formats"]["int4"].is_object(), "{summary}");
    }

    #[test]
    fn weights_are_fitted_when_that_is_asked_for() {
        let folder = TempDir::new().unwrap();
        let rows = token_rows(folder.path());
        let sqnr = |more: &[&str]| {
            let out = path_in(&folder, "model");
            let arguments =
                ["quantize", &tiny("smollm2"), "--out", &out, "--calib-tokens", &rows, "--report-samples", "6"];
            let sizes = ["--quant-dtype", "16a4w", "--max-seq-len", "64", "--prefill-ar-len", "8"];
            let summary = json(&[&arguments[..], &sizes, more].concat());
            summary["components"]["text_decoder"]["output_sqnr_db"].as_f64().unwrap()
        };
        let (plain, fitted) = (sqnr(&[]), sqnr(&["--rounding", "gptq", "--scales", "seq_mse"]));
        assert!(fitted > plain, "{fitted} dB should be more than {plain} dB");
    }

    #[test]
    fn shards_joined_give_what_all_gives() {
        let folder = TempDir::new().unwrap();
        let (rows, checkpoint) = (token_rows(folder.path()), tiny("smollm2"));
        for shard in ["1", "2", "3"] {
            let file = path_in(&folder, &format!("part{shard}.json"));
            let part = format!("{shard}/3");
            let arguments =
                ["quantize", &checkpoint, "--calib-tokens", &rows, "--shard", &part, "--observations", &file];
            let document = json(&[&arguments[..], &SMALL].concat());
            assert_eq!(document["calibration"]["samples"], 2);
        }
        let parts = ["part3.json", "part1.json", "part2.json"].map(|name| path_in(&folder, name));
        let joined = path_in(&folder, "joined.json");
        let document = json(&["merge", &joined, &parts[0], &parts[1], &parts[2]]);
        assert_eq!((&document["parts"], &document["calibration"]["samples"]), (&json!(3), &json!(6)));
        let shown = json(&["inspect", &joined]);
        assert_eq!((&shown["kind"], &shown["complete"]), (&json!("observations"), &json!(true)));
        let out = path_in(&folder, "model");
        let arguments = ["quantize", &checkpoint, "--out", &out, "--observations", &joined];
        json(&[&arguments[..], &SMALL].concat());
        for name in ["text_decoder.json", "text_decoder.safetensors"] {
            let (ours, whole) = (folder.path().join("model").join(name), Path::new(quantized()).join(name));
            assert!(fs::read(ours).unwrap() == fs::read(whole).unwrap(), "{name} differs");
        }
        let twice = failure(&["merge", &joined, &parts[0], &parts[0]], 1);
        assert!(twice.contains("each shard is joined once") && twice.contains("part3.json"), "{twice}");
        let again = failure(&["merge", &path_in(&folder, "x.json"), &parts[0], &parts[1], &parts[0]], 1);
        assert!(again.contains("each shard is joined once"), "{again}");
        let joined_parts = shown["calibration"]["merged"].as_array().map(Vec::len);
        assert_eq!(joined_parts, Some(3), "{shown}");
        let foreign = failure(&["merge", &rows, &parts[0], &parts[1]], 1);
        assert!(foreign.contains("holds no observations"), "{foreign}");
    }

    #[test]
    fn mistakes_leave_nothing_behind_and_are_named() {
        let folder = TempDir::new().unwrap();
        let rows = token_rows(folder.path());
        let (out, smollm2) = (path_in(&folder, "model"), tiny("smollm2"));
        let bad_json = write(folder.path(), "bad.json", r#"[{"messages": [{"role": "user", "content": 5}]}]"#);
        let recipe = write(
            folder.path(),
            "blocks.json",
            r#"{"default": "16a4w_block",
                "rules": [{"kind": "linear", "dtype": "16a4w_block", "granularity": {"per_block": 29}}]}"#,
        );
        let spin = write(folder.path(), "spin.json", r#"{"default": "16a8w", "r1": true}"#);
        let before = names_in(folder.path());
        let base = ["quantize", &smollm2, "--out", &out];
        for (more, says) in [
            (&["--quant-dtype", "16a8w"][..], "--calib-samples"),
            (&["--quant-dtype", "16a8w", "--calib-samples", &bad_json], "bad.json"),
            (&["--quant-dtype", "16a8w", "--calib-text", "missing.txt"], "missing.txt"),
            (&["--calib-tokens", &rows, "--recipe", &recipe], "29"),
            (&["--calib-tokens", &rows, "--recipe", &spin], "SpinQuant no longer supported"),
            (&["--calib-tokens", &rows, "--recipe", "missing.json"], "missing.json"),
            (&["--calib-tokens", &rows, "--recipe", "vision_encoder=x.json"], "no component \"vision_encoder\""),
            (&["--calib-tokens", &rows, "--model", "gpt-7"], "smollm2_135m"),
            (&["--calib-tokens", &rows, "--quant-dtype", "16a8w", "--max-seq-len", "16"], "--prefill-ar-len"),
        ] {
            let complaint = failure(&[&base[..], more].concat(), 1);
            assert!(complaint.contains(says), "{more:?}: {complaint}");
        }
        for (more, says) in [
            (&["--quant-dtype", "3a3w"][..], "16a4w_block"),
            (&["--observer", "percentile=7"], "percentile"),
            (&["--shard", "5/2", "--observations", "x"], "1 <= I <= N"),
            (&["--encoder-precision", "int3"], "auto"),
        ] {
            let complaint = failure(&[&base[..], more].concat(), 2);
            assert!(complaint.contains(says), "{more:?}: {complaint}");
        }
        assert_eq!(names_in(folder.path()), before, "a failed command leaves nothing behind");
    }

    #[test]
    fn a_directory_with_other_things_is_left_alone() {
        let folder = TempDir::new().unwrap();
        let rows = token_rows(folder.path());
        let arguments =
            ["quantize", &tiny("smollm2"), "--out", &folder.path().display().to_string(), "--calib-tokens", &rows];
        let complaint = failure(&[&arguments[..], &SMALL].concat(), 1);
        assert!(complaint.contains("not empty"), "{complaint}");
        assert_eq!(names_in(folder.path()), ["rows.json"]);
    }

    #[test]
    fn an_encoder_needs_pictures() {
        let folder = TempDir::new().unwrap();
        let rows = token_rows(folder.path());
        let out = path_in(&folder, "model");
        let arguments = ["quantize", &tiny("smolvlm"), "--out", &out, "--calib-tokens", &rows];
        let complaint = failure(&[&arguments[..], &SMALL].concat(), 1);
        assert!(complaint.contains("vision_encoder"), "{complaint}");
        let summary = json(&[&arguments[..], &SMALL, &["--encoder-precision", "float"]].concat());
        assert_eq!(summary["components"]["vision_encoder"]["precision"], "float");
    }
}

mod cancelling {
    use super::*;
    use etgenai::Error;
    use etgenai::checkpoint::Checkpoint;
    use etgenai::dataset::DatasetOptions;
    use etgenai::pipeline::{
        PipelineContext, PipelineEvent, PipelineOptions, PreparationOptions, PreparedModel, QuantizationInput,
        StageState, load_calibration, quantize,
    };
    use etgenai::quantize::{QuantDtype, QuantizeOptions, Recipe};

    #[test]
    fn a_quantization_that_is_cancelled_anywhere_leaves_nothing() {
        let folder = TempDir::new().unwrap();
        let sizes = PreparationOptions { max_context: 64, prefill_ar: 8, ..PreparationOptions::default() };
        let checkpoint = Checkpoint::open(Path::new(&tiny("smollm2"))).unwrap();
        let prepared = PreparedModel::new(checkpoint, &sizes).unwrap();
        let rows = token_rows(folder.path());
        let sources = DatasetOptions { token_rows: vec![rows.into()], max_context: 64, ..DatasetOptions::default() };
        let set = load_calibration(&prepared, &sources).unwrap();
        let mut options = QuantizeOptions::default();
        options.recipes.insert("text_decoder".into(), Recipe::uniform(QuantDtype::A16W8, 32).unwrap());
        let out = folder.path().join("model");
        let steps_until = |last: usize| {
            let mut steps = 0;
            let input = QuantizationInput {
                prepared: &prepared,
                set: &set,
                options: &options,
                observations: None,
                threads: Some(1),
                unfinished: None,
                stages: Vec::new(),
            };
            let result = quantize(input, &out, &mut |_| {
                steps += 1;
                if steps > last { Err(Error::Cancelled) } else { Ok(()) }
            });
            (steps, result)
        };
        let (all, done) = steps_until(usize::MAX);
        assert!(all > 10 && done.is_ok(), "{all} steps");
        fs::remove_dir_all(&out).unwrap();
        for last in [0, all / 4, all / 2, all - 1] {
            let (_, result) = steps_until(last);
            assert!(matches!(result, Err(Error::Cancelled)), "after {last} of {all} steps: {result:?}");
            assert_eq!(names_in(folder.path()), ["rows.json"], "after {last} of {all} steps");
        }
    }

    #[test]
    fn a_pipeline_that_is_cancelled_goes_on_where_it_was() {
        let setting = pipeline::Setting::new();
        let options = PipelineOptions {
            checkpoint: Some(setting.checkpoint.clone().into()),
            preparation: PreparationOptions { max_context: 64, prefill_ar: 8, ..PreparationOptions::default() },
            calibration: DatasetOptions { token_rows: vec![setting.rows.clone().into()], ..DatasetOptions::default() },
            ..PipelineOptions::default()
        };
        let context = PipelineContext::builder().model_name("stories260k").soc_model("SM8750").prompt(["hi"]);
        let context = context.artifact_dir(&setting.artifacts).build().unwrap();
        let (pipeline, _) = options.pipeline(&context).unwrap();
        let cancelled = pipeline.invoke(&context, &mut |event| match event {
            PipelineEvent::Step(step) if step.phase == "weights" => Err(Error::Cancelled),
            _ => Ok(()),
        });
        assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
        let artifacts = Path::new(&setting.artifacts);
        assert!(artifacts.join("model_preparation").is_dir() && !artifacts.join("quantization").exists());
        let mut phases = Vec::new();
        let outcome = pipeline.invoke(&context, &mut |event| {
            if let PipelineEvent::Step(step) = event {
                phases.push(step.phase.to_owned());
            }
            Ok(())
        });
        let states = outcome.unwrap().stages.iter().map(|stage| stage.state).collect::<Vec<_>>();
        assert_eq!(states, [StageState::Loaded, StageState::Done]);
        assert!(!phases.iter().any(|phase| phase == "ranges"), "what was observed is not observed again: {phases:?}");
        assert_eq!(names_in(artifacts), ["model_preparation", "quantization", "stages.json"]);
    }
}

mod using {
    use super::*;

    #[test]
    fn perplexity_of_a_quantized_model_is_near_that_of_the_floats() {
        let folder = TempDir::new().unwrap();
        let text = write(folder.path(), "text.txt", &"The quick brown fox jumps over the lazy dog. ".repeat(8));
        let out = path_in(&folder, "floats");
        let checkpoint = tiny("smollm2");
        json(&["compile", &checkpoint, "--out", &out, "--weights", "f32", "--max-context", "64", "--prefill-ar", "8"]);
        let perplexity = |model: &str| {
            let document = json(&["eval", model, "--text", &text, "--window", "32"]);
            document["perplexity"].as_f64().unwrap()
        };
        let (floats, integers) = (perplexity(&out), perplexity(quantized()));
        assert!((integers / floats - 1.0).abs() < 0.05, "{integers} beside {floats}");
    }

    #[test]
    fn inspect_shows_components_layers_and_hashes() {
        let shown = json(&["inspect", quantized(), "--verify"]);
        assert_eq!((&shown["kind"], &shown["verified"]), (&json!("quantized"), &json!(true)));
        let worst = shown["worst_layers"]["text_decoder"].as_array().unwrap();
        let decibels = worst.iter().map(|layer| layer["sqnr_db"].as_f64().unwrap()).collect::<Vec<_>>();
        assert!(!decibels.is_empty() && decibels.is_sorted(), "{decibels:?}");
        let output = run(&["inspect", quantized()]);
        let text = stdout(&output);
        for part in ["quantized model, written by", "calibration", "16a8w", "SQNR"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn inspect_exports_pages_and_encodings() {
        let folder = TempDir::new().unwrap();
        let (page, encodings) = (path_in(&folder, "page.html"), path_in(&folder, "encodings.json"));
        json(&["inspect", quantized(), "--html", &page, "--aimet", &encodings]);
        assert!(fs::read_to_string(&page).unwrap().contains("<html"));
        let encodings: Value = serde_json::from_slice(&fs::read(&encodings).unwrap()).unwrap();
        assert_eq!(encodings["version"], "1.0.0");
    }

    #[test]
    fn a_damaged_file_is_found() {
        let folder = TempDir::new().unwrap();
        let copy = folder.path().join("model");
        fs::create_dir(&copy).unwrap();
        for name in names_in(Path::new(quantized())) {
            fs::copy(Path::new(quantized()).join(&name), copy.join(&name)).unwrap();
        }
        let weights = copy.join("text_decoder.safetensors");
        let mut bytes = fs::read(&weights).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&weights, bytes).unwrap();
        let complaint = failure(&["inspect", &copy.display().to_string(), "--verify"], 1);
        assert!(complaint.contains("text_decoder.safetensors"), "{complaint}");
    }

    #[test]
    fn chat_opens_quantized_models() {
        let turns = json(&["chat", quantized(), "--prompt", "Hi", "--max-new-tokens", "4"]);
        assert_eq!(turns["turns"].as_array().map(Vec::len), Some(1));
    }
}

mod pipeline {
    use super::*;

    /// Refused before a checkpoint is opened, or because there is none.
    fn refused(more: &[&str]) -> String {
        failure(&[&["pipeline", "--model", "smollm2_135m", "--checkpoint", "nowhere"][..], more].concat(), 1)
    }

    #[test]
    fn models_are_listed_sorted_and_unknown_ones_refused() {
        let output = run(&["pipeline", "--list-models"]);
        let names = stdout(&output).lines().map(str::to_owned).collect::<Vec<_>>();
        assert!(names.len() == 21 && names.is_sorted(), "{names:?}");
        let complaint = failure(&["pipeline", "--model", "gpt-7"], 1);
        assert!(names.iter().all(|name| complaint.contains(name)), "{complaint}");
        assert!(failure(&["pipeline"], 2).contains("--model"));
    }

    #[test]
    fn what_upstream_rejects_is_rejected_by_name() {
        for (more, says) in [
            (&["--qat"][..], "--qat: QAT is not yet supported"),
            (&["--use-attention-sink", "4,32"], "--use-attention-sink is currently unsupported in GenAI Pipeline"),
            (
                &["--embedding-quantize", "4,32", "--calib-random"],
                "--embedding-quantize is currently unsupported in GenAI Pipeline",
            ),
            (&[], "no calibration dataset sources configured"),
            (&["--calib-tasks", "wikitext"], "--calib-text"),
            (&["--calib-hf-dataset", "org/set"], "--calib-chat"),
            (&["--pre-gen-pte", "x"], "run-pte"),
            (&["--backend", "tpu"], "htp, gpu, cpu"),
            (&["--calib-random"], "nowhere"),
        ] {
            let complaint = refused(more);
            assert!(complaint.contains(says), "{more:?}: {complaint}");
        }
        let both = ["pipeline", "--model", "smollm2_135m", "--compile-only", "--pre-gen-pte", "x"];
        assert!(failure(&both, 2).contains("--pre-gen-pte"));
        let prompt = refused(&["--calib-random", "--prompt", "  "]);
        assert!(prompt.contains("blank"), "{prompt}");
    }

    #[test]
    fn multimodal_models_take_conversations_only() {
        let base = ["pipeline", "--model", "smolvlm_500m_instruct", "--checkpoint", "nowhere"];
        for more in [["--calib-tasks", "wikitext"], ["--calib-hf-dataset", "x"]] {
            let complaint = failure(&[&base[..], &more].concat(), 1);
            assert!(complaint.contains("supports --calib-samples only"), "{complaint}");
        }
        let complaint = failure(&[&base[..], &["--batch-size", "4", "--calib-random"]].concat(), 1);
        assert!(complaint.contains("multi-batch not supported for multimodal"), "{complaint}");
    }

    #[test]
    fn names_are_not_case_sensitive_and_checkpoints_are_asked_for() {
        let complaint = failure(&["pipeline", "--model", "SmolLM2_135M", "--calib-random"], 1);
        assert!(complaint.contains("--checkpoint"), "{complaint}");
        let complaint = failure(&["pipeline", "--model", "stories260k", "--calib-random"], 1);
        assert!(complaint.contains("carries no params file"), "{complaint}");
    }

    #[test]
    fn the_context_is_the_sequence() {
        let complaint = refused(&["--calib-random", "--max-context-len", "1024"]);
        assert!(complaint.contains("--max-context-len 1024 is overwritten with --max-seq-len 512"), "{complaint}");
    }

    #[test]
    fn a_failing_stage_is_named() {
        let complaint = refused(&["--calib-random"]);
        assert!(complaint.contains("[model_preparation]"), "{complaint}");
    }

    /// A checkpoint with the sizes of stories260k, which the pipeline knows by name; its weights follow from their place.
    fn stories(folder: &Path) -> String {
        let checkpoint = folder.join("stories");
        fs::create_dir(&checkpoint).unwrap();
        for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
            fs::copy(Path::new(&tiny("smollm2")).join(name), checkpoint.join(name)).unwrap();
        }
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": 1, "eos_token_id": 2,
            "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 172, "max_position_embeddings": 512,
            "num_attention_heads": 8, "num_hidden_layers": 5, "num_key_value_heads": 4, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": false, "vocab_size": 512,
        });
        write(&checkpoint, "config.json", &config.to_string());
        let mut tensors = vec![
            ("model.embed_tokens.weight".to_owned(), vec![512, 64]),
            ("lm_head.weight".to_owned(), vec![512, 64]),
            ("model.norm.weight".to_owned(), vec![64]),
        ];
        for layer in 0..5 {
            for (name, shape) in [
                ("self_attn.q_proj", vec![64, 64]),
                ("self_attn.k_proj", vec![32, 64]),
                ("self_attn.v_proj", vec![32, 64]),
                ("self_attn.o_proj", vec![64, 64]),
                ("mlp.gate_proj", vec![172, 64]),
                ("mlp.up_proj", vec![172, 64]),
                ("mlp.down_proj", vec![64, 172]),
                ("input_layernorm", vec![64]),
                ("post_attention_layernorm", vec![64]),
            ] {
                tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
            }
        }
        let mut state = 1u32;
        let mut value = |centre: f32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            centre + (state >> 8) as f32 / (1 << 24) as f32 * 0.4 - 0.2
        };
        let bytes = tensors.iter().map(|(_, shape)| {
            let centre = if shape.len() == 1 { 1.0 } else { 0.0 };
            (0..shape.iter().product()).flat_map(|_| value(centre).to_le_bytes()).collect::<Vec<u8>>()
        });
        let bytes = bytes.collect::<Vec<_>>();
        let views = tensors.iter().zip(&bytes).map(|((name, shape), bytes)| {
            (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
        });
        let file = safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap();
        fs::write(checkpoint.join("model.safetensors"), file).unwrap();
        checkpoint.display().to_string()
    }

    pub struct Setting {
        folder: TempDir,
        pub checkpoint: String,
        pub rows: String,
        pub artifacts: String,
    }

    impl Setting {
        pub fn new() -> Self {
            let folder = TempDir::new().unwrap();
            let (checkpoint, rows) = (stories(folder.path()), token_rows(folder.path()));
            let artifacts = path_in(&folder, "artifacts");
            Self { folder, checkpoint, rows, artifacts }
        }

        fn arguments<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
            let base = ["pipeline", "--model", "stories260k", "--artifact-dir", &self.artifacts];
            [&base[..], &["--max-seq-len", "256", "--prefill-ar-len", "8"], more].concat()
        }

        /// States of the stages that ran, in order.
        fn states(&self, more: &[&str]) -> Vec<String> {
            let document = json(&self.arguments(more));
            let stages = document["stages"].as_array().unwrap().iter();
            stages.map(|s| format!("{} {}", s["stage"].as_str().unwrap(), s["state"].as_str().unwrap())).collect()
        }
    }

    #[test]
    fn stages_are_resumed_skipped_and_done_again() {
        let setting = Setting::new();
        let given = ["--checkpoint", &setting.checkpoint, "--calib-tokens", &setting.rows];
        assert_eq!(setting.states(&given), ["model_preparation done", "quantization done"]);
        assert_eq!(setting.states(&given), ["model_preparation loaded", "quantization loaded"]);
        let other = [&given[..], &["--quant-dtype", "16a8w"]].concat();
        assert_eq!(setting.states(&other), ["model_preparation loaded", "quantization done"]);
        let redo = [&other[..], &["--redo"]].concat();
        assert_eq!(setting.states(&redo), ["model_preparation done", "quantization done"]);
        let only = ["--calib-tokens", &setting.rows, "--only", "quantization", "--quant-dtype", "16a8w"];
        assert_eq!(setting.states(&only), ["quantization loaded"]);
        let names = names_in(Path::new(&setting.artifacts));
        assert_eq!(names, ["model_preparation", "quantization", "stages.json"]);
        let prepared = json(&["inspect", &format!("{}/model_preparation", setting.artifacts)]);
        assert_eq!((&prepared["kind"], &prepared["components"]), (&json!("prepared"), &json!(["text_decoder"])));
    }

    #[test]
    fn the_npu_ends_with_the_quantized_model() {
        let setting = Setting::new();
        let given = ["--checkpoint", &setting.checkpoint, "--calib-tokens", &setting.rows, "--compile-only"];
        let output = run(&setting.arguments(&given));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = stdout(&output);
        assert!(
            text.contains("compilation for htp is not part of this build") && text.contains("text_decoder"),
            "{text}"
        );
        assert!(stderr(&output).contains("quantization: done in"), "{}", stderr(&output));
        let shown = json(&["inspect", &format!("{}/quantization", setting.artifacts)]);
        assert_eq!(shown["kind"], "quantized");
    }

    #[test]
    fn a_stage_that_fails_leaves_the_earlier_ones() {
        let setting = Setting::new();
        let given = ["--checkpoint", &setting.checkpoint, "--calib-text", "missing.txt"];
        let complaint = failure(&setting.arguments(&given), 1);
        assert!(complaint.contains("[quantization]") && complaint.contains("missing.txt"), "{complaint}");
        assert!(complaint.contains("model_preparation: done"), "{complaint}");
        let rest = ["--calib-tokens", &setting.rows, "--skip", "model_preparation"];
        assert_eq!(setting.states(&rest), ["quantization done"]);
        let elsewhere = path_in(&setting.folder, "nothing");
        let lost =
            ["pipeline", "--model", "stories260k", "--artifact-dir", &elsewhere, "--calib-tokens", &setting.rows];
        let complaint = failure(&[&lost[..], &["--only", "quantization"]].concat(), 1);
        assert!(complaint.contains("run stage model_preparation first"), "{complaint}");
    }

    #[test]
    fn floats_are_compiled_and_answer_on_the_cpu() {
        let setting = Setting::new();
        let given = ["--checkpoint", &setting.checkpoint, "--use-fp16", "--backend", "cpu", "--max-new-tokens", "3"];
        let more = [&given[..], &["--prompt", "Hi", "--seed", "1"]].concat();
        let document = json(&setting.arguments(&more));
        assert_eq!(document["replies"].as_array().map(Vec::len), Some(1), "{document}");
        let stages = document["stages"].as_array().unwrap().iter().map(|s| s["stage"].as_str().unwrap());
        assert_eq!(stages.collect::<Vec<_>>(), ["model_preparation", "compilation", "inference"]);
        let compiled = format!("{}/compilation", setting.artifacts);
        let again = ["--backend", "cpu", "--pre-gen-pte", &compiled, "--max-new-tokens", "3"];
        assert_eq!(setting.states(&again), ["inference done"]);
    }

    #[test]
    fn integers_are_compiled_and_answer_on_the_cpu() {
        let setting = Setting::new();
        let given = ["--checkpoint", &setting.checkpoint, "--calib-tokens", &setting.rows, "--backend", "cpu"];
        let more = [&given[..], &["--max-new-tokens", "3", "--seed", "1", "--embedding-quantize", "8,0"]].concat();
        let all = ["model_preparation", "quantization", "compilation", "inference"];
        assert_eq!(setting.states(&more), all.map(|stage| format!("{stage} done")));
        let again = setting.states(&more);
        assert_eq!(again[..3], ["model_preparation loaded", "quantization loaded", "compilation loaded"]);
        let shown = json(&["inspect", &format!("{}/compilation", setting.artifacts)]);
        assert_eq!(shown["kind"], "compiled");
    }

    #[test]
    fn recipes_are_suggested() {
        let setting = Setting::new();
        let given = ["--checkpoint", &setting.checkpoint, "--calib-tokens", &setting.rows, "--quant-recipe-suggestion"];
        let document = json(&setting.arguments(&given));
        let files = document["suggestions"].as_array().unwrap();
        assert!(files[0].as_str().unwrap().ends_with("stories260k_quantization_error.csv"), "{document}");
        assert!(files.iter().all(|file| Path::new(file.as_str().unwrap()).is_file()));
    }
}
