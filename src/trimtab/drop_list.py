"""The file of rows to leave out of a training: how it is spelled, and how it is read back from whoever wrote it.

Enters: rows with what tells them apart, or a file. Leaves: a JSON-ready document, or a `DropList` that is known to fit
the dataset at hand. Invariant: a row is left out of the dataset that it was found in and of no other; where that cannot
be told, the error says what to write into the file.

    version               1
    run_id                the run that the rows were found in, or null
    dataset_fingerprint   of the dataset that the numbers index; null where none can be had
    num_rows              its length; null for a stream
    rows                  the numbers, each once
    digests               parallel to rows: 16 hexadecimal digits by which a stream's row is known again, or null
    findings              why each row is listed; for people, and not read
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trimtab.dataset import DatasetFacts, describe
from trimtab.dataset.data import UnreadableRowError
from trimtab.dataset.fingerprint import has_fingerprint
from trimtab.dataset.opening import open_data
from trimtab.errors import UsageError
from trimtab.strict_json import loads
from trimtab.text import plain

VERSION: Final = 1

MAX_SIZE_BYTES: Final = 64 << 20
"""Largest file that is read: some two million rows."""

_INT64: Final = range(-(1 << 63), 1 << 63)
_DIGEST_DIGITS: Final = 16
_TEXT_LENGTH: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class DropList:
    """Rows to leave out of a training.

    Attributes:
        path: The file they were read from, as the user named it.
        dataset_fingerprint: Of the dataset that the numbers index; None where none can be had.
        num_rows: Its length; None for a stream.
        digests: Row number -> `trimtab.spelling.row_digest` of its content, None where the file names none.
    """

    path: str
    dataset_fingerprint: str | None
    num_rows: int | None
    digests: Mapping[int, int | None]

    @property
    def rows(self) -> tuple[int, ...]:
        """The row numbers, each once, in the order of the file."""
        return tuple(self.digests)

    def check(self, dataset: object) -> DatasetFacts:
        """Makes sure that the numbers mean rows of a dataset; the container may be another than the run's.

        Args:
            dataset: As `trimtab.dataset.describe` takes it; no code of its own is run.

        Returns:
            What it says about itself. Its fingerprint is the file's where the rows have that one too: a list and a
            table of the same rows each say another.

        Raises:
            UsageError: As `check_facts`.
        """
        facts = describe(dataset)
        wanted = self.dataset_fingerprint
        # One that says no fingerprint has rows of its own making, which are not asked for.
        if wanted is not None and facts.fingerprint not in (None, wanted) and _has(dataset, wanted):
            facts = replace(facts, fingerprint=wanted)
        self.check_facts(facts)
        return facts

    def check_facts(self, facts: DatasetFacts) -> None:
        """Makes sure that the numbers mean rows of a dataset that says this about itself.

        Args:
            facts: What it says.

        Raises:
            UsageError: It is another dataset, or nobody can tell; or a number is none of its rows.
        """
        if facts.num_rows is None:
            if self.dataset_fingerprint is not None or self.num_rows is not None:
                raise UsageError(
                    f"{self.path} lists rows of {self._its_dataset()}, and this trainer reads a stream, which has no "
                    f"such numbers: {_HAND_OVER}"
                )
            return
        if self.dataset_fingerprint != facts.fingerprint:
            told = _told(facts)
            if self.dataset_fingerprint is None:
                assert facts.fingerprint is not None, "they differ"
                raise UsageError(
                    f"{self.path} does not say of which dataset its rows are (dataset_fingerprint null), and this "
                    f"trainer's is {told}. If the numbers are indices into it, write "
                    f'"dataset_fingerprint": "{facts.fingerprint}" into the file.'
                )
            raise UsageError(
                f"{self.path} lists rows of {self._its_dataset()}, and this trainer's is {told}: {_HAND_OVER}"
            )
        if facts.fingerprint is not None and self.num_rows not in (None, facts.num_rows):
            raise UsageError(
                f"{self.path} contradicts itself: num_rows is {self.num_rows}, and this trainer's dataset, which has "
                f"the file's fingerprint, has {facts.num_rows} rows. Write the file anew with trimtab rewind "
                f'--drop-list, or make "num_rows" {facts.num_rows}.'
            )
        if facts.fingerprint is None and self.num_rows != facts.num_rows:
            raise UsageError(
                f"{self.path} lists rows of {self._its_dataset()}, and this trainer's has {facts.num_rows} rows and no "
                f"fingerprint, so only the length can tell whether it is the same: {_HAND_OVER} If the numbers are "
                f'indices into it, write "num_rows": {facts.num_rows} into the file.'
            )
        for entry, row in enumerate(self.digests):
            if not 0 <= row < facts.num_rows:
                raise UsageError(
                    f"{self.path}: row {row} (entry {entry} of rows) is none of this dataset's, which are 0 to "
                    f"{facts.num_rows - 1}. Take it out of the file."
                )

    def _its_dataset(self) -> str:
        if self.dataset_fingerprint is None and self.num_rows is None:
            return "a stream, or of a dataset that nobody described"
        return _told(DatasetFacts(self.num_rows, self.dataset_fingerprint, ""))


def spell_drop_list(
    digests: Mapping[int, int | None],
    *,
    run_id: str | None,
    dataset_fingerprint: str | None,
    num_rows: int | None,
    findings: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The document, JSON-ready.

    Args:
        digests: Row number -> digest of its content, None where there is none; the order stays.
        run_id: The run that the rows were found in.
        dataset_fingerprint: Of the dataset that the numbers index.
        num_rows: Its length; None for a stream.
        findings: Why each row is listed.
    """
    return {
        "version": VERSION,
        "run_id": run_id,
        "dataset_fingerprint": dataset_fingerprint,
        "num_rows": num_rows,
        "rows": list(digests),
        "digests": [None if digest is None else f"{digest & (1 << 64) - 1:016x}" for digest in digests.values()],
        "findings": [dict(finding) for finding in findings],
    }


def read_drop_list(path: str | os.PathLike[str]) -> DropList:
    """Reads a drop list, strictly: leaving out the wrong rows would go by unseen.

    Args:
        path: The file.

    Returns:
        What it lists. A file written by hand may leave out `run_id`, `digests` and `findings`.

    Raises:
        UsageError: It cannot be read, or is no drop list of a version known here.
    """
    try:
        name = os.fsdecode(path)
    except TypeError as error:
        raise UsageError(f"exclude={_spelled(path)} is no file. {_EXPECTED}") from error
    document = _load(name)
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise _wrong(name, f"version {_spelled(version)}, expected {VERSION}")
    num_rows = document.get("num_rows")
    if num_rows is not None and (type(num_rows) is not int or num_rows < 0):
        raise _wrong(name, f"num_rows {_spelled(num_rows)}, expected a whole number or null")
    fingerprint = document.get("dataset_fingerprint")
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise _wrong(name, f"dataset_fingerprint {_spelled(fingerprint)}, expected text or null")
    return DropList(
        path=name, dataset_fingerprint=fingerprint, num_rows=num_rows, digests=_read_rows(document, name=name)
    )


_HAND_OVER: Final = "hand over the dataset that the rows were found in, or leave exclude= out."


def _has(dataset: object, fingerprint: str) -> bool:
    """Whether the rows of a dataset, which lie in a list or a table, have a fingerprint that another container says."""
    try:
        return any(has_fingerprint(data, fingerprint) for data in open_data(dataset))
    except UnreadableRowError:
        return False


def _told(facts: DatasetFacts) -> str:
    fingerprint = "none" if facts.fingerprint is None else plain(facts.fingerprint[:_TEXT_LENGTH])
    rows = "an unknown number of" if facts.num_rows is None else str(facts.num_rows)
    return f"a dataset of {rows} rows with the fingerprint {fingerprint}"


def _load(name: str) -> dict[str, Any]:
    try:
        with open(name, "rb") as file:  # noqa: PTH123 - a path as the user named it
            data = file.read(MAX_SIZE_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"{name}: cannot be read ({why}). {_EXPECTED}") from error
    if len(data) > MAX_SIZE_BYTES:
        raise _wrong(name, f"more than {MAX_SIZE_BYTES} bytes")
    try:
        document = loads(data)
    except ValueError as error:
        raise _wrong(name, "no JSON") from error
    if not isinstance(document, dict):
        raise _wrong(name, "no JSON object")
    return document


def _read_rows(document: Mapping[str, Any], *, name: str) -> dict[int, int | None]:
    rows, spelled = document.get("rows"), document.get("digests")
    if not isinstance(rows, list):
        raise _wrong(name, f"rows {_spelled(rows)}, expected a list of row numbers")
    if spelled is None:
        spelled = [None] * len(rows)
    if not isinstance(spelled, list) or len(spelled) != len(rows):
        raise _wrong(name, f"digests that are no list as long as its {len(rows)} rows")
    digests: dict[int, int | None] = {}
    for entry, (row, text) in enumerate(zip(rows, spelled, strict=True)):
        if type(row) is not int or row not in _INT64:
            raise _wrong(name, f"{_spelled(row)} as entry {entry} of rows, expected a row number")
        if row in digests:
            raise _wrong(name, f"row {row} a second time, as entry {entry} of rows")
        digests[row] = None if text is None else _read_digest(text, entry=entry, name=name)
    return digests


def _read_digest(text: object, *, entry: int, name: str) -> int:
    if isinstance(text, str) and len(text) == _DIGEST_DIGITS and set(text) <= set("0123456789abcdef"):
        return int.from_bytes(bytes.fromhex(text), "big", signed=True)
    raise _wrong(name, f"{_spelled(text)} as entry {entry} of digests, expected {_DIGEST_DIGITS} hexadecimal digits")


_EXPECTED: Final = "exclude= takes a file that `trimtab rewind --drop-list FILE` wrote."


def _wrong(name: str, found: str) -> UsageError:
    return UsageError(f"{name}: found {found}. {_EXPECTED}")


def _spelled(value: object) -> str:
    """A value from the file, as an error may show it."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__}"
    return plain(repr(value)[:_TEXT_LENGTH])
