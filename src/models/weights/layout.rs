//! Where the parts of a model are in a checkpoint: prefixes of past and present releases of transformers.
//!
//! A checkpoint is taken to have the layout whose embedding table it holds; one that mixes layouts then has tensors
//! without a use, which is an error.

use crate::checkpoint::Checkpoint;
use crate::registry::VisionTower;

/// Where a decoder's tensors are, and which others lie beside them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Prefix of the decoder's tensors.
    pub decoder: &'static str,
    /// The output projection.
    pub head: &'static str,
    /// Prefixes of parts of a multimodal model that a text model is made without.
    pub beside: &'static [&'static str],
}

/// Where the parts of a model that sees are.
#[derive(Debug, Clone, Copy)]
pub(super) struct VisionLayout {
    /// The decoder.
    pub text: Layout,
    /// Prefix of the tower's tensors.
    pub tower: &'static str,
    /// What stands in front of the connector's names.
    pub connector: &'static str,
}

pub(super) const TEXT_MODELS: [Layout; 3] = [
    Layout { decoder: "model.", head: "lm_head.weight", beside: &[] },
    Layout {
        decoder: "language_model.model.",
        head: "language_model.lm_head.weight",
        beside: &["vision_tower.", "multi_modal_projector."],
    },
    Layout {
        decoder: "model.language_model.",
        head: "lm_head.weight",
        beside: &["model.vision_tower.", "model.multi_modal_projector."],
    },
];

/// SmolVLM: whole, and its inner model saved alone or by a release that left the prefix out.
pub(super) const SMOLVLM: [VisionLayout; 2] = [
    VisionLayout::new("model.text_model.", "lm_head.weight", "model.vision_model.", "model."),
    VisionLayout::new("text_model.", "lm_head.weight", "vision_model.", ""),
];

/// InternVL: as published, as saved since transformers 4.52, and its inner model saved alone.
pub(super) const INTERNVL: [VisionLayout; 3] = [
    VisionLayout::new("language_model.model.", "language_model.lm_head.weight", "vision_tower.", ""),
    VisionLayout::new("model.language_model.", "lm_head.weight", "model.vision_tower.", "model."),
    VisionLayout::new("language_model.", "lm_head.weight", "vision_tower.", ""),
];

impl Layout {
    /// The layout of a text model; the plain one if there is no embedding table, so that the error names that table.
    pub fn of_text_model(checkpoint: &Checkpoint) -> Self {
        let [plain, ..] = TEXT_MODELS;
        TEXT_MODELS.into_iter().find(|layout| layout.fits(checkpoint)).unwrap_or(plain)
    }

    /// Name of the embedding table.
    pub fn table(&self) -> String {
        format!("{}embed_tokens.weight", self.decoder)
    }

    fn fits(&self, checkpoint: &Checkpoint) -> bool {
        checkpoint.tensor(&self.table()).is_some()
    }
}

impl VisionLayout {
    const fn new(decoder: &'static str, head: &'static str, tower: &'static str, connector: &'static str) -> Self {
        Self { text: Layout { decoder, head, beside: &[] }, tower, connector }
    }

    /// The layout of a model with that tower; the published one if there is no embedding table.
    pub fn of(tower: VisionTower, checkpoint: &Checkpoint) -> Self {
        let layouts: &[Self] = match tower {
            VisionTower::Siglip => &SMOLVLM,
            VisionTower::InternVit => &INTERNVL,
        };
        let found = layouts.iter().find(|layout| layout.text.fits(checkpoint));
        *found.unwrap_or(&layouts[0])
    }
}
