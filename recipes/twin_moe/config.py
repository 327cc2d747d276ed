"""A preset's settings, read strictly from its YAML file.

In goes `configs/<preset>.yaml`, out comes a frozen `TwinConfig`; `recipes.strict_yaml` says what "strictly" is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from recipes.strict_yaml import ConfigError, at_least, names_in, read_named

CONFIGS: Final = Path(__file__).with_name("configs")
"""One file a preset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """How the text is cut and batched.

    Attributes:
        batch_size: Rows of one micro-batch.
        num_tokens: T, tokens of a row: the bytes that a prediction is made for.
        num_eval_batches: Micro-batches of held-out text that one evaluation looks at.
    """

    batch_size: int
    num_tokens: int
    num_eval_batches: int

    def __post_init__(self) -> None:
        at_least(1, batch_size=self.batch_size, num_eval_batches=self.num_eval_batches)
        at_least(2, num_tokens=self.num_tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The size of the model.

    Attributes:
        dim: Width; a multiple of `num_heads`.
        num_layers: Blocks, each of attention and experts, so also routers.
        num_heads: Attention heads.
        num_experts: E, routed experts of one layer; a multiple of `num_populations`.
        top_k: k, experts that a token is sent to, of all populations together.
        num_populations: Populations that the experts of a layer are split into, one behind the other.
        expert_dim: Width inside of an expert.
    """

    dim: int
    num_layers: int
    num_heads: int
    num_experts: int
    top_k: int
    num_populations: int
    expert_dim: int

    def __post_init__(self) -> None:
        at_least(1, dim=self.dim, num_layers=self.num_layers, num_heads=self.num_heads, expert_dim=self.expert_dim)
        at_least(2, num_experts=self.num_experts, num_populations=self.num_populations)
        at_least(1, top_k=self.top_k)
        if self.dim % self.num_heads:
            raise ConfigError(
                f"dim: {self.dim} cannot be shared among {self.num_heads} heads; give a multiple of num_heads."
            )
        if self.num_experts % self.num_populations:
            raise ConfigError(
                f"num_experts: {self.num_experts} cannot be split into {self.num_populations} populations of one size; "
                "give a multiple of num_populations."
            )
        if self.top_k > self.num_experts:
            raise ConfigError(f"top_k: found {self.top_k}, expected at most the {self.num_experts} experts.")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """Optimizer, schedule, clipping and the weights of the loss's terms.

    Attributes:
        lr: Peak learning rate.
        min_lr: Rate that the cosine ends at.
        weight_decay: Of AdamW, on matrices alone.
        warmup_steps: Steps over which the rate rises to `lr`; from there it falls to `min_lr` along a cosine.
        max_grad_norm: Gradients are clipped to this total 2-norm.
        lbl_weight: Weight of the load balance.
        z_weight: Weight of the router z.
        xpop_weight: Weight of the cosine between the populations.
    """

    lr: float
    min_lr: float = 0.0
    weight_decay: float = 0.1
    warmup_steps: int = 0
    max_grad_norm: float = 1.0
    lbl_weight: float = 0.01
    z_weight: float = 1e-4
    xpop_weight: float = 0.01

    def __post_init__(self) -> None:
        at_least(0, min_lr=self.min_lr, weight_decay=self.weight_decay, warmup_steps=self.warmup_steps)
        at_least(0, lbl_weight=self.lbl_weight, z_weight=self.z_weight, xpop_weight=self.xpop_weight)
        for name in ("lr", "max_grad_norm"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: found {getattr(self, name)}, expected a number above 0.")
        if self.min_lr > self.lr:
            raise ConfigError(f"min_lr: found {self.min_lr}, expected at most lr, {self.lr}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class TwinConfig:
    """Everything that decides one training.

    Attributes:
        preset: Its name, that of its file.
        seed: Decides the initial weights and the order of the rows.
        num_steps: Optimizer steps of the whole schedule.
        accumulation: Micro-batches of one step.
        eval_every: Steps between two evaluations.
        save_every: Steps between two checkpoints.
        keep: Checkpoints of a segment that are kept.
        report_every: Steps between two reports of the watch.
        log_every: Steps between two lines on the console, and between two writes of the history.
        precision: "bfloat16": forwards run under autocast; the routers' logits are float32 all the same.
        data: The text.
        model: The size of the model.
        optim: Optimizer, schedule, clipping, weights of the terms.
    """

    preset: str
    seed: int = 0
    num_steps: int
    accumulation: int
    eval_every: int
    save_every: int
    keep: int
    report_every: int
    log_every: int
    precision: Literal["float32", "bfloat16"]
    data: DataConfig
    model: ModelConfig
    optim: OptimConfig

    def __post_init__(self) -> None:
        at_least(1, num_steps=self.num_steps, accumulation=self.accumulation, keep=self.keep)
        at_least(1, eval_every=self.eval_every, save_every=self.save_every)
        at_least(1, report_every=self.report_every, log_every=self.log_every)
        if self.optim.warmup_steps >= self.num_steps:
            raise ConfigError(
                f"optim.warmup_steps: found {self.optim.warmup_steps}, expected less than num_steps, {self.num_steps}."
            )


def presets() -> list[str]:
    """Names of the presets that there is a file for."""
    return names_in(CONFIGS)


def read_preset(name: str) -> TwinConfig:
    """Settings of a preset by its name.

    Raises:
        ConfigError: There is no such preset, or its file does not say what a `TwinConfig` needs, or says more.
    """
    return read_named(TwinConfig, CONFIGS, name, named_in="preset")
