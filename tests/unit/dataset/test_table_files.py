"""Files that a log names are opened only if they are tables, and a damaged or hostile one does nothing."""

import json
import os

import numpy as np
import pytest

from trimtab.dataset.data import UnreadableRowError
from trimtab.dataset.table_files import MAX_NAME_CHARS, MAX_NAMES, TableFiles, files_of, open_files, open_table
from trimtab.errors import MissingExtraError, UsageError

pa = pytest.importorskip("pyarrow")
datasets = pytest.importorskip("datasets")


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "saved"
    datasets.Dataset.from_dict({"a": ["x", "y", "z"]}).save_to_disk(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("{folder}/run.json", "is no .arrow file"),
        ("{folder}/gone.arrow", "is not there"),
        ("{folder}/folder.arrow", "is no plain file"),
        ("{folder}/pipe.arrow", "is no plain file"),
        ("{folder}/zeros.arrow", "is no Arrow table"),
        ("{folder}/empty.arrow", "is no Arrow table"),
        ("relative.arrow", "is no absolute path"),
        ("../up.arrow", "is no absolute path"),
        ("https://example.com/rows.arrow", "is no absolute path"),
        ("hf://datasets/x.arrow", "is no absolute path"),
        ("/dev/zero", "is no .arrow file"),
        ("", "is no absolute path"),
    ],
)
def test_a_path_that_is_no_table_is_not_opened(tmp_path, name, said):
    # given
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "folder.arrow").mkdir()
    os.mkfifo(tmp_path / "pipe.arrow")
    (tmp_path / "zeros.arrow").write_bytes(bytes(1_000))
    (tmp_path / "empty.arrow").write_bytes(b"")
    # then
    with pytest.raises(UsageError, match=said):
        open_files(TableFiles((name.format(folder=tmp_path),), (), ("a",)), num_rows=3)


def test_columns_that_the_table_lacks_are_an_error(saved):
    path = str(next(saved.glob("*.arrow")))
    with pytest.raises(UsageError, match="has no column 'b'"):
        open_files(TableFiles((path,), (), ("a", "b")), num_rows=3)


@pytest.mark.parametrize("end", [0.3, 0.6, 0.9, 0.999])
def test_a_table_that_was_cut_is_an_error_or_gives_the_rows_it_has(tmp_path, end):
    # given: ten batches of 100 rows
    path = tmp_path / "rows.arrow"
    table = pa.table({"a": [f"row {row}" for row in range(1_000)]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * end)])
    # when
    try:
        data = open_table(path)
    except UsageError:
        return
    # then
    rows = list(data.rows(range(data.num_rows)))
    assert rows == [{"a": f"row {row}"} for row in range(data.num_rows)]


def test_offsets_that_lead_anywhere_are_an_error_of_the_row(tmp_path):
    # given: a valid table whose second string claims to begin 2 GB further on
    path = tmp_path / "rows.arrow"
    table = pa.table({"a": ["xxxx", "yyyy", "zzzz"]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    content = path.read_bytes()
    offsets = np.array([0, 4, 8, 12], np.int32).tobytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, np.array([0, 2**31 - 8, 2**31 - 4, 2**31 - 1], np.int32).tobytes()))
    # when
    data = open_table(path)
    # then
    for row in range(3):
        with pytest.raises(UnreadableRowError, match=f"row {row} of "):
            list(data.rows([row]))


def test_indices_beyond_the_table_are_an_error_of_the_row(tmp_path, saved):
    # given
    indices = tmp_path / "indices.arrow"
    table = pa.table({"indices": pa.array([2, 7], pa.uint64())})
    with pa.OSFile(str(indices), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    path = str(next(saved.glob("*.arrow")))
    # when
    (data,) = open_files(TableFiles((path,), (str(indices),), ("a",)), num_rows=2)
    # then
    assert list(data.rows([0])) == [{"a": "z"}]
    with pytest.raises(UnreadableRowError, match=r"row 1 of .*: it is said to be row 7 of a table of 3"):
        list(data.rows([1]))


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"[]",
        b"{}",
        b'{"_data_files": 5}',
        b'{"_data_files": [{"filename": "../secret.arrow"}]}',
        b'{"_data_files": [{"filename": "/etc/secret.arrow"}]}',
        b'{"_data_files": [{"filename": 5}]}',
        b'{"_data_files": [{"filename": ".."}]}',
        b"[" * 100_000,
    ],
)
def test_a_saved_dataset_that_points_out_of_its_folder_or_nowhere_is_refused(saved, state):
    (saved / "state.json").write_bytes(state)
    with pytest.raises(UsageError, match=r"does not say which files|names files outside its folder"):
        open_table(saved)


def test_a_folder_of_splits_names_them(tmp_path):
    split = datasets.Dataset.from_dict({"a": [1]})
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(tmp_path / "both")
    with pytest.raises(UsageError, match="holds several datasets: name the one that was trained on: test, train"):
        open_table(tmp_path / "both")
    with pytest.raises(UsageError, match="is not a dataset that was saved to disk"):
        open_table(tmp_path)


def test_the_other_arrow_format_is_read_too(tmp_path):
    path = tmp_path / "rows.arrow"
    table = pa.table({"a": [1, 2]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    assert list(open_table(path).rows([1])) == [{"a": 2}]


def test_extensions_are_read_as_they_are_stored(tmp_path):
    features = datasets.Features({"grid": datasets.Array2D((2, 2), "int32"), "image": datasets.Image()})
    rows = {"grid": [[[1, 2], [3, 4]]], "image": [{"bytes": b"\x89PNG", "path": None}]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    (row,) = open_table(tmp_path / "saved").rows([0])
    assert row == {"grid": [[1, 2], [3, 4]], "image": {"bytes": b"\x89PNG", "path": None}}


@pytest.mark.parametrize(
    "columns",
    [[f"column {number}" for number in range(MAX_NAMES + 1)], ["x" * (MAX_NAME_CHARS + 1)]],
    ids=["too many", "too long"],
)
def test_a_table_with_names_beyond_a_header_names_no_files(tmp_path, columns):
    datasets.Dataset.from_dict({name: [1] for name in columns}).save_to_disk(tmp_path / "saved")
    assert files_of(datasets.load_from_disk(tmp_path / "saved")).paths == ()


def test_a_missing_or_unsafe_pyarrow_is_said_with_the_command(saved, monkeypatch):
    monkeypatch.setattr(pa, "__version__", "14.0.0")
    with pytest.raises(MissingExtraError, match="pip install --upgrade pyarrow"):
        open_table(saved)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="needs pyarrow: pip install pyarrow"):
        open_table(saved)


def test_the_state_is_that_of_the_library(saved):
    # what `_saved_files` relies on
    assert [set(entry) for entry in json.loads((saved / "state.json").read_text())["_data_files"]] == [{"filename"}]
