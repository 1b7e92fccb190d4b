//! The promise: `include/etgenai.h` is what the library really has.
//!
//! Generated text = committed text; functions in the header = exported symbols = committed list; struct layouts in the
//! header = layouts in Rust; it compiles alone in every C and C++ that people use; every function says its rules.
//!
//! `ETGENAI_BLESS=1 cargo test --test capi_header` writes the header and the list.

#[path = "native/built.rs"]
mod built;
mod native;

use built::{compiler, libraries};
use native::{root, run};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// The files of the C ABI in the order in which the header presents them.
const SOURCES: &[&str] = &[
    "version",
    "status",
    "last_error",
    "handle",
    "log_sink",
    "buffer",
    "image_options",
    "image",
    "pixels",
    "image_processor",
    "audio",
    "embedding",
    "messages",
    "generate_options",
    "runner_options",
    "engine",
    "model_files",
    "event",
    "turn_result",
    "runner",
    "runner_getters",
    "runner_steps",
    "runner_images",
    "runner_audio",
    "tokenizer",
    "detokenizer",
    "compile_options",
    "compile",
    "stage_progress",
    "preparation_options",
    "calibration_options",
    "quantize_options",
    "prepared_model",
    "observations",
    "quantized_model",
    "quantized_eval",
    "pipeline",
];

fn generate() -> String {
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).expect("cbindgen.toml is readable");
    let builder = SOURCES.iter().fold(cbindgen::Builder::new().with_config(config), |builder, name| {
        builder.with_src(root().join(format!("src/capi/{name}.rs")))
    });
    let mut text = Vec::new();
    builder.generate().expect("the C ABI is something cbindgen can express").write(&mut text);
    String::from_utf8(text).expect("the header is UTF-8")
}

fn blessing() -> bool {
    std::env::var_os("ETGENAI_BLESS").is_some_and(|value| value == "1")
}

fn header() -> String {
    fs::read_to_string(root().join("include/etgenai.h")).expect("include/etgenai.h is readable")
}

/// Names of the functions that a header declares as exported.
fn declared_functions(header: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for declaration in header.split("ETG_API").skip(1) {
        let Some((before, _)) = declaration.split_once('(') else { continue };
        let name = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        if name.starts_with("etg_") {
            names.insert(name.to_owned());
        }
    }
    names
}

#[test]
fn committed_header_is_the_generated_one() {
    let (generated, path) = (generate(), root().join("include/etgenai.h"));
    if blessing() {
        fs::create_dir_all(root().join("include")).expect("include/ can be made");
        fs::write(&path, &generated).expect("the header can be written");
        let list = declared_functions(&generated).into_iter().collect::<Vec<_>>().join("\n") + "\n";
        fs::write(root().join("include/etgenai.symbols"), list).expect("the symbol list can be written");
    }
    assert!(
        header() == generated,
        "include/etgenai.h differs from what src/capi generates: look at the change, then run\n\
         ETGENAI_BLESS=1 cargo test --test capi_header"
    );
}

#[test]
fn every_source_file_of_the_abi_is_in_the_header() {
    for entry in fs::read_dir(root().join("src/capi")).expect("src/capi is readable") {
        let path = entry.expect("src/capi is readable").path();
        let source = fs::read_to_string(&path).expect("sources are text");
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("sources have plain names");
        let exports = source.contains("#[unsafe(no_mangle)]") || source.contains("#[repr(C)]\n#[derive(Debug");
        assert_eq!(
            exports,
            SOURCES.contains(&stem),
            "src/capi/{stem}.rs exports functions, or SOURCES names it in vain"
        );
    }
}

#[test]
fn header_list_and_library_have_the_same_functions() {
    let declared = generate();
    let declared = declared_functions(&declared);
    let listed =
        fs::read_to_string(root().join("include/etgenai.symbols")).expect("include/etgenai.symbols is readable");
    let listed = listed.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(declared, listed, "header against include/etgenai.symbols");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(libraries().shared));
    let exported =
        symbols.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(declared, exported, "header against the symbols that the shared library exports");
}

#[test]
fn the_shared_library_says_its_name_and_stays_loaded() {
    let dynamic = run(Command::new("readelf").arg("-dW").arg(libraries().shared));
    let soname = format!("[libetgenai.so.{}]", env!("CARGO_PKG_VERSION_MAJOR"));
    assert!(dynamic.lines().any(|line| line.contains("SONAME") && line.contains(&soname)), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

#[test]
fn header_compiles_alone_in_every_language() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let body = "#include \"etgenai.h\"\n#include \"etgenai.h\"\nint main(void) { return (int)etg_check_abi(); }\n";
    for (cpp, extension, standards) in
        [(false, "c", &["c11", "c17"][..]), (true, "cpp", &["c++11", "c++17", "c++20"][..])]
    {
        let source = folder.path().join(format!("alone.{extension}"));
        fs::write(&source, body).expect("the program can be written");
        for standard in standards {
            run(compiler(cpp, standard).arg("-fsyntax-only").arg(&source));
        }
    }
}

#[test]
fn every_function_says_its_rules() {
    let header = generate();
    for declaration in header.split("/**").skip(1) {
        let Some((comment, code)) = declaration.split_once("*/") else { panic!("a comment without an end") };
        let Some(name) = declared_functions(code).into_iter().next() else { continue };
        for line in ["- Threads: ", "- Owns: ", "- Codes: ", "- After a failure: "] {
            assert!(comment.contains(line), "the comment of {name} has no line {line:?}");
        }
    }
    let documented = header.matches("- Threads: ").count();
    assert_eq!(documented, declared_functions(&header).len(), "functions with and without a comment");
}

#[test]
fn version_macros_equal_the_package() {
    let header = header();
    for (name, value) in [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ] {
        let line = format!("#define ETG_VERSION_{name} {value}\n");
        assert!(header.contains(&line), "the header lacks {line:?}");
    }
}
