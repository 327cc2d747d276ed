"""What a guard hands to what decides for it on a device, what it takes back, and how often it asks."""

import sys
from types import ModuleType

import pytest

from trimtab.errors import GuardLockupError, MissingExtraError
from trimtab.guard import LossGuard
from trimtab.guard.acting import TENSOR_GUARD
from trimtab.guard.history import History


def guard_after(losses: list[float], *, step: int | None = None) -> LossGuard:
    guard = LossGuard(multiplier=2.0, window_size=4, max_consecutive_skips="never")
    for loss in losses:
        guard.check(loss, step=step)
    return guard


def test_the_history_is_the_window_and_the_row_of_skips_oldest_first() -> None:
    assert guard_after([]).history == History([], [], 0, None)
    assert guard_after([1.0, 2.0, 3.0], step=7).history == History([1.0, 2.0, 3.0], [], 0, 7)
    # One more than the window holds; of six skips in a row the newest four are held.
    found = guard_after([9.0, 1.0, 2.0, 3.0, 4.0, *[50.0, 51.0, 52.0, 53.0, 54.0, 55.0]]).history
    assert found == History([1.0, 2.0, 3.0, 4.0], [52.0, 53.0, 54.0, 55.0], 6, None)


def test_a_guard_that_takes_over_a_history_decides_by_it_and_goes_on_counting() -> None:
    guard, other = guard_after([9.0] * 5, step=3), guard_after([1.0] * 4 + [7.0, 8.0])

    guard.take_over(other.history, num_judged=100, num_skipped=30)

    assert guard.history == other.history._replace(last_step=3)
    assert (guard.num_judged, guard.num_skipped) == (105, 30)
    assert guard.check(2.5).reason == "spike"
    saved = guard.state_dict()
    guard.load_state_dict(saved)
    assert guard.state_dict() == saved


class Counting:
    """What acts for a guard, and counts what the guard asks of it; has nothing to tell."""

    def __init__(self, guard: LossGuard, **_: object) -> None:
        self.asked: list[object] = []
        guard.acting = self  # type: ignore[attr-defined]

    def settle(self) -> None:
        self.asked.append("settle")

    def load(self, history: History) -> None:
        self.asked.append(history.window)


class LockedUp(Counting):
    def settle(self) -> None:
        super().settle()
        raise GuardLockupError("skips for ever")


def acting_guard(monkeypatch: pytest.MonkeyPatch, acts: type[Counting]) -> tuple[LossGuard, Counting]:
    module = ModuleType(TENSOR_GUARD)
    module.TensorGuard = acts  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, TENSOR_GUARD, module)
    guard = LossGuard(multiplier=2.0, model=object())
    return guard, guard.acting  # type: ignore[attr-defined]


def test_every_verb_of_a_guard_that_acts_catches_up_once_and_tells_once_what_it_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard, acting = acting_guard(monkeypatch, Counting)

    guard.check(1.0)
    guard.remember_kept([2.0])
    state = guard.state_dict()
    guard.reset("a test")
    guard.load_state_dict(state)
    assert guard.history.window == [1.0, 2.0]

    assert acting.asked == ["settle", [1.0], "settle", [1.0, 2.0], "settle", "settle", [], "settle", [1.0, 2.0]]


def test_a_lock_up_heard_of_on_the_way_stops_what_needs_the_history_and_not_what_gives_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard, _ = acting_guard(monkeypatch, LockedUp)

    for ask in (lambda: guard.check(1.0), lambda: guard.remember_kept([1.0]), guard.state_dict):
        with pytest.raises(GuardLockupError):
            ask()
    assert guard.num_judged == 0
    guard.reset("seen")


def test_a_model_where_torch_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, TENSOR_GUARD, raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)  # as Python itself marks what is not to be found

    with pytest.raises(
        MissingExtraError, match=r"LossGuard\(model=\.\.\.\) .* needs torch.*pip install 'trimtab\[torch\]'"
    ):
        LossGuard(multiplier=2.0, model=object())


def test_what_else_is_missing_is_not_taken_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, TENSOR_GUARD, None)

    with pytest.raises(ModuleNotFoundError) as found:
        LossGuard(multiplier=2.0, model=object())

    assert not isinstance(found.value, MissingExtraError)
