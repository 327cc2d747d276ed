"""The picture of a study: what the z weight does to the routers, and whether they tell of it before the loss does.

    router z | token entropy
    load entropy | MaxVio
    evaluation loss | first warning of the watch against the evaluations

Enters: the arms of a study, read back. Leaves: one PNG. Invariant: nothing is computed here but a mean or an extreme
over layers; weights have colours that ascend in lightness, and markers, so that they are told apart in greyscale and by
any eye.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Final, Literal, NamedTuple

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from recipes.twin_moe.study.reading import ArmResult, Layers, mean, weight_name

SIZE_PIXELS: Final = (1400, 1500)
"""Width and height of the picture."""

_DPI: Final = 100
_NUM_COLOURS: Final = 128
_GREY: Final = "0.35"
_MARKERS: Final = "osD^vPX*"
# Cividis is one ramp of lightness, made for eyes that tell red from green badly; its lightest fifth is lost on white.
_COLOURS: Final = "cividis"
_LIGHTEST: Final = 0.82


class _Look(NamedTuple):
    """How the arms of one weight are drawn."""

    colour: tuple[float, float, float, float]
    marker: str
    line: Literal["-", "--", ":"]


def draw_study(arms: Sequence[ArmResult], path: Path, *, title: str) -> None:
    """Draws the arms of a study.

    Args:
        arms: Read back, in any order.
        path: The PNG to write, of `SIZE_PIXELS`.
        title: What it says on top: the preset, the steps, the device.

    Raises:
        OSError: The picture cannot be written.
    """
    looks = _looks(arms)
    width, height = SIZE_PIXELS
    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, layout="constrained")
    figure.suptitle(title, fontsize=13)
    places = figure.subplots(3, 2)
    shapes = {(arm.routers.num_experts, arm.routers.top_k) for arm in arms if arm.routers.num_experts}
    num_experts, top_k = shapes.pop() if len(shapes) == 1 else (None, None)
    most = math.log(num_experts) if num_experts is not None else None
    _draw_routers(places[0, 0], arms, looks, figure="z", over=mean, title="Router z, mean over layers", log=True)
    places[0, 0].set_ylabel("z (nats squared)")
    if most is not None:
        _level(places[0, 0], most**2, "zero logits: (ln E)^2", offset=-10)
    _draw_routers(
        places[0, 1],
        arms,
        looks,
        figure="token_entropy",
        over=mean,
        title="Token entropy, mean of layers: confidence",
    )
    _draw_routers(
        places[1, 0], arms, looks, figure="load_entropy", over=min, title="Load entropy, least layer: balance"
    )
    for place in (places[0, 1], places[1, 0]):
        place.set_ylabel("entropy (nats)")
        if most is not None:
            _level(place, most, "ln E")
    _draw_routers(places[1, 1], arms, looks, figure="max_vio", over=max, title="MaxVio, worst layer")
    places[1, 1].set_ylabel("largest load / mean load - 1")
    if num_experts is not None and top_k:
        _level(places[1, 1], num_experts / top_k - 1, "all tokens at k experts: E / k - 1")
    _draw_evals(places[2, 0], arms, looks)
    _draw_warnings(places[2, 1], arms, looks)
    figure.legend(
        handles=_handles(arms, looks),
        title="z weight",
        loc="outside lower center",
        ncols=max(1, len(looks)),
        frameon=False,
    )
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    # A palette, for a third of the size. No program's name and no time are kept: the same study gives the same bytes.
    Image.open(drawn).convert("RGB").quantize(_NUM_COLOURS).save(path, format="png", optimize=True)


def _looks(arms: Sequence[ArmResult]) -> dict[float, _Look]:
    """A look a weight: dark to light as it rises; the control without a z-loss dashed, what is outside dotted."""
    weights = sorted({arm.z_weight for arm in arms})
    outside = {arm.z_weight for arm in arms if not arm.in_sweep}
    colours = colormaps[_COLOURS]
    looks = {}
    for place, weight in enumerate(weights):
        share = _LIGHTEST * place / max(1, len(weights) - 1)
        line: Literal["-", "--", ":"] = "--" if weight == 0 else ":" if weight in outside else "-"
        looks[weight] = _Look(colours(share), _MARKERS[place % len(_MARKERS)], line)
    return looks


def _draw_routers(
    place: Axes,
    arms: Sequence[ArmResult],
    looks: dict[float, _Look],
    *,
    figure: str,
    over: Callable[[Sequence[float]], float],
    title: str,
    log: bool = False,
) -> None:
    for arm in arms:
        layers: Layers = getattr(arm.routers, figure)
        values = [_over_layers(of_report, over) for of_report in layers]
        _draw_line(place, arm.routers.steps, values, look=looks[arm.z_weight])
    _finish(place, title, log=log)


def _draw_evals(place: Axes, arms: Sequence[ArmResult], looks: dict[float, _Look]) -> None:
    for arm in arms:
        _draw_line(place, arm.eval_steps, arm.eval_losses, look=looks[arm.z_weight])
    _finish(place, "Evaluation loss")
    place.set_ylabel("cross-entropy (nats a byte)")


def _draw_warnings(place: Axes, arms: Sequence[ArmResult], looks: dict[float, _Look]) -> None:
    """A lane an arm, from its first step to its last, with two marks: the first warning, and where the evals fell."""
    lanes = sorted(arms, key=lambda arm: (arm.z_weight, arm.seed))
    for lane, arm in enumerate(lanes):
        look = looks[arm.z_weight]
        place.plot([0, arm.num_steps], [lane, lane], color=look.colour, linestyle=look.line, linewidth=1.5, zorder=1)
        if arm.first_warning is not None:
            place.plot(
                arm.first_warning.step, lane, marker="^", markersize=11, color="black", linestyle="none", zorder=3
            )
        if arm.fall is not None:
            place.plot(
                arm.fall.step,
                lane,
                marker="o",
                markersize=11,
                markerfacecolor="white",
                markeredgecolor="black",
                linestyle="none",
                zorder=2,
            )
    place.set_yticks(range(len(lanes)), [f"{weight_name(arm.z_weight)}, seed {arm.seed}" for arm in lanes])
    place.set_ylim(-0.7, 1.3 * len(lanes) + 0.5)  # room for the legend
    _finish(place, "First warning of the watch, and where evaluations fell")
    place.set_ylabel("z weight, seed")
    place.legend(
        handles=[
            Line2D([], [], marker="^", color="black", linestyle="none", label="first warning about routers"),
            Line2D(
                [],
                [],
                marker="o",
                markerfacecolor="white",
                markeredgecolor="black",
                linestyle="none",
                label="first evaluation of a streak of worse ones",
            ),
        ],
        loc="upper left",
        fontsize=8,
        title=None if any(arm.fall for arm in lanes) else "in no arm did evaluations become worse three times in a row",
        title_fontsize=8,
    )


def _draw_line(place: Axes, steps: Sequence[int], values: Sequence[float], *, look: _Look) -> None:
    place.plot(
        steps,
        values,
        color=look.colour,
        linestyle=look.line,
        marker=look.marker,
        markersize=5,
        markevery=max(1, len(steps) // 8),
        linewidth=1.3,
    )


def _finish(place: Axes, title: str, *, log: bool = False) -> None:
    place.set_title(title, fontsize=11)
    place.set_xlabel("optimizer step")
    if log:
        place.set_yscale("log")
    place.grid(visible=True, color="0.9", linewidth=0.6)
    place.set_axisbelow(True)
    for side in ("top", "right"):
        place.spines[side].set_visible(False)


def _level(place: Axes, height: float, text: str, *, offset: float = 2) -> None:
    """A line at a height that means something, with what it means, `offset` points above it."""
    place.axhline(height, color=_GREY, linewidth=0.8, linestyle=(0, (1, 2)))
    place.annotate(
        text,
        (1.0, height),
        xycoords=("axes fraction", "data"),
        xytext=(0, offset),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=_GREY,
    )


def _handles(arms: Sequence[ArmResult], looks: dict[float, _Look]) -> list[Line2D]:
    outside = {arm.z_weight for arm in arms if not arm.in_sweep}
    return [
        Line2D(
            [],
            [],
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            markersize=5,
            label=weight_name(weight) + (" (outside of the sweep)" if weight in outside else ""),
        )
        for weight, look in looks.items()
    ]


def _over_layers(values: Sequence[float], over: Callable[[Sequence[float]], float]) -> float:
    """One figure of all layers that have one; NaN, which is a gap in a line, where none has."""
    known = [value for value in values if math.isfinite(value)]
    return over(known) if known else math.nan
