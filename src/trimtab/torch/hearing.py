"""`Hearing`: how the host's guard comes to hear what a device has decided, in order, and without waiting for it.

Enters: copies of the newest decisions, when they have arrived. Leaves: a guard that has judged the same figures once
more, with its words, counts and state. Invariants: each decision is heard of once, in order; only `settle` waits, and
what the device has overwritten. A copy brings as many decisions as were counted here since the last one. What a
compiled graph decides is not counted: where that leaves a gap, a copy of all that the device holds is sent for.
"""

from __future__ import annotations

import weakref

from trimtab.errors import GuardLockupError
from trimtab.guard import LossGuard, PerTokenLossGuard
from trimtab.guard.words import GuardWords
from trimtab.torch.decided import SIZE, Decided, unheard
from trimtab.torch.device_rule import DeviceRule
from trimtab.torch.figures import judged_together
from trimtab.torch.late import LateFigures
from trimtab.torch.transfer import to_host
from trimtab.values import VERDICT_REASONS


class Hearing:
    """What a device has decided and its guard is yet to hear of."""

    def __init__(
        self,
        guard: weakref.ref[LossGuard | PerTokenLossGuard],
        *,
        rule: DeviceRule,
        decided: Decided,
        late: LateFigures,
        words: GuardWords,
    ) -> None:
        """Begins where both have decided the same.

        Args:
            guard: Who hears; it must be there whenever something is heard.
            rule: Who decides.
            decided: What was decided; nothing yet.
            late: Where the copies wait.
            words: For what only this can notice.
        """
        self._guard = guard
        self._rule = rule
        self._decided = decided
        self._late = late
        self._words = words
        self._num_heard = self._num_judged_heard = self._num_skips_heard = 0
        self._num_counted = 0
        self._is_all_sent_for = False
        self._lockup: GuardLockupError | None = None

    def go_on(self, *, rule: DeviceRule, decided: Decided) -> None:
        """Hears from another device from now on; of the one before all has been heard.

        Args:
            rule: Who decides.
            decided: What was decided there; its counts go on from those of the device before.
        """
        self._rule, self._decided = rule, decided

    @property
    def num_counted(self) -> int:
        """Decisions that were counted since the last copy was sent for."""
        return self._num_counted

    def count(self) -> None:
        """Counts a decision that comes; sends for what there is before the device could overwrite it."""
        if self._num_counted == SIZE // 2:
            self.send_for()
        self._num_counted += 1

    def send_for(self) -> None:
        """Sends for the newest decisions, as many as were counted; does not wait."""
        num, self._num_counted = max(self._num_counted, 1), 0
        self._late.add(to_host(self._decided.newest(num)), self._hear)

    def poll(self) -> None:
        """Hears what has arrived; never waits, unless the device has overwritten what came before.

        Raises:
            GuardLockupError: If the guard has just heard that it skips for ever, and is set to raise.
        """
        self._late.poll()
        self._raise_lockup()

    def settle(self) -> None:
        """Hears all that was decided; waits for the device.

        Raises:
            GuardLockupError: As `poll` does.
        """
        self._late.drain()
        num_unheard = int(self._decided.counts[0]) - self._num_heard
        if num_unheard:
            self._hear(self._decided.newest(min(num_unheard, SIZE)).flatten().tolist())
        self._num_counted = 0
        self._raise_lockup()

    def _raise_lockup(self) -> None:
        error, self._lockup = self._lockup, None
        if error is not None:
            raise error

    def _hear_all(self, values: list[float]) -> None:
        self._is_all_sent_for = False
        self._hear(values)

    def _hear(self, values: list[float]) -> None:
        micros = unheard(values, heard=self._num_heard)
        if not micros:
            return
        num_missing = micros[0].place - self._num_heard - 1
        if num_missing and len(micros) < SIZE:
            if not self._is_all_sent_for:
                self._is_all_sent_for = True
                self._late.add(to_host(self._decided.newest(SIZE)), self._hear_all)
            return
        if num_missing:
            self._take_over_history(num_missing)
            return
        guard = self._present_guard()
        for micro in micros:
            self._num_heard = micro.place
            reason = VERDICT_REASONS[micro.reason]
            self._num_judged_heard += reason != "no_tokens"
            self._num_skips_heard += reason in ("nonfinite", "spike")
            figures = judged_together(micro.loss_sum, micro.num_tokens, micro.num_nonfinite)
            try:
                verdict = guard.hear(*figures)
            except GuardLockupError as error:
                # The device has skipped this one, and the host remembers nothing of it: both go on alike.
                self._lockup = self._lockup or error
                continue
            if verdict.reason != reason:
                self._words.disagreement(
                    verdict,
                    decided=reason,
                    where=f"micro-batch {micro.place} of guard(loss)",
                    instead="guard.check(...)",
                )
            if not verdict.keep:
                self._words.skipped_call(verdict, call=micro.place)

    def _take_over_history(self, num_lost: int) -> None:
        """Where the device has overwritten what the host had not heard of, its history is the guard's; waits for it."""
        place, num_kept, num_skipped = self._decided.counts.tolist()
        num_judged = num_kept + num_skipped  # a guard counts none without tokens
        self._present_guard().take_over(
            self._rule.history(),
            num_judged=num_judged - self._num_judged_heard,
            num_skipped=num_skipped - self._num_skips_heard,
        )
        self._num_heard, self._num_judged_heard, self._num_skips_heard = place, num_judged, num_skipped
        self._words.lost(num_lost, num_held=SIZE)

    def _present_guard(self) -> LossGuard | PerTokenLossGuard:
        guard = self._guard()
        assert guard is not None, "the guard alone holds what acts for it"
        return guard
