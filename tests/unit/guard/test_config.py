"""Settings of a guard: what is read, what is refused, what has no effect."""

import dataclasses
import math
import types

import numpy as np
import pytest

from trimtab.errors import TrimtabWarning, UsageError
from trimtab.guard import GuardConfig, LossGuard, PerTokenLossGuard


def test_a_guard_is_off_until_it_is_asked_for() -> None:
    assert not GuardConfig().enabled
    assert GuardConfig(multiplier=2.0).enabled
    assert GuardConfig(rule="robust").enabled


@pytest.mark.parametrize(
    "optim",
    [
        {
            "lr": 3e-4,
            "loss_spike_skip_multiplier": 2.5,
            "loss_spike_skip_window_size": 16,
            "loss_spike_skip_min_history": 4,
        },
        types.SimpleNamespace(
            lr=3e-4, loss_spike_skip_multiplier=2.5, loss_spike_skip_window_size=16, loss_spike_skip_min_history=4
        ),
    ],
)
def test_the_three_keys_of_an_optim_configuration_are_read(optim: object) -> None:
    config = GuardConfig.from_optim(optim)

    assert config == GuardConfig(rule="mean", multiplier=2.5, window_size=16, min_history=4)


@pytest.mark.parametrize("optim", [{}, {"loss_spike_skip_multiplier": None}, types.SimpleNamespace(lr=1.0)])
def test_without_a_multiplier_an_optim_configuration_leaves_the_guard_off(optim: object) -> None:
    assert GuardConfig.from_optim(optim) == GuardConfig()


def test_missing_keys_take_the_values_of_the_classic_rule() -> None:
    rule = GuardConfig.from_optim({"loss_spike_skip_multiplier": 2}).build_rule()

    assert rule is not None
    assert (rule.name, rule.window_size, rule.min_history) == ("mean", 8, 3)


def test_each_rule_has_its_own_history() -> None:
    rule = GuardConfig(rule="robust").build_rule()

    assert rule is not None
    assert (rule.name, rule.window_size, rule.min_history) == ("robust", 100, 20)


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"multiplier": 2.0, "window_size": 2}, "window_size=3 or more, or min_history=2 or less"),
        ({"multiplier": 2.0, "window_size": 0}, "window_size is 0 of type int: expected a whole number from 1 to"),
        ({"multiplier": 2.0, "min_history": 0}, "min_history is 0 of type int: expected a whole number"),
        ({"multiplier": 1.0}, "multiplier=1.0 makes no sense: use a finite number above 1"),
        ({"multiplier": math.nan}, "multiplier=nan makes no sense"),
        ({"multiplier": "2"}, "multiplier='2' makes no sense"),
        ({"multiplier": True}, "multiplier=True makes no sense"),
        ({"rule": "robust", "k": math.nan}, "k=nan makes no sense"),
        ({"rule": "robust", "k": 0}, "k=0 makes no sense"),
        ({"multiplier": 2.0, "k": math.nan}, "k=nan makes no sense"),
        ({"rule": "robust", "multiplier": 2.0}, 'Leave multiplier out, or use rule="mean"'),
        ({"rule": "robust", "window_size": 10}, "min_history=10 or less"),
        ({"rule": "median"}, "rule='median' is none of the choices: use 'mean' or 'robust'"),
        ({"on_lockup": "stop"}, "use 'rebaseline' or 'raise'"),
        ({"skipped_tokens": "dropped"}, "use 'counted' or 'removed'"),
        ({"max_consecutive_skips": 0}, "max_consecutive_skips is 0 of type int: expected a whole number"),
        ({"max_consecutive_skips": "always"}, "max_consecutive_skips is 'always' of type str: expected"),
        # Off, and still refused: it would make no sense on the day it is switched on.
        ({"window_size": 2}, "window_size=2 is smaller than min_history=3"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_construction(settings: dict[str, object], advice: str) -> None:
    for construct in (GuardConfig, LossGuard, PerTokenLossGuard):
        with pytest.raises(UsageError) as error:
            construct(**settings)  # type: ignore[arg-type]
        assert advice in str(error.value)
        assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"multiplier": 2.0, "k": 5.0}, 'k=5.0 has no effect under rule="mean"'),
        ({"rule": "robust", "on_lockup": "raise", "max_consecutive_skips": "never"}, "has no effect with"),
    ],
)
def test_a_setting_without_effect_is_said(settings: dict[str, object], what: str) -> None:
    with pytest.warns(TrimtabWarning, match=what):
        config = GuardConfig(**settings)  # type: ignore[arg-type]

    # a guard made of it says nothing more: warnings are errors here
    assert LossGuard.from_config(config).config is config


@pytest.mark.parametrize("construct", [LossGuard, PerTokenLossGuard])
def test_a_guard_takes_one_configuration_in_place_of_settings(
    construct: type[LossGuard] | type[PerTokenLossGuard],
) -> None:
    config = GuardConfig(rule="robust", window_size=50)

    assert construct(config).config is config
    with pytest.raises(UsageError, match=r"given a GuardConfig and window_size=40, on_lockup='raise' beside it"):
        construct(config, window_size=40, on_lockup="raise")
    with pytest.raises(UsageError, match=r"given a GuardConfig and k=5\.0 beside it"):  # and no warning of rule "mean"
        construct(config, k=5.0)
    with pytest.raises(UsageError, match=r'was given 2\.0 without a name.*rule="robust", model=model'):
        construct(2.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("construct", [GuardConfig, LossGuard, PerTokenLossGuard])
def test_the_warning_points_at_the_line_that_gave_the_setting(
    construct: type[GuardConfig] | type[LossGuard] | type[PerTokenLossGuard],
) -> None:
    with pytest.warns(TrimtabWarning) as caught:
        construct(multiplier=2.0, k=5.0)

    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("rule", ["mean", "robust"])
def test_k_may_not_be_left_open(rule: str) -> None:
    with pytest.raises(UsageError, match="k=None makes no sense"):
        GuardConfig(rule=rule, k=None)  # type: ignore[arg-type]


def test_numpy_settings_become_plain_numbers() -> None:
    config = GuardConfig(multiplier=np.float32(2.5), window_size=np.int64(16), min_history=np.int64(4))  # type: ignore[arg-type]

    assert [type(value) for value in (config.multiplier, config.window_size, config.min_history)] == [float, int, int]


@pytest.mark.parametrize("guard_class", [LossGuard, PerTokenLossGuard])
def test_a_guard_takes_the_same_settings_as_its_configuration(
    guard_class: type[LossGuard] | type[PerTokenLossGuard],
) -> None:
    # given a value other than the default for each setting
    settings = {
        "rule": "robust",
        "k": 12.0,
        "window_size": 50,
        "min_history": 10,
        "max_consecutive_skips": 5,
        "on_lockup": "raise",
        "skipped_tokens": "removed",
    }
    config = GuardConfig(**settings)  # type: ignore[arg-type]

    # then
    assert set(settings) | {"multiplier", "decide"} == {field.name for field in dataclasses.fields(GuardConfig)}
    assert guard_class(**settings).config == config  # type: ignore[arg-type]
    assert guard_class.from_config(config).config is config
    assert guard_class(multiplier=3.0).config == GuardConfig(multiplier=3.0)


@pytest.mark.parametrize("decide", ["gpu", "", None, True])
def test_a_place_to_decide_at_that_is_none_is_refused(decide: object) -> None:
    with pytest.raises(UsageError, match=r"decide=.* is none of the choices: use 'auto' or 'host' or 'device'"):
        GuardConfig(multiplier=2.0, decide=decide)  # type: ignore[arg-type]


def test_where_it_is_decided_is_no_part_of_a_state_so_that_it_moves_between_machines() -> None:
    # given
    states = []
    for decide in ("auto", "host", "device"):
        guard = LossGuard.from_config(GuardConfig(multiplier=2.0, decide=decide))  # type: ignore[arg-type]
        for loss in (1.0, 1.1, 0.9, 5.0):
            guard.check(loss)
        states.append(guard.state_dict())

    # then
    assert states[0] == states[1] == states[2]
    assert "decide" not in states[0]["settings"]
    resumed = LossGuard.from_config(GuardConfig(multiplier=2.0, decide="device"))
    resumed.load_state_dict(states[1])
    assert resumed.check(5.0).reason == "spike"


@pytest.mark.parametrize(
    ("config", "num_skips"),
    [
        (GuardConfig(multiplier=2.0), 8),
        (GuardConfig(rule="robust"), 20),
        (GuardConfig(rule="robust", max_consecutive_skips=3), 3),
        (GuardConfig(multiplier=2.0, max_consecutive_skips="never"), None),
    ],
)
def test_a_configuration_says_how_many_skips_in_a_row_it_allows(config: GuardConfig, num_skips: int | None) -> None:
    assert config.num_skips_allowed == num_skips


@pytest.mark.parametrize("optim", [None, "abc", b"abc", 5, 2.5, True, [], (), {"multiplier"}, range(3)])
def test_what_is_no_optim_configuration_is_refused(optim: object) -> None:
    with pytest.raises(UsageError, match=r"The optim configuration is .* of type \w+: expected .*loss_spike_skip_mult"):
        GuardConfig.from_optim(optim)


@pytest.mark.parametrize("as_object", [False, True])
@pytest.mark.parametrize(
    ("optim", "said"),
    [
        ({"loss_spike_skip_multipler": 2.0}, "has the unknown key loss_spike_skip_multipler: expected"),
        ({"loss_spike_multiplier": 2.0, "lr": 1.0}, "has the unknown key loss_spike_multiplier: expected"),
        (
            {"loss_spike_skip_multiplier": 2.0, "loss_spike_skip_window": 9},
            "has the unknown key loss_spike_skip_window",
        ),
        ({"lr": 1.0, "optim": {"loss_spike_skip_multiplier": 2.0}}, 'holds loss_spike_skip_multiplier under "optim"'),
    ],
)
def test_keys_that_would_leave_a_guard_off_silently_are_refused(
    optim: dict[str, object], said: str, as_object: bool
) -> None:
    with pytest.raises(UsageError, match=said) as error:
        GuardConfig.from_optim(types.SimpleNamespace(**optim) if as_object else optim)
    for key in ("loss_spike_skip_multiplier", "loss_spike_skip_window_size", "loss_spike_skip_min_history"):
        assert key in str(error.value)


def test_an_object_under_optim_is_seen_too() -> None:
    with pytest.raises(UsageError, match='under "optim"'):
        GuardConfig.from_optim({"optim": types.SimpleNamespace(loss_spike_skip_multiplier=2.0)})
