"""From a log of ours to a `rewind.jsonl`, and back to a run folder: what both formats hold comes through."""

import io
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trimtab.conversion.to_rewind as module
import trimtab.conversion.to_runs as copy_module
from trimtab.conversion.to_rewind import write_rewind
from trimtab.conversion.to_runs import copy_to_runs
from trimtab.errors import LogError
from trimtab.log.columns import RowColumns
from trimtab.log.folder import continue_run, create_run
from trimtab.log.reader import open_log
from trimtab.recorder import Recorder
from trimtab.values import VERDICT_REASONS, Event, MicroBatch, RowIds, RunHeader, StepRow


def micro(step, micro, rows, losses, tokens, **more):
    return MicroBatch(step, micro, np.array(rows, np.int64), np.array(losses, np.float32), np.array(tokens), **more)


@pytest.fixture
def record(tmp_path):
    """Records attempts of a run (each a dict of rank to items) and gives its folder."""

    def make(*attempts, out="out", **header):
        header = RunHeader(run_id="run", backend="torch", **header)
        for number, ranks in enumerate(attempts, start=1):
            below = tmp_path / out
            folder = create_run(below, header) if number == 1 else continue_run(below, "run", header)
            for rank, items in ranks.items():
                recorder = Recorder(folder, rank=rank)
                for item in items:
                    recorder.put(item)
                recorder.close(30)
        return folder.path

    return make


def lines_of(folder):
    file = io.BytesIO()
    written = write_rewind(open_log(folder), file)
    return [json.loads(line) for line in file.getvalue().splitlines()], written


def to_jsonl(folder, path):
    with path.open("wb") as file:
        return write_rewind(open_log(folder), file)


def records(path):
    """What both formats hold, record by record, in the order of step and micro-batch."""
    rows = RowColumns.concat(open_log(path).row_blocks())
    order = np.lexsort((rows.rank, rows.micro, rows.step, rows.attempt))
    rows = rows.take(order)
    sums = np.where(rows.num_tokens > 0, rows.loss_sum, 0).astype(np.float32)
    kinds = np.where(np.isfinite(sums), sums, np.nan)
    return [
        (*whole, "nan" if math.isnan(loss) else loss)
        for *whole, loss in zip(
            rows.attempt.tolist(), rows.step.tolist(), rows.micro.tolist(), rows.row.tolist(),
            rows.num_tokens.tolist(), kinds.tolist(), strict=True,
        )
    ]  # fmt: skip


def test_a_micro_batch_is_a_line_and_the_header_comes_first(record):
    # given
    items = [micro(1, 0, [5, 6], [20.0, 10.0], [10, 20]), micro(1, 1, [7], [0.0], [0])]
    folder = record(
        {0: items}, task="sft", num_rows=9, batch_size=2, accumulation=2, dataset_fingerprint="f" * 8, created=12.5
    )
    # when
    lines, written = lines_of(folder)
    # then
    assert lines == [
        {
            "kind": "header",
            "version": 1,
            "backend": "torch",
            "task": "sft",
            "n_rows": 9,
            "batch_size": 2,
            "grad_accum": 2,
            "dataset_fingerprint": "f" * 8,
            "created": 12.5,
        },
        {"kind": "batch", "step": 1, "micro": 0, "rows": [5, 6], "row_loss": [2.0, 0.5], "row_tokens": [10, 20]},
        {"kind": "batch", "step": 1, "micro": 1, "rows": [7], "row_loss": [None], "row_tokens": [0]},
    ]
    assert written == (1, 2, 3, [])


def test_losses_that_are_not_finite_are_null_and_infinite_ones_are_counted(record):
    lines, written = lines_of(
        record({0: [micro(1, 0, [1, 2, 3, 4], [math.nan, math.inf, -math.inf, math.inf], [1, 1, 1, 0])]})
    )
    assert lines[1]["row_loss"] == [None, None, None, None]
    assert written.notices == ["2 infinite losses are null, as NaN is: which of them was infinite is not kept"]


def test_the_ranks_of_a_micro_batch_stand_in_one_line(record):
    # given
    ranks = {
        rank: [micro(step, part, [10 * rank + step], [1.0], [1 + rank]) for step in (1, 2) for part in (0, 1)]
        for rank in (0, 1)
    }
    # when
    lines, written = lines_of(record(ranks, world_size=2, batch_size=1))
    # then
    assert [(line["step"], line["micro"], line["rows"], line["row_tokens"]) for line in lines[1:]] == [
        (1, 0, [1, 11], [1, 2]),
        (1, 1, [1, 11], [1, 2]),
        (2, 0, [2, 12], [1, 2]),
        (2, 1, [2, 12], [1, 2]),
    ]
    assert lines[0]["batch_size"] == 2
    assert any("the rows of 2 ranks stand in one line" in notice for notice in written.notices)


def test_each_attempt_begins_with_a_header_and_is_read_back_as_one(record, tmp_path):
    # given: the second attempt goes back, the third only on
    attempts = [{0: [micro(step, 0, [step], [1.0], [1]) for step in steps]} for steps in ((1, 2, 3), (2, 3), (4, 5))]
    folder = record(*attempts)
    # when
    lines, written = lines_of(folder)
    to_jsonl(folder, tmp_path / "r.jsonl")
    # then
    assert [line.get("step", "header") for line in lines] == ["header", 1, 2, 3, "header", 2, 3, "header", 4, 5]
    assert written.num_attempts == 3
    assert records(tmp_path / "r.jsonl") == records(folder)


def test_what_the_format_cannot_hold_is_counted(record):
    normal, spike = VERDICT_REASONS.index("normal"), VERDICT_REASONS.index("spike")
    items = [
        micro(1, 0, [1, 2], [1.0, 1.0], [1, 1], reason=normal),
        micro(2, 0, [3], [9.0], [1], reason=spike, keep=False),
        micro(3, 0, [4], [9.0], [1]),
        StepRow(1, 1.0, 1.0, 1e-3),
        Event("evaluation", 3, 0.0, {"loss": 1.0}),
        Event("resume", 3, 1.0),
        RowIds(np.array([1, 2]), table_rows=np.array([7, 8])),
    ]
    assert lines_of(record({0: items}))[1].notices == [
        "2 verdicts of the guard on micro-batches are not kept",
        "1 micro-batch that the guard left out of the update stands among the others",
        "1 step record (loss, gradient norm, learning rate) is not kept",
        "2 events are not kept",
        "2 rows have ids (table row, digest, name), which are not kept",
    ]


def test_what_several_ranks_lose_together_is_counted_as_the_lines_are(record):
    # given two ranks with one verdict, of which one rank alone left a micro-batch out
    spike = VERDICT_REASONS.index("spike")
    ranks = {
        rank: [micro(step, 0, [10 * rank + step], [1.0], [1], reason=spike, keep=step > 1 - rank) for step in (1, 2, 3)]
        for rank in (0, 1)
    }
    written = lines_of(record(ranks, world_size=2))[1]
    assert written.num_micro_batches == 3
    assert written.notices[1:] == [
        "3 verdicts of the guard on micro-batches are not kept",
        "1 micro-batch that the guard left out of the update stands among the others",
    ]


def test_what_is_lost_once_is_told_as_one(record):
    left_out = micro(2, 0, [3], [9.0], [1], reason=VERDICT_REASONS.index("spike"), keep=False)
    items = [left_out, Event("resume", 3, 1.0), RowIds(np.array([1]), table_rows=np.array([7]))]
    assert lines_of(record({0: items}))[1].notices == [
        "1 verdict of the guard on micro-batches is not kept",
        "1 micro-batch that the guard left out of the update stands among the others",
        "1 event is not kept",
        "1 row has ids (table row, digest, name), which are not kept",
    ]


def test_a_row_without_tokens_has_no_loss_after_a_way_there_and_back(tmp_path):
    # given: null is no loss; 0.0 of no tokens is none either
    batch = {"kind": "batch", "step": 1, "micro": 0, "rows": [5, 6, 7, 8]}
    lines = [
        {"kind": "header", "version": 1},
        {**batch, "row_loss": [None, 0.0, 1.5, None], "row_tokens": [0, 0, 4, 2]},
    ]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "out").mkdir()
    # when
    there = copy_to_runs(open_log(tmp_path / "r.jsonl"), tmp_path / "out", version="1")
    back, written = lines_of(there.paths[0])
    # then: the mark of the conversion is no event of the run
    assert back[1] == {**batch, "row_loss": [None, None, 1.5, None], "row_tokens": [0, 0, 4, 2]}
    assert written.notices == []


def test_a_run_without_rows_is_no_rewind_log(record):
    with pytest.raises(LogError, match="holds no rows"):
        write_rewind(open_log(record({0: [StepRow(1, 1.0, 1.0, 1e-3)]})), io.BytesIO())


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_windows_of_any_size_give_the_same_lines(record, monkeypatch, window):
    rng = np.random.default_rng(1)
    ranks = {
        rank: [
            micro(step, part, rng.integers(0, 99, size), rng.random(size) * 9, rng.integers(0, 9, size))
            for step in range(1, 30)
            for part, size in enumerate(rng.integers(1, 5, 2))
        ]
        for rank in (0, 1)
    }
    folder = record(ranks, {0: ranks[0][20:]}, world_size=2)
    expected = lines_of(folder)
    monkeypatch.setattr(module, "WINDOW_RECORDS", window)
    assert lines_of(folder) == expected


def test_a_micro_batch_too_large_for_a_line_goes_on_in_the_next(record, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MAX_LINE_ROWS", 3)
    folder = record({0: [micro(1, 0, range(7), [1.0] * 7, [1] * 7), micro(2, 0, [9], [1.0], [1])]})
    lines, written = lines_of(folder)
    assert [line["rows"] for line in lines[1:]] == [[0, 1, 2], [3, 4, 5], [6], [9]]
    assert written.num_micro_batches == 4
    to_jsonl(folder, tmp_path / "r.jsonl")
    assert records(tmp_path / "r.jsonl") == records(folder)


LOSSES = st.floats(width=32, allow_nan=True, allow_infinity=True)
BATCHES = st.lists(
    st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), LOSSES, st.one_of(st.just(0), st.integers(1, 2**31 - 1))),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=20)
@given(batches=BATCHES, per_step=st.integers(1, 3), block=st.sampled_from([2, 5, 1000]))
def test_a_run_goes_to_a_rewind_log_and_back_and_holds_the_same(tmp_path_factory, batches, per_step, block):
    # given
    base = tmp_path_factory.mktemp("trip")
    folder = create_run(base, RunHeader(run_id="run", backend="torch", created=5.0))
    items = []
    for index, batch in enumerate(batches):
        rows, losses, tokens = zip(*batch, strict=True)
        items.append(micro(1 + index // per_step, index % per_step, rows, losses, tokens))
    recorder = Recorder(folder, seal_bytes=None)
    for item in items:
        recorder.put(item)
    recorder.close(30)
    # when
    to_jsonl(folder.path, base / "r.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_module, "BLOCK_RECORDS", block)
        (base / "back").mkdir()
        back = copy_to_runs(open_log(base / "r.jsonl"), base / "back", version="1")
    # then
    expected = records(folder.path)
    assert records(base / "r.jsonl") == expected
    assert records(back.paths[0]) == expected
    assert back.num_rows == len(expected)
    assert back.num_micro_batches == len(batches)
    assert open_log(back.paths[0]).notices() == []
