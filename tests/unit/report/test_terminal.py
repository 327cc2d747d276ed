"""What a person sees."""

import math

import pytest

HOSTILE = "\x1b[31mred\x1b]8;;http://x\x07\u202eevil\u2066 [bold]markup[/bold] :smile: \udc80 \x00\x9b1m\n\tnew"


def test_the_findings_are_drawn_with_everything_about_them(draw, make_findings):
    text = draw(make_findings())
    assert "Run 20261129-210313-a1b2c3: 9 steps, rule robust" in text
    assert "read from runs/a/trimtab/20261129-210313-a1b2c3" in text
    row = next(line for line in text.splitlines() if line.startswith("warning"))
    assert " ".join(row.split()) == "warning 9 spike 7.8429 0.955 8.2124 - median 17 98.4 %"
    assert "row 17: 98% of step 9's loss, 300 tokens\nInspect or drop this row, then retrain." in text
    assert "17 1 9 300 98.4 % +8.045" in [" ".join(line.split()) for line in text.splitlines()]


def test_no_finding_is_said(draw, make_findings):
    text = draw(make_findings(spikes=(), step=None, step_reason=None, rows=()))
    assert "No spike: none of the 9 steps is out of line." in text
    assert "Preview" not in text
    text = draw(make_findings(spikes=(), step=None, step_reason=None, rows=(), num_steps=1))
    assert "No spike: its one step is not out of line." in text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_what_is_not_finite_has_no_ratio(draw, make_findings, make_spike, value):
    text = draw(make_findings(spikes=(make_spike(kind="nonfinite", severity="critical", value=value),)))
    row = next(line for line in text.splitlines() if line.startswith("critical"))
    assert row.split()[3:6] == [f"{value:.5g}", "0.955", "-"]


def test_a_stretch_shows_its_ends_and_a_dead_norm_its_signal(draw, make_findings, make_spike):
    stretch = make_spike(first=8, last=20, kind="nonfinite", value=math.nan, severity="critical")
    norm = make_spike(kind="nonfinite", signal="grad_norm", value=math.inf, severity="critical")
    text = draw(make_findings(spikes=(stretch, norm)))
    assert "8-20   nonfinite " in text
    assert "nonfinite norm" in text


def test_twenty_findings_are_listed_and_the_rest_counted(draw, make_findings, make_spike):
    spikes = tuple(make_spike(step=step, first=step, last=step) for step in range(1, 26))
    text = draw(make_findings(spikes=spikes, spikes_left_out=7))
    assert sum(line.startswith("warning") for line in text.splitlines()) == 20
    assert "and 12 more" in text


def test_rows_without_tokens_say_so_and_rows_cut_are_counted(draw, make_findings, make_row):
    rows = (make_row(), make_row(row=2, loss=None, share=0.0, tokens=0, excess=None))
    text = draw(make_findings(rows=rows, rows_left_out=6))
    assert "no supervised tokens" in text
    assert "and 6 more rows; --top" in text
    assert "and 1 more row; --top" in draw(make_findings(rows=rows, rows_left_out=1))


def test_the_missing_preview_is_explained_unless_not_wanted(draw, make_findings):
    withheld = "the rows were only in memory; pass --data"
    assert f"Preview withheld: {withheld}\n" in draw(make_findings(preview_withheld=withheld))
    assert "Preview" not in draw(make_findings())


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
@pytest.mark.parametrize("field", ["run_id", "source", "notices"])
def test_hostile_text_is_shown_as_escapes_in_every_encoding(draw, make_findings, field, encoding):
    text = draw(make_findings(**{field: (HOSTILE,) if field == "notices" else HOSTILE}), encoding=encoding)
    assert text.isascii()
    assert all(char == "\n" or " " <= char <= "~" for char in text)
    assert r"\x1b[31mred\x1b]8;;" in text
    assert r"\u202eevil\u2066 [bold]markup[/bold] :smile: \udc80" in text


def test_a_long_text_is_cut(draw, make_findings):
    assert len(draw(make_findings(notices=("x" * 10_000_000,)))) < 10_000


def test_the_rank_is_shown_where_there_was_more_than_one(draw, make_findings, make_row):
    assert "rank" not in draw(make_findings())
    text = draw(make_findings(num_ranks=2, rows=(make_row(rank=1), make_row(row=5))))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "row count loss tokens share excess rank" in lines
    assert "17 1 9 300 98.4 % +8.045 1" in lines
    # then: a log that does not say how many ranks there were, and names one
    assert "rank" in draw(make_findings(rows=(make_row(rank=3),)))


def test_a_narrow_terminal_gets_whole_lines_with_what_they_are_sorted_by(draw, make_findings, make_spike):
    spikes = (make_spike(first=13555, last=22090, kind="grad_norm", value=262623.331, row=1234567, score=20.5512),)
    text = draw(make_findings(spikes=spikes), width=80)
    line = next(line for line in text.splitlines() if line.startswith("warning"))
    assert " ".join(line.split()) == "warning 13555-22090 grad_norm 2.6262e+05 2.75e+05 20.551 1234567 98.4 %"


def test_notices_are_not_broken_into_lines(draw, make_findings):
    notice = "word " * 60
    assert f"Note: {notice}".rstrip() in draw(make_findings(notices=(notice,)), width=60)


def test_what_rows_say_stands_below_them_where_it_is_known(draw, make_findings, make_row):
    rows = (
        make_row(preview="to be or not", repetition=0.256),
        make_row(row=5, name="abc", table_row=70),
        make_row(row=6, preview="", repetition=0.0),
    )
    # when
    lines = draw(make_findings(rows=rows), width=160).splitlines()
    # then
    first = next(at for at, line in enumerate(lines) if line.startswith("row   "))
    assert lines[first].split() == [
        "row",
        "count",
        "loss",
        "tokens",
        "share",
        "excess",
        "repetition",
        "id",
        "table",
        "row",
    ]
    told = lines[first + 2 :]
    assert " ".join(told[0].split()) == "17 1 9 300 98.4 % +8.045 0.26 - -"
    assert told[1] == "    to be or not"
    assert " ".join(told[2].split()) == "5 1 9 300 98.4 % +8.045 - abc 70"
    assert told[3].split()[0] == "6"
    assert told[4] == "    (empty)"


def test_in_a_narrow_terminal_names_stand_below_too_and_every_line_fits(draw, make_findings, make_row):
    # given the widest of everything
    row = make_row(
        row=1234567, loss=None, tokens=123456, excess=-1234.5, repetition=0.256, name="n" * 100, table_row=7654321,
        preview="p" * 120,
    )  # fmt: skip
    # when
    lines = draw(make_findings(rows=(row, make_row(row=6, repetition=0.0))), width=80).splitlines()
    # then
    place = next(at for at, line in enumerate(lines) if line.startswith("1234567"))
    assert lines[place].split()[-1] == "0.26"
    assert lines[place + 1].startswith(f"    id {'n' * 21}..., table row 7654321: ppppp")
    assert len(lines[place + 1]) == 80
    assert lines[place + 1].endswith("p...")
    assert lines[place + 2].split()[0] == "6"
    assert max(map(len, lines[place - 2 :])) == 80


@pytest.mark.parametrize("width", [160, 100, 80, 40])
def test_no_line_of_a_table_ends_in_blanks(draw, make_findings, make_row, width):
    text = draw(make_findings(rows=(make_row(preview="x"), make_row(name="abc"))), width=width)
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("width", [160, 120, 100, 80])
def test_a_preview_takes_one_line_with_something_of_each_part(draw, make_findings, make_row, width):
    # given: three parts of 60 characters
    long = make_row(preview=" ... ".join(("s" * 60, "m" * 60, "f" * 59 + "Z")), repetition=1.0)
    # when
    text = draw(make_findings(rows=(long, long, long)), width=width)
    # then
    rows = [line for line in text.splitlines() if "sss" in line]
    assert len(rows) == 3
    assert all("s ... mm" in line and line.endswith("fZ") and width - 3 <= len(line) <= width for line in rows)


def test_a_preview_full_of_the_marks_between_its_parts_keeps_its_start_and_its_end(draw, make_findings, make_row):
    row = make_row(preview="THE START ... " + "x ... " * 40 + "THE END", repetition=1.0)
    (line,) = [line for line in draw(make_findings(rows=(row,))).splitlines() if "THE START ... " in line]
    assert line.endswith("THE END")


def test_data_that_has_no_use_is_said_though_no_rows_are_listed(draw, make_findings):
    text = draw(make_findings(rows=(), step=None, blame=None, preview_withheld="this log holds no rows, only steps"))
    assert "\n\nPreview withheld: this log holds no rows, only steps\n" in text


@pytest.mark.parametrize("field", ["preview", "name"])
def test_hostile_text_of_a_row_is_shown_as_escapes(draw, make_findings, make_row, field):
    text = draw(make_findings(rows=(make_row(**{field: HOSTILE}),)))
    assert text.isascii()
    assert all(char == "\n" or " " <= char <= "~" for char in text)


def test_a_log_without_rows_has_no_columns_for_them(draw, make_findings, make_spike):
    text = draw(make_findings(spikes=(make_spike(row=None, row_share=None),), rows=()))
    heading = next(line for line in text.splitlines() if line.startswith("severity"))
    assert heading.split() == ["severity", "step", "kind", "value", "baseline", "ratio", "score", "rule"]


def test_of_several_runs_in_one_file_each_finding_names_its_own(draw, make_findings, make_spike):
    text = draw(make_findings(spikes=(make_spike(segment=3), make_spike(segment=1))))
    lines = [line.split() for line in text.splitlines()]
    assert next(line for line in lines if line[:1] == ["severity"])[:3] == ["severity", "run", "step"]
    assert [line[1] for line in lines if line[:1] == ["warning"]] == ["3", "1"]
