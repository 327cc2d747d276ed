"""What the demo reads from a run's log: real folders, written by the real recorder."""

from __future__ import annotations

from pathlib import Path

from trimtab.demo.run_log import Skip, first_difference, skipped_micro_batches
from trimtab.log.folder import create_run
from trimtab.recorder import Recorder
from trimtab.values import VERDICT_REASONS, MicroBatch, RunHeader

ORDER = [[4, 7], [1, 0], [3, 2], [6, 5]]
NORMAL, SPIKE = VERDICT_REASONS.index("normal"), VERDICT_REASONS.index("spike")


def record(out: Path, order: list[list[int]], *, skipped: tuple[int, ...] = ()) -> Path:
    folder = create_run(out, RunHeader(run_id="run-1", backend="torch"))
    recorder = Recorder(folder)
    for index, rows in enumerate(order):
        keep = index not in skipped
        recorder.put(
            MicroBatch(index // 2 + 1, index % 2, rows, [2.0, 3.0], [1, 1], reason=NORMAL if keep else SPIKE, keep=keep)
        )
    recorder.close()
    return Path(folder.path)


def test_a_run_that_read_its_rows_as_planned_has_no_difference(tmp_path: Path) -> None:
    assert first_difference(record(tmp_path, ORDER), ORDER, accumulation=2) is None


def test_a_run_that_stopped_early_is_compared_as_far_as_it_went(tmp_path: Path) -> None:
    assert first_difference(record(tmp_path, ORDER[:3]), ORDER, accumulation=2) is None


def test_the_first_micro_batch_with_other_rows_is_named(tmp_path: Path) -> None:
    folder = record(tmp_path, [ORDER[0], ORDER[1], ORDER[3], ORDER[2]])

    assert first_difference(folder, ORDER, accumulation=2) == (
        "micro-batch 0 of step 2 was to read rows [2, 3], and the log holds [5, 6]"
    )


def test_skipped_micro_batches_are_listed_with_their_reason(tmp_path: Path) -> None:
    assert skipped_micro_batches(record(tmp_path, ORDER, skipped=(1, 2))) == [
        Skip(1, 1, "spike"),
        Skip(2, 0, "spike"),
    ]


def test_a_run_without_a_skip_lists_none(tmp_path: Path) -> None:
    assert skipped_micro_batches(record(tmp_path, ORDER)) == []
