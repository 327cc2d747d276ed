"""What each of two real ranks does for `test_kits_two_ranks.py`: one window of an engine of its own, by a kit."""

import logging
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from trimtab import GuardConfig, LossKit, TokenNormedLossKit, UsageError


def made_model(weights: list[Any], *, wrapping: str) -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(torch.float64)
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.tensor(values, dtype=torch.float64))
    if wrapping == "ddp":
        return DistributedDataParallel(model)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return model


def forward(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """The losses of one rank's micro-batch, with its fault."""
    x, y = (torch.tensor(batch[key], dtype=torch.float64) for key in ("x", "y"))
    out: torch.Tensor = model(x).squeeze(1)
    if batch["fault"] == "nan":
        out = out * torch.nan
    losses = (out - y).square()
    if batch["fault"] in ("spike", "infinite derivative"):
        losses = 1e6 + 1e6 * losses
    if batch["fault"] == "infinite derivative":
        losses = losses + (out - out.detach()).abs().sqrt()
    return losses


def handed_over(loss: torch.Tensor, *, way: str) -> Any:
    """What the engine makes of a loss that it was told to skip."""
    return {
        "itself": loss,
        "zero": 0.0 * loss.detach(),
        "constant": 0.0,
        "nan": torch.tensor(float("nan")),
        "leaf": torch.zeros((), requires_grad=True),
    }[way]


def syncs(model: nn.Module, *, wrapping: str, is_now: bool) -> Any:
    if wrapping == "ddp":
        return nullcontext() if is_now else model.no_sync()  # type: ignore[operator]
    model.set_requires_gradient_sync(is_now)  # type: ignore[operator]
    return nullcontext()


def whole(tensor: Any) -> list[float]:
    values: list[float] = (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).flatten().tolist()
    return values


def window(
    *,
    kit: str,
    wrapping: str,
    skipped_tokens: str | None,
    micros: list[list[dict[str, Any]]],
    weights: list[Any],
    way: str,
    detached: bool = False,
    sync_last: bool = False,
) -> dict[str, Any]:
    """One window; `skipped_tokens` None: without a guard. Gives gradients, result and whether the step moved."""
    model = made_model(weights, wrapping=wrapping)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    made: Any = {"mean": LossKit, "tokens": TokenNormedLossKit}[kit](model, optimizer=optimizer)
    if skipped_tokens is not None:
        guard = made.build_loss_guard(GuardConfig(multiplier=1000.0, skipped_tokens=skipped_tokens))  # type: ignore[arg-type]
        guard.remember_kept([1.0] * 8)
    before = [whole(parameter.detach()) for parameter in model.parameters()]
    verdicts = []
    for place, ranks in enumerate(micros):
        batch = ranks[dist.get_rank()]
        with syncs(model, wrapping=wrapping, is_now=not sync_last or place == len(micros) - 1):
            losses = forward(model, batch)
            if kit == "mean":
                loss, counted = losses.mean(), ()
            else:
                mask = torch.tensor(batch["mask"])
                loss, counted = torch.where(mask, losses, 0.0).sum(), (mask.sum(),)
            verdict = made.guard_loss(loss.detach() if detached else loss, *counted)
            given = loss if verdict else handed_over(loss, way=way)
            accumulate = made.accumulate if kit == "mean" else made.accumulate_microbatch
            accumulate(given, *counted).backward()
        verdicts.append(verdict)
    result = made.finish_window(model.parameters())
    gradients = [None if parameter.grad is None else whole(parameter.grad) for parameter in model.parameters()]
    optimizer.step()
    moved = [whole(parameter.detach()) for parameter in model.parameters()] != before or bool(optimizer.state)
    return {
        "gradients": gradients,
        "verdicts": verdicts,
        "moved": moved,
        "loss": result.loss if result.loss == result.loss else None,
        "counts": [result.num_tokens, result.num_skipped_micros, result.num_skipped_tokens],
        "reason": result.reason,
    }


def refusal_without_any_graph(*, micros: list[list[dict[str, Any]]], weights: list[Any]) -> str:
    try:
        window(
            kit="tokens",
            wrapping="fsdp2",
            skipped_tokens="counted",
            micros=micros,
            weights=weights,
            way="zero",
            detached=True,
        )
    except UsageError as error:
        return str(error)
    return "went on"


class Lines(logging.Handler):
    """What Trimtab says on this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def said_of_a_state(*, kit: str, saved: bool, here: bool) -> list[str]:
    """What is said where a kit with a guard, or without, takes the state of one with a guard, or without."""
    kind: Any = {"mean": LossKit, "tokens": TokenNormedLossKit}[kit]
    before, after = kind(nn.Linear(1, 1)), kind(nn.Linear(1, 1))
    for made, is_guarded in ((before, saved), (after, here)):
        made.build_loss_guard(GuardConfig(multiplier=3.0 if is_guarded else None))
    heard = Lines()
    logging.getLogger("trimtab").addHandler(heard)
    try:
        after.load_state_dict(before.state_dict())
    finally:
        logging.getLogger("trimtab").removeHandler(heard)
    return heard.lines
