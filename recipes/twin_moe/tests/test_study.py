"""The weight study, small: what it writes is what the logs say, an interrupted one goes on, a dying arm is marked."""

import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import yaml

import recipes.twin_moe.config
import recipes.twin_moe.study.__main__
import recipes.twin_moe.study.arm
import trimtab
from recipes.strict_yaml import ConfigError
from recipes.twin_moe.study.__main__ import main
from recipes.twin_moe.study.arm import SAID_NAME, steps_done, train_arms
from recipes.twin_moe.study.figure import SIZE_PIXELS, draw_study
from recipes.twin_moe.study.plan import defaults_of, plan, stops
from recipes.twin_moe.study.reading import read_arm, weight_name
from recipes.twin_moe.study.sweep import study
from recipes.twin_moe.study.table import table_lines
from recipes.twin_moe.tests.small_twin import small
from recipes.twin_moe.train import train
from trimtab.checkpoint import Checkpointer
from trimtab.errors import CheckpointError
from trimtab.watched import LayerFigures, RouterReport
from trimtab.watched_json import report_to_facts

ROOT = Path(__file__).parents[3]
WEIGHTS = (1e-4, 10.0)

# Where tests run in the background of a shell, SIGINT is ignored, and a process that they start inherits that.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from recipes.twin_moe.study.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def quiet(line):
    pass


def shape_of_png(path):
    """Width and height, of the first chunk of a PNG (RFC 2083, 4.1.1)."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert head[12:16] == b"IHDR"
    return struct.unpack(">II", head[16:24])


def events(folder, kind):
    """The facts of the events of a kind, by step, of a log in which nothing was trained twice."""
    table = trimtab.open_log(folder).events().numpy()
    places = [place for place, name in enumerate(table["kind"]) if name == kind]
    return {int(table["step"][place]): json.loads(table["facts"][place]) for place in places}


def attempts(folder):
    """The attempts in an arm's log, and how often each step stands there."""
    steps = trimtab.open_log(folder).steps().numpy()
    return sorted(set(steps["attempt"].tolist())), steps["step"].tolist()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study of two weights, 30 steps each."""
    out = tmp_path_factory.mktemp("study")
    lines = []
    found = study(small(), out=out, arms=plan(WEIGHTS, seeds=[0]), num_steps=30, tell=lines.append)
    return out, found, lines


def test_the_json_of_a_study_says_what_the_logs_of_its_arms_say(made):
    # given
    out, _, _ = made
    # when
    document = json.loads((out / "study.json").read_text(encoding="ascii"), parse_constant=pytest.fail)
    # then
    assert document["version"] == 1
    assert document["num_steps"] == 30
    assert document["stopped_by"] is None
    assert [(arm["z_weight"], arm["seed"], arm["in_sweep"]) for arm in document["arms"]] == [
        (1e-4, 0, True),
        (10.0, 0, True),
    ]
    for arm in document["arms"]:
        reports = events(out / arm["folder"], "router")
        assert arm["routers"]["steps"] == sorted(reports) == [10, 20, 30]
        for place, step in enumerate(arm["routers"]["steps"]):
            layers = reports[step]["layers"]
            assert arm["routers"]["layers"] == layers["name"]
            for name in ("z", "token_entropy", "load_balance"):
                assert arm["routers"][name][place] == layers[name]
            for layer, counts in enumerate(layers["counts"]):
                shares = [count / sum(counts) for count in counts]
                entropy = -sum(share * math.log(share) for share in shares if share)
                assert arm["routers"]["load_entropy"][place][layer] == pytest.approx(entropy, rel=1e-9)
                assert arm["routers"]["max_vio"][place][layer] == pytest.approx(max(shares) * len(shares) - 1, abs=1e-9)
        evals = events(out / arm["folder"], "evaluation")
        assert dict(zip(arm["evals"]["steps"], arm["evals"]["losses"], strict=True)) == {
            step: facts["loss"] for step, facts in evals.items()
        }
        assert arm["evals"]["steps"] == [15, 30]
        health = trimtab.rewind(out / arm["folder"]).to_dict()["health"]
        assert [(one["kind"], one["step"]) for one in arm["findings"]] == [(one["kind"], one["step"]) for one in health]
        assert arm["run_id"] == trimtab.open_log(out / arm["folder"]).header.run_id


def test_a_large_weight_leaves_a_smaller_router_z_than_a_small_one(made):
    # when
    _, found, _ = made
    # then
    small_weight, large_weight = found.arms
    assert max(large_weight.routers.z[-1]) < min(small_weight.routers.z[-1])
    assert small_weight.routers.num_experts == 8
    assert small_weight.routers.top_k == 2


def test_the_picture_is_a_png_of_the_stated_size_and_the_page_has_a_line_an_arm(made):
    # when
    out, found, lines = made
    page = (out / "study.md").read_text(encoding="ascii")
    # then
    assert shape_of_png(out / "study.png") == SIZE_PIXELS
    assert [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("|")][2:] == ["1e-4", "10"]
    assert "![What each weight did](study.png)" in page
    assert all(line.isascii() for line in lines)
    assert all(len(line) <= 120 for line in lines if str(out) not in line)
    assert any(re.fullmatch(r"z 1e-4  seed 0  step 15  ce \S+ \(best \S+ at 15, streak 0\)", line) for line in lines)
    assert [line.split()[0] for line in table_lines(found.arms, is_markdown=False)[1:]] == ["1e-4", "10"]


@pytest.mark.long
def test_the_same_arms_give_the_same_picture_byte_for_byte(made, tmp_path):
    # when
    out, found, _ = made
    draw_study(found.arms, tmp_path / "again.png", title="tiny, 30 steps, CPU: the z weight")
    # then
    assert (tmp_path / "again.png").read_bytes() == (out / "study.png").read_bytes()


def test_an_interrupted_study_goes_on_and_trains_nothing_twice(tmp_path, capsys):
    # given
    arms = plan(WEIGHTS, seeds=[0])
    first, second = (arm.folder(tmp_path) for arm in arms)
    sweep = dict(out=tmp_path, device="cpu", num_processes=1)

    def interrupt(line):
        if line.startswith("z 10  seed 0  step 15"):
            raise KeyboardInterrupt

    # when
    with pytest.raises(KeyboardInterrupt):
        train_arms(arms, small(), stop_at=30, tell=interrupt, **sweep)
    reached = [steps_done(arm, out=tmp_path) for arm in arms]
    untouched = (first / "history.jsonl").read_bytes()
    assert train_arms(arms, small(), stop_at=30, tell=quiet, **sweep) == {}
    both = [(folder / "history.jsonl").read_bytes() for folder in (first, second)]
    assert train_arms(arms, small(), stop_at=30, tell=pytest.fail, **sweep) == {}
    # then
    assert reached == [30, 0]
    assert both[0] == untouched
    assert [(folder / "history.jsonl").read_bytes() for folder in (first, second)] == both
    assert attempts(first) == ([1], list(range(1, 31)))
    assert [steps_done(arm, out=tmp_path) for arm in arms] == [30, 30]
    assert "records run" in (first / SAID_NAME).read_text(encoding="utf-8")
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match=r"trained to step 30, and this study ends at step 15: give --steps 30"):
        study(small(), out=tmp_path, arms=arms, num_steps=15, tell=quiet)


@pytest.mark.long
def test_an_arm_that_dies_goes_on_from_its_unhealthy_checkpoint_which_a_plain_training_refuses(tmp_path):
    # given
    arm, sweep = plan([10.0], seeds=[0])[0], dict(out=tmp_path, device="cpu", num_processes=1, tell=quiet)
    train_arms([arm], small(), stop_at=60, **sweep)
    assert Checkpointer(arm.folder(tmp_path) / "segment_1").pick().healthy is False
    optim = replace(small().optim, z_weight=10.0)
    with pytest.raises(CheckpointError, match=r"is not healthy"):
        train(replace(small(), optim=optim), out=arm.folder(tmp_path), stop_at=75, tell=quiet)
    # when
    errors = train_arms([arm], small(), stop_at=75, **sweep)
    # then
    assert errors == {}
    assert steps_done(arm, out=tmp_path) == 75
    assert attempts(arm.folder(tmp_path)) == ([1, 2], list(range(1, 76)))


@pytest.mark.parametrize(
    ("reached", "seconds", "expected"),
    [
        ([0, 0], 20, [15]),
        ([0, 0], 100, [15, 45]),
        ([0, 0], 1_000, [15, 60]),
        ([30, 0], 10, [30]),
        ([30, 30], 1_000, [45, 60]),
        ([37, 30], 10, [45]),
        ([60, 60], 10, [60]),
    ],
    ids=["little", "some", "enough", "one_ahead", "both_ahead", "between_evaluations", "done"],
)
def test_when_its_time_is_used_up_all_arms_end_at_the_same_evaluation(reached, seconds, expected):
    # given: a clock by which each step of an arm takes a second
    now, found = list(reached), []
    # when
    for stop in stops(
        lambda: list(now), num_steps=60, eval_every=15, minutes=seconds / 60, clock=lambda: float(sum(now))
    ):
        found.append(stop)
        now[:] = [stop, stop]
    # then
    assert found == expected


def test_a_study_without_time_says_at_which_step_all_its_arms_ended(tmp_path):
    # when
    lines = []
    found = study(small(), out=tmp_path, arms=plan([1e-4], seeds=[0]), minutes=1e-6, tell=lines.append)
    # then
    assert found.num_steps == found.arms[0].num_steps == found.arms[0].eval_steps[-1] == 15
    assert found.stopped_by.endswith("minutes were used up at step 15 of 120, where all arms end")
    assert found.stopped_by in lines
    assert found.stopped_by in (tmp_path / "study.md").read_text(encoding="ascii")


def planted(out):
    """A log of 160 steps, with a report and an evaluation every 20: from step 80 on its router has one choice for all,
    from step 120 on its evaluations rise."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with trimtab.Run(out, model=model, optimizer=optimizer) as run:
        for step in range(1, 161):
            losses = torch.full((1, 4), 2.0 + step % 7 / 100) + 0 * model(torch.ones(2))
            run.micro_batch(losses, rows=[step]).backward()
            run.step()
            if step % 20:
                continue
            is_dead = step >= 80
            layer = LayerFigures(
                name="blocks.0.router",
                num_experts=8,
                top_k=2,
                num_tokens=4_000,
                z=0.01 if is_dead else 4.4,
                lse=0.1 if is_dead else 2.1,
                load_balance=4.0 if is_dead else 1.0,
                counts=(4_000, 4_000, *[0] * 6) if is_dead else (990, 1_010, 1_000, 1_005, 995, 1_000, 1_001, 999),
                token_entropy=0.01 if is_dead else 1.9,
                spread=9.0 if is_dead else 1.0,
            )
            run.event("router", **report_to_facts(RouterReport(step=step, first_step=step - 19, layers=(layer,))))
            run.evaluation(3.0 - min(step, 100) / 500 + max(0, step - 100) / 100)


def test_an_arm_that_dies_is_marked_before_its_evaluations_fall(tmp_path):
    # given
    planted(tmp_path / "dying")
    # when
    dying = read_arm(tmp_path, tmp_path / "dying", z_weight=1e-3, seed=0, in_sweep=True)
    none = read_arm(tmp_path, tmp_path / "none", z_weight=10.0, seed=0, in_sweep=False, ended_by="it broke")
    # then
    assert dying.first_warning.kind == "collapse"
    assert dying.first_warning.step == 80
    assert dying.fall == (120, 160)
    assert dying.lead_steps == 40
    assert (none.num_steps, none.final_eval, none.first_warning, none.fall) == (0, None, None, None)
    lines = table_lines([none, dying], is_markdown=True)
    first, second = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:])
    assert first[-3:] == ["80 collapse!", "120 (160)", "+40"]
    assert second == ["10 x", "0", *["-"] * 8, "none", "none", "-"]
    only_warned = tuple(one for one in dying.findings if one.kind != "eval_regression")
    pictures = set()
    for place, findings in enumerate((dying.findings, only_warned, ())):
        draw_study([replace(dying, findings=findings), none], tmp_path / f"{place}.png", title="one dies")
        assert shape_of_png(tmp_path / f"{place}.png") == SIZE_PIXELS
        pictures.add((tmp_path / f"{place}.png").read_bytes())
    assert len(pictures) == 3


def test_an_arm_that_the_guard_gives_up_on_is_told_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    # given
    def give_up(config, **arguments):
        if config.optim.z_weight == 10:
            raise trimtab.GuardLockupError("8 in a row\nare spikes")
        return train(config, **arguments)

    monkeypatch.setattr(recipes.twin_moe.study.__main__, "read_preset", lambda name: small())
    monkeypatch.setattr(recipes.twin_moe.study.arm, "train", give_up)
    # when
    status = main(
        ["--out", str(tmp_path), "--weights", "10", "1e-4", "--seeds", "1", "--steps", "15", "--processes", "1"]
    )
    # then
    assert status == 1
    assert "arms/z_10_seed_0 ended early: 8 in a row are spikes" in capsys.readouterr().out.splitlines()
    document = json.loads((tmp_path / "study.json").read_text(encoding="ascii"))
    assert [(arm["z_weight"], arm["num_steps"], arm["ended_by"]) for arm in document["arms"]] == [
        (1e-4, 15, None),
        (10.0, 0, "8 in a row are spikes"),
    ]


@pytest.fixture
def presets(tmp_path, monkeypatch):
    """The folder of the presets, with a single one of the reader's own in it."""
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "mine.yaml").write_text(yaml.safe_dump(asdict(replace(small(), preset="mine"))), encoding="ascii")
    monkeypatch.setattr(recipes.twin_moe.config, "CONFIGS", folder)
    return folder


def test_a_preset_of_ones_own_is_studied_by_its_file_alone(presets, tmp_path):
    # given
    out = tmp_path / "study"
    # when
    status = main(["--preset", "mine", "--out", str(out), "--weights", "1e-4", "--seeds", "1", "--steps", "1"])
    # then
    assert status == 0
    document = json.loads((out / "study.json").read_text(encoding="ascii"))
    assert (document["preset"], document["num_steps"]) == ("mine", 1)
    assert [(arm["z_weight"], arm["seed"]) for arm in document["arms"]] == [(1e-4, 0)]
    assert defaults_of("mine") == defaults_of("tiny")


def test_a_preset_that_cannot_be_read_is_told_in_a_line(presets, tmp_path, capsys):
    # given
    (presets / "mine.yaml").write_text("preset: mine\n", encoding="ascii")
    # when
    status = main(["--preset", "mine", "--out", str(tmp_path / "study")])
    # then
    assert status == 2
    assert re.fullmatch(r".*mine\.yaml.*\n", capsys.readouterr().err)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("weight", "name"),
    [(0.0, "0"), (1e-5, "1e-5"), (2.5e-4, "2.5e-4"), (0.1, "1e-1"), (1.0, "1"), (10.0, "10")],
    ids=["none", "small", "between", "tenth", "one", "ten"],
)
def test_a_weight_is_written_as_people_write_it(weight, name):
    assert weight_name(weight) == name


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--weights", "-1"], "-1: expected a finite number of 0 or more"),
        (["--weights", "nan"], "nan: expected a finite number of 0 or more"),
        (["--seeds", "0"], "0: expected a whole number of 1 or more"),
        (["--minutes", "0"], "0: expected minutes, a hundredth or more"),
        (["--preset", "local140a50"], "--preset local140a50 is for a GPU, and there is none"),
    ],
    ids=["negative", "nan", "no_seed", "no_time", "no_gpu"],
)
def test_a_study_of_nonsense_is_refused_before_anything_is_trained(arguments, found, tmp_path, capsys, monkeypatch):
    # given
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    # when
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path / "study"), *arguments])
    # then
    assert ended.value.code == 2
    assert found in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


@pytest.mark.long
def test_an_interruption_ends_all_processes_of_a_study_and_begins_no_other_arm(tmp_path):
    # given
    options = ["--weights", "1e-4", "1e-3", "1e-2", "--seeds", "1", "--steps", "50", "--processes", "2"]
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "--out", str(tmp_path), *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        for line in process.stdout:
            if "step 25" in line:
                break
        # when: as a terminal does it, to all processes at once
        os.killpg(process.pid, signal.SIGINT)
        told, complained = process.communicate(timeout=120)
    # then
    assert process.returncode == 130, complained
    assert told.endswith("interrupted: the same command goes on from the checkpoints\n")
    assert complained == ""
    assert not (tmp_path / "arms" / "z_1e-2_seed_0").exists()
    assert not (tmp_path / "study.json").exists()


@pytest.mark.long
def test_arms_in_processes_of_their_own_are_those_in_one(made, tmp_path):
    # given
    _, alone, _ = made
    # when
    found = study(small(), out=tmp_path, arms=plan(WEIGHTS, seeds=[0]), num_steps=30, num_processes=2, tell=quiet)
    # then
    assert [arm.routers for arm in found.arms] == [arm.routers for arm in alone.arms]
    assert [arm.eval_losses for arm in found.arms] == [arm.eval_losses for arm in alone.arms]
