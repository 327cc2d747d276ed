"""Tables for users: the same values in every form, with the columns and types of FORMAT.md."""

import builtins
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import trimtab.log
from trimtab.errors import MissingExtraError
from trimtab.log import records
from trimtab.log.blocks import encode_events
from trimtab.log.folder import create_run
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import journal_name
from trimtab.log.reader import Log, open_log
from trimtab.values import Event, MicroBatch, RunHeader, StepRow


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Step 1 as usual, step 2 not finite, step 3 without tokens and without a step record."""
    folder = create_run(tmp_path, RunHeader(run_id="a", backend="torch"))
    writer = JournalWriter(folder.path / journal_name(0))
    micros = [
        MicroBatch(1, 0, [17, 2**62], [45.0, 2700.0], [50, 300], reason=7),
        MicroBatch(2, 0, [3, 4], [math.nan, 1.0], [1, 1], reason=6, keep=False),
        MicroBatch(3, 1, [5], [9.0], [0], reason=1),
    ]
    steps = [StepRow(1, 7.8, 1.5, 1e-3, 0, True, None, 0.25), StepRow(2, math.nan, None, None, 3)]
    for block in (
        *records.row_blocks(micros)[0],
        *records.step_blocks(steps)[0],
        *records.event_blocks([Event("a", 2, 5.0, {"x": "y"})])[0],
    ):
        writer.append(block)
    writer.close()
    return open_log(folder.path)


def documented(title: str) -> dict[str, tuple[str, str]]:
    """Column -> (numpy type, DuckDB type) from the tables of FORMAT.md."""
    page = Path(trimtab.log.__file__).with_name("FORMAT.md").read_text()
    section = page.split(f"### `Log.{title}()`")[1].split("###")[0]
    return {name: (numpy, sql) for name, numpy, sql in re.findall(r"\| `(\w+)` \| (\w+) \| ([A-Z]+) \|", section)}


@pytest.mark.parametrize("title", ["rows", "steps", "events"])
def test_columns_and_types_are_those_of_the_format_page(log: Log, title: str) -> None:
    table = getattr(log, title)()

    relation = table.native
    assert dict(zip(relation.columns, map(str, relation.types), strict=True)) == {
        name: sql for name, (_, sql) in documented(title).items()
    }
    assert {name: array.dtype.name for name, array in table.numpy().items()} == {
        name: numpy for name, (numpy, _) in documented(title).items()
    }
    assert table.columns == tuple(documented(title))


def test_rows_have_their_verdict_in_words(log: Log) -> None:
    assert log.rows().native.project("step, micro, rank, row, loss_sum, num_tokens, finite, verdict").fetchall()[
        :3:2
    ] == [
        (1, 0, 0, 17, 45.0, 50, True, "normal"),
        (2, 0, 0, 3, pytest.approx(math.nan, nan_ok=True), 1, False, "spike"),
    ]
    arrays = log.rows().numpy()
    assert arrays["row"].tolist() == [17, 2**62, 3, 4, 5]
    assert arrays["verdict"].tolist() == ["normal", "normal", "spike", "spike", "no_tokens"]
    assert arrays["finite"].tolist() == [True, True, False, True, True]


def test_what_is_missing_in_steps_is_null_in_sql_and_not_a_number_stays_one(log: Log) -> None:
    found = log.steps().native.fetchall()

    assert found[0] == (1, 1, pytest.approx(2745 / 350), 350, True, 1.5, True, 1e-3, True, "stepped", 0.25)
    assert math.isnan(found[1][2])
    assert found[1][4:] == (False, None, None, None, False, "nonfinite_norm", None)
    assert found[2] == (1, 3, None, 0, True, None, None, None, None, None, None)


def test_what_is_missing_in_numpy_is_nan_or_minus_one_or_no_text(log: Log) -> None:
    steps = log.steps().numpy()

    assert np.isnan(steps["loss"]).tolist() == [False, True, True]
    assert np.isnan(steps["grad_norm"]).tolist() == [False, True, True]
    assert steps["clipped"].tolist() == [1, -1, -1]
    assert steps["stepped"].tolist() == [1, 0, -1]
    assert steps["reason"].tolist() == ["stepped", "nonfinite_norm", ""]


def test_every_form_has_the_same_rows(log: Log) -> None:
    table = log.rows()
    expected = [17, 2**62, 3, 4, 5]

    assert table.pandas()["row"].tolist() == expected
    assert table.polars()["row"].to_list() == expected
    assert table.arrow()["row"].to_pylist() == expected
    assert table.lazy.collect()["row"].to_list() == expected
    assert table.native.filter("verdict = 'spike' and not finite").project("row").fetchall() == [(3,)]
    assert log.events().native.fetchall() == [(2, 5.0, "a", '{"x": "y"}')]


@pytest.mark.parametrize("title", ["rows", "steps", "events"])
def test_a_log_of_nothing_has_its_columns(tmp_path: Path, title: str) -> None:
    table = getattr(open_log(create_run(tmp_path, RunHeader(run_id="a", backend="torch")).path), title)()

    assert table.native.fetchall() == []
    assert dict(zip(table.native.columns, map(str, table.native.types), strict=True)) == {
        name: sql for name, (_, sql) in documented(title).items()
    }
    assert {name: array.size for name, array in table.numpy().items()} == dict.fromkeys(documented(title), 0)


@pytest.mark.parametrize(
    ("missing", "form", "command"),
    [
        ("pandas", "pandas", "pip install pandas"),
        ("polars", "polars", "pip install polars pyarrow"),
        ("pyarrow", "polars", "pip install polars pyarrow"),
        ("pyarrow", "arrow", "pip install pyarrow"),
    ],
)
def test_a_missing_package_is_named_with_its_command(
    log: Log, monkeypatch: pytest.MonkeyPatch, missing: str, form: str, command: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(MissingExtraError, match=rf"Table\.{form}\(\) needs the package {missing}.*{command}$"):
        getattr(log.steps(), form)()


def test_opening_and_reading_a_log_loads_no_database(log: Log) -> None:
    code = (
        "import sys; from trimtab.log.reader import open_log; log = open_log(sys.argv[1]); "
        "log.rows().numpy(); log.steps().numpy(); print('duckdb' in sys.modules, 'narwhals' in sys.modules)"
    )

    said = subprocess.run([sys.executable, "-c", code, log.path], capture_output=True, text=True, check=True).stdout

    assert said == "False False\n"


def test_a_relation_outlives_its_table(log: Log) -> None:
    relation = log.rows().native

    assert relation.aggregate("count(*)").fetchall() == [(5,)]


def test_a_table_shows_its_columns(log: Log) -> None:
    assert builtins.repr(log.events()) == "Table(step, time, kind, facts)"


def test_an_event_whose_kind_is_no_text_elsewhere_is_shown_as_an_escape(tmp_path: Path) -> None:
    folder = create_run(tmp_path, RunHeader(run_id="a", backend="torch"))
    writer = JournalWriter(folder.path / "rank-00000.journal")
    writer.append(encode_events([Event("\ud800", 1, 1.0, {"\ud800": "\ud800"})]))
    writer.close()

    events = open_log(folder.path).events()

    assert events.native.fetchall() == [(1, 1.0, "\\ud800", '{"\\ud800": "\\ud800"}')]
    assert events.numpy()["kind"].tolist() == ["\\ud800"]
