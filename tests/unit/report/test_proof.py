"""What a person sees of a proof."""

import dataclasses
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
    def drawn(*cases, width=120, is_terminal=False):
        stream = io.StringIO()
        console = Console(
            file=stream,
            width=width,
            markup=False,
            emoji=False,
            highlight=False,
            force_terminal=is_terminal,
            no_color=True,
        )
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
        "mistake zeroed by multiplication",
        "0 x NaN is NaN. Bind the verdict to the loss.",
        "check parameters as in the oracle",
        "found nan",
        "expected 0.25",
        "",
        "Mistake: zeroed by multiplication (named by 1 of 1 failed cases)",
    ]


def test_failed_cases_of_one_mistake_are_one_finding_with_the_first_in_full(draw):
    others = [dataclasses.replace(FAILED, case=f"NaN, {place}", text="another number") for place in ("first", "last")]
    another = dataclasses.replace(FAILED, case="reported", check="reported loss", mistake="spike_in_reported_loss")
    drawn = draw(FAILED, others[0], another, others[1])
    assert [line for line in drawn if line.startswith("FAILED")] == ["FAILED NaN, all, rank 1 of 2", "FAILED reported"]
    assert "and 2 more in the same way: NaN, first; NaN, last" in drawn
    assert "another number" not in drawn


def test_errors_that_differ_are_told_each_and_the_same_one_once(draw):
    dead = {"outcome": "failed", "check": "comes to its end"}
    cases = [
        make_case(name, text=text, **dead) for name, text in (("a", "It died."), ("b", "Not run."), ("c", "Not run."))
    ]
    drawn = draw(*cases)
    assert [drawn.count("It died."), drawn.count("Not run.")] == [1, 1]
    assert "and 1 more in the same way: c" in drawn


def test_in_a_terminal_a_finding_is_wrapped_to_its_width(draw):
    others = [dataclasses.replace(FAILED, case=f"NaN, micro-batch {num}") for num in range(20)]
    drawn = draw(FAILED, *others, width=60, is_terminal=True)
    names = drawn[drawn.index("expected 0.25") + 1 : -2]
    assert len(names) > 1
    assert max(map(len, names)) < 60


def test_numbers_that_differ_never_look_the_same(draw):
    drawn = draw(make_case(outcome="failed", check="bits", found=0.1 + 0.2, expected=0.3))
    assert drawn[-2:] == ["found 0.30000000000000004", "expected 0.3"]


def test_a_failed_case_without_numbers_has_none(draw):
    drawn = draw(make_case(outcome="failed", check="it runs to its end", text="Rank 1 failed."))
    assert not any(line.startswith(("found", "expected", "mistake")) for line in drawn)
    assert drawn[-2:] == ["Rank 1 failed.", "check it runs to its end"]


def test_two_cases_of_one_fault_and_place_are_two_lines(draw):
    drawn = draw(make_case(), make_case("another guard, NaN, last", outcome="failed"))
    assert "NaN 1 process proven" in drawn
    assert "another guard, NaN, last 1 process FAILED" in drawn


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
    assert case_line(FAILED, judged=3, num_cases=64) == " 3/64  FAILED  NaN, all, rank 1 of 2"
    hostile = case_line(make_case(HOSTILE), judged=10, num_cases=10)
    assert hostile.isascii()
    assert "\n" not in hostile
