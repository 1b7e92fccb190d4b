//! What the model brings to its calibration data: how it writes conversations, and how it takes pictures or sound.

use super::sample::Medium;
use crate::artefact::{Artefact, ImageSection};
use crate::chat::{ChatTemplate, ImageMarkup, ImageTexts, Message, Part, PromptEncoder, RenderOptions};
use crate::chat::{SpecialTokens, Tokenizer};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::media::{Audio, AudioProcessor, DecodeOptions, Image, ImageProcessor, TileLayout, Tiling};
use crate::registry::ModelSpec;
use chrono::NaiveDate;
use std::path::Path;

/// Tokenizer, template and media settings of a model.
#[derive(Debug)]
pub struct ModelText {
    prompts: PromptEncoder,
    vocab_size: usize,
    media: Option<MediaText>,
}

/// Everything that a [`ModelText`] is made of, wherever it is stored.
#[derive(Debug, Clone, Copy)]
pub struct ModelTextParts<'a> {
    /// Hyper-parameters: the size of the vocabulary, and of the vision encoder if there is one.
    pub spec: &'a ModelSpec,
    /// Bytes of a `tokenizer.json`.
    pub tokenizer_json: &'a [u8],
    /// Begin, end, unknown and padding tokens.
    pub special_tokens: &'a SpecialTokens,
    /// Jinja source of the chat template; without one a conversation is the plain text of its messages.
    pub chat_template: Option<&'a str>,
    /// How pictures are prepared and written, in models that see.
    pub image: Option<&'a ImageSection>,
}

/// What is known of the audio encoder of a model that hears.
#[derive(Debug, Clone, PartialEq)]
pub struct AudioText {
    /// Sound to features.
    pub processor: AudioProcessor,
    /// What stands for sound in a prompt.
    pub markup: ImageMarkup,
    /// Frames that the encoder takes.
    pub frames: usize,
    /// Rows that it makes of them.
    pub rows: usize,
}

/// How a model takes pictures or sound.
#[derive(Debug)]
struct MediaText {
    processor: Processor,
    markup: ImageMarkup,
    /// Id of the token that each row takes the place of.
    row_id: u32,
    /// Rows of one input of the encoder.
    rows_per_input: usize,
}

#[derive(Debug)]
enum Processor {
    Image(ImageProcessor),
    Audio { processor: AudioProcessor, frames: usize },
}

/// A conversation as token ids.
pub(super) struct Written {
    pub tokens: Vec<u32>,
    /// Where the rows of media stand.
    pub media_rows: Vec<usize>,
}

impl ModelText {
    /// From single parts.
    ///
    /// # Errors
    /// What reading the tokenizer and the template reports; [`Error::InvalidArgument`] for a model that sees whose
    /// tokenizer lacks the image token, or that has picture settings but no vision encoder.
    pub fn from_parts(parts: &ModelTextParts<'_>) -> Result<Self> {
        let tokenizer = Tokenizer::from_bytes(parts.tokenizer_json, parts.special_tokens)?;
        let template = |source| ChatTemplate::from_source(source, parts.special_tokens);
        let template = parts.chat_template.map(template).transpose()?;
        let text = Self {
            prompts: PromptEncoder::new(tokenizer, template)?,
            vocab_size: parts.spec.decoder.vocab_size,
            media: None,
        };
        match (parts.image, &parts.spec.vision) {
            (None, _) => Ok(text),
            (Some(image), Some(vision)) => {
                let processor = Processor::Image(image.processor.clone());
                text.with_media(processor, image.markup.clone(), vision.tokens_per_tile())
            }
            (Some(_), None) => {
                let name = &parts.spec.name;
                Err(Error::invalid(format!("{name} has settings for pictures, but no vision encoder")))
            }
        }
    }

    /// From a checkpoint's own files.
    ///
    /// # Errors
    /// A configuration of an unknown model, missing or malformed files, and as [`from_parts`](Self::from_parts).
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let spec = ModelSpec::from_config(checkpoint.config())?;
        let (preprocessor, processor) = (checkpoint.preprocessor_config(), checkpoint.processor_config());
        let section = |vision| ImageSection::from_config(vision, preprocessor, processor);
        Self::from_parts(&ModelTextParts {
            image: spec.vision.as_ref().map(section).transpose()?.as_ref(),
            spec: &spec,
            tokenizer_json: &checkpoint.tokenizer_json()?,
            special_tokens: checkpoint.special_tokens(),
            chat_template: checkpoint.chat_template(),
        })
    }

    /// From a compiled model.
    ///
    /// # Errors
    /// Missing or malformed files, and as [`from_parts`](Self::from_parts).
    pub fn from_artefact(artefact: &Artefact) -> Result<Self> {
        let manifest = artefact.manifest();
        Self::from_parts(&ModelTextParts {
            spec: &manifest.model,
            tokenizer_json: &artefact.tokenizer_json()?,
            special_tokens: &manifest.special_tokens,
            chat_template: artefact.chat_template()?.as_deref(),
            image: manifest.image.as_ref(),
        })
    }

    /// The same model with an audio encoder.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the tokenizer lacks the audio token, and for a model that sees.
    pub fn with_audio(self, audio: AudioText) -> Result<Self> {
        if self.media.is_some() {
            return Err(Error::invalid("a model takes pictures or sound, not both"));
        }
        let AudioText { processor, markup, frames, rows } = audio;
        self.with_media(Processor::Audio { processor, frames }, markup, rows)
    }

    fn with_media(self, processor: Processor, markup: ImageMarkup, rows_per_input: usize) -> Result<Self> {
        let token = markup.row_token();
        let row_id = self.prompts.tokenizer().token_id(token).ok_or_else(|| {
            Error::invalid(format!(
                "the tokenizer has no token {token}, which stands for pictures or sound in a prompt"
            ))
        })?;
        Ok(Self { media: Some(MediaText { processor, markup, row_id, rows_per_input }), ..self })
    }

    /// Tokenizer and template.
    pub fn prompts(&self) -> &PromptEncoder {
        &self.prompts
    }

    /// Rows of the embedding table: every token id is below.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Whether the model takes pictures.
    pub fn takes_images(&self) -> bool {
        self.image_processor().is_some()
    }

    /// Whether the model takes sound.
    pub fn takes_audio(&self) -> bool {
        self.audio_processor().is_some()
    }

    /// How pictures become tiles, in a model that sees.
    pub fn image_processor(&self) -> Option<&ImageProcessor> {
        match &self.media.as_ref()?.processor {
            Processor::Image(processor) => Some(processor),
            Processor::Audio { .. } => None,
        }
    }

    /// How sound becomes features, in a model that hears.
    pub fn audio_processor(&self) -> Option<&AudioProcessor> {
        match &self.media.as_ref()?.processor {
            Processor::Audio { processor, .. } => Some(processor),
            Processor::Image(_) => None,
        }
    }

    /// Id of the token that stands for a row of a picture or of sound.
    pub fn media_token(&self) -> Option<u32> {
        self.media.as_ref().map(|media| media.row_id)
    }

    /// What a message's text marks the place of sound with, in models that have no typed parts for it.
    pub(super) fn placeholder_in_text(&self) -> Option<&str> {
        self.media
            .as_ref()
            .map(|media| &media.markup)
            .filter(|markup| markup.is_in_text())
            .map(ImageMarkup::placeholder)
    }

    /// Decodes a file and counts its rows. The part holds the decoded content: drop it soon.
    pub(super) fn open_medium(&self, path: &Path, tiling: Tiling) -> Result<(Part, Medium)> {
        let media = self.media.as_ref().ok_or_else(|| Error::internal("a model without media was given a file"))?;
        match &media.processor {
            Processor::Image(processor) => {
                let image = Image::open(path, &DecodeOptions::default())?;
                let layout = processor.layout_of(&image, tiling)?;
                let rows = layout.tiles().saturating_mul(media.rows_per_input);
                let medium = Medium::picture(path, &image, tiling, layout, rows);
                Ok((Part::Image(image), medium))
            }
            Processor::Audio { processor, frames } => {
                let audio = Audio::open(path)?;
                processor.check(&audio, *frames)?;
                let medium = Medium::sound(path, &audio, *frames, media.rows_per_input);
                Ok((Part::Audio(audio), medium))
            }
        }
    }

    /// A whole conversation as the runner keeps it, without the beginning of another reply.
    pub(super) fn write(&self, messages: &[Message], media: &[Medium]) -> Result<Written> {
        let texts = media.iter().map(|medium| self.text_of(medium.layout())).collect::<Result<Vec<_>>>()?;
        let shown = match &self.media {
            Some(media) => ImageTexts::new(&media.markup, media.row_id, &texts),
            None => ImageTexts::NONE,
        };
        let prompt = self.prompts.encode_with_images(messages, &[], &shown, &render_options())?;
        let rows: usize = media.iter().map(Medium::rows).sum();
        if prompt.image_rows.len() != rows {
            let slots = prompt.image_rows.len();
            return Err(Error::invalid(format!(
                "the files become {rows} rows, but there are {slots} tokens for them in the prompt: the template writes \
                 this token too"
            )));
        }
        Ok(Written { tokens: prompt.ids, media_rows: prompt.image_rows })
    }

    /// What takes the place of a medium's placeholder.
    fn text_of(&self, layout: TileLayout) -> Result<String> {
        let media = self.media.as_ref().ok_or_else(|| Error::internal("a model without media has a medium"))?;
        media.markup.expand(layout, media.rows_per_input)
    }
}

/// A conversation ends with its last message. Templates that write today's date are told always the same one: calibration
/// data must not depend on the day, or the shards of one set would not belong together.
fn render_options() -> RenderOptions {
    let now = NaiveDate::from_ymd_opt(2025, 1, 1).and_then(|day| day.and_hms_opt(12, 0, 0));
    RenderOptions { add_generation_prompt: false, now, ..Default::default() }
}
