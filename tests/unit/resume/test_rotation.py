"""What is removed after a save; worked by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.resume.info import CheckpointInfo
from trimtab.resume.rotation import relied_on, to_delete


def info(step: int, *, run_id: str | None = "run-b", healthy: bool | None = True, **fields: object) -> CheckpointInfo:
    made = CheckpointInfo(path=Path(f"/x/step_{step}"), step=step, healthy=healthy, run_id=run_id, serial=step + 1)
    return replace(made, **fields)  # type: ignore[arg-type]


def deleted(infos: list[CheckpointInfo], *, keep: int, just_written: int, run_id: str | None = "run-b") -> list[int]:
    paths = to_delete(infos, keep=keep, run_id=run_id, just_written=Path(f"/x/step_{just_written}"))
    return [int(path.name.removeprefix("step_")) for path in paths]


def test_of_numbers_with_more_digits_the_newest_stay() -> None:
    # C073: 9000..9900 were kept, and 10000 was deleted.
    infos = [info(step) for step in range(9000, 10_001, 100)]

    assert deleted(infos, keep=10, just_written=10_000) == [9000]


def test_the_one_just_written_stays_beside_higher_numbers_of_another_run() -> None:
    # C071
    infos = [info(1000, run_id="run-a", serial=40), info(10, run_id="run-b", serial=41)]

    assert deleted(infos, keep=1, just_written=10) == []


def test_the_one_just_written_stays_beside_higher_numbers_of_its_own_run() -> None:
    # The run went back to 400 and passes 500 again.
    infos = [info(step) for step in (400, 500, 900, 1000)]

    assert deleted(infos, keep=2, just_written=500) == [400]


@pytest.mark.parametrize("keep", [0, -1, -5])
def test_a_limit_that_is_none_deletes_nothing(keep: int) -> None:
    assert deleted([info(step) for step in (1, 2, 3)], keep=keep, just_written=3) == []
    assert deleted([info(1, problem="model.pt is empty"), info(2), info(3)], keep=keep, just_written=3) == []


def test_the_last_healthy_one_stays() -> None:
    infos = [info(100), info(200), *(info(step, healthy=False) for step in (300, 400, 500))]

    assert deleted(infos, keep=2, just_written=500) == [100, 300]


def test_the_only_one_that_is_whole_stays_among_damaged_ones() -> None:
    infos = [info(100), info(200, problem="model.pt is empty"), info(300, missing=("rng",)), info(400)]

    assert deleted(infos, keep=2, just_written=400) == []


def test_damaged_ones_count_for_none_and_go_with_those_of_their_age() -> None:
    infos = [info(100, problem="a"), info(200), info(300, problem="b"), info(400)]

    assert deleted(infos, keep=1, just_written=400) == [100, 200, 300]


def test_nothing_goes_before_the_new_one_is_seen_to_be_whole() -> None:
    old = [info(100), info(200)]

    assert deleted([*old, info(300, problem="run.pt is missing")], keep=1, just_written=300) == []
    assert deleted(old, keep=1, just_written=300) == []


def test_those_of_others_stay() -> None:
    others = [
        info(1, run_id="run-a"), info(2, run_id=None), info(3, serial=None), info(4, saver="transformers"),
        info(5, saver="file", serial=None, run_id=None),
    ]  # fmt: skip

    assert deleted([*others, info(10), info(20)], keep=1, just_written=20) == [10]


def test_a_run_without_an_id_removes_its_own_alone() -> None:
    infos = [info(1), info(2, run_id=None), info(3, run_id=None)]

    assert deleted(infos, keep=1, just_written=3, run_id=None) == [2]


def test_those_that_the_run_was_taken_back_behind_count_for_none_and_go_once_it_has_passed_them() -> None:
    left = [info(900, abandoned=True), info(1000, abandoned=True)]

    assert deleted([info(400), info(500), info(600), *left], keep=2, just_written=600) == [400]
    assert deleted([info(500), info(600), *left, info(1100)], keep=1, just_written=1100) == [500, 600, 900, 1000]
    unhealthy = [info(500, healthy=False), info(1100, healthy=False)]
    assert deleted([*unhealthy, *left], keep=1, just_written=1100) == [500, 900]


def test_the_oldest_goes_first() -> None:
    assert deleted([info(step) for step in (30, 10, 20, 40)], keep=1, just_written=40) == [10, 20, 30]


@given(
    infos=st.lists(
        st.builds(
            info,
            st.integers(0, 40),
            run_id=st.sampled_from(["run-a", "run-b"]),
            healthy=st.sampled_from([True, False, None]),
            problem=st.sampled_from([None, None, "damaged"]),
        ),
        unique_by=lambda entry: entry.step,
        min_size=1,
    ),
    keep=st.integers(-1, 5),
    data=st.data(),
)
def test_what_must_stay_stays(infos: list[CheckpointInfo], keep: int, data: st.DataObject) -> None:
    just_written = data.draw(st.sampled_from(infos)).step

    gone = set(deleted(infos, keep=keep, just_written=just_written))

    whole = sorted(entry.step for entry in infos if entry.run_id == "run-b" and entry.problem is None)
    healthy = [entry.step for entry in infos if entry.step in whole and entry.healthy]
    assert just_written not in gone
    assert not gone & {entry.step for entry in infos if entry.run_id != "run-b"}
    assert not healthy or max(healthy) not in gone
    assert not whole or set(whole) - gone
    assert not gone or len(set(whole) - gone) >= min(keep, len(whole))


def test_relied_on_are_the_one_just_written_and_the_last_healthy_one() -> None:
    infos = [info(100), info(200), info(300, problem="x"), info(400, healthy=False), info(500, healthy=False)]

    found = relied_on([*infos, info(900, run_id="run-a")], run_id="run-b", just_written=Path("/x/step_500"))

    assert [one.step for one in found] == [500, 200]
