"""Settings of a watch that make no sense are refused, each with what would."""

import math
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
