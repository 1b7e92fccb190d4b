//! The promise: sound through the C ABI: made from whatever a program has, said in whole turns or by single steps with the
//! same tokens, and refused with a code and numbers where it cannot be.
//!
//! The model is the toy of `run_pte/toy_engine.c`, whose rows carry the first feature of the sound.

#[path = "run_pte/engine.rs"]
mod toy;

use etgenai::capi::audio::*;
use etgenai::capi::buffer::*;
use etgenai::capi::embedding::*;
use etgenai::capi::engine::*;
use etgenai::capi::generate_options::*;
use etgenai::capi::last_error::*;
use etgenai::capi::messages::*;
use etgenai::capi::model_files::*;
use etgenai::capi::runner::*;
use etgenai::capi::runner_audio::*;
use etgenai::capi::runner_images::*;
use etgenai::capi::runner_options::*;
use etgenai::capi::runner_steps::*;
use etgenai::capi::status::*;
use etgenai::capi::turn_result::etg_turn_result;
use std::ffi::{CStr, c_char};
use std::fs;
use std::ptr;
use tempfile::TempDir;
use toy::{engine, root};

/// Features the toy takes, rows it makes of them, floats of a row.
const GEOMETRY: (usize, usize, usize) = (75 * 160, 4, 2);

fn text(text: &str) -> (*const c_char, usize) {
    (text.as_ptr().cast(), text.len())
}

fn last_error() -> String {
    // SAFETY: never NULL, valid until the next failure of this thread.
    unsafe { CStr::from_ptr(etg_last_error_message()) }.to_string_lossy().into_owned()
}

/// The result of a call that makes a handle; NULL is an error's.
fn made<T>(make: impl FnOnce(*mut *mut T) -> i32) -> *mut T {
    let mut handle = ptr::null_mut();
    assert_eq!(make(&mut handle), ETG_OK, "{}", last_error());
    assert!(!handle.is_null());
    handle
}

/// What a call that makes no handle says.
fn refused<T>(make: impl FnOnce(*mut *mut T) -> i32) -> (i32, String) {
    let mut handle = ptr::without_provenance_mut(0x100);
    let status = make(&mut handle);
    assert!(status < 0 && handle.is_null(), "{status}");
    (status, last_error())
}

fn wav() -> Vec<u8> {
    fs::read(root().join("tests/fixtures/media/chirp_16k_21920.wav")).expect("a fixture")
}

fn chirp() -> *mut etg_audio {
    let bytes = wav();
    made(|out| unsafe { etg_audio_from_encoded(bytes.as_ptr(), bytes.len(), out) })
}

fn features(values: &[f32]) -> *mut etg_audio {
    made(|out| unsafe { etg_audio_from_features(values.as_ptr(), values.len(), out) })
}

fn rows_of(embedding: *const etg_embedding) -> Vec<f32> {
    let (mut rows, mut count, mut width) = (ptr::null(), 0, 0);
    assert_eq!(unsafe { etg_embedding_rows(embedding, &mut rows, &mut count, &mut width) }, ETG_OK);
    unsafe { std::slice::from_raw_parts(rows, count * width) }.to_vec()
}

/// A runner over the toy's programs.
struct Chat {
    runner: *mut etg_runner,
    options: *mut etg_generate_options,
    _programs: TempDir,
}

impl Chat {
    fn open(components: &[(&str, &str)], tokenizer: &str) -> Self {
        let programs = TempDir::new().expect("a temporary folder");
        let files = made(|out| unsafe { etg_model_files_create(out) });
        for (component, kind) in components {
            let path = programs.path().join(component);
            fs::write(&path, kind).expect("a program");
            let (path, name) = (path.display().to_string(), text(component));
            let path = text(&path);
            assert_eq!(unsafe { etg_model_files_set_component(files, name.0, name.1, path.0, path.1) }, ETG_OK);
        }
        let folder = root().join("tests/fixtures/tiny").join(tokenizer).display().to_string();
        let folder = text(&folder);
        assert_eq!(unsafe { etg_model_files_set_tokenizer(files, folder.0, folder.1) }, ETG_OK);
        let library = engine().display().to_string();
        let library = text(&library);
        let loaded = made(|out| unsafe { etg_engine_load_library(library.0, library.1, ptr::null(), 0, out) });
        let opening = made(|out| unsafe { etg_runner_options_create(out) });
        let template = text("upstream:granite_speech");
        assert_eq!(unsafe { etg_runner_options_set_template(opening, template.0, template.1) }, ETG_OK);
        let runner = made(|out| unsafe { etg_runner_open_files(files, loaded, opening, out) });
        let options = made(|out| unsafe { etg_generate_options_create(out) });
        assert_eq!(etg_generate_options_set_max_new_tokens(options, 3), ETG_OK);
        assert_eq!(etg_generate_options_set_ignore_eos(options, 1), ETG_OK);
        assert_eq!(etg_runner_options_free(opening), ETG_OK);
        assert_eq!(etg_engine_free(loaded), ETG_OK);
        assert_eq!(etg_model_files_free(files), ETG_OK);
        Self { runner, options, _programs: programs }
    }

    fn listener() -> Self {
        Self::open(&[("text_decoder", "h"), ("tok_embedding", "e"), ("audio_encoder", "a")], "granite_speech")
    }

    /// Tokens of a turn, and its numbers of sounds: shown and encoded. Takes the messages.
    fn turn(&self, messages: *mut etg_messages) -> Result<(Vec<u32>, u64, u64), (i32, String)> {
        // SAFETY: zero is a value of every field.
        let mut result: etg_turn_result = unsafe { std::mem::zeroed() };
        result.struct_size = u32::try_from(size_of::<etg_turn_result>()).expect("small");
        let status =
            unsafe { etg_runner_generate(self.runner, messages, self.options, None, ptr::null_mut(), &mut result) };
        assert_eq!(etg_messages_free(messages), ETG_OK);
        if status < 0 {
            return Err((status, last_error()));
        }
        let tokens = unsafe { std::slice::from_raw_parts(result.tokens, result.token_count) }.to_vec();
        Ok((tokens, result.images, result.encoded_images))
    }

    fn prompt(&self, messages: *const etg_messages) -> Vec<u32> {
        let buffer = made(|out| unsafe { etg_runner_encode_prompt(self.runner, messages, out) });
        let (mut ids, mut count) = (ptr::null(), 0);
        assert_eq!(unsafe { etg_buffer_ids(buffer, &mut ids, &mut count) }, ETG_OK);
        let ids = unsafe { std::slice::from_raw_parts(ids, count) }.to_vec();
        assert_eq!(etg_buffer_free(buffer), ETG_OK);
        ids
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        assert_eq!(etg_generate_options_free(self.options), ETG_OK);
        assert_eq!(etg_runner_free(self.runner), ETG_OK);
    }
}

/// A question with whatever `add` puts in front of it.
fn ask(add: impl FnOnce(*mut etg_messages) -> i32) -> *mut etg_messages {
    let messages = made(|out| unsafe { etg_messages_create(out) });
    assert_eq!(etg_messages_add(messages, ETG_ROLE_USER), ETG_OK);
    assert_eq!(add(messages), ETG_OK, "{}", last_error());
    let question = text("what was said?");
    assert_eq!(unsafe { etg_messages_add_text(messages, question.0, question.1) }, ETG_OK);
    messages
}

#[test]
fn sound_is_made_of_whatever_a_program_has() {
    let path = root().join("tests/fixtures/media/chirp_16k_21920.wav").display().to_string();
    let path = text(&path);
    let from_file = made(|out| unsafe { etg_audio_from_file(path.0, path.1, out) });
    let samples_of = |audio: *const etg_audio| {
        let (mut samples, mut count, mut rate) = (ptr::null(), 0, 0);
        assert_eq!(unsafe { etg_audio_samples(audio, &mut samples, &mut count, &mut rate) }, ETG_OK);
        (unsafe { std::slice::from_raw_parts(samples, count) }.to_vec(), rate)
    };
    let (samples, rate) = samples_of(from_file);
    assert_eq!((samples.len(), rate), (21_920, 16_000));
    let decoded = chirp();
    assert_eq!(samples_of(decoded), (samples.clone(), rate));
    let copied = made(|out| unsafe { etg_audio_from_samples(samples.as_ptr(), samples.len(), 44_100, out) });
    assert_eq!(samples_of(copied), (samples, 44_100));
    let ready = features(&[1.0, 2.0]);
    let (mut values, mut count, mut rate) = (ptr::null(), 1, 1);
    assert_eq!(unsafe { etg_audio_samples(ready, &mut values, &mut count, &mut rate) }, ETG_ERROR_INVALID_STATE);
    assert!(values.is_null() && (count, rate) == (0, 0));
    for audio in [from_file, decoded, copied, ready] {
        assert_eq!(etg_audio_free(audio), ETG_OK);
        assert_eq!(etg_audio_free(audio), ETG_ERROR_INVALID_ARGUMENT, "freed twice");
    }

    let bytes = wav();
    let short = refused(|out| unsafe { etg_audio_from_encoded(bytes.as_ptr(), 1_000, out) });
    assert_eq!(short.0, ETG_ERROR_FORMAT, "{}", short.1);
    let nan = refused(|out| unsafe { etg_audio_from_samples([f32::NAN].as_ptr(), 1, 16_000, out) });
    assert!(nan.0 == ETG_ERROR_INVALID_ARGUMENT && nan.1.contains("number 0 of the samples is NaN"), "{}", nan.1);
    let none = text("no/such.wav");
    assert_eq!(refused(|out| unsafe { etg_audio_from_file(none.0, none.1, out) }).0, ETG_ERROR_NOT_FOUND);
}

#[test]
fn turns_and_single_steps_hear_the_same() {
    let chat = Chat::listener();
    let (mut takes, mut geometry) = (0, (0, 0, 0));
    assert_eq!(unsafe { etg_runner_takes_audio(chat.runner, &mut takes) }, ETG_OK);
    let (a, b, c) = (&mut geometry.0, &mut geometry.1, &mut geometry.2);
    assert_eq!(unsafe { etg_runner_audio_geometry(chat.runner, a, b, c) }, ETG_OK);
    assert_eq!((takes, geometry), (1, GEOMETRY));

    let sound = chirp();
    let (tokens, shown, encoded) = chat.turn(ask(|list| etg_messages_add_audio(list, sound))).expect("a reply");
    assert_eq!((tokens.len(), shown, encoded), (3, 1, 1));
    // Features by themselves, the rows of them, and the same through the cache.
    let mut values = vec![0.0; GEOMETRY.0];
    let made_of = unsafe { etg_runner_preprocess_audio(chat.runner, sound, values.as_mut_ptr(), values.len()) };
    assert_eq!(made_of, ETG_OK, "{}", last_error());
    let encoded = made(|out| unsafe { etg_runner_encode_features(chat.runner, values.as_ptr(), values.len(), out) });
    let cached = made(|out| unsafe { etg_runner_encode_audio(chat.runner, sound, out) });
    assert_eq!(rows_of(encoded), [0.0, values[0]].repeat(GEOMETRY.1));
    assert_eq!(rows_of(cached), rows_of(encoded));

    // A turn by hand: embed, merge, prefill, sample.
    assert_eq!(etg_runner_reset(chat.runner), ETG_OK);
    let question = ask(|list| etg_messages_add_embedding(list, encoded));
    let prompt = chat.prompt(question);
    let audio_token = 560;
    assert_eq!(prompt.iter().filter(|&&id| id == audio_token).count(), GEOMETRY.1);
    let mut rows = vec![0.0; prompt.len() * GEOMETRY.2];
    let embedded =
        unsafe { etg_runner_embed_tokens(chat.runner, prompt.as_ptr(), prompt.len(), rows.as_mut_ptr(), rows.len()) };
    assert_eq!(embedded, ETG_OK, "{}", last_error());
    let given = [encoded.cast_const()];
    let merged = unsafe {
        let place = (rows.as_mut_ptr(), rows.len());
        etg_runner_merge(chat.runner, prompt.as_ptr(), prompt.len(), place.0, place.1, given.as_ptr(), 1)
    };
    assert_eq!(merged, ETG_OK, "{}", last_error());
    let place = prompt.iter().position(|&id| id == audio_token).expect("rows");
    assert_eq!(rows[place * 2..][..4], [0.0, values[0], 0.0, values[0]]);
    let filled =
        unsafe { etg_runner_prefill_rows(chat.runner, prompt.as_ptr(), prompt.len(), rows.as_ptr(), rows.len()) };
    assert_eq!(filled, ETG_OK, "{}", last_error());
    let mut first = 0;
    assert_eq!(unsafe { etg_runner_sample(chat.runner, chat.options, &mut first) }, ETG_OK);
    assert_eq!(first, tokens[0]);
    assert_eq!(etg_messages_free(question), ETG_OK);
    assert_eq!((etg_embedding_free(encoded), etg_embedding_free(cached), etg_audio_free(sound)), (0, 0, 0));
}

#[test]
fn what_does_not_fit_has_a_code_and_numbers() {
    let chat = Chat::listener();
    let long = vec![0.1; 2 * 16_000];
    let long = made(|out| unsafe { etg_audio_from_samples(long.as_ptr(), long.len(), 16_000, out) });
    let few = features(&[0.5; 7]);
    for (audio, says) in [(long, "2.00 seconds long, this model takes at most 1.49"), (few, "7 numbers")] {
        let (status, error) = chat.turn(ask(|list| etg_messages_add_audio(list, audio))).expect_err("no fit");
        assert!(status == ETG_ERROR_INVALID_ARGUMENT && error.contains(says), "{error}");
        let (status, error) = refused(|out| unsafe { etg_runner_encode_audio(chat.runner, audio, out) });
        assert!(status == ETG_ERROR_INVALID_ARGUMENT && error.contains(says), "{error}");
    }
    let values = [0.5; 7];
    let (status, error) = refused(|out| unsafe { etg_runner_encode_features(chat.runner, values.as_ptr(), 7, out) });
    assert!(status == ETG_ERROR_INVALID_ARGUMENT && error.contains("7") && error.contains("12000"), "{error}");
    let sound = chirp();
    let mut small = [7.0; 5];
    let status = unsafe { etg_runner_preprocess_audio(chat.runner, sound, small.as_mut_ptr(), small.len()) };
    assert!(status == ETG_ERROR_INVALID_ARGUMENT && last_error().contains("12000"), "{}", last_error());
    assert_eq!(small, [7.0; 5]);

    // A model of text alone.
    let reader = Chat::open(&[("text_decoder", "t")], "granite_speech");
    let (status, error) = reader.turn(ask(|list| etg_messages_add_audio(list, sound))).expect_err("no audio");
    assert!(status == ETG_ERROR_UNSUPPORTED && error.contains("takes no audio"), "{error}");
    let (mut takes, mut sizes) = (1, [1; 3]);
    assert_eq!(unsafe { etg_runner_takes_audio(reader.runner, &mut takes) }, ETG_OK);
    let [a, b, c] = &mut sizes;
    assert_eq!(unsafe { etg_runner_audio_geometry(reader.runner, a, b, c) }, ETG_ERROR_UNSUPPORTED);
    assert_eq!((takes, sizes), (0, [0; 3]));
    assert_eq!((etg_audio_free(long), etg_audio_free(few), etg_audio_free(sound)), (0, 0, 0));
}
