"""The schedule that a loop states: in the log of each attempt before its steps, and what a scheduler of torch gives."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

import trimtab
from trimtab import Run, Schedule, UsageError
from trimtab.torch.lr import rebase_lr

LR, NUM_STEPS, WARMUP = 3e-4, 40, 8


def warmed_cosine(optimizer):
    warmup = LinearLR(optimizer, start_factor=0.25, total_iters=WARMUP)
    return SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, NUM_STEPS - WARMUP, eta_min=1e-5)], [WARMUP])


def by_hand(optimizer):
    def factor(k):
        if k < WARMUP:
            return (1 + k * (WARMUP - 1) / WARMUP) / WARMUP  # from 1 / W
        return (1 + math.cos(math.pi * (k - WARMUP) / (NUM_STEPS - WARMUP))) / 2

    return LambdaLR(optimizer, factor)


COSINE = dict(form="cosine", lr=LR, num_steps=NUM_STEPS, num_warmup_steps=WARMUP)
OF_TORCH = {
    "sequence": (warmed_cosine, Schedule(**COSINE, warmup_from=0.25, min_lr=1e-5)),
    "lambda": (by_hand, Schedule(**COSINE, warmup_from=1 / WARMUP)),
    "line": (
        lambda optimizer: LinearLR(optimizer, 1.0, 0.0, total_iters=NUM_STEPS),
        Schedule(form="linear", lr=LR, num_steps=NUM_STEPS),
    ),
    "warm-up alone": (
        lambda optimizer: LinearLR(optimizer, 0.5, total_iters=WARMUP),
        Schedule(form="constant", lr=LR, num_warmup_steps=WARMUP, warmup_from=0.5),
    ),
    "none": (lambda optimizer: None, Schedule(form="constant", lr=LR)),
}


class Loop:
    """A loop of one's own, one window after the other."""

    def __init__(self, out, build=warmed_cosine, *, lr=LR, accumulation=1, **settings):
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.scheduler = build(self.optimizer)
        self.accumulation = accumulation
        self.run = Run(out, model=self.model, optimizer=self.optimizer, accumulation=accumulation, **settings)

    def train(self, num_steps):
        for _ in range(num_steps):
            for _ in range(self.accumulation):
                self.run.micro_batch(self.model(torch.ones(2, 2)), rows=[0, 1]).backward()
            self.run.step()
            if self.scheduler is not None:
                self.scheduler.step()
        return self

    def state(self):
        parts = dict(run=self.run, optimizer=self.optimizer, scheduler=self.scheduler)
        return {name: part.state_dict() for name, part in parts.items() if part is not None}

    def load(self, state):
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)


def stated(folder):
    """(attempt, step, schedule) of each event, in the order recorded."""
    events = trimtab.open_log(folder).event_stream(("schedule",))
    return [(attempt, event.step, Schedule.from_facts(event.facts)) for event, _, attempt in events]


def rates(folder):
    steps = trimtab.open_log(folder).step_columns()
    return dict(zip(steps.step.tolist(), steps.lr.tolist(), strict=True))


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("name", OF_TORCH)
def test_the_rates_of_a_stated_schedule_are_those_of_the_schedulers_of_torch(tmp_path, name, accumulation):
    build, schedule = OF_TORCH[name]
    loop = Loop(tmp_path, build, accumulation=accumulation, schedule=schedule).train(NUM_STEPS)
    loop.run.close()

    assert stated(loop.run.folder) == [(1, 1, schedule)]
    found = rates(loop.run.folder)
    assert list(found) == list(range(1, NUM_STEPS + 1))
    assert found == pytest.approx({step: schedule.rate(step) for step in found}, rel=1e-9, abs=1e-18)


def wave(k, begin, end):
    return (1 + math.cos(math.pi * min(1, (k - begin) / (end - begin)))) / 2


# Factors as they are written in many a training script, and the settings that have the same rates.
USUAL = {
    "k / W": (
        lambda k, w, n: k / w if k < w else wave(k, w, n),
        lambda w, n: dict(num_steps=n, num_warmup_steps=w),
    ),
    "(k + 1) / W": (
        lambda k, w, n: (k + 1) / w if k < w else wave(k, w, n),
        lambda w, n: dict(num_steps=n, num_warmup_steps=w - 1, warmup_from=1 / w, num_stable_steps=1),
    ),
    "(k + 1) / (W + 1)": (
        lambda k, w, n: (k + 1) / (w + 1) if k < w else wave(k, w, n),
        lambda w, n: dict(num_steps=n, num_warmup_steps=w, warmup_from=1 / (w + 1)),
    ),
    "all of it one step on": (
        lambda k, w, n: (k + 1) / w if k + 1 < w else wave(k + 1, w, n),
        lambda w, n: dict(num_steps=n - 1, num_warmup_steps=w - 1, warmup_from=1 / w),
    ),
}


@pytest.mark.parametrize("num_warmup_steps", [1, 2, 8])
@pytest.mark.parametrize("name", USUAL)
def test_the_usual_ways_to_warm_up_can_be_stated(name, num_warmup_steps):
    factor, settings = USUAL[name]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = LambdaLR(optimizer, lambda k: factor(k, num_warmup_steps, NUM_STEPS))
    schedule = Schedule(form="cosine", lr=LR, **settings(num_warmup_steps, NUM_STEPS))
    for step in range(1, NUM_STEPS + 1):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(schedule.rate(step), rel=1e-9, abs=1e-18), step
        optimizer.step()
        scheduler.step()


def test_each_attempt_states_its_own_before_its_first_step(tmp_path):
    # given a run that is interrupted at step 12, and gone on with at another rate
    first = Loop(tmp_path, schedule=(asked := OF_TORCH["sequence"][1])).train(12)
    state = first.state()
    first.run.close()
    again = Schedule(**COSINE | dict(lr=1e-4), warmup_from=0.25, min_lr=1e-5)
    second = Loop(tmp_path, lr=1e-4, schedule=again)
    # when
    second.load(state)
    rebase_lr(second.optimizer, second.scheduler, 1e-4)
    second.train(NUM_STEPS - 12)
    second.run.close()
    # then
    assert stated(second.run.folder) == [(1, 1, asked), (2, 13, again)]
    found = rates(second.run.folder)
    expected = {step: (asked if step <= 12 else again).rate(step) for step in range(1, NUM_STEPS + 1)}
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_rate_that_a_resume_put_back_is_not_what_was_asked_for(tmp_path):
    first = Loop(tmp_path, schedule=OF_TORCH["sequence"][1]).train(12)
    state = first.state()
    first.run.close()
    asked = Schedule(**COSINE | dict(lr=1e-4), warmup_from=0.25, min_lr=1e-5)
    second = Loop(tmp_path, lr=1e-4, schedule=asked)
    second.load(state)  # torch restores the saved rates, and says nothing
    second.train(1)
    second.run.close()

    assert stated(second.run.folder)[1:] == [(2, 13, asked)]
    assert rates(second.run.folder)[13] == pytest.approx(3e-4, rel=0.1)
    assert asked.rate(13) < 1.1e-4


def test_it_stands_before_the_first_micro_batch_and_behind_what_was_recorded_earlier(tmp_path):
    loop = Loop(tmp_path, schedule=OF_TORCH["sequence"][1], watch=True)
    assert list(tmp_path.iterdir()) == []
    loop.run.event("note", text="before all")
    loop.train(2)
    loop.run.close()

    kinds = [event.kind for event in trimtab.open_log(loop.run.folder).event_list()]
    assert [kind for kind in kinds if kind in ("note", "watch", "schedule", "end")] == [
        "note",
        "watch",
        "schedule",
        "end",
    ]


def test_a_run_in_which_nothing_is_trained_states_none(tmp_path):
    loop = Loop(tmp_path, schedule=OF_TORCH["sequence"][1])
    loop.run.event("note")
    loop.run.close()
    assert stated(loop.run.folder) == []


@pytest.mark.parametrize("off", ["record=False", "TRIMTAB=off"])
def test_nothing_is_written_where_nothing_is_recorded(tmp_path, monkeypatch, off):
    if off == "TRIMTAB=off":
        monkeypatch.setenv("TRIMTAB", "off")
    out = tmp_path / "out"
    loop = Loop(out, schedule=OF_TORCH["sequence"][1], record=off == "TRIMTAB=off").train(2)
    loop.run.close()
    assert not out.exists()


def test_nothing_here_sets_a_rate(tmp_path):
    with_it, without = (Loop(tmp_path, schedule=schedule) for schedule in (Schedule(form="constant", lr=1.0), None))
    assert with_it.train(3).scheduler.get_last_lr() == without.train(3).scheduler.get_last_lr()


@pytest.mark.parametrize("kind", ["a scheduler of torch", "a dict", "a name"])
def test_what_is_no_schedule_is_refused_with_how_to_make_one(kind):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    wrong = {"a scheduler of torch": LinearLR(optimizer), "a dict": COSINE, "a name": "cosine"}[kind]
    with pytest.raises(UsageError, match=r"schedule must be a trimtab\.Schedule, found .*form=\"cosine\""):
        Run(None, record=False, schedule=wrong)


def test_what_reads_a_log_takes_the_event_as_it_is(tmp_path):
    loop = Loop(tmp_path / "out", schedule=OF_TORCH["sequence"][1]).train(12)
    loop.run.close()

    findings = trimtab.rewind(loop.run.folder)
    assert findings.num_steps == 12
    assert not [notice for notice in findings.notices if "schedule" in notice]
    written = trimtab.convert(loop.run.folder, tmp_path / "log.jsonl")
    assert not [notice for notice in written.notices if "schedule" in notice]
    again = trimtab.convert(tmp_path / "log.jsonl", tmp_path / "again")
    assert not [notice for notice in again.notices if "schedule" in notice]
