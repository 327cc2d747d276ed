"""Runs of several attempts, recorded by `RunCore` with a watch: what the gates of a log are tried on."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from trimtab import WatchConfig, recording
from trimtab.gates.evidence import Evidence, read_evidence
from trimtab.gates.values import Judged
from trimtab.log.reader import open_log
from trimtab.recorder import Recorder
from trimtab.rules.schedule import Schedule
from trimtab.run import RunCore
from trimtab.values import RunHeader
from trimtab.watched import LayerFigures, RouterReport, Vitals
from trimtab.watching import Watch

_FILE = Path(__file__).with_name("checkpoints_of_a_chunk.py")
_spec = importlib.util.spec_from_file_location(_FILE.stem, _FILE)
assert _spec is not None
assert _spec.loader is not None
sys.modules[_FILE.stem] = importlib.util.module_from_spec(_spec)  # for the tests of this folder to import from
_spec.loader.exec_module(sys.modules[_FILE.stem])

COSINE = Schedule(form="cosine", lr=3e-4, num_steps=200, num_warmup_steps=20)
EVERY_TEN = WatchConfig(report_every=10, host_memory_floor_bytes=1)
EVEN = (1_000,) * 8


def layer(name: str = "moe.0", counts: tuple[int, ...] = EVEN, **figures: Any) -> LayerFigures:
    """A router of 8 experts at top 2 that chooses, and whose load is even; or what is said instead."""
    usual = {
        "num_experts": len(counts),
        "top_k": 2,
        "num_tokens": sum(counts) // 2,
        "z": 6.0,
        "lse": 2.4,
        "load_balance": 1.02,
        "token_entropy": 1.6,
        "spread": 3.0,
    }
    return LayerFigures(name=name, counts=counts, **{**usual, **figures})


def report(step: int, *layers: LayerFigures, num_populations: int = 2, **fields: Any) -> RouterReport:
    """A report of ten steps; of two sound layers where none is given."""
    layers = layers or (layer("moe.0"), layer("moe.1", z=8.0))
    return RouterReport(step=step, first_step=step - 9, layers=layers, num_populations=num_populations, **fields)


class Reading:
    """Figures that have arrived."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def is_ready(self) -> bool:
        return True

    def report(self) -> Any:
        return self._value

    vitals = report


class Routers:
    """A sensor of routers; a report of None: it failed at that step, and the watch is off from there."""

    def __init__(self, reports: Callable[[int], RouterReport | None]) -> None:
        self._reports = reports

    def begin(self, step: int) -> None:
        """Nothing is measured."""

    def collect(self, step: int) -> Reading:
        found = self._reports(step)
        if found is None:
            raise RuntimeError("the device is gone")
        return Reading(found)


class Machine:
    """A sensor of vitals that are well."""

    def arm(self) -> None:
        """Nothing is measured."""

    def collect(self, step: int) -> Reading:
        return Reading(Vitals(step=step, host_available_bytes=1 << 40))


class Trained:
    """A run under construction.

    Attributes:
        out: Its output folder; another one after each kill, with what that left.
    """

    def __init__(self, out: Path, *, run_id: str = "r") -> None:
        self.out = out / "0"
        self.out.mkdir()
        self._run_id = run_id
        self._num_kills = 0
        self._evidence: dict[int | None, Evidence] = {}

    @property
    def folder(self) -> Path:
        return self.out / "trimtab" / self._run_id

    @property
    def shown(self) -> str:
        """The folder as a command names it: from here, where that is shorter."""
        return min(str(self.folder), os.path.relpath(self.folder), key=len)

    def attempt(
        self,
        first: int,
        last: int,
        *,
        schedule: Schedule | None = COSINE,
        rate: Callable[[int], float | None] | None = None,
        steps: Mapping[int, Mapping[str, Any]] | None = None,
        reports: Callable[[int], RouterReport | None] | None = report,
        watch: WatchConfig | None = EVERY_TEN,
        evaluations: Mapping[int, float] | None = None,
        events: Mapping[int, tuple[str, Mapping[str, Any]]] | None = None,
        end: str = "closed",
        guard: Any = None,
    ) -> "Trained":
        """Trains steps `first` to `last` as the next attempt.

        Args:
            first: First step.
            last: Last one.
            schedule: What is stated; None: nothing.
            rate: The rate of each step; None: that of `schedule`.
            steps: By step what `RunCore.end_step` is given instead of the usual.
            reports: The report after a step; None: no routers.
            watch: Settings of the watch; None: none.
            evaluations: By step.
            events: By step.
            end: The reason of its end, or "kill".
            guard: As of `RunCore`.
        """
        self._evidence.clear()
        sensors = {"router": Routers(reports) if reports is not None else None, "vitals": Machine()}
        core = RunCore(
            RunHeader(run_id=None, backend="torch"),
            out=self.out,
            run_id=self._run_id,
            guard=guard,
            watch=partial(Watch, watch, **sensors) if watch is not None else None,
        )
        if schedule is not None:
            core.state_schedule(schedule)
        rate = rate or (schedule.rate if schedule is not None else lambda step: 1e-3)
        core.begin_step(first)
        for step in range(first, last + 1):
            loss = 3.0 - step / 400 + 0.02 * (step % 5)
            usual = {"loss": loss, "num_tokens": 512, "grad_norm": 1.0 + 0.01 * (step % 7), "lr": rate(step)}
            given = {**usual, **(steps or {}).get(step, {})}
            core.record_micro_batch([step], [given.pop("rows_loss", loss) * 512], [512], keep=given.pop("keep", True))
            core.end_step(given.pop("reason", "stepped"), **given)
            if step in (evaluations or {}):
                core.evaluation(evaluations[step], {}, step=step)
            if step in (events or {}):
                core.event(*events[step], step=step)
        if end == "kill":
            assert core.flush()
            self._num_kills += 1
            left = self.out.with_name(str(self._num_kills))
            shutil.copytree(self.out, left)
            core.close()
            self.out = left
        else:
            core.close(reason=end)
        return self

    def judge(self, gate: Callable[[Evidence], Judged], *, since: int | None = None) -> Judged:
        """What a gate says of it."""
        if since not in self._evidence:
            self._evidence[since] = read_evidence(open_log(self.folder), since=since)
        return gate(self._evidence[since])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """A run whose journals stay as they are: sealing them is two thirds of the time, and not what is tried here."""
    monkeypatch.setattr(recording, "Recorder", partial(Recorder, seal_bytes=None))
    return Trained(tmp_path)


@pytest.fixture
def sealed_run(tmp_path: Path) -> Trained:
    """A run whose attempts are sealed when they end."""
    return Trained(tmp_path)


@pytest.fixture(scope="session")
def make_layer() -> Callable[..., LayerFigures]:
    return layer


@pytest.fixture(scope="session")
def make_report() -> Callable[..., RouterReport]:
    return report
