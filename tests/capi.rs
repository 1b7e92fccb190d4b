//! The promise: whatever a C program does with the ABI, it gets a code and a text, and the state that is documented.
//!
//! The functions are called as C calls them, from Rust and from the C programs in `tests/c`.

#[path = "native/built.rs"]
mod built;
#[path = "native/folder.rs"]
mod folder;
mod native;
#[path = "native/program.rs"]
mod program;

use built::compiler;
use etgenai::capi::buffer::*;
use etgenai::capi::calibration_options::*;
use etgenai::capi::compile::*;
use etgenai::capi::compile_options::*;
use etgenai::capi::event::*;
use etgenai::capi::generate_options::*;
use etgenai::capi::last_error::*;
use etgenai::capi::messages::*;
use etgenai::capi::prepared_model::*;
use etgenai::capi::quantize_options::*;
use etgenai::capi::runner::*;
use etgenai::capi::runner_getters::*;
use etgenai::capi::runner_steps::*;
use etgenai::capi::status::*;
use etgenai::capi::tokenizer::*;
use etgenai::capi::turn_result::etg_turn_result;
use folder::fresh_folder;
use native::root;
use program::run_program;
use std::ffi::{CStr, c_char, c_void};
use std::fs;
use std::path::PathBuf;
use std::ptr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// A tiny text model, compiled once through the C ABI.
static MODEL: LazyLock<PathBuf> = LazyLock::new(|| compiled("smollm2"));
/// A tiny model that takes pictures.
static SEEING_MODEL: LazyLock<PathBuf> = LazyLock::new(|| compiled("smolvlm"));

/// A tiny text model, quantized with a few random tokens.
static QUANTIZED_MODEL: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = fresh_folder("capi quantized").join("model");
    let checkpoint = root().join("tests/fixtures/tiny/smollm2").display().to_string();
    let out = folder.display().to_string();
    let (from, to, component) = (text(&checkpoint), text(&out), text("text_decoder"));
    let (mut prepared, mut data, mut options) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let (no_callback, no_data) = (None, ptr::null_mut());
    unsafe {
        let made = etg_prepared_model_create(from.0, from.1, ptr::null(), no_callback, no_data, &mut prepared);
        assert_eq!(made, ETG_OK, "{}", last_error());
        assert_eq!(etg_calibration_options_create(&mut data), ETG_OK);
        assert_eq!(etg_calibration_options_set_random(data, 2, 8, 1), ETG_OK);
        assert_eq!(etg_quantize_options_create(&mut options), ETG_OK);
        assert_eq!(etg_quantize_options_set_dtype(options, component.0, component.1, ETG_QUANT_16A8W, 0), ETG_OK);
        let (seen, out) = (ptr::null(), ptr::null_mut());
        let status =
            etg_prepared_model_quantize(prepared, data, options, seen, 0, to.0, to.1, no_callback, no_data, out);
        assert_eq!(status, ETG_OK, "{}", last_error());
    }
    etg_quantize_options_free(options);
    etg_calibration_options_free(data);
    etg_prepared_model_free(prepared);
    folder
});

fn compiled(family: &str) -> PathBuf {
    let model = fresh_folder(&format!("capi {family}")).join("model");
    let checkpoint = root().join("tests/fixtures/tiny").join(family).display().to_string();
    let out = model.display().to_string();
    let mut options = ptr::null_mut();
    unsafe {
        assert_eq!(etg_compile_options_create(&mut options), ETG_OK);
        assert_eq!(etg_compile_options_set_weights(options, ETG_WEIGHTS_F32), ETG_OK);
        let (from, to) = (text(&checkpoint), text(&out));
        let status = etg_compile(from.0, from.1, to.0, to.1, options, None, ptr::null_mut());
        assert_eq!(status, ETG_OK, "{}", last_error());
    }
    etg_compile_options_free(options);
    model
}

fn text(text: &str) -> (*const c_char, usize) {
    (text.as_ptr().cast(), text.len())
}

fn last_error() -> String {
    // SAFETY: never NULL, valid until the next failure of this thread.
    unsafe { CStr::from_ptr(etg_last_error_message()) }.to_string_lossy().into_owned()
}

/// A runner over the tiny model, freed at the end.
struct Chat {
    runner: *mut etg_runner,
    options: *mut etg_generate_options,
}

// SAFETY: handles are tickets and go from thread to thread.
unsafe impl Send for Chat {}
unsafe impl Sync for Chat {}

impl Chat {
    fn open() -> Self {
        let folder = MODEL.display().to_string();
        let (mut runner, mut options) = (ptr::null_mut(), ptr::null_mut());
        let path = text(&folder);
        unsafe {
            assert_eq!(etg_runner_open(path.0, path.1, ptr::null(), &mut runner), ETG_OK, "{}", last_error());
            assert_eq!(etg_generate_options_create(&mut options), ETG_OK);
        }
        assert_eq!(etg_generate_options_set_max_new_tokens(options, 8), ETG_OK);
        assert_eq!(etg_generate_options_set_ignore_eos(options, 1), ETG_OK);
        Chat { runner, options }
    }

    /// One turn.
    fn say(&self, words: &str, on_event: etg_event_fn, user_data: *mut c_void, out: *mut etg_turn_result) -> i32 {
        let messages = user_message(words);
        let status = unsafe { etg_runner_generate(self.runner, messages, self.options, on_event, user_data, out) };
        etg_messages_free(messages);
        status
    }

    fn number(&self, get: unsafe extern "C" fn(*const etg_runner, *mut usize) -> i32) -> usize {
        let mut value = 0;
        assert_eq!(unsafe { get(self.runner, &mut value) }, ETG_OK);
        value
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        assert_eq!(etg_generate_options_free(self.options), ETG_OK);
        assert_eq!(etg_runner_free(self.runner), ETG_OK);
    }
}

fn user_message(words: &str) -> *mut etg_messages {
    let mut messages = ptr::null_mut();
    let words = text(words);
    unsafe {
        assert_eq!(etg_messages_create(&mut messages), ETG_OK);
        assert_eq!(etg_messages_add(messages, ETG_ROLE_USER), ETG_OK);
        assert_eq!(etg_messages_add_text(messages, words.0, words.1), ETG_OK);
    }
    messages
}

fn empty_result() -> etg_turn_result {
    // SAFETY: integers, floats and pointers, for which zero is a value.
    let mut result: etg_turn_result = unsafe { std::mem::zeroed() };
    result.struct_size = size_of::<etg_turn_result>() as u32;
    result
}

fn ids_of(buffer: *mut etg_buffer) -> Vec<u32> {
    let (mut ids, mut count) = (ptr::null(), 0);
    assert_eq!(unsafe { etg_buffer_ids(buffer, &mut ids, &mut count) }, ETG_OK);
    let copy = unsafe { std::slice::from_raw_parts(ids, count) }.to_vec();
    assert_eq!(etg_buffer_free(buffer), ETG_OK);
    copy
}

/// Kinds, texts and terminal events of a run.
#[derive(Default)]
struct Seen {
    text: String,
    tokens: Vec<u32>,
    finished: Vec<i32>,
}

unsafe extern "C" fn watch(user_data: *mut c_void, event: *const etg_event) -> i32 {
    let (seen, event) = unsafe { (&mut *user_data.cast::<Seen>(), &*event) };
    match event.kind {
        ETG_EVENT_TEXT => {
            let bytes = unsafe { std::slice::from_raw_parts(event.text.cast::<u8>(), event.text_length) };
            seen.text.push_str(std::str::from_utf8(bytes).expect("whole characters"));
        }
        ETG_EVENT_TOKEN => seen.tokens.push(event.token),
        ETG_EVENT_FINISHED => seen.finished.push(event.status),
        _ => {}
    }
    0
}

#[test]
fn tokenizer_files_open_by_themselves() {
    let sizes = ["tiny/smollm2/tokenizer.json", "tiny/gemma/tokenizer.json"].map(|name| {
        let file = root().join("tests/fixtures").join(name).display().to_string();
        let (mut tokenizer, mut size, path) = (ptr::null_mut(), 0, text(&file));
        unsafe {
            assert_eq!(etg_tokenizer_open(path.0, path.1, &mut tokenizer), ETG_OK, "{}", last_error());
            assert_eq!(etg_tokenizer_vocab_size(tokenizer, &mut size), ETG_OK);
        }
        assert_eq!(etg_tokenizer_free(tokenizer), ETG_OK);
        size
    });
    assert_eq!(sizes, [512, 512]);
    let file = root().join("tests/fixtures/tiny/smollm2/config.json").display().to_string();
    let (mut tokenizer, path) = (ptr::null_mut(), text(&file));
    assert_eq!(unsafe { etg_tokenizer_open(path.0, path.1, &mut tokenizer) }, ETG_ERROR_FORMAT);
    assert!(tokenizer.is_null() && last_error().contains("config.json"), "{}", last_error());
}

#[test]
fn a_turn_gives_events_and_the_same_result() {
    let chat = Chat::open();
    let (mut seen, mut result) = (Seen::default(), empty_result());
    let status = chat.say("hello", Some(watch), ptr::from_mut(&mut seen).cast(), &mut result);
    assert_eq!(status, ETG_STOP_LENGTH, "{}", last_error());
    assert_eq!(seen.finished, [ETG_STOP_LENGTH], "exactly one terminal event");
    assert_eq!(result.status, ETG_STOP_LENGTH);
    assert_eq!(result.struct_size as usize, size_of::<etg_turn_result>());
    let tokens = unsafe { std::slice::from_raw_parts(result.tokens, result.token_count) };
    assert_eq!(tokens, seen.tokens);
    assert_eq!((result.token_count, result.generated_tokens), (8, 8));
    assert_eq!(unsafe { CStr::from_ptr(result.text) }.to_bytes(), seen.text.as_bytes());
    assert_eq!(chat.number(etg_runner_turn_count), 1);
    assert!(chat.number(etg_runner_position) > 8);
}

#[test]
fn single_steps_give_the_tokens_of_a_turn() {
    let (whole, steps) = (Chat::open(), Chat::open());
    for words in ["hello there", "and again"] {
        let mut result = empty_result();
        assert_eq!(whole.say(words, None, ptr::null_mut(), &mut result), ETG_STOP_LENGTH, "{}", last_error());
        let expected = unsafe { std::slice::from_raw_parts(result.tokens, result.token_count) }.to_vec();

        let messages = user_message(words);
        let mut prompt = ptr::null_mut();
        let encoded = unsafe { etg_runner_encode_prompt(steps.runner, messages, &mut prompt) };
        assert_eq!(encoded, ETG_OK, "{}", last_error());
        let prompt = ids_of(prompt);
        let filled = unsafe { etg_runner_prefill_prompt(steps.runner, prompt.as_ptr(), prompt.len()) };
        assert_eq!(filled, ETG_OK, "{}", last_error());
        let mut reply = Vec::new();
        while reply.len() < expected.len() {
            let mut id = 0;
            assert_eq!(unsafe { etg_runner_sample(steps.runner, steps.options, &mut id) }, ETG_OK);
            reply.push(id);
            if reply.len() < expected.len() {
                assert_eq!(etg_runner_decode_one(steps.runner, id), ETG_OK, "{}", last_error());
            }
        }
        assert_eq!(reply, expected);
        let committed = unsafe { etg_runner_commit_turn(steps.runner, messages, reply.as_ptr(), reply.len()) };
        assert_eq!(committed, ETG_OK);
        etg_messages_free(messages);
    }
    assert_eq!(steps.number(etg_runner_turn_count), 2);
}

/// Calls everything on the runner whose callback it is.
unsafe extern "C" fn reenter(user_data: *mut c_void, event: *const etg_event) -> i32 {
    let (chat, event) = unsafe { (&*user_data.cast::<Chat>(), &*event) };
    if event.kind == ETG_EVENT_FINISHED {
        return 0;
    }
    assert_eq!(chat.say("again", None, ptr::null_mut(), ptr::null_mut()), ETG_ERROR_BUSY);
    assert_eq!(etg_runner_reset(chat.runner), ETG_ERROR_BUSY);
    assert_eq!(etg_runner_rewind(chat.runner, 0), ETG_ERROR_BUSY);
    assert_eq!(etg_runner_decode_one(chat.runner, 1), ETG_ERROR_BUSY);
    assert_eq!(etg_runner_free(chat.runner), ETG_ERROR_BUSY);
    assert_eq!(chat.number(etg_runner_turn_count), 0, "getters answer: the state before the run");
    assert!(chat.number(etg_runner_context_capacity) > 0);
    assert_eq!(etg_runner_cancel(chat.runner), ETG_OK);
    0
}

#[test]
fn a_callback_may_cancel_and_ask_but_nothing_else() {
    let chat = Chat::open();
    let status = chat.say("hello", Some(reenter), ptr::from_ref(&chat).cast_mut().cast(), ptr::null_mut());
    assert_eq!(status, ETG_STOP_CANCELLED, "{}", last_error());
}

unsafe extern "C" fn stop_at_once(_: *mut c_void, event: *const etg_event) -> i32 {
    i32::from(unsafe { &*event }.kind == ETG_EVENT_TOKEN)
}

#[test]
fn a_callback_ends_the_reply() {
    let chat = Chat::open();
    assert_eq!(chat.say("hello", Some(stop_at_once), ptr::null_mut(), ptr::null_mut()), ETG_STOP_CALLBACK);
}

unsafe extern "C" fn tell_started(user_data: *mut c_void, _: *const etg_event) -> i32 {
    let started = unsafe { &*user_data.cast::<std::sync::atomic::AtomicBool>() };
    started.store(true, std::sync::atomic::Ordering::Release);
    std::thread::sleep(Duration::from_millis(2));
    0
}

#[test]
fn another_thread_cancels_and_is_busy_until_then() {
    let chat = Chat::open();
    assert_eq!(etg_generate_options_set_max_new_tokens(chat.options, 0), ETG_OK);
    let started = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            chat.say("hello", Some(tell_started), ptr::from_ref(&started).cast_mut().cast(), ptr::null_mut())
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        while !started.load(std::sync::atomic::Ordering::Acquire) {
            assert!(Instant::now() < deadline, "the run does not start");
            std::thread::yield_now();
        }
        assert_eq!(chat.say("me too", None, ptr::null_mut(), ptr::null_mut()), ETG_ERROR_BUSY);
        assert_eq!(etg_runner_free(chat.runner), ETG_ERROR_BUSY);
        assert_eq!(etg_runner_cancel(chat.runner), ETG_OK);
        assert_eq!(run.join().expect("the run ends"), ETG_STOP_CANCELLED);
    });
}

#[test]
fn an_early_cancel_is_not_lost() {
    let chat = Chat::open();
    assert_eq!(etg_runner_cancel(chat.runner), ETG_OK);
    assert_eq!(chat.say("hello", None, ptr::null_mut(), ptr::null_mut()), ETG_STOP_CANCELLED);
    assert_eq!(chat.say("hello", None, ptr::null_mut(), ptr::null_mut()), ETG_STOP_LENGTH, "it is used up");
}

#[test]
fn a_prompt_that_does_not_fit_says_both_numbers_and_changes_nothing() {
    let chat = Chat::open();
    assert_eq!(chat.say("hello", None, ptr::null_mut(), ptr::null_mut()), ETG_STOP_LENGTH);
    let before = (chat.number(etg_runner_position), chat.number(etg_runner_turn_count));
    let capacity = chat.number(etg_runner_context_capacity);
    let mut seen = Seen::default();
    let status = chat.say(&"word ".repeat(capacity + 1), Some(watch), ptr::from_mut(&mut seen).cast(), ptr::null_mut());
    assert_eq!(status, ETG_ERROR_CONTEXT_FULL);
    assert!(last_error().contains(&capacity.to_string()), "{}", last_error());
    assert_eq!(seen.finished, [ETG_ERROR_CONTEXT_FULL]);
    assert_eq!((chat.number(etg_runner_position), chat.number(etg_runner_turn_count)), before);
    let (mut code, mut message) = (0, ptr::null_mut());
    assert_eq!(unsafe { etg_runner_last_error(chat.runner, &mut code, &mut message) }, ETG_OK);
    assert_eq!(code, ETG_ERROR_CONTEXT_FULL);
    assert_eq!(etg_buffer_free(message), ETG_OK);
}

#[test]
fn a_result_struct_follows_the_growth_rules() {
    #[repr(C)]
    struct Newer(etg_turn_result, u64);
    let chat = Chat::open();
    let say = |out: *mut etg_turn_result| chat.say("hello", None, ptr::null_mut(), out);

    // A program of before there were pictures: what is behind its struct stays as it is.
    let mut before = empty_result();
    let known = std::mem::offset_of!(etg_turn_result, images);
    before.struct_size = known as u32;
    (before.images, before.image_encode_ms) = (77, 7.5);
    assert_eq!(say(&mut before), ETG_STOP_LENGTH);
    assert_eq!((before.struct_size as usize, before.generated_tokens), (known, 8));
    assert_eq!((before.images, before.image_encode_ms), (77, 7.5));
    assert_eq!(etg_runner_reset(chat.runner), ETG_OK);

    let mut old = empty_result();
    old.struct_size = 12;
    assert_eq!(say(&mut old), ETG_ERROR_INVALID_ARGUMENT);
    assert!(last_error().contains("struct_size is 12"), "{}", last_error());
    assert_eq!(chat.number(etg_runner_turn_count), 0, "refused before anything ran");

    let mut newer = Newer(empty_result(), 1);
    newer.0.struct_size = size_of::<Newer>() as u32;
    assert_eq!(say(ptr::from_mut(&mut newer).cast()), ETG_ERROR_UNSUPPORTED);
    newer.1 = 0;
    assert_eq!(say(ptr::from_mut(&mut newer).cast()), ETG_STOP_LENGTH);
    assert_eq!(newer.0.struct_size as usize, size_of::<etg_turn_result>(), "what was filled");
}

#[test]
fn rewind_and_reset_forget() {
    let chat = Chat::open();
    let turn = |words| {
        let mut result = empty_result();
        assert_eq!(chat.say(words, None, ptr::null_mut(), &mut result), ETG_STOP_LENGTH, "{}", last_error());
        unsafe { std::slice::from_raw_parts(result.tokens, result.token_count) }.to_vec()
    };
    turn("one");
    let second = turn("two");
    assert_eq!(etg_runner_rewind(chat.runner, 3), ETG_ERROR_INVALID_ARGUMENT);
    assert_eq!(etg_runner_rewind(chat.runner, 1), ETG_OK);
    assert_eq!(turn("two"), second, "the same history gives the same reply");
    assert_eq!(etg_runner_reset(chat.runner), ETG_OK);
    assert_eq!(chat.number(etg_runner_position), 0);
}

#[test]
fn options_json_is_all_or_nothing_and_names_the_key() {
    let set = |json: &str| {
        let mut options = ptr::null_mut();
        let json = text(json);
        let status = unsafe {
            assert_eq!(etg_generate_options_create(&mut options), ETG_OK);
            etg_generate_options_set_json(options, json.0, json.1)
        };
        etg_generate_options_free(options);
        status
    };
    assert_eq!(
        set(r#"{"temperature": 0.7, "stop": ["a"], "seed": 18446744073709551615, "max_new_tokens": null}"#),
        ETG_OK
    );
    for (json, code, words) in [
        (r#"{"top_k": 1, "topp": 0.5}"#, ETG_ERROR_INVALID_ARGUMENT, "\"topp\""),
        (r#"{"top_k": "x"}"#, ETG_ERROR_INVALID_ARGUMENT, "\"top_k\" must be"),
        (r#"{"top_p": 1.5}"#, ETG_ERROR_INVALID_ARGUMENT, "top_p is 1.5"),
        (r#"{"stop": [""]}"#, ETG_ERROR_INVALID_ARGUMENT, "stop"),
        (r#"{"stop": "x"}"#, ETG_ERROR_INVALID_ARGUMENT, "list of strings"),
        ("{", ETG_ERROR_FORMAT, "not a JSON object"),
        ("", ETG_ERROR_FORMAT, "not a JSON object"),
    ] {
        assert_eq!(set(json), code, "{json}");
        assert!(last_error().contains(words), "{json}: {}", last_error());
    }
}

proptest::proptest! {
    /// Any bytes, and any object over known keys, give a code; an error leaves a text.
    #[test]
    fn options_json_survives_anything(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64),
        key in "temperature|top_k|top_p|min_p|seed|stop|max_new_tokens|[a-z]{0,4}",
        value in r#"-?[0-9]{1,25}(\.[0-9]{1,3})?|true|null|"[a-z]{0,3}"|\[\]|\["",1\]|\{\}"#,
    ) {
        let object = format!("{{\"{key}\": {value}}}");
        for json in [bytes.as_slice(), object.as_bytes()] {
            let mut options = ptr::null_mut();
            let status = unsafe {
                assert_eq!(etg_generate_options_create(&mut options), ETG_OK);
                etg_generate_options_set_json(options, json.as_ptr().cast(), json.len())
            };
            assert!([ETG_OK, ETG_ERROR_INVALID_ARGUMENT, ETG_ERROR_FORMAT].contains(&status), "{status} for {object}");
            assert!(status == ETG_OK || !last_error().is_empty());
            assert_eq!(etg_generate_options_free(options), ETG_OK);
        }
    }
}

#[test]
fn statistics_are_there_in_every_form() {
    let chat = Chat::open();
    let get = |get: unsafe extern "C" fn(*const etg_runner, *mut *mut etg_buffer) -> i32| {
        let (mut buffer, mut bytes, mut length) = (ptr::null_mut(), ptr::null(), 0);
        let status = unsafe { get(chat.runner, &mut buffer) };
        if status != ETG_OK {
            return Err(status);
        }
        assert_eq!(unsafe { etg_buffer_text(buffer, &mut bytes, &mut length) }, ETG_OK);
        let copy = unsafe { CStr::from_ptr(bytes) }.to_str().expect("UTF-8").to_owned();
        assert_eq!(etg_buffer_free(buffer), ETG_OK);
        Ok(copy)
    };
    assert_eq!(get(etg_runner_stats_observer_line), Err(ETG_ERROR_INVALID_STATE));
    let before: serde_json::Value = serde_json::from_str(&get(etg_runner_stats_json).unwrap()).unwrap();
    assert!(before["turn"].is_null() && before["total"]["turns"] == 0, "{before}");
    assert_eq!(chat.say("hello", None, ptr::null_mut(), ptr::null_mut()), ETG_STOP_LENGTH);
    let stats: serde_json::Value = serde_json::from_str(&get(etg_runner_stats_json).unwrap()).unwrap();
    assert_eq!(stats["turn"]["generated_tokens"], 8);
    assert_eq!(stats["total"]["turns"], 1);
    assert!(stats["turn"]["decode_tokens_per_second"].is_number(), "{stats}");
    assert!(get(etg_runner_stats_observer_line).unwrap().starts_with("PyTorchObserver {"));
    assert!(get(etg_runner_stats_log_lines).unwrap().contains("Prompt Tokens:"));
}

unsafe extern "C" fn end_the_work(_: *mut c_void, progress: *const etg_progress) -> i32 {
    let progress = unsafe { &*progress };
    assert_eq!(progress.struct_size as usize, size_of::<etg_progress>());
    i32::from(progress.stage == ETG_STAGE_WEIGHTS)
}

#[test]
fn a_cancelled_compilation_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoint = root().join("tests/fixtures/tiny/smollm2").display().to_string();
    let out = folder.path().join("model").display().to_string();
    let (from, to) = (text(&checkpoint), text(&out));
    let status = unsafe { etg_compile(from.0, from.1, to.0, to.1, ptr::null(), Some(end_the_work), ptr::null_mut()) };
    assert_eq!(status, ETG_ERROR_CANCELLED);
    assert_eq!(fs::read_dir(folder.path()).expect("the folder is there").count(), 0);
}

#[test]
fn smoke_in_c() {
    run_program(|| compiler(false, "c11"), &root().join("tests/c/smoke.c"), &[]);
}

#[test]
fn the_cpp_header_throws_and_frees() {
    let model = MODEL.display().to_string();
    run_program(|| compiler(true, "c++17"), &root().join("tests/c/cpp_header.cpp"), &[&model]);
}

#[test]
fn the_cpp_header_works_without_exceptions() {
    let model = MODEL.display().to_string();
    let compile = || {
        let mut command = compiler(true, "c++20");
        command.arg("-fno-exceptions");
        command
    };
    run_program(compile, &root().join("tests/c/cpp_no_exceptions.cpp"), &[&model]);
}

/// Every function of the header, called with each of its pointers NULL in turn and all others right.
#[test]
fn null_sweep_in_c() {
    let header = fs::read_to_string(root().join("include/etgenai.h")).expect("the header is readable");
    let calls = sweep::calls(&header);
    let listed = fs::read_to_string(root().join("include/etgenai.symbols")).expect("the list is readable");
    for name in listed.lines().filter(|name| !sweep::WITHOUT_POINTERS.contains(name)) {
        assert!(calls.contains(&format!("{name}(")), "{name} is not in the sweep");
    }
    let template = fs::read_to_string(root().join("tests/c/null_sweep.c")).expect("the template is readable");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("null_sweep.c");
    fs::write(&source, template.replace("/* CALLS */", &calls)).expect("the program can be written");
    let model = SEEING_MODEL.display().to_string();
    let picture = root().join("tests/fixtures/media/rgb_97x61.png").display().to_string();
    let checkpoint = root().join("tests/fixtures/tiny/smollm2").display().to_string();
    let quantized = QUANTIZED_MODEL.display().to_string();
    run_program(|| compiler(false, "c11"), &source, &[&model, &picture, &checkpoint, &quantized]);
}

/// Makes the calls of the NULL sweep from the text of the header.
mod sweep {
    /// Functions without a pointer argument.
    pub const WITHOUT_POINTERS: [&str; 6] = [
        "etg_version_number",
        "etg_version_string",
        "etg_status_name",
        "etg_last_error_code",
        "etg_last_error_message",
        "etg_live_handle_count",
    ];

    /// Arguments that may be NULL.
    const OPTIONAL: [&str; 38] = [
        "etg_runner_open.options",
        "etg_runner_open_files.options",
        "etg_runner_open_with_engine.options",
        "etg_runner_generate.options",
        "etg_runner_generate.on_event",
        "etg_runner_generate.user_data",
        "etg_runner_generate.result_out",
        "etg_runner_sample.options",
        "etg_compile.options",
        "etg_compile.on_progress",
        "etg_compile.user_data",
        "etg_recompile_component.options",
        "etg_recompile_component.on_progress",
        "etg_recompile_component.user_data",
        "etg_prepared_model_create.options",
        "etg_prepared_model_create.on_progress",
        "etg_prepared_model_create.user_data",
        "etg_prepared_model_observe.options",
        "etg_prepared_model_observe.on_progress",
        "etg_prepared_model_observe.user_data",
        "etg_prepared_model_quantize.calibration",
        "etg_prepared_model_quantize.options",
        "etg_prepared_model_quantize.on_progress",
        "etg_prepared_model_quantize.user_data",
        "etg_prepared_model_quantize.model_out",
        "etg_quantized_model_perplexity_of_file.on_progress",
        "etg_quantized_model_perplexity_of_file.user_data",
        "etg_quantized_model_perplexity_of_tokens.on_progress",
        "etg_quantized_model_perplexity_of_tokens.user_data",
        "etg_quantized_model_compile.on_progress",
        "etg_quantized_model_compile.user_data",
        "etg_pipeline_run.on_progress",
        "etg_pipeline_run.user_data",
        "etg_image_from_encoded.options",
        "etg_image_from_file.options",
        "etg_image_from_pixels.options",
        "etg_image_from_yuv420.options",
        "etg_set_log_sink.",
    ];

    /// One statement a function and pointer: `NULLED(call, may be NULL);`.
    pub fn calls(header: &str) -> String {
        let mut calls = String::new();
        for declaration in header.split("ETG_API").skip(1) {
            let Some((head, rest)) = declaration.split_once('(') else { continue };
            let Some((parameters, _)) = rest.split_once(");") else { continue };
            let name = head.split_whitespace().last().unwrap_or_default().trim_start_matches('*');
            let parameters = parameters.split(',').map(str::trim).filter(|p| *p != "void").collect::<Vec<_>>();
            if !name.starts_with("etg_") || name == "etg_set_log_sink" {
                continue;
            }
            for (index, parameter) in parameters.iter().enumerate().filter(|(_, p)| is_pointer(p)) {
                let argument = parameter.rsplit([' ', '*']).next().unwrap_or_default();
                let optional = name.ends_with("_free") || OPTIONAL.contains(&format!("{name}.{argument}").as_str());
                let values = parameters.iter().enumerate().map(|(at, p)| if at == index { "NULL" } else { value(p) });
                let values = values.collect::<Vec<_>>().join(", ");
                calls.push_str(&format!("    NULLED({name}({values}), {});\n", i32::from(optional)));
            }
        }
        calls.push_str("    NULLED(etg_set_log_sink(NULL, NULL, NULL, ETG_LOG_OFF), 1);\n");
        calls
    }

    fn is_pointer(parameter: &str) -> bool {
        parameter.contains('*') || parameter.contains("_fn ")
    }

    /// A right value for a parameter, from the variables of `null_sweep.c`.
    fn value(parameter: &str) -> &'static str {
        let kind = parameter.rsplit_once([' ', '*']).map_or(parameter, |(kind, _)| kind).replace("struct ", "");
        let kind = kind.replace("const ", "").replace(' ', "");
        if parameter.contains("*const *") {
            return match kind.as_str() {
                "char*" => "texts",
                "etg_image*" => "images",
                "etg_embedding*" => "embeddings",
                other => panic!("null_sweep.c has no array of {other}"),
            };
        }
        match (kind.as_str(), parameter.contains("**")) {
            (_, true) => match kind.trim_end_matches('*') {
                "etg_buffer" => "&new_buffer",
                "etg_messages" => "&new_messages",
                "etg_generate_options" => "&new_generate_options",
                "etg_runner_options" => "&new_runner_options",
                "etg_compile_options" => "&new_compile_options",
                "etg_tokenizer" => "&new_tokenizer",
                "etg_detokenizer" => "&new_detokenizer",
                "etg_runner" => "&new_runner",
                "etg_image_options" => "&new_image_options",
                "etg_image" => "&new_image",
                "etg_pixels" => "&new_pixels",
                "etg_image_processor" => "&new_image_processor",
                "etg_embedding" => "&new_embedding",
                "etg_audio" => "&new_audio",
                "etg_engine" => "&new_engine",
                "etg_model_files" => "&new_model_files",
                "etg_preparation_options" => "&new_preparation_options",
                "etg_calibration_options" => "&new_calibration_options",
                "etg_quantize_options" => "&new_quantize_options",
                "etg_prepared_model" => "&new_prepared_model",
                "etg_quantized_model" => "&new_quantized_model",
                "uint8_t" => "&bytes_out",
                "char" => "&text_out",
                "uint32_t" => "&ids_out",
                "float" => "&logits_out",
                other => panic!("null_sweep.c has no variable for {other}**"),
            },
            ("etg_buffer" | "etg_buffer*", _) => "buffer",
            ("etg_messages" | "etg_messages*", _) => "messages",
            ("etg_generate_options" | "etg_generate_options*", _) => "generate_options",
            ("etg_runner_options" | "etg_runner_options*", _) => "runner_options",
            ("etg_compile_options" | "etg_compile_options*", _) => "compile_options",
            ("etg_tokenizer" | "etg_tokenizer*", _) => "tokenizer",
            ("etg_detokenizer" | "etg_detokenizer*", _) => "detokenizer",
            ("etg_runner" | "etg_runner*", _) => "runner",
            ("etg_image_options" | "etg_image_options*", _) => "image_options",
            ("etg_image" | "etg_image*", _) => "image",
            ("etg_pixels" | "etg_pixels*", _) => "pixels",
            ("etg_image_processor" | "etg_image_processor*", _) => "image_processor",
            ("etg_embedding" | "etg_embedding*", _) => "embedding",
            ("etg_audio" | "etg_audio*", _) => "audio",
            ("etg_engine" | "etg_engine*", _) => "engine",
            ("etg_model_files" | "etg_model_files*", _) => "model_files",
            ("etg_preparation_options" | "etg_preparation_options*", _) => "preparation_options",
            ("etg_calibration_options" | "etg_calibration_options*", _) => "calibration_options",
            ("etg_quantize_options" | "etg_quantize_options*", _) => "quantize_options",
            ("etg_prepared_model" | "etg_prepared_model*", _) => "prepared_model",
            ("etg_quantized_model" | "etg_quantized_model*", _) => "quantized_model",
            ("etg_perplexity" | "etg_perplexity*", _) => "&perplexity",
            ("etg_engine_functions" | "etg_engine_functions*", _) => "&functions",
            ("etg_yuv420" | "etg_yuv420*", _) => "&frame",
            ("etg_turn_result" | "etg_turn_result*", _) => "&result",
            ("etg_event_fn" | "etg_progress_fn" | "etg_stage_progress_fn" | "void" | "void*", _) => "NULL",
            ("char" | "char*", _) => "\"x\"",
            ("uint8_t", _) if parameter.contains("_out") => "hash",
            ("uint8_t", _) if parameter.contains('*') => "bytes",
            ("size_t", _) if parameter.contains("_out") => "&size_out",
            ("size_t", _) if parameter.contains('*') => "lengths",
            ("float", _) if parameter.contains('*') => "values",
            ("uint32_t", _) if parameter.contains("_out") => "&id_out",
            ("int32_t", _) if parameter.contains("_out") => "&flag_out",
            ("uint32_t*" | "uint32_t", _) if parameter.contains('*') => "ids",
            ("size_t" | "uint8_t" | "uint32_t" | "int32_t" | "uint64_t", _) => "1",
            ("float", _) => "1.0f",
            ("double", _) => "1.0",
            (other, _) => panic!("null_sweep.c has no variable for {other}"),
        }
    }
}
