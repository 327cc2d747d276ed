"""Says in words what a journal's reader left out, and where.

Enters: stretches of a file that held no good frame, with the frame headers found inside. Leaves: one line each, with
the file's name and byte offsets. Invariant: every byte of the file is either in a good frame or in one of the lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trimtab.log.frames import FORMAT_VERSION, HEADER_SIZE, KIND_EVENTS, KIND_IDS, KIND_ROWS, KIND_STEPS, FrameHeader

_NOUNS: Final = {KIND_ROWS: "micro-batches", KIND_STEPS: "step records", KIND_EVENTS: "events", KIND_IDS: "ids"}
MAX_LINES: Final = 20


@dataclass(slots=True)
class Gap:
    """A stretch without a good frame, and what the headers inside say was in it.

    Attributes:
        start: Its first byte.
        reaches: End of the frame whose header stands at `start`; None if no header does.
        num_lost: Records by kind, as the headers found inside count them.
        first_step: Lowest step among them.
        last_step: Highest step among them.
    """

    start: int
    reaches: int | None = None
    num_lost: dict[int, int] | None = None
    first_step: int = 2**63 - 1
    last_step: int = -(2**63)

    @classmethod
    def of(cls, header: FrameHeader) -> Gap:
        """The stretch of one frame."""
        gap = cls(header.offset)
        gap.lost(header)
        return gap

    def lost(self, header: FrameHeader) -> None:
        """Notes a header whose payload is cut off or wrong."""
        if header.offset == self.start:
            self.reaches = header.end
        if header.kind not in _NOUNS:
            return
        self.num_lost = self.num_lost or {}
        self.num_lost[header.kind] = self.num_lost.get(header.kind, 0) + header.num_records
        self.first_step = min(self.first_step, header.first_step)
        self.last_step = max(self.last_step, header.last_step)


def contents(gap: Gap) -> str:
    """What was in a gap, for example `256 micro-batches of steps 1 to 64`; empty where nothing is known."""
    if not gap.num_lost:
        return ""
    counts = " and ".join(f"{count} {_NOUNS[kind]}" for kind, count in sorted(gap.num_lost.items()))
    return f"{counts} of steps {gap.first_step} to {gap.last_step}"


class Damage:
    """Collects the lines of one pass over one journal."""

    def __init__(self, name: str) -> None:
        self.lines: list[str] = []
        self.num_of_other_runs = 0
        self._name = name
        self._num_newer = 0
        self._newest = 0
        self._num_hidden = 0

    def newer(self, header: FrameHeader) -> None:
        """Counts a frame of a kind or version that this reader does not know."""
        self._num_newer += 1
        self._newest = max(self._newest, header.version)

    def close(self, gap: Gap, end: int) -> None:
        """A gap that a good frame at `end` follows."""
        inside = contents(gap)
        torn = end - gap.start < HEADER_SIZE if gap.reaches is None else gap.reaches > end
        what = "a write that was cut off" if torn else "damaged"
        self.add(f"{what} from byte {gap.start} to byte {end}: {_left_out(end - gap.start, inside)}")

    def close_at_end(self, gap: Gap, size: int, *, zeros: bool) -> None:
        """A gap up to the end of the file."""
        num_bytes = size - gap.start
        if zeros:
            self.add(
                f"{num_bytes} zero bytes at the end, from byte {gap.start} on: a write that never reached the disk"
            )
            return
        torn = num_bytes < HEADER_SIZE if gap.reaches is None else gap.reaches > size
        what = "the last write was cut off" if torn else "damaged to the end,"
        self.add(f"{what} at byte {gap.start}: {_left_out(num_bytes, contents(gap))}")

    def too_much(self, position: int, size: int) -> None:
        """The pass gave up."""
        self.add(f"damaged beyond repair: the rest from byte {position} on, {size - position} bytes, was left out")

    def said(self) -> list[str]:
        """All lines of the pass, the first twenty of a kind of damage in full."""
        lines = list(self.lines)
        if self._num_hidden:
            lines.append(f"{self._name}: {self._num_hidden} more damaged places")
        if self._num_newer:
            version = f"format version {self._newest}" if self._newest > FORMAT_VERSION else "of an unknown kind"
            lines.append(
                f"{self._name}: {self._num_newer} blocks were written by a newer trimtab ({version}) and left out; "
                "upgrade trimtab to read them"
            )
        if self.num_of_other_runs:
            lines.append(f"{self._name}: {self.num_of_other_runs} blocks belong to another run and were left out")
        return lines

    def add(self, line: str) -> None:
        """A line about this file; beyond the first twenty they are counted."""
        if len(self.lines) < MAX_LINES:
            self.lines.append(f"{self._name}: {line}")
        else:
            self._num_hidden += 1


def _left_out(num_bytes: int, inside: str) -> str:
    return f"{num_bytes} bytes left out" + (f", {inside}" if inside else "")
