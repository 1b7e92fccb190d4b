//! Pictures and sound in prompts: what a template writes where one stands, and what becomes of it.

use crate::error::{Error, Result};
use crate::media::TileLayout;
use serde::{Deserialize, Serialize};

/// The tokens around the rows of a picture or of sound, as data: kept in the manifest of a compiled model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "style", rename_all = "snake_case")]
pub enum ImageMarkup {
    /// SmolVLM and Idefics 3: `around global` + rows + `around` for the whole picture, before it
    /// `around <row_r_col_c>` + rows for each tile, tile rows ended by a newline.
    SmolVlm {
        /// What the template writes for a picture, and the token of each row: `<image>`.
        image: String,
        /// `<fake_token_around_image>`
        around: String,
        /// `<global-img>`
        global: String,
    },
    /// InternVL: `start` + rows of all tiles + `end`.
    InternVl {
        /// `<img>`
        start: String,
        /// What the template writes for a picture, and the token of each row: `<IMG_CONTEXT>`.
        context: String,
        /// `</img>`
        end: String,
    },
    /// Granite-speech: rows, nothing around them. Its templates know no typed parts: the placeholder stands in the text
    /// of a message.
    GraniteSpeech {
        /// What stands in a message for sound, and the token of each row: `<|audio|>`.
        audio: String,
    },
}

impl ImageMarkup {
    /// SmolVLM's published tokens.
    pub fn smol_vlm() -> Self {
        ImageMarkup::SmolVlm {
            image: "<image>".into(),
            around: "<fake_token_around_image>".into(),
            global: "<global-img>".into(),
        }
    }

    /// InternVL3's published tokens.
    pub fn intern_vl() -> Self {
        ImageMarkup::InternVl { start: "<img>".into(), context: "<IMG_CONTEXT>".into(), end: "</img>".into() }
    }

    /// Granite-speech's published token.
    pub fn granite_speech() -> Self {
        ImageMarkup::GraniteSpeech { audio: "<|audio|>".into() }
    }

    /// What chat templates write where a picture or sound stands.
    pub fn placeholder(&self) -> &str {
        self.row_token()
    }

    /// Whether the placeholder is a part of a message's text, instead of what a template makes of a typed part.
    pub fn is_in_text(&self) -> bool {
        matches!(self, ImageMarkup::GraniteSpeech { .. })
    }

    /// Text of the token that each row takes the place of.
    pub fn row_token(&self) -> &str {
        match self {
            ImageMarkup::SmolVlm { image, .. } => image,
            ImageMarkup::InternVl { context, .. } => context,
            ImageMarkup::GraniteSpeech { audio } => audio,
        }
    }

    /// The text that replaces the placeholder of a picture cut as `layout` says, with [`row_token`](Self::row_token)
    /// once for each row. This is what the Hugging Face processors write.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a layout without tiles, or with rows but no columns.
    pub fn expand(&self, layout: TileLayout, rows_per_tile: usize) -> Result<String> {
        if layout.tiles() == 0 || (layout.rows > 0) != (layout.cols > 0) || rows_per_tile == 0 {
            let tiles = layout.tiles();
            return Err(Error::invalid(format!(
                "a picture of {tiles} tiles with {rows_per_tile} rows each is no picture"
            )));
        }
        let rows = self.row_token().repeat(rows_per_tile);
        Ok(match self {
            ImageMarkup::InternVl { start, end, .. } => format!("{start}{}{end}", rows.repeat(layout.tiles())),
            ImageMarkup::GraniteSpeech { .. } => rows.repeat(layout.tiles()),
            ImageMarkup::SmolVlm { around, global, .. } => {
                let mut text = String::new();
                for row in 1..=layout.rows {
                    for col in 1..=layout.cols {
                        text += &format!("{around}<row_{row}_col_{col}>{rows}");
                    }
                    text.push('\n');
                }
                if layout.overview && layout.rows > 0 {
                    text.push('\n');
                }
                if layout.overview {
                    text += &format!("{around}{global}{rows}");
                }
                text + around
            }
        })
    }
}

/// What the pictures and sounds of a conversation are replaced by.
#[derive(Debug, Clone, Copy)]
pub struct ImageTexts<'a> {
    /// What the template writes for each.
    pub placeholder: &'a str,
    /// Id of the token that stands for one row.
    pub row_id: u32,
    /// One text for each, in the order of the conversation.
    pub texts: &'a [String],
    /// The placeholder is written into the text of messages, before the template sees them.
    pub in_text: bool,
}

impl<'a> ImageTexts<'a> {
    /// For conversations of text alone.
    pub const NONE: ImageTexts<'static> = ImageTexts { placeholder: "", row_id: u32::MAX, texts: &[], in_text: false };

    /// For a model that writes media as `markup` says; `row_id` is the id of [`ImageMarkup::row_token`].
    pub fn new(markup: &'a ImageMarkup, row_id: u32, texts: &'a [String]) -> Self {
        ImageTexts { placeholder: markup.placeholder(), row_id, texts, in_text: markup.is_in_text() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_the_hugging_face_processors() {
        let whole = TileLayout { rows: 0, cols: 0, overview: true };
        let split = TileLayout { rows: 1, cols: 2, overview: true };
        let smol = ImageMarkup::smol_vlm();
        assert_eq!(
            smol.expand(whole, 2).unwrap(),
            "<fake_token_around_image><global-img><image><image><fake_token_around_image>"
        );
        assert_eq!(
            smol.expand(split, 1).unwrap(),
            "<fake_token_around_image><row_1_col_1><image><fake_token_around_image><row_1_col_2><image>\n\n\
             <fake_token_around_image><global-img><image><fake_token_around_image>"
        );
        let intern = ImageMarkup::intern_vl();
        assert_eq!(intern.expand(whole, 2).unwrap(), "<img><IMG_CONTEXT><IMG_CONTEXT></img>");
        assert_eq!(intern.expand(split, 1).unwrap(), "<img><IMG_CONTEXT><IMG_CONTEXT><IMG_CONTEXT></img>");
        let tiles_only = TileLayout { overview: false, ..split };
        assert_eq!(smol.expand(tiles_only, 1).unwrap().matches("<image>").count(), 2);
        assert_eq!(ImageMarkup::granite_speech().expand(whole, 3).unwrap(), "<|audio|><|audio|><|audio|>");
        assert!(smol.expand(TileLayout { rows: 0, cols: 0, overview: false }, 2).is_err());
    }
}
