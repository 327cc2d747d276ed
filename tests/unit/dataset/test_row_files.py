"""Files of rows give what a script would have read, row by row."""

import csv
import json

import pytest

from trimtab.dataset import describe
from trimtab.dataset.data import UnreadableRowError
from trimtab.dataset.fingerprint import has_fingerprint
from trimtab.dataset.opening import open_data
from trimtab.errors import UsageError

ROWS = [
    {"text": "to be\u2028or \u4f60", "ids": [1, 2], "n": 1.0, "meta": {"a": None}},
    {"text": "", "ids": [], "n": 2.5, "meta": {"a": [True]}},
    {"text": "x" * 1_000, "ids": [3], "n": 0.0, "meta": {"a": "b"}},
]


def all_rows(path):
    return [list(one.rows(range(one.num_rows))) for one in open_data(path)]


def is_of(path, rows):
    fingerprint = describe(rows).fingerprint
    return any(has_fingerprint(one, fingerprint) for one in open_data(path))


@pytest.fixture
def write(tmp_path):
    def written(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n", "\n   \n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_json_lines_are_rows_and_blank_lines_are_not(write, ending, mark):
    path = write("rows.jsonl", mark + ending.join(json.dumps(row, ensure_ascii=False) for row in ROWS) + ending)
    assert all_rows(path) == [ROWS]
    assert is_of(path, ROWS)
    (data,) = open_data(path)
    assert list(data.rows([2, 0, 2])) == [ROWS[2], ROWS[0], ROWS[2]]


def test_a_last_line_without_an_end_is_a_row(write):
    assert all_rows(write("rows.ndjson", '{"a": 1}\n{"a": 2}')) == [[{"a": 1}, {"a": 2}]]


@pytest.mark.parametrize(
    "bad",
    ["{", '{"a": }', "[" * 100_000, '{"a": ' + "9" * 5_000 + "}", "\udcff"],
    ids=["torn", "no value", "nested", "a number too long", "no text"],
)
def test_a_line_that_is_no_row_is_named(write, bad):
    path = write("rows.jsonl", b'{"a": 1}\n\n' + bad.encode("utf-8", "surrogateescape") + b"\n")
    (data,) = open_data(path)
    assert list(data.rows([0])) == [{"a": 1}]
    with pytest.raises(
        UnreadableRowError, match=r"^line 3 of .*rows\.jsonl: (JSONDecode|Unicode|Recursion|Value)\w*Error"
    ):
        list(data.rows([1]))


def test_a_line_that_is_too_long_is_not_read(write, monkeypatch):
    monkeypatch.setattr("trimtab.dataset.row_files.MAX_LINE_BYTES", 100)
    (data,) = open_data(write("rows.jsonl", '{"a": 1}\n"' + "x" * 1_000 + '"\n'))
    with pytest.raises(UnreadableRowError, match=r"line 2 of .* is longer than 100 bytes"):
        list(data.rows([1]))


def test_a_file_of_many_rows_is_not_held_in_memory(write):
    # given: 30 MB
    import tracemalloc

    path = write("rows.jsonl", (json.dumps({"text": "x" * 3_000}) + "\n") * 10_000)
    # when
    tracemalloc.start()
    (data,) = open_data(path)
    row = next(iter(data.rows([9_999])))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # then
    assert len(row["text"]) == 3_000
    assert peak < 2_000_000


def test_a_json_list_is_rows_and_another_value_is_none(write):
    assert all_rows(write("rows.json", json.dumps(ROWS))) == [ROWS]
    with pytest.raises(UsageError, match="holds no list of rows, but a dict"):
        open_data(write("other.json", '{"data": []}'))
    for name, content in (("torn.json", "["), ("deep.json", "[" * 100_000)):
        with pytest.raises(UsageError, match="is no JSON that can be read"):
            open_data(write(name, content))


def test_a_file_that_is_read_whole_has_a_largest_size(write, monkeypatch):
    monkeypatch.setattr("trimtab.dataset.row_files.MAX_WHOLE_BYTES", 10)
    with pytest.raises(UsageError, match="is 16 bytes, and at most 10 are read at once: use JSON lines or Parquet"):
        open_data(write("rows.json", "[1, 2, 3, 4, 5 ]"))


def test_lines_of_text_are_rows_by_themselves_or_the_column_text(write):
    path = write("rows.txt", "to be\n\nor not\r\n")
    assert is_of(path, ["to be", "", "or not"])
    assert is_of(path, ["to be", "or not"])
    assert is_of(path, [{"text": "to be"}, {"text": ""}, {"text": "or not"}])
    assert not is_of(path, ["to be", "or"])


def test_a_csv_is_read_as_text_and_as_pandas_types_it(write):
    pandas = pytest.importorskip("pandas")
    # given
    path = write("rows.csv", 'a,b,c,d,e\n1,0.5,"x, y",True,7\n2,3,"two\nlines",False,\n-3,1e3,NA,True,9\n')
    with path.open(newline="") as file:
        as_text = list(csv.DictReader(file))
    typed = [
        {name: None if pandas.isna(value) else value for name, value in row.items()}
        for row in pandas.read_csv(path).to_dict("records")
    ]
    # then
    assert all_rows(path) == [typed, as_text]
    assert is_of(path, typed)
    assert is_of(path, as_text)


def test_a_csv_may_hold_long_cells_and_the_limit_of_the_process_stays(write):
    limit = csv.field_size_limit()
    path = write("rows.tsv", "a\tb\n" + "x" * 300_000 + "\t1\n")
    assert all_rows(path)[0] == [{"a": "x" * 300_000, "b": 1}]
    assert csv.field_size_limit() == limit


def test_an_empty_csv_has_no_rows(write):
    assert all_rows(write("rows.csv", "")) == [[], []]


def test_a_parquet_file_gives_its_rows_in_any_order(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    # given: several row groups
    path = tmp_path / "rows.parquet"
    rows = [{"id": row, "ids": list(range(row % 5)), "text": f"row {row}", "data": b"\x00\xff"} for row in range(2_500)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=700)
    (data,) = open_data(path)
    # then
    assert data.num_rows == 2_500
    assert list(data.rows([2_400, 3, 3, 701])) == [rows[2_400], rows[3], rows[3], rows[701]]
    assert list(data.rows(range(2_500))) == rows
    assert is_of(path, rows)
    assert not is_of(path, rows[::-1])
    datasets = pytest.importorskip("datasets")
    assert has_fingerprint(data, describe(datasets.Dataset.from_list(rows)).fingerprint)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.parquet", b"PAR1 no, not really", "is no Parquet file, or damaged"),
        ("rows[1].parquet", b"PAR1", "takes .* in a path for a pattern"),
        ("rows.xlsx", b"", "rows are read from .csv, .json, .jsonl"),
        ("rows", b"", "rows are read from"),
        ("rows.arrow", b"ARROW?", "is no Arrow table, or damaged"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_what_is_read(write, name, content, said):
    with pytest.raises(UsageError, match=said):
        open_data(write(name, content))


def test_what_is_no_plain_file_is_not_opened(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(UsageError, match="is no plain file"):
        open_data(tmp_path / "pipe.jsonl")
    with pytest.raises(UsageError, match="does not exist"):
        open_data(tmp_path / "nothing.jsonl")
    with pytest.raises(UsageError, match=r"cannot be read|does not exist"):
        open_data("a\0b.jsonl")
    with pytest.raises(UsageError, match="does not exist"):
        open_data("https://example.com/rows.jsonl")


def test_an_object_without_rows_by_number_is_refused():
    for data in (iter([1]), {1, 2}, 5, object()):
        with pytest.raises(UsageError, match="a row is looked up by its number"):
            open_data(data)


def test_an_object_whose_rows_fail_says_which():
    class Failing:
        def __len__(self):
            return 3

        def __getitem__(self, row):
            if row == 2:
                raise KeyError("gone")
            return row

    (data,) = open_data(Failing())
    assert list(data.rows([0, 1])) == [0, 1]
    with pytest.raises(UnreadableRowError, match="row 2 of a Failing of 3 rows: KeyError: 'gone'"):
        list(data.rows([2]))
