"""The skill of the routers: what it names is there, what must never be done stands in it, its gates can be failed."""

import importlib.util
import inspect
import random
import re
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import nn

import trimtab
from trimtab import moe
from trimtab.watched import FindingKind, LayerFigures, RouterReport
from trimtab.watched_json import report_to_facts

SKILL = Path(__file__).resolve().parents[2] / "skills" / "moe-router-stability"
TEXT = (SKILL / "SKILL.md").read_text(encoding="ascii")
SPAN = re.compile(r"`([^`\n]+)`")

SETTINGS = {"top_k", "global_batch"}
"""Names with an underscore that are arguments of ours."""


def test_findings_and_settings_that_it_names_exist():
    named = {span for span in SPAN.findall(TEXT) if re.fullmatch(r"[a-z]+(_[a-z]+)+", span)}
    assert named & set(get_args(FindingKind))
    assert named - set(get_args(FindingKind)) - SETTINGS == set()
    assert set(inspect.signature(moe.load_balancing_loss).parameters) >= SETTINGS


def test_what_must_never_be_done_stands_there_and_nowhere_else():
    # given
    never = TEXT.partition("## Never\n")[2].partition("\n## ")[0]
    # then
    for words in (
        "raise the clip",
        "delete the balance loss",
        "add entropy maximisation",
        "stack multipliers",
        "restart from scratch",
        "compare across a change of scale",
    ):
        assert f"**{words}**" in never
        assert TEXT.count(words) == 1


# The gates, on the logs of two arms.

STEPS, EVERY = 64, 16
COUNTS = {"layers.0.router": (25, 30, 22, 23), "layers.1.router": (26, 26, 24, 24)}


def report(step, *, counts=COUNTS, factor=1.0, z=None):
    layers = [
        LayerFigures(
            name=name,
            num_experts=4,
            top_k=1,
            num_tokens=sum(load),
            z=2.0 if z is None else z[step],
            lse=1.4 if z is None else 0.99 * z[step] ** 0.5,
            load_balance=1.0 + (max(load) - 25) / 100,
            counts=load,
            token_entropy=0.8,
            spread=3.0,
        )
        for name, load in counts.items()
    ]
    return RouterReport(step=step, first_step=step - EVERY + 1, layers=tuple(layers), z_factor=factor)


def arm(folder, *, num_steps=STEPS, other_rows_at=None, evals=0.0, clip_every=8, **of_report):
    """Records a run of two rows a step, and a report and an eval every 16 steps."""
    dice = random.Random(3)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with trimtab.Run(folder, model=model, optimizer=optimizer, max_grad_norm=1.0) as run:
        for step in range(1, num_steps + 1):
            rows = [2 * step, 2 * step + 1 + (step == other_rows_at)]
            loss = run.micro_batch(torch.full((2,), 1.0 + dice.gauss(0, 0.01)), per="sample", rows=rows)
            # A gradient of 2 or 0.5, and no loss beside that of the rows.
            pull = model.weight.sum() * (2.0 if step % clip_every == 0 else 0.5)
            (loss + pull - pull.detach()).backward()
            if step % EVERY == 0:
                run.event("router", **report_to_facts(report(step, **of_report)))
            run.step()
            if step % EVERY == 0:
                run.evaluation(4.0 - step / 64 + evals)
    return folder


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIMTAB_HOME", str(tmp_path_factory.mktemp("home")))
        return arm(tmp_path_factory.mktemp("old"))


@pytest.fixture
def failed(old, tmp_path):
    """Which gates another arm fails, with what they say: the skill's own file, its lines set, under no pytest."""

    def judge(*, least_steps=0, **of_arm):
        spec = importlib.util.spec_from_file_location("gates_of_the_skill", SKILL / "asserts.py")
        gates = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(gates)
        gates.OLD, gates.NEW = str(old), str(arm(tmp_path / "new", **of_arm))
        gates.LEAST_STEPS = least_steps
        told = {}
        for name, gate in inspect.getmembers(gates, inspect.isfunction):
            if not name.startswith("test_"):
                continue
            for figure in (gates.max_vio, gates.num_silent, gates.load_balance) if "layer" in name else (None,):
                try:
                    gate() if figure is None else gate(figure)
                except AssertionError as error:
                    told[name if figure is None else f"{name}[{figure.__name__}]"] = str(error)
        return told

    return judge


def test_an_arm_that_is_as_good_passes_every_gate(failed):
    assert failed() == {}


SILENT = {"layers.0.router": (33, 34, 33, 0), "layers.1.router": (26, 26, 24, 24)}


@pytest.mark.parametrize(
    ("of_arm", "said"),
    [
        (
            dict(other_rows_at=7, evals=0.5, clip_every=4),
            {
                "same_rows": "1 of 64 steps have other rows, the first is step 7",
                "no_eval": "16: (3.75, 4.25)",
                "no_more_steps": "25.0% of the steps were clipped, 12.5% in the old arm",
            },
        ),
        (dict(num_steps=40), {"long_enough": "'shared evals': 2"}),
        (dict(factor=0.01), {"one_scale": "z was multiplied by ['0.01', '1.0']"}),
        (dict(counts={"layers.0.router": (25, 30, 22, 23)}), {"one_scale": "the reports are of other layers"}),
        (
            dict(counts=SILENT),
            {
                "layer_is_worse[max_vio]": "layers.0.router: 0.36, 0.2 at most in the old arm",
                "layer_is_worse[num_silent]": "layers.0.router: 1, 0 at most",
                "layer_is_worse[load_balance]": "layers.0.router: 1.09, 1.05 at most",
                "no_finding": "none of 100 tokens",
            },
        ),
        (dict(z={16: 2.0, 32: 2.1, 48: 2.4, 64: 2.6}), {"no_z": "layers.1.router: 2.1, 2.4, 2.6; 2 to 2 in the old"}),
        (dict(z={16: 2.0, 32: 0.9, 48: 0.4, 64: 0.19}), {"no_z": "layers.0.router: 0.9, 0.4, 0.19; 2 to 2 in the old"}),
        (
            dict(evals=float("nan")),
            {"no_eval": "16: (3.75, 'nan')", "no_finding": "step 16, eval_nonfinite"},
        ),
    ],
    ids=[
        "rows and evals and clipping",
        "too short",
        "another factor",
        "other layers",
        "a silent expert",
        "z rises",
        "z falls to 0",
        "eval is NaN",
    ],
)
def test_a_gate_fails_where_its_figure_is_worse(failed, of_arm, said):
    told = failed(**of_arm)
    for gate, words in said.items():
        (text,) = [text for name, text in told.items() if gate in name]
        assert words in text
    assert len(told) == len(said)


def test_z_may_move_and_may_be_lower(failed):
    # given what a larger weight of the z-loss does, and the noise from report to report
    assert failed(z={16: 2.0, 32: 1.1, 48: 0.9, 64: 1.0}) == {}


def test_a_chunk_that_is_shorter_than_the_trouble_took_tells_nothing(failed):
    (text,) = failed(least_steps=65).values()
    assert "64 steps, 65 are needed" in text


def test_a_chunk_of_steps_that_the_old_arm_has_is_compared_by_that_chunk(failed):
    # given: the new arm trained on a part of the old one's steps, as from a checkpoint on
    assert failed(num_steps=48) == {}


def test_two_arms_that_were_really_watched_can_be_compared(tmp_path):
    # given
    for name in ("a", "b"):
        torch.manual_seed(0)
        model = nn.ModuleDict({"router": nn.Linear(3, 4), "head": nn.Linear(3, 1)})
        watch = moe.RouterWatch(model, routers=[model["router"]], top_k=1, config=trimtab.WatchConfig(report_every=5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with trimtab.Run(tmp_path / name, model=model, optimizer=optimizer, watch=watch) as run:
            for step in range(20):
                x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
                gates = model["router"](x).softmax(-1).amax(-1)
                loss = run.micro_batch((model["head"](x).squeeze(-1) * gates - 1) ** 2, per="sample", rows=range(8))
                loss.backward()
                run.step()
                if step % 5 == 4:
                    run.evaluation(2.0 - step / 100)
    spec = importlib.util.spec_from_file_location("gates_of_the_skill", SKILL / "asserts.py")
    gates = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gates)
    gates.OLD, gates.NEW = str(tmp_path / "a"), str(tmp_path / "b")
    # then
    assert [set(report) for report in gates.layers(gates.OLD)] == [{"router"}] * 4
    assert gates.layers(gates.OLD) == gates.layers(gates.NEW)
    gates.test_the_chunk_is_long_enough_to_tell()
    gates.test_no_layer_is_worse(gates.max_vio)
    gates.test_no_more_steps_are_clipped()
