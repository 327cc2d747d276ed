"""Several logs side by side, from Python."""

import json
import random

import pytest

import trimtab
from trimtab.analysis import compare
from trimtab.errors import LogError, UsageError


@pytest.fixture
def write_log(tmp_path):
    """Writes a rewind.jsonl of 40 quiet steps whose step `spike` is made by `row`."""

    def write(name, *, row, spike=30):
        batches = [
            {
                "kind": "batch",
                "step": step,
                "micro": 0,
                "rows": [step, row],
                "row_loss": [1.0, 90.0 if step == spike else 1.0],
                "row_tokens": [10, 10],
            }
            for step in range(1, 41)
        ]
        path = tmp_path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in [{"kind": "header", "version": 1}, *batches]))
        return path

    return write


def test_runs_that_spike_at_the_same_row_share_it(write_log):
    first, second = write_log("a.jsonl", row=700), write_log("b.jsonl", row=700)
    comparison = compare([first, second])
    assert [findings.source for findings in comparison.runs] == [str(first), str(second)]
    assert comparison.runs[0] == trimtab.rewind(first)
    assert comparison.num_different == 2
    (shared,) = comparison.shared
    assert (shared.step, shared.rows, shared.runs) == (30, (700,), (str(first), str(second)))
    assert comparison.to_dict()["shared"] == [shared.to_dict()]


def test_settings_hold_for_each_run(write_log):
    comparison = compare([write_log("a.jsonl", row=700), write_log("b.jsonl", row=701)], step=7, top=1, rule="median")
    assert [(found.step, found.rule, len(found.rows)) for found in comparison.runs] == [(7, "median", 1)] * 2


def test_a_log_named_twice_is_one_run_and_shares_nothing(write_log):
    path = write_log("a.jsonl", row=700)
    comparison = compare([path, str(path)])
    assert (len(comparison.runs), comparison.num_different, comparison.shared) == (1, 1, ())
    assert f"{path} is this log too: it was read once" in comparison.runs[0].notices


def test_progress_goes_through_all_logs(write_log):
    first, second = write_log("a.jsonl", row=700), write_log("b.jsonl", row=701)
    seen = []
    compare([first, second], progress=lambda done, size: seen.append((done, size)))
    total = first.stat().st_size + second.stat().st_size
    done = [num for num, _ in seen]
    assert {size for _, size in seen} == {total}
    assert done == sorted(done)
    assert done[-1] == total


def test_what_makes_no_sense_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(UsageError, match="top=0"):
        compare([tmp_path / "absent"], top=0)
    with pytest.raises(LogError, match="absent"):
        compare([tmp_path / "absent"])


# --------------------------------------------------------------------------------------------- one run, told twice


def losses_of(seed, num_steps=60):
    """Quiet losses that scatter, but for a spike at step 45."""
    dice = random.Random(seed)
    return {step: 9.0 if step == 45 else 2.0 + dice.random() / 10 for step in range(1, num_steps + 1)}


@pytest.fixture
def write_rows(tmp_path):
    """Writes losses as a rewind.jsonl of one row a step; gives the path."""

    def write(name, losses):
        lines = [{"kind": "header", "version": 1}]
        for step, loss in losses.items():
            batch = dict(kind="batch", step=step, micro=0, rows=[1000 + step], row_loss=[loss], row_tokens=[10])
            lines.append(batch)
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tmp_path / name

    return write


@pytest.fixture
def write_steps(tmp_path):
    """Writes losses as metrics in CSV, in four decimals; gives the path."""

    def write(name, losses):
        lines = [f"{step},{loss:.4f}" for step, loss in losses.items()]
        (tmp_path / name).write_text("step,loss\n" + "\n".join(lines) + "\n")
        return tmp_path / name

    return write


@pytest.mark.parametrize("order", [1, -1])
def test_the_metrics_beside_a_runs_own_log_are_that_run_told_twice(write_rows, write_steps, order):
    # given: the trainer wrote nonsense where the loss was not finite, and began to write late
    losses = losses_of(1) | {50: float("nan")}
    own = write_rows("rewind.jsonl", losses)
    beside = write_steps("metrics.csv", {step: loss for step, loss in losses.items() if step > 5} | {50: 0.0})
    paths = [own, beside][::order]
    # when
    found = compare(paths)
    # then
    assert (found.num_different, found.shared) == (1, ())
    assert not any("told twice" in notice for notice in found.runs[0].notices)
    assert (
        f"its losses are those of {paths[0]}, step by step: that is one run told twice, and counts once"
        in found.runs[1].notices
    )


def test_in_a_third_run_the_rows_of_the_first_are_known_again(write_rows, write_steps):
    losses = losses_of(1)
    paths = [write_steps("metrics.csv", losses), write_rows("rewind.jsonl", losses)]
    found = compare([*paths, write_rows("rewind.jsonl.1", losses_of(2))])
    assert found.num_different == 2
    (shared,) = found.shared
    assert (shared.step, shared.rows, shared.runs) == (45, (1045,), (str(paths[0]), str(paths[1]) + ".1"))


def test_two_recordings_and_losses_that_are_alike_by_chance_are_two_runs(write_rows, write_steps):
    # given: two recordings; other losses; losses that hardly move; steps too few
    pairs = [
        (write_rows("a.jsonl", losses_of(1)), write_rows("b.jsonl", losses_of(1))),
        (write_rows("c.jsonl", losses_of(1)), write_steps("c.csv", losses_of(2))),
        (write_steps("d.csv", dict.fromkeys(range(60), 1.0)), write_steps("e.csv", dict.fromkeys(range(60), 1.0))),
        (write_rows("f.jsonl", losses_of(1, 19)), write_steps("f.csv", losses_of(1))),
    ]
    for pair in pairs:
        assert compare(pair).num_different == 2, pair
