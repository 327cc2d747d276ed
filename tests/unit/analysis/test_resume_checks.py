"""What a run found out about its own resumes, told by `rewind`."""

import pytest

from trimtab.analysis.resume_checks import MAX_NAMED, on_resume_checks
from trimtab.values import Event


def check(step, *texts, severity="warning", ranks=()):
    findings = [dict(kind="lr", severity=severity, step=step, text=text) for text in texts]
    return Event("resume_check", step, 1.0, {"findings": findings, "compared": ["loss"]}, ranks)


def resume(step):
    return Event("resume", step, 1.0, {"attempt": 2})


def test_findings_are_told_with_their_step_the_newest_resume_first() -> None:
    events = [resume(10), check(10, "a"), resume(20), check(20, "b", "c", severity="critical"), resume(30), check(30)]
    assert on_resume_checks(events) == [
        "the run resumed at step 20, critical: b",
        "the run resumed at step 20, critical: c",
        "the run resumed at step 10, warning: a",
    ]


def test_a_resume_that_a_later_one_went_back_over_is_told_of_no_more() -> None:
    assert on_resume_checks([resume(20), check(20, "a"), resume(20), check(20)]) == []
    assert on_resume_checks([resume(20), check(20, "a"), resume(10), check(10)]) == []
    assert len(on_resume_checks([resume(20), check(20, "a"), resume(21), check(21)])) == 1


def test_the_rank_is_named_where_it_is_not_the_first() -> None:
    assert on_resume_checks([check(5, "a", ranks=(3,))]) == ["the run resumed at step 5 on rank 3, warning: a"]
    assert on_resume_checks([check(5, "a", ranks=(0,))]) == ["the run resumed at step 5, warning: a"]
    assert on_resume_checks([check(5, "a", ranks=(0, 1))]) == ["the run resumed at step 5, warning: a"]


def test_many_findings_are_counted() -> None:
    told = on_resume_checks([check(5, *"abcdefgh")])
    assert told[MAX_NAMED:] == ["3 findings more of earlier resumes"]


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"findings": "x"},
        {"findings": [1, None, []]},
        {"findings": [{"text": 5, "severity": "warning"}]},
        {"findings": [{"text": "a", "severity": "\x1b[31m"}]},
        {"findings": [{"text": "a", "severity": []}]},
    ],
    ids=repr,
)
def test_an_event_of_another_shape_is_left_aside(facts) -> None:
    assert on_resume_checks([Event("resume_check", 5, 1.0, facts)]) == []


def test_no_word_of_a_log_acts_on_a_terminal() -> None:
    [line] = on_resume_checks([check(5, "a\x1b[31m\u202e")])
    assert line == "the run resumed at step 5, warning: a\\x1b[31m\\u202e"
