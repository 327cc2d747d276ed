"""The health of our own runs, out of their logs alone: what counts, whose word counts, and what hostile facts do."""

import json
from dataclasses import asdict

import pytest

from trimtab.analysis import health, observed_steps
from trimtab.analysis.findings import rewind
from trimtab.log import records
from trimtab.log.folder import continue_run, create_run
from trimtab.log.frames import KIND_ATTEMPT, Block
from trimtab.log.header import dump_header
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import journal_name
from trimtab.log.reader import open_log
from trimtab.rules.health.clip_fraction import ClipFraction
from trimtab.rules.health.grad_norm import GradNorms
from trimtab.rules.health.loss_scale import LossScale
from trimtab.rules.health.throughput import Throughput
from trimtab.rules.health.zero_loss import ZeroLoss
from trimtab.rules.watch_config import WatchConfig
from trimtab.values import Event, RunHeader, StepRow
from trimtab.watched import LayerFigures, RouterReport, WatchFinding
from trimtab.watched_json import report_to_facts

BALANCED = (160, 155, 165, 160)
CROWDED = (640, 0, 0, 0)


def step_row(step, **fields):
    return StepRow(step, 2.0, 1.0, 1e-4, **({"num_tokens": 100} | fields))


def report(step, *, counts=BALANCED, name="gate", **fields):
    """A router that chooses, its load balanced, or one that is sure of expert 0."""
    is_crowded = counts == CROWDED
    layer = LayerFigures(
        name=name,
        num_experts=4,
        top_k=1,
        num_tokens=sum(counts),
        z=2500.0 if is_crowded else 6.0,
        lse=50.0 if is_crowded else 2.4,
        load_balance=4.0 if is_crowded else 1.01,
        counts=counts,
        token_entropy=0.0 if is_crowded else 0.9,
        spread=50.0 if is_crowded else 3.0,
    )
    made = RouterReport(step=step, first_step=step - 9, layers=(layer,), **fields)
    return Event("router", step, float(step), report_to_facts(made))


def said(kind, step, *, severity="warning", text="said so", layers=()):
    finding = WatchFinding(kind=kind, severity=severity, step=step, text=text, layers=layers)
    return Event("finding", step, float(step), finding.to_dict())


def evaluation(step, loss):
    return Event("evaluation", step, float(step), {"loss": loss})


def append(folder, items, *, rank=0):
    """Appends what one rank recorded in an attempt."""
    writer = JournalWriter(folder.path / journal_name(rank), attempt=folder.attempt, rank=rank)
    writer.append(Block(KIND_ATTEMPT, 1, 0, 0, [dump_header(folder.header)]))
    kinds = ((StepRow, records.step_blocks), (Event, records.event_blocks))
    for kind, blocks in kinds:
        for block in blocks([item for item in items if isinstance(item, kind)])[0]:
            writer.append(block)
    writer.close()


@pytest.fixture
def write(tmp_path):
    """`write(*attempts)`: a run of so many attempts, each a list of what was recorded; gives its folder."""

    def write_run(*attempts):
        header = RunHeader(run_id="a", backend="torch", created=1.7e9)
        for number, items in enumerate(attempts, start=1):
            folder = create_run(tmp_path, header) if number == 1 else continue_run(tmp_path, "a", header)
            first = items[0].step
            resume = [Event("resume", first, float(first), {"attempt": number})] if number > 1 else []
            append(folder, [*resume, *items])
        return folder.path

    return write_run


def steps(first, last):
    return [step_row(step) for step in range(first, last + 1)]


def told(findings):
    return [(finding.kind, finding.step) for finding in findings.health]


def test_a_run_that_was_not_watched_is_told_of_its_evaluations_and_of_nothing_else(write):
    folder = write([*steps(1, 40), *(evaluation(10 * at, 1.0 + at / 10) for at in range(1, 5))])
    findings = rewind(folder)
    assert told(findings) == [("eval_regression", 40)]
    assert (findings.router, findings.router_at_finding) == (None, None)


def test_the_routers_are_shown_at_the_first_finding_about_them_and_at_the_last_report(write):
    # given
    reports = [report(step, counts=BALANCED if step < 30 else CROWDED) for step in range(10, 41, 10)]
    # when
    findings = rewind(write([*steps(1, 50), *reports]))
    # then
    assert {kind for kind, _ in told(findings)} == {"collapse", "dead_experts"}
    assert {step for _, step in told(findings)} == {30}
    assert (findings.router_at_finding.step, findings.router.step) == (30, 40)
    [layer] = findings.router.layers
    assert (layer.name, layer.num_experts, layer.num_silent, layer.max_vio, layer.z) == ("gate", 4, 3, 3.0, 2500.0)
    document = findings.to_dict()
    assert document["router"]["layers"][0]["load_balance"] == 4.0
    assert document["health"][0]["severity"] == "critical", "the worst in front"
    json.dumps(document, allow_nan=False)


def test_reports_that_a_later_attempt_went_over_again_count_for_nothing(write):
    collapsed = [*steps(1, 50), *(report(step, counts=BALANCED if step < 40 else CROWDED) for step in (10, 20, 40, 50))]
    again = [*steps(26, 50), *(report(step) for step in (30, 40, 50))]
    findings = rewind(write([*collapsed, said("collapse", 40), evaluation(45, "nan")], again))
    assert told(findings) == [], "neither what its reports show nor what its watch said"


def test_an_attempt_that_has_only_just_begun_hides_no_report_further_on(write):
    collapsed = [*steps(1, 50), *(report(step, counts=BALANCED if step < 40 else CROWDED) for step in (10, 40, 50))]
    findings = rewind(write(collapsed, [*steps(26, 32), report(30)]))
    assert ("collapse", 40) in told(findings)
    assert findings.router.step == 50


def test_the_rules_go_on_where_a_run_was_resumed(write):
    # given: three evaluations that get worse, the last behind a resume
    first = [*steps(1, 30), *(evaluation(10 * at, 1.0 + at / 10) for at in range(1, 4))]
    # when, then
    assert told(rewind(write(first, [*steps(31, 40), evaluation(40, 1.4)]))) == [("eval_regression", 40)]


def test_the_settings_of_the_watch_are_those_of_the_analysis(write):
    facts = asdict(WatchConfig(eval_patience=2)) | {"watches_routers": True, "of_a_later_version": 1}
    folder = write(
        [Event("watch", 1, 0.0, facts), *steps(1, 40), *(evaluation(10 * at, 1.0 + at) for at in range(1, 5))]
    )
    findings = rewind(folder)
    assert told(findings) == [("eval_regression", 30)]
    assert not any("default" in notice for notice in findings.notices)


# By setting: a strict value, and steps in which it finds what the default does not, or says it later.
STRICT = {
    "throughput_patience": (3, [{"wall_s": 60.0 if 60 < step <= 64 else 10.0} for step in range(1, 121)]),
    "throughput_fraction": (
        0.9,
        [{"wall_s": 10.0} if step <= 60 else {"wall_s": 24.0, "num_tokens": 200} for step in range(1, 101)],
    ),
    "clip_fraction_rise": (0.05, [{"clipped": step > 1_100 and step % 10 == 0} for step in range(1, 1_401)]),
    "loss_scale_halvings": (1, [{"loss_scale": 64.0 if step <= 150 else 32.0} for step in range(1, 161)]),
    "loss_scale_floor": (9.0, [{"loss_scale": max(8.0, 64.0 / 2 ** (step // 20))} for step in range(1, 81)]),
}


@pytest.mark.parametrize("name", STRICT)
def test_what_a_strict_watch_said_a_long_log_shows_by_itself(write, monkeypatch, name):
    # given: a log of a length from which steps are screened
    monkeypatch.setattr(observed_steps, "_SCREENED", 50)
    value, fields = STRICT[name]
    rows = [step_row(step, **beside) for step, beside in enumerate(fields, start=1)]
    settings = Event("watch", 1, 0.0, asdict(WatchConfig(**{name: value})))
    # when
    [finding] = rewind(write([settings, *rows])).health
    # then
    assert name.startswith(finding.kind.removesuffix("_collapse"))
    assert "said" not in finding.text


def test_every_setting_that_a_rule_of_steps_reads_is_tried_strict():
    # given
    class Read(set):
        def __getattr__(self, name):
            self.add(name)
            return 1

    read = Read()
    # when
    for rule in (GradNorms, ClipFraction, LossScale, ZeroLoss, Throughput):
        rule(read)
    # then: how far a norm must jump is told by the spikes
    assert read == {*STRICT, "grad_norm_factor"}


@pytest.mark.parametrize(
    "value", [0, -3, True, "3", None, [3], {"a": 1}, 1.5, 10**30], ids=lambda value: json.dumps(value)
)
def test_a_setting_that_no_watch_had_is_the_default_and_said(write, value):
    facts = asdict(WatchConfig()) | {"eval_patience": value}
    folder = write(
        [Event("watch", 1, 0.0, facts), *steps(1, 40), *(evaluation(10 * at, 1.0 + at) for at in range(1, 5))]
    )
    findings = rewind(folder)
    assert told(findings) == [("eval_regression", 40)]
    [notice] = [notice for notice in findings.notices if "eval_patience" in notice]
    assert notice.startswith("the watch's eval_patience in the log cannot be: "), "and the others are as they stand"


@pytest.mark.parametrize("name", ["router_warmup_steps", "host_memory_floor_bytes"])
def test_a_setting_that_a_watch_may_have_at_nothing_is_no_wrong_one(write, name):
    facts = asdict(WatchConfig(**{name: 0}))
    findings = rewind(write([Event("watch", 1, 0.0, facts), *steps(1, 10)]))
    assert not any("cannot be" in notice for notice in findings.notices)


def test_what_the_log_cannot_show_is_told_as_it_was_said(write):
    events = [
        said("host_memory", 0, text="4.1 GB are available"),
        said("grad_norm_jump", 10),
        said("z_band", 20, text="z is 0.1"),
    ]
    findings = rewind(write([*steps(1, 20), *events]))
    assert [(finding.kind, finding.text) for finding in findings.health] == [
        ("host_memory", "4.1 GB are available"),
        ("z_band", "z is 0.1 (said while it trained; the log alone does not show it)"),
    ], "and a jump of the gradient norm stands among the spikes, if it is one"


def test_what_was_said_and_is_found_again_is_told_once_as_it_is_found(write):
    reports = [report(step, counts=BALANCED if step < 30 else CROWDED) for step in range(10, 41, 10)]
    events = [said("collapse", 30, severity="critical"), said("dead_experts", 30)]
    findings = rewind(write([*steps(1, 50), *reports, *events]))
    assert sorted(told(findings)) == [("collapse", 30), ("dead_experts", 30)]
    assert not any("said" in finding.text for finding in findings.health)


def test_a_log_of_too_many_reports_takes_the_word_of_its_watch_from_there_on(write, monkeypatch):
    # given: three reports are judged, the rest is not
    monkeypatch.setattr(health, "MAX_LAYERS_JUDGED", 3)
    reports = [report(step, counts=BALANCED if step < 50 else CROWDED) for step in range(10, 81, 10)]
    events = [said("collapse", 50, severity="critical", text="layer gate is sure of few"), said("z_band", 20)]
    # when
    findings = rewind(write([*steps(1, 80), *reports, *events]))
    # then
    assert [(finding.kind, finding.text) for finding in findings.health] == [
        ("collapse", "layer gate is sure of few"),
        ("z_band", "said so (said while it trained; the log alone does not show it)"),
    ]
    assert (findings.router.step, findings.router.layers[0].num_silent) == (80, 3)
    assert any("from step 40 on are not judged again" in notice for notice in findings.notices)


HOSTILE = [
    {},
    {"layers": 7},
    {"layers": {"name": [1, None, "x" * 5000], "counts": [[-1], "no", [10**30]]}},
    {"layers": {"name": ["\x1b[31mgate"], "counts": [[5, 5]], "z": ["nan"], "num_experts": [10**18]}},
    {"z": 1e308, "z_scale": "sum", "z_factor": "nan", "step": -4},
    {"z": "inf", "z_scale": ["sum"], "first_step": "x", "num_populations": 10**9},
    {"kind": "collapse", "text": "\x1b[2J\nrun 1", "severity": "fatal", "step": 10**18, "figures": 3, "layers": "x"},
    {"loss": "nan", "eval_\u202eloss": 10**400, "weights_finite": "no"},
]


@pytest.mark.parametrize("kind", ["router", "vitals", "finding", "watch", "evaluation"])
def test_whatever_stands_in_the_facts_nothing_raises_and_the_document_is_strict(write, kind):
    events = [Event(kind, step, float(step), facts) for step, facts in enumerate(HOSTILE * 3, start=1)]
    findings = rewind(write([*steps(1, 30), *events]))
    json.dumps(findings.to_dict(), allow_nan=False)
    assert "\x1b" not in findings._repr_html_()
    for finding in findings.health:
        assert "\x1b" not in finding.text or finding.kind == "collapse", "only what a watch is said to have said"


def test_events_of_large_kinds_are_read_one_by_one_and_stand_in_no_list(write):
    log = open_log(write([*steps(1, 20), report(10), report(20), evaluation(20, 1.0)], [*steps(21, 30), report(30)]))
    small = [event.kind for event in log.event_list(without=("router",))]
    assert "router" not in small
    assert "evaluation" in small
    assert [(r.event.step, r.rank, r.attempt) for r in log.event_stream(("router",))] == [
        (10, 0, 1),
        (20, 0, 1),
        (30, 0, 2),
    ]


def test_the_memory_of_every_rank_is_told_with_the_rank_and_its_evaluations_are_those_of_the_first(tmp_path):
    # given: four ranks, each of which evaluates; three evaluations get worse, not twelve; three ranks say the same
    folder = create_run(tmp_path, RunHeader(run_id="a", backend="torch", created=1.7e9, world_size=4))
    evals = [evaluation(10, 1.0), evaluation(20, 1.1), evaluation(30, 1.2)]
    starved = said("host_memory", 20, text="0.9 GB are available")
    for rank in range(4):
        append(folder, [*steps(1, 30), *evals, *([starved] if rank != 1 else [])], rank=rank)
    # when
    findings = rewind(folder.path)
    # then
    assert [(finding.kind, finding.step, finding.text) for finding in findings.health] == [
        ("host_memory", 20, "0.9 GB are available"),
        ("host_memory", 20, "on rank 2: 0.9 GB are available"),
        ("host_memory", 20, "on rank 3: 0.9 GB are available"),
    ]


def test_what_could_not_be_measured_is_told_once_and_stands_in_the_document(write):
    # given: a cause that lasts, and one of the first report alone
    lasting, early = "gate: it saw no token in these steps", "no mask was seen"
    reports = [
        report(step, counts=BALANCED if step < 20 else CROWDED, notes=(early, lasting) if step == 10 else (lasting,))
        for step in range(10, 41, 10)
    ]
    # when
    findings = rewind(write([*steps(1, 40), *reports]))
    # then
    assert findings.router_at_finding.notes == findings.router.notes == (early, lasting)
    assert findings.to_dict()["router"]["notes"] == [early, lasting]


def test_notes_of_a_stranger_are_bounded(write):
    reports = [report(step, notes=tuple(f"{step} {at}" for at in range(90))) for step in (10, 20, 30)]
    assert len(rewind(write([*steps(1, 30), *reports])).router.notes) == 100


def test_reports_of_another_rank_than_the_first_are_not_judged_again(tmp_path):
    # given: two ranks that do not see the same; both write their reports down, and the first one's are of all of them
    folder = create_run(tmp_path, RunHeader(run_id="a", backend="torch", created=1.7e9, world_size=2))
    for rank, counts in enumerate((BALANCED, CROWDED)):
        append(folder, [*steps(1, 40), *(report(step, counts=counts) for step in (10, 20, 30, 40))], rank=rank)
    # then
    findings = rewind(folder.path)
    assert told(findings) == []
    assert findings.router.layers[0].num_silent == 0


def test_a_watch_that_begins_again_with_a_resume_goes_on_with_what_was_known(write):
    watch = Event("watch", 1, 1.0, asdict(WatchConfig()))
    folder = write(
        [watch, *steps(1, 20), evaluation(5, 1.0), evaluation(10, 1.1), evaluation(20, 1.2)],
        [Event("watch", 21, 21.0, asdict(WatchConfig())), *steps(21, 40), evaluation(30, 1.3)],
    )
    assert told(rewind(folder)) == [("eval_regression", 30)]


def test_what_an_attempt_evaluates_before_its_first_step_counts(write):
    folder = write(
        [*steps(1, 20), evaluation(5, 1.0), evaluation(10, 1.1), evaluation(15, 1.2)],
        [evaluation(20, 1.3), *steps(21, 40)],
    )
    assert told(rewind(folder)) == [("eval_regression", 20)]
