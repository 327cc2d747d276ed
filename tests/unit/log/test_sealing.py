"""A closed journal becomes a segment that holds the same, or stays as it is."""

import json
import math
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trimtab.log import parquet_kinds, sealing
from trimtab.log.folder import RunFolder, create_run
from trimtab.log.parts import Part, list_parts
from trimtab.log.reader import Log, open_log
from trimtab.log.sealing import NotSealedError, seal
from trimtab.values import STEP_REASONS, VERDICT_REASONS, Event, MicroBatch, RowIds, RunHeader, StepRow

HEADER = RunHeader(run_id="a", backend="torch", created=1.7e9)

WriteRun = Callable[..., Path]
Close = Callable[..., Part]
ColumnsOf = Callable[[Log], dict[str, object]]


def run_to_end(sealing: object) -> None:
    for _ in sealing:
        pass


def floats(width: int) -> st.SearchStrategy[float]:
    """Floats of any bits: NaNs of either sign with any payload, negative zero, infinities, subnormals."""
    letter, integer = ("f", "I") if width == 32 else ("d", "Q")
    quiet = {32: [0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0x80000000], 64: [0x7FF8 << 48, 0xFFF8 << 48, 1 << 63]}[width]
    bits = st.sampled_from(quiet) | st.integers(0, 2**width - 1)
    return bits.map(lambda value: struct.unpack(f"<{letter}", struct.pack(f"<{integer}", value))[0])


INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = floats(64)
MICROS = st.builds(
    lambda step, micro, entries, reason, keep: MicroBatch(
        step,
        micro,
        np.array([row for row, _, _ in entries], np.int64),
        np.array([loss for _, loss, _ in entries], np.float32),
        np.array([tokens for _, _, tokens in entries], np.int64),
        reason,
        keep,
    ),
    INT64,
    st.integers(-(2**31), 2**31 - 1),
    st.lists(st.tuples(INT64, floats(32), st.sampled_from([0, 1, 2**31 - 1])), max_size=5),
    st.integers(0, len(VERDICT_REASONS) - 1),
    st.booleans(),
)
STEPS = st.builds(
    StepRow,
    INT64,
    FLOATS,
    st.none() | FLOATS,
    st.none() | FLOATS,
    st.integers(0, len(STEP_REASONS) - 1),
    st.none() | st.booleans(),
    st.none() | FLOATS,
    FLOATS,
    st.integers(-3, 3) | INT64,
    INT64,
    INT64,
)
EVENTS = st.builds(
    Event,
    st.text(max_size=5),
    INT64,
    st.floats(-1e9, 1e9),
    st.dictionaries(st.text(max_size=3), st.none() | INT64 | st.floats() | st.text(max_size=4), max_size=3),
)
NAMES = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
IDS = st.builds(
    lambda entries: RowIds(*map(list, zip(*entries, strict=True))),
    st.lists(st.tuples(INT64, st.integers(-1, 5), st.none() | INT64, NAMES), min_size=1, max_size=4),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(MICROS | STEPS | EVENTS | IDS, max_size=8), min_size=1, max_size=3))
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # a NaN that signals, made a float64
def test_a_segment_gives_back_to_the_bit_what_the_journal_held(
    tmp_path: Path, write_run: WriteRun, close_journal: Close, columns_of: ColumnsOf, attempts: list
) -> None:
    shutil.rmtree(tmp_path / "trimtab", ignore_errors=True)
    folder = create_run(tmp_path, HEADER)
    for attempt, items in enumerate(attempts, start=1):
        write_run(RunFolder(folder.path, HEADER, attempt), *items)
    before = open_log(folder.path)
    assert before.notices() == []
    held, has_rows = columns_of(before), before.has_rows

    run_to_end(seal(folder.path, close_journal(folder)))

    log = open_log(folder.path)
    assert [(part.number, part.journal) for part in list_parts(folder.path)] == [(1, None)]
    assert columns_of(log) == held
    assert (log.has_rows, log.header, log.notices()) == (has_rows, HEADER, [])


def full_run(folder: RunFolder, write_run: WriteRun, make_micro: Callable[..., MicroBatch]) -> None:
    """A journal of 60 steps with records of every kind."""
    items: list[object] = []
    for step in range(1, 61):
        items += [
            make_micro(step, *range(step * 10, step * 10 + 5)),
            StepRow(step, step / 8, math.nan if step % 2 else None, 0.5, wall_s=0.25),
            Event("evaluation", step, float(step), {"loss": step / 8}),
            RowIds([step], names=[f"row {step}"]),
        ]
    write_run(folder, *items)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 40 records, and events in groups of 1,000 bytes."""
    monkeypatch.setattr(sealing, "PIECE_RECORDS", 40)
    monkeypatch.setattr(sealing, "_LINES_BYTES", 1000)


def test_a_journal_of_many_pieces_becomes_one_file_a_kind(
    tmp_path: Path,
    write_run: WriteRun,
    make_micro: Callable[..., MicroBatch],
    close_journal: Close,
    columns_of: ColumnsOf,
    small_pieces: None,
) -> None:
    folder = create_run(tmp_path, HEADER)
    full_run(folder, write_run, make_micro)
    held = columns_of(open_log(folder.path))

    run_to_end(seal(folder.path, close_journal(folder)))

    assert columns_of(open_log(folder.path)) == held
    segment = folder.path / "segments" / "rank-00000.000001"
    assert sorted(file.name for file in segment.iterdir()) == [
        "events.jsonl", "ids.parquet", "rows.parquet", "segment.json", "steps.parquet",
    ]  # fmt: skip
    assert len(json.loads((segment / "segment.json").read_bytes())["files"]["events.jsonl"]["groups"]) > 3


def test_others_read_the_files_without_us(
    tmp_path: Path, write_run: WriteRun, make_micro: Callable[..., MicroBatch], seal_journal: Callable[..., Path]
) -> None:
    import polars

    folder = create_run(tmp_path, HEADER)
    write_run(
        folder,
        make_micro(1, 10, 11),
        StepRow(1, math.nan, None, 0.5, 5, None, None, 0.25, -1),
        StepRow(2, 1.5, math.nan, None, 0, True, 8.0, math.nan, 7),
        Event("evaluation", 1, 2.0, {"loss": 0.5}),
        RowIds([10], names=["ten"]),
    )
    segment = seal_journal(folder)

    rows = duckdb.sql(f"select attempt, step, rank, row, loss_sum, num_tokens, verdict from '{segment}/rows.parquet'")
    assert rows.fetchall() == [(1, 1, 0, 10, 10.0, 2, "spike"), (1, 1, 0, 11, 11.0, 2, "spike")]
    steps = polars.read_parquet(segment / "steps.parquet").to_dicts()
    assert math.isnan(steps[0]["loss"])
    assert (steps[0]["grad_norm"], steps[0]["num_tokens"], steps[0]["clipped"]) == (None, None, None)
    assert (steps[0]["reason"], steps[0]["loss_scale"]) == (STEP_REASONS[5], None)
    assert math.isnan(steps[1]["grad_norm"])
    assert (steps[1]["lr"], steps[1]["clipped"], steps[1]["wall_s"]) == (None, True, None)
    assert polars.read_parquet(segment / "ids.parquet").rows() == [(10, None, None, "ten")]
    events = duckdb.sql(f"select attempt, kind, step, facts.loss from '{segment}/events.jsonl'")
    assert events.fetchall() == [(1, "evaluation", 1, 0.5)]


def test_pandas_reads_the_rows_without_us(
    tmp_path: Path, write_run: WriteRun, seal_journal: Callable[..., Path]
) -> None:
    import pandas

    folder = create_run(tmp_path, HEADER)
    write_run(folder, MicroBatch(1, 0, [10, 11], [10.0, math.nan], [2, 4], 6, False))
    rows = pandas.read_parquet(seal_journal(folder) / "rows.parquet")
    assert rows[["step", "row", "num_tokens", "verdict"]].to_numpy().tolist() == [
        [1, 10, 2, "spike"],
        [1, 11, 4, "spike"],
    ]
    assert rows["loss_sum"].isna().tolist() == [False, True]


def test_a_flipped_byte_costs_a_small_run_a_part_of_it(
    tmp_path: Path, write_run: WriteRun, seal_journal: Callable[..., Path]
) -> None:
    # given: a run far smaller than a row group may be
    folder = create_run(tmp_path, HEADER)
    write_run(folder, *(MicroBatch(step, 0, list(range(8)), [1.0] * 8, [4] * 8) for step in range(1, 3001)))
    rows = seal_journal(folder) / "rows.parquet"
    data = bytearray(rows.read_bytes())
    data[200] ^= 1
    rows.write_bytes(data)
    # then: all but a group of two times 2,048 records is left
    log = open_log(folder.path)
    assert sum(block.num_records for block in log.row_blocks()) == 24_000 - 4096
    assert len(log.notices()) == 1


def test_names_are_on_the_disk_before_the_journal_goes(
    tmp_path: Path,
    write_run: WriteRun,
    make_micro: Callable[..., MicroBatch],
    close_journal: Close,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given: what reaches the disk is written down, by name
    done = []
    fsync, rename, unlink = os.fsync, Path.rename, Path.unlink

    def noted_fsync(fd: int) -> None:
        done.append(("sync", str(Path(f"/proc/self/fd/{fd}").readlink())))
        fsync(fd)

    def noted_rename(path: Path, target: Path) -> Path:
        done.append(("rename", str(target)))
        return rename(path, target)

    def noted_unlink(path: Path, missing_ok: bool = False) -> None:
        done.append(("unlink", str(path)))
        unlink(path, missing_ok=missing_ok)

    folder = create_run(tmp_path, HEADER)
    write_run(folder, make_micro(1, 10, 11))
    part = close_journal(folder)
    monkeypatch.setattr("os.fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    monkeypatch.setattr(Path, "unlink", noted_unlink)
    # when
    run_to_end(seal(folder.path, part))
    # then: the segment's files, its name, the name of its folder, and only then the journal's end
    segments = folder.path / "segments"
    named = done.index(("rename", str(segments / "rank-00000.000001")))
    gone = done.index(("unlink", str(part.journal)))
    assert {Path(path).name for what, path in done[:named] if what == "sync"} >= {"rows.parquet", "segment.json"}
    assert {path for what, path in done[named:gone] if what == "sync"} == {str(segments), str(folder.path)}


def damaged(data: bytes) -> bytes:
    return data[:200] + bytes([data[200] ^ 1]) + data[201:]


@pytest.mark.parametrize(
    "spoil", [damaged, lambda data: data[:-3], lambda data: data + bytes(60)], ids=["flipped", "torn", "zeros"]
)
def test_a_journal_with_damage_is_neither_sealed_nor_deleted(
    tmp_path: Path,
    write_run: WriteRun,
    make_micro: Callable[..., MicroBatch],
    close_journal: Close,
    columns_of: ColumnsOf,
    spoil: Callable[[bytes], bytes],
) -> None:
    folder = create_run(tmp_path, HEADER)
    full_run(folder, write_run, make_micro)
    part = close_journal(folder)
    part.journal.write_bytes(spoil(part.journal.read_bytes()))
    held = columns_of(open_log(folder.path))

    with pytest.raises(NotSealedError) as caught:
        run_to_end(seal(folder.path, part))

    assert caught.value.is_of_journal
    assert part.journal.exists()
    assert columns_of(open_log(folder.path)) == held
    assert not any((folder.path / "segments").iterdir())


def test_a_journal_of_another_run_or_rank_is_not_sealed(
    tmp_path: Path, write_run: WriteRun, make_micro: Callable[..., MicroBatch], close_journal: Close
) -> None:
    folder = create_run(tmp_path, HEADER)
    write_run(folder, make_micro(1, 5), rank=3)
    part = close_journal(folder, rank=3)
    alien = part.journal.rename(part.journal.with_name("rank-00004.000001.journal"))

    with pytest.raises(NotSealedError, match="reads back as something else"):
        run_to_end(seal(folder.path, Part(4, 1, alien)))

    assert alien.exists()


def test_what_does_not_read_back_as_the_journal_is_thrown_away(
    tmp_path: Path,
    write_run: WriteRun,
    make_micro: Callable[..., MicroBatch],
    close_journal: Close,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a DuckDB that writes one value wrong
    wrong = parquet_kinds.ROWS._replace(write=parquet_kinds.ROWS.write.replace("micro,", "micro + 1 as micro,"))
    monkeypatch.setitem(sealing.KINDS, "rows.parquet", wrong)
    folder = create_run(tmp_path, HEADER)
    full_run(folder, write_run, make_micro)
    part = close_journal(folder)

    with pytest.raises(NotSealedError, match="reads back as something else than the journal holds"):
        run_to_end(seal(folder.path, part))

    assert part.journal.exists()
    assert not any((folder.path / "segments").iterdir())


def test_a_full_disk_leaves_the_journal_and_nothing_else(
    tmp_path: Path,
    write_run: WriteRun,
    make_micro: Callable[..., MicroBatch],
    close_journal: Close,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = create_run(tmp_path, HEADER)
    full_run(folder, write_run, make_micro)
    part = close_journal(folder)

    def refuse(fd: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(NotSealedError, match="No space left") as caught:
        run_to_end(seal(folder.path, part))

    assert not caught.value.is_of_journal
    assert part.journal.exists()
    assert not any((folder.path / "segments").iterdir())


def test_a_segment_that_stands_beside_its_journal_is_compared_before_the_journal_goes(
    tmp_path: Path, write_run: WriteRun, make_micro: Callable[..., MicroBatch], close_journal: Close
) -> None:
    # given a writer that was stopped between the segment's name and the journal's end
    folder = create_run(tmp_path, HEADER)
    full_run(folder, write_run, make_micro)
    part = close_journal(folder)
    data = part.journal.read_bytes()
    run_to_end(seal(folder.path, part))
    part.journal.write_bytes(data)
    (found,) = list_parts(folder.path)
    rows = found.segment / "rows.parquet"

    # when the segment is damaged, then the journal stays; when it is whole, the journal goes
    good = rows.read_bytes()
    rows.write_bytes(damaged(good))
    with pytest.raises(NotSealedError, match="damaged from byte"):
        run_to_end(seal(folder.path, found))
    assert part.journal.exists()
    rows.write_bytes(good)
    run_to_end(seal(folder.path, found))
    assert not part.journal.exists()


def test_a_draft_of_a_killed_writer_is_thrown_away(
    tmp_path: Path,
    write_run: WriteRun,
    make_micro: Callable[..., MicroBatch],
    close_journal: Close,
    columns_of: ColumnsOf,
) -> None:
    folder = create_run(tmp_path, HEADER)
    full_run(folder, write_run, make_micro)
    held = columns_of(open_log(folder.path))
    part = close_journal(folder)
    draft = folder.path / "segments" / "rank-00000.000001.new"
    draft.mkdir(parents=True)
    (draft / "rows.parquet").write_bytes(b"half")
    (draft / "deeper").mkdir()
    assert columns_of(open_log(folder.path)) == held

    run_to_end(seal(folder.path, part))

    assert columns_of(open_log(folder.path)) == held
    assert not draft.exists()


@pytest.mark.long
def test_sealing_a_large_journal_takes_bounded_memory(tmp_path: Path) -> None:
    # given a closed journal of 6 million row records, of which a million would take 40 MB as columns
    import subprocess
    import sys
    import textwrap

    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        import numpy as np
        from trimtab.log import records
        from trimtab.log.journal import JournalWriter
        from trimtab.log.parts import list_parts
        from trimtab.log.reader import open_log
        from trimtab.values import MicroBatch
        import duckdb

        folder = Path(sys.argv[1])
        writer = JournalWriter(folder / "rank-00000.000001.journal")
        rng = np.random.default_rng(0)
        for step in range(120):
            rows = rng.integers(0, 10**6, 50_000)
            for block in records.row_blocks([MicroBatch(step, 0, rows, rng.random(50_000, np.float32), rows % 97)])[0]:
                writer.append(block)
        writer.close()
        duckdb.connect(config={"threads": 1}).execute("select 1")
        def peak_kb():  # not ru_maxrss: that begins with what the process had that started this one
            return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
        before = peak_kb()
        from trimtab.log.sealing import seal
        for _ in seal(folder, list_parts(folder)[0]):
            pass
        print(peak_kb() - before)
    """)

    run = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)

    assert int(run.stdout) < 150 * 1024
    assert sum(block.num_records for block in open_log(tmp_path).row_blocks()) == 6_000_000
