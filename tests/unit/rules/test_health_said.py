"""What stands, and what is news: for a signal with one finding a cause, and for findings about several."""

import json
from typing import Any

import pytest

from trimtab import UsageError
from trimtab.rules.said import Said
from trimtab.watched import Severity, WatchFinding


def finding(step: int, *, severity: Severity = "warning", text: str = "it is so") -> WatchFinding:
    return WatchFinding(kind="collapse", severity=severity, step=step, text=text)


def test_a_thing_is_said_once_and_stands_as_it_was_seen_last() -> None:
    said = Said()

    assert said.say(finding(10, text="three of them")) != ()
    assert said.say(finding(20, text="two of them")) == ()

    (standing,) = said.now()
    assert standing.because == "collapse since step 10, last seen at step 20: two of them"


def test_what_was_seen_once_says_when() -> None:
    said = Said()
    said.say(finding(10))

    assert said.now()[0].because == "collapse at step 10: it is so"


def test_worse_is_news_less_bad_is_not_and_both_stand_since_the_first() -> None:
    said = Said()

    news = [
        said.say(finding(step, severity=severity)) for step, severity in enumerate(("notice", "critical", "notice"))
    ]

    assert [len(one) for one in news] == [1, 1, 0]
    assert [(one.since, one.finding.severity) for one in said.now()] == [(0, "notice")]
    assert said.say(finding(9, severity="warning")) == (), "it was said as critical, and is not over"


def test_what_was_over_is_news() -> None:
    said = Said()
    said.say(finding(10))
    said.end()
    assert said.now() == ()

    assert said.say(finding(30)) != ()
    assert said.now()[0].since == 30


def test_causes_stand_by_themselves() -> None:
    said = Said()
    said.say(finding(10), cause="jump")

    assert said.say(finding(10), cause="stale") != ()
    said.end("jump")
    assert (said.stands("jump"), said.stands("stale")) == (False, True)


def test_a_finding_about_several_stands_until_all_are_over_or_said_anew() -> None:
    said = Said()
    said.open(finding(10), ranks={("a",): 0, ("b",): 0, ("c",): 0})

    said.open(finding(20, text="b is worse"), ranks={("b",): 1})
    said.close(("a",))

    assert [(one.finding.text, one.since) for one in said.now()] == [("it is so", 10), ("b is worse", 10)]
    assert said.together([("b",), ("c",), ("d",)]) == [[("b",)], [("c",)]]
    said.close(("c",))
    assert [one.finding.text for one in said.now()] == ["b is worse"]


def test_what_is_not_seen_again_for_so_many_looks_is_over() -> None:
    said = Said()
    said.open(finding(10), ranks={("a",): 0})
    said.end_unseen(10, most=2)
    said.end_unseen(20, most=2)
    said.see_again(finding(30), about=("a",))
    said.end_unseen(30, most=2)
    said.end_unseen(40, most=2)
    assert len(said.now()) == 1

    said.end_unseen(50, most=2)

    assert said.now() == ()


def full() -> Said:
    said = Said()
    said.say(finding(10), cause="x")
    said.open(finding(20), ranks={("k", "a"): 3, ("k", "b"): 0})
    said.end_unseen(20, most=5)
    return said


def test_a_state_goes_through_json_and_goes_on() -> None:
    after = Said()
    after.load_state_dict(json.loads(json.dumps(full().state_dict())))

    assert after.now() == full().now()
    assert after.state_dict() == full().state_dict()
    assert not after.is_news(("k", "a"), rank=3)
    assert after.is_news(("k", "b"), rank=1)


def damaged(place: str, value: object) -> Any:
    state = full().state_dict()
    state[1][place] = value
    return state


@pytest.mark.parametrize(
    "state",
    [
        {},
        None,
        [3],
        damaged("finding", {"kind": "odd"}),
        damaged("about", []),
        damaged("about", [["a", 0, 0]]),
        damaged("about", [[["a"], -1, 0]]),
        damaged("about", [[["a"], 0]]),
        damaged("about", [[[1], 0, 0]]),
        damaged("about", [[["x"], 0, 0]]),
        damaged("num_unseen", None),
    ],
    ids=["dict", "none", "number", "kind", "empty", "text", "rank", "short", "names", "twice", "unseen"],
)
def test_what_is_no_state_is_refused_and_changes_nothing(state: Any) -> None:
    said = full()

    with pytest.raises(UsageError, match="damaged"):
        said.load_state_dict(state)

    assert said.state_dict() == full().state_dict()
