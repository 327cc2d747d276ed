"""Logs and series made up on the spot: analysis tests fabricate what a reader would give."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from trimtab.analysis.series import StepSeries
from trimtab.log.columns import IdColumns, RowColumns, SideColumns, StepColumns
from trimtab.log.source import RecordedEvent
from trimtab.log.steps import UNKNOWN_REASON
from trimtab.values import STEP_REASONS, RunHeader

CURVES = Path(__file__).parents[2] / "data" / "curves"


class FabricatedLog:
    """A log of given records, in blocks of `block_rows`; counts how often it was read, and how far."""

    def __init__(self, rows, *, steps=(), block_rows=7, run_id="r", dtype=np.float32, ids=(), restarts=(), events=()):
        self.header = RunHeader(run_id=run_id, backend="test")
        self.format = "rewind_jsonl"
        self.path = "fabricated"
        self.size_bytes = 100
        self.has_rows = bool(len(rows))
        self.ranges = []
        self.num_records_read = 0
        self._rows = rows_of(rows, dtype) if isinstance(rows, list) else rows
        self._steps = steps_of(steps)
        self._ids = ids_of(ids)
        self._block_rows = block_rows
        self._restarts = restarts
        self._events = list(events)

    def notices(self):
        return ["a notice of the reader"]

    def row_blocks(self, *, first_step=None, last_step=None, rows=None, brief=False, progress=None):
        self.ranges.append((first_step, last_step))
        for start in range(0, self._rows.num_records, self._block_rows):
            block = RowColumns(*(column[start : start + self._block_rows] for column in self._rows))
            if first_step is not None and (block.step.max() < first_step or block.step.min() > last_step):
                continue
            self.num_records_read += block.num_records
            yield block
            if progress:
                progress(start)

    def step_columns(self, *, brief=False):
        return self._steps

    def step_blocks(self):
        yield self._steps

    def event_list(self, *, without=()):
        return [event for event in self._events if event.kind not in without]

    def event_stream(self, kinds):
        return (RecordedEvent(event, 0, None) for event in self._events if event.kind in kinds)

    def side_columns(self):
        return SideColumns.empty()

    def restarts(self):
        return self._restarts

    def id_columns(self):
        return self._ids


def ids_of(records):
    """`records`: (row, row of the table or -1, digest or None, name or None), rows ascending."""
    table_row, digest, name = ([record[place] for record in records] for place in (1, 2, 3))
    return IdColumns(
        row=np.array([record[0] for record in records], np.int64),
        table_row=np.array(table_row, np.int64),
        digest=np.array([entry or 0 for entry in digest], np.int64),
        has_digest=np.array([entry is not None for entry in digest], np.bool_),
        name=np.array(name, np.object_),
    )


def rows_of(records, dtype):
    """`records`: (step, row, loss_sum, tokens), and as keywords attempt, micro, rank, keep."""
    full = [{"attempt": 1, "micro": 0, "rank": 0, "keep": True, **(r[4] if len(r) > 4 else {})} for r in records]
    return RowColumns(
        attempt=np.array([f["attempt"] for f in full], np.int32),
        step=np.array([r[0] for r in records], np.int64),
        micro=np.array([f["micro"] for f in full], np.int32),
        rank=np.array([f["rank"] for f in full], np.int32),
        row=np.array([r[1] for r in records], np.int64),
        loss_sum=np.array([r[2] for r in records], dtype),
        num_tokens=np.array([r[3] for r in records], np.int32),
        reason=np.zeros(len(records), np.uint8),
        keep=np.array([f["keep"] for f in full], np.bool_),
    )


def steps_of(records):
    """`records`: dicts of the fields of a step record; what is left out is unknown."""
    size = len(records)

    def column(name, default, dtype):
        return np.array([record.get(name, default) for record in records], dtype)

    return StepColumns(
        attempt=column("attempt", 1, np.int32),
        rank=column("rank", 0, np.int32),
        step=column("step", 0, np.int64),
        loss=column("loss", math.nan, np.float64),
        grad_norm=column("grad_norm", math.nan, np.float64),
        has_grad_norm=np.array(["grad_norm" in record for record in records], np.bool_),
        lr=np.full(size, math.nan),
        has_lr=np.zeros(size, np.bool_),
        reason=np.array([STEP_REASONS.index(record.get("reason", "stepped")) for record in records], np.uint8),
        clipped=np.full(size, -1, np.int8),
        loss_scale=np.full(size, math.nan),
        wall_s=np.full(size, math.nan),
        num_tokens=column("num_tokens", 0, np.int64),
        num_skipped_micros=np.zeros(size, np.int64),
        num_skipped_tokens=np.zeros(size, np.int64),
    )


@pytest.fixture(scope="session")
def make_log():
    return FabricatedLog


@pytest.fixture(scope="session")
def make_ids():
    return ids_of


@pytest.fixture
def series_of():
    """Losses (None: not measured), and where given steps, norms (None likewise) and reasons, as a series."""

    def make(losses, *, steps=None, norms=None, reasons=None):
        size = len(losses)
        norms = norms or [None] * size
        return StepSeries(
            step=np.array(steps if steps is not None else range(1, size + 1), np.int64),
            attempt=np.ones(size, np.int32),
            loss=np.array([math.nan if loss is None else loss for loss in losses], np.float64),
            tokens=np.array([0 if loss is None else 100 for loss in losses], np.int64),
            measured=np.array([loss is not None for loss in losses], np.bool_),
            grad_norm=np.array([math.nan if norm is None else norm for norm in norms], np.float64),
            has_grad_norm=np.array([norm is not None for norm in norms], np.bool_),
            reason=np.array([STEP_REASONS.index(r) for r in reasons] if reasons else [UNKNOWN_REASON] * size, np.uint8),
            num_records=np.ones(size, np.int64),
            num_empty=np.zeros(size, np.int64),
            num_left_out=np.zeros(size, np.int64),
            top_loss=np.full(size, -math.inf),
            is_reported=np.zeros(size, np.bool_),
            differs=np.zeros(size, np.bool_),
        )

    return make


@pytest.fixture
def curve(series_of):
    """A published curve as a series."""

    def load(name):
        with (CURVES / f"{name}.csv").open() as file:
            lines = list(csv.DictReader(file))
        norms = [float(line["grad_norm"]) for line in lines] if "grad_norm" in lines[0] else None
        return series_of(
            [float(line["loss"]) for line in lines], steps=[int(line["step"]) for line in lines], norms=norms
        )

    return load
