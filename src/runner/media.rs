//! Pictures and sound of a conversation: surveyed before anything runs, encoded when everything fits, put in their
//! places.

use super::event::Flow;
use super::image_cache::ImageCache;
use super::media_encoder::{MediaEncoder, MediaParts, MediaProcessor};
use super::sequence::Sequence;
use super::session::Runner;
use crate::chat::{ImageMarkup, ImageTexts, Message, Part, Prompt, Tokenizer};
use crate::error::{Error, Result};
use crate::media::{Audio, Embedding, FeatureTensor, Image, PixelTensor, TileLayout};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Instant;

/// The part of a runner that sees or hears.
pub(super) struct Media {
    pub encoder: MediaEncoder,
    pub processor: MediaProcessor,
    pub markup: ImageMarkup,
    /// Id of the token each row takes the place of.
    pub row_id: u32,
    pub cache: ImageCache,
    model_key: [u8; 32],
}

impl Media {
    pub fn new(parts: MediaParts, tokenizer: &Tokenizer) -> Result<Self> {
        let encoder = MediaEncoder::new(parts.encoder)?;
        if let MediaProcessor::Image { processor, .. } = &parts.processor {
            let side = processor.tile_size();
            if encoder.tile_size() != Some(side) {
                let takes = encoder.input_shape();
                return Err(Error::invalid(format!(
                    "preprocessing makes tiles of {side} x {side} pixels, the vision encoder takes {takes:?}"
                )));
            }
        }
        let token = parts.markup.row_token();
        let row_id = tokenizer.token_id(token).ok_or_else(|| {
            let what = parts.processor.nouns().1;
            Error::invalid(format!("the tokenizer has no token {token}, which {what} need in a prompt"))
        })?;
        Ok(Self {
            encoder,
            processor: parts.processor,
            markup: parts.markup,
            row_id,
            cache: ImageCache::new(parts.cache_bytes),
            model_key: parts.model_key,
        })
    }

    /// What is known of a medium before anything runs.
    pub fn survey(&self, part: &Part) -> Result<Medium> {
        match (part, &self.processor) {
            (Part::Image(image), MediaProcessor::Image { processor, tiling }) => {
                let layout = processor.layout_of(image, *tiling)?;
                let rows = layout.tiles() * self.encoder.rows_per_input();
                let options = processor.options_hash(*tiling);
                let key = self.key_of(b"picture", options, image.content_hash());
                Ok(Medium { source: Source::Image(image.clone(), key), layout, rows })
            }
            (Part::Audio(audio), MediaProcessor::Audio(processor)) => {
                match audio.features() {
                    Some(features) => self.encoder.check_len(features)?,
                    None => processor.check(audio, self.frames()?)?,
                }
                let key = self.key_of(b"audio", processor.options_hash(), audio.content_hash());
                let (layout, rows) = (TileLayout::WHOLE, self.encoder.rows_per_input());
                Ok(Medium { source: Source::Audio(audio.clone(), key), layout, rows })
            }
            (Part::Embedding(embedding), _) => {
                let (have, want) = (embedding.width(), self.encoder.width());
                if have != want {
                    return Err(Error::invalid(format!(
                        "an embedding has rows of {have} numbers, this model takes rows of {want}"
                    )));
                }
                let (layout, rows) = (embedding.layout(), embedding.row_count());
                Ok(Medium { source: Source::Ready(embedding.clone()), layout, rows })
            }
            (Part::Image(_), MediaProcessor::Audio(_)) => Err(no_pictures()),
            (Part::Audio(_), MediaProcessor::Image { .. }) => Err(no_audio()),
            (Part::Text(_), _) => Err(Error::internal("a text is neither a picture nor audio")),
        }
    }

    /// Hash of everything the rows of a picture or of sound depend on.
    fn key_of(&self, kind: &[u8], options: [u8; 32], content: [u8; 32]) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(kind);
        hash.update(self.model_key);
        hash.update(options);
        hash.update(content);
        hash.finalize().into()
    }

    /// Frames of an audio encoder whose features are made here.
    fn frames(&self) -> Result<usize> {
        let MediaProcessor::Audio(processor) = &self.processor else { return Err(no_audio()) };
        match (self.encoder.input_shape(), processor.width()) {
            (&[1, frames, width], wanted) if width == wanted => Ok(frames),
            (shape, wanted) => Err(Error::Unsupported(format!(
                "the audio encoder takes {shape:?}, preprocessing makes frames of {wanted} numbers: hand over features \
                 that are ready for the encoder"
            ))),
        }
    }

    pub fn pixels_of(&self, image: &Image) -> Result<PixelTensor> {
        match &self.processor {
            MediaProcessor::Image { processor, tiling } => processor.process(image, *tiling),
            MediaProcessor::Audio(_) => Err(no_pictures()),
        }
    }

    pub fn features_of(&self, audio: &Audio) -> Result<FeatureTensor> {
        match &self.processor {
            MediaProcessor::Audio(processor) => processor.process(audio, self.frames()?),
            MediaProcessor::Image { .. } => Err(no_audio()),
        }
    }

    /// All inputs of the encoder that a medium becomes, one after the other.
    fn inputs_of(&self, source: &Source) -> Result<Vec<f32>> {
        match source {
            Source::Image(image, _) => Ok(self.pixels_of(image)?.values),
            Source::Audio(audio, _) => match audio.features() {
                Some(features) => Ok(features.to_vec()),
                None => Ok(self.features_of(audio)?.values),
            },
            Source::Ready(_) => Err(Error::internal("rows that are there already need no encoder")),
        }
    }

    /// Run the encoder over all inputs. `None` if `progress` stopped it.
    pub fn encode(&mut self, inputs: &[f32], progress: &mut dyn FnMut() -> Flow) -> Result<Option<Vec<f32>>> {
        let mut rows = Vec::new();
        for input in inputs.chunks(self.encoder.input_len()) {
            rows.extend_from_slice(self.encoder.encode(input)?);
            if progress() == Flow::Stop {
                return Ok(None);
            }
        }
        Ok(Some(rows))
    }
}

impl MediaProcessor {
    /// What the model takes, one and several.
    fn nouns(&self) -> (&'static str, &'static str) {
        match self {
            MediaProcessor::Image { .. } => ("picture", "pictures"),
            MediaProcessor::Audio(_) => ("audio clip", "audio clips"),
        }
    }
}

/// A picture or sound of a conversation and what is known of it before anything runs.
pub(super) struct Medium {
    source: Source,
    layout: TileLayout,
    rows: usize,
}

enum Source {
    /// To be encoded, unless the cache has the key.
    Image(Image, [u8; 32]),
    /// As above.
    Audio(Audio, [u8; 32]),
    Ready(Arc<Embedding>),
}

impl Source {
    /// What the cache knows its rows by.
    fn key(&self) -> &[u8; 32] {
        match self {
            Source::Image(_, key) | Source::Audio(_, key) => key,
            Source::Ready(embedding) => embedding.key(),
        }
    }
}

/// A prompt whose pictures and sounds are not encoded yet.
pub(super) struct Draft {
    pub prompt: Prompt,
    pub media: Vec<Medium>,
    /// What the media are called, one and several.
    nouns: (&'static str, &'static str),
}

impl Draft {
    /// How the prompt is called in errors about its length.
    pub fn describe(&self) -> String {
        let rows: usize = self.media.iter().map(|medium| medium.rows).sum();
        let (one, several) = self.nouns;
        let counted = match self.media.len() {
            0 => String::new(),
            1 => format!(" (one {one}: {rows} tokens)"),
            many => format!(" ({many} {several}: {rows} tokens)"),
        };
        format!("the conversation with the new prompt{counted} and one token of the reply")
    }

    /// Put the rows of the media in their places.
    pub fn with_rows(self, embeddings: &[Arc<Embedding>]) -> Sequence {
        let mut sequence = Sequence::from_ids(self.prompt.ids);
        let mut places = self.prompt.image_rows.into_iter();
        for embedding in embeddings {
            for (row, position) in (0..embedding.row_count()).zip(places.by_ref()) {
                sequence.place(position, embedding, row);
            }
        }
        sequence
    }
}

/// What encoding media took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    /// Pictures and sounds that were encoded.
    pub encoded: usize,
    /// Preparing their pixels and features.
    pub preprocess_ms: f64,
    /// Inside the encoder.
    pub encoder_ms: f64,
}

impl Runner {
    /// The whole conversation with these new messages as a prompt, and its media. Rows and slots are counted here,
    /// before anything is decoded or encoded.
    pub(super) fn draft(&self, new: &[Message]) -> Result<Draft> {
        let (messages, replies) = self.conversation.script(new);
        let mut parts = messages.iter().flat_map(|message| &message.parts).filter(|part| part.is_media());
        let Some(media) = &self.media else {
            return match parts.next() {
                None => {
                    let prompt = self.encoder.encode(&messages, &replies, &self.render_options)?;
                    Ok(Draft { prompt, media: Vec::new(), nouns: ("medium", "media") })
                }
                Some(Part::Audio(_)) => Err(no_audio()),
                Some(_) => Err(no_pictures()),
            };
        };
        let surveyed = parts.map(|part| media.survey(part)).collect::<Result<Vec<_>>>()?;
        let texts = surveyed.iter().map(|medium| {
            let tiles = medium.layout.tiles().max(1);
            media.markup.expand(medium.layout, medium.rows / tiles)
        });
        let texts = texts.collect::<Result<Vec<_>>>()?;
        let shown = ImageTexts::new(&media.markup, media.row_id, &texts);
        let prompt = self.encoder.encode_with_images(&messages, &replies, &shown, &self.render_options)?;
        let rows: usize = surveyed.iter().map(|medium| medium.rows).sum();
        if prompt.image_rows.len() != rows {
            let slots = prompt.image_rows.len();
            let token = media.markup.row_token();
            return Err(Error::invalid(format!(
                "{rows} rows of {}, but {slots} tokens {token} in the prompt: the template writes this token too",
                media.processor.nouns().1
            )));
        }
        Ok(Draft { prompt, media: surveyed, nouns: media.processor.nouns() })
    }

    /// The rows of every picture and sound, from the cache or the encoder. `progress` is called before the first and
    /// after each input of the encoder with inputs done and to do; `None` if it stopped the work. The conversation is
    /// not touched.
    pub(super) fn look_at(
        &mut self,
        media: &[Medium],
        progress: &mut dyn FnMut(usize, usize) -> Flow,
    ) -> Result<Option<(Vec<Arc<Embedding>>, Seen)>> {
        let mut seen = Seen::default();
        let mut embeddings: Vec<Option<Arc<Embedding>>> = Vec::with_capacity(media.len());
        for medium in media {
            embeddings.push(match (&medium.source, self.media.as_mut()) {
                (Source::Ready(embedding), _) => Some(embedding.clone()),
                (source, Some(encoders)) => encoders.cache.get(source.key()),
                (_, None) => None,
            });
        }
        let missing = || media.iter().zip(&embeddings).filter(|(_, found)| found.is_none());
        let total: usize = missing().map(|(medium, _)| medium.layout.tiles()).sum();
        if total == 0 {
            return Ok(Some((embeddings.into_iter().flatten().collect(), seen)));
        }
        let mut done = 0;
        if progress(done, total) == Flow::Stop {
            return Ok(None);
        }
        let mut fresh: Vec<Arc<Embedding>> = Vec::new();
        for (medium, embedding) in media.iter().zip(&mut embeddings) {
            let (None, Some(encoders)) = (&embedding, self.media.as_mut()) else { continue };
            let key = medium.source.key();
            // The same picture or sound twice in one prompt is encoded once, cache or not.
            if let Some(known) = fresh.iter().find(|known| known.key() == key) {
                *embedding = Some(known.clone());
                done += medium.layout.tiles();
                continue;
            }
            let started = Instant::now();
            let inputs = encoders.inputs_of(&medium.source)?;
            seen.preprocess_ms += started.elapsed().as_secs_f64() * 1000.0;
            let engine_before = encoders.encoder.engine_ms();
            let encoded = encoders.encode(&inputs, &mut || {
                done += 1;
                progress(done, total)
            })?;
            seen.encoder_ms += encoders.encoder.engine_ms() - engine_before;
            let Some(rows) = encoded else { return Ok(None) };
            seen.encoded += 1;
            let rows = Arc::new(Embedding::with_key(*key, rows, encoders.encoder.width(), medium.layout)?);
            if rows.row_count() != medium.rows {
                let (have, want) = (rows.row_count(), medium.rows);
                return Err(Error::internal(format!("the encoder gave {have} rows for {want} slots")));
            }
            encoders.cache.insert(rows.clone());
            fresh.push(rows.clone());
            *embedding = Some(rows);
        }
        Ok(Some((embeddings.into_iter().flatten().collect(), seen)))
    }

    /// Messages as the history keeps them: pictures and sound as their rows.
    pub(super) fn with_rows(messages: &[Message], embeddings: &[Arc<Embedding>]) -> Vec<Message> {
        let mut embeddings = embeddings.iter().cloned();
        let mut keep = |part: &Part| match part {
            Part::Text(_) => part.clone(),
            Part::Image(_) | Part::Audio(_) | Part::Embedding(_) => {
                embeddings.next().map_or_else(|| part.clone(), Part::Embedding)
            }
        };
        let kept = messages
            .iter()
            .map(|message| Message { role: message.role, parts: message.parts.iter().map(&mut keep).collect() });
        kept.collect()
    }
}

pub(super) fn no_pictures() -> Error {
    Error::Unsupported(
        "this model takes no pictures: it has no vision encoder; use a vision-language model for them".into(),
    )
}

pub(super) fn no_audio() -> Error {
    Error::Unsupported("this model takes no audio: it has no audio encoder; use an audio-language model for it".into())
}
