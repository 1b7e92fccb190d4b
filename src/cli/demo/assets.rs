//! What ships inside the command: the demo model's checkpoint, the pictures and the script of the demo, the questions of
//! the suite. How the model is made: `docs/demo-model/`.

use etgenai::{Error, Result};
use serde::Deserialize;
use std::fs;
use std::path::Path;

macro_rules! files {
    ($($name:literal),+ $(,)?) => { &[$(($name, include_bytes!(concat!("assets/", $name)) as &[u8])),+] };
}

/// A SmolVLM checkpoint in the layout Hugging Face publishes.
const MODEL: &[(&str, &[u8])] = files![
    "model/config.json",
    "model/generation_config.json",
    "model/preprocessor_config.json",
    "model/processor_config.json",
    "model/chat_template.json",
    "model/tokenizer.json",
    "model/tokenizer_config.json",
    "model/model.safetensors",
];

/// The demo's pictures, of the easy-VQA test images.
const IMAGES: &[(&str, &[u8])] = files!["images/a.png", "images/b.png", "images/c.png"];

const SCRIPT: &str = include_str!("assets/demo.json");
const SUITE: &str = include_str!("assets/suite.json");

/// The conversation the demo plays.
#[derive(Deserialize)]
pub struct Script {
    /// In order.
    pub turns: Vec<ScriptTurn>,
}

/// One turn of it.
#[derive(Deserialize)]
pub struct ScriptTurn {
    /// Names of the new pictures.
    pub images: Vec<String>,
    /// What is asked.
    pub text: String,
}

/// Conversations with known answers about easy-VQA's test images.
#[derive(Deserialize)]
pub struct Suite {
    /// Layout of the file.
    pub schema: u32,
    /// In order.
    pub conversations: Vec<SuiteConversation>,
}

/// A conversation of the suite.
#[derive(Deserialize)]
pub struct SuiteConversation {
    /// What it tries, e.g. `recall`.
    pub kind: String,
    /// In order.
    pub turns: Vec<SuiteTurn>,
}

/// A turn of it.
#[derive(Deserialize)]
pub struct SuiteTurn {
    /// Numbers of the new pictures.
    pub images: Vec<u32>,
    /// What is asked.
    pub text: String,
    /// The right answer.
    pub answer: String,
    /// The best expected accuracy of somebody who knows the pictures, but not their order.
    pub order_blind: f64,
    /// Whether the answer counts.
    pub scored: bool,
}

/// Write the checkpoint into a folder, which is made.
pub fn write_model(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| Error::io(folder, error))?;
    for (name, bytes) in MODEL {
        let path = folder.join(name.trim_start_matches("model/"));
        fs::write(&path, bytes).map_err(|error| Error::io(&path, error))?;
    }
    Ok(())
}

/// A picture of the demo, as the bytes of its file.
pub fn image(name: &str) -> Result<&'static [u8]> {
    let found = IMAGES.iter().find(|(path, _)| path.trim_start_matches("images/") == name);
    found.map(|(_, bytes)| *bytes).ok_or_else(|| Error::internal(format!("the demo has no picture {name}")))
}

/// The script.
pub fn script() -> Result<Script> {
    serde_json::from_str(SCRIPT).map_err(|error| Error::internal(format!("demo.json: {error}")))
}

/// The suite.
pub fn suite() -> Result<Suite> {
    let suite: Suite = serde_json::from_str(SUITE).map_err(|error| Error::internal(format!("suite.json: {error}")))?;
    match suite.schema {
        1 => Ok(suite),
        other => Err(Error::internal(format!("suite.json: schema {other} is not known"))),
    }
}
