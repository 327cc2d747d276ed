"""What is said of a guard's decisions in a run, each kind a few times at most, and by one rank.

Enters: what was decided, where, and on which rank this is. Leaves: lines. Nothing here decides or records.
"""

from __future__ import annotations

from typing import Final

from trimtab.guard.figures import Leader
from trimtab.notices import say, warn, warn_once
from trimtab.values import Verdict

SKIPS_SAID: Final = 20
"""Skips that a run says line by line: enough to see a pattern, few enough to leave the terminal readable."""


class GuardWords:
    """The words of one run, or of one guard that acts by itself, on one rank.

    Attributes:
        rank: Which; rank 0 tells what all ranks decided, another only what it was the cause of. May be set anew: a
            process group can be made after the guard.
    """

    def __init__(self, *, rank: int) -> None:
        self.rank = rank
        self._num_skips_said = 0
        self._said_no_tokens = False
        self._said_nonfinite_norm = False
        self._said_lost = False
        self._said_no_gradient = False
        self._said_outside_model = False

    def says_skip(self, *, is_cause: bool) -> bool:
        """Whether a line about the next skip belongs here.

        Args:
            is_cause: Whether the figures of this rank alone make it a skip.
        """
        return self._num_skips_said < SKIPS_SAID and (is_cause or self.rank == 0)

    def skipped(self, verdict: Verdict, *, step: int, micro: int, leader: Leader | None, is_cause: bool = True) -> None:
        """Says that a micro-batch was left out, and which row leads it, where one of this rank does."""
        self._num_skips_said += 1
        rank = f"rank {self.rank}: " if self.rank else ""
        led = _led_by(leader) if is_cause else "; the cause is another rank's"
        last = " Further ones are not said; each is in the log." if self._num_skips_said == SKIPS_SAID else ""
        say(
            "guard",
            f"{rank}Guard skipped micro-batch {micro} of step {step}: {_why(verdict)}{led}.{last}",
        )

    def skipped_call(self, verdict: Verdict, *, call: int) -> None:
        """Says that a guard which acts by itself has left out a micro-batch.

        Args:
            verdict: Why.
            call: Which call of the guard it was, counted from 1.
        """
        if not self.says_skip(is_cause=False):
            return
        self._num_skips_said += 1
        is_last = self._num_skips_said == SKIPS_SAID
        last = " Further ones are not said; guard.num_skipped counts them." if is_last else ""
        say("guard", f"Guard skipped call {call}: {_why(verdict)}.{last}")

    def outside_model(self, num_parameters: int) -> None:
        """Says that an optimizer steps parameters which the guarded model does not hold, and no hook was on them."""
        if not num_parameters or self._said_outside_model or self.rank:
            return
        self._said_outside_model = True
        warn(
            "guard",
            f"The optimizer steps {num_parameters} parameters that the guard's model does not hold (a criterion's, a "
            "temperature?): what was skipped before this step may have reached them. From now on it does not, but for "
            "shards of another fully_shard module. Make them the model's (model.criterion = criterion) before the "
            "guard is made to have them covered from the start. Said once.",
        )

    def no_tokens(self, step: int) -> None:
        """Says that a step had no supervised token."""
        if self._said_no_tokens or self.rank:
            return
        self._said_no_tokens = True
        warn(
            "run",
            f"Step {step} had no supervised token at all and was not taken: look for rows whose labels are "
            "all ignored (a prompt longer than the cut, a wrong template). Said once.",
        )

    def nonfinite_norm(self, step: int, *, norm: float, parameter: str | None) -> None:
        """Says that a step was dropped for its gradient norm, and which parameter is the first with such a gradient."""
        if self._said_nonfinite_norm or self.rank:
            return
        self._said_nonfinite_norm = True
        warn(
            "guard",
            f"Step {step}: the gradient norm is {norm} though every kept loss is finite; first "
            f"parameter with such a gradient: {parameter or 'none is known, all together are too large'}. The step was "
            "dropped. Look for an operation with an "
            "infinite derivative at the row's values (sqrt, log, norm at 0), or lower the learning rate. Said once.",
        )

    def disagreement(self, verdict: Verdict, *, decided: str, where: str, instead: str) -> None:
        """Says that a device decided otherwise than the host does by the same figures; every rank does.

        Args:
            verdict: The host's.
            decided: The reason of the device's.
            where: The micro-batch, in words.
            instead: What the user can write, so that the host decides.
        """
        warn_once(
            "guard",
            f"The device decided {decided} about {where}, where the host says {verdict.reason} (loss "
            f"{verdict.loss:.6g}): what the device decided is what happened. This is an error in Trimtab: please "
            f"report it, with the log if there is one; {instead} decides on the host. Said once.",
            cause="device and host disagree",
        )

    def lost(self, num_lost: int, *, num_held: int) -> None:
        """Says that a device has overwritten verdicts that the host had not heard of.

        Args:
            num_lost: How many.
            num_held: How many the device holds.
        """
        if self._said_lost or self.rank:
            return
        self._said_lost = True
        warn(
            "guard",
            f"Guard: more than {num_held} micro-batches were decided within a compiled graph between two steps of an "
            f"optimizer. The history goes on as the device has it; {num_lost} verdicts are counted and nothing else is "
            "said of them. Said once.",
        )

    def no_gradient(self, step: int) -> None:
        """Says that a step of a loop of one's own is taken and no gradient has reached the optimizer."""
        if self._said_no_gradient or self.rank:
            return
        self._said_no_gradient = True
        warn(
            "run",
            f"Step {step}: no parameter of the optimizer has a gradient, so the step moves nothing: was "
            "loss.backward() called on what run.micro_batch returned? Said once.",
        )


def _why(verdict: Verdict) -> str:
    compared = f", {verdict.baseline:.4g} expected" if verdict.baseline is not None else ""
    return f"{verdict.reason}, loss {verdict.loss:.4g}{compared}"


def _led_by(leader: Leader | None) -> str:
    if leader is None:
        return ""
    if leader.num_nonfinite > 1:
        return f"; {leader.num_nonfinite} of its rows are not finite, row {leader.row} the first"
    return f"; row {leader.row} leads it"
