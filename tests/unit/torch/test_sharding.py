"""Which parameter backward knows. Real shards are in `tests/e2e/test_mask_two_processes.py`, other libraries below."""

import pytest
import torch
from torch import nn

from trimtab.errors import UsageError
from trimtab.torch.sharding import UnshardedParameters


def test_what_is_not_sharded_stands_for_itself():
    model = nn.Linear(2, 2)
    shown = [*model.parameters(), nn.Parameter(torch.ones(1))]

    found = UnshardedParameters(model).in_place_of(shown)

    assert list(map(id, found)) == list(map(id, shown))


def test_a_model_that_deepspeed_takes_apart_later_is_refused_when_its_parameters_change():
    model = nn.Linear(2, 2)
    unsharded = UnshardedParameters(model)
    unsharded.in_place_of(list(model.parameters()))

    taken_apart = nn.Parameter(torch.ones(1))
    taken_apart.ds_id = 0  # what its third stage leaves on every parameter

    with pytest.raises(UsageError, match="DeepSpeed ZeRO stage 3"):
        unsharded.in_place_of([*model.parameters(), taken_apart])


def test_a_part_of_a_model_that_fsdp1_wraps_is_refused():
    part = nn.Linear(2, 2)
    part._is_fsdp_managed_module = True  # its mark on every module below its own

    with pytest.raises(UsageError, match="FSDP1"):
        UnshardedParameters(part).in_place_of(list(part.parameters()))
