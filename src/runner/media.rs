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
    fn survey(&self, part: &Part) -> Result<Medium> {
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

    fn pixels_of(&self, image: &Image) -> Result<PixelTensor> {
        match &self.processor {
            MediaProcessor::Image { processor, tiling } => processor.process(image, *tiling),
            MediaProcessor::Audio(_) => Err(no_pictures()),
        }
    }

    fn features_of(&self, audio: &Audio) -> Result<FeatureTensor> {
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
    fn encode(&mut self, inputs: &[f32], progress: &mut dyn FnMut() -> Flow) -> Result<Option<Vec<f32>>> {
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

    /// Whether the model takes pictures.
    pub fn takes_images(&self) -> bool {
        self.media.as_ref().is_some_and(|media| matches!(media.processor, MediaProcessor::Image { .. }))
    }

    /// Whether the model takes audio.
    pub fn takes_audio(&self) -> bool {
        self.media.as_ref().is_some_and(|media| matches!(media.processor, MediaProcessor::Audio(_)))
    }

    /// Side of a tile in pixels, rows of a tile, and numbers of a row; `None` for models without pictures.
    pub fn image_geometry(&self) -> Option<(usize, usize, usize)> {
        let encoder = &self.media.as_ref().filter(|_| self.takes_images())?.encoder;
        Some((encoder.tile_size()?, encoder.rows_per_input(), encoder.width()))
    }

    /// Features of an audio clip as the encoder takes them, rows it makes of them, and numbers of a row; `None` for
    /// models without audio.
    pub fn audio_geometry(&self) -> Option<(usize, usize, usize)> {
        let encoder = &self.media.as_ref().filter(|_| self.takes_audio())?.encoder;
        Some((encoder.input_len(), encoder.rows_per_input(), encoder.width()))
    }

    /// Bytes of weights of all components, mapped or in memory.
    pub fn weight_bytes(&self) -> u64 {
        let embedding = self.decoder.embedding().map_or(0, |embedding| embedding.component().weight_bytes());
        let encoder = self.media.as_ref().map_or(0, |media| media.encoder.component().weight_bytes());
        self.decoder.component().weight_bytes() + embedding + encoder
    }

    /// Pictures and audio clips in the cache of encoded media, and the bytes their rows take.
    pub fn image_cache_size(&self) -> (usize, usize) {
        self.media.as_ref().map_or((0, 0), |media| media.cache.size())
    }

    /// The loaded encoder of pictures or sound, to switch its profiling.
    pub fn media_encoder_mut(&mut self) -> Option<&mut MediaEncoder> {
        self.media.as_mut().map(|media| &mut media.encoder)
    }

    /// Single step: a picture's pixels as the encoder takes them, `[tiles, 3, S, S]`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for models without pictures; what preprocessing reports.
    pub fn preprocess(&self, image: &Image) -> Result<PixelTensor> {
        self.media.as_ref().ok_or_else(no_pictures)?.pixels_of(image)
    }

    /// Single step: the features of samples as the encoder takes them, `[frames, features]`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for models without audio, or whose encoder takes other features; what preprocessing
    /// reports.
    pub fn preprocess_audio(&self, audio: &Audio) -> Result<FeatureTensor> {
        self.media.as_ref().ok_or_else(no_audio)?.features_of(audio)
    }

    /// Single step: run the encoder over preprocessed pixels.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for models without pictures; [`Error::InvalidArgument`] for tiles of another size; what
    /// the engine reports. The conversation is not touched.
    pub fn encode_pixels(&mut self, pixels: &PixelTensor) -> Result<Embedding> {
        let media = self.media.as_ref().filter(|_| self.takes_images()).ok_or_else(no_pictures)?;
        media.encoder.check_len(pixels.tile(0).unwrap_or_default())?;
        self.encode_inputs(&pixels.values, pixels.layout)
    }

    /// Single step: run the encoder once, over one ready-made input: features of an audio clip, or a tile of a picture.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for models without an encoder; [`Error::InvalidArgument`] with both numbers for an input of
    /// another size, and for a number that is not finite; what the engine reports. The conversation is not touched.
    pub fn encode_features(&mut self, features: &[f32]) -> Result<Embedding> {
        self.media.as_ref().ok_or_else(no_encoder)?.encoder.check_len(features)?;
        if let Some(at) = features.iter().position(|value| !value.is_finite()) {
            return Err(Error::invalid(format!("feature {at} is {}: features must be finite", features[at])));
        }
        self.encode_inputs(features, TileLayout::WHOLE)
    }

    fn encode_inputs(&mut self, inputs: &[f32], layout: TileLayout) -> Result<Embedding> {
        let media = self.media.as_mut().ok_or_else(no_encoder)?;
        let encoded = media.encode(inputs, &mut || Flow::Continue)?;
        let rows = encoded.ok_or_else(|| Error::internal("encoding stopped by itself"))?;
        Embedding::from_rows(rows, media.encoder.width(), layout)
    }

    /// The rows of a picture, from the image cache or the encoder. They can be handed back in as
    /// [`Part::Embedding`], to this runner or to another one of the same model.
    ///
    /// # Errors
    /// As [`preprocess`](Self::preprocess) and [`encode_pixels`](Self::encode_pixels).
    pub fn encode_image(&mut self, image: &Image) -> Result<Arc<Embedding>> {
        self.media.as_ref().ok_or_else(no_pictures)?;
        self.encode_part(&Part::Image(image.clone()))
    }

    /// The rows of an audio clip; otherwise as [`encode_image`](Self::encode_image).
    ///
    /// # Errors
    /// As [`preprocess_audio`](Self::preprocess_audio) and [`encode_features`](Self::encode_features).
    pub fn encode_audio(&mut self, audio: &Audio) -> Result<Arc<Embedding>> {
        self.media.as_ref().ok_or_else(no_audio)?;
        self.encode_part(&Part::Audio(audio.clone()))
    }

    fn encode_part(&mut self, part: &Part) -> Result<Arc<Embedding>> {
        let medium = self.media.as_ref().ok_or_else(no_encoder)?.survey(part)?;
        let seen = self.look_at(&[medium], &mut |_, _| Flow::Continue)?;
        let first = seen.and_then(|(embeddings, _)| embeddings.into_iter().next());
        first.ok_or_else(|| Error::internal("an encoder gave no rows"))
    }

    /// Single step: the embedding rows of tokens, `[ids, E]` row-major.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for decoders that take ids, [`Error::InvalidArgument`] for an id outside the vocabulary.
    pub fn embed_tokens(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        self.decoder.check_ids(ids)?;
        let embedding = self.decoder.embedding_mut().ok_or_else(takes_ids)?;
        let mut rows = vec![0.0; ids.len() * embedding.width()];
        embedding.embed(ids, &mut rows)?;
        Ok(rows)
    }

    /// Single step: put the rows of `embeddings`, in order, in the places of the picture or audio tokens of `ids`. `rows` is what
    /// [`embed_tokens`](Self::embed_tokens) gave for `ids`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if rows and slots do not match (both numbers are named); `rows` is then unchanged.
    pub fn merge(&self, ids: &[u32], rows: &mut [f32], embeddings: &[&Embedding]) -> Result<()> {
        let media = self.media.as_ref().ok_or_else(no_encoder)?;
        let width = media.encoder.width();
        if ids.len().checked_mul(width) != Some(rows.len()) {
            let (count, have) = (ids.len(), rows.len());
            return Err(Error::invalid(format!(
                "{count} tokens need {count} rows of {width} numbers, given are {have}"
            )));
        }
        let slots: Vec<usize> = (0..ids.len()).filter(|&at| ids[at] == media.row_id).collect();
        let given: usize = embeddings.iter().map(|embedding| embedding.row_count()).sum();
        if slots.len() != given || embeddings.iter().any(|embedding| embedding.width() != width) {
            let slots = slots.len();
            return Err(Error::invalid(format!(
                "the prompt has {slots} slots for rows of {width} numbers, the embeddings have {given}"
            )));
        }
        let source = embeddings.iter().flat_map(|embedding| embedding.rows().chunks_exact(width));
        for (slot, row) in slots.into_iter().zip(source) {
            rows[slot * width..(slot + 1) * width].copy_from_slice(row);
        }
        Ok(())
    }

    /// Single step: append positions to the history whose hidden states are given, `[ids, E]` row-major, and process
    /// them; otherwise as [`prefill`](Self::prefill). `ids` are what the repetition penalty and
    /// [`history_tokens`](Self::history_tokens) see.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill); [`Error::InvalidArgument`] if the sizes do not match or a number is not finite.
    pub fn prefill_rows(&mut self, ids: &[u32], rows: &[f32]) -> Result<()> {
        let new = self.sequence_of_rows(ids, rows)?;
        let mut history = self.conversation.tokens().clone();
        history.extend_from(&new, 0, new.len());
        self.step_to_sequence(history)
    }

    /// Single step: make the history exactly these positions, whose hidden states are given, and process what the cache
    /// does not have yet from an earlier call with the same rows; otherwise as [`prefill_rows`](Self::prefill_rows).
    ///
    /// # Errors
    /// As [`prefill_rows`](Self::prefill_rows).
    pub fn prefill_prompt_rows(&mut self, ids: &[u32], rows: &[f32]) -> Result<()> {
        let prompt = self.sequence_of_rows(ids, rows)?;
        self.step_to_sequence(prompt)
    }

    /// Positions whose rows are given. Each row is an embedding of its own, so that what two prompts begin with in common
    /// is recognised row by row.
    fn sequence_of_rows(&self, ids: &[u32], rows: &[f32]) -> Result<Sequence> {
        let width = self.decoder.contract().hidden_size().ok_or_else(takes_ids)?;
        if ids.is_empty() || ids.len().checked_mul(width) != Some(rows.len()) {
            let (count, have) = (ids.len(), rows.len());
            return Err(Error::invalid(format!(
                "{count} tokens need {count} rows of {width} numbers, given are {have}"
            )));
        }
        let mut sequence = Sequence::default();
        for (position, (&id, row)) in ids.iter().zip(rows.chunks_exact(width)).enumerate() {
            let row = Embedding::from_rows(row.to_vec(), width, TileLayout::WHOLE)
                .map_err(|error| Error::invalid(format!("position {position}: {error}")))?;
            sequence.extend_embedding(id, &Arc::new(row));
        }
        Ok(sequence)
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

fn no_pictures() -> Error {
    Error::Unsupported(
        "this model takes no pictures: it has no vision encoder; use a vision-language model for them".into(),
    )
}

fn no_audio() -> Error {
    Error::Unsupported("this model takes no audio: it has no audio encoder; use an audio-language model for it".into())
}

fn no_encoder() -> Error {
    Error::Unsupported("this model takes neither pictures nor audio: it has no encoder for them".into())
}

fn takes_ids() -> Error {
    Error::Unsupported("this model's decoder takes token ids, not embeddings".into())
}
