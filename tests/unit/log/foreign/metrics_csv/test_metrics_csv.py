"""Metric files in CSV, read through the door that every log goes through."""

import math
import random
import subprocess
import sys

import numpy as np
import pytest

from trimtab.errors import LogError
from trimtab.log.foreign.left_out import LeftOut
from trimtab.log.foreign.metrics_csv.block import read_columns, read_lines
from trimtab.log.foreign.metrics_csv.header import read_header
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
        b"\xef\xbb\xbf# made by hand\nstep,loss\n1,2.0\n2,3.0\n",
        b"\n\nstep,loss\n\n1,2.0\n\n\n2,3.0\n",
        b"loss , step\n 2.0, 1\n3.0 ,2 \n",
        b"step,loss\n1.0,2.0\n2.0,3.0\n\t",
        b"# made by hand\n#, twice\n\nstep,loss\n1,2.0\n2,3.0\n",
        b"step,loss\r1,2.0\r2,3.0\r",
        b"# made by hand\rstep,loss\r1,2.0\r2,3.0\r",
        b'step,note,loss\n1,"a, b",2.0\n2,"say ""so""",3.0\n',
    ],
)
def test_however_it_is_spelled_it_is_the_same_log(csv, data):
    log = csv(data)
    assert losses(log) == {1: 2.0, 2: 3.0}
    assert log.notices() == []


def test_files_put_together_are_one_whose_headers_and_byte_order_marks_repeat(csv):
    log = csv("\ufeffstep,loss\n1,2.0\n\ufeffstep,loss\n2,3.0\n".encode())
    assert losses(log) == {1: 2.0, 2: 3.0}
    assert log.notices() == ["1 line identical to the header was left out (line 3)"]


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
        "3 lines with a loss that is no number were left out (lines 4, 7, 9)",
        "1 line with more than 2 cells was left out (line 5)",
        "1 line with fewer than 2 cells was left out (line 6)",
    ]


@pytest.mark.parametrize(
    ("names", "cells", "said"),
    [
        ("step,loss,lr", "30,50,warmup", "with no number under 'lr'"),
        ("epoch,step,loss", "1/40,30,50", "with no number under 'epoch'"),
        ("step,lr,loss", "30,1e-4(w),50", "with no number under 'lr'"),
        ("step,loss,val_loss", "30,50,n.a.", "with a bad evaluation"),
        ("step,loss,grad_norm", "30,50,?", "with no number under 'grad_norm'"),
        ("step,loss,grad_norm", "30,50", "with fewer than 3 cells"),
        ("step,grad_norm,loss", "30,50", "with fewer than 3 cells"),
    ],
)
def test_a_cell_that_is_none_costs_itself_alone(csv, names, cells, said):
    # given: line 31 of a log, and then every line of it
    good = dict(zip(names.split(","), cells.split(","), strict=False)) | {"loss": "2.0", "lr": "1e-4"}
    lines = [",".join({**good, "step": str(step)}.get(name, "1") for name in names.split(",")) for step in range(1, 41)]
    lines = [line.replace("1/40", "1").replace("n.a.", "1").replace("?", "1") for line in lines]
    lines[29] = cells
    log = csv("\n".join([names, *lines]) + "\n")
    # then
    columns = log.step_columns()
    assert columns.step.tolist() == [*range(1, 41)]
    measured = columns.grad_norm if names == "step,grad_norm,loss" else columns.loss
    assert measured[29] == 50.0
    assert log.notices() == [f"1 line {said} was read without it (line 31)"]
    assert csv("\n".join([names, *[cells] * 40]) + "\n").step_columns().num_records == 1


def test_what_a_quoted_cell_holds_is_no_record(csv):
    log = csv('step,note,loss\n1,"a\n7,x,99\n",2.5\n2,"says ""so""\n\n8,""y"",98\n",2.25\n3,5" or 6",2.0\n4,z,1.75\n')
    assert losses(log) == {1: 2.5, 2: 2.25, 3: 2.0, 4: 1.75}
    assert log.notices() == []


def test_quotes_that_are_not_closed_cost_the_line_they_open_in(csv, monkeypatch):
    monkeypatch.setattr("trimtab.log.foreign.metrics_csv.quotes.MAX_LINES", 4)
    log = csv('step,loss,note\n1,2.0,"a\n' + "".join(f"{step},1.0,b\n" for step in range(2, 9)))
    assert sorted(losses(log)) == [*range(2, 9)]
    assert log.notices() == ["1 line with quotes that are not closed was left out (line 2)"]
    # and: two of them make no record of what stands between
    log = csv('step,note,loss\n1,"a,2.0\n2,b,1.5\n3,c",9,1.0\n4,d,0.5\n')
    assert losses(log) == {2: 1.5, 4: 0.5}


def test_quotes_that_the_end_of_the_file_leaves_open_hide_no_phantom(csv):
    log = csv('step,note,loss\n1,a,2.0\n2,"b\n7,x,99\n')
    assert losses(log) == {1: 2.0}
    assert log.notices() == ["2 lines with quotes that are not closed were left out (lines 3, 4)"]


def test_of_two_columns_of_one_name_the_first_is_read_and_it_is_said(csv):
    log = csv("step,loss,loss\n1,2.0,3.0\n")
    assert (losses(log), log.notices()) == ({1: 2.0}, ["the column 'loss' stands twice: the first was read"])


@pytest.mark.parametrize("last", ["41,1.5", "0.5,30", "41", '41,"1.5', "41,1.5,"])
@pytest.mark.parametrize("names", ["step,loss", "loss,step", "step,loss,lr"])
def test_a_last_line_without_an_end_is_never_read(csv, names, last):
    cells = {"step,loss": "{0},2.0", "loss,step": "2.0,{0}", "step,loss,lr": "{0},2.0,1.0"}[names]
    lines = [names, *(cells.format(step) for step in range(1, 41)), last]
    log = csv("\n".join(lines))
    assert losses(log) == dict.fromkeys(range(1, 41), 2.0)
    assert log.notices() == ["the last line (42) has no line end and was left out: it may be torn"]


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
        num_whole = data[:size].count("\n")
        assert len(found) == num_whole - 1
        said = f"the last line ({num_whole + 1}) has no line end and was left out: it may be torn"
        assert log.notices() == ([] if data[size - 1] == "\n" else [said])


def test_a_line_that_is_too_long_is_left_out(csv, monkeypatch):
    monkeypatch.setattr("trimtab.log.foreign.line_blocks.MAX_LINE_BYTES", 100)
    monkeypatch.setattr("trimtab.log.foreign.line_blocks.BLOCK_BYTES", 64)
    log = csv("step,loss\n1,2.0\n2," + "3" * 500 + "\n3,1.0\n")
    assert losses(log) == {1: 2.0, 3: 1.0}
    assert "1 line longer than 16 MB was left out (line 3)" in log.notices()


def test_blocks_of_any_size_give_the_same(csv, monkeypatch):
    data = "step,loss\n" + "".join(f"{step},{step}.5\n" for step in range(200)) + "x,1\nstep,loss,val\n300,1.0,2.0\n"
    data += 'step,loss,note\n301,1.0,"a\n7,99,98\n""b""\n"\n302,1.0,c\n'
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
        numbered = enumerate(text[:-1].split("\n"), 2)
        one_by_one, _ = read_lines(numbered, header=header, left_out=left_out, unread=left_out)
        # then
        if at_once is None:
            continue
        num_read += 1
        assert left_out.notices() == [], text
        assert (at_once.step.tolist(), at_once.place.tolist()) == (one_by_one.step.tolist(), one_by_one.place.tolist())
        for role, column in at_once.values.items():
            assert column.value.tolist() == one_by_one.values[role].value.tolist(), text
    assert num_read > 1_000


def test_a_header_on_every_other_line_costs_no_more_than_lines_do(csv, monkeypatch):
    monkeypatch.setattr("trimtab.log.foreign.metrics_csv.reader.MAX_HEADERS", 3)
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


def test_of_lightnings_versions_the_newest_that_is_a_log_is_read_and_it_is_said(tmp_path):
    # given: by number, not by name
    for number, content in ((2, "step,loss\n1,2.0\n"), (10, "step,loss\n1,3.0\n")):
        (tmp_path / f"version_{number}").mkdir()
        (tmp_path / f"version_{number}" / "metrics.csv").write_text(content)
    log = open_log(tmp_path)
    # then
    assert losses(log) == {1: 3.0}
    assert log.notices() == [f"2 folders like version_10 are in {tmp_path}; the newest, version_10, was read"]
    # and: a run that was only begun hides none
    (tmp_path / "version_11").mkdir()
    (tmp_path / "version_11" / "metrics.csv").write_text("")
    log = open_log(tmp_path)
    assert losses(log) == {1: 3.0}
    assert log.notices() == [
        "nothing could be read from metrics.csv of version_11: version_10 was read, the newest before"
    ]


def test_a_wide_comment_is_looked_past(csv):
    assert losses(csv("# " + "x" * 10_000 + "\nstep,loss\n1,2.0\n")) == {1: 2.0}


def test_the_file_is_read_when_something_is_asked_for_and_once(csv, monkeypatch):
    # given
    log = csv("step,loss\n" + "1,2.0\n" * 10)
    done = []
    list(log.row_blocks(progress=done.append))
    monkeypatch.setattr("trimtab.log.foreign.metrics_csv.reader.line_blocks", None)
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
        # Not ru_maxrss: that begins with what the process had that started this one.
        "import sys; from trimtab.log.reader import open_log; log = open_log(sys.argv[1]); "
        "peak_kb = lambda: int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]); "
        "before = peak_kb(); n = log.step_columns().num_records; print(n, peak_kb() - before)"
    )
    said = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    # then
    num_records, grown_kb = map(int, said.split())
    assert num_records == 1
    assert grown_kb < 60_000
