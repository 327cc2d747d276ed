"""What is asked of every foreign format: a new one is a package and its name in FORMATS."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from trimtab.analysis.lookup import find_logs
from trimtab.errors import LogError
from trimtab.log import foreign
from trimtab.log.columns import RowColumns, StepColumns
from trimtab.log.reader import open_log
from trimtab.values import RunHeader


class TallySource:
    """A log of one row a line."""

    format = "tally"
    has_rows = True
    header = RunHeader(run_id=None, backend="tally")

    def __init__(self, path):
        self.path = str(path)
        self.size_bytes = path.stat().st_size

    def notices(self):
        return ["a tally"]

    def row_blocks(self, *, first_step=None, last_step=None, rows=None, brief=False, progress=None):
        rows = np.array(Path(self.path).read_text().split()[1:], np.int64)
        ones = np.ones(rows.size, np.int64)
        yield RowColumns(
            ones.astype(np.int32), ones, ones.astype(np.int32), ones.astype(np.int32), rows, ones.astype(np.float64),
            ones, ones.astype(np.uint8), ones.astype(np.bool_),
        )  # fmt: skip

    def step_columns(self, *, brief=False):
        return StepColumns.empty()

    def event_list(self):
        return []


@pytest.fixture
def tally(monkeypatch):
    """A second format, whose files begin with a word of their own."""
    module = ModuleType("trimtab.log.foreign.tally")
    module.FILE_NAMES = ("tally.txt",)
    module.recognises = lambda path, head: head.startswith(b"TALLY")
    module.open_source = TallySource
    module.source_in = lambda folder: None
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(foreign, "FORMATS", (*foreign.FORMATS, "tally"))
    return module


@pytest.mark.parametrize("name", foreign.FORMATS)
def test_every_format_has_the_members_that_are_asked_for(name):
    module = getattr(__import__("trimtab.log.foreign", fromlist=[name]), name)
    assert all(isinstance(file_name, str) for file_name in module.FILE_NAMES)
    assert callable(module.recognises)
    assert callable(module.open_source)
    assert callable(module.source_in)


def test_a_new_format_is_opened_by_its_file_and_by_its_folder(tally, tmp_path):
    # given
    path = tmp_path / "tally.txt"
    path.write_text("TALLY\n5\n6\n")
    # then
    for named in (path, tmp_path):
        log = open_log(named)
        assert (log.path, log.format, log.header.backend, log.notices()) == (str(path), "tally", "tally", ["a tally"])
        assert log.rows().numpy()["row"].tolist() == [5, 6]


def test_a_log_says_which_format_it_is_of(tmp_path):
    # given: a log of each format, under a name that tells nothing
    logs = {
        "rewind_jsonl": b'{"kind": "header", "version": 1}\n',
        "tensorboard": bytes(12) + b"\x1a\x0dbrain.Event:2",
        "trainer_state": b'{"log_history": [{"step": 1, "loss": 1.5}]}',
        "metrics_jsonl": b'{"step": 1, "loss": 1.5}\n',
        "metrics_csv": b"step,loss\n1,1.5\n",
        "text_logs": b"iter 1: loss 1.5, time 1ms, mfu 1%\n",
    }
    assert tuple(logs) == foreign.FORMATS
    # then
    for name, content in logs.items():
        path = tmp_path / "log"
        path.write_bytes(content)
        assert open_log(path).format == name


def test_a_format_knows_its_files_by_what_is_in_them_not_by_their_name(tally, write, header, batch, tmp_path):
    assert open_log(write(batch(1), name="tally.txt")).header.backend == header["backend"]
    other = tmp_path / "rewind.jsonl"
    other.write_text("TALLY\n5\n")
    assert open_log(other).header.backend == "tally"


def test_errors_and_the_look_into_a_folder_know_a_new_format(tally, tmp_path):
    with pytest.raises(LogError, match=r"rewind_jsonl, .*tally .*rewind\.jsonl or rewind\.jsonl\.1 or .*tally\.txt"):
        open_log(tmp_path / "none")
    # given: two runs as one format names them, and a file of another format
    for name in ("tally.txt", "rewind.jsonl.1", "rewind.jsonl"):
        (tmp_path / name).write_text("TALLY\n5\n")
    # then: the other file is no third run
    assert find_logs(tmp_path).paths == (str(tmp_path / "rewind.jsonl"), str(tmp_path / "rewind.jsonl.1"))


def test_of_formats_in_one_folder_the_first_is_read_under_usual_names_and_others(tmp_path):
    # given: JSONL goes before CSV
    (tmp_path / "mine.csv").write_text("step,loss\n1,1.5\n")
    (tmp_path / "mine.jsonl").write_text('{"step": 1, "loss": 1.5}\n')
    usual = tmp_path / "usual"
    usual.mkdir()
    for name in ("csv", "jsonl"):
        (usual / f"metrics.{name}").write_bytes((tmp_path / f"mine.{name}").read_bytes())
    # then
    assert open_log(tmp_path).path == str(tmp_path / "mine.jsonl")
    assert open_log(usual).path == str(usual / "metrics.jsonl")


def test_asking_the_formats_loads_neither_arrays_nor_a_database_nor_a_reader(write, batch):
    code = (
        "import sys; from pathlib import Path; from trimtab.log import foreign; path = Path(sys.argv[1]); "
        "assert foreign.file_names() and foreign.format_of(path, foreign.read_head(path)); "
        "readers = [name for name in sys.modules if name.endswith(('.reader', '.source', '.records', '.frames'))]; "
        "print('numpy' in sys.modules, 'duckdb' in sys.modules, [name for name in readers if 'foreign' in name])"
    )
    path = str(write(batch(1)))
    said = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True).stdout
    assert said == "False False []\n"
