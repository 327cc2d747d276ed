"""What a person sees of a proof."""

import io

import pytest
from rich.console import Console

from trimtab.proven import CaseResult, Proof
from trimtab.report.proof import case_line, render

HOSTILE = "\x1b[31mred\x1b]8;;http://x\x07\u202eevil [bold]markup[/bold] \udc80\n\tnew"


def make_case(case="NaN, last, 1 process", **fields):
    known = {"fault": "NaN", "place": "last", "processes": 1, "ranks": (0,), "outcome": "proven"}
    return CaseResult(**{"case": case, **known, **fields})


HEALTHY = make_case("guard off", fault=None, place=None, ranks=())
FAILED = make_case(
    "NaN, all, rank 1 of 2",
    place="all",
    processes=2,
    ranks=(1,),
    outcome="failed",
    check="parameters as in the oracle",
    found=float("nan"),
    expected=0.25,
    mistake="zeroed by multiplication",
    text="0 x NaN is NaN. Bind the verdict to the loss.",
)


@pytest.fixture
def draw():
    def drawn(*cases, width=120):
        stream = io.StringIO()
        console = Console(file=stream, width=width, markup=False, emoji=False, highlight=False)
        render(Proof(factory="loop:build", seconds=3.21, cases=cases), console=console)
        return [" ".join(line.split()) for line in stream.getvalue().splitlines()]

    return drawn


def test_what_is_proven_is_a_line_a_fault_and_a_column_a_place(draw):
    drawn = draw(HEALTHY, make_case("NaN, first", place="first"), make_case())
    assert drawn == [
        "loop:build: proven. 3 cases in 3.2 s: 3 proven",
        "",
        "planted in - first last",
        drawn[3],
        "guard off 1 process proven",
        "NaN 1 process proven proven",
    ]


def test_a_failed_case_is_told_in_full_with_both_numbers_and_the_mistake(draw):
    drawn = draw(make_case(), FAILED)
    assert drawn[0] == "loop:build: NOT proven. 2 cases in 3.2 s: 1 proven, 1 failed"
    assert "NaN rank 1 of 2 FAILED" in drawn
    assert drawn[-8:] == [
        "FAILED NaN, all, rank 1 of 2",
        "check parameters as in the oracle",
        "found nan",
        "expected 0.25",
        "mistake zeroed by multiplication",
        "0 x NaN is NaN. Bind the verdict to the loss.",
        "",
        "Mistake: zeroed by multiplication (named by 1 of 1 failed cases)",
    ]


def test_numbers_that_differ_never_look_the_same(draw):
    drawn = draw(make_case(outcome="failed", check="bits", found=0.1 + 0.2, expected=0.3))
    assert drawn[-2:] == ["found 0.30000000000000004", "expected 0.3"]


def test_a_failed_case_without_numbers_has_none(draw):
    drawn = draw(make_case(outcome="failed", check="it runs to its end", text="Rank 1 failed."))
    assert not any(line.startswith(("found", "expected", "mistake")) for line in drawn)
    assert drawn[-1] == "Rank 1 failed."


def test_why_a_case_did_not_apply_is_said_once(draw):
    spare = {"fault": "no tokens", "outcome": "not_applicable", "text": "the batch has no labels"}
    drawn = draw(make_case(), make_case("a", **spare), make_case("b", place="first", **spare))
    assert drawn[0].endswith("1 proven, 2 not applicable")
    assert drawn.count("n/a: the batch has no labels") == 1


def test_both_ranks_are_told_from_one_of_them(draw):
    both = make_case("a", processes=2, ranks=(0, 1))
    drawn = draw(both, make_case("b", processes=2, ranks=(1,)), make_case("c", processes=2, ranks=(), fault=None))
    assert [line.split(" proven")[0] for line in drawn[-3:]] == ["NaN all of 2 ranks", "NaN rank 1 of 2", "c 2 ranks"]


def test_nothing_of_a_loop_reaches_the_terminal_but_as_text(draw):
    drawn = "\n".join(draw(make_case(HOSTILE, fault=HOSTILE, outcome="failed", mistake=HOSTILE, text=HOSTILE)))
    assert drawn.isascii()
    assert "\x1b" not in drawn
    assert "[bold]markup[/bold]" in drawn


def test_while_it_runs_a_case_is_one_plain_line():
    assert case_line(FAILED) == "FAILED  NaN, all, rank 1 of 2"
    assert case_line(make_case(HOSTILE)).isascii()
    assert "\n" not in case_line(make_case(HOSTILE))
