//! The C ABI: `extern "C"` functions over the rooms below, one file a handle. Guards and conversions, no logic.
//!
//! `include/etgenai.h` is generated from these files (`tests/capi_header.rs`); their doc comments are the header's.
//! How a call works here:
//!
//! 1. `guard` runs the body, catches panics, records the failure for the calling thread.
//! 2. `handle` turns the handle that C holds into the value. What C holds is a ticket, never an address: a freed,
//!    foreign or mistyped handle is an error code.
//! 3. `input` checks pointers, lengths and UTF-8, and clears out-parameters before anything can fail.
//!
//! Every exported function's comment has the same four lines: threads, ownership, codes, state after a failure.

// A crash here is a crash of the host program: what may panic or cut a number short is not written at all.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::undocumented_unsafe_blocks
)]
// The names are those of the C header.
#![allow(non_camel_case_types)]
// Each comment states what C must guarantee, in the words of C; a Rust "Safety" section would repeat it in the header.
#![allow(clippy::missing_safety_doc)]

pub mod audio;
pub mod buffer;
pub mod calibration_options;
pub mod compile;
pub mod compile_options;
pub mod detokenizer;
pub mod embedding;
pub mod engine;
pub mod event;
pub mod generate_options;
pub mod image;
pub mod image_options;
pub mod image_processor;
pub mod last_error;
pub mod log_sink;
pub mod messages;
pub mod model_files;
pub mod observations;
pub mod pipeline;
pub mod pixels;
pub mod preparation_options;
pub mod prepared_model;
pub mod quantize_options;
pub mod quantized_eval;
pub mod quantized_model;
pub mod runner;
pub mod runner_audio;
pub mod runner_getters;
pub mod runner_images;
pub mod runner_options;
pub mod runner_steps;
pub mod stage_progress;
pub mod status;
pub mod tokenizer;
pub mod turn_result;
pub mod version;

mod guard;
mod handle;
mod input;
mod json_fields;
mod sized_struct;

pub use handle::etg_live_handle_count;
