//! Vision encoder graphs with random weights, in the node order that engines recognise: what tests and benchmarks of
//! the CPU engine run without a checkpoint.
#![allow(dead_code, reason = "tests and benchmarks each use a part of it")]

use etgenai::graph::{DType, Graph, GraphBuilder, Op, ValueId, WeightProvider};
use std::ops::Range;

/// What stands between the tower and the text model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Projector {
    /// One matrix.
    Linear,
    /// LayerNorm, matrix, GELU, matrix.
    Mlp,
}

/// Hyper-parameters of an encoder.
#[derive(Debug, Clone)]
pub struct Encoder {
    /// Pixels along a side.
    pub image: usize,
    /// Pixels along a side of a patch.
    pub patch: usize,
    /// Channels of the tower.
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    /// Channels between the matrices of an MLP.
    pub ffn: usize,
    /// A class token stands before the patches and is dropped at the end.
    pub class_token: bool,
    /// Activation of the MLPs of the tower.
    pub activation: Op,
    /// A norm follows the last layer.
    pub final_norm: bool,
    /// Patches along a side that become one token.
    pub shuffle: usize,
    pub projector: Projector,
    /// Channels of the text model.
    pub text: usize,
}

impl Encoder {
    /// SmolVLM-500M: 512 pixels, 1024 patches, 64 tokens.
    pub fn smolvlm_500m() -> Self {
        Self {
            image: 512,
            patch: 16,
            width: 768,
            layers: 12,
            heads: 12,
            ffn: 3072,
            class_token: false,
            activation: Op::GeluTanh,
            final_norm: true,
            shuffle: 4,
            projector: Projector::Linear,
            text: 960,
        }
    }

    /// InternVL3-1B: 448 pixels, 1024 patches and a class token, 256 tokens.
    pub fn internvl3_1b() -> Self {
        Self {
            image: 448,
            patch: 14,
            width: 1024,
            layers: 24,
            heads: 16,
            ffn: 4096,
            class_token: true,
            activation: Op::Gelu,
            final_norm: false,
            shuffle: 2,
            projector: Projector::Mlp,
            text: 896,
        }
    }

    /// As [`smolvlm_500m`](Self::smolvlm_500m), in the size of the tiny checkpoints: 64 patches, 4 tokens.
    pub fn tiny_smolvlm() -> Self {
        Self { image: 64, patch: 8, width: 48, layers: 2, heads: 3, ffn: 96, text: 64, ..Self::smolvlm_500m() }
    }

    /// As [`internvl3_1b`](Self::internvl3_1b), in the size of the tiny checkpoints: 17 rows, 4 tokens.
    pub fn tiny_internvl3() -> Self {
        Self { image: 56, patch: 14, width: 48, layers: 2, heads: 3, ffn: 96, text: 64, ..Self::internvl3_1b() }
    }

    /// Patches along a side.
    fn grid(&self) -> usize {
        self.image / self.patch
    }

    /// Rows of the tower.
    pub fn rows(&self) -> usize {
        self.grid() * self.grid() + usize::from(self.class_token)
    }

    /// Rows of the result.
    pub fn tokens(&self) -> usize {
        let side = self.grid() / self.shuffle;
        side * side
    }

    /// Multiplications and additions of matrix products and attention for one picture.
    pub fn flops(&self) -> u64 {
        let Self { width, ffn, heads, .. } = *self;
        let (rows, head) = (self.rows(), width / heads);
        let layer = rows * width * (4 * width + 2 * ffn) + 2 * heads * rows * rows * head;
        let patches = self.grid() * self.grid() * 3 * self.patch * self.patch * width;
        let shuffled = self.shuffle * self.shuffle * width;
        let projector = match self.projector {
            Projector::Linear => shuffled * self.text,
            Projector::Mlp => shuffled * self.text + self.text * self.text,
        };
        2 * (self.layers * layer + patches + self.tokens() * projector) as u64
    }

    /// The graph `forward`: `pixel_values` `[1, 3, S, S]` to `image_features` `[1, T, E]`.
    pub fn graph(&self) -> Graph {
        self.build().expect("the shapes fit")
    }

    fn build(&self) -> etgenai::Result<Graph> {
        let mut b = GraphBuilder::new("forward");
        let pixels = b.input("pixel_values", DType::F32, &[1, 3, self.image, self.image])?;
        let mut x = self.embed(&mut b, pixels)?;
        for layer in 0..self.layers {
            x = self.layer(&mut b, &format!("layers.{layer}"), x)?;
        }
        if self.final_norm {
            x = norm(&mut b, "post_layernorm", x)?;
        }
        let features = self.project(&mut b, x)?;
        b.output(features, "image_features")?;
        b.finish()
    }

    fn embed(&self, b: &mut GraphBuilder, pixels: ValueId) -> etgenai::Result<ValueId> {
        let (g, p, c) = (self.grid(), self.patch, self.width);
        let x = b.reshape("patches.split", pixels, &[1, 3, g, p, g, p])?;
        let x = b.node("patches.transpose", Op::Transpose { perm: vec![0, 2, 4, 1, 3, 5] }, &[x])?;
        let x = b.reshape("patches", x, &[1, g * g, 3 * p * p])?;
        let mut x = linear(b, "patch_embedding", x, c)?;
        if self.class_token {
            let token = b.weight("class_embedding", &[1, 1, c])?;
            x = b.node("with_class", Op::Concat { axis: 1 }, &[token, x])?;
        }
        let positions = b.weight("position_embedding", &[1, self.rows(), c])?;
        b.node("positioned", Op::Add, &[x, positions])
    }

    fn layer(&self, b: &mut GraphBuilder, at: &str, x: ValueId) -> etgenai::Result<ValueId> {
        let n = norm(b, &format!("{at}.layer_norm1"), x)?;
        let attended = self.attention(b, &format!("{at}.self_attn"), n)?;
        let x = b.node(&format!("{at}.attention_residual"), Op::Add, &[x, attended])?;
        let n = norm(b, &format!("{at}.layer_norm2"), x)?;
        let h = linear(b, &format!("{at}.mlp.fc1"), n, self.ffn)?;
        let h = b.node(&format!("{at}.mlp.activation"), self.activation.clone(), &[h])?;
        let h = linear(b, &format!("{at}.mlp.fc2"), h, self.width)?;
        b.node(&format!("{at}.mlp_residual"), Op::Add, &[x, h])
    }

    fn attention(&self, b: &mut GraphBuilder, at: &str, x: ValueId) -> etgenai::Result<ValueId> {
        let (rows, heads, dim) = (self.rows(), self.heads, self.width / self.heads);
        let mut operand = |which: &str, perm: [usize; 4]| {
            let y = linear(b, &format!("{at}.{which}_proj"), x, self.width)?;
            let y = b.reshape(&format!("{at}.{which}_heads"), y, &[1, rows, heads, dim])?;
            b.node(&format!("{at}.{which}_transpose"), Op::Transpose { perm: perm.to_vec() }, &[y])
        };
        let q = operand("q", [0, 2, 1, 3])?;
        let k = operand("k", [0, 2, 3, 1])?;
        let v = operand("v", [0, 2, 1, 3])?;
        let scores = b.node(&format!("{at}.scores"), Op::MatMul, &[q, k])?;
        let factor = 1.0 / (dim as f32).sqrt();
        let scores = b.node(&format!("{at}.scale"), Op::Scale { factor }, &[scores])?;
        let weights = b.node(&format!("{at}.softmax"), Op::Softmax, &[scores])?;
        let mixed = b.node(&format!("{at}.mix"), Op::MatMul, &[weights, v])?;
        let mixed = b.node(&format!("{at}.mix_transpose"), Op::Transpose { perm: vec![0, 2, 1, 3] }, &[mixed])?;
        let mixed = b.reshape(&format!("{at}.mix_reshape"), mixed, &[1, rows, self.width])?;
        linear(b, &format!("{at}.out_proj"), mixed, self.width)
    }

    fn project(&self, b: &mut GraphBuilder, x: ValueId) -> etgenai::Result<ValueId> {
        let (g, s, c) = (self.grid(), self.shuffle, self.width);
        let mut x = x;
        if self.class_token {
            x = b.node("without_class", Op::Slice { axis: 1, start: 1, len: g * g }, &[x])?;
        }
        let x = b.reshape("shuffle.split", x, &[1, g / s, s, g / s, s, c])?;
        let x = b.node("shuffle.transpose", Op::Transpose { perm: vec![0, 1, 3, 2, 4, 5] }, &[x])?;
        let x = b.reshape("shuffle", x, &[1, self.tokens(), s * s * c])?;
        if self.projector == Projector::Linear {
            return linear_without_bias(b, "projector", x, self.text);
        }
        let n = norm(b, "projector.0", x)?;
        let h = linear(b, "projector.1", n, self.text)?;
        let h = b.node("projector.2", Op::Gelu, &[h])?;
        linear(b, "projector.3", h, self.text)
    }
}

fn linear_without_bias(b: &mut GraphBuilder, name: &str, x: ValueId, out: usize) -> etgenai::Result<ValueId> {
    let width = b.shape(x).last().copied().unwrap_or_default();
    let weight = b.weight(&format!("{name}.weight"), &[out, width])?;
    b.node(name, Op::Linear, &[x, weight])
}

fn linear(b: &mut GraphBuilder, name: &str, x: ValueId, out: usize) -> etgenai::Result<ValueId> {
    let width = b.shape(x).last().copied().unwrap_or_default();
    let weight = b.weight(&format!("{name}.weight"), &[out, width])?;
    let bias = b.weight(&format!("{name}.bias"), &[out])?;
    b.node(name, Op::Linear, &[x, weight, bias])
}

fn norm(b: &mut GraphBuilder, name: &str, x: ValueId) -> etgenai::Result<ValueId> {
    let width = b.shape(x).last().copied().unwrap_or_default();
    let weight = b.weight(&format!("{name}.norm_weight"), &[width])?;
    let bias = b.weight(&format!("{name}.norm_bias"), &[width])?;
    b.node(name, Op::LayerNorm { eps: 1e-6 }, &[x, weight, bias])
}

/// Repeatable numbers in -1..1.
pub fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Random weights of sizes that keep the values of a tower in the order of 1, as training does: norms near 1, rows of a
/// matrix of length near 1.
pub struct RandomWeights;

impl WeightProvider for RandomWeights {
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> etgenai::Result<()> {
        let width = out.len() / rows.len().max(1);
        let seed = name.bytes().fold(rows.start as u64, |hash, byte| hash.wrapping_mul(131).wrapping_add(byte.into()));
        let mut random = noise(seed);
        let (offset, size) = match name {
            _ if name.ends_with("norm_weight") => (1.0, 0.3),
            _ if name.ends_with(".weight") => (0.0, (3.0 / width as f32).sqrt()),
            _ => (0.0, 0.3),
        };
        out.iter_mut().for_each(|value| *value = offset + size * random());
        Ok(())
    }
}
