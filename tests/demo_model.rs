//! The promise: the model that ships inside the command really sees. Needs easy-VQA's test pictures: run
//! `.ci/fetch-models easy-vqa`.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_etgenai"));
    command.args(arguments).current_dir(ROOT).stdin(Stdio::null()).output().expect("the command starts")
}

fn json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).expect("UTF-8")
}

#[test]
fn held_out_pictures_are_seen_and_their_order_remembered() {
    let data = Path::new(ROOT).join(".deps/easy-vqa/easy_vqa/data");
    assert!(data.join("test/questions.json").is_file(), "{} is missing: run .ci/fetch-models", data.display());
    let report = json(&["eval", "--suite", "demo", "--json"]);
    let accuracy = |part: &str| report[part]["all"]["accuracy"].as_f64().expect("a number");
    let (single, composed) = (accuracy("easy_vqa"), accuracy("conversations"));
    assert!(single >= 0.98, "easy-VQA test questions: {single}; {report:#}");
    assert!(composed >= 0.90, "conversations: {composed}; {report:#}");
    assert_eq!(report["easy_vqa"]["all"]["questions"], 9673, "the whole test split");
    for (kind, score) in report["conversations"]["kinds"].as_object().expect("kinds") {
        let number = |field: &str| score[field].as_f64().expect("a number");
        let (accuracy, floor) = (number("accuracy"), number("floor"));
        assert!(accuracy > floor || accuracy >= 0.95, "{kind}: {accuracy} is no better than {floor}");
        // Questions that cannot be answered without knowing which picture came when.
        assert!(floor > 0.5 || accuracy >= 0.90, "{kind}: {accuracy}");
    }
}

#[test]
fn the_demo_plays_three_turns_and_writes_a_page() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("demo").display().to_string();
    let shown = run(&["demo", "--out", &out]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let shown = text(&shown.stdout);
    assert_eq!(shown.lines().filter(|line| line.starts_with("> ")).count(), 3, "{shown}");
    assert_eq!(shown.matches("first token after").count(), 3, "statistics of each turn: {shown}");
    let page = fs::read_to_string(Path::new(&out).join("index.html")).expect("a page");
    assert_eq!(page.matches("data:image/png;base64,").count(), 3);
    assert_eq!(page.matches("class=\"message model\"").count(), 3);

    // Again into the same folder, and as JSON: the same answers.
    let report = json(&["demo", "--out", &out, "--json"]);
    let replies: Vec<&str> =
        report["turns"].as_array().expect("turns").iter().filter_map(|t| t["text"].as_str()).collect();
    assert_eq!(replies.len(), 3);
    for reply in replies {
        assert!(shown.contains(reply) && page.contains(reply), "{reply}: {shown}");
    }
    let counts = |turn: usize, field: &str| report["turns"][turn]["stats"][field].as_u64().expect("a count");
    let images: Vec<u64> = (0..3).map(|turn| counts(turn, "images")).collect();
    let encoded: Vec<u64> = (0..3).map(|turn| counts(turn, "encoded_images")).collect();
    assert_eq!((images, encoded), (vec![2, 2, 3], vec![2, 0, 1]), "earlier pictures are not encoded again");
}

#[test]
fn chat_hands_pictures_to_placeholders_and_counts_them() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("demo").display().to_string();
    json(&["demo", "--out", &out, "--json"]);
    let model = format!("{out}/model");
    let picture = |name: &str| format!("{ROOT}/src/cli/demo/assets/images/{name}.png");
    let (a, b) = (picture("a"), picture("b"));
    let ask = |arguments: &[&str]| json(&[&["chat", &model, "--json"], arguments].concat());

    let placed = ask(&[
        "--prompt",
        "<image>what color is the shape?",
        "--prompt",
        "<image>what shape is in the second image?",
        "--image",
        &a,
        "--image",
        &b,
    ]);
    let images = |report: &Value, turn: usize| report["turns"][turn]["stats"]["images"].as_u64();
    assert_eq!((images(&placed, 0), images(&placed, 1)), (Some(1), Some(2)));
    let first = ask(&["--prompt", "are both the same color?", "--prompt", "why?", "--image", &a, "--image", &b]);
    assert_eq!((images(&first, 0), images(&first, 1)), (Some(2), Some(2)));
    let plain =
        ask(&["--prompt", "what color is the shape?", "--image", &a, "--no-image-cache", "--image-tiling", "single"]);
    assert_eq!(plain["turns"][0]["text"], placed["turns"][0]["text"]);

    for (prompts, given, counts) in [
        (vec!["<image><image>which?"], vec![&a], ["prompts: 2", "images given: 1"]),
        (vec!["<image>which?", "<image>?"], vec![&a], ["prompts: 2", "images given: 1"]),
        (vec!["<image>which?"], vec![], ["prompts: 1", "images given: 0"]),
    ] {
        let mut arguments = vec!["chat", &model];
        prompts.iter().for_each(|prompt| arguments.extend(["--prompt", prompt]));
        given.iter().for_each(|image| arguments.extend(["--image", image]));
        let output = run(&arguments);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{complaint}");
        assert!(counts.iter().all(|count| complaint.contains(count)), "{complaint}");
    }
    let missing = run(&["chat", &model, "--prompt", "x", "--image", "no-such-picture.png"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("no-such-picture.png"));
}

#[test]
fn the_suite_says_where_its_data_comes_from() {
    let output = run(&["eval", "--suite", "demo", "--data", "no-such-folder"]);
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("no-such-folder") && complaint.contains(".ci/fetch-models"), "{complaint}");
    assert_eq!(run(&["eval"]).status.code(), Some(2), "a directory and a text, or a suite");
}
