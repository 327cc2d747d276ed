"""What becomes of the first steps after a resume: which checks are asked, when, and what is told of them."""

import logging

import numpy as np
import pytest

from trimtab.first_steps import observer
from trimtab.first_steps.observer import CHECKS, FirstSteps
from trimtab.resume.around import Around, Judged, RowsAround
from trimtab.resume.before import Before
from trimtab.resume.breaks import NUM_JUDGED, Break, SeenStep
from trimtab.values import STEP_CODE, MicroBatch, StepRow

BEFORE = Before(steps=tuple(SeenStep(step, 1.0, 0.5) for step in range(51, 61)), next_lr=0.5)


def watching(*, was_rebased=lambda: False, **around) -> FirstSteps:
    settings = dict(step=61, before=BEFORE) | around
    return FirstSteps(Around(**settings), was_rebased=was_rebased, clock=lambda: 1700.0)


def steps(num, *, loss=1.0, lr=0.5):
    rest = (None, None, 0.1, 4, 0, 0)
    return [StepRow(61 + place, loss, None, lr, STEP_CODE["stepped"], *rest) for place in range(num)]


def test_a_check_more_is_one_function_and_one_name(monkeypatch, caplog) -> None:
    # given a check of somebody's own that finds something worse than the others
    def judge(around, seen):
        text = f"{len(seen.steps)} steps from {around.step} on, {seen.rows.tolist()}"
        return Judged("weather", [Break(kind="lr", severity="critical", step=around.step, text=text)])

    monkeypatch.setattr(observer, "CHECKS", (*CHECKS, judge))
    looks = watching()
    nothing = np.ones(2)
    # when
    with caplog.at_level(logging.INFO, logger="trimtab"):
        events = looks.observe([MicroBatch(61, 0, np.array([7, 8]), nothing, nothing), *steps(NUM_JUDGED, lr=0.25)])
    # then
    [event] = events
    assert (event.kind, event.step, event.time) == ("resume_check", 61, 1700.0)
    assert event.facts["compared"] == ["loss", "learning rate", "weather"]
    assert [found["severity"] for found in event.facts["findings"]] == ["critical", "warning"]
    assert event.facts["findings"][0]["text"] == "8 steps from 61 on, [7, 8]"
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 2


def test_what_is_left_out_is_named_with_its_reason(caplog) -> None:
    # given steps at another rate, which was asked for, and no log
    caplog.set_level(logging.INFO, logger="trimtab")
    [event] = watching(was_rebased=lambda: True).observe(steps(NUM_JUDGED, lr=0.25))
    assert caplog.messages == [
        "Trimtab, resume: loss continues what came before step 61; learning rate not compared: another one was asked "
        "for; rows not compared: no log holds the steps before the checkpoint."
    ]
    assert event.facts["not_compared"] == {
        "learning rate": "another one was asked for",
        "rows": "no log holds the steps before the checkpoint",
    }
    # and where something is found, too; or nothing can be compared
    caplog.clear()
    watching(was_rebased=lambda: True).observe(steps(NUM_JUDGED, loss=9.0))
    assert [message[:46] for message in caplog.messages] == [
        "Trimtab, resume at step 61: critical: first re",
        "Trimtab, resume at step 61: learning rate not ",
    ]
    caplog.clear()
    assert watching(before=Before()).observe(steps(NUM_JUDGED)) == []
    assert caplog.messages == [
        "Trimtab, resume at step 61: loss not compared: none before the checkpoint is known; learning rate not "
        "compared: those before the checkpoint are not known; rows not compared: no log holds the steps before the "
        "checkpoint."
    ]


def test_a_log_that_ends_before_the_checkpoint_is_told_with_its_last_step(caplog) -> None:
    caplog.set_level(logging.INFO, logger="trimtab")
    rows = np.arange(40)
    known = RowsAround(before=rows, before_steps=rows // 4 + 48, num_rows=1000)
    looks = watching(rows=known)
    looks.observe([MicroBatch(61, 0, np.array([800, 801]), np.ones(2), np.ones(2)), *steps(NUM_JUDGED)])
    assert caplog.messages == [
        "Trimtab, resume: loss, learning rate and rows continue what came before step 61; of the steps before the "
        "checkpoint the log holds those up to 57."
    ]


@pytest.mark.parametrize("asked", [True, False])
def test_whether_another_rate_was_asked_for_is_asked_when_the_steps_are_judged(asked: bool) -> None:
    told = []
    looks = watching(was_rebased=lambda: bool(told))
    looks.observe(steps(NUM_JUDGED - 1, lr=0.25))
    told += [True] * asked
    [event] = looks.observe(steps(1, lr=0.25))
    assert event.facts["compared"] == (["loss"] if asked else ["loss", "learning rate"])


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_speaks_for_loss_and_rate(rank: int) -> None:
    events = watching(rank=rank).observe(steps(NUM_JUDGED, loss=9.0))
    assert [event.facts["compared"] for event in events] == ([] if rank else [["loss", "learning rate"]])


def test_a_state_of_another_step_is_compared_with_nothing() -> None:
    assert watching(step=40).observe(steps(NUM_JUDGED, loss=9.0)) == []
