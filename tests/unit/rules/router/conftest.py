"""Reports of routers as tests write them, and what the rules say to a series of them."""

from collections.abc import Callable, Iterable

import pytest

from trimtab.rules.router import RouterRules
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import LayerFigures, RouterReport, WatchFinding, ZScale


@pytest.fixture
def said() -> Callable[..., list[WatchFinding]]:
    """All findings that rules give on some reports, in order."""

    def judge(reports: Iterable[RouterReport], config: WatchConfig | None = None) -> list[WatchFinding]:
        rules = RouterRules(config or WatchConfig())
        return [finding for report in reports for finding in rules.judge(report)]

    return judge


@pytest.fixture
def reports() -> Callable[..., list[RouterReport]]:
    """Reports 50 steps apart, after the warm-up unless told otherwise, each of the layers given."""

    def make(*layers: Iterable[LayerFigures], begin: int = 2_000) -> list[RouterReport]:
        return [
            RouterReport(step=begin + 50 * place, first_step=begin + 50 * place - 49, layers=tuple(one))
            for place, one in enumerate(layers)
        ]

    return make


@pytest.fixture
def z_reports() -> Callable[..., list[RouterReport]]:
    """Reports that hold one z for the model, as a log without layers does."""

    def make(
        zs: Iterable[float], *, steps: Iterable[int] | None = None, scale: ZScale = "sum", factor: float = 1.0
    ) -> list[RouterReport]:
        of_steps = steps or range(2_000, 1_000_000, 50)
        return [
            RouterReport(step=step, first_step=step - 49, z=z, z_scale=scale, z_factor=factor)
            for step, z in zip(of_steps, zs, strict=False)
        ]

    return make
