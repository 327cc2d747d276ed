"""Sealed segments, damaged in every way: never a wrong record, a wrong byte costs its group, always said where."""

import json
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trimtab.log import records, sealing
from trimtab.log.columns import RowColumns
from trimtab.log.folder import create_run
from trimtab.log.journal import JournalWriter
from trimtab.log.reader import Log, open_log
from trimtab.values import Event, MicroBatch, RowIds, RunHeader, StepRow

HEADER = RunHeader(run_id="a", backend="torch", created=1.7e9)
NUM_STEPS = 3000


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory, seal_journal: Callable[..., Path]) -> Path:
    """A sealed run of 3,000 steps: rows, steps and ids in two row groups each, events in several groups."""
    folder = create_run(tmp_path_factory.mktemp("run"), HEADER)
    steps = np.arange(1, NUM_STEPS + 1)
    writer = JournalWriter(folder.path / "rank-00000.journal")
    for blocks, _ in (
        records.row_blocks([MicroBatch(step, 0, [step * 7], [step / 8], [step % 50 + 1]) for step in steps.tolist()]),
        records.step_blocks([StepRow(step, step / 8, step / 4, step / 16) for step in steps.tolist()]),
        records.event_blocks([Event("e", step, float(step), {"loss": step / 8}) for step in range(1, 1001)]),
        records.id_blocks([RowIds(steps * 7, names=[f"row {step * 7}" for step in steps.tolist()])]),
    ):
        for block in blocks:
            writer.append(block)
    writer.close()
    with pytest.MonkeyPatch.context() as patch:
        for name, kind in sealing.KINDS.items():
            patch.setitem(sealing.KINDS, name, kind._replace(group=2048))
        patch.setattr(sealing, "_LINES_BYTES", 20_000)
        seal_journal(folder)
    return folder.path


@pytest.fixture
def segment(tmp_path: Path, whole_run: Path) -> Path:
    """A copy of the run's segment, in a copy of the run."""
    shutil.copytree(whole_run, tmp_path / "a")
    return tmp_path / "a" / "segments" / "rank-00000.000001"


def run_of(segment: Path) -> Path:
    return segment.parents[1]


def wrong_records(log: Log) -> list[str]:
    """What is not as it was written: an independent spelling of the same formulas."""
    wrong = []
    for block in log.row_blocks():
        columns = (block.step.tolist(), block.row.tolist(), block.loss_sum.tolist(), block.num_tokens.tolist())
        wrong += [
            f"row {row} of step {step}"
            for step, row, loss, tokens in zip(*columns, strict=True)
            if (row, loss, tokens) != (step * 7, step / 8, step % 50 + 1)
        ]
    steps = log.step_columns()
    wrong += [
        f"step {step}"
        for step, loss, norm, lr in zip(
            *(c.tolist() for c in (steps.step, steps.loss, steps.grad_norm, steps.lr)), strict=True
        )
        if (loss, norm, lr) != (step / 8, step / 4, step / 16)
    ]
    wrong += [f"{event}" for event in log.event_list() if event.facts != {"loss": event.step / 8}]
    ids = log.id_columns()
    return wrong + [f"{name}" for row, name in zip(ids.row, ids.name, strict=True) if name != f"row {row}"]


def counts(log: Log) -> dict[str, int]:
    return {
        "rows": sum(block.num_records for block in log.row_blocks()),
        "steps": log.step_columns().num_records,
        "events": len(log.event_list()),
        "ids": log.id_columns().num_records,
    }


FULL = {"rows": NUM_STEPS, "steps": NUM_STEPS, "events": 1000, "ids": NUM_STEPS}


def info_of(segment: Path) -> dict:
    return json.loads((segment / "segment.json").read_bytes())


def sign(segment: Path, info: dict) -> None:
    """Writes `segment.json` with a checksum that is right."""
    info = {name: value for name, value in info.items() if name != "crc32"}
    rest = json.dumps(info)[1:].encode()
    (segment / "segment.json").write_bytes(b'{"crc32": "%08x",\n' % zlib.crc32(rest) + rest)


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 0x10
    file.write_bytes(data)


def test_a_good_segment_has_nothing_to_say(segment: Path) -> None:
    log = open_log(run_of(segment))

    assert (counts(log), wrong_records(log), log.notices()) == (FULL, [], [])
    assert [len(info_of(segment)["files"][name]["groups"]) for name in ("rows.parquet", "ids.parquet")] == [2, 2]
    assert log.size_bytes == sum(file.stat().st_size for file in segment.iterdir() if file.name != "segment.json")


@pytest.mark.parametrize("name", ["rows.parquet", "steps.parquet", "ids.parquet", "events.jsonl"])
@pytest.mark.parametrize("which", [0, -1])
def test_a_wrong_byte_costs_its_group_and_is_said_with_place_and_steps(segment: Path, name: str, which: int) -> None:
    groups = info_of(segment)["files"][name]["groups"]
    hurt = groups[which]
    flip(segment / name, hurt["offset"] + hurt["size_bytes"] // 2)

    log = open_log(run_of(segment))

    kind = name.partition(".")[0]
    assert counts(log) == FULL | {kind: FULL[kind] - hurt["num_records"]}
    assert wrong_records(log) == []
    (line,) = log.notices()
    place = f"from byte {hurt['offset']} to byte {hurt['offset'] + hurt['size_bytes']}"
    steps = "" if kind == "ids" else f" of steps {hurt['first_step']} to {hurt['last_step']}"
    assert line.startswith(f"segments/rank-00000.000001/{name}: damaged {place}: {hurt['num_records']} ")
    assert line.endswith(f"{steps} left out")


@pytest.mark.parametrize("name", ["rows.parquet", "steps.parquet", "ids.parquet"])
@pytest.mark.parametrize("place", [0, 3, -1, -5, -60])
def test_a_wrong_byte_in_the_index_costs_its_file_and_no_other(segment: Path, name: str, place: int) -> None:
    flip(segment / name, place)

    log = open_log(run_of(segment))

    kind = name.partition(".")[0]
    assert counts(log) == FULL | {kind: 0}
    assert wrong_records(log) == []
    (line,) = log.notices()
    assert "damaged in its index" in line
    assert f"{FULL[kind]} " in line
    assert kind == "ids" or line.endswith(f"of steps 1 to {NUM_STEPS} left out")


@pytest.mark.parametrize("name", ["rows.parquet", "steps.parquet", "ids.parquet", "events.jsonl"])
@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "and should have"),
        (lambda file: file.write_bytes(b""), "has 0 bytes"),
        (lambda file: file.write_bytes(file.read_bytes() + b"x"), "and should have"),
        (lambda file: file.unlink(), "cannot be read (No such file or directory)"),
        (lambda file: file.rename(file.with_name("a")) and file.symlink_to("a"), "cannot be read (Too many levels"),
        (lambda file: (file.unlink(), file.mkdir()), "cannot be read (it is no file)"),
    ],
    ids=["cut", "empty", "longer", "gone", "link", "folder"],
)
def test_a_file_that_is_not_there_or_not_whole_costs_its_records(
    segment: Path, name: str, spoil: Callable[[Path], object], found: str
) -> None:
    spoil(segment / name)

    log = open_log(run_of(segment))

    kind = name.partition(".")[0]
    assert counts(log) == FULL | {kind: 0}
    assert wrong_records(log) == []
    (line,) = log.notices()
    assert line.startswith(f"segments/rank-00000.000001/{name}: ")
    assert found in line


@pytest.mark.parametrize("spoil", [lambda file: file.unlink(), lambda file: flip(file, 40)], ids=["gone", "flipped"])
def test_without_its_list_a_segment_is_left_out_and_said(segment: Path, spoil: Callable[[Path], None]) -> None:
    spoil(segment / "segment.json")

    log = open_log(run_of(segment))

    assert counts(log) == dict.fromkeys(FULL, 0)
    (line,) = log.notices()
    assert re.match(
        r"segments/rank-00000.000001: its segment.json (cannot be read|has a wrong checksum).*was left out", line
    )


def test_steps_that_are_not_asked_for_are_not_read(segment: Path) -> None:
    first, _ = info_of(segment)["files"]["rows.parquet"]["groups"]
    flip(segment / "rows.parquet", first["offset"] + 5)
    log = open_log(run_of(segment))

    rows = [block.step.tolist() for block in log.row_blocks(first_step=NUM_STEPS)]

    assert rows == [[NUM_STEPS]]
    assert list(log.row_blocks(first_step=NUM_STEPS + 1)) == []
    assert [block.num_records for block in log.row_blocks(last_step=0)] == []


def test_rows_that_are_not_asked_for_need_not_be_read(segment: Path) -> None:
    # when: two rows are asked for, of 3,000
    blocks = list(open_log(run_of(segment)).row_blocks(rows=np.array([7, 2100 * 7])))
    # then: they are there, as they were written, and nothing is amiss
    assert [block.row.tolist() for block in blocks] == [[7], [2100 * 7]]
    assert [block.loss_sum.tolist() for block in blocks] == [[1 / 8], [2100 / 8]]
    assert [block.rank.tolist() for block in blocks] == [[0], [0]]
    # and: a list too long to be named one by one gives all
    assert sum(block.num_records for block in open_log(run_of(segment)).row_blocks(rows=np.arange(2000))) == NUM_STEPS


def test_brief_row_records_have_all_that_the_loss_of_a_step_is_made_of(segment: Path) -> None:
    log = open_log(run_of(segment))
    whole, brief = RowColumns.concat(log.row_blocks()), RowColumns.concat(log.row_blocks(brief=True))
    for name in ("attempt", "step", "rank", "loss_sum", "num_tokens", "keep"):
        np.testing.assert_array_equal(getattr(brief, name), getattr(whole, name))
        assert getattr(brief, name).dtype == getattr(whole, name).dtype
    assert whole.row.any()
    assert not brief.row.any()


def test_records_of_other_steps_are_not_handed_on(segment: Path) -> None:
    # given row groups of 2,048 records, one a step
    log = open_log(run_of(segment))
    # when
    blocks = list(log.row_blocks(first_step=2040, last_step=2050))
    # then
    assert [block.step.tolist() for block in blocks] == [list(range(2040, 2049)), [2049, 2050]]
    assert list(log.row_blocks(rows=np.array([3]))) == []  # rows are multiples of 7: no block is empty


def test_brief_step_records_are_the_whole_ones_without_their_details(segment: Path) -> None:
    log = open_log(run_of(segment))
    whole, brief = log.step_columns(), log.step_columns(brief=True)
    for name in ("attempt", "rank", "step", "loss", "grad_norm", "has_grad_norm", "reason", "num_tokens"):
        np.testing.assert_array_equal(getattr(brief, name), getattr(whole, name))
    assert not brief.has_lr.any()
    assert np.isnan(brief.lr).all()
    assert set(brief.clipped.tolist()) == {-1}
    assert whole.has_lr.all()


def test_a_segment_of_another_run_is_left_out_and_said(segment: Path) -> None:
    sign(segment, info_of(segment) | {"run_id": "b"})

    log = open_log(run_of(segment))

    assert counts(log)["rows"] == 0
    assert log.notices() == [
        "segments/rank-00000.000001: its segment.json belongs to another run; the segment was left out"
    ]


def test_a_segment_that_stands_twice_is_read_once(segment: Path) -> None:
    shutil.copytree(segment, segment.with_name("rank-00000.000002"))
    shutil.copytree(segment, segment.with_name("rank-00001.000001"))

    log = open_log(run_of(segment))

    assert counts(log) == FULL
    assert [line.partition(":")[0] for line in log.notices()] == [
        "segments/rank-00000.000002",
        "segments/rank-00001.000001",
    ]
    assert all("is that of part 1 of rank 0: a copy" in line for line in log.notices())


def test_a_parquet_whose_counts_are_not_those_of_its_list_is_left_out(segment: Path) -> None:
    # given a list that is signed, and says that the first group has a record more, the second one less
    info = info_of(segment)
    first, second = info["files"]["rows.parquet"]["groups"]
    first["num_records"] += 1
    second["num_records"] -= 1
    sign(segment, info)

    log = open_log(run_of(segment))

    assert counts(log) == FULL | {"rows": 0}
    assert "has other row groups than its segment says" in log.notices()[0]


def test_many_damaged_groups_are_counted_and_not_listed_one_by_one(segment: Path) -> None:
    info = info_of(segment)
    lines = (segment / "events.jsonl").read_bytes().splitlines(keepends=True)[:50]
    place = 0
    groups = []
    for line in lines:
        groups.append(
            {"offset": place, "size_bytes": len(line), "crc": 1, "num_records": 1, "first_step": 1, "last_step": 1}
        )
        place += len(line)
    (segment / "events.jsonl").write_bytes(b"".join(lines))
    info["files"]["events.jsonl"] = {"size_bytes": place, "rest_crc": 0, "groups": groups}
    sign(segment, info)

    lines = open_log(run_of(segment)).notices()

    assert len(lines) == 21
    assert lines[-1] == "segments/rank-00000.000001: 30 more damaged places"
