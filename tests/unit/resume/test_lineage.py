"""Which checkpoints were left behind, held against a run whose every load and save is known."""

from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trimtab.resume.info import CheckpointInfo
from trimtab.resume.lineage import with_abandoned
from trimtab.resume.manifest import ResumedFrom


def info(
    step: int, serial: int | None, load: tuple[int, int] | None = None, *, run_id: str = "run-a"
) -> CheckpointInfo:
    resumed_from = None if load is None else ResumedFrom(step=load[0], serial=load[1])
    return CheckpointInfo(
        path=Path(f"/{run_id}/step_{step}"),
        step=step,
        healthy=True,
        run_id=run_id,
        serial=serial,
        resumed_from=resumed_from,
    )


def left_behind(*infos: CheckpointInfo) -> list[int]:
    marked = with_abandoned(infos)
    assert [entry.path for entry in marked] == [entry.path for entry in infos]
    return [entry.step for entry in marked if entry.abandoned]


def test_a_run_that_was_taken_back_leaves_the_later_ones_behind() -> None:
    assert left_behind(info(500, 1), info(900, 2), info(1000, 3), info(600, 4, (500, 3))) == [900, 1000]


def test_saves_in_any_order_without_a_load_leave_nothing_behind() -> None:
    assert left_behind(info(500, 1), info(1000, 2), info(600, 3)) == []
    # Nor do those of the saver itself, after its load.
    assert left_behind(info(500, 1), info(900, 2, (500, 1)), info(700, 3, (500, 1))) == []


def test_going_on_from_the_last_one_leaves_nothing_behind() -> None:
    assert left_behind(info(500, 1), info(1000, 2), info(1100, 3, (1000, 2))) == []


def test_what_was_left_behind_stays_so_for_later_attempts() -> None:
    way = [info(500, 1), info(1000, 2), info(600, 3, (500, 2)), info(700, 4, (600, 3))]

    assert left_behind(*way) == [1000]
    assert left_behind(*way, info(1100, 5, (700, 4))) == [1000]
    assert left_behind(*way[1:2], *way[3:]) == [1000]  # rotation has removed the others


def test_one_that_was_named_after_all_is_not_left_behind_any_more() -> None:
    # 500 was tried again, in vain; then 1000 was named.
    assert left_behind(info(500, 1), info(1000, 2), info(600, 3, (500, 2)), info(1100, 4, (1000, 3))) == []


def test_another_run_and_what_says_nothing_are_left_alone() -> None:
    others = [info(1000, 2, run_id="run-b"), info(2000, None)]

    assert left_behind(info(500, 1), *others, info(600, 3, (500, 2))) == []


def test_a_load_from_another_folder_leaves_nothing_behind_in_an_empty_one() -> None:
    assert left_behind(info(600, 1, (500, 0)), info(700, 2, (500, 0))) == []


@dataclass
class Run:
    """A folder of one run, and from which save each of its saves went on."""

    infos: dict[int, CheckpointInfo] = field(default_factory=dict)
    before: dict[int, int | None] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    at: tuple[int, int | None] = (0, None)
    load: tuple[int, int] | None = None

    def save(self, num_steps: int) -> None:
        serial = len(self.before) + 1
        step = self.at[0] + num_steps
        self.infos[step] = info(step, serial, self.load)
        self.before[serial], self.steps[serial] = self.at[1], step
        self.at = (step, serial)

    def go_back(self, place: int) -> None:
        loaded = list(self.infos.values())[place % len(self.infos)]
        self.at, self.load = (loaded.step, loaded.serial), (loaded.step, len(self.before))

    def way(self) -> set[int]:
        serial, serials = self.at[1], set()
        while serial is not None:
            serials.add(serial)
            serial = self.before[serial]
        return serials


@given(moves=st.lists(st.tuples(st.booleans(), st.integers(1, 6)), min_size=1, max_size=25))
def test_the_way_to_the_last_save_is_kept_and_nothing_is_ahead_of_it(moves: list[tuple[bool, int]]) -> None:
    run = Run()
    for goes_back, number in moves:
        if goes_back and run.infos:
            run.go_back(number)
        run.save(number)

    marked = with_abandoned(run.infos.values())

    way = run.way()
    assert not [entry for entry in marked if entry.abandoned and entry.serial in way and _is_whole_way(run, entry)]
    assert max(entry.step for entry in marked if not entry.abandoned) == run.at[0]


def _is_whole_way(run: Run, entry: CheckpointInfo) -> bool:
    """Whether everything behind a save stands yet: a run that goes over a step again replaces what it came from."""
    there = {other.serial for other in run.infos.values()}
    return all(serial in there for serial in run.way() if serial > (entry.serial or 0))
