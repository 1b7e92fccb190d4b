//! What the quantizer is fed: token ids of one forward pass, and the pictures and sounds among them.

use crate::error::{Error, Result};
use crate::media::{Audio, AudioProcessor, DecodeOptions, FeatureTensor, Image, ImageProcessor, PixelTensor};
use crate::media::{TileLayout, Tiling};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// One forward pass of the decoder, without padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Token ids, at least one, all within the model's vocabulary. Each row that the encoder makes of a medium has one
    /// token of its own here, the model's image or audio token.
    pub tokens: Vec<u32>,
    /// Pictures and sounds, in the order in which their rows stand in `tokens`.
    pub media: Vec<Medium>,
    /// Indices into `tokens` of the rows of `media`, ascending: the first [`Medium::rows`] of them belong to the first
    /// medium, and so on.
    pub media_rows: Vec<usize>,
    /// Where it comes from, e.g. `calib.json[3]`, `chats.jsonl:17` or `book.txt, tokens 512..1024`.
    pub origin: String,
}

impl Sample {
    /// Hash everything that changes what the model computes.
    pub(super) fn hash_into(&self, hash: &mut Sha256) {
        hash.update((self.tokens.len() as u64).to_le_bytes());
        self.tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        hash.update((self.media.len() as u64).to_le_bytes());
        self.media.iter().for_each(|medium| medium.hash_into(hash));
    }
}

/// A picture or sound of a sample. The file was decoded once to check it; it is read again when its tensor is made, so
/// that a big set does not have to fit into memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Medium {
    path: PathBuf,
    content_hash: [u8; 32],
    rows: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Picture { layout: TileLayout, tiling: Tiling },
    Sound { frames: usize },
}

impl Medium {
    /// A picture that `layout` cuts, whose tiles become `rows` rows together.
    pub(super) fn picture(path: &Path, image: &Image, tiling: Tiling, layout: TileLayout, rows: usize) -> Self {
        let kind = Kind::Picture { layout, tiling };
        Self { path: path.into(), content_hash: image.content_hash(), rows, kind }
    }

    /// Sound that becomes `frames` frames of features, and these `rows` rows.
    pub(super) fn sound(path: &Path, audio: &Audio, frames: usize, rows: usize) -> Self {
        Self { path: path.into(), content_hash: audio.content_hash(), rows, kind: Kind::Sound { frames } }
    }

    /// The file, as it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Rows that the encoder makes of it, and so tokens of the sample that stand for it.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of the encoder that it becomes: the tiles of a picture, 1 for sound.
    pub fn inputs(&self) -> usize {
        self.layout().tiles()
    }

    /// How a picture is cut; sound is whole.
    pub fn layout(&self) -> TileLayout {
        match self.kind {
            Kind::Picture { layout, .. } => layout,
            Kind::Sound { .. } => TileLayout::WHOLE,
        }
    }

    /// A picture, not sound.
    pub fn is_picture(&self) -> bool {
        matches!(self.kind, Kind::Picture { .. })
    }

    /// SHA-256 of what the file decodes to.
    pub fn content_hash(&self) -> &[u8; 32] {
        &self.content_hash
    }

    /// The pixels as the vision encoder takes them, `[tiles, 3, S, S]`. `processor` is the model's.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for sound, and for a processor that cuts the picture another way than the model's;
    /// [`Error::InvalidState`] if the file is another one now; what reading and decoding report.
    pub fn pixels(&self, processor: &ImageProcessor) -> Result<PixelTensor> {
        let Kind::Picture { layout, tiling } = self.kind else {
            return Err(Error::invalid(format!("{}: sound has no pixels", self.path.display())));
        };
        let image = Image::open(&self.path, &DecodeOptions::default())?;
        self.check_unchanged(image.content_hash())?;
        let pixels = processor.process(&image, tiling)?;
        if pixels.layout != layout {
            let (path, now, then) = (self.path.display(), pixels.tiles, layout.tiles());
            return Err(Error::invalid(format!(
                "{path}: this processor cuts the picture into {now} tiles, the sample has the tokens of {then}"
            )));
        }
        Ok(pixels)
    }

    /// The features as the audio encoder takes them, `[frames, width]`. `processor` is the model's.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a picture, otherwise as [`pixels`](Self::pixels).
    pub fn features(&self, processor: &AudioProcessor) -> Result<FeatureTensor> {
        let Kind::Sound { frames } = self.kind else {
            return Err(Error::invalid(format!("{}: a picture has no audio features", self.path.display())));
        };
        let audio = Audio::open(&self.path)?;
        self.check_unchanged(audio.content_hash())?;
        processor.process(&audio, frames)
    }

    fn check_unchanged(&self, content_hash: [u8; 32]) -> Result<()> {
        if content_hash == self.content_hash {
            return Ok(());
        }
        let path = self.path.display();
        Err(Error::InvalidState(format!(
            "{path}: the file was changed since the calibration data was read: start again"
        )))
    }

    fn hash_into(&self, hash: &mut Sha256) {
        hash.update(self.content_hash);
        let TileLayout { rows, cols, overview } = self.layout();
        for size in [self.rows, rows, cols, usize::from(overview)] {
            hash.update((size as u64).to_le_bytes());
        }
    }
}
