"""All gates together: their order, their JSON, and what is loaded for them."""

import json
import math
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

import trimtab
from trimtab.gates.checkpoint import CHECKPOINT_GATES
from trimtab.gates.evidence import read_evidence
from trimtab.gates.judging import LOG_GATES, judge_chunk
from trimtab.gates.learning_rate import learning_rate
from trimtab.gates.nonfinite_steps import nonfinite_steps
from trimtab.gates.values import GATE_NAMES
from trimtab.log.reader import open_log


def test_every_name_has_one_gate():
    assert sorted([*LOG_GATES, *CHECKPOINT_GATES]) == sorted(GATE_NAMES)


def test_every_gate_is_told_in_order_and_what_nobody_recorded_has_not_passed(run):
    run.attempt(1, 60, evaluations={60: 2.8})
    report = judge_chunk(run.folder, checkpoints=None)
    assert tuple(gate.name for gate in report.gates) == GATE_NAMES
    assert (report.run_id, report.source, report.checkpoint) == ("r", str(run.folder), None)
    assert {gate.status for gate in report.gates if gate.name in LOG_GATES} == {"passed"}
    assert not {gate.status for gate in report.gates if gate.name in CHECKPOINT_GATES} & {"passed"}
    assert not report.passed(strict=True)


def test_a_log_that_is_open_already_gives_the_same(run):
    run.attempt(1, 60)
    assert judge_chunk(open_log(run.folder), checkpoints=None) == judge_chunk(str(run.folder), checkpoints=None)


def test_a_failing_report_is_strict_json_and_plain_text(run, make_layer, make_report):
    # given: whatever can be no number is none
    broken = make_layer("moe\x1b[31m", (4_000, 4_000, 0, 0, 0, 0, 0, 0), z=math.nan, load_balance=math.inf)
    run.attempt(
        1,
        60,
        rate=lambda step: math.nan,
        steps={30: {"grad_norm": math.nan, "loss": math.nan, "rows_loss": math.nan}},
        reports=lambda step: make_report(step, broken),
        evaluations={60: math.nan},
        end="Value\u202eError",
    )
    report = judge_chunk(run.folder, checkpoints=None)
    names = {gate.name for gate in report.with_status("failed")}
    assert names >= set(LOG_GATES) - {"watch", "router_load"}
    document = json.dumps(report.to_dict(), allow_nan=False)
    assert json.loads(document)["passed"] is False
    for text in (*(gate.text for gate in report.gates), *report.notices):
        assert text.isascii()
        assert text.isprintable()
        assert not text.endswith(".")


def test_no_gate_advises_another_clip_or_the_end_of_a_loss_term(run, make_layer, make_report):
    broken = make_layer("moe.0", (4_000, 4_000, 0, 0, 0, 0, 0, 0), z=2_500.0, lse=50.0, load_balance=4.0)
    run.attempt(
        1, 60, rate=lambda step: 1.0, steps={9: {"grad_norm": math.inf}}, reports=lambda step: make_report(step, broken)
    )
    text = " ".join(gate.text for gate in judge_chunk(run.folder, checkpoints=None).gates).casefold()
    assert not any(word in text for word in ("clip", "remove the", "delete", "multipl"))


def test_nothing_of_a_framework_is_loaded(run):
    run.attempt(1, 60)
    code = (
        "import sys; from trimtab.gates.judging import judge_chunk; "
        f"judge_chunk({str(run.folder)!r}, checkpoints=None); "
        "print(*sorted({'torch', 'transformers', 'click', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "unguarded"])
def test_a_micro_batch_that_a_real_guard_kept_out_passes_and_without_a_guard_it_fails(tmp_path, guarded):
    # given: a small model, of whose 25th step one of two micro-batches is NaN
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = trimtab.GuardConfig(rule="robust") if guarded else None
    schedule = trimtab.Schedule(form="constant", lr=0.1)
    with trimtab.Run(
        tmp_path, model=model, optimizer=optimizer, accumulation=2, max_grad_norm=1.0, guard=guard, schedule=schedule
    ) as run:
        for step in range(1, 31):
            for micro in range(2):
                inputs = torch.randn(3, 4)
                losses = functional.cross_entropy(model(inputs), torch.randint(2, (3,)), reduction="none")
                losses = losses * (math.nan if (step, micro) == (25, 1) else 1.0)
                run.micro_batch(losses, rows=torch.arange(3), per="sample").backward()
            run.step()
    # then
    evidence = read_evidence(tmp_path)
    gate = nonfinite_steps(evidence)
    if guarded:
        assert (gate.status, gate.text) == ("passed", "none of 30 steps; the guard kept 1 micro-batch out")
    else:
        assert (gate.status, gate.figures["steps"]) == ("failed", [25, 26, 27, 28, 29, 30])
    assert learning_rate(evidence).status == "passed"
