"""The proof of a training loop as pytest files in its own repository.

Enters: a folder, the name of a factory. Leaves: `test_trimtab_proof.py` there, one test a case, and beside it
`test_structure.py` and `test_smoke.py`. Invariant: a file that is there already stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TEMPLATES: Final = Path(__file__).with_name("templates")
"""The files as they are, but for the three lines that are this repository's own."""

_FILES: Final = ("test_trimtab_proof.py", "test_structure.py", "test_smoke.py")

_FACTORY: Final = 'FACTORY = "module:factory"\n'
_ROOT: Final = "ROOT = Path(__file__).resolve().parents[1]\n"
_PROCESSES: Final = "PROCESSES = (1, 2)\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTests:
    """What became of each file.

    Attributes:
        written: Files that were not there before.
        left: Files that were, and are what they were.
    """

    written: tuple[Path, ...]
    left: tuple[Path, ...]


def write_tests(folder: Path, *, factory: str, processes: Sequence[int] = (1, 2)) -> WrittenTests:
    """Leaves the proof of a loop as pytest files.

    Args:
        folder: Where, below the current folder; made if it is not there.
        factory: `module:factory`, as it is imported from the current folder.
        processes: How many processes the proof trains in: 1, 2 or both.

    Returns:
        Which files were written, and which were left.

    Raises:
        OSError: The folder or a file cannot be written.
    """
    folder.mkdir(exist_ok=True)
    lines = {
        _FACTORY: f'FACTORY = "{factory}"\n',
        _ROOT: _ROOT.replace("1", str(_num_up(folder))),
        _PROCESSES: f"PROCESSES = {tuple(processes)}\n",
    }
    written, left = [], []
    for name in _FILES:
        path = folder / name
        text = (_TEMPLATES / name).read_text(encoding="utf-8")
        for line, own in lines.items():
            text = text.replace(line, own)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            left.append(path)
        else:
            written.append(path)
    return WrittenTests(written=tuple(written), left=tuple(left))


def _num_up(folder: Path) -> int:
    """Folders from a file of `folder` up to the current one: the repository may be moved."""
    return len(folder.resolve().relative_to(Path.cwd().resolve()).parts)
