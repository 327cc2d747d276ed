"""Findings get the text of their rows, and nothing but plain text."""

import json

import numpy as np
import pytest

from trimtab.analysis import rewind
from trimtab.analysis.previews import PREVIEW_CHARS, preview, row_repetition
from trimtab.dataset import describe
from trimtab.dataset.row_text import read_row
from trimtab.log.folder import create_run
from trimtab.recorder import Recorder
from trimtab.values import MicroBatch, RunHeader, StepRow

HOSTILE = (
    "\x1b[31mred\x1b]8;;http://x\x07\u202eevil\u2066 <script>alert(1)</script> [bold]x[/bold] \udc80\x00\x9b1m\n\tnew"
)


def preview_of(row):
    text = read_row(row)
    return preview(text, repeated=row_repetition(text))


@pytest.fixture
def record(tmp_path):
    """A run of 30 steps over the rows, of which row 3 makes step 25; gives its folder."""

    def make(rows, **fields):
        facts = describe(rows)
        header = RunHeader(
            run_id="r",
            backend="torch",
            num_rows=facts.num_rows,
            dataset_fingerprint=facts.fingerprint,
            dataset_files=facts.files.paths,
            dataset_index_files=facts.files.index_paths,
            dataset_columns=facts.files.columns,
            **fields,
        )
        folder = create_run(tmp_path, header)
        recorder = Recorder(folder)
        for step in range(1, 31):
            losses = [9_000.0 if step == 25 else 100.0, 100.0]
            recorder.put(MicroBatch(step, 0, [3, step % 3], losses, [50, 50]))
            recorder.put(StepRow(step, sum(losses) / 100, 1.0, 1e-3))
        recorder.close(timeout_s=30)
        return folder.path

    return make


# ---------------------------------------------------------------------------------------------- one line


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ("to be", "to be"),
        ({"text": "a\nb\t\\"}, "a\\nb\\t\\"),
        ("x" * PREVIEW_CHARS, "x" * PREVIEW_CHARS),
        ({"input_ids": list(range(24))}, "token ids " + " ".join(map(str, range(24)))),
        ({"input_ids": list(range(100))}, "token ids 0 1 2 3 4 5 6 7 ... 92 93 94 95 96 97 98 99"),
        ([*range(50), *[9] * 50], "token ids 0 1 2 3 4 5 6 7 ... (43 x) 9 9 9 9 9 9 9 9 ... 9 9 9 9 9 9 9 9"),
    ],
)  # fmt: skip
def test_a_preview(row, line):
    assert preview_of(row) == line


def test_a_long_row_shows_its_start_the_span_it_repeats_and_its_end():
    text = (
        "The beginning of it. "
        + "".join(map(chr, range(0x4E00, 0x4E80)))
        + "Say it again! " * 90
        + "And this is how it ends."
    )
    start, span, end = preview_of({"text": text}).split(" ... ")
    assert start.startswith("The beginning of it. \\u4e00")
    assert span.startswith("(90 x) ")
    assert span.removeprefix("(90 x) ") in "Say it again! " * 4
    assert end.endswith("And this is how it ends.")


def test_a_short_row_whose_escapes_are_long_is_cut_with_a_mark_and_keeps_its_end():
    # given: 19 characters of 6 each fill the line, 20 fill it wholly, and 21 do not fit
    for size in (19, 20):
        assert preview_of("\u4e2d" * size) == "\\u4e2d" * size
    assert preview_of("\u4e2d" * 21) == "\\u4e2d" * 8 + " ... (19 x) " + "\\u4e2d" * 6 + " ... " + "\\u4e2d" * 6
    prose = "".join(map(chr, range(0x4E00, 0x4E64)))
    assert preview_of(prose).split(" ... ") == [
        "".join(f"\\u{ord(char):04x}" for char in part) for part in (prose[:8], prose[-6:])
    ]
    # then: neither is the end of lines that are short as they stand, and long once spelled
    assert preview_of("x\n" * 55 + "THE END").endswith("x\\nTHE END")


@pytest.mark.parametrize("size", [118, 119, 120, 121, 122])
def test_a_row_is_whole_or_says_that_it_is_not(size):
    for text in ("a" * size, "\n" * (size // 2), "a" * (size - 2) + "\n", "a" * (size - 6) + "\u4e2d"):
        line = preview_of(text)
        whole = text.encode("unicode_escape").decode("ascii")
        assert (line == whole) == (len(whole) <= PREVIEW_CHARS)
        assert line == whole or " ... " in line


def test_a_long_row_that_repeats_nothing_shows_its_start_and_end():
    text = " ".join(str(number) for number in range(2_000))
    assert (
        preview_of(text) == "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 1 ... 2 1993 1994 1995 1996 1997 1998 1999"
    )


@pytest.mark.parametrize("times", [1, 2, 50])
@pytest.mark.parametrize(
    "wrap", [str, lambda text: {"text": text}, lambda text: {text: text, "n": 1}, lambda text: [text]]
)
def test_hostile_text_is_plain_and_short(wrap, times):
    line = preview_of(wrap(HOSTILE * times))
    assert all(" " <= char <= "~" for char in line)
    assert len(line) <= PREVIEW_CHARS + 40
    assert "\\x1b[31m" in line


@pytest.mark.parametrize(
    "row", [b"\x89PNG\x00" * 1_000, {"image": {"bytes": b"\xff\xd8" * 9_999}}, np.zeros((4, 4)), None, {}]
)
def test_what_is_no_text_has_a_line_all_the_same(row):
    line = preview_of(row)
    assert line.isascii()
    assert len(line) <= PREVIEW_CHARS + 40


def test_a_row_of_a_hundred_megabytes_has_a_preview():
    line = preview_of({"text": "A" + "\\" * 100_000_000 + "Z"})
    assert line.startswith("A\\\\\\")
    assert line.endswith("\\Z")
    assert " x) \\\\" in line


# ---------------------------------------------------------------------------------------------- findings


def test_the_dataset_itself_gives_previews(record):
    # given
    rows = [{"text": f"text of row {row}"} for row in range(10)]
    rows[3] = {"text": "\\" * 500}
    folder = record(rows)
    # when
    with_data, without = rewind(folder, data=rows), rewind(folder)
    # then
    assert with_data.rows[0].row == 3
    assert with_data.rows[0].preview.startswith("\\" * 48)
    assert with_data.rows[0].repetition == 1.0
    assert with_data.rows[1].preview == f"text of row {with_data.rows[1].row}"
    assert with_data.rows[1].repetition == 0.0
    assert with_data.preview_withheld is None
    # then: nothing else is different
    assert without.preview_withheld == "the rows were only in memory; pass --data"
    assert [row.preview for row in without.rows] == [None, None]
    assert [row.repetition for row in without.rows] == [None, None]
    for ours, theirs in zip(with_data.rows, without.rows, strict=True):
        assert (ours.row, ours.share, ours.excess) == (theirs.row, theirs.share, theirs.excess)
    assert with_data.notices == without.notices


def test_other_data_gives_none(record):
    rows = [{"text": f"text of row {row}"} for row in range(10)]
    found = rewind(record(rows), data=rows[::-1])
    assert [row.preview for row in found.rows] == [None, None]
    assert found.preview_withheld.startswith("a list of 10 rows has as many rows as the run's dataset, but other ones")
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["preview_withheld"] == found.preview_withheld


def test_data_without_a_row_to_look_up_is_said_to_have_no_use(record, tmp_path):
    # given: a log of steps alone, and a run of which no step is out of line
    rows = [{"text": f"text of row {row}"} for row in range(10)]
    (tmp_path / "metrics.csv").write_text("step,loss\n" + "".join(f"{step},2.5\n" for step in range(1, 41)))
    quiet = [{"kind": "batch", "step": step, "micro": 0, "rows": [1], "row_loss": [2.0], "row_tokens": [5]}
             for step in range(1, 41)]  # fmt: skip
    (tmp_path / "rewind.jsonl").write_text("".join(json.dumps(line) + "\n" for line in quiet))
    # then
    assert rewind(tmp_path / "metrics.csv", data=rows).preview_withheld == "this log holds no rows, only steps"
    assert rewind(tmp_path / "metrics.csv").preview_withheld is None
    withheld = rewind(tmp_path / "rewind.jsonl", data=rows).preview_withheld
    assert withheld == "no step is out of line, so none is listed; --step N lists the rows of one"
    assert rewind(tmp_path / "rewind.jsonl").preview_withheld is None


def test_data_for_a_step_of_which_no_rows_were_recorded_is_said_to_have_no_use(tmp_path):
    folder = create_run(tmp_path, RunHeader(run_id="r", backend="torch"))
    recorder = Recorder(folder)
    recorder.put(MicroBatch(1, 0, [3], [100.0], [50]))
    for step in (1, 2):
        recorder.put(StepRow(step, 2.0, 1.0, 1e-3, num_tokens=50))
    recorder.close(timeout_s=30)
    assert rewind(folder.path, step=2, data=["x"]).preview_withheld == "no rows of step 2 were recorded"


def test_a_saved_dataset_gives_previews_by_itself_and_what_was_read_is_said(record, tmp_path):
    datasets = pytest.importorskip("datasets")
    # given
    rows = [{"text": f"text of row {row}"} for row in range(10)]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    table = datasets.load_from_disk(tmp_path / "saved").shuffle(seed=1)
    # when
    found = rewind(record(table))
    # then
    assert found.rows[0].preview == table[3]["text"]
    assert found.notices[-1].startswith(f"the rows were read from {tmp_path / 'saved'}")


def test_a_transform_of_the_dataset_is_not_called(record):
    datasets = pytest.importorskip("datasets")
    calls = []
    table = datasets.Dataset.from_list([{"text": f"row {row}"} for row in range(10)])
    watched = table.with_transform(lambda batch: calls.append(1) or batch)
    assert rewind(record(watched), data=watched).rows[0].preview == "row 3"
    assert calls == []


def test_a_notebook_shows_hostile_text_as_text(record):
    rows = [{"text": HOSTILE} for _ in range(10)]
    page = rewind(record(rows), data=rows)._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert page.isascii()
    assert all(char >= " " for char in page)


def test_a_loop_of_ones_own_over_a_saved_dataset_gives_previews_by_itself(tmp_path):
    torch = pytest.importorskip("torch")
    datasets = pytest.importorskip("datasets")
    from trimtab.torch.run import Run

    # given
    datasets.Dataset.from_list([{"text": f"row {row}"} for row in range(10)]).save_to_disk(tmp_path / "saved")
    table = datasets.load_from_disk(tmp_path / "saved")
    # when
    with Run(
        tmp_path,
        model=(model := torch.nn.Linear(1, 1)),
        dataset=table,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
    ) as run:
        for step in range(30):
            losses = model(torch.ones(2, 1)).square() + torch.tensor([[50.0 if step == 25 else 1.0], [1.0]])
            run.micro_batch(losses, rows=torch.tensor([7, step % 7])).backward()
            run.step()
    # then
    assert rewind(run).rows[0].preview == "row 7"
