//! The promise: what `cmake --install` puts below a prefix is all that a program needs, wherever the prefix is moved to.
//!
//! One installation (in a folder with a space in its name, then moved), used by `find_package`, shared and static, and
//! by pkg-config; the examples are built from copies of their own folders and talk to a tiny compiled model.

#[path = "native/folder.rs"]
mod folder;
mod native;

use folder::fresh_folder;
use native::{root, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};

/// Where things are, all in one folder.
struct Installed {
    folder: PathBuf,
    cmake: PathBuf,
    building: Mutex<()>,
}

static INSTALLED: LazyLock<Installed> = LazyLock::new(install);

impl Installed {
    fn prefix(&self) -> PathBuf {
        self.folder.join("moved here")
    }

    fn model(&self) -> PathBuf {
        self.folder.join("tiny model")
    }

    /// Build an example from a copy of its folder alone (once); gives the program.
    fn build(&self, example: &str, target: &str, fixed: bool) -> PathBuf {
        let name = format!("{example} {}", if fixed { "static" } else { "shared" });
        let _one_at_a_time = self.building.lock();
        let (source, build) = (self.folder.join(&name), self.folder.join(format!("{name} build")));
        let program = build.join(target);
        if program.is_file() {
            return program;
        }
        copy_folder(&root().join("examples-c").join(example), &source);
        let mut configure = Command::new(&self.cmake);
        configure.arg("-S").arg(&source).arg("-B").arg(&build);
        // ExecuTorch is for the one example that brings its own; the others do not ask for it.
        let executorch = root().join(".deps/executorch/executorch");
        configure.arg(format!("-DCMAKE_PREFIX_PATH={};{}", self.prefix().display(), executorch.display()));
        configure.arg(format!("-DETGENAI_STATIC={}", if fixed { "ON" } else { "OFF" }));
        configure.args([
            "-DCMAKE_C_FLAGS=-Wall -Wextra -Wpedantic -Werror",
            "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Werror",
        ]);
        run(&mut configure);
        run(Command::new(&self.cmake).arg("--build").arg(&build));
        program
    }
}

/// CMake 3.28 or newer: the wheel's or the system's.
fn find_cmake() -> PathBuf {
    let candidates = [root().join(".deps/cmake/cmake/data/bin/cmake"), PathBuf::from("cmake")];
    let new_enough = |cmake: &PathBuf| {
        let Ok(output) = Command::new(cmake).arg("--version").output() else { return false };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut numbers =
            text.split_whitespace().nth(2).unwrap_or_default().split('.').map_while(|n| n.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(3), Some(28))
    };
    candidates.into_iter().find(new_enough).expect("no CMake 3.28 or newer on this machine: .ci/fetch-tools gets one")
}

/// Cargo's target folder and profile of this very test, so that dependencies are not built twice.
fn cargo_build() -> (PathBuf, String) {
    let program = std::env::current_exe().expect("the path of this test");
    let profile = program.ancestors().nth(2).expect("target/profile/deps/test");
    let name = profile.file_name().expect("a profile has a name").to_string_lossy().into_owned();
    let target = profile.parent().expect("target/profile").to_path_buf();
    (target, if name == "debug" { "dev".into() } else { name })
}

fn install() -> Installed {
    let (folder, cmake) = (fresh_folder("a package"), find_cmake());
    let installed = Installed { folder, cmake, building: Mutex::default() };
    let (build, prefix) = (installed.folder.join("the build"), installed.folder.join("first prefix"));
    let (target, profile) = cargo_build();
    let mut configure = Command::new(&installed.cmake);
    configure.arg("-S").arg(root().join("cmake")).arg("-B").arg(&build);
    configure.arg(format!("-DETGENAI_CARGO_TARGET_DIR={}", target.display()));
    configure.arg(format!("-DETGENAI_PROFILE={profile}"));
    run(&mut configure);
    run(Command::new(&installed.cmake).arg("--build").arg(&build));
    run(Command::new(&installed.cmake).arg("--install").arg(&build).arg("--prefix").arg(&prefix));
    // Nothing of the build may be needed any more, nor the place it was installed to.
    fs::remove_dir_all(&build).expect("the build folder can go");
    fs::rename(&prefix, installed.prefix()).expect("the prefix can be moved");
    compile_model("tests/fixtures/tiny/smollm2", &installed.model());
    installed
}

fn compile_model(checkpoint: &str, out: &Path) {
    use etgenai::checkpoint::Checkpoint;
    use etgenai::compile::{CompileOptions, Flow, compile_checkpoint};
    use etgenai::formats::WeightFormat;
    let checkpoint = Checkpoint::open(&root().join(checkpoint)).expect("the checkpoint opens");
    compile_checkpoint(&checkpoint, out, &CompileOptions::new(WeightFormat::F32), &mut |_| Flow::Continue)
        .expect("the checkpoint compiles");
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).expect("the copy can be made");
    for entry in fs::read_dir(from).expect("the example is there") {
        let path = entry.expect("the example is readable").path();
        fs::copy(&path, to.join(path.file_name().expect("files have names"))).expect("the copy can be made");
    }
}

/// Two turns and the ids of both replies.
fn conversation(program: &Path, options: &[&str]) -> String {
    let model = INSTALLED.model();
    run(Command::new(program).args(options).arg(model).args(["Hello, who are you?", "And what can you do?"]))
}

#[test]
fn chat_stages_and_cpp_say_the_same_shared_and_static() {
    let mut transcripts = Vec::new();
    for fixed in [false, true] {
        let chat = INSTALLED.build("chat", "chat", fixed);
        let stages = INSTALLED.build("stages", "stages", fixed);
        let cpp = INSTALLED.build("chat_cpp", "chat_cpp", fixed);
        transcripts.push(conversation(&chat, &["--max-new-tokens", "12", "--tokens"]));
        transcripts.push(conversation(&stages, &["--max-new-tokens", "12"]));
        transcripts.push(conversation(&cpp, &["--max-new-tokens", "12", "--tokens"]));
    }
    let first = transcripts.first().expect("a transcript").clone();
    assert_eq!(first.matches("tokens: ").count(), 2, "{first}");
    for transcript in &transcripts {
        assert_eq!(*transcript, first);
    }
}

#[test]
fn a_program_quantizes_a_checkpoint() {
    let program = INSTALLED.build("quantize", "quantize", false);
    let (checkpoint, text) =
        (root().join("tests/fixtures/tiny/smollm2"), root().join("tests/fixtures/smollm2/text.txt"));
    let out = INSTALLED.folder.join("a quantized model");
    let mut command = Command::new(program);
    command.args(["--dtype", "16a4w_block", "--context", "64", "--windows", "2", "--eval"]).arg(&text);
    let printed = run(command.arg(&checkpoint).arg(&text).arg(&out));
    assert!(printed.contains("perplexity ") && printed.contains("quantized "), "{printed}");
    assert!(out.join("report.json").is_file());
}

/// Models that take pictures, a tiny one and the one that is shipped for the demo, each with three pictures to look at.
static SEEING_MODELS: LazyLock<[(PathBuf, [PathBuf; 3]); 2]> = LazyLock::new(|| {
    let media = |name: &str| root().join("tests/fixtures/media").join(name);
    let demo = root().join("src/cli/demo/assets");
    let models = [
        ("tests/fixtures/tiny/smolvlm", ["rgb_97x61.png", "gray_33x47.png", "exif6_64x40.jpg"].map(media)),
        ("src/cli/demo/assets/model", ["a.png", "b.png", "c.png"].map(|name| demo.join("images").join(name))),
    ];
    models.map(|(checkpoint, pictures)| {
        let model = INSTALLED.folder.join(checkpoint.replace('/', " "));
        compile_model(checkpoint, &model);
        (model, pictures)
    })
});

#[test]
fn pictures_in_whole_turns_and_in_single_steps() {
    let transcript = |program: &Path, options: &[&str], model: &Path, pictures: &[PathBuf]| {
        run(Command::new(program).args(["--max-new-tokens", "12"]).args(options).arg(model).args(pictures))
    };
    let programs = [false, true]
        .map(|fixed| (INSTALLED.build("vlm", "vlm", fixed), INSTALLED.build("vlm_stages", "vlm_stages", fixed)));
    for (model, pictures) in &*SEEING_MODELS {
        for (whole, stages) in &programs {
            let expected = transcript(whole, &["--tokens"], model, pictures);
            assert_eq!(expected.matches("tokens: ").count(), 3, "{expected}");
            assert_eq!(transcript(stages, &[], model, pictures), expected);
        }
    }
}

#[test]
fn an_engine_in_plain_c_says_its_sentence_shared_and_static() {
    let sentence = "I know only this: this, and this again.";
    for fixed in [false, true] {
        let program = INSTALLED.build("custom_engine", "custom_engine", fixed);
        let tokenizer = root().join("tests/fixtures/tiny/smollm2/tokenizer.json");
        let said =
            run(Command::new(program).arg(tokenizer).args([sentence, "Hello", "Who are you?", "And what else?"]));
        assert_eq!(said, format!("{sentence}\n").repeat(3));
    }
}

#[test]
fn a_program_that_owns_modules_holds_a_conversation() {
    assert!(root().join(".deps/executorch").is_dir(), "run .ci/fetch-executorch");
    let program = INSTALLED.build("executorch_module", "executorch_module", false);
    let decoder = root().join("tests/fixtures/pte/smollm2_kv_16a8w/kv_llama_qnn.pte");
    let tokenizer = root().join("tests/fixtures/tiny/smollm2/tokenizer.json");
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", root().join(".deps/qnn/onnxruntime_qnn"));
    command.args(["--tokens", "--max-new-tokens", "8"]).args([&decoder, &tokenizer]).args(["Hello", "And then?"]);
    let said = command.output().expect("the program starts");
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "{out}\n{err}");
    // The emulator's numbers are the same on every machine.
    assert!(out.contains("tokens: 217 99 154 166 287 38 100 76\n"), "{out}");
    assert!(out.contains("tokens: 108 265 111 166 269 469 325 331\n"), "{out}");
}

#[test]
fn a_file_that_is_no_picture_is_an_error_with_words() {
    let vlm = INSTALLED.build("vlm", "vlm", false);
    let (model, [good, ..]) = &SEEING_MODELS[0];
    let bad = root().join("Cargo.toml");
    let output = Command::new(vlm).arg(model).args([good, &bad, good]).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("unknown picture format") && words.contains("Cargo.toml"), "{words}");
}

#[test]
fn a_missing_model_is_an_error_with_words() {
    let chat = INSTALLED.build("chat", "chat", false);
    let output = Command::new(chat).args(["no such folder", "hi"]).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("no such folder"), "{words}");
}

#[test]
fn pkg_config_links_a_program() {
    let program = INSTALLED.folder.join("by pkg-config");
    let lib = INSTALLED.prefix().join("lib");
    let script = r#"eval "cc -std=c11 -Wall -Werror -o '$1' '$2' $(pkg-config --cflags --libs etgenai)""#;
    let source = root().join("examples-c/chat/chat.c");
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(&program).arg(source).env("PKG_CONFIG_PATH", lib.join("pkgconfig"));
    run(&mut command);
    let mut chat = Command::new(&program);
    chat.env("LD_LIBRARY_PATH", &lib).args(["--max-new-tokens", "4"]).arg(INSTALLED.model()).arg("hi");
    assert!(!run(&mut chat).is_empty());
    let version =
        run(Command::new("pkg-config").args(["--modversion", "etgenai"]).env("PKG_CONFIG_PATH", lib.join("pkgconfig")));
    assert_eq!(version.trim(), env!("CARGO_PKG_VERSION"));
    let private = run(Command::new("pkg-config")
        .args(["--static", "--libs", "etgenai"])
        .env("PKG_CONFIG_PATH", lib.join("pkgconfig")));
    assert!(private.contains("-lm"), "{private}");
}

#[test]
fn a_request_for_another_major_version_is_refused() {
    let source = INSTALLED.folder.join("versions");
    fs::create_dir(&source).expect("the folder can be made");
    let project = "cmake_minimum_required(VERSION 3.28)\nproject(versions LANGUAGES NONE)\n\
                   find_package(etgenai ${WANTED} CONFIG REQUIRED)\n";
    fs::write(source.join("CMakeLists.txt"), project).expect("the project can be written");
    let configure = |wanted: &str| {
        let mut command = Command::new(&INSTALLED.cmake);
        command.arg("-S").arg(&source).arg("-B").arg(source.join(wanted)).arg(format!("-DWANTED={wanted}"));
        command.arg(format!("-DCMAKE_PREFIX_PATH={}", INSTALLED.prefix().display()));
        command.output().expect("CMake starts").status.success()
    };
    let major: u32 = env!("CARGO_PKG_VERSION_MAJOR").parse().expect("a number");
    assert!(configure(env!("CARGO_PKG_VERSION")));
    assert!(!configure(&format!("{}.0", major + 1)));
}

#[test]
fn the_shared_library_has_its_links() {
    let lib = INSTALLED.prefix().join("lib");
    let real = format!("libetgenai.so.{}", env!("CARGO_PKG_VERSION"));
    let soname = format!("libetgenai.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
    for link in ["libetgenai.so", &soname] {
        assert_eq!(fs::read_link(lib.join(link)).expect("a link"), Path::new(&real), "{link}");
    }
    assert!(lib.join(&real).is_file());
    assert!(lib.join("libetgenai.a").is_file());
}
