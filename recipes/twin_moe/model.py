"""A transformer over bytes whose every block has a router and two populations of experts, in plain torch.

In go bytes, out come the next byte's logits and those of every router, which the loss needs. Invariant: dropless, every
token reaches its k experts whatever the load; equal inputs give equal bits on the CPU; one wait for the device a layer.

Shapes: B rows, T tokens of a row, N = B x T, D = dim, E experts, k chosen ones, C the largest load, F = expert_dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from recipes.twin_moe.config import ModelConfig, TwinConfig
from recipes.twin_moe.data import VOCABULARY_SIZE


class Output(NamedTuple):
    """What a forward gives.

    Attributes:
        logits: (B, T, 256) of the next byte.
        router_logits: One (B, T, E) float32 a layer, before softmax.
    """

    logits: torch.Tensor
    router_logits: tuple[torch.Tensor, ...]


class NumParameters(NamedTuple):
    """Parameters of a model: all of them, and those that act on one token (k of E experts)."""

    total: int
    active: int


class Router(nn.Module):
    """Chooses k of E experts for each token, and weighs them by the softmax over the chosen ones' logits.

    Attributes:
        num_experts: E.
        top_k: k.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_experts, self.top_k = config.num_experts, config.top_k
        self.linear = nn.Linear(config.dim, config.num_experts, bias=False)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(B, T, D) to logits (B, T, E), weights (B, T, k) that sum to 1, and indices (B, T, k) int64."""
        weight = self.linear.weight
        # Not under autocast: in half precision the z of large logits is that of others, and near ties are chosen anew.
        with torch.autocast(hidden.device.type, enabled=False):
            logits = F.linear(hidden.to(weight.dtype), weight)
            chosen, indices = logits.topk(self.top_k, dim=-1)
            return logits, chosen.softmax(-1), indices


class Experts(nn.Module):
    """E gated perceptrons (SwiGLU), as stacked weights, so that a population is a slice of them.

    Attributes:
        gate_up: (E, D, 2 F).
        down: (E, F, D).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(config.num_experts, config.dim, 2 * config.expert_dim))
        self.down = nn.Parameter(torch.empty(config.num_experts, config.expert_dim, config.dim))

    def forward(self, tokens: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Each token's weighted sum over its experts.

        Tokens are sorted by expert into one (E, C, D) buffer, padded with zeros to the largest load, of which the host
        has to know the size: this waits for the device once.

        Args:
            tokens: (N, D).
            weights: (N, k).
            indices: (N, k) int64.

        Returns:
            (N, D).
        """
        num_experts, (num_tokens, top_k) = self.gate_up.shape[0], indices.shape
        experts = indices.flatten()
        order = experts.argsort(stable=True)
        counts = F.one_hot(experts, num_experts).sum(0)
        before = (counts.cumsum(0) - counts)[experts[order]]
        capacity = int(counts.max())
        slots = torch.empty_like(experts)
        slots[order] = experts[order] * capacity + torch.arange(len(order), device=order.device) - before

        # No slot is taken twice, so that neither direction adds up anything in an order that could change.
        sent = tokens.unsqueeze(1).expand(-1, top_k, -1).flatten(0, 1)
        buffer = sent.new_zeros(num_experts * capacity, tokens.shape[1]).index_copy(0, slots, sent)
        gate, up = (buffer.view(num_experts, capacity, -1) @ self.gate_up).chunk(2, dim=-1)
        results = ((F.silu(gate) * up) @ self.down).flatten(0, 1)
        returned = results.index_select(0, slots).view(num_tokens, top_k, -1)
        return (returned * weights.unsqueeze(-1).to(returned.dtype)).sum(1)


class Block(nn.Module):
    """Causal attention, then experts, each behind its norm and beside the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.attention_norm = nn.RMSNorm(config.dim)
        self.queries_keys_values = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.attention_out = nn.Linear(config.dim, config.dim, bias=False)
        self.experts_norm = nn.RMSNorm(config.dim)
        self.router = Router(config)
        self.experts = Experts(config)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, T, D) to (B, T, D) and the router's logits (B, T, E); a byte sees those before it."""
        batch, length, dim = hidden.shape
        heads = self.queries_keys_values(self.attention_norm(hidden)).view(batch, length, 3, self.num_heads, -1)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, dim))
        normed = self.experts_norm(hidden)
        logits, weights, indices = self.router(normed)
        outcome = self.experts(normed.flatten(0, 1), weights.flatten(0, 1), indices.flatten(0, 1))
        return hidden + outcome.view_as(hidden), logits


class TwinMoe(nn.Module):
    """From bytes to logits of the next one, with experts in every block.

    Attributes:
        config: The size.
    """

    def __init__(self, config: TwinConfig) -> None:
        """Makes the model; its weights are decided by `config.seed`, and the process's random numbers stay as they are.

        Args:
            config: The whole preset: a model has as many positions as a row has tokens.
        """
        super().__init__()
        self.config = config.model
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(config.seed)
            self.embedding = nn.Embedding(VOCABULARY_SIZE, self.config.dim)
            self.position = nn.Embedding(config.data.num_tokens, self.config.dim)
            self.blocks = nn.ModuleList(Block(self.config) for _ in range(self.config.num_layers))
            self.norm = nn.RMSNorm(self.config.dim)
            self.head = nn.Linear(self.config.dim, VOCABULARY_SIZE, bias=False)
            self._initialise()

    def forward(self, input_ids: torch.Tensor) -> Output:
        """(B, T) int64 to an `Output`."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.embedding(input_ids) + self.position(places)
        router_logits = []
        for block in self.blocks:
            hidden, logits = block(hidden)
            router_logits.append(logits)
        return Output(self.head(self.norm(hidden)), tuple(router_logits))

    @property
    def routers(self) -> tuple[Router, ...]:
        """The router of each layer."""
        return tuple(block.router for block in self.blocks)

    def expert_weights(self) -> list[list[torch.Tensor]]:
        """The experts' weights of each layer, (E, D, 2 F) and (E, F, D)."""
        return [[block.experts.gate_up, block.experts.down] for block in self.blocks]

    def num_parameters(self) -> NumParameters:
        """How many there are; the embedding counts among those that act."""
        total = sum(parameter.numel() for parameter in self.parameters())
        routed = sum(part.numel() for layer in self.expert_weights() for part in layer)
        return NumParameters(total, total - routed + routed * self.config.top_k // self.config.num_experts)

    @torch.no_grad()
    def _initialise(self) -> None:
        """Normal weights: what adds up a sum of n has a deviation of n**-0.5, what ends in the residual stream less.

        Routers and the head begin at 0.02, where every expert and every byte is about as likely as another: router z
        begins near (ln E)^2, and ce near ln 256. Embeddings begin at 1, for the routers' sake: from 0.5, an expert of
        the last layer of `tiny` had no token in steps 51 to 75, though the evaluation at step 200 was the better one by
        0.026 (seed 0); from 0.02, it was behind by 0.1.
        """
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        for embedding in (self.embedding, self.position):
            nn.init.normal_(embedding.weight)
        residual = (2 * self.config.num_layers) ** -0.5
        for block in self.blocks:
            nn.init.normal_(block.queries_keys_values.weight, std=self.config.dim**-0.5)
            nn.init.normal_(block.attention_out.weight, std=residual * self.config.dim**-0.5)
            nn.init.normal_(block.experts.gate_up, std=self.config.dim**-0.5)
            nn.init.normal_(block.experts.down, std=residual * self.config.expert_dim**-0.5)
