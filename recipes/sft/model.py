"""A small causal transformer over bytes, in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from recipes.sft.config import ModelConfig
from recipes.sft.data import NUM_TOKENS


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind its norm and beside the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.attention_norm = nn.LayerNorm(config.dim)
        self.queries_keys_values = nn.Linear(config.dim, 3 * config.dim)
        self.attention_out = nn.Linear(config.dim, config.dim)
        self.mlp_norm = nn.LayerNorm(config.dim)
        self.mlp = nn.Sequential(
            nn.Linear(config.dim, 4 * config.dim), nn.GELU(), nn.Linear(4 * config.dim, config.dim)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, D); a byte sees those before it."""
        batch, length, dim = hidden.shape
        heads = self.queries_keys_values(self.attention_norm(hidden)).view(batch, length, 3, self.num_heads, -1)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, dim))
        return hidden + self.mlp(self.mlp_norm(hidden))


class ByteModel(nn.Module):
    """From bytes to logits of the next one.

    Padding is on the right, so that no supervised byte sees any of it and no mask is needed.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS, config.dim)
        self.position = nn.Embedding(config.max_tokens, config.dim)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.num_layers)))
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, NUM_TOKENS, bias=False)
        for embedding in (self.embedding, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """(B, T) int64 to (B, T, 259) logits."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.embedding(input_ids) + self.position(places)
        return self.head(self.norm(self.blocks(hidden)))
