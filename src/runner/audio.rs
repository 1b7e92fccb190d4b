//! Audio of a conversation: features that were prepared elsewhere become rows, which stand in a prompt like a picture's.

use super::row_encoder::RowEncoder;
use super::session::Runner;
use crate::chat::{ImageMarkup, Tokenizer};
use crate::engine::LoadedComponent;
use crate::error::{Error, Result};
use crate::media::{Embedding, TileLayout};
use std::sync::Arc;

/// What a runner needs to listen.
pub struct AudioParts {
    /// The loaded component `audio_encoder`: f32 features of a fixed shape → `[1, T, E]` f32.
    pub encoder: Box<dyn LoadedComponent>,
    /// The tokens that audio's rows take the place of.
    pub markup: ImageMarkup,
}

/// The part of a runner that hears.
pub(super) struct Audio {
    pub encoder: RowEncoder,
    pub markup: ImageMarkup,
    /// Id of the token each row takes the place of.
    pub row_id: u32,
}

impl Audio {
    pub fn new(parts: AudioParts, tokenizer: &Tokenizer) -> Result<Self> {
        let token = parts.markup.row_token();
        let row_id = tokenizer.token_id(token).ok_or_else(|| {
            Error::invalid(format!("the tokenizer has no token {token}, which audio needs in a prompt"))
        })?;
        let encoder = RowEncoder::new(parts.encoder, "audio encoder", |_| true)?;
        Ok(Self { encoder, markup: parts.markup, row_id })
    }
}

impl Runner {
    /// Whether the model takes audio.
    pub fn takes_audio(&self) -> bool {
        self.audio.is_some()
    }

    /// Shape of the features the audio encoder takes, e.g. `[1, 844, 160]`; `None` for models without audio.
    pub fn audio_shape(&self) -> Option<&[usize]> {
        self.audio.as_ref().map(|audio| audio.encoder.shape())
    }

    /// The rows of audio. `features` is what the encoder takes, row-major; see [`audio_shape`](Self::audio_shape). Put
    /// into a message as [`Part::Embedding`](crate::chat::Part::Embedding) they stand where the audio does.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for models without audio; [`Error::InvalidArgument`] with both numbers for features of
    /// another size, and for one that is not finite; what the engine reports. The conversation is not touched.
    pub fn encode_audio(&mut self, features: &[f32]) -> Result<Arc<Embedding>> {
        let audio = self
            .audio
            .as_mut()
            .ok_or_else(|| Error::Unsupported("this model takes no audio: it has no audio encoder".into()))?;
        let shape = audio.encoder.shape();
        let wanted: usize = shape.iter().product();
        if features.len() != wanted {
            let have = features.len();
            return Err(Error::invalid(format!(
                "the features are {have} numbers, the audio encoder takes {wanted}: {shape:?}"
            )));
        }
        if let Some(at) = features.iter().position(|value| !value.is_finite()) {
            return Err(Error::invalid(format!("feature {at} is {}, it must be finite", features[at])));
        }
        let width = audio.encoder.width();
        let rows = audio.encoder.encode(features)?.to_vec();
        Embedding::from_rows(rows, width, TileLayout::WHOLE).map(Arc::new)
    }
}
