//! The promise: pictures through the C ABI: made from whatever a program has, shown in whole turns or by single steps with
//! the same tokens, and refused with a code and numbers where they cannot be.

#[path = "native/built.rs"]
mod built;
#[path = "native/folder.rs"]
mod folder;
mod native;
#[path = "native/program.rs"]
mod program;

use built::compiler;
use etgenai::capi::buffer::*;
use etgenai::capi::compile::*;
use etgenai::capi::compile_options::*;
use etgenai::capi::embedding::*;
use etgenai::capi::event::*;
use etgenai::capi::generate_options::*;
use etgenai::capi::image::*;
use etgenai::capi::image_options::*;
use etgenai::capi::image_processor::*;
use etgenai::capi::last_error::*;
use etgenai::capi::messages::*;
use etgenai::capi::pixels::*;
use etgenai::capi::runner::*;
use etgenai::capi::runner_images::*;
use etgenai::capi::runner_options::*;
use etgenai::capi::runner_steps::*;
use etgenai::capi::status::*;
use etgenai::capi::turn_result::etg_turn_result;
use folder::fresh_folder;
use native::root;
use program::run_program;
use std::ffi::{CStr, c_char, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::LazyLock;

/// A tiny model that takes pictures, with room for a few of many tiles.
static MODEL: LazyLock<PathBuf> = LazyLock::new(|| compiled("smolvlm", 512));

fn compiled(family: &str, context: usize) -> PathBuf {
    let model = fresh_folder(&format!("capi pictures {family} {context}")).join("model");
    let (from, to) = (checkpoint(family), model.display().to_string());
    let (from, to) = (text(&from), text(&to));
    let mut options = ptr::null_mut();
    unsafe {
        assert_eq!(etg_compile_options_create(&mut options), ETG_OK);
        assert_eq!(etg_compile_options_set_weights(options, ETG_WEIGHTS_F32), ETG_OK);
        assert_eq!(etg_compile_options_set_max_context(options, context), ETG_OK);
        let status = etg_compile(from.0, from.1, to.0, to.1, options, None, ptr::null_mut());
        assert_eq!(status, ETG_OK, "{}", last_error());
    }
    etg_compile_options_free(options);
    model
}

fn checkpoint(family: &str) -> String {
    root().join("tests/fixtures/tiny").join(family).display().to_string()
}

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

/// The code of a call that makes no handle.
fn refused<T>(make: impl FnOnce(*mut *mut T) -> i32) -> i32 {
    let mut handle = ptr::without_provenance_mut(0x100);
    let status = make(&mut handle);
    assert!(status < 0 && handle.is_null(), "{status}");
    assert!(!last_error().is_empty());
    status
}

fn bytes_of(name: &str) -> Vec<u8> {
    fs::read(root().join("tests/fixtures/media").join(name)).expect("a fixture")
}

fn decode(bytes: &[u8], options: *const etg_image_options, out: *mut *mut etg_image) -> i32 {
    unsafe { etg_image_from_encoded(bytes.as_ptr(), bytes.len(), options, out) }
}

fn picture(name: &str) -> *mut etg_image {
    made(|out| decode(&bytes_of(name), ptr::null(), out))
}

fn rgb_of(image: *const etg_image) -> Vec<u8> {
    let (mut rgb, mut length) = (ptr::null(), 0);
    assert_eq!(unsafe { etg_image_rgb(image, &mut rgb, &mut length) }, ETG_OK, "{}", last_error());
    unsafe { std::slice::from_raw_parts(rgb, length) }.to_vec()
}

fn size_of_image(image: *const etg_image) -> (usize, usize) {
    let mut size = (0, 0);
    assert_eq!(unsafe { etg_image_size(image, &mut size.0, &mut size.1) }, ETG_OK);
    size
}

fn hash_of(image: *const etg_image) -> [u8; 32] {
    let mut hash = [0; ETG_IMAGE_HASH_BYTES];
    assert_eq!(unsafe { etg_image_content_hash(image, hash.as_mut_ptr()) }, ETG_OK);
    hash
}

fn values_of(pixels: *const etg_pixels) -> Vec<f32> {
    let (mut values, mut count) = (ptr::null(), 0);
    assert_eq!(unsafe { etg_pixels_values(pixels, &mut values, &mut count) }, ETG_OK);
    unsafe { std::slice::from_raw_parts(values, count) }.to_vec()
}

/// Rows, their number and their width.
fn rows_of(embedding: *const etg_embedding) -> (Vec<f32>, usize, usize) {
    let (mut rows, mut count, mut width) = (ptr::null(), 0, 0);
    assert_eq!(unsafe { etg_embedding_rows(embedding, &mut rows, &mut count, &mut width) }, ETG_OK);
    (unsafe { std::slice::from_raw_parts(rows, count * width) }.to_vec(), count, width)
}

/// How tiles lie, as a getter tells it.
fn layout_of(get: impl FnOnce(*mut usize, *mut usize, *mut i32) -> i32) -> (usize, usize, i32) {
    let mut layout = (9, 9, 9);
    assert_eq!(get(&mut layout.0, &mut layout.1, &mut layout.2), ETG_OK, "{}", last_error());
    layout
}

fn ids_of(buffer: *mut etg_buffer) -> Vec<u32> {
    let (mut ids, mut count) = (ptr::null(), 0);
    assert_eq!(unsafe { etg_buffer_ids(buffer, &mut ids, &mut count) }, ETG_OK);
    let copy = unsafe { std::slice::from_raw_parts(ids, count) }.to_vec();
    assert_eq!(etg_buffer_free(buffer), ETG_OK);
    copy
}

fn empty_result() -> etg_turn_result {
    // SAFETY: integers, floats and pointers, for which zero is a value.
    let mut result: etg_turn_result = unsafe { std::mem::zeroed() };
    result.struct_size = size_of::<etg_turn_result>() as u32;
    result
}

/// A message of the user: pictures, then text.
fn ask(images: &[*mut etg_image], words: &str) -> *mut etg_messages {
    let messages = made(|out| unsafe { etg_messages_create(out) });
    assert_eq!(etg_messages_add(messages, ETG_ROLE_USER), ETG_OK);
    for &image in images {
        assert_eq!(etg_messages_add_image(messages, image), ETG_OK, "{}", last_error());
    }
    add_text(messages, words);
    messages
}

fn add_text(messages: *mut etg_messages, words: &str) {
    let words = text(words);
    assert_eq!(unsafe { etg_messages_add_text(messages, words.0, words.1) }, ETG_OK);
}

/// Tiles done and to do, as the events of a run tell.
unsafe extern "C" fn watch_tiles(user_data: *mut c_void, event: *const etg_event) -> i32 {
    let (seen, event) = unsafe { (&mut *user_data.cast::<Vec<(u64, u64)>>(), &*event) };
    if event.kind == ETG_EVENT_IMAGES {
        seen.push((event.done, event.total));
    }
    0
}

/// A runner over a model, freed at the end.
struct Chat {
    runner: *mut etg_runner,
    options: *mut etg_generate_options,
}

impl Chat {
    fn open(model: &Path, json: &str) -> Self {
        let folder = model.display().to_string();
        let (path, json) = (text(&folder), text(json));
        let opening = made(|out| unsafe { etg_runner_options_create(out) });
        assert_eq!(unsafe { etg_runner_options_set_json(opening, json.0, json.1) }, ETG_OK, "{}", last_error());
        let runner = made(|out| unsafe { etg_runner_open(path.0, path.1, opening, out) });
        etg_runner_options_free(opening);
        let options = made(|out| unsafe { etg_generate_options_create(out) });
        assert_eq!(etg_generate_options_set_max_new_tokens(options, 8), ETG_OK);
        assert_eq!(etg_generate_options_set_ignore_eos(options, 1), ETG_OK);
        Chat { runner, options }
    }

    /// One turn: its code, its tokens and what is known of it. Takes the messages.
    fn turn(&self, messages: *mut etg_messages, tiles: &mut Vec<(u64, u64)>) -> (i32, Vec<u32>, etg_turn_result) {
        let mut result = empty_result();
        let seen = ptr::from_mut(tiles).cast();
        let status =
            unsafe { etg_runner_generate(self.runner, messages, self.options, Some(watch_tiles), seen, &mut result) };
        etg_messages_free(messages);
        if status < 0 {
            return (status, Vec::new(), result);
        }
        let tokens = unsafe { std::slice::from_raw_parts(result.tokens, result.token_count) }.to_vec();
        (status, tokens, result)
    }

    /// The tokens of a turn that goes well. Takes the messages.
    fn tokens(&self, messages: *mut etg_messages) -> Vec<u32> {
        let (status, tokens, _) = self.turn(messages, &mut Vec::new());
        assert_eq!(status, ETG_STOP_LENGTH, "{}", last_error());
        tokens
    }

    /// Tile size, rows of a tile, width of a row.
    fn geometry(&self) -> (usize, usize, usize) {
        let mut geometry = (0, 0, 0);
        let status =
            unsafe { etg_runner_image_geometry(self.runner, &mut geometry.0, &mut geometry.1, &mut geometry.2) };
        assert_eq!(status, ETG_OK, "{}", last_error());
        geometry
    }

    fn prompt(&self, messages: *const etg_messages) -> Vec<u32> {
        ids_of(made(|out| unsafe { etg_runner_encode_prompt(self.runner, messages, out) }))
    }

    fn encode(&self, image: *const etg_image) -> *mut etg_embedding {
        made(|out| unsafe { etg_runner_encode_image(self.runner, image, out) })
    }

    fn cached(&self) -> (usize, usize) {
        let mut size = (0, 0);
        assert_eq!(unsafe { etg_runner_image_cache_size(self.runner, &mut size.0, &mut size.1) }, ETG_OK);
        size
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        assert_eq!(etg_generate_options_free(self.options), ETG_OK);
        assert_eq!(etg_runner_free(self.runner), ETG_OK);
    }
}

#[test]
fn a_turn_counts_its_pictures_and_a_known_one_is_not_encoded_again() {
    let chat = Chat::open(&MODEL, r#"{"image_tiling": "single"}"#);
    let (a, b) = (picture("rgb_97x61.png"), picture("gray_33x47.png"));
    let mut tiles = Vec::new();
    let (status, _, result) = chat.turn(ask(&[a, b], "What differs?"), &mut tiles);
    assert_eq!(status, ETG_STOP_LENGTH, "{}", last_error());
    assert_eq!((result.images, result.encoded_images), (2, 2));
    assert!(result.image_preprocess_ms > 0.0 && result.image_encode_ms > 0.0);
    assert_eq!(tiles, [(0, 2), (1, 2), (2, 2)]);
    // The first one again, from its file, in a later turn.
    let again = picture("rgb_97x61.png");
    tiles.clear();
    let (status, _, result) = chat.turn(ask(&[again], "And this?"), &mut tiles);
    assert_eq!(status, ETG_STOP_LENGTH, "{}", last_error());
    assert_eq!((result.images, result.encoded_images, tiles.len()), (3, 0, 0));
    let (_, rows, width) = chat.geometry();
    assert_eq!(chat.cached(), (2, 2 * rows * width * size_of::<f32>()));
    for image in [a, b, again] {
        assert_eq!(etg_image_free(image), ETG_OK);
        assert_eq!(etg_image_free(image), ETG_ERROR_INVALID_ARGUMENT, "freed twice");
    }
}

/// Greedy tokens from here on.
fn by_steps(chat: &Chat, count: usize) -> Vec<u32> {
    let mut reply = Vec::new();
    while reply.len() < count {
        let mut id = 0;
        assert_eq!(unsafe { etg_runner_sample(chat.runner, chat.options, &mut id) }, ETG_OK, "{}", last_error());
        reply.push(id);
        if reply.len() < count {
            assert_eq!(etg_runner_decode_one(chat.runner, id), ETG_OK, "{}", last_error());
        }
    }
    reply
}

#[test]
fn single_steps_give_the_tokens_of_a_turn() {
    let whole = Chat::open(&MODEL, "{}");
    let (rows, messages) = (Chat::open(&MODEL, "{}"), Chat::open(&MODEL, "{}"));
    let turns: [(&[&str], &str); 3] =
        [(&["rgb_97x61.png", "rgb_45x130.png"], "What differs?"), (&[], "And then?"), (&["exif6_64x40.jpg"], "This?")];
    let mut shown = Vec::new();
    for (names, words) in turns {
        let pictures = names.iter().map(|name| picture(name)).collect::<Vec<_>>();
        let expected = whole.tokens(ask(&pictures, words));

        // Every step by itself: the prompt's rows with those of all pictures so far.
        let question = made(|out| unsafe { etg_messages_create(out) });
        assert_eq!(etg_messages_add(question, ETG_ROLE_USER), ETG_OK);
        for &picture in &pictures {
            let pixels = made(|out| unsafe { etg_runner_preprocess_image(rows.runner, picture, out) });
            let embedding = made(|out| unsafe { etg_runner_encode_pixels(rows.runner, pixels, out) });
            assert_eq!(etg_messages_add_embedding(question, embedding), ETG_OK);
            shown.push(embedding.cast_const());
            assert_eq!(etg_pixels_free(pixels), ETG_OK);
        }
        add_text(question, words);
        let prompt = rows.prompt(question);
        let mut hidden = vec![0.0; prompt.len() * rows.geometry().2];
        unsafe {
            let (ids, count, values) = (prompt.as_ptr(), prompt.len(), hidden.as_mut_ptr());
            let embedded = etg_runner_embed_tokens(rows.runner, ids, count, values, hidden.len());
            assert_eq!(embedded, ETG_OK, "{}", last_error());
            let merged = etg_runner_merge(rows.runner, ids, count, values, hidden.len(), shown.as_ptr(), shown.len());
            assert_eq!(merged, ETG_OK, "{}", last_error());
            let filled = etg_runner_prefill_prompt_rows(rows.runner, ids, count, values, hidden.len());
            assert_eq!(filled, ETG_OK, "{}", last_error());
        }
        let reply = by_steps(&rows, expected.len());
        assert_eq!(reply, expected, "{words}");
        let committed = unsafe { etg_runner_commit_turn(rows.runner, question, reply.as_ptr(), reply.len()) };
        assert_eq!(committed, ETG_OK, "{}", last_error());
        etg_messages_free(question);

        // The prompt in one step.
        let question = ask(&pictures, words);
        let filled = unsafe { etg_runner_prefill_messages(messages.runner, question) };
        assert_eq!(filled, ETG_OK, "{}", last_error());
        let reply = by_steps(&messages, expected.len());
        assert_eq!(reply, expected, "{words}");
        let committed = unsafe { etg_runner_commit_turn(messages.runner, question, reply.as_ptr(), reply.len()) };
        assert_eq!(committed, ETG_OK, "{}", last_error());
        etg_messages_free(question);
        pictures.iter().for_each(|&picture| assert_eq!(etg_image_free(picture), ETG_OK));
    }
    shown.iter().for_each(|&embedding| assert_eq!(etg_embedding_free(embedding.cast_mut()), ETG_OK));
}

#[test]
fn rows_and_slots_that_differ_are_both_named() {
    let chat = Chat::open(&MODEL, r#"{"image_tiling": "single"}"#);
    let image = picture("rgb_97x61.png");
    let embedding = chat.encode(image).cast_const();
    let question = ask(&[image, image], "What differs?");
    let prompt = chat.prompt(question);
    let (_, rows_per_tile, width) = chat.geometry();
    let mut rows = vec![0.25; prompt.len() * width];
    let mut merge = |embeddings: &[*const etg_embedding], values: usize| unsafe {
        let (ids, count) = (prompt.as_ptr(), prompt.len());
        let place = rows.as_mut_ptr();
        etg_runner_merge(chat.runner, ids, count, place, values, embeddings.as_ptr(), embeddings.len())
    };
    assert_eq!(merge(&[embedding], prompt.len() * width), ETG_ERROR_INVALID_ARGUMENT);
    let (slots, given) = (2 * rows_per_tile, rows_per_tile);
    let words = last_error();
    assert!(words.contains(&format!("{slots} slots")) && words.contains(&format!("{given} rows")), "{words}");
    assert_eq!(merge(&[embedding, embedding], width), ETG_ERROR_INVALID_ARGUMENT);
    assert_eq!(merge(&[embedding, ptr::null()], prompt.len() * width), ETG_ERROR_INVALID_ARGUMENT);
    assert!(last_error().contains("embeddings[1]"), "{}", last_error());
    assert_eq!(merge(&[embedding, embedding], prompt.len() * width), ETG_OK, "{}", last_error());
    assert!(rows.iter().any(|&value| value != 0.25));
    let short = unsafe { etg_runner_embed_tokens(chat.runner, prompt.as_ptr(), 2, rows.as_mut_ptr(), width) };
    assert_eq!(short, ETG_ERROR_INVALID_ARGUMENT);
    assert!(last_error().contains(&(2 * width).to_string()), "{}", last_error());
    etg_messages_free(question);
    etg_embedding_free(embedding.cast_mut());
    etg_image_free(image);
}

#[test]
fn rows_are_taken_out_and_handed_back_in() {
    let chat = Chat::open(&MODEL, "{}");
    let image = picture("rgb_45x130.png");
    let expected = chat.tokens(ask(&[image], "What is it?"));
    let out = chat.encode(image);
    let (rows, count, width) = rows_of(out);
    let layout = layout_of(|rows, cols, overview| unsafe { etg_embedding_layout(out, rows, cols, overview) });
    assert!(layout.0 > 1 && layout.2 == 1, "the checkpoint splits: {layout:?}");

    let create = |width: usize, overview: i32| {
        let (rows, count) = (rows.as_ptr(), rows.len() / width);
        move |out| unsafe { etg_embedding_create(rows, count, width, layout.0, layout.1, overview, out) }
    };
    let back = made(create(width, 1));
    assert_eq!(rows_of(back), (rows.clone(), count, width));
    assert_eq!(refused(create(width, 2)), ETG_ERROR_INVALID_ARGUMENT);
    assert_eq!(refused(create(width, 0)), ETG_ERROR_INVALID_ARGUMENT, "rows do not divide into the tiles");
    let huge = |out| unsafe { etg_embedding_create(rows.as_ptr(), usize::MAX, 2, 0, 0, 1, out) };
    assert_eq!(refused(huge), ETG_ERROR_INVALID_ARGUMENT);
    let endless = |out| unsafe { etg_embedding_create(rows.as_ptr(), count, width, usize::MAX, 0, 1, out) };
    assert_eq!(refused(endless), ETG_ERROR_INVALID_ARGUMENT);

    let other = Chat::open(&MODEL, r#"{"image_cache_bytes": 0}"#);
    let show = |embedding| {
        let messages = made(|out| unsafe { etg_messages_create(out) });
        assert_eq!(etg_messages_add_embedding(messages, embedding), ETG_ERROR_INVALID_STATE, "no message yet");
        assert_eq!(etg_messages_add(messages, ETG_ROLE_USER), ETG_OK);
        assert_eq!(etg_messages_add_embedding(messages, embedding), ETG_OK);
        add_text(messages, "What is it?");
        messages
    };
    let narrow = made(create(width / 2, 1));
    let (status, _, _) = other.turn(show(narrow), &mut Vec::new());
    assert_eq!(status, ETG_ERROR_INVALID_ARGUMENT);
    let words = last_error();
    assert!(words.contains(&(width / 2).to_string()) && words.contains(&width.to_string()), "{words}");
    let (_, tokens, result) = other.turn(show(back), &mut Vec::new());
    assert_eq!((tokens, result.encoded_images), (expected, 0));
    [out, back, narrow].into_iter().for_each(|embedding| assert_eq!(etg_embedding_free(embedding), ETG_OK));
    etg_image_free(image);
}

#[test]
fn every_way_in_gives_the_same_picture() {
    let image = picture("rgb_97x61.png");
    let ((width, height), rgb) = (size_of_image(image), rgb_of(image));
    assert_eq!((width, height, rgb.len()), (97, 61, 97 * 61 * 3));
    let gapped = |pixel: &dyn Fn(&[u8]) -> Vec<u8>, stride: usize| {
        let mut data = Vec::new();
        for row in rgb.chunks(width * 3) {
            data.resize(data.len().next_multiple_of(stride), 0xee);
            row.chunks(3).for_each(|rgb| data.extend(pixel(rgb)));
        }
        data
    };
    let rgba = |rgb: &[u8]| vec![rgb[0], rgb[1], rgb[2], 255];
    let bgra = |rgb: &[u8]| vec![rgb[2], rgb[1], rgb[0], 255];
    for (format, stride, data) in [
        (ETG_PIXELS_RGB8, width * 3, rgb.clone()),
        (ETG_PIXELS_RGBA8, 400, gapped(&rgba, 400)),
        (ETG_PIXELS_BGRA8, 512, gapped(&bgra, 512)),
    ] {
        let (bytes, length) = (data.as_ptr(), data.len());
        let copy = made(|out| unsafe {
            etg_image_from_pixels(format, width, height, stride, bytes, length, ptr::null(), out)
        });
        assert_eq!(hash_of(copy), hash_of(image), "format {format}");
        etg_image_free(copy);
        let cut =
            |out| unsafe { etg_image_from_pixels(format, width, height, stride, bytes, length - 1, ptr::null(), out) };
        assert_eq!(refused(cut), ETG_ERROR_INVALID_ARGUMENT);
        let unknown = |out| unsafe { etg_image_from_pixels(4, width, height, stride, bytes, length, ptr::null(), out) };
        assert_eq!(refused(unknown), ETG_ERROR_INVALID_ARGUMENT);
    }
    let path = root().join("tests/fixtures/media/rgb_97x61.png").display().to_string();
    let path = text(&path);
    let opened = made(|out| unsafe { etg_image_from_file(path.0, path.1, ptr::null(), out) });
    assert_eq!(hash_of(opened), hash_of(image));
    let missing = text("no such picture.png");
    let open = |out| unsafe { etg_image_from_file(missing.0, missing.1, ptr::null(), out) };
    assert_eq!(refused(open), ETG_ERROR_NOT_FOUND);
    assert!(last_error().contains("no such picture.png"), "{}", last_error());
    etg_image_free(opened);
    etg_image_free(image);
}

#[test]
fn a_camera_frame_is_a_picture() {
    // Two by two pixels of one colour, chroma interleaved as a phone gives it.
    let (y, uv) = ([200_u8; 4], [90_u8, 160]);
    // SAFETY: integers and pointers, for which zero is a value.
    let mut frame: etg_yuv420 = unsafe { std::mem::zeroed() };
    frame.struct_size = size_of::<etg_yuv420>() as u32;
    (frame.width, frame.height, frame.y_row_stride) = (2, 2, 2);
    (frame.y, frame.y_length) = (y.as_ptr(), 4);
    (frame.u, frame.u_length) = (uv.as_ptr(), 2);
    (frame.v, frame.v_length) = (uv[1..].as_ptr(), 1);
    (frame.uv_row_stride, frame.uv_pixel_stride) = (2, 2);
    let image = made(|out| unsafe { etg_image_from_yuv420(&frame, ptr::null(), out) });
    // BT.601, full range: R = Y + 1.402 (V - 128), G = Y - 0.344 (U - 128) - 0.714 (V - 128), B = Y + 1.772 (U - 128).
    assert_eq!(rgb_of(image), [245, 190, 133].repeat(4));
    etg_image_free(image);

    let frame_is_refused = |change: fn(&mut etg_yuv420)| {
        let mut changed = frame;
        change(&mut changed);
        refused(|out| unsafe { etg_image_from_yuv420(&changed, ptr::null(), out) })
    };
    let changes: [fn(&mut etg_yuv420); 6] = [
        |frame| frame.struct_size = 0,
        |frame| frame.range = 2,
        |frame| frame.width = 0,
        |frame| frame.y_length = 3,
        |frame| frame.uv_pixel_stride = 3,
        |frame| frame.u = ptr::null(),
    ];
    for change in changes {
        assert_eq!(frame_is_refused(change), ETG_ERROR_INVALID_ARGUMENT, "{}", last_error());
    }
}

#[test]
fn files_that_are_no_good_say_why_and_the_next_one_works() {
    let good = bytes_of("rgb_97x61.png");
    let mut claims_too_much = good.clone();
    claims_too_much[16..20].copy_from_slice(&60_000_u32.to_be_bytes());
    claims_too_much[20..24].copy_from_slice(&60_000_u32.to_be_bytes());
    for (bytes, code, words) in [
        (&good[..0], ETG_ERROR_FORMAT, "0 bytes"),
        (&good[..good.len() / 2], ETG_ERROR_FORMAT, "PNG"),
        (&good[..20], ETG_ERROR_FORMAT, "PNG"),
        (&b"no picture at all"[..], ETG_ERROR_UNSUPPORTED, "JPEG, PNG"),
        (&claims_too_much[..], ETG_ERROR_INVALID_ARGUMENT, "60000x60000"),
    ] {
        assert_eq!(refused(|out| decode(bytes, ptr::null(), out)), code, "{words}: {}", last_error());
        assert!(last_error().contains(words), "{}", last_error());
    }
    let options = made(|out| unsafe { etg_image_options_create(out) });
    assert_eq!(etg_image_options_set_max_pixels(options, 100), ETG_OK);
    assert_eq!(refused(|out| decode(&good, options, out)), ETG_ERROR_INVALID_ARGUMENT);
    assert!(last_error().contains("100"), "{}", last_error());
    assert_eq!(etg_image_options_set_max_pixels(options, 0), ETG_OK, "the default again");
    assert_eq!(etg_image_options_set_max_bytes(options, 10), ETG_OK);
    assert_eq!(refused(|out| decode(&good, options, out)), ETG_ERROR_INVALID_ARGUMENT);
    assert_eq!(etg_image_options_set_max_bytes(options, 0), ETG_OK);
    let image = made(|out| decode(&good, options, out));
    assert_eq!((etg_image_free(image), etg_image_options_free(options)), (ETG_OK, ETG_OK));
}

#[test]
fn transparency_is_as_the_options_say() {
    // One pixel, wholly transparent.
    let seen = |json: &str| {
        let options = made(|out| unsafe { etg_image_options_create(out) });
        let json = text(json);
        assert_eq!(unsafe { etg_image_options_set_json(options, json.0, json.1) }, ETG_OK, "{}", last_error());
        let image = made(|out| unsafe {
            etg_image_from_pixels(ETG_PIXELS_RGBA8, 1, 1, 4, [10_u8, 20, 30, 0].as_ptr(), 4, options, out)
        });
        let rgb = rgb_of(image);
        etg_image_free(image);
        etg_image_options_free(options);
        rgb
    };
    assert_eq!(seen("{}"), [255, 255, 255]);
    assert_eq!(seen(r#"{"alpha": [1, 2, 3]}"#), [1, 2, 3]);
    assert_eq!(seen(r#"{"alpha": "ignore"}"#), [10, 20, 30]);
    assert_eq!(seen(r#"{"alpha": null, "max_pixels": null, "max_bytes": 0}"#), [255, 255, 255]);
}

#[test]
fn options_name_what_is_wrong() {
    type SetJson<T> = unsafe extern "C" fn(*mut T, *const c_char, usize) -> i32;
    fn check<T>(options: *mut T, set: SetJson<T>, cases: &[(&str, &str)]) {
        for (json, words) in cases {
            let json = text(json);
            let status = unsafe { set(options, json.0, json.1) };
            match *words {
                "" => assert_eq!(status, ETG_OK, "{}", last_error()),
                words => {
                    assert_eq!(status, ETG_ERROR_INVALID_ARGUMENT);
                    assert!(last_error().contains(words), "{}", last_error());
                }
            }
        }
    }
    let pictures = made(|out| unsafe { etg_image_options_create(out) });
    check(
        pictures,
        etg_image_options_set_json,
        &[
            (r#"{"alpha": [1, 2]}"#, "\"alpha\" must be \"ignore\" or a colour"),
            (r#"{"alpha": [1, 2, 256]}"#, "\"alpha\""),
            (r#"{"alpha": "white"}"#, "\"alpha\""),
            (r#"{"max_pixels": -1}"#, "\"max_pixels\""),
            (r#"{"pixels": 1}"#, "max_pixels, max_bytes, alpha"),
        ],
    );
    let runner = made(|out| unsafe { etg_runner_options_create(out) });
    check(
        runner,
        etg_runner_options_set_json,
        &[
            (r#"{"image_tiling": "whole", "image_cache_bytes": 0}"#, ""),
            (r#"{"image_tiling": null, "image_cache_bytes": null}"#, ""),
            (r#"{"image_tiling": "tiles"}"#, "one of checkpoint, split, whole, single"),
            (r#"{"image_cache_bytes": 1.5}"#, "\"image_cache_bytes\""),
        ],
    );
    assert_eq!(etg_runner_options_set_image_tiling(runner, ETG_TILING_SPLIT), ETG_OK);
    assert_eq!(etg_runner_options_set_image_tiling(runner, 4), ETG_ERROR_INVALID_ARGUMENT);
    assert_eq!(etg_runner_options_set_image_cache_bytes(runner, 1 << 20), ETG_OK);
    let compile = made(|out| unsafe { etg_compile_options_create(out) });
    check(
        compile,
        etg_compile_options_set_json,
        &[
            (r#"{"vision_weights": "w8", "embedding_weights": "f16", "position_rule": "upstream_shifted"}"#, ""),
            (r#"{"vision_weights": null, "embedding_weights": null, "position_rule": null}"#, ""),
            (r#"{"vision_weights": "w2"}"#, "\"vision_weights\" must be one of"),
            (r#"{"position_rule": "shifted"}"#, "identity, upstream_shifted"),
        ],
    );
    assert_eq!(etg_compile_options_set_vision_weights(compile, ETG_WEIGHTS_AUTO), ETG_OK);
    assert_eq!(etg_compile_options_set_vision_weights(compile, 5), ETG_ERROR_INVALID_ARGUMENT);
    assert_eq!(etg_compile_options_set_embedding_weights(compile, -2), ETG_ERROR_INVALID_ARGUMENT);
    assert_eq!(etg_compile_options_set_position_rule(compile, ETG_POSITIONS_UPSTREAM_SHIFTED), ETG_OK);
    assert_eq!(etg_compile_options_set_position_rule(compile, 2), ETG_ERROR_INVALID_ARGUMENT);
    etg_image_options_free(pictures);
    etg_runner_options_free(runner);
    etg_compile_options_free(compile);
}

#[test]
fn preprocessing_by_itself_is_that_of_the_runner() {
    let folder = MODEL.display().to_string();
    let folder = text(&folder);
    let opened = made(|out| unsafe { etg_image_processor_open(folder.0, folder.1, out) });
    let file = fs::read_to_string(root().join("tests/fixtures/tiny/smolvlm/preprocessor_config.json")).expect("a file");
    let (settings, none) = (text(&file), text(""));
    let create = |family, json: (*const c_char, usize), side| {
        move |out| unsafe { etg_image_processor_create(family, json.0, json.1, none.0, none.1, side, out) }
    };
    let created = made(create(ETG_IMAGE_FAMILY_SMOLVLM, settings, 64));
    let image = picture("rgb_97x61.png");
    for (tiling, name) in [(ETG_TILING_SPLIT, "split"), (ETG_TILING_WHOLE, "whole"), (ETG_TILING_SINGLE, "single")] {
        let chat = Chat::open(&MODEL, &format!(r#"{{"image_tiling": "{name}"}}"#));
        let expected = made(|out| unsafe { etg_runner_preprocess_image(chat.runner, image, out) });
        for processor in [opened, created] {
            let pixels = made(|out| unsafe { etg_image_processor_process(processor, image, tiling, out) });
            assert_eq!(values_of(pixels), values_of(expected), "{name}");
            let layout = layout_of(|rows, cols, overview| unsafe { etg_pixels_layout(pixels, rows, cols, overview) });
            let planned = layout_of(|rows, cols, overview| unsafe {
                etg_image_processor_layout(processor, 97, 61, tiling, rows, cols, overview)
            });
            assert_eq!(planned, layout, "{name}");
            let mut shape = [0; 3];
            let [tiles, height, width] = &mut shape;
            assert_eq!(unsafe { etg_pixels_shape(pixels, tiles, height, width) }, ETG_OK);
            assert_eq!(shape, [layout.0 * layout.1 + layout.2 as usize, 64, 64], "{name}");
            assert_eq!(etg_pixels_free(pixels), ETG_OK);
        }
        etg_pixels_free(expected);
    }
    let mut side = 0;
    assert_eq!(unsafe { etg_image_processor_tile_size(created, &mut side) }, ETG_OK);
    assert_eq!(side, 64);
    let tiling_four = |out| unsafe { etg_image_processor_process(created, image, 4, out) };
    assert_eq!(refused(tiling_four), ETG_ERROR_INVALID_ARGUMENT);
    assert_eq!(refused(create(2, settings, 64)), ETG_ERROR_INVALID_ARGUMENT);
    assert_eq!(refused(create(ETG_IMAGE_FAMILY_INTERNVL, none, 0)), ETG_ERROR_INVALID_ARGUMENT);
    assert_eq!(refused(create(ETG_IMAGE_FAMILY_SMOLVLM, text("{"), 64)), ETG_ERROR_FORMAT);
    assert!(last_error().contains("preprocessor_config.json"), "{}", last_error());
    assert_eq!(refused(create(ETG_IMAGE_FAMILY_SMOLVLM, text(r#"{"do_resize": false}"#), 64)), ETG_ERROR_FORMAT);
    assert!(last_error().contains("do_resize"), "{}", last_error());
    etg_image_free(image);
    etg_image_processor_free(opened);
    etg_image_processor_free(created);
}

#[test]
fn a_ready_tensor_is_passed_on_as_it_is() {
    let chat = Chat::open(&MODEL, "{}");
    let image = picture("rgb_45x130.png");
    let pixels = made(|out| unsafe { etg_runner_preprocess_image(chat.runner, image, out) });
    let values = values_of(pixels);
    let (rows, cols, overview) =
        layout_of(|rows, cols, overview| unsafe { etg_pixels_layout(pixels, rows, cols, overview) });
    let tensor =
        made(|out| unsafe { etg_image_from_tiles(values.as_ptr(), values.len(), rows, cols, overview, 64, 64, out) });
    let again = made(|out| unsafe { etg_runner_preprocess_image(chat.runner, tensor, out) });
    assert_eq!(values_of(again), values);
    let (direct, through) = (chat.encode(image), chat.encode(tensor));
    assert_eq!(rows_of(direct), rows_of(through));
    assert_eq!(size_of_image(tensor), (64, 64));
    let (mut rgb, mut length) = (ptr::null(), 0);
    assert_eq!(unsafe { etg_image_rgb(tensor, &mut rgb, &mut length) }, ETG_ERROR_INVALID_STATE);

    let from_tensor = |count: usize, tiles: usize, side: usize| {
        let values = values.as_ptr();
        move |out| unsafe { etg_image_from_tensor(values, count, tiles, side, side, out) }
    };
    let one = made(from_tensor(3 * 64 * 64, 1, 64));
    assert_eq!(refused(from_tensor(3 * 64 * 64, 2, 64)), ETG_ERROR_INVALID_ARGUMENT);
    assert_eq!(refused(from_tensor(0, 0, 64)), ETG_ERROR_INVALID_ARGUMENT);
    let small = made(from_tensor(3 * 8 * 8, 1, 8));
    let preprocess = |out| unsafe { etg_runner_preprocess_image(chat.runner, small, out) };
    assert_eq!(refused(preprocess), ETG_ERROR_INVALID_ARGUMENT);
    assert!(last_error().contains("8x8") && last_error().contains("64"), "{}", last_error());
    [image, tensor, one, small].into_iter().for_each(|image| assert_eq!(etg_image_free(image), ETG_OK));
    [pixels, again].into_iter().for_each(|pixels| assert_eq!(etg_pixels_free(pixels), ETG_OK));
    [direct, through].into_iter().for_each(|embedding| assert_eq!(etg_embedding_free(embedding), ETG_OK));
}

#[test]
fn the_placeholder_rule_is_a_function_of_its_own() {
    let chat = Chat::open(&MODEL, r#"{"template": "upstream:smolvlm"}"#);
    let images = [picture("rgb_97x61.png"), picture("gray_33x47.png")].map(|image| image.cast_const());
    let rows_per_tile = chat.geometry().1;
    let placeholder = ask(&[images[0].cast_mut()], "x");
    let prompt = chat.prompt(placeholder);
    etg_messages_free(placeholder);
    // The most frequent token is the picture's.
    let token = *prompt.iter().max_by_key(|&&id| prompt.iter().filter(|&&other| other == id).count()).expect("tokens");
    let slots = |messages: *const etg_messages| chat.prompt(messages).iter().filter(|&&id| id == token).count();

    let plain = ask(&[], "<image> and <image>");
    assert_eq!(slots(plain), 0, "plain text is never looked at");
    etg_messages_free(plain);

    let messages = made(|out| unsafe { etg_messages_create(out) });
    let add = |prompt: &str, count: usize| {
        let prompt = text(prompt);
        unsafe { etg_messages_add_placeholder_prompt(messages, prompt.0, prompt.1, images.as_ptr(), count) }
    };
    assert_eq!(add("<image> <image>", 1), ETG_ERROR_INVALID_ARGUMENT);
    assert!(last_error().contains("prompts: 2") && last_error().contains("given: 1"), "{}", last_error());
    let mut count = 9;
    assert_eq!(unsafe { etg_messages_count(messages, &mut count) }, ETG_OK);
    assert_eq!(count, 0, "unchanged");
    assert_eq!(add("<image>and <image>", 2), ETG_OK, "{}", last_error());
    assert_eq!(slots(messages), 2 * rows_per_tile);
    etg_messages_free(messages);

    // A whole conversation at once.
    let prompts = ["<image>first", "no picture", "and <image>?"].map(text);
    let (starts, lengths) = (prompts.map(|prompt| prompt.0), prompts.map(|prompt| prompt.1));
    let split = |image_count: usize, turns: &mut [*mut etg_messages; 3]| unsafe {
        let (starts, lengths, turns) = (starts.as_ptr(), lengths.as_ptr(), turns.as_mut_ptr());
        etg_messages_from_placeholder_prompts(starts, lengths, 3, images.as_ptr(), image_count, turns)
    };
    let mut turns = [ptr::without_provenance_mut(0x100); 3];
    assert_eq!(split(1, &mut turns), ETG_ERROR_INVALID_ARGUMENT);
    assert_eq!(turns, [ptr::null_mut(); 3]);
    assert_eq!(split(2, &mut turns), ETG_OK, "{}", last_error());
    for turn in turns {
        assert_eq!(chat.tokens(turn).len(), 8);
    }
    images.into_iter().for_each(|image| assert_eq!(etg_image_free(image.cast_mut()), ETG_OK));
}

#[test]
fn a_picture_that_does_not_fit_says_how_much_and_the_next_turn_works() {
    let small = compiled("smolvlm", 64);
    let chat = Chat::open(&small, r#"{"image_tiling": "split"}"#);
    let image = picture("rgb_97x61.png");
    let (status, _, _) = chat.turn(ask(&[image], "What is it?"), &mut Vec::new());
    assert_eq!(status, ETG_ERROR_CONTEXT_FULL);
    assert!(last_error().contains("64") && last_error().contains("52 tokens"), "{}", last_error());
    assert_eq!(chat.cached(), (0, 0), "nothing was encoded");
    assert_eq!(chat.tokens(ask(&[], "Hello")).len(), 8);
    etg_image_free(image);
}

#[test]
fn a_text_model_takes_no_pictures_and_says_so() {
    let model = compiled("smollm2", 64);
    let chat = Chat::open(&model, "{}");
    let mut takes = 9;
    assert_eq!(unsafe { etg_runner_takes_images(chat.runner, &mut takes) }, ETG_OK);
    assert_eq!(takes, 0);
    let image = picture("rgb_97x61.png");
    assert_eq!(chat.turn(ask(&[image], "What is it?"), &mut Vec::new()).0, ETG_ERROR_UNSUPPORTED);
    assert!(last_error().contains("no vision encoder"), "{}", last_error());
    let encode = |out| unsafe { etg_runner_encode_image(chat.runner, image, out) };
    assert_eq!(refused(encode), ETG_ERROR_UNSUPPORTED);
    let path = model.display().to_string();
    let path = text(&path);
    assert_eq!(refused(|out| unsafe { etg_image_processor_open(path.0, path.1, out) }), ETG_ERROR_UNSUPPORTED);
    let (mut a, mut b, mut c) = (9, 9, 9);
    assert_eq!(unsafe { etg_runner_image_geometry(chat.runner, &mut a, &mut b, &mut c) }, ETG_ERROR_UNSUPPORTED);
    assert_eq!((a, b, c), (0, 0, 0));
    assert_eq!(chat.tokens(ask(&[], "Hello")).len(), 8);
    etg_image_free(image);
}

#[test]
fn one_component_is_compiled_again_alone() {
    let model = compiled("smolvlm", 128);
    let manifest = || -> serde_json::Value {
        serde_json::from_slice(&fs::read(model.join("manifest.json")).expect("a manifest")).expect("JSON")
    };
    let before = manifest();
    let options = made(|out| unsafe { etg_compile_options_create(out) });
    assert_eq!(etg_compile_options_set_weights(options, ETG_WEIGHTS_F32), ETG_OK);
    assert_eq!(etg_compile_options_set_vision_weights(options, ETG_WEIGHTS_W8), ETG_OK);
    let recompile = |component: &str| {
        let (from, folder) = (checkpoint("smolvlm"), model.display().to_string());
        let (from, folder, component) = (text(&from), text(&folder), text(component));
        unsafe {
            etg_recompile_component(
                from.0,
                from.1,
                folder.0,
                folder.1,
                component.0,
                component.1,
                options,
                None,
                ptr::null_mut(),
            )
        }
    };
    assert_eq!(recompile("ear"), ETG_ERROR_NOT_FOUND);
    assert!(last_error().contains("ear"), "{}", last_error());
    assert_eq!(manifest(), before);
    assert_eq!(recompile("vision_encoder"), ETG_OK, "{}", last_error());
    let after = manifest();
    let hash = |manifest: &serde_json::Value, component: &str| manifest["components"][component]["sha256"].clone();
    assert_ne!(hash(&after, "vision_encoder"), hash(&before, "vision_encoder"));
    for component in ["tok_embedding", "text_decoder"] {
        assert_eq!(hash(&after, component), hash(&before, component), "{component}");
    }
    let chat = Chat::open(&model, r#"{"image_tiling": "single"}"#);
    let image = picture("rgb_97x61.png");
    assert_eq!(chat.tokens(ask(&[image], "What is it?")).len(), 8);
    etg_image_free(image);
    etg_compile_options_free(options);
}

#[test]
fn the_cpp_classes_do_the_same() {
    let model = MODEL.display().to_string();
    let picture = root().join("tests/fixtures/media/rgb_97x61.png").display().to_string();
    run_program(|| compiler(true, "c++17"), &root().join("tests/c/cpp_pictures.cpp"), &[&model, &picture]);
    let without_exceptions = || {
        let mut command = compiler(true, "c++20");
        command.args(["-fno-exceptions"]);
        command
    };
    run_program(without_exceptions, &root().join("tests/c/cpp_pictures_no_exceptions.cpp"), &[&model, &picture]);
}
