"""Whether two sets of rows are the same ones: a hash of their number and their content.

Enters: rows at hand. Leaves: 64 hexadecimal digits, or None. Invariant: equal rows give equal digits in every process,
Python version and container; what is hashed depends on the rows alone, never on the clock, the machine or the file.

There are two hashes, and a fingerprint is one of them. A log does not say which: rows at hand are the run's if one of
theirs is the log's.

    rows     of a list: all of them up to 100,000, else 1,000 spread evenly
    sample   of a table: 1,000 spread evenly, coarse to fine, as far as a budget goes
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from typing import Final

from trimtab.dataset.data import Data
from trimtab.spelling import Speller, TooCostlyError, UnknownValueError

MAX_FULL_PASS_ROWS: Final = 100_000
"""Longest list that is hashed row by row; 0.3 s for short rows."""

NUM_SPREAD_ROWS: Final = 1_000
"""Rows hashed of a longer list, of one whose rows are big, or of a table."""

_BUDGET: Final = 1 << 30
"""What one pass over a list's rows may spend: 1 for each byte hashed, which makes about 1 s. Told by content, not by
the clock: a fingerprint must not depend on how busy the machine was."""

_SAMPLE_BUDGET: Final = 1 << 26
"""Likewise for the sample of a table, which is taken before training starts: 0.1 s. It holds 1,000 rows of 64 kB, 340
rows of 8,192 tokens in three columns, or 65 rows of 1,000 columns."""


def has_fingerprint(data: Data, fingerprint: str) -> bool:
    """Whether these rows are the ones that a log's fingerprint is of, in whatever container either was.

    Raises:
        UnreadableRowError: A row cannot be read.
    """
    passes: list[Callable[[], str | None]] = [
        lambda: sample_fingerprint(data),
        lambda: _hashed(data, spread(data.num_rows)),
    ]
    if NUM_SPREAD_ROWS < data.num_rows <= MAX_FULL_PASS_ROWS:
        passes.append(lambda: _hashed(data, range(data.num_rows)))
    return any(one() == fingerprint for one in passes)


def rows_fingerprint(data: Data) -> str | None:
    """The hash of all rows up to 100,000; of more, or where their content is too much, of 1,000 spread evenly."""
    if data.num_rows <= MAX_FULL_PASS_ROWS:
        whole = _hashed(data, range(data.num_rows))
        if whole is not None:
            return whole
    return _hashed(data, spread(data.num_rows))


def sample_fingerprint(data: Data) -> str | None:
    """The hash of up to 1,000 rows spread evenly, coarse to fine, as many as the budget holds."""
    chosen = list(spread(data.num_rows))
    bits = max(1, (len(chosen) - 1).bit_length())
    # The places in the order of their reversed bits: wherever the budget ends, what was hashed is spread evenly.
    chosen = [place for _, place in sorted((_reversed(at, bits), place) for at, place in enumerate(chosen))]
    digest = hashlib.sha256(b"trimtab sample 1\n" + struct.pack("<Q", data.num_rows))
    speller = Speller(_SAMPLE_BUDGET, number_cost=0)
    num_hashed = 0
    try:
        for place, row in zip(chosen, data.rows(chosen), strict=True):
            digest.update(struct.pack("<Q", place) + speller.spell(row))
            num_hashed += 1
    except TooCostlyError:
        if not num_hashed:
            return None
    except (UnknownValueError, RecursionError):
        return None
    digest.update(struct.pack("<Q", num_hashed))
    return digest.hexdigest()


def spread(num_rows: int) -> range | list[int]:
    """Up to 1,000 row numbers spread evenly over `num_rows`, the first and the last among them."""
    if num_rows <= NUM_SPREAD_ROWS:
        return range(num_rows)
    return [place * (num_rows - 1) // (NUM_SPREAD_ROWS - 1) for place in range(NUM_SPREAD_ROWS)]


def _hashed(data: Data, chosen: range | list[int]) -> str | None:
    try:
        return _hash_rows(data.rows(chosen), num_rows=data.num_rows, num_chosen=len(chosen))
    except (TooCostlyError, UnknownValueError, RecursionError):
        return None


def _hash_rows(rows: Iterable[object], *, num_rows: int, num_chosen: int) -> str:
    digest = hashlib.sha256(b"trimtab rows 1\n" + struct.pack("<QQ", num_rows, num_chosen))
    speller = Speller(_BUDGET)
    for row in rows:
        digest.update(speller.spell(row))
    return digest.hexdigest()


def _reversed(number: int, bits: int) -> int:
    return int(f"{number:0{bits}b}"[::-1], 2)
