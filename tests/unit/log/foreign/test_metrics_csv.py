"""Metric files in CSV, read through the door that every log goes through."""

import math
import random
import subprocess
import sys

import numpy as np
import pytest

from trimtab.errors import LogError
from trimtab.log.foreign.csv_block import read_columns, read_lines
from trimtab.log.foreign.csv_header import read_header
from trimtab.log.foreign.left_out import LeftOut
from trimtab.log.reader import open_log


@pytest.fixture
def csv(tmp_path):
    """Writes a file and opens it."""

    def make(data, *, name="log.csv"):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return open_log(path)

    return make


def losses(log):
    steps = log.steps().numpy()
    return {int(step): float(loss) for step, loss in zip(steps["step"], steps["loss"], strict=True)}


def test_one_line_is_one_step_with_all_that_it_says(csv):
    # given
    log = csv("step,loss,grad_norm,lr\n1,2.5,0.25,1e-4\n2,2.25,0.5,2e-4\n")
    # when
    steps = log.step_columns()
    # then
    assert not log.has_rows
    assert (steps.step.tolist(), steps.loss.tolist()) == ([1, 2], [2.5, 2.25])
    assert (steps.grad_norm.tolist(), steps.lr.tolist()) == ([0.25, 0.5], [1e-4, 2e-4])
    assert steps.num_tokens.tolist() == [-1, -1]
    assert log.notices() == []
    assert log.steps().numpy()["stepped"].tolist() == [-1, -1]


def test_a_loss_that_is_not_finite_keeps_its_kind_and_an_empty_one_is_not_measured(csv):
    log = csv("step,loss\n1,nan\n2,-inf\n3,Infinity\n4,\n5,NaN\n6,2.0\n")
    columns = log.step_columns()
    assert columns.loss[1:3].tolist() == [-math.inf, math.inf]
    assert np.isnan(columns.loss[[0, 4]]).all()
    assert columns.num_tokens.tolist() == [-1, -1, -1, 0, -1, -1]


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbfstep,loss\r\n1,2.0\r\n2,3.0\r\n",
        b"step;loss\n1;2.0\n2;3.0\n",
        b"step\tloss\n1\t2.0\n2\t3.0\n",
        b'"step","loss"\n"1","2.0"\n"2","3.0"\n',
        b"# step,loss\n1,2.0\n2,3.0\n",
        b"\n\nstep,loss\n\n1,2.0\n\n\n2,3.0\n",
        b"loss , step\n 2.0, 1\n3.0 ,2 \n",
        b"step,loss\n1.0,2.0\n2.0,3.0",
        b'step,note,loss\n1,"a, b",2.0\n2,"say ""so""",3.0\n',
    ],
)
def test_however_it_is_spelled_it_is_the_same_log(csv, data):
    log = csv(data)
    assert losses(log) == {1: 2.0, 2: 3.0}
    assert log.notices() == []


def test_a_second_header_is_read_on_under(csv):
    # given: an evaluation added a column
    log = csv("epoch,loss\n1,2.0\n2,1.9\nepoch,loss,val\n3,1.8,2.5\n4,1.7,\n")
    # then
    assert losses(log) == {1: 2.0, 2: 1.9, 3: 1.8, 4: 1.7}
    assert [(event.kind, event.step, event.facts["loss"]) for event in log.event_list()] == [("evaluation", 3, 2.5)]
    assert log.notices() == [
        "line 4 is a header with other columns: what follows was read under it",
        "no column is named as a step usually is: the epoch is read as it",
    ]


def test_a_header_in_the_middle_that_says_the_same_is_counted(csv):
    log = csv("step,loss\n1,2.0\nstep,loss\n2,1.9\nstep,loss\n3,1.8\n")
    assert losses(log) == {1: 2.0, 2: 1.9, 3: 1.8}
    assert log.notices() == ["2 lines identical to the header were left out (lines 3, 5)"]


def test_epochs_that_begin_again_are_two_runs(csv):
    log = csv("epoch,loss\n" + "".join(f"{epoch},{2 - epoch / 10}\n" for epoch in [1, 2, 3, 4, 5] * 2))
    assert log.restarts() == (2,)
    expected = "2 runs in one file, each judged by itself: steps 1 to 5 from line 2 on; steps 1 to 5 from line 7 on"
    assert expected in log.notices()


def test_without_a_step_the_line_counts_where_the_epoch_does_not(csv):
    log = csv("epoch,loss\n1,2.0\n1,1.9\n2,1.8\n")
    assert losses(log) == {2: 2.0, 3: 1.9, 4: 1.8}
    assert log.notices() == ["no column is named as a step usually is: line numbers are read as it"]


def test_steps_that_each_epoch_counts_anew_are_no_runs(csv):
    log = csv("epoch,step,loss\n" + "".join(f"{e},{s},{3 - e}\n" for e in (1, 2) for s in (1, 2, 3)))
    assert losses(log) == {1: 2.0, 2: 2.0, 3: 2.0, 4: 1.0, 5: 1.0, 6: 1.0}
    assert "step 1 of epoch 2 is step 4" in log.notices()[0]


def test_lightning_spreads_a_step_over_lines(csv):
    log = csv(
        "epoch,lr-AdamW,step,train_loss,val_loss\n0,,49,2.5,\n,0.001,49,,\n0,,60,,2.25\n0,,99,2.0,\n0,,60,,2.125\n"
    )
    steps = log.step_columns()
    assert (steps.step.tolist(), steps.loss.tolist()) == ([49, 99], [2.5, 2.0])
    assert steps.lr.tolist()[0] == 0.001
    assert [(event.step, event.facts["loss"]) for event in log.event_list()] == [(60, 2.25), (60, 2.125)]


def test_what_is_no_record_is_left_out_with_its_line(csv):
    log = csv("step,loss\n1,2.0\nx,2.0\n3,oops\n4,1,2\n5\n6,\xff\n0.5,1.0\n7,1\x002\n9,1.0\n".encode("latin-1"))
    assert losses(log) == {1: 2.0, 9: 1.0}
    assert log.notices() == [
        "2 lines without a whole number as step were left out (lines 3, 8)",
        "3 lines with a cell that is no number were left out (lines 4, 7, 9)",
        "2 lines with other than 2 cells were left out (lines 5, 6)",
    ]


def test_a_large_step_is_exact(csv):
    log = csv(f"step,loss\n{2**53 + 1},1.0\n{2**63 - 1},2.0\n{2**63},3.0\n")
    assert losses(log) == {2**53 + 1: 1.0, 2**63 - 1: 2.0}
    assert log.notices() == ["1 line without a whole number as step was left out (line 4)"]


def test_cut_at_any_byte_no_loss_comes_out_that_was_not_written(csv):
    # given
    rng = random.Random(3)
    written = {step: round(rng.uniform(1, 9), 4) for step in range(95, 125)}
    data = "step,loss\n" + "".join(f"{step},{loss:.4f}\n" for step, loss in written.items())
    for size in range(len("step,loss\n95,0.0000\n"), len(data)):
        # when
        log = csv(data[:size])
        found = losses(log)
        # then
        assert all(written[step] == loss for step, loss in found.items()), data[size - 12 : size]
        assert len(found) >= data[:size].count("\n") - 1
        is_whole = data[size - 1] == "\n" or data[size] == "\n"
        assert log.notices() == (
            [] if is_whole else [f"the last line ({data[:size].count(chr(10)) + 1}) is torn and was left out"]
        )


def test_a_line_that_is_too_long_is_left_out(csv, monkeypatch):
    monkeypatch.setattr("trimtab.log.foreign.line_blocks.MAX_LINE_BYTES", 100)
    monkeypatch.setattr("trimtab.log.foreign.line_blocks.BLOCK_BYTES", 64)
    log = csv("step,loss\n1,2.0\n2," + "3" * 500 + "\n3,1.0\n")
    assert losses(log) == {1: 2.0, 3: 1.0}
    assert "1 line longer than 16 MB was left out (line 3)" in log.notices()


def test_blocks_of_any_size_give_the_same(csv, monkeypatch):
    data = "step,loss\n" + "".join(f"{step},{step}.5\n" for step in range(200)) + "x,1\nstep,loss,val\n300,1.0,2.0\n"
    whole = csv(data)
    expected = (losses(whole), whole.notices(), whole.event_list())
    for size in (7, 64, 999):
        monkeypatch.setattr("trimtab.log.foreign.line_blocks.BLOCK_BYTES", size)
        log = csv(data)
        assert (losses(log), log.notices(), log.event_list()) == expected


def test_both_ways_to_read_a_block_agree():
    # given: lines with a few characters exchanged
    header, rng, num_read = read_header("step,loss,lr"), random.Random(0), 0
    for _ in range(5_000):
        lines = [f"{rng.randrange(100)},{rng.random():.3f},{rng.random():.1e}" for _ in range(rng.randrange(1, 4))]
        characters = list("\n".join(lines))
        for _ in range(rng.randrange(3)):
            characters[rng.randrange(len(characters))] = rng.choice("0123456789+-.eE,,\n x_")
        text = "".join(characters) + "\n"
        # when
        at_once = read_columns(text.encode(), header=header, first_line=2)
        left_out = LeftOut()
        one_by_one, _ = read_lines(enumerate(text[:-1].split("\n"), 2), header=header, left_out=left_out)
        # then
        if at_once is None:
            continue
        num_read += 1
        assert left_out.notices() == [], text
        assert (at_once.step.tolist(), at_once.place.tolist()) == (one_by_one.step.tolist(), one_by_one.place.tolist())
        for role, column in at_once.values.items():
            assert column.value.tolist() == one_by_one.values[role].value.tolist(), text
        assert at_once.shortest_end == one_by_one.shortest_end
    assert num_read > 1_000


def test_a_header_on_every_other_line_costs_no_more_than_lines_do(csv, monkeypatch):
    monkeypatch.setattr("trimtab.log.foreign.csv_reader.MAX_HEADERS", 3)
    log = csv(
        "step,loss\n" + "".join(f"step,{name}\n{step},1.0\n" for step, name in enumerate(["train_loss", "loss"] * 4))
    )
    assert sorted(losses(log)) == list(range(8))
    assert any("with yet another header" in notice for notice in log.notices())


@pytest.mark.parametrize(
    "data",
    [
        "1,2.0\n2,3.0\n",
        "name,age\nx,3\n",
        "this is what I have to say of my loss\n",
        "step,val_loss\n1,2.0\n",
        "loss of interest, norms of behaviour\n",
    ],
)
def test_a_file_whose_first_line_names_no_loss_is_no_metric_file(csv, data):
    with pytest.raises(LogError, match="as no log that is known does"):
        csv(data)


def test_a_wide_header_is_read_however_long_it_is(csv):
    names = [f"metric_{index}" for index in range(2_000)]
    log = csv(",".join(["step", *names, "loss"]) + "\n" + ",".join(["1", *["0"] * 2_000, "2.5"]) + "\n")
    assert losses(log) == {1: 2.5}


def test_a_folder_with_one_metric_file_is_that_file_and_with_two_is_refused(tmp_path, csv):
    # given
    csv("step,loss\n1,2.0\n", name="mine.csv")
    (tmp_path / "rows.csv").write_text("text,label\nhello,1\n")
    # then
    assert open_log(tmp_path).path == str(tmp_path / "mine.csv")
    csv("step,loss\n1,2.0\n", name="other.csv")
    with pytest.raises(LogError, match=r"holds 2 logs, 'mine.csv', 'other.csv'"):
        open_log(tmp_path)
    csv("step,loss\n1,2.0\n", name="metrics.csv")
    assert open_log(tmp_path).path == str(tmp_path / "metrics.csv")


def test_the_file_is_read_when_something_is_asked_for_and_once(csv, monkeypatch):
    # given
    log = csv("step,loss\n" + "1,2.0\n" * 10)
    done = []
    list(log.row_blocks(progress=done.append))
    monkeypatch.setattr("trimtab.log.foreign.csv_reader.line_blocks", None)
    # then
    assert done == [log.size_bytes]
    assert log.step_columns().num_records == 1


def test_memory_stays_bounded_however_large_a_file_of_bad_lines_is(tmp_path):
    # given: 60 MB of which nothing is a record
    path = tmp_path / "log.csv"
    with path.open("wb") as file:
        file.write(b"step,loss\n1,2.0\n")
        for _ in range(60):
            file.write((b"x" * 9_999 + b"\n") * 100)
    # when
    code = (
        "import resource, sys; from trimtab.log.reader import open_log; log = open_log(sys.argv[1]); "
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; n = log.step_columns().num_records; "
        "print(n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    said = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    # then
    num_records, grown_kb = map(int, said.split())
    assert num_records == 1
    assert grown_kb < 60_000
