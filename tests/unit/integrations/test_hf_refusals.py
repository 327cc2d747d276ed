"""Trainers whose gradients a guard cannot reach: it is refused with what can be done, and recording is not."""

import pytest
from accelerate.utils import DistributedType

import trimtab
from trimtab import GuardConfig, UsageError

GUARD = GuardConfig(rule="robust")


class AsSetUp:
    """An accelerator that says of itself what one would that was set up for other processes; else the trainer's own."""

    def __init__(self, accelerator, **facts):
        self.accelerator = accelerator
        vars(self).update(facts)

    def __getattr__(self, name):
        return getattr(self.accelerator, name)


def set_up(bench, **facts):
    trainer = bench.trainer()
    trainer.accelerator = AsSetUp(trainer.accelerator, **facts)
    return trainer


@pytest.mark.parametrize("kind", [DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM, DistributedType.XLA])
def test_gradients_that_are_kept_elsewhere_refuse_a_guard(bench, kind):
    with pytest.raises(UsageError, match=rf"{kind.value} keeps its gradients elsewhere.*DDP or FSDP2.*guard=None"):
        trimtab.attach(set_up(bench, distributed_type=kind), guard=GUARD)
    assert trimtab.attach(set_up(bench, distributed_type=kind)).folder is None


def test_the_first_fsdp_refuses_a_guard_and_the_second_does_not(bench):
    facts = dict(distributed_type=DistributedType.FSDP)
    with pytest.raises(UsageError, match=r"first FSDP.*\"version\": 2"):
        trimtab.attach(set_up(bench, is_fsdp2=False, **facts), guard=GUARD)
    trimtab.attach(set_up(bench, is_fsdp2=True, **facts), guard=GUARD)


@pytest.mark.parametrize("size", [dict(tp_size=2), dict(cp_size=2), dict(sp_size=4)])
def test_ranks_that_share_a_micro_batch_refuse_a_guard(bench, size):
    class Sizes:
        tp_size, cp_size, sp_size = 1, 1, 1

    sizes = Sizes()
    vars(sizes).update(size)
    with pytest.raises(UsageError, match=r"parallelism over [24] ranks, which share a micro-batch.*guard=None"):
        trimtab.attach(set_up(bench, parallelism_config=sizes), guard=GUARD)
    trimtab.attach(set_up(bench, parallelism_config=sizes), guard=None)
