//! The promise: the public structs have the same layout in `include/etgenai.h`, as a C compiler sees it, and in Rust.
//!
//! One test in a program of its own, because it sets an environment variable.

mod native;

use etgenai::capi::compile::etg_progress;
use etgenai::capi::event::etg_event;
use etgenai::capi::image::etg_yuv420;
use etgenai::capi::quantized_eval::etg_perplexity;
use etgenai::capi::stage_progress::etg_stage_progress;
use etgenai::capi::turn_result::etg_turn_result;
use etgenai::engine::plugin::abi::*;
use native::{root, run};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::process::Command;

/// "Size of S" and "Offset of field: S::f" as bindgen's own layout checks state them.
fn layouts_in_header() -> BTreeMap<String, usize> {
    let wheel = root().join(".deps/libclang/clang/native");
    if std::env::var_os("LIBCLANG_PATH").is_none() && wheel.is_dir() {
        // SAFETY: the only test of this program: no other thread reads the environment.
        unsafe { std::env::set_var("LIBCLANG_PATH", wheel) };
    }
    // libclang alone has no <stddef.h>: the system compiler's is used.
    let builtin = run(Command::new("cc").arg("-print-file-name=include"));
    let generate = || {
        bindgen::Builder::default()
            .header(root().join("include/etgenai.h").display().to_string())
            .clang_args(["-isystem", builtin.trim()])
            .allowlist_type("etg_.*")
            .generate()
    };
    let bindings = std::panic::catch_unwind(generate)
        .unwrap_or_else(|_| panic!("no libclang on this machine: .ci/fetch-tools gets one"))
        .expect("libclang reads the header");
    let mut layouts = BTreeMap::new();
    for piece in bindings.to_string().split("[\"").skip(1) {
        // Size of etg_event"][::std::mem::size_of::<etg_event>() - 48usize];
        let Some((name, check)) = piece.split_once("\"]") else { continue };
        let check = check.split(';').next().unwrap_or_default();
        let number = check.rsplit("- ").next().and_then(|end| end.trim().strip_suffix("usize]"));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            layouts.insert(name.to_owned(), number);
        }
    }
    layouts
}

macro_rules! layout {
    ($layouts:ident, $name:ident: $($field:ident),*) => {
        $layouts.insert(format!("Size of {}", stringify!($name)), size_of::<$name>());
        $layouts.insert(format!("Alignment of {}", stringify!($name)), align_of::<$name>());
        $($layouts.insert(
            format!("Offset of field: {}::{}", stringify!($name), stringify!($field)),
            offset_of!($name, $field),
        );)*
    };
}

#[test]
fn c_and_rust_agree_on_every_struct() {
    let mut in_rust = BTreeMap::new();
    layout!(in_rust, etg_event: struct_size, kind, text, text_length, token, status, done, total);
    layout!(in_rust, etg_progress: struct_size, stage, item, item_length, done, total);
    layout!(in_rust, etg_stage_progress:
        struct_size, reserved, stage, component, phase, layer, done, total);
    layout!(in_rust, etg_perplexity:
        struct_size, reserved, perplexity, mean_nll, scored_tokens, windows, engine_ms);
    layout!(in_rust, etg_turn_result:
        struct_size, status, text, text_length, tokens, token_count, seed, prompt_tokens, reused_tokens,
        prefilled_tokens, generated_tokens, encode_ms, prefill_ms, first_token_ms, decode_ms, sampling_ms, engine_ms,
        total_ms, prefill_tokens_per_second, decode_tokens_per_second, has_seed, reserved, images, encoded_images,
        image_preprocess_ms, image_encode_ms);
    layout!(in_rust, etg_yuv420:
        struct_size, range, width, height, y, y_length, y_row_stride, u, u_length, v, v_length, uv_row_stride,
        uv_pixel_stride);
    layout!(in_rust, etg_engine_error: struct_size, message, capacity);
    layout!(in_rust, etg_engine_source:
        struct_size, component, component_length, path, path_length, bytes, bytes_length, shared_memory);
    layout!(in_rust, etg_engine_tensor_info: name, name_length, dtype, rank, dims);
    layout!(in_rust, etg_engine_graph: name, name_length, inputs, input_count, outputs, output_count);
    layout!(in_rust, etg_engine_value: kind, integer, real, text, text_length);
    layout!(in_rust, etg_engine_constant: name, name_length, values, value_count);
    layout!(in_rust, etg_engine_component:
        struct_size, handle, graphs, graph_count, constants, constant_count, weight_bytes, description,
        description_length);
    layout!(in_rust, etg_engine_tensor: data, bytes);
    layout!(in_rust, etg_engine_call:
        struct_size, graph, inputs, input_count, outputs, output_count, valid_rows, first_logits_row, end_logits_row);
    layout!(in_rust, etg_engine_functions:
        struct_size, abi_version, user_data, name, name_length, load, execute, close, allocate, release, destroy);
    layout!(in_rust, etg_engine_host: struct_size, abi_version, user_data, log);
    let mut in_c = layouts_in_header();
    // Opaque handles have no layout; bindgen gives their placeholder one.
    in_c.retain(|name, _| {
        let known = [
            "etg_event",
            "etg_progress",
            "etg_stage_progress",
            "etg_perplexity",
            "etg_turn_result",
            "etg_yuv420",
            "etg_engine_",
        ];
        let field_of = |kind: &&str| name.contains(&format!("{kind}::")) || name.contains("etg_engine_");
        known.iter().any(|kind| name.strip_suffix(kind).is_some() || field_of(kind))
    });
    assert_eq!(in_rust, in_c);
}
