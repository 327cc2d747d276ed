"""Trimtab with a mistake of its own in it: each factory builds a sound loop, and breaks Trimtab while it is built and
trains, in whichever process that is.

A proof that stays silent about one of these would prove nothing of a user's loop either.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tests.proof import good

from trimtab.proof import Loop
from trimtab.rules.finite import FiniteRule
from trimtab.rules.ratio import RatioRule
from trimtab.torch.ranks import Ranks
from trimtab.torch.veto import StepVeto
from trimtab.values import Verdict

Changes = dict[tuple[type, str], Any]


@contextmanager
def changed(changes: Changes) -> Iterator[None]:
    with ExitStack() as stack:
        for (owner, name), value in changes.items():
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def with_changes(changes: Changes, factory: Callable[[Any], Loop] = good.run_loop) -> Callable[[Any], Loop]:
    def build(guard: Any) -> Loop:
        with changed(changes):
            loop = factory(guard)

        def train(windows: Any) -> Any:
            with changed(changes):
                return loop.train(windows)

        return dataclasses.replace(loop, train=train)

    return build


def compared(*, factor: float = 1.0, is_reversed: bool = False) -> Callable[[RatioRule, float], Verdict]:
    """`RatioRule._compare`, written anew with room for a mistake."""

    def compare(rule: RatioRule, loss: float) -> Verdict:
        baseline = rule._baseline()
        threshold = baseline * rule._multiplier * factor
        is_spike = loss < threshold if is_reversed else loss > threshold
        return Verdict(not is_spike, "spike" if is_spike else "normal", loss, baseline, threshold)

    return compare


sign = with_changes({(RatioRule, "_compare"): compared(is_reversed=True)})
bound = with_changes({(RatioRule, "_compare"): compared(factor=1e9)})
unchanged = with_changes({(RatioRule, "_compare"): compared()})
"""No mistake: what is caught in the others is not that something was replaced."""

# The ranks would refuse to start: their settings are compared by the same sums.
lost_reduction = with_changes(
    {(Ranks, "summed"): lambda ranks, figures: figures, (Ranks, "refuse_unlike"): lambda ranks, settings: None}
)
kept_nan = with_changes({(FiniteRule, "judge"): lambda rule, x: Verdict(True, "normal", x)})
stepped_veto = with_changes({(StepVeto, "drop_next"): lambda veto, dropped: None})
