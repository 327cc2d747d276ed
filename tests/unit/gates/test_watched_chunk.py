"""What gates share that judge by a watch, tried on those of the routers: what is found, and what is missing."""

import pytest

from trimtab.gates.dead_experts import dead_experts
from trimtab.gates.evidence import read_evidence
from trimtab.gates.populations import populations
from trimtab.gates.router_load import router_load
from trimtab.gates.router_z import router_z
from trimtab.log.folder import create_run
from trimtab.recorder import Recorder
from trimtab.values import Event, RunHeader, StepRow
from trimtab.watched import LayerFigures, RouterReport
from trimtab.watched_json import report_to_facts

ROUTER_GATES = (router_z, router_load, dead_experts, populations)
CROWDED = (4_000, 4_000, 0, 0, 0, 0, 0, 0)


def statuses(run, **more):
    return {gate.__name__: run.judge(gate, **more).status for gate in ROUTER_GATES}


@pytest.fixture
def collapsed(make_layer, make_report):
    """A report whose second layer sends every token to the same two experts."""

    def make(step):
        broken = make_layer("moe.1", CROWDED, z=2_500.0, lse=50.0, load_balance=4.0, token_entropy=0.0, spread=50.0)
        return make_report(step, make_layer("moe.0"), broken)

    return make


def test_sound_routers_pass_and_the_figures_are_told(run):
    run.attempt(1, 60)
    assert set(statuses(run).values()) == {"passed"}
    assert run.judge(router_z).text == "z of a layer 6 to 8; 6 to 8 at step 60 (band 0.3 to 150)"
    assert run.judge(router_load).text == "load balance of a layer 1.02 (even: 1); 1.02 at step 60"
    assert run.judge(dead_experts).text == "none of 16 in 2 layers at step 60"
    assert run.judge(populations).text == "each of 2 has 50 % of the tokens of a layer at step 60 (even: 50 %)"


def test_a_collapse_fails_load_experts_and_populations_and_sends_back(run, collapsed, make_report):
    run.attempt(1, 100, reports=lambda step: collapsed(step) if step > 60 else make_report(step))
    found = statuses(run)
    assert (found["router_load"], found["dead_experts"], found["populations"]) == ("failed",) * 3
    for gate in (router_load, dead_experts, populations):
        assert f"trimtab rewind {run.shown} tells more" in run.judge(gate).text
    text = run.judge(populations).text
    assert text.startswith(
        "population 1 of 2 has 0 % of the tokens of layer moe.1 at step 100, less than an eighth of its even"
    )


def test_what_began_in_an_earlier_chunk_and_stands_fails_this_one(run, collapsed, make_report):
    run.attempt(1, 100, reports=lambda step: collapsed(step) if step > 60 else make_report(step))
    run.attempt(101, 130, reports=collapsed)
    assert statuses(run)["router_load"] == "failed"


def test_what_stands_at_the_end_fails_whenever_it_was_said(run, collapsed, make_report):
    run.attempt(1, 100, reports=lambda step: collapsed(step) if step >= 20 else make_report(step))
    assert statuses(run, since=90)["router_load"] == "failed"
    assert "since step 20, last seen at step 100" in run.judge(router_load, since=90).text


def test_what_an_earlier_chunk_came_back_from_does_not(run, collapsed, make_report):
    run.attempt(1, 100, reports=lambda step: collapsed(step) if 20 < step < 70 else make_report(step))
    run.attempt(101, 130)
    assert statuses(run)["router_load"] == "passed"
    assert statuses(run, since=0)["router_load"] == "failed", "it was found in the steps that are judged"


def test_a_model_without_routers_has_nothing_that_these_gates_look_at(run):
    run.attempt(1, 40, reports=None)
    assert set(statuses(run).values()) == {"inapplicable"}


def test_a_run_without_a_watch_is_unknown_and_it_says_how_to_have_one(run):
    run.attempt(1, 40, watch=None)
    assert set(statuses(run).values()) == {"unknown"}
    assert "pass watch=True" in run.judge(router_z).text


def test_an_attempt_of_the_chunk_without_a_watch_makes_it_unknown(run):
    run.attempt(1, 40, end="kill").attempt(41, 80, watch=None)
    assert set(statuses(run).values()) == {"unknown"}
    assert "no watch looked after attempt 2:" in run.judge(router_z).text


def test_a_chunk_without_a_report_is_unknown(run):
    run.attempt(1, 40).attempt(41, 49)
    assert set(statuses(run).values()) == {"unknown"}
    assert "too short for a report" in run.judge(router_z).text


def test_a_watch_that_failed_in_the_chunk_has_passed_nothing(run, make_report):
    # given: a sensor that raises at step 50, by which the watch is off
    run.attempt(1, 100, reports=lambda step: None if step >= 50 else make_report(step))
    assert set(statuses(run).values()) == {"unknown"}
    assert "more in the log, where one was due: the watch was off there" in run.judge(router_z).text


def test_a_layer_that_the_last_report_lacks_has_passed_nothing(run, make_layer, make_report):
    run.attempt(1, 40, reports=lambda step: make_report(step) if step < 40 else make_report(step, make_layer("moe.0")))
    assert set(statuses(run).values()) == {"unknown"}
    assert "nothing of moe.1, of which an earlier one has" in run.judge(router_z).text


@pytest.mark.parametrize(
    ("lacks", "gate"),
    [({"z": None}, router_z), ({"load_balance": None}, router_load), ({"counts": None}, dead_experts)],
    ids=["z", "load balance", "counts"],
)
def test_a_figure_that_one_layer_lacks_has_not_passed(run, make_layer, make_report, lacks, gate):
    figures = {"counts": (1_000,) * 8, **lacks}
    layer = LayerFigures(name="moe.1", num_experts=8, top_k=2, **({"z": 6.0, "load_balance": 1.0} | figures))
    run.attempt(1, 10, reports=lambda step: make_report(step, make_layer(), layer))
    assert run.judge(gate).status == "unknown"


def test_reports_beyond_those_that_are_judged_again_are_judged_where_they_are_of_the_chunk(
    run, collapsed, make_report, monkeypatch
):
    # given: room for two reports before the chunk and two in it, and a collapse of which no watch said anything
    monkeypatch.setattr("trimtab.analysis.health.MAX_LAYERS_JUDGED", 4)
    silent = {step: ("router", report_to_facts(collapsed(step))) for step in (110, 120, 130)}
    settings = ("watch", {"report_every": 10, "watches_routers": True})
    run.attempt(1, 100).attempt(101, 130, watch=None, events={101: settings, **silent})
    assert statuses(run)["router_load"] == "failed"
    # and: behind those that are judged the words of the watch count, and the last report is looked at
    run.attempt(131, 160).attempt(161, 200, reports=lambda step: collapsed(step) if step == 200 else make_report(step))
    found = statuses(run)
    assert (found["router_load"], found["dead_experts"], found["populations"]) == ("failed",) * 3


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"step": "x", "layers": 7},
        {"step": 10, "layers": {"name": [None, "a"], "counts": [[1], "x"], "z": ["nan", 1e400]}},
        {"step": 2**62, "first_step": -5, "num_populations": 10**30, "layers": {"name": ["a"], "counts": [[-1, 2]]}},
    ],
    ids=["nothing", "types", "columns", "numbers"],
)
def test_whatever_stands_in_a_report_nothing_raises_and_nothing_passes(tmp_path, facts):
    folder = create_run(tmp_path, RunHeader(run_id="r", backend="torch", created=1.0))
    recorder = Recorder(folder, seal_bytes=None)
    recorder.put(Event("watch", 1, 1.0, {"report_every": 10, "watches_routers": True}))
    for step in range(1, 11):
        recorder.put(StepRow(step, 2.0, 1.0, 1e-3, num_tokens=10))
    recorder.put(Event("router", 10, 1.0, facts))
    recorder.close()
    evidence = read_evidence(folder.path)
    for gate in ROUTER_GATES:
        judged = gate(evidence)
        assert judged.status in ("unknown", "inapplicable", "failed")
        assert judged.text.isprintable()


def test_a_model_whose_z_is_known_as_a_whole_only_is_not_passed_for_its_layers(tmp_path):
    # given: a report of our own with one z and no layer
    folder = create_run(tmp_path, RunHeader(run_id="r", backend="torch", created=1.0))
    recorder = Recorder(folder, seal_bytes=None)
    recorder.put(Event("watch", 1, 1.0, {"report_every": 10, "watches_routers": True}))
    for step in range(1, 11):
        recorder.put(StepRow(step, 2.0, 1.0, 1e-3, num_tokens=10))
    made = RouterReport(step=10, first_step=1, z=20.0, z_scale="sum")
    recorder.put(Event("router", 10, 1.0, report_to_facts(made)))
    recorder.close()
    evidence = read_evidence(folder.path)
    assert router_z(evidence).text == "z summed over layers 20; 20 at step 10 (band 1 to 150)"
    assert [gate(evidence).status for gate in (router_load, dead_experts)] == ["unknown", "unknown"]
