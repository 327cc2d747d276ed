"""Puts the scalars of TensorBoard's tags together into step records.

Enters: scalars, one by one, in the order of the files. Leaves: `Metrics`. Invariant: writers log tag by tag, and not
always step by step, so a record is made of what has one step in one file; where a tag goes back to an earlier step
inside a file, its scalars from there on stand behind those before. Memory is 32 bytes a scalar of a tag that has a
role; the other tags leave nothing.

Shapes: N scalars of one tag, K scalars of all, S records.
"""

from __future__ import annotations

import math
from array import array
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.log.foreign.steps.evaluations import Evaluations
from trimtab.log.foreign.steps.metric_names import Role, is_eval_loss, rank_of, roles_of
from trimtab.log.foreign.steps.records import StepRecords
from trimtab.log.foreign.steps.source import Metrics

MAX_NAMED: Final = 10
"""Tags that a notice names where none is a loss."""

MAX_TAGS: Final = 10_000
"""Tags that are told apart; of more the first count."""

_STEP_ROLES: Final[tuple[Role, ...]] = ("loss", "grad_norm", "lr", "loss_scale", "num_tokens")


class _Tag:
    """The scalars of one tag, in the order read."""

    def __init__(self) -> None:
        self.file = array("q")
        self.step = array("q")
        self.time = array("d")
        self.value = array("d")
        self.entry = array("q")


class _Keyed(NamedTuple):
    """The scalars of one tag, each with what tells its record from others."""

    key: NDArray[np.int64]
    """(N, 4) file, stretch inside the file, step, how often the tag stood at it before."""
    entry: NDArray[np.int64]
    value: NDArray[np.float64]


class ScalarRecords:
    """Takes the scalars of one run; see the module.

    Attributes:
        num_scalars: How many were taken, of any tag.
    """

    def __init__(self) -> None:
        self._tags: dict[bytes, _Tag | None] = {}
        self.num_scalars = 0
        self._num_left_out = 0

    def add(self, tag: bytes, *, file: int, step: int, time: float, value: float) -> None:
        """Takes one scalar.

        Args:
            tag: Its tag, as written.
            file: Number of its file, in the order of the files.
            step: Its step.
            time: Seconds since the epoch.
            value: May be NaN or infinite.
        """
        self.num_scalars += 1
        try:
            known = self._tags[tag]
        except KeyError:
            known = self._new_tag(tag)
        if known is not None:
            known.file.append(file)
            known.step.append(step)
            known.time.append(time)
            known.value.append(value)
            known.entry.append(self.num_scalars)

    def metrics(self) -> Metrics:
        """What the scalars say of the run's steps, its evaluations, and what to say about the choice of tags."""
        tags = {tag.decode("utf-8", "backslashreplace"): kept for tag, kept in self._tags.items() if kept is not None}
        roles = roles_of(tags)
        notices = roles.notices()
        if "loss" not in roles.names and self.num_scalars:
            names = [repr(tag.decode("utf-8", "backslashreplace")) for tag in islice(self._tags, MAX_NAMED)]
            more = f" and {len(self._tags) - MAX_NAMED} more" if len(self._tags) > MAX_NAMED else ""
            notices.append(f"no tag is a training loss, of {', '.join(names)}{more}")
        if self._num_left_out:
            notices.append(f"{self._num_left_out} scalars were left out: they have more than {MAX_TAGS} tags")
        keyed = {role: _keyed(tags[roles.names[role]]) for role in _STEP_ROLES if role in roles.names}
        evaluations = _evaluations({tag: tags[tag] for tag in roles.eval_losses})
        return Metrics(_records(keyed), evaluations.events(), [*notices, *evaluations.notices()])

    def _new_tag(self, tag: bytes) -> _Tag | None:
        if len(self._tags) >= MAX_TAGS:
            self._num_left_out += 1
            return None
        name = tag.decode("utf-8", "backslashreplace")
        of_use = is_eval_loss(name) or any(rank_of(name, role) is not None for role in _STEP_ROLES)
        self._tags[tag] = _Tag() if of_use else None
        return self._tags[tag]


def _keyed(tag: _Tag) -> _Keyed:
    file, step = np.array(tag.file, np.int64), np.array(tag.step, np.int64)
    goes_back = np.zeros(step.size, np.int64)
    goes_back[1:] = (step[1:] < step[:-1]) & (file[1:] == file[:-1])
    stretch = np.cumsum(goes_back)
    # Inside a stretch steps ascend, so equal ones stand together.
    is_first = np.ones(step.size, np.bool_)
    is_first[1:] = (step[1:] != step[:-1]) | (file[1:] != file[:-1]) | (goes_back[1:] != 0)
    place = np.arange(step.size)
    before = place - np.maximum.accumulate(np.where(is_first, place, 0))
    first_of_file = np.searchsorted(file, file)
    key = np.stack([file, stretch - stretch[first_of_file], step, before], axis=1)
    return _Keyed(key, np.array(tag.entry, np.int64), np.array(tag.value, np.float64))


def _records(keyed: dict[Role, _Keyed]) -> StepRecords:
    """One record for each key, in the order of the keys."""
    if not keyed:
        return StepRecords.of([], place=[])
    keys = np.concatenate([columns.key for columns in keyed.values()])
    order = np.lexsort(keys.T[::-1])
    is_first = np.ones(order.size, np.bool_)
    is_first[1:] = np.any(keys[order[1:]] != keys[order[:-1]], axis=1)
    record = np.empty(order.size, np.int64)
    record[order] = np.cumsum(is_first) - 1
    num_records = int(is_first.sum())

    step, entry = np.empty(num_records, np.int64), np.full(num_records, np.iinfo(np.int64).max)
    values = {role: np.full(num_records, np.nan) for role in _STEP_ROLES}
    has = {role: np.zeros(num_records, np.bool_) for role in _STEP_ROLES}
    begin = 0
    for role, columns in keyed.items():
        of = record[begin : begin + columns.value.size]
        begin += columns.value.size
        step[of] = columns.key[:, 2]
        np.minimum.at(entry, of, columns.entry)
        values[role][of] = columns.value
        has[role][of] = True
    return StepRecords.of(
        step,
        place=entry,
        loss=values["loss"],
        has_loss=has["loss"],
        grad_norm=values["grad_norm"],
        has_grad_norm=has["grad_norm"],
        lr=values["lr"],
        loss_scale=values["loss_scale"],
        num_tokens=values["num_tokens"],
    )


def _evaluations(tags: dict[str, _Tag]) -> Evaluations:
    """What stands under tags of losses on data that was not trained on, in the order of time; a bad time is none."""
    scalars = [
        (time if math.isfinite(time) else 0.0, step, name, value)
        for name, tag in tags.items()
        for time, step, value in zip(tag.time, tag.step, tag.value, strict=True)
    ]
    evaluations = Evaluations()
    for time, step, name, value in sorted(scalars, key=itemgetter(0)):
        evaluations.add(step, {name: value}, time=time)
    return evaluations
