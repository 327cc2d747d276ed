"""Text logs: what trainers print, among whatever else a terminal saw."""

import contextlib
import math
import random
import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trimtab.log.foreign.line_blocks as line_blocks_module
import trimtab.log.foreign.text_logs as module
import trimtab.log.foreign.text_logs.source as source_module
from trimtab.errors import LogError
from trimtab.log import foreign
from trimtab.log.reader import open_log
from trimtab.values import STEP_REASONS

BANNER = """\
Collecting environment information...
{'num_layers': 12, 'lr': 0.1}
using world size: 8, data-parallel size: 8
  iterations ................................. 500000
step into the loss of sleep | loss of patience
"""


def megatron(step, loss="7.583216E+00", *, norm="1.309", skipped=0, nan=0, scale="65536.0", rate="1.500E-04"):
    loss = "" if loss is None else f" lm loss: {loss} |"
    return (
        f" iteration {step:8d}/  500000 | consumed samples: {step * 256:12d} | elapsed time per iteration (ms): 1234.5"
        f" | learning rate: {rate} | global batch size:   256 |{loss} loss scale: {scale} | grad norm: {norm} | "
        f"number of skipped iterations: {skipped:3d} | number of nan iterations: {nan:3d} |"
    )


def modded(step, loss):
    return f"step:{step}/1750 train_loss:{loss} train_time:{step * 120}ms step_avg:120.12ms"


def llmc(step, loss, norm="15.3427"):
    return (
        f"step {step:4d}/19560 | loss {loss} (+nanz)| norm {norm} (-0.31z)| lr 8.57e-07 | 3355.05 ms | "
        "55.3% bf16 MFU | 156265 tok/s"
    )


def printed(step, loss, norm="1.5", rate="1e-05"):
    return f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': {rate}, 'epoch': {step / 100}}}"


STYLES = {
    "megatron": lambda step, loss: megatron(step, f"{loss:.6E}"),
    "nanogpt": lambda step, loss: f"iter {step}: loss {loss:.4f}, time 12.67ms, mfu -100.00%",
    "modded-nanogpt": lambda step, loss: modded(step, f"{loss:.4f}"),
    "llm.c": lambda step, loss: llmc(step, f"{loss:.6f}"),
    "llm.c main.log": lambda step, loss: f"s:{step} trl:{loss:.4f} lr:0.000086 norm:1.53",
    "transformers": lambda step, loss: printed(step, round(loss, 4)),
}
"""One line of a step in each style."""


@pytest.fixture
def write(tmp_path):
    """Writes lines, texts or bytes, to a log and gives its path."""

    def make(*lines, name="train.out", end=b"\n"):
        raw = [line if isinstance(line, bytes) else line.encode() for line in lines]
        path = tmp_path / name
        path.write_bytes(b"\n".join(raw) + end)
        return path

    return make


def read(path):
    log = open_log(path)
    return log.step_columns(), log.event_list(), log.notices()


@pytest.mark.parametrize("style", STYLES)
def test_steps_are_read_among_other_lines_and_what_reads_them_is_told_by_content(write, style):
    # given
    line = STYLES[style]
    lines = [line(step, 10 / step) for step in range(1, 6)]
    path = write(BANNER, *[part for step in lines for part in (step, "WARNING: the loss of a node | 1/2", "")])
    # when
    columns, events, _ = read(path)
    # then
    assert columns.step.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(columns.loss, [10 / step for step in range(1, 6)], atol=5e-5)
    assert set(columns.num_tokens.tolist()) == {-1}
    assert events == []
    assert foreign.format_of(path, foreign.read_head(path)).__name__ == module.__name__
    assert open_log(path).header.backend == style.split()[0]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("spelled", "expected"), [("nan", math.nan), ("inf", math.inf), ("-inf", -math.inf)])
def test_losses_that_are_not_finite_keep_their_kind(write, style, spelled, expected):
    lines = [STYLES[style](step, loss) for step, loss in ((1, 2.0), (2, float(spelled)), (3, 1.0))]
    columns, _, _ = read(write(*lines))
    np.testing.assert_array_equal(columns.loss, [2.0, expected, 1.0])


@pytest.mark.parametrize("style", STYLES)
def test_colours_time_stamps_and_carriage_returns_are_looked_through(write, style):
    line = STYLES[style]
    begins_its_line = style == "llm.c main.log"
    stamp = "" if begins_its_line else "[2024-01-01 00:00:00] "
    rank = "" if begins_its_line else "7: "
    path = write(
        "\x1b[32m" + line(1, 4.0) + "\x1b[0m\r",
        stamp + line(2, 3.0),
        rank + line(3, 2.0),
        "  1%|#    | 1/100 [00:01<01:39]\r" + line(4, 1.0) + "\r  2%|##   | 2/100",
    )
    columns, _, _ = read(path)
    assert columns.step.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(columns.loss, [4.0, 3.0, 2.0, 1.0])


@pytest.mark.parametrize("style", STYLES)
def test_a_log_cut_at_any_byte_holds_the_lines_before_the_cut_and_no_other(write, style):
    # given
    whole = "\n".join(STYLES[style](step, loss) for step, loss in ((1, 1.2345), (2, 5.4321))).encode() + b"\n"
    first = whole.index(b"\n") + 1
    expected, _, _ = read(write(whole, end=b""))
    for cut in range(first, len(whole)):
        # when
        columns, _, notices = read(write(whole[:cut], end=b""))
        # then
        for name in ("step", "loss", "lr"):
            np.testing.assert_array_equal(getattr(columns, name), getattr(expected, name)[:1])
        begun = any(word in whole[first:cut] for word in (b"iteration", b"iter ", b" loss ", b" trl:", b"'loss': "))
        said = "the last line (2) has no line end and was left out: it may be torn"
        assert not begun or said in notices


@pytest.mark.parametrize("style", [name for name in STYLES if name != "transformers"])
def test_a_restart_appended_to_the_log_is_an_attempt_and_one_from_the_beginning_a_run(write, style):
    line = STYLES[style]
    resumed = write(*[line(step, 2.0) for step in (*range(1, 11), *range(6, 16))])
    assert read(resumed)[0].attempt.tolist() == [1] * 10 + [2] * 10
    assert open_log(resumed).restarts() == ()
    again = write(*[line(step, 2.0) for step in (*range(1, 11), *range(1, 11))])
    assert open_log(again).restarts() == (2,)


# ------------------------------------------------------------------------------------------------------------ Megatron


def test_every_cell_of_megatron_that_has_a_role_is_read(write):
    columns, _, notices = read(write(megatron(100), megatron(200, "6.1E+00", norm="nan", scale="32768.0")))
    assert columns.step.tolist() == [100, 200]
    assert columns.loss.tolist() == [7.583216, 6.1]
    np.testing.assert_array_equal(columns.grad_norm, [1.309, math.nan])
    assert columns.has_grad_norm.all()
    assert columns.lr.tolist() == [1.5e-4, 1.5e-4]
    assert columns.loss_scale.tolist() == [65536.0, 32768.0]
    assert notices == []


@pytest.mark.parametrize(
    "line",
    [
        # Megatron-LM of 2019: no colon behind some names.
        " iteration      100/  500000 | elapsed time per iteration (ms): 1234.5 | learning rate 1.500E-04 | "
        "lm loss 7.500000E+00 | grad norm 1.25 |",
        # Megatron-LM of 2025.
        " [2025-05-01 12:00:00.123456] iteration      100/  500000 | consumed samples:        25600 | elapsed time per "
        "iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 412.3 | learning rate: 1.500000E-04 | global batch "
        "size:   256 | lm loss: 7.500000E+00 | load_balancing_loss: 1.000100E+00 | mtp_1 loss: 8.0E+00 | loss scale: "
        "1.0 | grad norm: 1.25 | num zeros: 0 | params norm: 33.333 | number of skipped iterations:   0 | number of "
        "nan iterations:   0 |",
        # Megatron-DeepSpeed, as it printed BLOOM's.
        "[default7]: iteration       100/  115311 | consumed samples:        51200 | consumed tokens:    104857600 | "
        "elapsed time per iteration (s): 24.09 | learning rate: 1.500E-04 | global batch size:   192 | lm loss: "
        "7.500000E+00 | grad norm: 1.25 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan "
        "iterations:   0 | samples per second: 7.969 | TFLOPs: 80.12 |",
        # GPT-NeoX.
        " samples/sec: 83.9 | iteration      100/  320000 | elapsed time per iteration (ms): 12204.9 | learning rate: "
        "1.500E-04 | approx flops per GPU: 113.5TFLOPS | lm_loss: 7.500000E+00 | grad norm: 1.25 | number of skipped "
        "iterations:   0 | number of nan iterations:   0 |",
    ],
    ids=["2019", "2025", "deepspeed", "neox"],
)
def test_older_and_newer_versions_of_megatron_are_read(write, line):
    columns, _, _ = read(write(BANNER, line))
    assert (columns.step.tolist(), columns.loss.tolist()) == ([100], [7.5])
    assert (columns.grad_norm.tolist(), columns.lr.tolist()) == ([1.25], [1.5e-4])


def test_cells_that_come_and_go_are_read_line_by_line(write):
    lines = [megatron(1), megatron(2, None, skipped=1), megatron(3).replace(" grad norm: 1.309 |", ""), megatron(4)]
    columns, _, _ = read(write(*lines))
    assert columns.step.tolist() == [1, 2, 3, 4]
    assert columns.has_grad_norm.tolist() == [True, True, False, True]


def test_a_line_with_more_cells_than_the_first_is_read_to_its_end(write):
    lines = [" iteration 1/9 | lm loss: 2.0 |", " iteration 2/9 | lm loss: 1.5 | params norm: 3.0 | grad norm: 0.5 |"]
    columns, _, _ = read(write(*lines, " iteration 3/9 | lm loss: 1.0 |"))
    assert columns.loss.tolist() == [2.0, 1.5, 1.0]
    assert columns.has_grad_norm.tolist() == [False, True, False]
    assert columns.grad_norm[1] == 0.5


def test_counters_that_are_no_counts_are_not_believed(write):
    lines = [
        megatron(1),
        *[megatron(2).replace("nan iterations:   0", f"nan iterations: {odd}") for odd in ("inf", "-1")],
    ]
    columns, events, _ = read(write(*lines, megatron(3, nan=9 * 10**17), megatron(4, nan=9 * 10**17)))
    assert columns.step.tolist() == [1, 3, 4]
    assert [event.facts["num_nonfinite"] for event in events] == [9 * 10**17] * 2


def test_an_interval_of_skipped_iterations_alone_has_no_loss_or_one_that_is_not_finite(write):
    # given: an overflow at 2, and a loss that was not finite at 3; the average is printed for neither
    lines = [megatron(1), megatron(2, None, skipped=1), megatron(3, None, skipped=1, nan=1), megatron(4)]
    # when
    columns, events, _ = read(write(*lines))
    # then
    overflow = STEP_REASONS.index("scaler_overflow")
    assert (columns.reason == overflow).tolist() == [False, True, True, False]
    assert columns.num_tokens.tolist() == [-1, 0, -1, -1]  # 0 and no loss: nothing was measured
    assert np.isnan(columns.loss).tolist() == [False, True, True, False]
    assert [(event.kind, event.step, event.facts) for event in events] == [
        ("skipped_iterations", 2, {"num_skipped": 1, "num_nonfinite": 0}),
        ("skipped_iterations", 3, {"num_skipped": 1, "num_nonfinite": 1}),
    ]


def test_iterations_that_a_finite_average_hides_are_said(write):
    _, events, notices = read(write(megatron(100), megatron(200, skipped=3, nan=2), megatron(300, skipped=1, nan=1)))
    assert [event.step for event in events] == [200, 300]
    assert any("3 iterations were not finite" in notice and "2 lines" in notice for notice in notices)


@pytest.mark.parametrize(
    "line",
    [
        " validation loss at iteration 1000 | lm loss value: 2.5E+00 | lm loss PPL: 1.218E+01 | ",
        " validation loss at iteration 1000 on validation set | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | ",
        " validation results at iteration 1000 | lm_loss value: 2.5E+00 | lm_loss_ppl value: 1.2E+01 | ",
    ],
)
def test_an_evaluation_of_megatron_is_an_event(write, line):
    columns, events, _ = read(write(megatron(1000), "-" * 80, line, "-" * 80, megatron(1100)))
    assert columns.step.tolist() == [1000, 1100]
    assert [(event.kind, event.step, event.facts["loss"]) for event in events] == [("evaluation", 1000, 2.5)]


def test_layouts_without_end_are_bounded_and_counted(write, monkeypatch):
    monkeypatch.setattr(source_module, "MAX_LAYOUTS", 4)
    lines = [megatron(step) + "".join(f" cell{cell}: 1 |" for cell in range(step)) for step in range(1, 11)]
    columns, _, notices = read(write(*lines))
    assert columns.step.tolist() == [1, 2, 3, 4]
    assert any("6 lines were left out" in notice for notice in notices)


# --------------------------------------------------------------------------------------------------------- the others


def test_evaluations_of_nanogpt_and_its_relatives_are_events(write):
    path = write("step 250: train loss 4.1, val loss 4.2", "iter 250: loss 4.0, time 1ms, mfu 1%")
    assert [(event.step, event.facts) for event in read(path)[1]] == [
        (250, {"loss": 4.2, "val_loss": 4.2, "train_loss": 4.1})
    ]
    path = write(modded(100, "4.5"), "step:125/1750 val_loss:4.6 train_time:1ms step_avg:1ms")
    assert [(event.step, event.facts["loss"]) for event in read(path)[1]] == [(125, 4.6)]
    path = write("val loss 11.2", llmc(1, "11.0"), "val loss nan", "s:1 tel:3.0")
    assert [(event.step, event.facts["loss"]) for event in read(path)[1]] == [(0, 11.2), (1, "nan")]
    path = write("s:100 tel:6.4", "s:100 trl:6.5 lr:0.1 norm:1", "s:250 eval:0.3")
    assert [(event.step, event.facts["loss"]) for event in read(path)[1]] == [(100, 6.4)]


def test_norm_and_rate_are_read_where_a_line_has_them(write):
    columns, _, _ = read(write(llmc(1, "11.0", "nan"), llmc(2, "10.0", "3.25")))
    np.testing.assert_array_equal(columns.grad_norm, [math.nan, 3.25])
    assert columns.has_grad_norm.all()
    assert columns.lr.tolist() == [8.57e-07] * 2
    columns, _, _ = read(write("iter 7: loss 3.5, time 12.67ms, lr 6e-4, norm: 0.5, mfu 1.00%"))
    assert (columns.lr.tolist(), columns.grad_norm.tolist()) == ([6e-4], [0.5])


def test_an_evaluation_in_a_last_line_without_an_end_is_left_out_too(write):
    line = "iter 1: loss 2.0, time 1ms"
    _, events, notices = read(write(line, "step 1: train loss 2.5, val loss 2.7", end=b""))
    assert (events, notices) == ([], ["the last line (2) has no line end and was left out: it may be torn"])


def test_a_number_with_a_decimal_comma_is_not_read_as_another_one(write):
    # given: the digits in front of the comma are no loss
    columns, events, _ = read(
        write(
            "iter 1: loss 2.5, time 1ms",
            "iter 2: loss 10,9886, time 1ms",
            "iter 3: loss 2.5, time 1ms, norm 1,5, lr 0,25",
            "step 3: train loss 2,5, val loss 2,7",
            "iter 4: loss 2.25, time 1ms, norm 1.5, lr 0.25",
        )
    )
    # then
    assert (columns.step.tolist(), columns.loss.tolist()) == ([1, 3, 4], [2.5, 2.5, 2.25])
    assert columns.has_grad_norm.tolist() == [False, False, True]
    assert columns.has_lr.tolist() == [False, False, True]
    assert events == []


@pytest.mark.parametrize("style", [name for name in STYLES if name != "transformers"])
def test_no_style_reads_half_of_a_number_with_a_decimal_comma(write, style):
    lines = [STYLES[style](step, 2.5) for step in range(1, 4)]
    columns, _, _ = read(write(lines[0], re.sub(r"(?<=\d)\.(?=\d)", ",", lines[1]), lines[2]))
    # then: those of the other lines are read all the same
    measured = columns.num_tokens != 0
    assert columns.step[measured].tolist() == [1, 3]
    np.testing.assert_allclose(columns.loss[measured], 2.5)


def test_a_cell_of_megatron_that_is_no_number_costs_itself_alone_and_it_is_said(write):
    columns, _, notices = read(write(megatron(1, "1.0"), megatron(2, "2,5"), megatron(3, "3.0"), megatron(4, "?")))
    np.testing.assert_array_equal(columns.loss, [1.0, math.nan, 3.0, math.nan])
    assert columns.num_tokens.tolist() == [-1, 0, -1, 0]
    assert columns.has_grad_norm.all()
    assert notices == ["some lines hold no number under 'lm loss': read without it"]


def test_a_loss_of_megatron_under_another_name_is_said(write):
    lines = [megatron(step).replace("lm loss", "mtp loss") for step in (1, 2)]
    assert "no column is named as a training loss usually is: 'mtp loss' was read as it" in read(write(*lines))[2]
    assert read(write(megatron(1), megatron(2)))[2] == []


def test_a_log_of_evaluations_alone_is_read_and_says_so(write):
    columns, events, notices = read(write(*[f"step:{step}/1750 val_loss:4.5 train_time:1ms" for step in (0, 125)]))
    assert columns.num_records == 0
    assert [event.step for event in events] == [0, 125]
    assert any("it holds 2 evaluations and no loss" in notice for notice in notices)


# -------------------------------------------------------------------------------------------------------- Transformers


def test_printed_dictionaries_are_counted_and_that_is_said(write):
    # given: as versions 4 and 5 print them, and the summary of the run
    lines = [
        printed(1, 2.5),
        printed(2, 0.0, norm="nan"),
        "{'eval_loss': 2.25, 'eval_runtime': 1.5, 'epoch': 0.02}",
        "{'loss': '2.0', 'grad_norm': '0.5', 'learning_rate': '1e-05', 'epoch': '0.03'}",
        "{'train_runtime': 7.1, 'train_samples_per_second': 3.2, 'train_loss': 2.0, 'loss': 9.0, 'epoch': 0.03}",
    ]
    # when
    columns, events, notices = read(write(BANNER, *lines))
    # then
    assert columns.step.tolist() == [1, 2, 3]
    assert columns.loss.tolist() == [2.5, 0.0, 2.0]
    np.testing.assert_array_equal(columns.grad_norm, [1.5, math.nan, 0.5])
    assert columns.lr.tolist() == [1e-05] * 3
    assert [(event.step, event.facts) for event in events] == [(2, {"loss": 2.25, "eval_loss": 2.25})]
    assert any("do not say their steps: they were counted, 1 to 3" in notice for notice in notices)


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': __import__('os').system('true')}",
        "{'loss': 1.0, 'x': [1, 2]}",
        "{'loss': 1.0, 'x': {'loss': 2.0}}",
        "{'loss': 1_0.0}",
        "{'loss': 1.0",
        "{'loss': '1.0; rm'}",
        "{'loss': 0x10}",
        "{'loss': 1.0, 'x': 'a\\'b'}",
    ],
)
def test_a_dictionary_that_is_not_flat_and_plain_is_none(write, line):
    with pytest.raises(LogError, match="as no log that is known does"):
        open_log(write(line))


# ------------------------------------------------------------------------------------------------------ what is hostile


@pytest.mark.parametrize(
    "text",
    [
        "iter 10: loss",
        "iter 10: loss abc, time 1ms",
        "iter 10: loss 1.5",  # nothing says that the number is whole
        "iter 99999999999999999999: loss 1.5, time 1ms",
        "my/iter 10: loss 1.5, time 1ms",
        "step 1/10 | loss 1.5abc | norm 1",
        " iteration 100/ | lm loss: 1.0 |",
        " iteration 100/500 | lm loss: one |",
        " iteration 100/500 | consumed samples: 1 |",
        "the validation loss at iteration 5 is fine | really",
    ],
)
def test_lines_that_only_look_alike_are_no_log(write, text):
    with pytest.raises(LogError):
        open_log(write(text))


def test_the_first_step_may_stand_behind_pages_of_other_things(write, monkeypatch):
    first = STYLES["nanogpt"](1, 2.0)
    assert read(write("x" * 200 + "\n" + BANNER * 500, first))[0].num_records == 1
    monkeypatch.setattr(module, "SEARCHED_BYTES", 10_000)
    with pytest.raises(LogError, match="as no log that is known does"):
        open_log(write(BANNER * 500, first))


def test_bytes_that_are_no_utf8_and_zeros_between_lines_change_nothing(write):
    line = STYLES["nanogpt"]
    columns, _, _ = read(write(b"\xff\xfe\x00 banner", line(1, 2.0), b"\x00" * 5000, b"\xe2\x28\xa1", line(2, 3.0)))
    assert columns.loss.tolist() == [2.0, 3.0]


def test_a_line_longer_than_any_is_said_and_costs_only_itself(write, monkeypatch):
    monkeypatch.setattr(line_blocks_module, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(line_blocks_module, "MAX_LINE_BYTES", 4000)
    line = STYLES["nanogpt"]
    columns, _, notices = read(write(line(1, 2.0), "x" * 9000, line(2, 3.0)))
    assert columns.step.tolist() == [1, 2]
    assert any("1 line longer than" in notice for notice in notices)


@given(seed=st.integers(0, 2**32 - 1), block=st.sampled_from([17, 100, 1000]))
def test_blocks_of_any_size_give_the_same(tmp_path_factory, seed, block):
    # given
    rng = random.Random(seed)
    style = rng.choice([name for name in STYLES if name != "llm.c"])
    step, lines = 0, []
    for _ in range(rng.randrange(1, 30)):
        step += rng.randrange(1, 4)
        lines += [rng.choice(["", "noise | of 1/2 | kinds", "\x1b[1mbold\x1b[0m"]), STYLES[style](step, rng.random())]
    path = tmp_path_factory.mktemp("log") / "train.out"
    path.write_text("\n".join(lines) + rng.choice(["", "\n"]))
    whole, _, notices = read(path)
    # when
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_blocks_module, "BLOCK_BYTES", block)
        cut, _, again = read(path)
    # then
    assert notices == again
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "line",
    [
        " iteration 1/2 |" + " a: 1 |" * 200_000,
        " iteration " * 100_000,
        "iter 1: loss 1" + "0" * 1_000_000 + ", time",
        "iter 1: loss 1.0, " + "norm norm: " * 100_000,
        "{" + "'loss': 1.0, " * 100_000,
        "{'loss': 1.0, 'a': '" + "x" * 1_000_000,
        "step:" * 200_000 + " train_loss:",
        "validation loss at " * 50_000 + "lm loss value:",
        "\x1b[" * 300_000,
    ],
    ids=lambda line: line[:20],
)
def test_a_line_made_to_be_slow_is_not(write, line):
    path = write(STYLES["nanogpt"](1, 2.0), line, STYLES["nanogpt"](2, 2.0))
    begin = time.process_time()
    read(path)
    alone = write(line)
    with contextlib.suppress(LogError):
        read(alone)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("style", STYLES)
def test_speed_is_a_few_microseconds_a_line(write, style):
    lines = [STYLES[style](step, 10 - step * 1e-5) for step in range(1, 50_001)]
    path = write(*lines)
    begin = time.process_time()
    columns, _, _ = read(path)
    assert columns.num_records == 50_000
    assert time.process_time() - begin < 1.5
