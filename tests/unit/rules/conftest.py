"""The published curves, as (step, value) pairs."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

CURVES = Path(__file__).parents[2] / "data" / "curves"

Curve = list[tuple[int, float]]


@pytest.fixture(scope="session")
def curve() -> Callable[..., Curve]:
    """Reads one column of one curve; entries that the log left empty are left out."""

    def read(name: str, column: str = "loss") -> Curve:
        with (CURVES / f"{name}.csv").open() as file:
            return [(int(line["step"]), float(line[column])) for line in csv.DictReader(file) if line[column]]

    return read
