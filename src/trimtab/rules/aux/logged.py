"""What a loop logs of a term, judged against the term.

Enters: a `TermWeight` and a logged number. Leaves: a finding, or none. Invariant: a logged value is right where it is
the term, or the term times its weight: both are usual. Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import replace

from trimtab.rules.aux.factors import conventions, fits, is_power_of_ten
from trimtab.rules.aux.values import TermWeight, finding_of
from trimtab.text import plain
from trimtab.watched import WatchFinding


def judge_logged(term: TermWeight, logged: float, *, where: str, is_window: bool) -> WatchFinding | None:
    """The finding about one logged number.

    Args:
        term: What was measured of the term.
        logged: What the loop calls its value.
        where: What it is, as a sentence begins.
        is_window: Whether it is of a whole window.
    """
    real = term.value
    if real is None or not math.isfinite(real) or real == 0.0 or not math.isfinite(logged):
        return None
    if fits(logged, real) or fits(logged, term.stated * real):
        return None
    factor = logged / real
    if not is_power_of_ten(factor) and term.found is not None and fits(factor * term.stated, term.found):
        return None  # what is logged is what is in the loss, and the finding about its weight tells the factor
    count = term.sizes.accumulation
    said = f"{where} of {plain(term.name)} is {logged:.4g}, the term is {real:.4g}"
    sizes = term.sizes if is_window else replace(term.sizes, accumulation=1)
    if is_window and any(fits(logged, count * right) for right in (real, term.stated * real)):
        what = f"it is the sum over {count} micro-batches; log their mean"
    elif term.stated not in (0.0, 1.0) and fits(factor, term.stated**2):
        what = f"the weight squared ({term.stated:g} x {term.stated:g}) is in it; log the term, or weight x term"
    elif is_power_of_ten(factor):
        what = f"logged / real = {factor:.3g}; log it without that factor, or compare trends within one scale only"
    elif named := conventions(factor, sizes=sizes):
        what = f"a factor of {' or '.join(named)}; say so in the log, or log the term as it is stated"
    else:
        what = f"logged / real = {factor:.4g}; log the term of the loss, or compare trends within one scale only"
    return finding_of("logged_differs", term, f"{said}: {what}", logged=logged)
