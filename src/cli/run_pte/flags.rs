//! The flags of both upstream runners with their defaults, and a few of our own.

use super::syntax::{Flag, Given, Kind};
use etgenai::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

const fn value(name: &'static str, default: &'static str, help: &'static str) -> Flag {
    Flag { name, kind: Kind::Value, default, help }
}

const fn switch(name: &'static str, help: &'static str) -> Flag {
    Flag { name, kind: Kind::Switch, default: "false", help }
}

const DEFAULT_TEXT_PROMPT: &str = "The answer to the ultimate question is";
const DEFAULT_PICTURE_PROMPT: &str = "Describe this image:";

/// Every flag there is.
pub const DECLARED: &[Flag] = &[
    value("model_path", "kv_llama_qnn.pte", "Program of a text model"),
    value("encoder_path", "encoder.pte", "Encoder of a multimodal model"),
    value("tok_embedding_path", "tok_embedding.pte", "Token embedding of a multimodal model"),
    value("decoder_path", "decoder.pte", "Text decoder of a multimodal model"),
    value("attention_sink_rope_path", "", "KV evictor: the conversation may then be longer than the context"),
    value(
        "tokenizer_path",
        "tokenizer.bin",
        "tokenizer.json, tiktoken or SentencePiece tokenizer.model, llama2.c tokenizer.bin, or a folder that holds one",
    ),
    value(
        "decoder_model_version",
        "llama2",
        "Prompt format: llama2, llama3, gemma, gemma2, gemma3, gemma4, granite, phi_4_mini, qwen2_5, qwen3, \
         smollm2_135m, smollm3, codegen, glm; of multimodal models smolvlm, internvl3, granite_speech",
    ),
    Flag {
        name: "prompt",
        kind: Kind::List,
        default: DEFAULT_TEXT_PROMPT,
        help: "What to say; several are turns of one conversation. <image> (<audio>) marks the place of a picture",
    },
    value("tokenized_prompt", "", "Instead of prompts: a file of token ids, 64-bit little-endian"),
    value("system_prompt", "", "System prompt, in the way of the prompt format"),
    value("image_path", "", "List of pictures (lines of paths): image files or raw f32 tensors; or one picture itself"),
    value("audio_path", "", "List of audio clips: WAV files or raw f32 features; or one of them itself"),
    value("temperature", "0", "0 picks the most likely token"),
    value("seq_len", "128", "Most tokens of the conversation, prompts and replies together; 0 is the context length"),
    value("eval_mode", "1", "0 kv, 1 hybrid (prefill and kv), 2 lookahead"),
    switch("shared_buffer", "Keep inputs and outputs in memory that the processor shares"),
    value("ngram", "0", "Lookahead: tokens of an n-gram, as exported"),
    value("window", "0", "Lookahead: branches, as exported"),
    value("gcap", "0", "Lookahead: candidates, as exported"),
    value("num_iters", "1", "How often to hold the conversation, each time from the beginning"),
    value("output_path", "outputs.txt", "File for prompts and replies"),
    value("performance_output_path", "inference_speed.txt", "File for the tokens a second of the last turn"),
    value("dump_logits_path", "", "File for the logits of every token as the program gives them; eval_mode 0 only"),
    value(
        "engine_library",
        "",
        "Engine to run programs with; else ETGENAI_EXECUTORCH_LIBRARY, libetgenai_executorch.so beside this command, or \
         by that name",
    ),
    value("qnn_library_dir", "", "Folder of libQnnHtp.so and libQnnSystem.so"),
    switch("truncating_requant", "Re-quantize the KV cache by cutting off, as runners of January 2026 did"),
    switch("json", "Print one JSON document instead of statistics"),
    switch("help", "Print this"),
];

/// The three ways of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Kv,
    Hybrid,
    Lookahead { ngram: usize, window: usize, gcap: usize },
}

/// The program files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Programs {
    Text { model: PathBuf },
    Multimodal { encoder: PathBuf, tok_embedding: PathBuf, decoder: PathBuf },
}

/// What the model is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompts {
    Turns(Vec<String>),
    /// A file of token ids.
    Tokens(PathBuf),
}

/// A command line that makes sense.
#[derive(Debug, Clone, PartialEq)]
pub struct Flags {
    pub programs: Programs,
    pub attention_sink: Option<PathBuf>,
    pub tokenizer: PathBuf,
    /// Name of the prompt format.
    pub version: String,
    pub prompts: Prompts,
    pub system_prompt: String,
    pub images: Option<PathBuf>,
    pub audio: Option<PathBuf>,
    pub temperature: f32,
    /// As given: 0 or less is the context length.
    pub seq_len: i32,
    pub mode: Mode,
    pub shared_buffer: bool,
    pub iterations: usize,
    pub output: PathBuf,
    /// `None`: nothing is written.
    pub performance: Option<PathBuf>,
    pub logits: Option<PathBuf>,
    pub engine_library: Option<PathBuf>,
    pub qnn_library_dir: Option<PathBuf>,
    pub truncating_requant: bool,
    pub json: bool,
    /// Arguments nobody looks at.
    pub ignored: Vec<String>,
}

/// What a command line asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    Help,
    Run(Box<Flags>),
}

/// The prompt formats of multimodal models.
const MULTIMODAL_VERSIONS: [&str; 3] = ["smolvlm", "internvl3", AUDIO_VERSION];
const AUDIO_VERSION: &str = "granite_speech";

impl Request {
    /// Understand a command line.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming flags and values.
    pub fn parse(arguments: &[String]) -> Result<Self, Error> {
        let given = Given::parse(arguments, DECLARED)?;
        if given.is_on("help") {
            return Ok(Request::Help);
        }
        Flags::from_given(&given).map(|flags| Request::Run(Box::new(flags)))
    }
}

impl Flags {
    fn from_given(given: &Given) -> Result<Self, Error> {
        let path = |name: &str| given.text(name).filter(|text| !text.is_empty()).map(PathBuf::from);
        let or_default = |name: &str| path_of(given, name);
        let programs = programs(given)?;
        let is_text = matches!(programs, Programs::Text { .. });
        let flags = Flags {
            attention_sink: path("attention_sink_rope_path"),
            tokenizer: or_default("tokenizer_path"),
            version: version(given, is_text)?,
            prompts: prompts(given, is_text)?,
            system_prompt: given.text("system_prompt").unwrap_or_default().to_owned(),
            images: path("image_path"),
            audio: path("audio_path"),
            temperature: temperature(given)?,
            seq_len: given.integer("seq_len", 128)?,
            mode: mode(given)?,
            shared_buffer: given.is_on("shared_buffer"),
            iterations: usize::try_from(given.integer("num_iters", 1)?).unwrap_or(0),
            output: or_default("output_path"),
            performance: Some(or_default("performance_output_path")).filter(|path| !path.as_os_str().is_empty()),
            logits: path("dump_logits_path"),
            engine_library: path("engine_library"),
            qnn_library_dir: path("qnn_library_dir"),
            truncating_requant: given.is_on("truncating_requant"),
            json: given.is_on("json"),
            ignored: given.rest.clone(),
            programs,
        };
        flags.check(is_text)?;
        Ok(flags)
    }

    /// Whether the encoder listens.
    pub fn is_audio(&self) -> bool {
        self.version == AUDIO_VERSION
    }

    /// Combinations that mean nothing.
    fn check(&self, is_text: bool) -> Result<(), Error> {
        if self.logits.is_some() && self.mode != Mode::Kv {
            return Err(Error::invalid("--dump_logits_path needs --eval_mode 0: only kv mode computes token by token"));
        }
        let multimodal_only = [("image_path", &self.images), ("audio_path", &self.audio)];
        if let (true, Some((name, _))) = (is_text, multimodal_only.iter().find(|(_, path)| path.is_some())) {
            return Err(Error::invalid(format!(
                "--{name} is for multimodal models: give --encoder_path, --tok_embedding_path and --decoder_path"
            )));
        }
        if !is_text && self.attention_sink.is_some() {
            return Err(Error::invalid("--attention_sink_rope_path is for text models"));
        }
        if !is_text && matches!(self.prompts, Prompts::Tokens(_)) {
            return Err(Error::invalid("--tokenized_prompt is for text models"));
        }
        Ok(())
    }
}

/// A path that has a default.
fn path_of(given: &Given, name: &str) -> PathBuf {
    let default = DECLARED.iter().find(|flag| flag.name == name).map_or("", |flag| flag.default);
    PathBuf::from(given.text(name).unwrap_or(default))
}

/// Which runner is meant: the one whose program files are named; else what the other flags are about.
fn programs(given: &Given) -> Result<Programs, Error> {
    const MULTIMODAL: [&str; 3] = ["encoder_path", "tok_embedding_path", "decoder_path"];
    let is_text = given.text("model_path").is_some();
    let part = MULTIMODAL.iter().find(|name| given.text(name).is_some());
    if let (true, Some(part)) = (is_text, part) {
        return Err(Error::invalid(format!(
            "--model_path is for text models, --{part} for multimodal ones: give either"
        )));
    }
    let is_about_multimodal = given.text("decoder_model_version").is_some_and(|v| MULTIMODAL_VERSIONS.contains(&v))
        || ["image_path", "audio_path"].iter().any(|name| given.text(name).is_some());
    if is_text || (part.is_none() && !is_about_multimodal) {
        return Ok(Programs::Text { model: path_of(given, "model_path") });
    }
    let [encoder, tok_embedding, decoder] = MULTIMODAL.map(|name| path_of(given, name));
    Ok(Programs::Multimodal { encoder, tok_embedding, decoder })
}

fn version(given: &Given, is_text: bool) -> Result<String, Error> {
    let Some(version) = given.text("decoder_model_version") else {
        if is_text {
            return Ok("llama2".into());
        }
        let names = MULTIMODAL_VERSIONS.join(", ");
        return Err(Error::invalid(format!(
            "--decoder_model_version is missing: a multimodal model is one of {names}"
        )));
    };
    if MULTIMODAL_VERSIONS.contains(&version) == is_text {
        let (kind, hint) = match is_text {
            true => ("multimodal", "give --encoder_path, --tok_embedding_path and --decoder_path".to_owned()),
            false => ("no multimodal", format!("those are {}", MULTIMODAL_VERSIONS.join(", "))),
        };
        return Err(Error::invalid(format!("--decoder_model_version {version} is {kind} model: {hint}")));
    }
    Ok(version.to_owned())
}

fn prompts(given: &Given, is_text: bool) -> Result<Prompts, Error> {
    let prompts: Vec<String> = given.all("prompt").into_iter().map(str::to_owned).collect();
    let tokens = given.text("tokenized_prompt").filter(|path| !path.is_empty());
    match (tokens, prompts.is_empty()) {
        (Some(_), false) => Err(Error::invalid("give --prompt or --tokenized_prompt, not both")),
        (Some(path), true) => Ok(Prompts::Tokens(path.into())),
        (None, false) => Ok(Prompts::Turns(prompts)),
        (None, true) => {
            let default = if is_text { DEFAULT_TEXT_PROMPT } else { DEFAULT_PICTURE_PROMPT };
            Ok(Prompts::Turns(vec![default.into()]))
        }
    }
}

fn temperature(given: &Given) -> Result<f32, Error> {
    let temperature = given.real("temperature", 0.0)? as f32;
    match temperature.is_finite() && temperature >= 0.0 {
        true => Ok(temperature),
        false => Err(Error::invalid(format!("--temperature is {temperature}, it must be 0 or more"))),
    }
}

fn mode(given: &Given) -> Result<Mode, Error> {
    let size = |name: &str| {
        let number = given.integer(name, 0)?;
        usize::try_from(number).map_err(|_| Error::invalid(format!("--{name} is {number}, it must not be negative")))
    };
    match given.integer("eval_mode", 1)? {
        0 => Ok(Mode::Kv),
        1 => Ok(Mode::Hybrid),
        2 => Ok(Mode::Lookahead { ngram: size("ngram")?, window: size("window")?, gcap: size("gcap")? }),
        other => Err(Error::invalid(format!("--eval_mode is {other}; there are 0 (kv), 1 (hybrid) and 2 (lookahead)"))),
    }
}

/// What `--help` prints.
pub fn help() -> String {
    let mut text = String::from(
        "Run .pte programs with the command line of ExecuTorch's Qualcomm runners (qnn_llama_runner and \
         qnn_multimodal_runner).\n\nUsage: etgenai run-pte [--flag value | --flag=value | --[no]switch]...\n\nFlags:\n",
    );
    for Flag { name, kind, default, help } in DECLARED {
        let shape = match kind {
            Kind::Value => "=VALUE",
            Kind::List => "=VALUE, again and again",
            Kind::Switch => "",
        };
        let default = if default.is_empty() { String::new() } else { format!(" [default: {default}]") };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  --{name}{shape}\n          {help}{default}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, Error> {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match Request::parse(&arguments)? {
            Request::Run(flags) => Ok(*flags),
            Request::Help => panic!("{line} asks for help"),
        }
    }

    fn complaint(line: &str) -> String {
        parse(line).expect_err("makes no sense").to_string()
    }

    #[test]
    fn nothing_given_is_upstreams_text_runner() {
        let flags = parse("").unwrap();
        assert_eq!(flags.programs, Programs::Text { model: "kv_llama_qnn.pte".into() });
        assert_eq!(flags.prompts, Prompts::Turns(vec!["The answer to the ultimate question is".into()]));
        assert_eq!((flags.version.as_str(), flags.tokenizer.as_path()), ("llama2", "tokenizer.bin".as_ref()));
        assert_eq!((flags.temperature, flags.seq_len, flags.mode, flags.iterations), (0.0, 128, Mode::Hybrid, 1));
        assert_eq!((flags.output, flags.logits), (PathBuf::from("outputs.txt"), None));
        assert_eq!(flags.performance, Some("inference_speed.txt".into()));
        assert!(!flags.shared_buffer && !flags.json && flags.system_prompt.is_empty());
    }

    #[test]
    fn naming_any_part_is_upstreams_multimodal_runner() {
        let flags = parse("--decoder_path d.pte --decoder_model_version smolvlm --image_path list.txt").unwrap();
        let [encoder, tok_embedding, decoder] = ["encoder.pte", "tok_embedding.pte", "d.pte"].map(PathBuf::from);
        assert_eq!(flags.programs, Programs::Multimodal { encoder, tok_embedding, decoder });
        assert_eq!(flags.prompts, Prompts::Turns(vec!["Describe this image:".into()]));
        for line in ["--decoder_model_version=internvl3", "--image_path x --decoder_model_version smolvlm"] {
            assert!(matches!(parse(line).unwrap().programs, Programs::Multimodal { .. }), "{line}");
        }
    }

    #[test]
    fn contradictions_are_named() {
        for (line, says) in [
            ("--model_path m --encoder_path e", "--model_path is for text models, --encoder_path for multimodal ones"),
            ("--encoder_path e", "--decoder_model_version is missing: a multimodal model is one of smolvlm"),
            ("--encoder_path e --decoder_model_version llama3", "llama3 is no multimodal model: those are smolvlm"),
            ("--model_path m --decoder_model_version smolvlm", "smolvlm is multimodal model: give --encoder_path"),
            ("--model_path m --image_path i", "--image_path is for multimodal models"),
            ("--prompt a --tokenized_prompt t", "not both"),
            ("--decoder_model_version smolvlm --tokenized_prompt t", "--tokenized_prompt is for text models"),
            ("--decoder_model_version smolvlm --attention_sink_rope_path s", "is for text models"),
            ("--dump_logits_path l", "--dump_logits_path needs --eval_mode 0"),
            ("--eval_mode 3", "--eval_mode is 3"),
            ("--eval_mode 2 --ngram -1", "--ngram is -1"),
            ("--temperature -0.5", "--temperature is -0.5"),
            ("--temperature nan", "--temperature is NaN"),
            ("--kv_updater SmartMask", "unknown command line flag \"kv_updater\""),
        ] {
            let error = complaint(line);
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn modes_and_files_are_read() {
        let flags =
            parse("--eval_mode 2 --ngram 5 --window=8 -gcap 8 --performance_output_path= --prompt a --prompt=b");
        let flags = flags.unwrap();
        assert_eq!(flags.mode, Mode::Lookahead { ngram: 5, window: 8, gcap: 8 });
        assert_eq!(flags.performance, None);
        assert_eq!(flags.prompts, Prompts::Turns(vec!["a".into(), "b".into()]));
        assert_eq!(parse("--eval_mode 0 --dump_logits_path l").unwrap().logits, Some("l".into()));
        assert_eq!(parse("--tokenized_prompt t").unwrap().prompts, Prompts::Tokens("t".into()));
        assert_eq!(parse("--num_iters -3").unwrap().iterations, 0);
    }

    #[test]
    fn help_lists_every_flag() {
        assert_eq!(Request::parse(&["--help".into()]).unwrap(), Request::Help);
        let help = help();
        for flag in DECLARED {
            assert!(help.contains(&format!("--{}", flag.name)), "{}", flag.name);
        }
        assert!(help.contains("[default: inference_speed.txt]"));
    }
}
