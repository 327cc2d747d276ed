"""Reads `rewind.jsonl`: every line is read as it stands, or left out and counted."""

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trimtab.log.foreign.line_blocks as module
from trimtab.errors import LogError
from trimtab.log.columns import RowColumns
from trimtab.log.foreign.rewind_jsonl import lines as rewind_lines
from trimtab.log.foreign.rewind_jsonl import open_source, recognises
from trimtab.log.foreign.rewind_jsonl.parked import ParkedRows
from trimtab.log.reader import open_log


def read(path):
    log = open_source(path)
    return RowColumns.concat(log.row_blocks()), log.notices()


def test_a_micro_batch_becomes_a_record_a_row(write, batch):
    # given
    path = write(batch(1, [5, 6], [2.0, 0.5], [10, 20]), batch(1, [7], [4.0], [3], micro=1))
    # when
    rows, notices = read(path)
    # then
    assert rows.step.tolist() == [1, 1, 1]
    assert rows.micro.tolist() == [0, 0, 1]
    assert rows.row.tolist() == [5, 6, 7]
    assert rows.loss_sum.tolist() == [20.0, 10.0, 12.0]
    assert rows.num_tokens.tolist() == [10, 20, 3]
    assert set(rows.attempt.tolist()) == {1}
    assert notices == []


def test_the_header_is_taken_over(write, batch):
    header = open_source(write(batch(1))).header
    assert (header.backend, header.task, header.num_rows, header.batch_size) == ("transformers", "sft", 1000, 4)
    assert (header.accumulation, header.dataset_fingerprint, header.created) == (2, "f" * 64, 12.5)
    assert header.run_id is None


def test_a_header_of_strange_types_knows_nothing_and_breaks_nothing(write, header, batch):
    strange = {key: ["\x1b[31m"] for key in header} | {"kind": "header", "version": 1, "n_rows": -1, "created": True}
    assert open_source(write(batch(1), header=strange)).header.backend == "unknown"


@pytest.mark.parametrize("version", [2, "1", None, True, 1.5])
def test_a_header_of_another_version_is_an_error(write, header, batch, version):
    with pytest.raises(LogError, match="version"):
        open_source(write(batch(1), header={**header, "version": version}))


def test_a_missing_header_is_said(write, batch):
    rows, notices = read(write(batch(1), header=None))
    assert rows.num_records == 1
    assert any("no header" in notice for notice in notices)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"hello\n", b'{"loss": 1}\n', b"\x00" * 100, b"\xff\xfe\n"])
def test_a_file_that_is_no_rewind_log_is_not_recognised(tmp_path, content):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    assert not recognises(path, content)


@pytest.mark.parametrize("before", ["", "\ufeff", "hello\n", "\n" * 5_000], ids=["nothing", "mark", "junk", "blanks"])
def test_a_file_is_recognised_by_its_first_record_whatever_stands_before_it(write, header, batch, before):
    for line in (header, batch(1)):
        path = write(before + json.dumps(line), header=None)
        assert recognises(path, path.read_bytes()[:4096])


def test_a_usual_file_is_recognised_by_its_head_alone(tmp_path, batch):
    assert recognises(tmp_path / "gone", json.dumps(batch(1)).encode() + b"\n")


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(LogError, match="No such file"):
        open_source(tmp_path / "none.jsonl")


def test_a_header_alone_has_no_records(write):
    rows, notices = read(write())
    assert (rows.num_records, notices) == (0, [])


def test_null_is_not_finite_where_tokens_are_and_nothing_where_none_are(write, batch):
    rows, _ = read(write(batch(1, [1, 2, 3], [None, None, 7.0], [5, 0, 0])))
    assert math.isnan(rows.loss_sum[0])
    assert rows.loss_sum[1:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ('"nan"', "nan"),
        ('"inf"', "inf"),
        ('"-inf"', "-inf"),
        ("NaN", "nan"),
        ("Infinity", "inf"),
        ("-Infinity", "-inf"),
    ],
)
def test_every_spelling_of_a_value_that_is_not_finite_keeps_its_kind(write, spelling, expected):
    line = f'{{"kind":"batch","step":1,"micro":0,"rows":[1,2],"row_loss":[{spelling},1.5],"row_tokens":[10,10]}}'
    rows, notices = read(write(line))
    assert str(float(rows.loss_sum[0])) == expected
    assert rows.loss_sum[1] == 15.0
    assert notices == []


def line_of(step="2", micro="0", rows="[1]", losses="[1.0]", tokens="[10]"):
    """A micro-batch line, its values as they would stand in the file."""
    fields = f'"step":{step},"micro":{micro},"rows":{rows},"row_loss":{losses},"row_tokens":{tokens}'
    return f'{{"kind":"batch",{fields}}}'


BAD = {
    "step as a text": line_of(step='"2"'),
    "step as a list": line_of(step="[2]"),
    "step as a fraction": line_of(step="2.5"),
    "step as null": line_of(step="null"),
    "step beyond int64": line_of(step=str(2**63)),
    "no step": line_of().replace('"step":2,', ""),
    "micro as a truth": line_of(micro="true"),
    "micro below 0": line_of(micro="-1"),
    "row as a fraction": line_of(rows="[1.5]"),
    "row beyond int64": line_of(rows=f"[{2**63}]"),
    "tokens as null": line_of(tokens="[null]"),
    "tokens below 0": line_of(tokens="[-3]"),
    "tokens as a fraction": line_of(tokens="[3.0]"),
    "loss as a text": line_of(losses='["1.0"]'),
    "loss as a list": line_of(losses="[[1.0]]"),
    "loss as a truth": line_of(losses="[true]"),
    "loss beyond float64": line_of(losses=f"[1{'0' * 400}]"),
    "more losses than rows": line_of(losses="[1.0,2.0]"),
    "more losses and tokens than rows": line_of(losses="[1.0,2.0]", tokens="[10,10]"),
    "fewer tokens than rows": line_of(rows="[1,2]", losses="[1.0,2.0]"),
    "rows as an object": line_of(rows="{}"),
    "a list": "[1]",
    "a number": "17",
    "another kind": '{"kind":"event","step":2}',
    "no JSON": '{"kind":"batch","step":2,',
    "a leading zero": line_of(step="02"),
    "a missing comma": line_of(rows="[1 2]", losses="[1.0,2.0]", tokens="[10,10]"),
    "half a null": line_of(losses="[nul]"),
    "a deep nest": "[" * 100_000,
    "a NUL": line_of() + "\x00",
    "no UTF-8": line_of()[:-1].encode() + b',"x":"\xff"}',
    "more digits than Python reads": line_of(step="1" * 5_000),
}


@pytest.mark.parametrize("line", BAD.values(), ids=BAD.keys())
def test_a_line_that_is_not_well_formed_is_left_out_and_named(write, batch, line):
    # given: it stands between good lines
    rows, notices = read(write(batch(1), line, batch(3)))
    assert rows.step.tolist() == [1, 3]
    (notice,) = notices
    assert notice.startswith("1 line ")
    assert notice.endswith("left out (line 3)")


def test_many_bad_lines_are_counted_and_the_first_named(write, batch):
    rows, notices = read(write(batch(1), *["nonsense"] * 9, batch(2), "[1]"))
    assert rows.step.tolist() == [1, 2]
    assert notices == [
        "9 lines not JSON were left out (lines 3, 4, 5, 6, 7, ...)",
        "1 line not an object was left out (line 13)",
    ]


def test_a_torn_last_line_is_told_apart(write, batch):
    rows, notices = read(write(batch(1), '{"kind":"batch","st', end=b""))
    assert rows.step.tolist() == [1]
    assert notices == ["the last line (3) has no line end and was left out: it may be torn"]


def test_a_last_line_without_an_end_is_left_out_though_it_is_whole(write, batch):
    rows, notices = read(write(batch(1), batch(2), end=b""))
    assert rows.step.tolist() == [1]
    assert notices == ["the last line (3) has no line end and was left out: it may be torn"]


def test_a_step_that_is_a_whole_float_is_a_step_as_in_any_other_log(write, batch):
    rows, notices = read(write(batch(30), batch(31.0), batch(32)))
    assert (rows.step.tolist(), notices) == ([30, 31, 32], [])


def test_a_header_of_another_dataset_begins_a_run_of_its_own(write, header, batch):
    # given: the second run is resumed, with its header again
    other = {**header, "dataset_fingerprint": "e" * 64, "created": 99.0}
    steps = [batch(step) for step in range(1, 5)]
    log = open_source(write(*steps, other, *steps, other, *steps[2:]))
    # then: before anything was read, and after it
    assert log.restarts() == (2,)
    rows = RowColumns.concat(log.row_blocks())
    assert rows.attempt.tolist() == [1] * 4 + [2] * 4 + [3] * 2
    assert log.notices() == [
        "2 runs in one file, each judged by itself: a header names another dataset (line 6)",
        "the file holds 3 attempts: the run was resumed or started again in it",
    ]


@pytest.mark.parametrize("fingerprint", ["f" * 64, None, 5])
def test_a_header_of_the_same_dataset_or_of_none_begins_an_attempt(write, header, batch, fingerprint):
    log = open_source(write(batch(1), {**header, "dataset_fingerprint": fingerprint}, batch(1)))
    assert log.restarts() == ()
    assert any("2 attempts" in notice for notice in log.notices())


GOOD = {
    "other keys": {"rank": 3, "text": "\u202e[bold]x"},
    "a long row number": {"rows": [9223372036854775807], "row_loss": [1.0], "row_tokens": [10]},
    "a negative row number": {"rows": [-9223372036854775808], "row_loss": [1.0], "row_tokens": [10]},
    "a whole number as loss": {"row_loss": [1]},
    "a small loss": {"row_loss": [1e-300]},
}


@pytest.mark.parametrize("extra", GOOD.values(), ids=GOOD.keys())
def test_an_odd_line_that_is_well_formed_is_read_in_its_place(write, batch, extra):
    rows, notices = read(write(batch(1), {**batch(2), **extra}, batch(3)))
    assert rows.step.tolist() == [1, 2, 3]
    assert rows.row[1] == extra.get("rows", [1])[0]
    assert notices == []


@pytest.mark.parametrize("step", [0, -5, 2**63 - 1, -(2**63)])
def test_any_int64_is_a_step(write, batch, step):
    rows, _ = read(write(batch(step)))
    assert rows.step.tolist() == [step]


@pytest.mark.parametrize(
    "spelling",
    [
        lambda line: json.dumps(line, separators=(",", ":")),
        lambda line: json.dumps(line, sort_keys=True),
        lambda line: json.dumps(line) + "\r",
        lambda line: "  " + json.dumps(line, indent=None),
        lambda line: "\ufeff" + json.dumps(line),
    ],
    ids=["compact", "sorted keys", "carriage return", "indented", "byte order mark"],
)
def test_the_layout_of_a_line_does_not_matter(write, header, batch, spelling):
    lines = [spelling(header), *(spelling(batch(step)).removeprefix("\ufeff") for step in (1, 2))]
    rows, notices = read(write(*lines, header=None))
    assert (rows.step.tolist(), notices) == ([1, 2], [])


def test_blank_lines_are_nothing(write, batch):
    rows, notices = read(write("", batch(1), "   ", batch(2), ""))
    assert (rows.step.tolist(), notices) == ([1, 2], [])


def test_a_line_of_no_rows_is_left_out_and_counted(write, batch):
    rows, notices = read(write(batch(1, []), batch(2)))
    assert rows.step.tolist() == [2]
    assert notices == ["1 line of a micro-batch without rows was left out (line 2)"]


def test_fields_of_the_header_that_are_not_what_is_meant_there_are_not_known_and_said(write, header, batch):
    odd = {**header, "created": "2026-01-01T00:00:00", "n_rows": -3, "task": None, "backend": 5, "later": "x"}
    log = open_source(write(batch(1), header=odd))
    assert (log.header.created, log.header.num_rows, log.header.backend) == (0.0, None, "unknown")
    assert log.notices()[0] == (
        "the header's backend, created, n_rows cannot be what is meant there: taken as not known"
    )
    assert open_source(write(batch(1))).notices() == []


def test_line_numbers_hold_across_blocks(write, batch, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 1_000)
    lines = [batch(step) for step in range(1, 101)]
    lines[70] = "nonsense"
    rows, notices = read(write(*lines))
    assert rows.num_records == 99
    assert notices == ["1 line not JSON was left out (line 72)"]


def test_a_line_that_is_too_long_is_left_out_without_being_held(write, batch, monkeypatch):
    # given: in place of 16 MB, 2,000 bytes
    monkeypatch.setattr(module, "BLOCK_BYTES", 256)
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 2_000)
    long = {**batch(2), "text": "x" * 9_000}
    rows, notices = read(write(batch(1), long, batch(3), "[1]"))
    assert rows.step.tolist() == [1, 3]
    assert [notice[-8:] for notice in notices] == ["(line 3)", "(line 5)"]


def test_a_first_line_of_any_length_up_to_the_bound_is_recognised(write, batch, monkeypatch):
    # given: in place of 4 and 16 MB, 256 and 4,000 bytes; no header
    monkeypatch.setattr(module, "BLOCK_BYTES", 256)
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 4_000)
    rows, _ = read(write(batch(1, list(range(300)), [1] * 300, [1] * 300), batch(2), header=None))
    assert rows.num_records == 301
    # then: one beyond it is left out, and the next is the first
    rows, notices = read(write(batch(1, list(range(2_000))), batch(2), header=None))
    assert rows.step.tolist() == [2]
    assert any("longer than" in notice for notice in notices)


def test_a_first_line_of_400_000_rows_is_read_without_a_header(write, batch):
    rows, _ = read(write(batch(1, list(range(400_000))), header=None))
    assert rows.num_records == 400_000


def test_a_large_file_of_another_kind_is_not_read_to_its_end(tmp_path, monkeypatch):
    # given: in place of 4 MB, 1,000 bytes
    monkeypatch.setattr(rewind_lines, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(module, "BLOCK_BYTES", 1_000)
    read_lines = []
    monkeypatch.setattr(rewind_lines.json, "loads", lambda line: read_lines.append(line) or 1)
    path = tmp_path / "metrics.csv"
    path.write_text("1,2.5\n" * 100_000)
    assert not recognises(path, b"1,2.5\n" * 100)
    assert len(read_lines) < 1_000


# ---------------------------------------------------------------------------------------------- passes


def test_every_pass_gives_the_same_records(write, batch, monkeypatch):
    # given: several blocks, and what parking must not lose
    monkeypatch.setattr(module, "BLOCK_BYTES", 2_000)
    random.seed(3)
    lines = [
        batch(
            step,
            [random.choice([3, -(2**40), 2**62]) for _ in range(4)],
            [random.choice([None, 1.5, 2e200]) for _ in range(4)],
            [random.choice([0, 7, 70_000]) for _ in range(4)],
        )
        for step in range(1, 200)
    ]
    log = open_source(write(*lines))
    # when
    passes = [RowColumns.concat(log.row_blocks()) for _ in range(3)]
    # then
    for again in passes[1:]:
        for column, first in zip(again, passes[0], strict=True):
            np.testing.assert_array_equal(column, first)
            assert column.dtype == first.dtype


def test_a_pass_that_was_left_early_spoils_nothing(write, batch):
    log = open_source(write(*(batch(step) for step in range(1, 50))))
    next(log.row_blocks())
    assert RowColumns.concat(log.row_blocks()).num_records == 49
    assert RowColumns.concat(log.row_blocks()).num_records == 49


def test_a_disk_without_room_only_costs_time(write, batch, monkeypatch):
    # given
    def no_room(self, block):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ParkedRows, "park", no_room)
    log = open_source(write(batch(1), "nonsense", batch(2)))
    # then
    for _ in range(2):
        assert RowColumns.concat(log.row_blocks()).step.tolist() == [1, 2]
        assert len(log.notices()) == 1


@pytest.mark.parametrize("first_pass", [True, False])
def test_blocks_outside_the_steps_of_interest_are_left_out(write, batch, monkeypatch, first_pass):
    monkeypatch.setattr(module, "BLOCK_BYTES", 2_000)
    log = open_source(write(*(batch(step) for step in range(1, 201))))
    if not first_pass:
        list(log.row_blocks())
    steps = RowColumns.concat(log.row_blocks(first_step=90, last_step=95)).step
    assert {90, 91, 92, 93, 94, 95} <= set(steps.tolist())
    assert steps.size < 60


def test_progress_ends_at_the_size_of_the_file(write, batch):
    log = open_source(write(batch(1)))
    for _ in range(2):
        seen = []
        list(log.row_blocks(progress=seen.append))
        assert seen[-1] == log.size_bytes


def test_the_tables_of_the_log_are_there(write, batch):
    log = open_log(write(batch(1, [5, 6]), batch(2)))
    assert log.rows().numpy()["row"].tolist() == [5, 6, 1]
    assert len(log.events().numpy()["kind"]) == 0


def test_a_loss_keeps_its_digits_in_every_form_of_the_table(write, batch):
    # given: a mean that float32 does not hold
    rows = open_log(write(batch(1, [5], [1.1], [1]))).rows()
    # then
    assert rows.numpy()["loss_sum"].tolist() == [1.1]
    assert rows.native.project("loss_sum").fetchall() == [(1.1,)]
    assert [str(rows.native.types[rows.columns.index(name)]) for name in ("loss_sum", "num_tokens")] == [
        "DOUBLE",
        "BIGINT",
    ]


numbers = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False, width=64), st.integers(-5, 5))


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(-(2**63), 2**63 - 1), numbers, st.integers(0, 2**31 - 1)), min_size=1, max_size=4
        ),
        min_size=1,
        max_size=6,
    )
)
def test_what_json_reads_is_what_is_read(tmp_path_factory, batches):
    # given: the two halves, the pattern and the typing one by one, must agree with json
    path = tmp_path_factory.mktemp("log") / "rewind.jsonl"
    lines = [
        {
            "kind": "batch",
            "step": step,
            "micro": 0,
            "rows": [row for row, _, _ in entries],
            "row_loss": [loss for _, loss, _ in entries],
            "row_tokens": [tokens for _, _, tokens in entries],
        }
        for step, entries in enumerate(batches)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    # when
    rows, _ = read(path)
    # then
    flat = [entry for entries in batches for entry in entries]
    assert rows.row.tolist() == [row for row, _, _ in flat]
    assert rows.num_tokens.tolist() == [tokens for _, _, tokens in flat]
    for loss_sum, (_, loss, tokens) in zip(rows.loss_sum.tolist(), flat, strict=True):
        if not tokens:
            assert loss_sum == 0.0
        elif loss is None:
            assert math.isnan(loss_sum)
        else:
            assert loss_sum == float(loss) * tokens
