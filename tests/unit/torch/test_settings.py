"""Which settings of torch's own a guard refuses."""

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from trimtab.errors import UsageError
from trimtab.torch.settings import refuse_uneven_inputs


@pytest.fixture
def wrapped(tmp_path):
    """A model under DDP, in a group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield DistributedDataParallel(nn.Linear(1, 1))
    dist.destroy_process_group()


def test_a_join_that_lets_a_rank_run_out_of_batches_is_refused(wrapped):
    with Join([wrapped]), pytest.raises(UsageError, match=r"drop_last=True.*leave Join out"):
        refuse_uneven_inputs(wrapped)


@pytest.mark.parametrize("settings", [{"throw_on_early_termination": True}, {"enable": False}])
def test_a_join_that_stands_in_for_nobody_is_none_of_a_guards_business(wrapped, settings):
    with Join([wrapped], **settings):
        refuse_uneven_inputs(wrapped)


def test_a_model_that_is_not_joined_is_let_be(wrapped):
    for model in (wrapped, wrapped.module, None):
        refuse_uneven_inputs(model)
