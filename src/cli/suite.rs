//! `etgenai eval --suite demo`: does a model see what is in the pictures, and in which of them?
//!
//! Two parts, reported apart: easy-VQA's own test questions, each about one picture, and conversations about several
//! pictures. Beside each accuracy stands what is reached without looking closely. For conversations this is the best
//! that somebody who knows all pictures, but not their order, can expect (the order-blind floor); for single pictures,
//! where there is no order, it is what the best fixed answer to each question reaches.

use super::demo::{self, assets};
use super::output::{Align, Table, print_json, print_line};
use super::progress::Progress;
use super::{Outcome, interrupt};
use etgenai::chat::{Message, Part, Role};
use etgenai::media::{DecodeOptions, Image};
use etgenai::pipeline::open_runner;
use etgenai::runner::{Flow, GenerateOptions, Runner, RunnerOptions, StopReason};
use etgenai::{Error, Result};
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Where `.ci/fetch-models` puts easy-VQA.
pub const DEFAULT_DATA: &str = ".deps/easy-vqa/easy_vqa/data";
/// Answers are a few words; one that does not end is wrong.
const MAX_ANSWER_TOKENS: usize = 16;
const YES_NO: [&str; 2] = ["yes", "no"];
const SHAPES: [&str; 3] = ["circle", "rectangle", "triangle"];

/// Right answers among those that count.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Score {
    questions: usize,
    right: usize,
    /// Sum of what is expected of each question without looking closely.
    floor: f64,
}

impl Score {
    fn add(&mut self, right: bool, floor: f64) {
        self.questions += 1;
        self.right += usize::from(right);
        self.floor += floor;
    }

    fn merge(mut self, other: &Score) -> Self {
        self.questions += other.questions;
        self.right += other.right;
        self.floor += other.floor;
        self
    }

    fn share(&self, count: f64) -> f64 {
        if self.questions == 0 { 0.0 } else { count / self.questions as f64 }
    }

    fn accuracy(&self) -> f64 {
        self.share(self.right as f64)
    }

    fn floor(&self) -> f64 {
        self.share(self.floor)
    }
}

/// Scores by name, in the order they are shown.
type Scores = BTreeMap<String, Score>;

/// Run the suite on a compiled model, or on the one that ships inside the command.
pub fn run(dir: Option<&Path>, data: &Path, threads: Option<usize>, json: bool) -> Outcome {
    let data = EasyVqa::open(data)?;
    let unpacked = if dir.is_none() { Some(Unpacked::new()?) } else { None };
    let dir = match (dir, &unpacked) {
        (Some(dir), _) => dir.to_path_buf(),
        (None, Some(unpacked)) => demo::compile_shipped_model(&unpacked.0)?.0,
        (None, None) => return Err(Error::internal("no model for the suite").into()),
    };
    let mut runner = open_runner(&dir, &RunnerOptions { threads, ..RunnerOptions::default() })?;
    let started = Instant::now();
    let single = single_questions(&mut runner, &data, json)?;
    let composed = conversations(&mut runner, &data, json)?;
    let seconds = started.elapsed().as_secs_f64();
    let engine = runner.decoder().component().description();
    if json {
        let part = |scores: &Scores| {
            let entry = |score: &Score| json!({"questions": score.questions, "right": score.right, "accuracy": score.accuracy(), "floor": score.floor()});
            let kinds: BTreeMap<&String, _> = scores.iter().map(|(name, score)| (name, entry(score))).collect();
            json!({"all": entry(&all(scores)), "kinds": kinds})
        };
        let document = json!({
            "suite": "demo", "model": if unpacked.is_some() { json!("shipped") } else { json!(dir) },
            "easy_vqa": part(&single), "conversations": part(&composed), "seconds": seconds, "engine": engine,
        });
        return Ok(print_json(&document)?);
    }
    print_part("easy-VQA test questions, one picture", "best fixed answer", &single)?;
    print_line("")?;
    print_part("conversations, several pictures", "order-blind floor", &composed)?;
    Ok(print_line(&format!("\n{seconds:.1} s; {engine}"))?)
}

fn all(scores: &Scores) -> Score {
    scores.values().fold(Score::default(), Score::merge)
}

fn print_part(title: &str, floor: &str, scores: &Scores) -> std::io::Result<()> {
    let columns = [(title, Align::Left), ("questions", Align::Right), ("right", Align::Right), (floor, Align::Right)];
    let mut table = Table::new(&columns);
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    let everything = ("all".to_owned(), all(scores));
    for (name, score) in scores.iter().map(|(name, score)| (name.clone(), *score)).chain([everything]) {
        table.row(vec![name, score.questions.to_string(), percent(score.accuracy()), percent(score.floor())]);
    }
    table.print()
}

/// A temporary folder for the shipped model; removed at the end.
struct Unpacked(PathBuf);

impl Unpacked {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("etgenai-suite-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| Error::io(&folder, error))?;
        Ok(Self(folder))
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        // What cannot be removed is left to the system's own cleaning of temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// easy-VQA's test split.
struct EasyVqa {
    folder: PathBuf,
    /// Question, answer, number of the picture.
    questions: Vec<(String, String, u32)>,
}

impl EasyVqa {
    fn open(data: &Path) -> Result<Self> {
        let folder = data.join("test");
        let path = folder.join("questions.json");
        if !path.is_file() {
            return Err(Error::NotFound(format!(
                "{}: no such file; fetch the data with `.ci/fetch-models easy-vqa`, or unpack the wheel of `pip \
                 download --no-deps easy-vqa==1.0` and name its folder easy_vqa/data with --data",
                path.display()
            )));
        }
        let text = std::fs::read(&path).map_err(|error| Error::io(&path, error))?;
        let malformed =
            |error: serde_json::Error| Error::format(&path, format!("line {}", error.line()), error.to_string());
        let mut questions: Vec<(String, String, u32)> = serde_json::from_slice(&text).map_err(malformed)?;
        // Questions about one picture follow each other, so that it is encoded once.
        questions.sort_by_key(|&(_, _, image)| image);
        Ok(Self { folder, questions })
    }

    fn image(&self, number: u32) -> Result<Image> {
        Image::open(&self.folder.join("images").join(format!("{number}.png")), &DecodeOptions::default())
    }

    /// For each question the share that the most frequent answer to it is right.
    fn fixed_answers(&self) -> HashMap<&str, f64> {
        let mut answers = HashMap::<&str, HashMap<&str, usize>>::new();
        for (question, answer, _) in &self.questions {
            *answers.entry(question).or_default().entry(answer).or_default() += 1;
        }
        let best = |counts: &HashMap<&str, usize>| {
            let (most, sum) = (counts.values().max().copied().unwrap_or(0), counts.values().sum::<usize>());
            most as f64 / sum.max(1) as f64
        };
        answers.iter().map(|(question, counts)| (*question, best(counts))).collect()
    }
}

fn single_questions(runner: &mut Runner, data: &EasyVqa, json: bool) -> Result<Scores> {
    let floors = data.fixed_answers();
    let bar = Progress::steps("easy-VQA", "questions", json);
    let mut scores = Scores::new();
    let mut newest: Option<(u32, Image)> = None;
    for (done, (question, answer, number)) in data.questions.iter().enumerate() {
        let image = match &newest {
            Some((known, image)) if known == number => image.clone(),
            _ => newest.insert((*number, data.image(*number)?)).1.clone(),
        };
        runner.reset();
        let said = ask(runner, vec![image], question)?;
        let kind = match answer.as_str() {
            answer if YES_NO.contains(&answer) => "yes or no",
            answer if SHAPES.contains(&answer) => "shape",
            _ => "colour",
        };
        let floor = floors.get(question.as_str()).copied().unwrap_or_default();
        scores.entry(kind.into()).or_default().add(said == *answer, floor);
        bar.set(done as u64 + 1, data.questions.len() as u64);
    }
    Ok(scores)
}

fn conversations(runner: &mut Runner, data: &EasyVqa, json: bool) -> Result<Scores> {
    let suite = assets::suite()?;
    let bar = Progress::steps("conversations", "conversations", json);
    let mut scores = Scores::new();
    for (done, conversation) in suite.conversations.iter().enumerate() {
        runner.reset();
        for turn in &conversation.turns {
            let images = turn.images.iter().map(|&number| data.image(number)).collect::<Result<Vec<_>>>()?;
            let said = ask(runner, images, &turn.text)?;
            if turn.scored {
                let score = scores.entry(conversation.kind.clone()).or_default();
                score.add(said == turn.answer.to_lowercase(), turn.order_blind);
            }
        }
        bar.set(done as u64 + 1, suite.conversations.len() as u64);
    }
    Ok(scores)
}

/// The model's own greedy answer, in lower case and without a final full stop.
fn ask(runner: &mut Runner, images: Vec<Image>, text: &str) -> Result<String> {
    let cancel = runner.cancel_handle();
    let _scope = interrupt::cancels_with(move || cancel.cancel());
    let mut parts: Vec<Part> = images.into_iter().map(Part::Image).collect();
    parts.push(Part::Text(text.into()));
    let options = GenerateOptions { max_new_tokens: Some(MAX_ANSWER_TOKENS), ..GenerateOptions::default() };
    let reply = runner.generate(&[Message { role: Role::User, parts }], &options, &mut |_| Flow::Continue)?;
    if reply.stop_reason == StopReason::Cancelled {
        return Err(Error::Cancelled);
    }
    Ok(reply.text.trim().trim_end_matches('.').to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_answer_is_the_most_frequent_one() {
        let ask = |question: &str, answer: &str| (question.to_owned(), answer.to_owned(), 0);
        let questions = vec![ask("what?", "red"), ask("what?", "red"), ask("what?", "blue"), ask("is it?", "no")];
        let data = EasyVqa { folder: PathBuf::new(), questions };
        let floors = data.fixed_answers();
        assert!((floors["what?"] - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(floors["is it?"], 1.0);
    }

    #[test]
    fn scores_of_no_questions_are_defined() {
        let none = Score::default();
        assert_eq!((none.accuracy(), none.floor()), (0.0, 0.0));
        let mut one = Score::default();
        one.add(true, 0.5);
        assert_eq!((one.merge(&none).accuracy(), one.floor()), (1.0, 0.5));
    }
}
