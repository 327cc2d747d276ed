"""Since when a layer may have been as it is: the last step after which a report still shows that it was well.

Enters: reports, and the signs in them. Leaves: a step for each cause that has signs. Invariant: the figures of a report
are means over its steps. That they are well proves it of the weights before its first step; what broke in its last ones
may not show in it, so a checkpoint that was saved within it is not known to be well.
"""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar, Final

from trimtab.rules.router.signs import Sign
from trimtab.rules.said import Cause
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, read_count, read_entries
from trimtab.watched import RouterReport

NUM_STARTS: Final = 64
"""Reports whose first steps are held. An expert that was silent through more of them has been dead since the first."""


_HARM: Final = "harm"
"""Stands behind a cause that does harm: what was harmless for long, and then was no more, was well until then."""


class Onsets:
    """The onset of everything that is out of line."""

    name: ClassVar[str] = "onsets"

    def __init__(self) -> None:
        self._starts: deque[int] = deque(maxlen=NUM_STARTS)
        self._well: dict[Cause, int] = {}

    def begin(self, report: RouterReport) -> None:
        """Takes in that a report is looked at now."""
        self._starts.append(report.first_step)

    def see(self, cause: Cause, sign: Sign) -> None:
        """Takes in a sign of the report."""
        if sign.is_over:
            self.forget(cause)
            return
        first = self._starts[-1] if sign.first_step is None else sign.first_step
        before = max((start for start in self._starts if start < first), default=1)
        self._well.setdefault(cause, max(0, before - 1))
        if sign.is_harmless:
            self._well.pop((*cause, _HARM), None)
        else:
            self._well.setdefault((*cause, _HARM), max(0, before - 1))

    def since(self, cause: Cause) -> int:
        """The last step after which it was known to be well, or harmless where it is no more."""
        return self._well.get((*cause, _HARM), self._well.get(cause, 0))

    def forget(self, cause: Cause) -> None:
        """Takes in that it is over, or not known any more."""
        self._well.pop(cause, None)
        self._well.pop((*cause, _HARM), None)

    def causes(self) -> tuple[Cause, ...]:
        """All of which something is held."""
        return tuple(dict.fromkeys(cause[:3] for cause in self._well))

    def state_dict(self) -> dict[str, Any]:
        """Plain values: first steps of reports, and the causes, each with its step."""
        return {"starts": list(self._starts), "well": [[list(cause), step] for cause, step in self._well.items()]}

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        starts, well = read_entries(state, ("starts", "well"), where=self.name)
        if not isinstance(starts, list) or not isinstance(well, list) or not all(map(_is_onset, well)):
            raise damaged(f"the onsets are {spelled(state)}, not steps of reports and of causes")
        starts = [read_count(start, name="a report's first step") for start in starts]
        self._well = {tuple(cause): read_count(step, name="an onset") for cause, step in well}
        self._starts = deque(starts, maxlen=NUM_STARTS)


def _is_onset(found: object) -> bool:
    if not isinstance(found, list | tuple) or len(found) != 2 or not isinstance(found[0], list | tuple):
        return False
    return all(isinstance(name, str) for name in found[0])
