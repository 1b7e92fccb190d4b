//! What a vision encoder looks like, as data: the tower, the pixel shuffle and the connector to the decoder.

use super::check::{MAX_LAYERS, Problem, too_many_layers};
use super::spec::Activation;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// No encoder takes larger pictures at once; large pictures are cut into tiles before.
const MAX_IMAGE_SIZE: usize = 4096;

/// Hyper-parameters of a vision encoder: one square RGB picture (a tile) in, rows of the decoder's width out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VisionSpec {
    /// Which family of towers it belongs to; decides how checkpoints name its tensors.
    pub tower: VisionTower,
    /// Side of the picture S, pixels.
    pub image_size: usize,
    /// Side of a patch, pixels. Pixels right and below the last whole patch are not looked at.
    pub patch_size: usize,
    /// Colour channels; 3.
    pub channels: usize,
    /// Residual width of the tower.
    pub hidden_size: usize,
    /// Number of encoder layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Hidden width of the MLP.
    pub ffn_size: usize,
    /// Epsilon of the tower's layer norms.
    pub norm_eps: f32,
    /// MLP activation.
    pub activation: Activation,
    /// q, k and v have biases. (The output projection and the MLP always have.)
    pub qkv_bias: bool,
    /// A learned token stands in front of the patches; it is dropped behind the tower.
    pub class_token: bool,
    /// Each residual branch is multiplied by a learned vector.
    pub layer_scale: bool,
    /// A layer norm follows the last layer.
    pub post_norm: bool,
    /// Squares of this many patches a side become one token.
    pub pixel_shuffle: usize,
    /// What brings the shuffled patches to the decoder's width.
    pub connector: Connector,
    /// Width E of the decoder.
    pub output_size: usize,
    /// Which row of the position table a patch gets.
    #[serde(default)]
    pub position_rule: PositionRule,
}

/// Family of vision towers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VisionTower {
    /// SigLIP as in Idefics 3 and SmolVLM.
    Siglip,
    /// InternViT as in InternVL.
    InternVit,
}

/// From the shuffled patches to the decoder's width.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Connector {
    /// One matrix without bias.
    Linear,
    /// Layer norm, linear, activation, linear.
    Mlp {
        /// Epsilon of the norm.
        norm_eps: f32,
        /// The activation.
        activation: Activation,
    },
}

/// Which row of the position table the patch in row `i` and column `j` of `n` a side gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionRule {
    /// `i·n + j`, as the model was trained.
    #[default]
    Identity,
    /// What upstream's export of SmolVLM computes: each axis counts 0, 0, 1, 2, …, n-2, because it multiplies the
    /// fraction `i/n` by `1 - 1e-6` before it looks for the bucket (spec/pipeline-contract.md 4.1). For comparisons
    /// with upstream's files only.
    UpstreamShifted,
}

impl PositionRule {
    /// Both rules, the default first.
    pub const ALL: [PositionRule; 2] = [PositionRule::Identity, PositionRule::UpstreamShifted];

    /// Name in options, e.g. `upstream_shifted`.
    pub fn name(self) -> &'static str {
        match self {
            PositionRule::Identity => "identity",
            PositionRule::UpstreamShifted => "upstream_shifted",
        }
    }

    /// The rule called `name`; `-` and `_` are the same.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.replace('-', "_");
        Self::ALL.into_iter().find(|rule| rule.name() == name)
    }

    /// Table rows of the patches of a square of `side` patches, row by row.
    pub fn table_rows(self, side: usize) -> Vec<usize> {
        let bucket = |index: usize| match self {
            PositionRule::Identity => index,
            PositionRule::UpstreamShifted => index.saturating_sub(1),
        };
        (0..side).flat_map(|row| (0..side).map(move |column| bucket(row) * side + bucket(column))).collect()
    }
}

impl VisionSpec {
    /// Patches along one side of the picture.
    pub fn patches_per_side(&self) -> usize {
        self.image_size / self.patch_size.max(1)
    }

    /// Positions the tower works on: the patches, and the class token if there is one.
    pub fn positions(&self) -> usize {
        self.patches_per_side().saturating_pow(2).saturating_add(usize::from(self.class_token))
    }

    /// Rows T that one picture becomes.
    pub fn tokens_per_tile(&self) -> usize {
        (self.patches_per_side() / self.pixel_shuffle.max(1)).saturating_pow(2)
    }

    /// Values of one patch, channel by channel.
    pub fn patch_values(&self) -> usize {
        self.channels.saturating_mul(self.patch_size.saturating_pow(2))
    }

    /// Width of a token between pixel shuffle and connector.
    pub fn shuffled_size(&self) -> usize {
        self.hidden_size.saturating_mul(self.pixel_shuffle.saturating_pow(2))
    }

    /// Check that a graph can be built from this: sizes positive and within limits, the patches a multiple of the
    /// pixel shuffle, the width a multiple of the heads.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the field and its value.
    pub fn validate(&self) -> Result<()> {
        self.check().map_err(|(field, reason)| Error::InvalidArgument(format!("vision: {field}: {reason}")))
    }

    pub(super) fn check(&self) -> std::result::Result<(), Problem> {
        self.check_sizes()?;
        self.check_patches()?;
        let mlp_eps = match self.connector {
            Connector::Linear => 0.0,
            Connector::Mlp { norm_eps, .. } => norm_eps,
        };
        if let Some(eps) = [self.norm_eps, mlp_eps].into_iter().find(|eps| !(eps.is_finite() && *eps >= 0.0)) {
            return Err(("layer_norm_eps", format!("{eps} is not a non-negative number")));
        }
        if self.position_rule == PositionRule::UpstreamShifted && self.tower != VisionTower::Siglip {
            return Err(("position_rule", "upstream_shifted is a rule for SmolVLM's tower only".into()));
        }
        Ok(())
    }

    fn check_sizes(&self) -> std::result::Result<(), Problem> {
        let sizes = [
            ("image_size", self.image_size),
            ("patch_size", self.patch_size),
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.layers),
            ("num_attention_heads", self.heads),
            ("intermediate_size", self.ffn_size),
            ("pixel_shuffle", self.pixel_shuffle),
            ("output_size", self.output_size),
        ];
        if let Some((field, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err((field, "0 is not allowed".into()));
        }
        if self.layers > MAX_LAYERS {
            return Err(("num_hidden_layers", too_many_layers(self.layers)));
        }
        if self.channels != 3 {
            return Err(("num_channels", format!("{} channels; pictures have 3: red, green, blue", self.channels)));
        }
        if self.image_size > MAX_IMAGE_SIZE {
            return Err(("image_size", format!("{} pixels; at most {MAX_IMAGE_SIZE} are supported", self.image_size)));
        }
        if !self.hidden_size.is_multiple_of(self.heads) {
            let reason = format!("{} is not a multiple of num_attention_heads {}", self.hidden_size, self.heads);
            return Err(("hidden_size", reason));
        }
        Ok(())
    }

    fn check_patches(&self) -> std::result::Result<(), Problem> {
        if self.patch_size > self.image_size {
            let reason = format!("{} is larger than image_size {}", self.patch_size, self.image_size);
            return Err(("patch_size", reason));
        }
        let side = self.patches_per_side();
        if !side.is_multiple_of(self.pixel_shuffle) {
            return Err(("pixel_shuffle", format!("{side} patches a side do not divide by {}", self.pixel_shuffle)));
        }
        // A size that overflows is saturated, and then too large for its bytes to be addressed.
        let elements = [
            ("patch_size", self.patch_values().checked_mul(self.hidden_size)),
            ("image_size", self.positions().checked_mul(self.hidden_size)),
            ("intermediate_size", self.ffn_size.checked_mul(self.hidden_size)),
            ("hidden_size", self.hidden_size.checked_mul(self.hidden_size)),
            ("pixel_shuffle", self.shuffled_size().checked_mul(self.output_size)),
        ];
        let fits = |elements: Option<usize>| {
            elements.and_then(|n| n.checked_mul(size_of::<f32>())).is_some_and(|bytes| isize::try_from(bytes).is_ok())
        };
        match elements.into_iter().find(|(_, elements)| !fits(*elements)) {
            Some((field, _)) => Err((field, "the sizes multiply to more than this machine can address".into())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The encoder of SmolVLM-500M.
    fn smolvlm() -> VisionSpec {
        VisionSpec {
            tower: VisionTower::Siglip,
            image_size: 512,
            patch_size: 16,
            channels: 3,
            hidden_size: 768,
            layers: 12,
            heads: 12,
            ffn_size: 3072,
            norm_eps: 1e-6,
            activation: Activation::GeluTanh,
            qkv_bias: true,
            class_token: false,
            layer_scale: false,
            post_norm: true,
            pixel_shuffle: 4,
            connector: Connector::Linear,
            output_size: 960,
            position_rule: PositionRule::Identity,
        }
    }

    #[test]
    fn sizes_follow_from_picture_patch_and_shuffle() {
        let spec = smolvlm();
        assert_eq!((spec.patches_per_side(), spec.positions(), spec.tokens_per_tile()), (32, 1024, 64));
        assert_eq!((spec.patch_values(), spec.shuffled_size()), (768, 12_288));
        let intern = VisionSpec { image_size: 448, patch_size: 14, class_token: true, pixel_shuffle: 2, ..spec };
        assert_eq!((intern.positions(), intern.tokens_per_tile()), (1025, 256));
    }

    #[test]
    fn a_picture_need_not_be_a_multiple_of_the_patch() {
        // SmolVLM 2.2B: 27 patches of 14 pixels, 6 pixels left over.
        let spec = VisionSpec { image_size: 384, patch_size: 14, pixel_shuffle: 3, ..smolvlm() };
        spec.validate().unwrap();
        assert_eq!((spec.patches_per_side(), spec.tokens_per_tile()), (27, 81));
    }

    #[test]
    fn what_no_graph_can_be_built_from_is_named() {
        let base = smolvlm;
        let cases = [
            (VisionSpec { layers: 0, ..base() }, "num_hidden_layers: 0"),
            (VisionSpec { layers: 1001, ..base() }, "num_hidden_layers: 1001"),
            (VisionSpec { heads: 7, ..base() }, "hidden_size: 768 is not a multiple of num_attention_heads 7"),
            (VisionSpec { channels: 1, ..base() }, "num_channels: 1"),
            (VisionSpec { image_size: 5000, ..base() }, "image_size: 5000"),
            (VisionSpec { patch_size: 513, ..base() }, "patch_size: 513 is larger than image_size 512"),
            (VisionSpec { pixel_shuffle: 3, ..base() }, "pixel_shuffle: 32 patches a side do not divide by 3"),
            (VisionSpec { norm_eps: f32::NAN, ..base() }, "layer_norm_eps: NaN"),
            (VisionSpec { ffn_size: usize::MAX / 2, ..base() }, "intermediate_size: the sizes multiply"),
            (
                VisionSpec { tower: VisionTower::InternVit, position_rule: PositionRule::UpstreamShifted, ..base() },
                "position_rule: upstream_shifted",
            ),
        ];
        for (spec, expected) in cases {
            let error = spec.validate().unwrap_err().to_string();
            assert!(error.contains(expected), "{expected} is missing in: {error}");
        }
    }

    #[test]
    fn the_shifted_rule_counts_zero_twice_and_never_reaches_the_last() {
        assert_eq!(PositionRule::Identity.table_rows(3), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(PositionRule::UpstreamShifted.table_rows(3), [0, 0, 1, 0, 0, 1, 3, 3, 4]);
        // SmolVLM-500M: the first row of 32 patches.
        assert_eq!(PositionRule::Identity.table_rows(32)[..32], (0..32).collect::<Vec<_>>());
        let shifted: Vec<usize> = std::iter::once(0).chain(0..31).collect();
        assert_eq!(PositionRule::UpstreamShifted.table_rows(32)[..32], shifted);
    }

    /// The rule is upstream's formula, not a guess at it: buckets `1/n … (n-1)/n`, fraction `(i/n)·(1 - 1e-6)`.
    #[test]
    fn the_shifted_rule_is_what_the_formula_gives_in_single_precision() {
        for side in [8usize, 16, 27, 32] {
            let boundaries: Vec<f32> = (1..side).map(|i| i as f32 / side as f32).collect();
            let bucket = |i: usize| {
                let fraction = (i as f32 / side as f32) * (1.0 - 1e-6);
                boundaries.iter().filter(|&&boundary| boundary <= fraction).count()
            };
            let rows = PositionRule::UpstreamShifted.table_rows(side);
            let expected: Vec<usize> =
                (0..side).flat_map(|i| (0..side).map(move |j| bucket(i) * side + bucket(j))).collect();
            assert_eq!(rows, expected, "{side} patches a side");
        }
    }

    #[test]
    fn rules_have_names() {
        for rule in PositionRule::ALL {
            assert_eq!(PositionRule::parse(rule.name()), Some(rule));
        }
        assert_eq!(PositionRule::parse("upstream-shifted"), Some(PositionRule::UpstreamShifted));
        assert_eq!(PositionRule::parse("shifted"), None);
    }
}
