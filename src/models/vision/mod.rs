//! The vision encoder: hyper-parameters to a graph.
//!
//! One graph, `forward`, takes one square picture (a tile) and gives the rows that stand for it in the decoder's
//! residual stream:
//!
//! ```text
//! pixel_values [1, 3, S, S]
//!   │  cut into patches, a Linear over the values of each (a convolution whose kernel is its stride)
//!   │  (class token in front) + position table
//!   ├──── LayerNorm ─ attention over all positions ──┐
//!   + ◄──────────────────────────────────────────────┘
//!   ├──── LayerNorm ─ Linear ─ GELU ─ Linear ─────────┐
//!   + ◄───────────────────────────────────────────────┘      … a layer, L times
//!   │  (LayerNorm) (class token dropped)
//!   │  pixel shuffle: s × s patches side by side become one token, s² times as wide
//!   │  connector: Linear, or LayerNorm ─ Linear ─ GELU ─ Linear
//! image_features [1, T, E]
//! ```
//!
//! The order of nodes is part of the contract: engines recognise attention by it. Layer scale has no nodes; it is folded
//! into the weights (see [`super::weights`]).

pub(super) mod names;

use super::nodes::{activation_op, layer_norm, linear, transpose};
use crate::error::Result;
use crate::graph::{DType, Graph, GraphBuilder, Op, ValueId};
use crate::registry::{Connector, VisionSpec};
use names::{FC1, FC2, PROJECTION, PROJECTOR_LINEAR_1, PROJECTOR_LINEAR_2, PROJECTOR_NORM, TowerNames};

/// Name of the encoder's graph.
pub const FORWARD: &str = "forward";

/// The graph of a vision encoder: `pixel_values`, f32 `[1, 3, S, S]`, normalized as the checkpoint's processor does it,
/// to `image_features`, f32 `[1, T, E]`.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for an invalid `spec`.
pub fn build_vision_encoder(spec: &VisionSpec) -> Result<Graph> {
    spec.validate()?;
    Encoder { b: GraphBuilder::new(FORWARD), spec, names: TowerNames::of(spec.tower) }.build()
}

struct Encoder<'a> {
    b: GraphBuilder,
    spec: &'a VisionSpec,
    names: &'static TowerNames,
}

impl Encoder<'_> {
    fn build(mut self) -> Result<Graph> {
        let &VisionSpec { channels, image_size, .. } = self.spec;
        let pixels = self.b.input("pixel_values", DType::F32, &[1, channels, image_size, image_size])?;
        let mut x = self.embed(pixels)?;
        for layer in 0..self.spec.layers {
            x = self.layer(&self.names.layer(layer), x)?;
        }
        if self.spec.post_norm {
            x = layer_norm(&mut self.b, self.names.post_norm, x, self.spec.norm_eps)?;
        }
        if self.spec.class_token {
            let patches = self.spec.positions() - 1;
            x = self.b.node("drop_class_token", Op::Slice { axis: 1, start: 1, len: patches }, &[x])?;
        }
        x = self.pixel_shuffle(x)?;
        let features = self.connect(x)?;
        self.b.output(features, "image_features")?;
        self.b.finish()
    }

    /// `[1, 3, S, S] → [1, N, C]`: patches row by row, each with its position.
    fn embed(&mut self, pixels: ValueId) -> Result<ValueId> {
        let &VisionSpec { channels, patch_size, hidden_size, .. } = self.spec;
        let side = self.spec.patches_per_side();
        let whole = self.crop(pixels, side * patch_size)?;
        let grid = [channels, side, patch_size, side, patch_size];
        let x = self.b.reshape("patches.grid", whole, &grid)?;
        let x = transpose(&mut self.b, "patches.transpose", x, [1, 3, 0, 2, 4])?;
        let x = self.b.reshape("patches", x, &[1, side * side, self.spec.patch_values()])?;
        let mut x = linear(&mut self.b, self.names.patches, x, hidden_size, true)?;
        if self.spec.class_token {
            let class = self.b.weight(self.names.class_token, &[1, 1, hidden_size])?;
            x = self.b.node("embeddings.concat", Op::Concat { axis: 1 }, &[class, x])?;
        }
        let table = self.b.weight(self.names.positions, &[1, self.spec.positions(), hidden_size])?;
        self.b.node("embeddings", Op::Add, &[x, table])
    }

    /// The part of the picture that whole patches cover: a convolution without padding never reads the rest.
    fn crop(&mut self, pixels: ValueId, covered: usize) -> Result<ValueId> {
        if covered == self.spec.image_size {
            return Ok(pixels);
        }
        let rows = self.b.node("crop.rows", Op::Slice { axis: 2, start: 0, len: covered }, &[pixels])?;
        self.b.node("crop.columns", Op::Slice { axis: 3, start: 0, len: covered }, &[rows])
    }

    /// One layer, `[1, N, C] → [1, N, C]`.
    fn layer(&mut self, at: &str, x: ValueId) -> Result<ValueId> {
        let &VisionSpec { norm_eps, ffn_size, hidden_size, activation, .. } = self.spec;

        let n = layer_norm(&mut self.b, &format!("{at}.{}", self.names.norm1), x, norm_eps)?;
        let attended = self.attention(&format!("{at}.{}", self.names.attention), n)?;
        let x = self.b.node(&format!("{at}.attention_residual"), Op::Add, &[x, attended])?;

        let n = layer_norm(&mut self.b, &format!("{at}.{}", self.names.norm2), x, norm_eps)?;
        let h = linear(&mut self.b, &format!("{at}.{FC1}"), n, ffn_size, true)?;
        let h = self.b.node(&format!("{at}.mlp.activation_fn"), activation_op(activation), &[h])?;
        let fed = linear(&mut self.b, &format!("{at}.{FC2}"), h, hidden_size, true)?;
        self.b.node(&format!("{at}.mlp_residual"), Op::Add, &[x, fed])
    }

    /// Every position attends to every position, `[1, N, C] → [1, N, C]`.
    fn attention(&mut self, at: &str, x: ValueId) -> Result<ValueId> {
        let &VisionSpec { heads, hidden_size, .. } = self.spec;
        let q = self.heads(at, 'q', x, [0, 2, 1, 3])?;
        let k = self.heads(at, 'k', x, [0, 2, 3, 1])?;
        let v = self.heads(at, 'v', x, [0, 2, 1, 3])?;

        let factor = (1.0 / ((hidden_size / heads) as f64).sqrt()) as f32;
        let scores = self.b.node(&format!("{at}.scores"), Op::MatMul, &[q, k])?;
        let scores = self.b.node(&format!("{at}.scores_scale"), Op::Scale { factor }, &[scores])?;
        let weights = self.b.node(&format!("{at}.softmax"), Op::Softmax, &[scores])?;
        let mixed = self.b.node(&format!("{at}.mix"), Op::MatMul, &[weights, v])?;
        let mixed = transpose(&mut self.b, &format!("{at}.mix_transpose"), mixed, [0, 2, 1, 3])?;
        let mixed = self.b.reshape(&format!("{at}.mix_reshape"), mixed, &[1, self.spec.positions(), hidden_size])?;
        linear(&mut self.b, &format!("{at}.{}", self.names.out_proj), mixed, hidden_size, true)
    }

    /// Projection `which` of `x`, split into heads: `[1, N, C] → [1, N, H, D]`, then its axes in the order `perm`.
    fn heads(&mut self, at: &str, which: char, x: ValueId, perm: [usize; 4]) -> Result<ValueId> {
        let &VisionSpec { heads, hidden_size, qkv_bias, .. } = self.spec;
        let y = linear(&mut self.b, &format!("{at}.{which}_proj"), x, hidden_size, qkv_bias)?;
        let split = [1, self.spec.positions(), heads, hidden_size / heads];
        let y = self.b.reshape(&format!("{at}.{which}_heads"), y, &split)?;
        transpose(&mut self.b, &format!("{at}.{which}_transpose"), y, perm)
    }

    /// `[1, n·n, C] → [1, (n/s)², s²·C]`: output token `(Y, X)`, channel `(dy·s + dx)·C + c` is input row `Y·s + dy`,
    /// column `X·s + dx`, channel `c`.
    fn pixel_shuffle(&mut self, x: ValueId) -> Result<ValueId> {
        let &VisionSpec { pixel_shuffle: s, hidden_size, .. } = self.spec;
        let side = self.spec.patches_per_side() / s;
        // The columns of a square and their channels are neighbours already, so they move as one axis.
        let x = self.b.reshape("pixel_shuffle.grid", x, &[side, s, side, s * hidden_size])?;
        let x = transpose(&mut self.b, "pixel_shuffle.transpose", x, [0, 2, 1, 3])?;
        self.b.reshape("pixel_shuffle", x, &[1, self.spec.tokens_per_tile(), self.spec.shuffled_size()])
    }

    /// `[1, T, s²·C] → [1, T, E]`
    fn connect(&mut self, x: ValueId) -> Result<ValueId> {
        let width = self.spec.output_size;
        match self.spec.connector {
            Connector::Linear => linear(&mut self.b, PROJECTION, x, width, false),
            Connector::Mlp { norm_eps, activation } => {
                let x = layer_norm(&mut self.b, PROJECTOR_NORM, x, norm_eps)?;
                let x = linear(&mut self.b, PROJECTOR_LINEAR_1, x, width, true)?;
                let x = self.b.node("multi_modal_projector.act", activation_op(activation), &[x])?;
                linear(&mut self.b, PROJECTOR_LINEAR_2, x, width, true)
            }
        }
    }
}

#[cfg(test)]
mod tests;
