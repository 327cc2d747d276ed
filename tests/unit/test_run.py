"""`RunCore`: what its verbs decide and record, and the state in which a run goes on."""

import json
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trimtab
from trimtab.errors import UsageError
from trimtab.guard import GuardConfig
from trimtab.guard.figures import Leader, MicroFigures
from trimtab.log.reader import Log, open_log
from trimtab.recorder.meeting import Word
from trimtab.run import LossPer, RunCore, switched_off
from trimtab.values import REASON_CODE, VERDICT_REASONS, RowIds, RunHeader

HEADER = RunHeader(run_id=None, backend="torch")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    caplog.set_level(logging.INFO, logger="trimtab")
    return lambda: [record.getMessage() for record in caplog.records]


def train(core: RunCore, *, num_steps: int = 2) -> None:
    for _ in range(num_steps):
        core.record_micro_batch(np.array([5]), np.array([1.0]), np.array([1]))
        core.end_step(loss=1.0, num_tokens=1)
    core.event("note", {"text": "x"})
    core.close()


def micro_batch(core: RunCore, row: int) -> None:
    core.record_micro_batch(np.array([row]), np.array([2.0]), np.array([4]))


def recorded(core: RunCore) -> Log:
    assert core.folder is not None
    return open_log(core.folder)


def rows_in(log: Log) -> list[tuple[int, int, int]]:
    """Step, micro and row of every record, in the order recorded."""
    return [
        record
        for block in log.row_blocks()
        for record in zip(block.step.tolist(), block.micro.tolist(), block.row.tolist(), strict=True)
    ]


GUARD = GuardConfig(multiplier=2.0)


def test_the_log_names_the_version_that_wrote_it(tmp_path: Path) -> None:
    core = RunCore(HEADER, out=tmp_path)
    train(core)
    assert recorded(core).header.trimtab_version == trimtab.__version__ != ""


def test_what_a_loss_holds_beside_that_of_its_tokens_is_judged_with_it_and_blamed_on_no_row(tmp_path, said) -> None:
    # given: four losses of 1 over 10 tokens
    core = RunCore(HEADER, out=tmp_path, guard=GUARD)
    for _ in range(4):
        assert core.judge(MicroFigures(10.0, 10)).keep
    # when: one of 1 with a term of 5, one of 5 with one of 1
    term = core.judge(MicroFigures(10.0, 10, beyond=5.0), leading_row=lambda: Leader(7))
    row = core.judge(MicroFigures(50.0, 10, beyond=1.0), leading_row=lambda: Leader(8))
    # then
    assert [(verdict.keep, verdict.reason, verdict.loss) for verdict in (term, row)] == [(False, "spike", 6.0)] * 2
    lines = [line for line in said() if "Guard skipped" in line]
    assert ["leads it" in line for line in lines] == [False, True]
    assert "row 8 leads it" in lines[1]


def trained_state(tmp_path: Path) -> dict[str, Any]:
    core = RunCore(HEADER, out=tmp_path, guard=GUARD)
    core.judge(MicroFigures(1.0, 1))
    train(core)
    return core.state_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"step": "a"},
        {"step": None},
        {"step": 0},
        {"step": 1.5},
        {"step": True},
        {"step": 2**63},
        {"run_id": "../x"},
        {"run_id": 5},
        {"guard": []},
        {"guard": {"version": 1}},
        {"before": None},
        {"before": {"steps": []}},
        {"before": {"steps": [[1, "x", None, False]], "attempt": 1, "num_ranks": 1, "next_lr": None}},
        {"before": {"steps": [[1, 2.0, None, False]] * 33, "attempt": 1, "num_ranks": 1, "next_lr": None}},
        {"before": {"steps": [], "attempt": -1, "num_ranks": 1, "next_lr": None}},
        {"before": {"steps": [], "attempt": 1, "num_ranks": 1, "next_lr": math.nan}},
        {"version": 1},
        {"version": None},
    ],
    ids=repr,
)
def test_a_damaged_state_is_refused_before_anything_is_taken_over(tmp_path: Path, change: dict[str, Any]) -> None:
    state = trained_state(tmp_path) | change
    core = RunCore(HEADER, out=tmp_path, guard=GUARD)
    before = json.dumps(core.state_dict())

    with pytest.raises(UsageError):
        core.load_state_dict(state)

    assert json.dumps(core.state_dict()) == before


def test_a_state_can_be_asked_about_and_nothing_is_taken_over_or_said(tmp_path: Path, said) -> None:
    state = trained_state(tmp_path)
    core = RunCore(HEADER, out=tmp_path, guard=GUARD)
    before, lines = json.dumps(core.state_dict()), said()

    core.check_state(state)
    core.check_state(state | {"guard": None})
    for wrong in ({"version": 1}, {"step": 0}, {"run_id": "../x"}, {"guard": {"version": 1}}):
        with pytest.raises(UsageError):
            core.check_state(state | wrong)

    assert json.dumps(core.state_dict()) == before
    assert said() == lines


@pytest.mark.parametrize("state", [None, [], "x", {}])
def test_what_is_no_state_is_refused(tmp_path: Path, state: Any) -> None:
    with pytest.raises(UsageError):
        RunCore(HEADER, out=tmp_path).load_state_dict(state)


@pytest.mark.parametrize("key", ["version", "step"])
def test_a_state_without_what_decides_is_refused(tmp_path: Path, key: str) -> None:
    state = trained_state(tmp_path)
    del state[key]

    with pytest.raises(UsageError, match=key):
        RunCore(HEADER, out=tmp_path, guard=GUARD).load_state_dict(state)


def test_a_state_continues_its_run(tmp_path: Path) -> None:
    state = json.loads(json.dumps(trained_state(tmp_path)))

    core = RunCore(HEADER, out=tmp_path, guard=GUARD)
    core.load_state_dict(state)
    train(core)

    assert core.folder is not None
    columns = open_log(core.folder).step_columns()
    assert columns.attempt.tolist() == [1, 1, 2, 2]
    assert columns.step.tolist() == [1, 2, 3, 4]


def test_a_resumed_run_is_attempt_two_of_the_same_folder_and_says_where_it_goes_on(tmp_path: Path) -> None:
    # given
    state = json.loads(json.dumps(trained_state(tmp_path)))

    # when
    core = RunCore(HEADER, out=tmp_path, guard=GUARD, clock=lambda: 1700.0)
    core.load_state_dict(state)
    assert (core.run_id, core.step) == (state["run_id"], 3)
    train(core, num_steps=1)

    # then
    assert core.run_id == state["run_id"]
    assert len(list((tmp_path / "trimtab").iterdir())) == 1
    events = [(event.kind, event.step, event.facts) for event in recorded(core).event_list()]
    assert ("resume", 3, {"attempt": 2}) in events
    assert core.guard is not None
    assert core.guard.num_judged == 1, "the guard goes on where it stood"


def test_a_state_whose_run_is_elsewhere_begins_a_new_one_and_says_so(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    state = trained_state(tmp_path / "here")

    core = RunCore(HEADER, out=tmp_path / "there", guard=GUARD)
    core.load_state_dict(state)
    train(core)

    assert f"Run {state['run_id']} of the checkpoint is not under {tmp_path / 'there'}: a new run is begun." in said()
    assert core.run_id != state["run_id"]
    assert recorded(core).step_columns().step.tolist() == [3, 4]


def test_a_state_that_comes_after_the_first_micro_batch_is_refused(tmp_path: Path) -> None:
    state = trained_state(tmp_path)
    for record in (True, False):
        core = RunCore(HEADER, out=tmp_path, guard=GUARD, record=record)
        micro_batch(core, 5)

        with pytest.raises(UsageError, match="right after the run is made"):
            core.load_state_dict(state)

        assert core.step == 1
        core.close()


@pytest.mark.parametrize(("saved", "here"), [(GUARD, None), (None, GUARD)])
def test_a_guard_history_without_a_guard_and_the_reverse_are_said(
    said: Callable[[], list[str]], saved: GuardConfig | None, here: GuardConfig | None
) -> None:
    state = RunCore(HEADER, guard=saved, record=False).state_dict()

    RunCore(HEADER, guard=here, record=False).load_state_dict(state)

    (line,) = said()
    assert "it is left aside" in line if here is None else "starts with an empty window" in line


@pytest.mark.parametrize(("saved", "here"), [(GUARD, None), (None, GUARD)])
def test_of_ranks_that_meet_nowhere_the_first_tells(
    said: Callable[[], list[str]], saved: GuardConfig | None, here: GuardConfig | None
) -> None:
    state = RunCore(HEADER, guard=saved, record=False).state_dict()
    core = RunCore(HEADER, guard=here, record=False, rank=1)

    core.load_state_dict(state)
    core.words.no_tokens(1)

    assert not core.is_first_rank
    assert core.guard is None or core.guard.quiet
    assert said() == []


@pytest.mark.parametrize(("saved", "here"), [("token", "micro-batch"), ("micro-batch", "token")])
def test_a_history_of_other_losses_is_refused_where_it_would_be_used(saved: LossPer, here: LossPer) -> None:
    state = RunCore(HEADER, guard=GUARD, record=False, loss_per=saved).state_dict()
    core = RunCore(HEADER, guard=GUARD, record=False, loss_per=here)

    for take in (core.check_state, core.load_state_dict):
        with pytest.raises(UsageError, match=f"losses per '{saved}', and the guard here judges losses per {here}"):
            take(state)
    core.load_state_dict(state | {"guard": None})
    RunCore(HEADER, record=False, loss_per=here).load_state_dict(state)


# What the verbs record.


def test_micro_batches_are_counted_within_their_step_and_nothing_is_made_before_the_first(tmp_path: Path) -> None:
    # given
    core = RunCore(HEADER, out=tmp_path)
    assert (core.folder, core.run_id, list(tmp_path.iterdir())) == (None, None, [])

    # when
    for row in (50, 51):
        micro_batch(core, row)
    core.end_step(loss=1.0, num_tokens=8)
    micro_batch(core, 52)
    core.close()

    # then
    assert rows_in(recorded(core)) == [(1, 0, 50), (1, 1, 51), (2, 0, 52)]


def test_ids_of_rows_are_recorded_and_without_a_recorder_they_are_nothing(tmp_path: Path) -> None:
    core = RunCore(HEADER, out=tmp_path)
    core.record_row_ids(RowIds(np.array([7, 5]), names=["doc-7", None]))
    core.close()
    core.record_row_ids(RowIds(np.array([9])))
    RunCore(HEADER, record=False).record_row_ids(RowIds(np.array([9])))

    ids = recorded(core).id_columns()
    assert (ids.row.tolist(), ids.name.tolist()) == ([5, 7], [None, "doc-7"])


def test_what_comes_after_close_is_not_recorded_and_fails_nothing(tmp_path: Path) -> None:
    # given
    core = RunCore(HEADER, out=tmp_path)
    micro_batch(core, 50)
    core.end_step(loss=1.0, num_tokens=4)
    core.close(reason="finished")

    # when
    micro_batch(core, 51)
    core.end_step(loss=2.0, num_tokens=4)
    core.event("note", {})
    core.close(reason="again")

    # then
    log = recorded(core)
    assert rows_in(log) == [(1, 0, 50)]
    assert log.step_columns().step.tolist() == [1]
    assert [(event.kind, event.facts) for event in log.event_list()] == [("end", {"reason": "finished"})]
    assert core.step == 3, "the run itself goes on counting"


def test_a_run_that_recorded_nothing_closes_without_a_trace(tmp_path: Path) -> None:
    core = RunCore(HEADER, out=tmp_path)

    core.close()

    assert (core.folder, list(tmp_path.iterdir())) == (None, [])


def test_a_host_that_counts_for_itself_names_the_step(tmp_path: Path) -> None:
    # given a window that its host gave up
    core = RunCore(HEADER, out=tmp_path)
    micro_batch(core, 50)

    # when
    core.begin_step(41)
    assert core.window.num_micros == 0
    micro_batch(core, 51)
    core.end_step(loss=1.0, num_tokens=4)

    # then
    assert core.step == 42
    core.close()
    log = recorded(core)
    assert rows_in(log) == [(1, 0, 50), (41, 0, 51)]
    assert log.step_columns().step.tolist() == [41]


def test_the_seconds_of_a_step_are_those_since_the_previous_one_ended(tmp_path: Path) -> None:
    # given
    now = [1000.0]
    core = RunCore(HEADER, out=tmp_path, clock=lambda: now[0])

    # when
    for seconds in (7.0, 2.5, 0.0):
        now[0] += seconds
        core.end_step(loss=1.0, num_tokens=1)
    core.close()

    # then the first has none before it
    wall_s = recorded(core).step_columns().wall_s.tolist()
    assert math.isnan(wall_s[0])
    assert wall_s[1:] == [2.5, 0.0]
    assert recorded(core).header.created == 1007.0, "the run begins with what it records first"


def test_a_verdict_is_recorded_with_its_micro_batch_and_counted_in_its_step(tmp_path: Path) -> None:
    # given three kept losses of 1 per token, a spike, and an aux term that is not finite
    core = RunCore(HEADER, out=tmp_path, guard=GUARD)
    kept = []
    for loss_sum, aux in ((4.0, 0.0), (4.0, 0.0), (4.0, 0.0), (40.0, 0.0), (4.0, math.inf)):
        verdict = core.judge(MicroFigures(loss_sum, 4, aux=aux))
        reason = REASON_CODE[verdict.reason]
        core.record_micro_batch(np.array([7]), np.array([loss_sum]), np.array([4]), reason=reason, keep=verdict.keep)
        kept.append(verdict.keep)
    assert core.window.may_step

    # when
    core.end_step(loss=1.0, num_tokens=20)
    core.close()

    # then
    assert kept == [True, True, True, False, False]
    (block,) = recorded(core).row_blocks()
    reasons = [VERDICT_REASONS[code] for code in block.reason.tolist()]
    assert reasons == ["warmup", "warmup", "warmup", "spike", "nonfinite"]
    assert block.keep.tolist() == kept
    steps = recorded(core).step_columns()
    assert (steps.num_skipped_micros.tolist(), steps.num_skipped_tokens.tolist()) == ([2], [8])


def test_twenty_skips_are_said_and_the_last_line_says_so(said: Callable[[], list[str]]) -> None:
    core = RunCore(HEADER, guard=GuardConfig(multiplier=2.0, max_consecutive_skips="never"), record=False)
    for _ in range(3):
        core.judge(MicroFigures(1.0, 1))
        core.end_step()

    for _ in range(25):
        core.judge(MicroFigures(30.0, 1))
        core.end_step()

    lines = [line for line in said() if line.startswith("Guard skipped")]
    assert len(lines) == 20
    assert lines[0] == "Guard skipped micro-batch 0 of step 4: spike, loss 30, 1 expected."
    assert lines[-1].startswith("Guard skipped micro-batch 0 of step 23: ")
    assert lines[-1].endswith(" Further ones are not said; each is in the log.")
    assert not any("Further ones" in line for line in lines[:-1])


def test_the_leading_row_is_asked_for_only_of_a_skip_that_is_said() -> None:
    core = RunCore(HEADER, guard=GUARD, record=False)
    asked = []

    def first_row() -> Leader | None:
        asked.append(core.step)
        return Leader(17)

    core.judge(MicroFigures(1.0, 1), leading_row=first_row)
    core.begin_step(2)
    for _ in range(25):
        core.judge(MicroFigures(math.nan, 1), leading_row=first_row)

    assert asked == [2] * 20
    assert core.guard is not None
    assert core.guard.nonfinite_hint == "first in row 17 of step 2"


def test_of_several_rows_that_are_not_finite_the_number_and_the_first_are_said(said: Callable[[], list[str]]) -> None:
    core = RunCore(HEADER, guard=GUARD, record=False)

    core.judge(MicroFigures(math.nan, 8), leading_row=lambda: Leader(22, num_nonfinite=8))

    assert said() == [
        "Guard skipped micro-batch 0 of step 1: nonfinite, loss nan; 8 of its rows are not finite, row 22 the first."
    ]


def test_no_row_is_blamed_for_a_further_term_that_is_not_finite(caplog: pytest.LogCaptureFixture) -> None:
    core = RunCore(HEADER, guard=GUARD, record=False)

    with caplog.at_level(logging.INFO, logger="trimtab"):
        core.judge(MicroFigures(1.0, 1, aux=math.inf), leading_row=lambda: Leader(17))

    assert caplog.messages == ["Guard skipped micro-batch 0 of step 1: nonfinite, loss nan."]


def test_the_facts_of_an_event_are_those_of_its_moment(tmp_path: Path) -> None:
    core = RunCore(HEADER, out=tmp_path, clock=lambda: 1500.0)
    facts = {"folds": [1, 2]}

    core.event("note", facts)
    core.evaluation(2.5, {"accuracy": 0.5}, step=9)
    facts["folds"].append(3)
    core.close()

    note, evaluation, _ = recorded(core).event_list()
    assert (note.kind, note.step, note.time, note.facts) == ("note", 1, 1500.0, {"folds": [1, 2]})
    assert (evaluation.kind, evaluation.step, evaluation.facts) == ("evaluation", 9, {"loss": 2.5, "accuracy": 0.5})


def test_a_folder_that_cannot_be_made_is_said_with_its_path_and_training_goes_on(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    (tmp_path / "file").write_text("")
    core = RunCore(HEADER, out=tmp_path / "file", guard=GUARD)

    train(core)

    assert said() == [f"Trimtab recorder off: Not a directory: {tmp_path}/file/trimtab"]
    assert (core.folder, core.step) == (None, 3)
    assert core.judge(MicroFigures(1.0, 1)).reason == "warmup", "the guard guards on"


@pytest.mark.parametrize("word", ["off", "OFF", " Off\t"])
def test_trimtab_off_in_any_case_switches_off_and_is_said_once(
    word: str, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB", word)

    assert switched_off()
    assert switched_off()

    assert said() == ["Trimtab does nothing: TRIMTAB=off is set in the environment."]


@pytest.mark.parametrize("word", [None, "", "on", "0", "false", "offline"])
def test_any_other_word_in_trimtab_switches_nothing_off(
    word: str | None, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRIMTAB", raising=False)
    if word is not None:
        monkeypatch.setenv("TRIMTAB", word)

    assert not switched_off()

    assert said() == []


class Table:
    """A meeting at which nobody says anything."""

    world_size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def tell(self, word: Word) -> None:
        pass

    def tell_end(self) -> None:
        pass

    def heard(self, *, at_end: bool = False) -> Word | None:
        return None


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_tells_every_skip_and_another_rank_only_what_its_own_rows_have_caused(
    rank: int, said: Callable[[], list[str]]
) -> None:
    # given two ranks of ten tokens each, and a history of losses of 1
    core = RunCore(HEADER, guard=GUARD, record=False, meet=lambda: Table(rank))
    for _ in range(4):
        assert core.judge(MicroFigures(10.0, 10, together=(20.0, 20))).keep

    # when the other rank is the cause, then this one, then neither by itself has any token
    verdicts = [
        core.judge(MicroFigures(10.0, 10, together=(100.0, 20)), leading_row=lambda: Leader(5)),
        core.judge(MicroFigures(math.nan, 10, together=(math.nan, 20)), leading_row=lambda: Leader(6)),
        core.judge(MicroFigures(math.nan, 0, together=(0.0, 0)), leading_row=lambda: Leader(7)),
    ]

    # then both ranks decide alike, and each row is named where it was
    assert [verdict.reason for verdict in verdicts] == ["spike", "nonfinite", "no_tokens"]
    mine = "Guard skipped micro-batch 0 of step 1: nonfinite, loss nan; row 6 leads it."
    assert (
        said()
        == {
            0: [
                "Guard skipped micro-batch 0 of step 1: spike, loss 5, 1 expected; the cause is another rank's.",
                mine,
            ],
            1: [f"rank 1: {mine}"],
        }[rank]
    )
    assert (core.window.num_kept_tokens, core.window.num_own_skipped_tokens) == (80, 20)


def test_a_host_that_decides_again_counts_no_window_and_names_the_step_that_it_was(
    said: Callable[[], list[str]],
) -> None:
    core = RunCore(HEADER, guard=GUARD, record=False)
    for step in range(1, 5):
        core.judge_late(MicroFigures(1.0, 1), step=step, micro=0)
    core.begin_step(9)

    verdict = core.judge_late(MicroFigures(30.0, 1), step=5, micro=2, leading_row=lambda: Leader(8))

    assert not verdict.keep
    assert said() == ["Guard skipped micro-batch 2 of step 5: spike, loss 30, 1 expected; row 8 leads it."]
    assert core.window.num_tokens == 0
