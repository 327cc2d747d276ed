"""Entries of a metric log, objects with any keys, become step records and evaluations.

    {"train": {"loss": 2.1}, "_step": 7} -> "train/loss", "_step" -> arrays a name -> roles -> Metrics

Enters: entries, one by one. Leaves: `Metrics`. Invariant: which name is the step, and which the loss, is decided once,
when all names are known: an entry does not mean something else because another one lacks a key. Memory is 25 bytes a
value whose name may have a role, and nothing for the others.

Shapes: N entries that hold anything of use.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.log.foreign.left_out import LeftOut
from trimtab.log.foreign.steps.beside import BESIDE_ROLES, Beside
from trimtab.log.foreign.steps.cells import INT64, NoNumber, read_number
from trimtab.log.foreign.steps.epochs import counted_through, epoch_as_step
from trimtab.log.foreign.steps.evaluations import Evaluations
from trimtab.log.foreign.steps.metric_names import ROLES, Role, is_eval_loss, rank_of, roles_of
from trimtab.log.foreign.steps.records import StepRecords
from trimtab.log.foreign.steps.source import Metrics

MAX_NAMES: Final = 1_000
"""Names with a role that are kept of one log."""

MAX_REMEMBERED: Final = 100_000
"""Names of which it is remembered whether they may have a role."""

MAX_DEPTH: Final = 4
"""Objects inside objects that are looked into."""

_EXACT: Final = 2.0**53
"""Up to here every whole number is a float64."""

MAX_TEXT: Final = 40
"""A longer text is no number."""

_SUMMARY: Final = "train_runtime"
"""Stands in the last entry of the Hugging Face trainer: sums over the run, under the number of its last step."""

_SPLITS: Final = frozenset(("split", "phase", "mode", "stage", "subset", "kind", "type"))
"""Keys under which an entry says what it was measured on."""

_WHOLE, _NUMBER, _NULL, _BAD, _ABSENT = range(5)
"""What stands under a name: a whole number, another one, nothing, anything else; or the name is not there."""


class _Values:
    """What stood under one name.

    Args:
        counts: Whether it counts steps or epochs rather than measures.
    """

    def __init__(self, *, counts: bool) -> None:
        self.counts = counts
        self.entry = array("q")
        self.value = array("d")
        self.whole = array("q")
        """Whole numbers as such: beyond 2**53 a float does not hold each of them; 0 for others."""
        self.state = array("B")


class _Column(NamedTuple):
    """One name over all entries.

    Attributes:
        value: (N,) float64; NaN where there is none.
        given: (N,) bool, whether a number stands there.
        whole: (N,) bool, whether it is a whole one.
        null: (N,) bool, whether the entry has the name and says that there is no value.
        bad: (N,) bool, whether something else stands there.
        step: (N,) int64, the whole number, exact beyond what a float holds; 0 where there is none.
    """

    value: NDArray[np.float64]
    given: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    null: NDArray[np.bool_]
    bad: NDArray[np.bool_]
    step: NDArray[np.int64]


class Entries:
    """Collects the entries of one log.

    Args:
        noun: What an entry is in the file: "line" or "entry".
        nouns: The same in the plural.
    """

    def __init__(self, noun: str, nouns: str) -> None:
        self.left_out = LeftOut(noun, nouns)
        self._unread = LeftOut(noun, nouns, fate="read without it")
        self._places = array("q")
        self._values: dict[str, _Values] = {}
        self._known: dict[str, _Values | None] = {}
        self._num_aside = 0
        self._noun, self._nouns = noun, nouns

    def take(self, entry: Mapping[str, Any], *, place: int) -> None:
        """Takes one entry; `place` is its number, counted from 1."""
        if _SUMMARY in entry:
            return
        index, is_of_use = len(self._places), False
        prefix = _prefix(entry)
        for key, value in _flat(entry):
            values = self._values_of(key, prefix=prefix)
            if values is None:
                continue
            is_of_use = is_of_use or not values.counts
            if type(value) is float:  # nearly every value, and all there is to know of it
                number, whole, state = value, 0, _NUMBER
            else:
                number, whole, state = _read(value)
            values.entry.append(index)
            values.value.append(number)
            values.whole.append(whole)
            values.state.append(state)
        # Also without use an index is spent on it: some of its values were taken.
        self._places.append(place)
        self._num_aside += not is_of_use

    def metrics(self) -> Metrics:
        """All that was taken."""
        place = np.array(self._places, np.int64)
        roles = roles_of(self._values)
        columns = {role: self._column(name) for role, name in roles.names.items()}
        nothing = _column(_Values(counts=False), place.size)

        def column(role: Role) -> _Column:
            return columns.get(role, nothing)

        loss, grad_norm, epoch = column("loss"), column("grad_norm"), column("epoch").value
        evaluated = _any_given(map(self._column, roles.eval_losses), size=place.size)
        is_bad = loss.bad | (grad_norm.bad & ~loss.given)
        is_step = (loss.given | grad_norm.given | (loss.null & ~evaluated)) & ~is_bad
        has_beside = _any_given((column(role) for role in BESIDE_ROLES), size=place.size)
        step, has_step, on_steps = self._steps(place, column("step"), epoch, which=is_step | evaluated | has_beside)
        self.left_out.add_all(place[is_bad].tolist(), "with a loss or gradient norm that is no number")
        self.left_out.add_all(place[(is_step | evaluated) & ~has_step].tolist(), "without a whole number as step")
        is_record = is_step & has_step
        has_beside &= has_step
        for role, found in columns.items():
            if role != "step":
                self._unread.add_all(
                    place[found.bad & is_record].tolist(), f"with no number under {roles.names[role]!r}"
                )
        evaluations = self._evaluations(roles.eval_losses, has_step=has_step)

        records = StepRecords.of(
            step,
            place=place,
            loss=loss.value,
            has_loss=loss.given,
            grad_norm=grad_norm.value,
            has_grad_norm=grad_norm.given,
            lr=column("lr").value,
            loss_scale=column("loss_scale").value,
            num_tokens=column("num_tokens").value,
        )
        return Metrics(
            records=records.take(is_record),
            events=evaluations.events(step),
            event_places=evaluations.places(place),
            beside=Beside.of(
                step[has_beside],
                place=place[has_beside],
                values={role: column(role).value[has_beside] for role in BESIDE_ROLES if role in columns},
                names=roles.names,
            ),
            notices=[
                *roles.notices(),
                *on_steps,
                *self.left_out.notices(),
                *self._unread.notices(),
                *self._on_names(),
                *evaluations.notices(),
            ],
        )

    def _values_of(self, key: str, *, prefix: str) -> _Values | None:
        """Where the values of a name go; None for one without a role. Asked once a name, as far as there is room."""
        name = prefix + key if prefix else key
        if name in self._known:
            return self._known[name]
        counts = rank_of(key, "step") is not None or rank_of(key, "epoch") is not None
        values = None
        if counts or is_eval_loss(name) or any(rank_of(name, role) is not None for role in ROLES):
            # What counts steps means the same whatever was measured.
            named = key if counts else name
            if named in self._values or len(self._values) < MAX_NAMES:
                values = self._values.setdefault(named, _Values(counts=counts))
        if len(self._known) < MAX_REMEMBERED:
            self._known[name] = values
        return values

    def _column(self, name: str) -> _Column:
        return _column(self._values[name], len(self._places))

    def _steps(
        self, place: NDArray[np.int64], column: _Column, epoch: NDArray[np.float64], *, which: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], list[str]]:
        """The step of each entry (N,), whether it has one (N,), and what to say; only those of `which` matter."""
        if column.given[which].any():
            has_step = column.whole & which
            step = column.step.copy()
            step[has_step], said = counted_through(step[has_step], epoch[has_step])
            return step, has_step, said
        by_epoch = epoch_as_step(epoch[which])
        step, counted = place.copy(), f"numbers of {self._nouns} are" if by_epoch is None else "the epoch is"
        if by_epoch is not None:
            step[which] = by_epoch
        return step, which, [f"no key is named as a step usually is: {counted} read as it"] if which.any() else []

    def _evaluations(self, names: tuple[str, ...], *, has_step: NDArray[np.bool_]) -> Evaluations:
        evaluations = Evaluations()
        columns = {name: self._column(name) for name in names}
        for entry in np.flatnonzero(has_step & _any_given(columns.values(), size=has_step.size)).tolist():
            evaluations.add(
                entry, {name: float(column.value[entry]) for name, column in columns.items() if column.given[entry]}
            )
        return evaluations

    def _on_names(self) -> list[str]:
        said = []
        if len(self._values) == MAX_NAMES:
            said.append(f"names after the first {MAX_NAMES} were not looked at")
        if self._num_aside:
            some = f"1 {self._noun} holds" if self._num_aside == 1 else f"{self._num_aside} {self._nouns} hold"
            said.append(f"{some} neither a loss nor a gradient norm")
        return said


def _column(values: _Values, size: int) -> _Column:
    """Values over all entries; of a name that stands twice in one entry the last counts."""
    entry = np.array(values.entry, np.int64)
    value, whole, state = np.full(size, np.nan), np.zeros(size, np.int64), np.full(size, _ABSENT, np.uint8)
    value[entry], whole[entry], state[entry] = values.value, values.whole, values.state
    # 12.0 is whole: where a table has gaps, its steps are floats.
    is_float = (state == _NUMBER) & (np.abs(value) < _EXACT)
    is_float &= value == np.floor(value)
    whole[is_float] = value[is_float].astype(np.int64)
    return _Column(
        value,
        given=(state == _NUMBER) | (state == _WHOLE),
        whole=is_float | (state == _WHOLE),
        null=state == _NULL,
        bad=state == _BAD,
        step=whole,
    )


def _any_given(columns: Iterable[_Column], *, size: int) -> NDArray[np.bool_]:
    given = np.zeros(size, np.bool_)
    for column in columns:
        given |= column.given
    return given


def _flat(entry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of an entry; what is in an object inside it is named "outer/inner"."""
    waiting = [("", entry, 1)]
    while waiting:
        outer, inner, depth = waiting.pop()
        for key, value in inner.items():
            if isinstance(value, dict):
                if depth < MAX_DEPTH:
                    waiting.append((f"{outer}{key}/", value, depth + 1))
            else:
                yield outer + key, value


def _prefix(entry: Mapping[str, Any]) -> str:
    """What goes in front of the names of an entry that says that it was measured on other data than trained on."""
    for key in _SPLITS & entry.keys():
        split = entry[key]
        if isinstance(split, str) and len(split) <= MAX_TEXT and is_eval_loss(f"{split}/loss"):
            return f"{split}/"
    return ""


def _read(value: object) -> tuple[float, int, int]:
    """A value as a number, as a whole number, and which of them it is."""
    if value is None:
        return math.nan, 0, _NULL
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan, 0, _BAD
    if isinstance(value, int):
        return (float(value), value, _WHOLE) if value in INT64 else (math.nan, 0, _BAD)
    number = read_number(value) if isinstance(value, str) and len(value) <= MAX_TEXT else value
    if number is None:
        return math.nan, 0, _NULL
    if isinstance(number, str | NoNumber):
        return math.nan, 0, _BAD
    return number, 0, _NUMBER
