"""What a watch does in a training thread, and what it makes of what a run records; no framework, no thread."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from trimtab import WatchConfig, WatchFinding
from trimtab.errors import GuardLockupError, UsageError
from trimtab.values import STEP_CODE, Event, StepRow
from trimtab.watched import LayerFigures, RouterReport, Vitals
from trimtab.watching import Watch

BALANCED = (628, 649, 658, 630, 668, 652, 634, 601)
ALL_ON_ONE = (5120, 0, 0, 0, 0, 0, 0, 0)

REGRESSION = [7.6066, 7.6406, 8.2422, 8.2717]


def step(number: int, *, loss: object = 2.0, reason: object = 0, **figures: object) -> StepRow:
    usual = {"grad_norm": 1.0, "lr": 1e-3, "wall_s": 0.1, "num_tokens": 512}
    return StepRow(number, loss, reason=reason, **(usual | figures))


def evaluation(at: int, loss: float, **metrics: float) -> Event:
    return Event("evaluation", at, 0.0, {"loss": loss, **metrics})


def report(at: int, *, sick: bool = False) -> RouterReport:
    layer = LayerFigures(
        name="moe.0.gate",
        num_experts=8,
        top_k=1,
        num_tokens=5120,
        z=2500.0 if sick else 4.8,
        lse=50.0 if sick else 2.2,
        load_balance=8.0 if sick else 1.0,
        counts=ALL_ON_ONE if sick else BALANCED,
        token_entropy=0.0 if sick else 1.8,
        spread=50.0 if sick else 1.5,
    )
    return RouterReport(step=at, first_step=at - 9, layers=(layer,), expected_tokens=5120)


class Reading:
    """A reading that has arrived when it is told so; asked before, it fails the test."""

    def __init__(self, value: object, *, arrived: bool) -> None:
        self.value = value
        self.arrived = arrived

    def is_ready(self) -> bool:
        return self.arrived

    def report(self) -> object:
        assert self.arrived, "it was waited for"
        return self.value

    vitals = report


class Number(Reading):
    """A number of a step, likewise."""

    def __float__(self) -> float:
        assert self.arrived, "it was waited for"
        return float(self.value)


class Sensors:
    """Both sensors of a watch; they note what they are asked, and give readings of what they are told to."""

    def __init__(self, *, sick_from: float = math.inf, arrived: bool = True) -> None:
        self.asked: list[str] = []
        self.readings: list[Reading] = []
        self.sick_from = sick_from
        self.arrived = arrived

    def begin(self, step: int) -> None:
        self.asked.append(f"begin {step}")

    def arm(self) -> None:
        self.asked.append("arm")

    def collect(self, step: int) -> Reading:
        self.asked.append(f"collect {step}")
        self.readings.append(Reading(report(step, sick=step >= self.sick_from), arrived=self.arrived))
        return self.readings[-1]


class Failing(Sensors):
    def collect(self, step: int) -> Reading:
        super().collect(step)
        raise RuntimeError("CUDA error: out of memory")


class Log:
    """A log whose writer's turn comes when a test wants it."""

    def __init__(self) -> None:
        self.is_observed = True
        self.events: list[Event] = []

    def put(self, item: Event, *, step: int) -> None:
        self.events.append(item)

    def flush(self, *, timeout_s: float) -> bool:
        return True


def every_ten(**settings: object) -> Watch:
    return Watch(WatchConfig(report_every=10), clock=lambda: 1700.0, **settings)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, logger="trimtab")
    return lambda: caplog.messages


def regress(watch: Watch, *, first: int = 1) -> None:
    for place, loss in enumerate(REGRESSION):
        watch.take_event(evaluation(first + place, loss))


# What is measured, and when.


def test_sensors_are_asked_at_report_steps_only_and_armed_one_step_before() -> None:
    routers, vitals = Sensors(), Sensors()
    watch = every_ten(router=routers, vitals=vitals, log=Log())
    watch.begin(1)

    for number in range(1, 22):
        watch.end_step(step(number))

    assert routers.asked == ["begin 0", "collect 10", "collect 20"]
    assert vitals.asked == ["arm", "collect 10", "arm", "collect 20"]


def test_a_run_that_goes_on_reports_at_the_steps_at_which_it_would_have() -> None:
    routers, vitals = Sensors(), Sensors()
    watch = every_ten(router=routers, vitals=vitals, log=Log())

    watch.begin(30)
    for number in range(30, 42):
        watch.end_step(step(number))

    assert routers.asked == ["begin 29", "collect 30", "collect 40"]
    assert vitals.asked == ["arm", "collect 30", "arm", "collect 40"]


def test_a_step_without_a_report_costs_microseconds() -> None:
    watch = every_ten(router=Sensors(), log=Log())
    item = step(11)

    def seconds(num_steps: int) -> float:
        begun = time.perf_counter()
        for _ in range(num_steps):
            watch.end_step(item)
        return (time.perf_counter() - begun) / num_steps

    # the least of many: whatever else the machine does only adds to it
    assert min(seconds(200) for _ in range(50)) < 10e-6


# What is judged, and where.


def test_a_report_is_judged_behind_the_record_of_its_step_and_written_down(said) -> None:
    # given a run whose routers are sick from step 20 on, and a log
    routers = Sensors(sick_from=20)
    watch = every_ten(router=routers, log=Log())
    items = [step(number) for number in range(1, 31)]
    for item in items:
        watch.end_step(item)
    # when its writer's turn comes
    before = watch.judging.observe(items[:19])
    behind = watch.judging.observe(items[19:])
    # then
    assert [(event.kind, event.step) for event in before] == [("router", 10)]
    kinds = [(event.kind, event.step) for event in behind]
    assert kinds[0] == ("router", 20)
    assert ("router", 30) in kinds
    found = [event for event in behind if event.kind == "finding"]
    assert {event.facts["kind"] for event in found} >= {"collapse"}
    assert all(event.step == 20 for event in found)
    assert any(line.startswith("Trimtab, step 20: critical: collapse: ") and line.endswith(".") for line in said())
    assert len([line for line in said() if "collapse" in line]) == 1


def test_what_could_not_be_measured_is_said_once_by_whoever_judges(said) -> None:
    class Noting(Sensors):
        def collect(self, step: int) -> Reading:
            self.asked.append(f"collect {step}")
            notes = ("gate: nobody says k",) if step < 30 else ("gate: nobody says k", "other: not read")
            return Reading(replace(report(step), notes=notes), arrived=True)

    watch = every_ten(router=Noting(), log=Log())
    for number in range(1, 41):
        watch.end_step(step(number))

    assert said() == [], "the training thread formats nothing"
    watch.judging.observe([step(number) for number in range(1, 41)])

    assert said() == [
        "Trimtab, step 10: routers: gate: nobody says k.",
        "Trimtab, step 30: routers: other: not read.",
    ]


def test_notes_that_change_with_each_report_are_said_twenty_times_at_most(said) -> None:
    class Noting(Sensors):
        def collect(self, step: int) -> Reading:
            return Reading(replace(report(step), notes=(f"note {step}",)), arrived=True)

    watch = every_ten(router=Noting())
    for number in range(1, 401):
        watch.end_step(step(number))

    assert len(said()) == 20


def test_what_was_collected_after_the_last_record_is_judged_at_the_end() -> None:
    watch = every_ten(router=Sensors(), log=Log())
    watch.end_step(step(10))

    assert [event.kind for event in watch.judging.finish()] == ["router"]
    assert watch.judging.finish() == []


def test_without_a_log_nothing_is_waited_for_and_order_is_kept(said) -> None:
    # given a step that a device is still computing, and a report of sick routers that is on its way
    routers = Sensors(sick_from=10, arrived=False)
    watch = every_ten(router=routers)
    late = Number(2.0, arrived=False)
    # when
    watch.end_step(step(9, loss=late))
    watch.end_step(step(10))
    assert said() == []
    late.arrived = True
    watch.end_step(step(11))
    assert said() == []
    routers.readings[0].arrived = True
    watch.end_step(step(12))
    # then
    assert any(line.startswith("Trimtab, step 10: critical: collapse: ") for line in said())


def test_a_log_that_fails_leaves_the_judging_to_the_training_thread(said) -> None:
    log = Log()
    watch = every_ten(router=Sensors(sick_from=10), log=log)
    for number in range(1, 21):
        log.is_observed = number < 15  # what was put before is lost with the disk, the reports are not
        watch.end_step(step(number))

    assert any(line.startswith("Trimtab, step 10: critical: collapse: ") for line in said())


def test_a_rank_above_0_collects_for_the_sum_and_judges_its_own_memory_only(said) -> None:
    # given
    class Starving(Sensors):
        def collect(self, step: int) -> Reading:
            return Reading(Vitals(step=step, host_available_bytes=1 << 20, update_ratio={"w": 1e9}), arrived=True)

    routers, log = Sensors(sick_from=0, arrived=False), Log()
    watch = every_ten(router=routers, vitals=Starving(), rank=1, log=log)
    # when
    items = [step(number, loss=0.0, grad_norm=math.nan) for number in range(1, 11)]
    for item in items:
        watch.end_step(item)
    events = watch.judging.observe([*items, *(evaluation(at, loss) for at, loss in enumerate(REGRESSION, start=11))])
    # then
    assert routers.asked == ["collect 10"]
    assert [event.facts["kind"] for event in events] == ["host_memory"]
    assert [line[:43] for line in said()] == ["Trimtab, step 10 on rank 1: host_memory: th"[:43]] or len(said()) == 1


def test_steps_reach_the_rules_with_their_reason_and_as_the_log_will_have_them() -> None:
    from trimtab.watching.as_observed import observed_step

    skipped = observed_step(step(3, loss=math.nan, grad_norm=0.0, clipped=False, reason=STEP_CODE["all_skipped"]))
    dropped = observed_step(step(4, grad_norm=math.inf, clipped=True, loss_scale=64.0, reason=3.0, wall_s=0.1))

    assert skipped is not None
    assert dropped is not None
    assert (skipped.reason, skipped.grad_norm, skipped.clipped) == ("all_skipped", None, None)
    assert (dropped.reason, dropped.grad_norm, dropped.clipped) == ("nonfinite_norm", math.inf, True)
    assert dropped.wall_s == 0.10000000149011612, "a log keeps float32"
    assert observed_step(step(5, reason="odd")) is None
    assert observed_step(step(5, reason=17)) is None


@pytest.mark.parametrize("what", ["router", "vitals"])
def test_a_sensor_that_fails_ends_the_watch_with_one_line_and_still_serves_the_other_ranks(what, said) -> None:
    failing = Failing()
    watch = every_ten(**{what: failing}, log=Log())

    for number in range(1, 31):
        watch.end_step(step(number))
    regress(watch)

    assert said() == ["Trimtab watch off: RuntimeError: CUDA error: out of memory"]
    num_asked = sum(asked.startswith("collect") for asked in failing.asked)
    assert num_asked == (3 if what == "router" else 1)
    assert watch.judging.observe([step(31)]) == []


# The user's callback.


def test_the_callback_is_called_between_steps_and_not_by_the_thread_that_judges() -> None:
    found: list[WatchFinding] = []
    watch = every_ten(on_finding=found.append)

    regress(watch)
    assert found == []
    watch.tell_findings()

    assert [(one.kind, one.step, one.marks_unhealthy) for one in found] == [("eval_regression", 4, True)]
    watch.tell_findings()
    watch.close(waits=True)
    assert len(found) == 1


def test_the_last_findings_are_told_at_the_end() -> None:
    found: list[WatchFinding] = []
    watch = every_ten(on_finding=found.append)
    regress(watch)

    watch.close(waits=True)

    assert len(found) == 1


def test_an_error_in_the_callback_is_said_once_with_its_type_and_the_next_finding_comes(said) -> None:
    calls: list[str] = []

    def fail(finding: WatchFinding) -> None:
        calls.append(finding.kind)
        raise ZeroDivisionError("by the user")

    watch = every_ten(on_finding=fail)
    regress(watch)
    watch.take_event(evaluation(5, math.nan))
    watch.tell_findings()

    assert calls == ["eval_regression", "eval_nonfinite"]
    assert [line for line in said() if line.startswith("on_finding failed")] == [
        "on_finding failed: ZeroDivisionError: by the user. Training goes on, and further findings are handed to it; "
        "what it raises then is not said again."
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GuardLockupError])
def test_what_ends_a_program_passes_the_callback_and_costs_no_other_finding(error) -> None:
    calls: list[str] = []

    def stop(finding: WatchFinding) -> None:
        calls.append(finding.kind)
        if len(calls) == 1:
            raise error("enough")

    watch = every_ten(on_finding=stop)
    regress(watch)
    watch.take_event(evaluation(5, math.nan))

    with pytest.raises(error):
        watch.tell_findings()
    watch.close(waits=False)

    assert calls == ["eval_regression", "eval_nonfinite"]


def test_a_callback_may_ask_and_end_the_watch_it_is_called_by() -> None:
    calls: list[tuple[str, ...]] = []

    def ask(_: WatchFinding) -> None:
        calls.append(watch.unhealthy_because())
        watch.state_dict()
        watch.tell_findings()
        watch.close(waits=True)

    watch = every_ten(on_finding=ask)
    regress(watch)
    watch.take_event(evaluation(5, math.nan))
    watch.tell_findings()

    assert len(calls) == 2
    assert all("8.2717" in " ".join(because) for because in calls)


# State.


@pytest.mark.parametrize("cut", [1, 9, 10, 11, 19, 20, 25, 39])
def test_a_watch_that_goes_on_finds_what_an_uninterrupted_one_finds_and_nothing_twice(cut) -> None:
    # given steps, evaluations and sick routers from step 20 on
    losses = dict(zip((8, 16, 24, 32), REGRESSION, strict=True))

    def train(watch: Watch, steps: range) -> list[tuple[str, int]]:
        watch.begin(steps.start)
        for number in steps:
            watch.end_step(step(number))
            if number in losses:
                watch.take_event(evaluation(number, losses[number]))
        watch.tell_findings()
        return found

    found: list[tuple[str, int]] = []

    def new_watch() -> Watch:
        return every_ten(router=Sensors(sick_from=20), on_finding=lambda one: found.append((one.kind, one.step)))

    whole = list(train(new_watch(), range(1, 41)))
    # when it is cut anywhere
    found.clear()
    first = new_watch()
    train(first, range(1, cut + 1))
    state = first.state_dict()
    second = new_watch()
    second.load_state_dict(state)
    train(second, range(cut + 1, 41))
    # then
    assert found == whole
    assert {kind for kind, _ in whole} >= {"collapse", "eval_regression"}


def test_a_damaged_state_is_refused_and_changes_nothing() -> None:
    watch = every_ten()
    regress(watch)
    before = watch.state_dict()

    with pytest.raises(UsageError):
        watch.load_state_dict({"version": 99})

    assert watch.state_dict() == before


def test_a_rank_above_0_takes_over_nothing_for_a_state_is_rank_0s() -> None:
    first = every_ten()
    regress(first)
    other = every_ten(rank=1)

    other.load_state_dict(first.state_dict())

    assert first.unhealthy_because()
    assert other.unhealthy_because() == ()
