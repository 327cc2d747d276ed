"""The mistakes that a wiring can have: data, and nothing that knows how one is told from another.

Leaves: a catalogue. A new mistake is a new entry here, and a rule in `explaining.py` that gives it.
"""

from __future__ import annotations

from enum import Enum


class Mistake(Enum):
    """An entry of the catalogue; its `name` is what reports call it.

    Attributes:
        what: What is wrong.
        remedy: What to do about it.
    """

    zeroed_by_multiplication = (
        "a skipped loss (or its gradients) is multiplied by zero, and 0 x nan is nan",
        "let the guard give the loss to call backward on: run.micro_batch, guard(loss), or kit.accumulate after "
        "guard_loss",
    )
    nonfinite_kept = (
        "a loss that is not finite is not skipped",
        "hand the guard the loss itself, before anything is done about NaN or Inf in it",
    )
    last_backward_left_out = (
        "backward is not called for a skipped micro-batch, so that under DDP the gradients of its window are not "
        "reduced and the ranks drift apart",
        "call backward on every micro-batch, on the loss that the guard gives back",
    )
    per_rank_decision = (
        "each rank decides by its own loss",
        "decide by figures that are summed over the ranks: run.micro_batch, guard(loss) and guard_loss do that; before "
        "guard.check you must",
    )
    collectives_unlike = (
        "the ranks do not make the same collective calls once a micro-batch is skipped",
        "make every call on every rank, whatever the verdict",
    )
    nan_in_history = (
        "a loss that is not finite enters the history, and no later spike is above a mean that is not finite",
        "let the guard keep the history, or take into it what is kept only",
    )
    zero_gradients_stepped = (
        "a window in which nothing counts is stepped with zero gradients, and momentum and weight decay move the "
        "weights",
        "drop that step: run.step and guard(loss) do, kit.finish_window says stepped=False; gradients must be None",
    )
    guard_after_backward = (
        "the guard is asked too late or its verdict has no effect: the update is that of the loop without a guard",
        "ask the guard between forward and backward, and call backward on what it gives back",
    )
    not_skipped = (
        "the planted micro-batches are not skipped",
        "build the guard with the settings that the factory is handed, and ask it once a micro-batch about the loss, "
        "which must be able to rise ten times by the model's output",
    )
    skipped_too_much = (
        "healthy micro-batches are skipped, or one is counted or judged twice",
        "ask the guard once a micro-batch, about the unscaled loss of that micro-batch",
    )
    settings_not_handed_on = (
        "the guard skips a spike that is far below the bound it was to be built with",
        "build the guard with the settings that the factory is handed, and with no bound of its own",
    )
    aux_added_outside = (
        "a further loss term is added to what the guard gives back, and moves the model although its micro-batch is "
        "skipped",
        "hand the term to the guard with the loss: run.micro_batch(..., aux=), or guard(loss + term)",
    )
    tokens_zeroed_too = (
        "the update points where it should and has another size: what is skipped is taken out of the divisor as well",
        'count the tokens of skipped micro-batches in the divisor, or say Loop.skipped_tokens = "removed" where that '
        "is meant",
    )
    spike_in_reported_loss = (
        "the loss that is reported holds the skipped contribution",
        "report StepOutcome.loss or WindowResult.loss, or leave skipped micro-batches out of the mean",
    )
    schedule_held = (
        "the scheduler or the scaler does not go on as it would have",
        "call the scheduler on every window, stepped or not, and scaler.update after every step",
    )
    aux_weight_off = (
        "an auxiliary term of the loss does not weigh what is stated, whatever the accumulation",
        "multiply each term by its weight once, at one place, add it to the loss, and divide both by the accumulation",
    )
    healthy_run_changed = (
        "the guard changes a training in which there is nothing to skip",
        "keep the loop's own order and arithmetic where nothing is skipped",
    )

    def __init__(self, what: str, remedy: str) -> None:
        self.what = what
        self.remedy = remedy

    def sentence(self, shown_by: str) -> str:
        """All of it in words.

        Args:
            shown_by: What was found, without a full stop.
        """
        return f"{self.what}: {shown_by}. {self.remedy[0].upper()}{self.remedy[1:]}."
