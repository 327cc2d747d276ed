"""Rules that are fed as a run or a log would, and what they found."""

import csv
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trimtab.rules.health import HealthRules, ObservedStep
from trimtab.watched import WatchFinding

CURVES = Path(__file__).parents[3] / "data" / "curves"


class Fed:
    """The rules of a run, and all that they said, in order."""

    def __init__(self, rules: HealthRules | None = None) -> None:
        self.rules = rules if rules is not None else HealthRules()
        self.found: list[WatchFinding] = []

    def steps(self, steps: Iterable[ObservedStep]) -> "Fed":
        for step in steps:
            self.found += self.rules.step(step)
        return self

    def series(self, *, first: int = 1, **columns: Iterable[Any]) -> "Fed":
        """Steps `first`, `first + 1`, ..., of parallel columns."""
        rows = zip(*columns.values(), strict=True)
        return self.steps(
            ObservedStep(step=first + place, **dict(zip(columns, row, strict=True))) for place, row in enumerate(rows)
        )

    def evaluations(self, evaluations: Iterable[tuple[int, float]], **how: Any) -> "Fed":
        for step, loss in evaluations:
            self.found += self.rules.evaluation(step, loss, **how)
        return self

    @property
    def said(self) -> list[tuple[str, str, int]]:
        """Kind, severity and step of each finding."""
        return [(finding.kind, finding.severity, finding.step) for finding in self.found]


@pytest.fixture
def fed() -> Fed:
    return Fed()


@pytest.fixture(scope="session")
def curve_steps():
    """The steps of a published curve, with all columns that it has."""

    def read(name: str, *, clip: float = 1.0) -> Iterator[ObservedStep]:
        with (CURVES / f"{name}.csv").open() as file:
            for line in csv.DictReader(file):
                number = {key: float(text) for key, text in line.items() if text}
                norm = number.get("grad_norm")
                yield ObservedStep(
                    step=int(number["step"]),
                    loss=number.get("loss", math.nan),
                    grad_norm=norm,
                    clipped=None if norm is None else norm > clip,
                    lr=number.get("lr"),
                    loss_scale=number.get("loss_scale"),
                )

    return read
