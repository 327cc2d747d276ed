"""What the columns, keys and tags of other tools' logs mean: which one is the step, which the loss.

Enters: names as a log spells them. Leaves: the role of each. Invariant: names are compared in one spelling (small
letters, "_" for blank, dash and dot), and where several fit a role the order in `NAMES` decides, which `Roles.notices`
says; what is measured on data that was not trained on is never the loss of a step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

Role = Literal[
    "step", "loss", "grad_norm", "lr", "loss_scale", "num_tokens", "epoch", "router_z", "load_balance", "tokens_per_s"
]  # fmt: skip

ROLES: Final[tuple[Role, ...]] = get_args(Role)

NAMES: Final[dict[Role, tuple[str, ...]]] = {
    # wandb's own counter comes last: it counts what was logged, which need not be optimizer steps.
    "step": (
        "step", "global_step", "trainer/global_step", "train/global_step", "train/step", "train_step", "training_step",
        "optimizer_step", "update_step", "num_updates", "updates", "update", "iteration", "iterations", "iter", "it",
        "_step",
    ),
    "loss": (
        "loss", "train/loss", "train_loss", "training_loss", "training/loss", "loss/train", "train/loss_step",
        "train_loss_step", "loss_step", "loss/train/total", "lm_loss", "train/lm_loss", "train/total_loss",
        "total_loss", "loss/total", "loss_metrics/global_avg_loss", "train/ce_loss", "train/crossentropyloss",
        "ce_loss", "cross_entropy_loss", "reduced_train_loss",
    ),
    "grad_norm": (
        "grad_norm", "train/grad_norm", "train_grad_norm", "gradient_norm", "train/gradient_norm", "global_grad_norm",
        "train/global_grad_norm", "total_grad_norm", "optim/total_grad_norm", "grad_norm/total", "grad_norm/global",
        "l2_norm/grad/global", "grad/norm", "total_norm", "gnorm",
    ),
    "lr": ("lr", "learning_rate", "train/lr", "train/learning_rate", "train_lr", "optim/learning_rate_group0"),
    "loss_scale": ("loss_scale", "train/loss_scale", "loss_scaling", "loss_scaling_factor", "grad_scale"),
    # Not "num_tokens" or "tokens": what goes by these names is mostly a sum over the run.
    "num_tokens": ("tokens_per_step", "step_tokens", "num_step_tokens", "num_supervised_tokens"),
    "epoch": ("epoch", "train/epoch", "epochs"),
    # Beside the steps: what a router did, over all layers. Not "entropy": of a policy, or of the tokens, it is another.
    "router_z": (
        "router_z", "z_sum", "router_z_sum", "z_mean", "router_z_mean", "mean_z", "z", "router_z_loss", "z_loss",
        "zloss", "router_zloss",
    ),
    "load_balance": (
        "load_balance", "lbl", "load_balancing", "load_balance_loss", "load_balancing_loss", "lb_loss", "lbloss",
        "balance_loss", "router_aux_loss", "aux_loss", "auxiliary_loss", "aux_loss_lb",
    ),
    "tokens_per_s": (
        "tokens_per_sec", "tokens_per_second", "tokens_per_s", "tok_per_sec", "tok_per_s", "toks_per_sec",
        "toks_per_s", "tok/s", "tok/sec", "toks/s", "token/s", "tokens/s", "tokens/sec",
        "train_tokens_per_second", "tps", "throughput/tokens_per_sec", "throughput/device/tokens_per_sec",
        "throughput_tokens_per_sec", "throughput(tps)", "train/tokens_per_sec", "perf/tokens_per_sec",
    ),
}  # fmt: skip
"""Names of each role in `normalised` spelling, the ones that win in front."""

_RANKS: Final = {role: {name: rank for rank, name in enumerate(names)} for role, names in NAMES.items()}

MAX_CHARACTERS: Final = 200
"""A longer name is no metric's."""

WANDB_STEP: Final = "_step"
"""Stands in every log of wandb, beside the step or alone: no word is said of it as a second choice."""

MAX_NAMED: Final = 3
"""Names of second choice that a notice gives."""

ROUTER_ROLES: Final[frozenset[Role]] = frozenset(("router_z", "load_balance"))
"""Roles whose names may have words in front: `moe/z_loss`, `train/router/z_loss`."""

_OF_ROUTER: Final = re.compile(r"(?:train|training|eval|val|moe|router|routers|aux|metrics|losses|loss)[/_]")

_SEPARATORS: Final = re.compile(r"[\s.\-]+")
_EVALUATION: Final = re.compile(r"(?:^|[/_])(?:eval|evaluation|val|valid|validation|test|dev|heldout)(?:$|[/_])")


def normalised(name: str) -> str:
    """A name in the one spelling that is compared.

    Example:
        >>> normalised(" LM loss"), normalised("lr-AdamW")
        ('lm_loss', 'lr_adamw')
    """
    return _SEPARATORS.sub("_", name[:MAX_CHARACTERS].strip().lower())


def is_eval_loss(name: str) -> bool:
    """Whether a name is a loss on data that was not trained on.

    Example:
        >>> is_eval_loss("eval_wiki_loss"), is_eval_loss("Loss/val"), is_eval_loss("val"), is_eval_loss("train/loss")
        (True, True, True, False)
    """
    known = normalised(name)
    is_loss = "loss" in known and not is_of_router(name)
    return _EVALUATION.fullmatch(known) is not None or (is_loss and _EVALUATION.search(known) is not None)


def rank_of(name: str, role: Role) -> int | None:
    """How far in front a name stands among those of a role, 0 for the first; None where it is none of them."""
    known = normalised(name)
    rank = _RANKS[role].get(known)
    if rank is not None:
        return rank
    if role == "lr" and known.startswith(("lr_", "lr/")):
        return len(NAMES[role])
    if role in ROUTER_ROLES:
        while rank is None and (word := _OF_ROUTER.match(known)):
            known = known[word.end() :]
            rank = _RANKS[role].get(known)
        return None if rank is None else rank + len(NAMES[role])
    if role == "loss" and known.endswith("loss") and not is_eval_loss(name):
        return len(NAMES[role]) + is_of_router(name)
    return None


def is_of_router(name: str) -> bool:
    """Whether a name is a figure of a router: the last to be taken for a training loss, whatever it ends in.

    Example:
        >>> is_of_router("moe/z_loss"), is_of_router("train/load_balancing_loss"), is_of_router("my_loss")
        (True, True, False)
    """
    return any(rank_of(name, role) is not None for role in ROUTER_ROLES)


@dataclass(frozen=True, slots=True)
class Roles:
    """Which of a log's names has which role.

    Attributes:
        names: The name that was chosen for each role that any name has, as the log spells it.
        eval_losses: Names of losses on data that was not trained on, in the order given.
        others: Names that would have had a role too, by role.
    """

    names: dict[Role, str]
    eval_losses: tuple[str, ...] = ()
    others: dict[Role, tuple[str, ...]] = field(default_factory=dict)

    def notices(self) -> list[str]:
        """What to say of a loss or a step that was chosen among several, or by a name that only ends in "loss"."""
        said = []
        for role in ("step", "loss", "grad_norm"):
            chosen, others = self.names.get(role), self.others.get(role, ())
            if chosen is not None and others:
                more = "" if len(others) <= MAX_NAMED else f" and {len(others) - MAX_NAMED} more"
                said.append(
                    f"{chosen!r} was read as the {role.replace('_', ' ')}; {', '.join(map(repr, others[:MAX_NAMED]))}"
                    f"{more} would have been the next choice"
                )
            elif role == "loss" and chosen is not None and normalised(chosen) not in NAMES["loss"]:
                said.append(f"no column is named as a training loss usually is: {chosen!r} was read as it")
        return said


def roles_of(names: Iterable[str]) -> Roles:
    """Gives each role to the name that fits it best.

    Args:
        names: Columns, keys or tags of one log, each once, as the log spells them.

    Returns:
        The roles; among names that fit equally well the first counts.

    Example:
        >>> roles_of(["epoch", "global_step", "train_loss", "val_loss"]).names["loss"]
        'train_loss'
    """
    given = list(names)
    chosen: dict[Role, str] = {}
    others: dict[Role, tuple[str, ...]] = {}
    for role in ROLES:
        ranked = sorted((rank, place) for place, name in enumerate(given) if (rank := rank_of(name, role)) is not None)
        if not ranked:
            continue
        chosen[role] = given[ranked[0][1]]
        # A name that only ends in "loss" is a part of the loss as a rule, and no second choice worth a word.
        usual = [given[place] for rank, place in ranked[1:] if rank < len(NAMES[role])]
        best_is_usual = ranked[0][0] < len(NAMES[role])
        rest = usual if best_is_usual else [given[place] for _, place in ranked[1:]]
        rest = [name for name in rest if name != WANDB_STEP]
        if rest:
            others[role] = tuple(rest)
    return Roles(names=chosen, eval_losses=tuple(filter(is_eval_loss, given)), others=others)
