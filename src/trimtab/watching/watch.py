"""`Watch`: the health of a run while it trains, behind the few verbs that `RunCore` needs.

Enters: steps and events as they are recorded, and what sensors measure. Leaves: findings, to the log and to the user's
callback. Invariants: `end_step` neither waits for a device nor formats; nothing is raised into training. Who judges
what: rank 0 steps, evaluations and reports, whose figures are over all ranks; every other rank its own memory only. A
rank that is lost holds the others where a report sums over ranks, as it does in their next gradients.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final, Protocol

from trimtab import memory
from trimtab.rules.watch_config import WatchConfig
from trimtab.values import Event, StepRow
from trimtab.watched import EVALUATION_EVENT, WATCH_EVENT
from trimtab.watching.judging import Due, Judging
from trimtab.watching.sensors import RouterSensor, VitalsSensor
from trimtab.watching.telling import Callback, OnFinding

_FLUSH_TIMEOUT_S: Final = 10.0  # as long as a checkpoint waits for a slow disk


class WatchedLog(Protocol):
    """Where a run is recorded, as a watch sees it."""

    @property
    def is_observed(self) -> bool:
        """Whether what is put comes to the observers."""

    def put(self, item: Event, *, step: int) -> None:
        """Records an event."""

    def flush(self, *, timeout_s: float) -> bool:
        """Waits until all that was put has been written and observed."""


class Watch:
    """Looks after the health of one run.

    Args:
        config: Settings.
        router: What measures the routers; None: nothing does.
        vitals: What measures the machine and the steps; None: nothing does.
        rank: This process's place among those that train together.
        log: Where the run is recorded; None: nowhere.
        clock: Seconds since the epoch.
        on_finding: Called for each finding, in the training thread.

    Attributes:
        config: Settings.
        judging: The part that the recorder shows what it writes.
        has_begun: Whether anything was looked at yet.
    """

    def __init__(
        self,
        config: WatchConfig,
        *,
        router: RouterSensor | None = None,
        vitals: VitalsSensor | None = None,
        rank: int = 0,
        log: WatchedLog | None = None,
        clock: Callable[[], float] = time.time,
        on_finding: OnFinding | None = None,
    ) -> None:
        self.config = config
        self.judging = Judging(config, rank=rank, clock=clock)
        self.has_begun = False
        self._router = router
        self._vitals = vitals
        self._rank = rank
        self._log = log
        self._clock = clock
        self._every = config.report_every
        self._callback = Callback(on_finding, found=self.judging.found)
        self._unseen: deque[StepRow | Event] = deque()
        """What a run without a log has put, and may not have arrived."""
        self._is_closed = False

    # When it begins.

    def measure_by(self, *, router: RouterSensor | None, vitals: VitalsSensor | None) -> None:
        """Takes its sensors, where a host has its model and optimizer later than its run."""
        self._router, self._vitals = router, vitals

    def leave_out_routers(self) -> None:
        """Measures no routers any more, as where not all ranks would sum their figures."""
        self._router = None

    @property
    def settings(self) -> dict[str, Any]:
        """What must be alike on all ranks, by name: they sum their figures at the same steps."""
        return {**asdict(self.config), "watches_routers": self._router is not None}

    def begin(self, step: int) -> None:
        """Writes down its settings, and looks at the machine before the first step; reads files of the system.

        Args:
            step: Optimizer step (1-based) that comes now.
        """
        self.has_begun = True
        self._is_closed = False  # a run that was closed before its first step, and trains after all
        if self._router is not None:
            self._ask(partial(self._router.begin, step - 1))
        if self._vitals is not None and step % self._every == 0:
            self._ask(self._vitals.arm)
        if self._rank == 0:
            self._put(Event(WATCH_EVENT, step, self._clock(), self.settings))
        self._look_at_memory(step - 1)

    # Once a step.

    def end_step(self, item: StepRow) -> None:
        """Takes a step that has ended, before it is recorded. Neither waits for a device nor raises.

        Where the figures of routers are summed over ranks, a report's step waits as that sum does.
        """
        if self._is_closed:
            return
        step, every = item.step, self._every
        if step % every == 0:
            self._collect(step)
        if (step + 1) % every == 0 and self._vitals is not None:
            self._ask(self._vitals.arm)
        if not self._is_observed:
            self._take(item)

    def take_event(self, event: Event) -> None:
        """Takes an event that is recorded elsewhere, if anywhere; never waits."""
        if event.kind == EVALUATION_EVENT and not self._is_closed and not self._is_observed:
            self._take(event)

    def tell_findings(self) -> None:
        """Calls the user's callback for what was found since; belongs between two steps."""
        self._callback.call()

    # Beside the steps.

    def before_save(self, needed_bytes: int, *, step: int) -> None:
        """Looks at the host's memory before a save; may wait for a judgement in another thread.

        Args:
            needed_bytes: What is about to be taken.
            step: Optimizer step (1-based) that has just ended.
        """
        if not self._is_closed:
            self._look_at_memory(step, needed_bytes=needed_bytes)

    def unhealthy_because(self) -> tuple[str, ...]:
        """Why a checkpoint that is saved now is none to go on from, a sentence each.

        Waits until all steps up to now are judged, 10 s at most.
        """
        self._catch_up()
        return self.judging.unhealthy_because()

    def figures(self) -> dict[str, Any]:
        """What its rules count beside the findings; waits as `unhealthy_because`."""
        self._catch_up()
        return self.judging.figures()

    def unhealthy_since(self) -> int | None:
        """The last step after which nothing of that was so, as far as is known; None where nobody knows; likewise."""
        self._catch_up()
        return self.judging.unhealthy_since()

    @property
    def num_findings(self) -> int:
        """Findings said up to now."""
        return self.judging.num_said

    def close(self, *, waits: bool) -> None:
        """Ends it, once its log is closed: judges what is left, and calls the user's callback for the last findings.

        Args:
            waits: Whether to wait for values that have not arrived.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._judge_unseen(waits=waits)
        if waits:
            self.judging.finish()
        self.tell_findings()

    # State.

    def state_dict(self) -> dict[str, Any]:
        """All that decides, as plain values; waits as `unhealthy_because`."""
        self._catch_up()
        return self.judging.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken.

        Raises:
            UsageError: The state is another's, or damaged; nothing has changed then.
        """
        self.judging.load_state_dict(state)
        self._unseen.clear()
        self.has_begun = False  # it begins again, at another step

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuses what `load_state_dict` would refuse; changes nothing."""
        self.judging.check_state(state)

    # Within.

    @property
    def _is_observed(self) -> bool:
        return self._log is not None and self._log.is_observed

    def _collect(self, step: int) -> None:
        """Begins to bring to the host what was measured up to a step; all ranks do, whoever judges."""
        router, vitals = self._router, self._vitals
        # Also of a watch that has failed: the other ranks wait for the sum.
        of_routers = self._ask(partial(router.collect, step)) if router is not None else None
        if self.judging.is_off:
            return
        of_step = self._ask(partial(vitals.collect, step)) if vitals is not None else None
        self.judging.due.append(Due(step, of_routers if self._rank == 0 else None, of_step))

    def _ask(self, measure: Callable[[], Any]) -> Any:
        try:
            return measure()
        except Exception as error:  # noqa: BLE001 - what measures must not cost the run
            self.judging.turn_off(error)
            return None

    def _look_at_memory(self, step: int, *, needed_bytes: int | None = None) -> None:
        for event in self.judging.look_at(partial(memory.look, needed_bytes, step=step)):
            self._put(event)

    def _put(self, event: Event) -> None:
        if self._log is not None:
            self._log.put(event, step=event.step)

    def _take(self, item: StepRow | Event) -> None:
        self._unseen.append(item)
        self._judge_unseen(waits=False)

    def _judge_unseen(self, *, waits: bool) -> None:
        while self._unseen and (waits or self.judging.has_arrived(self._unseen[0])):
            self.judging.observe([self._unseen.popleft()])

    def _catch_up(self) -> None:
        """Waits until all that was put up to now is judged."""
        if self._is_observed:
            assert self._log is not None, "it is observed"
            self._log.flush(timeout_s=_FLUSH_TIMEOUT_S)
        self._judge_unseen(waits=True)
