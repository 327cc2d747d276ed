"""`Faulty`: a disk that counts its changes, and at one of them ends the process or fails, as a real one does.

For the tests of saving: run a save once with `Faulty()` and read `num`, then once for each `at` below that.
"""

import os
from typing import Any, Final

from trimtab.resume.disk_changes import Disk

KILL: Final = "kill before"
KILL_AFTER: Final = "kill after"
SHORT: Final = "short"


class Faulty(Disk):
    """Each method of `Disk` is one place; a write that is stopped has put half of its bytes on the disk.

    Attributes:
        num: Changes so far.
        kinds: Which ones, by the name of the method.
    """

    def __init__(self, at: int = -1, what: str | int = KILL) -> None:
        """Everything works.

        Args:
            at: The change that does not, from 0.
            what: `KILL` before it or `KILL_AFTER` it, with the exit status 9; `SHORT`: a write takes half and says so;
                an errno: it fails.
        """
        self.num = 0
        self.kinds: list[str] = []
        self._at = at
        self._what = what

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name in ("num", "kinds") or name.startswith("_"):
            return method

        def act(*arguments: Any) -> Any:
            here = self.num
            self.num += 1
            self.kinds.append(name)
            return method(*arguments) if here != self._at else self._fail(method, *arguments)

        return act

    def _fail(self, method: Any, *arguments: Any) -> Any:
        is_write = method.__name__ == "write"
        if is_write:
            num_written = method(arguments[0], arguments[1][: max(1, len(arguments[1]) // 2)])
            if self._what == SHORT:
                return num_written
        elif self._what in (KILL_AFTER, SHORT):
            result = method(*arguments)
            if self._what == SHORT:
                return result
        if isinstance(self._what, str):
            os._exit(9)
        raise OSError(self._what, os.strerror(self._what))
