"""A calibration as text: a line a setting, then the one to choose, as code to paste.

Enters: a calibration and a console. Leaves: lines on that console. Invariant: as in `trimtab.report.terminal`.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from trimtab.calibration.values import Calibration, Outcome
from trimtab.report.lines import WIDE, draw_table, make_table, say, tell
from trimtab.text import plain

_UNITS = {"micro": ("micro-batch", "micro-batches"), "step": ("step", "steps")}

_MARKS = '> the recommended one; * a default: GuardConfig(rule="robust"), GuardConfig(multiplier=2.0)'


def render(calibration: Calibration, *, console: Console) -> None:
    """Draws what each setting would have skipped, and the recommended one.

    Args:
        calibration: What `calibrate` found.
        console: Where to draw.
    """
    say(
        console, f"Run {plain(calibration.run_id or calibration.source)}: {_what_was_judged(calibration)}", style="bold"
    )
    if calibration.run_id:
        say(console, f"read from {plain(calibration.source)}")
    say(console, "")

    _draw_outcomes(calibration, console=console)
    tell(console, _MARKS)
    if console.width < WIDE:
        tell(console, f"In {WIDE} characters or more also: skips in a row, first skipped steps; --json has them")
    say(console, "")
    tell(console, calibration.reason)
    if calibration.recommended is not None:
        say(console, "")
        say(console, f"    {calibration.recommended.code}", style="bold")
    if calibration.notices:
        say(console, "")
    for notice in calibration.notices:
        tell(console, f"Note: {plain(notice)}")


def _what_was_judged(calibration: Calibration) -> str:
    one, many = _UNITS[calibration.unit]
    num = calibration.num_losses
    losses = f"the loss of 1 {one}" if num == 1 else f"losses of {num:,} {many}"
    findings = {0: "no finding", 1: "1 finding"}.get(calibration.num_findings, f"{calibration.num_findings:,} findings")
    num_nonfinite = max(outcome.num_nonfinite for outcome in calibration.outcomes)
    nonfinite = f"; {num_nonfinite:,} not finite, which every setting skips" if num_nonfinite else ""
    return f"{losses}, {findings} of the loss{nonfinite}"


def _draw_outcomes(calibration: Calibration, *, console: Console) -> None:
    """Settings line by line; on a narrow console without what is looked at last."""
    headings = ["", "rule", "setting", "window", "skips", "share", "caught", "others", "lock-ups"]
    if console.width >= WIDE:
        headings[-1:] = ["in a row", "lock-ups", "first at"]
    left = ("", "rule", "first at")
    table = make_table([(heading, heading not in left) for heading in headings], console=console)
    for outcome in calibration.outcomes:
        cells = _cells(outcome, num_findings=calibration.num_findings)
        chosen = outcome == calibration.recommended
        cells[""] = f"{'>' if chosen else ''}{'*' if outcome.is_default else ''}"
        table.add_row(*(Text(cells[name], style="bold" if chosen else "") for name in headings))
    draw_table(table, console=console)


def _cells(outcome: Outcome, *, num_findings: int) -> dict[str, str]:
    settings = outcome.settings
    is_mean = settings["rule"] == "mean"
    more = ", ..." if outcome.num_steps > len(outcome.first_steps) else ""
    return {
        "rule": settings["rule"],
        "setting": f"x{settings['multiplier']:g}" if is_mean else f"k={settings['k']:g}",
        "window": str(settings["window_size"]),
        "skips": f"{outcome.num_spikes:,}",
        "share": f"{100 * outcome.share:.3f} %",
        "caught": f"{outcome.num_caught} of {num_findings}" if num_findings else "-",
        "others": f"{outcome.num_others:,}",
        "in a row": str(outcome.longest_run),
        "lock-ups": str(outcome.num_rebaselined),
        "first at": ", ".join(map(str, outcome.first_steps)) + more if outcome.first_steps else "-",
    }
