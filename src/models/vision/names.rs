//! What transformers calls the modules of a tower. Nodes and weights carry these names, so that a checkpoint's tensor
//! is found by putting its prefix in front.

use crate::registry::VisionTower;

/// Names inside one tower, relative to the tower.
#[derive(Debug)]
pub(crate) struct TowerNames {
    /// The patch convolution.
    pub patches: &'static str,
    /// The position table.
    pub positions: &'static str,
    /// The class token; unused in towers without one.
    pub class_token: &'static str,
    /// The list of layers.
    pub layers: &'static str,
    /// Attention inside a layer.
    pub attention: &'static str,
    /// The output projection inside attention.
    pub out_proj: &'static str,
    /// The norm before attention.
    pub norm1: &'static str,
    /// The norm before the MLP.
    pub norm2: &'static str,
    /// The norm behind the last layer.
    pub post_norm: &'static str,
}

const SIGLIP: TowerNames = TowerNames {
    patches: "embeddings.patch_embedding",
    positions: "embeddings.position_embedding.weight",
    class_token: "embeddings.class_embedding",
    layers: "encoder.layers",
    attention: "self_attn",
    out_proj: "out_proj",
    norm1: "layer_norm1",
    norm2: "layer_norm2",
    post_norm: "post_layernorm",
};

const INTERN_VIT: TowerNames = TowerNames {
    patches: "embeddings.patch_embeddings.projection",
    positions: "embeddings.position_embeddings",
    class_token: "embeddings.cls_token",
    layers: "encoder.layer",
    attention: "attention",
    out_proj: "projection_layer",
    norm1: "layernorm_before",
    norm2: "layernorm_after",
    post_norm: "layernorm",
};

/// The vector that scales the attention branch, inside a layer.
pub(crate) const ATTENTION_SCALE: &str = "lambda_1";
/// The vector that scales the MLP branch.
pub(crate) const MLP_SCALE: &str = "lambda_2";
/// First layer of the MLP.
pub(crate) const FC1: &str = "mlp.fc1";
/// Second layer of the MLP.
pub(crate) const FC2: &str = "mlp.fc2";

/// The one matrix of a linear connector.
pub(crate) const PROJECTION: &str = "connector.modality_projection.proj";
/// Norm of an MLP connector.
pub(crate) const PROJECTOR_NORM: &str = "multi_modal_projector.layer_norm";
/// First layer of an MLP connector.
pub(crate) const PROJECTOR_LINEAR_1: &str = "multi_modal_projector.linear_1";
/// Second layer of an MLP connector.
pub(crate) const PROJECTOR_LINEAR_2: &str = "multi_modal_projector.linear_2";

impl TowerNames {
    pub fn of(tower: VisionTower) -> &'static Self {
        match tower {
            VisionTower::Siglip => &SIGLIP,
            VisionTower::InternVit => &INTERN_VIT,
        }
    }

    /// Path of layer `index`.
    pub fn layer(&self, index: usize) -> String {
        format!("{}.{index}", self.layers)
    }
}
