"""Settings of a watch that make no sense are refused, each with what would."""

import json
import math
from dataclasses import asdict
from typing import Any

import pytest

from trimtab.errors import UsageError
from trimtab.rules.watch_config import WatchConfig


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ({"report_every": 0}, "report_every is 0"),
        ({"report_every": 50.0}, "report_every is 50.0"),
        ({"z_growth": math.nan}, "z_growth is nan"),
        ({"dead_chance": True}, "dead_chance is True"),
        ({"load_balance_high": -4.0}, "load_balance_high is -4.0"),
        ({"z_band_of": "mean"}, 'expected "layer" or "sum"'),
        ({"z_sum_low": 200.0}, "z_sum_low=200.0 is not below z_sum_high=150.0"),
        ({"z_layer_high": 0.1}, "z_layer_low=0.3 is not below z_layer_high=0.1"),
        ({"device_memory_budget_bytes": 0}, "device_memory_budget_bytes is 0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_setting_that_makes_no_sense_is_refused(setting: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        WatchConfig(**setting)


def test_a_warm_up_and_a_memory_floor_may_be_nothing() -> None:
    assert WatchConfig(router_warmup_steps=0, host_memory_floor_bytes=0).router_warmup_steps == 0


@pytest.mark.parametrize(
    "setting",
    [
        {"router_warmup_steps": 0},
        {"host_memory_floor_bytes": 0},
        {"device_memory_budget_bytes": 1},
        {"device_memory_budget_bytes": None},
        {"z_band_of": "sum"},
        {"z_growth": 2},
        {"eval_patience": 2**63 - 1},
    ],
    ids=lambda setting: "-".join(map(str, *setting.items())),
)
def test_what_a_watch_may_be_set_to_is_read_back_from_its_log(setting: dict[str, Any]) -> None:
    config = WatchConfig(**setting)
    assert WatchConfig.from_facts(json.loads(json.dumps(asdict(config)))) == (config, ())


@pytest.mark.parametrize(
    ("facts", "wrong"),
    [
        ({"router_warmup_steps": -1}, ("router_warmup_steps",)),
        ({"report_every": None, "eval_patience": 4}, ("report_every",)),
        ({"eval_patience": 2**63}, ("eval_patience",)),
        ({"z_growth": "nan"}, ("z_growth",)),
        ({"z_growth": 10**400}, ("z_growth",)),
        ({"z_band_of": ["sum"]}, ("z_band_of",)),
        ({"z_sum_low": 9.0, "z_sum_high": 3.0}, ("z_sum_low", "z_sum_high")),
        ({"z_layer_low": 200.0}, ("z_layer_low",)),
        ({"of_another_version": {}}, ()),
    ],
    ids=["below", "none", "beyond", "text", "no-float", "list", "band", "half-a-band", "unknown"],
)
def test_what_no_watch_can_have_had_is_named_and_the_default_stands_for_it(
    facts: dict[str, Any], wrong: tuple[str, ...]
) -> None:
    config, named = WatchConfig.from_facts(facts)
    assert named == wrong
    assert all(getattr(config, name) == getattr(WatchConfig(), name) for name in wrong)
    assert config.eval_patience == (4 if "eval_patience" in facts and not set(wrong) & {"eval_patience"} else 3)
