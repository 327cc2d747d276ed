"""No operation of a device's decision waits: there is no device here, so those are looked for that would.

Two detectors, for each sees what the other does not: tensors without values ("meta") refuse what would read one, and a
dispatch mode sees a value that is brought over from the host.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.guard import GuardConfig
from trimtab.torch.device_rule import DeviceRule, Ruling

ATEN = torch.ops.aten
WAITING = {
    ATEN._local_scalar_dense.default,
    ATEN.nonzero.default,
    ATEN.masked_select.default,
    ATEN.lift_fresh.default,
    ATEN._unique2.default,
    ATEN.equal.default,
    ATEN.is_nonzero.default,
    ATEN.repeat_interleave.Tensor,
}

CONFIGS = {
    "mean": GuardConfig(multiplier=2.0),
    "robust": GuardConfig(rule="robust"),
    "never": GuardConfig(multiplier=2.0, max_consecutive_skips="never"),
    "raise": GuardConfig(rule="robust", on_lockup="raise"),
}


class NoWaiting(TorchDispatchMode):
    """Refuses operations whose result, or whose operand, passes between host and device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        indices = args[1] if func in (ATEN.index.Tensor, ATEN.index_put_.default) else []
        by_mask = any(index is not None and index.dtype == torch.bool for index in indices)
        if func in WAITING or by_mask:
            raise AssertionError(f"{func} waits")
        return func(*args, **(kwargs or {}))


def decide(rule: DeviceRule, device: str) -> Ruling:
    figures = torch.ones(3, dtype=torch.float64, device=device)
    return rule.decide(figures[0], figures[1], figures[2])


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "truth": lambda x: bool(x.sum() > 0),
    "index": lambda x: x[x.sum().long()],
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "to_host": lambda x: x.cpu(),
    "from_host": lambda x: torch.tensor(1.0) + 0,
}
SEEN_BY_META = WAITS.keys() - {"from_host"}
SEEN_BY_MODE = WAITS.keys() - {"to_host"}


@pytest.mark.parametrize("wait", sorted(SEEN_BY_META))
def test_tensors_without_values_refuse_what_waits(wait: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        WAITS[wait](torch.ones(3, device="meta"))


@pytest.mark.parametrize("wait", sorted(SEEN_BY_MODE))
def test_the_mode_refuses_what_waits(wait: str) -> None:
    x = torch.ones(3)
    with NoWaiting(), pytest.raises(AssertionError, match="waits"):
        WAITS[wait](x)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_decision_needs_no_value_on_the_host(name: str) -> None:
    rule = DeviceRule(CONFIGS[name], device="meta")
    for _ in range(2):
        assert all(part.is_meta for part in decide(rule, "meta"))
    rule.reset()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_decision_brings_no_value_over_from_the_host(name: str) -> None:
    rule = DeviceRule(CONFIGS[name], device="cpu")
    with NoWaiting():
        for _ in range(2):
            decide(rule, "cpu")
        rule.reset()


@pytest.mark.parametrize(("name", "most"), [("mean", 46), ("robust", 50)])
def test_a_decision_is_few_operations(name: str, most: int) -> None:
    # each is a kernel to launch, but for those that only look at memory in another way
    class Kernels(TorchDispatchMode):
        num = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.num += not func.is_view
            return func(*args, **(kwargs or {}))

    rule = DeviceRule(CONFIGS[name], device="cpu")
    figures = torch.ones(3, dtype=torch.float64).unbind()
    with Kernels() as kernels:
        rule.decide(*figures)

    assert 30 < kernels.num <= most
