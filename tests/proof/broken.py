"""Training loops whose guard is wired wrongly, one mistake each: `trimtab prove tests.proof.broken:NAME` says which.

All but one, an engine with a kit, are `by_hand.py`, which is right, with one thought of it changed.
"""

import math
from typing import Any

import torch
from tests.proof.by_hand import ByHand
from tests.proof.good import Engine, Net, batches, syncing, token_losses

from trimtab import GuardConfig
from trimtab.proof import Loop


class _Multiplied(ByHand):
    def backward(self, loss_sum: torch.Tensor, *, keep: bool) -> None:
        self.scaled(loss_sum * float(keep)).backward()


class _MultipliedBesideAKit(Engine):
    def backward_step(self, loss_sum: torch.Tensor, num_tokens: torch.Tensor) -> None:
        keep = self._kit.guard_loss(loss_sum, num_tokens)
        loss = self._kit.accumulate_microbatch(loss_sum, num_tokens)
        with syncing(self.model, self._micro):
            (loss if keep else loss_sum * 0.0).backward()
        self._micro += 1


class _NanIsNoSpike(ByHand):
    def verdict(self, loss_sum: float, num_tokens: int) -> bool:
        return not math.isfinite(loss_sum) or super().verdict(loss_sum, num_tokens)


class _LeftOut(ByHand):
    def backward(self, loss_sum: torch.Tensor, *, keep: bool) -> None:
        if keep:
            self.scaled(loss_sum).backward()


class _EachForItself(ByHand):
    def decide(self, loss_sum: float, num_tokens: int) -> bool:
        return self.verdict(loss_sum, num_tokens)


class _RemembersAll(ByHand):
    """A history of its own, the classic rule in four lines."""

    def __init__(self, guard: GuardConfig | None) -> None:
        super().__init__(guard)
        self.multiplier = math.inf if guard is None or guard.multiplier is None else guard.multiplier
        self.history: list[float] = []

    def verdict(self, loss_sum: float, num_tokens: int) -> bool:
        if self.guard is None or not self.guard.enabled or not num_tokens:
            return True
        loss, recent = loss_sum / num_tokens, self.history[-8:]
        is_spike = len(recent) >= 3 and loss > self.multiplier * sum(recent) / len(recent)
        if not is_spike:
            self.history.append(loss)
        return not is_spike and math.isfinite(loss)


class _StepsOnNothing(ByHand):
    def drop(self) -> None:
        pass


class _AsksTooLate(ByHand):
    def micro_batch(self, batch: Any) -> None:
        loss_sum, num_tokens = self.forward(batch)
        self.backward(loss_sum, keep=True)
        keep = self.decide(float(loss_sum.detach()), num_tokens)
        self.count(float(loss_sum.detach()), num_tokens, keep=keep)


class _NetWithTerm(Net):
    """Its output has a further loss term, as a router's is."""

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.tanh(self.inner(x))
        return {"logits": self.outer(h), "router_loss": h.square().sum()}


class _TermInside(ByHand):
    """Right: the term is judged, and left out, with the loss."""

    def __init__(self, guard: GuardConfig | None) -> None:
        super().__init__(guard, _NetWithTerm())

    def forward(self, batch: Any) -> tuple[torch.Tensor, int]:
        labels, output = batch["labels"], self.model(batch["x"])
        self.term = 0.1 * output["router_loss"]
        return token_losses(output["logits"], labels).sum(), int((labels != -100).sum())

    def backward(self, loss_sum: torch.Tensor, *, keep: bool) -> None:
        super().backward(loss_sum + self.term, keep=keep)


class _TermOutside(_TermInside):
    def backward(self, loss_sum: torch.Tensor, *, keep: bool) -> None:
        loss = loss_sum if keep else self.nothing()
        self.scaled(loss + self.term).backward()


class _SkippedTokensGone(ByHand):
    def scale_gradients(self) -> None:
        self.tokens = self.kept_tokens
        super().scale_gradients()


def zeroed_by_multiplication(guard: GuardConfig | None) -> Loop:
    return _Multiplied(guard).loop()


def zeroed_beside_a_kit(guard: GuardConfig | None) -> Loop:
    """The kit drops the window, whose norm is not finite, and with it the micro-batches that were healthy."""
    engine = _MultipliedBesideAKit(guard)
    engine.prepare_optimizer()
    return Loop.of_engine(engine, windows=batches())


def nonfinite_kept(guard: GuardConfig | None) -> Loop:
    return _NanIsNoSpike(guard).loop()


def last_backward_left_out(guard: GuardConfig | None) -> Loop:
    """Right in one process; under DDP the last backward of a window is the one that reduces."""
    return _LeftOut(guard).loop()


def per_rank_decision(guard: GuardConfig | None) -> Loop:
    """Right in one process."""
    return _EachForItself(guard).loop()


def nan_in_history(guard: GuardConfig | None) -> Loop:
    return _RemembersAll(guard).loop()


def zero_gradients_stepped(guard: GuardConfig | None) -> Loop:
    return _StepsOnNothing(guard).loop()


def guard_after_backward(guard: GuardConfig | None) -> Loop:
    return _AsksTooLate(guard).loop()


def aux_added_outside(guard: GuardConfig | None) -> Loop:
    return _TermOutside(guard).loop()


def tokens_zeroed_too(guard: GuardConfig | None) -> Loop:
    return _SkippedTokensGone(guard).loop()


def aux_left_out_as_well(guard: GuardConfig | None) -> Loop:
    """What `aux_added_outside` should be; nothing is wrong with it."""
    return _TermInside(guard).loop()


# Wrong, and no entry of the catalogue names each of them.


class _OneSkipAWindow(ByHand):
    def window(self, micros: Any) -> float | None:
        self.has_skipped = False
        return super().window(micros)

    def backward(self, loss_sum: torch.Tensor, *, keep: bool) -> None:
        is_kept = keep or self.has_skipped
        self.has_skipped |= not keep
        super().backward(loss_sum, keep=is_kept)


class _ReportsNonsense(ByHand):
    """In every window after a skip."""

    def window(self, micros: Any) -> float | None:
        had_skips = self.num_skipped > 0
        loss = super().window(micros)
        return loss if loss is None or not had_skips else loss * 2.0 + 7.0


class _ReportsABound(ByHand):
    def count(self, loss_sum: float, num_tokens: int, *, keep: bool) -> None:
        super().count(loss_sum, num_tokens, keep=keep)
        if not keep:
            self.kept_loss += 100.0


class _ReportsZero(ByHand):
    def window(self, micros: Any) -> float | None:
        before = self.num_skipped
        loss = super().window(micros)
        return loss if self.num_skipped == before else 0.0


class _AsksTwice(ByHand):
    def verdict(self, loss_sum: float, num_tokens: int) -> bool:
        keep = super().verdict(loss_sum, num_tokens)
        if keep and self.guard is not None:
            super().verdict(loss_sum, num_tokens)
        return keep

    def loop(self) -> Loop:
        loop = super().loop()
        loop.num_judged = lambda: 0 if self.guard is None else self.guard.num_judged
        return loop


class _ABoundOfItsOwn(ByHand):
    def verdict(self, loss_sum: float, num_tokens: int) -> bool:
        if self.guard is None or not self.guard.enabled or not num_tokens:
            return True
        return loss_sum / num_tokens < 50.0


class _OnlyWhatIsNotFinite(ByHand):
    def verdict(self, loss_sum: float, num_tokens: int) -> bool:
        return self.guard is None or not self.guard.enabled or math.isfinite(loss_sum)


class _ForgetsMoments(ByHand):
    def window(self, micros: Any) -> float | None:
        before = self.num_skipped
        loss = super().window(micros)
        if self.num_skipped > before:
            self.optimizer.state.clear()
        return loss


def one_skip_a_window(guard: GuardConfig | None) -> Loop:
    return _OneSkipAWindow(guard).loop()


def reports_nonsense(guard: GuardConfig | None) -> Loop:
    return _ReportsNonsense(guard).loop()


def reports_a_bound(guard: GuardConfig | None) -> Loop:
    return _ReportsABound(guard).loop()


def reports_zero(guard: GuardConfig | None) -> Loop:
    return _ReportsZero(guard).loop()


def judged_twice(guard: GuardConfig | None) -> Loop:
    return _AsksTwice(guard).loop()


def hardwired_multiplier(guard: GuardConfig | None) -> Loop:
    is_on = guard is not None and guard.enabled
    return ByHand(GuardConfig(multiplier=4.0, min_history=3) if is_on else guard).loop()


def fixed_threshold(guard: GuardConfig | None) -> Loop:
    return _ABoundOfItsOwn(guard).loop()


def no_spike_skipped(guard: GuardConfig | None) -> Loop:
    return _OnlyWhatIsNotFinite(guard).loop()


def moments_forgotten(guard: GuardConfig | None) -> Loop:
    return _ForgetsMoments(guard).loop()


def still(guard: GuardConfig | None) -> Loop:
    """Nothing ever moves."""
    loop = ByHand(guard).loop()
    loop.optimizer.step = lambda *args, **settings: None
    return loop


def without_rate(guard: GuardConfig | None) -> Loop:
    by_hand = ByHand(guard)
    by_hand.optimizer.param_groups[0]["lr"] = 0.0
    by_hand.scheduler.base_lrs = [0.0]
    return by_hand.loop()
