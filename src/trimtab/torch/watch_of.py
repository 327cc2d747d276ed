"""What `watch=` comes to: which watch a run has, and what measures for it.

Enters: True, a `WatchConfig`, a `RouterWatch` or None; the model and the optimizer, once they are known. Leaves: a
watch for each `RunCore`, and its sensors. Invariant: what was made here is taken off model and optimizer again; a
`RouterWatch` of the user's stays.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from trimtab.errors import UsageError
from trimtab.notices import say, warn, warn_setting
from trimtab.rules.watch_config import WatchConfig
from trimtab.text import plain
from trimtab.torch.router.families import find_routers, unread_routers
from trimtab.torch.router.supposed import supposed_routers
from trimtab.torch.router.watch import RouterWatch
from trimtab.torch.vitals import VitalsProbe
from trimtab.watching import OnFinding, Watch

Watched = bool | WatchConfig | RouterWatch | None
"""What `watch=` takes."""


def watch_of(watch: Watched, *, on_finding: OnFinding | None) -> ChosenWatch | None:
    """What was chosen by `watch=`; None where nothing is watched.

    Args:
        watch: As `Run` takes it.
        on_finding: Likewise.

    Raises:
        UsageError: One of them is something else.
    """
    if on_finding is not None and not callable(on_finding):
        raise UsageError(
            f"on_finding must be a function of one WatchFinding, found {type(on_finding).__name__}: write "
            "on_finding=lambda finding: print(finding.text), say."
        )
    if watch is None or watch is False:
        if on_finding is not None:
            warn_setting("on_finding= is never called, for nothing is watched: pass watch=True beside it.")
        return None
    if isinstance(watch, RouterWatch):
        return ChosenWatch(watch.config, routers=watch, on_finding=on_finding)
    if watch is not True and not isinstance(watch, WatchConfig):
        raise UsageError(
            f"watch must be True, a trimtab.WatchConfig or a trimtab.moe.RouterWatch, found {type(watch).__name__}."
        )
    return ChosenWatch(WatchConfig() if watch is True else watch, routers=None, on_finding=on_finding)


class ChosenWatch:
    """Makes the watch of a run, and of each further one of the same host.

    Args:
        config: Settings.
        routers: The user's own; None: made for a model with routers that are known.
        on_finding: Called for each finding.

    Attributes:
        config: Settings.
        new: Makes the watch of a `RunCore`.
        routers: What taps the routers since `begin`; None: nothing does.
    """

    def __init__(self, config: WatchConfig, *, routers: RouterWatch | None, on_finding: OnFinding | None) -> None:
        self.config = config
        self.new: Callable[..., Watch] = partial(Watch, config, on_finding=on_finding)
        self.routers = routers
        self._own = routers
        self._taken_off: list[Callable[[], object]] = []

    def begin(
        self,
        watch: Watch | None,
        *,
        model: nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        process_group: dist.ProcessGroup | None,
    ) -> None:
        """Gives a watch its sensors, on the model and the optimizer that train from now on.

        Args:
            watch: That of the run; None: it has none.
            model: The model, or what it is wrapped in; None: its routers and its updates are not measured.
            optimizer: Its optimizer; None: its updates are not measured.
            process_group: The ranks over which figures are summed, as it was handed to the run; None: all of them. A
                group of one rank is not the same.

        Raises:
            UsageError: If the model's routers are known and cannot be tapped.
        """
        self.remove()
        if watch is None:
            return
        self.routers = self._own
        if self._own is None and model is not None and find_routers(model):
            self.routers = RouterWatch(model, config=self.config, process_group=process_group)
            self._take_off_later(self.routers.remove)
        vitals = self._probe(model, optimizer) if model is not None and optimizer is not None else None
        watch.measure_by(router=self.routers, vitals=vitals)

    def introduce(self, model: nn.Module | None) -> None:
        """Says in one line what is watched and how often, and warns of routers that are not.

        Args:
            model: The model as it is by now; None: there is none.
        """
        routers = ""
        unread: tuple[str, ...] = ()
        supposed = ""
        if self._own is not None:
            routers = " and the routers of its RouterWatch"
        elif model is not None and (found := find_routers(model)):
            kinds = ", ".join(sorted({plain(type(router.module).__name__) for router in found}))
            routers = f" and {len(found)} {'router' if len(found) == 1 else 'routers'} ({kinds})"
        elif model is not None:
            unread = unread_routers(model)  # of a model with others they are notes of its reports
            supposed = "" if unread else supposed_routers(model)
        every = self.config.report_every
        steps = "step" if every == 1 else f"{every} steps"
        say("watch", f"Trimtab watches the run's health{routers}, and reports every {steps}.")
        for sentence in unread:
            warn(
                "watch",
                f"Trimtab watches no router of this model: {sentence}. Make watch=moe.RouterWatch(model, routers=...) "
                "of modules that give logits, or tap them by RouterWatch.tap.",
            )
        if supposed:
            warn(
                "watch",
                f"Trimtab watches no router of this model, and does not know these: {supposed}. If they route tokens "
                "to experts, pass watch=trimtab.moe.RouterWatch(model, routers=..., top_k=...), with the modules that "
                "give logits.",
            )

    def remove(self) -> None:
        """Takes off what was made here. Begun again, it is put on again."""
        for take_off in self._taken_off:
            take_off()
        self._taken_off.clear()

    def _probe(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> VitalsProbe | None:
        try:
            vitals = VitalsProbe(model, optimizer)
        except UsageError as error:  # an optimizer of one's own: the rest is watched all the same
            warn("watch", f"Trimtab does not measure updates and memory of this run: {error}")
            return None
        self._take_off_later(vitals.remove)
        return vitals

    def _take_off_later(self, take_off: Callable[[], object]) -> None:
        # A run that is thrown away, as by a loop that was interrupted, leaves a model as it was.
        self._taken_off.append(weakref.finalize(self, take_off))
