"""The study as text: a table an arm a line, for the console and for `study.md`.

Enters: a study, read back. Leaves: Markdown, plain ASCII. Invariant: it says what was measured and draws no conclusion;
what nobody knows is a dash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from recipes.twin_moe.study.reading import ArmResult, Layers, mean, weight_name

_HEADINGS: Final = (
    "z weight",
    "seed",
    "eval",
    "best",
    "behind",
    "z first",
    "z last",
    "token H",
    "load H",
    "MaxVio",
    "warning",
    "evals fell",
    "ahead",
)
"""Short: the console is 120 columns wide."""

LEGEND: Final = (
    "eval: cross-entropy on held-out text, nats a byte, at the last step; best: at its best. behind: eval, minus the "
    "lowest one of this seed in the sweep. z: router z, mean over layers, in the first report and in the last. "
    "token H, load H: the least token entropy (confidence) and load entropy (balance) of a layer in the last report, "
    "nats. MaxVio: of the worst layer in the last report. warning: the first finding about routers that is more than a "
    "notice, with its step; ! marks checkpoints. evals fell: the first of three evaluations in a row that are each "
    "worse than the one before, and in brackets the one at which the watch calls it. ahead: steps from the warning to "
    "the first of them. x: outside of the sweep."
)


def table_lines(arms: Sequence[ArmResult], *, is_markdown: bool) -> list[str]:
    """A table of the arms, by weight and seed.

    Args:
        arms: Read back, in any order.
        is_markdown: With bars, for a page; else in columns, for a console.
    """
    ordered = sorted(arms, key=lambda arm: (arm.z_weight, arm.seed))
    cells = [list(_HEADINGS), *([*_cells(arm, behind=behind(arm, arms))] for arm in ordered)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = [[text.rjust(width) for text, width in zip(row, widths, strict=True)] for row in cells]
    if not is_markdown:
        return ["  ".join(row) for row in padded]
    bar = ["-" * (width - 1) + ":" for width in widths]
    return [f"| {' | '.join(row)} |" for row in (padded[0], bar, *padded[1:])]


def spread_lines(arms: Sequence[ArmResult]) -> list[str]:
    """Of each weight with several seeds how far their last evaluations lie apart."""
    lines = []
    for weight in sorted({arm.z_weight for arm in arms}):
        evals = [arm.final_eval for arm in arms if arm.z_weight == weight]
        known = [loss for loss in evals if loss is not None and math.isfinite(loss)]
        if len(known) > 1:
            lines.append(
                f"z weight {weight_name(weight)}: last eval {mean(known):.4f} in the mean of {len(known)} seeds, from "
                f"{min(known):.4f} to {max(known):.4f}"
            )
    return lines


def behind(arm: ArmResult, arms: Sequence[ArmResult]) -> float | None:
    """How far an arm's last evaluation is above the lowest last one of its seed in the sweep; None: it has none."""
    lasts = [one.final_eval for one in arms if one.in_sweep and one.seed == arm.seed and one.final_eval is not None]
    known = [loss for loss in lasts if math.isfinite(loss)]
    return arm.final_eval - min(known) if known and arm.final_eval is not None else None


def _cells(arm: ArmResult, *, behind: float | None) -> tuple[str, ...]:
    routers, warning, fall = arm.routers, arm.first_warning, arm.fall
    return (
        weight_name(arm.z_weight) + ("" if arm.in_sweep else " x"),
        str(arm.seed),
        _number(arm.final_eval, digits=4),
        _number(arm.best_eval, digits=4),
        _number(behind, digits=4),
        _number(_of_report(routers.z, 0, mean), digits=3),
        _number(_of_report(routers.z, -1, mean), digits=3),
        _number(_of_report(routers.token_entropy, -1, min), digits=3),
        _number(_of_report(routers.load_entropy, -1, min), digits=3),
        _number(_of_report(routers.max_vio, -1, max), digits=3),
        "none" if warning is None else f"{warning.step} {warning.kind}{'!' if warning.marks_unhealthy else ''}",
        "none" if fall is None else f"{fall.step} ({fall.said_step})",
        "-" if arm.lead_steps is None else f"{arm.lead_steps:+d}",
    )


def _of_report(layers: Layers, place: int, over: Callable[[Sequence[float]], float]) -> float | None:
    """One figure over the layers of a report; None where there is no report, or one that says nothing."""
    known = [value for value in layers[place] if math.isfinite(value)] if layers else []
    return over(known) if known else None


def _number(value: float | None, *, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
