//! A model as the files upstream's exporter writes: one program a component, beside a tokenizer.

use super::media_encoder::{MediaParts, MediaProcessor};
use super::options::RunnerOptions;
use super::session::{COMPAT_PREFIX, Runner, RunnerParts, tiling};
use super::stats::Clock;
use crate::artefact::{AUDIO_ENCODER, TEXT_DECODER, TOK_EMBEDDING, VISION_ENCODER};
use crate::chat::{ChatTemplate, ImageMarkup, Tokenizer, TokenizerFile};
use crate::engine::{ComponentSource, Engine, LoadedComponent, SourceData};
use crate::error::{Error, Result};
use crate::media::{AudioProcessor, ImageFamily, ImageProcessor};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Component name of an attention sink's evictor.
pub const EVICTOR: &str = "attention_sink_evictor";
/// The decoder's constant that names the token rows of sound take the place of.
const AUDIO_TOKEN_ID: &str = "audio_token_id";
/// Bytes at each end of an encoder's file that tell it from others.
const IDENTITY_BYTES: usize = 64 << 10;

/// What a runner is opened from when there is no artefact directory: single files, each of which can be replaced by
/// itself. What the model is like comes from the programs and the tokenizer's folder, not from names.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    /// The text decoder, e.g. `hybrid_llama_qnn.pte`.
    pub text_decoder: ComponentSource,
    /// The token embedding, e.g. `tok_embedding_qnn.pte`: where the decoder takes embeddings.
    pub token_embedding: Option<ComponentSource>,
    /// The vision encoder, e.g. `vision_encoder_qnn.pte`.
    pub vision_encoder: Option<ComponentSource>,
    /// The audio encoder, e.g. `audio_encoder_qnn.pte`: instead of a vision encoder.
    pub audio_encoder: Option<ComponentSource>,
    /// The evictor of an attention sink, e.g. `attention_sink_evictor.pte`.
    pub evictor: Option<ComponentSource>,
    /// `tokenizer.json`, `tokenizer.model` or `tokenizer.bin`, or a folder with one of them. Special tokens, the chat
    /// template and the settings of pictures and sound are read from the files beside it, as far as they are there.
    pub tokenizer: PathBuf,
}

impl ModelFiles {
    /// A text model.
    pub fn new(text_decoder: impl Into<PathBuf>, tokenizer: impl Into<PathBuf>) -> Self {
        Self::with_decoder(ComponentSource::file(TEXT_DECODER, text_decoder), tokenizer)
    }

    /// A text model whose decoder need not be in a file.
    pub fn with_decoder(text_decoder: ComponentSource, tokenizer: impl Into<PathBuf>) -> Self {
        Self {
            text_decoder,
            token_embedding: None,
            vision_encoder: None,
            audio_encoder: None,
            evictor: None,
            tokenizer: tokenizer.into(),
        }
    }

    /// Set the file of a component by its name: `text_decoder`, `tok_embedding`, `vision_encoder`, `audio_encoder` or
    /// `attention_sink_evictor`.
    ///
    /// # Errors
    /// [`Error::NotFound`] that lists the names there are.
    pub fn set(&mut self, source: ComponentSource) -> Result<()> {
        let place = match source.component.as_str() {
            TEXT_DECODER => {
                self.text_decoder = source;
                return Ok(());
            }
            TOK_EMBEDDING => &mut self.token_embedding,
            VISION_ENCODER => &mut self.vision_encoder,
            AUDIO_ENCODER => &mut self.audio_encoder,
            EVICTOR => &mut self.evictor,
            other => {
                return Err(Error::NotFound(format!(
                    "there is no component {other}; there are: {TEXT_DECODER}, {TOK_EMBEDDING}, {VISION_ENCODER}, \
                     {AUDIO_ENCODER}, {EVICTOR}"
                )));
            }
        };
        *place = Some(source);
        Ok(())
    }
}

impl Runner {
    /// Open a model from its files.
    ///
    /// The chat template is [`RunnerOptions::template`], or the one beside the tokenizer; without either a prompt is the
    /// plain text of the messages. How pictures and sound are written in a prompt follows from the tokenizer's tokens.
    ///
    /// # Errors
    /// A missing, malformed or unsupported file, or files that do not belong together; the error names them.
    pub fn open_files(files: &ModelFiles, engine: &dyn Engine, options: &RunnerOptions) -> Result<Self> {
        options.validate()?;
        if files.vision_encoder.is_some() && files.audio_encoder.is_some() {
            return Err(Error::Unsupported(format!(
                "there is a {VISION_ENCODER} and an {AUDIO_ENCODER}: a model takes pictures or audio, give one of them"
            )));
        }
        let clock = Clock::new();
        let file = TokenizerFile::open(&files.tokenizer)?;
        let special = &file.special_tokens;
        let template = match &options.template {
            Some(name) if name.starts_with(COMPAT_PREFIX) => Some(ChatTemplate::compat(name)?),
            Some(source) => Some(ChatTemplate::from_source(source, special)?),
            None => file.chat_template.as_ref().map(|source| ChatTemplate::from_source(source, special)).transpose()?,
        };
        let load = |source: &Option<ComponentSource>| -> Result<Option<Box<dyn LoadedComponent>>> {
            let Some(source) = source else { return Ok(None) };
            let mut source = source.clone();
            source.shared_memory |= options.shared_memory;
            engine.load(&source).map(Some)
        };
        let text_decoder = load(&Some(files.text_decoder.clone()))?;
        let component = text_decoder.ok_or_else(|| Error::internal("no text decoder was loaded"))?;
        let token_embedding = load(&files.token_embedding)?;
        let evictor = load(&files.evictor)?;
        let media = match (load(&files.vision_encoder)?, load(&files.audio_encoder)?) {
            (Some(encoder), _) => Some(vision_parts(files, encoder, &file.tokenizer, options)?),
            (None, Some(encoder)) => Some(audio_parts(files, encoder, component.as_ref(), &file.tokenizer, options)?),
            (None, None) => None,
        };
        let ends = template.as_ref().map(ChatTemplate::end_tokens).unwrap_or_default();
        let eos_ids = ends.iter().filter_map(|text| file.tokenizer.token_id(text)).collect();
        let parts = RunnerParts {
            template,
            template_variables: options.template_variables.clone(),
            eos_ids,
            system_prompt: options.system_prompt.clone(),
            token_embedding,
            media,
            evictor,
            decoding: options.decoding,
            requant: options.requant_rounding,
            ..RunnerParts::new(component, file.tokenizer)
        };
        Self::assemble(parts, clock)
    }
}

/// Pictures: prepared as the settings beside the tokenizer say, for tiles of the encoder's size; written as the
/// tokenizer's tokens tell.
fn vision_parts(
    files: &ModelFiles,
    encoder: Box<dyn LoadedComponent>,
    tokenizer: &Tokenizer,
    options: &RunnerOptions,
) -> Result<MediaParts> {
    let families = [
        (ImageFamily::SmolVlm, ImageMarkup::smol_vlm(), "<fake_token_around_image>"),
        (ImageFamily::InternVl, ImageMarkup::intern_vl(), "<IMG_CONTEXT>"),
    ];
    let family = families.into_iter().find(|(_, _, token)| tokenizer.token_id(token).is_some());
    let (family, markup, _) = family.ok_or_else(|| {
        Error::Unsupported(
            "there is a vision encoder, but the tokenizer has neither <fake_token_around_image> (SmolVLM) nor \
             <IMG_CONTEXT> (InternVL): it is not clear how pictures are written in a prompt"
                .into(),
        )
    })?;
    let side = tile_size(encoder.as_ref())?;
    let (preprocessor, processor) = settings(files)?;
    let processor = ImageProcessor::from_config(family, preprocessor.as_ref(), processor.as_ref(), side)?;
    Ok(MediaParts {
        model_key: identity(files.vision_encoder.as_ref(), encoder.as_ref())?,
        processor: MediaProcessor::Image { processor, tiling: tiling(options) },
        encoder,
        markup,
        cache_bytes: options.image_cache_bytes,
    })
}

/// Sound: prepared as the settings beside the tokenizer say, as Granite-speech's where they say nothing. Rows take the
/// place of the tokenizer's audio token, or of the one that the decoder's constants name.
fn audio_parts(
    files: &ModelFiles,
    encoder: Box<dyn LoadedComponent>,
    decoder: &dyn LoadedComponent,
    tokenizer: &Tokenizer,
    options: &RunnerOptions,
) -> Result<MediaParts> {
    let (preprocessor, processor) = settings(files)?;
    Ok(MediaParts {
        model_key: identity(files.audio_encoder.as_ref(), encoder.as_ref())?,
        processor: MediaProcessor::Audio(AudioProcessor::from_config(preprocessor.as_ref(), processor.as_ref())?),
        encoder,
        markup: audio_markup(decoder, tokenizer)?,
        cache_bytes: options.image_cache_bytes,
    })
}

fn audio_markup(decoder: &dyn LoadedComponent, tokenizer: &Tokenizer) -> Result<ImageMarkup> {
    let published = ImageMarkup::granite_speech();
    if tokenizer.token_id(published.row_token()).is_some() {
        return Ok(published);
    }
    let id = decoder.constants().count(AUDIO_TOKEN_ID)?.and_then(|id| u32::try_from(id).ok());
    let named = id.filter(|&id| tokenizer.is_control(id)).and_then(|id| tokenizer.token_text(id));
    named.map(|audio| ImageMarkup::GraniteSpeech { audio }).ok_or_else(|| {
        let token = published.row_token();
        let found = match id {
            Some(id) => format!("names token {id} in {AUDIO_TOKEN_ID}, which is no control token of the tokenizer"),
            None => format!("has no constant {AUDIO_TOKEN_ID}"),
        };
        Error::Unsupported(format!(
            "there is an audio encoder, but the tokenizer has no token {token} (Granite-speech), and the text decoder \
             {found}: it is not clear how audio is written in a prompt"
        ))
    })
}

/// `preprocessor_config.json` and `processor_config.json` beside the tokenizer, as far as they are there.
fn settings(files: &ModelFiles) -> Result<(Settings, Settings)> {
    let folder = match files.tokenizer.is_dir() {
        true => files.tokenizer.as_path(),
        false => files.tokenizer.parent().unwrap_or(Path::new("")),
    };
    let read = |name: &str| read_settings(&folder.join(name));
    Ok((read("preprocessor_config.json")?, read("processor_config.json")?))
}

type Settings = Option<Map<String, Value>>;

/// Side of the encoder's picture, which its own checks look at again.
fn tile_size(encoder: &dyn LoadedComponent) -> Result<usize> {
    let inputs = encoder.graphs().first().map(|graph| graph.inputs.as_slice()).unwrap_or_default();
    let side = inputs.first().and_then(|pixels| pixels.shape.last()).copied();
    side.ok_or_else(|| Error::invalid("the vision encoder's first graph takes no picture"))
}

fn read_settings(path: &Path) -> Result<Settings> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, error)),
    };
    serde_json::from_str(&text).map(Some).map_err(|e| Error::format(path, format!("line {}", e.line()), e.to_string()))
}

/// A hash that tells encoders apart: of what is at both ends of the file, its size, and its shapes.
fn identity(source: Option<&ComponentSource>, encoder: &dyn LoadedComponent) -> Result<[u8; 32]> {
    let mut hash = Sha256::new();
    hash.update(encoder.description());
    hash.update(format!("{:?}", encoder.graphs()));
    match source.map(|source| &source.data) {
        Some(SourceData::Bytes(bytes)) => hash.update(bytes.as_slice()),
        Some(SourceData::File(path)) => {
            let failed = |error| Error::io(path, error);
            let mut file = File::open(path).map_err(failed)?;
            let size = file.metadata().map_err(failed)?.len();
            hash.update(size.to_le_bytes());
            for start in [0, size.saturating_sub(IDENTITY_BYTES as u64)] {
                let mut piece = Vec::new();
                file.seek(SeekFrom::Start(start)).map_err(failed)?;
                (&mut file).take(IDENTITY_BYTES as u64).read_to_end(&mut piece).map_err(failed)?;
                hash.update(&piece);
            }
        }
        // A host that exchanges a program it holds opens another runner.
        Some(SourceData::Held) | None => {}
    }
    Ok(hash.finalize().into())
}
