"""What a person sees of a calibration."""

import io

import pytest
from rich.console import Console

from trimtab.calibration.values import Calibration, Outcome
from trimtab.report import as_json
from trimtab.report.calibration import render

HOSTILE = "\x1b[31mred\x1b]8;;http://x\x07\u202eevil [bold]markup[/bold] \udc80\n\tnew"


def make_outcome(rule="robust", **changes):
    setting = {"k": 10.0, "window_size": 100} if rule == "robust" else {"multiplier": 2.0, "window_size": 8}
    fields = {
        "settings": {"rule": rule, **setting},
        "is_default": True,
        "num_judged": 24_000,
        "num_spikes": 3,
        "num_nonfinite": 0,
        "num_rebaselined": 0,
        "longest_run": 1,
        "num_caught": 3,
        "num_others": 0,
        "num_steps": 3,
        "first_steps": (413, 618, 1122),
    }
    return Outcome(**{**fields, **changes})


CLASSIC = make_outcome(
    "mean", num_spikes=1_250, longest_run=2, num_others=1_222, num_steps=1_200, first_steps=(35, 79), num_rebaselined=4
)


@pytest.fixture
def draw():
    def drawn(*, width=120, **changes):
        fields = {
            "run_id": None,
            "source": "a.csv",
            "unit": "step",
            "num_losses": 24_000,
            "num_findings": 3,
            "outcomes": (CLASSIC, make_outcome()),
            "recommended": make_outcome(),
            "reason": "It does well.",
            "notices": ("little to go by",),
        }
        file = io.StringIO()
        console = Console(file=file, width=width, markup=False, emoji=False, highlight=False)
        render(Calibration(**{**fields, **changes}), console=console)
        return file.getvalue()

    return drawn


def lines(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_each_setting_is_a_line_and_the_chosen_one_is_code_to_paste(draw):
    drawn = lines(draw())
    assert drawn[0] == "Run a.csv: losses of 24,000 steps, 3 findings of the loss"
    assert "* mean x2 8 1,250 5.208 % 3 of 3 1,222 2 4 35, 79, ..." in drawn
    assert ">* robust k=10 100 3 0.013 % 3 of 3 0 1 0 413, 618, 1122" in drawn
    assert drawn[-5:] == [
        "It does well.",
        "",
        'trimtab.GuardConfig(rule="robust", k=10.0, window_size=100)',
        "",
        "Note: little to go by",
    ]


def test_a_narrow_terminal_gets_each_setting_on_a_line_too(draw):
    drawn = draw(width=80)
    assert "* mean x2 8 1,250 5.208 % 3 of 3 1,222 4" in lines(drawn)
    assert all(len(line) <= 80 for line in drawn.splitlines()[2:6])
    # then: and what it does not get is said
    assert "In 96 characters or more also: skips in a row, first skipped steps; --json has them" in drawn
    assert "characters or more" not in draw(width=96)


def test_what_a_setting_skips_is_not_called_a_finding(draw):
    heading = lines(draw())[2]
    assert heading == "rule setting window skips share caught others in a row lock-ups first at"


def test_where_no_setting_is_fit_there_is_no_code(draw):
    drawn = draw(recommended=None, reason="None is fit.")
    assert "None is fit." in drawn
    assert "trimtab.GuardConfig" not in drawn
    assert ">*" not in drawn


def test_a_log_without_findings_has_nothing_to_catch(draw):
    drawn = lines(draw(num_findings=0, unit="micro"))
    assert drawn[0] == "Run a.csv: losses of 24,000 micro-batches, no finding of the loss"
    assert ">* robust k=10 100 3 0.013 % - 0 1 0 413, 618, 1122" in drawn


def test_losses_that_are_not_finite_are_told_once(draw):
    outcome = make_outcome(num_nonfinite=1_707)
    first = lines(draw(outcomes=(outcome,), num_losses=1, num_findings=1, run_id="r1", unit="micro"))[:2]
    assert first == [
        "Run r1: the loss of 1 micro-batch, 1 finding of the loss; 1,707 not finite, which every setting skips",
        "read from a.csv",
    ]


def test_nothing_of_a_log_reaches_the_terminal_but_as_text(draw):
    drawn = draw(run_id=HOSTILE, source=HOSTILE, notices=(HOSTILE,))
    assert drawn.isascii()
    assert "\x1b" not in drawn
    assert "\\x1b[31mred" in drawn
    assert "[bold]markup[/bold]" in drawn


def test_the_document_holds_what_is_drawn():
    calibration = Calibration(
        run_id="r",
        source="\udc80",
        unit="micro",
        num_losses=5,
        num_findings=1,
        outcomes=(CLASSIC,),
        recommended=None,
        reason="none",
        notices=(),
    )
    text = as_json.dumps(calibration)
    assert '"recommended": null' in text
    assert '"num_spikes": 1250' in text
    assert "\\\\udc80" in text
