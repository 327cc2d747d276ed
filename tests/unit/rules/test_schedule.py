"""A schedule in closed form: the rates that were asked for, and what no schedule can be."""

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trimtab
from trimtab.errors import UsageError
from trimtab.rules.schedule import Schedule

COSINE = dict(form="cosine", lr=3e-4, num_steps=10_000, num_warmup_steps=200)


# Published rates of a run with this schedule, by finished steps.
@pytest.mark.parametrize(
    ("num_finished", "expected"),
    [(0, 0), (100, 1.5e-4), (200, 3e-4), (2_010, 2.7545e-4), (2_500, 2.6104e-4), (4_000, 2.0180e-4),
     (5_000, 1.5481e-4), (6_000, 1.0732e-4), (10_000, 0)],
)  # fmt: skip
def test_the_cosine_of_a_published_run_has_its_rates(num_finished, expected):
    assert Schedule(**COSINE).rate(num_finished + 1) == pytest.approx(expected, rel=3e-5, abs=1e-12)


def test_a_cosine_and_a_line_end_at_the_least_rate_and_stay_there():
    for form in ("cosine", "linear"):
        schedule = Schedule(form=form, lr=1.0, num_steps=10, num_warmup_steps=2, min_lr=0.2)
        assert schedule.rate(3) == 1.0
        assert schedule.rate(7) == pytest.approx(0.6)  # half way: both forms meet there
        assert [schedule.rate(step) for step in (11, 12, 1_000)] == pytest.approx([0.2] * 3)


def test_a_line_falls_evenly_and_a_cosine_slowly_at_both_ends():
    line, wave = (Schedule(form=form, lr=1.0, num_steps=8) for form in ("linear", "cosine"))
    assert [line.rate(step) for step in range(1, 9)] == pytest.approx([1 - k / 8 for k in range(8)])
    assert wave.rate(3) == pytest.approx((1 + math.sqrt(0.5)) / 2)  # cos(pi / 4)
    assert wave.rate(7) == pytest.approx((1 - math.sqrt(0.5)) / 2)


@pytest.mark.parametrize("form", ["constant", "linear", "cosine"])
def test_every_form_warms_up_in_a_line_from_the_part_it_is_given(form):
    schedule = Schedule(form=form, lr=2.0, num_steps=100, num_warmup_steps=4, warmup_from=0.25)
    assert [schedule.rate(step) for step in range(1, 6)] == pytest.approx([0.5, 0.875, 1.25, 1.625, 2.0])


def test_a_constant_rate_needs_no_number_of_steps():
    schedule = Schedule(form="constant", lr=1e-3, num_warmup_steps=2)
    assert [schedule.rate(step) for step in (1, 2, 3, 10**9)] == pytest.approx([0, 5e-4, 1e-3, 1e-3])


@pytest.mark.parametrize("num_warmup_steps", [7, 8, 9, 50])
def test_a_warm_up_may_be_as_long_as_the_run_or_longer(num_warmup_steps):
    schedule = Schedule(form="cosine", lr=1.0, num_steps=8, num_warmup_steps=num_warmup_steps)
    trained = [schedule.rate(step) for step in range(1, 9)]
    assert trained == pytest.approx([min(k, num_warmup_steps) / num_warmup_steps for k in range(8)])


def test_an_inverse_square_root_has_fallen_to_the_root_of_a_half_in_its_timescale_and_falls_on():
    schedule = Schedule(form="inverse_sqrt", lr=1.0, num_warmup_steps=10, timescale=40)
    assert [schedule.rate(k + 1) for k in (5, 10, 50, 130)] == pytest.approx([0.5, 1, math.sqrt(0.5), 0.5])


@pytest.mark.parametrize(("num_warmup_steps", "timescale"), [(7, 7), (0, 10_000)])
def test_an_inverse_square_root_has_the_timescale_of_its_warm_up_where_none_is_named(num_warmup_steps, timescale):
    settings = dict(form="inverse_sqrt", lr=1.0, num_warmup_steps=num_warmup_steps)
    assert Schedule(**settings) == Schedule(**settings, timescale=timescale)


@pytest.mark.parametrize(
    ("form", "half", "three_quarters"), [("linear", 0.5, 0.25), ("cosine", 0.5, (1 - math.sqrt(0.5)) / 2)]
)
def test_a_rate_may_stand_before_it_falls(form, half, three_quarters):
    schedule = Schedule(form=form, lr=1.0, num_steps=100, num_warmup_steps=4, num_stable_steps=76)
    assert [schedule.rate(k + 1) for k in (0, 2, 4, 50, 80)] == [0, 0.5, 1, 1, 1]
    falls = [schedule.rate(k + 1) for k in (90, 95, 100, 10**6)]
    assert falls == pytest.approx([half, three_quarters, 0, 0], abs=1e-15)


def test_a_schedule_that_waits_for_dropped_steps_has_the_rates_of_one_that_does_not():
    waits = Schedule(**COSINE, waits_for_dropped=True)
    assert waits != Schedule(**COSINE)
    assert [waits.rate(step) for step in range(1, 300)] == [Schedule(**COSINE).rate(step) for step in range(1, 300)]
    assert Schedule.from_facts(waits.to_facts()) == waits


schedules = st.builds(
    Schedule,
    form=st.sampled_from(["linear", "cosine"]),
    lr=st.floats(1e-8, 10),
    num_steps=st.integers(1, 5_000),
    num_warmup_steps=st.integers(0, 6_000),
    num_stable_steps=st.integers(0, 50),
    warmup_from=st.floats(0, 1),
    min_lr=st.floats(0, 1e-8),
)


@given(schedules)
def test_a_rate_rises_to_lr_and_falls_to_the_least_and_never_leaves_the_two(schedule):
    rates = [schedule.rate(step) for step in range(1, schedule.num_steps + 2, 1 + schedule.num_steps // 50)]
    assert all(0 <= rate <= schedule.lr * (1 + 1e-12) for rate in rates)
    behind = [schedule.rate(k + 1) for k in range(schedule.num_warmup_steps, schedule.num_warmup_steps + 100)]
    assert behind[0] == pytest.approx(schedule.lr) or schedule.num_warmup_steps >= schedule.num_steps
    assert all(after <= before for before, after in pairwise(behind))
    end = schedule.num_steps + schedule.num_warmup_steps + schedule.num_stable_steps
    assert schedule.rate(end + 2) == pytest.approx(schedule.min_lr, abs=1e-15)


@given(schedules)
def test_the_rates_of_many_steps_are_those_of_each(schedule):
    steps = [1, 2, 3, schedule.num_steps, schedule.num_warmup_steps + 1, 10**9]
    assert list(schedule.rates(steps)) == [schedule.rate(step) for step in steps]


@given(schedules)
def test_what_a_log_holds_of_a_schedule_is_that_schedule(schedule):
    assert Schedule.from_facts(json.loads(json.dumps(schedule.to_facts()))) == schedule


def test_the_facts_of_a_schedule_are_its_settings_by_name():
    schedule = Schedule(form="linear", lr=1, num_steps=7)
    facts = dict(form="linear", lr=1.0, num_steps=7, num_warmup_steps=0, warmup_from=0.0, min_lr=0.0)
    of_other_forms = dict(num_stable_steps=0, timescale=None)
    assert schedule.to_facts() == facts | of_other_forms | dict(waits_for_dropped=False)
    assert type(schedule.lr) is float
    assert trimtab.Schedule is Schedule


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            dict(form="polynomial"),
            'form is \'polynomial\': expected "constant", "linear", "cosine" or "inverse_sqrt". Rates .*: leave '
            "the schedule out then, and `trimtab gate` says of the learning rate that it is unknown",
        ),
        (dict(form=["cosine"]), "form is \\['cosine'\\]"),
        (dict(form=None), "form is None"),
        (dict(lr=-1e-3), "lr is -0.001: expected a finite number of 0 or more"),
        (dict(lr=math.nan), "lr is nan: expected a finite number"),
        (dict(lr=math.inf), "lr is inf"),
        (dict(lr=10**400), "lr is .*: expected a finite number"),
        (dict(lr="3e-4"), "lr is '3e-4' of type str: expected one real number"),
        (dict(lr=True), "lr is True of type bool"),
        (dict(lr=None), "lr is None of type NoneType"),
        (dict(num_steps=None), "num_steps is None: .* over the optimizer steps of the whole run. Name their number"),
        (dict(num_steps=0), "num_steps is 0 of type int: expected a whole number of optimizer steps, 1 or more"),
        (dict(num_steps=1e4), "num_steps is 10000.0 of type float"),
        (dict(num_warmup_steps=-1), "num_warmup_steps is -1 .* 0 or more"),
        (dict(num_warmup_steps=0.1), "num_warmup_steps is 0.1 of type float"),
        (dict(warmup_from=1.5), "warmup_from is 1.5: expected a part of lr, from 0 to 1"),
        (dict(min_lr=3.1e-4), "min_lr is 0.00031, above lr, which is 0.0003"),
        (dict(form="constant", min_lr=1e-5), 'min_lr is 1e-05, and a rate of the form "constant" never falls'),
        (dict(form="inverse_sqrt", min_lr=1e-5), 'min_lr is 1e-05, and a rate of the form "inverse_sqrt" has no end'),
        (dict(num_stable_steps=-1), "num_stable_steps is -1 of type int: .* 0 or more"),
        (dict(num_stable_steps=None), "num_stable_steps is None"),
        (dict(form="constant", num_stable_steps=5), 'num_stable_steps is 5, and a rate of the form "constant" never'),
        (dict(timescale=5), 'timescale is 5, and the form "cosine" has none: leave it out'),
        (dict(form="inverse_sqrt", timescale=0), "timescale is 0 of type int"),
        (dict(waits_for_dropped=1), "waits_for_dropped is 1: expected True or False"),
        (dict(waits_for_dropped="no"), "waits_for_dropped is 'no': expected True or False"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_what_no_schedule_can_be_is_refused_with_what_was_found(settings, said):
    with pytest.raises(UsageError, match=said):
        Schedule(**COSINE | settings)
    with pytest.raises(UsageError, match=said):
        Schedule.from_facts(COSINE | settings)


@pytest.mark.parametrize("step", [0, -1, 1.0, True, None, "1"])
def test_a_rate_is_asked_for_an_optimizer_step(step):
    with pytest.raises(UsageError, match=r"step is .*: expected a whole number of optimizer steps, 1 or more"):
        Schedule(**COSINE).rate(step)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (None, "The schedule in the log is None: expected its settings by name"),
        ([["form", "cosine"]], "The schedule in the log is "),
        ({}, "The schedule in the log has no form"),
        ({"form": "cosine"}, "The schedule in the log has no lr"),
        (COSINE | {"power": 2.0}, "has 'power', which is none of form, lr, .*: a newer Trimtab may have written it"),
        (COSINE | {7: 2.0}, "has 7, which is none of"),
        (COSINE | {"lr": "nan"}, "lr is 'nan' of type str"),
        (COSINE | {"lr": {"\x1b[31m": 1}}, "lr is "),
        (COSINE | {"num_steps": [10]}, "num_steps is "),
        (COSINE | {"form": {}}, "form is {}"),
        (COSINE | {"form": "cosine\x1b[31m" * 100}, "form is "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_facts_that_nobody_stated_so_are_refused(facts, said):
    with pytest.raises(UsageError, match=said) as refused:
        Schedule.from_facts(facts)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


def test_facts_of_which_some_are_missing_have_the_usual_ones():
    assert Schedule.from_facts({"form": "constant", "lr": 1e-3}) == Schedule(form="constant", lr=1e-3)
