//! The vision encoder's weights: its nodes are called as transformers calls its modules, so a prefix in front of a
//! weight's name makes it the name of the tensor.

use super::Adjust;
use super::binder::Binder;
use super::layout::VisionLayout;
use crate::error::Result;
use crate::models::vision::names::{
    ATTENTION_SCALE, FC1, FC2, MLP_SCALE, PROJECTION, PROJECTOR_LINEAR_1, PROJECTOR_LINEAR_2, PROJECTOR_NORM,
    TowerNames,
};
use crate::registry::{Connector, VisionSpec, VisionTower};

/// Tower and connector.
pub(super) fn bind_encoder(binder: &mut Binder<'_>, spec: &VisionSpec, layout: &VisionLayout) -> Result<()> {
    let mut tower = Part { binder: &mut *binder, spec, names: TowerNames::of(spec.tower), prefix: layout.tower };
    tower.bind_embeddings()?;
    for layer in 0..spec.layers {
        tower.bind_layer(&tower.names.layer(layer))?;
    }
    if spec.post_norm {
        tower.bind_norm(tower.names.post_norm, spec.hidden_size)?;
    }
    Part { binder, spec, names: TowerNames::of(spec.tower), prefix: layout.connector }.bind_connector()
}

/// Modules below one prefix.
struct Part<'b, 'a> {
    binder: &'b mut Binder<'a>,
    spec: &'b VisionSpec,
    names: &'static TowerNames,
    prefix: &'static str,
}

impl Part<'_, '_> {
    fn bind_embeddings(&mut self) -> Result<()> {
        let &VisionSpec { channels, patch_size, hidden_size, .. } = self.spec;
        let (weight, bias) = (format!("{}.weight", self.names.patches), format!("{}.bias", self.names.patches));
        let kernel = [hidden_size, channels, patch_size, patch_size];
        let matrix = [hidden_size, self.spec.patch_values()];
        self.binder.bind_as(&weight, &matrix, &self.tensor(&weight), &kernel, Adjust::None)?;
        self.binder.bind(&bias, &self.tensor(&bias), &[hidden_size])?;
        if self.spec.class_token {
            let class = self.names.class_token;
            self.binder.bind(class, &self.tensor(class), &[1, 1, hidden_size])?;
        }
        self.bind_positions()
    }

    fn bind_positions(&mut self) -> Result<()> {
        let (table, width) = (self.names.positions, self.spec.hidden_size);
        let (tensor, positions) = (self.tensor(table), self.spec.positions());
        match self.spec.tower {
            VisionTower::Siglip => {
                let rows = self.spec.position_rule.table_rows(self.spec.patches_per_side());
                self.binder.bind_gathered(table, &tensor, [positions, width], rows)
            }
            VisionTower::InternVit => self.binder.bind(table, &tensor, &[1, positions, width]),
        }
    }

    fn bind_layer(&mut self, at: &str) -> Result<()> {
        let &VisionSpec { hidden_size, ffn_size, qkv_bias, .. } = self.spec;
        let square = [hidden_size, hidden_size];
        let attention = format!("{at}.{}", self.names.attention);
        for which in ["q_proj", "k_proj", "v_proj"] {
            self.bind_linear(&format!("{attention}.{which}"), square, qkv_bias)?;
        }
        self.bind_branch_end(at, ATTENTION_SCALE, &format!("{attention}.{}", self.names.out_proj), square)?;
        self.bind_linear(&format!("{at}.{FC1}"), [ffn_size, hidden_size], true)?;
        self.bind_branch_end(at, MLP_SCALE, &format!("{at}.{FC2}"), [hidden_size, ffn_size])?;
        self.bind_norm(&format!("{at}.{}", self.names.norm1), hidden_size)?;
        self.bind_norm(&format!("{at}.{}", self.names.norm2), hidden_size)
    }

    /// The last linear layer of a residual branch, with the layer scale folded in.
    fn bind_branch_end(&mut self, at: &str, scale: &str, node: &str, shape: [usize; 2]) -> Result<()> {
        if !self.spec.layer_scale {
            return self.bind_linear(node, shape, true);
        }
        let factors = self.binder.vector(&self.tensor(&format!("{at}.{scale}")), self.spec.hidden_size)?;
        self.binder.bind_scaled_linear(node, &self.tensor(node), shape, &factors)
    }

    fn bind_connector(&mut self) -> Result<()> {
        let (width, output) = (self.spec.shuffled_size(), self.spec.output_size);
        match self.spec.connector {
            Connector::Linear => self.bind_linear(PROJECTION, [output, width], false),
            Connector::Mlp { .. } => {
                self.bind_norm(PROJECTOR_NORM, width)?;
                self.bind_linear(PROJECTOR_LINEAR_1, [output, width], true)?;
                self.bind_linear(PROJECTOR_LINEAR_2, [output, output], true)
            }
        }
    }

    fn bind_linear(&mut self, node: &str, shape: [usize; 2], bias: bool) -> Result<()> {
        self.binder.bind_linear(node, &self.tensor(node), shape, bias)
    }

    fn bind_norm(&mut self, node: &str, width: usize) -> Result<()> {
        for part in ["weight", "bias"] {
            let name = format!("{node}.{part}");
            self.binder.bind(&name, &self.tensor(&name), &[width])?;
        }
        Ok(())
    }

    fn tensor(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}
