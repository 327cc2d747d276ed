"""Checkpoints on a console: a list of them, what is wrong with each, and the one that was picked.

Enters: what selection says. Leaves: lines on a console. Invariant: a path and a reason are plain ASCII on one line,
whatever a file is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from trimtab.report.lines import draw_table, make_table, number, say, tell
from trimtab.resume.doubt import finding_in, short
from trimtab.resume.info import CheckpointInfo, Refused, VerifyReport
from trimtab.resume.names import Ignored
from trimtab.text import plain

MAX_IGNORED: Final = 20
"""Ignored entries told of one folder."""

MAX_REASONS: Final = 10
"""Reasons of one folder's checkpoints that are told in full."""

UNTOLD: Final = "its manifest does not say why"

_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_LIST_ONLY: Final = ("version", "refused", "ignored", "notices")


@dataclass(frozen=True, slots=True)
class ListedFolder:
    """The checkpoints of one folder.

    Attributes:
        path: The folder.
        checkpoints: Those that are checkpoints by their name, newest first.
        ignored: Everything else in it, the first 1,000 entries.
        num_ignored: How many entries that is in all.
    """

    path: Path
    checkpoints: tuple[CheckpointInfo, ...]
    ignored: tuple[Ignored, ...]
    num_ignored: int

    def to_dict(self) -> dict[str, Any]:
        """One entry of the JSON document of `ckpt ls --json`."""
        entries = [info.to_dict() for info in self.checkpoints]
        return {
            "path": str(self.path),
            "checkpoints": [{key: entry[key] for key in entry if key not in _LIST_ONLY} for entry in entries],
            "ignored": reasons_to_json(self.ignored),
            "num_ignored": self.num_ignored,
        }


def reasons_to_json(entries: Sequence[Ignored]) -> list[dict[str, str]]:
    """What was ignored, as the JSON documents have it."""
    return [{"path": str(entry.path), "reason": entry.reason} for entry in entries]


def draw_folders(folders: Sequence[ListedFolder], *, passed_over: Sequence[Ignored] = (), console: Console) -> None:
    """Draws the checkpoints of each folder, what else stands in it, and what beside the folders was passed over."""
    for place, folder in enumerate(folders):
        if place:
            say(console, "")
        _draw_folder(folder, console=console)
    draw_passed_over(passed_over, console=console)
    if any(folder.checkpoints for folder in folders):
        say(console, "")
        tell(
            console,
            "whole: every file is there in the size that its manifest says; trimtab ckpt verify reads every byte. "
            "A dash is what no manifest says. trimtab ckpt pick takes none that is not whole, or that lacks a part.",
        )


def draw_passed_over(entries: Sequence[Ignored], *, console: Console) -> None:
    """Draws what was not looked into, entry by entry."""
    _draw_reasons("ignored", entries, len(entries), console=console)


def draw_remarks(info: CheckpointInfo, *, last_healthy: str | None = None, console: Console) -> None:
    """Draws what a user should know of the choice: why others were refused, and what holds for the one taken.

    Args:
        info: The choice.
        last_healthy: Where it is not healthy: which one is, and how to get that, as a sentence.
        console: Where to draw.
    """
    health = {True: "healthy", False: f"not healthy: {_because(info)}", None: "its health is not known"}[info.healthy]
    tell(console, f"step {info.step}, {health}")
    if last_healthy is not None:
        tell(console, f"warning: {plain(last_healthy)}", style="bold")
    _draw_refused(info.refused, console=console)
    for notice in info.notices:
        tell(console, f"note: {plain(notice)}")
    _draw_reasons("ignored", info.ignored, info.num_ignored, console=console)


def draw_reports(reports: Sequence[VerifyReport], *, console: Console) -> None:
    """Draws what was found in each checkpoint, and the sum of it."""
    for report in reports:
        path = plain(str(report.path))
        promise = "every byte is what was saved" if report.promise == "checksums" else "its structure is sound"
        if report.ok:
            files = "1 file" if report.num_files == 1 else f"{report.num_files:,} files"
            say(console, f"ok       {path}: {promise} ({files}, {_size(report.size_bytes)})")
        elif report.needs_pickle:
            say(console, f"pickle   {path}: not damaged as far as it can be read, and cannot be loaded without pickle")
        else:
            say(console, f"damaged  {path}")
        for problem in report.problems:
            tell(console, plain(problem), indent="    ")
        if report.missing:
            tell(console, f"lacks {plain(', '.join(report.missing))}, which a resume needs", indent="    ")
        if report.healthy is False:
            tell(console, "was not healthy when it was saved", indent="    ")
        for note in report.notes:
            tell(console, f"note: {plain(note)}", indent="    ")
    num_pickle = sum(report.needs_pickle for report in reports)
    num_damaged = sum(not report.ok for report in reports) - num_pickle
    if len(reports) > 1:
        need = f", {num_pickle} that cannot be loaded without pickle" if num_pickle else ""
        say(console, "")
        say(console, f"{len(reports)} checkpoints, {num_damaged or 'none'} damaged{need}")


def _draw_folder(folder: ListedFolder, *, console: Console) -> None:
    path = plain(str(folder.path))
    if folder.checkpoints:
        num = len(folder.checkpoints)
        say(console, f"{path}: {num:,} checkpoint{'' if num == 1 else 's'}")
        headings = [
            ("step", True),
            ("run", False),
            ("healthy", False),
            ("whole", False),
            ("size", True),
            ("loss", True),
        ]
        table = make_table([*headings, ("path", False)], console=console)
        for info in folder.checkpoints:
            table.add_row(*map(Text, _cells(info)))
        draw_table(table, console=console, below=[_below(info) for info in folder.checkpoints])
        _draw_reasons_in_full(folder.checkpoints, console=console)
    else:
        tell(console, f"{path} holds no checkpoint: none is called step_500, checkpoint-500 or step_500.pt")
    _draw_reasons("ignored", folder.ignored, folder.num_ignored, console=console)


def _cells(info: CheckpointInfo) -> tuple[str, ...]:
    whole = "no" if info.problem is not None else "yes" if info.promise == "checksums" else "-"
    return (
        str(info.step),
        plain(info.run_id) if info.run_id is not None else "-",
        "no" if info.doubt is not None else {True: "yes", False: "no", None: "-"}[info.healthy],
        whole,
        "-" if info.size_bytes is None else _size(info.size_bytes),
        number(info.loss),
        plain(info.path.name),
    )


def _below(info: CheckpointInfo) -> str:
    """What a row of the list leaves open, on a line of its own."""
    clauses = [] if info.problem is None else [info.problem]
    if info.problem is None and info.missing:
        clauses.append(f"lacks {', '.join(info.missing)}, which a resume needs")
    if info.healthy is False:
        clauses.append(f"not healthy: {short(info.unhealthy_because) or UNTOLD}")
    if info.doubt is not None:
        clauses.append(f"in doubt: {info.doubt}")
    if info.abandoned:
        clauses.append("left aside: its run was taken back to an earlier step since, and went on from there")
    return f"    {plain('; '.join(clauses))}" if clauses else ""


def _because(info: CheckpointInfo) -> str:
    return plain("; ".join(info.unhealthy_because)) or UNTOLD


def _draw_reasons_in_full(infos: Sequence[CheckpointInfo], *, console: Console) -> None:
    """Draws once each what the rows tell shortly."""
    reasons: dict[str, str] = {}  # of a finding as it was seen last: the newest checkpoint is first
    for info in infos:
        for reason in info.unhealthy_because:
            if plain(reason) not in short(info.unhealthy_because):
                reasons.setdefault(finding_in(reason), reason)
    for reason in list(reasons.values())[:MAX_REASONS]:
        tell(console, plain(reason))
    if len(reasons) > MAX_REASONS:
        say(console, f"{len(reasons) - MAX_REASONS:,} more reasons; --json has them in full")


def _draw_refused(entries: Sequence[Refused], *, console: Console) -> None:
    """Draws why each was refused, once for all that follow one another and were refused for the same reason."""
    groups = [list(group) for _, group in groupby(entries, key=lambda entry: entry.reason)]
    for group in groups[:MAX_IGNORED]:
        newest, oldest = plain(group[0].path.name), plain(group[-1].path.name)
        names = newest if len(group) == 1 else f"{oldest} to {newest} ({len(group):,} checkpoints)"
        tell(console, f"refused: {names}: {plain(group[0].reason)}")
    if len(groups) > MAX_IGNORED:
        say(console, f"refused: {sum(map(len, groups[MAX_IGNORED:])):,} more; --json lists them")


def _draw_reasons(what: str, entries: Sequence[Ignored], num_entries: int, *, console: Console) -> None:
    for entry in entries[:MAX_IGNORED]:
        tell(console, f"{what}: {plain(entry.path.name)}: {plain(entry.reason)}")
    if num_entries > MAX_IGNORED:
        listed = "them" if len(entries) == num_entries else f"the first {len(entries):,}"
        say(console, f"{what}: {num_entries - MAX_IGNORED:,} more; --json lists {listed}")


def _size(num_bytes: int) -> str:
    """A size in at most three digits and a unit of 1,000."""
    size, place = float(num_bytes), 0
    while size >= 999.5 and place < len(_UNITS) - 1:
        size, place = size / 1000, place + 1
    return f"{size:.3g} {_UNITS[place]}"
