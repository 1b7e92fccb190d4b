"""The SmolVLM network in plain PyTorch, with the parameter names of the published checkpoints.

Only what training needs: one 64x64 tile an image, right-padded batches, no key/value cache. `export.py` checks that
transformers computes the same logits from the exported folder.
"""
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab_size: int = 0          # set from the tokenizer
    image_token_id: int = 0      # set from the tokenizer
    image_size: int = 64
    patch_size: int = 8
    scale_factor: int = 4        # pixel shuffle: 64 patches -> 4 rows an image
    vision_width: int = 96
    vision_layers: int = 3
    vision_heads: int = 3
    vision_mlp: int = 384
    text_width: int = 128
    text_layers: int = 4
    text_heads: int = 4
    text_kv_heads: int = 2
    head_dim: int = 32
    text_mlp: int = 384
    rope_theta: float = 1000.0
    max_positions: int = 1024

    @property
    def rows(self):
        """Rows of the decoder's input that one image fills."""
        return (self.image_size // self.patch_size // self.scale_factor) ** 2

    def to_dict(self):
        return asdict(self)


class VisionAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.vision_heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(c.vision_width, c.vision_width))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p(x).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


class VisionMlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc1 = nn.Linear(c.vision_width, c.vision_mlp)
        self.fc2 = nn.Linear(c.vision_mlp, c.vision_width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class VisionLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn = VisionAttention(c)
        self.layer_norm1 = nn.LayerNorm(c.vision_width, eps=1e-6)
        self.mlp = VisionMlp(c)
        self.layer_norm2 = nn.LayerNorm(c.vision_width, eps=1e-6)

    def forward(self, x):
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class VisionEmbeddings(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, c.vision_width, c.patch_size, c.patch_size)
        self.position_embedding = nn.Embedding((c.image_size // c.patch_size) ** 2, c.vision_width)

    def forward(self, pixels):
        return self.patch_embedding(pixels).flatten(2).transpose(1, 2) + self.position_embedding.weight


class VisionEncoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.layers = nn.ModuleList(VisionLayer(c) for _ in range(c.vision_layers))


class VisionModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embeddings = VisionEmbeddings(c)
        self.encoder = VisionEncoder(c)
        self.post_layernorm = nn.LayerNorm(c.vision_width, eps=1e-6)

    def forward(self, pixels):
        x = self.embeddings(pixels)
        for layer in self.encoder.layers:
            x = layer(x)
        return self.post_layernorm(x)


class Projection(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.proj = nn.Linear(c.vision_width * c.scale_factor ** 2, c.text_width, bias=False)


class Connector(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.scale = c.scale_factor
        self.modality_projection = Projection(c)

    def forward(self, x):
        b, t, d = x.shape
        side, s = int(t ** 0.5), self.scale
        x = x.view(b, side // s, s, side // s, s, d).permute(0, 1, 3, 2, 4, 5).reshape(b, t // s ** 2, d * s * s)
        return self.modality_projection.proj(x)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-5)


class TextAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.head_dim, self.groups = c.head_dim, c.text_heads // c.text_kv_heads
        self.q_proj = nn.Linear(c.text_width, c.text_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.text_width, c.text_kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.text_width, c.text_kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.text_heads * c.head_dim, c.text_width, bias=False)

    def forward(self, x, rope):
        b, t, _ = x.shape
        q, k, v = (p(x).view(b, t, -1, self.head_dim).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, rope), rotate(k, rope)
        k, v = k.repeat_interleave(self.groups, 1), v.repeat_interleave(self.groups, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


def rotate(x, rope):
    cos, sin = rope
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class TextMlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.text_width, c.text_mlp, bias=False)
        self.up_proj = nn.Linear(c.text_width, c.text_mlp, bias=False)
        self.down_proj = nn.Linear(c.text_mlp, c.text_width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class TextLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn = TextAttention(c)
        self.mlp = TextMlp(c)
        self.input_layernorm = RmsNorm(c.text_width)
        self.post_attention_layernorm = RmsNorm(c.text_width)

    def forward(self, x, rope):
        x = x + self.self_attn(self.input_layernorm(x), rope)
        return x + self.mlp(self.post_attention_layernorm(x))


class TextModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.text_width)
        self.layers = nn.ModuleList(TextLayer(c) for _ in range(c.text_layers))
        self.norm = RmsNorm(c.text_width)
        inv = c.rope_theta ** -(torch.arange(0, c.head_dim, 2).float() / c.head_dim)
        angles = torch.outer(torch.arange(c.max_positions).float(), inv)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        rope = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        for layer in self.layers:
            x = layer(x, rope)
        return self.norm(x)


class Inner(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.vision_model = VisionModel(c)
        self.connector = Connector(c)
        self.text_model = TextModel(c)


class SmolVLM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.model = Inner(c)
        self.lm_head = nn.Linear(c.text_width, c.vocab_size, bias=False)
        for name, p in self.named_parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.05)
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        # the rows of an image start out as small as the embeddings of words
        nn.init.normal_(self.model.connector.modality_projection.proj.weight, std=0.05 / (c.vision_width * c.scale_factor ** 2) ** 0.5)

    def image_rows(self, images):
        """uint8 images (n, 3, 64, 64) -> (n, rows, width) as the decoder reads them."""
        return self.model.connector(self.model.vision_model(images.float() / 127.5 - 1.0))

    def hidden(self, ids, rows):
        """`rows` (images in the order of their markers, rows, width) replace the `<image>` embeddings."""
        x = self.model.text_model.embed_tokens(ids)
        mask = ids == self.config.image_token_id
        if rows is not None and rows.numel():
            x = x.clone()
            x[mask] = rows.reshape(-1, rows.shape[-1]).to(x.dtype)
        return self.model.text_model(x)

    def forward(self, ids, rows):
        return self.lm_head(self.hidden(ids, rows))
