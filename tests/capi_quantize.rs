//! The promise: the pipeline through the C ABI: a handle for each stage's result, progress that cancels with nothing left under the
//! final name, errors that name the stage and the option.

#[path = "native/built.rs"]
mod built;
mod native;
#[path = "native/program.rs"]
mod program;
#[path = "support/random_checkpoint.rs"]
mod random_checkpoint;

use built::compiler;
use etgenai::capi::buffer::*;
use etgenai::capi::calibration_options::*;
use etgenai::capi::last_error::*;
use etgenai::capi::pipeline::*;
use etgenai::capi::preparation_options::*;
use etgenai::capi::prepared_model::*;
use etgenai::capi::quantize_options::*;
use etgenai::capi::quantized_model::*;
use etgenai::capi::stage_progress::*;
use etgenai::capi::status::*;
use native::root;
use program::run_program;
use serde_json::{Value, json};
use std::ffi::{CStr, c_char, c_void};
use std::fs;
use std::path::Path;
use std::ptr;

const NO_PROGRESS: (etg_stage_progress_fn, *mut c_void) = (None, ptr::null_mut());

fn text(text: &str) -> (*const c_char, usize) {
    (text.as_ptr().cast(), text.len())
}

fn last_error() -> String {
    // SAFETY: never NULL, valid until the next failure of this thread.
    unsafe { CStr::from_ptr(etg_last_error_message()) }.to_string_lossy().into_owned()
}

/// A call that is refused with this code and words.
#[track_caller]
fn refused(status: i32, code: i32, words: &[&str]) {
    assert_eq!(status, code, "{}", last_error());
    let error = last_error();
    assert!(words.iter().all(|words| error.contains(words)), "{error}");
}

/// The result of a call that makes a handle.
#[track_caller]
fn made<T>(make: impl FnOnce(*mut *mut T) -> i32) -> *mut T {
    let mut handle = ptr::null_mut();
    assert_eq!(make(&mut handle), ETG_OK, "{}", last_error());
    assert!(!handle.is_null());
    handle
}

fn json_of(buffer: *mut etg_buffer) -> Value {
    let (mut bytes, mut length) = (ptr::null(), 0);
    assert_eq!(unsafe { etg_buffer_text(buffer, &mut bytes, &mut length) }, ETG_OK);
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
    let value = serde_json::from_slice(bytes).expect("JSON");
    assert_eq!(etg_buffer_free(buffer), ETG_OK);
    value
}

fn tiny() -> String {
    root().join("tests/fixtures/tiny/smollm2").display().to_string()
}

fn prepare(checkpoint: &str, options: *const etg_preparation_options) -> *mut etg_prepared_model {
    let path = text(checkpoint);
    made(|out| unsafe { etg_prepared_model_create(path.0, path.1, options, NO_PROGRESS.0, NO_PROGRESS.1, out) })
}

/// Options that quantize the tiny model, which has no recipe of its own, and random data for it.
fn how(threads: usize) -> (*mut etg_quantize_options, *mut etg_calibration_options) {
    let options = made(|out| unsafe { etg_quantize_options_create(out) });
    let component = text("text_decoder");
    unsafe {
        assert_eq!(etg_quantize_options_set_dtype(options, component.0, component.1, ETG_QUANT_16A8W, 0), ETG_OK);
    }
    assert_eq!(etg_quantize_options_set_threads(options, threads), ETG_OK);
    assert_eq!(etg_quantize_options_set_tokens_at_once(options, 8), ETG_OK);
    let data = made(|out| unsafe { etg_calibration_options_create(out) });
    assert_eq!(etg_calibration_options_set_random(data, 6, 8, 7), ETG_OK);
    (options, data)
}

fn free(options: *mut etg_quantize_options, data: *mut etg_calibration_options, model: *mut etg_prepared_model) {
    assert_eq!(etg_quantize_options_free(options), ETG_OK);
    assert_eq!(etg_calibration_options_free(data), ETG_OK);
    assert_eq!(etg_prepared_model_free(model), ETG_OK);
    assert_eq!(etg_prepared_model_free(model), ETG_ERROR_INVALID_ARGUMENT, "freed twice");
}

#[test]
fn the_whole_way_in_c() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoint = tiny();
    let whole = fs::read_to_string(root().join("tests/fixtures/smollm2/text.txt")).expect("a fixture");
    let words = folder.path().join("text.txt").display().to_string();
    fs::write(&words, whole.lines().take(6).collect::<Vec<_>>().join("\n")).expect("a text");
    // Two programs, linked shared and static, write to the same place.
    let out = folder.path().display().to_string();
    run_program(|| compiler(false, "c11"), &root().join("tests/c/quantize.c"), &[&checkpoint, &words, &out]);
}

#[test]
fn the_whole_way_in_cpp() {
    for (standard, flag) in [("c++17", "-fexceptions"), ("c++20", "-fno-exceptions")] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (checkpoint, out) = (tiny(), folder.path().display().to_string());
        let compile = || {
            let mut command = compiler(true, standard);
            command.arg(flag);
            command
        };
        run_program(compile, &root().join("tests/c/cpp_quantize.cpp"), &[&checkpoint, &out]);
    }
}

/// Ends the work at the call of this number.
struct EndAt {
    calls: usize,
    end_at: usize,
    phases: Vec<String>,
}

impl EndAt {
    fn new(end_at: usize) -> Self {
        EndAt { calls: 0, end_at, phases: Vec::new() }
    }

    fn data(&mut self) -> *mut c_void {
        ptr::from_mut(self).cast()
    }
}

unsafe extern "C" fn end_at(user_data: *mut c_void, progress: *const etg_stage_progress) -> i32 {
    let (seen, progress) = unsafe { (&mut *user_data.cast::<EndAt>(), &*progress) };
    let word = |text| unsafe { CStr::from_ptr(text) }.to_str().expect("UTF-8").to_owned();
    let phase = format!("{} {}", word(progress.stage), word(progress.phase));
    if seen.phases.last() != Some(&phase) {
        seen.phases.push(phase);
    }
    seen.calls += 1;
    i32::from(seen.calls == seen.end_at)
}

#[test]
fn an_observation_that_was_ended_goes_on_and_gives_the_same() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let model = prepare(&tiny(), ptr::null());
    let (options, data) = how(1);
    let observe = |path: &str, seen: &mut EndAt| {
        let path = text(path);
        unsafe { etg_prepared_model_observe(model, data, options, path.0, path.1, Some(end_at), seen.data()) }
    };
    let mut whole = EndAt::new(0);
    assert_eq!(observe(&file("whole"), &mut whole), ETG_OK, "{}", last_error());
    refused(
        observe(&file("parts"), &mut EndAt::new(whole.calls * 3 / 4)),
        ETG_ERROR_CANCELLED,
        &["[quantization] cancelled"],
    );

    // Half of it is not taken for the whole.
    assert!(Path::new(&file("parts")).is_file(), "what was seen until then is kept");
    let (parts, out) = (file("parts"), file("model"));
    let (seen, to) = (text(&parts), text(&out));
    let (callback, user_data) = NO_PROGRESS;
    let quantized = unsafe {
        etg_prepared_model_quantize(
            model,
            ptr::null(),
            options,
            seen.0,
            seen.1,
            to.0,
            to.1,
            callback,
            user_data,
            ptr::null_mut(),
        )
    };
    refused(quantized, ETG_ERROR_INVALID_STATE, &["[quantization]", "of 6 samples"]);
    assert!(!Path::new(&out).exists());
    let merged = unsafe { etg_observations_merge_of(&[&parts], &file("joined")) };
    refused(merged, ETG_ERROR_INVALID_STATE, &["parts", "of 6 samples"]);
    assert!(!Path::new(&file("joined")).exists());

    let mut rest = EndAt::new(0);
    assert_eq!(observe(&parts, &mut rest), ETG_OK, "{}", last_error());
    assert!(rest.calls < whole.calls, "it began where it ended: {} of {} steps", rest.calls, whole.calls);
    assert_eq!(fs::read(&parts).unwrap(), fs::read(file("whole")).unwrap());
    free(options, data, model);
}

unsafe fn etg_observations_merge_of(parts: &[&str], out: &str) -> i32 {
    let pointers = parts.iter().map(|part| part.as_ptr().cast()).collect::<Vec<_>>();
    let lengths = parts.iter().map(|part| part.len()).collect::<Vec<_>>();
    let out = text(out);
    let count = parts.len();
    unsafe {
        etgenai::capi::observations::etg_observations_merge(pointers.as_ptr(), lengths.as_ptr(), count, out.0, out.1)
    }
}

#[test]
fn a_model_says_what_it_is_and_what_it_wrote() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("model").display().to_string();
    let preparation = made(|out| unsafe { etg_preparation_options_create(out) });
    let wanted = text(r#"{"max_context": 64, "prefill_ar": 16, "mode": "kv", "r3": true}"#);
    assert_eq!(unsafe { etg_preparation_options_set_json(preparation, wanted.0, wanted.1) }, ETG_OK);
    let model = prepare(&tiny(), preparation);
    assert_eq!(etg_preparation_options_free(preparation), ETG_OK);
    let info = json_of(made(|out| unsafe { etg_prepared_model_info_json(model, out) }));
    assert_eq!((&info["components"], &info["options"]["mode"]), (&json!(["text_decoder"]), &json!("kv")));
    assert_eq!((&info["graphs"]["context_capacity"], &info["options"]["r3"]), (&json!(64), &json!(true)));

    let (options, data) = how(2);
    let described = json_of(made(|out| unsafe { etg_prepared_model_calibration_json(model, data, out) }));
    assert_eq!((&described["samples"], &described["smoke_only"]), (&json!(6), &json!(true)));

    let mut seen = EndAt::new(0);
    let (to, user_data) = (text(&out), seen.data());
    let quantized = made(|place| unsafe {
        let (none, callback) = (ptr::null(), Some(end_at as _));
        etg_prepared_model_quantize(model, data, options, none, 0, to.0, to.1, callback, user_data, place)
    });
    let phases = ["ranges", "weights", "check"].map(|phase| format!("quantization {phase}"));
    assert_eq!(seen.phases, phases);
    let report = json_of(made(|out| unsafe { etg_quantized_model_report_json(quantized, out) }));
    assert_eq!(report["components"]["text_decoder"]["precision"], "16a8w");
    let stages = report["stages"].as_array().expect("stages").iter().map(|stage| stage["stage"].clone());
    assert_eq!(stages.collect::<Vec<_>>(), ["model_preparation", "quantization"]);
    assert!(report["warnings"].to_string().contains("smoke tests only"), "{}", report["warnings"]);

    let (component, wrong, nothing) = (text("text_decoder"), text("tex_decoder"), text(""));
    let file = folder.path().join("model.encodings").display().to_string();
    let path = text(&file);
    let save = |component: (*const c_char, usize), version: (*const c_char, usize)| unsafe {
        etg_quantized_model_save_aimet(quantized, component.0, component.1, version.0, version.1, path.0, path.1)
    };
    refused(save(wrong, nothing), ETG_ERROR_NOT_FOUND, &["tex_decoder"]);
    refused(save(component, text("7")), ETG_ERROR_INVALID_ARGUMENT, &["0.6.1, 1.0.0"]);
    assert!(!Path::new(&file).exists());
    assert_eq!(save(component, nothing), ETG_OK, "{}", last_error());
    let encodings: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(encodings["version"], "1.0.0");
    let advice = folder.path().join("advice").display().to_string();
    let to = text(&advice);
    let saved = unsafe { etg_quantized_model_save_suggestion(quantized, component.0, component.1, to.0, to.1) };
    assert_eq!(saved, ETG_OK, "{}", last_error());
    let files = fs::read_dir(&advice).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(files.into_iter().any(|file| file.ends_with(".csv")));
    assert_eq!(etg_quantized_model_free(quantized), ETG_OK);
    free(options, data, model);
}

#[test]
fn errors_name_the_stage_and_what_is_wrong() {
    let create = |checkpoint: &str| {
        let (path, mut place) = (text(checkpoint), ptr::without_provenance_mut(0x100));
        let status =
            unsafe { etg_prepared_model_create(path.0, path.1, ptr::null(), NO_PROGRESS.0, NO_PROGRESS.1, &mut place) };
        assert!(place.is_null());
        status
    };
    refused(create("/no/such/checkpoint"), ETG_ERROR_NOT_FOUND, &["[model_preparation]", "/no/such/checkpoint"]);
    refused(create(""), ETG_ERROR_INVALID_ARGUMENT, &["checkpoint is empty"]);
    let preparation = made(|out| unsafe { etg_preparation_options_create(out) });
    let path = tiny();
    let path = text(&path);
    let as_model = |name: &str| {
        let (name, mut place) = (text(name), ptr::null_mut());
        assert_eq!(unsafe { etg_preparation_options_set_model(preparation, name.0, name.1) }, ETG_OK);
        unsafe { etg_prepared_model_create(path.0, path.1, preparation, NO_PROGRESS.0, NO_PROGRESS.1, &mut place) }
    };
    refused(as_model("gpt-7"), ETG_ERROR_NOT_FOUND, &["[model_preparation]", "gpt-7", "smollm2_135m"]);
    refused(as_model("smollm2_135m"), ETG_ERROR_INVALID_ARGUMENT, &["not a smollm2_135m"]);
    assert_eq!(etg_preparation_options_free(preparation), ETG_OK);

    let model = prepare(&tiny(), ptr::null());
    let (options, data) = how(1);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("model").display().to_string();
    let to = text(&out);
    let quantize = |data: *const etg_calibration_options, options: *const etg_quantize_options| unsafe {
        let (callback, user_data) = NO_PROGRESS;
        let (nothing, place) = (ptr::null(), ptr::null_mut());
        etg_prepared_model_quantize(model, data, options, nothing, 0, to.0, to.1, callback, user_data, place)
    };
    refused(quantize(ptr::null(), options), ETG_ERROR_INVALID_ARGUMENT, &["calibration is NULL"]);
    let sourceless = made(|out| unsafe { etg_calibration_options_create(out) });
    refused(quantize(sourceless, options), ETG_ERROR_INVALID_ARGUMENT, &["[quantization]", "no calibration data"]);
    refused(quantize(data, ptr::null()), ETG_ERROR_INVALID_ARGUMENT, &["[quantization]", "has no recipe"]);
    let missing = text("/no/such/rows.json");
    assert_eq!(unsafe { etg_calibration_options_add_tokens(sourceless, missing.0, missing.1) }, ETG_OK);
    refused(quantize(sourceless, options), ETG_ERROR_NOT_FOUND, &["[quantization]", "/no/such/rows.json"]);
    assert_eq!(etg_calibration_options_free(sourceless), ETG_OK);
    let encoder = text("vision_encoder");
    let other = made(|out| unsafe { etg_quantize_options_create(out) });
    assert_eq!(unsafe { etg_quantize_options_set_dtype(other, encoder.0, encoder.1, ETG_QUANT_16A8W, 0) }, ETG_OK);
    refused(quantize(data, other), ETG_ERROR_NOT_FOUND, &["no component \"vision_encoder\"", "text_decoder"]);
    assert_eq!(etg_quantize_options_free(other), ETG_OK);
    assert!(!Path::new(&out).exists(), "nothing under the final name");

    let checkpoint = tiny();
    let (path, mut place) = (text(&checkpoint), ptr::without_provenance_mut(0x100));
    assert!(unsafe { etg_quantized_model_open(path.0, path.1, &mut place) } < 0 && place.is_null());
    free(options, data, model);
}

#[test]
fn json_setters_name_the_key_and_change_all_or_nothing() {
    let preparation = made(|out| unsafe { etg_preparation_options_create(out) });
    let set = |json: &str| unsafe { etg_preparation_options_set_json(preparation, text(json).0, json.len()) };
    refused(set(r#"{"max_contxt": 1}"#), ETG_ERROR_INVALID_ARGUMENT, &["\"max_contxt\"", "max_context"]);
    refused(set(r#"{"mode": "both"}"#), ETG_ERROR_INVALID_ARGUMENT, &["\"mode\"", "kv, hybrid, lookahead"]);
    refused(set("[1]"), ETG_ERROR_FORMAT, &["not a JSON object"]);
    refused(etg_preparation_options_set_mode(preparation, 7), ETG_ERROR_INVALID_ARGUMENT, &["mode is 7"]);
    refused(etg_preparation_options_set_r3(preparation, 2), ETG_ERROR_INVALID_ARGUMENT, &["r3 is 2"]);
    assert_eq!(etg_preparation_options_free(preparation), ETG_OK);

    let data = made(|out| unsafe { etg_calibration_options_create(out) });
    let set = |json: &str| unsafe { etg_calibration_options_set_json(data, text(json).0, json.len()) };
    refused(set(r#"{"text": ["a"]}"#), ETG_ERROR_INVALID_ARGUMENT, &["\"text\"", "texts"]);
    refused(set(r#"{"shard": "3/2"}"#), ETG_ERROR_INVALID_ARGUMENT, &["\"shard\"", "I/N"]);
    refused(set(r#"{"random": {"smples": 1}}"#), ETG_ERROR_INVALID_ARGUMENT, &["\"random\"", "smples"]);
    refused(set(r#"{"texts": ["a", ""]}"#), ETG_ERROR_INVALID_ARGUMENT, &["\"texts\"", "none of them empty"]);
    refused(etg_calibration_options_set_shard(data, 3, 2), ETG_ERROR_INVALID_ARGUMENT, &["shard 3/2"]);
    let all = r#"{"samples": ["s.json"], "texts": ["t.txt"], "chats": [], "token_rows": null, "random": {"samples": 2},
                  "text_limit": 3, "text_window": 16, "chat_limit": null, "max_context": 32, "image_tiling": "split",
                  "shard": "1/2"}"#;
    assert_eq!(set(all), ETG_OK, "{}", last_error());
    assert_eq!(etg_calibration_options_free(data), ETG_OK);

    let options = made(|out| unsafe { etg_quantize_options_create(out) });
    let set = |json: &str| unsafe { etg_quantize_options_set_json(options, text(json).0, json.len()) };
    refused(set(r#"{"kv9": true}"#), ETG_ERROR_INVALID_ARGUMENT, &["\"kv9\"", "kv8"]);
    refused(set(r#"{"dtypes": {"head": "16a8w"}}"#), ETG_ERROR_INVALID_ARGUMENT, &["\"head\"", "text_decoder"]);
    refused(set(r#"{"observer": {"percentile": 2}}"#), ETG_ERROR_INVALID_ARGUMENT, &["percentile is 2"]);
    refused(set(r#"{"rounding": {"gptq": {"damping": 7}}}"#), ETG_ERROR_INVALID_ARGUMENT, &["damping", "7"]);
    refused(set(r#"{"recipes": {"text_decoder": {"defalt": "16a8w"}}}"#), ETG_ERROR_INVALID_ARGUMENT, &["defalt"]);
    refused(etg_quantize_options_set_observer(options, 9, 0.0), ETG_ERROR_INVALID_ARGUMENT, &["observer is 9"]);
    refused(etg_quantize_options_set_rounding(options, ETG_ROUNDING_GPTQ, 2.0), ETG_ERROR_INVALID_ARGUMENT, &["2"]);
    refused(etg_quantize_options_set_scales(options, 4, 0), ETG_ERROR_INVALID_ARGUMENT, &["scales is 4"]);
    let (component, recipe) = (text("text_decoder"), text(r#"{"default": "16a8w", "rules": [{"match": "("}]}"#));
    let status = unsafe { etg_quantize_options_set_recipe_json(options, component.0, component.1, recipe.0, recipe.1) };
    refused(status, ETG_ERROR_FORMAT, &["recipe of text_decoder"]);
    let all = r#"{"recipes": {"text_decoder": {"default": "16a4w"}}, "dtypes": {"tok_embedding": "16a8w"},
                  "observer": "histogram", "kv8": true, "encoder": "float", "several_images": true,
                  "encoder_rows": "float", "residual": "as_they_are", "scales": {"seq_mse": {"candidates": 3,
                  "granularity": "channel"}}, "rounding": "nearest", "observe_padding": false, "tokens_at_once": null,
                  "report_samples": 0, "threads": 1}"#;
    assert_eq!(set(all), ETG_OK, "{}", last_error());
    assert_eq!(etg_quantize_options_free(options), ETG_OK);
}

/// Run a pipeline; its outcome, or its status.
fn run(context: &Value, seen: &mut EndAt) -> Result<Value, i32> {
    let json = context.to_string();
    let (json, mut buffer) = (text(&json), ptr::without_provenance_mut(0x100));
    match unsafe { etg_pipeline_run(json.0, json.1, Some(end_at), seen.data(), &mut buffer) } {
        ETG_OK => Ok(json_of(buffer)),
        status => {
            assert!(buffer.is_null());
            Err(status)
        }
    }
}

#[test]
fn a_pipeline_runs_whole_is_cancelled_and_resumed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoint = folder.path().join("checkpoint");
    fs::create_dir(&checkpoint).expect("a folder can be made");
    random_checkpoint::stories260k().write(&checkpoint, 1);
    let artifacts = folder.path().join("artifacts");
    let context = json!({
        "model_name": "stories260k", "soc_model": "SM8750", "prompt": "Once", "artifact_dir": artifacts,
        "extra_options": {
            "checkpoint": checkpoint, "preparation": {"max_context": 64, "prefill_ar": 16}, "threads": 2,
            "calibration": {"random": {"samples": 2, "length": 16, "seed": 3}}
        }
    });

    let mut whole = EndAt::new(0);
    let outcome = run(&context, &mut whole).unwrap_or_else(|status| panic!("{status}: {}", last_error()));
    let stages = |outcome: &Value| {
        let stages = outcome["stages"].as_array().expect("stages").iter();
        stages.map(|stage| format!("{} {}", stage["stage"], stage["state"]).replace('"', "")).collect::<Vec<_>>()
    };
    assert_eq!(stages(&outcome), ["model_preparation done", "quantization done"]);
    assert!(outcome["warnings"].to_string().contains("smoke tests only"), "{outcome}");
    assert_eq!(whole.phases.first().map(String::as_str), Some("model_preparation begin"));
    assert_eq!(whole.phases.last().map(String::as_str), Some("quantization end"));
    let again = run(&context, &mut EndAt::new(0)).unwrap_or_else(|status| panic!("{status}: {}", last_error()));
    assert_eq!(stages(&again), ["model_preparation loaded", "quantization loaded"]);

    fs::remove_dir_all(&artifacts).expect("the results can be removed");
    let status = run(&context, &mut EndAt::new(whole.calls / 2)).expect_err("it is cancelled");
    refused(status, ETG_ERROR_CANCELLED, &["[quantization] cancelled"]);
    assert!(artifacts.join("model_preparation/prepared.json").is_file(), "what earlier stages saved is there");
    assert!(!artifacts.join("quantization").exists(), "nothing under the final name");
    let rest = run(&context, &mut EndAt::new(0)).unwrap_or_else(|status| panic!("{status}: {}", last_error()));
    assert_eq!(stages(&rest), ["model_preparation loaded", "quantization done"]);
}

#[test]
fn a_pipeline_is_checked_before_anything_runs() {
    let run = |context: Value| run(&context, &mut EndAt::new(0)).expect_err("refused");
    refused(run(json!({})), ETG_ERROR_INVALID_ARGUMENT, &["model_name", "soc_model", "prompt"]);
    refused(run(json!({"model": 1})), ETG_ERROR_INVALID_ARGUMENT, &["\"model\"", "model_name"]);
    refused(run(json!({"prompt": 7})), ETG_ERROR_INVALID_ARGUMENT, &["\"prompt\"", "7"]);
    let with = |model: &str, options: Value| json!({"model_name": model, "soc_model": "SM8750", "prompt": ["hi"], "extra_options": options});
    refused(run(with("gpt-7", json!({}))), ETG_ERROR_NOT_FOUND, &["gpt-7", "smollm2_135m"]);
    refused(run(with("smollm2_135m", json!({"checkpont": "x"}))), ETG_ERROR_FORMAT, &["checkpont"]);
    refused(run(with("smollm2_135m", json!({"r1": true}))), ETG_ERROR_UNSUPPORTED, &["option r1"]);
    let absent = json!({"checkpoint": "/no/such", "calibration": {"random": {}}});
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut context = with("smollm2_135m", absent);
    context["artifact_dir"] = json!(folder.path());
    refused(run(context), ETG_ERROR_NOT_FOUND, &["[model_preparation]", "/no/such"]);
}
