"""What every rank saw happen, happened once; what happened to one rank's recorder happened to that rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trimtab.log.folder import create_run
from trimtab.log.rank_events import merged
from trimtab.log.reader import open_log
from trimtab.values import Event, RunHeader


def shown(events: list[Event]) -> list[tuple[str, int, float, tuple[int, ...]]]:
    return [(event.kind, event.step, event.time, event.ranks) for event in events]


def note(step: int, time: float, text: str = "x", **facts: Any) -> Event:
    return Event("note", step, time, {"text": text, **facts})


def test_an_event_that_ranks_recorded_alike_stands_there_once_as_the_lowest_of_them_saw_it() -> None:
    found = merged([(0, note(3, 10.0)), (0, note(4, 11.0)), (1, note(3, 9.5)), (2, note(3, 12.0))])
    assert shown(found) == [("note", 3, 10.0, (0, 1, 2)), ("note", 4, 11.0, (0,))]


def test_events_that_say_something_else_or_are_of_another_step_are_others() -> None:
    found = merged([(0, note(3, 1.0)), (1, note(3, 2.0, "y")), (1, note(4, 3.0)), (1, note(3, 4.0, shard=1))])
    assert [ranks for *_, ranks in shown(found)] == [(0,), (1,), (1,), (1,)]


def test_the_order_of_facts_says_nothing() -> None:
    first, second = Event("a", 1, 1.0, {"x": 1, "y": [2]}), Event("a", 1, 1.0, {"y": [2], "x": 1})
    assert shown(merged([(0, first), (1, second)])) == [("a", 1, 1.0, (0, 1))]


def test_an_event_that_came_twice_on_every_rank_came_twice() -> None:
    found = merged([(0, note(3, 1.0)), (0, note(3, 2.0)), (1, note(3, 1.5)), (1, note(3, 2.5)), (1, note(3, 3.5))])
    assert shown(found) == [("note", 3, 1.0, (0, 1)), ("note", 3, 2.0, (0, 1)), ("note", 3, 3.5, (1,))]


def test_an_evaluation_is_one_though_each_rank_measured_its_own_time() -> None:
    times = ({"seconds": 1.0, "eval_samples_per_second": 8.0}, {"seconds": 2.0, "eval_samples_per_second": 4.0})
    found = merged([(rank, Event("evaluation", 5, 1.0, {"loss": 0.5, **times[rank]})) for rank in range(2)])
    assert [(event.facts["seconds"], event.ranks) for event in found] == [(1.0, (0, 1))]


def test_evaluations_with_other_results_are_others() -> None:
    found = merged(
        [(rank, Event("evaluation", 5, 1.0, {"loss": 0.5 + rank, "eval_runtime": 1.0})) for rank in range(2)]
    )
    assert [event.ranks for event in found] == [(0,), (1,)]


def test_losses_of_the_recorder_are_those_of_each_rank() -> None:
    for kind in ("dropped", "refused"):
        found = merged([(rank, Event(kind, 5, 1.0, {"num_items": 1})) for rank in range(2)])
        assert [event.ranks for event in found] == [(0,), (1,)]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["note", "evaluation", "dropped"]), st.integers(1, 2)), max_size=30
    )
)
def test_none_is_lost_and_none_is_counted_twice(drawn: list[tuple[int, str, int]]) -> None:
    given_events = [(rank, Event(kind, step, float(at))) for at, (rank, kind, step) in enumerate(sorted(drawn))]
    found = merged(given_events)
    # each rank's events are those whose ranks it is among
    for rank in range(4):
        own = sorted((event.kind, event.step) for of, event in given_events if of == rank)
        assert sorted((event.kind, event.step) for event in found if rank in event.ranks) == own
    assert all(list(event.ranks) == sorted(set(event.ranks)) and event.ranks for event in found)


def test_a_run_folder_gives_the_events_of_its_ranks_as_those_of_one_run(
    tmp_path: Path, write_run: Callable[..., Path]
) -> None:
    folder = create_run(tmp_path, RunHeader(run_id="a", backend="torch", created=1.7e9, world_size=2))
    write_run(folder, note(1, 5.0), note(2, 6.0))
    assert shown(open_log(folder.path).event_list()) == [("note", 1, 5.0, ()), ("note", 2, 6.0, ())]

    write_run(folder, note(1, 5.5), rank=1)

    log = open_log(folder.path)
    assert shown(log.event_list()) == [("note", 1, 5.0, (0, 1)), ("note", 2, 6.0, (0,))]
    assert log.events().numpy()["step"].tolist() == [1, 2]
