"""The gates of a chunk as a console shows them, from values made up on the spot."""

import io

import pytest

from trimtab.gates.values import GATE_NAMES, Chunk, Gate, GateReport
from trimtab.report.console import make_console
from trimtab.report.gates import draw_gates, verdict

LONG = "every layer is in its band of 0.3 to 12, " * 9


class Terminal(io.StringIO):
    def isatty(self):
        return True


def report(statuses=None, *, texts=None, **more):
    """All gates passed but those that are named."""
    gates = tuple(
        Gate(name=name, status=(statuses or {}).get(name, "passed"), text=(texts or {}).get(name, f"of {name}"))
        for name in GATE_NAMES
    )
    fields = {
        "run_id": "r-1",
        "source": "runs/a/trimtab/r-1",
        "chunk": Chunk(first_step=1, last_step=1200, num_steps=1200, attempts=(1,)),
        "checkpoint": "runs/a/step_1200",
    }
    return GateReport(gates=gates, **{**fields, **more})


def drawn(value, *, columns=80, strict=False, encoding="ascii"):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline="\n")
    draw_gates(value, strict=strict, console=make_console(file, environ={"COLUMNS": str(columns)}))
    file.flush()
    return raw.getvalue().decode(encoding).splitlines()


def table_of(lines):
    begin = next(place for place, line in enumerate(lines) if line.startswith("status"))
    return lines[begin : lines.index("", begin)]


def test_every_gate_is_one_line_of_a_table_in_the_order_of_their_names():
    lines = drawn(report())
    heading, rule, *rows = table_of(lines)
    assert heading.split() == ["status", "gate", "figures"]
    assert set(rule) == {"-"}
    assert [row.split()[:2] for row in rows] == [["passed", name] for name in GATE_NAMES]
    assert lines[:3] == [
        "Chunk of run r-1: steps 1 to 1200, 1,200 steps recorded in 1 attempt",
        "log         runs/a/trimtab/r-1",
        "checkpoint  runs/a/step_1200",
    ]


def test_the_figures_of_a_gate_are_never_cut_but_go_on_below_themselves():
    heading, rule, first, *others = table_of(drawn(report(texts={"finished": LONG})))
    below = [line for line in others if line.startswith(" ")]
    place = heading.index("figures")
    assert " ".join(line[place:] for line in (first, *below)) == LONG.strip()
    assert not any(line[:place].strip() for line in below)
    assert len(rule) == max(map(len, (first, *others)))


@pytest.mark.parametrize(("columns", "most"), [(40, 40), (50, 50), (64, 64), (80, 80), (100, 100), (160, 100)])
def test_the_table_fits_the_console_and_a_pipe_has_no_lines_of_more_than_100(columns, most):
    statuses = {"round_trip": "inapplicable", "watch": "failed"}
    texts = {name: f"{LONG}{name}" for name in GATE_NAMES}
    lines = table_of(drawn(report(statuses, texts=texts), columns=columns))
    assert most - 10 < max(map(len, lines)) <= most
    joined = " ".join(" ".join(lines).split())
    assert all((" ".join(text.split()) in joined) == (name != "watch") for name, text in texts.items())


def test_a_terminal_has_as_many_characters_as_it_says():
    stream = Terminal()
    draw_gates(report(texts={"finished": LONG}), console=make_console(stream, environ={"COLUMNS": "160"}))
    assert 100 < max(map(len, stream.getvalue().splitlines())) - len("\x1b[32m\x1b[0m") <= 160


def test_what_several_gates_say_in_the_same_words_is_said_once():
    routers = ("router_z", "router_load", "dead_experts")
    lines = drawn(report(dict.fromkeys(routers, "inapplicable"), texts=dict.fromkeys(routers, "it has no routers")))
    assert [line.split(maxsplit=2)[2] for line in lines if line.startswith("inapplicable")] == [
        "it has no routers",
        "as router_z",
        "as router_z",
    ]


def test_what_failed_and_what_is_unknown_stands_below_in_full():
    lines = drawn(report({"learning_rate": "failed", "round_trip": "unknown"}, texts={"learning_rate": LONG}))
    assert f"failed: learning_rate: {LONG}." in lines
    assert "unknown: round_trip: of round_trip." in lines
    assert [line for line in lines if line.endswith("see below")] == [
        line for line in lines if line.startswith(("failed  ", "unknown  "))
    ]


def test_nothing_of_a_strangers_log_acts_on_a_terminal():
    evil = "\x1b[31mred\u202e\udc80"
    value = report(
        {"watch": "failed"}, texts={"watch": evil, "finished": evil}, run_id=evil, source=evil, checkpoint=evil,
        notices=(evil,),
    )  # fmt: skip
    text = "\n".join(drawn(value))
    assert text.isascii()
    assert "\x1b" not in text
    assert text.count("\\x1b[31mred\\u202e\\udc80") == 6


def test_colour_is_for_a_terminal_alone():
    stream = Terminal()
    draw_gates(report({"watch": "failed"}), console=make_console(stream, environ={"COLUMNS": "80"}))
    coloured = stream.getvalue()
    assert "\x1b[" in coloured
    assert not any("\x1b" in line for line in drawn(report({"watch": "failed"})))


@pytest.mark.parametrize(
    ("statuses", "strict", "said"),
    [
        ({}, False, "14 of 14 gates passed. The next chunk may start."),
        (
            {"learning_rate": "failed"},
            False,
            "13 of 14 gates passed; 1 failed: learning_rate. Do not start the next chunk.",
        ),
        (
            {"learning_rate": "failed", "watch": "failed", "round_trip": "unknown"},
            True,
            "11 of 14 gates passed; 2 failed: learning_rate and watch; 1 unknown: round_trip. "
            "Do not start the next chunk.",
        ),
        (
            {"round_trip": "unknown", "populations": "inapplicable"},
            False,
            "12 of 13 gates passed; 1 unknown: round_trip. "
            "The next chunk may start; with --strict what is unknown holds it back.",
        ),
        (
            {"round_trip": "unknown"},
            True,
            "13 of 14 gates passed; 1 unknown: round_trip. Do not start the next chunk.",
        ),
    ],
    ids=["all passed", "one failed", "two failed", "unknown", "unknown and strict"],
)
def test_the_last_line_is_the_verdict(statuses, strict, said):
    value = report(statuses)
    assert verdict(value, strict=strict) == said
    assert drawn(value, strict=strict)[-1] == said


def test_a_log_without_a_run_and_without_a_checkpoint_is_drawn_too():
    lines = drawn(report(run_id=None, checkpoint=None, notices=("two runs are in it",)))
    assert lines[0].startswith("Chunk of a run without an id: steps 1 to 1200")
    assert not any(line.startswith("checkpoint ") for line in lines)
    assert "Note: two runs are in it" in lines
