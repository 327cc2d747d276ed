"""A watch behind the verbs of a run: an end without waiting, states, ranks, and listeners that misbehave."""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from trimtab import GuardConfig, WatchConfig, WatchFinding
from trimtab.errors import UsageError
from trimtab.guard.figures import MicroFigures
from trimtab.run import RunCore
from trimtab.values import Event, RunHeader, StepRow
from trimtab.watched import LayerFigures, RouterReport, Vitals
from trimtab.watching import Watch

EVERY_TEN = WatchConfig(report_every=10, throughput_fraction=1e-9, host_memory_floor_bytes=1)


class Arriving:
    """A number or a reading on its way, which knows whether anybody waited for it."""

    def __init__(self, value: Any, *, arrived: bool = True) -> None:
        self.value = value
        self.arrived = arrived
        self.was_waited_for = False

    def is_ready(self) -> bool:
        return self.arrived

    def report(self) -> Any:
        self.was_waited_for |= not self.arrived
        return self.value

    vitals = report

    def __float__(self) -> float:
        return float(self.report())


class Routers:
    """A sensor whose report is of a router that has collapsed."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def begin(self, step: int) -> None:
        self.begun.append(step)

    def collect(self, step: int) -> Arriving:
        return Arriving(collapsed(step))


def collapsed(step: int) -> RouterReport:
    layer = LayerFigures(
        name="gate",
        num_experts=8,
        top_k=1,
        num_tokens=5120,
        z=2500.0,
        lse=50.0,
        load_balance=8.0,
        counts=(5120, 0, 0, 0, 0, 0, 0, 0),
        token_entropy=0.0,
        spread=50.0,
    )
    return RouterReport(step=step, first_step=max(1, step - 9), layers=(layer,), expected_tokens=5120)


class Log:
    """A log whose writer's turn never comes by itself."""

    is_observed = True

    def put(self, item: Event, *, step: int) -> None:
        """Takes it."""

    def flush(self, *, timeout_s: float) -> bool:
        return True


def watch_of(*, config: WatchConfig = EVERY_TEN, **settings: Any) -> Watch:
    return Watch(config, clock=lambda: 1700.0, **settings)


def core_of(**settings: Any) -> RunCore:
    """A run that is not recorded, whose watch has no sensors but those that a test gives it."""
    on_finding = settings.pop("on_finding", None)
    watch = partial(Watch, EVERY_TEN, on_finding=on_finding)
    return RunCore(RunHeader(run_id=None, backend="torch"), record=False, watch=watch, **settings)


def step_of(number: int, *, loss: Any = 2.0) -> StepRow:
    return StepRow(number, loss, 1.0, 1e-3, num_tokens=512, wall_s=0.1)


def train(core: RunCore, steps: int, *, loss: Any = 2.0) -> None:
    for _ in range(steps):
        core.record_micro_batch([0], [512 * 2.0], [512])
        core.end_step(loss=loss, num_tokens=512, grad_norm=1.0, lr=1e-3)


# The end.


def test_a_run_that_ends_by_an_error_does_not_wait_for_the_device() -> None:
    # given: a device that may be the cause of the error, and would never answer
    core, late = core_of(), Arriving(2.0, arrived=False)
    train(core, 1, loss=late)

    core.close(reason="RuntimeError")

    assert not late.was_waited_for


def test_a_run_that_ends_well_waits_for_the_last_steps() -> None:
    found: list[str] = []
    core = core_of(on_finding=lambda finding: found.append(finding.kind))
    late = Arriving(0.0, arrived=False)
    train(core, 5)
    core.record_micro_batch([0], [0.0], [512])
    core.end_step(loss=late, num_tokens=512, grad_norm=math.nan, lr=1e-3)
    assert not late.was_waited_for
    assert found == []

    core.close()

    assert found == ["zero_loss"]


@pytest.mark.parametrize("ask", [Watch.unhealthy_because, Watch.state_dict], ids=["health", "state"])
def test_who_asks_for_health_or_state_has_the_log_judged_up_to_now_first(ask: Callable[[Watch], Any]) -> None:
    # given a log whose writer has not had its turn
    class Waiting(Log):
        def flush(self, *, timeout_s: float) -> bool:
            watch.judging.observe([step_of(10)])
            return True

    watch = watch_of(router=Routers(), log=Waiting())
    watch.end_step(step_of(10))
    assert watch.num_findings == 0

    ask(watch)

    assert watch.num_findings > 0


# States.


@pytest.mark.parametrize("verb", [RunCore.check_state, RunCore.load_state_dict], ids=["check", "load"])
@pytest.mark.parametrize("damaged", [{"version": "odd"}, {}, 7], ids=["version", "empty", "number"])
def test_a_damaged_watch_is_refused_before_the_guard_or_anything_else_has_changed(
    verb: Callable[[RunCore, Any], None], damaged: Any
) -> None:
    # given: a state of a run that had seen more, whose part of the watch is spoilt
    guard = GuardConfig(rule="robust")
    other, core = core_of(guard=guard), core_of(guard=guard)
    for _ in range(12):
        other.judge(MicroFigures(2.0 * 512, 512))
        other.end_step(loss=2.0, num_tokens=512, grad_norm=1.0, lr=1e-3)
    state = other.state_dict() | {"watch": damaged}
    before = core.state_dict()
    assert before["guard"] != state["guard"]

    with pytest.raises(UsageError):
        verb(core, state)

    assert core.state_dict() == before


def test_a_run_that_goes_on_begins_again_at_the_step_of_the_state() -> None:
    # given
    routers = Routers()
    core = core_of()
    core.watch.measure_by(router=routers, vitals=None)
    train(core, 3)
    later = core_of()
    train(later, 6)
    # when
    core.load_state_dict(later.state_dict())
    train(core, 1)
    # then its next report begins behind the 6 steps that are done
    assert routers.begun == [0, 6]


def test_what_was_collected_before_a_state_was_loaded_is_not_judged_with_it() -> None:
    watch = watch_of(router=Routers(), log=Log())
    state = watch.state_dict()
    watch.end_step(step_of(10))

    watch.load_state_dict(state)

    assert watch.judging.finish() == []


def test_a_step_that_had_not_arrived_when_a_state_was_loaded_holds_up_nothing() -> None:
    # given: no log, so that steps are judged in the order in which they arrive
    watch = watch_of(router=Routers())
    state = watch.state_dict()
    watch.end_step(step_of(9, loss=Arriving(2.0, arrived=False)))

    watch.load_state_dict(state)
    watch.end_step(step_of(10))

    assert watch.judging.unhealthy_because()


# Ranks.


class Machine:
    """Vitals as a test sets them; those of the model are alike on all ranks."""

    def __init__(self) -> None:
        self.vitals = Vitals(step=0, update_ratio={"w": 1e-2}, attention_logit=10.0)

    def arm(self) -> None:
        """Hears that the next step is measured."""

    def collect(self, step: int) -> Arriving:
        return Arriving(replace(self.vitals, step=step))


@pytest.mark.parametrize(
    ("rank", "found"), [(0, {"update_ratio", "attention_logit"}), (1, set())], ids=["the first", "another"]
)
def test_what_is_alike_on_all_ranks_is_judged_by_the_first_alone(rank: int, found: set[str]) -> None:
    # given steps that were alike, and then one that moved far; and a logit that grows beyond its limit
    machine = Machine()
    watch = watch_of(vitals=machine, rank=rank)
    for number in range(1, 201):
        if number == 150:
            machine.vitals = replace(machine.vitals, update_ratio={"w": 0.9})
        if number > 100:
            machine.vitals = replace(machine.vitals, attention_logit=2.0 * number)
        watch.end_step(step_of(number))

    assert {finding.kind for finding in watch.judging.found} == found


# Who listens.


@pytest.fixture
def failing_handler() -> Iterator[logging.Handler]:
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no space left on device")

    handler = Failing()
    logging.getLogger("trimtab").addHandler(handler)
    yield handler
    logging.getLogger("trimtab").removeHandler(handler)


def test_a_log_handler_that_raises_costs_no_finding(failing_handler: logging.Handler) -> None:
    found: list[str] = []
    watch = watch_of(router=Routers(), on_finding=lambda finding: found.append(finding.kind))

    watch.end_step(step_of(10))
    watch.take_event(Event("evaluation", 11, 0.0, {"loss": math.nan}))
    watch.tell_findings()

    assert "collapse" in found
    assert found[-1] == "eval_nonfinite"


def test_a_finding_that_a_callback_causes_is_told_once_and_behind_its_own() -> None:
    # given a callback that evaluates, which finds something else, and that ends the step it is in once more
    calls: list[str] = []

    def react(finding: WatchFinding) -> None:
        calls.append(f"begin {finding.kind}")
        if finding.kind == "eval_regression":
            watch.take_event(Event("evaluation", 5, 0.0, {"loss": math.nan}))
            watch.tell_findings()
        calls.append(f"end {finding.kind}")

    watch = watch_of(on_finding=react)
    for step, loss in enumerate((7.6066, 7.6406, 8.2422, 8.2717), start=1):
        watch.take_event(Event("evaluation", step, 0.0, {"loss": loss}))
    watch.tell_findings()
    watch.tell_findings()

    assert calls == ["begin eval_regression", "end eval_regression", "begin eval_nonfinite", "end eval_nonfinite"]
