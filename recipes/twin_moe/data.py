"""Windows of real text as micro-batches of bytes: the sources of Python's standard library.

In goes a `DataConfig`, out come micro-batches by number. The order depends on the seed alone, so that a resumed
training goes on with the micro-batch at which it was interrupted. Files that evaluations look at are never trained on,
and no window that they look at stands in one that is. Nothing is parsed, imported or downloaded; the same Python has
the same rows.

Shapes: B rows of a micro-batch, T tokens of a row.
"""

from __future__ import annotations

import os
import random
import sysconfig
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

import torch

from recipes.strict_yaml import ConfigError
from recipes.twin_moe.config import DataConfig

VOCABULARY_SIZE: Final = 256
"""A token is a byte."""

# Tests are most of the library and repeat themselves; encodings holds tables; _sysconfigdata is the machine's own.
_NO_TEXT_IN: Final = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "ensurepip"}
_NO_TEXT: Final = "_sysconfigdata"

_HELD_OUT_OF: Final = 20
"""One file in so many is held out for evaluation."""


class Source(NamedTuple):
    """One file: its name below the library's folder ("asyncio/locks.py"), and its bytes."""

    name: str
    text: bytes


class Place(NamedTuple):
    """Where a row stands: the file's name, and the offset of the window's first byte in it."""

    file: str
    offset: int


class Batch(NamedTuple):
    """One micro-batch; `input_ids` and `labels` are parallel, and shifted against each other by one byte.

    Attributes:
        input_ids: (B, T) int64.
        labels: (B, T) int64, the byte behind each.
        rows: (B,) int64, numbers of the windows.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor


@cache
def read_sources(*, held_out: bool) -> tuple[Source, ...]:
    """Sources of the running Python, sorted by name; a process reads them once.

    Args:
        held_out: True: the files for evaluation; False: all others. A hash of the name decides, so that a file that
            comes or goes moves no other one.

    Raises:
        ConfigError: There are none, as with a library that is a zip file.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for folder, folders, files in os.walk(library):
        folders[:] = [name for name in folders if name not in _NO_TEXT_IN]  # is not walked into
        for file in files:
            path = Path(folder, file)
            name = path.relative_to(library).as_posix()
            if path.suffix == ".py" and not file.startswith(_NO_TEXT) and is_held_out(name) == held_out:
                found.append(Source(name, path.read_bytes()))
    if not found:
        raise ConfigError(f"There are no sources of the standard library under {library}: use a Python that has them.")
    return tuple(sorted(found))


def is_held_out(name: str) -> bool:
    """Whether a file is for evaluation, by its name below the library's folder."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big") % _HELD_OUT_OF == 0


class Windows:
    """Files cut into windows of T + 1 bytes, which a row's number names; T is `num_tokens`.

    Windows of a file begin at 0, T, 2 T and so on: the last byte of one is the first of the next, so that every byte
    but a file's first is predicted once. What is left at a file's end is in no window.
    """

    def __init__(self, sources: Sequence[Source], *, num_tokens: int) -> None:
        """Cuts the files.

        Args:
            sources: The files, in the order in which rows are numbered.
            num_tokens: T.

        Raises:
            ConfigError: No file is long enough for one window.
        """
        self.num_tokens = num_tokens
        self._names = [source.name for source in sources]
        self._text = torch.frombuffer(bytearray(b"".join(source.text for source in sources)), dtype=torch.uint8)
        self._begins = list(accumulate((len(source.text) for source in sources), initial=0))
        windows = [max(0, len(source.text) - 1) // num_tokens for source in sources]
        self._first_rows = list(accumulate(windows, initial=0))
        if not len(self):
            raise ConfigError(f"data.num_tokens: no file has {num_tokens + 1} bytes; make it smaller.")

    def __len__(self) -> int:
        """Rows that there are."""
        return self._first_rows[-1]

    def __getitem__(self, row: int) -> dict[str, str]:
        """A row as a person reads it: its text, and its file with the offset.

        Raises:
            IndexError: There is no such row.
        """
        place = self.place(row)
        text = self.bytes_of(row).decode(errors="replace")
        return {"text": text, "place": f"{place.file}:{place.offset}"}

    def place(self, row: int) -> Place:
        """Where a row stands.

        Raises:
            IndexError: There is no such row.
        """
        file, window = self._file_and_window(row)
        return Place(self._names[file], window * self.num_tokens)

    def bytes_of(self, row: int) -> bytes:
        """The T + 1 bytes of a row.

        Raises:
            IndexError: There is no such row.
        """
        return bytes(self._window(row).tolist())

    def batch(self, rows: Sequence[int]) -> Batch:
        """Rows as a micro-batch, on the CPU."""
        windows = torch.stack([self._window(row) for row in rows]).long()
        return Batch(windows[:, :-1].contiguous(), windows[:, 1:].contiguous(), torch.tensor(rows, dtype=torch.int64))

    def _window(self, row: int) -> torch.Tensor:
        file, window = self._file_and_window(row)
        begin = self._begins[file] + window * self.num_tokens
        return self._text[begin : begin + self.num_tokens + 1]

    def _file_and_window(self, row: int) -> tuple[int, int]:
        if not 0 <= row < len(self):
            raise IndexError(f"There is no row {row}: rows are numbered from 0 to {len(self) - 1}.")
        file = bisect_right(self._first_rows, row) - 1
        return file, row - self._first_rows[file]


class MicroBatches:
    """The micro-batches of a training, by number, without end: each epoch shuffles the rows anew.

    Attributes:
        windows: The rows.
    """

    def __init__(self, config: DataConfig, *, seed: int) -> None:
        """Reads the sources.

        Args:
            config: How they are cut and batched.
            seed: Decides the order.

        Raises:
            ConfigError: There are too few rows for one micro-batch.
        """
        self.windows = Windows(read_sources(held_out=False), num_tokens=config.num_tokens)
        self._batch_size, self._seed = config.batch_size, seed
        self._an_epoch = _num_batches(self.windows, config.batch_size)

    def __getitem__(self, number: int) -> Batch:
        """Micro-batch `number`, counted from 0 at the start of the schedule."""
        epoch, place = divmod(number, self._an_epoch)
        first = place * self._batch_size
        return self.windows.batch(_order(len(self.windows), self._seed, epoch)[first : first + self._batch_size])


def eval_batches(config: DataConfig) -> list[Batch]:
    """The micro-batches of every evaluation, always the same: rows spread evenly over the held-out files.

    `rows` number the held-out windows, which are others than those of training. Files share text (a license, a copied
    function), so that a window that stands whole in a file that is trained on gives its place to the next that does
    not; what is shared by less than a window stays.

    Raises:
        ConfigError: There are too few held-out rows for so many.
    """
    windows = Windows(read_sources(held_out=True), num_tokens=config.num_tokens)
    most = _num_batches(windows, config.batch_size)
    if config.num_eval_batches > most:
        raise ConfigError(f"data.num_eval_batches: found {config.num_eval_batches}, expected at most {most}.")
    num_rows = config.num_eval_batches * config.batch_size
    training = read_sources(held_out=False)
    rows = []
    for place in range(num_rows):
        part = range(place * len(windows) // num_rows, (place + 1) * len(windows) // num_rows)
        row = next((row for row in part if not _stands_in(training, windows.bytes_of(row))), None)
        if row is None:
            raise ConfigError(
                f"data.num_eval_batches: found {config.num_eval_batches}, but held-out rows {part[0]} to {part[-1]} "
                "stand in files that are trained on: give fewer."
            )
        rows.append(row)
    return [windows.batch(rows[batch :: config.num_eval_batches]) for batch in range(config.num_eval_batches)]


@cache
def _stands_in(sources: tuple[Source, ...], window: bytes) -> bool:
    return any(window in source.text for source in sources)


def _num_batches(windows: Windows, batch_size: int) -> int:
    if batch_size > len(windows):
        raise ConfigError(f"data.batch_size: found {batch_size}, expected at most the {len(windows)} rows there are.")
    return len(windows) // batch_size


@cache
def _order(num_rows: int, seed: int, epoch: int) -> list[int]:
    order = list(range(num_rows))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order
