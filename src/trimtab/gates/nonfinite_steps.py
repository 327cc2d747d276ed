"""Whether every step of the chunk had a finite loss and a finite gradient norm.

Enters: evidence. Leaves: the gate `nonfinite_steps`. Invariants: a step in which a scaler looked for its scale is
none, unless it was still looking when the chunk ended; a micro-batch that the guard kept out of the update makes none;
of steps that nobody recorded, or not every rank, none has passed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.remarks import count
from trimtab.gates.chunk_steps import ChunkSteps
from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Judged
from trimtab.text import listed
from trimtab.values import json_number

_MOST_NAMED: Final = 5
"""Steps named in a sentence."""

_MOST_LISTED: Final = 100
"""Steps in the figures."""

LASTING: Final = 3
"""Overflows since the last step that was taken from which a scaler has found no scale. One is an outlier in the data,
two are one that came when the scale had doubled; as `WatchConfig.loss_scale_halvings`. The search of a scaler's
beginning halves more often, and ends with a step that is taken: a chunk that ends inside of it has trained little."""


def nonfinite_steps(evidence: Evidence) -> Judged:
    """Judges the losses and the gradient norms of the steps."""
    steps, chunk = evidence.steps, evidence.chunk
    is_broken = steps.is_loss_broken | steps.is_norm_broken
    num_overflows = int(steps.has_reason("scaler_overflow").sum())
    num_kept_out = int(steps.num_left_out.sum())
    num_missing, num_partly = evidence.num_missing, int((~steps.is_whole).sum())
    num_lasting = _num_lasting(steps)
    num_no_loss, num_no_norm = int((~steps.is_loss_known).sum()), int((~steps.is_norm_known).sum())
    figures = {
        "num_steps": chunk.num_steps,
        "num_nonfinite": int(is_broken.sum()),
        "steps": steps.step[is_broken][:_MOST_LISTED].tolist(),
        "num_scaler_overflows": num_overflows,
        "num_micro_batches_kept_out": num_kept_out,
        "num_scaler_overflows_at_end": num_lasting,
        "num_steps_missing": num_missing,
        "num_steps_of_some_ranks": num_partly,
        "num_steps_without_loss": num_no_loss,
        "num_steps_without_norm": num_no_norm,
    }
    beside = "".join(
        f"; {said}"
        for num, said in (
            (num_kept_out, f"the guard kept {num_kept_out:,} micro-batch{'es' if num_kept_out > 1 else ''} out"),
            (num_overflows, f"{count(num_overflows, 'overflow')} of the loss scaler, not counted"),
        )
        if num
    )
    if is_broken.any():
        places = np.flatnonzero(is_broken)
        remedy = f"{evidence.rewind(step=int(steps.step[places[0]]))} shows its rows"
        return Judged("failed", f"{_told(steps, places)}{beside}; {remedy}", figures)
    if num_lasting >= LASTING:
        last = int(steps.step[steps.is_taken][-1]) if steps.is_taken.any() else chunk.first_step - 1
        text = (
            f"the loss scaler has found no scale: gradients overflowed in {num_lasting:,} of the last "
            f"{count(chunk.last_step - last, 'step')}, since step {last + 1} none was taken; no scale makes gradients "
            f"finite that are NaN by themselves: {evidence.rewind()} tells more"
        )
        return Judged("failed", text, figures)
    lacking = [
        said
        for num, said in (
            (num_missing, f"{count(num_missing, 'step')} of the chunk cannot be found in the log{_from(evidence)}"),
            (num_partly, f"of {count(num_partly, 'step')} not every rank's record is in the log"),
            (num_no_loss, f"of {count(num_no_loss, 'step')} no loss is known"),
            (num_no_norm, _no_norms(num_no_norm, num_steps=chunk.num_steps)),
        )
        if num
    ]
    if lacking:
        text = f"none among what was recorded, but {listed(lacking)}{beside}"
        return Judged("unknown", text, figures)
    text = f"none of {count(chunk.num_steps, 'step')}{beside}"
    return Judged("passed", text, figures)


def _num_lasting(steps: ChunkSteps) -> int:
    """Overflows of a loss scaler since the last step that was taken."""
    taken = np.flatnonzero(steps.is_taken)
    return int(steps.has_reason("scaler_overflow")[taken[-1] + 1 if taken.size else 0 :].sum())


def _from(evidence: Evidence) -> str:
    """How to judge what a log holds that begins in the middle of its run."""
    begins = int(evidence.steps.step[0])
    if begins == evidence.chunk.first_step:
        return ""
    return f", which begins with step {begins} (--since {begins - 1} judges from there)"


def _told(steps: ChunkSteps, places: NDArray[np.int64]) -> str:
    """Which steps are not finite, and how the first of them is not."""
    first = places[0]
    named = listed(map(str, steps.step[places].tolist()), most=_MOST_NAMED)
    num_dropped = int(steps.has_reason("nonfinite_norm", "dropped")[places].sum())
    dropped = f" ({num_dropped:,} of them dropped, with the weights as they were)" if num_dropped else ""
    what, value = ("gradient norm", steps.norm[first])
    if steps.is_loss_broken[first]:
        what, value = ("loss", steps.loss[first])
    which = "step" if places.size == 1 else "steps"
    return f"{which} {named} not finite{dropped}: the {what} of step {steps.step[first]} is {_shown(float(value))}"


def _shown(value: float) -> str:
    spelled = json_number(value)
    return spelled if isinstance(spelled, str) else f"{value:.4g}"


def _no_norms(num: int, *, num_steps: int) -> str:
    if num < num_steps:
        return f"of {count(num, 'step')} no gradient norm is known"
    return "gradient norms were not recorded (trimtab.Run measures them where it is given a max_grad_norm)"
