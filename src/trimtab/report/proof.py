"""A proof as text: what became of each fault at each place, then the failed cases, those of one mistake together.

Enters: a proof and a console. Leaves: lines on that console. Invariant: as in `trimtab.report.terminal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from trimtab.proven import CaseResult, Proof
from trimtab.report.lines import draw_table, make_table, number, say, tell
from trimtab.text import plain

_WORDS: Final = {"proven": "proven", "failed": "FAILED", "not_applicable": "n/a"}

_NO_PLACE: Final = "-"
"""The column of a case in which nothing is planted."""


def case_line(case: CaseResult, *, judged: int, num_cases: int) -> str:
    """One case in one plain line, as it is told while a proof runs.

    Args:
        case: The case.
        judged: How many are judged, this one among them.
        num_cases: How many there are.
    """
    total = str(num_cases)
    return f"{judged:>{len(total)}}/{total}  {_WORDS[case.outcome]:<6}  {plain(case.case)}"


def render(proof: Proof, *, console: Console) -> None:
    """Draws what was proven, and what was not.

    Args:
        proof: What `prove` found.
        console: Where to draw.
    """
    say(console, f"{plain(proof.factory)}: {_verdict(proof)}", style="bold")
    say(console, "")
    _draw_matrix(proof.cases, console=console)
    if any(case.outcome == "not_applicable" for case in proof.cases):
        _draw_not_applicable(proof.cases, console=console)
    for cases in _grouped(proof.failed):
        say(console, "")
        _draw_failed(cases, console=console)
    if proof.mistakes:
        say(console, "")
        _draw_mistakes(proof, console=console)


def _verdict(proof: Proof) -> str:
    counts = [
        f"{num} {words}"
        for outcome, words in (("proven", "proven"), ("failed", "failed"), ("not_applicable", "not applicable"))
        if (num := sum(case.outcome == outcome for case in proof.cases))
    ]
    verdict = "proven" if proof.proven else "NOT proven"
    num_cases = f"{len(proof.cases)} {'case' if len(proof.cases) == 1 else 'cases'}"
    return f"{verdict}. {num_cases} in {proof.seconds:.1f} s: {', '.join(counts) or 'none'}"


def _draw_matrix(cases: Sequence[CaseResult], *, console: Console) -> None:
    """A line for each fault and those that met it, a column for each place."""
    places = list(dict.fromkeys(case.place or _NO_PLACE for case in cases))
    lines: dict[tuple[str, str], dict[str, CaseResult]] = {}
    for case in cases:
        # Without a fault, a case is what its name says.
        what = plain(case.fault if case.fault is not None else case.case)
        place = case.place or _NO_PLACE
        if place in lines.get((what, _where(case)), {}):  # of a case like another, but for the guard's settings
            what = plain(case.case)
        lines.setdefault((what, _where(case)), {})[place] = case
    table = make_table([("planted", False), ("in", False), *((place, False) for place in places)], console=console)
    for (what, where), found in lines.items():
        table.add_row(Text(what), Text(where), *(_cell(found.get(place)) for place in places))
    draw_table(table, console=console)


def _where(case: CaseResult) -> str:
    if case.processes == 1:
        return "1 process"
    if not case.ranks:
        return f"{case.processes} ranks"
    if len(case.ranks) == case.processes:
        return f"all of {case.processes} ranks"
    return f"rank {', '.join(map(str, case.ranks))} of {case.processes}"


def _cell(case: CaseResult | None) -> Text:
    if case is None:
        return Text("")
    return Text(_WORDS[case.outcome], style="bold red" if case.outcome == "failed" else "")


def _draw_not_applicable(cases: Sequence[CaseResult], *, console: Console) -> None:
    """Why a case could not be planted, each reason once."""
    say(console, "")
    reasons = dict.fromkeys(case.text for case in cases if case.outcome == "not_applicable")
    for reason in reasons:
        tell(console, f"n/a: {plain(reason) or 'the loop has nothing to plant this in'}")


def _grouped(failed: Sequence[CaseResult]) -> list[list[CaseResult]]:
    """Failed cases that are one finding: one mistake by one check; where neither is known with numbers, one text."""
    groups: dict[tuple[str | None, str | None, str], list[CaseResult]] = {}
    for case in failed:
        says_all = case.mistake is None and case.found is None
        groups.setdefault((case.mistake, case.check, case.text if says_all else ""), []).append(case)
    return list(groups.values())


def _draw_failed(cases: Sequence[CaseResult], *, console: Console) -> None:
    """The first of them in full, and the names of the others."""
    first, *others = cases
    say(console, f"FAILED  {plain(first.case)}", style="bold red")
    if first.mistake is not None:
        say(console, f"  mistake   {plain(first.mistake)}")
    if first.text:
        tell(console, plain(first.text), indent="  ")
    if first.check is not None:
        say(console, f"  check     {plain(first.check)}")
    if first.found is not None or first.expected is not None:
        found, expected = _two_numbers(first)
        say(console, f"  found     {found}")
        say(console, f"  expected  {expected}")
    if others:
        names = "; ".join(plain(case.case) for case in others)
        tell(console, f"and {len(others)} more in the same way: {names}", indent="  ")


def _two_numbers(case: CaseResult) -> tuple[str, str]:
    """Found and expected, with so many digits that they differ where the numbers do."""
    found, expected = number(case.found), number(case.expected)
    if found == expected and case.found != case.expected:
        return repr(case.found), repr(case.expected)
    return found, expected


def _draw_mistakes(proof: Proof, *, console: Console) -> None:
    """What to mend first: the end of a report is what is seen of it."""
    num_failed = len(proof.failed)
    for mistake in proof.mistakes:
        num = sum(case.mistake == mistake for case in proof.failed)
        tell(console, f"Mistake: {plain(mistake)} (named by {num} of {num_failed} failed cases)", style="bold")
