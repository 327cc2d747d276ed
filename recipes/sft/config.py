"""A stage's settings, read strictly from its YAML file.

In goes `configs/<stage>.yaml`, out comes a frozen `StageConfig`; `recipes.strict_yaml` says what "strictly" is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from recipes.strict_yaml import ConfigError, at_least, names_in, read_named

CONFIGS: Final = Path(__file__).with_name("configs")
"""One file a stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which text is trained on, and how it is batched.

    Attributes:
        package: A package of Python's standard library whose docstrings are the rows ("email"); None: all of it.
        supervise: "answer": the docstring alone; "all": the definition before it, too.
        batch_size: Rows of one micro-batch on one rank.
    """

    package: str | None = None
    supervise: Literal["answer", "all"]
    batch_size: int

    def __post_init__(self) -> None:
        at_least(1, batch_size=self.batch_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The size of the model; all stages of one run need the same.

    Attributes:
        dim: Width; a multiple of `num_heads`.
        num_layers: Blocks.
        num_heads: Attention heads.
        max_tokens: Bytes of a row that are looked at; the rest is cut off.
    """

    dim: int
    num_layers: int
    num_heads: int
    max_tokens: int

    def __post_init__(self) -> None:
        at_least(1, dim=self.dim, num_layers=self.num_layers, num_heads=self.num_heads)
        at_least(2, max_tokens=self.max_tokens)
        if self.dim % self.num_heads:
            raise ConfigError(
                f"dim: {self.dim} cannot be shared among {self.num_heads} heads; give a multiple of num_heads."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """Optimizer, schedule, clipping and, in the stage where skipping is meant, the guard.

    Attributes:
        lr: Peak learning rate.
        weight_decay: Of AdamW.
        warmup_steps: Steps over which the rate rises to `lr`; from there it falls to zero along a cosine.
        max_grad_norm: Gradients are clipped to this total 2-norm.
        loss_spike_skip_multiplier: A micro-batch whose loss is above this many means of the last kept ones is left out
            of the update. None: the guard is off.
        loss_spike_skip_window_size: Kept losses that the mean is taken over; None: 8.
        loss_spike_skip_min_history: Kept losses before anything is compared; None: 3.
    """

    lr: float
    weight_decay: float = 0.1
    warmup_steps: int = 0
    max_grad_norm: float = 1.0
    loss_spike_skip_multiplier: float | None = None
    loss_spike_skip_window_size: int | None = None
    loss_spike_skip_min_history: int | None = None

    def __post_init__(self) -> None:
        at_least(0, lr=self.lr, weight_decay=self.weight_decay, warmup_steps=self.warmup_steps)
        at_least(0, max_grad_norm=self.max_grad_norm)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageConfig:
    """Everything that decides one stage of training.

    Attributes:
        stage: Its name, that of its file.
        seed: Decides the initial weights, where the stage begins from none, and the order of the rows.
        num_steps: Optimizer steps.
        accumulation: Micro-batches of one step, on one rank.
        data: The text.
        model: The size of the model.
        optim: Optimizer, schedule, clipping, guard.
    """

    stage: str
    seed: int = 0
    num_steps: int
    accumulation: int
    data: DataConfig
    model: ModelConfig
    optim: OptimConfig

    def __post_init__(self) -> None:
        at_least(1, num_steps=self.num_steps, accumulation=self.accumulation)


def stages() -> list[str]:
    """Names of the stages that there is a file for."""
    return names_in(CONFIGS)


def read_stage(stage: str) -> StageConfig:
    """Settings of a stage by its name.

    Raises:
        ConfigError: There is no such stage, or its file does not say what a `StageConfig` needs, or says more.
    """
    return read_named(StageConfig, CONFIGS, stage, named_in="stage")
