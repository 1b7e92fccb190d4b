//! Single steps of a runner with pictures or sound, and what it can be asked about them.

use super::event::Flow;
use super::media::{no_audio, no_pictures};
use super::media_encoder::{MediaEncoder, MediaProcessor};
use super::sequence::Sequence;
use super::session::Runner;
use crate::chat::Part;
use crate::error::{Error, Result};
use crate::media::{Audio, Embedding, FeatureTensor, Image, PixelTensor, TileLayout};
use std::sync::Arc;

impl Runner {
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
                "the prompt has {slots} slots for rows of {width} numbers, the embeddings have {given} rows"
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
}

fn no_encoder() -> Error {
    Error::Unsupported("this model takes neither pictures nor audio: it has no encoder for them".into())
}

fn takes_ids() -> Error {
    Error::Unsupported("this model's decoder takes token ids, not embeddings".into())
}
