//! Pictures of a conversation: surveyed before anything runs, encoded when everything fits, put in their places.

use super::event::Flow;
use super::image_cache::ImageCache;
use super::sequence::Sequence;
use super::session::Runner;
use super::vision::{VisionEncoder, VisionParts};
use crate::chat::{ImageMarkup, ImageTexts, Message, Part, Prompt, Tokenizer};
use crate::error::{Error, Result};
use crate::media::{Embedding, Image, ImageProcessor, PixelTensor, TileLayout, Tiling};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Instant;

/// The part of a runner that sees.
pub(super) struct Vision {
    pub encoder: VisionEncoder,
    pub processor: ImageProcessor,
    pub tiling: Tiling,
    pub markup: ImageMarkup,
    /// Id of the token each row takes the place of.
    pub row_id: u32,
    pub cache: ImageCache,
    model_key: [u8; 32],
}

impl Vision {
    pub fn new(parts: VisionParts, tokenizer: &Tokenizer) -> Result<Self> {
        let encoder = VisionEncoder::new(parts.encoder)?;
        let (side, wanted) = (parts.processor.tile_size(), encoder.tile_size());
        if side != wanted {
            return Err(Error::invalid(format!(
                "preprocessing makes tiles of {side} pixels, the encoder takes {wanted}"
            )));
        }
        let token = parts.markup.row_token();
        let row_id = tokenizer.token_id(token).ok_or_else(|| {
            Error::invalid(format!("the tokenizer has no token {token}, which pictures need in a prompt"))
        })?;
        Ok(Self {
            encoder,
            processor: parts.processor,
            tiling: parts.tiling,
            markup: parts.markup,
            row_id,
            cache: ImageCache::new(parts.cache_bytes),
            model_key: parts.model_key,
        })
    }

    /// Hash of everything the rows of a picture depend on.
    fn key_of(&self, image: &Image) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"picture");
        hash.update(self.model_key);
        hash.update(self.processor.options_hash(self.tiling));
        hash.update(image.content_hash());
        hash.finalize().into()
    }

    /// Run the encoder over all tiles. `None` if `progress` stopped it.
    fn encode(
        &mut self,
        pixels: &PixelTensor,
        progress: &mut dyn FnMut() -> Flow,
    ) -> Result<Option<(Vec<f32>, TileLayout)>> {
        let mut rows = Vec::with_capacity(pixels.tiles * self.encoder.rows_per_tile() * self.encoder.width());
        for tile in 0..pixels.tiles {
            let tile = pixels.tile(tile).ok_or_else(|| Error::internal(format!("tile {tile} has no pixels")))?;
            rows.extend_from_slice(self.encoder.encode_tile(tile)?);
            if progress() == Flow::Stop {
                return Ok(None);
            }
        }
        Ok(Some((rows, pixels.layout)))
    }
}

/// A picture of a conversation and what is known of it before anything runs.
pub(super) struct Picture {
    source: Source,
    layout: TileLayout,
    rows: usize,
}

enum Source {
    /// To be encoded, unless the cache has the key.
    Image(Image, [u8; 32]),
    Ready(Arc<Embedding>),
}

/// A prompt whose pictures are not encoded yet.
pub(super) struct Draft {
    pub prompt: Prompt,
    pub pictures: Vec<Picture>,
}

impl Draft {
    /// How the prompt is called in errors about its length.
    pub fn describe(&self) -> String {
        let rows: usize = self.pictures.iter().map(|picture| picture.rows).sum();
        match self.pictures.len() {
            0 => "the conversation with the new prompt and one token of the reply".into(),
            1 => {
                format!("the conversation with the new prompt (one picture: {rows} tokens) and one token of the reply")
            }
            many => format!(
                "the conversation with the new prompt ({many} pictures: {rows} tokens) and one token of the reply"
            ),
        }
    }

    /// Put the rows of the pictures in their places.
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

/// How a model writes the rows of an encoder in a prompt.
struct Slots<'r> {
    markup: &'r ImageMarkup,
    /// Id of the token each row takes the place of.
    row_id: u32,
    /// Numbers of a row.
    width: usize,
}

/// What looking at pictures took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    /// Pictures that were encoded.
    pub encoded: usize,
    /// Preparing their pixels.
    pub preprocess_ms: f64,
    /// Inside the encoder.
    pub encoder_ms: f64,
}

impl Runner {
    /// The whole conversation with these new messages as a prompt, and its pictures. Rows and slots are counted here,
    /// before any picture is touched.
    pub(super) fn draft(&self, new: &[Message]) -> Result<Draft> {
        let (messages, replies) = self.conversation.script(new);
        let parts = || messages.iter().flat_map(|message| &message.parts).filter(|part| part.is_image());
        let Some(slots) = self.slots() else {
            return match parts().next() {
                None => {
                    let prompt = self.encoder.encode(&messages, &replies, &self.render_options)?;
                    Ok(Draft { prompt, pictures: Vec::new() })
                }
                Some(_) => Err(Error::Unsupported(
                    "this model takes no pictures: it has no vision encoder; use a vision-language model".into(),
                )),
            };
        };
        let pictures = parts().map(|part| self.survey(&slots, part)).collect::<Result<Vec<_>>>()?;
        let texts = pictures.iter().map(|picture| {
            let tiles = picture.layout.tiles().max(1);
            slots.markup.expand(picture.layout, picture.rows / tiles)
        });
        let texts = texts.collect::<Result<Vec<_>>>()?;
        let images = ImageTexts { placeholder: slots.markup.placeholder(), row_id: slots.row_id, texts: &texts };
        let prompt = self.encoder.encode_with_images(&messages, &replies, &images, &self.render_options)?;
        let rows: usize = pictures.iter().map(|picture| picture.rows).sum();
        if prompt.image_rows.len() != rows {
            let slots = prompt.image_rows.len();
            return Err(Error::internal(format!("{rows} rows of pictures, but {slots} slots in the prompt")));
        }
        Ok(Draft { prompt, pictures })
    }

    /// Where rows of an encoder stand in a prompt; `None` for models of text alone.
    fn slots(&self) -> Option<Slots<'_>> {
        match (&self.vision, &self.audio) {
            (Some(vision), _) => {
                Some(Slots { markup: &vision.markup, row_id: vision.row_id, width: vision.encoder.width() })
            }
            (None, Some(audio)) => {
                Some(Slots { markup: &audio.markup, row_id: audio.row_id, width: audio.encoder.width() })
            }
            (None, None) => None,
        }
    }

    fn survey(&self, slots: &Slots<'_>, part: &Part) -> Result<Picture> {
        match part {
            Part::Image(image) => {
                let vision = self.vision.as_ref().ok_or_else(no_pictures)?;
                let layout = vision.processor.layout_of(image, vision.tiling)?;
                let rows = layout.tiles() * vision.encoder.rows_per_tile();
                Ok(Picture { source: Source::Image(image.clone(), vision.key_of(image)), layout, rows })
            }
            Part::Embedding(embedding) => {
                let (have, want) = (embedding.width(), slots.width);
                if have != want {
                    return Err(Error::invalid(format!(
                        "an embedding has rows of {have} numbers, this model takes rows of {want}"
                    )));
                }
                let (layout, rows) = (embedding.layout(), embedding.row_count());
                Ok(Picture { source: Source::Ready(embedding.clone()), layout, rows })
            }
            Part::Text(_) => Err(Error::internal("a text is no picture")),
        }
    }

    /// The rows of every picture, from the cache or the encoder. `progress` is called before the first and after each
    /// tile with tiles done and tiles to do; `None` if it stopped the work. The conversation is not touched.
    pub(super) fn look_at(
        &mut self,
        pictures: &[Picture],
        progress: &mut dyn FnMut(usize, usize) -> Flow,
    ) -> Result<Option<(Vec<Arc<Embedding>>, Seen)>> {
        let mut seen = Seen::default();
        let mut embeddings: Vec<Option<Arc<Embedding>>> = Vec::with_capacity(pictures.len());
        for picture in pictures {
            embeddings.push(match (&picture.source, self.vision.as_mut()) {
                (Source::Ready(embedding), _) => Some(embedding.clone()),
                (Source::Image(_, key), Some(vision)) => vision.cache.get(key),
                (Source::Image(..), None) => None,
            });
        }
        let missing = || pictures.iter().zip(&embeddings).filter(|(_, found)| found.is_none());
        let total: usize = missing().map(|(picture, _)| picture.layout.tiles()).sum();
        if total == 0 {
            return Ok(Some((embeddings.into_iter().flatten().collect(), seen)));
        }
        let mut done = 0;
        if progress(done, total) == Flow::Stop {
            return Ok(None);
        }
        let mut fresh: Vec<Arc<Embedding>> = Vec::new();
        for (picture, embedding) in pictures.iter().zip(&mut embeddings) {
            let (Source::Image(image, key), None, Some(vision)) = (&picture.source, &embedding, self.vision.as_mut())
            else {
                continue;
            };
            // The same picture twice in one prompt is encoded once, cache or not.
            if let Some(known) = fresh.iter().find(|known| known.key() == key) {
                *embedding = Some(known.clone());
                done += picture.layout.tiles();
                continue;
            }
            let started = Instant::now();
            let pixels = vision.processor.process(image, vision.tiling)?;
            seen.preprocess_ms += started.elapsed().as_secs_f64() * 1000.0;
            let engine_before = vision.encoder.engine_ms();
            let encoded = vision.encode(&pixels, &mut || {
                done += 1;
                progress(done, total)
            })?;
            seen.encoder_ms += vision.encoder.engine_ms() - engine_before;
            let Some((rows, layout)) = encoded else { return Ok(None) };
            seen.encoded += 1;
            let rows = Arc::new(Embedding::with_key(*key, rows, vision.encoder.width(), layout)?);
            if rows.row_count() != picture.rows {
                let (have, want) = (rows.row_count(), picture.rows);
                return Err(Error::internal(format!("the encoder gave {have} rows for {want} slots")));
            }
            vision.cache.insert(rows.clone());
            fresh.push(rows.clone());
            *embedding = Some(rows);
        }
        Ok(Some((embeddings.into_iter().flatten().collect(), seen)))
    }

    /// Whether the model takes pictures.
    pub fn takes_images(&self) -> bool {
        self.vision.is_some()
    }

    /// Side of a tile in pixels, rows of a tile, and numbers of a row; `None` for models without pictures.
    pub fn image_geometry(&self) -> Option<(usize, usize, usize)> {
        let encoder = &self.vision.as_ref()?.encoder;
        Some((encoder.tile_size(), encoder.rows_per_tile(), encoder.width()))
    }

    /// Bytes of weights of all components, mapped or in memory.
    pub fn weight_bytes(&self) -> u64 {
        let embedding = self.decoder.embedding().map_or(0, |embedding| embedding.component().weight_bytes());
        let vision = self.vision.as_ref().map_or(0, |vision| vision.encoder.component().weight_bytes());
        let audio = self.audio.as_ref().map_or(0, |audio| audio.encoder.component().weight_bytes());
        self.decoder.component().weight_bytes() + embedding + vision + audio
    }

    /// Pictures in the image cache, and the bytes their rows take.
    pub fn image_cache_size(&self) -> (usize, usize) {
        self.vision.as_ref().map_or((0, 0), |vision| vision.cache.size())
    }

    /// The loaded vision encoder, to switch its profiling.
    pub fn vision_encoder_mut(&mut self) -> Option<&mut VisionEncoder> {
        self.vision.as_mut().map(|vision| &mut vision.encoder)
    }

    /// Single step: a picture's pixels as the encoder takes them, `[tiles, 3, S, S]`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for models without pictures; what preprocessing reports.
    pub fn preprocess(&self, image: &Image) -> Result<PixelTensor> {
        let vision = self.vision.as_ref().ok_or_else(no_pictures)?;
        vision.processor.process(image, vision.tiling)
    }

    /// Single step: run the encoder over preprocessed pixels.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for models without pictures; [`Error::InvalidArgument`] for tiles of another size; what
    /// the engine reports. The conversation is not touched.
    pub fn encode_pixels(&mut self, pixels: &PixelTensor) -> Result<Embedding> {
        let vision = self.vision.as_mut().ok_or_else(no_pictures)?;
        let encoded = vision.encode(pixels, &mut || Flow::Continue)?;
        let (rows, layout) = encoded.ok_or_else(|| Error::internal("encoding stopped by itself"))?;
        Embedding::from_rows(rows, vision.encoder.width(), layout)
    }

    /// The rows of a picture, from the image cache or the encoder. They can be handed back in as
    /// [`Part::Embedding`], to this runner or to another one of the same model.
    ///
    /// # Errors
    /// As [`preprocess`](Self::preprocess) and [`encode_pixels`](Self::encode_pixels).
    pub fn encode_image(&mut self, image: &Image) -> Result<Arc<Embedding>> {
        let vision = self.vision.as_ref().ok_or_else(no_pictures)?;
        let layout = vision.processor.layout_of(image, vision.tiling)?;
        let rows = layout.tiles() * vision.encoder.rows_per_tile();
        let picture = Picture { source: Source::Image(image.clone(), vision.key_of(image)), layout, rows };
        let seen = self.look_at(&[picture], &mut |_, _| Flow::Continue)?;
        let first = seen.and_then(|(embeddings, _)| embeddings.into_iter().next());
        first.ok_or_else(|| Error::internal("a picture gave no rows"))
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

    /// Single step: put the rows of `pictures`, in order, in the places of the picture tokens of `ids`. `rows` is what
    /// [`embed_tokens`](Self::embed_tokens) gave for `ids`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if rows and slots do not match (both numbers are named); `rows` is then unchanged.
    pub fn merge(&self, ids: &[u32], rows: &mut [f32], pictures: &[&Embedding]) -> Result<()> {
        let Slots { row_id, width, .. } = self.slots().ok_or_else(no_pictures)?;
        if ids.len().checked_mul(width) != Some(rows.len()) {
            let (count, have) = (ids.len(), rows.len());
            return Err(Error::invalid(format!(
                "{count} tokens need {count} rows of {width} numbers, given are {have}"
            )));
        }
        let slots: Vec<usize> = (0..ids.len()).filter(|&at| ids[at] == row_id).collect();
        let given: usize = pictures.iter().map(|picture| picture.row_count()).sum();
        if slots.len() != given || pictures.iter().any(|picture| picture.width() != width) {
            let slots = slots.len();
            return Err(Error::invalid(format!(
                "the prompt has {slots} slots for rows of {width} numbers, the pictures have {given} rows"
            )));
        }
        let source = pictures.iter().flat_map(|picture| picture.rows().chunks_exact(width));
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
        let whole = TileLayout { rows: 0, cols: 0, overview: true };
        let mut sequence = Sequence::default();
        for (position, (&id, row)) in ids.iter().zip(rows.chunks_exact(width)).enumerate() {
            let row = Embedding::from_rows(row.to_vec(), width, whole)
                .map_err(|error| Error::invalid(format!("position {position}: {error}")))?;
            sequence.extend_embedding(id, &Arc::new(row));
        }
        Ok(sequence)
    }

    /// Messages as the history keeps them: pictures as their rows.
    pub(super) fn with_rows(messages: &[Message], embeddings: &[Arc<Embedding>]) -> Vec<Message> {
        let mut embeddings = embeddings.iter().cloned();
        let mut keep = |part: &Part| match part {
            Part::Text(_) => part.clone(),
            Part::Image(_) | Part::Embedding(_) => embeddings.next().map_or_else(|| part.clone(), Part::Embedding),
        };
        let kept = messages
            .iter()
            .map(|message| Message { role: message.role, parts: message.parts.iter().map(&mut keep).collect() });
        kept.collect()
    }
}

fn no_pictures() -> Error {
    Error::Unsupported("this model takes no pictures: it has no vision encoder".into())
}

fn takes_ids() -> Error {
    Error::Unsupported("this model's decoder takes token ids, not embeddings".into())
}
