"""`compare_bits`, the judge of bit-identity: on runs that differ, in each column, and on runs that do not."""

import json
import math
import random

import numpy as np
import pytest

from trimtab.analysis import compare_bits
from trimtab.analysis.difference import Lack
from trimtab.errors import LogError
from trimtab.log.folder import continue_run, create_run
from trimtab.recorder import Recorder
from trimtab.values import REASON_CODE, STEP_CODE, MicroBatch, RunHeader, StepRow

NUM_STEPS = 12
STEP_COLUMNS = ["step", "rank", "loss", "num_tokens", "grad_norm", "lr", "reason", "stepped", "clipped", "loss_scale"]
STEP_COLUMNS += ["num_skipped_micros", "num_skipped_tokens"]
ROW_COLUMNS = [f"rows.{name}" for name in ("rank", "micro", "row", "loss_sum", "num_tokens", "verdict")]


def item_of(kind, step, *, micro=0, rank=0):
    """The item of a run at a place; every run of these tests is made of the same ones."""
    draw = random.Random(f"{kind} {step} {micro} {rank}")
    if kind == "micro":
        rows = [draw.randrange(1000) for _ in range(3)]
        return MicroBatch(step, micro, rows, [draw.random() * 100 for _ in rows], [50, 60, 70])
    return StepRow(
        step, draw.random(), draw.random(), 1e-3 * draw.random(), clipped=False, loss_scale=1024.0, num_tokens=360
    )


def put(recorder, *, steps, rank=0, change=None):
    for step in steps:
        items = [item_of("micro", step, micro=micro, rank=rank) for micro in (0, 1)]
        for item in (*items, item_of("step", step, rank=rank)):
            changed = change(item, rank) if change else item
            if changed is not None:
                recorder.put(changed)


@pytest.fixture
def record(tmp_path):
    """Records a run in one attempt or several: each the steps that it goes over, on the same ranks or on its own."""

    def make(name, *, attempts=(range(1, NUM_STEPS + 1),), ranks=(0,), change=None, sealed=False):
        folder = None
        own_ranks = ranks if isinstance(ranks[0], tuple) else [ranks] * len(attempts)
        for steps, ranks in zip(attempts, own_ranks, strict=True):
            if folder is None:
                header = RunHeader(run_id=name, backend="test", created=1.0, world_size=len(ranks))
                folder = create_run(tmp_path / name, header)
            else:
                folder = continue_run(tmp_path / name, name, folder.header)
            for rank in ranks:
                recorder = Recorder(folder, rank=rank, **({} if sealed else {"seal_bytes": None}))
                put(recorder, steps=steps, rank=rank, change=change)
                recorder.close(timeout_s=30)
        return folder.path

    return make


def at(step, *, kind, micro=None, rank=0, **fields):
    """A change of one item of a run: `fields` are functions of the item."""

    def change(item, own_rank):
        is_it = isinstance(item, kind) and item.step == step and own_rank == rank
        if not is_it or (micro is not None and item.micro != micro):
            return item
        return item._replace(**{name: field(item) for name, field in fields.items()})

    return change


def nudge(value):
    return float(np.nextafter(value, math.inf))


def swapped(values):
    return [values[1], values[0], *values[2:]]


@pytest.mark.parametrize(
    ("column", "change", "first"),
    [
        ("loss", dict(kind=StepRow, loss=lambda i: nudge(i.loss)), {}),
        ("loss", dict(kind=StepRow, loss=lambda i: math.nan), {"b": "nan"}),
        ("num_tokens", dict(kind=StepRow, num_tokens=lambda i: 361), {"a": 360, "b": 361}),
        ("grad_norm", dict(kind=StepRow, grad_norm=lambda i: nudge(i.grad_norm)), {}),
        ("grad_norm", dict(kind=StepRow, grad_norm=lambda i: None), {"b": None}),
        ("lr", dict(kind=StepRow, lr=lambda i: nudge(i.lr)), {}),
        ("reason", dict(kind=StepRow, reason=lambda i: STEP_CODE["dropped"]), {"a": "stepped", "b": "dropped"}),
        ("clipped", dict(kind=StepRow, clipped=lambda i: True), {"a": False, "b": True}),
        ("loss_scale", dict(kind=StepRow, loss_scale=lambda i: 512.0), {"a": 1024.0, "b": 512.0}),
        ("num_skipped_micros", dict(kind=StepRow, num_skipped_micros=lambda i: 1), {"a": 0, "b": 1}),
        ("num_skipped_tokens", dict(kind=StepRow, num_skipped_tokens=lambda i: 9), {"a": 0, "b": 9}),
        ("rows.row", dict(kind=MicroBatch, micro=1, rows=lambda i: [1000, *i.rows[1:]]), {"b": 1000, "micro": 1}),
        ("rows.row", dict(kind=MicroBatch, micro=1, rows=lambda i: swapped(i.rows)), {"micro": 1}),
        (
            "rows.loss_sum",
            dict(kind=MicroBatch, micro=1, loss_sums=lambda i: [*i.loss_sums[:2], -math.inf]),
            {"b": "-inf", "micro": 1},
        ),
        (
            "rows.loss_sum",
            dict(kind=MicroBatch, micro=0, loss_sums=lambda i: np.nextafter(np.float32(i.loss_sums), np.float32(1e9))),
            {"micro": 0},
        ),
        ("rows.num_tokens", dict(kind=MicroBatch, micro=0, num_tokens=lambda i: [50, 60, 71]), {"a": 70, "b": 71}),
        (
            "rows.verdict",
            dict(kind=MicroBatch, micro=0, reason=lambda i: REASON_CODE["spike"]),
            {"a": "off", "b": "spike"},
        ),
        ("rows.verdict", dict(kind=MicroBatch, micro=0, keep=lambda i: False), {"a": "off", "b": "off, left out"}),
    ],
)
def test_a_difference_of_one_bit_is_named_with_its_step_and_column(record, column, change, first):
    # given
    a, b = record("a"), record("b", change=at(7, **change))
    # when
    found = compare_bits(a, b).to_dict()
    # then
    assert not found["same"]
    assert (found["first"]["step"], found["first"]["column"], found["first"]["rank"]) == (7, column, 0)
    assert {name: found["first"][name] for name in first} == first
    assert found["first"]["a"] != found["first"]["b"]
    others = {name for name, step in found["columns"].items() if step is not None} - {column}
    assert others <= ({"stepped"} if column == "reason" else set())
    assert found["columns"][column] == 7
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    # and seen from the other side
    mirrored = compare_bits(b, a).to_dict()
    row = mirrored["first"]["row"] if column == "rows.row" else found["first"]["row"]
    assert mirrored["first"] == {**found["first"], "a": found["first"]["b"], "b": found["first"]["a"], "row": row}


def test_two_runs_of_the_same_are_the_same_in_every_column(record):
    found = compare_bits(record("a"), record("b"))
    assert found.same
    assert found.num_steps == NUM_STEPS
    assert found.columns == dict.fromkeys([*STEP_COLUMNS, *ROW_COLUMNS])
    assert found.notices == ()


def test_a_run_that_was_killed_and_went_on_is_the_same_run(record):
    # given: killed at step 8 with a checkpoint of step 5, then again at 10 with one of 7
    whole = record("a")
    resumed = record("b", attempts=(range(1, 9), range(6, 11), range(8, NUM_STEPS + 1)))
    # when
    found = compare_bits(whole, resumed)
    # then
    assert found.same
    assert [notice for notice in found.notices if "trained again" in notice] == [
        "b: 6 steps of earlier attempts were trained again, between 6 and 10; the later attempt counts"
    ]


def test_of_what_was_trained_twice_the_later_attempt_is_judged(record):
    # given: only the attempt that counts no more has a difference
    attempts = (range(1, 9), range(6, NUM_STEPS + 1))
    seen = []

    def only_the_first_time(item, rank):
        if isinstance(item, StepRow) and item.step == 7 and not seen:
            seen.append(item)
            return item._replace(loss=9.0)
        return item

    def only_the_second_time(item, rank):
        if isinstance(item, StepRow) and item.step == 7:
            seen.append(item)
            return item if len(seen) == 1 else item._replace(loss=9.0)
        return item

    whole = record("a")
    # then
    assert compare_bits(whole, record("b", attempts=attempts, change=only_the_first_time)).same
    seen.clear()
    found = compare_bits(whole, record("c", attempts=attempts, change=only_the_second_time))
    assert (found.first.step, found.first.column, found.first.b) == (7, "loss", 9.0)


def test_nan_equals_nan_and_zero_is_not_minus_zero(record):
    nan = at(7, kind=StepRow, loss=lambda i: math.nan, grad_norm=lambda i: math.nan)
    nan_rows = at(7, kind=MicroBatch, loss_sums=lambda i: [math.nan] * 3)
    assert compare_bits(record("a", change=nan), record("b", change=nan)).same
    assert compare_bits(record("c", change=nan_rows), record("d", change=nan_rows)).same
    zero = record("e", change=at(7, kind=StepRow, loss=lambda i: 0.0))
    minus_zero = record("f", change=at(7, kind=StepRow, loss=lambda i: -0.0))
    assert compare_bits(zero, minus_zero).first.column == "loss"
    zero = record("g", change=at(7, kind=MicroBatch, micro=0, loss_sums=lambda i: [0.0, 1.0, 2.0]))
    minus_zero = record("h", change=at(7, kind=MicroBatch, micro=0, loss_sums=lambda i: [-0.0, 1.0, 2.0]))
    first = compare_bits(zero, minus_zero).first
    assert (first.column, repr(first.a), repr(first.b)) == ("rows.loss_sum", "0.0", "-0.0")


def test_times_and_attempts_are_no_part_of_a_run(record):
    slow = record(
        "b", change=at(7, kind=StepRow, wall_s=lambda i: 60.0), attempts=(range(1, 5), range(5, NUM_STEPS + 1))
    )
    assert compare_bits(record("a"), slow).same


def test_a_run_that_ended_earlier_parts_where_it_ended(record):
    # when
    found = compare_bits(record("a"), record("b", attempts=(range(1, 10),)))
    # then
    assert (found.first.step, found.first.column, found.first.a, found.first.b) == (10, "step", 10, None)
    assert found.num_steps == 9
    assert found.lacks == (Lack("b", 10, 12, 3, is_end=True),)
    assert found.first_in_both is None


def test_a_step_that_is_missing_in_the_middle_is_said(record):
    found = compare_bits(record("a", attempts=([*range(1, 6), *range(7, 13)],)), record("b"))
    assert (found.first.step, found.first.column, found.first.a, found.first.b) == (6, "step", None, 6)
    assert found.lacks == (Lack("a", 6, 6, 1, is_end=False),)


def test_a_run_that_was_killed_between_the_rows_of_a_step_and_its_record_lacks_that_step_too(record):
    # given
    def killed(item, rank):
        return None if item.step > 10 or (isinstance(item, StepRow) and item.step == 10) else item

    # when
    found = compare_bits(record("a"), record("b", change=killed))
    # then
    assert found.lacks == (Lack("b", 10, 12, 3, is_end=True),)
    assert (found.first.step, found.first.column, found.first.rank) == (10, "step", None)
    assert found.num_steps == 9
    assert [name for name, step in found.columns.items() if step is not None] == ["step"]


def test_what_differs_besides_the_steps_that_are_missing_is_named_with_its_values(record):
    change = at(11, kind=StepRow, num_tokens=lambda i: 361)
    found = compare_bits(record("a", attempts=([*range(1, 6), *range(7, 13)],)), record("b", change=change))
    assert (found.first.step, found.first.column) == (6, "step")
    besides = found.first_in_both
    assert (besides.step, besides.column, besides.a, besides.b) == (11, "num_tokens", 360, 361)


def test_the_first_difference_is_that_of_the_lowest_step(record):
    def two(item, rank):
        item = at(9, kind=StepRow, loss=lambda i: 1.0)(item, rank)
        return at(4, kind=MicroBatch, micro=1, loss_sums=lambda i: [1.0, 2.0, 3.0])(item, rank)

    found = compare_bits(record("a"), record("b", change=two))
    assert (found.first.step, found.first.column) == (4, "rows.loss_sum")
    assert (found.columns["loss"], found.columns["rows.loss_sum"]) == (9, 4)


# Ranks.


def test_the_rank_that_differs_is_named(record):
    two = (0, 1)
    a = record("a", ranks=two)
    loss = record("b", ranks=two, change=at(7, kind=StepRow, rank=1, loss=lambda i: 9.0))
    rows = record("c", ranks=two, change=at(7, kind=MicroBatch, micro=1, rank=1, rows=lambda i: [5, 6, 7]))
    assert compare_bits(a, record("d", ranks=two)).same
    assert (compare_bits(a, loss).first.column, compare_bits(a, loss).first.rank) == ("loss", 1)
    first = compare_bits(a, rows).first
    assert (first.column, first.rank, first.micro, first.b) == ("rows.row", 1, 1, 5)


def test_another_number_of_ranks_is_said_and_a_difference(record):
    found = compare_bits(record("a", ranks=(0, 1)), record("b"))
    assert (found.first.step, found.first.column, found.first.a, found.first.b) == (1, "rank", 1, None)
    assert "a was trained on 2 ranks, b on 1" in found.notices
    assert found.columns["rows.rank"] == 1
    assert found.columns["loss"] is None


def test_what_a_rank_trained_before_a_resume_on_fewer_counts_no_more(record):
    # given: killed at step 8 on two ranks, and gone on from step 5 on one; and the same without the steps in between
    killed = record("a", attempts=(range(1, 9), range(6, NUM_STEPS + 1)), ranks=((0, 1), (0,)))
    stopped = record("b", attempts=(range(1, 6), range(6, NUM_STEPS + 1)), ranks=((0, 1), (0,)))
    # then
    assert compare_bits(killed, stopped).same


def test_rows_of_a_rank_that_are_missing_are_a_difference(record):
    def lost(item, rank):
        return None if isinstance(item, MicroBatch) and item.step == 7 and rank == 1 else item

    found = compare_bits(record("a", ranks=(0, 1)), record("b", ranks=(0, 1), change=lost))
    assert (found.first.step, found.first.column, found.first.rank) == (7, "rows.rank", 1)
    assert (found.first.a, found.first.b) == (1, None)


def test_a_micro_batch_that_is_missing_is_a_difference(record):
    def lost(item, rank):
        return None if isinstance(item, MicroBatch) and item.step == 7 and item.micro == 1 else item

    found = compare_bits(record("a"), record("b", change=lost))
    assert (found.first.column, found.first.micro, found.first.a, found.first.b) == ("rows.micro", 1, 1, None)
    assert found.columns["rows.rank"] is None


def test_the_micro_batch_that_is_missing_is_named_and_not_one_that_lacks_a_row(record):
    def lost(item, rank):
        if not isinstance(item, MicroBatch) or item.step != 7:
            return item
        return item._replace(rows=item.rows[:2], loss_sums=item.loss_sums[:2], num_tokens=[50, 60])

    def lost_too(item, rank):
        return None if isinstance(item, MicroBatch) and item.step == 7 and item.micro == 1 else lost(item, rank)

    first = compare_bits(record("a"), record("b", change=lost_too)).first
    assert (first.column, first.micro, first.a, first.b) == ("rows.micro", 1, 1, None)


def test_a_row_that_is_missing_is_a_difference(record):
    short = at(
        7,
        kind=MicroBatch,
        micro=1,
        **{name: lambda i, n=name: getattr(i, n)[:2] for name in ("rows", "loss_sums", "num_tokens")},
    )
    found = compare_bits(record("a", change=short), record("b"))
    assert (found.first.column, found.first.micro, found.first.a) == ("rows.row", 1, None)
    assert found.first.row == found.first.b
    assert found.columns["rows.micro"] is None


# Logs of several forms.


def test_a_log_is_the_same_sealed_or_not(record):
    assert compare_bits(record("a"), record("b", sealed=True)).same


def test_a_micro_batch_that_goes_on_in_the_next_block_is_whole(record, monkeypatch):
    # given: blocks of two records each, where micro-batches have three
    from trimtab.log import reader

    a, b = record("a"), record("b", change=at(7, kind=MicroBatch, micro=1, rows=lambda i: swapped(i.rows)))
    found = compare_bits(a, b)
    whole = reader.Log.row_blocks

    def pairs(log, **settings):
        for block in whole(log, **settings):
            for begin in range(0, block.num_records, 2):
                yield block.take(np.arange(begin, min(begin + 2, block.num_records)))

    # when: of one of the two
    calls = []

    def of_one(log, **settings):
        calls.append(log)
        return pairs(log, **settings) if log.path == str(a) else whole(log, **settings)

    monkeypatch.setattr(reader.Log, "row_blocks", of_one)
    # then
    assert compare_bits(a, b) == found
    assert compare_bits(a, record("c")).same
    assert calls


def test_a_log_against_itself_is_the_same_and_that_is_said(record):
    path = record("a")
    found = compare_bits(path, path)
    assert found.same
    assert found.notices[0] == "a and b are one log"


def write_metrics(path, *, losses):
    path.write_text("step,loss\n" + "".join(f"{step},{loss!r}\n" for step, loss in enumerate(losses, 1)))
    return path


def test_what_one_of_the_logs_knows_nothing_of_is_said_and_no_difference(record, tmp_path):
    # given
    losses = [item_of("step", step).loss for step in range(1, NUM_STEPS + 1)]
    metrics = write_metrics(tmp_path / "metrics.csv", losses=losses)
    # when
    found = compare_bits(record("a"), metrics)
    # then
    assert found.same
    assert found.columns == dict.fromkeys(["step", "rank", "loss"])
    assert "rows: not compared, b has none and a does" in found.notices
    assert "grad_norm: not compared, b has none and a does" in found.notices


def test_metrics_that_differ_are_told_apart(record, tmp_path):
    losses = [item_of("step", step).loss for step in range(1, NUM_STEPS + 1)]
    metrics = write_metrics(tmp_path / "metrics.csv", losses=[*losses[:5], 7.0, *losses[6:]])
    found = compare_bits(metrics, record("a"))
    assert (found.first.step, found.first.column, found.first.a) == (6, "loss", 7.0)


def test_a_log_of_several_runs_is_refused_with_how_to_part_it(record, tmp_path):
    # given: a log whose steps begin anew
    lines = [{"step": step, "loss": float(step)} for _ in range(2) for step in range(1, 40)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    # then
    with pytest.raises(LogError, match="holds 2 runs: part them with trimtab convert"):
        compare_bits(record("a"), path)


def test_logs_with_nothing_in_common_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    losses = write_metrics(tmp_path / "a" / "metrics.csv", losses=[1.0, 2.0])
    norms = tmp_path / "b" / "metrics.csv"
    norms.write_text("step,grad_norm\n1,2.0\n2,3.0\n")
    with pytest.raises(LogError, match=r"nothing in common to compare: .*loss: not compared"):
        compare_bits(losses, norms)


def test_runs_without_a_common_step_part_at_the_first(record):
    found = compare_bits(record("a", attempts=(range(1, 5),)), record("b", attempts=(range(5, 9),)))
    assert (found.first.step, found.first.a, found.first.b) == (1, 1, None)
    assert "the runs have no step in common" in found.notices


def test_progress_goes_up_to_the_whole(record):
    calls = []
    compare_bits(record("a"), record("b"), progress=lambda done, whole: calls.append((done, whole)))
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1]
