"""Rows of real text as micro-batches of bytes: definitions of Python's standard library and their docstrings.

In goes a `DataConfig`, out come micro-batches by number. The order depends on the seed alone, so that a resumed stage
goes on with the micro-batch at which it was interrupted. Nothing is downloaded.
"""

from __future__ import annotations

import ast
import random
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, TypedDict

import torch

from recipes.sft.config import ConfigError, DataConfig

IGNORED: Final = -100
"""The label that PyTorch's cross-entropy leaves out."""
BEGIN, END, PAD = 256, 257, 258
"""Tokens beyond the 256 bytes."""
NUM_TOKENS: Final = 259

_NO_ROWS_IN: Final = {"site-packages", "dist-packages", "test", "tests", "lib2to3", "idlelib"}
_MIN_CHARS, _MAX_CHARS = 30, 300
"""Of an answer."""


class Row(NamedTuple):
    """One row: a definition as the question, its docstring as the answer."""

    question: str
    answer: str


class Batch(TypedDict):
    """One micro-batch of one rank; `input_ids` and `labels` are parallel, and not shifted against each other.

    Attributes:
        input_ids: (B, T) int64, padded on the right with `PAD`.
        labels: (B, T) int64, `IGNORED` where nothing is supervised.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor


@cache
def read_rows(package: str | None = None) -> tuple[Row, ...]:
    """Definitions with docstrings from the sources of the running Python; a process reads them once.

    Args:
        package: A package of the standard library; None: all of it, which takes some seconds.

    Raises:
        ConfigError: There are no rows in such a package.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    folder = library / (package or "")
    rows = {row.answer: row for row in _definitions(folder, library) if _MIN_CHARS <= len(row.answer) <= _MAX_CHARS}
    if not rows:
        raise ConfigError(f"data.package: no docstrings under {folder}; name another package.")
    return tuple(rows.values())


def _definitions(folder: Path, library: Path) -> Iterator[Row]:
    """What is public in the modules of a folder, always in the same order; parsed and never imported."""
    for path in sorted(folder.rglob("*.py")):
        module = path.relative_to(library).with_suffix("").parts
        if any(part.startswith("_") or part in _NO_ROWS_IN for part in module):
            continue
        with warnings.catch_warnings(action="ignore"):  # the library's own sources hold invalid escapes
            tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                kind = "class" if isinstance(node, ast.ClassDef) else "def"
                yield Row(f"{'.'.join(module)}: {kind} {node.name}", ast.get_docstring(node) or "")


def make_batch(rows: Sequence[Row], *, supervise: str, max_tokens: int) -> Batch:
    """Rows as one padded micro-batch: `BEGIN question newline answer END`, cut to `max_tokens`.

    Args:
        rows: At least one.
        supervise: "answer": labels on the answer and `END` alone; "all": on all but `BEGIN`.
        max_tokens: Longest row, in tokens. A row whose question fills it has no label under "answer".
    """
    items: list[tuple[list[int], list[int]]] = []
    for row in rows:
        question = [BEGIN, *f"{row.question}\n".encode()]
        answer = [*row.answer.encode(), END]
        labels = [IGNORED] * len(question) + answer if supervise == "answer" else [IGNORED, *question[1:], *answer]
        items.append(((question + answer)[:max_tokens], labels[:max_tokens]))
    width = max(len(tokens) for tokens, _ in items)
    return {
        "input_ids": torch.tensor([tokens + [PAD] * (width - len(tokens)) for tokens, _ in items]),
        "labels": torch.tensor([labels + [IGNORED] * (width - len(labels)) for _, labels in items]),
    }


class MicroBatches:
    """The micro-batches of one rank, by number, without end: each epoch shuffles the rows anew."""

    def __init__(
        self,
        config: DataConfig,
        *,
        max_tokens: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Reads the rows.

        Args:
            config: Which rows, and how many a micro-batch.
            max_tokens: Longest row, in tokens.
            seed: Decides the order.
            rank: This process.
            world_size: Processes that share each epoch among them.

        Raises:
            ConfigError: There are too few rows for one micro-batch a rank.
        """
        self._rows = read_rows(config.package)
        self._config, self._max_tokens, self._seed = config, max_tokens, seed
        self._rank, self._world_size = rank, world_size
        self._an_epoch = len(self._rows) // (config.batch_size * world_size)
        if self._an_epoch == 0:
            raise ConfigError(
                f"data.batch_size: {config.batch_size} rows on each of {world_size} ranks are more than the "
                f"{len(self._rows)} that there are; make it smaller."
            )

    def __getitem__(self, number: int) -> Batch:
        """Micro-batch `number` of this rank, counted from 0 at the start of the stage."""
        epoch, place = divmod(number, self._an_epoch)
        size = self._config.batch_size
        first = (place * self._world_size + self._rank) * size
        rows = [self._rows[row] for row in _order(len(self._rows), self._seed, epoch)[first : first + size]]
        return make_batch(rows, supervise=self._config.supervise, max_tokens=self._max_tokens)


@cache
def _order(num_rows: int, seed: int, epoch: int) -> list[int]:
    order = list(range(num_rows))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order
