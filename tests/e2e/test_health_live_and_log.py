"""What a watch says while a model trains is what `rewind` finds in its log, to the last figure."""

import importlib.util
import sys
from copy import deepcopy
from pathlib import Path

import pytest

import trimtab

_FILE = Path(__file__).parents[1] / "unit" / "torch" / "moe_of_a_run.py"
_spec = importlib.util.spec_from_file_location("moe_of_a_run", _FILE)
moe = importlib.util.module_from_spec(_spec)
sys.modules["moe_of_a_run"] = moe
_spec.loader.exec_module(moe)

EVALUATIONS = {40: 7.6066, 80: 7.6406, 140: 8.2422, 180: 8.2717}
TOLD_AMONG_SPIKES = {"grad_norm_jump", "zero_loss"}
ORDER = ("critical", "warning", "notice")


def trouble(model):
    """The router collapses before step 121."""
    return lambda step: moe.collapse(model) if step == 121 else None


def in_order(findings):
    kept = [finding for finding in findings if finding.kind not in TOLD_AMONG_SPIKES]
    ordered = sorted(kept, key=lambda finding: (ORDER.index(finding.severity), finding.step))
    return [finding.to_dict() for finding in ordered]


def test_the_log_alone_gives_the_findings_that_were_said_while_it_trained(tmp_path):
    # given
    model, optimizer = moe.new_training()
    said = []
    with trimtab.Run(
        tmp_path, model=model, optimizer=optimizer, max_grad_norm=1.0, on_finding=said.append, **moe.settings(model)
    ) as run:
        moe.train(run, model, range(1, 201), before=trouble(model), evaluations=EVALUATIONS)
    # when
    findings = trimtab.rewind(run.folder)
    # then
    assert {"collapse", "dead_experts", "eval_regression"} <= {finding.kind for finding in said}
    assert [finding.to_dict() for finding in findings.health] == in_order(said)
    assert (findings.router_at_finding.step, findings.router.step) == (130, 200)


@pytest.mark.parametrize("cut", [57, 126, 150])
def test_a_run_that_was_cut_and_resumed_has_the_findings_of_one_that_was_not(tmp_path, cut):
    # given: it is killed some steps after its checkpoint, which a second attempt goes on from
    model, optimizer = moe.new_training()
    said = []
    settings = {"max_grad_norm": 1.0, "on_finding": said.append}
    run = trimtab.Run(tmp_path, model=model, optimizer=optimizer, **settings, **moe.settings(model))
    moe.train(run, model, range(1, cut + 1), before=trouble(model), evaluations=EVALUATIONS)
    saved = deepcopy((model.state_dict(), optimizer.state_dict(), run.state_dict()))
    moe.train(run, model, range(cut + 1, cut + 6), before=trouble(model), evaluations=EVALUATIONS)
    run.close()
    said[:] = [finding for finding in said if finding.step <= cut]
    # when
    with trimtab.Run(tmp_path, model=model, optimizer=optimizer, **settings, **moe.settings(model)) as again:
        for part, state in zip((model, optimizer, again), saved, strict=True):
            part.load_state_dict(state)
        moe.train(again, model, range(cut + 1, 201), before=trouble(model), evaluations=EVALUATIONS)
    findings = trimtab.rewind(again.folder)
    # then
    assert [(one.kind, one.step) for one in findings.health] == [(one["kind"], one["step"]) for one in in_order(said)]
