"""Several logs side by side, from Python."""

import json

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
