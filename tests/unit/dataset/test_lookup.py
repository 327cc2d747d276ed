"""A row is given only from data that is proven to be the run's; everything else is withheld with the reason."""

import json

import pytest

from trimtab.dataset import describe
from trimtab.dataset.lookup import look_up
from trimtab.dataset.opening import open_data
from trimtab.spelling import row_digest
from trimtab.values import RunHeader

ROWS = [{"text": f"row {row}"} for row in range(10)]


def header_of(dataset, **fields):
    facts = describe(dataset)
    known = {"num_rows": facts.num_rows, "dataset_fingerprint": facts.fingerprint}
    paths = dict(zip(("dataset_files", "dataset_index_files", "dataset_columns"), facts.files, strict=True))
    return RunHeader(run_id="r", backend="test", **{**known, **paths, **fields})


def looked_up(wanted, header, data=None, digests=()):
    return look_up(
        wanted,
        header=header,
        digests=lambda: {row: row_digest(ROWS[at]) for row, at in digests},
        data=open_data(data) if data is not None else None,
    )


def test_rows_of_the_run_are_given():
    found = looked_up([7, 2], header_of(ROWS), ROWS)
    assert found.rows == {7: ROWS[7], 2: ROWS[2]}
    assert (found.withheld, found.source) == (None, "a list of 10 rows")


@pytest.mark.parametrize(
    ("others", "told"),
    [
        (ROWS[:-1], "the run's dataset has 10 rows, a list of 9 rows has 9"),
        ([*ROWS[:-1], {"text": "other"}], "values, order or columns differ (its first row has the columns text)"),
        ([row["text"] for row in ROWS], "values, order or columns differ (its first row is of type str)"),
        ([dict.fromkeys("abcdefghij")] * 10, "(its first row has the columns a, b, c, d, e, f, g, h, ...)"),
        ([{"x" * 1000: 1}] * 10, f"(its first row has the columns {'x' * 40})"),
    ],
)
def test_other_rows_are_withheld_and_how_they_differ_is_said(others, told):
    found = looked_up([0], header_of(ROWS), others)
    assert found.rows == {}
    assert told in found.withheld
    # then two hashes that differ for the same rows in two containers are not compared in words
    assert "fingerprint" not in found.withheld


def test_a_dataset_of_another_length_is_not_the_runs_whatever_its_fingerprint():
    header = header_of(ROWS, num_rows=11)
    assert looked_up([0], header, ROWS).rows == {}


def test_rows_that_the_data_does_not_have_are_left_out():
    header = header_of(ROWS)
    assert looked_up([3, 10, -1], header, ROWS).rows == {3: ROWS[3]}
    assert looked_up([10], header, ROWS).withheld == "row 10 is not in a list of 10 rows: they are 0 to 9"
    assert looked_up([-1, 2**62], header, ROWS).withheld == "rows -1, ... are not in a list of 10 rows: they are 0 to 9"


def test_rows_in_memory_are_asked_for():
    assert looked_up([0], header_of(ROWS)).withheld == "the rows were only in memory; pass --data"


@pytest.mark.parametrize("data", [None, ROWS])
def test_without_a_fingerprint_and_digests_nobody_can_tell(data):
    header = header_of(iter(ROWS))
    assert looked_up([0], header, data).withheld.startswith("the log holds no fingerprint of its dataset")


def test_rows_of_a_stream_are_known_by_their_digests_wherever_they_stand():
    # given: one row that came twice under two numbers, and one that is not in the data
    header = header_of(iter(ROWS))
    far = 3 << 40
    # when
    found = looked_up([far, far + 1, 5], header, ROWS[:5], digests=[(far, 4), (far + 1, 4), (5, 9)])
    # then
    assert found.rows == {far: ROWS[4], far + 1: ROWS[4]}
    assert looked_up([5], header, ROWS[:5], digests=[(5, 9)]).withheld == (
        "no row of a list of 5 rows has the content of one of these rows"
    )
    assert looked_up([5], header, digests=[(5, 9)]).withheld == "the rows were only in memory; pass --data"


def test_a_damaged_file_is_a_reason_and_no_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:-1]) + '{"text": \n')
    found = looked_up([0], header_of(ROWS), path)
    assert "line 10 of" in found.withheld
    assert found.rows == {}


def test_files_that_a_log_names_are_opened_and_a_log_that_lies_gets_nothing(tmp_path):
    datasets = pytest.importorskip("datasets")
    # given
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    header = header_of(datasets.load_from_disk(tmp_path / "saved"))
    (path,) = header.dataset_files
    # then
    found = looked_up([4], header)
    assert (found.rows, found.source) == ({4: ROWS[4]}, path)
    # then: a fingerprint that is not the file's
    liar = RunHeader(
        run_id="r", backend="x", dataset_fingerprint="0" * 64, dataset_files=(path,), dataset_columns=("text",)
    )
    found = looked_up([4], liar)
    assert found.rows == {}
    assert found.withheld.startswith(f"{path} has as many rows as the run's dataset, but other ones: ")
    assert found.withheld.endswith("; pass --data")
    # then: no fingerprint at all
    liar = RunHeader(run_id="r", backend="x", dataset_files=(path,), dataset_columns=("text",))
    assert looked_up([4], liar).rows == {}
    # then: a file that has gone
    (tmp_path / "saved").rename(tmp_path / "moved")
    assert looked_up([4], header).withheld == f"{path} is not there; pass --data"
