"""Ids of rows: what is handed over comes back, each row once; a bad item costs itself only."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.log import ids, records
from trimtab.log.columns import IdColumns
from trimtab.log.folder import RunFolder, create_run
from trimtab.log.ids import decode_ids, encode_ids
from trimtab.log.planes import BadBlockError, encode_ints
from trimtab.log.reader import open_log
from trimtab.recorder import Recorder
from trimtab.values import RowIds, RunHeader

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path, RunHeader(run_id="a", backend="torch"))


def lines(columns: IdColumns) -> list[tuple]:
    """Row, row of the table, digest, name of each."""
    digests = [
        digest if has else None
        for digest, has in zip(columns.digest.tolist(), columns.has_digest.tolist(), strict=True)
    ]
    return list(zip(columns.row.tolist(), columns.table_row.tolist(), digests, columns.name.tolist(), strict=True))


def recorded(folder: RunFolder, *items: object) -> list[tuple]:
    recorder = Recorder(folder)
    for item in items:
        recorder.put(item)
    recorder.close()
    log = open_log(folder.path)
    assert log.notices() == []
    return lines(log.id_columns())


@given(
    st.lists(
        st.tuples(
            INT64,
            st.integers(-1, 2**63 - 1),
            st.none() | INT64,
            st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_ids_come_back_as_they_were_handed_over(entries: list) -> None:
    rows, table_rows, digests, names = zip(*entries, strict=True)

    blocks, refused = records.id_blocks([RowIds(rows, table_rows, list(digests), names)])

    back = [line for block in blocks for line in lines(decode_ids(b"".join(block.parts)))]
    assert refused == []
    assert back == entries


def test_parts_that_nobody_knows_are_unknown_and_the_last_word_on_a_row_counts(folder: RunFolder) -> None:
    assert recorded(
        folder,
        RowIds(np.array([9, 3]), table_rows=np.array([70, 71])),
        RowIds([3, -5], digests=np.array([-1, 2**63 - 1])),
        RowIds([], None, None, []),
        RowIds([7], names=["c\0d\x1b\u202e"]),
    ) == [(-5, -1, 2**63 - 1, None), (3, -1, -1, None), (7, -1, None, "c\0d\x1b\u202e"), (9, 70, None, None)]


def test_a_lone_surrogate_in_a_name_becomes_a_visible_escape(folder: RunFolder) -> None:
    assert recorded(folder, RowIds([1], names=["a\udc80b"])) == [(1, -1, None, "a\\udc80b")]


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (RowIds([1], names=["\u00e9" * 2049]), "is over 4096 bytes"),
        (RowIds([1], names=[7]), "a name is int"),
        (RowIds([1, 2], names=["a"]), "2 rows with 2 rows of the table, 2 digests and 1 names"),
        (RowIds([1], table_rows=[-2]), "row -2 of the table"),
        (RowIds([0.5]), "rows are float64"),
        (RowIds([[1]]), "shape (1, 1)"),
        (RowIds(np.array([2**63], np.uint64)), "above int64"),
        (RowIds([1], digests=[None, "x"]), "TypeError"),
        (RowIds(None), "rows are object"),
    ],
    ids=["long", "no text", "lengths", "table", "floats", "shape", "beyond", "digest", "nothing"],
)
def test_a_bad_item_is_refused_with_what_was_found_and_costs_no_other(
    folder: RunFolder, item: RowIds, found: str
) -> None:
    assert recorded(folder, RowIds([1]), item, RowIds([2])) == [(1, -1, None, None), (2, -1, None, None)]

    (refused,) = open_log(folder.path).event_list()
    assert (refused.kind, refused.facts["num_items"]) == ("refused", 1)
    assert found in refused.facts["reason"]


def test_names_that_fit_no_frame_together_are_spread_over_several(folder: RunFolder) -> None:
    names = [f"{row:04d}" * 1024 for row in range(5000)]  # 20 MB

    assert [line[3] for line in recorded(folder, RowIds(range(5000), names=names))] == names


def test_a_name_of_4096_bytes_is_kept(folder: RunFolder) -> None:
    name = "\u00e9" * 2048

    assert recorded(folder, RowIds([1], names=[name])) == [(1, -1, None, name)]


def test_items_over_the_bound_of_a_block_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "MAX_BLOCK_IDS", 10)

    (blocks, _) = records.id_blocks([RowIds(range(7)), RowIds(range(7, 25))])

    assert [block.num_records for block in blocks] == [10, 10, 5]


def test_names_count_towards_what_may_wait(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.recorder.backlog.CAPACITY_BYTES", 1_000_000)
    recorder = Recorder(folder, flush_interval_s=3600, flush_micros=1 << 15)

    for _ in range(20):
        recorder.put(RowIds(range(100), names=["x" * 1000] * 100))  # 100 kB

    assert 8 <= recorder.num_dropped <= 12
    recorder.close()
    (dropped,) = open_log(folder.path).event_list()
    assert dropped.facts["num_ids"] == recorder.num_dropped


def test_the_ids_table_has_missing_values_where_nobody_knows(folder: RunFolder) -> None:
    recorded(folder, RowIds([4, 2], table_rows=[40, -1], digests=[None, 5], names=["a", None]))

    table = open_log(folder.path).ids()

    assert table.columns == ("row", "table_row", "digest", "name")
    assert table.native.fetchall() == [(2, None, 5, None), (4, 40, None, "a")]
    assert table.numpy()["name"].tolist() == [None, "a"]
    assert table.pandas()["row"].tolist() == [2, 4]


def test_a_log_without_ids_has_an_empty_table(folder: RunFolder) -> None:
    assert open_log(folder.path).ids().native.fetchall() == []


def block(*columns: list[int], names: bytes = b"", num_ids: int | None = None) -> bytes:
    parts = [part for column in columns for part in encode_ints(np.array(column, np.int64))]
    return struct.pack("<I", len(columns[0]) if num_ids is None else num_ids) + b"".join(parts) + names


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"", "0 bytes of ids"),
        (bytes((16 << 20) + 1), "16777217 bytes of ids"),
        (block([1], [-1], [0], [0], [0], num_ids=0), "0 ids"),
        (block([1], [-1], [0], [0], [0], num_ids=2**32 - 1), "4294967295 ids"),
        (block([1], [-2], [0], [0], [0]), "below -1"),
        (block([1], [-1], [4], [0], [0]), "flags"),
        (block([1], [-1], [2], [0], [4097], names=b"x" * 4097), "beyond 4096"),
        (block([1], [-1], [2], [0], [-1]), "beyond 4096"),
        (block([1], [-1], [0], [0], [1], names=b"x"), "a name that is none"),
        (block([1], [-1], [0], [7], [0]), "a digest that is none"),
        (block([1], [-1], [2], [0], [3], names=b"ab"), "other bytes"),
        (block([1], [-1], [2], [0], [1], names=b"ab"), "other bytes"),
        (block([1], [-1], [2], [0], [1], names=b"\xff"), "UTF-8"),
        (block([1], [-1], [0], [0]), "ends early"),
    ],
)
def test_a_block_that_does_not_hold_together_is_refused(raw: bytes, found: str) -> None:
    with pytest.raises(BadBlockError, match=found):
        decode_ids(raw)


def test_what_is_encoded_is_decoded_in_the_order_handed_over() -> None:
    name = np.array(["b", None, ""], object)
    has_digest = np.array([True, False, True])
    columns = IdColumns(np.array([5, 1, 5]), np.array([-1, 0, 2**63 - 1]), np.array([0, 0, -9]), has_digest, name)

    (made,) = encode_ids(columns)

    assert lines(decode_ids(b"".join(made.parts))) == lines(columns)
