"""`SaveThread`: what writes a checkpoint while training goes on, and is found by whoever reads the folder meanwhile.

Enters: what to run, and the folder that it writes into. Leaves: a thread, which the process does not end before; or the
wait for those of a folder. Invariant: a thread is known for as long as it lives, and no longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path


class SaveThread(threading.Thread):
    """A save that is being written; it has begun."""

    def __init__(self, run: Callable[[], None], *, folder: Path) -> None:
        """Begins.

        Args:
            run: What to do; raises nothing.
            folder: Where the checkpoints are, absolute.
        """
        super().__init__(target=run, name="trimtab-checkpoint")
        self.folder = folder
        self.start()


def wait_for_saves(folder: Path) -> None:
    """Waits until what this process is writing into a folder is there, or has failed."""
    for thread in threading.enumerate():
        if isinstance(thread, SaveThread) and thread.folder == folder:
            thread.join()
